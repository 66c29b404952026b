"""From the queue to the handler, and what becomes of the message."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker.adapters import (
    Capabilities,
    Delivery,
    Denied,
    Outgoing,
    QueueError,
    Saved,
    Unreachable,
)
from leasehold.worker.errors import GiveBack, LeaseLost, Poison, Retry
from leasehold.worker.handlers import Handler
from leasehold.worker.message import Message
from leasehold.worker.options import Runner
from leasehold.worker.outcomes import Kind
from leasehold.worker.reporting import QueueStats
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.worker import Worker
from tests.unit.worker.worker import handlers_of_tests as handlers
from tests.unit.worker.worker.support import Heard, attempts_of, filled, handle_all, left, running


def stats_of(worker: Worker) -> QueueStats:
    (stats,) = worker.stats.queues
    return stats


def test_handled_messages_are_completed() -> None:
    """Each message is handled once and is gone afterwards."""
    queue, seen = filled(*map(str, range(100))), []
    worker = handle_all(lambda message: seen.append(message.text), queue)
    assert sorted(seen, key=int) == [str(each) for each in range(100)]
    assert left(queue) == []
    assert stats_of(worker).outcomes[Kind.DONE] == 100
    assert sum(stats_of(worker).handled) == 100


def test_message_has_all_that_was_sent() -> None:
    """The handler finds type, properties, trace context and counts."""
    queue = MemoryQueue("orders")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    queue.put([Outgoing(body="x", type="mail", properties={"to": "me"}, traceparent=trace)])
    seen: list[Message] = []
    handle_all(seen.append, queue)
    (message,) = seen
    assert (message.queue, message.body, message.type) == ("orders", b"x", "mail")
    assert (dict(message.properties), message.traceparent) == ({"to": "me"}, trace)
    assert (message.dequeue_count, message.fence, message.saved) == (1, 1, None)
    assert message.inserted_at_ms is not None
    assert message.expires_at_ms is not None


def test_failure_is_tried_again_after_its_delay() -> None:
    """A handler that raises gets the message again, not before its time, with growing waits."""
    time = ManualTime()
    queue, at = filled("x", time=time), []

    def handle(message: Message) -> None:
        at.append(time.monotonic_s())
        raise ValueError("oh")

    rule = RetryRule(initial_s=10, jitter=0)
    with running(handle, queue, retries=rule, time=time, concurrency=1) as worker:
        time.advance_until(lambda: not left(queue), step_s=0.5)
    gaps = [after - before for before, after in itertools.pairwise(at)]
    assert len(at) == 5
    assert pytest.approx(gaps, abs=1) == [10, 20, 40, 80]
    assert stats_of(worker).outcomes[Kind.FAILED] == 4
    assert stats_of(worker).outcomes[Kind.POISONED] == 1


def test_failure_that_was_the_last_is_set_aside_with_its_reason() -> None:
    """After its last failure a message lies in the poison queue, with that failure."""
    queue = filled("x")

    def handle(message: Message) -> None:
        raise ValueError(f"failure {message.dequeue_count}")

    rules = {"retries": RetryRule(initial_s=0), "poison": PoisonRule(max_failures=3)}
    handle_all(handle, queue, **rules)
    ((message_id, fault),) = queue.buried
    assert (fault.text, fault.type) == ("failure 3", "ValueError")
    assert [each.text for each in queue.poison.faults_of(message_id)] == [
        "failure 1",
        "failure 2",
        "failure 3",
    ]


def test_faults_of_tries_are_kept_with_the_message() -> None:
    """What went wrong is told to the service, with type and fingerprint."""
    queue = filled("x")

    def handle(_message: Message) -> None:
        raise RuntimeError("oh")

    handle_all(handle, queue)
    (fault,) = queue.faults_of("orders-1")
    assert (fault.text, fault.type) == ("oh", "RuntimeError")
    assert fault.fingerprint
    assert left(queue) == [("x", 1)]


def test_like_failures_have_like_fingerprints() -> None:
    """A fingerprint depends on type and place, not on the text."""
    queue = filled("x")

    def handle(message: Message) -> None:
        kind = KeyError if message.dequeue_count == 3 else ValueError
        raise kind(f"failure {message.dequeue_count}")

    rules = {"retries": RetryRule(initial_s=0), "poison": PoisonRule(max_failures=3)}
    handle_all(handle, queue, **rules)
    ((message_id, _),) = queue.buried
    first, second, third = [each.fingerprint for each in queue.poison.faults_of(message_id)]
    assert first == second != third


def test_retry_says_when() -> None:
    """A handler can say itself when the message is to come back."""
    time = ManualTime()
    queue = filled("x", time=time)

    def handle(_message: Message) -> None:
        raise Retry(600, reason="the shop is closed")

    handle_all(handle, queue, time=time)
    assert queue.depth().delayed == 1
    time.advance(599)
    assert queue.depth().delayed == 1
    time.advance(1)
    assert queue.depth().visible == 1
    assert queue.faults_of("orders-1")[0].text == "the shop is closed"


def test_poison_is_set_aside_at_once() -> None:
    """A message that can never succeed is tried once, and keeps the reason."""
    queue = filled("x")

    def handle(_message: Message) -> None:
        raise Poison("no such customer")

    worker = handle_all(handle, queue)
    assert [(each, fault.text) for each, fault in queue.buried] == [
        ("orders-1", "no such customer")
    ]
    assert left(queue) == []
    assert left(queue.poison) == [("x", 1)]
    assert stats_of(worker).outcomes[Kind.POISONED] == 1


def test_body_that_cannot_be_read_is_poison() -> None:
    """A handler that asks for JSON where there is none sets the message aside for that."""
    queue = filled("{")
    handle_all(lambda message: message.json(), queue)
    assert "not JSON" in queue.buried[0][1].text


def test_codec_reads_the_payload() -> None:
    """The worker's codec makes the payload, and its refusal sets the message aside."""
    queue, seen = filled('{"a": 1}', "]"), []
    handle_all(lambda message: seen.append(message.payload), queue, codec=json.loads)
    assert seen == [{"a": 1}]
    assert [each for each, _ in queue.buried] == ["orders-2"]


def test_give_back_counts_as_no_attempt() -> None:
    """A message that the handler gives back is there again, and has not failed."""
    queue, seen = filled("x"), []

    def handle(message: Message) -> None:
        seen.append(message.dequeue_count)
        if len(seen) < 3:
            raise GiveBack

    worker = handle_all(handle, queue, poison=PoisonRule(max_failures=1))
    assert seen == [1, 2, 3]
    assert stats_of(worker).outcomes[Kind.RETURNED] == 2


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(GiveBack(), "returned"), (Retry(0), "failed"), (RuntimeError("oh"), "failed")],
)
def test_service_is_told_how_the_work_ended(error: Exception, outcome: str) -> None:
    """Only what went wrong counts as a failure, which the service keeps with its text."""
    queue = filled("x")

    def handle(message: Message) -> None:
        if message.dequeue_count > 1:
            raise Retry(600)
        raise error

    handle_all(handle, queue, retries=RetryRule(initial_s=0))
    assert attempts_of(queue, "orders-1") == [outcome, "failed"]


def delivered(queue: MemoryQueue, time: ManualTime, times: int) -> None:
    """Have all messages delivered to workers that die before they begin."""
    for _ in range(times):
        queue.receive(100, visibility_timeout_s=30)
        time.advance(31)


def test_message_that_came_too_often_is_not_worked_on() -> None:
    """A message that killed its workers is set aside before any work."""
    time = ManualTime()
    queue = filled("x", time=time)
    seen: list[Message] = []
    delivered(queue, time, 12)
    worker = handle_all(seen.append, queue, poison=PoisonRule(max_failures=3), time=time)
    assert seen == []
    assert "delivered 12 times" in queue.buried[0][1].text
    assert stats_of(worker).outcomes[Kind.POISONED] == 1
    assert sum(stats_of(worker).handled) == 0


COUNTS_ONLY = dataclasses.replace(
    MEMORY, counts_returns=True, counts_failures=False, fences=False, sessions=False
)
"""What a service can do that counts every receive, and nothing else."""


@pytest.mark.parametrize("able", [MEMORY, COUNTS_ONLY])
def test_message_that_nobody_began_is_tried(able: Capabilities) -> None:
    """Deliveries to buffers of workers that died set nothing aside that no handler has seen."""
    time = ManualTime()
    queue, seen = filled("x", time=time, capabilities=able), []
    delivered(queue, time, 7)
    handle_all(lambda message: seen.append(message.text), queue, time=time)
    assert seen == ["x"]
    assert queue.buried == []


def test_failures_are_counted_where_the_service_knows_them() -> None:
    """A message that comes for the eighth time and fails for the first is tried again."""
    time = ManualTime()
    queue, seen = filled("x", time=time), []
    delivered(queue, time, 7)

    def handle(message: Message) -> None:
        seen.append(message.dequeue_count)
        raise ValueError("no")

    rules: dict[str, Any] = {"retries": RetryRule(kind="fixed", initial_s=0)}
    handle_all(handle, queue, time=time, poison=PoisonRule(max_failures=3), **rules)
    assert seen == [8, 9, 10]
    assert [fault.text for _, fault in queue.buried] == ["no"]


def test_first_failure_counts_where_deliveries_are_all_there_is() -> None:
    """Where a service counts receives only, a late message is set aside by its next failure."""
    time = ManualTime()
    queue, seen = filled("x", time=time, capabilities=COUNTS_ONLY), []
    delivered(queue, time, 7)

    def handle(message: Message) -> None:
        seen.append(message.dequeue_count)
        raise ValueError("no")

    handle_all(handle, queue, time=time)
    assert seen == [8]
    assert [fault.text for _, fault in queue.buried] == ["no"]


def test_message_that_came_often_is_begun_first() -> None:
    """It does not wait in a buffer in which it would be counted once more."""
    time = ManualTime()
    queue, seen = MemoryQueue("orders", time=time, capabilities=COUNTS_ONLY), []
    queue.put([Outgoing(body=str(number), delay_s=1000) for number in range(5)])
    queue.put([Outgoing(body="old")])
    delivered(queue, time, 6)
    time.advance(1000)  # now the others come before it
    options: dict[str, Any] = {"concurrency": 1, "prefetch": 10, "time": time}
    handle_all(lambda message: seen.append(message.text), queue, **options)
    assert seen[0] == "old"
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("error", "failures"), [(Denied("no right to peek"), 1), (Unreachable("not now"), 3)]
)
def test_service_that_does_not_say(error: QueueError, failures: int) -> None:
    """Without the right to ask, deliveries count; without an answer the message is tried again."""
    time = ManualTime()
    queue, seen = filled("x", time=time), []
    delivered(queue, time, 7)
    queue.faults.fail(method="tried", error=error)

    def handle(message: Message) -> None:
        seen.append(message.dequeue_count)
        raise ValueError("no")

    rules: dict[str, Any] = {"retries": RetryRule(kind="fixed", initial_s=0)}
    handle_all(handle, queue, time=time, poison=PoisonRule(max_failures=3), **rules)
    assert len(seen) == failures


def test_message_given_back_again_and_again_comes_more_and_more_slowly() -> None:
    """Where returns are not counted it does not go round without end."""
    time = ManualTime()
    queue, heard = filled("x", time=time), Heard()

    def handle(_message: Message) -> None:
        raise GiveBack

    with running(handle, queue, time=time, hooks=[heard], session=False):
        time.advance_until(lambda: len(heard.settlements) >= 8, step_s=0.1, limit_s=60)
        took_s = time.monotonic_s()
    assert took_s >= 0.1 + 0.2 + 0.4 + 1 + 2
    assert len(heard.settlements) == 8
    assert left(queue) == [("x", 0)]


def test_worker_that_stops_does_not_hold_anything_back() -> None:
    """What waits to be given back is given back at once when the worker stops."""
    time = ManualTime()
    queue, seen = filled("x", time=time), []

    def handle(message: Message) -> None:
        seen.append(message.text)
        raise GiveBack

    with running(handle, queue, time=time, session=False):
        time.advance_until(lambda: len(seen) == 2, step_s=0.05)
    assert queue.depth().visible == 1


class Unreadable(MemoryQueue):
    """Gives out messages whose stored form cannot be read."""

    def receive(self, *args: Any, **options: Any) -> list[Delivery]:
        found = super().receive(*args, **options)
        return [dataclasses.replace(each, body=b"", body_problem="no base64") for each in found]


def test_message_that_cannot_be_read_is_set_aside() -> None:
    """What has no readable body never reaches the handler."""
    queue = Unreadable("orders")
    seen: list[Message] = []
    queue.put([Outgoing(body="?")])
    handle_all(seen.append, queue)
    assert seen == []
    assert queue.buried[0][1].text == "encoding: no base64"


def test_handler_that_leaves_python_is_only_a_failure() -> None:
    """sys.exit() in a handler fails its message, and does not end a thread of the worker."""
    queue, seen = filled("x", "y", "z"), []

    def handle(message: Message) -> None:
        seen.append(message.text)
        if message.text == "x":
            sys.exit(3)

    worker = handle_all(handle, queue, concurrency=1)
    assert seen == ["x", "y", "z"]
    assert stats_of(worker).outcomes[Kind.FAILED] == 1


def test_handler_can_give_a_message_up() -> None:
    """A handler that finds itself fenced off leaves the message to the end of its lease."""
    queue, heard = filled("x"), Heard()

    def handle(_message: Message) -> None:
        raise LeaseLost("a newer fence has written")

    worker = handle_all(handle, queue, hooks=[heard], session=False)
    assert stats_of(worker).outcomes[Kind.LOST] == 1
    assert queue.depth().leased == 1
    assert [body for body, _ in heard.losses] == ["x"]
    assert queue.calls["release"] == queue.calls["complete"] == 0


def test_progress_is_found_by_the_next_holder() -> None:
    """What a handler saved before it failed is what the next one begins with."""
    queue, found = filled("x"), []

    def handle(message: Message) -> None:
        found.append(message.saved)
        if message.saved is None:
            message.checkpoint({"at": 60}, stage="cut", fraction=0.6)
            raise Retry(0)

    handle_all(handle, queue)
    assert found == [None, Saved(stage="cut", state={"at": 60}, fraction=0.6)]


def test_handler_by_queue() -> None:
    """Each queue can have its own handler."""
    seen: list[str] = []
    queues = [filled("a", name="mail"), filled("b", name="print")]
    handlers = {
        "mail": lambda message: seen.append(f"mail {message.text}"),
        "print": lambda message: seen.append(f"print {message.text}"),
    }
    handle_all(handlers, queues)
    assert sorted(seen) == ["mail a", "print b"]


def test_as_many_at_once_as_asked() -> None:
    """Sixteen messages are in work together when concurrency is 16, and never more."""
    queue, together = filled(*map(str, range(48))), threading.Barrier(16, timeout=20)
    lock, most, now = threading.Lock(), [0], [0]

    def handle(_message: Message) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        together.wait()
        with lock:
            now[0] -= 1

    handle_all(handle, queue, concurrency=16)
    assert most == [16]
    assert not together.broken


def test_never_more_leases_than_rooms() -> None:
    """While handlers are slow, no more is leased than is worked on or may wait."""
    queue = filled(*map(str, range(200)))
    counts: list[int] = []

    def handle(_message: Message) -> None:
        counts.append(queue.depth().leased or 0)

    handle_all(handle, queue, concurrency=4, prefetch=3)
    assert max(counts) <= 7


def test_service_with_small_receives() -> None:
    """A service that gives and settles one message at a time is served like others."""
    small = dataclasses.replace(MEMORY, max_receive=1, max_settle=1, sessions=False)
    queue, seen = filled(*map(str, range(30)), capabilities=small), []
    handle_all(lambda message: seen.append(message.text), queue, concurrency=8)
    assert sorted(map(int, seen)) == list(range(30))
    assert queue.calls["complete"] >= 1
    assert left(queue) == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("runner", ["threads", "processes", "asyncio"])
@pytest.mark.parametrize(("leaves", "code"), [(False, 70), (True, 3)], ids=["returns", "exits"])
def test_a_forked_child_is_no_worker(
    tmp_path: Path, runner: Runner, leaves: bool, code: int
) -> None:
    """It ends where the handler does, and settles and receives nothing."""
    paths = [tmp_path / name for name in "abc"]
    handler: Handler = handlers.fork_and_leave if leaves else handlers.fork
    if runner == "asyncio":
        handler = handlers.leave_in_a_task if leaves else handlers.fork_in_a_task
    worker = handle_all(handler, filled(*map(str, paths)), runner=runner, concurrency=1)
    assert worker.stats.count(Kind.DONE) == 3
    assert [path.read_text() for path in paths] == [f"{code}\n"] * 3
