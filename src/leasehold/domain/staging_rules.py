"""The rules of staged sends: pure functions that every store decides by."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from leasehold.domain.errors import ChunkOutOfTurn, StagedNotFound
from leasehold.domain.staging import DEFAULT_STAGING_TIMEOUT_S, RowsByQueue
from leasehold.domain.types import NEVER_MS, Message, Phase
from leasehold.domain.visibility import expiry_of, put_refusal

if TYPE_CHECKING:  # the union of all commands is over there, and has these in it
    from leasehold.domain.commands import Put

_MS: Final = 1000
DUPLICATE: Final = "duplicate"
"""Reason, in the event log, of a staged message that was dropped for its deduplication key."""


class Moved(NamedTuple):
    """What became of staged rows that were to be published."""

    by_queue: RowsByQueue = ()
    duplicates: int = 0
    """Dropped, as their deduplication key had been used."""

    @property
    def rows(self) -> int:
        """How many were published."""
        return sum(count for _, count in self.by_queue)

    def plus(self, other: Moved) -> Moved:
        """Return what that is together."""
        by_queue = rows_by_queue((*self.by_queue, *other.by_queue))
        return Moved(by_queue, self.duplicates + other.duplicates)


NOTHING_MOVED: Final = Moved()


def rows_by_queue(counts: Iterable[tuple[str, int]]) -> RowsByQueue:
    """Add up how many rows went to each queue; those that none went to are left out."""
    totals: dict[str, int] = {}
    for queue, count in counts:
        if count:
            totals[queue] = totals.get(queue, 0) + count
    return tuple(sorted(totals.items()))


def check_chunk(chunks: int, chunk: int) -> bool:
    """Tell whether a part that has *chunks* chunks has chunk number *chunk* already.

    Raises:
        ChunkOutOfTurn: It is not the next one either.
    """
    if chunk > chunks:
        raise ChunkOutOfTurn(chunks)
    return chunk < chunks


def check_put(put: Put, now_ms: int) -> None:
    """Refuse what cannot be staged; that its queue exists is the store's to check, before this.

    Raises:
        VisibilityPastExpiry: It would expire before it can be received even once.
    """
    refusal = put_refusal(now_ms, put.delay_s, expiry_of(now_ms, put.time_to_live_s))
    if refusal:
        raise refusal


def shifted(message: Message, now_ms: int) -> Message:
    """Return a staged message as it is published: its delay and its time to live begin now."""
    moved_ms = now_ms - message.inserted_at_ms
    visible_at_ms = message.visible_at_ms + moved_ms
    never = message.expires_at_ms >= NEVER_MS
    return message._replace(
        inserted_at_ms=now_ms,
        visible_at_ms=visible_at_ms,
        expires_at_ms=NEVER_MS if never else min(message.expires_at_ms + moved_ms, NEVER_MS),
        phase=Phase.DELAYED if visible_at_ms > now_ms else Phase.WAITING,
        since_ms=now_ms,
    )


def chosen_parts(
    name: str, staged: Collection[str] | None, parts: tuple[str, ...] | None
) -> frozenset[str]:
    """Return which parts are published; those staged and not among them are dropped.

    Args:
        name: Of the transaction.
        staged: Names of the parts staged under it; None if there is no such transaction.
        parts: What was asked for; None for all.

    Raises:
        StagedNotFound: There is no such transaction, unless *parts* names none, or no such part.
    """
    if staged is None:
        if parts == ():
            return frozenset()
        raise StagedNotFound(name)
    if parts is None:
        return frozenset(staged)
    for part in parts:
        if part not in staged:
            raise StagedNotFound(name, part)
    return frozenset(parts)


def until_after_stage(until_ms: int, now_ms: int, timeout_s: int) -> int:
    """Return when a transaction vanishes, once more has been staged; *until_ms* 0 for a new one."""
    return max(until_ms, now_ms + timeout_s * _MS)


def until_after_bind(until_ms: int, now_ms: int) -> int:
    """Return when a transaction vanishes, once a claim has been bound; *until_ms* as above.

    Half a day at least from now. Each task of a job binds the same claim, and only few of them have
    to write.
    """
    whole_ms = DEFAULT_STAGING_TIMEOUT_S * _MS
    return until_ms if until_ms - now_ms >= whole_ms // 2 else now_ms + whole_ms
