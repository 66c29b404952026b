"""A default visibility timeout that follows the work, with brakes.

A :class:`Window` collects what a queue's leases tell: how long completed work took, which
completions came too late because another consumer had received the message meanwhile, how far apart
renewals came, how often work failed. :func:`decide` turns that into a new timeout now and then:
quick to lengthen, slow to shorten, and each time with the reason.

Only leases of the default length should be observed; one whose length a worker chose says nothing
about the default. A late completion is the most valuable observation there is: without it, a
timeout that is too short hides exactly the durations that would show it.

Forgetting goes by periods of a minute or more: at the end of each, what was seen counts for less,
so that a busy queue notices a change within minutes and a quiet one forgets nothing. The 99th
percentile of so short a memory is noisy. So a cut looks at the highest one of many periods, and
only when that is far too low. In one simulated day each of eight workers with log-normal work
(20 s, sigma 0.2; 5 s, sigma 0.8; 5 s, sigma 1.2) this made 0, 1 and 19 changes; a memory that
halves at each period, without the two brakes, made 72, 346 and 482.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from leasehold.domain.queue_settings import Adapted, Adaptive

_MS: Final = 1000

MIN_OBSERVATIONS: Final = 20
"""Finished leases without which nothing is changed..."""
MIN_LATE: Final = 5
"""...unless so many were too late, as on a queue of slow work each costs a duplicate..."""
MIN_RENEWALS: Final = 2
"""...or so many renewals came."""
LATE_SHARE: Final = 0.01
"""Share of completions that may come too late."""
FULL: Final = 0.8
"""The 99th percentile may take up this share of the timeout."""
SAFETY: Final = 1.5
"""A new timeout is this many times the 99th percentile."""
MAX_GROWTH: Final = 4
"""One step lengthens to this many times at most."""
BLIND_GROWTH: Final = 2
"""...and to this many where it is not known how long the late ones took."""
MAX_CUT: Final = 0.25
"""One step shortens by this share at most, rounded to a whole second."""
HYSTERESIS: Final = 0.2
"""A change by a smaller share is not worth making."""
RENEWAL_GAPS: Final = 3
"""A timeout holds so many gaps between renewals."""
FAILURE_SHARE: Final = 0.2
MIN_FAILURES: Final = 3
"""So many failures, above that share, are a burst: durations then say little about the work."""
KEPT: Final = 0.7
"""Share that an observation still counts for after a period."""
PEAKS: Final = 30
"""Periods whose highest 99th percentile a cut looks at..."""
WELL_BELOW: Final = 0.6
"""...and of the timeout that this, times SAFETY, may then take up."""
QUIET_PERIODS: Final = 3
"""Periods without a late completion before a cut."""
PERIOD_MS: Final = 60_000
LENGTHEN_AFTER_MS: Final = 30_000
"""Shortest time from any change to one that lengthens..."""
SHORTEN_AFTER_MS: Final = 180_000
"""...and to one that shortens."""

_PER_DOUBLING: Final = 8
_SMALLEST_S: Final = 0.001
_LARGEST_S: Final = 604_800.0
_ROUNDING: Final = 1e-9
_BUCKET_RATIO: Final = math.exp2(1 / _PER_DOUBLING)
_BUCKETS: Final = math.ceil(math.log2(_LARGEST_S / _SMALLEST_S) * _PER_DOUBLING) + 1


class _Histogram:
    """Weighted lengths of time in buckets each 9 % wider than the one before."""

    __slots__ = ("total", "weights")

    def __init__(self) -> None:
        self.weights = [0.0] * _BUCKETS
        self.total = 0.0

    def add(self, length_s: float) -> None:
        length_s = min(max(length_s, _SMALLEST_S), _LARGEST_S)
        self.weights[math.ceil(math.log2(length_s / _SMALLEST_S) * _PER_DOUBLING)] += 1.0
        self.total += 1.0


class _Sums:
    """What was seen in some stretch of time."""

    __slots__ = ("blind", "failed", "gaps", "late", "lengths")

    def __init__(self) -> None:
        self.lengths = _Histogram()
        """Of work that was finished, in time or late."""
        self.gaps = _Histogram()
        self.late = 0.0
        self.blind = 0.0
        """Late ones of which it is not known how long they took."""
        self.failed = 0.0

    @property
    def finished(self) -> float:
        return self.lengths.total + self.blind

    def absorb(self, newer: _Sums) -> None:
        """Let what was seen here count for less, and add what was seen since."""
        for mine, theirs in ((self.lengths, newer.lengths), (self.gaps, newer.gaps)):
            mine.weights = [a * KEPT + b for a, b in zip(mine.weights, theirs.weights, strict=True)]
            mine.total = mine.total * KEPT + theirs.total
        self.late = self.late * KEPT + newer.late
        self.blind = self.blind * KEPT + newer.blind


def _percentile_99(one: _Histogram, other: _Histogram) -> float:
    """Return the length that 1 % are longer than, or all but one of fewer than a hundred.

    Lengths are rounded up, by 9 % at most. Without any, the answer is 0.
    """
    may_exceed = max(0.01 * (one.total + other.total), 1.0) + _ROUNDING
    exceeding = 0.0
    for bucket in range(_BUCKETS - 1, -1, -1):
        exceeding += one.weights[bucket] + other.weights[bucket]
        if exceeding > may_exceed:
            return _SMALLEST_S * math.exp2(bucket / _PER_DOUBLING)
    return 0.0


class Window:
    """What was observed of one queue. Not for several threads at once.

    The methods named ``observe_...`` are for whoever sees the leases, the others for
    :func:`decide`.
    """

    __slots__ = ("_changed_at_ms", "_past", "_peaks", "_period_ms", "_quiet_periods", "_recent")

    def __init__(self) -> None:
        self._past = _Sums()
        self._recent = _Sums()
        self._period_ms: int | None = None
        self._changed_at_ms: int | None = None
        self._peaks: deque[float] = deque(maxlen=PEAKS)
        self._quiet_periods = 0

    def observe_completed(self, duration_s: float) -> None:
        """Note work that was completed so many seconds after it was received."""
        self._recent.lengths.add(duration_s)

    def observe_late(self, duration_s: float | None) -> None:
        """Note a completion that was refused, for the message had been received again.

        Args:
            duration_s: How long the work had taken, from its receive; None if not known.
        """
        self._recent.late += 1.0
        if duration_s is None:
            self._recent.blind += 1.0
        else:
            self._recent.lengths.add(duration_s)

    def observe_renewed(self, interval_s: float) -> None:
        """Note a renewal so many seconds after the receive or the renewal before it."""
        self._recent.gaps.add(interval_s)

    def observe_failed(self) -> None:
        """Note work that was given back as failed."""
        self._recent.failed += 1.0

    @property
    def finished(self) -> float:
        """Completions in sight, in time or late; older ones count less."""
        return self._past.finished + self._recent.finished

    @property
    def late(self) -> float:
        """Late completions in sight."""
        return self._past.late + self._recent.late

    @property
    def blind(self) -> float:
        """Late completions in sight of which it is not known how long they took."""
        return self._past.blind + self._recent.blind

    @property
    def renewals(self) -> float:
        """Renewals in sight."""
        return self._past.gaps.total + self._recent.gaps.total

    @property
    def is_quiet(self) -> bool:
        """Whether the latest periods, since any change, were without late completions."""
        return self._quiet_periods >= QUIET_PERIODS

    def length_s(self) -> float:
        """Return the 99th percentile of how long the work took."""
        return _percentile_99(self._past.lengths, self._recent.lengths)

    def peak_s(self) -> float:
        """Return the highest of the 99th percentiles at the ends of the latest periods."""
        return max(self._peaks, default=0.0)

    def gap_s(self) -> float:
        """Return the 99th percentile of the gaps between renewals."""
        return _percentile_99(self._past.gaps, self._recent.gaps)

    def is_burst(self) -> bool:
        """Tell whether much of the latest work failed."""
        failed = self._recent.failed
        return failed >= MIN_FAILURES and failed > FAILURE_SHARE * (failed + self._recent.finished)

    def drop_recent(self) -> None:
        """Forget what was seen in the present period."""
        self._recent = _Sums()

    def is_after_change(self, wait_ms: int, now_ms: int) -> bool:
        """Tell whether the last change is at least so long ago, or there was none."""
        if self._changed_at_ms is None:
            return True
        # A clock that went back must not hold everything up until it has caught up.
        self._changed_at_ms = min(self._changed_at_ms, now_ms)
        return now_ms - self._changed_at_ms >= wait_ms

    def close_period(self, now_ms: int) -> bool:
        """End the period if it was long and busy enough, and tell whether it was."""
        if self._period_ms is None or self._period_ms > now_ms:
            self._period_ms = now_ms
        if now_ms - self._period_ms < PERIOD_MS or self._recent.finished < MIN_OBSERVATIONS:
            return False
        self._quiet_periods = 0 if self._recent.late else self._quiet_periods + 1
        self._peaks.append(self.length_s())
        self._past.absorb(self._recent)
        self._recent = _Sums()
        self._period_ms = now_ms
        return True

    def note_change(self, now_ms: int) -> None:
        """Begin to judge a new timeout; what came late under the old one is not held against it."""
        self._changed_at_ms = now_ms
        self._quiet_periods = 0
        for sums in (self._past, self._recent):
            sums.blind = 0.0


def decide(window: Window, settings: Adaptive, current_s: int, now_ms: int) -> Adapted | None:
    """Return a new visibility timeout for a queue, or None to stay with the present one.

    To be called every few seconds; the window learns from the call that time has passed.

    Args:
        window: What was observed. It ages, and remembers a change that is returned.
        settings: The bounds.
        current_s: The timeout in force, in seconds.
        now_ms: Unix milliseconds.
    """
    change = _change(window, settings, current_s, now_ms)
    if change is None:
        return None
    window.note_change(now_ms)
    return Adapted(visibility_timeout_s=change[0], because=change[1], at_ms=now_ms)


def _change(
    window: Window, settings: Adaptive, current_s: int, now_ms: int
) -> tuple[int, str] | None:
    if current_s < settings.floor_s:
        return settings.floor_s, f"raised from {current_s} s: this is the floor"
    if current_s > settings.cap_s:
        return settings.cap_s, f"lowered from {current_s} s: this is the cap"
    if window.is_burst():
        window.drop_recent()
        return None
    longer = _longer(window, settings, current_s, now_ms)
    closed = window.close_period(now_ms)
    if longer is None and closed and window.is_quiet:
        return _shorter(window, settings, current_s, now_ms)
    return longer


def _longer(
    window: Window, settings: Adaptive, current_s: int, now_ms: int
) -> tuple[int, str] | None:
    """Return a longer timeout if the present one is too short, and the reason."""
    if not window.is_after_change(LENGTHEN_AFTER_MS, now_ms):
        return None
    needed = _needed(window, current_s, now_ms)
    if needed is None:
        return None
    needed_s, because = needed
    new_s = math.ceil(min(needed_s, current_s * MAX_GROWTH, settings.cap_s))
    if new_s - current_s < HYSTERESIS * current_s:
        return None
    if new_s == settings.cap_s:
        because += "; this is the cap"
    return new_s, f"lengthened from {current_s} s: {because}"


def _needed(window: Window, current_s: int, now_ms: int) -> tuple[float, str] | None:
    """Return how long the timeout should be, if that is more than it is, and why."""
    gap_s = window.gap_s() if window.renewals >= MIN_RENEWALS else 0.0
    # Workers that renew in time follow the timeout, whatever it is. To lengthen it on account of
    # them would have no end; only renewals later than the lease itself ask for that, with the
    # rounding of the gap taken off.
    if gap_s > current_s * _BUCKET_RATIO:
        return gap_s * RENEWAL_GAPS, f"renewals come up to {_told(gap_s)} apart"
    if window.finished < MIN_OBSERVATIONS and window.late < MIN_LATE:
        return None
    length_s = window.length_s()
    if length_s > FULL * current_s:
        late = f", and {window.late:.0f} came too late" if round(window.late) else ""
        return length_s * SAFETY, f"99 % of the work took up to {_told(length_s)}{late}"
    # After a step, the leases of before it go on being late for a while.
    settled = window.is_after_change(current_s * _MS, now_ms)
    if window.blind > LATE_SHARE * window.finished and settled:
        share = window.blind / window.finished
        return current_s * BLIND_GROWTH, f"{100 * share:.0f} % of the completions came too late"
    return None


def _shorter(
    window: Window, settings: Adaptive, current_s: int, now_ms: int
) -> tuple[int, str] | None:
    """Return a shorter timeout if the present one is much too long, and the reason."""
    if not window.is_after_change(SHORTEN_AFTER_MS, now_ms):
        return None
    peak_s = window.peak_s()
    if peak_s * SAFETY > WELL_BELOW * current_s:
        return None
    enough_s = max(peak_s * SAFETY, window.gap_s() * RENEWAL_GAPS, settings.floor_s)
    new_s = max(math.ceil(enough_s), math.floor(current_s * (1 - MAX_CUT)))
    if current_s - new_s < HYSTERESIS * current_s:
        return None
    because = f"99 % of the work took up to {_told(peak_s)}, and none came too late"
    if new_s == settings.floor_s:
        because += "; this is the floor"
    return new_s, f"shortened from {current_s} s: {because}"


def _told(length_s: float) -> str:
    return f"{length_s:.1f} s" if length_s < 10 else f"{length_s:.0f} s"  # noqa: PLR2004 - 1 digit
