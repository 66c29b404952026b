"""Attempts at work that are over, what they say of it, and how that is counted by the hour.

:func:`leasehold.advisor.attempts.observe` sorts the leases of a whole log. Here it is one message
at a time, with the moment at which what it says is final; see
:mod:`leasehold.advisor.live_summary`, which is made of it.

Moments are Unix milliseconds. Lengths are kept as whole milliseconds, so that sums do not depend on
the order in which they were made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from leasehold.advisor.attempts import LAST_DELIVERY, silent_after_s
from leasehold.advisor.summaries import BIN_RATIO, MOST_REPEATS, SHORTEST_BIN_S, Bin, Work, day_of
from leasehold.domain.failures import MAX_DELIVERIES, MAX_LAPSES

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
WEEK_MS: Final = 7 * DAY_MS

_GIVING_UP: Final = frozenset({MAX_DELIVERIES, MAX_LAPSES})
_LOG_RATIO: Final = math.log(BIN_RATIO)

# Outcomes of attempts, in the words of the lifecycle tables; some are the reason of the event.
COMPLETED: Final = "completed"
LATE: Final = "completed_late"
LAPSED: Final = "lapsed"
LOST: Final = "session_lost"
OPEN: Final = "open"
REMOVED: Final = "removed"
REFUSED: Final = "refused"
"""Reason of an attempt whose completion was."""
_COUNTED: Final = {
    COMPLETED: "completed",
    LATE: "late",
    LAPSED: "lapsed",
    LOST: "session_lost",
    "failed": "failed",
    "returned": "returned",
    "interrupted": "interrupted",
    "buried": "buried",
}
_OF_ATTEMPTS: Final = (*_COUNTED.values(), "late_accepted", "renewed", "unrenewed")
_OF_MESSAGES: Final = ("messages", "deliveries", "done", "set_aside", "redelivered", "redeliveries")
_OBSERVED: Final = ("crashes", "silent", "left_out", "given_up")


class EndedAttempt(msgspec.Struct, array_like=True):
    """A lease that an event has ended, while its message is there."""

    queue: str
    message_type: str | None
    leased: int
    lease_end: int
    count: int
    renewals: int
    first_ms: int | None
    claimed: bool
    outcome: str
    ended: int
    worked_until: int
    why: str | None
    noticed: tuple[int, int] | None = None
    """Of a lapse, the event that noticed it."""


class ObservedLease(msgspec.Struct, array_like=True):
    """An attempt as an observation takes it."""

    leased: int
    word: str
    ms: int
    over: int
    count: int
    gave_up: bool


class Stay(msgspec.Struct, array_like=True):
    """The leases of a message that is gone, while what they say may still change."""

    queue: str
    message_type: str | None
    message_id: str
    leases: list[ObservedLease]


class Tally(msgspec.Struct, array_like=True):
    """What was counted in an hour, of one queue and type."""

    counts: dict[str, int] = {}
    bins: dict[int, tuple[int, int]] = {}
    """By twice the number of the bin, and one more if it was finished: how many, and the sum of
    their milliseconds."""
    leases: dict[int, int] = {}
    """By the length that a lease began with, -1 if that is not known: how many."""
    work_ms: int = 0
    wasted_ms: int = 0
    hidden_ms: int = 0

    def add(self, name: str, more: int = 1) -> None:
        """Count."""
        if more:
            self.counts[name] = self.counts.get(name, 0) + more


class KindTallies(msgspec.Struct, array_like=True):
    """A type of message in a queue."""

    hours: dict[int, Tally] = {}
    repeats: list[tuple[str, int, int, int]] = []
    """Message, hour, and the milliseconds of two finished attempts; by message."""
    done_since: int = 0
    late_since: int = 0

    def tally(self, at_ms: int) -> Tally:
        """Return the counts of the hour of this moment."""
        return self.hours.setdefault(at_ms // HOUR_MS, Tally())


class Told(NamedTuple):
    """An attempt once it is known whether its completion was refused."""

    attempt: EndedAttempt
    outcome: str
    ended: int
    ms: int | None
    """How long it took; None while it goes on."""
    refused: bool


def with_refusal(each: EndedAttempt, refused: Sequence[tuple[int, int]]) -> Told:
    """Return what became of an attempt, knowing which completions of its message were refused.

    Args:
        each: The attempt.
        refused: When the lease of each began, and when it came.
    """
    if each.outcome == OPEN:
        return Told(each, OPEN, -1, None, refused=False)
    late = [at for since, at in refused if since == each.leased]
    if each.outcome in {LAPSED, LOST} and late:
        ended = min(late)
        return Told(each, LATE, ended, max(0, ended - each.leased), refused=True)
    ms = max(0, each.worked_until - each.leased)
    return Told(each, each.outcome, each.ended, ms, refused=each.why == REFUSED)


def observed(told: Told, until_ms: int) -> ObservedLease:
    """Return an attempt as an observation takes it, at the end of the log."""
    each, outcome = told.attempt, told.outcome
    ran_out = each.leased + max(0, each.lease_end - each.leased)
    over = told.ended if outcome != OPEN else min(until_ms, ran_out)
    if outcome in {COMPLETED, LATE}:
        word = "done"
    elif outcome == OPEN and ran_out > until_ms:
        word = "going"
    elif outcome == LOST:
        word = "died"
    else:
        word = "lapsed" if outcome in {LAPSED, OPEN} else "left"
    ms = max(0, over - each.leased) if told.ms is None else told.ms
    gave_up = word == "lapsed" and each.why in _GIVING_UP
    # A refused one is not done at its first delivery, whatever follows.
    alone = word == "done" and each.count == 1 and not told.refused
    return ObservedLease(each.leased, "alone" if alone else word, ms, over, each.count, gave_up)


def groups(leases: Sequence[ObservedLease]) -> Iterator[list[ObservedLease]]:
    """Yield leases that are one observation: those that were done at once each, the rest as one."""
    rest = []
    for each in leases:
        if each.word == "alone":
            yield [each]
        else:
            rest.append(each)
    if rest:
        yield sorted(rest, key=lambda each: (each.leased, each.word, each.ms, each.over))


# --- observations ------------------------------------------------------------------------------
#
# :func:`leasehold.advisor.attempts.observe` for one message, in whole milliseconds and with what it
# says apart. The SQL of it is in ``leasehold.advisor.tables.summarize``.


class Observation(NamedTuple):
    """What there is to learn from leases; lengths are milliseconds."""

    over: int
    ms: int | None
    """None if there is no length to learn from."""
    finished: bool
    crashes: int
    silent: int
    work_ms: int
    left_out: int
    given_up: int
    pair: tuple[int, int] | None


def _silent_after_ms(each: ObservedLease) -> float:
    return 1000 * silent_after_s(each.ms / 1000)


def observation(group: Sequence[ObservedLease], until_ms: int) -> Observation:
    """Return what there is to learn from leases of one message, at the end of the log."""
    over = max(each.over for each in group)
    if group[0].word == "alone":
        ms = group[0].ms
        return Observation(over, ms, True, 0, 0, ms, 0, 0, None)
    known = min((each.ms for each in group if each.word == "done"), default=None)
    given_up = any(each.gave_up for each in group) and all(
        each.word in {"lapsed", "left"} for each in group
    )
    used = [
        each
        for each in group
        if each.word != "left" and (each.count <= LAST_DELIVERY or known is not None or given_up)
    ]

    def is_dead(each: ObservedLease) -> bool:
        if given_up or each.word not in {"died", "lapsed"}:
            return False
        if each.word == "died" or (known is not None and known <= each.ms):
            return True
        return until_ms - each.over >= _silent_after_ms(each)

    dead = [is_dead(each) for each in used]
    seen = [each for each, was in zip(used, dead, strict=True) if not was or each.word == "died"]
    longest = max((each.ms for each in seen), default=None)
    finished = [each.ms for each in used if each.word == "done"]
    return Observation(
        over=over,
        ms=longest if known is None else known,
        finished=known is not None,
        crashes=sum(dead),
        silent=int(bool(used) and known is None and not seen),
        work_ms=sum(each.ms for each in seen),
        left_out=len(group) - len(used),
        given_up=int(given_up),
        pair=(finished[0], finished[1]) if len(finished) > 1 else None,
    )


def settled_at_ms(group: Sequence[ObservedLease]) -> float:
    """Return from when on time alone does not change what leases say.

    A lapsed one of which nothing more is heard for long is taken for the end of its worker.
    """
    return max((each.over + _silent_after_ms(each) for each in group if each.word == "lapsed"),
               default=0.0)  # fmt: skip


# --- counts ------------------------------------------------------------------------------------


def key_of(each: EndedAttempt) -> tuple[str, str]:
    """Return queue and type, for sorting; the type of a message without one is empty."""
    return each.queue, each.message_type or ""


def count_stay(tally: Tally, deliveries: int) -> None:
    """Count a message's stay in a queue, and how often it was received there."""
    tally.add("messages", deliveries > 0)
    tally.add("deliveries", deliveries)
    tally.add("redelivered", deliveries > 1)
    tally.add("redeliveries", max(0, deliveries - 1))


def count_attempt(kind: KindTallies, told: Told) -> None:
    """Count an attempt, in the hours in which it ended and began."""
    each, outcome = told.attempt, told.outcome
    at = each.leased if outcome == OPEN else told.ended
    tally = kind.tally(at)
    tally.add("attempts")
    name = _COUNTED.get(outcome)
    if name is not None:
        tally.add(name)
    tally.add("late_accepted", outcome == LATE and not told.refused)
    tally.add("renewed", each.renewals > 0)
    tally.add("unrenewed", outcome in {LATE, LAPSED} and each.renewals == 0)
    if told.refused or outcome == LOST:
        tally.wasted_ms += told.ms or 0
    if outcome == LAPSED:
        tally.hidden_ms = max(tally.hidden_ms, told.ended - each.leased)
    elif outcome == LOST:
        tally.hidden_ms = max(tally.hidden_ms, told.ended - each.leased - (told.ms or 0))
    begun = kind.tally(each.leased).leases
    first = -1 if each.first_ms is None else each.first_ms
    begun[first] = begun.get(first, 0) + 1


def count_observation(tally: Tally, seen: Observation) -> None:
    """Count what was learned from a message."""
    tally.work_ms += seen.work_ms
    for name in _OBSERVED:
        tally.add(name, getattr(seen, name))
    if seen.ms is None:
        return
    length = max(seen.ms / 1000, SHORTEST_BIN_S) / SHORTEST_BIN_S
    place = 2 * math.floor(math.log(length) / _LOG_RATIO) + seen.finished
    count, ms = tally.bins.get(place, (0, 0))
    tally.bins[place] = count + 1, ms + seen.ms


def work_of(message_type: str | None, kinds: Sequence[KindTallies], until_ms: int) -> Work:
    """Return what was counted as the batch job tells it."""
    hours = [(hour, tally) for kind in kinds for hour, tally in kind.hours.items()]
    counts: dict[str, int] = {}
    bins: dict[tuple[float, int], tuple[int, int]] = {}
    lengths: dict[int, dict[int, int]] = {}
    for hour, tally in hours:
        for name, count in tally.counts.items():
            counts[name] = counts.get(name, 0) + count
        # The end of the hour, as far as it has come: what has just ended is of today.
        day = day_of(until_ms - min(until_ms, (hour + 1) * HOUR_MS - 1))
        for place, (count, ms) in tally.bins.items():
            before = bins.get((day, place), (0, 0))
            bins[day, place] = before[0] + count, before[1] + ms
        for first, count in tally.leases.items():
            of = lengths.setdefault(first, {})
            of[hour] = of.get(hour, 0) + count
    figures: dict[str, Any] = {name: counts.get(name, 0) for name in _OF_MESSAGES}
    if counts.get("attempts"):
        figures |= {name: counts.get(name, 0) for name in _OF_ATTEMPTS}
        figures |= _lease_lengths(lengths)
    pairs = sorted(pair for kind in kinds for pair in kind.repeats)[:MOST_REPEATS]
    return Work(
        message_type=message_type,
        bins=tuple(
            Bin(seconds=ms / count / 1000, finished=bool(place % 2), count=float(count), day=day)
            for (day, place), (count, ms) in sorted(bins.items())
        ),
        crashes=float(counts.get("crashes", 0)),
        silent=float(counts.get("silent", 0)),
        left_out=counts.get("left_out", 0),
        given_up=counts.get("given_up", 0),
        work_s=sum(tally.work_ms for _, tally in hours) / 1000,
        wasted_work_s=sum(tally.wasted_ms for _, tally in hours) / 1000,
        worst_hidden_s=max((tally.hidden_ms for _, tally in hours), default=0) / 1000,
        repeats=tuple((first / 1000, second / 1000) for _, _, first, second in pairs),
        **figures,
    )


def _lease_lengths(lengths: dict[int, dict[int, int]]) -> dict[str, Any]:
    """Return the length that leases usually began with, and the one of the newest hour."""
    newest_hour = max(hour for of in lengths.values() for hour in of)
    known = {first: of for first, of in lengths.items() if first >= 0}
    if not known:
        return {"newest_hour": newest_hour}
    usual = max(known, key=lambda first: (sum(known[first].values()), -first))
    newest = max(known, key=lambda first: (max(known[first].items()), -first))
    return {
        "usual_lease_s": usual / 1000,
        "newest_lease_s": newest / 1000,
        "newest_hour": newest_hour,
    }
