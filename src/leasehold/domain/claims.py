"""Claims: named, ordered, replayable sets of messages leased together and settled together.

A *stream* is a consumer of one queue that works in numbered steps, such as a Spark query. Claim
number n holds the messages of step n. Its members and their order never change; it can be read as
often as wanted, extended with one small write, and settled with all claims before it. ``attach``
gives a stream a token; a newer token fences the older one.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from leasehold.domain.staging import RowsByQueue, StreamSettled
from leasehold.domain.types import ErrorReport, Message, Outcome

if TYPE_CHECKING:  # the union of all commands is over there, and has these in it
    from leasehold.domain.commands import Put

CLAIM_STEP: Final = 10_000
"""Messages that one :class:`OpenClaim` takes at most, some 30 milliseconds' worth; whoever opens a
larger one asks again until it is no longer OPENING."""
AGAIN_STEP: Final = 1_000
"""Of these, messages that were received before: each has a history, and costs ten times as much."""
MAX_CLAIM: Final = 1_000_000
"""Members of one claim."""
MAX_LAPSED: Final = 8
"""Lapsed claims of one queue whose members are kept together; of more, the oldest are dissolved."""
MAX_NOTED: Final = 10_000
"""Members of one claim whose exemption is noted: when it is settled each is given back by itself,
some half a second's worth, and nobody has a turn meanwhile."""
FOLD_STEP: Final = 1_000
"""Members that one step of dissolving moves, at most some 30 milliseconds' worth."""


class ClaimState(StrEnum):
    """How far a claim is."""

    OPENING = "opening"
    """Takes messages still; nobody has seen it."""
    OPEN = "open"
    PARKED = "parked"
    """Nobody extends it, but its members stay hidden until the end of a replay window."""
    LAPSED = "lapsed"
    """Nobody extended it in time: others may take its members. While nobody has, it can be
    reopened."""
    BROKEN = "broken"
    """It had lapsed and others have taken, or an operator has removed, some of its members."""
    SETTLED = "settled"


HIDING: Final = frozenset({ClaimState.OPENING, ClaimState.OPEN, ClaimState.PARKED})
"""States in which the members of a claim are invisible to others, until ``until_ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim as its store keeps it."""

    account: str
    queue: str
    stream: str
    number: int
    """1, 2, 3 and so on within the stream."""
    state: ClaimState
    size: int
    """Members, those lost included."""
    limit: int
    """How many it may have, as was said when it was first opened."""
    max_bytes: int | None = None
    lost: int = 0
    """Members that others have taken or removed; they are never settled by this claim."""
    opened_at_ms: int
    until_ms: int
    """End of the lease of all members; for a parked claim the end of the replay window."""
    holder: str | None = None
    extensions: int = 0
    noted: int = 0
    """Members whose exemption is noted for when it is settled."""
    transaction: str | None = None
    """Name of the transaction whose publishing settles it."""

    @property
    def remaining(self) -> int:
        """Return how many members are still in the claim."""
        return self.size - self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A consumer that claims."""

    account: str
    queue: str
    stream: str
    token: int
    """Higher than all that were given before, also to streams that were deleted since; calls with
    another one are refused."""
    last_settled: int
    """All claims up to this number are settled; 0 for none."""
    attached_at_ms: int
    settled_with: str | None = None
    """Name of the transaction that was published and by that settled the last claims that were;
    None if they were settled by themselves."""
    claims: tuple[Claim, ...] = ()
    """Those not settled, by number."""


@dataclass(frozen=True, slots=True)
class AttachStream:
    """Take a stream over, and create it if need be. Answer: :class:`Stream`, or QueueNotFound."""

    account: str
    queue: str
    stream: str


@dataclass(frozen=True, slots=True)
class OpenClaim:
    """Lease messages as claim *number*, or find that claim again. Answer: :class:`Opened`.

    Or QueueNotFound, StreamNotFound, StaleToken, ClaimSettled, ClaimOutOfTurn, ClaimBroken.

    Messages are taken in the order of receives, each with a dequeue count and a fence one higher.
    What may not be delivered again goes to the poison queue instead. A paused or limited queue
    gives as to receives. A claim that has lapsed and lost nobody is open again from then on; so is
    a broken one with *accept_loss*.
    """

    account: str
    queue: str
    stream: str
    token: int
    number: int
    """At most one above the highest number that was ever opened or settled."""
    limit: int
    """Most members, 1 to MAX_CLAIM; what a repeated call says here is not looked at."""
    lease_s: int
    holder: str | None = None
    max_bytes: int | None = None
    """Bytes of bodies after which no further member is taken; one is taken always."""
    accept_loss: bool = False


class Opened(NamedTuple):
    """The claim; None if there was nothing to claim, and nothing was created."""

    claim: Claim | None
    replayed: bool = False
    """It was there already."""


@dataclass(frozen=True, slots=True)
class ReadClaim:
    """Read members in their order. Answer: :class:`MemberPage` or :class:`MemberColumns`.

    Or QueueNotFound, StreamNotFound, ClaimNotFound, ClaimSettled, ClaimBroken, ClaimLapsed (one
    that has lapsed must be reopened first). Needs no token; it changes nothing. A page ends before
    the bodies in it come to more than LOOK_BYTES, but has one member at least.
    """

    account: str
    queue: str
    stream: str
    number: int
    part: int
    """0 to *parts* - 1: the members from ``part * size // parts`` on."""
    parts: int
    after: str
    """``next_after`` of the page before; empty for the beginning of the part."""
    limit: int
    columns: bool = False
    """Whether the store may answer with :class:`MemberColumns`, which cost it a third."""


class MemberColumns(NamedTuple):
    """Some members that have no detail, column by column."""

    message_ids: Sequence[bytes]
    """16 bytes each; see :func:`leasehold.domain.ids.id_from_blob`."""
    bodies: Sequence[bytes]
    inserted_at_ms: Sequence[int]
    expires_at_ms: Sequence[int]
    visible_since_ms: Sequence[int]
    dequeue_counts: Sequence[int]
    fences: Sequence[int]
    priorities: Sequence[int]
    next_after: str | None


class MemberPage(NamedTuple):
    """Some members, and where the part goes on (None at its end)."""

    messages: tuple[Message, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class ExtendClaim:
    """Move the end of a claim's lease to *lease_s* from now. Answer: :class:`Claim`.

    Or as for :class:`ReadClaim`, or StaleToken. A claim that lapsed and lost nobody is open again.
    With *park* the claim is parked: *lease_s* is then the replay window.
    """

    account: str
    queue: str
    stream: str
    token: int
    number: int
    lease_s: int
    park: bool = False


class Exemption(NamedTuple):
    """A member that is not completed when its claim is settled, and what becomes of it."""

    number: int
    message_id: str
    outcome: Outcome
    """RETURNED, FAILED, INTERRUPTED, or BURIED, as for a release."""
    delay_s: int | None = None
    error: ErrorReport | None = None
    dice: float = 0.5


@dataclass(frozen=True, slots=True)
class ExemptMembers:
    """Note what becomes of members when their claim is settled. Answer: :class:`Claim`.

    Or as for :class:`ReadClaim`, or StaleToken, MemberNotFound, VisibilityPastExpiry, OutOfRange
    (of the claim more than MAX_NOTED would be noted); nothing is noted then. The last note on a
    member counts. Notes are forgotten with their claim; that on a member which was lost is not
    looked at.
    """

    account: str
    queue: str
    stream: str
    token: int
    number: int
    exemptions: tuple[Exemption, ...]
    """All of this claim."""


@dataclass(frozen=True, slots=True)
class BindClaim:
    """Have the publishing of a transaction settle the stream up to a claim. Answer: :class:`Claim`.

    Or as for :class:`ReadClaim`, or StaleToken, AlreadyPublished. The publishing is refused whole
    if by then somebody else has attached to the stream, the claim was given back or settled
    otherwise, or it or one before it has lost members. A claim is bound to one transaction: the
    last one named. A transaction to which a claim is bound is there, even with nothing staged; it
    vanishes like others, and that undoes the binding.
    """

    account: str
    queue: str
    stream: str
    token: int
    number: int
    transaction: str
    """Name, 1 to 256 characters, of a transaction of the account, known or not."""


class Bound(NamedTuple):
    """A claim that the publishing of a transaction settles."""

    queue: str
    stream: str
    number: int
    token: int
    """Of the stream, when it was bound."""


@dataclass(frozen=True, slots=True)
class SettleClaims:
    """Complete all members of all claims up to a number, but for the exemptions. Answer: Settled.

    Or QueueNotFound, StreamNotFound, StaleToken, MemberNotFound (an exemption names no member of
    these claims), StagedNotFound, or what a put is refused with; nothing is done then. All of it,
    with what is published and sent along, is one transaction. Harmless when repeated: what was
    settled is not looked at again, and nothing is sent or published twice. What is noted of a
    member counts, if there is no exemption of it here. For claims bound to what is published see
    :class:`~leasehold.domain.staging.Publish`.
    """

    account: str
    queue: str
    stream: str
    token: int
    upto: int
    exemptions: tuple[Exemption, ...] = ()
    publish: tuple[str, ...] = ()
    """Names of staged transactions to publish, whole."""
    sends: tuple[Put, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What settling did."""

    last_settled: int
    completed: int = 0
    exempted: int = 0
    lost: int = 0
    """Members that others had taken meanwhile: they were not completed."""
    published: int = 0
    published_by_queue: RowsByQueue = ()
    duplicates: int = 0
    """Staged rows that were dropped instead, as their deduplication key had been used."""
    already: bool = False
    """Everything up to the number was settled before."""
    beside: tuple[StreamSettled, ...] = ()
    """Other streams that were settled, as their claims were bound to what was published."""


@dataclass(frozen=True, slots=True)
class GiveBackClaim:
    """Dissolve a claim: its members are visible again. Answer: Done, or :class:`Dissolving`.

    For a claim that was opened and never worked on. Or as for :class:`ExtendClaim`. The number can
    be opened anew at once; of its members at most FOLD_STEP are visible then.
    """

    account: str
    queue: str
    stream: str
    token: int
    number: int


class Dissolving(NamedTuple):
    """It is given back for good, and :class:`LapseClaims` carries it out, step by step."""

    left: int
    """Members that stay as they were until then: hidden, or lapsed."""


@dataclass(frozen=True, slots=True)
class GetStream:
    """Look at a stream. Answer: :class:`Stream`, or QueueNotFound or StreamNotFound."""

    account: str
    queue: str
    stream: str


@dataclass(frozen=True, slots=True)
class ListStreams:
    """List the streams of a queue by name. Answer: tuple of Stream, or QueueNotFound."""

    account: str
    queue: str


@dataclass(frozen=True, slots=True)
class DeleteStream:
    """Forget a stream; its claims are given back. Answer: as for :class:`GiveBackClaim`.

    Or QueueNotFound or StreamNotFound.
    """

    account: str
    queue: str
    stream: str


@dataclass(frozen=True, slots=True)
class LapseClaims:
    """Let claims lapse whose time is over, and dissolve what is to be dissolved. Answer: Swept.

    The count is that of the members moved, at most *limit*: first those of claims that were given
    back, the oldest first, then those of claims that are too many.
    """

    limit: int = FOLD_STEP
    fold: bool = True
    """Whether to dissolve claims that are too many as well; not while the clock is doubted."""


ClaimCommand: TypeAlias = (
    AttachStream
    | OpenClaim
    | ReadClaim
    | ExtendClaim
    | ExemptMembers
    | BindClaim
    | SettleClaims
    | GiveBackClaim
    | GetStream
    | ListStreams
    | DeleteStream
    | LapseClaims
)
ClaimResult: TypeAlias = (
    Stream | Opened | MemberPage | MemberColumns | Claim | Settled | Dissolving | tuple[Stream, ...]
)
