"""Stages that fail, and progress that cannot be saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker.adapters import BodyTooLarge, NotSupported, QueueError, Unreachable
from leasehold.worker.errors import GiveBack, Poison, Retry, WorkerError
from leasehold.worker.stages import KeepsProgress, MemoryProgress, StageMessage, Stages
from tests.unit.worker.stages.support import Bench, Diary


def failing(times: int, log: list[Any], **settings: Any) -> tuple[Stages, Diary]:
    """Return a pipeline whose first stage fails so often."""
    diary = Diary()
    pipeline = Stages(hooks=[diary], time=ManualTime())

    @pipeline.stage("a", **settings)
    def a(message: StageMessage, state: Any) -> str:
        log.append((message.attempt, state))
        if len(log) <= times:
            raise OSError(f"failure {len(log)}")
        return "done"

    pipeline.stage("b")(lambda message, state: None)
    return pipeline, diary


def test_a_stage_is_tried_again() -> None:
    """Within its budget a stage is tried again at once, and the work goes on."""
    log: list[Any] = []
    pipeline, diary = failing(2, log, retries=2)
    pipeline(Bench().receive())
    assert log == [(1, None), (2, None), (3, None)]
    assert diary.lines == [
        "begun a",
        "failed a: failure 1, again",
        "begun a",
        "failed a: failure 2, again",
        "begun a",
        "finished a in 0",
        "begun b",
        "finished b in 0",
    ]


def test_past_its_budget_the_message_fails() -> None:
    """The last error is the handler's, and says in which stage it was raised."""
    log: list[Any] = []
    pipeline, diary = failing(9, log, retries=1)
    with pytest.raises(OSError, match="failure 2") as caught:
        pipeline(Bench().receive())
    assert caught.value.__notes__ == ["in stage 'a', attempt 2"]
    assert diary.lines[-1] == "failed a: failure 2"


def test_past_its_budget_the_message_can_be_set_aside() -> None:
    """A stage can be declared so that its last failure is final."""
    pipeline, _ = failing(9, [], retries=1, exhausted="poison")
    with pytest.raises(Poison, match=r"stage 'a' failed twice: OSError\('failure 2'\)"):
        pipeline(Bench().receive())


def test_a_retry_gets_what_was_saved_last() -> None:
    """A stage that is tried again goes on from its own last checkpoint."""
    seen: list[Any] = []
    pipeline = Stages()

    @pipeline.stage("a", retries=1)
    def a(message: StageMessage, state: Any) -> None:
        seen.append(state)
        if state is None:
            message.checkpoint({"frame": 5})
            raise OSError

    pipeline(Bench().receive())
    assert seen == [None, {"frame": 5}]


def test_a_failed_attempt_cannot_spoil_the_state() -> None:
    """What a failed attempt does to its state in memory does not reach the next attempt."""
    seen: list[Any] = []
    pipeline = Stages()
    pipeline.stage("a")(lambda message, state: {"n": 1})

    @pipeline.stage("b", retries=1)
    def b(message: StageMessage, state: Any) -> None:
        seen.append(dict(state))
        state["n"] = 2
        if message.attempt == 1:
            raise OSError

    pipeline(Bench().receive())
    assert seen == [{"n": 1}, {"n": 1}]


@pytest.mark.parametrize("said", [Retry(5), Poison("broken"), GiveBack()])
def test_what_a_stage_says_of_its_message_is_passed_on(said: WorkerError) -> None:
    """Retry, Poison and GiveBack are for the worker: the stage is not tried again here."""
    calls: list[int] = []
    pipeline = Stages()

    @pipeline.stage("a", retries=5, exhausted="poison")
    def a(message: StageMessage, state: Any) -> None:
        calls.append(1)
        raise said

    with pytest.raises(type(said)) as caught:
        pipeline(Bench().receive())
    assert caught.value is said
    assert len(calls) == 1


def test_no_retry_after_the_message_was_cancelled() -> None:
    """A stage that fails because the work is to stop is not begun again."""
    calls: list[int] = []
    pipeline = Stages()

    @pipeline.stage("a", retries=5, retry_delay_s=3600)
    def a(message: StageMessage, state: Any) -> None:
        calls.append(1)
        message.cancel_token.set("shutdown")
        raise OSError

    with pytest.raises(WorkerError, match="shutdown"):
        pipeline(Bench().receive())
    assert len(calls) == 1


@pytest.mark.parametrize("error", [Unreachable("no answer"), BodyTooLarge("too large")])
def test_work_goes_on_when_it_cannot_be_saved(error: QueueError) -> None:
    """A stage whose end cannot be saved is reported; only a crash would repeat it."""
    log: list[Any] = []
    pipeline, diary = failing(0, log)
    bench = Bench()
    message = bench.receive()
    bench.holding.failures.append(error)
    pipeline(message)
    assert f"not saved b: {error}" in diary.lines
    assert diary.lines[-1] == "finished b in 0"


@pytest.mark.parametrize("error", [Unreachable("no answer"), BodyTooLarge("too large")])
def test_a_stage_can_insist_on_being_saved(error: QueueError) -> None:
    """With must_save the next stage is not begun before the end of this one is saved."""
    pipeline, diary = failing(0, [], must_save=True)
    bench = Bench()
    message = bench.receive()
    bench.holding.failures.append(error)
    with pytest.raises(type(error)):
        pipeline(message)
    assert "begun b" not in diary.lines


def test_a_service_without_progress_is_refused() -> None:
    """The error says what to do, before the worker begins and, should nobody ask, at the save."""
    bench = Bench(MemoryQueue("videos", capabilities=replace(MEMORY, saves="no")))
    pipeline, _ = failing(0, [])
    with pytest.raises(NotSupported, match=r"KeepsProgress\(client, SqliteProgress\(path\)\)"):
        pipeline.check_queue(bench.client)
    with pytest.raises(NotSupported, match="queue videos does not store progress"):
        pipeline(bench.receive())
    pipeline.check_queue(KeepsProgress(bench.client, MemoryProgress()))
    pipeline.check_queue(MemoryQueue("other"))


def test_one_stage_needs_no_progress() -> None:
    """A pipeline of one stage saves nothing by itself, and runs on any service."""
    pipeline = Stages()
    pipeline.stage("only")(lambda message, state: None)
    bench = Bench(MemoryQueue("videos", capabilities=replace(MEMORY, saves="no")))
    pipeline.check_queue(bench.client)
    pipeline(bench.receive())


def test_a_hook_that_fails_does_no_harm() -> None:
    """An exception of a hook is logged, and the work goes on."""

    class Broken(Diary):
        def begun(self, message: Any, stage: str) -> None:
            raise RuntimeError

    broken = Broken()
    pipeline = Stages(hooks=[broken], time=ManualTime())
    pipeline.stage("a")(lambda message, state: None)
    pipeline(Bench().receive())
    assert broken.lines == ["finished a in 0"]
