"""What is said once, and not again for as long as it goes on."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final, TypeVar

_T = TypeVar("_T", bound=Hashable)

QUIET_S: Final = 60.0
"""Monotonic seconds without a word of something, after which it begins anew."""


class Episodes:
    """Tells the beginning of something from its going on. Not to be shared by threads."""

    def __init__(self) -> None:
        self._last_s: dict[Hashable, float] = {}

    def new(self, things: Collection[_T], now_s: float) -> list[_T]:
        """Return those of *things*, which happen now, that did not happen a short while ago."""
        self._last_s = {
            thing: last_s for thing, last_s in self._last_s.items() if now_s - last_s < QUIET_S
        }
        found = [thing for thing in things if thing not in self._last_s]
        self._last_s.update(dict.fromkeys(things, now_s))
        return found
