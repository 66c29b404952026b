"""From a trace to the events of its messages, wherever the event log is read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from pyspark.sql.datasource import EqualTo

from leasehold import events as eventlog
from leasehold.cli import main
from leasehold.spark.batch.events import events_reader
from leasehold.spark.options import read_options
from leasehold.spark.schemas import EVENTS, arrow_schema, chosen
from leasehold.testing import InProcessServer

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
TYPES = ["put", "received", "completed"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_events_of_a_trace(store: str, tmp_path: Path) -> None:
    """The native API and its client, the command line, the exported files, Spark from both."""
    folder = tmp_path / "events"
    with InProcessServer(store=store, events_folder=folder) as server, server.client() as client:
        queue = client.queue("orders")
        queue.create()
        queue.put("other")
        queue.complete(queue.receive()[0])
        queue.put("traced", traceparent=TRACEPARENT)
        (message,) = queue.receive()
        queue.complete(message)
        place = {"connectionString": server.connection_string}

        found = list(queue.trace(message.id))
        assert [(event.type, event.trace_id) for event in found] == [(n, TRACE_ID) for n in TYPES]

        connection = {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string}
        done = CliRunner().invoke(main, ["events", "tail", "--json"], env=connection)
        lines = map(json.loads, done.stdout.splitlines())
        assert [each["type"] for each in lines if each.get("trace_id") == TRACE_ID] == TYPES

        assert types_in_spark(place) == TYPES

    exported = eventlog.read(folder)
    traced = exported.filter(pc.equal(exported["trace_id"], TRACE_ID))
    assert traced["type"].to_pylist() == TYPES
    assert exported["trace_id"].null_count == exported.num_rows - len(TYPES)
    assert types_in_spark({"eventLog": str(folder)}) == TYPES


def types_in_spark(place: dict[str, str]) -> list[str]:
    """Return the types of the events of the trace, read as Spark's tasks read them."""
    options = read_options({**place, "read": "events", "pushdown": "true"})
    schema = chosen(EVENTS, options.columns)
    reader = events_reader(options, schema)
    assert list(reader.pushFilters([EqualTo(("trace_id",), TRACE_ID)])) == []
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = pa.Table.from_batches(batches, arrow_schema(schema)).sort_by("seq")
    types: list[str] = rows["type"].to_pylist()
    return types
