"""A cursor with the manners that the verbs expect of one.

The verbs were written for a database in the same process, where one statement for each row is
cheap. Over a connection it is not: of statements for which there is a form with columns, a run is
sent as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg

from leasehold.domain.types import Phase
from leasehold.stores.postgres.direct import Direct

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
        self._direct: Direct
        self._changes = 0
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

    def attach(self, direct: Direct) -> None:
        """Go on with another connection."""
        self._cursor = direct.connection.cursor(binary=True)
        self._direct = direct

    def read_numbers(self, statements: str) -> list[int]:
        """Run several statements in one round trip; return the one row that the last one finds."""
        found = self._direct.run(statements.encode())
        return [int(found.get_value(0, column) or 0) for column in range(found.nfields)]

    @property
    def connection(self) -> Cursor:
        """What the verbs ask for :meth:`changes`, and for a cursor to read on."""
        return self

    def cursor(self) -> psycopg.RawServerCursor[tuple[Any, ...]]:
        """Return a cursor that reads some rows at a time, for who may not want all of them."""
        assert self._cursor is not None
        self._direct.take_time()
        reading = psycopg.RawServerCursor(self._cursor.connection, "reading")
        reading.itersize = _READ_AT_ONCE
        return reading

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        return self._changes

    def execute(self, query: str, bounds: Sequence[object] = ()) -> _Rows:
        """Run a statement."""
        if query in self._guarded:
            self._guard()
        direct = self._direct
        if direct.takes(bounds):
            rows = direct.execute(query, bounds)
            self._changes = direct.changes
            return _Rows(rows)
        cursor = self._cursor
        assert cursor is not None
        direct.take_time()
        cursor.execute(query, bounds)
        self._changes = cursor.rowcount
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
        self._direct.take_time()
        returning = "RETURNING" in query
        cursor.executemany(query, rows, returning=returning)
        self._changes = cursor.rowcount
        found: list[tuple[Any, ...]] = []
        while returning:
            found += cursor.fetchall()
            if not cursor.nextset():
                break
        return _Rows(found)


def array_of(values: Sequence[object]) -> object:
    """Return values as PostgreSQL writes an array of them.

    Numbers, bytes and texts become one text here: the driver takes each value by itself, and twice
    as long for all.

    Source: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-INPUT.
    """
    kinds = set(map(type, values))
    has_none = type(None) in kinds
    if not kinds <= _WRITERS.keys():
        return list(values)
    writers = {_WRITERS[kind] for kind in kinds}
    writers.discard(_write_none)
    if len(writers) > 1:
        return list(values)
    write = writers.pop() if writers else _write_none
    if has_none:
        return "{" + ",".join(["NULL" if v is None else write(v) for v in values]) + "}"
    return "{" + ",".join(map(write, values)) + "}"


def _write_bytes(value: Any) -> str:
    return rf'"\\x{value.hex()}"'


def _write_text(value: Any) -> str:
    # What PostgreSQL cannot hold is put in other words when the whole is sent.
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_none(value: Any) -> str:
    del value
    return "NULL"


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    int: int.__repr__,
    Phase: int.__repr__,
    bytes: _write_bytes,
    str: _write_text,
    type(None): _write_none,
}


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
