"""A cursor with the manners that the verbs expect of one.

The verbs were written for a database in the same process, where one statement for each row is
cheap. Over a connection it is not: of statements for which there is a form with columns, a run is
sent as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg

_ALL: Final = "_all"
_READ_AT_ONCE: Final = 32
"""Batches of events, of some kilobytes each."""


class Cursor:
    """Runs statements on the connection that is open now.

    Args:
        queries: All statements by name.
    """

    def __init__(self, queries: Mapping[str, str]) -> None:
        self._cursor: psycopg.Cursor[tuple[Any, ...]] | None = None
        self._plain: psycopg.Cursor[tuple[Any, ...]]
        self._guarded: Collection[str] = ()
        self._guard: Callable[[], None] = lambda: None
        self._whole = {
            queries[name.removesuffix(_ALL)]: text
            for name, text in queries.items()
            if name.endswith(_ALL)
        }

    def guard(self, statements: Collection[str], guard: Callable[[], None]) -> None:
        """Have *guard* called before any of these statements; it may refuse by raising."""
        self._guarded, self._guard = statements, guard

    def attach(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Go on with another connection."""
        self._cursor = connection.cursor(binary=True)
        self._plain = connection.cursor()

    def run_together(self, statements: str) -> list[tuple[Any, ...]]:
        """Run several statements without bounds in one round trip; return the rows of the last."""
        cursor = self._plain
        cursor.execute(statements.encode(), prepare=False)
        while cursor.nextset():
            pass
        return cursor.fetchall()

    @property
    def connection(self) -> Cursor:
        """What the verbs ask for :meth:`changes`, and for a cursor to read on."""
        return self

    def cursor(self) -> psycopg.RawServerCursor[tuple[Any, ...]]:
        """Return a cursor that reads some rows at a time, for who may not want all of them."""
        assert self._cursor is not None
        reading = psycopg.RawServerCursor(self._cursor.connection, "reading")
        reading.itersize = _READ_AT_ONCE
        return reading

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        assert self._cursor is not None
        return self._cursor.rowcount

    def execute(self, query: str, bounds: Sequence[object] = ()) -> _Rows:
        """Run a statement."""
        if query in self._guarded:
            self._guard()
        cursor = self._cursor
        assert cursor is not None
        cursor.execute(query, bounds)
        return _Rows(cursor.fetchall() if cursor.description else [])

    def executemany(self, query: str, many: Iterable[Sequence[object]]) -> _Rows:
        """Run a statement for each of many bounds; its rows are those of all."""
        rows = list(many)
        if not rows:
            return _Rows([])
        whole = self._whole.get(query)
        if whole is not None:
            return self.execute(whole, [array_of(column) for column in zip(*rows, strict=True)])
        if len(rows) == 1:
            return self.execute(query, rows[0])
        cursor = self._cursor
        assert cursor is not None
        if query in self._guarded:
            self._guard()
        returning = "RETURNING" in query
        cursor.executemany(query, rows, returning=returning)
        found: list[tuple[Any, ...]] = []
        while returning:
            found += cursor.fetchall()
            if not cursor.nextset():
                break
        return _Rows(found)


def array_of(values: Sequence[object]) -> object:
    """Return values as PostgreSQL writes an array of them.

    Of numbers and bytes as text, made here: the driver takes each value by itself, and twice as
    long for all.
    """
    first = values[0] if values else 0
    if type(first) is int and None not in values:
        return "{" + ",".join(map(str, values)) + "}"
    if type(first) is bytes:
        return "{" + ",".join([rf'"\\x{value.hex()}"' for value in values]) + "}"  # type: ignore[attr-defined]
    return list(values)


class _Rows:
    """What a statement has found, each row once."""

    __slots__ = ("_left",)

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._left = iter(rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        return list(self._left)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._left
