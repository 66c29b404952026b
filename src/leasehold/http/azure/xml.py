"""Reading XML that strangers sent; see :mod:`leasehold.http.xml` for what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from leasehold.http import xml
from leasehold.http.azure.errors import Fault
from leasehold.http.xml import Element, XmlError, escape


def invalid_document(reason: str, *, at: Element | None = None) -> Fault:
    """Return the fault of a body that is not the XML the operation asks for."""
    return _invalid(at.line if at else 0, at.column if at else 0, reason)


def _invalid(line: int, column: int, reason: str) -> Fault:
    return Fault(
        "InvalidXmlDocument",
        (("LineNumber", str(line)), ("LinePosition", str(column)), ("Reason", reason)),
    )


def refusal_of(error: XmlError) -> Fault:
    """Return the fault of a body that is not taken."""
    return _invalid(error.line, error.column, error.reason)


def parse_tree(body: bytes) -> Element:
    """Parse a document and return its root.

    Raises:
        Fault: It is not well-formed UTF-8 XML, has a document type, or is too deep or too large.
    """
    try:
        return xml.parse_tree(body)
    except XmlError as error:
        raise refusal_of(error) from None


# --- xml nodes ---------------------------------------------------------------------------------
#
# Reading structured bodies: properties, access policies, key requests.


def children_by_name(node: Element, known: Sequence[str]) -> dict[str, Element]:
    """Return the children of *node* by name, each of them in *known* and there once.

    Raises:
        Fault: A child is unknown or repeated, or there is text between the children.
    """
    found: dict[str, Element] = {}
    for child in node.children():
        if child.name not in known:
            raise Fault("UnsupportedXmlNode", (("XmlNodeName", child.name),))
        if child.name in found:
            raise invalid_document(f"The element {child.name} is repeated", at=child)
        found[child.name] = child
    if node.has_own_text():
        raise invalid_document(f"The element {node.name} must not hold text", at=node)
    return found


def child_texts(node: Element, known: Sequence[str]) -> dict[str, str]:
    """Return the text of each child of *node* by name, without the white space around it.

    Raises:
        Fault: As for :func:`children_by_name`, or a child holds elements itself.
    """
    texts = {}
    for name, child in children_by_name(node, known).items():
        for inner in child.children():
            raise Fault("UnsupportedXmlNode", (("XmlNodeName", inner.name),))
        texts[name] = child.text().strip(" \t\r\n")
    return texts


def missing_node(name: str) -> Fault:
    """Return the fault of a body that lacks an element."""
    return Fault("MissingRequiredXmlNode", (("XmlNodeName", name),))


def invalid_value(node: Element, reason: str, *, value: str | None = None) -> Fault:
    """Return the fault of an element whose value makes no sense."""
    text = node.text() if value is None else value
    return Fault(
        "InvalidXmlNodeValue",
        (("XmlNodeName", node.name), ("XmlNodeValue", text), ("Reason", reason)),
    )


# --- xml out -----------------------------------------------------------------------------------
#
# Writing XML: a byte order mark, a prolog, then everything on one line, as the service does.


PROLOG: Final = b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?>'

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def element(name: str, text: str) -> bytes:
    """Write an element that holds text only. *name* must be an XML name."""
    if not text:
        return f"<{name} />".encode()
    return b"<%b>%b</%b>" % (name.encode(), escape(text), name.encode())


def parent(name: str, *children: bytes) -> bytes:
    """Write an element around *children*, which are XML already."""
    inner = b"".join(children)
    if not inner:
        return f"<{name} />".encode()
    return b"<%b>%b</%b>" % (name.encode(), inner, name.encode())


def is_xml_name(text: str) -> bool:
    """Tell whether *text* may name an element (ASCII names only)."""
    return _NAME.fullmatch(text) is not None
