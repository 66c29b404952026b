"""Statements straight through libpq, with nothing in between that looks after other things.

The driver is made for programs that do other things while a statement runs: it asks the socket in
small steps, each in Python. A store has a thread of its own and one statement at a time. It hands
libpq the whole of it, which takes a third of the processor's time. Values, types and errors stay
the driver's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from leasehold.stores.postgres.texts import to_kept

_INT8: Final = 20
_BYTEA: Final = 17
_UNKNOWN: Final = 0
_OIDS: Final = {int: _INT8, bytes: _BYTEA, str: _UNKNOWN, type(None): _UNKNOWN}
"""By their numbers in pg_type.dat. A text may stand for what the statement wants it to be."""

Kinds = tuple[type, ...]
Row = tuple[Any, ...]


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
        self.formats = [Format.BINARY if kind is bytes else Format.TEXT for kind in kinds]
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
    """Runs statements on a connection, each prepared when it is first asked for."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._known: dict[tuple[str, Kinds], _Prepared] = {}
        self.changes = 0
        """How many rows the last statement found or changed."""

    @staticmethod
    def takes(bounds: Sequence[object]) -> bool:
        """Tell whether all of these can be sent from here."""
        return _OIDS.keys() >= set(map(type, bounds))

    def execute(self, query: str, bounds: Sequence[object]) -> list[Row]:
        """Run a statement with bounds that :meth:`takes` has nothing against; return its rows.

        Raises:
            psycopg.Error: As the driver does.
        """
        kinds = tuple(map(type, bounds))
        prepared = self._known.get((query, kinds))
        if prepared is None:
            prepared = _Prepared(self._connection, query, kinds, len(self._known))
            self._known[query, kinds] = prepared
        try:
            result = self._pgconn.exec_prepared(
                prepared.name, list(map(_sent, bounds)), prepared.formats, Format.BINARY
            )
        except MemoryError:
            raise self._lost() from None
        checked(self._connection, result)
        self.changes = result.command_tuples or 0
        return prepared.read(result) if result.status == ExecStatus.TUPLES_OK else []

    def run(self, statements: bytes) -> PGresult:
        """Run statements without bounds in one round trip; return what the last one answers.

        Raises:
            psycopg.Error: As the driver does.
        """
        try:
            return checked(self._connection, self._pgconn.exec_(statements))
        except MemoryError:
            raise self._lost() from None

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
    return to_kept(str(value)).encode()
