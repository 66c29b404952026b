"""How messages are settled: together, once more if need be, and with the newest receipt."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker import outcomes, settler
from leasehold.worker.adapters import (
    Delivery,
    Denied,
    Fault,
    Lease,
    LeaseGone,
    Outgoing,
    QueueError,
    Release,
    Saved,
    Unreachable,
)
from leasehold.worker.errors import Cancelled, GiveBack, Poison, Retry
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind
from leasehold.worker.settler import CLOSING_S, threads_for
from leasehold.worker.worker import Worker
from tests.unit.worker.worker.support import (
    Heard,
    Held,
    filled,
    handle_all,
    left,
    running,
    stop_beside,
    wait_for,
)


def test_what_comes_meanwhile_is_completed_together() -> None:
    """While one call is under way the others wait for the next, and go in one."""
    queue, heard, all_handled = filled(*map(str, range(50))), Heard(), threading.Event()
    gate = queue.faults.hold(method="complete")

    def handle(message: Message) -> None:
        if message.text == "1":
            gate.wait_until_entered()  # with the first message
        elif message.text == "49":
            all_handled.set()

    with running(handle, queue, concurrency=1, prefetch=60, hooks=[heard]):
        wait_for(all_handled)
        gate.open()
        heard.wait_until(settled=50)
    assert 2 <= queue.calls["complete"] <= 3


def test_single_message_is_completed_without_delay() -> None:
    """When nothing is under way a message is completed at once."""
    queue, heard = filled("x"), Heard()
    with running(lambda _: None, queue, hooks=[heard], time=ManualTime()):
        heard.wait_until(settled=1)  # no time has passed
    assert left(queue) == []


def test_completion_whose_answer_was_lost_is_done() -> None:
    """The second try says that the message is gone: it was the first one that completed it."""
    queue, heard = filled("x"), Heard()
    queue.faults.fail(method="complete", carried_out=True)
    worker = handle_all(lambda _: None, queue, hooks=[heard])
    assert heard.settlements == [("x", "done")]
    assert heard.losses == []
    assert worker.stats.count(Kind.DONE) == 1
    assert queue.calls["complete"] == 2


def test_completion_that_was_not_carried_out_is_tried_again() -> None:
    """After a call that never arrived the message is completed with the next one."""
    time = ManualTime()
    queue = filled("x", time=time)
    queue.faults.fail(3, method="complete")
    with running(lambda _: None, queue, time=time) as worker:
        time.advance_until(lambda: not left(queue), step_s=0.1)
    assert worker.stats.count(Kind.DONE) == 1


def test_one_that_fails_does_not_spoil_the_others() -> None:
    """A refusal for one message of a call is about that one only."""
    queue, heard = filled("a", "b", "c"), Heard()
    queue.faults.refuse("orders-2", LeaseGone("somebody else has it"))
    worker = handle_all(lambda _: None, queue, hooks=[heard], session=False)
    assert sorted(heard.settlements) == [("a", "done"), ("c", "done")]
    assert [body for body, _ in heard.losses] == ["b"]
    assert worker.stats.count(Kind.LOST) == 1


def test_message_taken_by_somebody_else_is_lost_not_done() -> None:
    """Who finds at the end that the lease is gone does not count the message as done."""
    queue, heard = filled("x"), Heard()

    def handle(_message: Message) -> None:
        queue.lose_sessions()
        queue.receive(1, visibility_timeout_s=30)

    worker = handle_all(handle, queue, hooks=[heard])
    assert worker.stats.count(Kind.DONE) == 0
    assert worker.stats.count(Kind.LOST) == 1
    assert left(queue) == [("x", 2)]


def test_newest_receipt_is_used() -> None:
    """After a save and many renewals the message is completed with the last receipt."""
    time = ManualTime()
    queue, handler, heard = filled("x", time=time), Held(time), Heard()
    with running(handler, queue, time=time, lease=5, hooks=[heard]):
        handler.wait_until_begun()
        handler.messages[0].checkpoint({"at": 1})
        time.advance_until(lambda: queue.calls["renew"] >= 3, step_s=0.5)
        handler.go_on()
        heard.wait_until(settled=1)
    assert heard.settlements == [("x", "done")]
    assert heard.losses == []


def test_done_message_that_comes_again_is_not_worked_on() -> None:
    """When a completion could not be confirmed, a redelivery is completed without work."""
    time = ManualTime()
    queue, seen = filled("x", time=time), []
    queue.faults.fail(1000, method="complete")
    with running(
        lambda message: seen.append(message.text),
        queue,
        time=time,
        lease=5,
        session=False,
    ) as worker:
        time.advance_until(lambda: worker.stats.queues[0].settle_errors == 1)
        queue.faults.clear()
        time.advance_until(lambda: not left(queue))
    assert seen == ["x"]
    assert worker.stats.queues[0].redone >= 1
    assert sum(worker.stats.queues[0].handled) == 1


def test_refused_settlement_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """What the service will never grant is not tried again, and is said loudly."""
    queue, heard = filled("x"), Heard()
    queue.faults.fail(method="complete", error=Denied("no right to delete"))
    with caplog.at_level(logging.ERROR, "leasehold.worker"):
        worker = handle_all(lambda _: None, queue, session=False, hooks=[heard])
    assert queue.calls["complete"] == 1
    assert worker.stats.queues[0].settle_errors == 1
    assert "no right to delete" in caplog.text
    assert heard.settlements == []
    assert heard.losses == [("x", "it could not be settled: no right to delete")]
    assert worker.stats.count(Kind.DONE) == 0
    assert worker.stats.count(Kind.LOST) == 1


def test_service_that_asks_for_time_gets_it() -> None:
    """A retry waits as long as the service asks for."""
    time = ManualTime()
    queue = filled("x", time=time)
    busy = Unreachable("not now", outcome_unknown=False, retry_after_s=7)
    queue.faults.fail(method="complete", error=busy)
    with running(lambda _: None, queue, time=time):
        time.advance_until(lambda: queue.calls["complete"] == 1, step_s=0.1)
        time.advance(6.9)
        assert queue.calls["complete"] == 1
        time.advance(0.2)
        assert queue.calls["complete"] == 2


def test_burying_is_tried_again() -> None:
    """A message that is set aside is so once, also when an answer was lost."""
    queue, heard = filled("x"), Heard()
    queue.faults.fail(method="bury", carried_out=True)

    def handle(_message: Message) -> None:
        raise Poison("no")

    handle_all(handle, queue, hooks=[heard])
    assert heard.settlements == [("x", "poisoned")]
    assert len(queue.buried) == 1


def poisoned(_message: Message) -> None:
    raise Poison("it can never work")


def test_refused_burial_is_not_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    """What the service did not set aside is lost; when it comes again nobody works on it."""
    time = ManualTime()
    queue, heard, seen = filled("x", time=time), Heard(), []
    queue.faults.fail(method="bury", error=Denied("no right to the poison queue"))

    def handle(message: Message) -> None:
        seen.append(message.dequeue_count)
        raise Poison("it can never work")

    with running(handle, queue, time=time, lease=5, hooks=[heard], session=False) as worker:
        heard.wait_until(lost=1)
        assert heard.settlements == []
        assert worker.stats.count(Kind.POISONED) == 0
        time.advance_until(lambda: bool(heard.settlements), step_s=1)
    assert seen == [1]
    assert heard.settlements == [("x", "poisoned")]
    assert queue.buried[0][1].text == "it can never work"
    assert "no right to the poison queue" in caplog.text


def test_burial_in_several_requests_is_not_taken_for_done() -> None:
    """Where one copies and deletes, LeaseGone after no answer means what it says."""
    able = replace(MEMORY, server_poison=False)
    queue, heard = filled("x", capabilities=able), Heard()
    queue.faults.fail(method="bury")
    queue.faults.fail(method="bury", error=LeaseGone("the receipt is not the newest one"))
    worker = handle_all(poisoned, queue, hooks=[heard], session=False)
    assert heard.settlements == []
    assert [body for body, _ in heard.losses] == ["x"]
    assert worker.stats.count(Kind.POISONED) == 0
    assert left(queue) == [("x", 1)]


def test_message_set_aside_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The line comes when it is done, with the reason."""
    with caplog.at_level(logging.INFO, "leasehold.worker"):
        handle_all(poisoned, filled("x"))
    (line,) = [each for each in caplog.records if "it can never work" in each.getMessage()]
    assert line.levelno == logging.ERROR
    assert "was set aside" in line.getMessage()


def test_error_of_an_adapter_stops_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in an adapter costs the messages of that call, and is logged."""
    queue = filled("x", "y")
    complete, calls = queue.complete, []

    def broken(leases: Any, **_: Any) -> list[QueueError | None]:
        calls.append(leases)
        if len(calls) == 1:
            raise ZeroDivisionError
        return complete(leases)

    monkeypatch.setattr(queue, "complete", broken)
    with caplog.at_level(logging.ERROR, "leasehold.worker"):
        worker = handle_all(lambda _: None, queue, concurrency=1, session=False)
    assert worker.stats.queues[0].settle_errors == 1
    assert "ZeroDivisionError" in caplog.text
    assert len(calls) == 2
    assert worker.stats.count(Kind.DONE) == 1
    assert worker.stats.count(Kind.LOST) == 1


def test_worker_that_stops_does_not_try_for_ever() -> None:
    """With long leases and a service that is away, stopping takes a bounded time."""
    time = ManualTime()
    queue, handler = filled("x", time=time), Held(time)
    worker = Worker(handler, queue, time=time, lease=3600, session=False, wait_s=0)
    worker.start()
    handler.wait_until_begun()
    queue.faults.fail(10_000, method="complete")
    thread = stop_beside(worker, time, 30)
    handler.go_on()
    began_s = time.monotonic_s()
    time.advance_until(lambda: not thread.is_alive(), step_s=0.5)
    assert time.monotonic_s() - began_s <= CLOSING_S + 1
    assert worker.stats.queues[0].settle_errors == 1


@pytest.mark.parametrize(
    ("concurrency", "max_settle", "threads"),
    [(32, 1000, 1), (1, 1, 1), (8, 1, 8), (100, 1, 16), (32, 16, 2), (33, 16, 3)],
)
def test_calls_at_once(concurrency: int, max_settle: int, threads: int) -> None:
    """As many calls are under way as it takes to settle what handlers finish together."""
    assert threads_for(concurrency, max_settle) == threads


def test_save_that_fails_changes_nothing() -> None:
    """A checkpoint without an answer is raised in the handler, and the work can go on."""
    queue, seen = filled("x"), []

    def handle(message: Message) -> None:
        queue.faults.fail(method="save")
        with pytest.raises(Unreachable):
            message.checkpoint({"at": 1})
        seen.append(message.saved)
        message.checkpoint({"at": 2})
        seen.append(message.saved)

    handle_all(handle, queue)
    assert seen == [None, Saved(state={"at": 2})]
    assert left(queue) == []


@pytest.mark.parametrize("asked_s", [600, 29])
def test_service_that_asks_for_more_time_than_there_is(asked_s: float) -> None:
    """What is done is tried again within its lease, or it would be done twice."""
    time = ManualTime()
    queue, seen = filled("x", time=time), []
    busy = Unreachable("not now", outcome_unknown=False, retry_after_s=asked_s)
    queue.faults.fail(2, method="complete", error=busy)
    with running(lambda m: seen.append(m.text), queue, time=time, lease=30, session=False):
        time.advance_until(lambda: not left(queue))
    assert seen == ["x"]
    assert time.monotonic_s() < 1000 + 30


def test_end_of_a_worker_does_not_wait_for_what_a_service_asks() -> None:
    """A try that lies hours ahead is made at the end of the time for that, and is the last."""
    time = ManualTime()
    queue = filled("x", time=time)
    busy = Unreachable("not now", outcome_unknown=False, retry_after_s=7200)
    queue.faults.fail(2, method="complete", error=busy)
    worker = Worker(lambda _: None, queue, time=time, wait_s=0, lease=36_000, session=False)
    worker.start()
    time.advance_until(lambda: queue.calls["complete"] == 1, step_s=0.1)
    began_s = time.monotonic_s()
    thread = stop_beside(worker, time)
    time.advance_until(lambda: worker.stats.queues[0].settle_errors == 1, step_s=0.5)
    assert time.monotonic_s() - began_s <= CLOSING_S + 1
    assert queue.calls["complete"] == 2
    time.advance_until(lambda: not worker.is_running and worker._ended.is_set(), step_s=0.5)
    thread.join()


def test_one_that_cannot_be_settled_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What goes wrong with one message of a batch leaves the rest to be completed."""
    queue, heard, ready = filled("a", "b", "c"), Heard(), threading.Barrier(3, timeout=20)
    real = outcomes.settlement_of

    def settlement_of(outcome: Any, delivery: Any, **options: Any) -> Any:
        if delivery.body == b"b":
            raise OverflowError("a fault of the library")
        return real(outcome, delivery, **options)

    monkeypatch.setattr(settler, "settlement_of", settlement_of)

    def handle(message: Message) -> None:
        ready.wait()
        if message.text == "b":
            raise ValueError("no")

    with running(handle, queue, concurrency=3, hooks=[heard]) as worker:
        heard.wait_until(settled=2, lost=1)
    assert sorted(heard.settlements) == [("a", "done"), ("c", "done")]
    assert heard.losses[0][0] == "b"
    assert "a fault of the library" in caplog.text
    assert worker._core.limiter.taken == 0


def test_endless_delay_is_the_longest_that_there_is() -> None:
    """A handler may say that a message shall not come again soon."""
    queue, heard = MemoryQueue("orders"), Heard()
    queue.put([Outgoing(body="a", time_to_live_s=-1)])

    def handle(_message: Message) -> None:
        raise Retry(math.inf)

    handle_all(handle, queue, hooks=[heard])
    assert heard.settlements == [("a", "failed")]
    assert queue.depth().delayed == 1


def test_cancelled_that_nobody_asked_for_comes_more_and_more_slowly() -> None:
    """A handler that gives up in that way is not called without end at full speed."""
    time = ManualTime()
    queue, times = filled("x", time=time), []

    def handle(message: Message) -> None:
        times.append(time.monotonic_s() - 1000)
        if len(times) == 6:
            return
        raise Cancelled("I do not feel like it")

    with running(handle, queue, time=time, session=False) as worker:
        time.advance_until(lambda: not left(queue), step_s=0.1)
    assert worker.stats.count(Kind.INTERRUPTED) == 5
    assert times[-1] >= 0.1 + 0.2 + 0.4 + 1


def test_refusal_that_comes_after_the_lease_is_no_confirmation() -> None:
    """Only within the lease does it say that an earlier try was carried out.

    After that it may be the lease that has ended: nothing was completed, but the work is done.
    """
    time = ManualTime()
    queue, heard, seen = filled("x", time=time, strict=True), Heard(), []
    queue.faults.fail(method="complete")
    with running(
        lambda message: seen.append(message.text),
        queue,
        time=time,
        lease=10,
        session=False,
        hooks=[heard],
    ) as worker:
        time.advance_until(lambda: queue.calls["complete"] == 1, step_s=0.05)
        queue.faults.slow(12, method="complete")
        time.advance_until(lambda: not left(queue), step_s=0.5)
        heard.wait_until(settled=1)
    assert seen == ["x"]
    assert heard.settlements == [("x", "done")]
    assert len(heard.losses) == 1
    assert worker.stats.queues[0].redone == 1


class Limited(MemoryQueue):
    """Keeps how long requests might take that settle."""

    limits: list[float | None]

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        self.limits = [*getattr(self, "limits", []), timeout_s]
        return super().complete(leases, timeout_s=timeout_s)

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        self.limits = [*getattr(self, "limits", []), timeout_s]
        return super().release(releases, timeout_s=timeout_s)

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        self.limits = [*getattr(self, "limits", []), timeout_s]
        super().bury(delivery, receipt, fault, timeout_s=timeout_s)


@pytest.mark.parametrize(("lease_s", "limit_s"), [(12, 4), (600, 10), (1, 0.5)])
@pytest.mark.parametrize("error", [None, GiveBack(), Poison("no")])
def test_requests_that_settle_leave_time_for_one_more(
    error: Exception | None, lease_s: int, limit_s: float
) -> None:
    """A connection that has gone silent must not use up the lease of work that is done."""
    queue = Limited("q")
    queue.put([Outgoing(body="x")])
    raised: list[Exception] = [] if error is None else [error]

    def handle(_message: Message) -> None:
        if raised:
            raise raised.pop()

    handle_all(handle, queue, lease=lease_s)
    assert set(queue.limits) == {limit_s}


def test_last_requests_do_not_outlast_the_end() -> None:
    """What is sent shortly before a worker gives up has only the time that is left."""
    time = ManualTime()
    queue = Limited("q", time=time)
    queue.put([Outgoing(body="x")])
    worker = Worker(lambda _: None, queue, time=time, lease=3600, session=False, wait_s=0)
    queue.faults.fail(10_000, method="complete")
    worker.start()
    time.advance_until(lambda: queue.calls["complete"] >= 1, step_s=0.1)
    thread = stop_beside(worker, time)
    time.advance_until(worker._ended.is_set, step_s=0.1)
    thread.join()
    assert queue.limits[0] == 10
    assert queue.limits[-1] is not None
    assert queue.limits[-1] < 6
