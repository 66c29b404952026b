"""How many messages a receive may take from a queue that can hold large ones.

Only when they are leased is it known how large they are; those that do not fit in the answer must
be given back, which costs them a delivery and their place. So a queue begins with as many as fit
if all are as large as they may be, and the number doubles while they turn out smaller.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from leasehold.domain.commands import Receive
from leasehold.domain.types import Lease, Message, Queue

MAX_PORTION: Final = 10_000
MAX_QUEUES: Final = 10_000

Key: TypeAlias = tuple[str, str]


class Portions:
    """Numbers of messages, by queue; forgotten with the process.

    Args:
        inline_bytes: Larger bodies are large.
        answer_bytes: What the bodies of one answer may have, together.
    """

    def __init__(self, inline_bytes: int, answer_bytes: int) -> None:
        self.known: dict[Key, int] = {}
        """Empty while no queue takes large bodies; then nothing here costs anything."""
        self._inline_bytes = inline_bytes
        self._answer_bytes = answer_bytes

    def of(self, queue: Queue) -> int | None:
        """Return the most messages that a receive may take; None if the queue has no large ones."""
        largest = queue.settings.max_body_bytes
        if largest is None or largest <= self._inline_bytes:
            return None
        key = queue.account, queue.name
        portion = self.known.get(key)
        if portion is None:
            if len(self.known) >= MAX_QUEUES:
                self.known.clear()
            portion = self.known[key] = max(1, self._answer_bytes // largest)
        return portion

    def learn(self, command: Receive, leases: tuple[Lease, ...]) -> None:
        """Let a queue have twice as many, if twice what came would fit."""
        key = command.account, command.queue
        portion = self.known.get(key)
        if portion is None or len(leases) < portion:
            return
        if 2 * sum([_size(lease.message) for lease in leases]) <= self._answer_bytes:
            self.known[key] = min(2 * portion, MAX_PORTION)

    def shrink(self, command: Receive, given: int) -> None:
        """Note that only so many could be given."""
        key = command.account, command.queue
        if key in self.known:
            self.known[key] = max(1, min(given, self.known[key]))


def _size(message: Message) -> int:
    ref = message.detail.body_ref
    return 0 if ref is None else ref.size_bytes
