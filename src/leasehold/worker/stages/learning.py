"""How long a stage usually takes, to notice when it takes much longer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

REMEMBERED: Final = 50
"""So many of the latest successful attempts count."""
ENOUGH: Final = 10
"""With fewer nothing is known."""
TIMES_LONGEST: Final = 4
LEAST_S: Final = 1.0


def learned_limit_s(durations_s: Sequence[float]) -> float | None:
    """Return after how many seconds a stage is taking unusually long; None: too early to say.

    It is four times the longest of the latest fifty successful attempts, and a second at least:
    attempts that vary little give a close limit, those that vary much a wide one.
    """
    if len(durations_s) < ENOUGH:
        return None
    return max(LEAST_S, TIMES_LONGEST * max(durations_s))


class Durations:
    """How long the latest attempts at each stage took. May be used by several threads."""

    def __init__(self) -> None:
        self._latest: dict[str, deque[float]] = {}

    def add(self, stage: str, took_s: float) -> None:
        """Remember an attempt that succeeded."""
        self._latest.setdefault(stage, deque(maxlen=REMEMBERED)).append(took_s)

    def limit_s(self, stage: str) -> float | None:
        """See :func:`learned_limit_s`."""
        latest = self._latest.get(stage)
        return None if latest is None else learned_limit_s(latest.copy())
