"""Reading a PostgreSQL store to check it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from leasehold.domain.errors import StoreFailed
from leasehold.stores.moving.checking import Checked, Level, said, some
from leasehold.stores.moving.ends import MoveRefused, Rows
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.state import BLOCK
from leasehold.stores.sql_files import load_migrations


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
        return said("integrity", Level.OK, f"amcheck finds nothing wrong in {len(indexes)} indexes")

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
                raise MoveRefused(f"there is no store in schema {address.schema}")
            yield reader
    except psycopg.Error as error:
        raise StoreFailed from error
