"""Leases that are lost, sessions that end, operators who want work stopped."""

from __future__ import annotations

import asyncio
import threading

import pytest

from leasehold.testing import ManualTime
from leasehold.worker import leases
from leasehold.worker.adapters import LeaseGone, Outgoing
from leasehold.worker.core import Work
from leasehold.worker.errors import Cancelled, LeaseLost
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind
from leasehold.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.unit.worker.worker.support import (
    Heard,
    Held,
    filled,
    left,
    running,
    wait_for,
)


def test_lost_lease_stops_the_handler_and_settles_nothing() -> None:
    """A renewal that says "gone" sets the token, and what the handler then does counts nothing."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time)
    seen: list[str] = []

    def handle(message: Message) -> None:
        try:
            handler(message)
        except LeaseLost as error:
            seen.append(str(error))
            raise

    queue.faults.refuse("orders-1", LeaseGone("somebody else has it"))
    with running(handle, queue, time=time, lease=5, hooks=[heard], session=False) as worker:
        time.advance_until(lambda: bool(heard.losses), step_s=0.5)
        assert queue.calls["complete"] == queue.calls["release"] == 0
    assert seen == ["somebody else has it"]
    assert worker.stats.count(Kind.LOST) == 1


def test_handler_that_ends_well_after_the_loss_is_not_completed() -> None:
    """Who does not look, and returns, has still lost the message."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time, stops=False)
    queue.faults.refuse("orders-1", LeaseGone("somebody else has it"))
    with running(handler, queue, time=time, lease=5, hooks=[heard], session=False):
        handler.wait_until_begun()
        time.advance_until(lambda: handler.messages[0].cancelled, step_s=0.5)
        handler.go_on()
        heard.wait_until(lost=1)
        assert queue.calls["complete"] == 0


def test_message_that_is_lost_in_the_buffer_is_never_begun() -> None:
    """What was lost while it waited is dropped, and the handler does not see it."""
    time = ManualTime()
    queue, heard, handler = filled("a", "b", "c", time=time), Heard(), Held(time)
    queue.faults.refuse("orders-2", LeaseGone("somebody else has it"))
    options = {"concurrency": 1, "prefetch": 5, "lease": 5, "session": False}
    with running(handler, queue, time=time, hooks=[heard], **options):
        handler.wait_until_begun()
        time.advance_until(lambda: queue.calls["renew"] >= 2, step_s=0.5)
        handler.go_on()
        heard.wait_until(settled=2, lost=1)
    assert [message.text for message in handler.messages] == ["a", "c"]


def test_buffered_messages_are_renewed() -> None:
    """Messages that wait for a hand keep their leases, however long that takes."""
    time = ManualTime()
    queue, heard, handler = filled("a", "b", "c", time=time), Heard(), Held(time)
    options = {"concurrency": 1, "prefetch": 5, "lease": 5}
    with running(handler, queue, time=time, hooks=[heard], **options):
        handler.wait_until_begun()
        time.advance(120)
        assert queue.depth().leased == 3
        handler.go_on()
        heard.wait_until(settled=3)
    assert left(queue) == []
    assert [message.dequeue_count for message in handler.messages] == [1, 1, 1]


def test_stuck_handler_is_not_renewed_for_ever() -> None:
    """After message_timeout the message comes back, and a late end is not heard."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time, stops=False)
    settings = LeaseSettings.of(5, message_timeout_s=60)
    with running(
        handler,
        queue,
        concurrency=1,
        time=time,
        lease=settings,
        hooks=[heard],
        session=False,
    ):
        handler.wait_until_begun()
        time.advance(59)
        assert queue.depth().leased == 1
        time.advance(10)
        assert queue.depth().visible == 1
        assert "message_timeout_s" in (handler.messages[0].cancel_reason or "")
        handler.go_on()
        heard.wait_until(lost=1)


def test_lost_session_loses_all_its_messages() -> None:
    """When the session is over, what is in work is cancelled, what waits is dropped; then a new one
    is opened."""
    time = ManualTime()
    queue, heard, handler = filled("a", "b", time=time), Heard(), Held(time)
    options = {"concurrency": 1, "prefetch": 5, "lease": 3600}
    with running(handler, queue, time=time, hooks=[heard], **options) as worker:
        handler.wait_until_begun()
        queue.lose_sessions()
        time.advance_until(lambda: len(heard.losses) == 2, step_s=0.5)
        assert "session" in heard.losses[0][1]
        handler.go_on()
        time.advance_until(lambda: not left(queue), step_s=0.5)
    assert worker.stats.lost_sessions == 1
    assert queue.calls["open_session"] == 2
    assert [message.text for message in handler.messages] == ["a", "a", "b"]


def test_without_session_none_is_opened() -> None:
    """A worker that is to have no session asks for none."""
    queue, heard = filled("x"), Heard()
    with running(lambda _: None, queue, session=False, hooks=[heard]):
        heard.wait_until(settled=1)
    assert queue.calls["open_session"] == 0


def test_operator_stops_work_by_the_session() -> None:
    """A wish of an operator reaches the handler within a second, without a renewal; no retry."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time)
    with running(handler, queue, time=time, lease=3600, hooks=[heard]):
        handler.wait_until_begun()
        queue.cancel("orders-1", "wrong customer")
        time.advance_until(lambda: bool(heard.settlements), step_s=0.5)
    assert handler.messages[0].cancel_reason == "wrong customer"
    assert heard.settlements == [("x", "cancelled")]
    assert [(each, fault.text) for each, fault in queue.buried] == [("orders-1", "wrong customer")]
    assert queue.calls["renew"] == 0


def test_operator_stops_work_by_a_renewal() -> None:
    """Without sessions the wish comes with the next renewal."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time)
    options = {"lease": 10, "session": False}
    with running(handler, queue, time=time, hooks=[heard], **options):
        handler.wait_until_begun()
        queue.cancel("orders-1", "wrong customer")
        time.advance_until(lambda: bool(heard.settlements), step_s=0.5)
    assert heard.settlements == [("x", "cancelled")]


def test_handler_may_finish_although_it_is_cancelled() -> None:
    """Work that is done by the time it is to stop is completed."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time, stops=False)
    with running(handler, queue, time=time, lease=3600, hooks=[heard]):
        handler.wait_until_begun()
        queue.cancel("orders-1", "wrong customer")
        time.advance(1)
        assert handler.messages[0].cancelled
        handler.go_on()
        heard.wait_until(settled=1)
    assert heard.settlements == [("x", "done")]


def test_task_is_cancelled_when_its_lease_is_lost() -> None:
    """An asynchronous handler need not look: its task is cancelled, and nothing is settled."""
    time = ManualTime()
    queue, heard, ended = filled("x", time=time), Heard(), threading.Event()

    async def handle(_message: Message) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()

    queue.faults.refuse("orders-1", LeaseGone("somebody else has it"))
    with running(handle, queue, time=time, lease=5, hooks=[heard], session=False):
        time.advance_until(lambda: queue.calls["renew"] == 1, step_s=0.5)
        heard.wait_until(lost=1)
        assert queue.calls["complete"] == queue.calls["release"] == 0
    assert ended.is_set()


def test_task_of_a_thread_is_cancelled_too() -> None:
    """An asynchronous handler in threads is stopped like one in the event loop."""
    queue, heard, begun = filled("x"), Heard(), threading.Event()

    async def handle(_message: Message) -> None:
        begun.set()
        await asyncio.sleep(PATIENCE_S)

    options = {"runner": "threads", "lease": 3600}
    with running(handle, queue, hooks=[heard], **options) as worker:
        wait_for(begun)
        queue.cancel("orders-1", "wrong customer")
        assert worker._threads is not None
        worker._threads._watch.look()
        heard.wait_until(settled=1)
    assert heard.settlements == [("x", "cancelled")]


def test_receive_that_fails_is_tried_again_more_and_more_seldom() -> None:
    """A service that is away is not hammered, and found again when it is back."""
    time = ManualTime()
    queue, heard = filled("x", time=time), Heard()
    queue.faults.fail(8, method="receive")
    with running(lambda _: None, queue, time=time, hooks=[heard]) as worker:
        time.advance(20)
        assert 4 <= queue.calls["receive"] <= 7
        time.advance_until(lambda: not left(queue))
        queue.put([Outgoing(body="y")])
        time.advance_until(lambda: not left(queue))
    assert worker.stats.queues[0].receive_errors == 8


def test_a_lost_answer_costs_no_work() -> None:
    """A renewal that was carried out and not answered: the work goes on, and is completed."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time)
    queue.faults.fail(2, method="renew", carried_out=True)
    with running(handler, queue, time=time, lease=10, hooks=[heard], session=False):
        handler.wait_until_begun()
        time.advance_until(lambda: queue.calls["renew"] >= 4, step_s=0.5)
        handler.go_on()
        heard.wait_until(settled=1)
    assert (heard.settlements, heard.losses, left(queue)) == ([("x", "done")], [], [])


def test_completion_that_came_too_late_for_its_receipt_is_made_again() -> None:
    """After a stall, in which a renewal was carried out and nothing was answered, the message is
    completed, and not only taken for done."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time)
    with running(handler, queue, time=time, lease=10, hooks=[heard], session=False):
        handler.wait_until_begun()
        queue.faults.fail(method="renew", carried_out=True)
        time.advance_until(lambda: queue.calls["renew"] == 1, step_s=0.5)
        queue.faults.fail(method="complete")
        handler.go_on()
        time.advance_until(lambda: bool(heard.settlements), step_s=0.1)
    assert (heard.settlements, heard.losses, left(queue)) == ([("x", "done")], [], [])
    assert queue.calls["complete"] == 3


def outcomes_of_a_race(error: Exception | None) -> tuple[list[tuple[str, str]], str]:
    """Lose a lease, keep the news back until the handler has ended, and return what hooks hear."""
    queue, heard, handler = filled("x"), Heard(), Held(stops=False)
    lost: list[str] = []

    def handle(message: Message) -> None:
        handler(message)
        if error is not None:
            raise error

    with running(handle, queue, lease=3600, hooks=[heard], session=False) as worker:
        handler.wait_until_begun()
        (work,) = worker._core.in_work
        work.held.callbacks.clear()  # as long as the thread that tells has not come to run
        work.held.lose("the session is over")
        handler.go_on()
        heard.wait_until(lost=1)
        assert work.held.loss is not None
        lost.append(work.held.loss.text)
    return heard.losses, lost[0]


@pytest.mark.parametrize("error", [None, LeaseLost("the session is over"), LookupError("x")])
def test_hooks_hear_what_is_on_record(error: Exception | None) -> None:
    """Whoever is first, the handler's end or the news of the loss, the text is the same."""
    losses, recorded = outcomes_of_a_race(error)
    assert losses == [("x", "the session is over")]
    assert recorded == "the session is over"


def test_lease_that_the_handler_gives_up_has_one_text() -> None:
    """A handler that knows better than the service: hooks hear what the lease says of itself."""
    queue, heard = filled("x"), Heard()
    helds: list[leases.Held] = []
    known = threading.Event()

    def handle(_message: Message) -> None:
        assert known.wait(PATIENCE_S)
        helds.extend(work.held for work in worker._core.in_work)
        raise LeaseLost("a fenced write was refused")

    with running(handle, queue, lease=3600, hooks=[heard], session=False) as worker:
        known.set()
        heard.wait_until(lost=1)
    assert helds[0].loss is not None
    assert heard.losses == [("x", helds[0].loss.text)]


def test_loss_while_settling_has_one_text() -> None:
    """What a service says to a completion is what hooks hear, and what is on record."""
    queue, heard = filled("x"), Heard()
    queue.faults.refuse("orders-1", LeaseGone("purged"))
    works: list[Work] = []
    known = threading.Event()

    def handle(_message: Message) -> None:
        assert known.wait(PATIENCE_S)
        works.extend(worker._core.in_work)

    with running(handle, queue, lease=3600, hooks=[heard], session=False) as worker:
        known.set()
        heard.wait_until(lost=1)
    assert heard.losses == [("x", "purged")]
    assert works[0].held.loss is not None
    assert (works[0].loss, works[0].held.loss.text) == ("purged", "purged")


def test_cancelled_is_no_loss() -> None:
    """The two reasons to stop are told apart, and are both Stopped."""
    assert not issubclass(Cancelled, LeaseLost)
    assert Cancelled.__mro__[1] is LeaseLost.__mro__[1]


def test_batch_outlives_the_end_of_a_session() -> None:
    """A receive under a session that is over is made again under another one."""
    queue, seen = filled("a", "b"), []
    queue.faults.fail(method="receive", error=LeaseGone("the session is over"))
    worker = Worker(lambda message: seen.append(message.text), queue)
    worker.run_until_idle(PATIENCE_S)
    assert sorted(seen) == ["a", "b"]
