"""Setting a message aside by copying it and deleting it then, where a service has no such step."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leasehold.worker.queues._one_by_one import shortened
from leasehold.worker.queues._poison import poison_name
from leasehold.worker.queues.errors import LeaseGone, QueueError, Unreachable
from leasehold.worker.queues.protocol import Delivery, Fault, Lease, Renewed
from leasehold.worker.timing import Time

BURIAL_S: Final = 60
"""Length of the lease under which a message is copied and deleted, seconds."""
_MOST: Final = 1000
"""Burials that are remembered until they are finished; the oldest is forgotten first."""


@dataclass(slots=True)
class _Begun:
    """How far a burial has come."""

    asked: str
    """The receipt that it was asked for with."""
    receipt: str
    """The newest."""
    until_s: float | None = None
    """Monotonic seconds until which nobody else can have the message; None: that is not known."""
    is_copied: bool = False
    is_unsure: bool = False
    """Whether the message may be deleted: a deletion under this lease got no answer."""


class Burials:
    """Sets messages aside in three requests: renew, copy, delete.

    One that got no answer is gone on with by the next call for the same lease: with the receipt
    that its own renewal has brought, and without a second copy. What it says is so: it returns if
    the message is not in its queue any more, and :class:`LeaseGone` means that it may be there.

    A copy whose request got no answer may have been made all the same, and is then made twice. So
    it is when a message comes again because it could not be deleted.

    Args:
        renew: Renews a lease. Each of the three is told how long its request may take.
        copy: Puts the copy of a message into the poison queue.
        delete: Deletes a message.
        time: What leases go by.
    """

    def __init__(
        self,
        *,
        renew: Callable[[Lease, int, float | None], Renewed],
        copy: Callable[[Delivery, Fault, float | None], object],
        delete: Callable[[Lease, float | None], object],
        time: Time,
    ) -> None:
        self._renew = renew
        self._copy = copy
        self._delete = delete
        self._time = time
        self._lock = threading.Lock()
        self._begun: OrderedDict[str, _Begun] = OrderedDict()

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """Set a message aside, or go on with that.

        Raises:
            QueueError: It is not done. The text says whether there is a copy already.
        """
        with self._lock:
            begun = self._begun.pop(delivery.message_id, None)
        if begun is None or begun.asked != receipt:
            begun = _Begun(receipt, receipt)
        try:
            self._go_on(begun, delivery, fault, timeout_s)
        except QueueError as error:
            if begun.is_copied:
                told = (
                    f"a copy is in {poison_name(delivery.queue)} already, and may not be the last"
                )
                error.args = (f"{error}; {told}",)
            if not isinstance(error, LeaseGone):
                self._keep(delivery.message_id, begun)
            raise

    def _go_on(
        self, begun: _Begun, delivery: Delivery, fault: Fault, timeout_s: float | None
    ) -> None:
        now_s = self._time.monotonic_s()
        if begun.until_s is None or now_s >= begun.until_s:
            lease = Lease(delivery.message_id, begun.receipt)
            renewed, lease_s = shortened(
                lambda length_s: self._renew(lease, length_s, timeout_s), BURIAL_S
            )
            begun.receipt = renewed.receipt
            # It is there still, so an earlier deletion was not carried out.
            begun.until_s, begun.is_unsure = now_s + lease_s, False
        if not begun.is_copied:
            self._copy(delivery, fault, timeout_s)
            begun.is_copied = True
        try:
            self._delete(Lease(delivery.message_id, begun.receipt), timeout_s)
        except LeaseGone:
            # Nobody else can have taken it yet: the earlier deletion was carried out.
            if not begun.is_unsure or self._time.monotonic_s() >= begun.until_s:
                raise
        except Unreachable as error:
            begun.is_unsure = begun.is_unsure or error.outcome_unknown
            raise

    def _keep(self, message_id: str, begun: _Begun) -> None:
        with self._lock:
            self._begun[message_id] = begun
            if len(self._begun) > _MOST:
                self._begun.popitem(last=False)
