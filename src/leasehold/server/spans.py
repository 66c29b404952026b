"""Spans of the server: of requests, of waits and commits below them.

They are made only if the setting ``tracing`` is on: then these classes stand in the places of those
that make none. A span says which operation, queue and message it was, and what became of it. It
never has a path, a query, a header, a body, a receipt, or the text of an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind

from leasehold import spans
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand, Command, Effect, Perform, R
from leasehold.domain.model import Lease
from leasehold.engine.long_poll import Gone
from leasehold.http.admission import LongClaim, LongReceive
from leasehold.http.app import Application
from leasehold.http.request_cycle import Receive as ReceiveBody
from leasehold.http.requests import Response

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

_CARRIED: Final = frozenset({b"traceparent", b"tracestate", b"baggage"})
_SERVER_ERROR: Final = 500
_REMEMBERED: Final = 10_000
"""Leases whose messages' contexts are known, so that what settles them can link to these."""


class TracedApplication(Application):
    """The same with a span of each request, but for those of the server's own pages.

    The span is a child of what the request's header says, by W3C Trace Context.
    """

    def __init__(self, tracer: ServerTracer, **options: Any) -> None:
        super().__init__(**options)
        self._tracer = tracer

    async def __call__(self, scope: dict[str, Any], receive: ReceiveBody) -> Response | None:
        """See :class:`leasehold.http.app.Application`."""
        if scope["raw_path"].decode("ascii") in self._paths:
            return await super().__call__(scope, receive)
        with self._tracer.request(scope):
            return await super().__call__(scope, receive)


class ServerTracer:
    """Makes the spans of one server."""

    def __init__(self) -> None:
        self._tracer = spans.tracer_of("leasehold.server")
        self._leased: OrderedDict[str, SpanContext] = OrderedDict()

    def application(self, **options: Any) -> TracedApplication:
        """Return an application whose requests have spans."""
        return TracedApplication(self, **options)

    @contextmanager
    def request(self, scope: Mapping[str, Any]) -> Iterator[None]:
        """Make the span of a request the current one."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _CARRIED
        }
        with self._tracer.start_as_current_span(
            scope["method"],
            context=propagate.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": scope["method"],
                spans.MESSAGING_SYSTEM: spans.SYSTEM,
            },
            record_exception=False,
            set_status_on_exception=False,
        ):
            yield

    def observing(self, observe: Callable[[str, int], None]) -> Callable[[str, int], None]:
        """Return *observe*, which learns of each answer, so that the request's span does too."""

        def observe_traced(operation: str, status: int) -> None:
            observe(operation, status)
            span = trace.get_current_span()
            span.update_name(operation)
            span.set_attribute("leasehold.operation", operation)
            span.set_attribute("http.response.status_code", status)
            if status >= _SERVER_ERROR:
                spans.fail(span, str(status))

        return observe_traced

    def performing(self, perform: Perform) -> Perform:
        """Return *perform* with a span of each command: it ends when that is durable."""

        async def perform_traced(command: Command[R], /) -> R:
            reads = command.traits.effect is Effect.LOOKS
            with self._below("read" if reads else "commit", command) as span:
                result = await perform(command)
                self._note(span, command, result)
                return result

        return perform_traced

    def receiving(self, receive: LongReceive) -> LongReceive:
        """Return *receive* with a span of the wait, what ends it included."""

        async def receive_traced(
            command: c.Receive, wait_s: float, gone: Gone | None = None
        ) -> tuple[Lease, ...]:
            with self._below("wait", command) as span:
                leases = await receive(command, wait_s, gone)
                self._note(span, command, leases)
                return leases

        return receive_traced

    def claiming(self, open_claim: LongClaim) -> LongClaim:
        """Return *open_claim* with a span of the wait and of what is leased."""

        async def open_traced(
            command: k.OpenClaim, wait_s: float = 0, gone: Gone | None = None
        ) -> k.Opened:
            with self._below("wait", command):
                return await open_claim(command, wait_s, gone)

        return open_traced

    @contextmanager
    def _below(self, name: str, command: AnyCommand) -> Iterator[Span]:
        around = trace.get_current_span()
        if not around.is_recording():
            yield around  # of a request that is not sampled, or of none
            return
        attributes = {"leasehold.command": type(command).__name__}
        queue = _queue_of(command)
        if queue is not None:
            attributes[spans.DESTINATION] = queue
            around.set_attribute(spans.DESTINATION, queue)
        with self._tracer.start_as_current_span(
            name, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                # A refusal is an answer like others; the class of the error says which.
                span.set_attribute(spans.ERROR_TYPE, type(error).__qualname__)
                raise

    def _note(self, span: Span, command: AnyCommand, result: object) -> None:
        """Have a span say which messages it was about, and link to where they come from."""
        if not span.is_recording():
            return
        ids: list[str] = []
        contexts: list[SpanContext | None] = []
        commands = command.subcommands() or (command,)
        results: Any = result if isinstance(command, c.Batch) else [result] * len(commands)
        for each, came in zip(commands, results, strict=True):
            match each:
                case c.Receive():
                    for lease in came:
                        ids.append(lease.message.message_id)
                        contexts.append(self._remember(lease))
                case c.Put():
                    contexts.append(spans.context_of(each.detail.traceparent))
                    ids += [came.message.message_id] if isinstance(came, Lease) else []
                case c.Complete() | c.Release() | c.Renew():
                    ids.append(each.message_id)
                    contexts.append(self._leased.get(each.message_id))
        if len(ids) == 1:
            span.set_attribute(spans.MESSAGE_ID, ids[0])
        elif ids:
            span.set_attribute(spans.MESSAGE_COUNT, len(ids))
        for link in spans.links_to(contexts):
            span.add_link(link.context)

    def _remember(self, lease: Lease) -> SpanContext | None:
        found = spans.context_of(lease.message.detail.traceparent)
        if found is not None:
            self._leased[lease.message.message_id] = found
            self._leased.move_to_end(lease.message.message_id)
            if len(self._leased) > _REMEMBERED:
                self._leased.popitem(last=False)
        return found


def _queue_of(command: AnyCommand) -> str | None:
    """Return the queue that a command is about; None if there is none, or there are several."""
    parts = command.subcommands() or (command,)
    names = {getattr(each, "queue", None) for each in parts}
    return names.pop() if len(names) == 1 else None
