"""A micro-batch whose publishing settles its claim."""

from __future__ import annotations

import pytest

from leasehold.client import Client, Outgoing, QueueHandle
from leasehold.spark.connection import transaction_name
from leasehold.spark.options import DataLost, StreamTaken
from leasehold.testing import InProcessServer
from tests.unit.spark.stream.driving import Driving, claims_of, fill, task

NAME = transaction_name("q", 0)


@pytest.fixture
def sums(client: Client) -> QueueHandle:
    """Where results go."""
    handle = client.queue("sums")
    handle.create()
    return handle


def stage(client: Client) -> None:
    """Stage a result, as a sink does for the first micro-batch."""
    client.transaction(NAME).stage([Outgoing("6", queue="sums")], part="0", chunk=0)


def test_publishing_settles(
    driving: Driving, queue: QueueHandle, client: Client, sums: QueueHandle
) -> None:
    """Results appear and messages are completed in one; nothing is left open by a stop."""
    fill(queue, 3)
    query = driving.query(settleWithSink="true")
    query.bodies({"claim": 0}, query.trigger(query.begin()))
    stage(client)
    client.transaction(NAME).publish()
    assert (queue.counts().total, sums.counts().visible) == (0, 1)
    query.reader.stop()
    assert claims_of(queue.stream("totals")) == []


def test_a_replay_of_what_was_published_has_no_rows(
    driving: Driving, queue: QueueHandle, client: Client, sums: QueueHandle
) -> None:
    """A crash between publishing and Spark's log: the batch comes again, and is known."""
    fill(queue, 3)
    crashed = driving.query(settleWithSink="true")
    end = crashed.trigger(crashed.begin())
    crashed.bodies({"claim": 0}, end)
    stage(client)
    client.transaction(NAME).publish()
    crashed.kill()
    query = driving.query(settleWithSink="true")
    assert query.bodies({"claim": 0}, end) == []
    assert query.trigger(end) is end


def test_what_another_batch_has_settled_is_a_loss(
    driving: Driving, queue: QueueHandle, client: Client, sums: QueueHandle
) -> None:
    """Only the very micro-batch that was published may be empty."""
    fill(queue, 3)
    crashed = driving.query(settleWithSink="true")
    end = crashed.trigger(crashed.begin())
    crashed.bodies({"claim": 0}, end)
    client.transaction(NAME).publish()
    crashed.kill()
    query = driving.query(settleWithSink="true")
    with pytest.raises(DataLost, match="not by this micro-batch"):
        query.bodies({"claim": 0}, end, task(batch_id=1))


def test_a_replay_before_publishing_binds_anew(
    driving: Driving, queue: QueueHandle, client: Client, sums: QueueHandle
) -> None:
    """After a crash before it, the batch is read, and its publishing settles it; also if the
    option was taken away in between, as otherwise it could never be published."""
    fill(queue, 3)
    crashed = driving.query(settleWithSink="true")
    end = crashed.trigger(crashed.begin())
    crashed.bodies({"claim": 0}, end)
    stage(client)
    crashed.kill()
    query = driving.query(settleWithSink="false")
    assert len(query.bodies({"claim": 0}, end)) == 3
    client.transaction(NAME).publish()
    assert (queue.counts().total, sums.counts().visible) == (0, 1)


def test_without_the_option_publishing_settles_nothing(
    driving: Driving, queue: QueueHandle, client: Client, sums: QueueHandle
) -> None:
    """The next trigger does, as with any other sink."""
    fill(queue, 3)
    query = driving.query()
    end = query.trigger(query.begin())
    query.bodies({"claim": 0}, end)
    stage(client)
    client.transaction(NAME).publish()
    assert queue.counts().leased == 3
    query.trigger(end)
    assert queue.counts().total == 0


def test_the_option_can_come_after_a_publishing(
    driving: Driving, queue: QueueHandle, client: Client, sums: QueueHandle
) -> None:
    """A batch that was published without its claim is read again, and not published twice."""
    fill(queue, 3)
    crashed = driving.query()
    end = crashed.trigger(crashed.begin())
    crashed.bodies({"claim": 0}, end)
    stage(client)
    client.transaction(NAME).publish()
    crashed.kill()
    query = driving.query(settleWithSink="true")
    assert len(query.bodies({"claim": 0}, end)) == 3
    assert client.transaction(NAME).publish().already
    query.trigger(end)
    assert (queue.counts().total, sums.counts().visible) == (0, 1)


def test_executors_of_a_query_that_was_overtaken_end(driving: Driving, queue: QueueHandle) -> None:
    """They cannot bind what is another's."""
    fill(queue, 3)
    first = driving.query(settleWithSink="true")
    end = first.trigger(first.begin())
    planned = first.reader.partitions({"claim": 0}, end)
    second = driving.query()
    second.trigger(second.begin())
    first.on_executors.task = task
    with pytest.raises(StreamTaken, match="streamId=totals"):
        list(first.on_executors.read(planned[0]))


def test_a_name_that_is_older_than_the_claim_is_refused(
    driving: Driving, queue: QueueHandle, client: Client, server: InProcessServer, sums: QueueHandle
) -> None:
    """With a checkpoint that was restored, the sink would drop rows that were never published;
    also after a restart, when the claim is found again."""
    stage(client)
    client.transaction(NAME).publish()
    server.advance(60)
    fill(queue, 3)
    query = driving.query(settleWithSink="true")
    end = query.trigger(query.begin())
    with pytest.raises(DataLost, match="published by another micro-batch"):
        query.bodies({"claim": 0}, end)
    query.reader.stop()
    with pytest.raises(DataLost, match="published by another micro-batch"):
        driving.query(settleWithSink="true").bodies({"claim": 0}, end)
    assert queue.counts().leased == 3
