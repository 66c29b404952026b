"""What is written down of the work on a message."""

from __future__ import annotations

from leasehold.spark.pipeline.report import Row
from leasehold.spark.pipeline.task import Recorder
from leasehold.worker.adapters.protocol import Fault, Saved
from leasehold.worker.outcomes import DONE, INTERRUPTED, RETURNED, Kind, Outcome
from tests.unit.spark.pipeline.support import StillClock, delivery, message


class Bench:
    """A recorder, the rows it makes, and a clock."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.rows: list[Row] = []
        self.recorder = Recorder(["scan", "encode"], self.clock, self.rows.append)


def test_a_row_tells_the_stages_with_their_times() -> None:
    """Each stage says when it began and what it took; a message is over when it is settled."""
    bench, given = Bench(), delivery()
    its = message(given)
    bench.recorder.before(its)
    for stage, seconds in (("scan", 2), ("encode", 5)):
        bench.recorder.begun(its, stage)
        bench.clock.s += seconds
        bench.recorder.finished(its, stage, seconds)
    assert not bench.rows
    bench.recorder.settled(given, DONE)
    [row] = bench.rows
    assert (row.message_id, row.outcome, row.reason, row.resumed_at) == ("m1", "done", None, None)
    assert [(each.stage, each.seconds, each.outcome) for each in row.stages] == [
        ("scan", 2.0, "done"),
        ("encode", 5.0, "done"),
    ]
    assert row.stages[1].began_at_ms == row.began_at_ms + 2000
    assert row.ended_at_ms == row.began_at_ms + 7000


def test_attempts_at_one_stage_are_one_entry() -> None:
    """A stage that failed and was tried again says how often, and how long all of it took."""
    bench, given = Bench(), delivery()
    its = message(given)
    bench.recorder.before(its)
    for _ in range(2):
        bench.recorder.begun(its, "scan")
        bench.clock.s += 1
        bench.recorder.failed(its, "scan", OSError("no disk"), again=True)
    bench.recorder.begun(its, "scan")
    bench.clock.s += 1
    bench.recorder.finished(its, "scan", 1)
    bench.recorder.settled(given, DONE)
    [run] = bench.rows[0].stages
    assert (run.attempts, run.seconds, run.outcome) == (3, 3.0, "done")
    figures = bench.recorder.figures().stages["scan"]
    assert (figures.done, figures.failed, figures.working) == (1, 2, 0)


def test_poison_has_its_reason() -> None:
    """What the service was told is what the row says."""
    bench, given = Bench(), delivery()
    its = message(given)
    bench.recorder.before(its)
    bench.recorder.begun(its, "scan")
    bench.recorder.settled(given, Outcome(Kind.POISONED, Fault(text="not a film")))
    [row] = bench.rows
    assert (row.outcome, row.reason) == ("poisoned", "not a film")
    assert row.stages[0].outcome == "unfinished"
    assert bench.recorder.figures().stages["scan"].working == 0


def test_a_stage_that_a_stop_has_cut_short_is_unfinished_and_counted_once() -> None:
    """A handler that goes on after its message was given back changes nothing any more."""
    bench, given = Bench(), delivery()
    its = message(given)
    bench.recorder.before(its)
    bench.recorder.begun(its, "encode")
    assert bench.recorder.figures().stages["encode"].working == 1
    bench.recorder.settled(given, INTERRUPTED)
    bench.recorder.finished(its, "encode", 9)
    figures = bench.recorder.figures()
    assert (figures.stages["encode"].working, figures.stages["encode"].done) == (0, 0)
    assert figures.outcomes == {"interrupted": 1}
    assert figures.in_work == 0


def test_a_message_that_goes_on_where_another_stopped_is_resumed() -> None:
    """The row names the stage that was saved."""
    bench = Bench()
    given = delivery(count=2, saved=Saved(stage="encode", state={"frame": 3}))
    bench.recorder.before(message(given))
    bench.recorder.lost(given, "the session is lost")
    [row] = bench.rows
    assert (row.resumed_at, row.delivery, row.outcome) == ("encode", 2, "lost")
    assert row.reason == "the session is lost"
    assert bench.recorder.figures().resumed == 1


def test_what_nobody_has_begun_with_is_no_row_unless_it_was_set_aside() -> None:
    """Messages that go back from the buffer are no news; one that came too often is."""
    bench = Bench()
    bench.recorder.settled(delivery("m1"), RETURNED)
    bench.recorder.lost(delivery("m2"), "the session is lost")
    assert not bench.rows
    bench.recorder.settled(
        delivery("m3", count=6), Outcome(Kind.POISONED, Fault(text="came 6 times"))
    )
    assert [(row.message_id, row.reason) for row in bench.rows] == [("m3", "came 6 times")]


def test_a_second_delivery_is_told_from_the_first() -> None:
    """A message that comes back to the same process while its first handler still works."""
    bench, first, second = Bench(), delivery(count=1), delivery(count=2)
    bench.recorder.before(message(first))
    bench.recorder.begun(message(first), "scan")
    bench.recorder.before(message(second))
    bench.recorder.begun(message(second), "scan")
    bench.recorder.lost(first, "lapsed")
    bench.recorder.finished(message(second), "scan", 1)
    bench.recorder.settled(second, DONE)
    assert [(row.delivery, row.outcome) for row in bench.rows] == [(1, "lost"), (2, "done")]
    assert [row.stages[0].outcome for row in bench.rows] == ["unfinished", "done"]


def test_skipped_and_overdue_stages_are_counted() -> None:
    """They are neither done nor failed."""
    bench, given = Bench(), delivery()
    its = message(given)
    bench.recorder.before(its)
    bench.recorder.skipped(its, "scan")
    bench.recorder.overdue(its, "encode", 3.0)
    bench.recorder.settled(given, DONE)
    figures = bench.recorder.figures(waiting=4, dropped=1)
    assert (figures.stages["scan"].skipped, figures.stages["encode"].overdue) == (1, 1)
    assert (figures.waiting, figures.dropped) == (4, 1)
    assert [(run.stage, run.outcome) for run in bench.rows[0].stages] == [("scan", "skipped")]
