"""Summaries of tables that few have: many types, messages brought back, several accounts."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from leasehold.advisor.summaries import LogSummary, QueueSummary
from leasehold.advisor.tables.schemas import ATTEMPTS, MESSAGES
from leasehold.advisor.tables.summarize import (
    MOST_TYPES,
    OTHER_TYPES,
    observed_together,
    summarize_tables,
    told,
)

_HOUR_MS = 3_600_000
_BEGIN_MS = 400_000 * _HOUR_MS
_UNTIL_MS = _BEGIN_MS + 5 * _HOUR_MS + 1


def row(schema: StructType, **given: Any) -> tuple[Any, ...]:
    """Return a row with what is given, and null else."""
    assert {*given} <= {*schema.names}
    return tuple(given.get(name) for name in schema.names)


def attempt(message: str, leased_s: int, ended_s: int | None, **other: Any) -> tuple[Any, ...]:
    """Return an attempt; its moments are seconds from the beginning."""
    return row(
        ATTEMPTS,
        message_id=message,
        leased_at_ms=_BEGIN_MS + 1000 * leased_s,
        ended_at_ms=None if ended_s is None else _BEGIN_MS + 1000 * ended_s,
        **{
            "account": "acme",
            "queue": "orders",
            "attempt": 1,
            "outcome": "completed",
            "finished": True,
            "renewals": 0,
            "lease_s": 600.0,
            "first_lease_s": 600.0,
            "seconds": None if ended_s is None else float(ended_s - leased_s),
            **other,
        },
    )


def message(name: str, inserted_s: int, ended_s: int, **other: Any) -> tuple[Any, ...]:
    """Return the stay of a message."""
    return row(
        MESSAGES,
        message_id=name,
        inserted_at_ms=_BEGIN_MS + 1000 * inserted_s,
        first_leased_at_ms=_BEGIN_MS + 1000 * inserted_s,
        ended_at_ms=_BEGIN_MS + 1000 * ended_s,
        **{
            "account": "acme",
            "queue": "orders",
            "outcome": "completed",
            "deliveries": 1,
            "redeliveries": 0,
            **other,
        },
    )


@pytest.fixture(scope="module")
def summary(spark: SparkSession) -> LogSummary:
    """Return a summary of queues of two accounts, one with a type for nearly each message."""
    attempts, messages = [], []
    kinds = [*range(MOST_TYPES + 5), *range(MOST_TYPES)]
    for place, kind in enumerate(kinds):
        name = f"{kind:04}"
        attempts.append(attempt(f"m{place}", place, place + 1, message_type=name))
        messages.append(message(f"m{place}", place, place + 1, message_type=name))
    # Given up twice, brought back once; and one of the same id in another queue of another account.
    for begin in (1_000, 2_000):
        for number in (1, 2):
            at = begin + 100 * number
            attempts.append(attempt("twice", at, at + 10, attempt=number, outcome="failed"))
        messages.append(message("twice", begin, begin + 300, deliveries=2, outcome="poisoned"))
    for account, queue in (("acme", "videos"), ("other", "videos"), ("other", "orders")):
        of = {"account": account, "queue": queue}
        attempts.append(attempt("twice", 1_100, 1_200, **of))
        messages.append(message("twice", 1_000, 1_200, **of))
    return summarize_tables(
        spark.createDataFrame(attempts, ATTEMPTS),
        spark.createDataFrame(messages, MESSAGES),
        since_ms=_BEGIN_MS,
        until_ms=_UNTIL_MS,
        queues=["acme/orders", "videos"],
    )


@pytest.fixture(scope="module")
def orders(summary: LogSummary) -> QueueSummary:
    """Return the queue with all these types."""
    return next(each for each in summary.queues if each.queue == "acme/orders")


def test_queues_are_chosen_by_the_names_that_summaries_give_them(summary: LogSummary) -> None:
    """With the account it is one queue, without it those of all accounts."""
    assert [each.queue for each in summary.queues] == ["acme/orders", "acme/videos", "other/videos"]


def test_the_smallest_of_very_many_types_are_one(orders: QueueSummary) -> None:
    """No work is lost for that, and what has no type stays so."""
    types = [work.message_type for work in orders.works]
    assert len(types) == MOST_TYPES + 2
    other = next(work for work in orders.works if work.message_type == OTHER_TYPES)
    assert (other.messages, other.completed, sum(each.count for each in other.bins)) == (5, 5, 5)
    assert sum(work.messages for work in orders.works) == 2 * MOST_TYPES + 5 + 2
    assert sum(work.completed for work in orders.works) == 2 * MOST_TYPES + 5
    assert next(work for work in orders.works if work.message_type is None).messages == 2


def test_a_timeline_shows_its_own_stay(orders: QueueSummary) -> None:
    """Of a message that was brought back into its queue each stay has the attempts made in it."""
    shown = {
        line.inserted_at_ms - _BEGIN_MS: [
            (span.leased_at_ms - _BEGIN_MS) // 1000 for span in line.attempts
        ]
        for line in orders.timelines
    }
    assert shown == {1_000_000: [1_100, 1_200], 2_000_000: [2_100, 2_200]}


def test_hours_go_on_to_the_end_of_the_log(summary: LogSummary) -> None:
    """Those in which nothing happens any more are hours too."""
    for queue in summary.queues:
        starts = [(each.start_ms - _BEGIN_MS) // _HOUR_MS for each in queue.hours]
        assert starts == [0, 1, 2, 3, 4]


def test_a_lease_that_goes_on_is_no_crash(spark: SparkSession) -> None:
    """Also where it is longer already than the work took once; when it has run out, it is one."""
    end_s = (_UNTIL_MS - _BEGIN_MS) // 1000
    late = {"outcome": "completed_late", "reason": "refused"}
    open_ = {"outcome": "open", "finished": False, "attempt": 2}
    attempts = [
        *(attempt(name, 0, 10, **late) for name in ("going", "over")),
        attempt("going", end_s - 100, None, lease_s=600.0, **open_),
        attempt("over", end_s - 100, None, lease_s=50.0, **open_),
    ]
    leases = told(spark.createDataFrame(attempts, ATTEMPTS), _UNTIL_MS)
    rows = observed_together(leases, _UNTIL_MS).collect()
    assert {each.message_id: (each.seconds, each.finished, each.crashes) for each in rows} == {
        "going": (10.0, True, 0),
        "over": (10.0, True, 1),
    }
