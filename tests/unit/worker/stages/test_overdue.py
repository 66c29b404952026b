"""Stages that take longer than they may."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.worker.stages import StageMessage, StageOverdue, Stages
from leasehold.worker.stages.run import Durations, Watch, learned_limit_s
from tests.unit.worker.stages.support import Bench, Diary


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def watch(time: ManualTime) -> Iterator[Watch]:
    made = Watch(time)
    yield made
    made.close()


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "leasehold-stages"]


def test_an_ordinary_stage_is_stopped_at_its_next_check(time: ManualTime) -> None:
    """It is reported while it is at work, and a look at the message ends it; nobody retries it."""
    diary = Diary()
    pipeline = Stages(hooks=[diary], time=time)
    reasons: list[str | None] = []

    @pipeline.stage("a", timeout_s=10, retries=5, exhausted="poison")
    def a(message: StageMessage, state: Any) -> None:
        time.settle(waiting=1)
        time.advance(9)
        message.check()
        assert not message.cancelled
        time.advance(1)
        assert diary.lines[-1] == "overdue a after 10"
        assert message.cancelled
        reasons.append(message.cancel_reason)
        message.check()

    with pytest.raises(StageOverdue, match="stage 'a' took longer than 10 s"):
        pipeline(Bench(time=time).receive())
    assert reasons == ["stage 'a' took longer than 10 s"]
    assert diary.lines[-1] == "failed a: stage 'a' took longer than 10 s"
    pipeline.close()
    assert threads() == []


def test_a_checkpoint_that_comes_late_is_saved(time: ManualTime) -> None:
    """What an overdue stage saves is kept for the next holder, before it is stopped."""
    pipeline = Stages(time=time)

    @pipeline.stage("a", timeout_s=10)
    def a(message: StageMessage, state: Any) -> None:
        time.settle(waiting=1)
        time.advance(10)
        message.checkpoint({"frame": 7})

    bench = Bench(time=time)
    with pytest.raises(StageOverdue):
        pipeline(bench.receive())
    assert bench.saves == [("a", {"frame": 7})]
    pipeline.close()


def test_work_that_is_done_late_is_done(time: ManualTime) -> None:
    """A stage that ends by itself, if late, has succeeded; the next one has its own time."""
    diary = Diary()
    pipeline = Stages(hooks=[diary], time=time)

    @pipeline.stage("a", timeout_s=10)
    def a(message: StageMessage, state: Any) -> None:
        time.settle(waiting=1)
        time.advance(11)

    @pipeline.stage("b", timeout_s=10)
    def b(message: StageMessage, state: Any) -> None:
        message.check()

    pipeline(Bench(time=time).receive())
    pipeline.close()
    assert diary.lines == [
        "begun a",
        "overdue a after 10",
        "finished a in 11",
        "begun b",
        "finished b in 0",
    ]


def test_an_asynchronous_stage_is_cancelled(time: ManualTime) -> None:
    """A coroutine is ended at once, and the message fails with the reason."""
    diary = Diary()
    pipeline = Stages(hooks=[diary], time=time)
    cleaned: list[bool] = []

    @pipeline.stage("a", timeout_s=10)
    async def a(message: StageMessage, state: Any) -> None:
        time.settle(waiting=1)
        time.advance(10)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(StageOverdue):
        asyncio.run(pipeline.acall(Bench(time=time).receive()))
    pipeline.close()
    assert cleaned == [True]
    assert diary.lines[-1] == "failed a: stage 'a' took longer than 10 s"


def test_a_learned_time_is_only_reported(time: ManualTime) -> None:
    """A stage that takes unusually long, compared with its past, is reported but not stopped."""
    diary = Diary()
    pipeline = Stages(hooks=[diary], time=time)
    takes = iter([*[2.0] * 10, 9.0])

    @pipeline.stage("a", timeout_s="learned")
    def a(message: StageMessage, state: Any) -> None:
        took_s = next(takes)
        if took_s > 2:
            time.settle(waiting=1)
        time.advance(took_s)
        message.check()

    for _ in range(11):
        pipeline(Bench(time=time).receive())
    pipeline.close()
    assert diary.lines[-3:] == ["begun a", "overdue a after 8", "finished a in 9"]
    assert sum("overdue" in each for each in diary.lines) == 1


def test_what_is_learned() -> None:
    """Nothing before ten attempts; then four times the longest of the last fifty, at least 1 s."""
    assert learned_limit_s([1.0] * 9) is None
    assert learned_limit_s([1.0] * 9 + [3.0]) == 12
    assert learned_limit_s([0.001] * 10) == 1
    durations = Durations()
    assert durations.limit_s("a") is None
    durations.add("a", 100)
    for _ in range(50):
        durations.add("a", 2)
    assert durations.limit_s("a") == 8
    assert durations.limit_s("b") is None


def test_the_watch_calls_in_the_order_of_deadlines(time: ManualTime, watch: Watch) -> None:
    """Each is called once when its time has come, and not before."""
    called: list[str] = []
    watch.start(20, lambda: called.append("late"))
    time.settle(waiting=1)
    watch.start(10, lambda: called.append("early"))
    over = watch.start(5, lambda: called.append("ended"))
    over.end()
    over.end()
    time.advance(9)
    assert called == []
    time.advance(1)
    assert called == ["early"]
    time.advance(100)
    assert called == ["early", "late"]


def test_a_callback_that_fails_does_not_end_the_watch(time: ManualTime, watch: Watch) -> None:
    """The others are called all the same."""
    called: list[str] = []

    def fail() -> None:
        raise OSError

    watch.start(1, fail)
    watch.start(2, lambda: called.append("second"))
    time.settle(waiting=1)
    time.advance(3)
    assert called == ["second"]


def test_the_thread_goes_when_it_is_not_needed(time: ManualTime, watch: Watch) -> None:
    """An idle pipeline has no thread, and gets one again when there is something to watch."""
    called: list[str] = []
    watch.start(1, lambda: called.append("first"))
    far = watch.start(3600, lambda: None)
    time.settle(waiting=1)
    time.advance(2)
    assert threads() == ["leasehold-stages"]
    far.end()
    time.advance(3600)
    assert threads() == []
    watch.start(1, lambda: called.append("second"))
    time.settle(waiting=1)
    time.advance(1)
    assert called == ["first", "second"]


def test_what_has_ended_does_not_pile_up(watch: Watch) -> None:
    """Many short stages with long limits leave nothing behind."""
    for _ in range(1000):
        watch.start(3600, lambda: None).end()
    assert len(watch._due) <= 65
