"""The same from asynchronous handlers, where a task can be cancelled anywhere."""

from __future__ import annotations

import asyncio
import threading

import pytest

from leasehold.worker.idempotency import (
    Busy,
    Entry,
    Fenced,
    Holder,
    MemoryProcessed,
    Once,
    UncheckedRun,
    UnstorableResult,
)
from tests.unit.worker.idempotency.support import Told


class Slow(MemoryProcessed):
    """A history whose answers wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.answer = threading.Event()

    def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
        found = super().begin(key, holder, hold_s)
        self.asked.set()
        self.answer.wait()
        return found


def test_body_runs_once() -> None:
    """async with skips as with does."""
    once = Once(MemoryProcessed())
    done = []

    async def handle(fence: int) -> object:
        async with once(Told(fence=fence)) as run:
            if run.first:
                done.append(fence)
                run.result = fence
        return run.result

    async def main() -> list[object]:
        return [await handle(fence) for fence in (1, 2)]

    assert asyncio.run(main()) == [1, 1]
    assert done == [1]
    once.close()


def test_decorated_handler() -> None:
    """An asynchronous handler stays one, and runs once."""
    once = Once(MemoryProcessed())
    done = []

    @once.handler(key=lambda message: message.id)
    async def charge(message: Told) -> str:
        await asyncio.sleep(0)
        done.append(message.fence)
        return "receipt"

    async def main() -> list[str]:
        return [await charge(Told()), await charge(Told(fence=2))]

    assert asyncio.iscoroutinefunction(charge)
    assert asyncio.run(main()) == ["receipt", "receipt"]
    assert done == [1]
    once.close()


def test_failure_and_cancellation_free_the_key() -> None:
    """A body that raises or is cancelled is not done."""
    store = MemoryProcessed()
    once = Once(store)

    async def fail(error: BaseException) -> None:
        async with once(Told()) as run:
            assert run.first
            raise error

    for error in (ValueError("no"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            asyncio.run(fail(error))
        assert len(store) == 0
    once.close()


def test_cancelled_while_it_begins() -> None:
    """A task that is cancelled while the history answers leaves nothing begun."""
    store = Slow()
    once = Once(store)

    async def main() -> None:
        async def body() -> None:
            async with once(Told()):
                pytest.fail("the body ran")

        task = asyncio.create_task(body())
        await asyncio.to_thread(store.asked.wait)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "it waits for what is under way"
        store.answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(store) == 0
    once.close()


def test_waiting_holds_up_no_thread() -> None:
    """More tasks than threads can wait for one that needs a thread to finish."""
    once = Once(MemoryProcessed(), wait_s=60)
    done = []

    async def handle(number: int, begun: asyncio.Event, go: asyncio.Event) -> None:
        async with once(Told(str(number)), "one order") as run:
            if run.first:
                begun.set()
                await go.wait()
                done.append(number)

    async def main() -> None:
        begun, go = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(handle(0, begun, go))
        await begun.wait()
        others = [asyncio.create_task(handle(number, begun, go)) for number in range(1, 30)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *others)

    asyncio.run(main())
    assert done == [0]
    once.close()


def test_busy_and_fenced() -> None:
    """The errors are those of the blocking form."""
    once = Once(MemoryProcessed(), wait_s=0)

    async def main() -> None:
        await once(Told(fence=2)).__aenter__()
        with pytest.raises(Busy):
            await once(Told(fence=2)).__aenter__()
        with pytest.raises(Fenced):
            await once(Told(fence=1)).__aenter__()

    asyncio.run(main())
    once.close()


def test_complaints_come_after_the_record() -> None:
    """A result that cannot be kept, and a body that did not ask, are found out; both are done."""
    once = Once(MemoryProcessed())

    async def unstorable() -> object:
        return object()

    async def main() -> None:
        with pytest.raises(UnstorableResult):
            await once.acall(Told("a"), unstorable)
        with pytest.raises(UncheckedRun):
            async with once(Told("b")):
                pass
        for name in "ab":
            async with once(Told(name, fence=2)) as run:
                assert not run.first

    asyncio.run(main())
    once.close()


def test_threads_are_named_and_end() -> None:
    """close() leaves no thread behind."""
    once = Once(MemoryProcessed())

    async def main() -> list[str]:
        async with once(Told()) as run:
            assert run.first
            return [thread.name for thread in threading.enumerate()]

    assert any(name.startswith("leasehold-once") for name in asyncio.run(main()))
    once.close()
    assert not any(thread.name.startswith("leasehold-once") for thread in threading.enumerate())
