"""A span for each message that is handled, and whose context it is settled under.

Source: OpenTelemetry semantic conventions for messaging spans, "Message creation context as parent
of 'Process' span".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leasehold import spans
from leasehold.worker.adapters.protocol import Delivery
from leasehold.worker.hooks import Hooks
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind, Outcome

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, TracerProvider

_NAME: Final = "leasehold.worker"

Settling: TypeAlias = Callable[
    [Sequence[tuple[Message | None, Delivery]]], AbstractContextManager[None]
]


class Tracing(Hooks):
    """Spans named ``process <queue>``, current while the handler runs.

    Args:
        provider: None: the global one, as it is when this is made.
        service: What ``messaging.system`` says.
        parent: Whether a span is a child of the producer's, whose context came with the message,
            so that both are in one trace. Otherwise it begins a trace of its own: a message may
            wait for days, and be handled more than once. It links to the producer's either way.
    """

    def __init__(
        self,
        provider: TracerProvider | None = None,
        service: str = spans.SYSTEM,
        *,
        parent: bool = True,
    ) -> None:
        self._service = service
        self._parent = parent
        self._open: dict[Message, tuple[Any, Any]] = {}
        self._tracer: Any = None
        if spans.is_there():
            self._tracer = spans.tracer_of(_NAME, provider)

    def before(self, message: Message) -> None:
        """Begin the span."""
        if self._tracer is None:
            return
        from opentelemetry import context, trace  # noqa: PLC0415 - optional

        sender = spans.context_of(message.traceparent)
        around = context.Context()
        if sender is not None and self._parent:
            around = trace.set_span_in_context(trace.NonRecordingSpan(sender), around)
        span = self._tracer.start_span(
            f"process {message.queue}",
            context=around,
            kind=trace.SpanKind.CONSUMER,
            links=spans.links_to([sender]),
            attributes={
                spans.MESSAGING_SYSTEM: self._service,
                spans.OPERATION_NAME: "process",
                spans.OPERATION_TYPE: "process",
                spans.DESTINATION: message.queue,
                spans.MESSAGE_ID: message.id,
                "messaging.message.body.size": len(message.body),
                "leasehold.dequeue_count": message.dequeue_count,
            },
        )
        token = context.attach(trace.set_span_in_context(span))
        self._open[message] = span, token
        # For the request that settles it, when the span has ended.
        message._span_context = span.get_span_context()  # noqa: SLF001 - no part of the API

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
                span.set_attribute(spans.ERROR_TYPE, fault.type)
            if outcome.kind is not Kind.RETURNED:
                # Without the text of the fault, which may show what is in the message.
                span.set_status(trace.StatusCode.ERROR, outcome.kind.value)
        span.end()
        context.detach(token)

    @contextmanager
    def settling(self, given: Sequence[tuple[Message | None, Delivery]]) -> Iterator[None]:
        """Have a request that settles messages belong to the spans that handled them.

        One message's is a child of its span. Several messages' belong to several traces, and a span
        has one parent, so theirs has links only.

        Args:
            given: The messages; None in place of one that no handler began with.
        """
        from opentelemetry import context, trace  # noqa: PLC0415 - optional

        found = [self._context_of(message, delivery) for message, delivery in given]
        contexts = tuple(each for each in found if each is not None)
        if len(given) == 1 and contexts:
            (around,) = contexts
            token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(around)))
            try:
                yield
            finally:
                context.detach(token)
            return
        links = spans.SETTLED.set(contexts)
        try:
            yield
        finally:
            spans.SETTLED.reset(links)

    @staticmethod
    def _context_of(message: Message | None, delivery: Delivery) -> SpanContext | None:
        found: SpanContext | None = getattr(message, "_span_context", None)
        return spans.context_of(delivery.traceparent) if found is None else found


def settling_of(hooks: Iterable[Hooks]) -> Settling | None:
    """Return what the requests that settle messages belong to, if there are spans of messages."""
    made = [each for each in hooks if isinstance(each, Tracing)]
    return made[0].settling if made and spans.is_there() else None
