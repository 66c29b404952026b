"""What runs beside the caller: a thread for the synchronous client, a task for the other.

Both come in pairs with the same methods, so that one source can use either.
Threads do without asyncio, which is a tenth of what importing the client takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any


class Bell:
    """Rings once; threads wait for it."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        """End all waiting, now and from now on."""
        self._rung.set()

    def wait(self, length_s: float) -> bool:
        """Wait so many seconds at most; tell whether the bell has rung."""
        return self._rung.wait(length_s)


class AsyncBell:
    """Rings once; tasks of one event loop wait for it."""

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 - see above

        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End all waiting, now and from now on."""
        self._rung.set()

    async def wait(self, length_s: float) -> bool:
        """Wait so many seconds at most; tell whether the bell has rung."""
        import asyncio  # noqa: PLC0415 - see above

        try:
            async with asyncio.timeout(length_s):
                await self._rung.wait()
        except TimeoutError:
            return False
        return True


class Background:
    """A daemon thread, which does not keep the process from ending."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        """Begin with *work* at once."""
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def leave(self, patience_s: float) -> None:
        """Wait up to *patience_s* for the work, which has been told to end."""
        if self._thread is not threading.current_thread():
            self._thread.join(patience_s)


class AsyncBackground:
    """A task of the running event loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Begin with *work* soon."""
        import asyncio  # noqa: PLC0415 - see above

        self._task = asyncio.get_running_loop().create_task(work(), name=name)

    async def leave(self, patience_s: float) -> None:
        """Wait up to *patience_s* for the work, which has been told to end; then break it off."""
        import asyncio  # noqa: PLC0415 - see above

        done, _ = await asyncio.wait({self._task}, timeout=patience_s)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task})
