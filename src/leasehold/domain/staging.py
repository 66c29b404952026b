"""Staged sends: messages put invisible under a name, and published together or not at all.

A *transaction* has a name; its rows are staged in *parts*, one for each task that stages, so that
of several attempts of one task one can be published and the others dropped. Publishing is one
commit, harmless when repeated, and remembered. What nobody publishes vanishes after a time-out.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:  # the union of all commands is over there, and has these in it
    from leasehold.domain.commands import Complete, Put, Release, Renew, Result

DEFAULT_STAGING_TIMEOUT_S: Final = 86_400
MAX_STAGING_TIMEOUT_S: Final = 604_800
REMEMBER_S: Final = 604_800
"""How long a published name is remembered: as long as a restart of a job may take."""


RowsByQueue: TypeAlias = tuple[tuple[str, int], ...]
"""Names of queues, sorted, each with a number of messages, 1 or more."""


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
class Stage:
    """Put messages that nobody sees yet. Answer: :class:`Staged`.

    Or QueueNotFound, VisibilityPastExpiry, AlreadyPublished, ChunkOutOfTurn; nothing is staged
    then. Delays and times to live begin when the message is published, and only then deduplication
    keys are looked at. A repeated chunk is not staged twice.
    """

    account: str
    name: str
    """Of the transaction, 1 to 256 characters."""
    part: str
    """Of the task, 0 to 256 characters."""
    chunk: int
    """0, 1, 2 and so on within the part."""
    puts: tuple[Put, ...]
    """For any queues of the account."""
    timeout_s: int = DEFAULT_STAGING_TIMEOUT_S
    """Seconds from now until the transaction vanishes."""


class Staged(NamedTuple):
    """How many rows and chunks the part has now."""

    rows: int
    chunks: int
    duplicate: bool = False
    """This chunk was there already."""


@dataclass(frozen=True, slots=True)
class Publish:
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

    account: str
    name: str
    parts: tuple[str, ...] | None = None
    """None for all; a name with nothing staged and no parts named is published as nothing."""


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
class Discard:
    """Drop what is staged. Answer: :class:`Discarded`; published messages stay."""

    account: str
    name: str
    parts: tuple[str, ...] | None = None
    """None for all."""


class Discarded(NamedTuple):
    """How many rows were dropped."""

    rows: int
    published: bool = False
    """The transaction had been published: nothing was dropped."""


@dataclass(frozen=True, slots=True)
class GetTransaction:
    """Look at a transaction. Answer: :class:`Transaction`, or StagedNotFound."""

    account: str
    name: str


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """List transactions by name. Answer: tuple of Transaction."""

    account: str
    state: TransactionState | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ExpireStaged:
    """Drop up to *limit* transactions whose time is over. Answer: Swept."""

    limit: int


@dataclass(frozen=True, slots=True)
class CommitTogether:
    """Carry out commands and publish staged transactions as one. Answer: :class:`Committed`.

    As an atomic :class:`~leasehold.domain.commands.Batch`, over any queues of the account; or
    StagedNotFound, or what :class:`Publish` is refused with, and nothing is done. With a *name*
    that was used before, nothing is done again. Claims that are bound to the name, or to what is
    published, are settled with it.
    """

    account: str
    commands: tuple[Put | Renew | Complete | Release, ...]
    publish: tuple[str, ...] = ()
    name: str | None = None
    """Kept like that of a published transaction."""


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


StagingCommand: TypeAlias = (
    Stage | Publish | Discard | GetTransaction | ListTransactions | ExpireStaged | CommitTogether
)
StagingResult: TypeAlias = (
    Staged | Published | Discarded | Transaction | tuple[Transaction, ...] | Committed
)
