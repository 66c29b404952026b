"""Statements for many messages at once."""

from __future__ import annotations

from typing import Final

SET_WISE: Final = 8
"""From so many messages on, one statement for all costs less than one each."""
ROWS_AT_ONCE: Final = 50
"""Rows that one statement inserts."""
