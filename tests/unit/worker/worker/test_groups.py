"""Messages of one group: so many at once, or one after the other in their order."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.queue_settings import GroupOrder, GroupSettings, QueueSettings
from leasehold.testing.memory_queue import _ACCOUNT, MEMORY, MemoryQueue
from leasehold.worker.adapters import (
    Capabilities,
    Delivery,
    Denied,
    Outgoing,
    QueueMissing,
    Unreachable,
)
from leasehold.worker.adapters.azure import AZURE
from leasehold.worker.adapters.mns import MNS
from leasehold.worker.adapters.native import LEASEHOLD
from leasehold.worker.adapters.protocol import Around
from leasehold.worker.core import GroupGate, Source, Work
from leasehold.worker.errors import Retry, UnsafeWorker
from leasehold.worker.handlers import Handlers
from leasehold.worker.message import Message
from leasehold.worker.outcomes import DONE, INTERRUPTED, LOST, RETURNED, Kind, Outcome
from leasehold.worker.retry_policy import RetryRule
from leasehold.worker.worker import Worker
from tests.unit.worker.worker import handlers_of_tests as handlers
from tests.unit.worker.worker.support import handle_all

AT_ONCE = RetryRule(initial_s=0)
GROUPS = ("a", "b", "c")


def grouped(*bodies: str) -> MemoryQueue:
    """Return a queue with messages whose group is the first letter of the body; ``-`` is none."""
    queue = MemoryQueue("orders")
    queue.put(
        [Outgoing(body=body, group_id=None if body[0] == "-" else body[0]) for body in bodies]
    )
    return queue


# --- the rule ----------------------------------------------------------------------------------


def works(*groups: str | None) -> list[Work]:
    source = Source(0, MemoryQueue("orders"), 1.0, Handlers(print).of("orders"))
    return [
        Work(source, Delivery(queue="orders", message_id=f"{n}", receipt="r", group_id=group))
        for n, group in enumerate(groups)
    ]


def ended(gate: GroupGate, work: Work, outcome: Outcome) -> tuple[list[Work], list[Work]]:
    work.outcome = outcome
    begin, give_back = gate.ended([work])
    return begin, give_back


def test_one_of_a_group_at_a_time() -> None:
    """The next one begins when the one before is done; those of no group are not held up."""
    a1, a2, b1, none1, a3, none2 = found = works("a", "a", "b", None, "a", None)
    gate = GroupGate(1, is_ordered=True)
    assert gate.admit(found) == [a1, b1, none1, none2]
    assert gate.waiting(0) == [a2, a3]
    assert gate.waiting(1) == []
    assert ended(gate, none1, DONE) == ([], [])
    assert ended(gate, a1, DONE) == ([a2], [])
    assert ended(gate, b1, DONE) == ([], [])
    assert ended(gate, a2, DONE) == ([a3], [])
    assert ended(gate, a3, DONE) == ([], [])
    assert gate.admit([a1]) == [a1]


@pytest.mark.parametrize(
    "outcome", [Outcome(Kind.FAILED), Outcome(Kind.POISONED), RETURNED, INTERRUPTED, LOST]
)
def test_what_is_not_done_has_the_later_ones_given_back(outcome: Outcome) -> None:
    """They come again behind it, and are not counted when they are settled."""
    a1, a2, a3, b1, b2 = found = works("a", "a", "a", "b", "b")
    gate = GroupGate(1, is_ordered=True)
    assert gate.admit(found) == [a1, b1]
    assert ended(gate, a1, outcome) == ([], [a2, a3])
    assert ended(gate, a2, RETURNED) == ([], [])
    again = works("a", "a")
    assert gate.admit(again) == again[:1]
    assert ended(gate, a3, RETURNED) == ([], [])
    assert gate.waiting(0) == [b2, again[1]]


def test_so_many_of_a_group() -> None:
    """Without order, one that fails holds up nothing."""
    found = works("a", "a", "a", "a")
    gate = GroupGate(2, is_ordered=False)
    assert gate.admit(found) == found[:2]
    assert ended(gate, found[1], Outcome(Kind.FAILED)) == ([found[2]], [])
    assert ended(gate, found[0], LOST) == ([found[3]], [])


def test_what_is_settled_unseen_counts() -> None:
    """Those behind it wait until that is acknowledged."""
    a1, a2 = works("a", "a")
    gate = GroupGate(1, is_ordered=True)
    gate.enter(a1)
    assert gate.admit([a2]) == []
    assert ended(gate, a1, DONE) == ([a2], [])


def test_at_the_end_all_pass() -> None:
    """What waited is given back, and what comes late is the business of others."""
    a1, a2, a3 = works("a", "a", "a")
    gate = GroupGate(1, is_ordered=True)
    assert gate.admit([a1, a2]) == [a1]
    assert gate.drain() == [a2]
    assert gate.admit([a3]) == [a3]
    assert ended(gate, a1, DONE) == ([], [])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency_per_group": 0}, "concurrency_per_group"),
        ({"concurrency_per_group": 2, "ordered": True}, "concurrency_per_group"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], named: str) -> None:
    """Before anything is received."""
    with pytest.raises(UnsafeWorker, match=named):
        Worker(print, grouped("a"), **options)


# --- queues that do not keep order -------------------------------------------------------------


def with_order(queue: MemoryQueue, order: GroupOrder) -> MemoryQueue:
    settings = QueueSettings(groups=GroupSettings(order=order))
    queue._place.do(c.SetQueueSettings(_ACCOUNT, queue.name, settings))
    return queue


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "groups" in each.getMessage()]


@pytest.mark.parametrize(
    ("options", "told"),
    [({"ordered": True}, "set groups.order"), ({"concurrency_per_group": 2}, "max_in_flight")],
)
def test_order_that_a_queue_does_not_keep_is_warned_of_once(
    options: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each queue, and the messages are worked on all the same."""
    plain, unordered = grouped("a1", "a2", "b1"), grouped("a1")
    queues = [KeptApart(plain, "plain"), KeptApart(with_order(unordered, GroupOrder.NONE), "none")]
    queues.append(KeptApart(with_order(grouped("a1"), GroupOrder.FIFO), "fifo"))
    handle_all(lambda _: None, queues, **options)
    told_of = sorted(each.split(":")[0] for each in warnings_of(caplog))
    assert told_of == ["queue none", "queue plain"]
    assert all(told in each for each in warnings_of(caplog))
    assert plain.left() == []


class KeptApart(Around):
    """A queue under another name, that notes how often it was asked for its order."""

    def __init__(self, client: MemoryQueue, name: str, *errors: Exception) -> None:
        super().__init__(client)
        self._name, self._errors, self.asked = name, list(errors), 0

    @property
    def name(self) -> str:
        return self._name

    def group_order(self) -> str:
        """Fail as was planned, and then tell."""
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)
        order: str = self.client.group_order()  # type: ignore[attr-defined]
        return order


def test_a_worker_that_does_not_go_by_groups_asks_for_no_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It costs a request that others have no use for."""
    queue = KeptApart(grouped("a1"), "orders")
    handle_all(lambda _: None, queue)
    assert (queue.asked, warnings_of(caplog)) == (0, [])


@pytest.mark.parametrize(
    ("error", "asked", "warned"),
    [(Unreachable("not now"), 2, 1), (QueueMissing("not yet"), 2, 1), (Denied("no right"), 1, 0)],
)
def test_order_that_is_not_told_keeps_nobody_from_working(
    error: Exception, asked: int, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Who cannot answer yet is asked once more, and who may not tell is left alone."""
    memory = grouped("a1", "a2", "a3")
    queue = KeptApart(memory, "orders", error)
    handle_all(lambda _: None, queue, concurrency=1, prefetch=0, ordered=True)
    assert (queue.asked, len(warnings_of(caplog)), memory.left()) == (asked, warned, [])


def test_a_queue_that_cannot_tell_its_order_is_not_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its capabilities say so."""
    silent = MemoryQueue("orders", capabilities=replace(MEMORY, tells_order=False))
    queue = KeptApart(silent, "orders")
    handle_all(lambda _: None, queue, ordered=True)
    assert (queue.asked, warnings_of(caplog)) == (0, [])


@pytest.mark.parametrize("options", [{"ordered": True}, {"concurrency_per_group": 2}])
def test_a_queue_that_tells_no_groups_is_refused(options: dict[str, Any]) -> None:
    """By its client's capabilities, and with its name."""
    blind = MemoryQueue("blind", capabilities=replace(MEMORY, groups=False))
    named = next(iter(options))
    with pytest.raises(UnsafeWorker, match=f"{named} needs message groups.*of blind"):
        Worker(print, [MemoryQueue("seeing"), blind], **options)
    Worker(print, blind)


@pytest.mark.parametrize(
    ("able", "groups", "tells"),
    [(LEASEHOLD, True, True), (MNS, True, False), (AZURE, False, False), (MEMORY, True, True)],
)
def test_what_services_tell_of_groups(able: Capabilities, groups: bool, tells: bool) -> None:
    """The SDK of Azure shows no headers of an answer with its messages."""
    assert (able.groups, able.tells_order) == (groups, tells)


# --- workers -----------------------------------------------------------------------------------


class Noted:
    """A handler that fails at random, and notes what it did in which order.

    Args:
        dice: Says which messages fail how.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice, self._lock = dice, threading.Lock()
        self.done: dict[str, list[int]] = defaultdict(list)
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        self._failures: Counter[int] = Counter()
        self.faults = 0

    def __call__(self, message: Message) -> None:
        body = message.body.decode()
        group, number = body[0], int(body[1:])
        with self._lock:
            self._now[group] += 1
            self.most[group] = max(self.most[group], self._now[group])
            draw = self._dice.random()
            may_fail = self._failures[number] < 2  # within what a message may fail
        try:
            threading.Event().wait(draw / 500)
            if draw < 0.2 and may_fail:
                with self._lock:
                    self.faults += 1
                    self._failures[number] += 1
                if draw < 0.1:
                    raise Retry(delay_s=0)
                raise OSError("not now")
            with self._lock:
                self.done[group].append(number)
        finally:
            with self._lock:
                self._now[group] -= 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prefetch", [0, 30])
def test_order_is_kept_whatever_fails(seed: int, prefetch: int) -> None:
    """Of each group one at a time, done in the order of the puts, and nothing is left over."""
    dice = random.Random(seed)
    queue = grouped(*(f"{dice.choice(GROUPS)}{n}" for n in range(60)))
    with_order(queue, GroupOrder.FIFO)
    noted = Noted(dice)
    handle_all(noted, queue, concurrency=8, prefetch=prefetch, ordered=True, retries=AT_ONCE)
    assert noted.faults > 0
    assert set(noted.most.values()) == {1}
    assert {group: sorted(numbers) for group, numbers in noted.done.items()} == noted.done
    assert sorted(n for numbers in noted.done.values() for n in numbers) == list(range(60))
    assert queue.left() == []


def test_limit_of_a_group_in_a_worker() -> None:
    """Two of one group are worked on at once, and those of no group as many as there are hands."""
    queue = grouped(*(f"a{n}" for n in range(20)), *(f"-{n}" for n in range(20)))
    noted = Noted(random.Random(7))
    handle_all(noted, queue, concurrency=8, concurrency_per_group=2, retries=AT_ONCE)
    assert noted.most["a"] <= 2
    assert sorted(noted.done["a"]) == sorted(noted.done["-"]) == list(range(20))


def test_order_with_processes(tmp_path: Path) -> None:
    """Two processes, and of each group the files are made in their order."""
    log = tmp_path / "log"
    bodies = [json.dumps([str(log), f"{group}{n}"]) for n in range(4) for group in GROUPS]
    queue = MemoryQueue("orders")
    queue.put([Outgoing(body=body, group_id=json.loads(body)[1][0]) for body in bodies])
    handle_all(handlers.write_down, queue, runner="processes", concurrency=2, ordered=True)
    lines = log.read_text().split()
    assert sorted(lines) == sorted(f"{group}{n}" for n in range(4) for group in GROUPS)
    for group in GROUPS:
        assert [line for line in lines if line[0] == group] == [f"{group}{n}" for n in range(4)]
