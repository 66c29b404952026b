"""What is kept of an event log for analysis: little, whatever the size of the log.

Spark makes these, see ``leasehold.advisor.tables.summarize``; :mod:`leasehold.advisor` reads
them. They are plain data, so that they can be saved as JSON and read again: see
:mod:`leasehold.advisor.summaries`.

Moments are Unix milliseconds, lengths seconds. Outcomes of attempts and messages are the words of
the lifecycle tables.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from leasehold.advisor import Attempt
from leasehold.advisor.attempts import (
    HALF_LIFE_ATTEMPTS,
    HALF_LIFE_S,
    Booleans,
    Floats,
    Sample,
    weight_by_age,
)
from leasehold.advisor.rules import naive_timeouts
from leasehold.advisor.statistics import ALARM, ALIKE, level_of, log_rank

BIN_RATIO: Final = 1.02
"""Each bin of lengths is 2 % wider than the one before: some 1,000 from a millisecond to a week."""
SHORTEST_BIN_S: Final = 0.001
"""Where the bins begin; what is shorter goes into the first."""
MOST_GROUPS: Final = 100
"""Message groups of a queue that are told of by name."""
MOST_TIMELINES: Final = 50
"""Redelivered messages that are kept with all their attempts, per queue."""
MOST_SAMPLE_IDS: Final = 5
"""Ids of messages that are kept of a cluster."""
MOST_REPEATS: Final = 1_000
"""Pairs of finished attempts at the same message that are kept, per queue and type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Messages whose work took about as long.

    There is one observation for each message, made as ``leasehold.advisor.attempts.observe`` makes
    it: late completions are finished, lapses and lost sessions are not.
    """

    seconds: float
    """Mean of those in the bin, 0 or more: not its middle, so that sums come out right."""
    finished: bool
    """Whether they were done then; else they lasted longer."""
    count: float
    """How many, above 0."""
    day: float = 0
    """How many days before the end of the summary they ended: see :func:`day_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What became of the messages of one type in a queue. Counts are of attempts unless said."""

    message_type: str | None = None
    """None for messages without a type."""
    bins: tuple[Bin, ...] = ()
    crashes: float = 0.0
    """Attempts that ended because their worker died."""
    silent: float = 0.0
    """Those of them of which it is unknown when, and which are in no bin."""
    work_s: float = 0.0
    """Seconds of work in which the crashes happened."""
    left_out: int = 0
    """Given back, buried, or at a sixth delivery or later of a message that was not done: in no
    bin."""
    given_up: int = 0
    """Messages that were given up since each of their leases lapsed, and no worker was seen to die:
    in a bin, as not finished."""
    messages: int = 0
    """Messages that were received at least once."""
    deliveries: int = 0
    done: int | None = None
    """Messages that were completed; None in summaries that did not count them."""
    set_aside: int = 0
    """Messages that went to the poison queue."""
    redelivered: int = 0
    """Messages that were received more than once."""
    redeliveries: int = 0
    """Deliveries that were not a message's first."""
    completed: int = 0
    """In time."""
    late: int = 0
    """Completed when the lease was over, accepted or not."""
    late_accepted: int = 0
    """Those of them that counted, since no worker had received the message again."""
    lapsed: int = 0
    session_lost: int = 0
    failed: int = 0
    returned: int = 0
    interrupted: int = 0
    buried: int = 0
    renewed: int = 0
    """Attempts whose lease was renewed at least once."""
    unrenewed: int | None = None
    """Attempts whose lease was over before the work, never renewed: completed late, or lapsed.
    None in summaries that did not count them."""
    wasted_work_s: float = 0.0
    """Seconds of work that came to nothing: refused completions, and what died with its worker."""
    worst_hidden_s: float = 0.0
    """Longest time from the death of a worker, as far as it is known, or else from the beginning of
    its lease, until the message was visible again; 0 if none died."""
    usual_lease_s: float | None = None
    """The length that most leases began with; None without any."""
    newest_lease_s: float | None = None
    """The length that most leases of the last hour with any began with: what is in force, where it
    was changed or adapts."""
    newest_hour: int = 0
    """That hour, counted from the Unix epoch."""
    repeats: tuple[tuple[float, float], ...] = ()
    """Seconds of two finished attempts at the same message, for up to MOST_REPEATS messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One hour of a queue. Counts are of events in it."""

    start_ms: int
    """A whole hour, UTC."""
    put: int = 0
    leased: int = 0
    completed: int = 0
    """In time or late, but accepted: messages that left the queue."""
    late: int = 0
    lapsed: int = 0
    failed: int = 0
    buried: int = 0
    expired: int = 0
    backlog_end: int = 0
    """Messages in the queue when the hour ended: put, and not gone."""
    oldest_wait_s: float = 0.0
    """Longest wait from put to first receive among those first received in the hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One attempt at a message, for its timeline."""

    attempt: int
    """1 for the first."""
    leased_at_ms: int
    ended_at_ms: int | None
    """When work ended as far as it was seen; None while it goes on."""
    lease_s: float
    """Length granted in all."""
    outcome: str
    holder: str | None = None
    renewals: int = 0
    error_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A message that was received more than once."""

    message_id: str
    message_type: str | None
    inserted_at_ms: int
    outcome: str
    """What became of the message."""
    attempts: tuple[Span, ...]
    """In the order of their beginnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonCluster:
    """Messages that were given up for the same reason."""

    error_type: str | None
    fingerprint: str | None
    message_type: str | None
    count: int
    """Messages."""
    first_ms: int
    last_ms: int
    sample_ids: tuple[str, ...] = ()
    """Up to MOST_SAMPLE_IDS of them, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one holder of leases did. Counts are of attempts."""

    holder: str
    attempts: int
    completed: int = 0
    late: int = 0
    lapsed: int = 0
    failed: int = 0
    lost: int = 0
    """Ended with its session."""
    work_s: float = 0.0
    p50_s: float | None = None
    """Of what it completed."""
    p99_s: float | None = None
    first_seen_ms: int = 0
    last_seen_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One message group. Counts are of messages, lengths are seconds."""

    group_id: str
    messages: int
    open_messages: int = 0
    """In the queue at the end."""
    received: int = 0
    dwell_p50_s: float | None = None
    """From the moment at which a message could be received to when it first was."""
    dwell_p99_s: float | None = None
    dwell_longest_s: float | None = None
    work_s: float = 0.0
    """Of attempts that completed a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The message groups of a queue."""

    found: int
    """How many there are."""
    largest: tuple[Group, ...]
    """Those with most messages first, up to MOST_GROUPS."""
    fairness: float | None = None
    """Jain's index, see :func:`fairness`; None where no two of the largest waited together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStretch:
    """What a group was given in one of the stretches into which a log is cut."""

    group_id: str
    stretch: int
    given: int
    """Messages that were received for the first time, 1 or more."""
    least_s: float
    """The shortest of their dwell times..."""
    most_s: float
    """...and the longest, seconds."""


def fairness(stretches: Iterable[GroupStretch], stretch_s: float) -> float | None:
    """Return how evenly groups were served while they had messages waiting.

    That is Jain's index of the messages that groups were given in a stretch, of those groups that
    had some waiting all through it: 1 if each was given as many, 1/n if one of n was given all. Of
    all stretches in which two or more waited it is the mean, by what was given.

    Args:
        stretches: What was given, by group and stretch.
        stretch_s: The length of a stretch, seconds.
    """
    by_group: dict[str, list[GroupStretch]] = {}
    for each in sorted(stretches, key=lambda each: each.stretch):
        by_group.setdefault(each.group_id, []).append(each)
    given: dict[int, list[int]] = {}
    for own in by_group.values():
        after = -1
        for each in own:
            # Of what came first in this stretch something had waited since an earlier one.
            waited = min(each.stretch, int(each.most_s / stretch_s))
            for starved in range(max(after + 1, each.stretch - waited + 1), each.stretch):
                given.setdefault(starved, []).append(0)
            if each.least_s >= stretch_s:
                given.setdefault(each.stretch, []).append(each.given)
            after = each.stretch
    indexes = [(jain(counts), sum(counts)) for counts in given.values() if len(counts) > 1]
    weight = sum(served for _, served in indexes)
    return sum(index * served for index, served in indexes) / weight if weight else None


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 for equal shares, 1/n if one of n has all.

    Source: Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination", 1984.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """One queue."""

    queue: str
    works: tuple[Work, ...] = ()
    """One for each type of message; the types share the queue and its workers."""
    hours: tuple[Hour, ...] = ()
    """Rising, without gaps."""
    open_messages: int = 0
    """In the queue at the end."""
    oldest_open_ms: int | None = None
    """When the oldest of them was put."""
    next_expiry_ms: int | None = None
    """When the first of them expires; None if none does."""
    time_to_live_s: float | None = None
    """Seconds that messages live, those that live shortest among common ones (10th percentile);
    None: for ever."""
    timelines: tuple[Timeline, ...] = ()
    """Up to MOST_TIMELINES, those with most attempts first."""
    poison: tuple[PoisonCluster, ...] = ()
    """The largest first."""
    workers: tuple[Worker, ...] = ()
    """Those with most attempts first."""
    groups: Groups | None = None
    """None if no message of it named one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """A stretch of an event log."""

    since_ms: int
    """Included."""
    until_ms: int
    """Not included."""
    events: int
    """How many were read."""
    queues: tuple[QueueSummary, ...] = ()
    """By name."""
    source: str = ""
    """Where the log came from, for people. No credentials."""
    accounts: tuple[str, ...] = ()
    """Whose queues these are, by name; none in summaries that did not say."""


def queue_in(name: str) -> str:
    """Return the name of a queue without its account, which logs of several put before it."""
    return name.rpartition("/")[2]


# --- folding -----------------------------------------------------------------------------------
#
# Many types of messages taken as few: each that is looked at by itself costs time and room.


MOST_TYPES: Final = 100
"""Types that are looked at by themselves, per queue."""
OTHERS: Final = "(others)"
"""What the rest is called, taken together."""

_ADDED: Final = (
    "crashes",
    "silent",
    "work_s",
    "left_out",
    "given_up",
    "messages",
    "deliveries",
    "set_aside",
    "late_accepted",
    "redelivered",
    "redeliveries",
    "completed",
    "late",
    "lapsed",
    "session_lost",
    "failed",
    "returned",
    "interrupted",
    "buried",
    "renewed",
    "wasted_work_s",
)


def folded(works: Sequence[Work], most: int = MOST_TYPES) -> tuple[Work, ...]:
    """Return the types with most messages, and all others as one.

    Args:
        works: One for each type.
        most: How many there are at most, the others included; 2 or more.
    """
    if len(works) <= most:
        return tuple(works)
    order = sorted(works, key=lambda each: (-each.messages, each.message_type or ""))
    return (*order[: most - 1], as_one(order[most - 1 :], OTHERS))


def as_one(works: Sequence[Work], message_type: str | None) -> Work:
    """Return several kinds of work as if they were of one type.

    Args:
        works: One or more.
        message_type: What it is called.
    """
    newest = max(works, key=lambda each: (each.newest_hour, each.deliveries))
    done = [each.done for each in works]
    largest = max(works, key=lambda each: each.deliveries)
    pairs = chain.from_iterable(each.repeats for each in works)
    return Work(
        message_type=message_type,
        bins=_together(chain.from_iterable(each.bins for each in works)),
        unrenewed=sum(unrenewed_of(each) for each in works),
        worst_hidden_s=max(each.worst_hidden_s for each in works),
        usual_lease_s=largest.usual_lease_s,
        newest_lease_s=newest.newest_lease_s,
        newest_hour=newest.newest_hour,
        done=None if None in done else sum(filter(None, done)),
        repeats=tuple(islice(pairs, MOST_REPEATS)),
        **{name: sum(getattr(each, name) for each in works) for name in _ADDED},
    )


def unrenewed_of(work: Work) -> int:
    """Return how many attempts outlasted their lease and were not renewed, as far as is known."""
    return work.late + work.lapsed if work.unrenewed is None else work.unrenewed


def _together(bins: Iterable[Bin]) -> tuple[Bin, ...]:
    sums: dict[tuple[float, int, bool], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for each in bins:
        length = max(each.seconds, SHORTEST_BIN_S) / SHORTEST_BIN_S
        key = each.day, math.floor(math.log(length) / math.log(BIN_RATIO)), each.finished
        seconds, count = sums[key]
        sums[key] = seconds + each.seconds * each.count, count + each.count
    return tuple(
        Bin(seconds=seconds / count, finished=finished, count=count, day=day)
        for (day, _, finished), (seconds, count) in sorted(sums.items())
    )


# --- lengths -----------------------------------------------------------------------------------
#
# From bins of lengths to what the statistics take.


_DAY_S: Final = 86_400.0
_LEAST_WEIGHT: Final = 1e-6
_MOST_COMPARED: Final = 2_000
_LEAST_COMPARED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Several kinds of work taken as one."""

    bins: tuple[Bin, ...]
    crashes: float
    silent: float
    work_s: float
    given_up: int
    repeats: tuple[tuple[float, float], ...]


def together(works: Iterable[Work]) -> Together:
    """Take several kinds of work as one, as a queue does that all share."""
    parts = list(works)
    return Together(
        bins=tuple(each for part in parts for each in part.bins),
        crashes=sum(each.crashes for each in parts),
        silent=sum(each.silent for each in parts),
        work_s=sum(each.work_s for each in parts),
        given_up=sum(each.given_up for each in parts),
        repeats=tuple(pair for each in parts for pair in each.repeats),
    )


def count_of(bins: Iterable[Bin], *, finished: bool | None = None) -> float:
    """Return how many observations there are, of one sort or of both."""
    return sum(each.count for each in bins if finished is None or each.finished is finished)


PARTS: Final = 8
"""Parts of a day that are told apart in the last FINE_DAYS days: three hours each."""
FINE_DAYS: Final = 2
"""Today and yesterday, so that what differs by the hour of the day is known from a change."""


def day_of(age_ms: int) -> float:
    """Return how many days ago something was: in eighths for two days, then whole ones."""
    parts = max(0, age_ms) * PARTS // round(1000 * _DAY_S)
    return parts / PARTS if parts < PARTS * FINE_DAYS else float(parts // PARTS)


def aged(bins: Sequence[Bin], *, changed: WorkChange | None = None) -> list[Attempt]:
    """Return the bins as attempts, those of older days counting for less.

    Half after 2,000 newer ones, or after a day, whichever keeps more: so a quiet queue forgets
    nothing, and a busy one yesterday only by half.

    Args:
        bins: In any order.
        changed: Since when the work differs. What is older is made as long as what is newer, see
            :func:`leasehold.advisor.statistics.caught_up`.
    """
    if changed is not None:
        level = level_of(sample_of([each for each in bins if each.day < changed.days]))
        stretches = _stretches([each for each in bins if each.day >= changed.days])
        bins = [each for each in bins if each.day < changed.days] + [
            replace(each, seconds=each.seconds * ratio)
            for stretch in stretches
            for ratio in [math.exp(level - level_of(sample_of(stretch)))]
            for each in stretch
        ]
    newer: dict[float, float] = {}
    total = 0.0
    for day in sorted({each.day for each in bins}):
        newer[day] = total
        total += count_of(each for each in bins if each.day == day)
    attempts = []
    for each in bins:
        by_number = 0.5 ** (newer[each.day] / HALF_LIFE_ATTEMPTS)
        weight = max(by_number, weight_by_age(each.day * _DAY_S, HALF_LIFE_S))
        if weight >= _LEAST_WEIGHT:
            attempts.append(Attempt(each.seconds, each.finished, each.count * weight))
    return attempts


def sample_of(bins: Sequence[Bin]) -> Sample:
    """Return all of them alike, whatever their age: what the whole stretch was like."""
    return Sample.of_arrays(
        np.array([each.seconds for each in bins], dtype=np.float64),
        np.array([each.finished for each in bins], dtype=np.bool_),
        np.array([each.count for each in bins], dtype=np.float64),
    )


class WorkChange(NamedTuple):
    """Since when work differs from before."""

    z: float
    """Above 0 for quicker."""
    days: float
    """How long ago that was."""

    def told(self) -> str:
        """Return it as a sentence without its end."""
        word = "quicker" if self.z > 0 else "slower"
        since = "day" if self.days == 1 else f"{24 * self.days:,.0f} hours"
        return f"the work of the last {since} was {word} than before"


def drift_of(bins: Sequence[Bin]) -> WorkChange | None:
    """Return since when the work differs from that before.

    None if it does not, if too little is known of either, or if there was work like the newest
    before that: then it comes and goes, as by day and by night.

    Source: :func:`leasehold.advisor.statistics.log_rank`, on up to 2,000 of each side.
    """
    stretches = _stretches(bins)
    for place in range(1, len(stretches)):
        newer = _spread([each for stretch in stretches[:place] for each in stretch])
        z = log_rank(newer, _spread(stretches[place]))
        if abs(z) > ALARM:
            rest = stretches[place + 1 :]
            if any(abs(log_rank(newer, _spread(each))) < ALIKE for each in rest):
                return None
            return WorkChange(z, min(each.day for each in stretches[place]))
    return None


def _stretches(bins: Iterable[Bin]) -> list[list[Bin]]:
    """Return the bins of parts of the day, the newest first; several where one has few messages."""
    parts: dict[float, list[Bin]] = defaultdict(list)
    for each in bins:
        parts[each.day].append(each)
    found: list[list[Bin]] = []
    for day in sorted(parts):
        if found and count_of(found[-1]) < _LEAST_COMPARED:
            found[-1] += parts[day]
        else:
            found.append(parts[day])
    if len(found) > 1 and count_of(found[-1]) < _LEAST_COMPARED:
        last = found.pop()
        found[-1] += last
    return found


def _spread(bins: Sequence[Bin]) -> tuple[Floats, Booleans]:
    """Return one attempt for each observation, or as many as are compared at most."""
    order = sorted(bins, key=lambda each: (each.seconds, not each.finished))
    count = np.array([each.count for each in order])
    edges = np.cumsum(count)
    many = int(min(_MOST_COMPARED, edges[-1]))
    places = np.searchsorted(edges, (np.arange(many) + 0.5) * edges[-1] / many)
    seconds = np.array([each.seconds for each in order])[places]
    finished = np.array([each.finished for each in order])[places]
    return seconds, finished


def naive_choices(bins: Sequence[Bin], default_s: float) -> dict[str, float]:
    """Return what is often chosen, by name: :func:`leasehold.advisor.rules.naive_timeouts` of bins.

    All but the smoothed one, for bins are in no order.
    """
    attempts = [Attempt(each.seconds, each.finished, each.count) for each in bins]
    return naive_timeouts(attempts, default_s, in_order=False)


# --- saving ------------------------------------------------------------------------------------
#
# Summaries as JSON: saved, and read again without Spark.


FORMAT: Final = 1
"""Rises when older readers could misunderstand newer files."""


class _File(msgspec.Struct, kw_only=True):
    format: int
    summary: LogSummary


class UnreadableSummary(ValueError):
    """A file is no summary, or one of a newer version."""


def to_json(summary: LogSummary) -> bytes:
    """Return a summary as JSON, one line."""
    return msgspec.json.encode(_File(format=FORMAT, summary=summary))


def from_json(data: bytes) -> LogSummary:
    """Reverse :func:`to_json`.

    Raises:
        UnreadableSummary: It is none, or of a newer version.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise UnreadableSummary(f"this is not a summary of an event log: {error}") from None
    if file.format > FORMAT:
        raise UnreadableSummary(
            f"its format is {file.format}; this version reads formats up to {FORMAT}"
        )
    return file.summary


def save(summary: LogSummary, path: Path) -> None:
    """Write a summary to a file."""
    path.write_bytes(to_json(summary))


def load(path: Path) -> LogSummary:
    """Read a summary from a file.

    Raises:
        UnreadableSummary: See :func:`from_json`.
        OSError: It cannot be read.
    """
    return from_json(path.read_bytes())
