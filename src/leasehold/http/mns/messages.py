"""The operations on messages: read the request into a command, write its result as an answer.

Source: MNS, "Queue API", operations on messages.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast

from leasehold.domain.command import Perform
from leasehold.domain.commands import (
    Batch,
    Complete,
    Done,
    Duplicate,
    Peek,
    Put,
    Receive,
    Renew,
    Result,
)
from leasehold.domain.errors import LeaseholdError, QueueNotFound, ReceiptMalformed, Unavailable
from leasehold.domain.limits import MAX_GROUP_ID, MNS, NATIVE, check_body
from leasehold.domain.model import (
    DEFAULT_PRIORITY,
    ENTROPY_BYTES,
    NO_DETAIL,
    RECEIPT_CHARS,
    Detail,
    Lease,
    Message,
    Phase,
    body_problem,
)
from leasehold.domain.queue_settings import MnsAttributes
from leasehold.http.mns.call import Call, Operation, whole_number
from leasehold.http.mns.errors import Fault, fault_of, invalid_argument
from leasehold.http.mns.xml import (
    check_root,
    children_named,
    document,
    element,
    elements,
    fields_of,
    parent,
    raw_text,
    read_root,
    text_of,
)
from leasehold.http.requests import Response, digesting
from leasehold.http.xml import Element, escape_bytes, is_bare, is_legal

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


def md5_hex(body: bytes) -> str:
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
        f"{indent}<MessageBodyMD5>{md5_hex(body)}</MessageBodyMD5>\n{handle}"
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
    shown = [message for message in messages if body_problem(message) is None]
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
        f"{indent}<MessageBodyMD5>{md5_hex(body)}</MessageBodyMD5>\n"
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


# --- batches -----------------------------------------------------------------------------------
#
# Sends and deletes of several messages in one request.
#
# Each entry is carried out or refused by itself. If any is refused, the answer has the status of
# the first refusal: clients take every answer with a status below 400 for full success. What
# concerns the request as a whole is told as a plain error.
#
# Source: MNS, "BatchSendMessage" and "BatchDeleteMessage".


MAX_ENTRIES: Final = MNS.receive_count[1]

_Entry: TypeAlias = Put | Complete | Fault


async def send(call: Call, perform: Perform) -> Response:
    """Answer SendMessage or BatchSendMessage; the root of the document says which it is."""
    entries = _read_send(call)
    if isinstance(entries, Put):
        body, sent = entries.body, await perform(entries)
        return await digesting(len(body), render_sent, call, sent, body)
    results = await _carry_out(call, entries, perform)
    failed = _first_failure(results)
    if failed is None:
        written = [_sent(result, entry) for result, entry in zip(results, entries, strict=True)]
        return call.reply_xml(201, document(b"Messages", *written))
    # Clients insist on exactly two elements for each message here.
    written = [
        parent("Message", elements(_told(result), b"    "))
        if isinstance(result, Fault)
        else _sent(result, entry, brief=True)
        for result, entry in zip(results, entries, strict=True)
    ]
    return call.reply_xml(failed.status, document(b"Messages", *written), *failed.headers)


def _read_send(call: Call) -> Put | list[_Entry]:
    """Read a send; the tree of its document is not kept while the send is carried out."""
    root = call.root or read_root(call.request.body)
    if check_root(root, "Message", "Messages") == "Message":
        return read_put(call, root)
    call.operation = Operation.BATCH_SEND_MESSAGE
    entries: list[_Entry] = [_entry(call, node) for node in _nodes(root, "Message")]
    _check_size(call, entries)
    return entries


async def delete(call: Call, perform: Perform) -> Response:
    """Answer BatchDeleteMessage."""
    handles = _read_handles(call)
    results = await _carry_out(call, [_completion(call, each) for each in handles], perform)
    failed = _first_failure(results)
    if failed is None:
        return call.reply(204)
    written = [
        parent("Error", elements((*_told(result), ("ReceiptHandle", handle)), b"    "))
        for result, handle in zip(results, handles, strict=True)
        if isinstance(result, Fault)
    ]
    return call.reply_xml(failed.status, document(b"Errors", *written), *failed.headers)


def _read_handles(call: Call) -> list[str]:
    root = call.root or read_root(call.request.body)
    check_root(root, "ReceiptHandles")
    return [text_of(node) for node in _nodes(root, "ReceiptHandle")]


def _nodes(root: Element, name: str) -> Sequence[Element]:
    nodes = children_named(root, name)
    if not 1 <= len(nodes) <= MAX_ENTRIES:
        raise invalid_argument(f"A batch has 1 to {MAX_ENTRIES} entries.")
    return nodes


def _entry(call: Call, node: Element) -> Put | Fault:
    try:
        return read_put(call, node)
    except Fault as fault:
        return fault
    except LeaseholdError as error:
        return fault_of(error)


def _check_size(call: Call, entries: Sequence[_Entry]) -> None:
    """Refuse a batch whose bodies together are larger than the largest single one."""
    largest = None if call.found is None else call.found.settings.max_body_bytes
    limit = max(MNS.body_bytes, largest or 0)
    if sum(len(each.body) for each in entries if isinstance(each, Put)) > limit:
        raise invalid_argument(f"The bodies of the batch have more than {limit} bytes.")


def _completion(call: Call, handle: str) -> Complete | Fault:
    try:
        return Complete(call.account, call.route.queue, *read_handle(handle))
    except ReceiptMalformed as error:
        return fault_of(error)


async def _carry_out(
    call: Call, entries: Sequence[_Entry], perform: Perform
) -> list[Result | Fault]:
    """Carry out the entries that can be read; return a result or a fault for each.

    Raises:
        LeaseholdError: Something that has nothing to do with single entries.
    """
    commands = tuple(each for each in entries if not isinstance(each, Fault))
    done = await perform(Batch(commands)) if commands else ()
    if not commands and call.found is None:
        raise QueueNotFound
    for result in done:
        if isinstance(result, QueueNotFound):
            raise result
    if done and all(isinstance(each, Unavailable) for each in done):
        raise cast("Unavailable", done[0])
    left = iter(done)
    results: list[Result | Fault] = []
    for entry in entries:
        if isinstance(entry, Fault):
            results.append(entry)
            continue
        result = next(left)
        results.append(fault_of(result) if isinstance(result, LeaseholdError) else result)
    return results


def _first_failure(results: Sequence[Result | Fault]) -> Fault | None:
    return next((each for each in results if isinstance(each, Fault)), None)


def _told(fault: Fault) -> tuple[tuple[str, str], ...]:
    return (("ErrorCode", fault.code), ("ErrorMessage", fault.message))


def _sent(result: Result | Fault, entry: _Entry, *, brief: bool = False) -> bytes:
    assert isinstance(result, Lease | Duplicate)
    assert isinstance(entry, Put)
    fields = sent_fields(result, entry.body, "    ", with_handle=not brief)
    return b"  <Message>\n%b  </Message>\n" % fields


# --- properties --------------------------------------------------------------------------------
#
# What is sent along with a body: user properties, system properties, the group of a message.
#
# Elsewhere in the server a message has properties that are texts, and a trace context. A user
# property becomes one of these; its type, if it is another than STRING, is kept beside it. The
# trace context is the system property ``traceparent``. Other system properties, and the group,
# become properties of the same name, of which it is kept that they are no user's.
#
# Source: MNS, "SendMessage"; names and types are those of the Python and the Java SDK.


USER: Final = "UserProperties"
SYSTEM: Final = "SystemProperties"
GROUP: Final = "MessageGroupId"
MESSAGE_TYPE: Final = "leasehold-type"
OWN_TIMEOUT: Final = "leasehold-visibility-timeout"
"""User properties that say, besides, of which type a message is and how long its leases are."""
MAX_BYTES: Final = 8_192
"""All names and values together; our own, and the native API's."""

_TRACEPARENT: Final = "traceparent"
_SYSTEM_NAMES: Final = frozenset(
    {
        _TRACEPARENT,
        *("tracestate", "baggage"),
        *("DLQMessageType", "DLQSourceArn", "DLQOriginMessageId"),
    }
)
_TEXT: Final = "STRING"
_IS_SYSTEM: Final = "system"
_IS_GROUP: Final = "group"
"""Of a property that is the message group: so it was kept until 0.1."""
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST_TRACEPARENT: Final = 1_024
_LONGEST_TYPE: Final = 1_024


def read_detail(fields: Mapping[str, Element]) -> Detail:
    """Return what a message brings besides its body.

    Raises:
        OutOfRange: No lease can be as long as asked for.
        Fault: A property is not complete, has a value that is not of its type, or is repeated; a
            system property is not known; or all together are too large.
    """
    if USER not in fields and SYSTEM not in fields and GROUP not in fields:
        return NO_DETAIL
    properties: dict[str, str] = {}
    types: dict[str, str] = {}
    traceparent = None
    for name, value, kind in _entries(fields.get(USER), "PropertyValue"):
        _check_value(name, value, kind)
        _keep(properties, name, value)
        if kind != _TEXT:
            types[name] = kind
    for name, value, kind in _entries(fields.get(SYSTEM), "SystemPropertyValue"):
        if name not in _SYSTEM_NAMES or kind != _TEXT:
            raise invalid_argument(f"The system property {name} of type {kind} is unknown.")
        if name == _TRACEPARENT:
            traceparent = value
        else:
            _keep(properties, name, value)
            types[name] = _IS_SYSTEM
    group = text_of(fields[GROUP]) if GROUP in fields else ""
    if len(group) > MAX_GROUP_ID:
        raise invalid_argument(f"The {GROUP} has more than {MAX_GROUP_ID} characters.")
    size = sum(len(each.encode()) for pair in properties.items() for each in pair)
    if size > MAX_BYTES or len(traceparent or "") > _LONGEST_TRACEPARENT:
        raise invalid_argument(f"The properties are larger than {MAX_BYTES} bytes.")
    if not (properties or group or traceparent is not None):
        return NO_DETAIL
    return Detail(
        properties=properties,
        property_types=types,
        message_type=_type_in(properties),
        traceparent=traceparent,
        group_id=group or None,
        visibility_timeout_s=None
        if OWN_TIMEOUT not in properties
        else whole_number(OWN_TIMEOUT, properties[OWN_TIMEOUT], NATIVE.lease_s),
    )


def _type_in(properties: Mapping[str, str]) -> str | None:
    """Return the message type that a user property names."""
    kind = properties.get(MESSAGE_TYPE) or None
    if kind is not None and len(kind) > _LONGEST_TYPE:
        raise invalid_argument(f"The {MESSAGE_TYPE} has more than {_LONGEST_TYPE} characters.")
    return kind


def _entries(group: Element | None, name: str) -> list[tuple[str, str, str]]:
    """Return name, value and type of each property in a group."""
    entries = []
    for child in children_named(group, name) if group is not None else ():
        fields = fields_of(child)
        if not ("Name" in fields and "Value" in fields):
            raise invalid_argument(f"A {name} must hold Name and Value.")
        key = text_of(fields["Name"])
        kind = text_of(fields["Type"]) if "Type" in fields else _TEXT
        if not key:
            raise invalid_argument(f"The Name of a {name} is empty.")
        entries.append((key, raw_text(fields["Value"]), kind))
    return entries


def _keep(properties: dict[str, str], name: str, value: str) -> None:
    if name in properties:
        raise invalid_argument(f"The property {name} is repeated.")
    properties[name] = value


def _check_value(name: str, value: str, kind: str) -> None:
    if kind == _TEXT:
        return
    if kind == "NUMBER":
        is_fine = _NUMBER.fullmatch(value) is not None
    elif kind == "BOOLEAN":
        is_fine = value.lower() in {"true", "false"}
    elif kind == "BINARY":
        is_fine = _is_base64(value)
    else:
        raise invalid_argument(f"The property {name} has an unknown type.")
    if not is_fine:
        raise invalid_argument(f"The value of the property {name} is not of its type {kind}.")


def _is_base64(text: str) -> bool:
    try:
        b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def write_detail(message: Message, indent: bytes) -> bytes:
    """Write what a message brings besides its body; nothing if there is nothing.

    User properties come last: the PHP SDK reads them to the end of the document, and loses what
    comes behind.
    """
    detail = message.detail
    if detail is NO_DETAIL or not (detail.properties or detail.traceparent or detail.group_id):
        return b""
    types = detail.property_types
    user, system, group = b"", b"", b""
    if detail.group_id:
        group = element(GROUP, detail.group_id, indent)
    inner = indent + b"  "
    if detail.traceparent:
        system += _property("SystemPropertyValue", _TRACEPARENT, detail.traceparent, _TEXT, inner)
    for name, value in detail.properties.items():
        kind = types.get(name, _TEXT)
        if kind == _IS_SYSTEM:
            system += _property("SystemPropertyValue", name, value, _TEXT, inner)
        elif kind == _IS_GROUP:
            group = element(name, value, indent)
        else:
            user += _property("PropertyValue", name, value, kind, inner)
    return b"".join(
        (
            parent(SYSTEM, system, indent) if system else b"",
            group,
            parent(USER, user, indent) if user else b"",
        )
    )


def _property(tag: str, name: str, value: str, kind: str, indent: bytes) -> bytes:
    pairs = (("Name", name), ("Value", value), ("Type", kind))
    return parent(tag, elements(pairs, indent + b"  "), indent)


# --- handles -----------------------------------------------------------------------------------
#
# Ids and receipt handles as this protocol has them.
#
# A message id is 32 hexadecimal digits in upper case: ours without its dashes. A receipt handle
# names the message as well as the lease, because nothing else in a request does:
# ``{MessageId}-{receipt}``. It is made of ``[A-Za-z0-9_-]``, as some clients put it into an
# address as it is.


_ID_CHARS: Final = 32
_HANDLE_FORM: Final = re.compile(rf"[0-9A-F]{{{_ID_CHARS}}}-[A-Za-z0-9_-]{{{RECEIPT_CHARS}}}")


def wire_id(message_id: str) -> str:
    """Return a message id in the form of this protocol."""
    return message_id.replace("-", "").upper()


def make_handle(message_id: str, receipt: str) -> str:
    """Return the handle of a lease."""
    return f"{wire_id(message_id)}-{receipt}"


def read_handle(handle: str) -> tuple[str, str]:
    """Return the message id and the receipt that a handle is made of.

    Raises:
        ReceiptMalformed: It is of another form.
    """
    if _HANDLE_FORM.fullmatch(handle) is None:
        raise ReceiptMalformed(handle)
    digits = handle[:_ID_CHARS].lower()
    message_id = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return message_id, handle[_ID_CHARS + 1 :]
