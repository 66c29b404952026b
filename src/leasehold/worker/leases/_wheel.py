"""Which leases to look at, at which tick: no tick looks at any other."""

from __future__ import annotations

import heapq
import math
from itertools import count

from leasehold.worker.leases.held import Held


class Wheel:
    """Leases by the tick at which something is due; ticks come at whole multiples of an interval.

    Nothing stays in it that was removed: what is settled must not keep its body in memory.

    Args:
        interval_s: From tick to tick.
        start_s: The moment of tick 0.
    """

    def __init__(self, interval_s: float, start_s: float) -> None:
        self._interval_s = interval_s
        self._start_s = start_s
        self._slots: dict[int, set[Held]] = {}
        self._retries: list[tuple[float, int, Held]] = []
        self._numbers = count()

    def place(self, held: Held, moment_s: float, now_s: float) -> float | None:
        """Look at it at the first tick from *moment_s* on that is still to come.

        Returns:
            When that is, if nobody else is looked at then; else None.
        """
        self.remove(held)
        start_s, interval_s = self._start_s, self._interval_s
        slot = math.ceil((moment_s - start_s) / interval_s)
        slot = max(slot, math.floor((now_s - start_s) / interval_s) + 1)
        if start_s + slot * interval_s <= now_s:
            slot += 1  # the division was rounded down: that tick is not still to come
        held.slot = slot
        others = self._slots.get(slot)
        if others is not None:
            others.add(held)
            return None
        self._slots[slot] = {held}
        return start_s + slot * interval_s

    def remove(self, held: Held) -> None:
        """Look at it no more."""
        slot, held.slot = held.slot, None
        if slot is not None and (others := self._slots.get(slot)) is not None:
            others.discard(held)
            if not others:
                del self._slots[slot]

    def retry(self, held: Held, moment_s: float) -> None:
        """Look at it at exactly this moment as well."""
        heapq.heappush(self._retries, (moment_s, next(self._numbers), held))

    def next_s(self) -> float | None:
        """Return when somebody has to be looked at next."""
        next_s = None if not self._slots else self._start_s + min(self._slots) * self._interval_s
        if self._retries and (next_s is None or self._retries[0][0] < next_s):
            return self._retries[0][0]
        return next_s

    def due(self, now_s: float) -> list[Held]:
        """Take out, and return, who has to be looked at by now."""
        due: dict[Held, None] = {}
        for slot in sorted(self._slots):
            if self._start_s + slot * self._interval_s > now_s:
                break
            for held in self._slots.pop(slot):
                held.slot = None
                due[held] = None
        retries = self._retries
        while retries and retries[0][0] <= now_s:
            held = heapq.heappop(retries)[2]
            self.remove(held)
            due[held] = None
        return list(due)
