"""A reader for PySpark 4.1, called in the order that was measured there."""

from __future__ import annotations

from leasehold.client import QueueHandle
from leasehold.spark.stream.releases import WithoutStart
from tests.unit.spark.stream.driving import Driving, fill


def test_a_new_query_is_asked_for_its_begin_last(driving: Driving, queue: QueueHandle) -> None:
    """Spark asks for the latest offset first, and plans from the initial one."""
    fill(queue, 3)
    reader = WithoutStart(driving.query().reader)
    end = reader.latestOffset()
    assert end["claim"] == 1
    start = reader.initialOffset()
    assert start == {"claim": 0}
    assert reader.partitions(start, end)
    assert queue.counts().leased == 3
    assert reader.latestOffset() is end
    assert queue.counts().total == 0, "asked again, the micro-batch is in the commit log"


def test_a_restart_settles_only_what_was_done(driving: Driving, queue: QueueHandle) -> None:
    """The first micro-batch was planned and not done: it is read again, and then settled."""
    fill(queue, 3)
    first = WithoutStart(driving.query().reader)
    end = first.latestOffset()
    first.partitions(first.initialOffset(), end)
    first.stop()

    second = WithoutStart(driving.query().reader)
    assert second.partitions(end, end) == []
    start = second.initialOffset()
    assert start == {"claim": 0}
    assert second.partitions(start, end)
    assert queue.counts().total == 3
    assert second.latestOffset() == end
    assert queue.counts().total == 0


def test_the_offset_says_whose_it_is(driving: Driving, queue: QueueHandle) -> None:
    """There is no progress report in 4.1 that a listener could read it from."""
    fill(queue, 1)
    end = WithoutStart(driving.query().reader).latestOffset()
    assert end["stream"].endswith(f"/{queue.name}/{driving.query().reader._options.stream_id}")
    assert end["token"] >= 1


def test_a_newer_release_goes_on_from_its_offset(driving: Driving, queue: QueueHandle) -> None:
    """What the offset says besides is passed over, and an offset that stays is the same object."""
    fill(queue, 3)
    older = WithoutStart(driving.query().reader)
    end = older.latestOffset()
    older.partitions(older.initialOffset(), end)
    older.stop()

    newer = driving.query()
    assert newer.trigger(end) is end
    assert queue.counts().total == 0
    fill(queue, 2)
    following = newer.trigger(end)
    assert following == {"claim": 2}
    assert len(newer.bodies(end, following)) == 2
