"""What both kinds of stores do alike as an end of a move."""

# ruff: noqa: S608 - names of tables and columns are constants of ours
from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from leasehold.stores.moving.ends import AT_ONCE, HighWater, Row, Rows
from leasehold.stores.moving.tables import Table
from leasehold.stores.sql.catalog import lanes_of

_WHO: Final = (
    "CREATE TEMP TABLE IF NOT EXISTS moving_account (name text)",
    "CREATE TEMP TABLE IF NOT EXISTS moving_number (kind text, number bigint)",
    "CREATE TEMP TABLE IF NOT EXISTS moving_session (session_id text)",
)
_NAMES: Final = ("moving_account", "moving_number", "moving_session")
_NUMBERS: Final = """
    SELECT partition FROM queue UNION SELECT scope FROM queue UNION SELECT partition FROM claim
    UNION SELECT partition FROM staged_slot UNION SELECT scope FROM dedup_key
    UNION SELECT partition & 1099511627775 FROM dropped_partition
"""
_DROPS: Final = (
    (
        "DELETE FROM claim_exemption WHERE partition IN"
        " (SELECT number FROM moving_number WHERE kind = 'partition')"
    ),
    (
        "DELETE FROM claim WHERE partition IN"
        " (SELECT number FROM moving_number WHERE kind = 'partition')"
    ),
    "DELETE FROM dedup_key WHERE scope IN (SELECT number FROM moving_number WHERE kind = 'scope')",
    "DELETE FROM session WHERE session_id IN (SELECT session_id FROM moving_session)",
    *(
        f"DELETE FROM {name} WHERE account IN (SELECT name FROM moving_account)"
        for name in (
            *("queue", "account_document", "stream", "staged_slot", "staged_transaction"),
            *("staged_part", "staged_binding", "job"),
        )
    ),
    (
        "INSERT INTO dropped_partition (partition)"
        " SELECT number FROM moving_number WHERE kind = 'lane' ON CONFLICT DO NOTHING"
    ),
)


class SqlEnd:
    """Statements that both databases know; bounds are ``$1`` and so on, in order."""

    shown: str
    _account: str | None = None

    def execute(self, query: str, bounds: Sequence[object] = ()) -> Rows:
        """Run a statement and return its rows."""
        raise NotImplementedError

    def add(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement for each of some rows."""
        for row in rows:
            self.execute(query, row)

    def number(self, query: str) -> int:
        """Return the one number that a query finds."""
        return int(self.execute(query)[0][0])

    def where(self, table: Table) -> str:
        """Return the condition on the rows that are concerned."""
        return "" if self._account is None else f" WHERE {table.of_account}"

    def select(self, account: str | None) -> None:
        """See :meth:`End.select`."""
        self._account = account
        for statement in _WHO:
            self.execute(statement)
        for name in _NAMES:
            self.execute(f"DELETE FROM {name}")
        if account is None:
            return
        self.execute("INSERT INTO moving_account (name) VALUES ($1)", (account,))
        streams = {row[0] for row in self._of(account, "stream_id", "stream")}
        parts: list[tuple[int, int]] = self._of(account, "partition, lanes", "queue")
        parts += self._of(account, "partition, lanes", "staged_slot")
        for partition, stream_id, lanes, content in self.execute(
            "SELECT partition, stream_id, lanes, content FROM claim"
        ):
            # Of a claim that is being given back the stream may be gone.
            if stream_id in streams or json.loads(content)["claim"]["account"] == account:
                parts.append((partition, lanes))
        numbers = [("partition", partition) for partition, _ in parts]
        for partition, lanes in parts:
            # Messages of a claim that lapsed keep the priority that they had in their queue.
            numbers += [("lane", lane) for lane in lanes_of(partition, lanes | 1 << 8)]
        numbers += [("scope", row[0]) for row in self._of(account, "scope", "queue")]
        self.add("INSERT INTO moving_number (kind, number) VALUES ($1, $2)", numbers)
        sessions = [
            (session_id,)
            for session_id, content in self.execute("SELECT session_id, content FROM session")
            if json.loads(content)["account"] == account
        ]
        self.add("INSERT INTO moving_session (session_id) VALUES ($1)", sessions)

    def _of(self, account: str, columns: str, table: str) -> list[Any]:
        return self.execute(f"SELECT {columns} FROM {table} WHERE account = $1", (account,))

    def count(self, table: Table) -> int:
        """See :meth:`End.count`."""
        return self.number(f"SELECT count(*) FROM {table.name}{self.where(table)}")

    def partitions(self) -> set[int]:
        """See :meth:`End.partitions`."""
        return {row[0] for row in self.execute(_NUMBERS)}

    def selected_partitions(self) -> set[int]:
        """See :meth:`End.selected_partitions`."""
        query = "SELECT number FROM moving_number WHERE kind IN ('partition', 'scope')"
        return {row[0] for row in self.execute(query)}

    def drop_selected(self) -> None:
        """See :meth:`End.drop_selected`."""
        for statement in _DROPS:
            self.execute(statement)

    def large_body_keys(self) -> list[str]:
        """See :meth:`End.large_body_keys`."""
        of_account = (
            ""
            if self._account is None
            else " AND partition IN (SELECT number FROM moving_number WHERE kind = 'lane')"
        )
        rows = self.execute(f"SELECT body FROM message WHERE place = 2{of_account}")
        return [bytes(body).decode() for (body,) in rows]


def slices(rows: Iterable[Row]) -> Iterable[Rows]:
    """Return rows by slices."""
    part: Rows = []
    for row in rows:
        part.append(row)
        if len(part) == AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def highest(first: HighWater, second: HighWater) -> HighWater:
    """Return what either has used."""
    return HighWater(
        row_key=max(first.row_key, second.row_key),
        partition=max(first.partition, second.partition),
        token=max(first.token, second.token),
        event_seq=max(first.event_seq, second.event_seq),
        stream_id=max(first.stream_id, second.stream_id),
    )
