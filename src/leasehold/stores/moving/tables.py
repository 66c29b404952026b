"""The tables that move: their columns, which are those of every store, and whose rows are whose."""

# ruff: noqa: S608 - names of tables and columns are constants of ours
from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


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
            :meth:`~leasehold.stores.moving.ends.End.select` makes; None if they stay.
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
    "detail/t place/i session/t saved/o",
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
