"""A message on a lease, as its worker has it in hand."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from leasehold.worker.adapters.protocol import Delivery, Lease, QueueClient, QueueError, Saved
from leasehold.worker.errors import LeaseLost, LossKind
from leasehold.worker.leases.settings import LeaseSettings


class HeldState(enum.Enum):
    """Where a message on a lease stands."""

    HELD = "held"
    """It is ours, and its lease is kept."""
    SETTLING = "settling"
    """It is ours, and about to be completed, given back or buried: nothing is renewed."""
    DONE = "done"
    """It is settled."""
    LOST = "lost"
    """Another worker has it, or will have it: no effects, nothing to settle."""
    ABANDONED = "abandoned"
    """We no longer renew it, on purpose. It comes back when its lease ends."""
    DENIED = "denied"
    """The service does not let us renew it."""


class Flight(enum.Enum):
    """Whether something is on its way that changes the receipt. Never more than one at a time."""

    NONE = "none"
    QUEUED = "queued"
    """A renewal waits for a thread; it can still be called off."""
    SENT = "sent"
    """A renewal was sent, and is not answered."""
    OFFERED = "offered"
    """A process that renews has let go of it, for a thread that waits for that."""
    TAKEN = "taken"
    """The worker itself changes or settles it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the work on a message has to stop."""

    kind: LossKind
    """lapsed: the lease ran out. expired: the message's time to live ended, so that no lease can be
    longer, and it does not come again. gone: the service says so. timed out: longer than
    ``message_timeout_s``. denied: the service does not renew it. session: its session is lost.
    renewer: leases are not renewed any more. let go: by the worker itself. cancelled: an operator
    wants it; the lease is kept all the same, so that the message can be settled."""
    text: str


class AlreadySettled(LeaseLost):
    """Somebody else in this process settles the message, or has done so."""


class Keeper(Protocol):
    """What does the work for a :class:`Held`: a manager of leases."""

    def check(self, held: Held) -> None:
        """See :meth:`Held.check`."""
        ...

    def extend(self, held: Held, visibility_timeout_s: int) -> None:
        """See :meth:`Held.extend`."""
        ...

    def save(self, held: Held, saved: Saved) -> None:
        """See :meth:`Held.save`."""
        ...

    def begin_settling(self, held: Held) -> Lease:
        """See :meth:`Held.begin_settling`."""
        ...

    def settled(self, held: Held, result: QueueError | None, *, completing: bool) -> bool:
        """See :meth:`Held.settled`."""
        ...

    def retry_lease(self, held: Held) -> Lease | None:
        """See :meth:`Held.retry_lease`."""
        ...

    def lose(self, held: Held, loss: Loss) -> None:
        """See :meth:`Held.lose`."""
        ...

    def watch(self, held: Held, callback: Callable[[Loss], object]) -> None:
        """See :meth:`Held.on_loss`."""
        ...


class Held:
    """One message on a lease; made by ``keep`` of a manager, and equal to nothing but itself.

    All methods may be called from any thread.
    """

    __slots__ = (
        "_keeper",
        "callbacks",
        "cancelled",
        "client",
        "deadline_s",
        "delivery",
        "early_s",
        "expires_s",
        "flight",
        "is_ambiguous",
        "is_quiet",
        "key",
        "longest_s",
        "loss",
        "receipt",
        "registered_s",
        "renewals",
        "result",
        "settings",
        "slot",
        "state",
        "used",
    )

    def __init__(  # noqa: PLR0913 - parts of one record, made in two places
        self,
        keeper: Keeper,
        client: QueueClient,
        delivery: Delivery,
        settings: LeaseSettings,
        *,
        registered_s: float,
        deadline_s: float,
        early_s: float,
        expires_s: float = math.inf,
    ) -> None:
        self._keeper = keeper
        self.client = client
        """Where it came from."""
        self.delivery = delivery
        """As it was received; its receipt is out of date after the first renewal."""
        self.settings = settings
        """By which it is kept."""
        self.registered_s = registered_s
        """Monotonic seconds before its receive was sent."""
        self.deadline_s = deadline_s
        """Monotonic seconds at which the lease may have ended."""
        self.early_s = early_s
        """By this much it is renewed earlier than others."""
        self.expires_s = expires_s
        """Monotonic seconds at which the message may expire; infinity if it never does, or the
        service does not say."""
        self.longest_s: float = math.inf
        """What a renewal may ask for, after the service has refused more because of the expiry."""
        self.receipt = delivery.receipt
        """The newest."""
        self.state = HeldState.HELD
        self.loss: Loss | None = None
        """Why it is not held any more; or that an operator wants the work stopped."""
        self.cancelled: str | None = None
        """Why an operator wants the work stopped; the lease is kept all the same."""
        self.renewals = 0
        """How often it was renewed."""
        self.is_ambiguous = False
        """Whether a request got no answer that may have changed the receipt."""
        # For the manager.
        self.flight = Flight.NONE
        self.is_quiet = False
        self.used = ""
        self.result: QueueError | None = None
        self.slot: int | None = None
        self.key = 0
        self.callbacks: list[Callable[[Loss], object]] = []

    def __repr__(self) -> str:
        return f"<Held {self.delivery.queue}/{self.delivery.message_id} {self.state.value}>"

    @property
    def is_in_flight(self) -> bool:
        """Whether something is on its way that changes the receipt."""
        return self.flight is not Flight.NONE

    def on_loss(self, callback: Callable[[Loss], object]) -> None:
        """Have *callback* called once when the lease is lost; at once if it is lost already.

        If an operator wants the work stopped while the lease is kept, it is called for that first,
        with a loss of the kind "cancelled". It is called by a thread that keeps leases: it must not
        wait for anything, or others are lost. An exception of it is logged.
        """
        self._keeper.watch(self, callback)

    def check(self) -> None:
        """Raise if the message is not ours any more, which its deadline alone can tell.

        Raises:
            LeaseLost: Stop working on it.
        """
        self._keeper.check(self)

    def extend(self, visibility_timeout_s: int) -> None:
        """Make the lease last at least so long from now; renewals never shorten it.

        What is longer than the service allows, or than the message lives, is cut to that.

        Args:
            visibility_timeout_s: Whole seconds, 1 or more.

        Raises:
            LeaseLost: It is not ours any more.
            QueueError: The service could not or would not; the lease is as long as before.
            ValueError: It is not a whole number of seconds from 1.
        """
        self._keeper.extend(self, visibility_timeout_s)

    def save(self, saved: Saved) -> None:
        """Keep how far the work has come with the message; the lease is renewed with it.

        In the last second of a message's life nothing is kept: nobody will go on from there.

        Raises:
            LeaseLost: It is not ours any more; nothing was saved.
            QueueError: The service could not or would not; see ``QueueClient.save``.
        """
        self._keeper.save(self, saved)

    def begin_settling(self) -> Lease:
        """Renew no more, wait for a renewal that is under way, and return the newest lease.

        Of several callers one gets it. The wait is bounded by ``call_timeout_s``. Call
        :meth:`settled` with what comes of it.

        Raises:
            LeaseLost: It is not ours any more: do not complete it, or give it back.
            AlreadySettled: Somebody else is about to settle it.
        """
        return self._keeper.begin_settling(self)

    def settled(self, result: QueueError | None, *, completing: bool = False) -> bool:
        """Say what came of completing, giving back or burying it.

        Args:
            result: None if it was done.
            completing: It was to be completed, because all the work is done. If that cannot be
                confirmed the manager remembers it; see ``was_done``.

        Returns:
            Whether it is settled. If not, :meth:`retry_lease` tells whether to try again.
        """
        return self._keeper.settled(self, result, completing=completing)

    def retry_lease(self) -> Lease | None:
        """Return a lease to settle with once more after :meth:`settled` has returned false.

        That is the newer receipt of a renewal that was not answered in time, or after no answer
        the same lease while it lasts. None: there is no point; it is lost.
        """
        return self._keeper.retry_lease(self)

    def lose(self, text: str) -> None:
        """Say that the session it belongs to is lost."""
        self._keeper.lose(self, Loss("session", text))

    def cancel(self, reason: str) -> None:
        """Say that an operator wants the work stopped. The lease is kept."""
        self._keeper.lose(self, Loss("cancelled", reason))

    def let_go(self, why: str = "the worker has released it") -> None:
        """Keep it no longer, and settle nothing: it comes back when its lease ends."""
        self._keeper.lose(self, Loss("let go", why))


# --- hooks -------------------------------------------------------------------------------------
#
# What a manager of leases tells whoever wants to know.


class LeaseHooks:
    """Called by the threads of a manager; every method does nothing until it is overridden.

    They must not wait for anything. What they raise is logged and counted.
    """

    def renewed(self, helds: Sequence[Held], took_s: float) -> None:
        """Hear of leases that one request has renewed.

        Args:
            helds: They have their new receipts and deadlines.
            took_s: Seconds until the answer was there.
        """

    def failed(self, helds: Sequence[Held], error: Exception) -> None:
        """Hear of renewals that failed, and are tried again as long as their leases last."""

    def lost(self, held: Held, loss: Loss) -> None:
        """Hear that the work on a message has to stop."""

    def late(self, lag_s: float) -> None:
        """Hear that the manager ran later than is good for leases.

        Called for each round that was late, however many there are in a row. A manager whose hooks
        do not override this logs a warning when it begins. In most cases a handler keeps the lock
        of the interpreter; see ``ProcessLeaseManager``.
        """

    def stopped(self, error: BaseException) -> None:
        """Hear that leases are not renewed any more: all are lost, and the worker has to stop."""


@dataclass(slots=True)
class LeaseCounts:
    """What a manager has done so far."""

    requests: int = 0
    """That renew; with batches fewer than renewals."""
    renewals: int = 0
    """Leases that were renewed."""
    failures: int = 0
    """Renewals that failed and could be tried again."""
    late_ticks: int = 0
    """Ticks that were later than allowed, or found a renewal still under way."""
    hook_errors: int = 0
    """Hooks and callbacks that raised."""
    losses: Counter[str] = field(default_factory=Counter)
    """By kind; see :class:`~leasehold.worker.leases.held.Loss`."""
