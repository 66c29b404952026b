"""Connecting to PostgreSQL: what a connection is set to, what is read back, migrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

from leasehold.domain.errors import StoreFailed
from leasehold.stores.sql.statements import load_migrations
from leasehold.stores.sql.texts import from_kept, to_kept

DEFAULT_SCHEMA: Final = "leasehold"
_MIGRATIONS: Final = "leasehold.stores.postgres.migrations"
_MIGRATING: Final = 0x4C534844
"""Number of the advisory lock under which a schema is made or changed."""
_REPORTED: Final = ("server_version", "synchronous_commit", "fsync", "synchronous_standby_names")

# A server that is stopped in the middle of a batch must not hold up the others for long: the
# database ends its transaction, and the others, who wait longer than that, go on.
_SETTINGS: Final = {
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "1500ms",
    "default_transaction_isolation": "read committed",
    "standard_conforming_strings": "on",
    # That no standby has a commit is said by a warning alone.
    "client_min_messages": "warning",
    # What a role or a database sets for people's sessions would end ours in the middle of a batch.
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "client_encoding": "UTF8",
    # Statements are prepared, and their plans must be those of one queue among many.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # They must not change either with what is in the tables at the moment when statistics are
    # taken: of a queue that is empty then, all rows are read, dead ones too, ever after.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
_KEEPALIVE: Final = {
    "connect_timeout": "3",
    # A host that has vanished without a word is given up after five seconds.
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
    "target_session_attrs": "read-write",
    "application_name": "leasehold",
}


class WrongSchema(StoreFailed):
    """The schema is of a newer version of Leasehold, or of another program."""

    def __init__(self, detail: str) -> None:
        super().__init__()
        self.args = (detail,)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is.

    Attributes:
        conninfo: The URL, in the words of libpq; several hosts are tried in turn.
        schema: The schema that the tables are in.
    """

    conninfo: str
    schema: str = DEFAULT_SCHEMA

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read ``postgresql://user@host:port/database?schema=NAME``; the schema may be left out."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        schema = query.pop("schema", DEFAULT_SCHEMA)
        return cls(urlunsplit(parts._replace(query=urlencode(query, quote_via=quote))), schema)


def connect(address: Address) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect to the primary, and set the connection up.

    Raises:
        psycopg.Error: It cannot be reached, or refuses.
    """
    given = psycopg.conninfo.conninfo_to_dict(address.conninfo)
    wanted = {name: value for name, value in _KEEPALIVE.items() if name not in given}
    connection = psycopg.connect(
        psycopg.conninfo.make_conninfo(address.conninfo, **wanted),
        autocommit=True,
        cursor_factory=psycopg.RawCursor,
    )
    connection.prepare_threshold = 0
    connection.prepared_max = None
    # One type for all numbers, so that a statement is prepared once and not for each mix of sizes.
    connection.adapters.register_dumper(int, Int8Dumper)
    _keep_all_texts(connection)
    try:
        pairs = {**_SETTINGS, "search_path": f'"{address.schema}"'}
        connection.execute(
            "SELECT "
            + ", ".join(f"set_config('{name}', ${at}, false)" for at, name in enumerate(pairs, 1)),
            list(pairs.values()),
        )
    except BaseException:
        connection.close()
        raise
    return connection


class _Dumper(StrDumperUnknown):
    """Writes texts, and leaves their type to the statement."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(to_kept(obj))


class _Loader(Loader):
    """Reads texts; they are alike in both formats of the protocol."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return from_kept(str(data, "utf-8"))


class _TextLoader(_Loader):
    format = Format.TEXT


def _keep_all_texts(connection: psycopg.Connection[Any]) -> None:
    """Let texts go both ways in this form."""
    connection.adapters.register_dumper(str, _Dumper)
    for loader in (_Loader, _TextLoader):
        connection.adapters.register_loader("text", loader)


def migrate(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make the schema, or bring it to the newest format; many servers may start at once.

    Raises:
        WrongSchema: It is of a newer format.
    """
    migrations = load_migrations(_MIGRATIONS)
    if _format_of(connection, schema) == len(migrations):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", (_MIGRATING,))
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute("CREATE TABLE IF NOT EXISTS format (number bigint NOT NULL)")
        version = _format_of(connection, schema)
        if version > len(migrations):
            raise WrongSchema(
                f"schema {schema} has format {version}, written by a newer Leasehold; "
                f"this one knows formats up to {len(migrations)}"
            )
        for number, script in migrations[version:]:
            connection.execute(script.encode(), prepare=False)
            connection.execute("INSERT INTO format (number) VALUES ($1)", (number,))


def _format_of(connection: psycopg.Connection[Any], schema: str) -> int:
    """Return the number of the newest migration that was made, 0 if none was."""
    table = sql.Identifier(schema, "format").as_string(connection)
    ((found,),) = connection.execute("SELECT to_regclass($1)", (table,)).fetchall()
    if found is None:
        return 0
    ((newest,),) = connection.execute("SELECT max(number) FROM format").fetchall()
    return newest or 0


def read_back(connection: psycopg.Connection[Any]) -> dict[str, str | int]:
    """Return what the database says of its own settings."""
    row = connection.execute(
        "SELECT " + ", ".join(f"current_setting('{name}')" for name in _REPORTED)
    ).fetchone()
    assert row is not None
    return dict(zip(_REPORTED, row, strict=True))
