"""Messages in PostgreSQL: runs of them with one statement, and looking apart from taking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasehold.domain import commands as c
from leasehold.stores.postgres.state import SharedState
from leasehold.stores.sql.messages import MessageVerbs
from leasehold.stores.sql.rows import HERE

_BODY: Final = 6
_PLACE: Final = 10
"""Places of these in a row to insert."""


class SharedMessageVerbs(MessageVerbs):
    """The verbs on messages."""

    _state: SharedState

    def insert(self, rows: list[tuple[object, ...]], bodies: list[tuple[int, bytes]]) -> None:
        """Insert new messages, their bodies in the row.

        PostgreSQL itself moves what is long out of the row, and a lease does not write it again.
        """
        state = self._state
        if bodies:
            apart = dict(bodies)
            rows = [
                row
                if (body := apart.get(row[0])) is None  # type: ignore[call-overload]
                else (*row[:_BODY], body, *row[_BODY + 1 : _PLACE], HERE)
                for row in rows
            ]
        state.cursor.executemany(state.sql["put"], rows)

    def receive(self, run: Sequence[c.Receive], now_ms: int) -> Sequence[c.Result]:
        """Serve a run of receives; what another server takes at this moment is passed over."""
        self._state.taking = True
        try:
            return super().receive(run, now_ms)
        finally:
            self._state.taking = False
