"""Events made by hand, and a log that answers like a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.events import (
    Event,
    EventPage,
    EventType,
    Extent,
    KeepNote,
    LogExtent,
    Note,
    ReadEvents,
    ReadNote,
    TrimEvents,
)
from leasehold.domain.model import NEVER_MS, Phase

TEN_MS: Final = 1_795_255_200_000
"""2026-11-21T10:00:00Z."""
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
EVENT_BYTES: Final = 100


def id_of(number: int) -> str:
    """Return the id of a message: those of later ones are higher, as with the real ones."""
    return f"{number:08x}-0000-8000-8000-000000000000"


def put(number: int = 1, at_ms: int = TEN_MS, **more: Any) -> Event:
    """Return the event of a put, as the first of batch 1 unless told other."""
    fields: dict[str, Any] = {
        "seq": 1,
        "place": 0,
        "at_ms": at_ms,
        "type": EventType.PUT,
        "account": "shop",
        "queue": "orders",
        "message_id": id_of(number),
        "inserted_at_ms": at_ms,
        "expires_at_ms": NEVER_MS,
        "visible_at_ms": at_ms,
        "dequeue_count": 0,
        "fence": 0,
        "phase": int(Phase.WAITING),
        "since_ms": at_ms,
        "visible_since_ms": 0,
        "renewals": 0,
        "priority": 8,
    }
    return Event(**{**fields, **more})


def session_lost(at_ms: int = TEN_MS) -> Event:
    """Return an event without a message and a queue."""
    return Event(
        seq=1,
        place=0,
        at_ms=at_ms,
        type=EventType.SESSION_LOST,
        account="shop",
        holder="w1",
        session="s1",
        reason="no heartbeat for 16 s",
    )


class FakeLog:
    """A log whose batches a test makes, and that answers the commands of an exporter."""

    def __init__(self) -> None:
        self.batches: list[tuple[Event, ...]] = []
        self.notes: dict[str, str] = {}
        self.asked: list[AnyCommand] = []
        self.last_seq = 0
        self.store_bytes = 0
        self.before: Callable[[AnyCommand], None] = lambda _: None
        """Called before each command; may raise."""

    def add(self, events: Sequence[Event], *, gap: int = 0) -> tuple[Event, ...]:
        """Add a batch; its number and the places in it are given here."""
        self.last_seq += 1 + gap
        batch = tuple(
            event._replace(seq=self.last_seq, place=place) for place, event in enumerate(events)
        )
        self.batches.append(batch)
        return batch

    def events(self) -> list[Event]:
        """Return all events that are kept."""
        return [event for batch in self.batches for event in batch]

    def count(self, kind: type) -> int:
        """Return how many commands of a kind have come."""
        return sum(type(command) is kind for command in self.asked)

    async def perform(self, command: AnyCommand) -> Any:
        """Carry out a command."""
        self.asked.append(command)
        self.before(command)
        match command:
            case ReadEvents():
                return self._read(command)
            case LogExtent():
                kept = [batch[0] for batch in self.batches]
                first = kept[0].seq if kept else self.last_seq + 1
                size = EVENT_BYTES * sum(map(len, self.batches))
                oldest_ms = kept[0].at_ms if kept else None
                return Extent(first, self.last_seq, size, oldest_ms, self.store_bytes)
            case TrimEvents():
                old = [batch for batch in self.batches if batch[0].seq <= command.upto_seq]
                count = min(len(old), command.limit)
                del self.batches[:count]
                return c.Swept(count)
            case KeepNote():
                self.notes[command.name] = command.content
                return c.DONE
            case ReadNote():
                return Note(self.notes.get(command.name))
            case _:
                raise AssertionError(command)

    def _read(self, command: ReadEvents) -> EventPage:
        found: list[Event] = []
        reached = command.after_seq
        for batch in self.batches:
            if batch[0].seq > command.after_seq:
                if len(found) >= command.limit:
                    return EventPage(tuple(found), reached, finished=False)
                found += batch
                reached = batch[0].seq
        return EventPage(tuple(found), reached, finished=True)
