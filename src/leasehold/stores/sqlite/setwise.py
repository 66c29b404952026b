"""Statements for many messages at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

import apsw

SET_WISE: Final = 8
"""From so many messages on, one statement for all costs less than one each."""
ROWS_AT_ONCE: Final = 50
"""Rows that one statement inserts."""


def keys_of(row_keys: Iterable[int]) -> apsw.CArrayBinding:
    """Return row keys as one value that statements can look them up in."""
    return apsw.carray(array("q", row_keys))
