"""Looks at everything a server has over HTTP: messages, bodies, the log, and the exported log."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from leasehold import events as eventlog
from leasehold.bodies.base import MARK_NAME
from leasehold.domain.events import Event, EventType, Replay, ReplayedMessage
from leasehold.domain.model import NEVER_MS, Phase
from leasehold.events.names import PHASE_NAMES, TYPE_NAMES
from leasehold.events.parquet import events_of
from tests.e2e.server import DEV_ACCOUNT
from tests.reliability.claim_calls import INLINE_BYTES, Line, Request, name_in
from tests.reliability.claim_history import MARK, Found
from tests.reliability.history import Violation
from tests.reliability.running import CLOCK, eventually

_PAGE: Final = 1_000
_EVENTS: Final = 10_000
_LOOKS: Final = 50
_STATES: Final = "visible,leased,delayed,deferred,staged"
"""Without the expired: when they are swept is nobody's business."""
_TURNS: Final = 8
"""In so many looks each large body is read again."""
_OLD_S: Final = 7_200
"""A body of this age that no message names is garbage."""
_TYPES: Final = {name: EventType(number) for number, name in TYPE_NAMES.items()}
_PHASES: Final = {name: number for number, name in PHASE_NAMES.items()}
_PHASES_OF: Final = {
    "leased": {Phase.LEASED},
    "delayed": {Phase.WAITING, Phase.DELAYED},
    "deferred": {Phase.DEFERRED},
}
View = Mapping[str, Any]


def event_of(shown: View) -> Event:
    """Return the event that an answer shows."""
    members = {**shown, "type": _TYPES[shown["type"]], "account": DEV_ACCOUNT}
    if "message_id" in shown:
        members.setdefault("expires_at_ms", NEVER_MS)
        members.setdefault("visible_since_ms", 0)
        members["phase"] = _PHASES[shown["phase"]]
    return Event(**members)


@dataclass(slots=True)
class Log:
    """The event log, read piece by piece, and the state that it tells."""

    events: dict[tuple[int, int], Event] = field(default_factory=dict)
    replay: Replay = field(default_factory=Replay)
    last_seq: int = 0

    def read_on(self, line: Line) -> int:
        """Read what there is more by now; return how many events that was."""
        before = len(self.events)
        finished = False
        while not finished:
            page = line.json("GET", f"/events?limit={_EVENTS}&after={self.last_seq}")
            for shown in page["events"]:
                event = event_of(shown)
                self.events[event.seq, event.place] = event
                self.replay.add(event)
            self.last_seq, finished = page["next_after"], page["finished"]
        return len(self.events) - before


@dataclass(slots=True)
class Auditor:
    """Looks at a server again and again while no client is at work.

    Args:
        queues: All there are.
        changing: Those of them whose messages get other bodies, and expire.
        data: Its data folder.
        exported: The folder of exported events.
    """

    queues: Sequence[str]
    changing: Collection[str]
    data: Path
    exported: Path
    log: Log = field(default_factory=Log)
    violations: list[Violation] = field(default_factory=list)
    bodies_read: int = 0
    compared: int = 0
    """Messages compared with the log."""
    _looks: int = 0
    _names: dict[str, str] = field(default_factory=dict)
    """Of the messages whose bodies were read, by id."""

    def look(self, line: Line, *, final: bool) -> tuple[Found, ...]:
        """Compare the log and the counts with all messages, and return these.

        Bodies that were read before are not all read again, unless it is the *final* look.
        """
        self._looks += 1
        for _ in range(_LOOKS):
            self.log.read_on(line)
            views = list(self._views(line))
            now_ms = line.json("GET", f"/queues/{self.queues[0]}/counts")["at_ms"]
            counted = {queue: self._count(line, queue) for queue in self.queues}
            if not self.log.read_on(line):  # leases end, messages expire
                break
        else:
            raise AssertionError("the log does not come to rest")
        self._compare(views, now_ms)
        self.violations += miscounted(views, counted)
        found = (self._found(line, view, final=final) for view in views)
        return tuple(each for each in found if each is not None)

    def _views(self, line: Line) -> Iterator[View]:
        for queue in self.queues:
            after: str | None = ""
            while after is not None:
                query = f"limit={_PAGE}&after={after}&state={_STATES}&body=false"
                page = line.json("GET", f"/queues/{queue}/messages?{query}")
                yield from page["messages"]
                after = page["next_after"]

    @staticmethod
    def _count(line: Line, queue: str) -> tuple[int, int, int]:
        counts = line.json("GET", f"/queues/{queue}/counts")
        return counts["total"], counts["staged"], counts["at_ms"]

    def _found(self, line: Line, view: View, *, final: bool) -> Found | None:
        """Return a message with its name; None if it has vanished since, as some may."""
        message_id, queue = view["id"], view["queue"]
        changes = queue in self.changing
        is_large = view["body_bytes"] > INLINE_BYTES
        is_turn = crc32(message_id.encode()) % _TURNS == self._looks % _TURNS
        name = self._names.get(message_id)
        if name is None or changes or (is_large and (final or is_turn)):
            answer = line.send(Request("GET", f"/queues/{queue}/messages/{message_id}/body"))
            if answer.status == 404 and (changes or view["state"] == "staged"):
                return None
            self._names[message_id] = name = name_in(answer.body)
            self.bodies_read += is_large
        texts = [attempt["error"]["text"] for attempt in view["attempts"] if attempt["error"]]
        return Found(
            queue=queue,
            message_id=message_id,
            name=name,
            staged=view["state"] == "staged",
            dequeue_count=view["dequeue_count"],
            marks=tuple(text for text in texts if text.startswith(MARK)),
            reason=view["poisoned"]["reason"] if view["poisoned"] else "",
        )

    # --- the log -----------------------------------------------------------------------------

    def _compare(self, views: Sequence[View], now_ms: int) -> None:
        """What the events tell is what there is."""
        told = self.log.replay.messages()
        live = {view["id"] for view in views}
        for view in views:
            message = told.get(view["id"])
            difference = "never heard of" if message is None else _difference(message, view)
            if difference:
                self.violations.append(Violation("log", f"{difference}: {view} {message}"))
        for message_id, message in told.items():
            if message_id not in live and message.expires_at_ms > now_ms:
                self.violations.append(Violation("log", f"{message_id} is gone: {message}"))
        self.compared += len(views)

    def check_tail(self, events: Sequence[View]) -> None:
        """What was once read of the log is in it as it was."""
        for shown in events:
            event = event_of(shown)
            if self.log.events.get((event.seq, event.place)) != event:
                self.violations.append(Violation("log", f"no more as it was: {event}"))

    def check_whole_log(self, line: Line) -> None:
        """The log as it is now is the one that was read piece by piece."""
        whole = Log()
        whole.read_on(line)
        self.log.read_on(line)
        if whole.events != self.log.events or list(whole.events) != sorted(whole.events):
            self.violations.append(Violation("log", "it is not what it was"))

    def check_export(self) -> None:
        """Each event is in the exported files exactly once."""
        eventually(lambda: self._exported_seq() >= self.log.last_seq, "all events are exported")
        exported = [event for event in self._exported() if event.seq <= self.log.last_seq]
        if exported != list(self.log.events.values()):
            names = [(event.seq, event.place) for event in exported]
            detail = f"{len(names)} exported, {len(set(names))} of them different; "
            detail += f"the log has {len(self.log.events)}"
            self.violations.append(Violation("export", detail))

    def _exported(self) -> list[Event]:
        return list(events_of(eventlog.read(self.exported)))

    def _exported_seq(self) -> int:
        names = [path.stem for path in self.exported.rglob("events-*.parquet")]
        return max((int(name.rpartition("-")[2]) for name in names), default=0)

    # --- bodies ------------------------------------------------------------------------------

    def body_files(self) -> list[Path]:
        """Return the files of bodies, those that were not written to their end among them."""
        paths = (self.data / "bodies").rglob("*")
        return [path for path in paths if path.is_file() and path.name != MARK_NAME]

    def age_bodies(self) -> None:
        """Make all bodies so old that the search at the next start removes those nobody names."""
        then_s = CLOCK.now_ms() / 1000 - _OLD_S
        for path in self.body_files():
            with suppress(FileNotFoundError):  # the server removes bodies all the while
                os.utime(path, (then_s, then_s))


def miscounted(
    views: Sequence[View], counted: Mapping[str, tuple[int, int, int]]
) -> list[Violation]:
    """Compare how many messages queues say they hold, and have staged, with a list of them.

    What has expired between the list and the count is not counted.
    """
    violations = []
    for queue, (*numbers, at_ms) in counted.items():
        states = [
            view["state"] == "staged"
            for view in views
            if view["queue"] == queue and (view["expires_at_ms"] or NEVER_MS) > at_ms
        ]
        if [states.count(False), states.count(True)] != numbers:
            violations.append(Violation("count", f"{queue}: {numbers} counted, of {len(states)}"))
    return violations


def _difference(message: ReplayedMessage, view: View) -> str:
    """Return what is different between the log's message and the one in a list."""
    live: dict[str, Any] = {
        "queue": view["queue"],
        "inserted_at_ms": view["inserted_at_ms"],
        "expires_at_ms": view["expires_at_ms"] or NEVER_MS,
        "visible_at_ms": view["visible_at_ms"],
        "dequeue_count": view["dequeue_count"],
        "fence": view["fence"],
        "visible_since_ms": view["last_visible_at_ms"] or 0,
        "priority": view["priority"],
        "staged": view["under"] if view["state"] == "staged" else None,
        "claim": None if view["state"] == "staged" else view["under"],
    }
    if lease := view["lease"]:
        live |= {
            "holder": lease["holder"],
            "since_ms": lease["since_ms"],
            "renewals": lease["renewals"],
            "session": view["session"],
        }
    told = message._asdict()
    different = [name for name, value in live.items() if told[name] != value]
    phases = _PHASES_OF.get(view["state"])
    if phases is not None and message.phase not in phases:
        different.append("phase")
    return ", ".join(different)
