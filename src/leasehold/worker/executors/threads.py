"""Handlers in threads of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from leasehold.worker.core import Core, Work
from leasehold.worker.handlers import Handler, call, call_async, is_async
from leasehold.worker.message import Message

_PATIENCE_S: Final = 1.0


class ThreadRunner:
    """As many threads as messages are worked on at once; each takes from the buffer by itself.

    An asynchronous handler has an event loop in each thread.

    Args:
        core: The worker.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asyncs = {source.handler: is_async(source.handler) for source in core.sources}
        self._threads = [
            threading.Thread(target=self._run, name=f"leasehold-work-{place}", daemon=True)
            for place in range(core.concurrency)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def tick(self, now_s: float) -> None:
        """Nothing needs looking after."""

    def end(self, works: list[Work]) -> None:
        """Let go of handlers that do not stop. Nothing can stop a thread."""

    def close(self) -> list[str]:
        """Wait for the threads; return the names of those that are still in a handler."""
        leave_s = self._core.patience.monotonic_s() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, leave_s - self._core.patience.monotonic_s()))
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _run(self) -> None:
        core = self._core
        with contextlib.ExitStack() as stack:
            loop = stack.enter_context(LoopOfThread()) if any(self._asyncs.values()) else None
            while (work := core.buffer.take()) is not None:
                message = core.begin(work)
                if message is None:
                    continue
                handler = work.source.handler
                error: BaseException | None = None
                try:
                    if loop is not None and self._asyncs[handler]:
                        loop.call(handler, message, work)
                    else:
                        call(handler, message)
                except BaseException as failure:  # noqa: BLE001 - such as sys.exit(): the handler's
                    error = failure
                core.end(work, error)


class LoopOfThread:
    """An event loop in which one asynchronous handler after the other runs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def call(self, handler: Handler, message: Message, work: Work) -> None:
        """Run a handler to its end. Whoever stops *work* cancels its task."""
        self._runner.run(self._call(handler, message, work))

    async def _call(self, handler: Handler, message: Message, work: Work) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def stop(_: Work) -> None:
            if task is not None and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        work.stop_with(stop)
        try:
            await call_async(handler, message)
        finally:
            work.stop = None


# --- tasks -------------------------------------------------------------------------------------
#
# Handlers in tasks of one event loop.


class TaskRunner:
    """An event loop in a thread of its own, with a task for each message.

    Leases are kept by other threads, so that a handler that blocks the loop for a while does not
    lose them. A handler that is no coroutine function is called in a thread.

    Args:
        core: The worker.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asyncs = {source.handler: is_async(source.handler) for source in core.sources}
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # see start
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_poked = False
        self._is_closed = False
        self._ready = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        if not all(self._asyncs.values()):
            self._pool = ThreadPoolExecutor(core.concurrency, "leasehold-work")
        self._thread = threading.Thread(target=self._run, name="leasehold-loop", daemon=True)
        core.buffer.listen(self._poke)

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._ready.wait()

    def tick(self, now_s: float) -> None:
        """Nothing needs looking after."""

    def end(self, works: list[Work]) -> None:
        """Let go of tasks that do not stop."""

    def close(self) -> list[str]:
        """End the loop; return its name if a handler blocks it."""
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        return [self._thread.name] if self._thread.is_alive() else []

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(self._ready.set)
            asyncio.set_event_loop(self._loop)
            self._loop.run_forever()

    def _poke(self) -> None:
        """Have the loop look into the buffer. From any thread."""
        if not self._is_poked and not self._is_closed:
            self._is_poked = True
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._is_poked = False
        while len(self._tasks) < self._core.concurrency and self._begin_one():
            pass

    def _begin_one(self) -> bool:
        work = None if self._is_closed or self._core.is_stopping else self._core.buffer.take_now()
        if work is None:
            return False
        task = self._loop.create_task(self._handle(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return True

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        self._begin_one()

    async def _handle(self, work: Work) -> None:
        core = self._core
        message = core.begin(work)
        if message is None:
            return
        handler = work.source.handler
        error: BaseException | None = None
        try:
            if self._asyncs[handler]:
                work.stop_with(self._stopper())
                await call_async(handler, message)
            else:
                # A thread cannot be cancelled, and its task must not end before it.
                await self._loop.run_in_executor(self._pool, call, handler, message)
        except BaseException as failure:  # noqa: BLE001 - such as sys.exit(): it is the handler's
            error = failure
        work.stop = None
        core.end(work, error)

    def _stopper(self) -> Callable[[Work], None]:
        """Return what cancels the current task, from any thread."""
        task = asyncio.current_task()

        def stop(_: Work) -> None:
            if task is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(task.cancel)

        return stop
