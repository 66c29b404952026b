"""The stream of a plain queue service, its methods called as Spark calls them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from leasehold.spark.azure import AzureReader, Batches
from leasehold.spark.options import BadOption, BadRecord, read_options
from leasehold.spark.schemas import MESSAGE
from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters.protocol import Denied, Depth, Outgoing, Unreachable
from leasehold.worker.leases import HeldState, LeaseManager, LeaseSettings
from tests.unit.spark.stream.driving import task

LEASE_S = 30
JSON = StructType([StructField("id", LongType()), StructField("_corrupt_record", StringType())])


class Rig:
    """A queue in memory, and readers of it as after a start of the query."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.queue = MemoryQueue("orders", time=self.time)
        self.opened: list[Batches] = []

    def reader(self, schema: StructType = MESSAGE, **options: str) -> AzureReader:
        """Return a reader in a process of its own, so to speak."""
        given = {"service": "azure", "queueName": "orders", "numPartitions": "2", **options}
        given.setdefault("waitSeconds", "0")
        return AzureReader(read_options(given), schema, lambda _: self.open())

    def open(self) -> Batches:
        """Open the queue."""
        manager = LeaseManager(LeaseSettings.of(LEASE_S), time=self.time)
        self.opened.append(Batches(self.queue, manager, self.time, lease_s=LEASE_S, patience_s=60))
        return self.opened[-1]

    def put(self, *bodies: str) -> None:
        """Put messages."""
        assert self.queue.put([Outgoing(body=body) for body in bodies]) == [None] * len(bodies)

    def left(self) -> int:
        """Return how many messages there are, visible or not."""
        return self.queue.depth().total or 0


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Return a queue; what was opened is closed."""
    made = Rig()
    yield made
    for each in made.opened:
        each.close()


def rows(reader: AzureReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a micro-batch, as executors read them."""
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    there = pickle.loads(pickle.dumps(AzureReader(reader._options, reader._decoder._schema)))
    there.task = task
    return [row for part in parts for batch in there.read(part) for row in batch.to_pylist()]


def test_a_batch_is_completed_when_spark_asks_for_the_next_one(rig: Rig) -> None:
    """Not before: until then its rows may not be written."""
    rig.put("a", "b", "c")
    reader = rig.reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert [row["body"] for row in rows(reader, start, end)] == [b"a", b"b"]
    assert rig.left() == 3
    assert reader.latestOffset(end, ReadMaxRows(2)) == {"batch": 2}
    assert rig.left() == 1


def test_the_last_batch_is_completed_although_nothing_comes_after_it(rig: Rig) -> None:
    """Being asked is enough."""
    rig.put("a")
    reader = rig.reader()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    assert reader.latestOffset(end, ReadMaxRows(10)) is end
    assert rig.left() == 0


def test_asked_twice_a_reader_gives_the_same_batch(rig: Rig) -> None:
    """Nothing is received a second time for it."""
    rig.put("a", "b")
    reader = rig.reader()
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(1)) == reader.latestOffset(start, ReadMaxRows(1))
    assert rig.queue.depth().visible == 1


def test_leases_are_renewed_while_a_batch_takes_long(rig: Rig) -> None:
    """Ten leases later the messages are still ours, and are completed."""
    rig.put("a", "b")
    reader = rig.reader()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    for _ in range(100):
        rig.time.advance(LEASE_S / 10)
    assert rig.queue.depth().visible == 0
    reader.latestOffset(end, ReadMaxRows(10))
    assert rig.left() == 0


def test_a_batch_of_an_earlier_run_is_empty_and_its_messages_come_again(rig: Rig) -> None:
    """At least once: nothing is lost, and nothing is made up."""
    rig.put("a", "b")
    before = rig.reader()
    start = before.initialOffset()
    end = before.latestOffset(start, ReadMaxRows(10))
    before.stop()
    rig.time.advance(LEASE_S + 1)
    after = rig.reader()
    assert after.partitions(start, end) == []
    again = after.latestOffset(end, ReadMaxRows(10))
    assert [row["body"] for row in rows(after, end, again)] == [b"a", b"b"]


def test_at_most_once_completes_before_the_rows_are_written(rig: Rig) -> None:
    """What is lost then does not come again."""
    rig.put("a")
    reader = rig.reader(delivery="atMostOnce")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert len(rows(reader, start, end)) == 1
    assert rig.left() == 0


def test_a_query_of_what_is_available_ends_although_the_queue_is_fed(rig: Rig) -> None:
    """It takes as many messages as there were when it began."""
    rig.put("a", "b", "c")
    reader = rig.reader()
    reader.prepareForTriggerAvailableNow()
    offset, seen = reader.initialOffset(), 0
    while (end := reader.latestOffset(offset, ReadMaxRows(2))) != offset:
        seen += len(rows(reader, offset, end))
        rig.put("one more")
        offset = end
    assert seen == 3
    assert rig.queue.depth().leased == 0


def test_what_cannot_be_parsed_is_set_aside_with_a_reason(rig: Rig) -> None:
    """And not before its micro-batch is durable."""
    rig.put('{"id": 1}', "no JSON")
    reader = rig.reader(JSON, format="json")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [row["id"] for row in rows(reader, start, end)] == [1]
    assert rig.queue.poison.left() == []
    reader.latestOffset(end, ReadMaxRows(1))
    assert rig.left() == 0
    [buried] = rig.queue.poison.left()
    [fault] = rig.queue.poison.faults_of(buried.message_id)
    assert "does not fit" in fault.text


def test_what_cannot_be_parsed_can_be_kept_or_end_the_query(rig: Rig) -> None:
    """As the options say."""
    rig.put("no JSON")
    keeping = rig.reader(JSON, format="json", onBadRecord="keep")
    start = keeping.initialOffset()
    end = keeping.latestOffset(start, ReadMaxRows(1))
    assert rows(keeping, start, end) == [{"id": None, "_corrupt_record": "no JSON"}]
    failing = rig.reader(JSON, format="json", onBadRecord="fail")
    rig.put("no JSON")
    end = failing.latestOffset(start, ReadMaxRows(1))
    with pytest.raises(BadRecord, match="does not fit"):
        failing.partitions(start, end)


def test_a_lost_lease_is_counted(rig: Rig) -> None:
    """The message comes again, and the numbers of the query say so."""
    rig.put("a")
    reader = rig.reader()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    [held] = rig.opened[0]._held[1]
    held.lose("taken away")
    reader.latestOffset(end, ReadMaxRows(1))
    assert reader.reportLatestOffset() == {"messages": 1, "held": 0, "lost": 1}


def test_at_most_once_leaves_out_what_cannot_be_completed(rig: Rig) -> None:
    """It may come again, so it is not written now."""
    rig.put("a", "b", "c")
    reader = rig.reader(delivery="atMostOnce")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    rig.opened[0]._held[1][1].lose("taken away")
    assert [row["body"] for row in rows(reader, start, end)] == [b"a", b"c"]
    assert rig.left() == 1


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("delivery", ["atMostOnce", "atLeastOnce"])
def test_what_a_lost_answer_has_completed_is_completed(rig: Rig, delivery: str, lost: int) -> None:
    """The refusal of the repeat does not make it a message that comes again."""
    rig.put("a")
    reader = rig.reader(delivery=delivery)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    rig.queue.faults.fail(method="complete", carried_out=True)
    rig.queue.faults.fail(
        lost, method="complete", error=Unreachable("refused", outcome_unknown=False)
    )
    held = rig.opened[0]._held[1]
    with mock.patch.object(rig.opened[0], "_pause", rig.time.advance):
        found = rows(reader, start, end)
        reader.latestOffset(end, ReadMaxRows(10))
    assert [row["body"] for row in found] == [b"a"]
    assert held[0].state is HeldState.DONE
    assert rig.left() == 0
    assert reader.reportLatestOffset() == {"messages": 0, "held": 0, "lost": 0}


def test_at_most_once_does_not_repeat_a_task(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A first attempt may have written its rows; a second one has none, and the log says so."""
    rig.put("a")
    reader = rig.reader(delivery="atMostOnce", numPartitions="1")
    start = reader.initialOffset()
    [part] = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(10)))
    reader.task = lambda: task(attempt=1)
    assert list(reader.read(part)) == []
    assert "not read a second time: 1 message" in caplog.text


def test_a_service_that_does_not_tell_its_depth_ends_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature for taking messages need not allow to look at the queue."""

    def refuse() -> Depth:
        raise Denied("not with this signature")

    rig.put("a")
    reader = rig.reader()
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    monkeypatch.setattr(rig.queue, "depth", refuse)
    assert reader.reportLatestOffset() == {"messages": None, "held": 1, "lost": 0}


def test_an_offset_of_another_source_is_refused(rig: Rig) -> None:
    """Such as that of the same query before it was told to use service=azure."""
    with pytest.raises(ValueError, match="not written by service=azure"):
        rig.reader().latestOffset({"claim": 3}, ReadMaxRows(10))


def test_nothing_is_tried_again_after_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for a service that does not answer would hold up the end of a process."""
    tries = []

    def fail() -> Depth:
        tries.append(1)
        raise Unreachable("nobody there")

    batches = rig.open()
    batches.close()
    monkeypatch.setattr(rig.queue, "depth", fail)
    with pytest.raises(Unreachable):
        batches.depth()
    assert tries == [1]


def test_groups_are_refused(rig: Rig) -> None:
    """The service knows no groups, so nothing is promised of them."""
    with pytest.raises(BadOption, match=r"wholeGroups needs message groups.*service=azure"):
        rig.reader(wholeGroups="true")
    assert rig.reader(wholeGroups="false")
