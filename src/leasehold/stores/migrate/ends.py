"""The two ends of a move: what a store must be able to do to be read from, or written to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from leasehold.domain.model import BodyRef, id_from_blob
from leasehold.stores.sql.catalog import lanes_of
from leasehold.stores.sql.plain_json import detail_from_json
from leasehold.stores.sql.texts import to_kept

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]

AT_ONCE: Final = 2_000
"""Rows that are in memory at a time."""


class MoveRefused(Exception):
    """The move cannot be made; nothing was changed. The text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWater:
    """Numbers up to which a store has used, or may have used, what is never used twice.

    Attributes:
        row_key: Row keys of messages.
        partition: Partitions, of queues, claims and parts of transactions.
        token: Tokens of streams.
        event_seq: Numbers of event batches.
        stream_id: Numbers of streams.
    """

    row_key: int
    partition: int
    token: int
    event_seq: int
    stream_id: int


class End(Protocol):
    """A store that is not served now. Between ``lock`` and ``commit`` no other process can change
    it.
    """

    shown: str
    """The store, for people: without a password."""

    def lock(self) -> None:
        """Begin a transaction, and keep everybody else from the store until its end.

        Raises:
            MoveRefused: A server serves it.
        """
        ...

    def commit(self) -> None:
        """Make the transaction durable, and let others in; servers read everything anew."""
        ...

    def roll_back(self) -> None:
        """Undo the transaction, if there is one."""
        ...

    def meta(self) -> dict[str, Any]:
        """Return the values that the store keeps about itself, by name."""
        ...

    def set_meta(self, name: str, value: int | str | bytes | None) -> None:
        """Keep a value under a name; None forgets it."""
        ...

    def select(self, account: str | None) -> None:
        """Have all below concern the rows of one account only; None for all rows."""
        ...

    def count(self, table: Table) -> int:
        """Return how many rows there are."""
        ...

    def read(self, table: Table) -> Iterator[Rows]:
        """Return the rows by slices, in the order of the table's key."""
        ...

    def write(self, table: Table, slices: Iterable[Rows]) -> None:
        """Add rows.

        Raises:
            MoveRefused: There is a row of that key.
        """
        ...

    def digests(self, table: Table) -> Digests:
        """Return counts and digests of the rows as the database has them now."""
        ...

    def prepare_bulk(self) -> None:
        """Make an empty store ready for many rows."""
        ...

    def finish_bulk(self) -> None:
        """Bring it back to what it was."""
        ...

    def partitions(self) -> set[int]:
        """Return all partitions and scopes in use, of all accounts."""
        ...

    def selected_partitions(self) -> set[int]:
        """Return those of the account that was selected."""
        ...

    def high_water(self) -> HighWater:
        """Return what the store has used."""
        ...

    def raise_to(self, high: HighWater) -> None:
        """Take it that as much was used, if it was not more."""
        ...

    def drop_selected(self) -> None:
        """Take an account out: its messages are left to the server's maintenance."""
        ...

    def large_bodies(self) -> list[LargeBody]:
        """Return the bodies that are not in the database."""
        ...

    def close(self) -> None:
        """Give everything back; an open transaction is undone."""
        ...


# --- tables ------------------------------------------------------------------------------------
#
# The tables that move: their columns, which are those of every store, and whose rows are whose.


# ruff: noqa: S608 - names of tables and columns are constants of ours


class Kind(Enum):
    """What is in a column."""

    NUMBER = "n"
    SMALL = "i"
    """A number of two bytes where the database has such."""
    SWITCH = "o"
    TEXT = "t"
    BYTES = "b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        name: In the database.
        columns: Names, in the order in which rows are read and written.
        kinds: What is in each.
        key: Columns by which rows are read in order.
        of_account: Condition on the rows of one account, by the tables that
            :meth:`~leasehold.stores.migrate.ends.End.select` makes; None if they stay.
        group: Column by which rows are counted; None for all together.
    """

    name: str
    columns: tuple[str, ...]
    kinds: tuple[Kind, ...]
    key: str
    of_account: str | None
    group: str | None = None


_ACCOUNT: Final = "account IN (SELECT name FROM moving_account)"
_PARTITION: Final = "partition IN (SELECT number FROM moving_number WHERE kind = 'partition')"
_LANE: Final = "+partition IN (SELECT number FROM moving_number WHERE kind = 'lane')"
_SCOPE: Final = "scope IN (SELECT number FROM moving_number WHERE kind = 'scope')"
_ROW: Final = f"row_key IN (SELECT row_key FROM message WHERE {_LANE})"
_SESSION: Final = "session_id IN (SELECT session_id FROM moving_session)"


def _table(
    name: str, columns: str, key: str, of_account: str | None, group: str | None = None
) -> Table:
    pairs = [each.split("/") for each in columns.split()]
    return Table(
        name=name,
        columns=tuple(pair[0] for pair in pairs),
        kinds=tuple(Kind(pair[1]) for pair in pairs),
        key=key,
        of_account=of_account,
        group=group,
    )


MESSAGE: Final = _table(
    "message",
    "row_key/n partition/n message_id/b inserted_at_ms/n expires_at_ms/n visible_at_ms/n "
    "dequeue_count/n fence/n body/b phase/i since_ms/n visible_since_ms/n renewals/n holder/t "
    "detail/t place/i session/t saved/o group_id/t",
    "row_key",
    _LANE,
    "partition",
)
QUEUE: Final = _table(
    "queue",
    "account/t name/t partition/n metadata/t policies/t created_at_ms/n settings/t lanes/n "
    "scope/n message_count/n",
    "account, name",
    _ACCOUNT,
)
EVENT_BATCH: Final = _table("event_batch", "seq/n at_ms/n events/n size/n content/b", "seq", None)
TABLES: Final = (
    QUEUE,
    _table("account_document", "account/t kind/t content/t", "account, kind", _ACCOUNT),
    _table(
        "stream",
        "stream_id/n account/t queue/t name/t token/n last_settled/n attached_at_ms/n "
        "settled_with/t",
        "stream_id",
        _ACCOUNT,
    ),
    _table("claim", "partition/n stream_id/n lanes/n content/t", "partition", _PARTITION),
    _table(
        "staged_slot",
        "partition/n account/t name/t part/t queue/t lanes/n rows/n keyed/n",
        "partition",
        _ACCOUNT,
    ),
    _table("session", "session_id/t content/t", "session_id", _SESSION),
    _table("claim_exemption", "partition/n row_key/n content/t", "partition, row_key", _PARTITION),
    _table(
        "staged_transaction",
        "account/t name/t state/t created_at_ms/n until_ms/n rows/n duplicates/n",
        "account, name",
        _ACCOUNT,
    ),
    _table("staged_part", "account/t name/t part/t chunks/n", "account, name, part", _ACCOUNT),
    _table(
        "staged_binding",
        "account/t name/t queue/t stream/t number/n token/n",
        "account, name, queue, stream, number",
        _ACCOUNT,
    ),
    _table(
        "job",
        "job_id/t account/t queue/t over/o created_at_ms/n updated_at_ms/n content/t",
        "job_id",
        _ACCOUNT,
    ),
    _table(
        "dedup_key",
        "scope/n key/t message_id/b inserted_at_ms/n expires_at_ms/n visible_at_ms/n until_ms/n",
        "scope, key",
        _SCOPE,
    ),
    _table("group_rate", "scope/n group_id/t full_at_us/n", "scope, group_id", _SCOPE),
    _table(
        "group_halt",
        "scope/n group_id/t message_id/t reason/t since_ms/n",
        "scope, group_id",
        _SCOPE,
    ),
    _table(
        "group_hold",
        "scope/n group_id/t session/t fence/n since_ms/n state/b",
        "scope, group_id",
        _SCOPE,
    ),
    MESSAGE,
    _table("message_body", "row_key/n content/b", "row_key", _ROW),
    _table("message_saved", "row_key/n content/t", "row_key", _ROW),
    _table("dropped_partition", "partition/n", "partition", None),
    _table("body_garbage", "key/t", "key", None),
    _table("note", "name/t content/t", "name", None),
    EVENT_BATCH,
)
"""All that move, in the order in which they do: what says whose rows are whose comes first."""


def tables_of(account: str | None) -> tuple[Table, ...]:
    """Return the tables whose rows move, with an account or with the whole store."""
    if account is None:
        return TABLES
    return tuple(table for table in TABLES if table.of_account is not None)


# --- digests -----------------------------------------------------------------------------------
#
# Digests of rows that do not depend on their order, and can be computed by every store.
#
# Of each row the first seven bytes of a SHA-256 are taken as a number; the numbers are added up.
# The row is written as its columns that are not bytes, in the form in which PostgreSQL keeps
# texts, with a bar between them, and then those that are.


Digests: TypeAlias = dict[int, tuple[int, int]]
"""By group: how many rows, and the sum over them."""

BYTES_TAKEN: Final = 7


class Digester:
    """Adds up the rows of one table as they pass."""

    def __init__(self, table: Table) -> None:
        self._texts = [at for at, kind in enumerate(table.kinds) if kind is not Kind.BYTES]
        self._bytes = [at for at, kind in enumerate(table.kinds) if kind is Kind.BYTES]
        self._group = None if table.group is None else table.columns.index(table.group)
        self._counts: dict[int, int] = {}
        self._sums: dict[int, int] = {}

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows up."""
        texts, blobs, at = self._texts, self._bytes, self._group
        counts, sums = self._counts, self._sums
        for row in rows:
            text = "|".join([str(row[place]) for place in texts])
            digest = sha256(to_kept(text).encode())
            for place in blobs:
                digest.update(b"|")
                digest.update(row[place])
            group = 0 if at is None else row[at]
            counts[group] = counts.get(group, 0) + 1
            number = int.from_bytes(digest.digest()[:BYTES_TAKEN])
            sums[group] = sums.get(group, 0) + number

    def result(self) -> Digests:
        """Return what came together."""
        return {group: (count, self._sums[group]) for group, count in self._counts.items()}


def in_postgres(table: Table, expressions: Sequence[str]) -> str:
    """Return the expression that computes the number of a row in PostgreSQL.

    Args:
        table: Of the row.
        expressions: What reads each of its columns.
    """
    pairs = list(zip(table.kinds, expressions, strict=True))
    texts = [f"coalesce(({each})::text, 'None')" for kind, each in pairs if kind is not Kind.BYTES]
    whole = f"convert_to(concat_ws('|', {', '.join(texts)}), 'UTF8')"
    for kind, each in pairs:
        if kind is Kind.BYTES:
            whole += f" || '|'::bytea || {each}"
    return f"('x' || encode(substr(sha256({whole}), 1, {BYTES_TAKEN}), 'hex'))::bit(56)::bigint"


# --- sql end -----------------------------------------------------------------------------------
#
# What both kinds of stores do alike as an end of a move.


# ruff: noqa: S608 - names of tables and columns are constants of ours


_WHO: Final = (
    "CREATE TEMP TABLE IF NOT EXISTS moving_account (name text)",
    "CREATE TEMP TABLE IF NOT EXISTS moving_number (kind text, number bigint)",
    "CREATE TEMP TABLE IF NOT EXISTS moving_session (session_id text)",
)
_NAMES: Final = ("moving_account", "moving_number", "moving_session")
_NUMBERS: Final = """
    SELECT partition FROM queue UNION SELECT scope FROM queue UNION SELECT partition FROM claim
    UNION SELECT partition FROM staged_slot UNION SELECT scope FROM dedup_key
    UNION SELECT partition & 1099511627775 FROM dropped_partition
"""
_DROPS: Final = (
    (
        "DELETE FROM claim_exemption WHERE partition IN"
        " (SELECT number FROM moving_number WHERE kind = 'partition')"
    ),
    (
        "DELETE FROM claim WHERE partition IN"
        " (SELECT number FROM moving_number WHERE kind = 'partition')"
    ),
    *(
        f"DELETE FROM {name} WHERE scope IN (SELECT number FROM moving_number WHERE kind = 'scope')"
        for name in ("dedup_key", "group_rate", "group_halt", "group_hold")
    ),
    "DELETE FROM session WHERE session_id IN (SELECT session_id FROM moving_session)",
    *(
        f"DELETE FROM {name} WHERE account IN (SELECT name FROM moving_account)"
        for name in (
            *("queue", "account_document", "stream", "staged_slot", "staged_transaction"),
            *("staged_part", "staged_binding", "job"),
        )
    ),
    (
        "INSERT INTO dropped_partition (partition)"
        " SELECT number FROM moving_number WHERE kind = 'lane' ON CONFLICT DO NOTHING"
    ),
)


class SqlEnd:
    """Statements that both databases know; bounds are ``$1`` and so on, in order."""

    shown: str
    _account: str | None = None

    def execute(self, query: str, bounds: Sequence[object] = ()) -> Rows:
        """Run a statement and return its rows."""
        raise NotImplementedError

    def add(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement for each of some rows."""
        for row in rows:
            self.execute(query, row)

    def number(self, query: str) -> int:
        """Return the one number that a query finds."""
        return int(self.execute(query)[0][0])

    def where(self, table: Table) -> str:
        """Return the condition on the rows that are concerned."""
        return "" if self._account is None else f" WHERE {table.of_account}"

    def select(self, account: str | None) -> None:
        """See :meth:`End.select`."""
        self._account = account
        for statement in _WHO:
            self.execute(statement)
        for name in _NAMES:
            self.execute(f"DELETE FROM {name}")
        if account is None:
            return
        self.execute("INSERT INTO moving_account (name) VALUES ($1)", (account,))
        streams = {stream_id for (stream_id,) in self._of(account, "stream_id", "stream")}
        parts: list[tuple[int, int]] = self._of(account, "partition, lanes", "queue")
        parts += self._of(account, "partition, lanes", "staged_slot")
        for partition, stream_id, lanes, content in self.execute(
            "SELECT partition, stream_id, lanes, content FROM claim"
        ):
            # Of a claim that is being given back the stream may be gone.
            if stream_id in streams or json.loads(content)["claim"]["account"] == account:
                parts.append((partition, lanes))
        numbers = [("partition", partition) for partition, _ in parts]
        for partition, lanes in parts:
            # Messages of a claim that lapsed keep the priority that they had in their queue.
            numbers += [("lane", lane) for lane in lanes_of(partition, lanes | 1 << 8)]
        numbers += [("scope", scope) for (scope,) in self._of(account, "scope", "queue")]
        self.add("INSERT INTO moving_number (kind, number) VALUES ($1, $2)", numbers)
        sessions = [
            (session_id,)
            for session_id, content in self.execute("SELECT session_id, content FROM session")
            if json.loads(content)["account"] == account
        ]
        self.add("INSERT INTO moving_session (session_id) VALUES ($1)", sessions)

    def _of(self, account: str, columns: str, table: str) -> list[Any]:
        return self.execute(f"SELECT {columns} FROM {table} WHERE account = $1", (account,))

    def shown_as(self, table: Table) -> str:
        """Return what to read a table from."""
        return table.name

    def count(self, table: Table) -> int:
        """See :meth:`End.count`."""
        return self.number(f"SELECT count(*) FROM {self.shown_as(table)}{self.where(table)}")

    def partitions(self) -> set[int]:
        """See :meth:`End.partitions`."""
        return {number for (number,) in self.execute(_NUMBERS)}

    def selected_partitions(self) -> set[int]:
        """See :meth:`End.selected_partitions`."""
        query = "SELECT number FROM moving_number WHERE kind IN ('partition', 'scope')"
        return {number for (number,) in self.execute(query)}

    def drop_selected(self) -> None:
        """See :meth:`End.drop_selected`."""
        for statement in _DROPS:
            self.execute(statement)

    def large_bodies(self) -> list[LargeBody]:
        """See :meth:`End.large_bodies`."""
        of_account = (
            ""
            if self._account is None
            else " AND partition IN (SELECT number FROM moving_number WHERE kind = 'lane')"
        )
        return large_bodies_in(self.execute(f"{LARGE_BODIES}{of_account}"))


LARGE_BODIES: Final = "SELECT message_id, detail FROM message WHERE place = 2"
"""Rows whose bodies are not in the database."""


class LargeBody(NamedTuple):
    """A body that a message names and the database does not hold."""

    message_id: str
    ref: BodyRef


def large_bodies_in(rows: Iterable[Sequence[Any]]) -> list[LargeBody]:
    """Return the bodies that rows of LARGE_BODIES name."""
    bodies = []
    for message_id, detail in rows:
        ref = detail_from_json(detail).body_ref
        assert ref is not None, "a row whose body is elsewhere says where"
        bodies.append(LargeBody(id_from_blob(bytes(message_id)), ref))
    return bodies


def slices(rows: Iterable[Row]) -> Iterable[Rows]:
    """Return rows by slices."""
    part: Rows = []
    for row in rows:
        part.append(row)
        if len(part) == AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def highest(first: HighWater, second: HighWater) -> HighWater:
    """Return what either has used."""
    return HighWater(
        row_key=max(first.row_key, second.row_key),
        partition=max(first.partition, second.partition),
        token=max(first.token, second.token),
        event_seq=max(first.event_seq, second.event_seq),
        stream_id=max(first.stream_id, second.stream_id),
    )
