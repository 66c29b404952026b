"""The streaming query of the feedback loop estimates what the batch job does."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from leasehold.advisor.live_summary import Happened, LiveSummary
from leasehold.advisor.recommendation import Asked, recommend
from leasehold.advisor.summaries import Bin, QueueSummary, Work
from leasehold.advisor.tables.summarize import summarize
from leasehold.advisor.tallies import DAY_MS
from leasehold.domain.events import Event
from leasehold.domain.model import NEVER_MS
from leasehold.spark import feedback
from leasehold.spark.schemas import EVENTS
from tests.spark.analytics.exported import cut, export
from tests.spark.analytics.logs import frame_of, made
from tests.spark.analytics.oracle import Oracle
from tests.spark.analytics.test_summaries import expected

YEAR_MS = 365 * DAY_MS


def happened(event: Event) -> Happened:
    """Return an event as the summary takes it."""
    return Happened(
        event.seq,
        event.place,
        event.at_ms,
        int(event.type),
        event.queue,
        event.message_id,
        None if event.expires_at_ms == NEVER_MS else event.expires_at_ms,
        event.visible_at_ms,
        event.dequeue_count,
        event.phase,
        event.since_ms,
        event.renewals,
        event.session,
        event.reason,
        event.target,
        event.message_type,
    )


def pieces(events: Sequence[Event], many: int) -> list[list[Event]]:
    """Return a log in pieces, cut anywhere between two batches of changes."""
    seqs = sorted({each.seq for each in events})
    return cut(events, random.Random(many).sample(seqs, many - 1))


def are_close(one: Any, other: Any) -> bool:
    """Tell whether two figures are equal but for the rounding of sums."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)
    if isinstance(one, Bin) and isinstance(other, Bin):
        return replace(one, seconds=0) == replace(other, seconds=0) and math.isclose(
            one.seconds, other.seconds, rel_tol=1e-12, abs_tol=1e-12
        )
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(are_close, one, other))
    return bool(one == other)


def differences(found: Work, want: Work) -> list[str]:
    """Return the names of the fields that are not as they should be."""
    return [
        each.name
        for each in fields(Work)
        if not are_close(getattr(found, each.name), getattr(want, each.name))
    ]


@pytest.fixture(scope="module")
def log() -> list[Event]:
    """Return a log of one account, with all that can happen, and long enough for advice."""
    return made(1, 1_500, first=77)[0]


def end_of(log: Sequence[Event]) -> int:
    """Return when its last event happened, Unix milliseconds."""
    return max(each.at_ms for each in log)


@pytest.fixture(scope="module")
def running(log: list[Event]) -> LiveSummary:
    """Return what the log tells in many pieces, put by between each two."""
    found = LiveSummary(YEAR_MS)
    for piece in pieces(log, 25):
        found.feed(map(happened, piece))
        found = LiveSummary.from_bytes(found.to_bytes(), YEAR_MS)
    return found


@pytest.mark.parametrize("later_ms", [0, 3_600_000])
def test_observations_are_those_of_the_tuning(
    log: list[Event], running: LiveSummary, later_ms: int
) -> None:
    """Counts, crashes, silent ones, seconds of work and lengths are as told lease by lease."""
    oracle, until_ms = Oracle().run(log), end_of(log) + later_ms
    oracle.open()
    account = log[0].account
    compared = 0
    for queue in running.queues():
        for work in running.works(queue, until_ms):
            want = expected(oracle, f"{account}/{queue}", work.message_type, until_ms)
            told = (work.crashes, work.silent, work.left_out, work.given_up)
            assert told == (want.crashes, want.silent, want.left_out, want.given_up)
            assert math.isclose(work.work_s, want.work_s)
            for finished in (True, False):
                own = [each.seconds for each in want.attempts if each.finished is finished]
                bins = [each for each in work.bins if each.finished is finished]
                assert sum(each.count for each in bins) == len(own)
                assert math.isclose(sum(each.count * each.seconds for each in bins), sum(own))
            compared += 1
    assert compared > 8


def test_what_was_fed_before_is_passed_over(log: list[Event], running: LiveSummary) -> None:
    """A log that is read twice is counted once."""
    again = LiveSummary.from_bytes(running.to_bytes(), YEAR_MS)
    assert again.feed(map(happened, log)) == set()
    assert again.to_bytes() == running.to_bytes()


def test_what_is_older_than_is_kept_is_forgotten(log: list[Event]) -> None:
    """Hours, and messages of which nothing was heard: state does not grow for ever."""
    found = LiveSummary(3_600_000)
    found.feed(map(happened, log))
    last = log[-1]
    size = len(found.to_bytes())
    later_ms = last.at_ms + 40 * DAY_MS
    found.feed([happened(last._replace(seq=last.seq + 1, at_ms=later_ms))])
    assert len(found.to_bytes()) < size / 20
    assert not any(work.bins for queue in found.queues() for work in found.works(queue))


@pytest.fixture(scope="module")
def streamed(
    spark: SparkSession, log: list[Event], tmp_path_factory: pytest.TempPathFactory
) -> list[list[Row]]:
    """Return the estimates of each micro-batch of a stream of exported files."""
    folder = tmp_path_factory.mktemp("feedback")
    for piece in pieces(log, 3):
        export(folder / "log", piece)
    reading = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    reading = reading.option("recursiveFileLookup", "true")
    batches: list[list[Row]] = []

    def keep(batch: DataFrame, number: int) -> None:
        del number
        batches.append(batch.collect())

    query = (
        feedback.estimates(reading.parquet(str(folder / "log")), keep_ms=YEAR_MS)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(keep)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(200)
    return batches


def test_state_goes_on_from_one_micro_batch_to_the_next(
    streamed: list[list[Row]], running: LiveSummary
) -> None:
    """The last estimates are those of the whole log."""
    assert len(streamed) == 3
    found = [*queues_of(streamed[-1])]
    assert {each.queue for each in found} >= {"audio", "videos"}
    for queue in found:
        assert queue.works == tuple(running.works(queue.queue))


def queues_of(rows: Sequence[Row]) -> Iterator[QueueSummary]:
    """Yield the queues of estimates, as advice takes them."""
    for queue in sorted({row.queue for row in rows}):
        works = [msgspec.msgpack.decode(row.work, type=Work) for row in rows if row.queue == queue]
        yield QueueSummary(queue=queue, works=tuple(works))


@pytest.mark.long
def test_stream_and_batch_job_advise_the_same(
    spark: SparkSession, log: list[Event], streamed: list[list[Row]]
) -> None:
    """In three micro-batches, and in one job: the same estimates, and the same advice."""
    job = summarize(frame_of(spark, log), since_ms=0, until_ms=end_of(log))
    by_name = {each.queue: each for each in job.queues}
    enough = 0
    for queue in queues_of(streamed[-1]):
        # Of a type of which nothing was received there is nothing to learn, and no row.
        works = [each for each in by_name[queue.queue].works if each.deliveries or each.bins]
        mine = {each.message_type: each for each in queue.works}
        assert mine.keys() == {each.message_type for each in works}, queue.queue
        for work in works:
            assert not differences(mine[work.message_type], work), queue.queue
        ours = recommend(queue, Asked())
        theirs = recommend(replace(by_name[queue.queue], works=tuple(works)), Asked())
        assert ours.timeout_s == theirs.timeout_s
        assert math.isclose(ours.wanted_s, theirs.wanted_s)
        assert (ours.because, ours.basis) == (theirs.because, theirs.basis)
        enough += ours.is_enough
    assert enough


def test_figures_of_the_rows_are_those_of_the_work(streamed: list[list[Row]]) -> None:
    """What is shown for people is what is kept for advice."""
    for row in streamed[-1]:
        work = msgspec.msgpack.decode(row.work, type=Work)
        assert (row.completed, row.late, row.lapsed) == (work.completed, work.late, work.lapsed)
        deletes = work.completed + work.late
        assert row.late_share == (work.late / deletes if deletes else None)
        if row.p50_s is not None and row.p99_s is not None:
            assert row.p50_s <= row.p99_s


def test_late_deletes_are_told_with_the_times_of_their_leases(
    spark: SparkSession, log: list[Event]
) -> None:
    """Those that were refused, and those that counted since nobody else had the message."""
    found = feedback.late_deletes(frame_of(spark, log)).collect()
    assert {row.refused for row in found} == {True, False}
    assert [row.asDict().keys() for row in found[:1]] == [
        dict.fromkeys(feedback.LATE_DELETES).keys()
    ]
    refused = [each for each in log if each.type.name == "REFUSED" and each.since_ms]
    assert sum(row.refused for row in found) == len(refused)
    seconds = sorted(row.seconds for row in found if row.refused)
    assert seconds == sorted((each.at_ms - (each.since_ms or 0)) / 1000 for each in refused)
