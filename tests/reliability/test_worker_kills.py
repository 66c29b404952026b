"""Workers are killed at any moment: each effect happens once all the same, and none is lost.

Leases of 5 seconds, handlers of 30, 32 messages ahead, four workers in processes of their own, and
a server in another. Time runs faster than that of the machine, for all of them alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.client.models import Event
from tests.reliability.worker_campaign import QUEUE, Audit, Rig
from tests.reliability.worker_ledger import Accounts, Entry

WORKERS: Final = 4
SEED: Final = 20_261_121
KINDS: Final[dict[str, dict[str, Any]]] = {
    "threads": {},
    "asyncio": {"runner": "asyncio", "handler": "afenced"},
    "processes": {"runner": "processes", "concurrency": 2, "prefetch": 4},
    "renewed by a process": {"renewer": "process"},
    "without sessions": {"session": False},
}


def play(
    folder: Path,
    messages: int,
    *,
    kills: int,
    every_s: float = 20,
    kinds: Sequence[str] = ("threads",) * WORKERS,
    busy_with: str = "effect",
    gently: bool = False,
    **how: Any,
) -> Audit:
    """Have messages worked on while workers are killed, and account for everything.

    With *gently* time does not run fast before all workers renew: nobody waits for the processes
    that they start for that.
    """
    with Rig(folder, **how) as rig:
        rig.send(messages)
        began_s = rig.conductor.now_s
        with rig.conductor.slowly() if gently else nullcontext():
            for slot, kind in enumerate(kinds):
                rig.start(slot, **KINDS[kind])
            rig.conductor.until(lambda: not gently or _all_renew(rig), 60, "all renew")
        rig.kill_now_and_then(kills, every_s, random.Random(SEED), busy_with)
        rig.finish(limit_s=3600)
        audit = rig.audit()
        took_s, died = round(rig.conductor.now_s - began_s), rig.deaths.total()
        print(audit.summary(kills=died, took_s=took_s))  # noqa: T201 - figures for a person who runs it with -s
        assert died >= min(kills, len(kinds))
    return audit


def _all_renew(rig: Rig) -> bool:
    holders = {event.holder for event in rig.client.events() if event.type == "renewed"}
    return len(holders) == len(rig.workers)


def test_killed_workers_do_each_effect_once(tmp_path: Path) -> None:
    """The quick part: three kills, 120 messages."""
    audit = play(tmp_path, 120, kills=3, every_s=12)
    assert audit.problems() == []
    assert audit.redelivered > 0
    assert audit.repeated > 0


@pytest.mark.long
def test_killed_workers_of_other_kinds(tmp_path: Path) -> None:
    """Tasks, processes, renewals by a process, no session: one of each is killed."""
    kinds = [kind for kind in KINDS if kind != "threads"]
    settings: dict[str, Any] = {"handler_s": 10, "concurrency": 4, "prefetch": 8}
    audit = play(tmp_path, 120, kills=len(kinds), every_s=8, kinds=kinds, **settings)
    assert audit.problems() == []
    assert audit.redelivered > 0


@pytest.mark.long
def test_nothing_is_delivered_twice_without_kills(tmp_path: Path) -> None:
    """Each message is received once, however many renewals it takes, in hand or in the buffer."""
    audit = play(tmp_path, 128, kills=0, prefetch=16)
    assert audit.problems() == []
    assert len(audit.of("received")) == len(audit.accounts.noted("begun")) == 128
    assert len(audit.of("renewed")) > 128 * 5
    assert audit.redelivered == 0
    assert audit.of("lapsed") == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_kills(tmp_path: Path, kind: str) -> None:
    """The slow part: 2,000 messages, and a worker is killed every few seconds until all is done."""
    messages = 200 if kind == "processes" else 2000
    audit = play(
        tmp_path, messages, kills=10_000, every_s=30, kinds=[kind] * WORKERS, concurrency=32
    )
    assert audit.problems() == []
    assert audit.repeated > messages // 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_messages_without_kills(tmp_path: Path, kind: str) -> None:
    """2,000 messages are received once each."""
    messages = 200 if kind == "processes" else 2000
    audit = play(tmp_path, messages, kills=0, kinds=[kind] * WORKERS, concurrency=32, gently=True)
    assert audit.problems() == []
    assert (audit.redelivered, audit.of("lapsed")) == (0, [])


@pytest.mark.long
def test_progress_survives_kills(tmp_path: Path) -> None:
    """What was saved is where the next holder begins, and the work gets done by ever new workers.

    They live hardly longer than a piece of work takes.
    """
    how: dict[str, Any] = {"handler": "resuming", "busy_with": "saved"}
    audit = play(tmp_path, 64, kills=8, every_s=8, prefetch=0, **how)
    assert audit.problems() == []
    saved: dict[str, int] = {}
    resumed = 0
    for entry in sorted(audit.accounts.entries, key=lambda entry: (entry.name, entry.fence)):
        if entry.what == "resumed":
            assert int(entry.told) >= saved.get(entry.name, 0), entry
            resumed += int(entry.told) > 0
        elif entry.what == "saved":
            saved[entry.name] = int(entry.told)
    assert resumed > 0


# Positive controls: what the library prevents is found where it is switched off.


def test_an_effect_without_a_fence_is_doubled(tmp_path: Path) -> None:
    """The same campaign with a handler that only writes finds effects that happened twice."""
    audit = play(tmp_path, 64, kills=1, every_s=5, prefetch=0, handler="unfenced", handler_s=15)
    assert any("2 effects" in problem for problem in audit.problems())


def test_without_renewals_messages_are_delivered_twice(tmp_path: Path) -> None:
    """Workers that only think that they renew lose what they work on to each other."""
    with Rig(tmp_path, renews=False) as rig:
        rig.send(40)
        for slot in range(2):
            rig.start(slot)
        rig.await_noted("begun", 32)
        rig.conductor.until(lambda: _second_deliveries(rig), 60, "a second delivery")
        audit = rig.audit()
    assert audit.redelivered > 0
    assert audit.of("lapsed") != []


def _second_deliveries(rig: Rig) -> int:
    return sum(entry.dequeue_count > 1 for entry in rig.noted("begun"))


# The audit itself, on records made by hand.


def event(kind: str, message_id: str = "", dequeue_count: int = 0) -> Event:
    """Return an event of the server."""
    return Event(
        seq=1,
        place=0,
        at_ms=0,
        type=kind,
        queue=QUEUE,
        message_id=message_id,
        dequeue_count=dequeue_count,
    )


def begun(name: str, fence: int) -> Entry:
    """Return the beginning of an attempt."""
    return Entry(what="begun", name=name, fence=fence, worker="w")


ACCOUNTS: Final = Accounts(
    effects=(("a", 1, "w"), ("b", 2, "w")),
    work=(("id-a", "done", 1), ("id-b", "done", 2)),
    entries=(begun("a", 1), begun("b", 1), begun("b", 2)),
)
HONEST: Final = Audit(
    sent=("a", "b"),
    accounts=ACCOUNTS,
    events=(event("received", "id-a", 1), event("completed", "id-a"), event("completed", "id-b")),
    left=0,
    queues=(QUEUE,),
)


def with_accounts(**changes: Any) -> Audit:
    """Return the honest audit with other accounts."""
    return replace(HONEST, accounts=replace(ACCOUNTS, **changes))


DOCTORED: Final[dict[str, Callable[[], tuple[str, Audit]]]] = {
    "lost": lambda: ("b: no effect", with_accounts(effects=ACCOUNTS.effects[:1])),
    "doubled": lambda: (
        "a: 2 effects",
        with_accounts(effects=(*ACCOUNTS.effects, ("a", 2, "v"))),
    ),
    "of nobody": lambda: (
        "c: nobody sent it",
        with_accounts(effects=(*ACCOUNTS.effects, ("c", 1, "w"))),
    ),
    "undone by a late writer": lambda: (
        "id-a: begun with fence 1",
        with_accounts(work=(("id-a", "begun", 1), ("id-b", "done", 2))),
    ),
    "two with one fence": lambda: (
        "a: 2 attempts with fence 1",
        with_accounts(entries=(*ACCOUNTS.entries, begun("a", 1))),
    ),
    "left over": lambda: ("1 messages are left", replace(HONEST, left=1)),
    "set aside": lambda: (
        "id-a: poison",
        replace(HONEST, events=(*HONEST.events, event("poisoned", "id-a"))),
    ),
    "a poison queue": lambda: (
        "there are queues ('work', 'work-poison')",
        replace(HONEST, queues=(QUEUE, f"{QUEUE}-poison")),
    ),
    "not completed": lambda: (
        "2 were sent, and 1 completed",
        replace(HONEST, events=HONEST.events[:2]),
    ),
}


def test_an_honest_record_passes() -> None:
    """A message that was delivered again is no violation."""
    assert HONEST.problems() == []


@pytest.mark.parametrize("doctored", DOCTORED)
def test_every_doctored_record_is_found(doctored: str) -> None:
    """Positive control: each kind of violation is found when it is planted."""
    problem, audit = DOCTORED[doctored]()
    assert audit.problems() == [problem]
