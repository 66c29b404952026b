"""Which messages come next: what receives and claims have in common."""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.domain.claim_rules import Step, size_of
from leasehold.domain.events import EventType
from leasehold.domain.failures import POISONED_AT_ONCE, exhausted_on_receive, newest_error
from leasehold.domain.queue_settings import FailurePolicy
from leasehold.domain.throttle import allowance, spend
from leasehold.domain.types import Message
from leasehold.domain.visibility import after_lapse, after_poison, is_receivable, receive_order
from leasehold.stores.memory.shelves import Shelf, Shelves

NO_POLICY = FailurePolicy()


class Taking:
    """Finds what can be received, and moves what may not be delivered again."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    def in_order(self, shelf: Shelf) -> Iterator[tuple[int, Message, str | None]]:
        """Go over what can be received: row key, message with its lapse noted, reason against."""
        now_ms = self._shelves.now_ms
        settings = shelf.queue.settings
        policy = settings.failure_policy
        ageing_s = settings.priority_ageing_s
        receivable = (
            key
            for key, message in shelf.rows.items()
            if is_receivable(message, now_ms) and not shelf.hides(key)
        )
        for row_key in sorted(receivable, key=lambda key: _order(shelf, key, ageing_s)):
            message = after_lapse(shelf.rows[row_key], now_ms)
            yield row_key, message, exhausted_on_receive(message, policy) if policy else None

    def take(
        self, shelf: Shelf, limit: int, step: Step | None = None
    ) -> Iterator[tuple[int, Message]]:
        """Go over the messages to lease now, as far as the queue's settings allow.

        What may not be delivered again goes to the poison queue on the way.

        Args:
            shelf: The queue.
            limit: Messages at most.
            step: Says after which message to end before that; None for none.

        Yields:
            Row key and message, with its lapse noted. All of them must be taken.
        """
        now_ms = self._shelves.now_ms
        settings = shelf.queue.settings
        if settings.is_paused(now_ms):
            return
        rate_per_s = settings.max_receives_per_s
        if rate_per_s is not None:
            allowed, shelf.bucket = allowance(shelf.bucket, rate_per_s, now_ms)
            limit = min(limit, allowed)
        taken, poisoned, ended = 0, 0, False
        for row_key, message, reason in list(self.in_order(shelf)):
            if taken == limit or ended:
                break
            if reason is not None and poisoned == POISONED_AT_ONCE:
                break
            if message is not shelf.rows[row_key]:
                self._shelves.note(EventType.LAPSED, shelf, message)
            if reason is not None:
                self.poison(shelf, row_key, message, reason)
                poisoned += 1
                continue
            yield row_key, message
            taken += 1
            if step is not None:
                ended = not step.takes(message.dequeue_count, size_of(message))
        if rate_per_s is not None and shelf.bucket is not None:
            shelf.bucket = spend(shelf.bucket, taken)

    def poison(self, shelf: Shelf, row_key: int, message: Message, reason: str) -> Message:
        """Move a message, its attempt closed, to the poison queue."""
        shelves = self._shelves
        poison = shelves.make_poison_of(shelf)
        queue = shelf.queue
        policy = queue.settings.failure_policy or NO_POLICY
        poisoned = after_poison(message, shelves.now_ms, policy, queue.name, reason)
        shelves.take(shelf, row_key)
        poison.rows[row_key] = poisoned
        error = newest_error(poisoned)
        shelves.note(EventType.POISONED, shelf, poisoned, reason, poison.queue.name, error)
        return poisoned


def _order(shelf: Shelf, row_key: int, ageing_s: int | None) -> tuple[int, int, int, int]:
    """Return the sort key of a message to receive.

    The members of a claim that has lapsed became visible all at once; they come in the order that
    they have in the claim.
    """
    message = shelf.rows[row_key]
    urgency, visible_at_ms, _ = receive_order(message, row_key, ageing_s)
    was_visible_ms = message.visible_since_ms if row_key in shelf.held else message.visible_at_ms
    return urgency, visible_at_ms, was_visible_ms, row_key
