"""Long random work, played on a store and on the memory store at once: equal answers, equal logs.

The state machines of this folder find short scripts; this goes deep. Both stores give out the same
ids and receipts here, so whatever one answers can be compared as it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import sessions as s
from leasehold.domain import transactions as sg
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite import store as sqlite_store
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, Asker
from tests.contract.stores.random_work import QUEUES, STREAMS, RandomWork

from .claiming import UNEXPIRED, forget_signs

_PAGED = (o.Inspect, cl.ReadClaim)
"""Commands that each store answers with pages of its own."""


class Twins(Asker):
    """Asks both stores, and finds their answers equal."""

    tested: Any

    def __init__(self, folder: Path | None, clock: ManualClock) -> None:
        self._folder = folder
        self.tested = self.open_tested()
        self.oracle = MemoryStore(receipt_key=self.tested._state.receipt_key)
        super().__init__(self.tested, clock)
        self._read_up_to = [0, 0]

    def open_tested(self) -> Store:
        """Open the store that is compared with the oracle, for the first time or again."""
        assert self._folder is not None
        return SqliteStore(self._folder, cache_mib=2)

    def batch(self, *commands: AnyCommand) -> list[c.Result]:
        actuals = self._run(self.tested, *commands)
        expecteds = self._run(self.oracle, *commands)
        for command, expected, actual in zip(commands, expecteds, actuals, strict=True):
            if isinstance(command, e.ReadEvents | e.LogExtent) or (
                isinstance(command, _PAGED) and isinstance(expected, o.MessagePage | cl.MemberPage)
            ):
                continue
            told = comparable(actual), comparable(expected)
            assert told[0] == told[1], f"{command}: {told[0]} and not {told[1]}"
        return actuals

    def compare_all(self) -> None:
        """Compare what both stores hold, and what they have logged since the last time."""
        self.batch(
            *(o.CountMessages(ACCOUNT, queue) for queue in QUEUES),
            *(o.NextDue(ACCOUNT, queue) for queue in QUEUES),
            *(cl.ListStreams(ACCOUNT, queue) for queue in QUEUES),
            s.ListSessions(ACCOUNT),
            sg.ListTransactions(ACCOUNT),
            c.ListQueues(ACCOUNT, "", "", 100),
            *(c.Peek(ACCOUNT, queue, 1_000) for queue in QUEUES),
        )
        for queue in QUEUES:
            assert self._listed(self.tested, queue) == self._listed(self.oracle, queue)
            for stream in STREAMS:
                found = self.stream(stream, queue)
                for claim in found.claims if isinstance(found, cl.Stream) else ():
                    named = ACCOUNT, queue, stream, claim.number
                    assert self._members(self.tested, named) == self._members(self.oracle, named)
        assert self._logged(1) == self._logged(0)

    def reopen(self) -> None:
        """Close the store and open it again: nothing changes but when sessions were heard of."""
        self.tested.close()
        self.store = self.tested = self.open_tested()
        self.forget()
        self.batch(s.ListSessions(ACCOUNT))

    def forget(self) -> None:
        """Have the oracle forget what the other store does when it is closed."""
        tables = self.oracle._tables
        tables.last_row_key = self.tested._state._next_row_key - 1
        for table in tables.queues.values():
            table.bucket = None  # what was received in the last second is not kept
        forget_signs(self.oracle, self.clock.now_ms())

    def _run(self, store: Store, *commands: AnyCommand) -> list[c.Result]:
        answers = store.execute(commands, now_ms=self.clock.now_ms())
        store.commit()
        return answers

    def _ask(self, store: Store, command: AnyCommand) -> c.Result:
        return self._run(store, command)[0]

    def _listed(self, store: Any, queue: str) -> list[o.Seen]:
        found: list[o.Seen] = []
        after: str | None = ""
        while after is not None:
            page = self._ask(store, o.Inspect(ACCOUNT, queue, UNEXPIRED, after, 1_000))
            assert isinstance(page, o.MessagePage)
            found += page.messages
            after = page.next_after
        return found

    def _members(self, store: Any, named: tuple[str, str, str, int]) -> list[Any]:
        found: list[Any] = []
        after: str | None = ""
        while after is not None:
            page = self._ask(store, cl.ReadClaim(*named, 0, 1, after, 3))
            if not isinstance(page, cl.MemberPage):
                return [comparable(page)]
            found += page.messages
            after = page.next_after
        return found

    def _logged(self, place: int) -> list[Any]:
        """Return the events since the last time: batch by batch, message by message."""
        store = (self.oracle, self.tested)[place]
        page = self._ask(store, e.ReadEvents(self._read_up_to[place], 1_000_000))
        assert isinstance(page, e.EventPage)
        self._read_up_to[place] = page.last_seq
        return [
            sorted(
                (event._replace(seq=0, place=0) for event in batch),
                key=lambda event: (event.message_id or "", "" if event.message_id else repr(event)),
            )
            for _, batch in groupby(page.events, key=lambda event: event.seq)
        ]


def comparable(answer: Any) -> Any:
    """Return an answer as something that can be compared.

    Errors are not equal as they are, and how a job goes about its work is each store's business.
    """
    if isinstance(answer, o.Job):
        return replace(answer, cursor="", end=0, examined=0)
    if isinstance(answer, LeaseholdError):
        return type(answer), vars(answer)
    if type(answer) is tuple:
        return tuple(map(comparable, answer))
    if isinstance(answer, sg.Committed):
        return tuple(map(comparable, answer.results)), answer[1:]
    return answer


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[Twins]:
    both = Twins(tmp_path, ManualClock())
    both.create()
    yield both
    both.tested.close()


def play(
    twins: Twins, seed: int, rounds: int, steps: Sequence[int] = (1, 5, 20), alike: float = 0
) -> None:
    rng = random.Random(seed)
    work = RandomWork(twins, rng)
    work.alike = alike
    for _ in range(rounds):
        work.play(rng.choice(steps))
        twins.compare_all()
        if rng.random() < 0.05:
            twins.reopen()


@pytest.mark.parametrize("seed", range(4))
def test_both_stores_do_the_same_for_long(twins: Twins, seed: int) -> None:
    """Some thousand operations of every kind, compared again and again."""
    play(twins, seed, 60)


@pytest.mark.parametrize("seed", [0, 1])
def test_both_stores_do_the_same_with_segments(twins: Twins, seed: int) -> None:
    """Bodies in segments are read, replaced, moved and dropped as others are."""
    play(twins, seed, 60, alike=0.6)


@pytest.mark.parametrize("seed", range(100, 102))
def test_both_stores_do_the_same_in_steps(
    twins: Twins, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where claims are opened in steps of few messages, and dissolved soon and in steps."""
    monkeypatch.setattr(cl, "CLAIM_STEP", 3)
    monkeypatch.setattr(cl, "AGAIN_STEP", 2)
    monkeypatch.setattr(cl, "FOLD_STEP", 2)
    monkeypatch.setattr(cl, "MAX_LAPSED", 1)
    play(twins, seed, 60)


_TIMES = "visible_at_ms + ?2 - inserted_at_ms"
PLANTED = {
    "keeps the fence of a member": ("claim_many", "fence = fence + 1", "fence = fence"),
    "lets hidden members expire": (
        "expired",
        "partition & 1099511627775 NOT IN (SELECT value FROM json_each(?4))",
        "?4 IS NOT NULL",
    ),
    "dissolves into the past": ("unclaim_many", "= ?2", "= iif(?2, visible_at_ms, 0)"),
    "publishes with the times of staging": ("publish_lane", _TIMES, "visible_at_ms"),
    "logs the times of staging": ("cores_to_publish", _TIMES, "visible_at_ms"),
    "ends leases that have lapsed": ("leases_of_session", "visible_at_ms > ?2 AND", ""),
    "gives back without a new fence": ("return_many", "fence = fence + 1", "fence = fence"),
    "hides what was saved": ("mark_saved", "saved = ?2", "saved = 0 * ?2"),
    "saves the first for ever": ("keep_saved", "SET content = ?2", "SET content = content"),
    "claims again without a count": ("claim_again", "dequeue_count + 1", "dequeue_count"),
}


FOUND_LATE = {"ends leases that have lapsed", "saves the first for ever"}
"""Faults that take more than ten seconds to be found."""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.slow if fault in FOUND_LATE else pytest.mark.long)
        for fault in PLANTED
    ],
)
def test_a_planted_fault_is_found(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positive controls: the comparison sees each of these mistakes."""
    name, right, wrong = PLANTED[fault]
    sql = sqlite_store.QUERIES[name]
    assert right in sql
    monkeypatch.setitem(sqlite_store.QUERIES, name, sql.replace(right, wrong))
    monkeypatch.setattr(cl, "MAX_LAPSED", 1)
    with pytest.raises(AssertionError):
        play_many(tmp_path)


def play_many(folder: Path) -> None:
    for seed in range(80):
        play_anew(folder / str(seed), seed)


def play_anew(folder: Path, seed: int) -> None:
    """Play on stores of their own."""
    folder.mkdir()
    both = Twins(folder, ManualClock())
    try:
        both.create()
        play(both, seed, 40)
    finally:
        both.tested.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1_000, 1_040))
def test_both_stores_do_the_same_for_very_long(twins: Twins, seed: int) -> None:
    """The slow part."""
    play(twins, seed, 400)
