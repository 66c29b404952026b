"""Who may begin, and who may say that it is done.

The same rules are in ``queries.sql`` for the SQL stores and in ``begin.lua`` and ``finish.lua`` for
Redis, where they act in one step; one suite of tests runs over all of them.

Fences order the deliveries of one message. Those of two messages under one key say nothing about
each other: there, whoever came first goes on until it ends or its hold runs out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

MAX_FENCE: Final = 10**15 - 1
"""The largest integer of an HTTP structured field (RFC 9651, section 3.3.1). Redis counts in
doubles, which are exact that far."""


def check_fence_number(fence: int) -> None:
    """Refuse what cannot be a fence.

    Raises:
        ValueError: It is not from 0 to :data:`MAX_FENCE`.
    """
    if not 0 <= fence <= MAX_FENCE:
        raise ValueError(f"the fence is {fence}; it must be from 0 to {MAX_FENCE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who wants to do something once."""

    source: str
    """The message, queue included."""
    fence: int
    """Of the delivery; rises with each delivery of the message."""
    run: str = field(repr=False)
    """Drawn anew for each run, so that a repeated request is known as one's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is remembered under a key."""

    source: str
    fence: int
    run: str = field(repr=False)
    is_done: bool
    result: str | None
    """JSON; None if there was no result."""
    since_ms: int
    """When it was begun or done, Unix milliseconds."""
    held_until_ms: int
    """From then on another message may take over what is not done."""
    expires_at_ms: int
    """From then on it counts as forgotten."""


class Standing(Enum):
    """What an entry means to somebody who could not begin because of it."""

    REPEATED = auto()
    """It is done: skip."""
    BUSY = auto()
    """Somebody is at it."""
    FENCED = auto()
    """A newer delivery of the same message is at it, or has done it."""


def may_begin(entry: Entry | None, holder: Holder, now_ms: int) -> bool:
    """Tell whether *holder* begins in place of *entry*.

    A newer fence takes over at once what an older delivery of the message has not finished; an
    older one never does. The same fence does so only if it is the same run, whose answer was lost.
    """
    if entry is None or entry.expires_at_ms <= now_ms:
        return True
    if entry.is_done:
        return False
    if entry.source != holder.source:
        return entry.held_until_ms <= now_ms
    return entry.fence < holder.fence or entry.run == holder.run


def may_finish(entry: Entry | None, holder: Holder, now_ms: int) -> bool:
    """Tell whether *holder*, whose effect has happened, may record it in place of *entry*."""
    if entry is None or entry.expires_at_ms <= now_ms or entry.run == holder.run:
        return True
    return not entry.is_done and entry.source == holder.source and entry.fence < holder.fence


def standing(entry: Entry, holder: Holder) -> Standing:
    """Say what *entry* means to a holder that may not begin."""
    if entry.source == holder.source and entry.fence > holder.fence:
        return Standing.FENCED
    return Standing.REPEATED if entry.is_done else Standing.BUSY


def newest_of(entry: Entry, holder: Holder) -> int | None:
    """Return the fence that *holder* lost to, if it can be compared."""
    return entry.fence if entry.source == holder.source else None
