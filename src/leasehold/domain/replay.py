"""From the event log to the messages that there are: the log is exact, so this is the live state.

It needs the events from the beginning, in their order, of queues whose log was never turned off.
With events from later on it knows the messages that something has happened to since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from leasehold.domain.events import Event, EventType, is_removing
from leasehold.domain.types import Phase


class ReplayedMessage(NamedTuple):
    """A message as its events tell; times are Unix milliseconds."""

    account: str
    queue: str
    inserted_at_ms: int
    expires_at_ms: int
    visible_at_ms: int
    dequeue_count: int
    fence: int
    phase: Phase
    since_ms: int
    visible_since_ms: int
    renewals: int
    holder: str | None
    priority: int
    session: str | None
    staged: str | None = None
    """Name of the transaction that it is staged under."""
    claim: str | None = None
    """``stream/number`` of the claim that hides it."""


class _Claim(NamedTuple):
    """What is known of a claim."""

    until_ms: int
    hides: bool


_Place: TypeAlias = tuple[str, str]
"""Account and queue."""

_MOVES: Final = frozenset({EventType.POISONED, EventType.REDRIVEN})
_STAYS_CLAIMED: Final = frozenset({EventType.CANCEL_ASKED, EventType.LAPSED})
"""After the first, the message is still in its claim; the second is followed by what takes it."""
_CLAIM_EVENTS: Final = frozenset(
    {EventType.CLAIM_EXTENDED, EventType.CLAIM_LAPSED, EventType.CLAIM_REOPENED}
)


def replay(events: Iterable[Event]) -> dict[str, ReplayedMessage]:
    """Return the messages that there are after *events*, by id.

    Args:
        events: In the order of their ``seq`` and ``place``.
    """
    state = Replay()
    for event in events:
        state.add(event)
    return state.messages()


class Replay:
    """The messages after the events so far; for those who read the log in pieces."""

    def __init__(self) -> None:
        self._messages: dict[str, ReplayedMessage] = {}
        self._claims: dict[tuple[str, str, str], _Claim] = {}
        self._in_queue: dict[_Place, set[str]] = {}

    def add(self, event: Event) -> None:
        """Take the next event into account."""
        kind = event.type
        if kind in _CLAIM_EVENTS:
            self._note_claim(event, hides=kind is not EventType.CLAIM_LAPSED)
        elif kind in {EventType.QUEUE_CLEARED, EventType.QUEUE_DELETED}:
            self._clear(event)
        elif event.message_id and kind is not EventType.REFUSED:
            self._change(event, event.message_id)

    def messages(self) -> dict[str, ReplayedMessage]:
        """Return the messages that there are now, by id."""
        return {
            message_id: message if message.claim is None else self._of_claim(message)
            for message_id, message in self._messages.items()
        }

    def _change(self, event: Event, message_id: str) -> None:
        before = self._messages.pop(message_id, None)
        if before is not None:
            self._in_queue[before.account, before.queue].discard(message_id)
        if is_removing(event.type):
            return
        staged = claim = None
        if event.type is EventType.STAGED:
            staged = event.target
        elif event.type is EventType.CLAIMED:
            self._note_claim(event, hides=True)
            claim = event.target
        elif event.type in _STAYS_CLAIMED and before is not None:
            claim = before.claim
        message = _message(event)._replace(staged=staged, claim=claim)
        self._messages[message_id] = message
        self._in_queue.setdefault((message.account, message.queue), set()).add(message_id)

    def _note_claim(self, event: Event, *, hides: bool) -> None:
        claim = _Claim(event.visible_at_ms or 0, hides)
        self._claims[event.account, event.queue or "", event.target or ""] = claim

    def _of_claim(self, message: ReplayedMessage) -> ReplayedMessage:
        claim = self._claims[message.account, message.queue, message.claim or ""]
        return message._replace(
            visible_at_ms=claim.until_ms, claim=message.claim if claim.hides else None
        )

    def _clear(self, event: Event) -> None:
        """Forget the messages of a queue; what is staged for it stays."""
        place = event.account, event.queue or ""
        for message_id in tuple(self._in_queue.get(place, ())):
            if self._messages[message_id].staged is None:
                del self._messages[message_id]
                self._in_queue[place].remove(message_id)


def _message(event: Event) -> ReplayedMessage:
    """Return the message of an event, which tells all of it."""
    queue = event.target if event.type in _MOVES else event.queue
    return ReplayedMessage(
        event.account,
        queue or "",
        event.inserted_at_ms or 0,
        event.expires_at_ms or 0,
        event.visible_at_ms or 0,
        event.dequeue_count or 0,
        event.fence or 0,
        Phase(event.phase or 0),
        event.since_ms or 0,
        event.visible_since_ms or 0,
        event.renewals or 0,
        event.holder,
        event.priority or 0,
        event.session,
    )
