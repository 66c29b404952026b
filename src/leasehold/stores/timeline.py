"""How many messages of a queue are invisible, and until when: what makes counts exact and cheap.

A message becomes visible because time passes, without anybody writing a row. So a store keeps, in
memory, how many messages become visible in which second, by phase; everything else in the queue
is visible. Within the running second the store looks at the few rows of that second.

It takes some hundred bytes for each second in which something becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasehold.domain.types import Phase

_PHASES: Final = len(Phase)
_MS: Final = 1000


class Timeline:
    """Numbers of messages by (second in which they become visible, phase).

    Args:
        now_ms: The time; what becomes visible in this second or later is kept.
        rows: Second, phase and number of what is invisible now.
    """

    __slots__ = ("_numbers", "_reached", "ahead")

    def __init__(self, now_ms: int, rows: Iterable[tuple[int, int, int]]) -> None:
        self.ahead = [0] * _PHASES
        """By phase: how many become visible in this second or later."""
        self._reached = now_ms // _MS
        self._numbers: dict[int, int] = {}
        for second, phase, number in rows:
            key = second * _PHASES + phase
            self._numbers[key] = self._numbers.get(key, 0) + number
            self.ahead[phase] += number

    def add(self, visible_at_ms: int, phase: int, number: int) -> None:
        """Count *number* messages more, or fewer, that become visible at that time."""
        second = visible_at_ms // _MS
        if second < self._reached:
            return  # visible by now, whatever they were before
        key = second * _PHASES + phase
        left = self._numbers.get(key, 0) + number
        if left:
            self._numbers[key] = left
        else:
            del self._numbers[key]
        self.ahead[phase] += number

    def advance(self, now_ms: int) -> bool:
        """Let time pass; False if it went back, and the timeline is of no more use."""
        second = now_ms // _MS
        if second <= self._reached:
            return second == self._reached
        numbers = self._numbers
        passed: Iterable[int] = range(self._reached * _PHASES, second * _PHASES)
        if len(numbers) < (second - self._reached) * _PHASES:
            passed = [key for key in numbers if key < second * _PHASES]
        for key in passed:
            number = numbers.pop(key, 0)
            if number:
                self.ahead[key % _PHASES] -= number
        self._reached = second
        return True

    def in_this_second(self) -> list[int]:
        """Return, by phase, how many become visible in the second reached."""
        first = self._reached * _PHASES
        return [self._numbers.get(first + phase, 0) for phase in range(_PHASES)]
