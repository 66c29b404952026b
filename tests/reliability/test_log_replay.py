"""The event log is exact: it gives the live state, and breaks no rule, however much happened."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from leasehold.domain.events import EventType, Replay
from leasehold.events.check import Checker
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import Asker
from tests.contract.stores.random_work import RandomWork, replayed_and_live
from tests.unit.events.checked import NO_GRACE_MS, row_of_event


def replay_random_work(folder: Path, operations: int, size: int, seed: int) -> set[EventType]:
    """Play so many operations on a SQLite store, and replay its log again and again.

    Returns:
        The types of the events that there were.
    """
    store = SqliteStore(folder, cache_mib=16)
    asker = Asker(store, ManualClock())
    asker.create()
    work = RandomWork(asker, random.Random(seed), size, groups=True)
    replay, after_seq = Replay(), 0
    checker = Checker(session_grace_ms=NO_GRACE_MS)
    kinds: set[EventType] = set()
    while work.operations < operations:
        work.play(100)
        asker.peek()  # lets claims lapse that are due, so that the log stands still from here on
        last_seq = asker.last_seq()
        events = asker.events(after_seq, 10_000)
        kinds |= {event.type for event in events}
        checker.feed(map(row_of_event, events))
        replayed, live = replayed_and_live(asker, replay, after_seq)
        assert replayed == live
        after_seq = last_seq
    whole, live = replayed_and_live(asker)
    assert whole == live
    report = checker.end()
    assert report.violations == []
    assert report.consumed == report.events
    store.close()
    return kinds


def test_some_thousand_operations(tmp_path: Path) -> None:
    """The quick part: batches of up to thirty messages."""
    kinds = replay_random_work(tmp_path, 12_000, 30, seed=1)
    assert kinds > {EventType.SETTLED, EventType.PUBLISHED, EventType.LEASE_ENDED}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_operations(tmp_path: Path) -> None:
    """Every type of event, in batches of up to two hundred messages."""
    assert replay_random_work(tmp_path, 1_000_000, 200, seed=2) == set(EventType)
