"""The operations on messages: read the request into a command, write its result as an answer.

Source: MNS, "Queue API", operations on messages.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Final

from leasehold.domain.commands import (
    Complete,
    Done,
    Duplicate,
    Peek,
    Put,
    Receive,
    Renew,
)
from leasehold.domain.ids import ENTROPY_BYTES
from leasehold.domain.limits import MNS, check_body
from leasehold.domain.queue_settings import MnsAttributes
from leasehold.domain.types import DEFAULT_PRIORITY, NO_DETAIL, Lease, Message, Phase
from leasehold.http.messages import Response
from leasehold.http.mns.call import Call
from leasehold.http.mns.errors import Fault, invalid_argument
from leasehold.http.mns.handles import make_handle, read_handle, wire_id
from leasehold.http.mns.parameters import whole_number
from leasehold.http.mns.properties import read_detail, write_detail
from leasehold.http.mns.xml_in import fields_of, raw_text, text_of
from leasehold.http.mns.xml_out import document
from leasehold.http.xml_text import escape_bytes, is_bare, is_legal
from leasehold.http.xml_tree import Element

WAIT_S: Final = (0, 30)
"""How long a receive may wait; longer than the clients' patience would lose messages."""
PRIORITIES: Final = (0, 16)
"""1 is the most urgent. The Go SDK sends 0 for a message without one."""

DEFAULTS: Final = MnsAttributes()
_COUNT: Final = "numOfMessages"
_HANDLE: Final = "receipthandle"
_TIMEOUT: Final = "visibilitytimeout"


def attributes_of(call: Call) -> MnsAttributes:
    """Return the attributes of the queue; the defaults if it has none, or is not there."""
    return DEFAULTS if call.found is None else call.found.settings.mns or DEFAULTS


# --- sending -------------------------------------------------------------------------------------


def read_put(call: Call, node: Element) -> Put:
    """Read one message that is to be sent.

    Raises:
        Fault: It has no body, or a value that cannot be read.
        OutOfRange: A value is outside its range.
        BodyTooLarge: The body is.
    """
    fields = fields_of(node)
    text = raw_text(fields["MessageBody"]) if "MessageBody" in fields else ""
    if not text:
        raise invalid_argument("The MessageBody is missing or empty.")
    body = text.encode()
    largest = None if call.found is None else call.found.settings.max_body_bytes
    check_body(len(body), MNS, largest)
    attributes = attributes_of(call)
    return Put(
        call.account,
        call.route.queue,
        body,
        # "Delayed messages": a message's own delay counts where it is greater than 0.
        _number(fields, "DelaySeconds", 0, MNS.delay_s) or attributes.delay_s,
        attributes.time_to_live_s,
        os.urandom(ENTROPY_BYTES),
        read_detail(fields),
        _number(fields, "Priority", 0, PRIORITIES) or DEFAULT_PRIORITY,
    )


def _number(fields: Mapping[str, Element], name: str, default: int, bounds: tuple[int, int]) -> int:
    if name not in fields:
        return default
    return whole_number(name, text_of(fields[name]), bounds)


def md5_of(body: bytes) -> str:
    """Return the MD5 of a body as carried, in upper-case hexadecimal digits."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def sent_fields(
    put: Lease | Duplicate, body: bytes, indent: str, *, with_handle: bool = True
) -> bytes:
    """Write what is told of a message that was sent; a delayed one can be changed or deleted."""
    message_id = put.message_id if isinstance(put, Duplicate) else put.message.message_id
    handle = ""
    if with_handle and isinstance(put, Lease) and put.message.phase is Phase.DELAYED:
        handle = f"{indent}<ReceiptHandle>{make_handle(message_id, put.receipt)}</ReceiptHandle>\n"
    return (
        f"{indent}<MessageId>{wire_id(message_id)}</MessageId>\n"
        f"{indent}<MessageBodyMD5>{md5_of(body)}</MessageBodyMD5>\n{handle}"
    ).encode()


def render_sent(call: Call, put: Lease | Duplicate, body: bytes) -> Response:
    """Write the answer to SendMessage."""
    return call.reply_xml(201, document(b"Message", sent_fields(put, body, "  ")))


# --- receiving -----------------------------------------------------------------------------------


def parse_receive(call: Call) -> Receive:
    """Read ReceiveMessage or BatchReceiveMessage."""
    limit = _limit(call)
    return Receive(call.account, call.route.queue, limit, None, call.request.client_ip)


def _limit(call: Call) -> int:
    text = call.params.get("numofmessages")
    return 1 if text is None else whole_number(_COUNT, text, MNS.receive_count)


def wait_s(call: Call) -> int:
    """Read how long a receive may wait for a message; the queue says what it is otherwise."""
    text = call.params.get("waitseconds")
    if text is None:
        return attributes_of(call).wait_s
    return whole_number("waitseconds", text, WAIT_S)


def render_received(call: Call, leases: tuple[Lease, ...]) -> Response:
    """Write the answer to ReceiveMessage or BatchReceiveMessage."""
    if not leases:
        raise Fault("MessageNotExist")
    if "numofmessages" in call.params:
        entries = [
            b"  <Message>\n%b  </Message>\n" % _message_fields(lease.message, "    ", lease.receipt)
            for lease in leases
        ]
        return call.reply_xml(200, document(b"Messages", *entries))
    fields = _message_fields(leases[0].message, "  ", leases[0].receipt)
    return call.reply_xml(200, document(b"Message", fields))


def parse_peek(call: Call) -> Peek:
    """Read PeekMessage or BatchPeekMessage."""
    return Peek(call.account, call.route.queue, _limit(call))


def render_peeked(call: Call, messages: tuple[Message, ...]) -> Response:
    """Write the answer to PeekMessage or BatchPeekMessage."""
    shown = [message for message in messages if not _is_unread(message)]
    if not shown:
        raise Fault("MessageNotExist")
    if "numofmessages" in call.params:
        entries = [
            b"  <Message>\n%b  </Message>\n" % _message_fields(message, "    ") for message in shown
        ]
        return call.reply_xml(200, document(b"Messages", *entries))
    return call.reply_xml(200, document(b"Message", _message_fields(shown[0], "  ")))


def bytes_of(shown: Sequence[Lease | Message]) -> int:
    """Return how many bytes the bodies of messages have together, those of an answer."""
    found = [each.message if isinstance(each, Lease) else each for each in shown]
    return sum([len(each.body) for each in found])


def _is_unread(message: Message) -> bool:
    """Tell whether a message comes without its body, which could not be read or is too much."""
    ref = message.detail.body_ref
    return ref is not None and ref.problem is not None


def _message_fields(message: Message, indent: str, receipt: str | None = None) -> bytes:
    """Write a message, in the order of the service; without a receipt what a peek shows."""
    body = shown = message.body
    if not is_bare(body):
        if not is_legal(body):  # another dialect takes any bytes
            body = b64encode(body)
        shown = escape_bytes(body)
    message_id = wire_id(message.message_id)
    handle = visible = ""
    if receipt is not None:
        handle = f"{indent}<ReceiptHandle>{message_id}-{receipt}</ReceiptHandle>\n"
        visible = f"{indent}<NextVisibleTime>{message.visible_at_ms}</NextVisibleTime>\n"
    before = (
        f"{indent}<MessageId>{message_id}</MessageId>\n"
        f"{indent}<MessageBodyMD5>{md5_of(body)}</MessageBodyMD5>\n"
        f"{indent}<MessageBody>"
    )
    after = (
        f"</MessageBody>\n{handle}"
        f"{indent}<EnqueueTime>{message.inserted_at_ms}</EnqueueTime>\n"
        f"{indent}<FirstDequeueTime>{_first_dequeue_ms(message)}</FirstDequeueTime>\n{visible}"
        f"{indent}<DequeueCount>{message.dequeue_count}</DequeueCount>\n"
        f"{indent}<Priority>{message.priority}</Priority>\n"
    )
    detail = b"" if message.detail is NO_DETAIL else write_detail(message, indent.encode())
    return b"".join((before.encode(), shown, after.encode(), detail))


def _first_dequeue_ms(message: Message) -> int:
    """Return when a message was first received; never yet: when it was put."""
    if not message.dequeue_count:
        return message.inserted_at_ms
    attempts = message.detail.attempts
    return attempts[0].leased_at_ms if attempts else message.since_ms


# --- what a handle is for ------------------------------------------------------------------------


def parse_change(call: Call) -> Renew:
    """Read ChangeMessageVisibility."""
    handle = _handle(call)
    text = call.params.get(_TIMEOUT)
    if not text:
        raise Fault("MissingVisibilityTimeout")
    timeout_s = whole_number("VisibilityTimeout", text, MNS.renew_s)
    named = call.account, call.route.queue, *read_handle(handle)
    return Renew(*named, timeout_s, past_expiry=call.accepts_late)


def render_changed(call: Call, lease: Lease) -> Response:
    """Write the answer to ChangeMessageVisibility: the handle to use from now on."""
    message, receipt = lease
    fields = b"  <ReceiptHandle>%b</ReceiptHandle>\n  <NextVisibleTime>%d</NextVisibleTime>\n" % (
        make_handle(message.message_id, receipt).encode(),
        message.visible_at_ms,
    )
    return call.reply_xml(200, document(b"ChangeVisibility", fields))


def parse_delete(call: Call) -> Complete:
    """Read DeleteMessage."""
    return Complete(call.account, call.route.queue, *read_handle(_handle(call)))


def render_done(call: Call, _: Done) -> Response:
    """Write the answer of what has nothing to tell."""
    return call.reply(204)


def _handle(call: Call) -> str:
    handle = call.params.get(_HANDLE)
    if not handle:
        raise Fault("MissingReceiptHandle")
    return handle
