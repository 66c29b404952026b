"""Texts that PostgreSQL cannot hold are kept in other words.

It takes neither the character NUL nor half of a surrogate pair in a text, and workers may send
either: in the name of a holder, in a document. Such characters are kept as U+FFFF, which stands for
no character, with four digits behind; U+FFFF itself likewise, so that every text comes back as it
was. All other texts are kept as they are.
"""

from __future__ import annotations

import re
from typing import Final

_MARK: Final = "\uffff"
_ODD: Final = re.compile("[\0\ud800-\udfff\uffff]")
_KEPT: Final = re.compile(f"{_MARK}([0-9a-f]{{4}})")


def to_kept(text: str) -> str:
    """Return a text as it is kept."""
    if ("\0" not in text) if text.isascii() else not _ODD.search(text):
        return text
    return _ODD.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def from_kept(text: str) -> str:
    """Return what was kept."""
    if text.isascii() or _MARK not in text:
        return text
    return _KEPT.sub(lambda found: chr(int(found[1], 16)), text)
