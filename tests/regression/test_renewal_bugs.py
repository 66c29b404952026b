"""Mistakes that others have shipped in code that renews leases, one by one.

Where the tests of each are stands in :mod:`tests.regression.renewal_index`. Here are those through
the public worker that stand nowhere else.
"""

from __future__ import annotations

import ast
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker import threads
from leasehold.worker.adapters import (
    Delivery,
    Fault,
    Lease,
    Outgoing,
    QueueError,
    Release,
    Renewed,
    Unreachable,
)
from leasehold.worker.errors import Poison, Retry, UnsafeWorker
from leasehold.worker.leases import LeaseLearner
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind
from leasehold.worker.retry_policy import PoisonRule
from leasehold.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.regression.renewal_index import DECISIONS, FAILURES, HERE, INDEX, SHIPPED
from tests.unit.worker.worker.support import Heard, Held, filled, left, running

_TESTS: Final = Path(__file__).parents[1]


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the test functions in a file."""
    tree = ast.parse((_TESTS / path).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("row", INDEX)
def test_each_row_has_its_tests(row: str) -> None:
    """What the index names is there."""
    assert INDEX[row]
    for test in INDEX[row]:
        path, _, name = test.partition("::")
        assert name in names_in(path), test


def test_the_tables_are_whole() -> None:
    """Thirteen mistakes, of which two stood in one row; ten rows; twelve ways to fail."""
    assert (len(SHIPPED), len(DECISIONS), len(FAILURES)) == (13, 10, 12)
    assert len(INDEX) == 35
    own = {test for tests in INDEX.values() for test in tests if test.startswith(HERE)}
    shown = {f"{HERE}::{name}" for name in names_in(HERE)} - own
    assert shown == {
        f"{HERE}::test_each_row_has_its_tests",
        f"{HERE}::test_the_tables_are_whole",
    }


# Through the worker.


@pytest.mark.parametrize("lease_s", [1, 2, 5])
def test_short_leases(lease_s: int) -> None:
    """Work twenty times as long as its lease is delivered once."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time)
    with running(handler, queue, time=time, lease=lease_s, hooks=[heard], session=False) as worker:
        handler.wait_until_begun()
        time.advance(20 * lease_s)
        assert queue.depth().leased == 1
        handler.go_on()
        heard.wait_until(settled=1)
    assert handler.messages[0].dequeue_count == 1
    assert (worker.stats.count(Kind.DONE), queue.buried, left(queue)) == (1, [], [])


def test_a_handler_asks_for_more() -> None:
    """Nothing is renewed as long as the handler's own lease lasts, and it lasts that long."""
    time = ManualTime()
    queue, heard, handler = filled("x", time=time), Heard(), Held(time)

    def handle(message: Message) -> None:
        message.extend(600)
        handler(message)

    with running(handle, queue, time=time, lease=30, hooks=[heard], session=False):
        handler.wait_until_begun()
        time.advance(580)
        assert queue.calls["renew"] == 1
        assert queue.depth().leased == 1
        assert handler.messages[0].seconds_left == 20
        time.advance(60)
        assert queue.calls["renew"] > 1
        handler.go_on()
        heard.wait_until(settled=1)
    assert handler.messages[0].dequeue_count == 1


class Traced:
    """A client as tracing wraps it: whatever comes in or goes out is another object."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self.batches: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def receive(self, *args: Any, **options: Any) -> list[Delivery]:
        """Copy what comes."""
        found = self._queue.receive(*args, **options)
        return [replace(each, properties={"span": "1"}) for each in found]

    def renew(self, leases: Sequence[Lease], *args: Any, **options: Any) -> Any:
        """Copy both ways."""
        self.batches.append(len(leases))
        found = self._queue.renew([replace(lease) for lease in leases], *args, **options)
        return [replace(each) if isinstance(each, Renewed) else each for each in found]


def test_a_traced_client_is_renewed_in_batches() -> None:
    """Ten messages of one receive are kept for a minute, ten at a time."""
    time = ManualTime()
    queue, heard, handler = filled(*"abcdefghij", time=time), Heard(), Held(time)
    client = Traced(queue)
    options: dict[str, Any] = {"concurrency": 10, "lease": 5, "session": False}
    with running(handler, client, time=time, hooks=[heard], **options):
        handler.wait_until_begun(10)
        time.advance(60)
        assert queue.depth().leased == 10
        handler.go_on()
        heard.wait_until(settled=10)
    assert {message.dequeue_count for message in handler.messages} == {1}
    assert sum(client.batches) / len(client.batches) > 1


def test_a_late_renewal_does_nothing_to_the_new_holder() -> None:
    """A renewal that hangs until another worker has the message costs that worker nothing."""
    time = ManualTime()
    queue, first, second = filled("x", time=time), Heard(), Heard()
    late, heir = Held(time, stops=False), Held(time)
    gate = queue.faults.hold(method="renew")
    options: dict[str, Any] = {"time": time, "lease": 5, "concurrency": 1, "session": False}
    with running(late, queue, hooks=[first], **options) as worker:
        late.wait_until_begun()
        time.advance(6)
        assert late.messages[0].cancelled
        with running(heir, queue, hooks=[second], **options):
            time.advance_until(lambda: bool(heir.messages), step_s=0.5)
            gate.open()
            late.go_on()
            first.wait_until(lost=1)
            time.advance(20)
            heir.go_on()
            second.wait_until(settled=1)
        assert worker.stats.count(Kind.DONE) == 0
    assert second.settlements == [("x", "done")]
    assert queue.calls["complete"] == 1


def test_a_worker_gets_its_own_message_again() -> None:
    """An attempt that has lost its lease does not settle that of the next, in the same worker."""
    time = ManualTime()
    queue, heard = filled("x", time=time), Heard()
    attempts = [Held(time, stops=False), Held(time, stops=False)]
    gate = queue.faults.hold(method="renew")

    def handle(message: Message) -> None:
        attempts[message.dequeue_count - 1](message)

    options: dict[str, Any] = {"lease": 5, "concurrency": 2, "session": False}
    with running(handle, queue, time=time, hooks=[heard], **options):
        attempts[0].wait_until_begun()
        time.advance_until(lambda: bool(attempts[1].messages), step_s=0.5)
        attempts[0].go_on()
        heard.wait_until(lost=1)
        gate.open()
        time.advance(20)
        assert (queue.calls["complete"], queue.depth().leased) == (0, 1)
        attempts[1].go_on()
        heard.wait_until(settled=1)
    assert heard.settlements == [("x", "done")]
    assert queue.calls["complete"] == 1


def test_learned_leases_outlast_slow_renewals() -> None:
    """Quick work teaches short leases; renewals that take longer than those lose nothing."""
    time = ManualTime()
    queue, heard, handler = filled(*"abc", time=time), Heard(), Held(time)
    learner = LeaseLearner(floor_s=2, cap_s=60, start_s=30)
    for _ in range(100):
        learner.handled(None, 0.5)
        learner.renewal_took(4.0)
    assert learner.lease_s(None) >= 12
    options: dict[str, Any] = {"lease": 30, "learner": learner, "session": False}
    with running(handler, queue, time=time, hooks=[heard], **options):
        handler.wait_until_begun(3)
        queue.faults.slow(4, calls=1000, method="renew")
        time.advance(200)
        assert queue.depth().leased == 3
        queue.faults.clear()
        handler.go_on()
        time.advance_until(lambda: len(heard.settlements) == 3)
    assert {message.dequeue_count for message in handler.messages} == {1}


class Counted(MemoryQueue):
    """Keeps the ids of what is settled, and how."""

    settled: list[tuple[str, str]]

    def complete(self, leases: Sequence[Lease], **options: Any) -> list[QueueError | None]:
        """See :class:`QueueClient`."""
        found = super().complete(leases, **options)
        self._note(leases, found, "completed")
        return found

    def release(self, releases: Sequence[Release], **options: Any) -> list[QueueError | None]:
        """See :class:`QueueClient`."""
        found = super().release(releases, **options)
        self._note([each.lease for each in releases], found, "given back")
        return found

    def _note(self, leases: Sequence[Lease], found: Sequence[object], how: str) -> None:
        self.settled = [
            *getattr(self, "settled", []),
            *((lease.message_id, how) for lease, error in zip(leases, found, strict=True)),
        ]


@pytest.mark.parametrize("later_s", [0, 0.00005, 0.0001, 0.0002, 0.0005])
def test_handlers_end_while_the_worker_gives_them_up(
    later_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is completed or given back, and never both, nor tried twice."""
    monkeypatch.setattr(threads, "CANCEL_S", 0)
    queue = Counted("orders")
    queue.put([Outgoing(body=str(number)) for number in range(16)])
    begun, end, resting = threading.Semaphore(0), threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.release()
        end.wait(PATIENCE_S)
        resting.wait(later_s * random.random())

    worker = Worker(handle, queue, concurrency=16, wait_s=0)
    worker.start()
    for _ in range(16):
        assert begun.acquire(timeout=PATIENCE_S)
    ending = threading.Thread(target=end.set)
    ending.start()
    worker.stop(0)
    ending.join()
    ids = [message_id for message_id, _ in queue.settled]
    assert sorted(ids) == sorted(set(ids))
    assert len(ids) == 16
    assert len(left(queue)) == sum(how == "given back" for _, how in queue.settled)


def test_hundreds_of_messages_take_one_timer() -> None:
    """Three hundred leases of a worker: one thread that looks, and a request for many of them."""
    time = ManualTime()
    bodies = [str(number) for number in range(300)]
    queue, heard, handler = filled(*bodies, time=time), Heard(), Held(time)
    before = threading.active_count()
    options: dict[str, Any] = {"concurrency": 2, "prefetch": 298, "lease": 30, "session": False}
    with running(handler, queue, time=time, hooks=[heard], **options):
        handler.wait_until_begun(2)
        time.advance(120)
        assert queue.depth().leased == 300
        assert queue.calls["renew"] < 120
        names = [thread.name for thread in threading.enumerate()]
        assert sum(name.startswith("leasehold-lease-timer") for name in names) == 1
        assert threading.active_count() - before < 12
        handler.go_on()
        heard.wait_until(settled=300)


class Halfway(MemoryQueue):
    """A queue without server-side poison: a burial copies, and then cannot delete."""

    fails: int
    copies: list[str]

    @classmethod
    def failing(cls, fails: int, *bodies: str, time: ManualTime) -> Halfway:
        """Return one with messages, whose first burials stop halfway."""
        queue = cls("orders", time=time, capabilities=replace(MEMORY, server_poison=False))
        queue.fails, queue.copies = fails, []
        queue.put([Outgoing(body=body) for body in bodies])
        return queue

    def bury(self, delivery: Delivery, receipt: str, fault: Fault, **options: Any) -> None:
        """See :class:`QueueClient`."""
        self.copies.append(delivery.message_id)
        if self.fails:
            self.fails -= 1
            raise Unreachable("the deletion was not answered")
        super().bury(delivery, receipt, fault, **options)


def test_a_burial_that_stops_halfway_is_finished() -> None:
    """It is tried again with the same lease; the handler is not asked again."""
    time = ManualTime()
    queue, heard = Halfway.failing(2, "bad", time=time), Heard()
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.dequeue_count)
        raise Poison("it can never work")

    with running(handle, queue, time=time, lease=30, hooks=[heard], session=False):
        time.advance_until(lambda: bool(heard.settlements), step_s=0.1)
    assert seen == [1]
    assert heard.settlements == [("bad", "poisoned")]
    assert len(queue.copies) == 3
    assert left(queue) == []


def test_a_burial_that_always_stops_halfway_is_no_work() -> None:
    """What was to be set aside is not worked on any more, whatever becomes of the burial."""
    time = ManualTime()
    queue, heard = Halfway.failing(10_000, "bad", time=time), Heard()
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.dequeue_count)
        raise Poison("it can never work")

    rule = PoisonRule(max_failures=2)
    options: dict[str, Any] = {"lease": 5, "poison": rule, "session": False}
    with running(handle, queue, time=time, hooks=[heard], **options):
        time.advance(100)
        assert seen == [1]
        queue.fails = 0
        time.advance_until(lambda: not left(queue))
    assert [message_id for message_id, _ in queue.buried] == ["orders-1"]


def test_all_seconds_are_whole() -> None:
    """A lease of two and a half seconds is refused, and delays are rounded before they are sent."""
    queue = filled("x")
    with pytest.raises(UnsafeWorker, match=r"visibility_timeout_s is 2\.5"):
        Worker(lambda _: None, queue, lease=2.5)  # type: ignore[arg-type]
    time = ManualTime()
    again: list[float] = []
    queue, heard = filled("x", time=time), Heard()

    def handle(message: Message) -> None:
        again.append(time.monotonic_s())
        if message.dequeue_count == 1:
            raise Retry(1.6)

    with running(handle, queue, time=time, hooks=[heard], poll_s=0.1, session=False):
        time.advance_until(lambda: len(heard.settlements) == 2, step_s=0.1)
    assert again[1] - again[0] == pytest.approx(2, abs=0.2)
