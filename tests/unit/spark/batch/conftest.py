"""A server with a queue that has something in every state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from leasehold.client import Client
from leasehold.client.models import ErrorReport
from leasehold.spark.schemas import arrow_schema
from leasehold.testing import InProcessServer

Rows: TypeAlias = list[dict[str, Any]]
ReadAll: TypeAlias = Callable[[DataSourceReader, StructType], Rows]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Return the folder of the exported log."""
    return tmp_path / "events"


@pytest.fixture
def server(exported: Path) -> Iterator[InProcessServer]:
    """Return a server of the test's own."""
    with InProcessServer(events_folder=exported) as started:
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """Return a client of it."""
    with server.client() as made:
        yield made


@pytest.fixture
def read_all() -> ReadAll:
    """Return what reads all parts of a reader as Spark would, one after the other."""

    def read(reader: DataSourceReader, schema: StructType) -> Rows:
        target = arrow_schema(schema)
        batches: list[Any] = []
        for part in reader.partitions():
            found: Any = reader.read(part)
            batches += found
        assert all(batch.schema.equals(target) for batch in batches)
        rows: Rows = pa.Table.from_batches(batches, schema=target).to_pylist()
        return rows

    return read


@pytest.fixture
def busy(server: InProcessServer, client: Client) -> str:
    """Return a queue with one message in each state, and a few that are gone."""
    queue = client.queue("orders")
    queue.create()
    queue.put_many(["completed", "buried", "deferred", "leased"])
    done, bad, later, held = queue.receive(max_messages=4, holder="worker-1")
    queue.complete(done)
    queue.bury(bad, error=ErrorReport("no such page", "PageError"))
    queue.release(later, outcome="failed", delay_s=600, error="try later")
    queue.renew(held, visibility_timeout_s=300, saved={"page": 7})
    queue.put("visible", priority=2, type="page", properties={"tenant": "a"})
    queue.put("delayed", delay_s=60)
    client.transaction("import").stage(["staged"], queue="orders")
    queue.put("expired", time_to_live_s=1)
    server.advance(2)
    return queue.name
