"""Reading XML that strangers sent; see :mod:`leasehold.http.xml_tree` for what is refused."""

from __future__ import annotations

from typing import Final

from leasehold.http import xml_tree
from leasehold.http.azure.errors import Fault
from leasehold.http.xml_plain import PROLOGS, has_plain_characters, plain_text
from leasehold.http.xml_tree import MAX_DEPTH, MAX_NODES, NOT_WELL_FORMED, Element, XmlError

__all__ = [
    "MAX_DEPTH",
    "MAX_NODES",
    "NOT_WELL_FORMED",
    "Element",
    "invalid_document",
    "message_text",
    "parse_tree",
    "parsed_message_text",
    "plain_message_text",
]

_OPEN: Final = b"<QueueMessage><MessageText>"
_CLOSE: Final = b"</MessageText></QueueMessage>"


def invalid_document(reason: str, *, at: Element | None = None) -> Fault:
    """Return the fault of a body that is not the XML the operation asks for."""
    return _invalid(at.line if at else 0, at.column if at else 0, reason)


def _invalid(line: int, column: int, reason: str) -> Fault:
    return Fault(
        "InvalidXmlDocument",
        (("LineNumber", str(line)), ("LinePosition", str(column)), ("Reason", reason)),
    )


def parse_tree(body: bytes) -> Element:
    """Parse a document and return its root.

    Raises:
        Fault: It is not well-formed UTF-8 XML, has a document type, or is too deep or too large.
    """
    try:
        return xml_tree.parse_tree(body)
    except XmlError as error:
        raise _invalid(error.line, error.column, error.reason) from None


def message_text(body: bytes) -> bytes:
    """Return the text of a ``QueueMessage`` document as UTF-8.

    Raises:
        Fault: The document is not well-formed, or not of this structure.
    """
    text = plain_message_text(body)
    return parsed_message_text(body) if text is None else text


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


def parsed_message_text(body: bytes) -> bytes:
    """Do what :func:`message_text` does, always with the parser."""
    root = parse_tree(body)
    if root.name != "QueueMessage":
        raise invalid_document("The root element must be QueueMessage", at=root)
    children = list(root.children())
    if root.has_own_text() or [child.name for child in children] != ["MessageText"]:
        raise invalid_document("QueueMessage must hold one MessageText", at=root)
    # Elements inside the text are dropped, and what they hold is kept.
    return children[0].text().encode("utf-8")
