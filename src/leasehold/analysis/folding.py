"""Many types of messages taken as few: each that is looked at by itself costs time and room."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

from leasehold.analysis.summaries import BIN_RATIO, MOST_REPEATS, SHORTEST_BIN_S, Bin, Work

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
    sums: dict[tuple[int, int, bool], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for each in bins:
        length = max(each.seconds, SHORTEST_BIN_S) / SHORTEST_BIN_S
        key = each.day, math.floor(math.log(length) / math.log(BIN_RATIO)), each.finished
        seconds, count = sums[key]
        sums[key] = seconds + each.seconds * each.count, count + each.count
    return tuple(
        Bin(seconds=seconds / count, finished=finished, count=count, day=day)
        for (day, _, finished), (seconds, count) in sorted(sums.items())
    )
