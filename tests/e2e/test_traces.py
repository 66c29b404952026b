"""Traces of messages from their producer through the server to who handles them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from azure.storage.queue import QueueClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from leasehold import spans
from leasehold.client import AsyncClient, Client
from leasehold.client.errors import LeaseLost, QueueNotFound
from leasehold.client.models import LeaseRef, NewMessage
from leasehold.server.startup import StartFailed
from leasehold.testing import InProcessServer
from leasehold.worker import Worker
from leasehold.worker.adapters.protocol import Lease
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import Poison
from leasehold.worker.message import Message
from leasehold.worker.stages import Stages
from leasehold.worker.tracing import Tracing
from tests.e2e.server import Server
from tests.traces import Collector, Seen, named, recorded, seen, tree

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BARE = """
import sys
from leasehold.testing import InProcessServer
from leasehold.worker import Worker
from leasehold.worker.adapters.specs import QueueSpec

with InProcessServer(clock="system") as server, server.client() as client:
    client.queue("films").create()
    client.queue("films").put("x")
    spec = QueueSpec("leasehold", "films", server.connection_string, {})
    assert Worker(lambda _: None, spec).run_until_idle(30).queues[0].handled[0] == 1
print([each for each in sys.modules if each.startswith("opentelemetry")])
"""
PUT: dict[str, Any] = {"native-put": {"commit": {}}}
COMPLETE: dict[str, Any] = {"complete films": {"native-complete": {"commit": {}}}}


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    with recorded() as exporter:
        yield exporter


@pytest.fixture
def server(exporter: InMemorySpanExporter) -> Iterator[InProcessServer]:
    with InProcessServer(tracing=True, clock="system") as server:
        yield server


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    with server.client() as client:
        for name in ("films", "done"):
            client.queue(name).create()
        yield client


@pytest.fixture
def spec(server: InProcessServer) -> QueueSpec:
    return QueueSpec("leasehold", "films", server.connection_string, {})


def only(found: list[Seen], name: str) -> Seen:
    (one,) = named(found, name)
    return one


def test_one_message_is_one_tree(
    client: Client, spec: QueueSpec, exporter: InMemorySpanExporter
) -> None:
    """Send, handling with its stages, what that sends, and completing hang together."""
    stages = Stages()

    @stages.stage("encode")
    def encode(message: Message, state: object) -> object:
        client.queue("done").put("encoded")
        return state

    client.queue("films").put("cellar.mp4")
    Worker(stages, spec).run_until_idle(30)
    found = seen(exporter.get_finished_spans())
    sent = only(found, "send films")
    assert tree(found, sent.trace) == {
        "send films": {
            **PUT,
            "process films": {"stage encode": {"send done": PUT}, **COMPLETE},
        }
    }
    handled = only(found, "process films")
    assert handled.parent == sent.id
    assert handled.links == (sent.id,)
    assert [each.kind for each in (sent, handled)] == ["PRODUCER", "CONSUMER"]
    assert {each.kind for each in found if each.name.startswith("native-")} == {"SERVER"}


def test_names_are_those_of_the_conventions(
    client: Client, exporter: InMemorySpanExporter, server: InProcessServer
) -> None:
    """Sends, receives and settles have the attributes that tools look for."""
    queue = client.queue("films")
    sent = queue.put("x")
    (message,) = queue.receive(2)
    queue.complete(message)
    found = seen(exporter.get_finished_spans())
    for name, kind, operation in (
        ("send films", "PRODUCER", "send"),
        ("receive films", "CLIENT", "receive"),
        ("complete films", "CLIENT", "settle"),
    ):
        span = only(found, name)
        assert span.kind == kind
        assert span.attributes["messaging.system"] == "leasehold"
        assert span.attributes["messaging.destination.name"] == "films"
        assert span.attributes["messaging.operation.name"] == name.partition(" ")[0]
        assert span.attributes["messaging.operation.type"] == operation
        assert span.attributes["messaging.message.id"] == sent.id
        assert span.attributes["server.address"] == "127.0.0.1"
        assert f":{span.attributes['server.port']}" in server.url
    assert only(found, "receive films").links == (only(found, "send films").id,)
    # The server's spans of the lease and of the end link to where the message comes from.
    commits = {each.attributes["leasehold.command"]: each for each in named(found, "commit")}
    for command in ("Receive", "Complete"):
        assert commits[command].links == (only(found, "send films").id,), command
        assert commits[command].attributes["messaging.destination.name"] == "films"
        assert commits[command].attributes["messaging.message.id"] == sent.id


def test_asynchronous_client_has_the_same_spans(
    server: InProcessServer, client: Client, exporter: InMemorySpanExporter
) -> None:
    """Calls that are under way at once do not mix their contexts."""

    async def run() -> None:
        async with AsyncClient.from_connection_string(server.connection_string) as other:
            tracer = trace.get_tracer("test")

            async def send(name: str) -> None:
                with tracer.start_as_current_span(name):
                    await other.queue(name).put(name)

            await asyncio.gather(send("films"), send("done"))

    asyncio.run(run())
    found = seen(exporter.get_finished_spans())
    for name in ("films", "done"):
        root = only(found, name)
        assert tree(found, root.trace) == {name: {f"send {name}": PUT}}


def test_context_of_a_batch_and_own_contexts(
    client: Client, exporter: InMemorySpanExporter
) -> None:
    """A batch gives its context to messages without one; a given one stays, and is linked to."""
    queue = client.queue("films")
    queue.put_many([NewMessage("a"), NewMessage("b", traceparent=TRACEPARENT)])
    a, b = queue.receive(2)
    sent = only(seen(exporter.get_finished_spans()), "send films")
    assert a.traceparent is not None
    assert a.traceparent.startswith(f"00-{sent.trace}-{sent.id}-")
    assert b.traceparent == TRACEPARENT
    assert sent.kind == "PRODUCER"
    assert sent.links == (TRACEPARENT.split("-")[2],)
    assert sent.attributes["messaging.batch.message_count"] == 2
    exporter.clear()
    queue.put("c", traceparent=TRACEPARENT)
    # Nothing begins with this span, so it is none of a producer.
    assert only(seen(exporter.get_finished_spans()), "send films").kind == "CLIENT"


def test_settling_many_links_to_each(
    client: Client, spec: QueueSpec, exporter: InMemorySpanExporter
) -> None:
    """A request that completes messages of several traces is a child of none, and links to all."""
    queue = client.queue("films")
    for body in "ab":
        queue.put(body)
    with closing(spec.open()) as films:
        deliveries = films.receive(2, visibility_timeout_s=30)
        with Tracing().settling([(None, each) for each in deliveries]):
            films.complete([Lease(each.message_id, each.receipt) for each in deliveries])
    found = seen(exporter.get_finished_spans())
    completed = only(found, "complete films")
    assert set(completed.links) == {each.id for each in named(found, "send films")}
    assert completed.attributes["messaging.batch.message_count"] == 2


def test_a_worker_can_begin_traces_of_its_own(
    client: Client, spec: QueueSpec, exporter: InMemorySpanExporter
) -> None:
    """With parent=False handling is another trace, which links to the producer's."""
    client.queue("films").put("x")
    Worker(lambda _: None, spec, hooks=[Tracing(parent=False)], tracing=False).run_until_idle(30)
    found = seen(exporter.get_finished_spans())
    sent, handled = only(found, "send films"), only(found, "process films")
    assert handled.parent is None
    assert handled.links == (sent.id,)
    assert tree(found, handled.trace) == {"process films": COMPLETE}


def test_an_sdk_of_azure_takes_part(
    client: Client, server: InProcessServer, exporter: InMemorySpanExporter
) -> None:
    """What another SDK says in its header is the parent, and stays with the message."""
    queue = QueueClient.from_connection_string(server.connection_string, "films")
    queue.send_message("x", headers={"traceparent": TRACEPARENT})
    message = queue.receive_message()
    assert message is not None
    queue.delete_message(message)
    found = seen(exporter.get_finished_spans())
    put = next(each for each in found if each.parent == TRACEPARENT.split("-")[2])
    assert put.kind == "SERVER"
    assert put.trace == TRACEPARENT.split("-")[1]
    commits = {each.attributes["leasehold.command"]: each for each in named(found, "commit")}
    # Who takes and deletes it says nothing of a trace; the server knows where it comes from.
    for command in ("Receive", "Complete"):
        assert commits[command].links == (TRACEPARENT.split("-")[2],), command


def test_waiting_is_a_span(client: Client, exporter: InMemorySpanExporter) -> None:
    """A receive that waits has a span of the wait, which ends when there is a message."""
    queue = client.queue("films")
    queue.put("x")
    queue.receive(wait_s=5)
    found = seen(exporter.get_finished_spans())
    waited = only(found, "wait")
    assert waited.attributes["leasehold.command"] == "Receive"
    assert tree(found, waited.trace) == {"receive films": {"native-receive": {"wait": {}}}}


def test_refusals_are_errors_of_the_client_only(
    client: Client, exporter: InMemorySpanExporter
) -> None:
    """The client's span fails with the code; the server has done what it should."""
    with pytest.raises(QueueNotFound):
        client.queue("nowhere").put("x")
    found = seen(exporter.get_finished_spans())
    sent = only(found, "send nowhere")
    assert sent.is_error
    assert sent.attributes["error.type"] == "queue-not-found"
    answered = only(found, "native-put")
    assert not answered.is_error
    assert answered.attributes["http.response.status_code"] == 404


def test_no_secret_is_in_any_span(
    server: InProcessServer, client: Client, spec: QueueSpec, exporter: InMemorySpanExporter
) -> None:
    """Bodies, properties, receipts, keys, signatures and texts of errors are in no span."""
    secret = "TopSecretWord"
    queue = client.queue("films")
    queue.put(secret, properties={"password": secret}, dedup_key=f"{secret}-1")
    queue.put_body(secret.encode())
    (message, _) = queue.receive(2)
    renewed = queue.renew(message, 30, body=secret, saved={"x": secret})
    queue.release(renewed, delay_s=600, error=secret)
    with pytest.raises(LeaseLost):
        queue.complete(LeaseRef(message.id, message.receipt))

    def fail(_: Message) -> None:
        raise Poison(f"cannot read {secret}")

    queue.put(secret)
    Worker(fail, spec).run_until_idle(30)
    azure = QueueClient.from_connection_string(server.connection_string, "films")
    azure.send_message(secret)
    received = azure.receive_message()
    assert received is not None
    azure.delete_message(received)
    found = seen(exporter.get_finished_spans())
    assert {"send films", "process films", "commit"} <= {each.name for each in found}
    for each in found:
        for hidden in (secret, message.receipt, server.key, received.pop_receipt, "SharedKey"):
            assert str(hidden) not in each.text, each.name


def test_own_pages_have_no_spans(
    server: InProcessServer, client: Client, exporter: InMemorySpanExporter
) -> None:
    """Probes and scrapes would be most of the spans of a quiet server."""
    exporter.clear()
    for path in ("/healthz", "/readyz", "/metrics"):
        with urllib.request.urlopen(server.url + path) as answer:
            assert answer.status == 200
    assert exporter.get_finished_spans() == ()


def test_nothing_is_traced_unless_it_is_switched_on(exporter: InMemorySpanExporter) -> None:
    """A server without the setting makes no span, whatever its process has set up."""
    with InProcessServer(clock="system") as server, server.client() as client:
        client.queue("films").create()
        client.queue("films").put("x")
    (sent,) = exporter.get_finished_spans()
    assert sent.name == "send films"


def test_a_server_sends_its_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch and OpenTelemetry's own variables are all that it needs; the last spans come."""
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        server = Server(tmp_path / "data", options={"--tracing": ""})
        with (
            server as endpoint,
            Client.from_connection_string(endpoint.connection_string) as client,
        ):
            client.queue("films").create()
            client.queue("films").put("x", traceparent=TRACEPARENT)
        # It has ended, and sent what it had first.
        found = collector.spans()
    assert {each.service for each in found} == {"leasehold"}
    put = only(found, "native-put")
    assert put.kind == "SERVER"
    commit = next(each for each in named(found, "commit") if each.parent == put.id)
    assert commit.attributes["leasehold.command"] == "Put"
    assert commit.links == (TRACEPARENT.split("-")[2],)


def test_a_server_without_the_extra_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not start, and names what to install."""

    def fail(_: str) -> None:
        raise ModuleNotFoundError("no", name="opentelemetry.sdk")

    monkeypatch.setattr("leasehold.server.wiring.start_spans", fail)
    with pytest.raises(StartFailed, match=r"opentelemetry\.sdk.*otel"):
        InProcessServer(tracing=True).start()


def test_a_name_of_the_service_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the variables say goes before what the program says; a provider that is set stays."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", None)
        patch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
        assert not spans.is_used()
        spans.start("leasehold")
        made = trace.get_tracer_provider()
        assert isinstance(made, TracerProvider)
        assert made.resource.attributes["service.name"] == "orders"
        spans.start("again")
        assert trace.get_tracer_provider() is made
        made.shutdown()


def test_who_traces_nothing_does_not_even_import_it() -> None:
    """Without a provider and the setting there is no OpenTelemetry in the process."""
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
