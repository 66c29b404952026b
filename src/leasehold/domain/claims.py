"""Claims: named, ordered, replayable sets of messages leased together and settled together.

A *stream* is a consumer of one queue that works in numbered steps, such as a Spark query. Claim
number n holds the messages of step n. Its members and their order never change; it can be read as
often as wanted, extended with one small write, and settled with all claims before it. ``attach``
gives a stream a token; a newer token fences the older one.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from leasehold.domain.command import (
    MAX_BATCH,
    Answer,
    AnyCommand,
    Command,
    Done,
    Lock,
    Rank,
    Refresh,
    Swept,
    always,
    by_limit,
    changes,
    looks,
    never,
    one,
    quarter,
    upkeep,
    whole,
)
from leasehold.domain.commands import Put
from leasehold.domain.errors import (
    ClaimBroken,
    ClaimLapsed,
    ClaimNotFound,
    ClaimOutOfTurn,
    ClaimSettled,
    OutOfRange,
    StaleToken,
)
from leasehold.domain.events import EventType
from leasehold.domain.failures import close_attempt
from leasehold.domain.groups import place_in_group
from leasehold.domain.limits import MAX_NOTED
from leasehold.domain.model import ErrorReport, Message, Outcome
from leasehold.domain.queue_settings import GroupOrder, GroupSettings
from leasehold.domain.transactions import Bound, RowsByQueue, StreamSettled
from leasehold.domain.visibility import after_receive, after_release, release_refusal

CLAIM_STEP: Final = 10_000
"""Messages that one :class:`OpenClaim` takes at most, some 30 milliseconds' worth; whoever opens a
larger one asks again until it is no longer OPENING."""
AGAIN_STEP: Final = 1_000
"""Of these, messages that were received before: each has a history, and costs ten times as much."""
MAX_LAPSED: Final = 8
"""Lapsed claims of one queue whose members are kept together; of more, the oldest are dissolved."""
FOLD_STEP: Final = 1_000
"""Members that one step of dissolving moves, at most some 30 milliseconds' worth."""


class ClaimState(StrEnum):
    """How far a claim is."""

    OPENING = "opening"
    """Takes messages still; no consumer has seen it."""
    OPEN = "open"
    PARKED = "parked"
    """It is not extended, but its members stay hidden until the end of a replay window."""
    LAPSED = "lapsed"
    """It was not extended in time: others may take its members. While none has, it can be
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
    in_order: bool = False
    """Whether members of groups are read by their places in these, whatever their priorities."""

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
class AttachStream(Command[Stream]):
    """Take a stream over, and create it if need be. Answer: :class:`Stream`, or QueueNotFound."""

    traits = changes(Rank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True)

    account: str
    queue: str
    stream: str


@dataclass(frozen=True, slots=True)
class OpenClaim(Command["Opened"]):
    """Lease messages as claim *number*, or find that claim again. Answer: :class:`Opened`.

    Or QueueNotFound, StreamNotFound, StaleToken, ClaimSettled, ClaimOutOfTurn, ClaimBroken.

    Messages are taken in the order of receives, each with a dequeue count and a fence one higher.
    What may not be delivered again goes to the poison queue instead. A paused or limited queue
    gives as to receives. A claim that has lapsed and lost no member is open again from then on; so
    is a broken one with *accept_loss*.
    """

    traits = changes(
        Rank.TAKE, by_limit, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True
    )

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
class ReadClaim(Command["MemberPage | MemberColumns"]):
    """Read members in their order. Answer: :class:`MemberPage` or :class:`MemberColumns`.

    Or QueueNotFound, StreamNotFound, ClaimNotFound, ClaimSettled, ClaimBroken, ClaimLapsed (one
    that has lapsed must be reopened first). Needs no token; it changes nothing. A page ends before
    the bodies in it come to more than LOOK_BYTES, but has one member at least.
    """

    traits = looks(Rank.READ_CLAIM, by_limit, Lock.SHARED, Answer.MESSAGES, Refresh.NOTHING)

    account: str
    queue: str
    stream: str
    number: int
    part: int
    """0 to *parts* - 1: the members from ``part * size // parts`` on; but see *whole_groups*."""
    parts: int
    after: str
    """``next_after`` of the page before; empty for the beginning of the part."""
    limit: int
    columns: bool = False
    """Whether the store may answer with :class:`MemberColumns`, which cost it a third."""
    whole_groups: bool = False
    """Whether each part has all members of some groups; see :func:`groups.is_of_part`."""


class MemberColumns(NamedTuple):
    """Some members that have no detail, column by column; one number is that of all of them."""

    message_ids: bytes
    """16 of each; see :func:`leasehold.domain.model.id_from_blob`."""
    sizes: Sequence[int]  # of each body
    bodies: Sequence[bytes]  # all of them in their order, any number joined in each
    inserted_at_ms: int | Sequence[int]
    expires_at_ms: int | Sequence[int]
    visible_since_ms: int | Sequence[int]
    dequeue_counts: int | Sequence[int]
    fences: int | Sequence[int]
    priorities: int | Sequence[int]
    next_after: str | None


class MemberPage(NamedTuple):
    """Some members, and where the part goes on (None at its end)."""

    messages: tuple[Message, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class ExtendClaim(Command[Claim]):
    """Move the end of a claim's lease to *lease_s* from now. Answer: :class:`Claim`.

    Or as for :class:`ReadClaim`, or StaleToken. A claim that lapsed and lost no member is open
    again. With *park* the claim is parked: *lease_s* is then the replay window.
    """

    traits = changes(Rank.EXTEND, one, Lock.ALONE, never, Answer.PLAIN, finishes=True, wakes=True)

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
    jitter: float = 0.5


@dataclass(frozen=True, slots=True)
class ExemptMembers(Command[Claim]):
    """Note what becomes of members when their claim is settled. Answer: :class:`Claim`.

    Or as for :class:`ReadClaim`, or StaleToken, MemberNotFound, VisibilityPastExpiry, OutOfRange
    (of the claim more than MAX_NOTED would be noted); nothing is noted then. The last note on a
    member counts. Notes are forgotten with their claim; that on a member which was lost is not
    looked at.
    """

    traits = changes(
        Rank.EXEMPT,
        lambda command: len(command.exemptions) or 1,
        Lock.ALONE,
        always,
        Answer.PLAIN,
        finishes=True,
        wakes=False,
    )

    account: str
    queue: str
    stream: str
    token: int
    number: int
    exemptions: tuple[Exemption, ...]
    """All of this claim."""
    replace: bool = False
    """Whether whatever was noted of the claim before is forgotten: for a consumer that has done the
    whole claim anew, and whose first try had other exemptions."""


@dataclass(frozen=True, slots=True)
class BindClaim(Command[Claim]):
    """Have the publishing of a transaction settle the stream up to a claim. Answer: :class:`Claim`.

    Or as for :class:`ReadClaim`, or StaleToken, AlreadyPublished. The publishing is refused whole
    if by then another consumer has attached to the stream, the claim was given back or settled
    otherwise, or it or one before it has lost members. A claim is bound to one transaction: the
    last one named. A transaction to which a claim is bound is there, even with nothing staged; it
    vanishes like others, and that undoes the binding.
    """

    traits = changes(Rank.BIND, one, Lock.ALONE, never, Answer.PLAIN, finishes=True, wakes=False)

    account: str
    queue: str
    stream: str
    token: int
    number: int
    transaction: str
    """Name, 1 to 256 characters, of a transaction of the account, known or not."""


def _settling(command: SettleClaims) -> int:
    """Completing the members is one small write; what is published may be of any size."""
    return MAX_BATCH if command.publish else 1 + len(command.exemptions) + len(command.sends)


def _sends(command: SettleClaims) -> bool:
    return bool(command.sends)


@dataclass(frozen=True, slots=True)
class SettleClaims(Command["Settled"]):
    """Complete all members of all claims up to a number, but for the exemptions. Answer: Settled.

    Or QueueNotFound, StreamNotFound, StaleToken, MemberNotFound (an exemption names no member of
    these claims), StagedNotFound, or what a put is refused with; nothing is done then. All of it,
    with what is published and sent along, is one transaction. Harmless when repeated: what was
    settled is not looked at again, and nothing is sent or published twice. What is noted of a
    member counts, if there is no exemption of it here. For claims bound to what is published see
    :class:`~leasehold.domain.transactions.Publish`.
    """

    traits = changes(
        Rank.SETTLE, _settling, Lock.ALONE, _sends, Answer.PLAIN, finishes=True, wakes=True
    )

    account: str
    queue: str
    stream: str
    token: int
    upto: int
    exemptions: tuple[Exemption, ...] = ()
    publish: tuple[str, ...] = ()
    """Names of staged transactions to publish, whole."""
    sends: tuple[Put, ...] = ()

    def carried(self) -> Sequence[AnyCommand]:
        """See :meth:`Command.carried`."""
        return self.sends

    def carrying(self, commands: tuple[Any, ...]) -> SettleClaims:
        """See :meth:`Command.carrying`."""
        return replace(self, sends=commands)


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
class GiveBackClaim(Command[Done]):
    """Dissolve a claim: its members are visible again. Answer: Done, or :class:`Dissolving`.

    For a claim that was opened and never worked on. Or as for :class:`ExtendClaim`. The number can
    be opened anew at once; of its members at most FOLD_STEP are visible then.
    """

    traits = changes(
        Rank.GIVE_BACK, quarter, Lock.ALONE, never, Answer.PLAIN, finishes=True, wakes=True
    )

    account: str
    queue: str
    stream: str
    token: int
    number: int
    actor: str | None = None  # who asks for it in the console, for the event log


class Dissolving(NamedTuple):
    """It is given back for good, and :class:`LapseClaims` carries it out, step by step."""

    left: int
    """Members that stay as they were until then: hidden, or lapsed."""


@dataclass(frozen=True, slots=True)
class GetStream(Command[Stream]):
    """Look at a stream. Answer: :class:`Stream`, or QueueNotFound or StreamNotFound."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    queue: str
    stream: str


@dataclass(frozen=True, slots=True)
class ListStreams(Command[tuple[Stream, ...]]):
    """List the streams of a queue by name. Answer: tuple of Stream, or QueueNotFound."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    queue: str


@dataclass(frozen=True, slots=True)
class DeleteStream(Command[Done]):
    """Forget a stream; its claims are given back. Answer: as for :class:`GiveBackClaim`.

    Or QueueNotFound or StreamNotFound.
    """

    traits = changes(Rank.FIRST, whole, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True)

    account: str
    queue: str
    stream: str
    actor: str | None = None  # who asks for it in the console, for the event log


@dataclass(frozen=True, slots=True)
class LapseClaims(Command[Swept]):
    """Let claims lapse whose time is over, and dissolve what is to be dissolved. Answer: Swept.

    The count is that of the members moved, at most *limit*: first those of claims that were given
    back, the oldest first, then those of claims that are too many.
    """

    traits = upkeep(Rank.LAPSE, quarter, never, Refresh.NOTHING, wakes=True)

    limit: int = FOLD_STEP
    fold: bool = True
    """Whether to dissolve claims that are too many as well; not while the clock is doubted."""


# --- claim rules -------------------------------------------------------------------------------
#
# The rules of claims: pure functions from one state of a claim to the next.
#
# Every store decides by these; what is theirs is only how members are kept. A loss that no consumer
# has accepted makes a claim BROKEN at once, so a claim in any other state with members lost is one
# whose loss was accepted.


_MS: Final = 1000


# --- checks ------------------------------------------------------------------------------------


def highest_of(last_settled: int, numbers: Iterable[int]) -> int:
    """Return the highest number that is open or settled."""
    return max(last_settled, *numbers, last_settled)


def check_number(
    number: int, last_settled: int, numbers: Iterable[int], settled_with: str | None = None
) -> None:
    """Refuse to open a number that is settled, or not the next one.

    Raises:
        ClaimSettled: It is *last_settled* or below.
        ClaimOutOfTurn: It is more than one above the highest of *numbers* and *last_settled*.
    """
    if number <= last_settled:
        raise ClaimSettled(last_settled, settled_with)
    expected = highest_of(last_settled, numbers) + 1
    if number > expected:
        raise ClaimOutOfTurn(expected)


def check_token(stream_token: int, given: int) -> None:
    """Refuse everybody but the one who attached last.

    Raises:
        StaleToken: *given* is not the stream's token.
    """
    if given != stream_token:
        raise StaleToken(stream_token)


def check_readable(claim: Claim, accepted_loss: bool) -> None:
    """Refuse to read what is not whole.

    Args:
        claim: An existing claim of the number asked for.
        accepted_loss: Whether a consumer has opened it with ``accept_loss`` since its last loss.

    Raises:
        ClaimNotFound: It is OPENING: its members are not all there yet.
        ClaimLapsed: It must be opened again first.
        ClaimBroken: It has lost members, and no consumer has accepted that.
    """
    if claim.state is ClaimState.OPENING:
        raise ClaimNotFound
    if claim.state is ClaimState.BROKEN:
        raise ClaimBroken(claim.size, claim.lost)
    if claim.state is ClaimState.LAPSED:
        raise ClaimLapsed(claim.until_ms)
    if claim.lost and not accepted_loss:
        raise ClaimBroken(claim.size, claim.lost)


def to_settle(upto: int, last_settled: int, open_claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims that settling up to *upto*, above *last_settled*, completes; by number.

    Raises:
        ClaimOutOfTurn: *upto* was never opened, or one of them is still OPENING.
    """
    by_number = sorted(open_claims, key=lambda claim: claim.number)
    highest = highest_of(last_settled, (claim.number for claim in by_number))
    if upto > highest:
        raise ClaimOutOfTurn(highest + 1)
    chosen = [claim for claim in by_number if claim.number <= upto]
    for claim in chosen:
        if claim.state is ClaimState.OPENING:
            raise ClaimOutOfTurn(claim.number)
    return chosen


def check_bound(name: str, bound: Bound, stream: Stream) -> None:
    """Refuse to publish what was made of a claim that is no longer its consumer's, or not whole.

    Args:
        name: Of the transaction.
        bound: A claim that was bound to it.
        stream: Of that claim, as it is now.

    Raises:
        StaleToken: Another consumer has attached to the stream since.
        ClaimSettled: The claim was settled, and not by who had bound it.
        ClaimNotFound: The claim was given back.
        ClaimOutOfTurn: A claim before it is still OPENING.
        ClaimBroken: It, or a claim before it, has lost members, and no consumer has accepted that.
    """
    check_token(stream.token, bound.token)
    if not any(each.number == bound.number and each.transaction == name for each in stream.claims):
        if bound.number <= stream.last_settled:
            raise ClaimSettled(stream.last_settled, stream.settled_with)
        raise ClaimNotFound
    for claim in to_settle(bound.number, stream.last_settled, stream.claims):
        if claim.state is ClaimState.BROKEN:
            raise ClaimBroken(claim.size, claim.lost)


def check_noted(claim: Claim, more: int) -> None:
    """Refuse to note exemptions of *more* members if these would be too many.

    Raises:
        OutOfRange: They would be more than MAX_NOTED.
    """
    if claim.noted + more > MAX_NOTED:
        raise OutOfRange(field="exemptions", value=claim.noted + more, minimum=0, maximum=MAX_NOTED)


# --- a claim's life ----------------------------------------------------------------------------


def begin(command: OpenClaim, now_ms: int, groups: GroupSettings | None = None) -> Claim:
    """Return a claim that has no members yet."""
    return Claim(
        account=command.account,
        queue=command.queue,
        stream=command.stream,
        number=command.number,
        state=ClaimState.OPENING,
        size=0,
        limit=command.limit,
        max_bytes=command.max_bytes,
        opened_at_ms=now_ms,
        until_ms=now_ms + command.lease_s * _MS,
        holder=command.holder,
        in_order=groups is not None and groups.order is GroupOrder.FIFO,
    )


class Step:
    """Where one step of opening a claim ends. It is told of each message that is taken.

    Args:
        claim: As it is before the step.
        had_bytes: Of the bodies of the members that it has; of no interest without ``max_bytes``.
        most: Messages of one step; None for CLAIM_STEP.
    """

    __slots__ = ("_again", "_claim", "_had_bytes", "_most", "room", "taken_bytes")

    def __init__(self, claim: Claim, had_bytes: int, most: int | None = None) -> None:
        self._claim = claim
        self._had_bytes = had_bytes
        self._most = CLAIM_STEP if most is None else most
        self.room = min(self._most, claim.limit - claim.size)
        """Messages that the step may take."""
        self.begin()

    def begin(self) -> None:
        """Begin, or begin anew."""
        self._again = 0
        self.taken_bytes = self._had_bytes
        """Bytes of the bodies of all members."""

    def takes(self, dequeue_count: int, size_bytes: int) -> bool:
        """Count a message that is taken, with its count before; tell whether one more may be."""
        self.taken_bytes += size_bytes
        self._again += dequeue_count > 0
        return not (self.reaches_bytes or self._again >= AGAIN_STEP)

    @property
    def reaches_bytes(self) -> bool:
        """Whether the claim takes no more because of its bytes."""
        return self._claim.max_bytes is not None and self.taken_bytes >= self._claim.max_bytes

    def is_full(self, taken: int) -> bool:
        """Tell whether the step took as much as one step can, so that there may be more."""
        return taken >= self._most or self._again >= AGAIN_STEP


def after_step(  # noqa: PLR0913, PLR0917 - positional: what one step has done
    claim: Claim,
    taken: int,
    is_full_step: bool,
    bytes_reached: bool,
    now_ms: int,
    lease_s: int,
) -> Claim:
    """Return an OPENING claim after a step that took *taken* messages.

    It stays OPENING after a full step, as long as there is room; its lease begins anew.
    """
    size = claim.size + taken
    goes_on = is_full_step and size < claim.limit and not bytes_reached
    return replace(
        claim,
        size=size,
        state=ClaimState.OPENING if goes_on else ClaimState.OPEN,
        until_ms=now_ms + lease_s * _MS,
    )


def after_extension(claim: Claim, now_ms: int, lease_s: int, park: bool) -> Claim:
    """Move the end of the lease, or of the replay window; what had lapsed is open again.

    Raises:
        ClaimNotFound: It is OPENING.
        ClaimBroken: It has lost members.
    """
    if claim.state is ClaimState.OPENING:
        raise ClaimNotFound
    if claim.state is ClaimState.BROKEN:
        raise ClaimBroken(claim.size, claim.lost)
    return replace(
        claim,
        state=ClaimState.PARKED if park else ClaimState.OPEN,
        until_ms=now_ms + lease_s * _MS,
        extensions=claim.extensions + 1,
    )


def after_reopening(claim: Claim, now_ms: int, lease_s: int, accept_loss: bool) -> Claim:
    """Return a claim, not OPENING, that was asked for once more by its number.

    Raises:
        ClaimBroken: It has lost members, and *accept_loss* is not given.
    """
    if accept_loss and claim.state is ClaimState.BROKEN:
        claim = replace(claim, state=ClaimState.LAPSED)
    return after_extension(claim, now_ms, lease_s, park=False)


def extension_event(before: Claim) -> EventType:
    """Return what an extension of this claim is in the log."""
    if before.state in HIDING:
        return EventType.CLAIM_EXTENDED
    return EventType.CLAIM_REOPENED


def after_lapse(claim: Claim) -> Claim:
    """Return a claim whose time is over; a broken one stays broken."""
    return replace(claim, state=ClaimState.LAPSED) if claim.state in HIDING else claim


def after_loss(claim: Claim, count: int) -> Claim:
    """Return a claim that *count* more members, 0 or more, have left."""
    if not count:
        return claim
    return replace(claim, state=ClaimState.BROKEN, lost=claim.lost + count)


def after_clear(claim: Claim) -> Claim:
    """Return a claim all of whose members are gone at once."""
    return replace(after_loss(claim, claim.remaining), noted=0)


def to_dissolve(unhidden: Iterable[Claim]) -> list[Claim]:
    """Return which of a queue's claims that hide nothing are to be dissolved, the oldest first.

    Those without members do not count.
    """
    with_members = [claim for claim in unhidden if claim.remaining]
    with_members.sort(key=lambda claim: (claim.until_ms, claim.stream, claim.number))
    return with_members[: max(0, len(with_members) - MAX_LAPSED)]


# --- members -----------------------------------------------------------------------------------


def name_of(claim: Claim) -> str:
    """Return ``stream/number``, as events and inspectors name a claim."""
    return f"{claim.stream}/{claim.number}"


def member_order(message: Message, row_key: int, claim: Claim) -> tuple[int, ...]:
    """Return the sort key of the members of a claim; it never changes.

    Of one priority, those of groups come after those of none; in order, after all of these.
    """
    is_grouped = message.detail.group_id is not None
    priority = 0 if claim.in_order and is_grouped else message.priority
    return is_grouped and claim.in_order, priority, is_grouped, place_ms(message, claim), row_key


def place_ms(message: Message, claim: Claim) -> int:
    """Return by what a member has its place among those that it is sorted with."""
    visible_ms = message.visible_since_ms
    if claim.in_order and message.detail.group_id is not None:
        return min(place_in_group(message, 0)[0], visible_ms)  # less, unless the clock was set back
    return visible_ms


def part_bounds(remaining: int, read: ReadClaim) -> tuple[int, int]:
    """Return from which member up to which, exclusive, those of a part are."""
    if read.whole_groups:
        return 0, remaining
    return remaining * read.part // read.parts, remaining * (read.part + 1) // read.parts


def after_claim(message: Message, claim: Claim, now_ms: int) -> Message:
    """Return a message that has just become a member; its lapse is noted in it already."""
    return as_member(after_receive(message, now_ms, 0, claim.holder), claim)


def as_member(message: Message, claim: Claim) -> Message:
    """Return a member with the end of its lease, which is that of its claim."""
    return message._replace(visible_at_ms=claim.until_ms)


def as_read(message: Message) -> Message:
    """Return a member as it is shown to who reads its claim: without what was saved.

    That is for who can save something in its place, and pages of members would be large with it.
    """
    detail = message.detail
    if detail.saved is None:
        return message
    return message._replace(detail=replace(detail, saved=None))


def as_applied(noted: Exemption, message: Message, now_ms: int) -> Exemption:
    """Return a noted exemption as it can be carried out: without a delay past the expiry."""
    if release_refusal(message, now_ms, noted.delay_s) is None:
        return noted
    return noted._replace(delay_s=0)


def after_return(message: Message, now_ms: int) -> Message:
    """Return a member whose claim, still hiding it, was given back."""
    return after_release(close_attempt(message, Outcome.RETURNED, now_ms, None), now_ms, 0)
