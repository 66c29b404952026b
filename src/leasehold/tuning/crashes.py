"""How often workers die at work."""

from __future__ import annotations

from typing import Final

PRIOR_CRASHES: Final = 0.5
PRIOR_WORK_S: Final = 5_000.0
"""What is assumed before anything is known: half a crash in so many seconds of work."""


def crash_rate(crashes: float, work_s: float) -> float:
    """Return the crashes per second of work: ``(crashes + 1/2)/(work + 5000 s)``.

    Args:
        crashes: Attempts that ended because their worker died, 0 or more.
        work_s: Seconds of work in which that happened, 0 or more, over all workers.

    Raises:
        ValueError: One of them is negative.

    Source: the mean of the posterior with a Gamma prior (A. Gelman et al., "Bayesian Data
    Analysis", 2.6); half an event is Jeffreys' prior of a Poisson rate.
    """
    if crashes < 0 or work_s < 0:
        raise ValueError("crashes and seconds of work are 0 or more")
    return (crashes + PRIOR_CRASHES) / (work_s + PRIOR_WORK_S)
