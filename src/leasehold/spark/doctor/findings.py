"""What the doctor says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How bad a finding is; the larger, the worse."""

    OK = 0
    WARN = 1
    """It works, and may not go on to."""
    FAIL = 2
    """It does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """Name of the check: small letters and hyphens, the same for ever."""
    level: Level
    found: str
    """What there is."""
    meaning: str = ""
    """What follows from it; empty if all is well."""
    cure: str = ""
    """What to do about it; empty if all is well."""


def ok(check: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(check=check, level=Level.OK, found=found)


def warn(check: str, found: str, meaning: str, cure: str) -> Finding:
    """Return that something works, and may not go on to."""
    return Finding(check=check, level=Level.WARN, found=found, meaning=meaning, cure=cure)


def fail(check: str, found: str, meaning: str, cure: str) -> Finding:
    """Return that something does not work."""
    return Finding(check=check, level=Level.FAIL, found=found, meaning=meaning, cure=cure)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among findings; OK if there are none."""
    return max((each.level for each in findings), default=Level.OK)
