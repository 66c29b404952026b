"""How much a query takes and when: limits, AvailableNow, and claims opened ahead."""

from __future__ import annotations

from itertools import chain

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from leasehold.client import QueueHandle
from leasehold.spark.stream import reader
from leasehold.testing import InProcessServer
from tests.unit.spark.stream.driving import Driving, claims_of, fill

# --- admission ------------------------------------------------------------------------------------


def test_bytes_end_a_micro_batch(driving: Driving, queue: QueueHandle) -> None:
    """Bodies of so many bytes are enough for one."""
    queue.put_many([b"x" * 100] * 10)
    query = driving.query(maxBytesPerTrigger="250")
    end = query.trigger(query.begin())
    assert len(query.bodies({"claim": 0}, end)) == 3


def test_few_large_messages_end_a_micro_batch_without_any_option(
    driving: Driving, queue: QueueHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many messages may be any number of bytes: these have a default too."""
    monkeypatch.setattr(reader, "DEFAULT_BYTES", 250)
    queue.put_many([b"x" * 100] * 10)
    query = driving.query()
    end = query.trigger(query.begin())
    assert len(query.bodies({"claim": 0}, end)) == 3


def test_batches_for_spark_are_bounded_by_bytes(driving: Driving, queue: QueueHandle) -> None:
    """A page of large bodies goes to Spark in pieces, every row once and in its order."""
    queue.update(settings={"max_body_bytes": 2 << 20})
    sent = [bytes([number]) * (2 << 20) for number in range(20)]
    for body in sent:
        queue.put(body)
    query = driving.query()
    batches = query.batches({"claim": 0}, query.trigger(query.begin()))
    assert max(batch.nbytes for batch in batches) < 17 << 20
    assert [*chain.from_iterable(batch.column("body").to_pylist() for batch in batches)] == sent


def test_a_minimum_holds_messages_back_until_it_is_reached(
    driving: Driving, queue: QueueHandle
) -> None:
    """Fewer messages than the minimum wait."""
    query = driving.query(minMessagesPerTrigger="5")
    start = query.begin()
    fill(queue, 4)
    assert query.trigger(start) is start
    fill(queue, 1, 4)
    assert len(query.bodies(start, query.trigger(start))) == 5


def test_a_minimum_is_waived_after_the_delay(
    driving: Driving, queue: QueueHandle, server: InProcessServer
) -> None:
    """A message that has waited as long as maxTriggerDelay is taken, with what is there."""
    query = driving.query(minMessagesPerTrigger="5", maxTriggerDelay="60s")
    start = query.begin()
    fill(queue, 2)
    server.advance(59)
    assert query.trigger(start) is start
    server.advance(1)
    assert len(query.bodies(start, query.trigger(start))) == 2


def test_all_there_is_ignores_the_limit(driving: Driving, queue: QueueHandle) -> None:
    """Trigger.Once asks for everything."""
    fill(queue, 7)
    query = driving.query(maxMessagesPerTrigger="2")
    query.limit = ReadAllAvailable()
    assert len(query.bodies({"claim": 0}, query.trigger(query.begin()))) == 7


def test_the_limit_is_told_to_spark(driving: Driving) -> None:
    """The default limit is that of the options."""
    assert driving.query(maxMessagesPerTrigger="7").limit == ReadMaxRows(7)


# --- AvailableNow ---------------------------------------------------------------------------------


def test_available_now_ends_on_a_busy_queue(driving: Driving, queue: QueueHandle) -> None:
    """It takes as many as were there at its beginning, although more come all the time."""
    fill(queue, 10)
    query = driving.query(maxMessagesPerTrigger="4")
    start = query.begin()
    query.reader.prepareForTriggerAvailableNow()
    sizes = []
    while (end := query.trigger(start)) != start:
        sizes.append(len(query.bodies(start, end)))
        fill(queue, 5)
        start = end
    assert sizes == [4, 4, 2]
    counts = queue.counts()
    assert (counts.leased, counts.visible) == (0, 15)


def test_available_now_takes_a_claim_left_by_a_crash(driving: Driving, queue: QueueHandle) -> None:
    """Messages of a claim that was opened and never planned are in the scope of the next run."""
    sent = fill(queue, 6)
    crashed = driving.query(maxMessagesPerTrigger="4")
    crashed.trigger(crashed.begin())
    crashed.kill()
    query = driving.query(maxMessagesPerTrigger="4")
    query.reader.prepareForTriggerAvailableNow()
    start, seen = query.begin(), []
    while (end := query.trigger(start)) != start:
        seen += query.bodies(start, end)
        fill(queue, 3, 100)
        start = end
    assert seen == sent
    assert queue.counts().leased == 0


def test_available_now_ignores_the_minimum(driving: Driving, queue: QueueHandle) -> None:
    """What is there is taken, however little."""
    fill(queue, 1)
    query = driving.query(minMessagesPerTrigger="5")
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger(query.begin()) == {"claim": 1}


def test_available_now_without_messages_ends_at_once(driving: Driving, queue: QueueHandle) -> None:
    """An empty queue gives no micro-batch."""
    query = driving.query()
    start = query.begin()
    query.reader.prepareForTriggerAvailableNow()
    fill(queue, 3)
    assert query.trigger(start) is start


# --- ahead ----------------------------------------------------------------------------------------


def test_the_next_claim_is_opened_ahead(driving: Driving, queue: QueueHandle) -> None:
    """While a full micro-batch is worked on, the next one is there already."""
    fill(queue, 6)
    query = driving.query(maxMessagesPerTrigger="4")
    end = query.trigger(query.begin())
    query.bodies({"claim": 0}, end)
    query.reader._driver._ahead._thread.join()  # type: ignore[union-attr]
    assert claims_of(queue.stream("totals")) == [(1, "open"), (2, "open")]
    assert query.bodies(end, query.trigger(end)) == [b"4", b"5"]


@pytest.mark.parametrize("options", [{"prefetchClaim": "false"}, {"maxMessagesPerTrigger": "9"}])
def test_nothing_is_opened_ahead_without_need(
    driving: Driving, queue: QueueHandle, options: dict[str, str]
) -> None:
    """Not if it is switched off, and not if the claim has room for more than there was."""
    fill(queue, 6)
    query = driving.query(**{"maxMessagesPerTrigger": "4", **options})
    query.bodies({"claim": 0}, query.trigger(query.begin()))
    assert query.reader._driver._ahead._thread is None


def test_a_stop_gives_back_what_was_opened_ahead(driving: Driving, queue: QueueHandle) -> None:
    """A claim that Spark never had is dissolved; the one that it had is parked."""
    fill(queue, 6)
    query = driving.query(maxMessagesPerTrigger="4")
    query.bodies({"claim": 0}, query.trigger(query.begin()))
    query.reader.stop()
    assert claims_of(queue.stream("totals")) == [(1, "parked")]
    assert queue.counts().visible == 2
