"""Times, lengths of time and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from leasehold.domain.model import NEVER_MS

_MS: Final = 1000
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_MAX_QUOTED: Final = 120
_NEAR: Final = 0.75
"""Share of the letters that two near names have in common at least."""


def time_of(at_ms: int) -> str:
    """Return a moment in UTC to the second: ``2026-11-21T10:59:11Z``."""
    moment = datetime.fromtimestamp(min(max(at_ms, 0), NEVER_MS) // _MS, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def length_of(length_ms: int) -> str:
    """Return a length of time in its two largest units, rounded down: ``3 h 12 min``."""
    for place, (unit_ms, name) in enumerate(_UNITS):
        if length_ms >= unit_ms:
            text = f"{length_ms // unit_ms} {name}"
            rest_ms = length_ms % unit_ms
            if rest_ms and place + 1 < len(_UNITS):
                smaller_ms, smaller = _UNITS[place + 1]
                if rest_ms >= smaller_ms:
                    text += f" {rest_ms // smaller_ms} {smaller}"
            return text
    return "less than 1 s"


def past(at_ms: int, now_ms: int) -> str:
    """Return a moment that is over: ``2026-11-21T10:59:11Z (3 h 12 min ago)``."""
    return f"{time_of(at_ms)} ({length_of(now_ms - at_ms)} ago)"


def future(at_ms: int, now_ms: int) -> str:
    """Return a moment to come: ``2026-11-21T10:59:11Z (in 3 h 12 min)``."""
    return f"{time_of(at_ms)} (in {length_of(at_ms - now_ms)})"


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun in the right form: ``1 message``, ``2 messages``."""
    return f"{number} {form_of(number, noun, plural)}"


def form_of(number: float, noun: str, plural: str | None = None) -> str:
    """Return a noun in the form that goes with a number: ``message`` with 1, else ``messages``."""
    return noun if number == 1 else plural or noun + "s"


def times_of(number: int) -> str:
    """Return how often something happened: ``once``, ``twice``, ``14 times``."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of *names* that differ little from *name*, the nearest first."""
    from difflib import get_close_matches  # noqa: PLC0415 - only what is missing needs it

    by_plain = {other.lower(): other for other in names}
    near = get_close_matches(name.lower(), by_plain, n=3, cutoff=_NEAR)
    return [by_plain[plain] for plain in near]


def quote(text: str) -> str:
    """Return the words of a client on one line, in quotation marks, cut if they are many."""
    line = " ".join(text.split())
    if len(line) > _MAX_QUOTED:
        line = line[: _MAX_QUOTED - 3] + "..."
    return f'"{line}"'


def enumeration(parts: list[str]) -> str:
    """Return one or more parts as a list in a sentence: ``a, b and c``."""
    if len(parts) == 1:
        return parts[0]
    return ", ".join(parts[:-1]) + " and " + parts[-1]
