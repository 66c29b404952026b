"""Summaries: what the tuning is told by Spark is what it would find lease by lease."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leasehold.advisor import Lease, observe
from leasehold.advisor.attempts import Ending, Observed
from leasehold.advisor.summaries import LogSummary, day_of, from_json, to_json
from leasehold.advisor.tables.schemas import ATTEMPTS
from leasehold.advisor.tables.summarize import day_in_sql, observed_together, summarize, told
from leasehold.domain.events import Event
from tests.spark.analytics.logs import frame_of, made
from tests.spark.analytics.oracle import Oracle, Row

QUEUES = ("audio", "videos")


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Return a log with all that can happen."""
    return made(5, 600, first=200)[0]


@pytest.fixture(scope="module")
def until_ms(events: list[Event]) -> int:
    """Return the end of the log: an hour behind its last event, so that some leases are silent."""
    return max(each.at_ms for each in events) + 3_600_000


@pytest.fixture(scope="module")
def oracle(events: list[Event]) -> Oracle:
    """Return what became of attempts and messages."""
    told = Oracle().run(events)
    told.open()
    return told


@pytest.fixture(scope="module")
def summary(spark: SparkSession, events: list[Event], until_ms: int) -> LogSummary:
    """Return the summary of the log."""
    since_ms = min(each.at_ms for each in events)
    return summarize(frame_of(spark, events), since_ms=since_ms, until_ms=until_ms, queues=QUEUES)


_WORDS = {
    "completed": Ending.COMPLETED,
    "completed_late": Ending.LATE,
    "session_lost": Ending.DIED,
    "lapsed": Ending.LAPSED,
    "open": Ending.LAPSED,
}


def lease_of(row: Row, until_ms: int) -> Lease:
    """Return an attempt as the tuning takes it."""
    ended_ms = row["ended_at_ms"]
    ending = _WORDS.get(row["outcome"], Ending.LEFT)
    if ended_ms is None:
        if row["leased_at_ms"] + row["lease_s"] * 1000 > until_ms:
            ending = Ending.OPEN
        ended_ms = min(until_ms, row["leased_at_ms"] + row["lease_s"] * 1000)
    seconds = row["seconds"]
    if seconds is None:
        seconds = (ended_ms - row["leased_at_ms"]) / 1000
    # Brought back from the poison queue, and done at once: that is a new beginning.
    alone = row["attempt"] == 1 and row["finished"] and row["reason"] != "refused"
    return Lease(
        message=(row["message_id"], alone),
        seconds=seconds,
        ending=ending,
        delivery=row["attempt"],
        since_s=(until_ms - ended_ms) / 1000,
        given_up=ending is Ending.LAPSED and row["reason"] in {"max_deliveries", "max_lapses"},
    )


def named(row: Row) -> str:
    """Return what the summary calls the queue of a row, as there are several accounts."""
    return f"{row['account']}/{row['queue']}"


def expected(oracle: Oracle, queue: str, kind: str | None, until_ms: int) -> Observed:
    """Return what the tuning makes of the attempts on messages of a type in a queue."""
    rows = [
        each
        for each in oracle.attempts
        if (named(each), each["message_type"]) == (queue, kind) and not each["claim"]
    ]
    return observe([lease_of(each, until_ms) for each in rows], late_seen=True)


@pytest.mark.long
@pytest.mark.parametrize("queue", [f"p{n}-acme/{name}" for n in (200, 204) for name in QUEUES])
def test_observations_are_those_of_the_tuning(
    summary: LogSummary, oracle: Oracle, until_ms: int, queue: str
) -> None:
    """Counts, crashes, silent ones, seconds of work and the lengths in bins are the same."""
    works = next(each for each in summary.queues if each.queue == queue).works
    assert {each.message_type for each in works} == {None, "clip", "film"}
    for work in works:
        want = expected(oracle, queue, work.message_type, until_ms)
        assert work.crashes == want.crashes
        assert work.silent == want.silent
        assert work.left_out == want.left_out
        assert work.given_up == want.given_up
        assert math.isclose(work.work_s, want.work_s)
        for finished in (True, False):
            own = [each for each in want.attempts if each.finished is finished]
            bins = [each for each in work.bins if each.finished is finished]
            assert sum(each.count for each in bins) == len(own)
            seconds = sum(each.count * each.seconds for each in bins)
            assert math.isclose(seconds, sum(each.seconds for each in own))


@pytest.mark.long
@pytest.mark.parametrize("queue", [f"p{n}-acme/{name}" for n in (200, 204) for name in QUEUES])
def test_counts_are_those_of_the_tables(summary: LogSummary, oracle: Oracle, queue: str) -> None:
    """Outcomes, deliveries, hours, backlog and timelines agree with the oracle."""
    found = next(each for each in summary.queues if each.queue == queue)
    attempts = [each for each in oracle.attempts if named(each) == queue]
    messages = [each for each in oracle.messages if named(each) == queue]
    for name, outcome in (("completed", "completed"), ("late", "completed_late")):
        own = [each for each in attempts if each["outcome"] == outcome and not each["claim"]]
        assert sum(getattr(work, name) for work in found.works) == len(own)
    assert sum(work.deliveries for work in found.works) == sum(
        each["deliveries"] for each in messages
    )
    for name, outcome in (("done", "completed"), ("set_aside", "poisoned")):
        own = [each for each in messages if each["outcome"] == outcome]
        assert sum(getattr(work, name) for work in found.works) == len(own)
    accepted = [
        each
        for each in attempts
        if each["outcome"] == "completed_late" and each["reason"] != "refused" and not each["claim"]
    ]
    assert sum(work.late_accepted for work in found.works) == len(accepted)
    for work in found.works:
        own = [
            each
            for each in attempts
            if each["message_type"] == work.message_type and not each["claim"]
        ]
        assert work.newest_hour == max(each["leased_at_ms"] // 3_600_000 for each in own)
        newest = {
            each["first_lease_s"]
            for each in own
            if each["leased_at_ms"] // 3_600_000 == work.newest_hour
        }
        assert work.newest_lease_s in newest
    over = [each for each in attempts if each["outcome"] in {"completed_late", "lapsed"}]
    unrenewed = [each for each in over if not each["claim"] and not each["renewals"]]
    assert sum(work.unrenewed or 0 for work in found.works) == len(unrenewed)
    waiting = [each for each in messages if each["outcome"] == "open"]
    assert found.open_messages == len(waiting) == found.hours[-1].backlog_end
    assert sum(each.put for each in found.hours) == len(messages)
    assert sum(each.leased for each in found.hours) == len(attempts)
    starts = [each.start_ms for each in found.hours]
    assert starts == [*range(starts[0], starts[-1] + 1, 3_600_000)]
    most = max(each["deliveries"] for each in messages)
    assert len(found.timelines[0].attempts) >= most
    poisoned = [each for each in messages if each["outcome"] == "poisoned"]
    clusters = Counter(
        (
            each["error_type"] or each["reason"],
            each["error_fingerprint"],
            each["message_type"],
        )
        for each in poisoned
    )
    assert clusters == {
        (each.error_type, each.fingerprint, each.message_type): each.count for each in found.poison
    }


@pytest.mark.parametrize("queue", [f"p{n}-acme/{name}" for n in (200, 204) for name in QUEUES])
def test_groups_are_those_of_the_tables(summary: LogSummary, oracle: Oracle, queue: str) -> None:
    """How many messages of each there are, how long they waited and what work they were."""
    (groups,) = (each.groups for each in summary.queues if each.queue == queue)
    assert groups is not None
    messages = [each for each in oracle.messages if named(each) == queue and each["group_id"]]
    assert groups.found == len(groups.largest) == len({each["group_id"] for each in messages}) > 1
    assert [each.messages for each in groups.largest] == sorted(
        Counter(each["group_id"] for each in messages).values(), reverse=True
    )
    for group in groups.largest:
        own = [each for each in messages if each["group_id"] == group.group_id]
        waits = sorted(each["wait_s"] for each in own if each["wait_s"] is not None)
        assert group.received == len(waits)
        assert group.open_messages == sum(each["outcome"] == "open" for each in own)
        assert group.dwell_longest_s == waits[-1]
        assert group.dwell_p50_s in waits
        assert sum(wait <= (group.dwell_p50_s or 0) for wait in waits) >= len(waits) / 2
        assert group.work_s == pytest.approx(sum(each["handling_s"] or 0 for each in own))


def test_a_lease_that_goes_on_is_no_crash(spark: SparkSession) -> None:
    """Though the message was done late meanwhile, and in less time; once it is over it may be."""
    known: dict[str, Any] = {"account": "a", "queue": "q", "message_id": "m", "renewals": 0}
    late: dict[str, Any] = {
        "lease_s": 60.0,
        "attempt": 1,
        "leased_at_ms": 0,
        "ended_at_ms": 70_000,
        "seconds": 70.0,
    }
    late |= {"outcome": "completed_late", "reason": "refused"}
    on: dict[str, Any] = {"attempt": 2, "leased_at_ms": 60_000, "lease_s": 100.0, "outcome": "open"}
    rows = [tuple((known | each).get(name) for name in ATTEMPTS.names) for each in (late, on)]
    attempts = spark.createDataFrame(rows, ATTEMPTS)

    def crashes(until_ms: int) -> int:
        (row,) = observed_together(told(attempts, until_ms), until_ms).collect()
        assert row.seconds == 70
        return int(row.crashes)

    assert (crashes(140_000), crashes(170_000)) == (0, 1)


@pytest.mark.long
def test_accounts_are_told(summary: LogSummary) -> None:
    """Whose queues they are, so that advice goes to no other queue of the name."""
    named = {each.queue.partition("/")[0] for each in summary.queues}
    assert named <= {*summary.accounts}
    assert len(summary.accounts) > 1


@pytest.mark.long
def test_a_summary_can_be_saved(summary: LogSummary) -> None:
    """It has nothing of Spark's in it."""
    assert from_json(to_json(summary)) == summary


@pytest.mark.long
def test_days_and_parts_of_them_are_told_apart_alike(spark: SparkSession) -> None:
    """In SQL and in Python: parts of three hours for two days, whole days before."""
    hour_ms, until_ms = 3_600_000, 1_795_000_000_000
    ages = [n * hour_ms + more for n in (0, 2, 3, 23, 24, 45, 47, 48, 71, 72) for more in (-1, 0)]
    frame = spark.createDataFrame([(until_ms - each,) for each in ages], "over_ms long")
    rows = frame.selectExpr(f"{day_in_sql(until_ms)} AS day").collect()
    assert [row.day for row in rows] == [day_of(each) for each in ages]
