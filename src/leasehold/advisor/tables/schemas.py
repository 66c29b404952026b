"""The columns of the lifecycle tables; ``docs/reference/analytics-tables.md`` says what they mean.

Moments are Unix milliseconds, lengths of time are seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

FORMAT: Final = 2
"""Of the folder of tables. Rises if a reader of older tables could misunderstand newer ones."""

_STRING: Final = StringType()
_INT: Final = IntegerType()
_LONG: Final = LongType()
_DOUBLE: Final = DoubleType()


class Ending(StrEnum):
    """What became of an attempt: the column ``outcome`` of the table of attempts."""

    COMPLETED = "completed"
    COMPLETED_LATE = "completed_late"
    LAPSED = "lapsed"
    SESSION_LOST = "session_lost"
    FAILED = "failed"
    RETURNED = "returned"
    INTERRUPTED = "interrupted"
    BURIED = "buried"
    REMOVED = "removed"
    OPEN = "open"


class Fate(StrEnum):
    """What became of a message: the column ``outcome`` of the table of messages."""

    COMPLETED = "completed"
    POISONED = "poisoned"
    EXPIRED = "expired"
    REMOVED = "removed"
    OPEN = "open"


_Column: TypeAlias = tuple[str, DataType]


def _columns(*columns: _Column) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


ATTEMPTS: Final = _columns(
    ("account", _STRING),
    ("queue", _STRING),
    ("message_id", _STRING),
    ("message_type", _STRING),
    ("attempt", _INT),
    ("holder", _STRING),
    ("session_id", _STRING),
    ("claim", _STRING),
    ("leased_at_ms", _LONG),
    ("ended_at_ms", _LONG),
    ("seconds", _DOUBLE),
    ("lease_s", _DOUBLE),
    ("first_lease_s", _DOUBLE),
    ("outcome", _STRING),
    ("reason", _STRING),
    ("finished", BooleanType()),
    ("renewals", _INT),
    ("error_type", _STRING),
    ("error_fingerprint", _STRING),
    ("day", DateType()),
)
"""One row for each lease of a message."""

MESSAGES: Final = _columns(
    ("account", _STRING),
    ("queue", _STRING),
    ("message_id", _STRING),
    ("message_type", _STRING),
    ("inserted_at_ms", _LONG),
    ("first_leased_at_ms", _LONG),
    ("ended_at_ms", _LONG),
    ("outcome", _STRING),
    ("reason", _STRING),
    ("deliveries", _INT),
    ("redeliveries", _INT),
    ("wait_s", _DOUBLE),
    ("handling_s", _DOUBLE),
    ("total_s", _DOUBLE),
    ("expires_at_ms", _LONG),
    ("error_type", _STRING),
    ("error_fingerprint", _STRING),
    ("group_id", _STRING),
    ("day", DateType()),
)
"""One row for each stay of a message in a queue."""

_ATTEMPTS_ENDED: Final[tuple[_Column, ...]] = (
    ("completed", _LONG),
    ("late", _LONG),
    ("lapsed", _LONG),
    ("failed", _LONG),
    ("lost", _LONG),
)
_HAPPENED: Final[tuple[_Column, ...]] = (
    ("leased", _LONG),
    *_ATTEMPTS_ENDED,
    ("buried", _LONG),
    ("poisoned", _LONG),
    ("expired", _LONG),
    ("removed", _LONG),
)

WORKERS: Final = _columns(
    ("account", _STRING),
    ("queue", _STRING),
    ("holder", _STRING),
    ("attempts", _LONG),
    *_ATTEMPTS_ENDED,
    ("work_s", _DOUBLE),
    ("p50_s", _DOUBLE),
    ("p99_s", _DOUBLE),
    ("first_seen_ms", _LONG),
    ("last_seen_ms", _LONG),
)
"""One row for each holder of leases in a queue."""

QUEUES: Final = _columns(
    ("account", _STRING),
    ("queue", _STRING),
    ("hour", TimestampType()),
    ("put", _LONG),
    *_HAPPENED,
    ("backlog_end", _LONG),
    ("oldest_wait_s", _DOUBLE),
)
"""One row for each hour of a queue in which something happened."""

HOLDER_TALLIES: Final = _columns(
    ("account", _STRING),
    ("queue", _STRING),
    ("holder", _STRING),
    ("bin", _INT),
    ("attempts", _LONG),
    *_ATTEMPTS_ENDED,
    ("work_s", _DOUBLE),
    ("longest_s", _DOUBLE),
    ("first_seen_ms", _LONG),
    ("last_seen_ms", _LONG),
)
"""Attempts counted by holder, queue and length of finished work; kept between incremental runs.
A bin holds lengths that are within 1 % of each other; null is work that was not finished."""

HOUR_TALLIES: Final = _columns(
    ("account", _STRING),
    ("queue", _STRING),
    ("hour_ms", _LONG),
    ("put", _LONG),
    ("gone", _LONG),
    *_HAPPENED,
    ("oldest_wait_s", _DOUBLE),
)
"""What happened in an hour of a queue, counted; kept between incremental runs."""

OPEN: Final = _columns(
    ("seq", _LONG),
    ("place", _INT),
    ("at", _LONG),
    ("t", ByteType()),
    ("account", _STRING),
    ("queue", _STRING),
    ("message_id", _STRING),
    ("inserted", _LONG),
    ("expires", _LONG),
    ("visible", _LONG),
    ("count", _INT),
    ("phase", ByteType()),
    ("since", _LONG),
    ("visible_since", _LONG),
    ("renewals", _INT),
    ("holder", _STRING),
    ("session", _STRING),
    ("reason", _STRING),
    ("target", _STRING),
    ("message_type", _STRING),
    ("error_type", _STRING),
    ("error_fingerprint", _STRING),
    ("group_id", _STRING),
)
"""Events as the lifecycle is made of them: those of messages that have not ended are kept between
incremental runs. Moments are Unix milliseconds, types and phases are the numbers of
:class:`~leasehold.domain.events.EventType` and :class:`~leasehold.domain.model.Phase`."""

DETAILS: Final = _columns(
    ("message_id", _STRING),
    ("message_type", _STRING),
    ("error_type", _STRING),
    ("error_fingerprint", _STRING),
)
"""What other logs do not tell of a message, nor Leasehold's before it had these columns."""
