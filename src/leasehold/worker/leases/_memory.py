"""Which messages are done although their queue does not know it."""

from __future__ import annotations

from typing import Final

MAX_REMEMBERED: Final = 100_000
MIN_REMEMBERED_S: Final = 600.0
"""Of monotonic time, and never less than two leases: it may wait in its queue before it is
received again."""


class DoneMemory:
    """Ids of messages whose work is done, and whose completion could not be confirmed."""

    def __init__(self) -> None:
        self._until_s: dict[tuple[str, str], float] = {}

    def add(self, queue: str, message_id: str, now_s: float, lease_s: float) -> None:
        """Remember a message."""
        key = (queue, message_id)
        self._until_s.pop(key, None)
        self._until_s[key] = now_s + max(MIN_REMEMBERED_S, 2 * lease_s)
        while len(self._until_s) > MAX_REMEMBERED or not self._is_first_valid(now_s):
            del self._until_s[next(iter(self._until_s))]

    def holds(self, queue: str, message_id: str, now_s: float) -> bool:
        """Return whether the message was done."""
        return self._until_s.get((queue, message_id), now_s) > now_s

    def remove(self, queue: str, message_id: str) -> None:
        """Forget a message."""
        self._until_s.pop((queue, message_id), None)

    def _is_first_valid(self, now_s: float) -> bool:
        return self._until_s[next(iter(self._until_s))] > now_s
