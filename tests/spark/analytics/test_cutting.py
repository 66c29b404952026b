"""Lifecycle tables cut to a stretch of time, as ``leasehold analyze --tables`` does."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from leasehold.advisor.tables.schemas import ATTEMPTS, MESSAGES
from leasehold.cli.analyze_input import cut

HOUR_MS = 3_600_000
MEMBERS = {"account": "a", "queue": "q", "lease_s": 30.0, "first_lease_s": 30.0, "renewals": 0}


def attempt(message: str, number: int, begin_h: float, end_h: float | None) -> dict[str, Any]:
    """Return one lease of a message, completed if it has an end."""
    done = end_h is not None
    ended = {
        "ended_at_ms": None if end_h is None else int(end_h * HOUR_MS),
        "seconds": None if end_h is None else (end_h - begin_h) * 3_600.0,
        "outcome": "completed" if done else "open",
        "finished": done,
    }
    begun = {"message_id": message, "attempt": number, "leased_at_ms": int(begin_h * HOUR_MS)}
    return MEMBERS | begun | ended


def message(name: str, put_h: float, end_h: float | None, deliveries: int) -> dict[str, Any]:
    """Return one stay of a message, first received half an hour after it was put."""
    return {
        "account": "a",
        "queue": "q",
        "message_id": name,
        "inserted_at_ms": int(put_h * HOUR_MS),
        "first_leased_at_ms": int((put_h + 0.5) * HOUR_MS) if deliveries else None,
        "ended_at_ms": None if end_h is None else int(end_h * HOUR_MS),
        "outcome": "open" if end_h is None else "completed",
        "deliveries": deliveries,
        "redeliveries": max(0, deliveries - 1),
        "wait_s": 1_800.0 if deliveries else None,
        "total_s": None if end_h is None else (end_h - put_h) * 3_600.0,
        "reason": "operator",
    }


def test_tables_are_told_as_they_were(spark: SparkSession) -> None:
    """What ended before is left out, what began later too, and what ended later goes on."""

    def frame(rows: list[dict[str, Any]], schema: Any) -> Any:
        return spark.createDataFrame(
            [tuple(row.get(n) for n in schema.names) for row in rows], schema
        )

    attempts = frame(
        [
            attempt("before", 1, 1, 2),
            attempt("inside", 1, 1, 11),
            attempt("later", 1, 11.5, 12.5),
            attempt("later", 2, 21, 22),
            attempt("waits", 1, 21, None),
            attempt("goes on", 1, 19, None),
        ],
        ATTEMPTS,
    )
    messages = frame(
        [
            message("before", 0.5, 2, 1),
            message("inside", 0.5, 11, 1),
            message("later", 11, 22, 2),
            message("waits", 20 - 0.25, None, 1),
            message("goes on", 18.5, None, 1),
            message("new", 20.5, None, 0),
        ],
        MESSAGES,
    )
    begin, end = 10 * HOUR_MS, 20 * HOUR_MS
    leases, stays = cut(attempts, messages, begin, end, is_past=True)
    assert leases.columns == ATTEMPTS.names
    assert stays.columns == MESSAGES.names
    assert {
        (row.message_id, row.attempt): (row.outcome, row.seconds, row.finished)
        for row in leases.collect()
    } == {
        ("inside", 1): ("completed", 36_000.0, True),
        ("later", 1): ("completed", 3_600.0, True),
        ("goes on", 1): ("open", None, False),
    }
    assert {
        row.message_id: (row.outcome, row.deliveries, row.redeliveries, row.wait_s, row.reason)
        for row in stays.collect()
    } == {
        "inside": ("completed", 1, 0, 1_800.0, "operator"),
        "later": ("open", 1, 0, 1_800.0, None),
        "waits": ("open", 0, 0, None, "operator"),
        "goes on": ("open", 1, 0, 1_800.0, "operator"),
    }
    # With an end that is now there is nothing that the tables know of later.
    leases, stays = cut(attempts, messages, begin, 30 * HOUR_MS, is_past=False)
    assert (leases.count(), stays.count()) == (5, 5)
    leases, _ = cut(attempts, messages, 0, 12 * HOUR_MS, is_past=True)
    (cut_off,) = leases.where("message_id = 'later'").collect()
    assert (cut_off.outcome, cut_off.ended_at_ms, cut_off.seconds) == ("open", None, None)
