"""A queue as a table, read from a server and without Spark."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In

from leasehold.client import Client
from leasehold.client.handles import QueueHandle
from leasehold.spark.batch.snapshot import FilteringSnapshotReader, snapshot_reader
from leasehold.spark.options import BadOption, ReadOptions, read_options
from leasehold.spark.schemas import SNAPSHOT, chosen
from leasehold.testing import InProcessServer
from tests.unit.spark.batch.conftest import ReadAll, Rows


def given(server: InProcessServer, **more: str) -> ReadOptions:
    where = {"connectionString": server.connection_string, "queueName": "orders"}
    return read_options({**where, "read": "snapshot", **more})


def look(server: InProcessServer, read_all: ReadAll, **more: str) -> Rows:
    options = given(server, **more)
    schema = chosen(SNAPSHOT, options.columns)
    return read_all(snapshot_reader(options, schema), schema)


@pytest.mark.usefixtures("busy")
def test_messages_in_every_state(server: InProcessServer, read_all: ReadAll) -> None:
    """Every message that is there is a row, whatever its state, and says why it waits."""
    rows = {row["body"].decode(): row for row in look(server, read_all)}
    states = {body: row["state"] for body, row in rows.items()}
    assert states == {
        "buried": "poisoned",
        "deferred": "deferred",
        "leased": "leased",
        "visible": "visible",
        "delayed": "delayed",
        "staged": "staged",
        "expired": "expired",
    }
    visible = rows["visible"]
    assert (visible["priority"], visible["message_type"]) == (2, "page")
    assert visible["properties"] == [("tenant", "a")]
    leased = rows["leased"]
    assert (leased["holder"], leased["renewals"], leased["dequeue_count"]) == ("worker-1", 1, 1)
    assert (leased["leased_until"] - leased["leased_at"]).total_seconds() == 300
    assert json.loads(leased["saved"]) == {"page": 7}
    buried = rows["buried"]
    assert (buried["failed_in"], buried["poison_reason"]) == ("orders", "buried")
    assert (buried["error"], buried["error_type"]) == ("no such page", "PageError")
    assert rows["deferred"]["failures"] == 1
    [attempt] = rows["deferred"]["attempts"]
    assert (attempt["outcome"], attempt["error"]) == ("failed", "try later")
    assert attempt["leased_at"] == leased["leased_at"]
    assert rows["staged"]["under"] == "import"


@pytest.mark.usefixtures("busy")
def test_a_look_leases_nothing(server: InProcessServer, client: Client, read_all: ReadAll) -> None:
    """Looking changes no count, no delivery and no lease."""
    before, log = client.queue("orders").counts(), client.event_page().last_seq
    look(server, read_all, numPartitions="3")
    assert client.queue("orders").counts() == before
    assert client.event_page().last_seq == log


@pytest.mark.usefixtures("busy")
def test_columns_states_and_limit(server: InProcessServer, read_all: ReadAll) -> None:
    """Options choose columns and states and end the look."""
    rows = look(server, read_all, columns="state,message_id", state="leased,POISONED")
    assert [[*row] for row in rows] == [["state", "message_id"]] * 2
    assert sorted(row["state"] for row in rows) == ["leased", "poisoned"]
    assert len(look(server, read_all, limit="3")) == 3


@pytest.mark.usefixtures("busy")
def test_bodies_are_fetched_only_if_they_are_read(
    server: InProcessServer, read_all: ReadAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the columns that need them, bodies stay on the server."""
    asked = []
    whole = QueueHandle.inspect_page

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(options["body"])
        return whole(self, *arguments, **options)

    monkeypatch.setattr(QueueHandle, "inspect_page", noted)
    look(server, read_all, columns="state,body_bytes")
    assert not any(asked)
    look(server, read_all, columns="state,body")
    assert any(asked)


@pytest.mark.parametrize("parts", [1, 2, 7, 40])
def test_parts_have_each_message_once(
    server: InProcessServer, client: Client, read_all: ReadAll, parts: int
) -> None:
    """However a queue is cut, each message is in one part; rows of others are passed over."""
    queue = client.queue("orders")
    queue.create()
    for number in range(5):
        queue.put_many([f"{number}.{each}" for each in range(20)])
        client.queue("other").create()
        client.queue("other").put_many(["x"] * 50 * number)
    for message in queue.receive(max_messages=10):
        queue.bury(message)
    rows = look(server, read_all, numPartitions=str(parts))
    assert Counter(row["body"] for row in rows) == Counter(
        f"{number}.{each}".encode() for number in range(5) for each in range(20)
    )
    options = given(server, numPartitions=str(parts))
    found = snapshot_reader(options, chosen(SNAPSHOT, options.columns)).partitions()
    assert len(found) == parts


def test_little_is_one_part(server: InProcessServer, client: Client) -> None:
    """A short queue is not worth several tasks."""
    client.queue("orders").create()
    options = given(server)
    assert len(snapshot_reader(options, chosen(SNAPSHOT, options.columns)).partitions()) == 1


@pytest.mark.usefixtures("busy")
def test_filters_by_state_go_to_the_server(server: InProcessServer, read_all: ReadAll) -> None:
    """With pushdown the server lists only the states asked for; other filters are Spark's."""
    options = given(server, pushdown="true")
    reader = snapshot_reader(options, chosen(SNAPSHOT, options.columns))
    others = [GreaterThan(("dequeue_count",), 0), EqualTo(("state",), "asleep")]
    left = reader.pushFilters([In(("state",), ("leased", "visible", None)), *others])
    assert left == others
    rows = read_all(reader, chosen(SNAPSHOT, options.columns))
    assert sorted(row["state"] for row in rows) == ["leased", "visible"]


def test_reader_takes_filters_only_if_asked(server: InProcessServer) -> None:
    """Spark refuses readers that take filters, unless it is set to push them."""
    options = given(server)
    reader = snapshot_reader(options, chosen(SNAPSHOT, options.columns))
    assert not isinstance(reader, FilteringSnapshotReader)
    assert "pushFilters" not in type(reader).__dict__


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"state": "leesed"}, "no state leesed. Did you mean leased?"),
        ({"columns": "bodi"}, "no column bodi. Did you mean body?"),
    ],
)
def test_options_that_fit_nothing(server: InProcessServer, more: dict[str, str], text: str) -> None:
    """A state or a column that is not there is refused with the nearest one."""
    options = given(server, **more)
    with pytest.raises(BadOption, match=text):
        snapshot_reader(options, chosen(SNAPSHOT, options.columns))
