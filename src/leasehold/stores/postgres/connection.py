"""Connecting to PostgreSQL: what a connection is set to, what is read back, migrations."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
import structlog
from psycopg import errors, sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

from leasehold.domain.errors import StoreFailed
from leasehold.stores.postgres.cursor import Direct, NotInTime
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
_SETTINGS_IF_KNOWN: Final = ("transaction_timeout",)
"""Off, where this PostgreSQL has them: 17 and newer."""
_LOOKS: Final = 20
"""How often the two connections are compared: in a busy pool once may show nothing."""
_PROMPT_S: Final = 10.0
"""A second connection that has no answer after so long is named in the log."""
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


_log = structlog.get_logger(__name__)


class WrongDatabase(StoreFailed):
    """The store cannot be in this database, or not be reached this way."""

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
        WrongDatabase: It does not keep what a session is set to, or has another encoding.
    """
    _check_database(address.conninfo)
    connection = _open(address.conninfo)
    connection.prepare_threshold = 0
    connection.prepared_max = None
    # One type for all numbers, so that a statement is prepared once and not for each mix of sizes.
    connection.adapters.register_dumper(int, Int8Dumper)
    _keep_all_texts(connection)
    try:
        _set_up(connection, address.schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: psycopg.Connection[Any], schema: str) -> None:
    """Set what a session of ours needs, and see that it is set."""
    pairs = {**_SETTINGS, "search_path": f'"{schema}"'}
    row = connection.execute(
        "SELECT "
        + ", ".join(f"set_config('{name}', ${at}, false)" for at, name in enumerate(pairs, 1)),
        list(pairs.values()),
    ).fetchone()
    for (name, wanted), actual in zip(pairs.items(), row or (), strict=True):
        if actual != wanted:
            raise WrongDatabase(f"{name} is {actual!r} after it was set to {wanted!r}")
    connection.execute(
        "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = ANY ($1)",
        (list(_SETTINGS_IF_KNOWN),),
    )


def _open(conninfo: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect, and set nothing."""
    given = psycopg.conninfo.conninfo_to_dict(conninfo)
    wanted = {name: value for name, value in _KEEPALIVE.items() if name not in given}
    return psycopg.connect(
        psycopg.conninfo.make_conninfo(conninfo, **wanted),
        autocommit=True,
        cursor_factory=psycopg.RawCursor,
    )


@functools.cache
def _check_database(conninfo: str) -> None:
    """Look, once in a process, whether a database and the way to it are fit for a store.

    A pooler in transaction mode gives the statements of one connection to several backends, and
    those of several connections to one. So one connection looks which backend it has while another
    keeps a transaction open. Nothing is set, as the backends go to other programs afterwards.

    Raises:
        psycopg.Error: It cannot be reached, or refuses.
        WrongDatabase: They are not.
    """
    with _open(conninfo) as first, _open(conninfo) as second:
        encoding = first.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise WrongDatabase(
                f"the encoding of the database is {encoding}, which cannot hold all texts; create "
                "one with ENCODING 'UTF8' TEMPLATE template0"
            )
        ours, theirs = Direct(first), Direct(second)
        backend = _backend_of(ours)
        for _ in range(_LOOKS):
            try:
                other = _backend_of(theirs, "BEGIN; ")
                is_shared = other == backend or _backend_of(ours) != backend
                theirs.run(b"COMMIT")
            except psycopg.OperationalError as error:
                if "statement pooling" not in str(error):
                    raise
                raise WrongDatabase(_POOLED) from None
            if is_shared:
                raise WrongDatabase(_POOLED)


def _backend_of(direct: Direct, before: str = "") -> int:
    """Return the number of the backend that carries out a statement."""
    statements = f"{before}SELECT pg_backend_pid()".encode()
    direct.set_deadline(_PROMPT_S)
    try:
        found = direct.run(statements)
    except NotInTime:
        _log.warning(
            "database.slow",
            meaning="the database, or a pooler in front of it, gives this server no second"
            " connection; a server needs two",
        )
        direct.set_deadline(None)
        found = direct.run(statements)
    return int(found.get_value(0, 0) or 0)


_POOLED: Final = (
    "a pooler in front of the database shares its connections among clients between transactions; "
    "a server needs sessions of its own: set pool_mode = session for this database, or connect to "
    "PostgreSQL directly"
)


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
        WrongDatabase: It is of a newer format, or may not be made.
    """
    try:
        _migrate(connection, schema)
    except errors.InsufficientPrivilege as error:
        role = connection.info.user
        raise WrongDatabase(
            f"role {role} may not use, make or change the tables in schema {schema} "
            f"({error.diag.message_primary}); let it: GRANT CREATE ON DATABASE "
            f"{connection.info.dbname} TO {role}, or CREATE SCHEMA {schema} AUTHORIZATION {role}"
        ) from error


def _migrate(connection: psycopg.Connection[Any], schema: str) -> None:
    migrations = load_migrations(_MIGRATIONS)
    if _format_of(connection, schema) == len(migrations):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", (_MIGRATING,))
        ((is_there,),) = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", (schema,)
        ).fetchall()
        if not is_there:  # IF NOT EXISTS needs the right to create one in any case
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        version = _format_of(connection, schema)
        if version:
            connection.execute("LOCK TABLE change IN ACCESS EXCLUSIVE MODE")
        else:
            connection.execute("CREATE TABLE IF NOT EXISTS format (number bigint NOT NULL)")
        if version > len(migrations):
            raise WrongDatabase(
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
