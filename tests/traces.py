"""Spans for tests: those of this process, and those that others send by OTLP, as one list."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tests.patience import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Seen:
    """A span, whichever process made it."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str | None
    service: str
    links: tuple[str, ...]
    """Ids of spans."""
    attributes: Mapping[str, Any] = field(hash=False)
    is_error: bool
    text: str = field(repr=False)
    """All that is in it, to look for what must not be."""


@contextmanager
def recorded() -> Iterator[InMemorySpanExporter]:
    """Set the process's provider for as long as this lasts; what is made then has spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise it can be set once in a process, and all tests that follow would have spans.
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        yield exporter


def seen(spans: Sequence[ReadableSpan]) -> list[Seen]:
    """Return spans of this process."""
    return [
        Seen(
            name=each.name,
            kind=each.kind.name,
            trace=trace.format_trace_id(each.context.trace_id),
            id=trace.format_span_id(each.context.span_id),
            parent=None if each.parent is None else trace.format_span_id(each.parent.span_id),
            service=str(each.resource.attributes["service.name"]),
            links=tuple(trace.format_span_id(link.context.span_id) for link in each.links),
            attributes=dict(each.attributes or {}),
            is_error=each.status.status_code is trace.StatusCode.ERROR,
            text=each.to_json(),
        )
        for each in spans
        if each.context is not None
    ]


class Collector:
    """Receives spans by OTLP over HTTP, for processes that are told its address."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: list[Seen] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        """Variables that have a process send its spans here."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        """Take what was sent."""
        request = ExportTraceServiceRequest.FromString(body)
        found = [
            _of_sent(span, group.resource.attributes)
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self._spans += found
            self._changed.notify_all()

    def spans(self) -> list[Seen]:
        """Return what has come."""
        with self._changed:
            return list(self._spans)

    def until_whole(self, trace_id: str, count: int) -> list[Seen]:
        """Wait until so many spans of a trace have come; return all that have."""
        with self._changed:
            come = self._changed.wait_for(
                lambda: sum(each.trace == trace_id for each in self._spans) >= count, PATIENCE_S
            )
            assert come, [each for each in self._spans if each.trace == trace_id]
            return list(self._spans)

    def until(self, *names: str) -> list[Seen]:
        """Wait until spans of all these names have come; return all that have."""
        with self._changed:
            come = self._changed.wait_for(
                lambda: set(names) <= {each.name for each in self._spans}, PATIENCE_S
            )
            assert come, (names, sorted({each.name for each in self._spans}))
            return list(self._spans)


def _of_sent(span: SentSpan, resource: Any) -> Seen:
    return Seen(
        name=span.name,
        kind=SpanKind(span.kind - 1).name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex() or None,
        service=str(_plain(resource)["service.name"]),
        links=tuple(each.span_id.hex() for each in span.links),
        attributes=_plain(span.attributes),
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        text=str(span),
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes
    }


# --- trees -------------------------------------------------------------------------------------


def tree(spans: Sequence[Seen], of_trace: str) -> dict[str, Any]:
    """Return a trace as names below names.

    A name stands once among those beside it, however often there is such a span.

    Raises:
        AssertionError: A span's parent is not there, or there is more than one root.
    """
    own = [each for each in spans if each.trace == of_trace]
    by_id = {each.id: each for each in own}
    for each in own:
        assert each.parent is None or each.parent in by_id, f"{each.name} has a parent elsewhere"
    roots = [each for each in own if each.parent is None]
    assert len(roots) == 1, [each.name for each in roots]

    def below(ids: set[str]) -> dict[str, Any]:
        children = [each for each in own if each.parent in ids]
        names = sorted({each.name for each in children})
        return {name: below({each.id for each in children if each.name == name}) for name in names}

    return {roots[0].name: below({roots[0].id})}


def named(spans: Sequence[Seen], name: str) -> list[Seen]:
    """Return the spans of a name."""
    return [each for each in spans if each.name == name]
