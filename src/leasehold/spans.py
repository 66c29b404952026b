"""Traces with OpenTelemetry: names, contexts that travel with messages, and how to switch them on.

Without a provider that somebody has set nothing here is called on the hot path: who makes spans
asks :func:`is_used` once, when it is made. Only ``opentelemetry-api`` is needed, but for
:func:`start`, which needs the extra ``otel``.

Sources: OpenTelemetry, "Semantic conventions for messaging spans" 1.41; W3C, "Trace Context".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, TracerProvider

SYSTEM: Final = "leasehold"
"""What ``messaging.system`` says."""

MESSAGING_SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

MAX_LINKS: Final = 128
"""Of one span: as many as an SDK keeps unless told otherwise."""

SETTLED: Final[ContextVar[tuple[SpanContext, ...]]] = ContextVar("leasehold_settled", default=())
"""What messages that are settled together belong to, for the span of that request to link to."""

_FLUSH_MS: Final = 5_000


@cache
def is_there() -> bool:
    """Return whether the API is installed."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None


def is_used() -> bool:
    """Return whether the program has set a provider, so that spans go anywhere."""
    # Who has set one has imported this, and who has not need not pay for the import.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    idle = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
    return not isinstance(trace.get_tracer_provider(), idle)


def start(service: str) -> None:
    """Have spans of this process sent by OTLP over HTTP; harmless if a provider is set already.

    Where to, how many, and under which name the SDK reads from its own variables, such as
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER and OTEL_SERVICE_NAME.

    Args:
        service: The name of the service, unless a variable gives one.

    Raises:
        ImportError: The extra ``otel`` is not installed.
    """
    if is_used():
        return
    from opentelemetry import trace  # noqa: PLC0415 - optional, like all that follow
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def flush() -> None:
    """Send the spans that have ended; for processes that may be killed between two tasks."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        force = getattr(trace.get_tracer_provider(), "force_flush", None)
        if force is not None:
            force(_FLUSH_MS)


def fail(span: Span, error_type: str) -> None:
    """Say of a span that it failed, and with what kind of error; never with its text.

    Texts of errors may show what a client has sent.
    """
    from opentelemetry.trace import StatusCode  # noqa: PLC0415 - optional

    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(StatusCode.ERROR)


# --- contexts ----------------------------------------------------------------------------------


def context_of(traceparent: str | None) -> SpanContext | None:
    """Return the context that came with a message; None if there is none, or it is malformed."""
    if traceparent is None:
        return None
    from opentelemetry import context, trace  # noqa: PLC0415 - optional
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - optional

    propagator = tracecontext.TraceContextTextMapPropagator()
    # Not from the context at hand: what is malformed would be taken for that.
    read = propagator.extract({"traceparent": traceparent}, context.Context())
    found = trace.get_current_span(read).get_span_context()
    return found if found.is_valid else None


def links_to(contexts: Iterable[SpanContext | None]) -> list[Link]:
    """Return links to the first :data:`MAX_LINKS` contexts that are there, each once."""
    from opentelemetry.trace import Link  # noqa: PLC0415 - optional

    found = {each.span_id: each for each in contexts if each is not None}
    return [Link(each) for each in list(found.values())[:MAX_LINKS]]


def carried() -> Mapping[str, str]:
    """Return the current context as it can be sent to another process; empty if there is none."""
    if not is_there():
        return {}
    from opentelemetry import propagate  # noqa: PLC0415 - optional

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


@contextmanager
def continued(carrier: Mapping[str, str]) -> Iterator[None]:
    """Make a context that was sent from another process the current one."""
    if not carrier or not is_there():
        yield
        return
    from opentelemetry import context, propagate  # noqa: PLC0415 - optional

    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)


def tracer_of(name: str, provider: TracerProvider | None = None) -> Any:
    """Return the tracer of a part of Leasehold; with no *provider* that of the program's."""
    from opentelemetry import trace  # noqa: PLC0415 - optional

    from leasehold import __version__  # noqa: PLC0415

    return trace.get_tracer(name, __version__, tracer_provider=provider)
