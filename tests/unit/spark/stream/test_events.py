"""The event log as a stream, driven by hand in the order in which Spark calls."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from leasehold.client import Client, QueueHandle
from leasehold.domain.events import TrimEvents
from leasehold.spark import event_stream
from leasehold.spark.event_stream import EventStreamReader
from leasehold.spark.options import BadOption, DataLost
from leasehold.spark.schemas import EVENTS
from leasehold.spark.source import LeaseholdDataSource
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import InProcessServer
from tests.unit.spark.stream.driving import column

Offset = dict[str, Any]


class EventsByHand:
    """One run of a query over events."""

    running: ClassVar[list[EventsByHand]] = []

    def __init__(self, server: InProcessServer, **options: str) -> None:
        self.running.append(self)
        source = LeaseholdDataSource(
            {
                "connectionString": server.connection_string,
                "read": "events",
                "waitSeconds": "0",
                **options,
            }
        )
        made = source.streamReader(source.schema())
        assert isinstance(made, EventStreamReader)
        self.reader = made
        # What executors read with is pickled before it was ever used.
        self.on_executors: EventStreamReader = pickle.loads(pickle.dumps(made))
        self.limit = made.getDefaultReadLimit()

    def begin(self) -> Offset:
        """Return where a query without a checkpoint begins."""
        first = self.reader.initialOffset()
        assert self.reader.initialOffset() == first
        return first

    def trigger(self, start: Offset) -> Offset:
        """Ask for the next offset; a new one comes from JSON, as Spark keeps it."""
        end = self.reader.latestOffset(start, self.limit)
        return end if end is start else dict(json.loads(json.dumps(end)))

    def batches(self, start: Offset, end: Offset) -> list[Any]:
        """Plan a micro-batch and read all its parts."""
        parts = self.reader.partitions(start, end)
        return [
            batch
            for part in parts
            for batch in self.on_executors.read(pickle.loads(pickle.dumps(part)))
        ]

    def types(self, start: Offset, end: Offset) -> list[str]:
        """Plan a micro-batch, and return the types of its events."""
        return column(self.batches(start, end), "type")

    def run(self) -> list[list[str]]:
        """Read up to where there is nothing more; return the types of each micro-batch."""
        found = []
        start = self.begin()
        while (end := self.trigger(start)) != start:
            found.append(self.types(start, end))
            start = end
        return found


def close_readers() -> None:
    """End all queries, before their server."""
    while EventsByHand.running:
        EventsByHand.running.pop().reader.stop()


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """A server whose clock stands still."""
    with InProcessServer() as running:
        yield running
        close_readers()


def test_each_event_once_in_micro_batches(server: InProcessServer, queue: QueueHandle) -> None:
    """However small the micro-batches are, they have all events in their order."""
    for _ in range(5):
        queue.put("x")
    queue.complete(queue.receive(1)[0])
    whole = ["queue-created", *["put"] * 5, "received", "completed"]
    assert EventsByHand(server).run() == [whole]
    small = EventsByHand(server, maxEventsPerTrigger="3").run()
    assert [len(each) for each in small] == [3, 3, 2]
    assert [each for batch in small for each in batch] == whole


def test_a_micro_batch_is_read_again_as_it_was(server: InProcessServer, queue: QueueHandle) -> None:
    """A new process that knows nothing but the two offsets reads the same rows."""
    queue.put_many(["x"] * 10)
    first = EventsByHand(server, numPartitions="3")
    start = first.begin()
    end = first.trigger(start)
    rows = first.batches(start, end)
    queue.put_many(["x"] * 10)
    again = EventsByHand(server, numPartitions="2").batches(start, end)
    assert [each.to_pylist() for each in again if each.num_rows] == [
        each.to_pylist() for each in rows if each.num_rows
    ]


def test_a_first_micro_batch_is_repeated_whole_although_the_log_goes_on(
    server: InProcessServer, queue: QueueHandle
) -> None:
    """Spark keeps no initial offset: it asks a new process, for which another one is the latest."""
    query = EventsByHand(server, startingOffsets="latest")
    start = query.begin()
    queue.put_many(["x"] * 3)
    end = query.trigger(start)
    queue.put("y")
    again = EventsByHand(server, startingOffsets="latest")
    assert again.begin() != start
    assert again.types(again.begin(), end) == ["put"] * 3
    assert again.types(end, again.trigger(end)) == ["put"]
    assert again.types(end, end) == []


def test_idle_offset_is_the_same_object(server: InProcessServer, queue: QueueHandle) -> None:
    """Spark compares offsets as text: nothing new must give what it has given."""
    query = EventsByHand(server)
    start = query.trigger(query.begin())
    assert query.trigger(start) is start
    queue.put("x")
    end = query.trigger(start)
    assert query.types(start, end) == ["put"]
    assert query.reader.reportLatestOffset() == {"seq": end["seq"]}


def test_other_queues_make_no_micro_batch(
    server: InProcessServer, client: Client, queue: QueueHandle
) -> None:
    """Events that are not wanted are passed over, and none of those behind them is missed."""
    other = client.queue("other")
    other.create()
    query = EventsByHand(server, queueName="orders")
    start = query.trigger(query.begin())
    other.put_many(["x"] * 5)
    assert query.trigger(start) is start
    other.put("x")
    assert query.trigger(start) is start
    queue.put("x")
    other.put("x")
    end = query.trigger(start)
    assert query.types(start, end) == ["put"]
    assert query.trigger(end) is end


def test_very_many_unwanted_events_move_the_offset(
    server: InProcessServer, client: Client, queue: QueueHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a restart would have to look through all of them again, or find them deleted."""
    monkeypatch.setattr(event_stream, "_MOST_UNWANTED", 8)
    other = client.queue("other")
    other.create()
    query = EventsByHand(server, queueName="orders", maxEventsPerTrigger="2")
    start = query.trigger(query.begin())
    for _ in range(10):
        other.put("x")
    end = query.trigger(start)
    assert end["seq"] > start["seq"]
    assert query.types(start, end) == []


def test_where_it_begins(server: InProcessServer, queue: QueueHandle) -> None:
    """Earliest, latest, behind a number, or from a moment on."""
    queue.put("x")
    server.advance(1_000)
    queue.complete(queue.receive(1)[0])
    with server.client() as client:
        [put] = [each for each in client.events() if each.type == "put"]
    assert EventsByHand(server, startingOffsets="earliest").run() == EventsByHand(server).run()
    assert EventsByHand(server, startingOffsets="latest").run() == []
    for option in ("startingSeq", "startingOffsets"):
        assert EventsByHand(server, **{option: str(put.seq)}).run() == [["received", "completed"]]
    for text in (str(put.at_ms + 1), "2000-01-01T00:00:00Z"):
        [found] = EventsByHand(server, startingTimestamp=text).run()
        assert found[-2:] == ["received", "completed"]
        assert ("put" in found) == (text[:4] == "2000")


def test_available_now_ends_with_what_there_was(
    server: InProcessServer, queue: QueueHandle
) -> None:
    """A log that goes on does not keep the query."""
    queue.put("x")
    query = EventsByHand(server)
    query.reader.prepareForTriggerAvailableNow()
    start = query.begin()
    queue.put("x")
    end = query.trigger(start)
    assert query.types(start, end) == ["queue-created", "put"]
    assert query.trigger(end) is end


def test_deleted_events_are_a_loss(tmp_path: Path) -> None:
    """What was deleted before it was read ends the query, unless the options accept it."""
    with InProcessServer(store=tmp_path) as server, server.client() as client:
        queue = client.queue("orders")
        queue.create()
        before = EventsByHand(server)
        start = before.trigger(before.begin())
        queue.put("lost")
        end = before.trigger(start)
        queue.put("kept")
    store = SqliteStore(tmp_path)
    store.execute([TrimEvents(end["seq"], 100)], now_ms=server.now_ms())
    store.commit()
    store.close()
    with InProcessServer(store=tmp_path) as server:
        query = EventsByHand(server)
        with pytest.raises(DataLost, match=r"deleted before they were read.*failOnDataLoss=false"):
            query.trigger(start)
        [part] = query.reader.partitions(start, end)
        with pytest.raises(DataLost, match="deleted before they were read"):
            list(query.on_executors.read(part))
        tolerant = EventsByHand(server, failOnDataLoss="false")
        assert tolerant.types(start, tolerant.trigger(start)) == ["put"]
        assert EventsByHand(server).run() == [["put"]]  # a new query begins with what there is
        close_readers()


def test_a_log_that_is_shorter_than_the_offset(server: InProcessServer, queue: QueueHandle) -> None:
    """It is another log: the database was restored, or it is another server."""
    queue.put("x")
    with pytest.raises(DataLost, match="restored from a backup"):
        EventsByHand(server).trigger({"seq": 1_000})
    tolerant = EventsByHand(server, failOnDataLoss="false")
    end = tolerant.trigger({"seq": 1_000})
    assert tolerant.types({"seq": 1_000}, end) == []
    queue.put("y")
    assert tolerant.types(end, tolerant.trigger(end)) == ["put"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"streamId": "x"}, "streamId is not for a stream of read=events: its checkpoint"),
        ({"maxMessagesPerTrigger": "5"}, "use maxEventsPerTrigger"),
        ({"visibilityTimeout": "5m"}, "visibilityTimeout is not for a stream"),
        ({"endingTime": "2026-01-01"}, "endingTime is for batch reads"),
        ({"startingOffsets": "soon"}, "earliest, latest or the number of a batch"),
        ({"startingOffsets": "earliest", "startingSeq": "1"}, "exclude each other"),
        ({"startingTime": "soon"}, "is not a time"),
        ({"read": "messages", "startingSeq": "1"}, "is for the event log"),
        ({"read": "snapshot"}, "a stream reads messages, events or results"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, str], text: str) -> None:
    """What would be passed over is refused."""
    source = LeaseholdDataSource({"read": "events", "queueName": "orders", **options})
    with pytest.raises(BadOption, match=text):
        source.streamReader(EVENTS).initialOffset()
