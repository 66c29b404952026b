"""A manager whose threads have failed says so: nobody works on without leases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from leasehold.testing import ManualTime
from leasehold.worker.adapters.protocol import Outgoing
from leasehold.worker.leases import HeldState, LeaseLost, LeaseManager, RenewerStopped
from tests.patience import PATIENCE_S
from tests.unit.worker.leases.support import START_S, THIRTY, Bench, Queue, Told


class FailingTime(ManualTime):
    """Time by which nobody can wait any more once it is broken."""

    broken: BaseException | None = None

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Wait, or fail."""
        super().wait(condition, timeout_s)
        if self.broken is not None:
            raise self.broken


@pytest.mark.parametrize("error", [RuntimeError("a fault"), SystemExit(1), MemoryError()])
def test_the_timer_dies(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """All leases are lost, loudly; nothing can be settled, and nothing more is kept."""
    time, told = FailingTime(START_S), Told()
    manager = LeaseManager(THIRTY, time=time, hooks=told)
    queue = Queue(time)
    queue.put([Outgoing(body=str(number)) for number in range(3)])
    deliveries = queue.receive(3, visibility_timeout_s=30)
    helds = [manager.keep(queue, each, asked_at_s=START_S) for each in deliveries]
    lost: list[str] = []
    for held in helds:
        held.on_loss(lambda loss: lost.append(loss.kind))
    time.broken = error
    time.jump(15)
    manager._timer.join(PATIENCE_S)
    assert manager.failure is error
    assert told.ends == [error]
    assert lost == ["renewer"] * 3
    assert [held.state for held in helds] == [HeldState.LOST] * 3
    for call in (helds[0].check, helds[1].begin_settling):
        with pytest.raises(LeaseLost, match="leases are no longer renewed"):
            call()
    with pytest.raises(RenewerStopped):
        manager.keep(queue, deliveries[0], asked_at_s=START_S)
    assert caplog.records[0].levelname == "CRITICAL"
    manager.close()


def test_the_sending_dies(make_bench: Callable[..., Bench]) -> None:
    """A fault of the manager's own in a thread that sends is no less fatal."""
    bench = make_bench()
    held = bench.keep_one()
    bench.queue.before_renew = _exit
    bench.time.advance(15)
    assert isinstance(bench.manager.failure, SystemExit)
    assert held.state is HeldState.LOST
    assert bench.manager.held == 0


def _exit() -> None:
    raise SystemExit(1)


def test_a_hook_that_fails_at_the_end(make_bench: Callable[..., Bench]) -> None:
    """Even if the hook for the end fails, all messages are told."""
    bench = make_bench()
    bench.told.stopped = lambda _: 1 / 0  # type: ignore[assignment,method-assign]
    bench.keep(2)
    bench.queue.before_renew = _exit
    bench.time.advance(15)
    assert [loss.kind for loss in bench.losses] == ["renewer"] * 2
    assert bench.manager.counts.hook_errors == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_keeps_no_leases(make_bench: Callable[..., Bench]) -> None:
    """Threads do not come along into a fork, so a manager does not pretend to work there."""
    bench = make_bench()
    (delivery,) = bench.receive()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            bench.manager.keep(bench.queue, delivery, asked_at_s=START_S)
        except RenewerStopped:
            os.write(writer, b"refused")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read() == b"refused"
    os.waitpid(child, 0)


def test_it_does_not_fail_twice(bench: Bench) -> None:
    """The first reason counts; after closing there is none."""
    bench.manager._fail(ValueError("first"))
    bench.manager._fail(ValueError("second"))
    assert str(bench.manager.failure) == "first"
    assert len(bench.told.ends) == 1


@pytest.fixture(autouse=True)
def _no_warnings_of_threads() -> Iterator[None]:
    """A thread that ends by an error of its own would be reported by pytest as well."""
    before = threading.excepthook
    raised: list[object] = []
    threading.excepthook = raised.append
    yield
    threading.excepthook = before
    assert raised == []
