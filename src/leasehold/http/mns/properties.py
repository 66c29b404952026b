"""What is sent along with a body: user properties, system properties, the group of a message.

Elsewhere in the server a message has properties that are texts, and a trace context. A user
property becomes one of these; its type, if it is another than STRING, is kept beside it. The trace
context is the system property ``traceparent``. Other system properties, and the group, become
properties of the same name, of which it is kept that they are no user's.

Source: MNS, "SendMessage"; names and types are those of the Python and the Java SDK.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Final

from leasehold.domain.types import NO_DETAIL, Detail, Message
from leasehold.http.mns.errors import invalid_argument
from leasehold.http.mns.xml_in import children_named, fields_of, raw_text, text_of
from leasehold.http.mns.xml_out import element, elements, parent
from leasehold.http.xml_tree import Element

USER: Final = "UserProperties"
SYSTEM: Final = "SystemProperties"
GROUP: Final = "MessageGroupId"
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
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST_TRACEPARENT: Final = 1_024


def read_detail(fields: Mapping[str, Element]) -> Detail:
    """Return what a message brings besides its body.

    Raises:
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
            raise invalid_argument(f"The system property {name} of type {kind} is not known.")
        if name == _TRACEPARENT:
            traceparent = value
        else:
            _keep(properties, name, value)
            types[name] = _IS_SYSTEM
    group = text_of(fields[GROUP]) if GROUP in fields else ""
    if group:
        _keep(properties, GROUP, group)
        types[GROUP] = _IS_GROUP
    size = sum(len(each.encode()) for pair in properties.items() for each in pair)
    if size > MAX_BYTES or len(traceparent or "") > _LONGEST_TRACEPARENT:
        raise invalid_argument(f"The properties are larger than {MAX_BYTES} bytes.")
    if not properties and traceparent is None:
        return NO_DETAIL
    return Detail(properties=properties, property_types=types, traceparent=traceparent)


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
        raise invalid_argument(f"The property {name} has a type that is not known.")
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
    if detail is NO_DETAIL or not (detail.properties or detail.traceparent):
        return b""
    types = detail.property_types
    user, system, group = b"", b"", b""
    inner = indent + b"  "
    if detail.traceparent:
        system += _entry("SystemPropertyValue", _TRACEPARENT, detail.traceparent, _TEXT, inner)
    for name, value in detail.properties.items():
        kind = types.get(name, _TEXT)
        if kind == _IS_SYSTEM:
            system += _entry("SystemPropertyValue", name, value, _TEXT, inner)
        elif kind == _IS_GROUP:
            group = element(name, value, indent)
        else:
            user += _entry("PropertyValue", name, value, kind, inner)
    return b"".join(
        (
            parent(SYSTEM, system, indent) if system else b"",
            group,
            parent(USER, user, indent) if user else b"",
        )
    )


def _entry(tag: str, name: str, value: str, kind: str, indent: bytes) -> bytes:
    pairs = (("Name", name), ("Value", value), ("Type", kind))
    return parent(tag, elements(pairs, indent + b"  "), indent)
