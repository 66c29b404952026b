"""What becomes of messages that cannot be decoded."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from leasehold.client import Client, QueueHandle
from leasehold.spark.options import BadRecord
from leasehold.spark.stream import reader
from tests.unit.spark.stream.driving import Driving

ORDER = StructType().add("id", "long")


def put_some(queue: QueueHandle) -> None:
    """Put three messages of which the second is no JSON."""
    queue.put_many([b'{"id": 1}', b"oops", b'{"id": 3}'])


def test_bad_messages_go_to_the_poison_queue(
    driving: Driving, queue: QueueHandle, client: Client
) -> None:
    """When the batch is settled, with the reason; the rest of the batch is completed."""
    put_some(queue)
    query = driving.query(ORDER, format="json")
    end = query.trigger(query.begin())
    (batch,) = query.batches({"claim": 0}, end)
    assert batch.to_pylist() == [{"id": 1}, {"id": 3}]
    assert queue.counts().poisoned == 0
    query.trigger(end)
    assert queue.counts().total == 0
    (poisoned,) = client.queue("orders-poison").inspect()
    assert poisoned.body == b"oops"
    assert poisoned.last_error is not None
    assert poisoned.last_error.type == "BadRecord"
    assert "does not fit the columns" in poisoned.last_error.text
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert (report["completed"], report["exempted"], report["poisoned"]) == (2, 1, 1)


def test_reading_twice_sets_aside_once(driving: Driving, queue: QueueHandle) -> None:
    """A second attempt notes the same again."""
    put_some(queue)
    query = driving.query(ORDER, format="json")
    end = query.trigger(query.begin())
    assert query.batches({"claim": 0}, end) == query.batches({"claim": 0}, end)
    query.trigger(end)
    assert queue.counts().poisoned == 1


def test_a_batch_of_bad_messages_has_no_rows(driving: Driving, queue: QueueHandle) -> None:
    """And goes on all the same."""
    queue.put_many([b"oops"] * 3)
    query = driving.query(ORDER, format="json")
    end = query.trigger(query.begin())
    assert query.batches({"claim": 0}, end) == []
    assert query.trigger(end) is end
    assert (queue.counts().total, queue.counts().poisoned) == (0, 3)


def test_bad_messages_can_end_the_query(driving: Driving, queue: QueueHandle) -> None:
    """The error names one and says how to go on; it does not show the body."""
    put_some(queue)
    query = driving.query(ORDER, format="json", onBadRecord="fail")
    end = query.trigger(query.begin())
    with pytest.raises(BadRecord, match="onBadRecord=poison") as refusal:
        query.batches({"claim": 0}, end)
    assert "oops" not in str(refusal.value)


def test_bad_messages_can_be_kept(driving: Driving, queue: QueueHandle) -> None:
    """As rows of nulls; they are completed like the others."""
    put_some(queue)
    schema = StructType().add("id", "long").add("_corrupt_record", "string")
    query = driving.query(schema, format="json", onBadRecord="keep")
    end = query.trigger(query.begin())
    (batch,) = query.batches({"claim": 0}, end)
    assert batch.to_pylist()[1] == {"id": None, "_corrupt_record": "oops"}
    query.trigger(end)
    assert (queue.counts().total, queue.counts().poisoned) == (0, 0)


def test_kept_messages_have_a_column_by_themselves(driving: Driving, queue: QueueHandle) -> None:
    """With base64 and keep, the columns of messages have one more, and a body that can be null."""
    queue.put("no base64!")
    query = driving.query(messageEncoding="base64", onBadRecord="keep")
    (batch,) = query.batches({"claim": 0}, query.trigger(query.begin()))
    assert batch.schema.names[-1] == "_corrupt_record"
    (row,) = batch.to_pylist()
    assert (row["body"], row["_corrupt_record"]) == (None, "no base64!")


def test_too_many_bad_messages_are_a_mistake_of_the_query(
    driving: Driving, queue: QueueHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the server notes cannot be set aside: the columns are probably wrong."""
    monkeypatch.setattr("leasehold.domain.claims.MAX_NOTED", 2)
    queue.put_many([b"oops"] * 3)
    query = driving.query(ORDER, format="json")
    end = query.trigger(query.begin())
    with pytest.raises(BadRecord, match=r"more messages of claim 1 .* fit the bodies"):
        query.batches({"claim": 0}, end)


def test_pages_after_bad_ones_are_read(
    driving: Driving, queue: QueueHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page without good rows does not end a part."""
    monkeypatch.setattr(reader, "PAGE_ROWS", 2)
    queue.put_many([b"oops", b"oops", b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'])
    query = driving.query(ORDER, format="json")
    batches = query.batches({"claim": 0}, query.trigger(query.begin()))
    assert [batch.to_pylist() for batch in batches] == [[{"id": 1}, {"id": 2}], [{"id": 3}]]
