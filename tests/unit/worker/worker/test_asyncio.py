"""Asynchronous handlers, wherever they run."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from leasehold.worker.adapters import Saved
from leasehold.worker.errors import Retry
from leasehold.worker.executors import threads as tasks
from leasehold.worker.message import Message
from leasehold.worker.options import Runner
from leasehold.worker.outcomes import Kind
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.unit.worker.worker.support import Heard, filled, handle_all, left, running


def test_tasks_run_together_in_one_thread() -> None:
    """A coroutine function gets an event loop, and as many messages at once as asked."""
    queue, threads = filled(*map(str, range(64))), set()
    together = asyncio.Barrier(32)

    async def handle(_message: Message) -> None:
        threads.add(threading.current_thread().name)
        await asyncio.wait_for(together.wait(), PATIENCE_S)

    worker = handle_all(handle, queue, concurrency=32)
    assert threads == {"leasehold-loop"}
    assert worker.stats.count(Kind.DONE) == 64


@pytest.mark.parametrize("runner", ["asyncio", "threads"])
def test_outcomes_are_those_of_others(runner: Runner) -> None:
    """What a coroutine raises means the same as in a thread."""
    queue, heard = filled("fine", "again", "wrong"), Heard()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        if message.text == "again":
            raise Retry(600)
        if message.text == "wrong":
            raise KeyError(message.text)

    handle_all(handle, queue, runner=runner, hooks=[heard])
    assert sorted(heard.settlements) == [("again", "failed"), ("fine", "done"), ("wrong", "failed")]


def test_plain_function_beside_the_loop() -> None:
    """A plain function does not block the loop: it is called in a thread."""
    queues = [filled("a", name="slow"), filled("b", name="quick")]
    quick, threads = threading.Event(), {}

    def slow(_message: Message) -> None:
        threads["slow"] = threading.current_thread().name
        assert quick.wait(PATIENCE_S)

    async def fast(_message: Message) -> None:
        await asyncio.sleep(0)
        threads["quick"] = threading.current_thread().name
        quick.set()

    worker = handle_all({"slow": slow, "quick": fast}, queues)
    assert worker.stats.count(Kind.DONE) == 2
    assert threads["slow"].startswith("leasehold-work")
    assert threads["quick"] == "leasehold-loop"


def test_checkpoint_without_blocking() -> None:
    """The asynchronous twins of a message's methods do the same."""
    queue, seen = filled('{"a": 1}'), []

    async def handle(message: Message) -> None:
        await message.acheckpoint({"at": 1}, fraction=0.5)
        seen.append(message.saved)
        await message.asave(Saved(stage="end"))
        seen.append(message.saved)
        seen.append(await message.apayload())

    handle_all(handle, queue)
    assert seen == [Saved(state={"at": 1}, fraction=0.5), Saved(stage="end"), b'{"a": 1}']


def test_task_that_does_not_stop_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine that swallows its cancellation has its message given back all the same."""
    queue, heard, begun, ends = filled("a"), Heard(), threading.Event(), threading.Event()
    monkeypatch.setattr(tasks, "_PATIENCE_S", 0.01)

    async def handle(_message: Message) -> None:
        begun.set()
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    with running(handle, queue, hooks=[heard]) as worker:
        assert begun.wait(PATIENCE_S)
        assert worker._threads is not None
        worker._threads.hurry()
        worker.stop(0)
    ends.set()
    assert heard.settlements == [("a", "interrupted")]
    assert left(queue) == [("a", 0)]


def test_handler_that_cancels_itself_has_failed() -> None:
    """A CancelledError that nobody asked for is a failure, and enough of them are the end."""
    queue = filled("a")
    calls: list[str] = []

    async def handle(message: Message) -> None:
        calls.append(message.text)
        raise asyncio.CancelledError

    poison, retries = PoisonRule(max_failures=3), RetryRule(initial_s=0)
    worker = handle_all(handle, queue, poison=poison, retries=retries)
    assert len(calls) == 3
    assert worker.stats.count(Kind.FAILED) == 2
    assert worker.stats.count(Kind.POISONED) == 1
    ((_, fault),) = queue.buried
    assert fault.text == "the handler was cancelled without a request"
    assert fault.type == "asyncio.exceptions.CancelledError"


def test_coroutine_that_nobody_awaits_is_a_failure() -> None:
    """A plain function that returns a coroutine has done no work, and is told so."""

    async def work(_message: Message) -> None:
        raise AssertionError

    queue = filled("a")
    handle_all(lambda message: work(message), queue)  # noqa: PLW0108 - hides what it is
    (fault,) = queue.faults_of("orders-1")
    assert "returned a coroutine; make it async def" in fault.text


def test_object_with_an_asynchronous_call() -> None:
    """An object that is called like a coroutine function is one."""

    class Handler:
        async def __call__(self, message: Message) -> None:
            seen.append(message.text)

    seen: list[str] = []
    worker = Worker(Handler(), filled("a"), wait_s=0)
    worker.run_until_idle(PATIENCE_S)
    assert seen == ["a"]
    assert "Handler" in worker.name
