"""Text inside XML that is written."""

from __future__ import annotations

import re
from typing import Final

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
