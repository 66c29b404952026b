"""The history in the database of the effect, written in the same transaction."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, NoReturn

from leasehold.clock import Clock, SystemClock
from leasehold.worker.idempotency.errors import Busy
from leasehold.worker.idempotency.history import (
    DEFAULT_WINDOW_S,
    SWEEP_STEP,
    Delivered,
    Run,
    check_window,
    encode_result,
    milliseconds,
)
from leasehold.worker.idempotency.sql import (
    DEFAULT_TABLE,
    Dialect,
    Outcome,
    Statement,
    Steps,
    adrive,
    dialect_of,
    drive,
    entry_of,
    load_statements,
)

_SAVEPOINT: Final = "leasehold_once"


class History:
    """A history table in a database of the user.

    It is the table of :class:`~leasehold.worker.idempotency.sqlite.SqliteProcessed` and
    :class:`~leasehold.worker.idempotency.postgres.PostgresProcessed`. SQLite up to 3.51.2 can
    corrupt a
    file in WAL mode when several connections write to it (see ``sqlite_file``), whatever they
    write.

    Args:
        window_s: How long a key is remembered, in seconds, above 0.
        table: Name of the table, or ``schema.table``.
        clock: That the window is measured by. None: for PostgreSQL the database's own, for SQLite
            that of the machine.
        sweep_step: Expired keys that each first run removes, in its transaction; 0: none, somebody
            calls :meth:`sweep`.
    """

    def __init__(
        self,
        window_s: float = DEFAULT_WINDOW_S,
        *,
        table: str = DEFAULT_TABLE,
        clock: Clock | None = None,
        sweep_step: int = 4,
    ) -> None:
        self._window_s = check_window(window_s)
        self._table = table
        self._clock = clock
        self._sweep_step = sweep_step
        self._sql: dict[Dialect, dict[str, str]] = {}
        self._sqlite_clock = clock or SystemClock()

    def create(self, connection: Any) -> None:
        """Create the table, unless it is there. In an open transaction it is part of that."""
        drive(connection, self._creating(dialect_of(connection)))

    async def acreate(self, connection: Any) -> None:
        """See :meth:`create`."""
        await adrive(connection, self._creating(dialect_of(connection)))

    def sweep(self, connection: Any, limit: int = SWEEP_STEP) -> int:
        """Remove up to *limit* expired keys; return how many.

        In an open transaction it is part of that; otherwise it is done at once where the connection
        commits by itself.
        """
        return drive(connection, self._sweeping(dialect_of(connection), limit))

    async def asweep(self, connection: Any, limit: int = SWEEP_STEP) -> int:
        """See :meth:`sweep`."""
        return await adrive(connection, self._sweeping(dialect_of(connection), limit))

    def entering(self, dialect: Dialect, run: Run, retry_s: float) -> Steps[None]:
        """Write the row of *run*, or find out that it is to be skipped."""
        values = {
            "key": run.key,
            "source": run.holder.source,
            "fence": run.holder.fence,
            "run": run.holder.run,
            # To others it is done as soon as they can see it.
            "done": 1,
            "hold_ms": 0,
            "window_ms": milliseconds(self._window_s),
        }
        while not (yield self._statement(dialect, "begin", values)).rows:
            found: Outcome = yield self._statement(dialect, "look", values)
            if not found.rows:
                continue
            if run.meet(entry_of(found.rows[0])):
                raise Busy(
                    retry_s, f"{run.key}: another worker is processing it, outside a transaction"
                )
            return
        if self._sweep_step:
            yield from self._sweeping(dialect, self._sweep_step)

    def leaving(self, dialect: Dialect, run: Run) -> Steps[None]:
        """Add the result to the row."""
        run.check_asked()
        result = encode_result(run.result) if run.is_first else None
        if result is not None:
            values = {"key": run.key, "run": run.holder.run, "result": result}
            yield self._statement(dialect, "set_result", values)

    def _creating(self, dialect: Dialect) -> Steps[None]:
        for name in ("create_table", "create_index"):
            yield Statement(self._statements(dialect)[name])

    def _sweeping(self, dialect: Dialect, limit: int) -> Steps[int]:
        done: Outcome = yield self._statement(dialect, "sweep", {"limit": limit})
        return done.changed

    def _statement(self, dialect: Dialect, name: str, values: dict[str, Any]) -> Statement:
        clock = self._sqlite_clock if dialect == "sqlite" else self._clock
        now = {} if clock is None else {"now_ms": clock.now_ms()}
        return Statement(self._statements(dialect)[name], values | now)

    def _statements(self, dialect: Dialect) -> dict[str, str]:
        if dialect not in self._sql:
            ask_database = dialect == "postgresql" and self._clock is None
            self._sql[dialect] = load_statements(dialect, self._table, database_clock=ask_database)
        return self._sql[dialect]


class InTransaction:
    """One use of :meth:`~leasehold.worker.idempotency.once.Once.in_transaction`."""

    def __init__(
        self, history: History, connection: Any, run: Run, message: Delivered, retry_s: float
    ) -> None:
        self._history = history
        self._connection = connection
        self._run = run
        self._message = message
        self._retry_s = retry_s
        self._dialect = dialect_of(connection)
        self._transaction: Any = None

    def __enter__(self) -> Run:
        self._message.check()
        if self._dialect == "sqlite":
            self._transaction = _SqliteTransaction(self._connection)
        else:
            self._transaction = self._connection.transaction()
        self._transaction.__enter__()
        try:
            drive(self._connection, self._entering())
        except BaseException as error:
            self._explain(error)
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise
        return self._run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            try:
                drive(self._connection, self._history.leaving(self._dialect, self._run))
            except BaseException as second:
                self._transaction.__exit__(type(second), second, second.__traceback__)
                raise
        self._transaction.__exit__(kind, error, None)

    async def __aenter__(self) -> Run:
        if self._dialect == "sqlite":
            self._refuse_async()
        self._message.check()
        self._transaction = self._connection.transaction()
        await self._transaction.__aenter__()
        try:
            await adrive(self._connection, self._entering())
        except BaseException as error:
            self._explain(error)
            await self._transaction.__aexit__(type(error), error, error.__traceback__)
            raise
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            try:
                await adrive(self._connection, self._history.leaving(self._dialect, self._run))
            except BaseException as second:
                await self._transaction.__aexit__(type(second), second, second.__traceback__)
                raise
        await self._transaction.__aexit__(kind, error, None)

    def _entering(self) -> Steps[None]:
        return self._history.entering(self._dialect, self._run, self._retry_s)

    def _explain(self, error: BaseException) -> None:
        text = str(error)
        if "no such table" in text or type(error).__name__ == "UndefinedTable":
            error.add_note("once.history.create(connection) creates the history table")

    @staticmethod
    def _refuse_async() -> NoReturn:
        raise TypeError("a connection of sqlite3 blocks: use with, not async with")


class _SqliteTransaction:
    """A transaction, or a savepoint in the one that is open."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_own = not connection.in_transaction

    def __enter__(self) -> None:
        # The lock at once: one that is asked for after a read can be refused for good.
        self._execute("BEGIN IMMEDIATE" if self._is_own else f"SAVEPOINT {_SAVEPOINT}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self._connection.in_transaction:
            if error is None:
                raise RuntimeError(
                    "the block ended the transaction itself: its changes and their record are not "
                    "atomic"
                )
            return
        if self._is_own:
            self._end(commit=error is None)
            return
        if error is not None:
            self._execute(f"ROLLBACK TO {_SAVEPOINT}")
        self._execute(f"RELEASE {_SAVEPOINT}")

    def _end(self, *, commit: bool) -> None:
        try:
            if commit:
                self._execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._execute("ROLLBACK")

    def _execute(self, statement: str) -> None:
        # Not commit() and rollback(): these do nothing in one of the modes of Python 3.12.
        self._connection.execute(statement)
