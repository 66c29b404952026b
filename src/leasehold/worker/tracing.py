"""A span for each message that is handled. Needs ``opentelemetry-api``; does nothing without.

Source: OpenTelemetry semantic conventions for messaging spans (a span of kind CONSUMER with the
operation ``process``, linked to the span of the producer).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from leasehold.worker.hooks import Hooks
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Link, TracerProvider

_NAME: Final = "leasehold.worker"
_SYSTEM: Final = "leasehold"


class Tracing(Hooks):
    """Spans named ``process <queue>``, current while the handler runs.

    They begin a trace of their own and link to that of the producer, whose context came with the
    message: a message may wait for days, and be handled more than once.

    Args:
        provider: None: the global one, as it is when this is made.
        service: What ``messaging.system`` says.
    """

    def __init__(self, provider: TracerProvider | None = None, service: str = _SYSTEM) -> None:
        self._service = service
        self._open: dict[Message, tuple[Any, Any]] = {}
        self._tracer: Any = None
        if is_there():
            from opentelemetry import trace  # noqa: PLC0415 - optional

            self._tracer = trace.get_tracer(_NAME, tracer_provider=provider)

    def before(self, message: Message) -> None:
        """Begin the span."""
        if self._tracer is None:
            return
        from opentelemetry import context, trace  # noqa: PLC0415 - optional

        span = self._tracer.start_span(
            f"process {message.queue}",
            context=context.Context(),
            kind=trace.SpanKind.CONSUMER,
            links=_links(message.traceparent),
            attributes={
                "messaging.system": self._service,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": message.queue,
                "messaging.message.id": message.id,
                "messaging.message.body.size": len(message.body),
                "leasehold.dequeue_count": message.dequeue_count,
            },
        )
        token = context.attach(trace.set_span_in_context(span))
        self._open[message] = span, token

    def after(self, message: Message, outcome: Outcome, _seconds: float, /) -> None:
        """End it."""
        found = self._open.pop(message, None)
        if found is None:
            return
        from opentelemetry import context, trace  # noqa: PLC0415 - optional

        span, token = found
        span.set_attribute("leasehold.outcome", outcome.kind.value)
        if outcome.kind is not Kind.DONE:
            fault = outcome.fault
            if fault is not None and fault.type is not None:
                span.set_attribute("error.type", fault.type)
            if outcome.kind is not Kind.RETURNED:
                text = outcome.kind.value if fault is None else fault.text
                span.set_status(trace.StatusCode.ERROR, text)
        span.end()
        context.detach(token)


@cache
def is_there() -> bool:
    """Return whether the API is installed."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None


def is_used() -> bool:
    """Return whether the program has set a provider, so that spans go anywhere."""
    if not is_there():
        return False
    from opentelemetry import trace  # noqa: PLC0415 - optional

    idle = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
    return not isinstance(trace.get_tracer_provider(), idle)


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


def _links(traceparent: str | None) -> list[Link]:
    if traceparent is None:
        return []
    from opentelemetry import trace  # noqa: PLC0415 - optional
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - optional

    propagator = tracecontext.TraceContextTextMapPropagator()
    sender = trace.get_current_span(propagator.extract({"traceparent": traceparent}))
    found = sender.get_span_context()
    return [trace.Link(found)] if found.is_valid else []
