"""The rules of claims: pure functions from one state of a claim to the next.

Every store decides by these; what is theirs is only how members are kept. A loss that nobody has
accepted makes a claim BROKEN at once, so a claim in any other state with members lost is one whose
loss was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from leasehold.domain import claims
from leasehold.domain.claims import (
    HIDING,
    Bound,
    Claim,
    ClaimState,
    Exemption,
    OpenClaim,
    Stream,
)
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
from leasehold.domain.types import Message, Outcome
from leasehold.domain.visibility import after_receive, after_release, release_refusal

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
        accepted_loss: Whether somebody has opened it with ``accept_loss`` since its last loss.

    Raises:
        ClaimNotFound: It is OPENING: its members are not all there yet.
        ClaimLapsed: It must be opened again first.
        ClaimBroken: It has lost members, and nobody has accepted that.
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
        StaleToken: Somebody else has attached to the stream since.
        ClaimSettled: The claim was settled, and not by who had bound it.
        ClaimNotFound: The claim was given back.
        ClaimOutOfTurn: A claim before it is still OPENING.
        ClaimBroken: It, or a claim before it, has lost members, and nobody has accepted that.
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
    if claim.noted + more > claims.MAX_NOTED:
        raise OutOfRange(
            field="exemptions", value=claim.noted + more, minimum=0, maximum=claims.MAX_NOTED
        )


# --- a claim's life ----------------------------------------------------------------------------


def begin(command: OpenClaim, now_ms: int) -> Claim:
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
        self._most = claims.CLAIM_STEP if most is None else most
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
        return not (self.reaches_bytes or self._again >= claims.AGAIN_STEP)

    @property
    def reaches_bytes(self) -> bool:
        """Whether the claim takes no more because of its bytes."""
        return self._claim.max_bytes is not None and self.taken_bytes >= self._claim.max_bytes

    def is_full(self, taken: int) -> bool:
        """Tell whether the step took as much as one step can, so that there may be more."""
        return taken >= self._most or self._again >= claims.AGAIN_STEP


def size_of(message: Message) -> int:
    """Return the bytes of a body, wherever it is kept."""
    ref = message.detail.body_ref
    return len(message.body) if ref is None else ref.size_bytes


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
    return with_members[: max(0, len(with_members) - claims.MAX_LAPSED)]


# --- members -----------------------------------------------------------------------------------


def name_of(claim: Claim) -> str:
    """Return ``stream/number``, as events and inspectors name a claim."""
    return f"{claim.stream}/{claim.number}"


def member_order(message: Message, row_key: int) -> tuple[int, int, int]:
    """Return the sort key of the members of a claim; it never changes."""
    return message.priority, message.visible_since_ms, row_key


def part_bounds(remaining: int, part: int, parts: int) -> tuple[int, int]:
    """Return from which member up to which, exclusive, part *part* of *parts* goes."""
    return remaining * part // parts, remaining * (part + 1) // parts


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
    """Return an exemption that was noted earlier as it can be carried out now.

    A delay after which the message has expired is left out: settling must not fail for a note.
    """
    if release_refusal(message, now_ms, noted.delay_s) is None:
        return noted
    return noted._replace(delay_s=0)


def after_return(message: Message, now_ms: int) -> Message:
    """Return a member whose claim, still hiding it, was given back."""
    return after_release(close_attempt(message, Outcome.RETURNED, now_ms, None), now_ms, 0)
