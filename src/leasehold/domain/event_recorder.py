"""What is written into the event log, and how a plain store collects it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Final, NamedTuple, cast

from leasehold.domain.claims import Claim, name_of
from leasehold.domain.errors import LeaseLost
from leasehold.domain.events import (
    EventType,
    Recorded,
    core_of,
    encodable,
    ending_of,
    more_of,
    signed,
)
from leasehold.domain.model import (
    NEVER_MS,
    NO_DETAIL,
    ErrorReport,
    Message,
    Outcome,
    Phase,
    Queue,
    ReceiptParts,
)
from leasehold.domain.sessions import Session
from leasehold.domain.visibility import is_of_lease

SERVER: Final = "server"
"""Who has acted where nobody asked for it."""
CHANGE_CHARS: Final = 1_000
"""What is kept of what a change of settings says, in characters."""
_AS_ONE: Final = frozenset({"adapted", "advised"})
"""Settings whose members make no sense one by one."""
_BY_TYPE: Final = frozenset({"timeouts_by_type", "adapted_by_type", "advised_by_type"})
_OF_PAUSE: Final = frozenset({"paused_until_ms", "pause_reason"})
PURGE = "purge"
MOVED = "moved"
"""Of a complete: its message is in another queue, such as the poison queue."""
EXPIRED = "expired"
"""Of a complete: its message has expired, and is not swept yet."""


class Collected(NamedTuple):
    """The events of one batch."""

    of: tuple[tuple[str, str | None], ...]
    """Account and queue by the numbers that the events name them by; no queue for sessions."""
    events: tuple[Recorded, ...]


class Recorder:
    """Collects the events of a batch, in their order."""

    __slots__ = ("_events", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str | None], int] = {}
        self._events: list[Recorded] = []

    def add(  # noqa: PLR0913, PLR0917 - the parts of an event
        self,
        kind: EventType,
        account: str,
        queue: str,
        message: Message | None,
        reason: str | None = None,
        target: str | None = None,
        error: ErrorReport | None = None,
    ) -> None:
        """Record what happened to a message, as it is after that, or to a queue.

        *error* is what was said about the attempt that has ended with it.
        """
        number = self._number(account, queue)
        if message is None:
            recorded: Recorded = (kind, number, "", None, 0, None, None, reason, target)
        else:
            recorded = (
                kind,
                number,
                message.message_id,
                core_of(message),
                message.priority,
                message.session,
                None,
                reason,
                target,
            )
            if message.detail is not NO_DETAIL:
                recorded = cast("Recorded", recorded + more_of(message.detail, error))
        self._events.append(recorded)

    def add_group(  # noqa: PLR0913, PLR0917 - the parts of an event
        self,
        kind: EventType,
        account: str,
        queue: str,
        group: str,
        reason: str | None = None,
        target: str | None = None,
        session: str | None = None,
        holder: str | None = None,
    ) -> None:
        """Record what happened to a message group, and which message or session did it."""
        number = self._number(account, queue)
        plain = (kind, number, "", None, 0, session, holder, reason, target)
        self._events.append((*plain, *ending_of(None, None, None, encodable(group))))

    def add_of_claim(self, kind: EventType, claim: Claim) -> None:
        """Record what happened to a claim, as it is after that: until when it hides its members."""
        number = self._number(claim.account, claim.queue)
        self._events.append(
            (kind, number, "", None, claim.until_ms, None, claim.holder, None, name_of(claim))
        )

    def add_of_session(self, kind: EventType, session: Session) -> None:
        """Record what happened to a session."""
        number = self._number(session.account, None)
        self._events.append(
            (
                kind,
                number,
                "",
                None,
                0,
                session.session_id,
                session.holder,
                session.reason,
                None,
            )
        )

    def add_of_queue(
        self, kind: EventType, account: str, queue: str, reason: str | None, until_ms: int
    ) -> None:
        """Record what happened to a queue; of a pause, also until when it is."""
        number = self._number(account, queue)
        self._events.append((kind, number, "", None, until_ms, None, None, reason, None))

    @property
    def reached(self) -> int:
        """How many events the open batch has, for :meth:`sign`."""
        return len(self._events)

    def sign(self, since: int, actor: str | None) -> None:
        """Say of all that was recorded from the event *since* on who asked for it."""
        if actor is not None:
            self._events[since:] = [
                cast("Recorded", signed(each, actor)) for each in self._events[since:]
            ]

    def take(self) -> Collected:
        """Return what was collected, and begin anew."""
        collected = Collected(tuple(self._numbers), tuple(self._events))
        self._numbers, self._events = {}, []
        return collected

    def _number(self, account: str, queue: str | None) -> int:
        return self._numbers.setdefault((account, queue), len(self._numbers))


class QueueChange(NamedTuple):
    """An event of a queue that has other settings than before."""

    kind: EventType
    reason: str | None
    until_ms: int = 0


def changes_between(before: Queue, after: Queue) -> list[QueueChange]:
    """Return the events of a change of a queue's settings, metadata and access policies."""
    found: list[QueueChange] = []
    parts = [*_other_settings("", before.settings, after.settings)]
    names = {**before.metadata, **after.metadata}
    parts += [
        f"metadata.{name}"
        for name in sorted(names)
        if before.metadata.get(name) != after.metadata.get(name)
    ]
    if before.policies != after.policies:
        parts.append("access policies")
    if parts:
        text = encodable("; ".join(parts))
        if len(text) > CHANGE_CHARS:
            text = f"{text[: CHANGE_CHARS - 3]}..."
        found.append(QueueChange(EventType.QUEUE_UPDATED, text))
    old, new = before.settings, after.settings
    if (old.paused_until_ms, old.pause_reason) != (new.paused_until_ms, new.pause_reason):
        if new.paused_until_ms is None:
            found.append(QueueChange(EventType.QUEUE_RESUMED, None))
        else:
            reason = None if new.pause_reason is None else encodable(new.pause_reason)
            until_ms = 0 if new.paused_until_ms == NEVER_MS else new.paused_until_ms
            found.append(QueueChange(EventType.QUEUE_PAUSED, reason, until_ms))
    return found


def _other_settings(path: str, before: Any, after: Any) -> Iterator[str]:
    """Say which members of settings differ, each as ``path: before -> after``."""
    for each in fields(after):
        one, other = getattr(before, each.name), getattr(after, each.name)
        name = path + each.name
        if one == other or name in _OF_PAUSE:
            continue
        if is_dataclass(one) and is_dataclass(other) and name not in _AS_ONE:
            yield from _other_settings(f"{name}.", one, other)
        elif name in _BY_TYPE:
            for rule in sorted({**one, **other}):
                if one.get(rule) != other.get(rule):
                    yield f"{name}.{rule}: {_plain(one.get(rule))} -> {_plain(other.get(rule))}"
        else:
            yield f"{name}: {_plain(one)} -> {_plain(other)}"


def _plain(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        value = {name: each for name, each in asdict(value).items() if each is not None}
    return json.dumps(value, default=dict)


def event_of_renewal(before: Message, visibility_timeout_s: int) -> tuple[EventType, str | None]:
    """Return type and reason of the event of a renewal; one for no time gives a lease back."""
    if before.phase is Phase.LEASED and visibility_timeout_s == 0:
        return EventType.RELEASED, str(Outcome.RETURNED)
    return EventType.RENEWED, None


def late(message: Message, receipt: ReceiptParts) -> Message:
    """Return the message of a complete that came too late, with the start of its receipt's lease.

    That is 0 if it is not known: the lease is so far back that its attempt was dropped, an older
    version wrote the attempt down, or the receipt was of no lease.
    """
    return message._replace(since_ms=_start_of_lease(message, receipt))


def _start_of_lease(message: Message, receipt: ReceiptParts) -> int:
    if is_of_lease(message, receipt):
        return message.since_ms
    if receipt.fence:  # the first one of all is the sender's
        for attempt in reversed(message.detail.attempts):
            if attempt.fence - attempt.renewals <= receipt.fence <= attempt.fence:
                return attempt.leased_at_ms
    return 0


def late_elsewhere(
    message: Message, row_key: int, receipt: ReceiptParts, queue: str, *, here: bool
) -> tuple[Message, str] | None:
    """Say what to record of a complete whose message is not to be found in the queue any more.

    Args:
        message: The one of that name, wherever it is now.
        row_key: Its own.
        receipt: That was shown.
        queue: Where the complete was asked for.
        here: Whether the message is in that queue, and has expired.

    Returns:
        The message, with the start of the lease that the receipt was of, and the reason. None if
        the receipt is of no lease in that queue, or it is not known when the lease began.
    """
    if not receipt.genuine or receipt.row_key != row_key:
        return None
    start_ms = _start_of_lease(message, receipt)
    if not start_ms:
        return None
    if not here:
        moved = message.detail.poisoning
        if moved is None or moved.queue != queue or start_ms > moved.at_ms:
            return None
    return message._replace(since_ms=start_ms), EXPIRED if here else MOVED


def is_recorded(refusal: LeaseLost) -> bool:
    """Tell whether a complete that was refused so is an event: it came late, and was no mistake."""
    return refusal.reason in {"superseded", "lapsed"}
