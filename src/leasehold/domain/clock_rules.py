"""When a clock may be believed: enough to expire messages for good, and enough to act at all.

A message hidden because it has expired comes back when a wrong clock is put right; one retired or
removed does not. So after a start with the clock suspiciously far ahead of the time last noted,
expiry hides but nothing is retired until the clock has proved itself.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

SUSPICIOUS_GAP_MS: Final = 3_600_000
"""A start this long after the time last noted is suspicious: a long stop or a wrong clock."""

CONFIRMED_AFTER_S: Final = 3_600.0
"""A suspicious clock is believed once the server has run this long with it."""

TOLERATED_DRIFT_S: Final = 5.0
"""The wall clock may not have been moved by more than this meanwhile."""


def may_retire(
    *, last_seen_ms: int, started_at_ms: int, running_s: float, wall_drift_s: float
) -> bool:
    """Tell whether expired messages may be retired and removed now.

    Args:
        last_seen_ms: Time noted by the previous run; 0 when there was none.
        started_at_ms: Time at which this run began.
        running_s: Seconds this run has lasted.
        wall_drift_s: How far the wall clock has moved against the time of this run.
    """
    if abs(wall_drift_s) > TOLERATED_DRIFT_S:
        return False
    suspicious = last_seen_ms != 0 and started_at_ms - last_seen_ms > SUSPICIOUS_GAP_MS
    return not suspicious or running_s >= CONFIRMED_AFTER_S


AGREED_WITHIN_S: Final = 0.5
"""Servers of one database act only while their time is as close to the time that they share."""

FRESH_S: Final = 2.5
"""So long the word of another server counts that the shared time is right: each gives it once a
second."""

DOUBTED_AT_MOST_S: Final = 3.0
"""How long a server waits for such a word before it trusts its own time."""


class Verdict(Enum):
    """On the time that the servers of a database share, by what one of them sees."""

    AGREES = auto()
    """It is this server's time."""
    CORRECT = auto()
    """The clock of the database was set: the shared time is to go on as if it had not been."""
    FOLLOW = auto()
    """This server has lost the time: it is to take the shared one over."""
    DOUBT = auto()
    """It is unknown yet: nothing is to be done by either."""


def judge(*, gap_s: float, is_known: bool, is_fresh: bool, doubted_for_s: float) -> Verdict:
    """Tell what to do about the time that servers share.

    It is made of the database's clock, which anybody may set, and a correction; each server has a
    clock of its own that only counts.

    Args:
        gap_s: How far the shared time is ahead of this server's, at the least.
        is_known: Whether this server agreed with the shared time under the same correction.
        is_fresh: Whether another server did, within FRESH_S by the database's clock as it is now.
        doubted_for_s: How long this server has been in doubt.
    """
    if abs(gap_s) <= AGREED_WITHIN_S:
        return Verdict.AGREES
    if is_known and gap_s < 0:
        return Verdict.CORRECT  # a clock that counts may lose time, and never gains any
    if is_fresh:
        return Verdict.FOLLOW
    if is_known or doubted_for_s >= DOUBTED_AT_MOST_S:
        return Verdict.CORRECT
    return Verdict.DOUBT
