"""Why is this message not being worked on? One sentence, with the facts it rests on.

:func:`why` needs the message alone. :func:`explain_message` and :func:`explain_queue` also look at
the queue around it, and name what would have to change. The codes of the explanations are part of
the interface; the sentences are for people and may be worded better at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from leasehold.domain.admin import Counts, GroupStanding, Seen
from leasehold.domain.claims import Claim
from leasehold.domain.failures import (
    BURIED,
    MAX_DELIVERIES,
    MAX_FAILURES,
    MAX_INTERRUPTIONS,
    MAX_LAPSES,
    exhausted_on_receive,
    has_lapsed,
    last_error,
)
from leasehold.domain.model import (
    NEVER_MS,
    Attempt,
    GroupHalt,
    GroupHold,
    Message,
    MessageState,
    Outcome,
    Phase,
    row_key_of,
)
from leasehold.domain.queue_settings import (
    FailurePolicy,
    GroupOrder,
    QueueSettings,
    TimeoutSource,
    poison_queue_of,
)
from leasehold.domain.visibility import after_lapse
from leasehold.domain.wording import count_of, enumeration, future, length_of, past, quote, times_of

_MS: Final = 1000

SILENT_AFTER_MS: Final = 120_000
"""A queue has no receiver when no consumer has asked for this long: twice the longest long poll."""

STALLED_AFTER_MS: Final = 600_000
"""A lease this long without a report of progress is worth a look..."""

STALLED_LEASES: Final = 3
"""...if it is also so many times as long as a lease of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An answer, and what it rests on."""

    sentence: str
    code: str
    evidence: Mapping[str, object]
    """Values that JSON can hold, under names that say their unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the server remembers of a queue's use since it started."""

    since_ms: int
    """When the server started."""
    last_receive_ms: int | None = None
    """When a consumer last asked for messages, whether there were any or not."""
    last_receiver: str | None = None
    last_send_ms: int | None = None
    waiting: int = 0
    """Receives that wait for a message at this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """What is known of a queue."""

    queue: str
    settings: QueueSettings
    counts: Counts
    activity: Activity
    now_ms: int
    next_due_ms: int | None = None
    """The answer to NextDue: when a receive may next get something."""
    claims: tuple[Claim, ...] = ()
    """Those that hide members, if the counts say that there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """What is known of a message, or of its absence."""

    queue: QueueFacts
    message_id: str
    seen: Seen | None
    """None when neither the queue nor its poison queue has it."""
    ahead: int | None = None
    """Visible messages that a receive would take before it; None if not counted."""
    more_urgent: int = 0
    """How many of those have a more urgent priority."""
    group: GroupStanding | None = None
    """What holds up its group, in a queue whose settings speak of groups."""
    group_holder: str | None = None
    """What the worker calls itself that holds the group, if that is known."""


# --- one message -------------------------------------------------------------------------------


def why(message: Message, state: MessageState, now_ms: int, under: str | None = None) -> str:
    """Return one sentence: why the message can, or cannot, be received now, and until when.

    *under* is that of :class:`~leasehold.domain.admin.Seen`.
    """
    return story(message, state, now_ms, None, under) + "."


def explain_message(facts: MessageFacts) -> Explanation:
    """Say why a message is not being worked on, or that it is."""
    if facts.seen is None:
        return _explain_absence(facts)
    message, state, *_ = facts.seen
    is_visible = state is MessageState.VISIBLE
    found = _explain_visible(facts) if is_visible else _explain_invisible(facts, facts.seen)
    if state in {MessageState.EXPIRED, MessageState.POISONED}:
        return found
    sent = message.detail
    timeout = facts.queue.settings.timeout_of(sent.message_type, sent.visibility_timeout_s)
    sentence = found.sentence
    if timeout.source is not TimeoutSource.QUEUE:
        length = length_of(timeout.visibility_timeout_s * _MS)
        sentence = f"{sentence[:-1]}; by default it is leased for {length}, {timeout.reason}."
    return replace(found, sentence=sentence, evidence={**found.evidence, **timeout.evidence()})


def _explain_invisible(facts: MessageFacts, seen: Seen) -> Explanation:
    """Say what a message is doing that cannot be received."""
    message, state, where, under = seen
    around = facts.queue
    sentence = story(message, state, around.now_ms, around.settings.failure_policy, under)
    evidence = evidence_of(message, state)
    code = str(state)
    if state is MessageState.STAGED:
        evidence["transaction"] = under
    elif state is MessageState.LEASED and under is not None:
        code = "claimed"
        evidence["claim"] = under
    if state is MessageState.POISONED:
        sentence += f"; to bring it back, redrive the poisoned messages of queue {around.queue}"
        evidence["poison_queue"] = where
    elif state is MessageState.LEASED and under is None:
        silent_ms = _silent_ms(message, around)
        if silent_ms:
            code = "leased-without-progress"
            evidence["without_progress_s"] = silent_ms // _MS
            sentence += (
                f"; if the worker is stuck, end the lease: {length_of(silent_ms)} without progress"
            )
    elif state is MessageState.DEFERRED and ended_now(message) is Outcome.FAILED:
        code = "deferred-after-failure"
    if around.settings.is_paused(around.now_ms) and state in _COMING:
        sentence += f"; queue {around.queue} is paused as well, {_pause(around)}"
        evidence |= _pause_evidence(around.settings)
    return Explanation(sentence=sentence + ".", code=code, evidence=evidence)


_COMING: Final = frozenset({MessageState.DELAYED, MessageState.DEFERRED})


def _explain_absence(facts: MessageFacts) -> Explanation:
    queue, message_id = facts.queue.queue, facts.message_id
    evidence: dict[str, object] = {"message_id": message_id, "queue": queue}
    if row_key_of(message_id) is None:
        return Explanation(
            sentence=f"Queue {queue} never contained it: {quote(message_id)} is not an id that "
            "this server issues.",
            code="not-an-id",
            evidence=evidence,
        )
    return Explanation(
        sentence=f"Neither queue {queue} nor its poison queue contains it: it was completed, "
        "removed or purged, expired long ago, or never existed.",
        code="not-found",
        evidence=evidence,
    )


def _explain_visible(facts: MessageFacts) -> Explanation:
    """Name the first of the things that keep a visible message from being received."""
    assert facts.seen is not None
    message = facts.seen.message
    around = facts.queue
    now_ms, settings = around.now_ms, around.settings
    evidence = evidence_of(message, MessageState.VISIBLE)
    reason = _reason_against(message, settings.failure_policy, now_ms)
    if settings.is_paused(now_ms):
        code, clause = "paused", f", but queue {around.queue} is paused {_pause(around)}"
        evidence |= _pause_evidence(settings)
    elif reason is not None:
        code = "poisoned-at-next-receive"
        target = poison_queue_of(around.queue, settings)
        clause = (
            f", but the next receive moves it to queue {target}, because "
            f"{because(reason, after_lapse(message, now_ms))}"
        )
        evidence |= {"reason": reason, "poison_queue": target}
    elif (held_up := _held_up(facts, message)) is not None:
        code, clause, more = held_up
        evidence |= more
    elif _has_no_receiver(around):
        code, clause = "no-receiver", f", but {_no_worker(around)}"
        evidence |= _activity_evidence(around.activity)
    elif _is_rate_limited(around):
        code, clause = "rate-limited", f", but {_rate(around)}"
        evidence |= _rate_evidence(around)
    elif facts.ahead and facts.more_urgent:
        code, clause = "behind-priorities", _behind_priorities(facts, message)
        evidence |= {"ahead": facts.ahead, "more_urgent": facts.more_urgent}
    elif facts.ahead:
        code = "waiting-its-turn"
        clause = f", and waits its turn behind {count_of(facts.ahead, 'message')}"
        evidence["ahead"] = facts.ahead
    elif has_lapsed(message, now_ms):
        code, clause = "lapsed", ", and waits to be received again"
    else:
        code, clause = "visible", ", and is the next to be received" if facts.ahead == 0 else ""
    told = story(message, MessageState.VISIBLE, now_ms, settings.failure_policy)
    return Explanation(sentence=f"{told}{clause}.", code=code, evidence=evidence)


def _halted(
    halt: GroupHalt, group_id: str, now_ms: int, evidence: dict[str, object]
) -> tuple[str, str, dict[str, object]]:
    """Say why the group of a message stands still."""
    evidence |= {
        "halted_by": halt.message_id,
        "halt_reason": halt.reason,
        "halted_since_ms": halt.since_ms,
    }
    told = f", but its group {quote(group_id)} has been halted since {past(halt.since_ms, now_ms)}"
    if halt.message_id is not None:
        told += f", when message {halt.message_id} of the group was poisoned ({halt.reason})"
    elif halt.reason:
        told += f" ({quote(halt.reason)})"
    return "group-is-halted", told + "; resume the group to continue its delivery", evidence


def _held_by(
    hold: GroupHold, holder: str | None, now_ms: int, evidence: dict[str, object]
) -> tuple[str, str, dict[str, object]]:
    """Say which session has the group of a message to itself."""
    evidence |= {
        "hold_session": hold.session,
        "hold_holder": holder,
        "hold_fence": hold.fence,
        "held_since_ms": hold.since_ms,
    }
    group, since = quote(hold.group_id), past(hold.since_ms, now_ms)
    told = f", but its group {group} has been held since {since} by {_holder(holder)}"
    return "group-is-held", f"{told} (session {hold.session})", evidence


def _shut(
    facts: MessageFacts, group: GroupStanding, group_id: str, evidence: dict[str, object]
) -> tuple[str, str, dict[str, object]]:
    """Say why a group gives nothing to anybody, or to nobody but one session."""
    now_ms = facts.queue.now_ms
    if group.halt is not None:
        return _halted(group.halt, group_id, now_ms, evidence)
    assert group.hold is not None
    return _held_by(group.hold, facts.group_holder, now_ms, evidence)


def _held_up(facts: MessageFacts, message: Message) -> tuple[str, str, dict[str, object]] | None:
    """Say how other messages of its group keep a message from being received; None if none do."""
    group, settings, now_ms = facts.group, facts.queue.settings.groups, facts.queue.now_ms
    group_id = message.detail.group_id
    if group is None or settings is None or group_id is None:
        return None
    first = group.held[0] if group.held else None
    evidence: dict[str, object] = {"in_flight": group.in_flight}
    if group.halt is not None or group.hold is not None:
        return _shut(facts, group, group_id, evidence)
    if first is not None:
        evidence |= {
            "behind": first.message.message_id,
            "behind_state": str(first.state),
            "behind_holder": first.message.holder,
            "behind_until_ms": first.message.visible_at_ms,
        }
    if first is not None and settings.order is GroupOrder.FIFO:
        until = future(first.message.visible_at_ms, now_ms)
        what = f"deferred until {until}"
        if first.state is MessageState.LEASED:
            what = f"leased to {_holder(first.message.holder)} until {until}"
        behind = f"message {first.message.message_id} of its group {quote(group_id)}"
        return "behind-its-group", f", but waits behind {behind}, which is {what}", evidence
    limit, noisy_limit = settings.limit_of(group_id), group.noisy_limit
    is_noisy = noisy_limit is not None and (limit is None or noisy_limit < limit)
    limit = noisy_limit if is_noisy else limit
    rate = settings.rate_of(group_id)
    if (limit is None or group.in_flight < limit) and rate and group.again_ms is not None:
        evidence |= {"rate_per_s": rate.per_s, "burst": rate.burst, "again_ms": group.again_ms}
        told = f"has used up its rate of {rate.per_s:g} per second"
        told += f"; the next message is due at {future(group.again_ms, now_ms)}"
        return "group-rate-used-up", f", but its group {quote(group_id)} {told}", evidence
    if limit is None or group.in_flight < limit:
        return None
    evidence["noisy_limit" if is_noisy else "max_in_flight"] = limit
    leased = [each.message.holder for each in group.held if each.state is MessageState.LEASED]
    named = list(dict.fromkeys(map(_holder, leased)))
    holders = enumeration(named if len(leased) >= group.in_flight else [*named, "others"])
    told = f", but its group {quote(group_id)} has {group.in_flight} of {limit} in flight"
    if is_noisy:
        told = f", but its group {quote(group_id)} is noisy: {group.in_flight} of {limit} in flight"
    code = "group-is-noisy" if is_noisy else "group-is-full"
    return code, told + (f", held by {holders}" if holders else ""), evidence


# --- a queue -----------------------------------------------------------------------------------


def explain_queue(facts: QueueFacts) -> Explanation:
    """Say why nothing of a queue is being worked on, or what is."""
    counts = facts.counts
    evidence: dict[str, object] = {
        "queue": facts.queue,
        "visible": counts.visible,
        "leased": counts.leased,
        "delayed": counts.delayed,
        "deferred": counts.deferred,
        "poisoned": counts.poisoned,
        "staged": counts.staged,
        "claimed": counts.claimed,
        "expired": counts.expired,
        "exact": counts.exact,
    }
    evidence |= _activity_evidence(facts.activity)
    if facts.next_due_ms is not None:
        evidence["next_due_ms"] = facts.next_due_ms
    name = f"Queue {facts.queue}"
    if facts.settings.is_paused(facts.now_ms):
        code = "paused"
        sentence = f"{name} is paused {_pause(facts)}; {_visible_count(facts)}"
        evidence |= _pause_evidence(facts.settings)
    elif not counts.total:
        code, sentence = "empty", f"{name} is empty{_last_send(facts)}{_elsewhere(facts)}"
    elif not counts.visible:
        code, sentence = _explain_hidden(facts)
    else:
        code, clause = "visible", _receiving(facts)
        if _has_no_receiver(facts):
            code, clause = "no-receiver", f", but {_no_worker(facts)}"
        elif _is_rate_limited(facts):
            code, clause = "rate-limited", f", but {_rate(facts)}"
            evidence |= _rate_evidence(facts)
        sentence = f"In queue {facts.queue} {_visible_count(facts)}{clause}"
    return Explanation(sentence=sentence + ".", code=code, evidence=evidence)


def _explain_claimed(facts: QueueFacts) -> tuple[str, str]:
    """Tell which claim ends first, of those that hold everything."""
    number, claims = facts.counts.total, facts.claims
    first = min(claims, key=lambda claim: claim.until_ms)
    every = "The only message" if number == 1 else f"All {number} messages"
    claimed = f"{every} of queue {facts.queue} {'is' if number == 1 else 'are'} in"
    holder = f", held by {first.holder}," if first.holder else ""
    until = future(first.until_ms, facts.now_ms)
    one = f"claim {first.number} of stream {first.stream}{holder}"
    if len(claims) == 1:
        return "all-claimed", f"{claimed} {one} until {until}, unless it is extended"
    return "all-claimed", (
        f"{claimed} {len(claims)} claims; {one} is the first to end, at {until}, unless it is "
        "extended"
    )


def _explain_hidden(facts: QueueFacts) -> tuple[str, str]:
    counts = facts.counts
    if facts.claims and counts.claimed == counts.total:
        return _explain_claimed(facts)
    hidden = (
        (counts.leased, "leased"),
        (counts.delayed, "delayed"),
        (counts.deferred, "deferred"),
    )
    kinds = [(number, word) for number, word in hidden if number]
    when = ""
    if facts.next_due_ms is not None:
        which = "it" if counts.total == 1 else "the next"
        when = f"; {which} becomes visible at {future(facts.next_due_ms, facts.now_ms)}"
        when += ", unless its lease is renewed" if counts.leased else ""
    if len(kinds) == 1:
        number, word = kinds[0]
        every = "The only message" if number == 1 else f"All {number} messages"
        verb = "is" if number == 1 else "are"
        code = {"leased": "all-leased", "delayed": "all-delayed", "deferred": "all-deferred"}[word]
        return code, f"{every} of queue {facts.queue} {verb} {word}{when}"
    listed = enumeration(
        [f"{number} {'is' if number == 1 else 'are'} {word}" for number, word in kinds]
    )
    return "none-visible", (
        f"None of the {counts.total} messages of queue {facts.queue} is visible: {listed}{when}"
    )


def _visible_count(facts: QueueFacts) -> str:
    number = facts.counts.visible
    if not number:
        return "no message is visible"
    since_ms = facts.counts.since.get(MessageState.VISIBLE)
    text = f"{count_of(number, 'message')} {'is' if number == 1 else 'are'} visible"
    if since_ms is None:
        return text
    oldest = "" if number == 1 else "the oldest "
    return f"{text}, {oldest}for {length_of(facts.now_ms - since_ms)}"


def _last_send(facts: QueueFacts) -> str:
    activity = facts.activity
    if activity.last_send_ms is not None:
        return f"; the last message was put at {past(activity.last_send_ms, facts.now_ms)}"
    return f"; nothing was put since the server started at {past(activity.since_ms, facts.now_ms)}"


def _elsewhere(facts: QueueFacts) -> str:
    """Tell what there is though the queue is empty."""
    text = ""
    for number, where in (
        (facts.counts.poisoned, "in its poison queue"),
        (facts.counts.staged, "staged for it and not published yet"),
    ):
        if number:
            text += f"; {count_of(number, 'message')} {'is' if number == 1 else 'are'} {where}"
    gone = facts.counts.expired
    if gone:
        have = "has" if gone == 1 else "have"
        text += f"; {count_of(gone, 'message')} {have} expired without being completed"
    return text


def _receiving(facts: QueueFacts) -> str:
    activity = facts.activity
    if activity.last_receive_ms is None:
        return ""
    by = f" by {activity.last_receiver}" if activity.last_receiver else ""
    return f"; the last receive was at {past(activity.last_receive_ms, facts.now_ms)}{by}"


# --- words for parts ---------------------------------------------------------------------------


def _reason_against(message: Message, policy: FailurePolicy | None, now_ms: int) -> str | None:
    return None if policy is None else exhausted_on_receive(after_lapse(message, now_ms), policy)


def _silent_ms(message: Message, around: QueueFacts) -> int:
    """Return how long a lease is without progress, or 0 if that is nothing to speak of."""
    progress = message.detail.progress
    heard_ms = message.since_ms if progress is None else progress.at_ms
    silent_ms = around.now_ms - heard_ms
    sent = message.detail
    lease_s = around.settings.lease_of(sent.message_type, sent.visibility_timeout_s)
    long_ms = max(STALLED_AFTER_MS, STALLED_LEASES * lease_s * _MS)
    return silent_ms if silent_ms >= long_ms else 0


def _pause(facts: QueueFacts) -> str:
    until_ms = facts.settings.paused_until_ms
    assert until_ms is not None
    until = "it is resumed" if until_ms >= NEVER_MS else future(until_ms, facts.now_ms)
    reason = facts.settings.pause_reason
    return f"until {until}" + (f" for the reason {quote(reason)}" if reason else "")


def _pause_evidence(settings: QueueSettings) -> dict[str, object]:
    return {"paused_until_ms": settings.paused_until_ms, "pause_reason": settings.pause_reason}


def _has_no_receiver(facts: QueueFacts) -> bool:
    activity = facts.activity
    if activity.waiting:
        return False
    last_ms = activity.last_receive_ms
    return last_ms is None or facts.now_ms - last_ms >= SILENT_AFTER_MS


def _no_worker(facts: QueueFacts) -> str:
    activity = facts.activity
    asked = f"asked queue {facts.queue} for messages since"
    if activity.last_receive_ms is None:
        started = past(activity.since_ms, facts.now_ms)
        return f"no worker has {asked} the server started at {started}"
    whose = f"{activity.last_receiver} did" if activity.last_receiver else "the last receive"
    return f"no worker has {asked} {whose} at {past(activity.last_receive_ms, facts.now_ms)}"


def _activity_evidence(activity: Activity) -> dict[str, object]:
    return {
        "server_since_ms": activity.since_ms,
        "last_receive_ms": activity.last_receive_ms,
        "last_receiver": activity.last_receiver,
        "last_send_ms": activity.last_send_ms,
        "receives_waiting": activity.waiting,
    }


def _is_rate_limited(facts: QueueFacts) -> bool:
    limited = facts.settings.max_receives_per_s is not None
    return limited and facts.next_due_ms is not None and facts.next_due_ms > facts.now_ms


def _rate(facts: QueueFacts) -> str:
    rate_per_s, next_ms = facts.settings.max_receives_per_s, facts.next_due_ms
    assert rate_per_s is not None
    assert next_ms is not None
    return (
        f"queue {facts.queue} is limited to {rate_per_s:g} per second; the next message is due at "
        f"{future(next_ms, facts.now_ms)}"
    )


def _rate_evidence(facts: QueueFacts) -> dict[str, object]:
    return {
        "max_receives_per_s": facts.settings.max_receives_per_s,
        "next_due_ms": facts.next_due_ms,
    }


def _behind_priorities(facts: MessageFacts, message: Message) -> str:
    ahead, urgent = facts.ahead or 0, facts.more_urgent
    ageing_s = facts.queue.settings.priority_ageing_s
    which = "" if urgent >= ahead else f", {urgent} of them"
    then = "such messages are always received first"
    if ageing_s is not None:
        then = f"it gains one step of priority for every {length_of(ageing_s * _MS)} of waiting"
    return (
        f", and waits behind {count_of(ahead, 'message')}{which} of a more urgent priority than "
        f"its {message.priority}; {then}"
    )


# --- story -------------------------------------------------------------------------------------
#
# What became of a message, as a sentence that still lacks its full stop.
#
# The parts that :mod:`leasehold.domain.explain` puts together with what it knows of the queue.


_ROUNDING: Final = 1e-9


def story(
    message: Message,
    state: MessageState,
    now_ms: int,
    policy: FailurePolicy | None,
    under: str | None = None,
) -> str:
    """Tell why a message is in its state, since when and until when.

    Args:
        message: The message.
        state: Its state.
        now_ms: The time.
        policy: Of the queue; with it an attempt is one of so many.
        under: Claim or transaction that it is in, as in
            :class:`~leasehold.domain.admin.Seen`.
    """
    if state is MessageState.LEASED and under is not None:
        return _claimed(message, under, now_ms)
    if state is MessageState.LEASED:
        return _leased(message, now_ms, policy)
    if state is MessageState.DEFERRED:
        return _deferred(message, now_ms, policy)
    if state is MessageState.VISIBLE:
        return _visible(message, now_ms, policy)
    if state is MessageState.STAGED:
        name = "a transaction" if under is None else f"transaction {under}"
        return f"It is staged under {name} and not published yet"
    tellers = {
        MessageState.EXPIRED: _expired,
        MessageState.POISONED: _poisoned,
        MessageState.DELAYED: _delayed,
    }
    return tellers[state](message, now_ms)


def _delayed(message: Message, now_ms: int) -> str:
    return f"It is delayed until {future(message.visible_at_ms, now_ms)}"


def _claimed(message: Message, under: str, now_ms: int) -> str:
    stream, _, number = under.rpartition("/")
    return (
        f"It is in claim {number} of stream {stream}, held by {_holder(message.holder)}, until "
        f"{future(message.visible_at_ms, now_ms)}"
    )


def _leased(message: Message, now_ms: int, policy: FailurePolicy | None) -> str:
    renewed = f"renewed {times_of(message.renewals)}" if message.renewals else "not renewed"
    cancel = message.detail.cancel
    asked = "" if cancel is None else f", asked to stop at {past(cancel.at_ms, now_ms)}"
    return (
        f"It is leased to {_holder(message.holder)} until {future(message.visible_at_ms, now_ms)}: "
        f"{_attempt(message, policy)}, since {past(message.since_ms, now_ms)}, {renewed}, "
        f"{_progress(message, now_ms)}{asked}"
    )


def _progress(message: Message, now_ms: int) -> str:
    progress = message.detail.progress
    if progress is None:
        return "no progress reported"
    parts = []
    if progress.fraction is not None:
        parts.append(f"{int(progress.fraction * 100 + _ROUNDING)} %")
    if progress.note:
        parts.append(quote(progress.note))
    told = f" {', '.join(parts)}" if parts else ""
    return f"last progress{told} {length_of(now_ms - progress.at_ms)} ago"


def _deferred(message: Message, now_ms: int, policy: FailurePolicy | None) -> str:
    when = future(message.visible_at_ms, now_ms)
    since = past(message.since_ms, now_ms)
    outcome = ended_now(message)
    if outcome is Outcome.FAILED:
        return (
            f"It failed at {since} in {_failed(message, policy)}; the next attempt can begin at "
            f"{when}"
        )
    if outcome is None:
        return f"It was deferred at {since} until {when}"
    return f"It was {_given_back(message, outcome)} at {since} and is deferred until {when}"


def _expired(message: Message, now_ms: int) -> str:
    lived = length_of(message.expires_at_ms - message.inserted_at_ms)
    leased = message.phase is Phase.LEASED and message.visible_at_ms > message.expires_at_ms
    held = f", while it was leased to {_holder(message.holder)}" if leased else ""
    return (
        f"It expired at {past(message.expires_at_ms, now_ms)}{held}: its time to live ended "
        f"{lived} after it was put"
    )


def _poisoned(message: Message, now_ms: int) -> str:
    poisoning = message.detail.poisoning
    if poisoning is None:
        return (
            f"It was put directly into the poison queue at {past(message.inserted_at_ms, now_ms)}"
        )
    attempt = last_error(message)
    error = f" (last error: {_error_text(attempt)})" if attempt and attempt.error else ""
    return (
        f"It was moved to the poison queue at {past(poisoning.at_ms, now_ms)} because "
        f"{because(poisoning.reason, message)}{error}"
    )


def _visible(message: Message, now_ms: int, policy: FailurePolicy | None) -> str:
    if message.dequeue_count == 0:
        redriven = message.detail.redriven and message.phase is Phase.WAITING
        became = "was redriven" if redriven else "became visible"
        # In a group a redriven message counts as visible since it first was.
        at_ms = max(message.visible_at_ms, message.since_ms if redriven else 0)
        return f"It has not been received since it {became} at {past(at_ms, now_ms)}"
    visible = f"It has been visible since {past(message.visible_at_ms, now_ms)}"
    if has_lapsed(message, now_ms):
        attempt = _attempt(message, policy)
        return f"{visible}, when the lease of {_holder(message.holder)} ran out in {attempt}"
    poisoning = message.detail.poisoning
    if poisoning is not None and message.phase is Phase.WAITING:
        because_of = because(poisoning.reason, message)
        return f"{visible}, moved here from queue {poisoning.queue} because {because_of}"
    outcome = ended_now(message)
    if outcome is Outcome.FAILED:
        return f"{visible}, after it failed in {_failed(message, policy)}"
    if outcome is not None:
        return f"{visible}, after it was {_given_back(message, outcome)}"
    return visible


def _holder(holder: str | None) -> str:
    return holder or "an unnamed receiver"


def _attempt(message: Message, policy: FailurePolicy | None) -> str:
    """Return ``attempt 2 of 5``, counted as the queue's limits count."""
    if policy is not None and policy.max_deliveries is not None:
        number = message.dequeue_count - message.detail.interruptions
        return f"attempt {max(number, 1)} of {policy.max_deliveries}"
    return f"attempt {message.dequeue_count}"


def ended_now(message: Message) -> Outcome | None:
    """Say how the attempt ended that put the message into its present phase."""
    attempts = message.detail.attempts
    if message.phase is not Phase.DEFERRED or not attempts:
        return None
    latest = attempts[-1]
    return latest.outcome if latest.ended_at_ms == message.since_ms else None


def _given_back(message: Message, outcome: Outcome) -> str:
    holder = _holder(message.holder)
    if outcome is Outcome.INTERRUPTED:
        return f"released when {holder} was interrupted"
    if outcome is Outcome.ENDED:
        return f"taken from {holder} by an operator"
    if outcome is Outcome.LOST:
        return f"taken from {holder} because its session was lost"
    if outcome is Outcome.STUCK:
        return f"taken from {holder} because it reported no progress"
    return f"released by {holder}"


def _failed(message: Message, policy: FailurePolicy | None) -> str:
    text = _attempt(message, policy)
    if policy is not None and policy.max_deliveries is None and policy.max_failures is not None:
        text += f" (failure {message.detail.failures} of {policy.max_failures})"
    latest = message.detail.attempts[-1]
    return text if latest.error is None else f"{text} with {_error_text(latest)}"


def _error_text(attempt: Attempt) -> str:
    error = attempt.error
    assert error is not None
    return f"{error.type}: {quote(error.text)}" if error.type else quote(error.text)


def because(reason: str, message: Message) -> str:
    """Return the rest of a sentence that ends in "because": why a message is given up."""
    detail = message.detail
    deliveries = message.dequeue_count - detail.interruptions
    causes = {
        MAX_DELIVERIES: f"it was delivered {times_of(deliveries)} without being completed",
        MAX_FAILURES: f"it failed {times_of(detail.failures)}",
        MAX_INTERRUPTIONS: f"its workers were interrupted {times_of(detail.interruptions)}",
        MAX_LAPSES: f"its lease ran out {times_of(detail.lapses)}",
        BURIED: f"{_holder(message.holder)} buried it",
    }
    return causes.get(reason) or f"of {quote(reason)}"


def evidence_of(message: Message, state: MessageState) -> dict[str, object]:
    """Return the facts about a message that its story rests on."""
    detail = message.detail
    evidence: dict[str, object] = {
        "state": str(state),
        "inserted_at_ms": message.inserted_at_ms,
        "expires_at_ms": None if message.expires_at_ms >= NEVER_MS else message.expires_at_ms,
        "visible_at_ms": message.visible_at_ms,
        "since_ms": message.since_ms,
        "dequeue_count": message.dequeue_count,
        "failures": detail.failures,
        "interruptions": detail.interruptions,
        "lapses": detail.lapses,
        "priority": message.priority,
        "holder": message.holder,
        "renewals": message.renewals,
    }
    if detail.progress is not None:
        evidence["progress"] = {
            "fraction": detail.progress.fraction,
            "note": detail.progress.note,
            "at_ms": detail.progress.at_ms,
        }
    if detail.message_type is not None:
        evidence["type"] = detail.message_type
    if detail.group_id is not None:
        evidence["group_id"] = detail.group_id
    if message.session is not None:
        evidence["session"] = message.session
    if detail.cancel is not None:
        evidence["cancel"] = {"at_ms": detail.cancel.at_ms, "reason": detail.cancel.reason}
    attempt = last_error(message)
    if attempt is not None and attempt.error is not None:
        evidence["last_error"] = {
            "text": attempt.error.text,
            "type": attempt.error.type,
            "fingerprint": attempt.error.fingerprint,
            "at_ms": attempt.ended_at_ms,
        }
    if detail.poisoning is not None:
        evidence["reason"] = detail.poisoning.reason
        evidence["poisoned_at_ms"] = detail.poisoning.at_ms
    return evidence
