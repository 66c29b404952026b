"""From what became of leases to what can be learned from them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from leasehold.tuning.attempts import Attempt

LAST_DELIVERY: Final = 2
"""Of messages that were not done, later ones are left out: messages that kill their workers come
often, and say nothing of work."""
SILENT_AFTER_TIMEOUTS: Final = 4
SILENT_AFTER_S: Final = 3_600.0


class Ending(StrEnum):
    """What became of a lease."""

    COMPLETED = "completed"
    """The work was done in time."""
    LATE = "late"
    """It was done, but the lease was over: the completion was refused, or just accepted."""
    DIED = "died"
    """Its worker died, as its session shows; the length is that to its last sign of life."""
    LAPSED = "lapsed"
    """It ran out, and no more was heard."""
    OPEN = "open"
    """It goes on."""
    LEFT = "left"
    """It was given back or buried on purpose."""


class Lease(NamedTuple):
    """One delivery of a message."""

    message: Hashable
    seconds: float
    """To its end; for LATE, to the completion; for OPEN, so far."""
    ending: Ending
    delivery: int = 1
    """1 for the first."""
    since_s: float = float("inf")
    """Seconds since its end."""
    given_up: bool = False
    """Whether it lapsed and its message was given up for that: it had used up its budget of
    deliveries or of lapses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What there is to learn from; the arguments of :func:`leasehold.tuning.advise`."""

    attempts: tuple[Attempt, ...]
    crashes: int
    silent: int
    work_s: float
    left_out: int
    given_up: int
    """Messages that were given up although nobody was seen to die at them, and nobody was done."""


def silent_after_s(timeout_s: float) -> float:
    """Return after how long nobody will complete a lapsed lease any more: 4 timeouts, or 1 h."""
    return max(SILENT_AFTER_TIMEOUTS * timeout_s, SILENT_AFTER_S)


def observe(leases: Iterable[Lease], *, late_seen: bool, own_length: bool = True) -> Observed:
    """Sort leases into attempts, crashes and what is better left out.

    Where the length is the message's own, all its leases together are one observation, and they
    tell slow work from dead workers: a lease that lapsed although the work, as another delivery
    showed, would have fitted, was a crash. Of a message that was given up since each of its leases
    lapsed, nobody can tell which of the two it was. It counts as work that takes longer, for that
    errs on the safe side.

    Args:
        leases: In the order of their ends, the oldest first.
        late_seen: Whether late completions are in the log. Then a lease of which nothing was heard
            for long was a crash; else it may have been slow work as well.
        own_length: Whether a message takes as long at each delivery.
    """
    groups: dict[Hashable, list[Lease]] = {}
    for place, lease in enumerate(leases):
        groups.setdefault(lease.message if own_length else place, []).append(lease)
    attempts: list[Attempt] = []
    crashes = silent = left_out = given_up = 0
    work_s = 0.0
    for group in groups.values():
        known = min((each.seconds for each in group if each.ending in _DONE), default=float("inf"))
        lapsed_only = own_length and _lapsed_until_given_up(group)
        # One that was done at last is no killer of workers, and tells what its other leases were.
        # All of them count then: without those that died, deaths would seem rarer than they are.
        told = own_length and (known < float("inf") or lapsed_only)
        used = [
            each
            for each in group
            if each.ending is not Ending.LEFT and (told or each.delivery <= LAST_DELIVERY)
        ]
        left_out += len(group) - len(used)
        if not used:
            continue
        dead = [
            each for each in used if not lapsed_only and _is_crash(each, known, late_seen=late_seen)
        ]
        crashes += len(dead)
        given_up += lapsed_only
        # How long a crashed one had worked is known only from a session.
        seen = [each for each in used if each not in dead or each.ending is Ending.DIED]
        work_s += sum(each.seconds for each in seen)
        if known < float("inf"):
            attempts.append(Attempt(known, finished=True))
        elif seen:
            attempts.append(Attempt(max(each.seconds for each in seen), finished=False))
        else:
            silent += 1
    return Observed(
        attempts=tuple(attempts),
        crashes=crashes,
        silent=silent,
        work_s=work_s,
        left_out=left_out,
        given_up=given_up,
    )


def _lapsed_until_given_up(group: Iterable[Lease]) -> bool:
    """Tell whether a message was given up although nobody died at it, as far as is known."""
    endings = {each.ending for each in group}
    given_up = any(each.given_up for each in group)
    return given_up and endings <= {Ending.LAPSED, Ending.LEFT}


_DONE: Final = frozenset({Ending.COMPLETED, Ending.LATE})


def _is_crash(lease: Lease, known_s: float, *, late_seen: bool) -> bool:
    if lease.ending is Ending.DIED:
        return True
    if lease.ending is not Ending.LAPSED:
        return False
    return known_s <= lease.seconds or (
        late_seen and lease.since_s >= silent_after_s(lease.seconds)
    )
