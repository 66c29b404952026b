"""Why advice is what it is, in sentences."""

from __future__ import annotations

from typing import Final

from leasehold.tuning.drift import Drift
from leasehold.tuning.model import DurationModel

_LEAST_TOLD: Final = 1e-4
_WHOLE_FROM: Final = 100


def share_told(share: float) -> str:
    """Return a share for people: ``12 %``, ``0.31 %``, ``less than 0.01 %``."""
    if share < _LEAST_TOLD:
        return "less than 0.01 %"
    percent = min(100 * share, 100.0)
    return f"{percent:.3g} %" if percent > 99 else f"{percent:.2g} %"  # noqa: PLR2004 - 3 digits


def length_told(seconds: float) -> str:
    """Return a length for people: ``0.42 s``, ``12,300 s``."""
    return f"{seconds:,.0f} s" if seconds >= _WHOLE_FROM else f"{seconds:.3g} s"


def shape_told(model: DurationModel, timeout_s: float, crash_rate: float, crashes: float) -> str:
    """Return what the work is like, and how often workers die at it.

    Args:
        model: Of the work.
        timeout_s: The best one.
        crash_rate: Per second of work, as it was calculated with.
        crashes: How many were seen.
    """
    every = length_told(1 / crash_rate)
    if crashes:
        died = f"a worker dies once in {every} of work"
    else:
        died = f"no worker was seen to die (one death in {every} of work is assumed)"
    return (
        f"{share_told(model.tail(timeout_s))} of the work takes longer than "
        f"{length_told(timeout_s)} (half of it {length_told(model.quantile(0.5))}, 99 % "
        f"{length_told(model.quantile(0.99))}), and {died}"
    )


def start_told(finished: float, censored: float) -> str:
    """Return why a timeout is no more than a start."""
    if finished:
        return f"only {finished:,.0f} attempts were finished, so this is a rough start"
    if censored:
        return (
            f"nothing was finished yet, and {censored:,.0f} leases ended before the work did, so "
            "this is a guess"
        )
    return "nothing was finished yet, so this is the default"


def blind_told() -> str:
    """Return why a timeout is twice as long as all that was seen."""
    return "more of it outlasts all that was seen, so it is at least twice that"


def given_up_told(messages: float) -> str:
    """Return why a timeout is no shorter than the one in force."""
    many = f"{messages:,.0f} message{'s' if messages > 1 else ''}"
    were, work = ("were", "their") if messages > 1 else ("was", "its")
    return (
        f"{many} {were} given up after each lease had run out: {work} work may take longer, so the "
        "timeout is not shortened"
    )


def extrapolated_told(times: float, longest_s: float) -> str:
    """Return why a timeout is no longer."""
    return (
        f"a longer one might cost less by the fitted tail, but none beyond {times:g} times the "
        f"longest attempt seen ({length_told(longest_s)}) is advised"
    )


def beyond_told(share: float, longest_s: float) -> str:
    """Return why a timeout is as long as can be."""
    return (
        f"{share_told(share)} of it takes longer than {length_told(longest_s)}, the longest lease "
        "there can be, so only leases that are renewed get that done"
    )


def drift_told(drift: Drift) -> str:
    """Return how the work has changed."""
    word = "quicker" if drift.z > 0 else "slower"
    return f"the work got {word} about {drift.attempts_ago:,} attempts ago"
