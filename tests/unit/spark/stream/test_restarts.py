"""Stops, crashes and other queries: what is read again and what is not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql.types import StructType

from leasehold.client import QueueHandle
from leasehold.client.models import ClaimInfo
from leasehold.spark.options import NewCheckpoint, StreamTaken
from leasehold.spark.stream import consumer
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S
from tests.unit.spark.stream.driving import Driving, claims_of, fill, task

# --- a checkpoint that is not there ---------------------------------------------------------------


def finished(driving: Driving, queue: QueueHandle) -> None:
    """Run a query until one claim is settled, and leave its checkpoint behind."""
    fill(queue, 3)
    query = driving.query()
    end = query.trigger(query.begin())
    query.bodies({"claim": 0}, end)
    query.trigger(end)
    query.reader.stop()


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_new_checkpoint_for_an_old_stream_is_refused(
    driving: Driving, queue: QueueHandle, delivery: str
) -> None:
    """Spark would number its micro-batches from 0, which the sink may have; nothing is taken."""
    finished(driving, queue)
    fill(queue, 2, 3)
    query = driving.query(delivery=delivery, failOnDataLoss="false")
    with pytest.raises(NewCheckpoint, match=r"up to 1, .* no checkpoint.*allowNewCheckpoint=true"):
        query.reader.initialOffset()
    assert queue.counts().visible == 2


@pytest.mark.parametrize("accepting", [{"allowNewCheckpoint": "true"}, {"delivery": "atMostOnce"}])
def test_a_new_checkpoint_is_accepted_where_the_user_says_so(
    driving: Driving, queue: QueueHandle, accepting: dict[str, str]
) -> None:
    """The query goes on with the claim after the last one."""
    finished(driving, queue)
    sent = fill(queue, 2, 3)
    query = driving.query(**accepting)
    start = query.begin()
    assert start == {"claim": 1}
    assert query.bodies(start, query.trigger(start)) == sent


# --- stopping and starting anew -------------------------------------------------------------------


def test_a_stop_parks_the_last_micro_batch(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """It is kept for the replay window, and the next run settles it without reading it."""
    fill(queue, 3)
    query = driving.query(visibilityTimeout="10", replayWindow="1h")
    end = query.trigger(query.begin())
    query.bodies({"claim": 0}, end)
    query.reader.stop()
    server.advance(3_500)
    assert claims_of(queue.stream("totals")) == [(1, "parked")]
    again = driving.query()
    assert again.trigger(end) is end
    assert queue.counts().total == 0


def test_a_stop_twice_is_one(driving: Driving, queue: QueueHandle) -> None:
    """Stopping what is stopped, or was never used, does nothing."""
    fill(queue, 1)
    query = driving.query()
    query.reader.stop()
    query.trigger(query.begin())
    query.reader.stop()
    query.reader.stop()
    assert claims_of(queue.stream("totals")) == [(1, "parked")]


def test_a_crash_before_the_offset_is_logged_loses_nothing(
    driving: Driving, queue: QueueHandle
) -> None:
    """Asked for the same offset again, a new process finds the same claim."""
    sent = fill(queue, 3)
    crashed = driving.query()
    start = crashed.begin()
    end = crashed.trigger(start)
    crashed.kill()
    fill(queue, 3, 3)
    query = driving.query()
    assert query.begin() == start
    assert query.trigger(start) == end
    assert query.bodies(start, end) == sent


def test_a_crash_in_a_micro_batch_replays_it_identically(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """The first call of a new process may be to plan the batch again: it has the same rows."""
    fill(queue, 20)
    crashed = driving.query(visibilityTimeout="60")
    end = crashed.trigger(crashed.begin())
    before = crashed.batches({"claim": 0}, end)
    crashed.kill()
    server.advance(61)
    query = driving.query()
    after = query.batches({"claim": 0}, end)
    assert [each.to_pylist() for each in after] == [each.to_pylist() for each in before]
    assert query.trigger(end) is end
    assert queue.counts().total == 0


def test_a_new_checkpoint_goes_on_where_the_stream_is(driving: Driving, queue: QueueHandle) -> None:
    """Where that is allowed, a query begins after what is settled, and finds what is open."""
    fill(queue, 3)
    first = driving.query(maxMessagesPerTrigger="2")
    end = first.trigger(first.begin())
    assert first.trigger(end) == {"claim": 2}
    first.kill()
    query = driving.query(allowNewCheckpoint="true")
    assert query.begin() == {"claim": 1}
    assert query.bodies(end, query.trigger(end)) == [b"2"]


def test_the_lease_is_extended_however_long_a_batch_runs(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """Each beat of the keeper moves the end of the lease; a batch of ten leases loses nothing."""
    fill(queue, 3)
    query = driving.query(visibilityTimeout="30")
    end = query.trigger(query.begin())
    for _ in range(15):
        server.advance(20)
        assert query.reader._driver._keeper.beat() == 10
    assert queue.counts().leased == 3
    assert len(query.bodies({"claim": 0}, end)) == 3


def test_a_stop_gives_back_what_is_being_opened_ahead(
    driving: Driving, queue: QueueHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the answer is not there yet: nobody will ever ask for that claim."""
    monkeypatch.setattr(consumer, "_LEAVE_S", 0.01)
    fill(queue, 4)
    query = driving.query(maxMessagesPerTrigger="2")
    driver = query.reader._driver
    open_claim, opened, go_on = driver._opener._call, threading.Event(), threading.Event()

    def slow(number: int, *args: Any, **members: Any) -> ClaimInfo | None:
        found = open_claim(number, *args, **members)
        if number == 2:
            opened.set()
            assert go_on.wait(PATIENCE_S)
        return found

    driver._opener._call = slow  # type: ignore[method-assign]
    end = query.trigger(query.begin())
    query.bodies({"claim": 0}, end)
    assert opened.wait(PATIENCE_S)
    query.reader.stop()
    go_on.set()
    assert claims_of(queue.stream("totals")) == [(1, "parked")]


# --- others ---------------------------------------------------------------------------------------


def test_two_streams_of_a_queue_share_it(driving: Driving, queue: QueueHandle) -> None:
    """Two queries with names of their own get different messages."""
    sent = fill(queue, 10)
    one = driving.query(streamId="one", maxMessagesPerTrigger="5", prefetchClaim="false")
    two = driving.query(streamId="two", maxMessagesPerTrigger="5")
    of_one = one.bodies({"claim": 0}, one.trigger(one.begin()))
    of_two = two.bodies({"claim": 0}, two.trigger(two.begin()))
    assert one.trigger({"claim": 1}) == {"claim": 1}
    assert two.trigger({"claim": 1}) == {"claim": 1}
    assert (of_one, of_two) == (sent[:5], sent[5:])
    assert queue.counts().total == 0


def test_a_second_query_of_the_same_name_ends_the_first(
    driving: Driving, queue: QueueHandle
) -> None:
    """The first is told clearly, in the driver and on executors, and leaves the claim alone."""
    fill(queue, 3)
    first = driving.query()
    end = first.trigger(first.begin())
    second = driving.query()
    second.trigger(second.begin())
    with pytest.raises(StreamTaken, match="streamId=totals"):
        first.trigger(end)
    first.reader.stop()
    assert claims_of(queue.stream("totals")) == [(1, "open")]


def test_a_late_task_writes_nothing_for_the_query_that_came_after(
    driving: Driving, queue: QueueHandle
) -> None:
    """It sets no message aside, also where its process has read for the second query since."""
    queue.put_many([b"oops"] * 3)
    schema = StructType().add("id", "long")
    first = driving.query(schema, format="json")
    end = first.trigger(first.begin())
    first.on_executors.task = task
    (late,) = first.reader.partitions({"claim": 0}, end)
    first.kill()
    second = driving.query(schema, format="json")
    assert second.batches({"claim": 0}, end) == []
    with pytest.raises(StreamTaken):
        list(first.on_executors.read(late))


def test_the_keeper_tells_that_another_has_attached(driving: Driving, queue: QueueHandle) -> None:
    """What the keeper meets ends the query at its next call."""
    fill(queue, 3)
    first = driving.query()
    end = first.trigger(first.begin())
    second = driving.query()
    second.trigger(second.begin())
    first.reader._driver._keeper.beat()
    with pytest.raises(StreamTaken):
        first.reader.partitions({"claim": 0}, end)


# --- delivery at most once ------------------------------------------------------------------------


def test_at_most_once_reads_no_batch_again(
    driving: Driving, queue: QueueHandle, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash the batch that was under way has no rows, and the log says how many."""
    fill(queue, 3)
    crashed = driving.query(delivery="atMostOnce")
    end = crashed.trigger(crashed.begin())
    assert len(crashed.bodies({"claim": 0}, end)) == 3
    crashed.kill()
    query = driving.query(delivery="atMostOnce")
    assert query.bodies({"claim": 0}, end) == []
    assert "not read a second time: 3 messages" in caplog.text
    assert query.trigger(end) is end
    assert queue.counts().total == 0


def test_at_most_once_does_not_repeat_a_task(driving: Driving, queue: QueueHandle) -> None:
    """A second attempt at a task has no rows."""
    fill(queue, 3)
    query = driving.query(delivery="atMostOnce")
    end = query.trigger(query.begin())
    assert query.bodies({"claim": 0}, end, task(attempt=1)) == []
