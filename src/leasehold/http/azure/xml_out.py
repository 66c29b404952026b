"""Writing XML: a byte order mark, a prolog, then everything on one line, as the service does."""

from __future__ import annotations

import re
from typing import Final

from leasehold.http.xml_text import escape, escape_bytes, is_legal

__all__ = ["PROLOG", "element", "escape", "escape_bytes", "is_legal", "is_xml_name", "parent"]

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
