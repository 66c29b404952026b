"""Rows that say what becomes of claimed messages, against a server and without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from leasehold.client import Client
from leasehold.client.errors import StaleToken
from leasehold.client.handles import Stream
from leasehold.spark import sink
from leasehold.spark.claimed_rows import MEMBER, BadColumns
from leasehold.spark.connection import TaskIdentity, transaction_name
from leasehold.spark.options import write_options
from leasehold.spark.schemas import arrow_schema
from leasehold.testing import InProcessServer

KINDS = {"string": StringType(), "bigint": LongType(), "int": IntegerType()}
CLAIMED = StructType([StructField(name, KINDS[kind]) for name, kind in MEMBER.items()])
SCHEMA = StructType([StructField("claimed", CLAIMED), StructField("body", StringType())])
NAME = transaction_name("q", 0)


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    with server.client() as made:
        made.queue("out").create()
        made.queue("orders").create()
        made.queue("orders").put_many(["0", "1", "2", "3"])
        yield made


@pytest.fixture
def stream(client: Client) -> Stream:
    """Return a stream whose first claim has all messages, and is bound to the publishing."""
    made = client.queue("orders").stream("s")
    made.attach()
    made.open(1, limit=10, lease_s=60)
    made.bind(1, NAME)
    return made


def row(stream: Stream, place: int, body: str | None = None, **settled: Any) -> dict[str, Any]:
    """Return what a query says of a member of the claim."""
    members = list(stream.read(1))
    member = {
        "queue": "orders",
        "stream": "s",
        "claim": 1,
        "claim_token": stream.token,
        "message_id": members[place].id,
    }
    return {"claimed": dict.fromkeys(MEMBER) | member | settled, "body": body}


def written(
    server: InProcessServer,
    monkeypatch: pytest.MonkeyPatch,
    *tasks: Sequence[dict[str, Any]],
    run: str = "r1",
) -> list[Any]:
    """Return what tasks with these rows tell the driver."""
    found = []
    for number, rows in enumerate(tasks):
        identity = TaskIdentity(
            query_id="q", batch_id=0, run_id=run, partition=number, attempt=0, task=number
        )
        monkeypatch.setattr(sink, "current_task", lambda who=identity: who)
        batch = pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(SCHEMA))
        found.append(pickle.loads(pickle.dumps(writer(server).write(iter([batch])))))
    return found


def writer(server: InProcessServer) -> sink.StreamWriter:
    """Return a writer to ``out``, as Spark has it made."""
    options = {"connectionString": server.connection_string, "queueName": "out"}
    return sink.stream_writer(write_options(options), SCHEMA, overwrite=False)


def texts(client: Client, queue: str) -> list[str]:
    """Return what is in a queue, and visible."""
    return sorted(each.text for each in client.queue(queue).inspect(states=["visible"]))


def test_what_failed_is_exempted_by_the_publishing(
    server: InProcessServer, client: Client, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what has no body is not sent; until then nothing is changed."""
    poison = {"outcome": "buried", "error": "bad", "error_type": "Bad"}
    done = written(
        server,
        monkeypatch,
        [row(stream, 0, "a"), row(stream, 1, outcome="failed", delay_s=0)],
        [row(stream, 2, **poison), row(stream, 3), {"claimed": None, "body": "beside"}],
    )
    assert client.queue("orders").counts().leased == 4
    writer(server).commit(done, 0)
    assert texts(client, "out") == ["a", "beside"]
    assert texts(client, "orders") == ["1"]
    [buried] = client.queue("orders-poison").inspect()
    assert buried.text == "2"
    assert buried.last_error is not None
    assert (buried.last_error.text, buried.last_error.type) == ("bad", "Bad")
    assert stream.get().settled_with == NAME
    writer(server).commit(done, 0)  # nothing more


def test_only_the_run_that_publishes_says_what_failed(
    server: InProcessServer, client: Client, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes of one that died before are replaced, also by none."""
    first = written(server, monkeypatch, [row(stream, 0, outcome="failed"), row(stream, 1, "b")])

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sink.StreamWriter, "_publish", die)
        with pytest.raises(KeyboardInterrupt):
            writer(server).commit(first, 0)
    assert stream.get().claims[0].noted == 1
    rows = [row(stream, place, str(place)) for place in range(4)]
    again = written(server, monkeypatch, rows, run="r2")
    writer(server).commit(again, 0)
    assert texts(client, "out") == ["0", "1", "2", "3"]
    assert client.queue("orders").counts().total == 0


def test_a_query_that_was_overtaken_publishes_nothing(
    server: InProcessServer, client: Client, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another has attached to the stream since the rows were read."""
    done = written(server, monkeypatch, [row(stream, 0, "a")])
    client.queue("orders").stream("s").attach()
    with pytest.raises(StaleToken):
        writer(server).commit(done, 0)
    assert texts(client, "out") == []


def test_a_column_of_another_shape_is_refused(server: InProcessServer) -> None:
    """With the shape that it has to have."""
    options = write_options({"connectionString": server.connection_string, "queueName": "out"})
    wrong = StructType(
        [
            StructField("claimed", StructType([StructField("claim", LongType())])),
            StructField("body", StringType()),
        ]
    )
    with pytest.raises(BadColumns, match="claimed has to be struct<queue: string, "):
        sink.stream_writer(options, wrong, overwrite=False)
