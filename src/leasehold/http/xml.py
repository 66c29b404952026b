"""Trees of XML that strangers sent.

Bodies are UTF-8. A document type, which is where entities would be declared, is refused, and so are
deep and very large trees, and long tags, on which the parser spends more than in proportion. What
is left costs time in proportion to its length. It is parsed in portions, and between those of a
long document others have their turn.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar
from xml.parsers import expat

_T = TypeVar("_T")

MAX_DEPTH: Final = 32
MAX_NODES: Final = 4096
MAX_TAG_BYTES: Final = 16_384
"""Longest tag or comment; one of 64 KiB can take the parser a tenth of a second."""
PORTION_BYTES: Final = 32_768
"""What is parsed at a time: 3 ms at the most."""
PLAIN_BYTES: Final = 1024 * 1024
"""Above this even the shortcuts past the parser take milliseconds."""
NOT_WELL_FORMED: Final = "Error parsing Xml content"

_UTF_16_MARKS: Final = (b"\xfe\xff", b"\xff\xfe")


class XmlError(Exception):
    """The document is not taken; where that shows (both from 1), and why."""

    def __init__(self, line: int, column: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.column = column
        self.reason = reason


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
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """Yield the same in the pieces in which it was found."""
        for part in self.content:
            if isinstance(part, str):
                yield part
            else:
                yield from part.pieces()

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
            raise XmlError(element.line, element.column, "The document has too many elements")
        if len(self._open) >= MAX_DEPTH:
            raise XmlError(element.line, element.column, "The document is nested too deeply")
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
        raise XmlError(line, column, "A document type declaration is not allowed")


class _Reader:
    """Parses one document, portion by portion."""

    def __init__(self, body: bytes) -> None:
        # Naming the encoding here makes the parser ignore what the document says of itself, but not
        # that it begins like UTF-16.
        if b"\0" in body[:4] or body[:2] in _UTF_16_MARKS:
            raise XmlError(1, 1, NOT_WELL_FORMED)
        self._body = body
        self._parser = expat.ParserCreate("utf-8")
        self._tree = _Tree(self._parser)

    def portions(self) -> Iterator[None]:
        """Parse a portion at each step.

        Raises:
            XmlError: As for :func:`parse_tree`.
        """
        parser, body, size = self._parser, memoryview(self._body), len(self._body)
        try:
            for end in range(PORTION_BYTES, size + PORTION_BYTES, PORTION_BYTES):
                parser.Parse(body[end - PORTION_BYTES : end], end >= size)
                # What is left over is the beginning of a tag; text is never kept back.
                if end < size and end - parser.CurrentByteIndex > MAX_TAG_BYTES:
                    line, column = parser.CurrentLineNumber, parser.CurrentColumnNumber + 1
                    raise XmlError(line, column, "A tag of the document is too long")
                yield
        except expat.ExpatError as error:
            raise XmlError(error.lineno, error.offset + 1, NOT_WELL_FORMED) from None

    def root(self) -> Element:
        """Return the root, once all portions are parsed."""
        root = self._tree.root
        if root is None:
            raise XmlError(1, 1, NOT_WELL_FORMED)
        return root


def parse_tree(body: bytes) -> Element:
    """Parse a document and return its root.

    Raises:
        XmlError: It is not well-formed UTF-8 XML, has a document type, is too deep or too large, or
            is longer than PORTION_BYTES and has a tag longer than MAX_TAG_BYTES.
    """
    reader = _Reader(body)
    for _ in reader.portions():
        pass
    return reader.root()


async def parse_long_tree(body: bytes) -> Element:
    """Do what :func:`parse_tree` does, and let others have their turn after each portion."""
    reader = _Reader(body)
    for _ in reader.portions():
        await asyncio.sleep(0)
    return reader.root()


def read(
    body: bytes,
    shortcut: Callable[[bytes], _T | None],
    refusal: Callable[[XmlError], Exception],
) -> _T | Element:
    """Read a document by a dialect's shortcut, or parse it.

    Args:
        body: The document.
        shortcut: Reads documents of a common form, None for others.
        refusal: Returns what to raise for a document that is not taken.

    Raises:
        Exception: That one.
    """
    found = shortcut(body)
    if found is not None:
        return found
    try:
        return parse_tree(body)
    except XmlError as error:
        raise refusal(error) from None


async def read_long(
    body: bytes,
    shortcut: Callable[[bytes], _T | None],
    refusal: Callable[[XmlError], Exception],
) -> _T | Element:
    """Do what :func:`read` does with a long document, and let others have their turn.

    The shortcut is not asked where even it would take long.
    """
    found = shortcut(body) if len(body) <= PLAIN_BYTES else None
    if found is not None:
        return found
    try:
        return await parse_long_tree(body)
    except XmlError as error:
        raise refusal(error) from None


# --- xml plain ---------------------------------------------------------------------------------
#
# Shortcuts past the XML parser, for documents in the forms that client libraries send.
#
# None of them decides anything: where a document is in any way unusual they say so, and the parser
# has to look at it. An answer is the parser's answer.


PROLOGS: Final = frozenset(
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
# The ampersand comes last, so that nothing is replaced twice. The numbers are what Go writes.
_ENTITIES: Final = (
    (b"&quot;", b'"'),
    (b"&#34;", b'"'),
    (b"&lt;", b"<"),
    (b"&gt;", b">"),
    (b"&apos;", b"'"),
    (b"&#39;", b"'"),
    (b"&amp;", b"&"),
)
_NONCHARACTERS: Final = ("\ufffe", "\uffff")


def has_plain_characters(document: bytes) -> bool:
    """Tell whether each character of a document is one that the parser takes as it is."""
    if len(document.translate(None, _CONTROLS)) != len(document):
        return False
    if document.isascii():
        return True
    try:
        decoded = document.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not any(character in decoded for character in _NONCHARACTERS)


def plain_text(text: bytes) -> bytes | None:
    """Return what is meant by text between two tags; None if there is anything unusual in it.

    Args:
        text: Without an opening angle bracket, in a document that has plain characters.
    """
    if b">" in text and b"]]>" in text:
        return None
    if b"&" not in text:
        return text
    known = 0
    plain = text
    for entity, character in _ENTITIES:
        found = text.count(entity)
        if found:
            known += found
            plain = plain.replace(entity, character)
    return plain if known == text.count(b"&") else None


# --- xml text ----------------------------------------------------------------------------------
#
# Text inside XML that is written.


# What XML 1.0 cannot hold in any form, not even as a reference.
_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN: Final = b"\t\n\r" + bytes(range(0x20, 0x7F))
_BARE: Final = _PLAIN.translate(None, b"&<>\r")


def escape_bytes(text: bytes) -> bytes:
    """Escape UTF-8 text that came out of XML; a carriage return would not survive as itself."""
    return (
        text.replace(b"&", b"&amp;")
        .replace(b"<", b"&lt;")
        .replace(b">", b"&gt;")
        .replace(b"\r", b"&#xD;")
    )


def is_bare(text: bytes) -> bool:
    """Tell whether text can stand in XML as it is; False says that it has to be looked at."""
    return not text.translate(None, _BARE)


def is_legal(text: bytes) -> bool:
    """Tell whether XML can hold these bytes as UTF-8 text. Other dialects take any bytes."""
    if not text.translate(None, _PLAIN):
        return True
    try:
        return _ILLEGAL.search(text.decode("utf-8")) is None
    except UnicodeDecodeError:
        return False


def escape(text: str) -> bytes:
    """Escape any text for an element or an attribute; illegal characters become U+FFFD."""
    legal = _ILLEGAL.sub("\ufffd", text).encode("utf-8")
    return escape_bytes(legal).replace(b'"', b"&quot;")
