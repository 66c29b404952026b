"""The lifecycle of random logs, told by Spark and told event by event."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from leasehold.advisor.tables.derive import Lifecycle, split
from leasehold.advisor.tables.incremental import others, plain, plain_stages
from leasehold.advisor.tables.lifecycle import marks, normal, staged
from leasehold.advisor.tables.schemas import OPEN
from leasehold.advisor.tables.sources import empty
from leasehold.domain.events import Event, EventType
from leasehold.domain.model import Message, Outcome
from tests.spark.analytics.comparing import ATTEMPT, MESSAGE, differing, expected, found
from tests.spark.analytics.logs import frame_of, made
from tests.spark.analytics.oracle import Oracle

Log = tuple[list[Event], list[Message]]


@pytest.fixture(scope="module")
def log() -> Log:
    """Return a log with all that can happen."""
    return made(30, 400)


def told(spark: SparkSession, events: list[Event]) -> Lifecycle:
    """Return the tables of a log."""
    rows = normal(frame_of(spark, events))
    return split(_as_rows(staged(rows)), _as_rows(marks(rows)))


def _as_rows(frame: DataFrame) -> DataFrame:
    """Return what comes of a plan without the plan, which each table would be planned with else."""
    return frame.localCheckpoint()


def test_the_log_has_all_that_can_happen(log: Log) -> None:
    """What the other tests compare is not missing from the log."""
    types = {each.type for each in log[0]}
    assert types >= {each for each in EventType if each is not EventType.CLAIM_REOPENED}


@pytest.mark.long
def test_tables_are_those_of_the_oracle(spark: SparkSession, log: Log) -> None:
    """Every attempt and every stay is as it is told event by event, those that go on as well."""
    check(told(spark, log[0]), log[0])


@pytest.mark.long
def test_messages_done_at_once_are_told_by_their_last_event(spark: SparkSession, log: Log) -> None:
    """Taken apart from the others, those put, received and completed give the same tables."""
    events = frame_of(spark, log[0])
    assert plain(events).count() > 100
    rest = _as_rows(staged(others(events, empty(spark, OPEN), 2)))
    assert rest.join(plain(events), "message_id").isEmpty()
    check(split(rest, _as_rows(marks(normal(events))), plain_stages(events)), log[0])


def check(tables: Lifecycle, events: list[Event]) -> None:
    """Compare with the oracle."""
    oracle = Oracle().run(events)
    ended = expected(oracle.attempts, ATTEMPT), expected(oracle.messages, MESSAGE)
    attempts, messages = oracle.open()
    pairs = [
        (ended[0], found(tables.attempts, ATTEMPT)),
        (ended[1], found(tables.messages, MESSAGE)),
        (expected(attempts, ATTEMPT), found(tables.open_attempts, ATTEMPT)),
        (expected(messages, MESSAGE), found(tables.open_messages, MESSAGE)),
    ]
    for one, other in pairs:
        assert one == other, differing(one, other)


_WORDS: dict[Outcome, set[str]] = {
    Outcome.FAILED: {"failed"},
    Outcome.INTERRUPTED: {"interrupted"},
    Outcome.RETURNED: {"returned"},
    Outcome.LAPSED: {"lapsed", "completed_late"},
    Outcome.ENDED: {"interrupted"},
    Outcome.LOST: {"session_lost", "completed_late"},
    Outcome.STUCK: {"lapsed", "completed_late"},
    Outcome.BURIED: {"buried"},
}


def test_attempts_are_those_that_the_engine_remembers(log: Log) -> None:
    """The history that each live message carries names the same attempts as the oracle."""
    oracle = Oracle().run(log[0])
    moved = {
        each.message_id for each in log[0] if each.type in {EventType.POISONED, EventType.REDRIVEN}
    }
    rows: dict[str, list[Any]] = defaultdict(list)
    for row in oracle.open()[0]:
        if row["outcome"] != "open":
            rows[row["message_id"]].append(row)
    compared = 0
    for message in log[1]:
        if message.message_id in moved:
            continue
        own = sorted(rows[message.message_id], key=lambda row: row["leased_at_ms"])
        kept = message.detail.attempts
        still_lapsed = [each for each in own[len(kept) :] if each["reason"] == "refused"]
        assert len(own) - len(still_lapsed) == len(kept)
        for row, attempt in zip(own, kept, strict=False):
            compared += 1
            assert row["outcome"] in _WORDS[attempt.outcome]
            assert (row["attempt"], row["leased_at_ms"]) == (attempt.number, attempt.leased_at_ms)
            assert (row["holder"], row["renewals"]) == (attempt.holder, attempt.renewals)
            if row["outcome"] != "completed_late":
                assert row["ended_at_ms"] == attempt.ended_at_ms
    assert compared > 100


@pytest.mark.long
def test_repeated_events_are_used_once(spark: SparkSession, log: Log) -> None:
    """A log in which every event stands twice, in another order, gives the same tables."""
    events = log[0][:3000]
    once, twice = told(spark, events), told(spark, [*reversed(events), *events])
    for columns, one, other in (
        (ATTEMPT, once.attempts, twice.attempts),
        (MESSAGE, once.messages, twice.messages),
        (ATTEMPT, once.open_attempts, twice.open_attempts),
        (MESSAGE, once.open_messages, twice.open_messages),
    ):
        assert found(one, columns) == found(other, columns)
