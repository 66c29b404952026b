"""Shortcuts past the XML parser, for documents in the forms that client libraries send.

None of them decides anything: where a document is in any way unusual they say so, and the parser
has to look at it. An answer is the parser's answer.
"""

from __future__ import annotations

from typing import Final

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
