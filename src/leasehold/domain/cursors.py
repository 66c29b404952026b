"""Where a listing of messages goes on: a place that is written into the address of the next page.

Messages are listed by row key, which never changes, so that each is listed once however it moves
between states meanwhile.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from leasehold.domain.errors import InvalidMarker

_FORM = re.compile(r"([qp])([0-9a-f]{1,12})")


class Place(NamedTuple):
    """Behind this row. First comes the queue itself, then its poison queue."""

    poison: bool
    row_key: int

    def __str__(self) -> str:
        return f"{'p' if self.poison else 'q'}{self.row_key:x}"


BEGINNING = Place(poison=False, row_key=0)


def read_place(text: str) -> Place:
    """Reverse ``str``; nothing is the beginning.

    Raises:
        InvalidMarker: The text is not one that a listing gave out.
    """
    if not text:
        return BEGINNING
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidMarker
    return Place(poison=found[1] == "p", row_key=int(found[2], 16))
