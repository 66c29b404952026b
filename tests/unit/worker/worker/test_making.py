"""What a worker is made of, and what is refused."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import pickle
from collections import Counter
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MEMORY
from leasehold.worker.adapters import Outgoing
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import Retry, UnsafeWorker
from leasehold.worker.leases import LeaseManager, LeaseSettings
from leasehold.worker.message import Message
from leasehold.worker.options import Options
from leasehold.worker.outcomes import Kind
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.threads import LateRenewals, wait_for
from leasehold.worker.worker import Worker
from tests.unit.worker.worker import handlers_of_tests as handlers
from tests.unit.worker.worker.support import Held, filled, handle_all, running


def nothing(_message: Message) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency is 0; with threads it must be 1 to 10,000"),
        ({"concurrency": 300, "runner": "processes"}, "must be 1 to 256"),
        ({"runner": "fibers"}, "runner is 'fibers'"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"renewer": "nobody"}, "renewer is 'nobody'"),
        ({"renewer": "process"}, "needs a way to open orders once more"),
        ({"renewer": "process", "time": ManualTime()}, "cannot go by ManualTime"),
        ({"wait_s": -1}, "wait_s is -1"),
        ({"poll_s": 0}, "poll_s is 0"),
        ({"report_s": 0}, "report_s is 0"),
        ({"lease": 0}, "visibility_timeout_s is 0"),
        ({"lease": 700_000}, "visibility_timeout_s is 700000"),
        ({"retries": RetryRule(cap_s=-1)}, "retries.cap_s is -1"),
        ({"poison": PoisonRule(max_failures=0)}, "poison.max_failures is 0"),
    ],
)
def test_unsafe_settings_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    """Each setting that cannot be is named with what it has to be."""
    with pytest.raises(UnsafeWorker, match=named):
        Worker(handlers.nothing, filled(), **options)


def test_all_problems_are_named_at_once() -> None:
    """Whoever has made three mistakes hears of three."""
    settings = LeaseSettings(
        visibility_timeout_s=10,
        timer_interval_s=6,
        message_minimal_life_s=5,
        message_timeout_s=60,
        call_timeout_s=1,
    )
    with pytest.raises(UnsafeWorker) as caught:
        Worker(nothing, {filled(): 0}, concurrency=-1, lease=settings)
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 3
    assert "concurrency is -1" in problems
    assert "the weight of orders is 0" in problems
    assert "visibility_timeout_s is 10; it must be above timer_interval_s" in problems
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.problems == caught.value.problems


def test_queues_have_different_names() -> None:
    """Two queues of one name could not be told apart."""
    with pytest.raises(UnsafeWorker, match="two have the same name"):
        Worker(nothing, [filled(), filled()])


def test_there_is_a_queue() -> None:
    """A worker without a queue has nothing to do."""
    with pytest.raises(UnsafeWorker, match="queues: at least one is needed"):
        Worker(nothing, [])


def test_handlers_fit_the_queues() -> None:
    """Each queue has a handler, and each handler a queue."""
    with pytest.raises(UnsafeWorker) as caught:
        Worker({"mail": nothing}, filled(name="print"))
    assert [problem.partition(":")[2] for problem in caught.value.problems] == [
        " queue print has no handler",
        " mail has a handler but is not one of the queues",
    ]


def test_handler_can_be_called() -> None:
    """What cannot be called is no handler."""
    with pytest.raises(UnsafeWorker, match="'oh' cannot be called"):
        Worker("oh", filled())  # type: ignore[arg-type]


def test_service_sets_bounds_to_leases() -> None:
    """A lease that the service does not know is refused, with the name of the queue."""
    short = dataclasses.replace(MEMORY, service="small", max_lease_s=20)
    with pytest.raises(
        UnsafeWorker, match=r"service small supports no other lease lengths \(queue orders\)"
    ):
        Worker(nothing, filled(capabilities=short), lease=30)


def test_memory_of_another_process_cannot_be_opened() -> None:
    """A spec of a queue in memory is refused where it is opened."""
    with pytest.raises(Exception, match="another process cannot open it"):
        Worker(nothing, QueueSpec(service="memory", queue="orders"))


def test_clients_opened_by_the_worker_are_closed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the worker has opened it closes; what it was given stays open."""
    queue, closed = filled(), []
    monkeypatch.setattr(QueueSpec, "open", lambda _: queue)
    monkeypatch.setattr(queue, "close", lambda: closed.append(True))
    handle_all(nothing, queue)
    assert closed == []
    handle_all(nothing, "memory:///orders")
    assert closed == [True]
    with pytest.raises(UnsafeWorker):
        Worker(nothing, "memory:///orders", concurrency=0)
    assert closed == [True, True]


@pytest.mark.parametrize(("lease_s", "wait_s"), [(30, 12.0), (5, 2.0), (1, 0.4), (600, 20.0)])
def test_wait_leaves_enough_of_the_lease(lease_s: int, wait_s: float) -> None:
    """A receive does not wait so long that the lease it brings would be half over."""
    settings = LeaseSettings.of(lease_s)
    manager = LeaseManager(settings, time=ManualTime())
    options = Options(
        concurrency=1,
        runner="threads",
        lease=settings,
        as_set=False,
        prefetch=None,
        ordered=False,
        concurrency_per_group=None,
        retries=RetryRule(),
        poison=PoisonRule(),
        session=True,
        renewer="thread",
        wait_s=20,
        poll_s=1,
        report_s=None,
    )
    assert wait_for(options, manager, 60) == pytest.approx(wait_s)
    assert wait_for(options, manager, 0) == 0
    manager.close()


def test_names_for_people() -> None:
    """A worker is called like its handler unless it is given a name; no two are held alike."""
    assert Worker(nothing, filled()).name == "tests.unit.worker.worker.test_making:nothing"
    assert Worker(nothing, filled(), name="mail").name == "mail"
    assert "mail, new" in repr(Worker(nothing, filled(), name="mail"))


# --- several queues ------------------------------------------------------------------------------


def test_queues_share_the_worker_by_weight() -> None:
    """While both queues have messages, starts are in proportion to their weights."""
    time = ManualTime()
    heavy = filled(*["h"] * 300, name="heavy", time=time)
    light = filled(*["l"] * 300, name="light", time=time)
    first, order = Held(time), []

    def handle(message: Message) -> None:
        if not first.messages:
            first(message)
        else:
            order.append(message.text)

    options: dict[str, Any] = {"concurrency": 1, "prefetch": 40, "time": time}
    with running(handle, {heavy: 3, light: 1}, **options) as worker:
        first.wait_until_begun()
        time.settle()
        buffered = worker.snapshot().buffered_by_queue
        first.go_on()
        time.advance_until(lambda: len(order) >= 400, step_s=0.1)
    # Of the buffer each had its share, by weight, and so each had its turns.
    assert buffered["heavy"] >= 27
    assert buffered["light"] >= 9
    assert 26 <= Counter(order[:36])["h"] <= 28


@pytest.mark.parametrize("prefetch", [0, 1, 20])
def test_no_queue_starves(prefetch: int) -> None:
    """A queue with little weight is served while another one never runs dry."""
    heavy = filled(*["h"] * 400, name="heavy")
    light = filled(*["l"] * 5, name="light")
    order: list[str] = []
    handle_all(
        lambda message: order.append(message.text),
        {heavy: 50, light: 1},
        concurrency=2,
        prefetch=prefetch,
    )
    assert Counter(order) == {"h": 400, "l": 5}
    assert max(place for place, text in enumerate(order) if text == "l") < 350


def test_empty_queue_keeps_no_hand_from_working() -> None:
    """With one of two queues empty, all hands work for the other one."""
    busy, empty, handler = filled(*"abcd", name="busy"), filled(name="empty"), Held()
    with running(handler, [busy, empty], concurrency=4):
        handler.wait_until_begun(4)
    assert busy.depth().total == 0


def test_queue_with_trouble_does_not_stop_the_others() -> None:
    """While one queue cannot be reached the other one is worked off."""
    broken, fine = filled("x", name="broken"), filled(*"abc", name="fine")
    broken.faults.fail(10_000, method="receive")
    handler = Held()
    with running(handler, [broken, fine], concurrency=4):
        handler.wait_until_begun(3)
    assert fine.depth().total == 0
    assert broken.depth().total == 1


# --- late renewals -------------------------------------------------------------------------------


def test_held_interpreter_is_said_loudly(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that holds the interpreter lock for long is named in a warning."""
    queue = filled("x")
    with caplog.at_level(logging.WARNING, "leasehold.worker"):
        worker = handle_all(handlers.hold_for_a_while, queue, lease=1, concurrency=1)
    assert worker.stats.late_renewals >= 1
    assert "RENEWALS WERE 0." in caplog.text
    assert "handlers_of_tests:hold_for_a_while (message orders-1" in caplog.text
    assert 'runner="processes"' in caplog.text
    assert ctypes.pythonapi is not None


def test_little_lag_is_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    """Half of the minimal life is the limit."""
    time = ManualTime()
    queue, handler = filled("x", time=time), Held(time)
    with running(handler, queue, time=time, name="mail") as worker:
        handler.wait_until_begun()
        late = LateRenewals(worker._core, 10)
        late.note(5)
        assert worker.stats.late_renewals == 0
        time.advance(6)
        late.note(5.1)
    assert worker.stats.late_renewals == 1
    assert "5.1 s LATE" in caplog.text
    assert "(message orders-1" in caplog.text


def test_lag_is_said_once_for_each_message(caplog: pytest.LogCaptureFixture) -> None:
    """While it goes on every round is counted, and no message is named twice."""
    time = ManualTime()
    queue, handler = filled("x", "y", time=time), Held(time)
    with running(handler, queue, time=time, concurrency=2, session=False) as worker:
        handler.wait_until_begun(2)
        late = LateRenewals(worker._core, 1)
        for _ in range(3):
            time.advance(6)
            late.note(5)
        assert worker.stats.late_renewals == 3
        (said,) = [each for each in caplog.messages if "LATE" in each]
        assert "message orders-1" in said
        assert "message orders-2" in said
        time.advance(61)
        late.note(5)
        assert len([each for each in caplog.messages if "LATE" in each]) == 2


def test_lag_of_a_new_message_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A message that joins in is named alone; so is a lag that is nobody's fault, once."""
    time = ManualTime()
    queue, handler = filled("x", time=time), Held(time)
    with running(handler, queue, time=time, concurrency=2, session=False) as worker:
        late = LateRenewals(worker._core, 1)
        handler.wait_until_begun()
        time.advance(6)
        late.note(5)
        queue.put([Outgoing(body="y")])
        time.advance_until(lambda: len(handler.messages) == 2)
        time.advance(6)
        late.note(5)
        late.note(1_000)
        late.note(1_000)
    first, second, third = [each for each in caplog.messages if "LATE" in each]
    assert ("orders-1" in first, "orders-2" in first) == (True, False)
    assert ("orders-1" in second, "orders-2" in second) == (False, True)
    assert "the machine, or code other than" in third


def test_manager_leaves_it_to_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """One stall is one line in the log, not one of the manager and one of the worker."""
    time = ManualTime()
    queue, handler = filled("x", time=time), Held(time)
    with running(handler, queue, time=time, lease=30, session=False) as worker:
        handler.wait_until_begun()
        time.jump(25)
        time.advance(0.5)
        assert worker.stats.late_renewals == 1
    assert len([each for each in caplog.messages if "late" in each.lower()]) == 1


def test_lag_without_a_suspect(caplog: pytest.LogCaptureFixture) -> None:
    """When no handler was at work all that time, none is accused."""
    worker = Worker(nothing, filled())
    LateRenewals(worker._core, 1).note(60)
    assert "the machine, or code other than the handlers" in caplog.text


def test_retry_can_be_pickled() -> None:
    """What handlers raise can be sent between processes."""
    copy = pickle.loads(pickle.dumps(Retry(3.5, "later")))
    assert (copy.delay_s, copy.reason) == (3.5, "later")
    assert Kind.DONE.value == "done"
