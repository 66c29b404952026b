"""Messages that expire while a worker has them, and leases that are short beside a long poll."""

from __future__ import annotations

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker import MessageExpired
from leasehold.worker.adapters import Delivery, Outgoing
from leasehold.worker.errors import LeaseLost, Retry
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind
from leasehold.worker.retry_policy import RetryRule
from tests.unit.worker.worker.support import Heard, Held, filled, handle_all, running


class Told(Heard):
    """Hears of what has expired as well."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: list[str] = []

    def expired(self, delivery: Delivery, why: str) -> None:
        assert "time to live" in why
        self.gone.append(delivery.body.decode())


def test_work_that_ends_before_its_message_expires_is_completed() -> None:
    """14 s to live, leases of 8 s, 12 s of work."""
    time = ManualTime()
    queue, told, handler = MemoryQueue("orders", time=time), Told(), Held(time)
    queue.put([Outgoing(body="x", time_to_live_s=14)])
    with running(handler, queue, time=time, lease=8, hooks=[told], session=False) as worker:
        handler.wait_until_begun()
        for _ in range(24):
            time.advance(0.5)
        handler.go_on()
        told.wait_until(settled=1)
    assert worker.stats.count(Kind.DONE) == 1
    assert (told.losses, queue.depth().total) == ([], 0)


def test_work_that_outlives_its_message_ends_as_expired(caplog: pytest.LogCaptureFixture) -> None:
    """The handler gets an error of its own, hooks hear of it, and the log does not say "again"."""
    time = ManualTime()
    queue, told, handler = MemoryQueue("orders", time=time), Told(), Held(time)
    queue.put([Outgoing(body="x", time_to_live_s=14)])
    seen: list[LeaseLost] = []

    def handle(message: Message) -> None:
        try:
            handler(message)
        except LeaseLost as error:
            seen.append(error)
            raise

    with running(handle, queue, time=time, lease=8, hooks=[told], session=False) as worker:
        handler.wait_until_begun()
        time.advance_until(lambda: bool(told.gone), step_s=0.5, limit_s=16)
    assert [type(error) for error in seen] == [MessageExpired]
    assert told.gone == ["x"]
    assert [body for body, _ in told.losses] == ["x"]
    assert worker.stats.count(Kind.LOST) == 1
    assert "comes again" not in caplog.text.replace("does not come again", "")


def test_a_message_that_comes_late_in_a_long_poll_keeps_its_lease() -> None:
    """The wait of the receive is not taken off the lease, however short that is."""
    time = ManualTime()
    queue, told, handler = MemoryQueue("orders", time=time), Told(), Held(time)
    options = {"time": time, "lease": 8, "hooks": [told], "session": False, "wait_s": 20}
    with running(handler, queue, **options) as worker:
        time.advance(15)
        queue.put([Outgoing(body="late")])
        handler.wait_until_begun()
        time.advance(30)
        assert told.losses == []
        handler.go_on()
        told.wait_until(settled=1)
    queue.close()  # ends the wait of the last receive
    assert worker.stats.count(Kind.DONE) == 1


def test_what_came_too_late_is_told_and_comes_again() -> None:
    """An answer that takes longer than the lease brings nothing that may be worked on."""
    time = ManualTime()
    queue, told, handler = filled("x", time=time), Told(), Held(time)
    gate = queue.faults.hold(method="receive", after=True)
    with running(handler, queue, time=time, lease=8, hooks=[told], session=False) as worker:
        gate.wait_until_entered()
        time.advance(9)
        gate.open()
        time.advance_until(lambda: bool(handler.messages), step_s=0.5)
        assert [body for body, _ in told.losses] == ["x"]
        assert "before it was registered" in told.losses[0][1]
        assert [each.dequeue_count for each in handler.messages] == [2]
        handler.go_on()
        told.wait_until(settled=1)
    assert worker.stats.count(Kind.DONE) == 1


def test_a_retry_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It is what the handler asks for, not a fault; other exceptions have their traceback."""
    asked = [Retry(0, reason="not yet there"), ValueError("broken"), None]

    def handle(_message: Message) -> None:
        error = asked.pop(0)
        if error is not None:
            raise error

    handle_all(handle, filled("x"), retries=RetryRule(initial_s=0))
    retried, failed = (each for each in caplog.records if "at delivery" in each.getMessage())
    assert "not yet there" in retried.getMessage()
    assert retried.exc_info is None
    assert failed.exc_info is not None
