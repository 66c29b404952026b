"""Requests as values: what to send for each method of the client, whether it may be repeated, and
what proves who sends it.

Nothing here does I/O, so that the asynchronous and the synchronous client share it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from msgspec import UNSET, Struct

from leasehold.auth.sharedkey import sign
from leasehold.auth.types import BadSignature, Pairs, SignedRequest
from leasehold.client.models import (
    DEFAULT_PRIORITY,
    DEFAULT_TIME_TO_LIVE_S,
    Completion,
    ErrorReport,
    Filter,
    GiveBack,
    NewMessage,
    Outcome,
    Outgoing,
    Policy,
    Progress,
    Renewal,
)
from leasehold.domain.limits import MAX_ITEMS, MAX_RESULT_BYTES
from leasehold.wire.admin import (
    GroupStateRequest,
    HaltRequest,
    HoldRequest,
    ReleaseGroupRequest,
)
from leasehold.wire.messages import (
    CompleteItem,
    ProgressReport,
    PutItem,
    QueuedPut,
    ReceiveRequest,
    ReleaseItem,
    RenewItem,
    ReportedError,
)
from leasehold.wire.parts import NoRequest
from leasehold.wire.queues import PoliciesRequest, PolicyItem

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
ARROW: Final = "application/vnd.apache.arrow.stream"
MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Size at which a list of items that may be split goes on in another request."""
LIST_PAGE: Final = 1_000
"""Queues fetched at once while listing."""

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request."""

    method: str
    path: str
    """Percent-encoded."""
    query: Pairs = ()
    content: bytes = b""
    """Empty for none."""
    content_type: str = JSON
    accept: str = JSON
    repeatable: bool = False
    """Whether doing it twice is the same as doing it once."""
    wait_s: float = 0
    """How long the server may wait before it answers."""
    try_s: float | None = None
    """Seconds without a byte after which a try has failed, if less than the client's."""
    done_if: str | None = None
    """A code that means success if an earlier try got no answer: what was to go is gone."""

    @property
    def target(self) -> str:
        """Path and query as they stand in the request line, without any signature."""
        return target_of(self.path, self.query)


class Leased(Protocol):
    """Whatever names a leased message: a ReceivedMessage, a LeaseRef, a Sent."""

    @property
    def id(self) -> str:
        """The message's id."""
        ...

    @property
    def receipt(self) -> str:
        """The proof of the lease."""
        ...


L = TypeVar("L", bound=Leased)

_PUT_MEMBERS: Final = PutItem.__struct_fields__


class Request(NamedTuple):
    """A request, signed and ready to be sent."""

    method: str
    target: str
    headers: dict[str, str]
    content: bytes
    timeouts: dict[str, float | None]
    """Seconds to connect, to wait for each part of the answer, and so on, as httpcore has them."""


def target_of(path: str, query: Pairs) -> str:
    """Return the request line's target; blanks are %20 there, as signatures expect."""
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


def account_path(account: str) -> str:
    """Return the path that all of an account's resources lie under."""
    return f"/v1/accounts/{path_segment('account', account)}"


def queue_path(account: str, queue: str) -> str:
    """Return a queue's path.

    Raises:
        TypeError: The name is not a str.
        ValueError: The name cannot be part of a path.
    """
    if not isinstance(queue, str):
        raise TypeError(
            f'the name of a queue is a str, not {type(queue).__name__}: client.queue("orders")'
        )
    return f"{account_path(account)}/queues/{path_segment('queue', queue)}"


def message_path(queue: str, message_id: str) -> str:
    """Return a message's path, given its queue's."""
    return f"{queue}/messages/{path_segment('message id', message_id)}"


def job_path(account: str, job_id: str) -> str:
    """Return a job's path."""
    return f"{account_path(account)}/jobs/{path_segment('job id', job_id)}"


def get(path: str, query: Pairs = (), accept: str = JSON) -> Call:
    """Return a call that only reads."""
    return Call(method="GET", path=path, query=query, accept=accept, repeatable=True)


def send(method: str, path: str, request: Struct, *, repeatable: bool, wait_s: float = 0) -> Call:
    """Return a call with a request as JSON."""
    content = _encode(request)
    return Call(method=method, path=path, content=content, repeatable=repeatable, wait_s=wait_s)


def delete(path: str, query: Pairs, done_if: str) -> Call:
    """Return a call that removes something; that it is gone after a lost answer is success."""
    return Call(method="DELETE", path=path, query=query, repeatable=True, done_if=done_if)


def list_queues(account: str, prefix: str, after: str | None, *, counts: bool) -> Call:
    """Return a call for one page of queues."""
    query = [("limit", str(LIST_PAGE))]
    query += [("prefix", prefix)] if prefix else []
    query += [("after", after)] if after else []
    query += [("counts", "true")] if counts else []
    return get(f"{account_path(account)}/queues", tuple(query))


def list_jobs(account: str, queue: str | None, limit: int) -> Call:
    """Return a call for the newest jobs."""
    query = (("limit", str(limit)),) + ((("queue", queue),) if queue else ())
    return get(f"{account_path(account)}/jobs", query)


def inspect(path: str, wanted: Filter, after: str | None, page_size: int, *, body: bool) -> Call:
    """Return a call for one page of messages."""
    query = [("limit", str(page_size)), *_filter_query(wanted)]
    query += [] if body else [("body", "false")]
    query += [("after", after)] if after else []
    return get(f"{path}/messages", tuple(query))


def halt_group(path: str, group_id: str, reason: str | None) -> Call:
    """Return a call that stops a group of a queue, given its path."""
    name = path_segment("group id", group_id)
    return send("POST", f"{path}/groups/{name}/halt", HaltRequest(reason), repeatable=True)


def resume_group(path: str, group_id: str) -> Call:
    """Return a call that has a group of a queue go on, given its path."""
    name = path_segment("group id", group_id)
    return send("POST", f"{path}/groups/{name}/resume", NoRequest(), repeatable=True)


def hold_group(path: str, session: str, group_id: str | None) -> Call:
    """Return a call that gives a group of a queue to a session, or the next one if None."""
    request = HoldRequest(session, group_id)
    # Were the answer lost, the next one could be another.
    return send("POST", f"{path}/groups/hold", request, repeatable=group_id is not None)


def save_group_state(path: str, group_id: str, session: str, fence: int, state: bytes) -> Call:
    """Return a call that keeps some bytes for a group of a queue, given its path."""
    name = path_segment("group id", group_id)
    request = GroupStateRequest(session, fence, state)
    return send("PUT", f"{path}/groups/{name}/state", request, repeatable=True)


def release_group(path: str, group_id: str, session: str) -> Call:
    """Return a call that ends the hold of a session, given the queue's path."""
    name = path_segment("group id", group_id)
    request = ReleaseGroupRequest(session)
    return send("POST", f"{path}/groups/{name}/release", request, repeatable=False)


def end_hold(path: str, group_id: str) -> Call:
    """Return a call that ends the hold of whatever session has a group, given the queue's path."""
    name = path_segment("group id", group_id)
    return Call(method="DELETE", path=f"{path}/groups/{name}/hold", repeatable=True)


def groups(path: str, order: str, limit: int, *, noisy: bool, halted: bool) -> Call:
    """Return a call for the groups of a queue, given its path."""
    query = [("order", order), ("limit", str(limit))]
    query += [("noisy", "true")] if noisy else []
    query += [("halted", "true")] if halted else []
    return get(f"{path}/groups", tuple(query))


def policies(path: str) -> Call:
    """Return the request for the stored access policies of a queue."""
    return get(f"{path}/policies")


def set_policies(path: str, given: Iterable[Policy]) -> Call:
    """Return the request that replaces them."""
    items = [PolicyItem(each.id, each.start, each.expiry, each.permission) for each in given]
    return send("PUT", f"{path}/policies", PoliciesRequest(items), repeatable=True)


def group(path: str, group_id: str) -> Call:
    """Return a call for one group of a queue, given its path."""
    return get(f"{path}/groups/{path_segment('group id', group_id)}")


def filter_of(wanted: Filter | None, states: Iterable[str] | None) -> Filter:
    """Return the filter with the *states* that were given beside it."""
    wanted = wanted or Filter()
    if states is None:
        return wanted
    chosen = (states,) if isinstance(states, str) else tuple(states)
    return msgspec.structs.replace(wanted, states=chosen)


def receive(path: str, request: ReceiveRequest) -> Call:
    """Return a call that leases messages. Repeating it could leave some leased to no worker."""
    path, wait_s = f"{path}/messages/receive", request.wait_s or 0
    return send("POST", path, request, repeatable=False, wait_s=wait_s)


_BODIES: Final = (str, bytes, bytearray, memoryview)


def as_new_message(message: NewMessage | str | bytes) -> NewMessage:
    """Return what is to be put as a NewMessage.

    Raises:
        TypeError: It is neither text nor bytes nor a NewMessage.
    """
    made = message if isinstance(message, NewMessage) else NewMessage(message)
    if not isinstance(made.body, _BODIES):
        raise TypeError(
            f"a body is str or bytes, not {type(made.body).__name__}; "
            "turn it into text first, for example with json.dumps"
        )
    return made


def put_calls(
    path: str, messages: Iterable[NewMessage | str | bytes], *, atomic: bool
) -> Iterator[tuple[Call, list[NewMessage]]]:
    """Yield the calls that put *messages*, and which messages each is for.

    Raises:
        TypeError: *messages* is one text and would be put letter by letter.
    """
    if isinstance(messages, str | bytes):
        raise TypeError("put_many takes a list of messages, not one text; see put")
    return _item_calls(f"{path}/messages", map(as_new_message, messages), _PUT, atomic=atomic)


def put_body(path: str, message: NewMessage) -> Call:
    """Return a call that puts a message whose body travels as it is.

    Raises:
        TypeError: The body is not bytes.
    """
    if not isinstance(message.body, bytes | bytearray | memoryview):
        raise TypeError(f"a raw body is bytes, not {type(message.body).__name__}; see put")
    given = (
        ("delay_s", message.delay_s or None),
        ("time_to_live_s", _unless(message.time_to_live_s, DEFAULT_TIME_TO_LIVE_S)),
        ("priority", _unless(message.priority, DEFAULT_PRIORITY)),
        ("type", message.type),
        ("dedup_key", message.dedup_key),
        ("group_id", message.group_id),
        ("visibility_timeout_s", message.visibility_timeout_s),
    )
    return Call(
        method="POST",
        path=f"{path}/messages/raw",
        query=tuple((name, str(value)) for name, value in given if value is not None),
        content=bytes(message.body),
        content_type=OCTETS,
        repeatable=message.dedup_key is not None,
    )


def settling_calls(
    path: str,
    verb: str,
    items: Iterable[L],
    encode: Callable[[Leased], Struct],
    *,
    atomic: bool,
) -> Iterator[tuple[Call, list[L]]]:
    """Yield the calls that renew, complete or release messages.

    They can all be repeated: a receipt that has done its work is refused the second time.

    Raises:
        TypeError: An item has no id or no receipt.
    """
    form = _Form("items", encode, lambda _: True)
    try:
        yield from _item_calls(f"{path}/messages/{verb}", items, form, atomic=atomic)
    except AttributeError as error:
        if error.name not in {"id", "receipt"}:
            raise
        raise TypeError(
            f"{verb} takes a received message or a LeaseRef, not {type(error.obj).__name__}"
        ) from None


def renewal(
    visibility_timeout_s: int, body: str | bytes | None, progress: Progress | None, saved: Any
) -> Callable[[Leased], RenewItem]:
    """Return what makes an item of a renew.

    Raises:
        TypeError: *saved* is not what JSON can say.
    """
    text, encoded = body_members(body)
    report = None if progress is None else ProgressReport(progress.fraction, progress.note)
    raw = saved if saved is UNSET else msgspec.Raw(_encode(saved))
    return lambda item: RenewItem(
        text,
        encoded,
        id=item.id,
        receipt=item.receipt,
        visibility_timeout_s=visibility_timeout_s,
        progress=report,
        saved=raw,
    )


def renewal_calls(
    path: str, renewals: Iterable[Renewal], *, atomic: bool
) -> Iterator[tuple[Call, list[Renewal]]]:
    """Yield the calls that renew leases each in a way of its own; see :func:`settling_calls`."""
    form = _Form("items", _renewal_item, lambda _: True)
    return _item_calls(f"{path}/messages/renew", renewals, form, atomic=atomic)


def _renewal_item(given: Renewal) -> Struct:
    encode = renewal(given.visibility_timeout_s, given.body, given.progress, given.saved)
    return encode(given.message)


def release_calls(
    path: str, releases: Iterable[GiveBack], *, atomic: bool
) -> Iterator[tuple[Call, list[GiveBack]]]:
    """Yield the calls that give messages back, each for a reason of its own."""
    form = _Form("items", _release_item, lambda _: True)
    return _item_calls(f"{path}/messages/release", releases, form, atomic=atomic)


def _release_item(given: GiveBack) -> Struct:
    return giving_back(given.outcome, given.delay_s, given.error)(given.message)


def sent_once(call: Call, timeout_s: float | None) -> Call:
    """Return the call with its own limit, if there is one, for who does not try again.

    Raises:
        ValueError: The limit is not above 0.
    """
    if timeout_s is None:
        return call
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be above 0, not {timeout_s}")
    return replace(call, try_s=timeout_s)


def completion(item: Leased) -> CompleteItem:
    """Return an item of a complete.

    Raises:
        TypeError: Its result is not what JSON can say.
        ValueError: Its result is larger than the event log keeps.
    """
    if not isinstance(item, Completion) or item.result is None:
        return CompleteItem(item.id, item.receipt)
    encoded = _encode(item.result)
    if len(encoded) > MAX_RESULT_BYTES:
        raise ValueError(
            f"the result of message {item.id} has {len(encoded):,} bytes as JSON, and "
            f"{MAX_RESULT_BYTES:,} are kept: store it elsewhere, and send its location"
        )
    return CompleteItem(item.id, item.receipt, msgspec.Raw(encoded))


def giving_back(
    outcome: Outcome, delay_s: int | None, error: ErrorReport | None
) -> Callable[[Leased], ReleaseItem]:
    """Return what makes an item of a release."""
    report = reported(error)
    told = None if outcome == "returned" else outcome
    return lambda item: ReleaseItem(item.id, item.receipt, told, delay_s, report)


def body_members(body: str | bytes | None) -> tuple[str | None, str | None]:
    """Return a body as text if it is UTF-8, which is shorter than base64, else as base64."""
    if body is None or isinstance(body, str):
        return body, None
    try:
        return str(body, "utf-8"), None
    except UnicodeDecodeError:
        return None, b64encode(body).decode("ascii")


def outgoing(message: Outgoing) -> QueuedPut:
    """Return an item that puts a message in its queue.

    Raises:
        TypeError: It does not say which queue, or its body is neither text nor bytes.
    """
    if not isinstance(message, Outgoing):
        raise TypeError(
            f"a message for one of several queues is an Outgoing, not {type(message).__name__}"
        )
    item = _put_item(as_new_message(message))
    return QueuedPut(*(getattr(item, name) for name in _PUT_MEMBERS), queue=message.queue)


def reported(error: ErrorReport | None) -> ReportedError | None:
    """Return a report without what the server sets."""
    return None if error is None else ReportedError(error.text, error.type, error.fingerprint)


def in_parts(
    items: Iterable[_T], encode: Callable[[_T], Struct], *, whole: bool
) -> Iterator[tuple[list[_T], list[bytes]]]:
    """Yield items with their JSON, as many as fit in a request; all at once if *whole*."""
    chunk: list[_T] = []
    pieces: list[bytes] = []
    size = 0
    for item in items:
        piece = _encode(encode(item))
        full = len(chunk) >= MAX_ITEMS or size + len(piece) > MAX_REQUEST_BYTES
        if chunk and full and not whole:
            yield chunk, pieces
            chunk, pieces, size = [], [], 0
        chunk.append(item)
        pieces.append(piece)
        size += len(piece) + 1
    if chunk:
        yield chunk, pieces


class _Form(NamedTuple):
    """How a kind of item is sent."""

    member: str
    """Under which name the request has the list."""
    encode: Callable[[Any], Struct]
    repeatable: Callable[[Any], bool]


def _item_calls(
    path: str, items: Iterable[_T], form: _Form, *, atomic: bool
) -> Iterator[tuple[Call, list[_T]]]:
    """Yield calls with as many items as fit; a list that is all-or-nothing is never split."""
    flag = b',"atomic":true' if atomic else b""
    for chunk, pieces in in_parts(items, form.encode, whole=atomic):
        content = b'{"%b":[%b]%b}' % (form.member.encode(), b",".join(pieces), flag)
        repeatable = all(map(form.repeatable, chunk))
        yield Call(method="POST", path=path, content=content, repeatable=repeatable), chunk


def _put_item(message: NewMessage) -> PutItem:
    text, encoded = body_members(message.body)
    return PutItem(
        text,
        encoded,
        UNSET,
        message.delay_s or None,
        _unless(message.time_to_live_s, DEFAULT_TIME_TO_LIVE_S),
        _unless(message.priority, DEFAULT_PRIORITY),
        message.dedup_key,
        message.type,
        message.properties,
        message.traceparent,
        message.group_id,
        message.visibility_timeout_s,
    )


_PUT: Final = _Form("messages", _put_item, lambda message: message.dedup_key is not None)


def _unless(value: int, default: int) -> int | None:
    return None if value == default else value


_PLAIN_PARAMS: Final = (
    *("min_age_s", "max_age_s", "max_error_age_s", "min_dequeue_count", "max_dequeue_count"),
    *("min_failures", "max_failures", "min_priority", "max_priority", "session", "holder"),
)
_TEXT_PARAMS: Final = ("reason", "error", "property", "search", "text", "json_path")
"""Members of a filter that the query calls by the same name."""


def _filter_query(wanted: Filter) -> Iterator[tuple[str, str]]:
    if wanted.states is not None:
        yield "state", ",".join(wanted.states)
    for name in _PLAIN_PARAMS:
        value = getattr(wanted, name)
        if value is not None:
            # Without an exponent, which the server does not read.
            yield name, f"{value:f}" if isinstance(value, float) else str(value)
    if wanted.message_type is not None:
        yield "type", wanted.message_type
    if wanted.group_id is not None:
        yield "group", wanted.group_id
    for name in _TEXT_PARAMS:
        value = getattr(wanted, name)
        if value is not None:
            yield name, value
    if wanted.json_value is not UNSET:
        yield "json_value", _encode(wanted.json_value).decode()


def path_segment(what: str, text: str) -> str:
    """Return one segment of a path.

    Raises:
        ValueError: The text is empty, or dots alone, which would lead somewhere else.
    """
    if text in {"", ".", ".."}:
        raise ValueError(f"{text!r} cannot be the {what}")
    return quote(text, safe="")


# --- credentials -----------------------------------------------------------------------------
#
# Proof of who is calling: signatures and keys. Nothing here shows a secret in its repr.


PROTOCOL_VERSION: Final = "2026-10-06"
"""Which of Azure's forms of the string to sign is used."""


class Unsigned(NamedTuple):
    """The parts of a request that a signature covers."""

    method: str
    path: str
    """As it will be sent, percent-encoded."""
    query: Pairs
    """Decoded names and values, in the order sent."""
    headers: dict[str, str]
    """Names in lower case."""


class Credential(Protocol):
    """Something that makes a request acceptable to the server."""

    @property
    def query(self) -> Pairs:
        """Query parameters to add to every request."""
        ...

    def headers(self, unsigned: Unsigned, /) -> dict[str, str]:
        """Return the headers to add."""
        ...


class SharedKey:
    """Signs each request with the account key, which never leaves this process.

    Source: Azure Storage, "Authorize with Shared Key".
    """

    __slots__ = ("_account", "_key")
    query: Pairs = ()

    def __init__(self, account: str, key: str) -> None:
        self._account = account
        self._key = _decoded(key)

    def headers(self, unsigned: Unsigned, /) -> dict[str, str]:
        """See :class:`Credential`.

        Raises:
            ValueError: A value of the query holds a line break, which cannot be signed.
        """
        # The date is that of the wall clock, which the server compares with its own.
        dated = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": PROTOCOL_VERSION}
        request = SignedRequest(
            method=unsigned.method,
            path=unsigned.path,
            query=unsigned.query,
            headers=unsigned.headers | dated,
            version=PROTOCOL_VERSION,
            client_ip="",
            https=False,
        )
        try:
            dated["authorization"] = sign(request, self._account, self._key)
        except BadSignature as error:
            raise ValueError(f"This request cannot be signed. {error.detail}") from None
        return dated


class KeyAsBearer:
    """Sends the key itself. The endpoint has been checked to be private."""

    __slots__ = ("_key",)
    query: Pairs = ()

    def __init__(self, key: str) -> None:
        _decoded(key)
        self._key = key.strip()

    def headers(self, _unsigned: Unsigned, /) -> dict[str, str]:
        """See :class:`Credential`."""
        return bearer(self._key)


class SharedAccessSignature:
    """A signature that a holder of the key has made, as query parameters."""

    __slots__ = ("_query",)

    def __init__(self, text: str) -> None:
        self._query: Pairs = tuple(parse_qsl(text.strip().lstrip("?"), keep_blank_values=True))
        if "sig" not in dict(self._query):
            raise ValueError("the shared access signature has no 'sig' part")

    @property
    def query(self) -> Pairs:
        """See :class:`Credential`."""
        return self._query

    def headers(self, _unsigned: Unsigned, /) -> dict[str, str]:
        """See :class:`Credential`."""
        return {}


def bearer(token: str) -> dict[str, str]:
    """Return the headers that carry a bearer token.

    Raises:
        ValueError: It holds what no header can. The text does not show it.
    """
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            "the token is malformed: it holds a blank or a character that is not ASCII"
        )
    return {"authorization": f"Bearer {token}", "x-ms-version": PROTOCOL_VERSION}


def _decoded(key: str) -> bytes:
    try:
        decoded = b64decode(key.strip(), validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise ValueError("the account key is not base64, or empty")
    return decoded
