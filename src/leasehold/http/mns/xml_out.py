"""Writing documents, in the form that the service is known to send: indented by two spaces.

The namespace has no slash at its end. Java's SDK knows an error by that, though the service's own
pages print one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasehold.http.xml_text import escape

_PROLOG: Final = b'<?xml version="1.0" ?>\n'
_SPACE: Final = b' xmlns="http://mns.aliyuncs.com/doc/v1"'


def document(name: bytes, *parts: bytes) -> bytes:
    """Write a document; *parts* are elements already, indented by two spaces, with line ends."""
    return b"%b<%b%b>\n%b</%b>\n" % (_PROLOG, name, _SPACE, b"".join(parts), name)


def element(name: str, text: str, indent: bytes = b"  ") -> bytes:
    """Write an element that holds text only."""
    return b"%b<%b>%b</%b>\n" % (indent, name.encode(), escape(text), name.encode())


def elements(pairs: Iterable[tuple[str, str]], indent: bytes = b"  ") -> bytes:
    """Write several of them."""
    return b"".join([element(name, text, indent) for name, text in pairs])


def parent(name: str, inner: bytes, indent: bytes = b"  ") -> bytes:
    """Write an element around others, which are indented by two spaces more."""
    tag = name.encode()
    return b"%b<%b>\n%b%b</%b>\n" % (indent, tag, inner, indent, tag)
