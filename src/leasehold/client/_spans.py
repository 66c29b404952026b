"""Spans of the client's calls; made only where a provider was set before the client.

What sends, takes or settles messages has a span by OpenTelemetry's conventions for messaging; for
the rest only the context at hand is sent along. The request has the context of its span in its
header, and the server keeps that with messages that bring none of their own: so the span of a send
is the creation context of what it sends, all messages of a batch alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from leasehold import spans
from leasehold.client._answers import Answer
from leasehold.client._calls import ARROW, OCTETS, Call
from leasehold.client._connection import Endpoint
from leasehold.client.errors import ServerProblem

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_SEND: Final = "send"
_RECEIVE: Final = "receive"
_SETTLE: Final = "settle"


class Operation(NamedTuple):
    """What a call does with messages."""

    name: str
    type: str
    """By the conventions."""
    queue: str | None
    """None: of several, or of none in particular."""
    creates: bool = False
    """Whether messages begin with it, so that its context goes with them."""


def operation_of(call: Call) -> Operation | None:  # noqa: C901, PLR0911 - a table
    """Return what a call does with messages; None if it sends, takes and settles none."""
    # /v1/accounts/{account}/...
    match call.method, *call.path.split("/")[4:]:
        case "POST", "queues", queue, "messages":
            return Operation("send", _SEND, unquote(queue), creates=True)
        case "POST", "queues", queue, "messages", "raw":
            return Operation("send", _SEND, unquote(queue), creates=True)
        case "POST", "queues", queue, "messages", "receive":
            return Operation("receive", _RECEIVE, unquote(queue))
        case "POST", "queues", queue, "messages", ("complete" | "release") as verb:
            return Operation(verb, _SETTLE, unquote(queue))
        case "PUT", "queues", queue, "streams", _, "claims", _:
            return Operation("claim", _RECEIVE, unquote(queue))
        case "GET", "queues", queue, "streams", _, "claims", _, "messages":
            return Operation("read", _RECEIVE, unquote(queue))
        case "POST", "queues", queue, "streams", _, "settle":
            return Operation("settle", _SETTLE, unquote(queue))
        case "POST", "transactions", _, "stage":
            return Operation("stage", _SEND, dict(call.query).get("queue"), creates=True)
        case "POST", "transactions", _, "publish":
            return Operation("publish", _SEND, None)
        case "POST", "commit":
            return Operation("commit", _SETTLE, None, creates=True)
    return None


class CallTracer:
    """Makes the spans of one client.

    Args:
        endpoint: Of the client.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        from opentelemetry import propagate, trace  # noqa: PLC0415 - only who traces needs it

        self._tracer = spans.tracer_of("leasehold.client")
        self._inject = propagate.inject
        self._kinds = trace.SpanKind
        parts = urlsplit(endpoint.url)
        self._server: dict[str, str | int] = {"server.address": parts.hostname or ""}
        if parts.port is not None:
            self._server["server.port"] = parts.port

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Put the context at hand into the header of a request."""
        self._inject(headers)

    @contextmanager
    def span(self, call: Call) -> Iterator[Callable[[Answer], None]]:
        """Make the span of a call the current one; tell what is yielded the answer."""
        operation = operation_of(call)
        if operation is None:
            yield _ignore
            return
        given = _given(call)
        own = [spans.context_of(each.traceparent) for each in given.puts]
        # A context that messages bring themselves is not changed: they begin elsewhere.
        creates = operation.creates and (not own or None in own)
        attributes: dict[str, str | int] = {
            spans.MESSAGING_SYSTEM: spans.SYSTEM,
            spans.OPERATION_NAME: operation.name,
            spans.OPERATION_TYPE: operation.type,
            **self._server,
        }
        if operation.queue is not None:
            attributes[spans.DESTINATION] = operation.queue
        links = spans.links_to([*own, *spans.SETTLED.get()])
        with self._tracer.start_as_current_span(
            operation.name if operation.queue is None else f"{operation.name} {operation.queue}",
            kind=self._kinds.PRODUCER if creates else self._kinds.CLIENT,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            _count(span, [each.id for each in given.items], given.count)
            try:
                yield lambda answer: _note(span, operation, answer)
            except BaseException as error:
                refusal = error.code if isinstance(error, ServerProblem) else None
                spans.fail(span, refusal or type(error).__qualname__)
                raise


def _ignore(_: Answer) -> None:
    pass


# --- what is in requests and answers -----------------------------------------------------------


class _Item(Struct):
    id: str | None = None
    traceparent: str | None = None


class _Given(Struct):
    """Lists of a request; a body of another form has none."""

    messages: list[_Item] = []
    items: list[_Item] = []
    send: list[_Item] | None = None
    complete: list[_Item] | None = None
    release: list[_Item] | None = None

    @property
    def puts(self) -> list[_Item]:
        """What is sent."""
        return self.messages or self.send or []

    @property
    def count(self) -> int:
        """Messages of the request; 0: that is not known."""
        lists = (self.messages, self.items, self.send, self.complete, self.release)
        return sum(len(each) for each in lists if each)


class _Results(Struct):
    results: list[_Item] = []
    messages: list[_Item] = []


_NOTHING: Final = _Given()
_read_given = msgspec.json.Decoder(_Given).decode
_read_results = msgspec.json.Decoder(_Results).decode


def _given(call: Call) -> _Given:
    if not call.content or call.content_type in {OCTETS, ARROW}:
        return _NOTHING
    return _read_given(call.content)


def _note(span: Span, operation: Operation, answer: Answer) -> None:
    """Say of a span what came of the call."""
    if not span.is_recording():
        return
    if answer.content_type.startswith(ARROW):
        _note_rows(span, answer.content)
    elif operation.name in {"send", "receive", "read"}:
        try:
            found = _read_results(answer.content)
        except msgspec.MsgspecError:
            return  # the caller says so
        listed = found.messages or found.results
        _count(span, [each.id for each in listed], len(listed))
        _link(span, [each.traceparent for each in found.messages])


def _note_rows(span: Span, content: bytes) -> None:
    import pyarrow as pa  # noqa: PLC0415 - who asks for Arrow has it

    with pa.ipc.open_stream(content) as reader:
        table = reader.read_all()
    span.set_attribute(spans.MESSAGE_COUNT, table.num_rows)
    if "traceparent" in table.column_names:
        column: Any = table.column("traceparent").unique()
        _link(span, column[: spans.MAX_LINKS + 1].to_pylist())


def _link(span: Span, traceparents: list[str | None]) -> None:
    for link in spans.links_to(map(spans.context_of, traceparents[: spans.MAX_LINKS])):
        span.add_link(link.context)


def _count(span: Span, ids: list[str | None], count: int) -> None:
    if count == 1:
        if ids and ids[0] is not None:
            span.set_attribute(spans.MESSAGE_ID, ids[0])
    elif count:
        span.set_attribute(spans.MESSAGE_COUNT, count)
