"""Reading XML that strangers sent.

Bodies are UTF-8. A document type, which is where entities would be declared, is refused, and so
are deep and very large trees; what is left costs time in proportion to its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.parsers import expat

from leasehold.http.azure.errors import Fault

MAX_DEPTH: Final = 32
MAX_NODES: Final = 4096
NOT_WELL_FORMED: Final = "Error parsing Xml content"

_OPEN: Final = b"<QueueMessage><MessageText>"
_CLOSE: Final = b"</MessageText></QueueMessage>"
_PROLOGS: Final = frozenset(
    [b""]
    + [
        f"<?xml version={quote}1.0{quote} encoding={quote}{encoding}{quote}{rest}?>{end}".encode()
        for quote in "'\""
        for encoding in ("utf-8", "UTF-8")
        for rest in ("", f" standalone={quote}yes{quote}")
        for end in ("", "\n")
    ]
)
# What the parser would refuse, or change (a carriage return becomes a line feed).
_CONTROLS: Final = bytes(octet for octet in range(0x20) if octet not in b"\t\n")
# The ampersand comes last, so that nothing is replaced twice.
_ENTITIES: Final = (
    (b"&quot;", b'"'),
    (b"&lt;", b"<"),
    (b"&gt;", b">"),
    (b"&apos;", b"'"),
    (b"&amp;", b"&"),
)
_NONCHARACTERS: Final = ("\ufffe", "\uffff")


class Element:
    """One element: its name, what it holds in order, and where it begins (both from 1)."""

    __slots__ = ("column", "content", "line", "name")

    def __init__(self, name: str, line: int, column: int) -> None:
        self.name = name
        self.line = line
        self.column = column
        self.content: list[str | Element] = []

    def children(self) -> Iterator[Element]:
        """Yield the elements directly inside, in order."""
        return (part for part in self.content if isinstance(part, Element))

    def text(self) -> str:
        """Return all text inside, that of inner elements included."""
        return "".join(part if isinstance(part, str) else part.text() for part in self.content)

    def has_own_text(self) -> bool:
        """Tell whether there is text other than white space directly inside."""
        return any(isinstance(part, str) and part.strip(" \t\r\n") for part in self.content)


class _Tree:
    """The handlers of one parse."""

    def __init__(self, parser: expat.XMLParserType) -> None:
        self._parser = parser
        self._open: list[Element] = []
        self._nodes = 0
        self.root: Element | None = None
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._doctype

    def _start(self, name: str, _: dict[str, str]) -> None:
        self._nodes += 1
        element = Element(
            name, self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1
        )
        if self._nodes > MAX_NODES:
            raise invalid_document("The document has too many elements", at=element)
        if len(self._open) >= MAX_DEPTH:
            raise invalid_document("The document is nested too deeply", at=element)
        if self._open:
            self._open[-1].content.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, _: str) -> None:
        self._open.pop()

    def _characters(self, text: str) -> None:
        self._open[-1].content.append(text)

    def _doctype(self, *_: object) -> None:
        line, column = self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1
        raise _invalid(line, column, "A document type declaration is not allowed")


def invalid_document(reason: str, *, at: Element | None = None) -> Fault:
    """Return the fault of a body that is not the XML the operation asks for."""
    return _invalid(at.line if at else 0, at.column if at else 0, reason)


def _invalid(line: int, column: int, reason: str) -> Fault:
    return Fault(
        "InvalidXmlDocument",
        (("LineNumber", str(line)), ("LinePosition", str(column)), ("Reason", reason)),
    )


_UTF_16_MARKS: Final = (b"\xfe\xff", b"\xff\xfe")


def parse_tree(body: bytes) -> Element:
    """Parse a document and return its root.

    Raises:
        Fault: It is not well-formed UTF-8 XML, has a document type, or is too deep or too large.
    """
    # Naming the encoding here makes the parser ignore what the document says of itself, but not
    # that it begins like UTF-16.
    if b"\0" in body[:4] or body[:2] in _UTF_16_MARKS:
        raise _invalid(1, 1, NOT_WELL_FORMED)
    parser = expat.ParserCreate("utf-8")
    tree = _Tree(parser)
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise _invalid(error.lineno, error.offset + 1, NOT_WELL_FORMED) from None
    if tree.root is None:
        raise _invalid(1, 1, NOT_WELL_FORMED)
    return tree.root


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
    if not opened or prolog not in _PROLOGS or not rest.endswith(_CLOSE):
        return None
    text = rest[: -len(_CLOSE)]
    if b"<" in text or (b">" in text and b"]]>" in text):
        return None
    if len(text.translate(None, _CONTROLS)) != len(text):
        return None
    if not text.isascii():
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if any(character in decoded for character in _NONCHARACTERS):
            return None
    return text if b"&" not in text else _without_entities(text)


def _without_entities(text: bytes) -> bytes | None:
    """Replace the entities every document knows; None if there are any others."""
    known = 0
    plain = text
    for entity, character in _ENTITIES:
        found = text.count(entity)
        if found:
            known += found
            plain = plain.replace(entity, character)
    return plain if known == text.count(b"&") else None


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
