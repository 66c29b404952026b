"""Tables as sorted lists of rows, so that they can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

ATTEMPT: Final = (
    "account",
    "queue",
    "message_id",
    "leased_at_ms",
    "attempt",
    "holder",
    "session_id",
    "claim",
    "ended_at_ms",
    "seconds",
    "lease_s",
    "first_lease_s",
    "outcome",
    "reason",
    "finished",
    "renewals",
    "message_type",
    "error_type",
    "error_fingerprint",
)
MESSAGE: Final = (
    "account",
    "queue",
    "message_id",
    "inserted_at_ms",
    "first_leased_at_ms",
    "ended_at_ms",
    "outcome",
    "reason",
    "deliveries",
    "redeliveries",
    "wait_s",
    "handling_s",
    "total_s",
    "expires_at_ms",
    "message_type",
    "error_type",
    "error_fingerprint",
    "group_id",
)


def expected(rows: Iterable[Mapping[str, Any]], columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return rows of the oracle."""
    return sorted((tuple(row[name] for name in columns) for row in rows), key=repr)


def found(table: DataFrame, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return rows of a table."""
    return sorted((tuple(row) for row in table.select(*columns).collect()), key=repr)


def differing(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> str:
    """Return what is in one list and not in the other, the first of it."""
    only_one, only_other = set(one) - set(other), set(other) - set(one)
    return "\n".join(
        map(repr, [*sorted(only_one, key=repr)[:5], "--", *sorted(only_other, key=repr)[:5]])
    )
