"""The check of an event log on Spark finds what it finds without."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leasehold.domain.events import Event, EventType
from leasehold.events.check import Rule
from leasehold.events.parquet import FileBuilder
from leasehold.spark import check_events
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import Asker
from tests.contract.stores.random_work import RandomWork
from tests.unit.events.checked import checked, row_of_event


def export(events: list[Event], folder: Path) -> None:
    """Write events as the exporter does, in several files."""
    while events:
        builder = FileBuilder(max_rows=500)
        builder.add(events)
        events = [event for event in events if event.seq > builder.last_seq]
        builder.write(folder)


def spoiled(events: list[Event], rng: random.Random) -> list[Event]:
    """Return a log in which some events say what cannot be."""
    found = list(events)
    kinds = (EventType.RECEIVED, EventType.COMPLETED, EventType.RENEWED, EventType.RELEASED)
    places = [at for at, event in enumerate(found) if event.type in kinds and event.fence]
    for at in rng.sample(places, 12):
        event = found[at]
        assert event.fence
        assert event.dequeue_count is not None
        found[at] = rng.choice(
            [
                event._replace(fence=event.fence - 1),
                event._replace(dequeue_count=event.dequeue_count + 1),
                event._replace(type=EventType.SETTLED, target="s/1"),
            ]
        )
    return found


@pytest.mark.parametrize("seed", [0, 7])
def test_spark_finds_the_same(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Message by message, whatever part it is in; of a log without faults that is nothing."""
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    work = RandomWork(asker, random.Random(seed), 6, groups=True)
    while work.operations < 1_500:
        work.play(100)
    events = asker.events(0, 10_000)
    if seed:
        events = spoiled(events, random.Random(seed))
    export(events, tmp_path)
    report = checked(map(row_of_event, events))
    rows = check_events(spark.read.parquet(str(tmp_path)), parts=3).collect()
    found = {
        (row.rule, row.seq, row.place, row.message_id, row.sentence) for row in rows if row.rule
    }
    whole = {
        (each.rule, each.seq, each.place, each.message_id, each.sentence)
        for each in report.violations
        # How active the server was is measured by all events, and a part has only its own.
        if each.rule is not Rule.SESSION_OVER
    }
    assert {each for each in found if each[0] != Rule.SESSION_OVER} == whole
    assert bool(whole) == bool(seed)
    assert sum(row.consumed for row in rows if not row.rule) == len(events)
    assert sum(row.events for row in rows if not row.rule) == len(events)
