"""A SQLite store as an end of a move."""

# ruff: noqa: S608 - names of tables and columns are constants of ours
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw

from leasehold.stores.migrate.ends import (
    AT_ONCE,
    Digester,
    Digests,
    HighWater,
    MoveRefused,
    Rows,
    SqlEnd,
    Table,
)
from leasehold.stores.migrate.marks import EPOCH_BITS, mark_in
from leasehold.stores.sqlite.connection import open_database
from leasehold.stores.sqlite.store import FILE_NAME, QUERIES, SqliteStore

_CACHE_MIB: Final = 64
_VIEWS: Final = {"message": "whole_message", "message_body": "whole_message_body"}
"""By table; the statements that make them have the same names."""
_CLASH: Final = "{table} already has a row with the same key"


class SqliteEnd(SqlEnd):
    """See :class:`leasehold.stores.migrate.ends.End`.

    The caller holds the lock on the folder that a server takes, so no other process uses it.

    Args:
        folder: Of the store; a store is made there if there is none.

    Raises:
        LeaseholdError: It cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.shown = str(folder.resolve())
        path = folder / FILE_NAME
        is_marked = False
        if path.exists():
            connection = open_database(path, cache_mib=_CACHE_MIB)
            rows = connection.execute("SELECT name, value FROM meta").fetchall()
            connection.close()
            is_marked = mark_in({str(name): value for name, value in rows}) is not None
        if not is_marked:
            # As a server would: it notices a database that was restored from a backup.
            SqliteStore(folder).close()
        self.connection = open_database(path, cache_mib=_CACHE_MIB)
        for view in _VIEWS.values():
            self.connection.execute(QUERIES[view])

    def shown_as(self, table: Table) -> str:
        """See :class:`SqlEnd`. No other store knows segments, so bodies leave them."""
        return _VIEWS.get(table.name, table.name)

    def execute(self, query: str, bounds: Sequence[object] = ()) -> Rows:
        """See :class:`SqlEnd`."""
        return self.connection.execute(query, bounds).fetchall()

    def add(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """See :class:`SqlEnd`."""
        self.connection.executemany(query, rows)

    def lock(self) -> None:
        """See :meth:`End.lock`."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            raise MoveRefused(f"{self.shown} is being written to by another process") from None

    def commit(self) -> None:
        """See :meth:`End.commit`."""
        self.connection.execute("COMMIT")

    def roll_back(self) -> None:
        """See :meth:`End.roll_back`."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def meta(self) -> dict[str, Any]:
        """See :meth:`End.meta`."""
        return dict(self.execute("SELECT name, value FROM meta"))

    def set_meta(self, name: str, value: int | str | bytes | None) -> None:
        """See :meth:`End.set_meta`."""
        self.execute("DELETE FROM meta WHERE name = $1", (name,))
        if value is not None:
            self.execute("INSERT INTO meta (name, value) VALUES ($1, $2)", (name, value))

    def read(self, table: Table) -> Iterator[Rows]:
        """See :meth:`End.read`."""
        cursor = self.connection.execute(
            f"SELECT {', '.join(table.columns)} FROM {self.shown_as(table)}{self.where(table)}"
            f" ORDER BY {table.key}"
        )
        while rows := list(islice(cursor, AT_ONCE)):
            yield rows

    def write(self, table: Table, slices: Iterable[Rows]) -> None:
        """See :meth:`End.write`."""
        places = ", ".join("?" * len(table.columns))
        statement = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"
        for rows in slices:
            try:
                self.connection.executemany(statement, rows)
            except apsw.ConstraintError:
                raise MoveRefused(_CLASH.format(table=table.name)) from None

    def digests(self, table: Table) -> Digests:
        """See :meth:`End.digests`."""
        digester = Digester(table)
        for rows in self.read(table):
            digester.add(rows)
        return digester.result()

    def prepare_bulk(self) -> None:
        """Do nothing: rows that come in order are quick to add."""

    def finish_bulk(self) -> None:
        """Do nothing."""

    def high_water(self) -> HighWater:
        """See :meth:`End.high_water`."""
        meta = self.meta()
        seq = self.number("SELECT coalesce(max(seq), 0) FROM event_batch")
        return HighWater(
            row_key=meta["row_keys_reserved"],
            partition=meta["last_partition"],
            token=max(meta.get("last_token", 0), (meta.get("epoch", 1) - 1) << EPOCH_BITS),
            event_seq=seq,
            stream_id=self.number("SELECT coalesce(max(stream_id), 0) FROM stream"),
        )

    def raise_to(self, high: HighWater) -> None:
        """See :meth:`End.raise_to`."""
        own = self.high_water()
        self.set_meta("row_keys_reserved", max(own.row_key, high.row_key))
        self.set_meta("last_partition", max(own.partition, high.partition))
        self.set_meta("last_token", max(own.token, high.token))
        # How many bytes of events there are is added up anew when the store is opened.
        self.set_meta("event_bytes_seq", None)

    def close(self) -> None:
        """See :meth:`End.close`."""
        self.roll_back()
        self.connection.close()
