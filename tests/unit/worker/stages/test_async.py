"""Asynchronous stages, and ordinary ones called from an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

from leasehold.worker.adapters import Unreachable
from leasehold.worker.stages import Done, Goto, StageMessage, Stages
from tests.patience import PATIENCE_S
from tests.unit.worker.stages.support import Bench, Diary


def mixed(log: list[Any]) -> Stages:
    """Return a pipeline with an ordinary stage between two asynchronous ones."""
    pipeline = Stages()

    @pipeline.stage("a")
    async def a(message: StageMessage, state: Any) -> str:
        await message.acheckpoint("within a", fraction=0.5)
        log.append(("a", state, threading.current_thread()))
        return "from a"

    @pipeline.stage("b")
    def b(message: StageMessage, state: Any) -> str:
        log.append(("b", state, threading.current_thread()))
        return "from b"

    class C:
        async def __call__(self, message: StageMessage, state: Any) -> Done:
            await asyncio.sleep(0)
            log.append(("c", state, threading.current_thread()))
            return Done()

    pipeline.stage("c")(C())
    pipeline.stage("d")(lambda message, state: pytest.fail("d was done"))
    return pipeline


def test_stages_run_where_they_belong() -> None:
    """Asynchronous stages run in the event loop, ordinary ones beside it; all are saved."""
    log: list[Any] = []
    bench = Bench()
    pipeline = mixed(log)
    assert pipeline.is_async
    asyncio.run(pipeline.acall(bench.receive()))
    own = threading.current_thread()
    assert [each[:2] for each in log] == [("a", None), ("b", "from a"), ("c", "from b")]
    assert [each[2] is own for each in log] == [True, False, True]
    assert bench.saves == [("a", "within a"), ("b", "from a"), ("c", "from b")]


def test_without_a_loop_there_is_one_for_each_message() -> None:
    """Called like a function, asynchronous stages run in an event loop of the message's own."""
    log: list[Any] = []
    bench = Bench()
    mixed(log)(bench.receive())
    assert [each[:2] for each in log] == [("a", None), ("b", "from a"), ("c", "from b")]


def test_in_a_loop_the_asynchronous_call_is_needed() -> None:
    """Called like a function from an event loop, a pipeline says what to call instead."""
    pipeline = mixed([])

    async def main() -> None:
        pipeline(Bench().receive())

    with pytest.raises(RuntimeError, match="await acall"):
        asyncio.run(main())


def test_a_worker_takes_the_method_for_a_coroutine_function() -> None:
    """``pipeline.acall`` is a handler like any ``async def``."""
    assert inspect.iscoroutinefunction(mixed([]).acall)


def test_asynchronous_stages_are_tried_again() -> None:
    """Retries, jumps and failed saves follow the same rules in an event loop."""
    bench = Bench()
    diary = Diary()
    pipeline = Stages(hooks=[diary], time=bench.time)

    @pipeline.stage("a", retries=1, retry_delay_s=0.001)
    async def a(message: StageMessage, state: Any) -> Goto:
        if message.attempt == 1:
            raise OSError("no")
        return Goto("c")

    pipeline.stage("b")(lambda message, state: None)
    pipeline.stage("c")(lambda message, state: None)
    message = bench.receive()
    bench.holding.failures.append(Unreachable("no answer"))
    asyncio.run(pipeline.acall(message))
    assert diary.lines == [
        "begun a",
        "failed a: no, again",
        "begun a",
        "finished a in 0",
        "not saved c: no answer",
        "begun c",
        "finished c in 0",
    ]


def test_a_cancelled_task_ends_the_stage() -> None:
    """Cancelling the handler's task cancels the stage, which is not tried again."""
    begun = asyncio.Event()
    calls: list[str] = []
    pipeline = Stages()

    @pipeline.stage("a", retries=5, timeout_s=3600)
    async def a(message: StageMessage, state: Any) -> None:
        calls.append("begun")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("ended")

    async def main() -> None:
        task = asyncio.ensure_future(pipeline.acall(Bench().receive()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    pipeline.close()
    assert calls == ["begun", "ended"]


def test_a_cancelled_task_waits_for_its_thread() -> None:
    """A thread cannot be cancelled: the handler does not end before the stage in it has."""
    begun, go_on = threading.Event(), threading.Event()
    pipeline = Stages()

    @pipeline.stage("a")
    def a(message: StageMessage, state: Any) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        raise OSError

    async def main() -> None:
        task = asyncio.ensure_future(pipeline.acall(Bench().receive()))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
