"""Metrics, traces and reports."""

from __future__ import annotations

import gc
import io
import logging
import re
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from leasehold import spans
from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker import metrics, reporting
from leasehold.worker.adapters import Outgoing
from leasehold.worker.errors import GiveBack, Poison
from leasehold.worker.message import Message
from leasehold.worker.reporting import Reporter, Snapshot, length, line_of
from leasehold.worker.tracing import Tracing
from leasehold.worker.worker import Worker
from tests.unit.worker.worker.support import Held, filled, handle_all, running

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"


def poison_x(message: Message) -> None:
    if message.text == "x":
        raise Poison("no")


def test_metrics_tell_what_was_done() -> None:
    """Counts by outcome, a histogram, and the state of the worker are in the registry."""
    registry = CollectorRegistry()
    worker = handle_all(poison_x, filled("x", "y", "z"), name="mail", registry=registry)
    labels = {"worker": "mail", "queue": "orders"}

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"leasehold_worker_{name}", {**labels, **more})

    assert value("received_total") == 3
    assert value("ended_total", outcome="done") == 2
    assert value("ended_total", outcome="poisoned") == 1
    assert value("ended_total", outcome="lost") == 0
    assert value("handling_seconds_count") == 3
    assert value("handling_seconds_bucket", le="+Inf") == 3
    assert value("in_work") == value("buffered") == 0
    own = {"worker": "mail"}
    assert registry.get_sample_value("leasehold_worker_concurrency", own) == 2
    assert registry.get_sample_value("leasehold_worker_hook_failures_total", own) == 0
    assert worker.name == "mail"


def test_all_metrics_are_exported_before_anything_happens() -> None:
    """Each metric that is declared is there from the start, also with the value 0."""
    registry = CollectorRegistry()
    worker = Worker(poison_x, filled(), registry=registry)
    text = generate_latest(registry).decode()
    for name in metrics.COUNTERS:
        assert f"leasehold_worker_{name}_total{{" in text
    for name in metrics.GAUGES:
        assert f"leasehold_worker_{name}{{" in text
    assert "leasehold_worker_handling_seconds_bucket" in text
    assert worker.snapshot().done == 0


def test_several_workers_share_a_registry() -> None:
    """A second worker in one process is told apart by its name; one that is gone is not shown."""
    registry = CollectorRegistry()
    one = Worker(poison_x, filled(), registry=registry, name="one")
    two = Worker(poison_x, filled(), registry=registry, name="two")
    text = generate_latest(registry).decode()
    assert 'worker="one"' in text
    assert 'worker="two"' in text
    del one
    gc.collect()
    text = generate_latest(registry).decode()
    assert 'worker="one"' not in text
    assert two.name == "two"


def test_metrics_show_what_is_in_work() -> None:
    """Gauges follow what is handled and buffered at the moment."""
    time, registry = ManualTime(), CollectorRegistry()
    queue, handler = filled("a", "b", "c", time=time), Held(time)
    options: dict[str, Any] = {"concurrency": 1, "prefetch": 5, "name": "mail"}
    with running(handler, queue, time=time, registry=registry, **options):
        handler.wait_until_begun()
        time.advance(12)
        labels = {"worker": "mail", "queue": "orders"}
        assert registry.get_sample_value("leasehold_worker_in_work", labels) == 1
        assert registry.get_sample_value("leasehold_worker_buffered", labels) == 2
        own = {"worker": "mail"}
        oldest = registry.get_sample_value("leasehold_worker_oldest_in_work_seconds", own)
        assert oldest == 12


# --- traces --------------------------------------------------------------------------------------


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def traced_queue() -> MemoryQueue:
    queue = MemoryQueue("orders")
    queue.put([Outgoing(body="x", traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01")])
    return queue


@pytest.mark.parametrize("runner", ["threads", "asyncio"])
def test_span_links_to_the_producer(
    exporter: InMemorySpanExporter, provider: TracerProvider, runner: str
) -> None:
    """Each handling is a span below that of the sender, with a link to it, and is current."""
    current: list[Any] = []

    async def handle_async(_message: Message) -> None:
        current.append(trace.get_current_span())

    def handle(_message: Message) -> None:
        current.append(trace.get_current_span())

    handler = handle_async if runner == "asyncio" else handle
    handle_all(handler, traced_queue(), hooks=[Tracing(provider)])
    (span,) = exporter.get_finished_spans()
    assert span.name == "process orders"
    assert span.parent is not None
    assert trace.format_span_id(span.parent.span_id) == SPAN_ID
    assert span.kind is trace.SpanKind.CONSUMER
    (link,) = span.links
    assert trace.format_trace_id(link.context.trace_id) == TRACE_ID
    assert trace.format_span_id(link.context.span_id) == SPAN_ID
    assert span.attributes is not None
    assert span.attributes["messaging.destination.name"] == "orders"
    assert span.attributes["messaging.message.id"] == "orders-1"
    assert span.attributes["leasehold.outcome"] == "done"
    assert span.status.is_ok
    assert current[0].get_span_context() == span.get_span_context()


def test_failed_span_says_so(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    """A failure is an error of the span, with its type; giving back is none."""
    handle_all(poison_x, filled("x"), hooks=[Tracing(provider)])
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "leasehold.worker.errors.Poison"
    assert not span.status.is_ok
    exporter.clear()
    calls: list[str] = []

    def give_back_once(message: Message) -> None:
        calls.append(message.text)
        if len(calls) == 1:
            raise GiveBack

    handle_all(give_back_once, filled("y"), hooks=[Tracing(provider)])
    assert all(span.status.is_ok for span in exporter.get_finished_spans())


def test_malformed_context_is_left_out(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """What is no trace context gives a span without a link."""
    queue = MemoryQueue("orders")
    queue.put([Outgoing(body="x", traceparent="nonsense")])
    handle_all(lambda _: None, queue, hooks=[Tracing(provider)])
    (span,) = exporter.get_finished_spans()
    assert span.links == ()


def test_without_the_api_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where OpenTelemetry is not installed the hooks do nothing."""
    monkeypatch.setattr(spans, "is_there", lambda: False)
    hooks = Tracing()
    assert not spans.is_used()
    assert spans.carried() == {}
    handle_all(lambda _: None, filled("x"), hooks=[hooks])
    with spans.continued({"traceparent": "x"}):
        pass


def test_context_crosses_a_process(provider: TracerProvider) -> None:
    """What is carried to another process is the current span's context there."""
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("here") as span:
        carrier = spans.carried()
    with spans.continued(carrier):
        there = trace.get_current_span().get_span_context()
    assert there.trace_id == span.get_span_context().trace_id


def test_nobody_asks_for_spans_that_go_nowhere() -> None:
    """As long as nobody has set a provider, a worker makes no spans."""
    assert spans.is_there()
    assert not spans.is_used()
    assert Worker(lambda _: None, filled())._hooks.before == ()


# --- reports -------------------------------------------------------------------------------------


def snapshot_of(**changes: Any) -> Snapshot:
    return Snapshot(
        **{
            "done": 1200,
            "failed": 3,
            "lost": 0,
            "concurrency": 8,
            "prefetch": 16,
            "lag_s": 0.02,
            "renewals": 7,
            "oldest_s": None,
            "oldest_id": None,
            "in_work_by_queue": {"a": 2, "b": 1},
            "buffered_by_queue": {"a": 5},
            **changes,
        }
    )


def test_line_says_how_it_is() -> None:
    """One line has what people ask for."""
    assert line_of(snapshot_of(), 12.34) == (
        "1,200 done, 3 failed, 3 in work, 5 buffered, 12.3/s, renewals 0.0 s late"
    )
    text = line_of(snapshot_of(lost=2, oldest_s=754, oldest_id="m-1"), 0)
    assert "2 lost" in text
    assert "oldest in work 13 min (m-1)" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (75, "75 s"), (600, "10 min"), (11_000, "3.1 h")],
)
def test_lengths_are_brief(seconds: float, text: str) -> None:
    """A length of time has two or three digits and a unit."""
    assert length(seconds) == text


def test_lines_come_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    """Where there is no terminal a line is logged in each interval, and one at the end."""
    time, done = ManualTime(), [0]
    reporter = Reporter(
        "mail", lambda: snapshot_of(done=done[0]), time, interval_s=10, stream=io.StringIO()
    )
    with caplog.at_level(logging.INFO, "leasehold.worker"):
        reporter.start()
        done[0] = 50
        time.advance(10)
        done[0] = 150
        time.advance(10)
        reporter.close()
    lines = [record.getMessage() for record in caplog.records]
    assert [re.sub(r",.*buffered", "", line).partition(", ren")[0] for line in lines] == [
        "mail: 50 done, 5.0/s",
        "mail: 150 done, 10.0/s",
        "mail: 150 done, 0.0/s",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the figures stand beside a bar."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time, stream = ManualTime(), Terminal()
    reporter = Reporter("mail", snapshot_of, time, interval_s=10, stream=stream)
    reporter.start()
    time.advance(reporting.BAR_INTERVAL_S)
    reporter.close()
    assert "1,200 done" in stream.getvalue()
    assert "3/8" in stream.getvalue()


def test_worker_reports_if_it_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that is to report says at the end what was done."""
    with caplog.at_level(logging.INFO, "leasehold.worker"):
        handle_all(lambda _: None, filled("x", "y"), report_s=3600, name="mail")
    assert "mail: 2 done" in caplog.text
