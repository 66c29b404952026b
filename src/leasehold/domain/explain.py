"""Why is this message not being worked on? One sentence, with the facts it rests on.

:func:`why` needs the message alone. :func:`explain_message` and :func:`explain_queue` also look at
the queue around it, and name what would have to change. The codes of the explanations are part of
the interface; the sentences are for people and may be worded better at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leasehold.domain.claims import Claim
from leasehold.domain.failures import exhausted_on_receive, has_lapsed
from leasehold.domain.ids import row_key_of
from leasehold.domain.oversight import Counts, Seen
from leasehold.domain.queue_settings import FailurePolicy, QueueSettings, poison_queue_of
from leasehold.domain.story import because, ended_now, evidence_of, story
from leasehold.domain.types import NEVER_MS, Message, MessageState, Outcome
from leasehold.domain.visibility import after_lapse
from leasehold.domain.wording import count_of, enumeration, future, length_of, past, quote

_MS: Final = 1000

SILENT_AFTER_MS: Final = 120_000
"""A queue has no receiver when nobody has asked for this long: twice the longest long poll."""

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
    """When somebody last asked for messages, whether there were any or not."""
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


# --- one message -------------------------------------------------------------------------------


def why(message: Message, state: MessageState, now_ms: int, under: str | None = None) -> str:
    """Return one sentence: why the message can, or cannot, be received now, and until when.

    *under* is that of :class:`~leasehold.domain.oversight.Seen`.
    """
    return story(message, state, now_ms, None, under) + "."


def explain_message(facts: MessageFacts) -> Explanation:
    """Say why a message is not being worked on, or that it is."""
    if facts.seen is None:
        return _explain_absence(facts)
    message, state, _, under = facts.seen
    if state is MessageState.VISIBLE:
        return _explain_visible(facts, message)
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
        evidence["poison_queue"] = facts.seen.queue
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
            sentence=f"Queue {queue} never had it: {quote(message_id)} is not an id that this "
            "server gives out.",
            code="not-an-id",
            evidence=evidence,
        )
    return Explanation(
        sentence=f"Neither queue {queue} nor its poison queue has it: it was completed, removed "
        "or purged, expired long ago, or was never there.",
        code="not-found",
        evidence=evidence,
    )


def _explain_visible(facts: MessageFacts, message: Message) -> Explanation:
    """Name the first of the things that keep a visible message from being received."""
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
    elif _has_no_receiver(around):
        code, clause = "no-receiver", f", but {_nobody(around)}"
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
            code, clause = "no-receiver", f", but {_nobody(facts)}"
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
        (counts.deferred, "put off"),
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
        code = {"leased": "all-leased", "delayed": "all-delayed", "put off": "all-deferred"}[word]
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
    long_ms = max(STALLED_AFTER_MS, STALLED_LEASES * around.settings.lease_s() * _MS)
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


def _nobody(facts: QueueFacts) -> str:
    activity = facts.activity
    asked = f"asked queue {facts.queue} for messages since"
    if activity.last_receive_ms is None:
        started = past(activity.since_ms, facts.now_ms)
        return f"nobody has {asked} the server started at {started}"
    whose = f"{activity.last_receiver} did" if activity.last_receiver else "the last receive"
    return f"nobody has {asked} {whose} at {past(activity.last_receive_ms, facts.now_ms)}"


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
        f"queue {facts.queue} gives out no more than {rate_per_s:g} a second; the next may go at "
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
    then = "such messages always go first"
    if ageing_s is not None:
        then = f"it gains a step of priority for every {length_of(ageing_s * _MS)} that it waits"
    return (
        f", and waits behind {count_of(ahead, 'message')}{which} of a more urgent priority than "
        f"its {message.priority}; {then}"
    )
