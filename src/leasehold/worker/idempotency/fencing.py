"""Fenced writes: a worker whose lease has ended cannot undo what the next one wrote.

The fence of a message rises with each delivery. A row keeps the fence of its last writer, and a
write is done only if its own is not older:

=============================  ============================  =====================
the fence of the row           a write                       with once_per_lease
=============================  ============================  =====================
is older or NULL               is done                       is done
is the same                    is done                       ``REPEATED``
is newer                       raises Fenced                 raises Fenced
there is no row                upsert: is done               upsert: is done
there is no row                update: ``NO_ROW``            update: ``NO_ROW``
=============================  ============================  =====================

The same fence means the same lease. By default it may write again: to repeat a write whose answer
was lost, or to write further. That does no harm, because values are set and never added to. With
``once_per_lease`` the first write of a lease is the only one, for rows with triggers or counters
behind them.

Fences of two messages cannot be compared. For rows that several messages write to there is
:class:`FenceLedger`, whose own rows belong to one message each.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from leasehold.clock import Clock, SystemClock
from leasehold.worker.idempotency.errors import Fenced
from leasehold.worker.idempotency.history import (
    DEFAULT_WINDOW_S,
    SWEEP_STEP,
    Delivered,
    check_fence_number,
    check_window,
    join_key,
    milliseconds,
)
from leasehold.worker.idempotency.sql import (
    Dialect,
    Statement,
    Steps,
    adrive,
    check_transaction,
    dialect_of,
    drive,
    for_psycopg,
    load_statements,
    quote_identifier,
    quote_table,
    read_statements,
)
from leasehold.worker.idempotency.sqlite import DEFAULT_PATIENCE_S, SqliteFile

_TRIES: Final = 8
"""Attempts at a row that others insert and remove at the same time."""


class Written(Enum):
    """What became of a write that was not too old. True if it was applied."""

    APPLIED = "applied"
    REPEATED = "repeated"
    """Nothing was done: this lease has written before, and may do so once."""
    NO_ROW = "no row"
    """Nothing was done: there is no row to update."""

    def __bool__(self) -> bool:
        return self is Written.APPLIED


class FencedTable:
    """A table of the user with a column for the fence.

    Connections are those of ``sqlite3`` and psycopg 3; the transaction is the caller's business.
    Names are quoted and may have any characters; values are bound.

    Args:
        table: ``name``, ``schema.name``, or its parts.
        key: The column or columns that name a row; unique together where ``upsert`` is used.
        fence: The column of the fence: an integer of 64 bits, which may be NULL.
        once_per_lease: See the table above.

    Raises:
        ValueError: A name is empty or has a NUL, or a column has two meanings.
    """

    def __init__(
        self,
        table: str | Sequence[str],
        key: str | Sequence[str] = "id",
        fence: str = "fence",
        *,
        once_per_lease: bool = False,
    ) -> None:
        self._shape = Shape(table, key, fence, strict=once_per_lease)
        self._once_per_lease = once_per_lease

    def update(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Written:
        """Set columns of a row, and its fence.

        Args:
            connection: Of sqlite3 or psycopg.
            key: Value of the key; a tuple if it has several columns.
            values: By column; may be empty.
            fence: Of the message.

        Raises:
            Fenced: The row has a newer fence; nothing was written.
        """
        return drive(connection, self._updating(dialect_of(connection), key, values, fence))

    def upsert(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Written:
        """Insert a row, or set columns of the one that is there; see :meth:`update`."""
        return drive(connection, self._upserting(dialect_of(connection), key, values, fence))

    async def aupdate(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Written:
        """See :meth:`update`; over a ``psycopg.AsyncConnection``."""
        return await adrive(connection, self._updating(dialect_of(connection), key, values, fence))

    async def aupsert(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Written:
        """See :meth:`upsert`; over a ``psycopg.AsyncConnection``."""
        return await adrive(connection, self._upserting(dialect_of(connection), key, values, fence))

    def update_statement(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Statement:
        """Return the UPDATE and its values, to be run by other means.

        It changes one row if it was applied, and none otherwise.
        """
        return self._shape.update(dialect, key, values, fence)

    def upsert_statement(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Statement:
        """Return the INSERT ... ON CONFLICT; see :meth:`update_statement`."""
        return self._shape.upsert(dialect, key, values, fence)

    def check(self, connection: Any, columns: Sequence[str] = ()) -> None:
        """Find out at the start of a program whether writes can work.

        Args:
            connection: Of sqlite3 or psycopg.
            columns: What will be written beside key and fence.

        Raises:
            LookupError: There is no such table, or a column is missing.
            ValueError: The fence is no integer of 64 bits, or the key is not unique.
        """
        drive(connection, checking(dialect_of(connection), self._shape, columns))

    async def acheck(self, connection: Any, columns: Sequence[str] = ()) -> None:
        """See :meth:`check`; over a ``psycopg.AsyncConnection``."""
        await adrive(connection, checking(dialect_of(connection), self._shape, columns))

    def _updating(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], fence: int
    ) -> Steps[Written]:
        statement = self._shape.update(dialect, key, values, fence)
        written = yield from self._writing(dialect, key, fence, statement)
        return Written.NO_ROW if written is None else written

    def _upserting(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], fence: int
    ) -> Steps[Written]:
        statement = self._shape.upsert(dialect, key, values, fence)
        for _ in range(_TRIES):
            written = yield from self._writing(dialect, key, fence, statement)
            if written is not None:
                return written
        raise TimeoutError(f"{self._row(key)} is created and deleted too often to be written")

    def _writing(
        self, dialect: Dialect, key: Any, fence: int, statement: Statement
    ) -> Steps[Written | None]:
        """Run *statement*; return None if there is no row."""
        for _ in range(_TRIES):
            done = yield statement
            if done.changed:
                return Written.APPLIED
            found = yield self._shape.look(dialect, key)
            if not found.rows:
                return None
            ((newest,), *_) = found.rows
            if newest is not None and newest > fence:
                raise Fenced(self._row(key), fence, newest)
            if newest == fence and self._once_per_lease:
                return Written.REPEATED
            # The row has come, or has changed, since the write did not find it: once more.
        raise TimeoutError(f"{self._row(key)} changes too often to be written")

    def _row(self, key: Any) -> str:
        return f"{'.'.join(self._shape.table)} {key}"


# --- fenced sql --------------------------------------------------------------------------------
#
# The statements of fenced writes, for tables and columns of the user.


class Shape:
    """What a fenced table looks like. See :class:`FencedTable`."""

    def __init__(
        self, table: str | Sequence[str], key: str | Sequence[str], fence: str, *, strict: bool
    ) -> None:
        self.table = table.split(".") if isinstance(table, str) else list(table)
        self.keys = [key] if isinstance(key, str) else list(key)
        self.fence = fence
        self._than = "<" if strict else "<="
        for name in (*self.table, *self.keys, fence):
            quote_identifier(name)
        if not self.table:
            raise ValueError("the table needs a name")
        if not self.keys or len({*self.keys, fence}) != len(self.keys) + 1:
            raise ValueError("the key needs one column or more, and the fence another one")

    def update(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], fence: int
    ) -> Statement:
        """Return an UPDATE that changes one row, or none if the fence is too old."""
        self._check(values, fence)
        names = _Names(dialect, self.table)
        sets = ", ".join(f"{names.plain(column)} = {names.mark}" for column in values)
        fenced = f"{names.plain(self.fence)} = {names.mark}"
        guard = names.of_table(self.fence)
        text = (
            f"UPDATE {names.table} SET {sets}{', ' if sets else ''}{fenced} "  # noqa: S608 - names are quoted, values bound
            f"WHERE {self._key_equals(names)} "
            f"AND ({guard} IS NULL OR {guard} {self._than} {names.mark})"
        )
        return Statement(text, (*values.values(), fence, *self._key_values(key), fence))

    def upsert(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], fence: int
    ) -> Statement:
        """Return an INSERT that becomes an UPDATE where there is a row."""
        self._check(values, fence)
        names = _Names(dialect, self.table)
        columns = [names.plain(column) for column in (*self.keys, *values, self.fence)]
        sets = [f"{column} = excluded.{column}" for column in columns[len(self.keys) :]]
        guard = names.of_table(self.fence)
        text = (
            f"INSERT INTO {names.table} ({', '.join(columns)}) "  # noqa: S608 - names are quoted, values bound
            f"VALUES ({', '.join([names.mark] * len(columns))}) "
            f"ON CONFLICT ({', '.join(columns[: len(self.keys)])}) DO UPDATE SET {', '.join(sets)} "
            f"WHERE {guard} IS NULL OR {guard} {self._than} excluded.{names.plain(self.fence)}"
        )
        return Statement(text, (*self._key_values(key), *values.values(), fence))

    def look(self, dialect: Dialect, key: Any) -> Statement:
        """Return a SELECT of the fence of a row."""
        names = _Names(dialect, self.table)
        text = (
            f"SELECT {names.of_table(self.fence)} FROM {names.table} "  # noqa: S608 - names are quoted, values bound
            f"WHERE {self._key_equals(names)}"
        )
        return Statement(text, self._key_values(key))

    def _key_equals(self, names: _Names) -> str:
        return " AND ".join(f"{names.of_table(column)} = {names.mark}" for column in self.keys)

    def _key_values(self, key: Any) -> tuple[Any, ...]:
        values = tuple(key) if isinstance(key, tuple | list) else (key,)
        if len(values) != len(self.keys):
            raise ValueError(f"the key has {len(self.keys)} columns, and {len(values)} were given")
        return values

    def _check(self, values: Mapping[str, Any], fence: int) -> None:
        check_fence_number(fence)
        for column in values:
            if column in self.keys or column == self.fence:
                raise ValueError(f"{column} is the key or the fence and cannot be set")


class _Names:
    """Names of one table, quoted for one dialect."""

    def __init__(self, dialect: Dialect, table: Sequence[str]) -> None:
        self._doubles_percent = dialect == "postgresql"
        self.mark = "%s" if dialect == "postgresql" else "?"
        self.table = ".".join(map(self.plain, table))
        self._last = self.plain(table[-1])

    def plain(self, name: str) -> str:
        """Return a column as it stands in lists."""
        quoted = quote_identifier(name)
        return quoted.replace("%", "%%") if self._doubles_percent else quoted

    def of_table(self, column: str) -> str:
        """Return a column as it stands in expressions.

        With its table: SQLite takes a quoted name alone that it does not know for a text.
        """
        return f"{self._last}.{self.plain(column)}"


# --- table checks ------------------------------------------------------------------------------
#
# Whether a table of the user is fit for fenced writes.


def checking(dialect: Dialect, shape: Shape, columns: Sequence[str]) -> Steps[None]:
    """Look at the table; see :meth:`~leasehold.worker.idempotency.fencing.FencedTable.check`."""
    statements = read_statements("table_checks.sql")
    name = ".".join(shape.table)
    values: dict[str, str | None]
    if dialect == "sqlite":
        schema = shape.table[-2] if len(shape.table) > 1 else None
        values = {"table": shape.table[-1], "schema": schema}
    else:
        values = {"table": quote_table(shape.table)}

    def statement(what: str) -> Statement:
        text = statements[f"{dialect}_{what}"]
        return Statement(for_psycopg(text) if dialect == "postgresql" else text, values)

    found = yield statement("columns")
    types: dict[str, str] = dict(found.rows)
    if not types:
        raise LookupError(f"no table {name}")
    missing = [column for column in (*shape.keys, shape.fence, *columns) if column not in types]
    if missing:
        raise LookupError(f"{name} has no column {', '.join(missing)}")
    _check_type(dialect, f"{name}.{shape.fence}", types[shape.fence])
    unique = yield statement("unique")
    if set(shape.keys) not in _keys_of(unique.rows):
        raise ValueError(f"{', '.join(shape.keys)} is not a unique key of {name}")


def _check_type(dialect: Dialect, column: str, declared: str) -> None:
    """Refuse a fence that is compared as text, or that has no room for a large one."""
    fits = declared in {"bigint", "numeric"}
    if dialect == "sqlite":
        # What SQLite goes by itself (https://sqlite.org/datatype3.html, section 3.1).
        fits = "INT" in declared.upper()
    if not fits:
        raise ValueError(f"{column} is {declared or 'untyped'}; a fence needs a BIGINT")


def _keys_of(rows: Sequence[Any]) -> list[set[str]]:
    keys: dict[int, set[str]] = defaultdict(set)
    for number, column in rows:
        keys[number].add(column)
    return list(keys.values())


# --- fences ------------------------------------------------------------------------------------
#
# Where the newest fence of each message is remembered, apart from what it guards.


DEFAULT_FENCE_TABLE: Final = "leasehold_fence"
_FILE: Final = "fences.sql"
_SWEEP_EVERY: Final = 64
_SWEEP_AT_ONCE: Final = 4


class FenceStore(Protocol):
    """Remembers the newest fence of each name for a window, which begins anew with each use."""

    def admit(self, name: str, fence: int) -> None:
        """Let *fence* in if it is not older than the newest under *name*, and remember it.

        Raises:
            Fenced: It is older.
            ValueError: It cannot be a fence.
        """
        ...


class MemoryFences:
    """See :class:`FenceStore`. For tests, and for a receiver of one process that may forget.

    Args:
        window_s: How long a name is remembered, in seconds, above 0.
        clock: That the window is measured by.
    """

    def __init__(self, window_s: float = DEFAULT_WINDOW_S, *, clock: Clock | None = None) -> None:
        self._window_ms = milliseconds(check_window(window_s))
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[int, int]] = {}
        self._expiries: list[tuple[int, str]] = []

    def admit(self, name: str, fence: int) -> None:
        """See :class:`FenceStore`."""
        check_fence_number(fence)
        with self._lock:
            now_ms = self._clock.now_ms()
            self._sweep(now_ms)
            newest, _ = self._newest.get(name, (-1, 0))
            if newest > fence:
                raise Fenced(name, fence, newest)
            expires_at_ms = now_ms + self._window_ms
            self._newest[name] = (fence, expires_at_ms)
            heapq.heappush(self._expiries, (expires_at_ms, name))

    def __len__(self) -> int:
        """How many names are kept."""
        return len(self._newest)

    def _sweep(self, now_ms: int) -> None:
        while self._expiries and self._expiries[0][0] <= now_ms:
            expires_at_ms, name = heapq.heappop(self._expiries)
            if self._newest[name][1] == expires_at_ms:
                del self._newest[name]


class SqliteFences:
    """See :class:`FenceStore`. For receivers with any number of processes on one machine.

    Args:
        path: The file; see :class:`~leasehold.worker.idempotency.sqlite.SqliteProcessed`.
        window_s: How long a name is remembered, in seconds, above 0.
        clock: That the window is measured by.
        patience_s: How long to wait for other writers before a TimeoutError, in seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        window_s: float = DEFAULT_WINDOW_S,
        *,
        clock: Clock | None = None,
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._ledger = FenceLedger(window_s, clock=clock, sweep_step=0)
        statements = load_statements("sqlite", DEFAULT_FENCE_TABLE, file_name=_FILE)
        setup = (statements["create_table"], statements["create_index"])
        self._file = SqliteFile(path, setup, patience_s=patience_s)
        self._admitted = 0

    def admit(self, name: str, fence: int) -> None:
        """See :class:`FenceStore`. It is on the disk when this returns."""
        with self._file.writing() as connection:
            self._ledger.admit(connection, name, fence)
            self._admitted += 1
            if self._admitted % _SWEEP_EVERY == 0:
                self._ledger.sweep(connection)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class FenceLedger:
    """The newest fence of each message, in a database of the user and in the user's transactions.

    ::

        with connection:
            ledger.enter(connection, message)       # an older delivery gets Fenced, and rolls back
            connection.execute("UPDATE account SET balance = balance + ...")

    It guards whatever else the transaction writes, also rows that many messages write to, and
    handlers of many transactions. It does not make a message happen once: for that see
    :meth:`~leasehold.worker.idempotency.once.Once.in_transaction`, which guards as well.

    Until the transaction ends, other deliveries of the message wait in :meth:`enter`.

    Args:
        window_s: How long a message is remembered, in seconds, above 0.
        table: Name of the table, or ``schema.table``.
        clock: That the window is measured by. None: for PostgreSQL the database's own, for SQLite
            that of the machine.
        sweep_step: Expired rows that each :meth:`enter` removes; 0: none.
    """

    def __init__(
        self,
        window_s: float = DEFAULT_WINDOW_S,
        *,
        table: str = DEFAULT_FENCE_TABLE,
        clock: Clock | None = None,
        sweep_step: int = _SWEEP_AT_ONCE,
    ) -> None:
        self._window_ms = milliseconds(check_window(window_s))
        self._clock = clock
        self._sqlite_clock = clock or SystemClock()
        self._sweep_step = sweep_step
        self._sql: dict[Dialect, dict[str, str]] = {
            "sqlite": load_statements("sqlite", table, file_name=_FILE),
            "postgresql": load_statements(
                "postgresql", table, file_name=_FILE, database_clock=clock is None
            ),
        }

    def create(self, connection: Any) -> None:
        """Create the table, unless it is there."""
        drive(connection, self._creating(dialect_of(connection)))

    async def acreate(self, connection: Any) -> None:
        """See :meth:`create`; over a ``psycopg.AsyncConnection``."""
        await adrive(connection, self._creating(dialect_of(connection)))

    def enter(self, connection: Any, message: Delivered) -> None:
        """Go on only if no newer delivery of *message* has been here.

        Raises:
            Fenced: One has. Roll the transaction back.
            RuntimeError: No transaction is open, and none will be opened.
        """
        check_transaction(connection)
        self.admit(connection, join_key(message.queue, message.id), message.fence)

    async def aenter(self, connection: Any, message: Delivered) -> None:
        """See :meth:`enter`; over a ``psycopg.AsyncConnection``."""
        check_transaction(connection)
        name = join_key(message.queue, message.id)
        await adrive(connection, self._admitting(dialect_of(connection), name, message.fence))

    def admit(self, connection: Any, name: str, fence: int) -> None:
        """See :class:`FenceStore`."""
        drive(connection, self._admitting(dialect_of(connection), name, fence))

    def on(self, connection: Any) -> FenceStore:
        """Return a store, for ``check_fence``, that writes in the transaction of *connection*."""
        return _Bound(self, connection)

    def sweep(self, connection: Any, limit: int = SWEEP_STEP) -> int:
        """Remove up to *limit* expired rows; return how many."""
        return drive(connection, self._sweeping(dialect_of(connection), limit))

    def _creating(self, dialect: Dialect) -> Steps[None]:
        for name in ("create_table", "create_index"):
            yield Statement(self._sql[dialect][name])

    def _admitting(self, dialect: Dialect, name: str, fence: int) -> Steps[None]:
        check_fence_number(fence)
        values = {"name": name, "fence": fence, "window_ms": self._window_ms}
        while not (yield self._statement(dialect, "admit", values)).rows:
            found = yield self._statement(dialect, "look", {"name": name})
            for (newest,) in found.rows:
                if newest > fence:
                    raise Fenced(name, fence, newest)
        if self._sweep_step:
            yield from self._sweeping(dialect, self._sweep_step)

    def _sweeping(self, dialect: Dialect, limit: int) -> Steps[int]:
        done = yield self._statement(dialect, "sweep", {"limit": limit})
        return done.changed

    def _statement(self, dialect: Dialect, name: str, values: dict[str, Any]) -> Statement:
        clock = self._sqlite_clock if dialect == "sqlite" else self._clock
        now = {} if clock is None else {"now_ms": clock.now_ms()}
        return Statement(self._sql[dialect][name], values | now)


class _Bound:
    """A ledger and a connection."""

    def __init__(self, ledger: FenceLedger, connection: Any) -> None:
        self._ledger = ledger
        self._connection = connection

    def admit(self, name: str, fence: int) -> None:
        """See :class:`FenceStore`."""
        check_transaction(self._connection)
        self._ledger.admit(self._connection, name, fence)
