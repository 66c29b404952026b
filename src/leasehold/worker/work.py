"""One message on its way through a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leasehold.worker.message import Message
from leasehold.worker.outcomes import Asked, Outcome, Settlement
from leasehold.worker.queues.protocol import Delivery, Lease, WorkerSession

if TYPE_CHECKING:
    from leasehold.worker.core import Source
    from leasehold.worker.leases.held import Held, Loss


def has_expired(held: Held) -> bool:
    """Return whether a lease was lost because the message's time to live has ended."""
    return held.loss is not None and held.loss.kind == "expired"


class Work:
    """A message from its receive until it is settled or lost.

    It belongs to one thread after the other: that which receives, one that handles, one that
    settles. Only :meth:`lose` and :meth:`ask` come from elsewhere.
    """

    __slots__ = (
        "asked",
        "began_s",
        "delivery",
        "handling_s",
        "held",
        "lease",
        "loss",
        "message",
        "outcome",
        "session",
        "settlement",
        "source",
        "stop",
        "tries",
        "unsure",
    )

    def __init__(self, source: Source, delivery: Delivery) -> None:
        self.source = source
        self.delivery = delivery
        self.held: Held = None  # type: ignore[assignment]  # set before anybody else sees it
        self.message: Message | None = None
        """What the handler has; None before it begins."""
        self.began_s = 0.0
        self.handling_s: float | None = None
        self.loss: str | None = None
        """Why the lease is lost; None while it is not."""
        self.asked: Asked | None = None
        """Who wants the handler to stop, other than for a loss."""
        self.stop: Callable[[Work], None] | None = None
        """Stops the handler where that is possible: a task, a process."""
        self.session: WorkerSession | None = None
        """That it was received under."""
        self.outcome: Outcome | None = None
        self.settlement: Settlement = None
        self.lease: Lease | None = None
        """What it is settled with, from when renewals have ended."""
        self.tries = 0
        """How often it was tried to settle it."""
        self.unsure = False
        """Whether one of them may have been carried out."""

    def lose(self, loss: Loss) -> None:
        """Take note that the work has to stop, and tell the handler. From any thread."""
        if loss.kind == "cancelled":
            self.ask("cancelled", loss.text)
            return
        # The order matters: whoever sets the message looks for a loss afterwards.
        self.loss = loss.text
        self._tell(loss.text)

    def ask(self, who: Asked, why: str) -> None:
        """Ask the handler to stop while the lease is held. From any thread."""
        if self.asked is None:
            self.asked = who
            self._tell(why)

    def _tell(self, why: str) -> None:
        message, stop = self.message, self.stop
        if message is not None:
            message.cancel_token.set(why)
        if stop is not None:
            stop(self)

    def stop_with(self, stop: Callable[[Work], None]) -> None:
        """Say how the handler is stopped; it is done at once if it is to stop already."""
        self.stop = stop
        if self.loss is not None or self.asked is not None:
            stop(self)
