"""Staged sends: messages put invisible under a name, and published together or not at all.

A *transaction* has a name; its rows are staged in *parts*, one for each task that stages, so that
of several attempts of one task one can be published and the others dropped. Publishing is one
commit, harmless when repeated, and remembered. What is not published vanishes after a time-out.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, overload

from leasehold.domain.command import (
    BYTES_PER_COMMAND,
    MAX_BATCH,
    Answer,
    AnyCommand,
    Command,
    Lock,
    Rank,
    Refresh,
    Swept,
    always,
    by_subcommands,
    changes,
    if_subcommands_do,
    looks,
    never,
    one,
    upkeep,
    whole,
)
from leasehold.domain.commands import Complete, Put, Release, Renew, Result
from leasehold.domain.errors import ChunkOutOfTurn, StagedNotFound
from leasehold.domain.limits import DEFAULT_STAGING_TIMEOUT_S
from leasehold.domain.model import (
    ENTROPY_BYTES,
    NEVER_MS,
    Detail,
    Message,
    Phase,
    expiry_of,
    own_timeout_refusal,
    put_refusal,
)
from leasehold.domain.queue_settings import QueueSettings

REMEMBER_S: Final = 604_800
"""How long a published name is remembered: as long as a restart of a job may take."""


RowsByQueue: TypeAlias = tuple[tuple[str, int], ...]
"""Names of queues, sorted, each with a number of messages, 1 or more."""


class Bound(NamedTuple):
    """A claim that the publishing of a transaction settles."""

    queue: str
    stream: str
    number: int
    token: int
    """Of the stream, when it was bound."""


class StreamSettled(NamedTuple):
    """What publishing did to a stream of which claims were bound to the transaction."""

    queue: str
    stream: str
    last_settled: int
    completed: int
    exempted: int
    lost: int
    """Members that others had taken meanwhile, which the consumer had accepted."""


class TransactionState(StrEnum):
    """How far a transaction is."""

    STAGED = "staged"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """What one task has staged."""

    part: str
    rows: int
    chunks: int
    """Calls that it was staged with; the next one has this number."""


class BoundClaim(NamedTuple):
    """A claim that is settled when the transaction is published."""

    queue: str
    stream: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A named set of staged messages, or the memory of one that was published."""

    account: str
    name: str
    state: TransactionState
    created_at_ms: int
    until_ms: int
    """When it vanishes, or when its publishing is forgotten."""
    rows: int
    """Staged, or published."""
    duplicates: int = 0
    """Rows that were dropped when it was published, as their key had been used."""
    parts: tuple[StagedPart, ...] = ()
    """By name; empty once it is published."""
    claims: tuple[BoundClaim, ...] = ()
    """By queue, stream and number; empty once it is published."""


@dataclass(frozen=True, slots=True)
class AlikePuts(Sequence[Put]):
    """Messages for one queue that are the same but for their bodies and ids.

    A store may take them as they are; for any other it is a sequence like others.
    """

    account: str
    queue: str
    bodies: Sequence[bytes]
    entropy: bytes
    """ENTROPY_BYTES for each."""
    delay_s: int
    time_to_live_s: int | None
    detail: Detail
    """Without a group, and without a deduplication key."""
    priority: int

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> Put: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Put, ...]: ...
    def __getitem__(self, index: int | slice) -> Put | tuple[Put, ...]:
        if isinstance(index, slice):
            return tuple([self[place] for place in range(len(self))[index]])
        at = range(len(self))[index] * ENTROPY_BYTES
        named = self.account, self.queue, self.bodies[index], self.delay_s, self.time_to_live_s
        return Put(*named, self.entropy[at : at + ENTROPY_BYTES], self.detail, self.priority)


def _bodies(puts: Sequence[Put]) -> Sequence[bytes]:
    return puts.bodies if isinstance(puts, AlikePuts) else [put.body for put in puts]


def _staging(command: Stage) -> int:
    size_bytes = sum(map(len, _bodies(command.puts)))
    return max(len(command.puts), size_bytes // BYTES_PER_COMMAND) or 1


@dataclass(frozen=True, slots=True)
class Stage(Command["Staged"]):
    """Put messages that no consumer sees yet. Answer: :class:`Staged`.

    Or QueueNotFound, VisibilityPastExpiry, AlreadyPublished, ChunkOutOfTurn; nothing is staged
    then. Delays and times to live begin when the message is published, and only then deduplication
    keys are looked at. A repeated chunk is not staged twice.
    """

    traits = changes(
        Rank.STAGE, _staging, Lock.ALONE, always, Answer.PLAIN, finishes=False, wakes=False
    )

    account: str
    name: str
    """Of the transaction, 1 to 256 characters."""
    part: str
    """Of the task, 0 to 256 characters."""
    chunk: int
    """0, 1, 2 and so on within the part."""
    puts: Sequence[Put]
    """For any queues of the account."""
    timeout_s: int = DEFAULT_STAGING_TIMEOUT_S
    """Seconds from now until the transaction vanishes."""

    def carried(self) -> Sequence[AnyCommand]:
        """See :meth:`Command.carried`."""
        return self.puts

    def carrying(self, commands: tuple[Any, ...]) -> Stage:
        """See :meth:`Command.carrying`."""
        return replace(self, puts=commands)


class Staged(NamedTuple):
    """How many rows and chunks the part has now."""

    rows: int
    chunks: int
    duplicate: bool = False
    """This chunk was there already."""


@dataclass(frozen=True, slots=True)
class Publish(Command["Published"]):
    """Make the staged messages of some parts visible and drop the others. Answer: Published.

    Or StagedNotFound when a part named is not there, or the whole transaction is unknown;
    QueueNotFound when a queue is gone. Nothing is done then.

    A row whose deduplication key the queue remembers is dropped, as a put would put nothing. Rows
    count in the order of their parts by name, chunks, and places in the chunk, so of two with the
    same key the first one is published, and its key is remembered from now on.

    Streams are settled with it up to the claims that are bound to the name, noted exemptions
    applied. If that is not possible any more, nothing is done: StreamNotFound, StaleToken (somebody
    else has attached since), ClaimSettled, ClaimNotFound (it was given back), ClaimOutOfTurn,
    ClaimBroken.
    """

    traits = changes(
        Rank.PUBLISH, whole, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True
    )

    account: str
    name: str
    parts: tuple[str, ...] | None = None
    """None for all; a name with nothing staged and no parts named is published as nothing."""
    actor: str | None = None
    """Who asks for it in the console, for the event log."""


class Published(NamedTuple):
    """How many messages were published under the name."""

    rows: int
    already: bool = False
    """They were published before, and now nothing was done."""
    by_queue: RowsByQueue = ()
    """The same for each queue that some of them went to."""
    settled: tuple[StreamSettled, ...] = ()
    """Streams of which claims were bound to the name."""
    duplicates: int = 0
    """Rows that were dropped instead, as their deduplication key had been used."""


@dataclass(frozen=True, slots=True)
class Discard(Command["Discarded"]):
    """Drop what is staged. Answer: :class:`Discarded`; published messages stay."""

    traits = changes(
        Rank.DISCARD, whole, Lock.ALONE, never, Answer.PLAIN, finishes=True, wakes=False
    )

    account: str
    name: str
    parts: tuple[str, ...] | None = None
    """None for all."""
    actor: str | None = None
    """Who asks for it in the console, for the event log."""


class Discarded(NamedTuple):
    """How many rows were dropped."""

    rows: int
    published: bool = False
    """The transaction had been published: nothing was dropped."""


@dataclass(frozen=True, slots=True)
class GetTransaction(Command[Transaction]):
    """Look at a transaction. Answer: :class:`Transaction`, or StagedNotFound."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    name: str


@dataclass(frozen=True, slots=True)
class ListTransactions(Command[tuple[Transaction, ...]]):
    """List transactions by name. Answer: tuple of Transaction."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    state: TransactionState | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ExpireStaged(Command[Swept]):
    """Drop up to *limit* transactions whose time is over. Answer: Swept."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    limit: int


def _committing(command: CommitTogether) -> int:
    """What is published, and settled with it, may be of any size."""
    return MAX_BATCH if command.publish else by_subcommands(command)


@dataclass(frozen=True, slots=True)
class CommitTogether(Command["Committed"]):
    """Carry out commands and publish staged transactions as one. Answer: :class:`Committed`.

    As an atomic :class:`~leasehold.domain.commands.Batch`, over any queues of the account; or
    StagedNotFound, or what :class:`Publish` is refused with, and nothing is done. With a *name*
    that was used before, nothing is done again. Claims that are bound to the name, or to what is
    published, are settled with it.
    """

    traits = changes(
        Rank.COMMIT,
        _committing,
        Lock.ALONE,
        if_subcommands_do,
        Answer.PLAIN,
        finishes=True,
        wakes=True,
    )

    account: str
    commands: tuple[Put | Renew | Complete | Release, ...]
    publish: tuple[str, ...] = ()
    name: str | None = None
    """Kept like that of a published transaction."""

    def subcommands(self) -> Sequence[AnyCommand]:
        """See :meth:`Command.subcommands`."""
        return self.commands

    def carrying(self, commands: tuple[Any, ...]) -> CommitTogether:
        """See :meth:`Command.carrying`."""
        return replace(self, commands=commands)


class Committed(NamedTuple):
    """What became of each command, in order."""

    results: tuple[Result, ...]
    published: int = 0
    already: bool = False
    """The name was used before; there are no results then."""
    by_queue: RowsByQueue = ()
    """How many messages of transactions went to each queue."""
    settled: tuple[StreamSettled, ...] = ()
    """Streams of which claims were bound to one of the names."""
    duplicates: int = 0
    """Staged rows that were dropped instead of published."""


# --- staging rules -----------------------------------------------------------------------------
#
# The rules of staged sends: pure functions that every store decides by.


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


def check_put(put: Put, settings: QueueSettings, now_ms: int) -> None:
    """Refuse what cannot be staged for a queue with these settings.

    Raises:
        VisibilityPastExpiry: It would expire before it can be received even once.
        OutOfRange: It names a longer visibility timeout than it may.
    """
    refusal = put_refusal(now_ms, put.delay_s, expiry_of(now_ms, put.time_to_live_s))
    refusal = refusal or own_timeout_refusal(put.detail.visibility_timeout_s, settings)
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
