"""Handlers in threads of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final, Self

from leasehold.worker.core import Core
from leasehold.worker.handlers import Handler, call, is_async
from leasehold.worker.message import Message
from leasehold.worker.work import Work

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
            await handler(message)
        finally:
            work.stop = None
