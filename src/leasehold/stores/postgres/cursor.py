"""Statements straight through libpq, with nothing in between that looks after other things.

The driver is made for programs that do other things while a statement runs: it asks the socket in
small steps, each in Python. A store has one statement at a time. It hands libpq the whole of it,
which takes a third of the processor's time. Values, types and errors stay the driver's.

Who must not wait for long may say so. A statement that is not answered in time is left under way:
the next call first waits for its answer.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from struct import Struct
from typing import Any, Final, cast

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from leasehold.clock import Clock, SystemClock
from leasehold.domain.model import Phase
from leasehold.stores.sql.texts import to_kept

_READ: Final = select.POLLIN
_WRITE: Final = select.POLLOUT
_INT8: Final = 20
_BYTEA: Final = 17
_UNKNOWN: Final = 0
_BYTEA_ARRAY: Final = 1001


class Blobs(list[bytes | None]):
    """A column of bytes, sent as they are: as digits in a text PostgreSQL reads each one twice."""


_OIDS: Final = {
    int: _INT8,
    bytes: _BYTEA,
    Blobs: _BYTEA_ARRAY,
    str: _UNKNOWN,
    type(None): _UNKNOWN,
}
"""By their numbers in pg_type.dat. A text may stand for what the statement wants it to be."""
_IN_BINARY: Final = frozenset({bytes, Blobs})

Kinds = tuple[type, ...]
Row = tuple[Any, ...]


class NotInTime(Exception):
    """There was no answer before the moment when waiting ends; see :meth:`Direct.set_deadline`."""


class _Prepared:
    """A statement that the server knows by a name.

    Args:
        connection: Where it is known.
        query: Its text.
        kinds: Types of its bounds.
        number: What it is called by.
    """

    def __init__(
        self, connection: psycopg.Connection[Row], query: str, kinds: Kinds, number: int
    ) -> None:
        self.name = b"leasehold_%d" % number
        self.formats = [Format.BINARY if kind in _IN_BINARY else Format.TEXT for kind in kinds]
        self.reader = Transformer(connection)
        self.knows_columns = False
        oids = [_OIDS[kind] for kind in kinds]
        checked(connection, connection.pgconn.prepare(self.name, query.encode(), oids))

    def read(self, result: PGresult) -> list[Row]:
        """Return the rows of an answer."""
        self.reader.set_pgresult(result, set_loaders=not self.knows_columns, format=Format.BINARY)
        self.knows_columns = True
        return self.reader.load_rows(0, result.ntuples, tuple)


class Direct:
    """Runs statements on a connection, each prepared when it is first asked for.

    Args:
        connection: Nothing else may run on it while an answer is owed.
        clock: For the moment when waiting ends.
    """

    def __init__(self, connection: psycopg.Connection[Row], clock: Clock | None = None) -> None:
        self.connection = connection
        self._until_s: float | None = None
        """When to give up waiting, on the monotonic clock; None for never."""
        self._pgconn = connection.pgconn
        self._clock = clock or SystemClock()
        self._socket = select.poll()
        self._socket.register(connection.pgconn.socket, _READ)
        self._events = _READ
        self._owed: bytes | None = None
        """What was sent and is not answered yet: the name of a statement, or statements."""
        self._answered: PGresult | None = None
        """The newest answer to it."""
        self._known: dict[tuple[str, Kinds], _Prepared] = {}
        self.changes = 0
        """How many rows the last statement found or changed."""

    def set_deadline(self, within_s: float | None) -> None:
        """Wait for answers so many seconds, all together, from now on; None for no end."""
        self._until_s = None if within_s is None else self._clock.monotonic_s() + within_s

    @staticmethod
    def takes(bounds: Sequence[object]) -> bool:
        """Tell whether all of these can be sent from here."""
        return _OIDS.keys() >= set(map(type, bounds))

    def execute(self, query: str, bounds: Sequence[object]) -> list[Row]:
        """Run a statement with bounds that :meth:`takes` has nothing against; return its rows.

        Raises:
            psycopg.Error: As the driver does.
            NotInTime: See :meth:`set_deadline`.
        """
        kinds = tuple(map(type, bounds))
        prepared = self._known.get((query, kinds))
        if prepared is None:
            self.take_time()
            prepared = _Prepared(self.connection, query, kinds, len(self._known))
            self._known[query, kinds] = prepared
        of = prepared.name, list(map(_sent, bounds)), prepared.formats, Format.BINARY
        if self._owed is not None:
            self._await_answer()
        try:
            if self._until_s is None:
                result = self._pgconn.exec_prepared(*of)
            else:
                self._pgconn.send_query_prepared(*of)
                self._owed = prepared.name
                result = self._await_answer()
        except MemoryError:
            raise self._lost() from None
        checked(self.connection, result)
        self.changes = result.command_tuples or 0
        return prepared.read(result) if result.status == ExecStatus.TUPLES_OK else []

    def run(self, statements: bytes) -> PGresult:
        """Run statements without bounds in one round trip; return what the last one answers.

        Those that were not answered in time are not sent again.

        Raises:
            psycopg.Error: As the driver does.
            NotInTime: See :meth:`set_deadline`.
        """
        if self._owed not in {None, statements}:
            self._await_answer()
        try:
            if self._owed is None and self._until_s is None:
                result = self._pgconn.exec_(statements)
            else:
                if self._owed is None:
                    self._pgconn.send_query(statements)
                    self._owed = statements
                result = self._await_answer()
        except MemoryError:
            raise self._lost() from None
        return checked(self.connection, result)

    def owes(self, statements: bytes) -> bool:
        """Tell whether these were sent, and are not answered yet."""
        return self._owed == statements

    def take_time(self) -> None:
        """Get ready for what waits however long it takes.

        Raises:
            NotInTime: Waiting has an end.
        """
        if self._until_s is not None:
            raise NotInTime
        if self._owed is not None:
            self._await_answer()

    def _await_answer(self) -> PGresult:
        """Return the last answer to what was sent.

        Raises:
            psycopg.Error: The connection is lost.
            NotInTime: The moment has come.
        """
        pgconn = self._pgconn
        while True:
            while pgconn.is_busy():
                # What is large is not sent at once; the server may have to be read from meanwhile.
                self._wait_for(_READ | _WRITE if pgconn.flush() else _READ)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            self._answered = result
        answered, self._answered = self._answered, None
        self._owed = None
        assert answered is not None
        return answered

    def _wait_for(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._socket.modify(self._pgconn.socket, events)
        if self._until_s is None:
            self._socket.poll()
            return
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s <= 0 or not self._socket.poll(ceil(left_s * 1000)):
            raise NotInTime

    def _lost(self) -> psycopg.OperationalError:
        """Return what to raise where libpq could not even send a statement."""
        return psycopg.OperationalError(self._pgconn.get_error_message())


def checked(connection: psycopg.Connection[Any], result: PGresult) -> PGresult:
    """Return an answer, unless it is an error."""
    if result.status in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
        return result
    if connection.closed:  # its words have no code, by which they could be told apart
        raise psycopg.OperationalError(result.get_error_message())
    raise errors.error_from_result(result)


def _sent(value: Any) -> Any:
    """Return a bound as it is sent: bytes as they are, all else as text."""
    if type(value) is int:
        return b"%d" % value
    if value is None or type(value) is bytes:
        return value
    if type(value) is Blobs:
        return _blobs(value)
    return to_kept(str(value)).encode()


def _blobs(values: Blobs) -> bytes:
    """Return values as an array of PostgreSQL's binary format, which psycopg writes alike."""
    if not values:
        return _ARRAY.pack(0, 0, _BYTEA)
    parts = [_ARRAY.pack(1, None in values, _BYTEA), _LENGTHS.pack(len(values), 1)]
    for value in values:
        parts += (_NULL,) if value is None else (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


_ARRAY: Final = Struct("!iii")
"""Dimensions, whether there are nulls, type of the elements."""
_LENGTHS: Final = Struct("!ii")
"""Elements of a dimension, and the number of the first."""
_LENGTH: Final = Struct("!i")
_NULL: Final = _LENGTH.pack(-1)


# --- cursor ------------------------------------------------------------------------------------
#
# A cursor with the manners that the verbs expect of one.
#
# The verbs were written for a database in the same process, where one statement for each row is
# cheap. Over a connection it is not: of statements for which there is a form with columns, a run
# is sent as one.


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

    Numbers and texts become one text here, bytes a column: the driver takes each value by itself,
    and twice as long for all.

    Source: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-INPUT.
    """
    kinds = set(map(type, values))
    has_none = type(None) in kinds
    if kinds <= {bytes, type(None)} and bytes in kinds:
        return Blobs(cast("Sequence[bytes | None]", values))
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


def _write_text(value: Any) -> str:
    # What PostgreSQL cannot hold is put in other words when the whole is sent.
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_none(value: Any) -> str:
    del value
    return "NULL"


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    int: int.__repr__,
    Phase: int.__repr__,
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
