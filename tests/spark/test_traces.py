"""One trace from a producer through the server and a worker to Spark, each a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import SparkSession

from leasehold.client import Client
from leasehold.spark import LeaseholdDataSource
from leasehold.spark.pipeline import Pipeline
from leasehold.worker import Worker
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.message import Message
from tests.e2e.server import Endpoint, Server
from tests.traces import Collector, named, recorded, seen, tree

SECRET = "TopSecretWord"
PUT: dict[str, Any] = {"native-put": {"commit": {}}}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Return what processes begun from now on send their spans to."""
    with Collector() as collector, pytest.MonkeyPatch.context() as patch:
        for name, value in collector.environment.items():
            patch.setenv(name, value)
        yield collector


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Return where the spans of this process are."""
    with recorded() as exporter:
        yield exporter


@pytest.fixture
def spark_with_spans(spark: SparkSession, collector: Collector) -> Iterator[SparkSession]:
    """Return the session; its processes have the variables, in place of spark.executorEnv."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update(collector.environment)
    spark.dataSource.register(LeaseholdDataSource)
    yield spark
    environment.clear()
    environment.update(before)
    spark.dataSource.register(LeaseholdDataSource)


@pytest.fixture
def endpoint(collector: Collector, tmp_path: Path) -> Iterator[Endpoint]:
    """Return the address of a server that sends its spans."""
    with Server(tmp_path / "data", options={"--tracing": ""}) as endpoint:
        yield endpoint


@pytest.fixture
def client(endpoint: Endpoint, exporter: InMemorySpanExporter) -> Iterator[Client]:
    """Return a client of it, with three queues."""
    with Client.from_connection_string(endpoint.connection_string) as client:
        for name in ("uploads", "films", "done"):
            client.queue(name).create()
        yield client


def spec(endpoint: Endpoint, name: str) -> QueueSpec:
    return QueueSpec("leasehold", name, endpoint.connection_string, {})


def handled(name: str, below: dict[str, Any]) -> dict[str, Any]:
    """Return what there is of a message that was put, handled and completed."""
    completed: dict[str, Any] = {f"complete {name}": {"native-complete": {"commit": {}}}}
    return {f"send {name}": {**PUT, f"process {name}": {**below, **completed}}}


@pytest.mark.long
def test_one_message_is_one_tree_across_processes(
    spark_with_spans: SparkSession,
    client: Client,
    endpoint: Endpoint,
    collector: Collector,
    exporter: InMemorySpanExporter,
) -> None:
    """Producer, server, worker and executor make one trace in which each span has its parent."""

    def hand_on(message: Message) -> None:
        client.queue("films").put(message.text.upper())

    def scan(message: Any, state: Any) -> Any:
        return {"clean": True}

    def ship(message: Any, state: Any) -> None:
        assert state == {"clean": True}

    client.queue("uploads").put(SECRET)
    Worker(hand_on, spec(endpoint, "uploads")).run_until_idle(30)
    pipeline = Pipeline("films").stage("scan", scan).stage("ship", ship)
    report = pipeline.run(
        spark_with_spans, connection=endpoint.connection_string, tasks=1, show=None, tracing=True
    )
    assert report.totals["done"] == 1
    own = seen(exporter.get_finished_spans())
    (sent,) = named(own, "send uploads")
    # Two puts, two completes and a save, with their commits; a handling, two stages, a complete.
    spans = own + collector.until_whole(sent.trace, 10 + 4)
    # The end of a stage is saved by renewing the lease.
    stages: dict[str, Any] = {"stage scan": {}, "native-renew": {"commit": {}}, "stage ship": {}}
    assert tree(spans, sent.trace) == handled("uploads", handled("films", stages))
    of_service = {
        name: {each.service for each in spans if each.name == name and each.trace == sent.trace}
        for name in ("native-put", "stage scan")
    }
    assert of_service == {"native-put": {"leasehold"}, "stage scan": {"leasehold-spark"}}
    for each in spans:
        for hidden in (SECRET, SECRET.upper(), endpoint.key):
            assert hidden not in each.text, each.name


@pytest.mark.long
def test_a_query_hands_contexts_on(
    spark_with_spans: SparkSession,
    client: Client,
    endpoint: Endpoint,
    collector: Collector,
    exporter: InMemorySpanExporter,
    tmp_path: Path,
) -> None:
    """Rows have their messages' contexts; claims, reads, stages and publishing have spans."""
    client.queue("uploads").put_many(["a", "b"])
    options = {"connectionString": endpoint.connection_string, "tracing": "true"}
    (
        spark_with_spans.readStream.format("leasehold")
        .options(**options, queueName="uploads", streamId="traced")
        .load()
        .select("body", "traceparent")
        .writeStream.format("leasehold")
        .options(**options, queueName="films")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    Worker(lambda _: None, spec(endpoint, "films")).run_until_idle(30)
    own = seen(exporter.get_finished_spans())
    (sent,) = named(own, "send uploads")
    processed = named(own, "process films")
    assert {each.parent for each in processed} == {sent.id}
    assert len(processed) == 2
    spans = collector.until("claim uploads", "read uploads", "stage films", "publish")
    reads = named(spans, "read uploads")
    assert {link for each in reads for link in each.links} == {sent.id}
    assert {each.service for each in reads} == {"leasehold-spark"}
    for name in ("claim uploads", "read uploads", "stage films", "publish"):
        (first, *_) = named(spans, name)
        assert any(each.parent == first.id and each.kind == "SERVER" for each in spans), name
