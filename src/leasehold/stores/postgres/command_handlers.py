"""Messages in PostgreSQL: runs of them with one statement, and looking apart from taking."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.model import Message, id_to_blob
from leasehold.stores.postgres.cursor import array_of
from leasehold.stores.postgres.state import SharedState
from leasehold.stores.sql.messages import (
    CompleteVerb,
    Completion,
    MessageHandlers,
    Removed,
    removed_in,
)
from leasehold.stores.sql.rows import HERE, Cell
from leasehold.stores.sql.sessions import Known, SessionHandlers

_BODY_AT: Final = 6
_PLACE_AT: Final = 10
_GROUP_AT: Final = 11
"""Where a row to insert has its body, where that is, and the group."""


class SharedMessageHandlers(MessageHandlers):
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
                if (body := apart.get(Cell.row_key(row))) is None
                else (
                    *row[:_BODY_AT],
                    body,
                    *row[_BODY_AT + 1 : _PLACE_AT],
                    HERE,
                    *row[_PLACE_AT + 1 :],
                )
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


# --- completing --------------------------------------------------------------------------------
#
# Completing messages in PostgreSQL: a run with one statement.


_PACK: Final = Struct(">qq").pack


class SharedCompleteVerb(CompleteVerb):
    """Removes messages whose work is done."""

    def _remove_each(self, plans: Sequence[Completion], now_ms: int) -> dict[int, Removed]:
        """Remove messages; the statement that deletes also checks the receipts."""
        keys: list[int] = []
        wanted: list[bytes] = []
        strict: list[int] = []
        fences: dict[int, int] = {}
        for row_key, partition, fence, message_id, is_strict in plans:
            try:
                blob = id_to_blob(message_id)
            except ValueError:
                continue
            fences[row_key] = fence
            keys.append(row_key)
            wanted.append(blob + _PACK(fence, partition))
            if is_strict:
                strict.append(row_key)
        if not keys:
            return {}
        bounds = array_of(keys), array_of(wanted), now_ms, array_of(strict)
        return removed_in(self._state.fetch("complete_run", bounds), fences)


# --- sessions ----------------------------------------------------------------------------------
#
# Sessions in PostgreSQL: a worker may send its heartbeats to any server.


class SharedSessionHandlers(SessionHandlers):
    """Each method carries out one command; refusals are raised.

    What the SQLite store keeps in memory alone is written down here with each batch: heartbeats,
    and for sessions with a watchdog when a worker last spoke of a message.
    """

    _state: SharedState

    def load(self) -> None:
        """Read the rows."""
        self._beats: dict[str, int] = {}
        self._told: dict[tuple[str, str], int] = {}
        super().load()
        self._refresh()

    def _refresh(self) -> None:
        """Take what other servers have heard."""
        for session_id, heard_ms in self._state.fetch("load_heard"):
            known = self._known.get(session_id)
            if known is not None and (known.heard_ms is None or known.heard_ms < heard_ms):
                known.hear(heard_ms)

    def write(self) -> None:
        """Write down what the batch has heard."""
        state = self._state
        if self._beats:
            bounds = list(self._beats), list(self._beats.values())
            state.cursor.execute(state.sql["keep_heard"], bounds)
            self._beats = {}
        if self._told:
            sessions, messages = zip(*self._told, strict=True)
            told = list(sessions), list(messages), list(self._told.values())
            state.cursor.execute(state.sql["keep_signs"], told)
            self._told = {}

    def get(self, command: s.GetSession, now_ms: int) -> c.Result:
        """Look at a session."""
        self._refresh()
        return super().get(command, now_ms)

    def list(self, command: s.ListSessions, now_ms: int) -> c.Result:
        """List sessions, the newest first."""
        self._refresh()
        return super().list(command, now_ms)

    def end(self, command: s.EndSession, now_ms: int) -> c.Result:
        """End a session."""
        self._refresh()  # when it was last heard of is written down for good
        return super().end(command, now_ms)

    def _hear(self, known: Known, now_ms: int) -> None:
        super()._hear(known, now_ms)
        self._beats[known.session.session_id] = now_ms

    def renewed(self, message: Message, now_ms: int) -> None:
        """Note that a lease of a session was renewed."""
        super().renewed(message, now_ms)
        known = self._known.get(message.session or "")
        if known is not None and known.session.progress_timeout_s is not None:
            self._told[known.session.session_id, message.message_id] = now_ms

    def _cancels(self, known: Known, now_ms: int) -> tuple[s.CancelNotice, ...]:
        known.cancels = None  # a client may have asked another server
        return super()._cancels(known, now_ms)

    def lose(self, command: s.LoseSessions, now_ms: int) -> c.Result:
        """End what has gone silent or stuck."""
        self.write()
        self._refresh()
        for known in self._known.values():
            if known.session.progress_timeout_s is not None or not known.is_live:
                known.look_again()
        return super().lose(command, now_ms)

    def _end_leases(self, known: Known, limit: int, now_ms: int) -> int:
        if known.is_live:
            known.signs = dict(self._state.fetch("load_signs", (known.session.session_id,)))
        return super()._end_leases(known, limit, now_ms)

    def _forget(self, known: Known, now_ms: int) -> None:
        super()._forget(known, now_ms)
        session_id = known.session.session_id
        if session_id not in self._known:
            state = self._state
            state.cursor.execute(state.sql["forget_heard"], (session_id,))
            state.cursor.execute(state.sql["forget_signs"], (session_id,))
