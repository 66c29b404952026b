"""How the texts of options are read: lengths of time, sizes, numbers, words.

Each reader raises ValueError with what the text should have been.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_DURATION: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?"
)
_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES: Final = re.compile(r"(\d+)\s*([kmg]i?b?|b)?")
_UNIT_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "b": 1, "": 1}


def duration_s(text: str) -> float:
    """Return a length in seconds: ``30``, ``30s``, ``500 ms``, ``5m``, ``2 hours``, ``1d``.

    Raises:
        ValueError: It is not of this form.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError("a length of time such as 30s, 500ms, 5m or 2h")
    unit = found[2] or "s"
    return float(found[1]) * _UNIT_S["ms" if unit == "ms" else unit[0]]


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers in a range."""

    def read(text: str) -> int:
        plain = text.strip().replace("_", "")
        if not plain.isdecimal() or not least <= int(plain) <= most:
            raise ValueError(f"a whole number from {least:,} to {most:,}")
        return int(plain)

    return read


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return a reader of lengths of time in a range of seconds."""

    def read(text: str) -> float:
        length_s = duration_s(text)
        if not least <= length_s <= most:
            raise ValueError(f"a length of time from {least:g} to {most:g} seconds")
        return length_s

    return read


def whole_seconds(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of lengths of time that are whole seconds, such as leases."""

    def read(text: str) -> int:
        length_s = duration_s(text)
        if length_s != int(length_s) or not least <= length_s <= most:
            raise ValueError(f"a length of time of whole seconds, {least} to {most}")
        return int(length_s)

    return read


def size_bytes(text: str) -> int:
    """Return a size in bytes: ``1048576``, ``64m``, ``1g``.

    Raises:
        ValueError: It is not of this form, or 0.
    """
    found = _BYTES.fullmatch(text.strip().lower())
    if found is None or not int(found[1]):
        raise ValueError("a size such as 1048576, 64m or 1g")
    return int(found[1]) * _UNIT_BYTES[(found[2] or "b")[0]]


def truth(text: str) -> bool:
    """Return true or false.

    Raises:
        ValueError: It is neither.
    """
    known = {"true": True, "false": False}
    try:
        return known[text.strip().lower()]
    except KeyError:
        raise ValueError("true or false") from None


def choice(*values: str, **also: str) -> Callable[[str], str]:
    """Return a reader of one of some words, without regard to case; *also* are other spellings."""
    known = {value.lower(): value for value in values} | {k.lower(): v for k, v in also.items()}

    def read(text: str) -> str:
        try:
            return known[text.strip().lower()]
        except KeyError:
            raise ValueError(f"one of {', '.join(values)}") from None

    return read


def position(text: str) -> str | int:
    """Return where to begin in a log: ``earliest``, ``latest`` or the number of a batch.

    Raises:
        ValueError: It is neither.
    """
    found = text.strip().lower()
    if found in {"earliest", "latest"}:
        return found
    try:
        return whole(0, 1 << 62)(found)
    except ValueError:
        raise ValueError("earliest, latest or the number of a batch (seq)") from None


def names(text: str) -> tuple[str, ...]:
    """Return names that stand between commas."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise ValueError("names between commas")
    return found


def plain(text: str) -> str:
    """Return a text that is not empty.

    Raises:
        ValueError: It is.
    """
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text.strip()
