"""What ends a query, or is accepted, when messages of a micro-batch are gone."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from leasehold.client import QueueHandle
from leasehold.spark.options import DataLost
from leasehold.testing import InProcessServer
from tests.unit.spark.stream.driving import Driving, column, fill, task


def lose_one(driving: Driving, queue: QueueHandle, server: InProcessServer) -> dict[str, int]:
    """Crash in a micro-batch of three, and let somebody else take a message of it."""
    fill(queue, 3)
    crashed = driving.query(visibilityTimeout="10")
    end = crashed.trigger(crashed.begin())
    crashed.kill()
    server.advance(11)
    assert len(queue.receive(1)) == 1
    return end


def test_a_micro_batch_that_lost_messages_fails(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """It is never silently smaller than it was."""
    end = lose_one(driving, queue, server)
    query = driving.query()
    with pytest.raises(DataLost, match="lost 1 of its 3"):
        query.reader.partitions({"claim": 0}, end)
    query.reader.stop()
    with pytest.raises(DataLost):
        driving.query().reader.partitions({"claim": 0}, end)


@pytest.mark.parametrize("options", [{"failOnDataLoss": "false"}, {"delivery": "atLeastOnce"}])
def test_a_loss_can_be_accepted(
    driving: Driving,
    queue: QueueHandle,
    server: InProcessServer,
    options: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Then the rest comes, and the log says how many are missing."""
    end = lose_one(driving, queue, server)
    query = driving.query(**options)
    assert len(query.bodies({"claim": 0}, end)) == 2
    assert "lost 1 of its 3" in caplog.text
    assert query.trigger(end) is end
    assert queue.counts().leased == 1


def test_a_claim_that_is_gone_fails(driving: Driving, queue: QueueHandle) -> None:
    """Given back by hand, it must not become another set of messages under the same number."""
    fill(queue, 3)
    crashed = driving.query()
    end = crashed.trigger(crashed.begin())
    crashed.kill()
    stream = queue.stream("totals")
    stream.attach()
    stream.give_back(1)
    with pytest.raises(DataLost, match="not there any more"):
        driving.query().reader.partitions({"claim": 0}, end)
    query = driving.query(failOnDataLoss="false")
    assert query.bodies({"claim": 0}, end) == []


def test_a_claim_settled_by_hand_fails(driving: Driving, queue: QueueHandle) -> None:
    """A micro-batch of which Spark does not know that it is done cannot be read again."""
    fill(queue, 3)
    crashed = driving.query()
    end = crashed.trigger(crashed.begin())
    crashed.kill()
    stream = queue.stream("totals")
    stream.attach()
    stream.settle(1)
    with pytest.raises(DataLost, match="is settled although"):
        driving.query().reader.partitions({"claim": 0}, end)
    assert driving.query(failOnDataLoss="false").bodies({"claim": 0}, end) == []


def test_a_checkpoint_ahead_of_the_server_fails(driving: Driving, queue: QueueHandle) -> None:
    """If the stream was deleted the numbers begin anew, and old ones mean nothing."""
    fill(queue, 3)
    with pytest.raises(DataLost, match="at claim 57, and the server's last one is 0"):
        driving.query().trigger({"claim": 57})
    query = driving.query(failOnDataLoss="false")
    end = query.trigger({"claim": 57})
    assert end == {"claim": 1}
    assert len(query.bodies({"claim": 57}, end)) == 3
    assert query.trigger(end) is end


def test_a_checkpoint_behind_the_server_fails(driving: Driving, queue: QueueHandle) -> None:
    """A copy of an older checkpoint would skip what was settled since."""
    fill(queue, 3)
    query = driving.query(maxMessagesPerTrigger="1")
    start = query.begin()
    while (end := query.trigger(start)) != start:
        start = end
    query.reader.stop()
    with pytest.raises(DataLost, match="at claim 1, and all up to 3 are settled"):
        driving.query().trigger({"claim": 1})
    fill(queue, 1)
    assert driving.query(failOnDataLoss="false").trigger({"claim": 1}) == {"claim": 4}


def test_an_offset_of_another_source_is_refused(driving: Driving) -> None:
    """A checkpoint of some other source is not taken for ours."""
    with pytest.raises(ValueError, match="not written by this source"):
        driving.query().trigger({"offset": 3})


def test_a_loss_while_a_batch_is_read_needs_a_restart(driving: Driving, queue: QueueHandle) -> None:
    """An operator takes a message out of an open claim: no part may go on as if nothing was."""
    fill(queue, 3)
    query = driving.query(failOnDataLoss="false")
    end = query.trigger(query.begin())
    planned = query.reader.partitions({"claim": 0}, end)
    first = next(queue.stream("totals").read(1))
    queue.remove(first.id, force=True)
    query.on_executors.task = task
    with pytest.raises(DataLost, match="while it was being read"):
        list(query.on_executors.read(planned[0]))
    query.reader.stop()
    again = driving.query(failOnDataLoss="false")
    assert again.bodies({"claim": 0}, end) == [b"1", b"2"]


def test_a_purge_is_a_loss(driving: Driving, queue: QueueHandle) -> None:
    """Messages that an operator removed from an open claim are told of, not passed over."""
    fill(queue, 3)
    query = driving.query()
    end = query.trigger(query.begin())
    planned = query.reader.partitions({"claim": 0}, end)
    queue.purge()
    query.on_executors.task = task
    with pytest.raises(DataLost, match="while it was being read"):
        list(query.on_executors.read(planned[0]))
    query.reader.stop()
    with pytest.raises(DataLost, match="an operator has removed them"):
        driving.query().reader.partitions({"claim": 0}, end)


@pytest.mark.parametrize("gone", ["queue", "stream"])
def test_what_is_deleted_while_it_is_read_is_named(
    driving: Driving, queue: QueueHandle, gone: str
) -> None:
    """A task says which stream of which queue is not there any more."""
    fill(queue, 3)
    query = driving.query()
    planned = query.reader.partitions({"claim": 0}, query.trigger(query.begin()))
    (queue if gone == "queue" else queue.stream("totals")).delete()
    query.on_executors.task = task
    with pytest.raises(DataLost, match=f"totals of queue orders was deleted .* {gone}-not-found"):
        list(query.on_executors.read(planned[0]))


def test_a_claim_that_goes_away_at_a_restart_is_not_made_anew(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """Given back between two calls of a start, its number must not get other messages."""
    fill(queue, 3)
    crashed = driving.query()
    end = crashed.trigger(crashed.begin())
    crashed.kill()
    query = driving.query()
    query.reader._driver._attach()
    queue.stream("totals", token=query.reader._driver.token).give_back(1)
    server.advance(1)
    with pytest.raises(DataLost, match="not there any more"):
        query.reader.partitions({"claim": 0}, end)
    assert queue.counts().visible == 3


def test_a_claim_opened_ahead_may_lose_messages(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """Spark never had it, so what is left of it after an outage is a micro-batch like any other."""
    fill(queue, 4)
    query = driving.query(maxMessagesPerTrigger="2", visibilityTimeout="10")
    first = query.trigger(query.begin())
    query.bodies({"claim": 0}, first)
    driver = query.reader._driver
    assert driver._ahead._thread is not None
    driver._ahead._thread.join()
    server.advance(11)
    driver._extend(1)
    assert len(queue.receive(1)) == 1
    driver._keeper.beat()
    second = query.trigger(first)
    assert query.bodies(first, second) == [b"3"]
    assert query.trigger(second) is second
    assert queue.counts().total == 1


def test_messages_marked_by_an_earlier_run_are_logged(
    driving: Driving, queue: QueueHandle, caplog: pytest.LogCaptureFixture
) -> None:
    """They go to the poison queue even if another schema could decode them, so the log says so."""
    queue.put_many(['{"a": 1}', '{"a": "x"}'])
    numbers = StructType([StructField("a", LongType())])
    crashed = driving.query(numbers, format="json")
    end = crashed.trigger(crashed.begin())
    crashed.batches({"claim": 0}, end)
    crashed.kill()
    query = driving.query(StructType([StructField("_message_id", StringType())]), format="json")
    assert len(column(query.batches({"claim": 0}, end), "_message_id")) == 2
    assert "has marked 1 message as bad" in caplog.text
    query.trigger(end)
    assert queue.counts().poisoned == 1
