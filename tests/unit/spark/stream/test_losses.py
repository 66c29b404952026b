"""What ends a query, or is accepted, when messages of a micro-batch are gone."""

from __future__ import annotations

import pytest

from leasehold.client import QueueHandle
from leasehold.spark.stream.problems import DataLost
from leasehold.testing import InProcessServer
from tests.unit.spark.stream.driving import Driving, fill, task


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
    with pytest.raises(DataLost, match="taken 1 of its 3"):
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
    assert "taken 1 of its 3" in caplog.text
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
    with pytest.raises(ValueError, match="none of this source"):
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
