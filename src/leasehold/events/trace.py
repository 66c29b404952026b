"""The events of a message as sentences that people read. Standard library only.

Made for what the native API's ``trace`` answers: one mapping for each event, with ``at_ms``,
``type`` (such as ``lease-ended``) and whatever else the event has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain.model import NEVER_MS

_MS: Final = 1000
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))
_TENTHS_BELOW_MS: Final = 60_000
_MAX_QUOTED: Final = 120
_NOBODY: Final = "an unnamed receiver"

EventFields: TypeAlias = Mapping[str, Any]


class Tone(StrEnum):
    """What a line is to an operator who looks for trouble."""

    PLAIN = "plain"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


class Line(NamedTuple):
    """One event of a story."""

    at: str
    """Moment in UTC to the millisecond: ``2026-11-21 10:02:03.120``."""
    text: str
    """Sentence without a full stop, such as ``put into orders, expires 2026-11-28 10:02:03.120``.
    """
    tone: Tone


def tell(events: Iterable[EventFields]) -> list[str]:
    """Return a line of text for each event.

    The day is named where it begins: ``2026-11-21 10:02:03.120  put into orders``, and then
    ``           10:02:04.007  received by w1 ...``.

    Args:
        events: Events of one message in their order, as the native API gives them.
    """
    told: list[str] = []
    day = ""
    for line in lines(events):
        today, _, time = line.at.partition(" ")
        told.append(f"{today if today != day else ' ' * len(today)} {time}  {line.text}")
        day = today
    return told


def lines(events: Iterable[EventFields]) -> list[Line]:
    """Return a line for each event, for those who show them in a form of their own.

    Events of types that this version does not know are told by the name of the type.

    Args:
        events: As for :func:`tell`.
    """
    teller = _Teller()
    return [teller.line(event) for event in events]


class _Teller:
    """Knows what the events before have said."""

    def __init__(self) -> None:
        self._leased_at_ms: int | None = None

    def line(self, event: EventFields) -> Line:
        kind = str(event["type"])
        at_ms = int(event["at_ms"])
        tone, sentence = _SENTENCES.get(kind, (Tone.PLAIN, _unknown))
        text = sentence(_Facts(event, at_ms, self._leased_at_ms))
        if kind in _BEGINNINGS:
            self._leased_at_ms = at_ms
        elif kind in _ENDS:
            self._leased_at_ms = None
        return Line(_moment(at_ms), text, tone)


class _Facts:
    """One event, and the words for its parts."""

    def __init__(self, event: EventFields, at_ms: int, leased_at_ms: int | None) -> None:
        self._event = event
        self.at_ms = at_ms
        self._leased_at_ms = leased_at_ms

    def text(self, name: str, missing: str = "") -> str:
        """Return a text that is safe to show on a terminal."""
        value = self._event.get(name)
        if value is None or value == "":
            return missing
        return "".join(each if each.isprintable() else "?" for each in str(value))

    def number(self, name: str) -> int | None:
        value = self._event.get(name)
        return None if value is None else int(value)

    def holder(self) -> str:
        return self.text("holder", _NOBODY)

    def reason(self) -> str:
        reason = self.text("reason")
        return f": {_quoted(reason)}" if reason else ""

    def error(self) -> str:
        """Return what was said about a failure, if anything was."""
        kind, text = self.text("error_type"), self.text("error")
        told = ": ".join(each for each in (kind, _quoted(text) if text else "") if each)
        return f": {told}" if told else ""

    def moment(self, name: str) -> str:
        """Return a moment, with its day if that is another one than the event's."""
        at_ms = self.number(name)
        if at_ms is None:
            return "an unknown moment"
        if at_ms >= NEVER_MS:
            return "never"
        moment = _moment(at_ms)
        return moment[11:] if moment[:10] == _moment(self.at_ms)[:10] else moment

    def ahead_ms(self, name: str) -> int:
        """Return how far in the future a moment is, 0 if it is not."""
        return max(0, (self.number(name) or 0) - self.at_ms)

    def took(self, before: str = " after ") -> str:
        """Return how long a lease that ends now has lasted, if that is known."""
        began_ms = self._leased_at_ms
        if began_ms is None:
            began_ms = self.number("since_ms")
        if began_ms is None or not 0 < began_ms < self.at_ms:
            return ""
        return before + _length(self.at_ms - began_ms)

    def delivery(self) -> str:
        """Return which of its leases this is."""
        named = (("delivery", "dequeue_count"), ("fence", "fence"), ("session", "session"))
        parts = [f"{word} {self.text(name)}" for word, name in named if self.text(name)]
        return f" ({', '.join(parts)})" if parts else ""

    def available(self) -> str:
        """Return from when on the message can be received."""
        wait_ms = self.ahead_ms("visible_at_ms")
        if not wait_ms:
            return "visible at once"
        return f"visible from {self.moment('visible_at_ms')} on (in {_length(wait_ms)})"


def _put(facts: _Facts) -> str:
    kind = facts.text("message_type")
    parts = [f"put into {facts.text('queue', 'a queue')}{f' as {_quoted(kind)}' if kind else ''}"]
    if facts.ahead_ms("visible_at_ms"):
        parts.append(f"delayed until {facts.moment('visible_at_ms')}")
    priority = facts.number("priority")
    if priority not in {None, 8}:
        parts.append(f"priority {priority}")
    group = facts.text("group_id")
    if group:
        parts.append(f"group {_quoted(group)}")
    parts.append(_life(facts))
    return ", ".join(parts)


def _life(facts: _Facts) -> str:
    expires_ms = facts.number("expires_at_ms")
    if expires_ms is None or expires_ms >= NEVER_MS:
        return "never expires"
    return f"expires {facts.moment('expires_at_ms')}"


def _received(facts: _Facts) -> str:
    visible_ms = facts.number("visible_since_ms")
    waited = ""
    if visible_ms and visible_ms < facts.at_ms:
        waited = f", {_length(facts.at_ms - visible_ms)} after it became visible"
    until = facts.moment("visible_at_ms")
    return f"received by {facts.holder()}{facts.delivery()} until {until}{waited}"


def _renewed(facts: _Facts) -> str:
    if not facts.ahead_ms("visible_at_ms"):
        return "made visible at once"
    renewals = facts.number("renewals")
    if not renewals:
        return f"deferred until {facts.moment('visible_at_ms')}"
    number = f" (renewal {renewals})"
    return f"renewed by {facts.holder()} until {facts.moment('visible_at_ms')}{number}"


def _completed(facts: _Facts) -> str:
    return f"completed by {facts.holder()}{facts.took()}{facts.delivery()}"


_GIVEN_BACK: Final[Mapping[str, str]] = {
    "failed": "failed with {holder}{took}",
    "interrupted": "released{took}, because {holder} was interrupted",
    "buried": "buried by {holder}{took}",
}


def _released(facts: _Facts) -> str:
    form = _GIVEN_BACK.get(facts.text("reason"), "released by {holder}{took}")
    told = form.format(holder=facts.holder(), took=facts.took())
    return f"{told}{facts.error()}; {facts.available()}"


def _lapsed(facts: _Facts) -> str:
    return (
        f"the lease of {facts.holder()} had run out at {facts.moment('visible_at_ms')}"
        f"{facts.delivery()}"
    )


_BUDGETS: Final[Mapping[str, str]] = {
    "max_deliveries": "too many deliveries",
    "max_failures": "too many failures",
    "max_interruptions": "too many interruptions",
    "max_lapses": "too many lapses",
    "buried": "its worker buried it",
}


def _poisoned(facts: _Facts) -> str:
    reason = facts.text("reason")
    because = _BUDGETS.get(reason, _quoted(reason)) if reason else "no reason given"
    error = facts.error().replace(": ", ", after ", 1)
    return f"moved to the poison queue {facts.text('target')}: {because}{error}"


def _redriven(facts: _Facts) -> str:
    return f"moved back to {facts.text('target')}; {facts.available()}"


def _amended(facts: _Facts) -> str:
    return f"changed by an operator; {facts.available()}, {_life(facts)}"


def _removed(facts: _Facts) -> str:
    reason = facts.text("reason")
    by = {"operator": "an operator", "purge": "a purge"}.get(reason)
    return f"removed by {by}" if by else f"removed{facts.reason()}"


_ENDINGS: Final[Mapping[str, str]] = {
    "operator": "an operator ended the lease of {holder}",
    "session lost": "the session of {holder} was lost, and the lease ended",
    "session ended": "the session of {holder} ended, and the lease with it",
    "no progress": "the lease of {holder} ended, because it reported no progress",
}


def _lease_ended(facts: _Facts) -> str:
    form = _ENDINGS.get(facts.text("reason"))
    told = form.format(holder=facts.holder()) if form else f"the lease ended{facts.reason()}"
    return f"{told}{facts.took()}; {facts.available()}"


def _expired(_: _Facts) -> str:
    return "removed: its time to live had ended"


def _cancel_asked(facts: _Facts) -> str:
    return f"an operator asked {facts.holder()} to stop{facts.reason()}"


_TOO_LATE: Final[Mapping[str, str]] = {
    "lapsed": "the lease had run out",
    "superseded": "the message had gone to another consumer or its receipt was replaced",
    "moved": "the message had left the queue",
    "expired": "the message had expired",
}


def _refused(facts: _Facts) -> str:
    reason = facts.text("reason")
    # The lease that the complete belonged to is not the one that the events before tell of.
    began_ms = facts.number("since_ms")
    took = ""
    if began_ms and began_ms < facts.at_ms:
        took = f"; the work had taken {_length(facts.at_ms - began_ms)}"
    return f"a completion came too late: {_TOO_LATE.get(reason, reason)}{took}"


def _staged(facts: _Facts) -> str:
    return f"staged for {facts.text('queue')} in transaction {facts.text('target')}"


def _published(facts: _Facts) -> str:
    transaction = facts.text("target")
    return f"published into {facts.text('queue')} by transaction {transaction}, {_life(facts)}"


def _discarded(facts: _Facts) -> str:
    transaction = facts.text("target")
    if facts.text("reason") == "duplicate":
        return f"dropped by transaction {transaction}: its deduplication key had been used"
    return f"discarded with transaction {transaction}"


def _claimed(facts: _Facts) -> str:
    until = facts.moment("visible_at_ms")
    return f"claimed by {facts.text('target')}{facts.delivery()} until {until}"


def _settled(facts: _Facts) -> str:
    return f"completed with claim {facts.text('target')}{facts.took()}"


def _unclaimed(facts: _Facts) -> str:
    return f"released from claim {facts.text('target')}; {facts.available()}"


def _queue(word: str) -> Callable[[_Facts], str]:
    def told(facts: _Facts) -> str:
        reason = facts.text("reason")
        return f"queue {facts.text('queue')} {word}" + (f": {reason}" if reason else "")

    return told


def _group(word: str) -> Callable[[_Facts], str]:
    def told(facts: _Facts) -> str:
        reason = facts.text("reason")
        return f"group {facts.text('group_id')} {word}" + (f": {reason}" if reason else "")

    return told


def _held(words: str) -> Callable[[_Facts], str]:
    return lambda facts: (
        f"group {facts.text('group_id')} {words} session {facts.text('session')} of "
        f"{facts.holder()}"
    )


def _claim_extended(facts: _Facts) -> str:
    return f"claim {facts.text('target')} extended until {facts.moment('visible_at_ms')}"


def _claim_lapsed(facts: _Facts) -> str:
    return f"claim {facts.text('target')} ran out"


def _claim_reopened(facts: _Facts) -> str:
    return f"claim {facts.text('target')} reopened until {facts.moment('visible_at_ms')}"


def _session(word: str) -> Callable[[_Facts], str]:
    return lambda facts: (
        f"session {facts.text('session')} of {facts.holder()} {word}{facts.reason()}"
    )


def _unknown(facts: _Facts) -> str:
    return f"{facts.text('type')}{facts.reason()}"


_SENTENCES: Final[Mapping[str, tuple[Tone, Callable[[_Facts], str]]]] = {
    "put": (Tone.PLAIN, _put),
    "received": (Tone.PLAIN, _received),
    "renewed": (Tone.PLAIN, _renewed),
    "completed": (Tone.GOOD, _completed),
    "released": (Tone.WARNING, _released),
    "lapsed": (Tone.WARNING, _lapsed),
    "poisoned": (Tone.BAD, _poisoned),
    "redriven": (Tone.PLAIN, _redriven),
    "amended": (Tone.PLAIN, _amended),
    "removed": (Tone.WARNING, _removed),
    "lease-ended": (Tone.WARNING, _lease_ended),
    "expired": (Tone.BAD, _expired),
    "cancel-asked": (Tone.WARNING, _cancel_asked),
    "refused": (Tone.BAD, _refused),
    "staged": (Tone.PLAIN, _staged),
    "published": (Tone.PLAIN, _published),
    "discarded": (Tone.WARNING, _discarded),
    "claimed": (Tone.PLAIN, _claimed),
    "settled": (Tone.GOOD, _settled),
    "unclaimed": (Tone.WARNING, _unclaimed),
    "queue-created": (Tone.PLAIN, _queue("made")),
    "queue-deleted": (Tone.WARNING, _queue("deleted")),
    "queue-cleared": (Tone.WARNING, _queue("cleared")),
    "queue-updated": (Tone.PLAIN, _queue("changed")),
    "queue-paused": (Tone.WARNING, _queue("paused")),
    "queue-resumed": (Tone.GOOD, _queue("resumed")),
    "group-halted": (Tone.BAD, _group("stands still")),
    "group-resumed": (Tone.GOOD, _group("goes on")),
    "group-held": (Tone.PLAIN, _held("is held by")),
    "group-released": (Tone.PLAIN, _held("is no longer held by")),
    "claim-extended": (Tone.PLAIN, _claim_extended),
    "claim-lapsed": (Tone.WARNING, _claim_lapsed),
    "claim-reopened": (Tone.PLAIN, _claim_reopened),
    "session-started": (Tone.PLAIN, _session("began")),
    "session-lost": (Tone.BAD, _session("was lost")),
    "session-ended": (Tone.PLAIN, _session("ended")),
}
_BEGINNINGS: Final = frozenset({"received", "claimed"})
_ENDS: Final = frozenset(
    {"completed", "released", "lapsed", "lease-ended", "poisoned", "settled", "unclaimed"}
)


def known_types() -> Sequence[str]:
    """Return the types of events that have a sentence of their own."""
    return tuple(_SENTENCES)


def _moment(at_ms: int) -> str:
    moment = datetime.fromtimestamp(min(max(at_ms, 0), NEVER_MS) // _MS, tz=UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ms % _MS:03d}"


def _length(length_ms: int) -> str:
    """Return a length of time: ``850 ms``, ``3.2 s``, ``2 min 5 s``, ``3 h 12 min``."""
    if length_ms < _MS:
        return f"{length_ms} ms"
    if length_ms < _TENTHS_BELOW_MS:
        return f"{length_ms // 100 / 10:g} s"
    smaller = {"d": (3_600_000, "h"), "h": (60_000, "min"), "min": (_MS, "s")}
    for unit_ms, name in _UNITS:
        if length_ms >= unit_ms:
            below_ms, below = smaller[name]
            rest = length_ms % unit_ms // below_ms
            return f"{length_ms // unit_ms} {name}" + (f" {rest} {below}" if rest else "")
    raise AssertionError(length_ms)


def _quoted(text: str) -> str:
    """Return the words of a client on one line, in quotation marks, cut if they are many."""
    line = " ".join(text.split())
    return f'"{line[: _MAX_QUOTED - 3]}..."' if len(line) > _MAX_QUOTED else f'"{line}"'
