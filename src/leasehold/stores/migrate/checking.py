"""Checking that a store is whole: what must agree, does; nothing is changed.

A store that is being served can be checked: all is read as of one moment.
"""

# ruff: noqa: S608 - names of tables and columns are constants of ours
from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Protocol

import apsw

from leasehold.domain.errors import StoreFailed
from leasehold.domain.wording import count_of
from leasehold.stores.migrate.ends import MoveRefused, Rows
from leasehold.stores.migrate.marks import ARRIVED, AWAY, mark_in
from leasehold.stores.sql.statements import load_migrations
from leasehold.stores.sqlite.connection import APPLICATION_ID

_MASK: Final = (1 << 40) - 1
_EXAMPLES: Final = 3


class Level(IntEnum):
    """How bad something is."""

    OK = 0
    WARN = 1
    FAIL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One thing that was looked at.

    Attributes:
        check: Its name.
        level: How bad it is.
        found: What was found.
    """

    check: str
    level: Level
    found: str


class Reader(Protocol):
    """Reads a store as it is at one moment."""

    kind: str

    def rows(self, query: str) -> Rows:
        """Run a query."""
        ...

    def meta(self) -> dict[str, Any]:
        """Return what the store keeps about itself."""
        ...

    def format(self) -> tuple[int, int]:
        """Return the number of its format, and the newest that is known."""
        ...

    def integrity(self) -> Checked:
        """Have the database check itself."""
        ...

    def used_row_key(self) -> int:
        """Return the highest row key that may have been used."""
        ...


def check(reader: Reader) -> Iterator[Checked]:
    """Look at everything, one after the other; some take as long as the store is large."""
    number, newest = reader.format()
    if number != newest:
        yield said("format", Level.FAIL if number > newest else Level.WARN, _format(number, newest))
        return
    yield said("format", Level.OK, f"{reader.kind}, format {number}")
    meta = reader.meta()
    mark = mark_in(meta)
    away = sorted(_gone(name, kept) for name, kept in meta.items() if name.startswith(AWAY))
    if mark is not None:
        yield said("mark", Level.FAIL, f"must not be served: {mark.reason()}")
    else:
        gone = f"; moved away: {', '.join(away)}" if away else ""
        yield said("mark", Level.OK, f"may be served{gone}")
    yield reader.integrity()
    yield _counts(reader)
    for name, query, meaning in (*_ORPHANS, *_ORPHANS_OF.get(reader.kind, ())):
        yield _orphans(reader, name, query, meaning)
    yield _row_keys(reader)
    yield from _log(reader)
    ((large,),) = reader.rows("SELECT count(*) FROM message WHERE place = 2")
    ((waiting,),) = reader.rows("SELECT count(*) FROM body_garbage")
    more = f"; {waiting} are to be removed there" if waiting else ""
    yield said("large bodies", Level.OK, f"{large} in the body store, not looked at{more}")


def _gone(name: str, kept: Any) -> str:
    return f"{name.removeprefix(AWAY)} to {json.loads(kept)['to']}"


def said(check: str, level: Level, found: str) -> Checked:
    """Return what was found."""
    return Checked(check=check, level=level, found=found)


def _format(number: int, newest: int) -> str:
    if number > newest:
        return f"format {number}, of a newer Leasehold; this one knows formats up to {newest}"
    return f"format {number}; open it with this Leasehold ({newest}) once, then check it again"


def _counts(reader: Reader) -> Checked:
    """Compare the numbers of messages that are kept with those of rows."""
    lanes: dict[int, int] = dict(
        reader.rows(
            f"SELECT partition & {_MASK}, count(*) FROM message WHERE visible_at_ms IS NOT NULL"
            " GROUP BY 1"
        )
    )
    claims: dict[tuple[str, str], int] = {}
    for account, queue, partition in reader.rows(_CLAIMS[reader.kind]):
        claims[account, queue] = claims.get((account, queue), 0) + lanes.get(partition, 0)
    bad = []
    total = 0
    queues = reader.rows(_COUNTED[reader.kind])
    for account, name, partition, counted in queues:
        rows = lanes.get(partition, 0) + claims.get((account, name), 0)
        total += rows
        if rows != counted:
            bad.append(f"{account}/{name} counts {counted} and has {rows}")
    if not bad:
        return said(
            "counts",
            Level.OK,
            f"{count_of(total, 'message')} in {count_of(len(queues), 'queue')}, as counted",
        )
    return said("counts", Level.FAIL, some(bad))


_CLAIMS: Final = {
    "sqlite": "SELECT json_extract(content, '$.claim.account'),"
    " json_extract(content, '$.claim.queue'), partition FROM claim",
    "postgres": "SELECT content::json #>> '{claim,account}', content::json #>> '{claim,queue}',"
    " partition FROM claim",
}
_COUNTED: Final = {
    "sqlite": "SELECT account, name, partition, message_count FROM queue ORDER BY 1, 2",
    "postgres": "SELECT account, name, partition, (SELECT coalesce(sum(number), 0)::bigint FROM"
    " counted WHERE counted.partition = queue.partition) FROM queue ORDER BY 1, 2",
}
_ORPHANS: Final = (
    (
        "rows without a queue",
        f"""SELECT partition FROM message WHERE partition & {_MASK} NOT IN (
            SELECT partition FROM queue UNION ALL SELECT partition FROM claim
            UNION ALL SELECT partition FROM staged_slot
            UNION ALL SELECT partition & {_MASK} FROM dropped_partition)""",
        "messages that no client can reach",
    ),
    (
        "bodies without a message",
        (
            "SELECT row_key FROM message_body b WHERE NOT EXISTS"
            " (SELECT 1 FROM message m WHERE m.row_key = b.row_key AND m.place = 1)"
        ),
        "bodies without a message",
    ),
    (
        "messages without a body",
        (
            "SELECT row_key FROM message m WHERE place = 1 AND NOT EXISTS"
            " (SELECT 1 FROM message_body b WHERE b.row_key = m.row_key)"
        ),
        "messages without the body that they name",
    ),
    (
        "saved data without a message",
        (
            "SELECT row_key FROM message_saved s WHERE NOT EXISTS"
            " (SELECT 1 FROM message m WHERE m.row_key = s.row_key AND m.{saved})"
        ),
        "saved progress without a message",
    ),
    (
        "messages without saved data",
        (
            "SELECT row_key FROM message m WHERE m.{saved} AND NOT EXISTS"
            " (SELECT 1 FROM message_saved s WHERE s.row_key = m.row_key)"
        ),
        "messages without the progress that they name",
    ),
    (
        "streams without a queue",
        (
            "SELECT stream_id FROM stream s WHERE NOT EXISTS"
            " (SELECT 1 FROM queue q WHERE q.account = s.account AND q.name = s.queue)"
        ),
        "streams of queues that do not exist",
    ),
)
_ORPHANS_OF: Final = {
    "sqlite": (
        (
            "segments without a message",
            (
                "SELECT first_key FROM body_segment s WHERE NOT EXISTS (SELECT 1 FROM message m"
                " WHERE m.row_key BETWEEN s.first_key AND s.last_key AND m.place = 3)"
            ),
            "segments of bodies without a message",
        ),
        (
            "messages without a segment",
            (
                "SELECT row_key FROM message m WHERE place = 3 AND NOT EXISTS (SELECT 1 FROM"
                " body_segment s WHERE m.row_key <= s.last_key"
                " AND s.first_key = m.row_key - (CAST(m.body AS INTEGER) >> 20 & 255)"
                " AND length(s.content) >= (CAST(m.body AS INTEGER) >> 28)"
                " + (CAST(m.body AS INTEGER) & 1048575))"
            ),
            "messages without the segment that they name",
        ),
    ),
}
"""Of one kind of store only."""
_SAVED: Final = {"sqlite": "saved = 1", "postgres": "saved"}


def _orphans(reader: Reader, name: str, query: str, meaning: str) -> Checked:
    query = query.replace("{saved}", _SAVED[reader.kind])
    ((count,),) = reader.rows(f"SELECT count(*) FROM ({query}) found")
    if not count:
        return said(name, Level.OK, "none")
    shown = ", ".join(str(key) for key, *_ in reader.rows(f"{query} LIMIT {_EXAMPLES}"))
    return said(name, Level.FAIL, f"{count} {meaning}, such as {shown}")


def _row_keys(reader: Reader) -> Checked:
    ((highest,),) = reader.rows("SELECT coalesce(max(row_key), 0) FROM message")
    used = reader.used_row_key()
    if highest > used:
        return said("row keys", Level.FAIL, f"{highest} is there, but {used} is the last used")
    return said("row keys", Level.OK, f"up to {used} may have been used")


def _log(reader: Reader) -> Iterator[Checked]:
    ((batches, first, last, events, size, real),) = reader.rows(
        "SELECT count(*), min(seq), max(seq), coalesce(sum(events), 0), coalesce(sum(size), 0),"
        " coalesce(sum(length(content)), 0) FROM event_batch"
    )
    if not batches:
        yield said("event log", Level.OK, "empty")
        return
    found = (
        f"{count_of(events, 'event')} in {count_of(batches, 'batch', 'batches')}, "
        f"{first} to {last}, {count_of(size, 'byte')}"
    )
    if size != real:
        yield said("event log", Level.FAIL, f"{found}; in truth {count_of(real, 'byte')}")
    elif reader.kind == "postgres":
        ((counted,),) = reader.rows(
            "SELECT coalesce(sum(number), 0) FROM counted WHERE partition = 0"
        )
        wrong = "" if counted == size else f"; {count_of(counted, 'byte')} counted"
        yield said("event log", Level.WARN if wrong else Level.OK, found + wrong)
    else:
        # Numbers follow each other here; in PostgreSQL one is lost with each batch undone.
        gap = last - first + 1 - batches
        moved = any(name.startswith(ARRIVED) for name in reader.meta())
        more = f"; {gap} numbers between them are not used" if gap else ""
        yield said("event log", Level.FAIL if gap and not moved else Level.OK, found + more)


def some(bad: Sequence[str]) -> str:
    """Return the first of what was found."""
    more = f", and {len(bad) - _EXAMPLES} more" if len(bad) > _EXAMPLES else ""
    return "; ".join(bad[:_EXAMPLES]) + more


class SqliteReader:
    """Reads a SQLite store; see :class:`Reader`."""

    kind = "sqlite"

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def rows(self, query: str) -> Rows:
        """See :class:`Reader`."""
        return self._connection.execute(query).fetchall()

    def meta(self) -> dict[str, Any]:
        """See :class:`Reader`."""
        return dict(self.rows("SELECT name, value FROM meta"))

    def format(self) -> tuple[int, int]:
        """See :class:`Reader`."""
        newest = len(load_migrations("leasehold.stores.sqlite.migrations"))
        return int(self._connection.pragma("user_version")), newest

    def integrity(self) -> Checked:
        """See :class:`Reader`."""
        told = [str(text) for (text,) in self.rows("PRAGMA integrity_check(10)")]
        if told == ["ok"]:
            return said("integrity", Level.OK, "SQLite reports no errors")
        return said("integrity", Level.FAIL, some(told))

    def used_row_key(self) -> int:
        """See :class:`Reader`."""
        return int(self.meta()["row_keys_reserved"])


@contextmanager
def read_sqlite(path: Path) -> Iterator[SqliteReader]:
    """Open a database to read it only.

    Raises:
        MoveRefused: There is none, or it is no store.
    """
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.CantOpenError:
        raise MoveRefused(f"no store in {path.parent}") from None
    try:
        if connection.pragma("application_id") != APPLICATION_ID:
            raise MoveRefused(f"{path} is not a Leasehold database")
        connection.pragma("busy_timeout", 5_000)
        connection.execute("BEGIN")
        yield SqliteReader(connection)
    except apsw.Error as error:
        raise StoreFailed from error
    finally:
        connection.close(force=True)
