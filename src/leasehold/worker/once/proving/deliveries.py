"""Deliveries of one message to a handler, without a queue."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leasehold.worker.message import Message
from leasehold.worker.once.proving.tracing import LineSteps
from leasehold.worker.queues.protocol import Delivery, Saved
from leasehold.worker.timing import SystemTime


@dataclass(frozen=True, slots=True)
class Draft:
    """What is the same at each delivery."""

    queue: str = "rehearsal"
    body: bytes = b""
    type: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    decode: Callable[[bytes], Any] | None = None


class Shelf:
    """The message as its queue would keep it: its progress, and the newest fence.

    Args:
        draft: Of the message.
        message_id: Its id.
    """

    def __init__(self, draft: Draft, message_id: str) -> None:
        self._draft = draft
        self._id = message_id
        self._newest = 0
        self._saved: Saved | None = None

    def deliver(self, fence: int) -> Message:
        """Return the message as a worker with that lease has it."""
        self._newest = max(self._newest, fence)
        draft = self._draft
        delivery = Delivery(
            queue=draft.queue,
            message_id=self._id,
            receipt="rehearsal",
            body=draft.body,
            dequeue_count=fence,
            fence=fence,
            type=draft.type,
            properties=draft.properties,
            saved=self._saved,
        )
        return Message(delivery, _Unaware(self, fence), SystemTime(), draft.decode)

    def save(self, fence: int, saved: Saved) -> None:
        """Keep the progress of the newest holder. A queue refuses that of any other."""
        if fence == self._newest:
            self._saved = saved


class _Unaware:
    """The lease of a worker that does not notice when it has ended: the worst there is."""

    def __init__(self, shelf: Shelf, fence: int) -> None:
        self._shelf = shelf
        self._fence = fence

    @property
    def deadline_s(self) -> float:
        """It never seems to end."""
        return math.inf

    def check(self) -> None:
        """Notice nothing."""

    def extend(self, visibility_timeout_s: int) -> None:
        """Believe that it worked."""

    def save(self, saved: Saved) -> None:
        """Believe that it worked."""
        self._shelf.save(self._fence, saved)


def call(handler: Callable[[Any], Any], message: Message) -> None:
    """Run a handler, synchronous or not, to its end."""
    answer = handler(message)
    if inspect.isawaitable(answer):
        asyncio.run(_wait_for(answer))


async def _wait_for(answer: Any) -> None:
    await answer


class Attempt:
    """A handler at work on one delivery, in a thread.

    Args:
        handler: Of the user.
        message: For it.
        steps: Watches its lines.
        at_end: Called when it has ended.
    """

    def __init__(
        self,
        handler: Callable[[Any], Any],
        message: Message,
        steps: LineSteps | None = None,
        at_end: Callable[[], object] | None = None,
    ) -> None:
        self._handler = handler
        self._message = message
        self._steps = steps
        self._at_end = at_end
        self.error: BaseException | None = None
        """What it raised."""
        # One that is stuck for good must not keep the program from ending.
        self._thread = threading.Thread(
            target=self._run, name=f"leasehold-rehearsal-{message.fence}", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def failure(self) -> str:
        """What it raised, for people."""
        return f"{type(self.error).__name__}: {self.error}"

    def _run(self) -> None:
        try:
            if self._steps is not None:
                self._steps.install()
            call(self._handler, self._message)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the end of this attempt
            self.error = error
        finally:
            if self._at_end is not None:
                self._at_end()
