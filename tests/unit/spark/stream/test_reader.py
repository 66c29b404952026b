"""The reader, driven in Spark's order against a server."""

from __future__ import annotations

import pickle
import threading
from itertools import chain

import pytest

from leasehold.client import QueueHandle
from leasehold.spark.options import BadOption
from leasehold.spark.schemas import MESSAGE, arrow_schema
from leasehold.testing import InProcessServer
from tests.unit.spark.stream.driving import ByHand, Driving, column, fill, task

# --- one micro-batch after the other --------------------------------------------------------------


def test_all_messages_come_once_in_their_order(driving: Driving, queue: QueueHandle) -> None:
    """Micro-batches have what the limit allows, and all together every message."""
    sent = fill(queue, 25)
    query = driving.query(maxMessagesPerTrigger="10")
    start, seen = query.begin(), []
    while (end := query.trigger(start)) != start:
        seen.append(query.bodies(start, end))
        start = end
    assert [len(each) for each in seen] == [10, 10, 5]
    assert [*chain(*seen)] == sent
    assert queue.counts().total == 0


def test_a_micro_batch_is_settled_when_the_next_is_asked_for(
    driving: Driving, queue: QueueHandle
) -> None:
    """Asking for what follows an offset completes its messages, also if nothing follows."""
    fill(queue, 3)
    query = driving.query()
    end = query.trigger(query.begin())
    query.bodies({"claim": 0}, end)
    assert queue.counts().leased == 3
    assert query.trigger(end) is end
    assert queue.counts().total == 0


def test_an_offset_that_does_not_move_is_the_same_object(
    driving: Driving, queue: QueueHandle
) -> None:
    """Spark compares offsets as text: without messages it gets back what it gave."""
    query = driving.query()
    start = query.begin()
    assert start == {"claim": 0}
    assert query.trigger(start) is start
    assert query.trigger(start) is start


def test_idle_triggers_do_not_redeliver(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """After the last micro-batch an idle query may wait ten leases: nothing comes again."""
    fill(queue, 3)
    query = driving.query(visibilityTimeout="10")
    end = query.trigger(query.begin())
    query.bodies({"claim": 0}, end)
    for _ in range(10):
        assert query.trigger(end) is end
        server.advance(10)
    assert queue.counts().total == 0
    assert queue.receive() == []


def test_commit_is_harmless(driving: Driving, queue: QueueHandle) -> None:
    """Spark confirms a micro-batch late; it is settled by then."""
    fill(queue, 4)
    query = driving.query(maxMessagesPerTrigger="2")
    first = query.trigger(query.begin())
    query.bodies({"claim": 0}, first)
    second = query.trigger(first)
    query.reader.commit(first)
    assert query.bodies(first, second) == [b"2", b"3"]
    query.reader.commit(second)
    assert queue.counts().total == 0


def test_batches_look_as_spark_wants_them(driving: Driving, queue: QueueHandle) -> None:
    """Columns, types and nullability are those of the schema, and name queue and claim."""
    fill(queue, 2)
    query = driving.query()
    (batch,) = query.batches({"claim": 0}, query.trigger(query.begin()))
    assert batch.schema.equals(arrow_schema(MESSAGE))
    assert column([batch], "queue") == ["orders"] * 2
    assert column([batch], "claim") == [1, 1]
    assert column([batch], "dequeue_count") == [1, 1]


def test_columns_can_be_chosen(driving: Driving, queue: QueueHandle) -> None:
    """Only the columns named come, in the order named."""
    fill(queue, 1)
    query = driving.query(columns="claim, BODY")
    (batch,) = query.batches({"claim": 0}, query.trigger(query.begin()))
    assert batch.to_pylist() == [{"claim": 1, "body": b"0"}]


# --- parts ----------------------------------------------------------------------------------------


def test_parts_cover_a_claim_and_can_be_read_again(driving: Driving, queue: QueueHandle) -> None:
    """Each part is the same twice, and twice at once; together they are the claim."""
    sent = fill(queue, 10)
    query = driving.query(numPartitions="3")
    parts = query.reader.partitions({"claim": 0}, query.trigger(query.begin()))
    assert len(parts) == 3
    reader = query.on_executors
    reader.task = task
    once = [column(reader.read(part), "body") for part in parts]
    assert [*chain(*once)] == sent
    again: dict[int, list[bytes]] = {}

    def read(place: int) -> None:
        again[place] = column(reader.read(parts[place]), "body")

    threads = [threading.Thread(target=read, args=(place % 3,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [again[place] for place in range(3)] == once


@pytest.mark.parametrize("priorities", [(3,), (3, 1)])
def test_whole_groups_are_in_one_part_in_order(
    driving: Driving, queue: QueueHandle, priorities: tuple[int, ...]
) -> None:
    """No group is in two parts, all come once, and a replay is the same."""
    queue.update(settings={"groups": {"order": "fifo"}})
    for number in range(60):
        group = None if number % 6 == 5 else f"group {number % 6 + number // 30}"
        priority = priorities[number // 6 % len(priorities)]
        queue.put(f"{number:02}", group_id=group, priority=priority)
    query = driving.query(numPartitions="3", wholeGroups="true")
    end = query.trigger(query.begin())
    reader = query.on_executors
    reader.task = task

    def read() -> list[list[tuple[str | None, bytes]]]:
        parts = query.reader.partitions({"claim": 0}, end)
        batches = [list(reader.read(part)) for part in parts]
        return [
            [*zip(column(each, "group_id"), column(each, "body"), strict=True)] for each in batches
        ]

    seen = read()
    assert len(seen) == 3
    assert sorted(body for _, body in chain(*seen)) == [b"%02d" % each for each in range(60)]
    places: dict[str, set[int]] = {}
    for place, rows in enumerate(seen):
        for name in {name for name, _ in rows if name is not None}:
            places.setdefault(name, set()).add(place)
            bodies = [body for each, body in rows if each == name]
            assert bodies == sorted(bodies)
    assert all(len(each) == 1 for each in places.values())
    assert len(set.union(*places.values())) > 1
    assert read() == seen


def test_a_group_in_order_waits_for_the_micro_batch_before(
    driving: Driving, queue: QueueHandle
) -> None:
    """While a claim has messages of a group, no other claim gets any; then comes the rest."""
    queue.update(settings={"groups": {"order": "fifo"}})
    for number in range(4):
        queue.put(f"{number}", group_id="one")
    first = driving.query(maxMessagesPerTrigger="2", wholeGroups="true")
    end = first.trigger(first.begin())
    assert first.bodies({"claim": 0}, end) == [b"0", b"1"]
    other = driving.query(streamId="other", wholeGroups="true")
    start = other.begin()
    assert other.trigger(start) is start
    after = first.trigger(end)
    assert first.bodies(end, after) == [b"2", b"3"]
    assert first.trigger(after) is after
    assert queue.counts().total == 0


def test_small_claims_are_read_in_one_part(driving: Driving, queue: QueueHandle) -> None:
    """A task costs more than a few rows, so a small claim has one."""
    fill(queue, 10)
    query = driving.query()
    assert len(query.reader.partitions({"claim": 0}, query.trigger(query.begin()))) == 1


def test_parts_hold_no_secret(driving: Driving, queue: QueueHandle) -> None:
    """What travels with each task shows neither key nor connection string."""
    fill(queue, 1)
    query = driving.query()
    (part,) = query.reader.partitions({"claim": 0}, query.trigger(query.begin()))
    key = driving.connection_string.split("AccountKey=")[1].split(";")[0]
    assert key.encode() not in pickle.dumps(part)
    assert key not in repr(part)
    assert key not in repr(query.reader.__dict__)


# --- reports and errors ---------------------------------------------------------------------------


def test_the_backlog_is_reported(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """The progress has the numbers of the queue at that moment, and those of the query."""
    fill(queue, 5)
    queue.put("later", delay_s=100)
    server.advance(7)
    query = driving.query(maxMessagesPerTrigger="2", prefetchClaim="false")
    first = query.trigger(query.begin())
    query.trigger(first)
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert report["stream"] == f"{server.url}/{server.account}/orders/totals"
    wanted = {"claim": 2, "size": 2, "visible": 1, "leased": 2, "delayed": 1, "completed": 2}
    assert {name: report[name] for name in wanted} == wanted
    assert report["oldest_age_s"] == 7


def test_a_report_without_an_answer_is_the_last_one(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """That numbers are missing does not end a query."""
    fill(queue, 1)
    query = driving.query()
    query.trigger(query.begin())
    report = query.reader.reportLatestOffset()
    queue.delete()
    assert query.reader.reportLatestOffset() is report


def test_a_queue_that_is_not_there_is_named(driving: Driving) -> None:
    """The error says which queue, where; and shows no key."""
    with pytest.raises(BadOption, match="there is no queue nowhere at http://127") as refusal:
        driving.query(queueName="nowhere").begin()
    assert "AccountKey" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "5"}, "minMessagesPerTrigger"),
        ({"streamId": ""}, "streamId"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    driving: Driving, options: dict[str, str], text: str
) -> None:
    """Before anything is asked of the server."""
    with pytest.raises(BadOption, match=text):
        driving.query(**options)


def test_a_stream_id_is_required(driving: Driving) -> None:
    """Nothing else tells one query from another on the server."""
    options = driving.options()
    del options["streamId"]
    with pytest.raises(BadOption, match="streamId is missing"):
        ByHand(options)


def test_a_source_without_news_gives_no_parts(driving: Driving, queue: QueueHandle) -> None:
    """In the first micro-batch of a query with two sources, one may be asked for nothing."""
    query = driving.query()
    start = query.begin()
    assert query.reader.partitions(start, start) == []
