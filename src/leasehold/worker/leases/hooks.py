"""What a manager of leases tells whoever wants to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from leasehold.worker.leases.held import Held, Loss


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
        """Hear that nobody renews leases any more: all are lost, and the worker has to stop."""


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
