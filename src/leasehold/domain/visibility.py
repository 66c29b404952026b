"""The rules of visibility: pure functions of (message, request, now).

These are the product. The memory store is built from them, the SQL stores are compared with it,
and nothing else decides who may receive or act on a message.

Sources: Azure Queue Storage, "Get Messages", "Update Message" and "Delete Message"; the reasons
for popping by next-visible time stand in ``docs/explanation/visibility.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from leasehold.domain.admin import JobKind, JobPlan
from leasehold.domain.commands import Renew
from leasehold.domain.errors import LeaseholdError, LeaseLost, VisibilityPastExpiry
from leasehold.domain.events import OPERATOR, EventType
from leasehold.domain.failures import close_attempt, has_lapsed
from leasehold.domain.model import (
    NEVER_MS,
    BodyRef,
    ErrorReport,
    Message,
    MessageState,
    Outcome,
    Phase,
    Poisoning,
    Progress,
    ReceiptParts,
    expiry_of,
)
from leasehold.domain.queue_settings import FailurePolicy, GroupSettings, LapsedReceipts

_MS: Final = 1000
_WAITING_FOR: Final = {
    Phase.WAITING: MessageState.DELAYED,
    Phase.DELAYED: MessageState.DELAYED,
    Phase.LEASED: MessageState.LEASED,
    Phase.DEFERRED: MessageState.DEFERRED,
}


# --- looking -----------------------------------------------------------------------------------


def state_of(message: Message, now_ms: int) -> MessageState:
    """Say why the message can, or cannot, be received now. Expiry wins over everything.

    A poisoned message is in a queue of its own, where it has a state like any other; POISONED is
    what it is when asked for in the queue that it failed in.
    """
    if is_expired(message, now_ms):
        return MessageState.EXPIRED
    if message.visible_at_ms <= now_ms:
        return MessageState.VISIBLE
    return _WAITING_FOR[message.phase]


def is_expired(message: Message, now_ms: int) -> bool:
    """Tell whether its time to live has run out, leased or not."""
    return message.expires_at_ms <= now_ms


def is_receivable(message: Message, now_ms: int) -> bool:
    """Tell whether a receive may take the message now."""
    return message.visible_at_ms <= now_ms < message.expires_at_ms


def receive_order(
    message: Message, row_key: int, ageing_s: int | None = None
) -> tuple[int, int, int]:
    """Return the sort key of messages to receive: priority, then next-visible time, then age.

    By id instead of next-visible time, a queue whose workers were away for a while would go on
    redelivering the same old messages and never recover. With *ageing_s*, so many seconds of
    waiting count as one step of priority, which bounds the wait of the least urgent.
    """
    return order_of(message.priority, message.visible_at_ms, row_key, ageing_s)


def order_of(
    priority: int, visible_at_ms: int, row_key: int, ageing_s: int | None
) -> tuple[int, int, int]:
    """Do as :func:`receive_order` where there is no message yet."""
    if ageing_s is None:
        return priority, visible_at_ms, row_key
    return 0, visible_at_ms + priority * ageing_s * _MS, row_key


def first_visible_ms(message: Message) -> int | None:
    """Return when the message could first be received; None if that was before it was kept."""
    if message.detail.first_visible_at_ms is not None:
        return message.detail.first_visible_at_ms
    if message.dequeue_count == 0:
        return message.visible_at_ms
    return message.visible_since_ms or None


# --- receiving ---------------------------------------------------------------------------------


def after_lapse(message: Message, now_ms: int) -> Message:
    """Note that the last lease ran out, if one did: that is an attempt, and it has ended."""
    if not has_lapsed(message, now_ms):
        return message
    return close_attempt(message, Outcome.LAPSED, message.visible_at_ms, None)


def after_receive(
    message: Message,
    now_ms: int,
    visibility_timeout_s: int,
    holder: str | None = None,
    session: str | None = None,
) -> Message:
    """Lease it: invisible for a while, one more delivery, the next fence.

    *message* has its lapse noted. The lease may end after the message expires.
    """
    detail = message.detail
    if message.dequeue_count and detail.first_visible_at_ms is None:
        detail = replace(detail, first_visible_at_ms=message.visible_since_ms or None)
    return message._replace(
        visible_at_ms=now_ms + visibility_timeout_s * _MS,
        dequeue_count=message.dequeue_count + 1,
        fence=message.fence + 1,
        phase=Phase.LEASED,
        since_ms=now_ms,
        visible_since_ms=message.visible_at_ms,
        renewals=0,
        holder=holder,
        detail=detail,
        session=session,
    )


# --- what a receipt allows ---------------------------------------------------------------------


def receipt_refusal(  # noqa: PLR0913, PLR0917 - all that the decision hangs on
    message: Message,
    row_key: int,
    receipt: ReceiptParts,
    now_ms: int,
    rule: LapsedReceipts,
    renew: Renew | None = None,
) -> LeaseholdError | None:
    """Say why a receipt may not act on a live message, or None if it may.

    *renew* is what it is to be renewed with, if it is that.
    """
    if not receipt.genuine or receipt.row_key != row_key:
        return LeaseLost("foreign")
    if (
        receipt.fence != message.fence
        and not (rule is LapsedReceipts.SAME_LEASE and is_of_lease(message, receipt))
        and (renew is None or not is_repeat(message, receipt, renew))
    ):
        return LeaseLost("superseded")
    if rule is not LapsedReceipts.UNTIL_RETAKEN and message.visible_at_ms <= now_ms:
        return LeaseLost("lapsed")
    return None


def is_of_lease(message: Message, receipt: ReceiptParts) -> bool:
    """Tell whether a receipt is of the present lease, the newest or one that a renewal replaced."""
    first = message.fence - message.renewals
    return message.phase is Phase.LEASED and first <= receipt.fence <= message.fence


def is_repeat(message: Message, receipt: ReceiptParts, renew: Renew) -> bool:
    """Tell whether a renewal repeats one that was carried out, and whose answer may be lost.

    Its receipt is the one before the newest, of the same lease: nothing but a renewal has raised
    the fence since. It would change nothing but the end of the lease, so that a request that was
    held up on its way cannot undo what came after it, such as a newer save.
    """
    if not renew.may_repeat or not renew.visibility_timeout_s:
        return False
    if receipt.fence + 1 != message.fence:
        return False
    if message.phase is not Phase.LEASED or not message.renewals:
        return False
    detail, body, saved = message.detail, renew.body, renew.saved
    is_same_body = body is None or (detail.body_ref is None and body == message.body)
    return is_same_body and (saved is None or (saved or None) == detail.saved)


def after_repeat(message: Message, now_ms: int, renew: Renew) -> Message:
    """Move the end of the lease, never to an earlier moment.

    The fence stays: the holder is told the newest receipt, which it may not have heard of. So does
    the number of renewals, which is by how much they have raised the fence.
    """
    renewed = after_renew(message, now_ms, renew.visibility_timeout_s, None, renew.progress)
    return renewed._replace(
        visible_at_ms=max(renewed.visible_at_ms, message.visible_at_ms),
        fence=message.fence,
        renewals=message.renewals,
    )


def renew_refusal(
    message: Message, now_ms: int, renew: Renew, groups: GroupSettings | None
) -> LeaseholdError | None:
    """Refuse a renewal that would hide the message until after it has expired, unless it may.

    A lease that has ended is not counted in its group any more, and the group may have delivered
    another message since. So where a group has a limit, a renewal does not begin it again.
    """
    group_id = message.detail.group_id
    if (
        groups is not None
        and group_id is not None
        and renew.visibility_timeout_s
        and message.phase is Phase.LEASED
        and message.visible_at_ms <= now_ms
        and groups.limit_of(group_id) is not None
    ):
        return LeaseLost("lapsed")
    if renew.past_expiry:
        return None
    if now_ms + renew.visibility_timeout_s * _MS > message.expires_at_ms:
        return VisibilityPastExpiry("renew", renew.visibility_timeout_s)
    return None


def release_refusal(message: Message, now_ms: int, delay_s: int | None) -> LeaseholdError | None:
    """Refuse a delay after which the message has expired.

    A member of a claim may have expired by now; it can be given back all the same, and is then
    gone.
    """
    if delay_s and now_ms < message.expires_at_ms <= now_ms + delay_s * _MS:
        return VisibilityPastExpiry("release", delay_s)
    return None


def after_renew(  # noqa: PLR0913, PLR0917 - positional: what a renewal says
    message: Message,
    now_ms: int,
    visibility_timeout_s: int,
    body: bytes | BodyRef | None,
    progress: Progress | None = None,
    saved: str | None = None,
) -> Message:
    """Move the end of the lease; a new fence kills the old receipt. Expiry and count stay.

    A timeout of nothing gives the message back. Before the first lease it is the sender who moves
    the end of the delay.
    """
    if progress is not None:
        message = message._replace(detail=replace(message.detail, progress=progress))
    if saved is not None:
        message = message._replace(detail=replace(message.detail, saved=saved or None))
    if body is not None:
        message = _with_body(message, body)
    phase, since_ms, renewals = message.phase, message.since_ms, message.renewals
    if phase in _BEFORE_THE_FIRST_LEASE:
        phase = Phase.DELAYED if visibility_timeout_s else Phase.WAITING
    elif visibility_timeout_s == 0:
        if phase is Phase.LEASED:
            message = close_attempt(message, Outcome.RETURNED, now_ms, None)
        phase, since_ms = Phase.DEFERRED, now_ms
    elif phase is Phase.DEFERRED:
        # Given back with a timeout of nothing, and taken up again by the same holder.
        phase, since_ms, renewals = Phase.LEASED, now_ms, 0
    else:
        renewals += 1
    return message._replace(
        visible_at_ms=now_ms + visibility_timeout_s * _MS,
        fence=message.fence + 1,
        phase=phase,
        since_ms=since_ms,
        renewals=renewals,
    )


def _with_body(message: Message, body: bytes | BodyRef) -> Message:
    ref, content = (body, b"") if isinstance(body, BodyRef) else (None, body)
    detail = message.detail
    if ref != detail.body_ref:
        detail = replace(detail, body_ref=ref)
    return message._replace(body=content, detail=detail)


_BEFORE_THE_FIRST_LEASE: Final = frozenset({Phase.WAITING, Phase.DELAYED})


def after_release(message: Message, now_ms: int, delay_ms: int) -> Message:
    """Give it back; *message* has its attempt closed. No receipt acts from then on."""
    return message._replace(
        visible_at_ms=now_ms + delay_ms,
        fence=message.fence + 1,
        phase=Phase.DEFERRED,
        since_ms=now_ms,
    )


# --- poison ------------------------------------------------------------------------------------


def after_poison(
    message: Message, now_ms: int, policy: FailurePolicy, queue: str, reason: str
) -> Message:
    """Put it aside, with the reason; *message* has its attempt closed.

    It keeps its id, body, insertion time, count and history.
    """
    lifetime_ms = message.expires_at_ms - message.inserted_at_ms
    poisoning = Poisoning(
        queue=queue,
        reason=reason,
        at_ms=now_ms,
        time_to_live_ms=None if message.expires_at_ms == NEVER_MS else lifetime_ms,
        deliveries=message.dequeue_count - message.detail.interruptions,
        failures=message.detail.failures,
        interruptions=message.detail.interruptions,
        lapses=message.detail.lapses,
    )
    return message._replace(
        visible_at_ms=now_ms,
        expires_at_ms=expiry_of(now_ms, policy.poison_time_to_live_s),
        fence=message.fence + 1,
        phase=Phase.WAITING,
        since_ms=now_ms,
        detail=replace(message.detail, poisoning=poisoning),
    )


def after_redrive(message: Message, now_ms: int) -> Message:
    """Bring it back for a fresh start: budgets and time to live begin anew, the history stays.

    A message of a group counts as visible since it first was: that is its place in the group.
    """
    poisoning, first_ms = message.detail.poisoning, first_visible_ms(message)
    place_ms = now_ms if message.detail.group_id is None else first_ms
    expires_at_ms = message.expires_at_ms
    if poisoning is not None:
        lifetime_ms = poisoning.time_to_live_ms
        expires_at_ms = NEVER_MS if lifetime_ms is None else min(now_ms + lifetime_ms, NEVER_MS)
    return message._replace(
        visible_at_ms=now_ms if place_ms is None else min(now_ms, place_ms),
        expires_at_ms=expires_at_ms,
        dequeue_count=0,
        fence=message.fence + 1,
        phase=Phase.WAITING,
        since_ms=now_ms,
        session=None,
        detail=replace(
            message.detail,
            failures=0,
            interruptions=0,
            lapses=0,
            first_visible_at_ms=first_ms,
            poisoning=None,
            redriven=message.detail.redriven + 1,
        ),
    )


# --- what an operator may do -------------------------------------------------------------------


def after_ended_lease(message: Message, now_ms: int, delay_s: int, reason: str | None) -> Message:
    """End the lease: the holder's receipt is dead and the message can be received again."""
    error = None if reason is None else ErrorReport(text=reason)
    closed = close_attempt(message, Outcome.ENDED, now_ms, error)
    return after_release(closed, now_ms, delay_s * _MS)


def after_extension(message: Message, now_ms: int, visibility_timeout_s: int) -> Message:
    """Move the end of the lease for its holder, whose receipt stays good."""
    return message._replace(visible_at_ms=now_ms + visibility_timeout_s * _MS)


def after_catching_up(message: Message, at_ms: int) -> Message:
    """Be visible as of a moment: it was before the clock was set back behind that."""
    return message._replace(visible_at_ms=at_ms, since_ms=at_ms)


def after_amend(  # noqa: PLR0913 - keyword-only: what can be changed
    message: Message,
    now_ms: int,
    *,
    delay_s: int | None,
    time_to_live_s: int | None,
    body: bytes | BodyRef | None,
    priority: int | None,
    properties: Mapping[str, str] | None,
) -> Message:
    """Change what is given, and kill the receipts of before; a lease ends.

    A time to live of -1 is for ever.
    """
    if state_of(message, now_ms) is MessageState.LEASED:
        message = after_ended_lease(message, now_ms, 0, None)
    if delay_s is not None:
        message = after_lapse(message, now_ms)
        received = message.phase not in _BEFORE_THE_FIRST_LEASE
        waiting = Phase.DELAYED if delay_s else Phase.WAITING
        if not received and message.detail.first_visible_at_ms is not None:  # it was redriven
            message = message._replace(detail=replace(message.detail, first_visible_at_ms=None))
        message = message._replace(
            visible_at_ms=now_ms + delay_s * _MS,
            phase=Phase.DEFERRED if received else waiting,
            since_ms=now_ms,
        )
    if time_to_live_s is not None:
        lifetime_s = None if time_to_live_s < 0 else time_to_live_s
        message = message._replace(expires_at_ms=expiry_of(now_ms, lifetime_s))
    if properties is not None:
        message = message._replace(detail=replace(message.detail, properties=dict(properties)))
    if body is not None:
        message = _with_body(message, body)
    # A lease that has lapsed stays the last one. Its receipts have to be further back than its
    # renewals reach, or they would be taken for those just before the newest.
    rise = message.renewals + 2 if message.phase is Phase.LEASED else 1
    return message._replace(
        priority=message.priority if priority is None else priority,
        fence=message.fence + rise,
    )


class Changed(NamedTuple):
    """A message as a job leaves it, and the event of that."""

    message: Message
    event: EventType
    reason: str | None = None


def after_change(
    message: Message, plan: JobPlan, now_ms: int, *, is_member: bool
) -> Changed | None:
    """Return a message as a job of changes leaves it; None if it cannot be changed so.

    Args:
        message: One that the filter means.
        plan: What the job does.
        now_ms: The time, Unix milliseconds.
        is_member: Whether it is in a claim, which says for all its members when they come back.
    """
    change = plan.change
    if plan.kind is JobKind.EXTEND_LEASE:
        if is_member:
            return None
        made = after_extension(message, now_ms, change.visibility_timeout_s or 0)
        changed = Changed(made, EventType.RENEWED, OPERATOR)
    elif plan.kind is JobKind.END_LEASE:
        made = after_ended_lease(message, now_ms, change.delay_s or 0, change.reason)
        changed = Changed(made, EventType.LEASE_ENDED, OPERATOR)
    else:
        made = after_amend(
            message,
            now_ms,
            delay_s=change.delay_s,
            time_to_live_s=change.time_to_live_s,
            body=None,
            priority=change.priority,
            properties=None,
        )
        changed = Changed(made, EventType.AMENDED)
    return None if max(made.visible_at_ms, now_ms) >= made.expires_at_ms else changed


# --- throttle ----------------------------------------------------------------------------------
#
# A token bucket as a value: how many messages a queue may hand out now.
#
# The bucket holds one second's worth of messages, and at least one, so that a queue limited to one
# message a minute gives that one at once.


_ROUNDING: Final = 1e-9
"""Many small refills add up to a little less than they should."""


class Bucket(NamedTuple):
    """What was left of the allowance at a moment."""

    tokens: float
    at_ms: int


def allowance(bucket: Bucket | None, rate_per_s: float, now_ms: int) -> tuple[int, Bucket]:
    """Return how many messages may go now, and the bucket refilled up to now.

    A clock that goes back refills nothing; from then on its new time counts.

    Args:
        bucket: What :func:`spend` left, or None for a queue that has given nothing yet: full.
        rate_per_s: Messages per second, above 0.
        now_ms: Unix milliseconds.
    """
    burst = max(1.0, rate_per_s)
    if bucket is None:
        tokens = burst
    else:
        elapsed_ms = max(0, now_ms - bucket.at_ms)
        tokens = min(burst, bucket.tokens + elapsed_ms * rate_per_s / _MS)
    return int(tokens + _ROUNDING), Bucket(tokens, now_ms)


def spend(bucket: Bucket, count: int) -> Bucket:
    """Take *count* messages, no more than were allowed, out of the bucket."""
    return Bucket(max(0.0, bucket.tokens - count), bucket.at_ms)


def next_token_ms(bucket: Bucket | None, rate_per_s: float, now_ms: int) -> int:
    """Return the moment, from now on, at which one message may go."""
    count, refilled = allowance(bucket, rate_per_s, now_ms)
    if count:
        return now_ms
    wait_ms = (1.0 - refilled.tokens - _ROUNDING / 2) / rate_per_s * _MS
    if wait_ms >= NEVER_MS - now_ms:
        return NEVER_MS
    return now_ms + max(1, math.ceil(wait_ms))
