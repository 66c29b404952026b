"""The message as a stage gets it: the same, but what it saves belongs to the stage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from leasehold.worker.message import KEEP, Message
from leasehold.worker.stages.declared import StageOverdue
from leasehold.worker.stages.resuming import Layout, as_json


class StageMessage:
    """A message while one of its stages is done.

    It has all that a :class:`~leasehold.worker.message.Message` has. What a checkpoint saves leads
    back into this stage, and a fraction is one of this stage: how much that is of the whole is
    worked out.
    """

    def __init__(
        self, message: Message, layout: Layout, place: int, state: Any, *, resumed: bool
    ) -> None:
        self.message = message
        """The message itself."""
        self.stage = layout.names[place]
        """Name of the stage."""
        self.resumed = resumed
        """Whether another holder may have begun this stage: it is the first one since the message
        was delivered, and not for the first time."""
        self.attempt = 1
        """How often the stage was begun by this holder, this time included."""
        self.state = state
        """What the stage began with, or has saved since."""
        self._layout = layout
        self._place = place
        self._within = 0.0
        self.limit_s: float | None = None
        """After how many seconds the stage was found to take too long; None: it was not."""
        self._lock = threading.Lock()
        self._over: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<StageMessage {self.stage} of {self.message!r}>"

    def __getattr__(self, name: str) -> Any:
        if name == "message":  # asked for by copy, before there is one
            raise AttributeError(name)
        return getattr(self.message, name)

    @property
    def overdue(self) -> bool:
        """Whether the stage has taken longer than it may."""
        return self.limit_s is not None

    @property
    def cancelled(self) -> bool:
        """Whether the stage is to stop."""
        return self.overdue or self.message.cancelled

    @property
    def cancel_reason(self) -> str | None:
        """Why the stage is to stop."""
        if self.limit_s is not None:
            return str(StageOverdue(self.stage, self.limit_s))
        return self.message.cancel_reason

    def check(self) -> None:
        """Go on only while the message is held, nobody wants the work to stop, and there is time.

        Raises:
            LeaseLost: Somebody else has the message, or may have it soon.
            Cancelled: An operator, or the end of the worker, wants the work to stop.
            StageOverdue: The stage has taken longer than it may.
        """
        self.message.check()
        if self.limit_s is not None:
            raise StageOverdue(self.stage, self.limit_s)

    def checkpoint(
        self, state: Any = KEEP, *, stage: str | None = None, fraction: float | None = None
    ) -> None:
        """Save how far the stage has come; the next holder goes on in it with *state*.

        Args:
            state: Whatever JSON can say. If it is left out, the state saved last stays.
            stage: Another stage to be done next, instead of this one.
            fraction: How much of this stage is done, 0 to 1; None: as saved last.

        Raises:
            StageOverdue: The stage has taken longer than it may; it was saved.
            Exception: As :meth:`leasehold.worker.message.Message.checkpoint`.
        """
        place = self._place if stage is None else self._layout.place(stage)
        if state is not KEEP:
            self.state = as_json(state)
        if fraction is not None:
            self._within = fraction
        within = self._within if place == self._place else 0
        self.message.save(self._layout.saved(place, self.state, within))
        self.check()

    async def acheckpoint(
        self, state: Any = KEEP, *, stage: str | None = None, fraction: float | None = None
    ) -> None:
        """Do what :meth:`checkpoint` does, for asynchronous stages."""
        await asyncio.to_thread(self.checkpoint, state, stage=stage, fraction=fraction)

    def set_overdue(self, limit_s: float) -> None:
        """Have the stage stop, since it has taken longer than *limit_s* seconds."""
        with self._lock:
            self.limit_s = limit_s
            callbacks, self._over = self._over, []
        for callback in callbacks:
            callback()

    def on_overdue(self, callback: Callable[[], object]) -> None:
        """Call *callback* once when the stage has taken too long; at once if it has already."""
        with self._lock:
            if self.limit_s is None:
                self._over.append(callback)
                return
        callback()
