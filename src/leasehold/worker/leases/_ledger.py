"""Which leases are held, and what becomes of them: no threads, no requests, no clock.

Whoever calls holds the lock of the manager.
"""

from __future__ import annotations

from typing import Final

from leasehold.worker.errors import LeaseLost, MessageExpired
from leasehold.worker.leases._memory import DoneMemory
from leasehold.worker.leases.decisions import (
    Verdict,
    is_ambiguous,
    is_at_expiry,
    judge,
    shorter_s,
)
from leasehold.worker.leases.held import (
    AlreadySettled,
    Held,
    HeldState,
    Loss,
)
from leasehold.worker.leases.hooks import LeaseCounts
from leasehold.worker.queues.errors import PastExpiry, QueueError
from leasehold.worker.queues.protocol import Lease, Renewed

_LAPSED: Final = Loss("lapsed", "it was not renewed in time")
EXPIRED: Final = Loss(
    "expired", "its time to live has ended, so that it is gone and does not come again"
)
_SETTLED: Final = Loss("let go", "somebody else settles it")
_STATE_AFTER: Final = {
    "timed out": HeldState.ABANDONED,
    "let go": HeldState.ABANDONED,
    "denied": HeldState.DENIED,
}


class Notice:
    """Who has to be told of a loss, once the lock is free."""

    __slots__ = ("callbacks", "held", "loss")

    def __init__(self, held: Held, loss: Loss) -> None:
        self.held = held
        self.loss = loss
        self.callbacks = [*held.callbacks]
        if loss.kind != "cancelled":  # which is none yet: the lease is kept
            held.callbacks.clear()


NOBODY: Final[list[Notice]] = []


class Ledger:
    """The leases of one manager."""

    def __init__(self) -> None:
        self.held: set[Held] = set()
        self.counts = LeaseCounts()
        self.done = DoneMemory()
        self._clients: dict[int, int] = {}

    @property
    def clients(self) -> int:
        """How many queues there are leases of."""
        return len(self._clients)

    def add(self, held: Held) -> None:
        """Hold one more."""
        self.held.add(held)
        key = id(held.client)
        self._clients[key] = self._clients.get(key, 0) + 1

    def drop(self, held: Held) -> None:
        """Hold it no more. Harmless if it is not held."""
        if held not in self.held:
            return
        self.held.discard(held)
        key = id(held.client)
        self._clients[key] -= 1
        if not self._clients[key]:
            del self._clients[key]

    def end(self, held: Held, loss: Loss) -> list[Notice]:
        """Let the work stop, unless it is being settled or over already."""
        if held.state is not HeldState.HELD:
            return NOBODY
        if loss.kind != "cancelled":
            return self.over(held, loss)
        if held.cancelled is not None:
            return NOBODY
        held.cancelled, held.loss = loss.text, loss
        return [Notice(held, loss)]

    def over(self, held: Held, loss: Loss) -> list[Notice]:
        """End it, also if it is being settled."""
        held.state, held.loss = _STATE_AFTER.get(loss.kind, HeldState.LOST), loss
        self.counts.losses[loss.kind] += 1
        self.drop(held)
        return [Notice(held, loss)]

    def answer(
        self, held: Held, answer: Renewed | Exception, sent_at_s: float, lease_s: int
    ) -> tuple[Verdict, list[Notice]]:
        """Take note of the answer to a renewal.

        One that comes after the lease was given up changes nothing: whoever has the message by then
        must not lose it to us, and the work was told to stop.

        Args:
            held: The lease.
            answer: What came.
            sent_at_s: Monotonic seconds before the request was sent.
            lease_s: What it asked for.
        """
        verdict = judge(answer)
        if held.state is not HeldState.HELD and held.state is not HeldState.SETTLING:
            return verdict, NOBODY
        if isinstance(answer, Renewed):
            held.receipt = answer.receipt
            held.deadline_s = sent_at_s + lease_s
            held.is_ambiguous = False
            held.renewals += 1
            if answer.cancel is not None:
                return verdict, self.end(held, Loss("cancelled", answer.cancel))
        elif verdict is Verdict.LOST:
            return verdict, self.end(held, _gone(held, answer, sent_at_s))
        elif isinstance(answer, PastExpiry):
            held.longest_s = min(held.longest_s, shorter_s(held, lease_s))
        elif is_ambiguous(answer):
            held.is_ambiguous = True
        return verdict, NOBODY

    def begin_settling(self, held: Held, now_s: float) -> list[Notice]:
        """Say with which receipt it is settled; if its deadline has passed it is over."""
        if now_s >= held.deadline_s:
            return self.over(held, lapse_of(held))
        self.drop(held)
        held.used = held.receipt
        return NOBODY

    def settled(
        self, held: Held, result: QueueError | None, *, completing: bool, now_s: float
    ) -> list[Notice]:
        """Take note of what came of settling it."""
        queue, message_id = held.delivery.queue, held.delivery.message_id
        held.result = result
        if result is None:
            held.state = HeldState.DONE
            self.done.remove(queue, message_id)
            return NOBODY
        if completing:
            # The last renewal may have hidden it for a whole lease from now.
            lease_s = max(held.deadline_s - now_s, held.settings.visibility_timeout_s)
            self.done.add(queue, message_id, now_s, lease_s)
        is_sure = held.is_quiet and not held.is_ambiguous
        if is_sure and judge(result) is Verdict.LOST and held.receipt == held.used:
            return self.over(held, _gone(held, result, now_s))
        return NOBODY

    def lease_for_retry(self, held: Held, now_s: float) -> tuple[Lease | None, list[Notice]]:
        """Return what to settle it with once more; if there is nothing it is over."""
        assert held.result is not None
        if now_s >= held.deadline_s:
            return None, self.over(held, lapse_of(held))
        if judge(held.result) is Verdict.LOST and held.receipt == held.used:
            return None, self.over(held, _gone(held, held.result, now_s))
        held.used = held.receipt
        return lease_of(held), NOBODY


def lease_of(held: Held) -> Lease:
    """Return its newest lease."""
    return Lease(held.delivery.message_id, held.receipt)


def lapse_of(held: Held) -> Loss:
    """Return why its lease has ended."""
    return EXPIRED if is_at_expiry(held) else _LAPSED


def _gone(held: Held, answer: object, now_s: float) -> Loss:
    """Return what it means that the service does not know the lease."""
    return EXPIRED if now_s >= held.expires_s else Loss("gone", str(answer))


def refusal(held: Held) -> LeaseLost:
    """Return why nobody may settle it."""
    message_id = held.delivery.message_id
    if held.state is HeldState.SETTLING or held.state is HeldState.DONE:
        return AlreadySettled(_SETTLED.text, kind=_SETTLED.kind, message_id=message_id)
    loss = held.loss or lapse_of(held)
    kind = MessageExpired if loss.kind == "expired" else LeaseLost
    return kind(loss.text, kind=loss.kind, message_id=message_id)
