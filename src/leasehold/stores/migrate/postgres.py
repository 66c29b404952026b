"""A PostgreSQL store as an end of a move."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import errors

from leasehold.domain.errors import StoreFailed
from leasehold.domain.model import KEY_BYTES
from leasehold.stores.migrate.checking import Checked, Level, said, some
from leasehold.stores.migrate.ends import (
    EVENT_BATCH,
    MESSAGE,
    QUEUE,
    Digests,
    HighWater,
    Kind,
    MoveRefused,
    Rows,
    SqlEnd,
    Table,
    in_postgres,
    slices,
)
from leasehold.stores.migrate.holds import HoldFailed
from leasehold.stores.postgres.connection import Address, connect, migrate
from leasehold.stores.postgres.state import BLOCK
from leasehold.stores.sql.catalog import PARTITION_MASK
from leasehold.stores.sql.state import HOLD_MS
from leasehold.stores.sql.statements import load_migrations
from leasehold.stores.sql.texts import to_kept

# ruff: noqa: S608 - names of tables and columns are constants of ours


_COUNT: Final = (
    "(SELECT coalesce(sum(number), 0)::bigint FROM counted WHERE counted.partition ="
    " queue.partition)"
)
_TYPES: Final = {
    Kind.NUMBER: "int8",
    Kind.SMALL: "int2",
    Kind.SWITCH: "bool",
    Kind.TEXT: "text",
    Kind.BYTES: "bytea",
}
_HELD: Final = "bodies_held:"
_NOW_MS: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::int8"
_OF_NOBODY: Final = 0
"""Slot of what no server has counted."""
_OF_LOG: Final = 0
"""Partition under which the bytes of events are counted."""
_INDEXES: Final = """
    SELECT i.relname, pg_get_indexdef(i.oid) FROM pg_index x
    JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
    JOIN pg_namespace n ON n.oid = t.relnamespace
    WHERE n.nspname = current_schema() AND t.relname = 'message' AND NOT x.indisprimary
"""


class PostgresHold:
    """A mark in a database; see :class:`leasehold.stores.migrate.holds.Hold`.

    It goes by the clock of the database, as the servers do, and connects anew when its connection
    was lost.

    Args:
        url: As for :class:`~leasehold.stores.postgres.PostgresStore`.
    """

    def __init__(self, url: str) -> None:
        self._address = Address.parse(url)
        self._connection: psycopg.Connection[Any] | None = None
        self._name = _HELD + secrets.token_hex(8)

    def extend(self) -> None:
        """See :meth:`leasehold.stores.migrate.holds.Hold.extend`."""
        try:
            # Marks of backups that were killed go with it.
            self._run("DELETE FROM meta WHERE name LIKE $1 AND number < " + _NOW_MS, _HELD + "%")
            self._run(
                f"INSERT INTO meta (name, number) VALUES ($1, {_NOW_MS} + {HOLD_MS})"
                " ON CONFLICT (name) DO UPDATE SET number = excluded.number",
                self._name,
            )
        except psycopg.Error as error:
            raise HoldFailed(str(error)) from error

    def end(self) -> None:
        """See :meth:`leasehold.stores.migrate.holds.Hold.end`."""
        with contextlib.suppress(psycopg.Error):  # then it ends by itself
            self._run("DELETE FROM meta WHERE name = $1", self._name)
        if self._connection is not None:
            self._connection.close()

    def _run(self, query: str, name: str) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._address)
        self._connection.execute(query.encode(), (name,), prepare=False)


class PostgresEnd(SqlEnd):
    """See :class:`leasehold.stores.migrate.ends.End`.

    Args:
        url: As for :class:`~leasehold.stores.postgres.PostgresStore`.

    Raises:
        StoreFailed: It cannot be reached, or is not ours.
    """

    def __init__(self, url: str) -> None:
        self._address = Address.parse(url)
        self.shown = without_password(url)
        self._indexes: list[str] = []
        try:
            self.connection = connect(self._address)
        except psycopg.Error as error:
            raise StoreFailed from error
        try:
            migrate(self.connection, self._address.schema)
            self.execute("SET idle_in_transaction_session_timeout = 0")
            self.execute("SET plan_cache_mode = auto")
        except BaseException as error:
            self.connection.close()
            if isinstance(error, psycopg.Error):
                raise StoreFailed from error
            raise

    @property
    def address(self) -> Address:
        """Where it is."""
        return self._address

    def execute(self, query: str, bounds: Sequence[object] = ()) -> Rows:
        """See :class:`SqlEnd`."""
        cursor = self.connection.execute(query.encode(), bounds or None, prepare=False)
        return cursor.fetchall() if cursor.description else []

    def add(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """See :class:`SqlEnd`."""
        with self.connection.cursor() as cursor:
            cursor.executemany(query.encode(), rows)

    def lock(self) -> None:
        """See :meth:`End.lock`. Servers wait, for as long as their own patience lasts."""
        self.execute("BEGIN")
        try:
            self.execute("LOCK TABLE change IN EXCLUSIVE MODE")
        except errors.LockNotAvailable:
            self.roll_back()
            raise MoveRefused(
                f"{self.shown} is locked by a batch that does not end, or by another move"
            ) from None
        if "receipt_key" not in self.meta():
            self.set_meta("receipt_key", secrets.token_bytes(KEY_BYTES))
            self.set_meta("epoch", 1)

    def begin_snapshot(self) -> None:
        """Begin a transaction that sees one instant, and keeps nobody from the store."""
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")

    def commit(self) -> None:
        """See :meth:`End.commit`."""
        self.execute("UPDATE change SET version = version + 1")
        self.execute("COMMIT")

    def roll_back(self) -> None:
        """See :meth:`End.roll_back`."""
        if not self.connection.closed:
            self.connection.rollback()

    def meta(self) -> dict[str, Any]:
        """See :meth:`End.meta`."""
        rows = self.execute("SELECT name, number, content FROM meta")
        return {name: number if content is None else content for name, number, content in rows}

    def set_meta(self, name: str, value: int | str | bytes | None) -> None:
        """See :meth:`End.set_meta`."""
        self.execute("DELETE FROM meta WHERE name = $1", (name,))
        if value is not None:
            number = value if isinstance(value, int) else None
            content = value.encode() if isinstance(value, str) else value
            bounds = (name, number, None if isinstance(content, int) else content)
            self.execute("INSERT INTO meta (name, number, content) VALUES ($1, $2, $3)", bounds)

    def _expressions(self, table: Table) -> list[str]:
        found = []
        for name, kind in zip(table.columns, table.kinds, strict=True):
            if name == "message_count":
                found.append(_COUNT)
            elif kind is Kind.SWITCH:
                found.append(f"{name}::int::int8")
            else:
                found.append(name)
        return found

    def read(self, table: Table) -> Iterator[Rows]:
        """See :meth:`End.read`."""
        query = (
            f"COPY (SELECT {', '.join(self._expressions(table))} FROM {table.name}"
            f"{self.where(table)} ORDER BY {table.key}) TO STDOUT (FORMAT BINARY)"
        )
        with self.connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
            copy.set_types(
                ["int8" if kind is Kind.SWITCH else _TYPES[kind] for kind in table.kinds]
            )
            yield from slices(copy.rows())

    def write(self, table: Table, slices: Iterable[Rows]) -> None:
        """See :meth:`End.write`."""
        try:
            if table is QUEUE:
                self._write_queues([row for rows in slices for row in rows])
            elif table is MESSAGE:
                self._write_messages(slices)
            else:
                self._copy(table, slices)
        except errors.UniqueViolation:
            raise MoveRefused(f"{table.name} already has a row with the same key") from None
        if table is EVENT_BATCH:
            self.execute(
                "INSERT INTO counted (partition, slot, number)"
                " SELECT $1, $2, sum(size)::bigint FROM event_batch HAVING count(*) > 0",
                (_OF_LOG, _OF_NOBODY),
            )

    def _write_queues(self, rows: Rows) -> None:
        plain = Table(
            name=QUEUE.name,
            columns=QUEUE.columns[:-1],
            kinds=QUEUE.kinds[:-1],
            key=QUEUE.key,
            of_account=QUEUE.of_account,
        )
        self._copy(plain, [[row[:-1] for row in rows]])
        partition, count = (QUEUE.columns.index(name) for name in ("partition", "message_count"))
        self.add(
            f"INSERT INTO counted (partition, slot, number) VALUES ($1, {_OF_NOBODY}, $2)",
            [(row[partition], row[count]) for row in rows],
        )

    def _write_messages(self, slices: Iterable[Rows]) -> None:
        """Copy messages, and count those that have expired and are set aside, by partition."""
        lane, moment = (MESSAGE.columns.index(name) for name in ("partition", "visible_at_ms"))
        retired: Counter[int] = Counter()

        def counted() -> Iterator[Rows]:
            for rows in slices:
                retired.update(row[lane] & PARTITION_MASK for row in rows if row[moment] is None)
                yield rows

        self._copy(MESSAGE, counted())
        self.add(
            f"INSERT INTO counted (partition, slot, number) VALUES ($1, {_OF_NOBODY}, $2)",
            [(-partition, number) for partition, number in retired.items()],
        )

    def _copy(self, table: Table, slices: Iterable[Rows]) -> None:
        query = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN (FORMAT BINARY)"
        switches = [at for at, kind in enumerate(table.kinds) if kind is Kind.SWITCH]
        texts = [at for at, kind in enumerate(table.kinds) if kind is Kind.TEXT]
        with self.connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
            copy.set_types([_TYPES[kind] for kind in table.kinds])
            write = copy.write_row
            for rows in slices:
                for row in rows:
                    changed: list[Any] = list(row)
                    for at in switches:
                        changed[at] = bool(row[at])
                    for at in texts:
                        if row[at] is not None:
                            changed[at] = to_kept(row[at])
                    write(changed)

    def digests(self, table: Table) -> Digests:
        """See :meth:`End.digests`."""
        number = in_postgres(table, self._expressions(table))
        rows = self.execute(
            f"SELECT {table.group or '0::bigint'}, count(*), sum({number})"
            f" FROM {table.name}{self.where(table)} GROUP BY 1"
        )
        return {group: (count, int(total)) for group, count, total in rows}

    def prepare_bulk(self) -> None:
        """See :meth:`End.prepare_bulk`. Indexes are quicker to make at the end."""
        self.execute("SET LOCAL maintenance_work_mem = '256MB'")
        if self.number("SELECT count(*) FROM (SELECT FROM message LIMIT 1) m"):
            return
        for name, definition in self.execute(_INDEXES):
            self._indexes.append(definition)
            self.execute(f"DROP INDEX {name}")

    def finish_bulk(self) -> None:
        """See :meth:`End.finish_bulk`."""
        for definition in self._indexes:
            self.execute(definition)
        self._indexes.clear()
        self.execute(f"ANALYZE {MESSAGE.name}")

    def high_water(self) -> HighWater:
        """See :meth:`End.high_water`."""
        meta = self.meta()
        block = self.number(
            "SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END FROM row_key_block"
        )
        return HighWater(
            row_key=block * BLOCK,
            partition=meta["last_partition"],
            token=meta.get("last_token", 0),
            event_seq=self.number(
                "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM event_seq"
            ),
            stream_id=self.number(
                "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM stream_stream_id_seq"
            ),
        )

    def raise_to(self, high: HighWater) -> None:
        """See :meth:`End.raise_to`. What sequences are set to stays, whatever becomes of it."""
        own = self.high_water()
        block = max(own.row_key // BLOCK, -(-high.row_key // BLOCK))
        self.execute("SELECT setval('row_key_block', $1, false)", (block,))
        for name, wanted, used in (
            ("event_seq", high.event_seq, own.event_seq),
            ("stream_stream_id_seq", high.stream_id, own.stream_id),
        ):
            if wanted > used:
                self.execute(f"SELECT setval('{name}', $1, true)", (wanted,))
        self.set_meta("last_partition", max(own.partition, high.partition))
        self.set_meta("last_token", max(own.token, high.token))

    def drop_selected(self) -> None:
        """See :meth:`End.drop_selected`."""
        partitions = "(SELECT number FROM moving_number WHERE kind = 'partition')"
        self.execute(f"DELETE FROM counted WHERE abs(partition) IN {partitions}")
        for name in ("session_heard", "session_sign"):
            self.execute(
                f"DELETE FROM {name} WHERE session_id IN (SELECT session_id FROM moving_session)"
            )
        super().drop_selected()

    def close(self) -> None:
        """See :meth:`End.close`."""
        self.connection.close()


def without_password(url: str) -> str:
    """Return a URL as it may be shown and written down."""
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    user = credentials.partition(":")[0]
    query = [pair for pair in parse_qsl(parts.query) if "pass" not in pair[0]]
    return urlunsplit(parts._replace(netloc=f"{user}{at}{hosts}", query=urlencode(query, safe="/")))


# --- postgres reader ---------------------------------------------------------------------------
#
# Reading a PostgreSQL store to check it.


class PostgresReader:
    """Reads a PostgreSQL store; see :class:`Reader`."""

    kind = "postgres"

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def rows(self, query: str) -> Rows:
        """See :class:`Reader`."""
        return self._connection.execute(query.encode(), prepare=False).fetchall()

    def meta(self) -> dict[str, Any]:
        """See :class:`Reader`."""
        rows = self.rows("SELECT name, number, content FROM meta")
        return {name: number if content is None else content for name, number, content in rows}

    def format(self) -> tuple[int, int]:
        """See :class:`Reader`."""
        ((number,),) = self.rows("SELECT max(number) FROM format")
        return int(number), len(load_migrations("leasehold.stores.postgres.migrations"))

    def integrity(self) -> Checked:
        """See :class:`Reader`. PostgreSQL has an extension for that."""
        if not self.rows("SELECT FROM pg_extension WHERE extname = 'amcheck'"):
            found = "not checked: CREATE EXTENSION amcheck would let it be"
            return said("integrity", Level.OK, found)
        indexes = self.rows(
            "SELECT c.oid, c.relname FROM pg_class c JOIN pg_am a ON a.oid = c.relam"
            " WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'i'"
            " AND a.amname = 'btree' ORDER BY 2"
        )
        bad = []
        for oid, name in indexes:
            try:
                with self._connection.transaction():
                    self.rows(f"SELECT bt_index_check({oid}::regclass, true)")
            except psycopg.Error as error:
                bad.append(f"{name}: {error.diag.message_primary or error}")
        if bad:
            return said("integrity", Level.FAIL, some(bad))
        return said("integrity", Level.OK, f"amcheck reports no errors in {len(indexes)} indexes")

    def used_row_key(self) -> int:
        """See :class:`Reader`."""
        ((block,),) = self.rows(
            "SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END FROM row_key_block"
        )
        return int(block) * BLOCK


@contextmanager
def read_postgres(url: str) -> Iterator[PostgresReader]:
    """Open a database to read it as it is now.

    Raises:
        MoveRefused: There is no store in it.
        StoreFailed: It cannot be reached.
    """
    address = Address.parse(url)
    try:
        with connect(address) as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            reader = PostgresReader(connection)
            if not reader.rows("SELECT 1 WHERE to_regclass('format') IS NOT NULL"):
                raise MoveRefused(f"no store in schema {address.schema}")
            yield reader
    except psycopg.Error as error:
        raise StoreFailed from error
