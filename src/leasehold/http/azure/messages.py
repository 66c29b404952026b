"""The operations on messages: read the request into a command, write its result as an answer.

Source: "Operations on messages (Azure Queue Storage)".
"""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64encode
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from leasehold.domain.admin import Inspect, MessagePage
from leasehold.domain.commands import (
    Clear,
    Complete,
    Done,
    Duplicate,
    Peek,
    Put,
    Receive,
    Renew,
)
from leasehold.domain.errors import BodyTooLarge
from leasehold.domain.filters import MessageFilter
from leasehold.domain.limits import (
    MAX_GROUP_ID,
    MAX_WAIT_S,
    NATIVE,
    PRIORITIES,
    WEEK_S,
    check_range,
)
from leasehold.domain.model import (
    DEFAULT_PRIORITY,
    ENTROPY_BYTES,
    NO_DETAIL,
    CancelRequest,
    Detail,
    Lease,
    Message,
    MessageState,
    body_problem,
    expiry_of,
    put_refusal,
)
from leasehold.http.azure.call import (
    Call,
    optional_integer,
    required,
    required_integer,
    rfc1123,
    timeout_s,
    whole_number,
)
from leasehold.http.azure.errors import Fault, invalid_header, invalid_parameter
from leasehold.http.azure.xml import element, invalid_document, refusal_of
from leasehold.http.requests import Response
from leasehold.http.xml import (
    PROLOGS,
    Element,
    escape_bytes,
    has_plain_characters,
    is_legal,
    plain_text,
    read,
    read_long,
)

_DEFAULT_TIME_TO_LIVE_S = WEEK_S
_NEVER = -1


def parse_put(call: Call) -> Put:
    """Read Put Message."""
    delay_s, time_to_live_s = _delay_and_life_s(call) if call.params else (0, WEEK_S)
    body = _sent_text(call)
    detail, priority = read_extras(call.request.headers)
    return Put(
        call.account,
        call.route.queue,
        body,
        delay_s,
        time_to_live_s,
        os.urandom(ENTROPY_BYTES),
        detail,
        priority,
    )


def _delay_and_life_s(call: Call) -> tuple[int, int | None]:
    params = call.params
    limits = call.version.limits
    if "visibilitytimeout" in params and not call.version.delayed_put:
        detail = ("QueryParameterName", "visibilitytimeout")
        raise Fault("UnsupportedQueryParameter", (detail,))
    delay_s = optional_integer(params, "visibilitytimeout", 0, limits.delay_s)
    life_s: int | None = _DEFAULT_TIME_TO_LIVE_S
    text = params.get("messagettl")
    if text:
        life_s = whole_number("messagettl", text)
        if life_s == _NEVER and limits.unlimited_time_to_live:
            life_s = None
        else:
            check_range("messagettl", life_s, limits.time_to_live_s)
    if delay_s:
        refusal = put_refusal(0, delay_s, expiry_of(0, life_s))
        if refusal is not None:
            raise refusal
    return delay_s, life_s


def render_put(call: Call, put: Lease | Duplicate) -> Response:
    """Write the answer to Put Message; early versions have an empty one."""
    if not call.version.put_answers:
        return call.reply(201)
    message: Message | Duplicate
    message, receipt = (put, put.receipt) if isinstance(put, Duplicate) else put
    response = call.reply_xml(
        201,
        b"<QueueMessagesList><QueueMessage>"
        b"<MessageId>%b</MessageId><InsertionTime>%b</InsertionTime>"
        b"<ExpirationTime>%b</ExpirationTime><PopReceipt>%b</PopReceipt>"
        b"<TimeNextVisible>%b</TimeNextVisible>"
        b"</QueueMessage></QueueMessagesList>"
        % (
            message.message_id.encode(),
            rfc1123(message.inserted_at_ms),
            rfc1123(message.expires_at_ms),
            receipt.encode(),
            rfc1123(message.visible_at_ms),
        ),
    )
    if message is put:
        response.headers.append(DUPLICATE)
    return response


def parse_get(call: Call) -> Receive:
    """Read Get Messages."""
    params = call.params
    limits = call.version.limits
    return Receive(
        call.account,
        call.route.queue,
        optional_integer(params, "numofmessages", 1, limits.receive_count),
        required_integer(params, "visibilitytimeout", limits.lease_s)
        if params.get("visibilitytimeout")
        else None,
        read_holder(call.request.headers) or call.request.client_ip,
        read_session(call.request.headers),
    )


def wait_s(call: Call) -> int:
    """Read how long Get Messages may wait for a message; it is no parameter of the service.

    ``wait`` or, as MNS calls it, ``waitseconds``: 0 to 60 seconds, and no longer than ``timeout``.
    Without them the answer comes at once, as the service's does.
    """
    params = call.params
    name = "wait" if params.get("wait") else "waitseconds"
    longest_s = optional_integer(params, name, 0, (0, MAX_WAIT_S))
    if longest_s and "timeout" in params:
        return min(longest_s, timeout_s(params))
    return longest_s


def render_get(call: Call, leases: tuple[Lease, ...]) -> Response:
    """Write the answer to Get Messages."""
    response = _reply_list(call, [_leased(lease) for lease in leases])
    if len(leases) == 1 and leases[0].message.detail.group_id is not None:
        response.headers.append(group_header(leases[0].message.detail.group_id))
    return response


def _leased(lease: Lease) -> bytes:
    message = lease.message
    return (
        b"<QueueMessage><MessageId>%b</MessageId><InsertionTime>%b</InsertionTime>"
        b"<ExpirationTime>%b</ExpirationTime><PopReceipt>%b</PopReceipt>"
        b"<TimeNextVisible>%b</TimeNextVisible><DequeueCount>%d</DequeueCount>"
        b"%b</QueueMessage>"
        % (
            message.message_id.encode(),
            rfc1123(message.inserted_at_ms),
            rfc1123(message.expires_at_ms),
            lease.receipt.encode(),
            rfc1123(message.visible_at_ms),
            message.dequeue_count,
            _text(message.body),
        )
    )


def parse_peek(call: Call) -> Peek | Inspect:
    """Read Peek Messages, which with ``include=invisible`` lists more than can be received."""
    bounds = call.version.limits.receive_count
    limit = optional_integer(call.params, "numofmessages", 1, bounds)
    include = call.params.get("include")
    if not include:
        return Peek(call.account, call.route.queue, limit)
    if include != "invisible":
        raise invalid_parameter("include", include, "The only value is 'invisible'.")
    return Inspect(call.account, call.route.queue, WAITING, call.params.get("marker", ""), limit)


def render_peek(call: Call, messages: tuple[Message, ...] | MessagePage) -> Response:
    """Write the answer to Peek Messages: nothing that would let the reader act on a message."""
    if isinstance(messages, MessagePage):
        return render_inspected(call, messages)
    return _reply_list(
        call,
        [
            b"<QueueMessage><MessageId>%b</MessageId><InsertionTime>%b</InsertionTime>"
            b"<ExpirationTime>%b</ExpirationTime><DequeueCount>%d</DequeueCount>"
            b"%b</QueueMessage>"
            % (
                message.message_id.encode(),
                rfc1123(message.inserted_at_ms),
                rfc1123(message.expires_at_ms),
                message.dequeue_count,
                _text(message.body),
            )
            for message in messages
            if body_problem(message) is None
        ],
    )


def render_inspected(call: Call, page: MessagePage) -> Response:
    """Write messages in whatever state, with what the usual elements leave out."""
    response = _reply_list(
        call,
        [
            b"<QueueMessage><MessageId>%b</MessageId><InsertionTime>%b</InsertionTime>"
            b"<ExpirationTime>%b</ExpirationTime><TimeNextVisible>%b</TimeNextVisible>"
            b"<DequeueCount>%d</DequeueCount><State>%b</State>%b%b</QueueMessage>"
            % (
                message.message_id.encode(),
                rfc1123(message.inserted_at_ms),
                rfc1123(message.expires_at_ms),
                rfc1123(message.visible_at_ms),
                message.dequeue_count,
                state.encode(),
                element("Holder", message.holder) if message.holder else b"",
                _text_or_problem(message),
            )
            for message, state, *_ in page.messages
        ],
    )
    if page.next_after is not None:
        response.headers.append((NEXT_MARKER, page.next_after.encode()))
    return response


def _text(body: bytes) -> bytes:
    if not body:
        return b"<MessageText />"
    return b"<MessageText>%b</MessageText>" % escape_bytes(
        body if is_legal(body) else b64encode(body)
    )


def _text_or_problem(message: Message) -> bytes:
    problem = body_problem(message)
    return _text(message.body) if problem is None else element("BodyProblem", problem)


def _reply_list(call: Call, entries: list[bytes]) -> Response:
    if not entries:
        return call.reply_xml(200, b"<QueueMessagesList />")
    return call.reply_xml(200, b"<QueueMessagesList>%b</QueueMessagesList>" % b"".join(entries))


def parse_update(call: Call) -> Renew:
    """Read Update Message; without a body it changes the visibility only."""
    params = call.params
    limits = call.version.limits
    receipt = required(params, "popreceipt")
    visibility_timeout_s = required_integer(params, "visibilitytimeout", limits.renew_s)
    body = None
    if call.request.body:
        body = _sent_text(call)
    route = call.route
    return Renew(
        *(call.account, route.queue, route.message_id, receipt, visibility_timeout_s, body),
        past_expiry=call.accepts_late or call.version.update_past_expiry,
    )


def render_update(call: Call, lease: Lease) -> Response:
    """Write the answer to Update Message."""
    response = call.reply(
        204,
        (b"x-ms-popreceipt", lease.receipt.encode()),
        (b"x-ms-time-next-visible", rfc1123(lease.message.visible_at_ms)),
    )
    cancel = lease.message.detail.cancel
    if cancel is not None:
        response.headers.append(cancel_header(cancel))
    return response


def parse_delete(call: Call) -> Complete:
    """Read Delete Message."""
    route = call.route
    receipt = required(call.params, "popreceipt")
    return Complete(call.account, route.queue, route.message_id, receipt)


def parse_clear(call: Call) -> Clear:
    """Read Clear Messages."""
    return Clear(call.account, call.route.queue, call.actor)


def render_done(call: Call, _: Done) -> Response:
    """Write the answer of what has nothing to tell."""
    return call.reply(204)


# --- text --------------------------------------------------------------------------------------
#
# The text of a message in the body of a request.


_OPEN: Final = b"<QueueMessage><MessageText>"
_CLOSE: Final = b"</MessageText></QueueMessage>"
_PARTS: Final = 256
"""Pieces of text, of 8 KiB each, that are joined before others have their turn."""


def _sent_text(call: Call) -> bytes:
    text = message_text(call.request.body) if call.text is None else call.text
    limit_bytes = call.max_body_bytes
    if limit_bytes is None:
        limit_bytes = call.version.limits.body_bytes
    if len(text) > limit_bytes:
        raise BodyTooLarge(size_bytes=len(text), limit_bytes=limit_bytes)
    return text


def message_text(body: bytes) -> bytes:
    """Return the text of a ``QueueMessage`` document as UTF-8.

    Raises:
        Fault: The document is not well-formed, or not of this structure.
    """
    found = read(body, plain_message_text, refusal_of)
    return found if isinstance(found, bytes) else text_element(found).text().encode("utf-8")


async def long_message_text(body: bytes) -> bytes:
    """Do what :func:`message_text` does, and let others have their turn.

    Raises:
        Fault: As there.
    """
    found = await read_long(body, plain_message_text, refusal_of)
    if isinstance(found, bytes):
        return found
    parts = []
    for number, part in enumerate(text_element(found).pieces()):
        parts.append(part.encode("utf-8"))
        if number % _PARTS == 0:
            await asyncio.sleep(0)
    return b"".join(parts)


def plain_message_text(body: bytes) -> bytes | None:
    """Return the text of a document in the form client libraries send, or None.

    None says nothing about the document: the parser has to decide. An answer is the parser's
    answer, at a third of its time.
    """
    prolog, opened, rest = body.partition(_OPEN)
    if not opened or prolog not in PROLOGS or not rest.endswith(_CLOSE):
        return None
    text = rest[: -len(_CLOSE)]
    if b"<" in text or not has_plain_characters(text):
        return None
    return plain_text(text)


def text_element(root: Element) -> Element:
    """Return the element whose text is that of the message.

    Raises:
        Fault: The document is not of this structure.
    """
    if root.name != "QueueMessage":
        raise invalid_document("The root element must be QueueMessage", at=root)
    children = list(root.children())
    if root.has_own_text() or [child.name for child in children] != ["MessageText"]:
        raise invalid_document("QueueMessage must hold one MessageText", at=root)
    # Elements inside the text are dropped, and what they hold is kept.
    return children[0]


# --- extras ------------------------------------------------------------------------------------
#
# What this server takes and tells beyond the protocol, in headers that old clients never send.
#
# Their names begin with ``x-ms-``, so that SharedKey signatures cover them.


DEDUP_KEY: Final = "x-ms-leasehold-dedup-key"
GROUP_ID: Final = "x-ms-leasehold-group-id"
MESSAGE_TYPE: Final = "x-ms-leasehold-type"
PRIORITY: Final = "x-ms-leasehold-priority"
PROPERTIES: Final = "x-ms-leasehold-properties"
HOLDER: Final = "x-ms-leasehold-holder"
SESSION: Final = "x-ms-leasehold-session"
CANCEL: Final = b"x-ms-leasehold-cancel"
NO_REASON: Final = b"true"
"""What :data:`CANCEL` says if no reason was given."""
OWN_TIMEOUT: Final = "x-ms-leasehold-visibility-timeout"
TRACEPARENT: Final = "traceparent"
DUPLICATE: Final = (b"x-ms-leasehold-duplicate", b"true")
NEXT_MARKER: Final = b"x-ms-leasehold-next-marker"

WAITING: Final = MessageFilter(
    states=frozenset(
        {
            MessageState.VISIBLE,
            MessageState.LEASED,
            MessageState.DELAYED,
            MessageState.DEFERRED,
            MessageState.EXPIRED,
        }
    )
)
"""What ``include=invisible`` lists: all that the queue itself holds."""

_EXTRAS: Final = (
    *(TRACEPARENT, DEDUP_KEY, GROUP_ID, MESSAGE_TYPE, PRIORITY, PROPERTIES),
    OWN_TIMEOUT,
)
_MAX_CHARS: Final = 1024
_MAX_PROPERTIES_CHARS: Final = 8192


def read_extras(headers: Mapping[str, str]) -> tuple[Detail, int]:
    """Return what a Put Message sends along with the body, and its priority.

    Raises:
        Fault: A header is too long, or the properties are not a JSON object of strings.
        OutOfRange: The priority is not 1 to 16, or no lease can be as long as asked for.
    """
    for name in _EXTRAS:
        if name in headers:
            break
    else:
        return NO_DETAIL, DEFAULT_PRIORITY
    priority = headers.get(PRIORITY)
    level = DEFAULT_PRIORITY
    if priority:
        level = whole_number(PRIORITY, priority)
        check_range(PRIORITY, level, PRIORITIES)
    own_s = None
    if headers.get(OWN_TIMEOUT):
        own_s = whole_number(OWN_TIMEOUT, headers[OWN_TIMEOUT])
        check_range(OWN_TIMEOUT, own_s, NATIVE.lease_s)
    detail = Detail(
        properties=_properties(headers.get(PROPERTIES)),
        message_type=_short(headers, MESSAGE_TYPE),
        traceparent=_short(headers, TRACEPARENT),
        dedup_key=_short(headers, DEDUP_KEY),
        group_id=_group(headers.get(GROUP_ID)),
        visibility_timeout_s=own_s,
    )
    return NO_DETAIL if detail == NO_DETAIL else detail, level


def read_holder(headers: Mapping[str, str]) -> str | None:
    """Return the name that who gets messages gives itself, None if it gives none.

    Raises:
        Fault: It is too long.
    """
    return _short(headers, HOLDER)


def read_session(headers: Mapping[str, str]) -> str | None:
    """Return the id of the session that what is received belongs to, None for none.

    Raises:
        Fault: It is too long.
    """
    return _short(headers, SESSION)


def cancel_header(request: CancelRequest) -> tuple[bytes, bytes]:
    """Return the header that tells a worker to stop, and why; the reason is percent-encoded."""
    if not request.reason:
        return CANCEL, NO_REASON
    return CANCEL, quote(request.reason, safe="", errors="replace").encode()


def group_header(group_id: str) -> tuple[bytes, bytes]:
    """Return the header that tells the message group of the one message in an answer."""
    return GROUP_ID.encode(), quote(group_id, safe="", errors="replace").encode()


def _group(text: str | None) -> str | None:
    """Read a message group, which is percent-encoded, so that it can have any characters."""
    if not text:
        return None
    try:
        group_id = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise invalid_header(GROUP_ID, text[:_MAX_CHARS]) from None
    if len(group_id) > MAX_GROUP_ID:
        raise invalid_header(GROUP_ID, text[:_MAX_CHARS])
    return group_id


def _short(headers: Mapping[str, str], name: str) -> str | None:
    text = headers.get(name)
    if text is not None and len(text) > _MAX_CHARS:
        raise invalid_header(name, text[:_MAX_CHARS])
    return text or None


def _properties(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        found = json.loads(text) if len(text) <= _MAX_PROPERTIES_CHARS else None
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise invalid_header(PROPERTIES, text[:_MAX_CHARS])
    return found
