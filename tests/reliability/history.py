"""What clients saw of a queue, and what must be true of it whatever happened to the server.

Clients write down every call before they make it and every answer when they have it, in files of
their own. Each line carries a number from one counter, so "A had ended before B began" is known
for certain, across threads and without trusting any clock.

A call without an answer may have taken effect or not: the checks allow both.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, count
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, Self

from tests.reliability.running import Answer, Delivery, deliveries

Verb = Literal["put", "get", "update", "delete"]

FINE: Final[dict[Verb, frozenset[int]]] = {
    "put": frozenset({201}),
    "get": frozenset({200}),
    "update": frozenset({204, 404}),
    "delete": frozenset({204, 404}),
}
"""The answers each verb may get from a server that is neither full nor overloaded."""

CLOCK_SLACK_S: Final = 0.05
"""Leases are whole milliseconds of the server's clock, which a restart reads anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call."""

    queue: str
    verb: Verb
    begun: int
    """Number of its intent."""
    begun_s: float = 0.0
    """When, on the monotonic clock of the clients' machine."""
    ended: int = 0
    """Number of its answer, or of the moment the client gave up."""
    ended_s: float = 0.0
    message_id: str = ""
    receipt: str = ""
    """The receipt that was presented."""
    text: str | None = None
    """The text written; None for an update that left it alone."""
    hidden_s: int = 0
    """Lease, or delay of a put, that was asked for."""
    status: int | None = None
    """None when no answer came."""
    new_receipt: str = ""
    """The receipt that a put or an update gave."""
    taken: tuple[Delivery, ...] = ()

    @property
    def acknowledged(self) -> bool:
        """Whether the server said that it has done it."""
        return self.status is not None and self.status < 300

    @property
    def may_have_acted(self) -> bool:
        """Whether it has taken effect, or that is unknown."""
        return self.status is None or self.acknowledged


class Record:
    """The file of one client.

    Args:
        path: Appended to; on another file system than the data of the server under test.
        numbers: The one counter of all clients.
    """

    def __init__(self, path: Path, numbers: count[int]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = numbers

    def intent(self, **asked: Any) -> int:
        """Write down what is about to be asked, and return its number."""
        number = next(self._numbers)
        self._write({"begun": number, "begun_s": monotonic(), **asked})
        return number

    def answer(self, begun: int, verb: Verb, answer: Answer | None) -> Event:
        """Write down what came of the call that began as *begun*; return the answer's part of it.

        Args:
            begun: Number of the intent.
            verb: What was asked.
            answer: None when there was none.
        """
        end: dict[str, Any] = {"begun": begun, "ended": next(self._numbers), "ended_s": monotonic()}
        end["status"] = answer.status if answer else None
        if answer and answer.status < 300:
            if verb in {"put", "get"}:
                taken = deliveries(answer)
                end["taken"] = [asdict(each) for each in taken]
                end["new_receipt"] = taken[0].receipt if verb == "put" else ""
            elif verb == "update":
                end["new_receipt"] = answer.headers["x-ms-popreceipt"]
        self._write(end)
        return _event({"queue": "", "verb": verb, **end})

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read_records(paths: Iterable[Path]) -> list[Event]:
    """Return all calls in the files at *paths*, in the order in which they began."""
    calls: dict[int, dict[str, Any]] = defaultdict(dict)
    for path in paths:
        for line in path.read_text().splitlines():
            part = json.loads(line)
            calls[part["begun"]].update(part)
    return [_event(calls[begun]) for begun in sorted(calls)]


def _event(fields: dict[str, Any]) -> Event:
    taken = tuple(Delivery(**each) for each in fields.get("taken", ()))
    return Event(**{**fields, "taken": taken})


def root_of(text: str) -> str:
    """Return the name that a text shares with all later texts of the same message."""
    return text.partition("/")[0]


class Violation(NamedTuple):
    """Something that must not be."""

    kind: str
    detail: str


class Birth(NamedTuple):
    """A receipt comes into the world: by a put, a get or an update."""

    receipt: str
    event: Event
    delivery: Delivery | None
    """What the get delivered with it."""


@dataclass(slots=True)
class Story:
    """Everything known of one message."""

    put: Event
    ids: set[str] = field(default_factory=set)
    births: list[Birth] = field(default_factory=list)
    acts: list[Event] = field(default_factory=list)
    """Updates and deletes, answered or not, refused ones too."""
    drained: bool = False

    @property
    def deliveries(self) -> list[tuple[Event, Delivery]]:
        """What gets delivered, in the order in which they began."""
        return [(each.event, each.delivery) for each in self.births if each.delivery]

    @property
    def writes(self) -> Iterator[Event]:
        """Yield the calls that may have set the text."""
        yield self.put
        yield from (act for act in self.acts if act.text is not None and act.may_have_acted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """What came out of the queues at the end, when nobody else used them."""

    counted: int
    """What the server said it holds, before the first message was taken."""
    taken: Sequence[Delivery]
    counted_after: int
    """What it said when all that had been taken was deleted."""


class History:
    """All calls of all clients, and the checks on them.

    Args:
        events: The calls, those of the drain among them.
        drain: What came out at the end.
    """

    def __init__(self, events: Sequence[Event], drain: Drain) -> None:
        self.events = events
        self.drain = drain
        self.violations: list[Violation] = []
        self.stories: dict[str, Story] = {}
        self._by_id: dict[str, Story] = {}
        self._collect()

    @classmethod
    def checked(cls, events: Sequence[Event], drain: Drain) -> Self:
        """Return the history with all violations found."""
        history = cls(events, drain)
        history.check()
        return history

    def check(self) -> None:
        """Look for everything that must not be."""
        for event in self.events:
            if event.status is not None and event.status not in FINE[event.verb]:
                self._found("status", f"{event.verb} was answered {event.status}: {event}")
        if self.drain.counted != len(self.drain.taken):
            held = f"{self.drain.counted} counted, {len(self.drain.taken)} taken"
            self._found("count", held)
        if self.drain.counted_after:
            self._found("count", f"{self.drain.counted_after} counted in empty queues")
        for name, story in self.stories.items():
            self._check_existence(name, story)
            self._check_deliveries(name, story)
            self._check_texts(name, story)
            self._check_receipts(name, story)

    def _found(self, kind: str, detail: str) -> None:
        self.violations.append(Violation(kind, detail))

    # Collecting

    def _collect(self) -> None:
        self._unanswered_gets = [
            event for event in self.events if event.verb == "get" and event.status is None
        ]
        for event in self.events:
            if event.verb == "put":
                assert event.text is not None
                self.stories[root_of(event.text)] = Story(event)
        for event in self.events:
            if event.verb == "put" and event.taken:
                assert event.text is not None
                story = self.stories[root_of(event.text)]
                self._know_id(story, event.taken[0].message_id)
                story.births.append(Birth(event.new_receipt, event, None))
            elif event.verb == "get":
                for delivery in event.taken:
                    self._collect_delivery(event, delivery)
        for event in self.events:
            if event.verb in {"update", "delete"}:
                story = self._by_id[event.message_id]
                story.acts.append(event)
                if event.new_receipt:
                    story.births.append(Birth(event.new_receipt, event, None))
        for delivery in self.drain.taken:
            if root_of(delivery.text) in self.stories:
                self.stories[root_of(delivery.text)].drained = True

    def _collect_delivery(self, event: Event, delivery: Delivery) -> None:
        story = self.stories.get(root_of(delivery.text))
        if story is None:
            self._found("unexpected", f"nobody has put this: {delivery}")
            return
        self._know_id(story, delivery.message_id)
        story.births.append(Birth(delivery.receipt, event, delivery))

    def _know_id(self, story: Story, message_id: str) -> None:
        story.ids.add(message_id)
        other = self._by_id.setdefault(message_id, story)
        if other is not story:
            self._found("id reused", f"{message_id} is {other.put.text!r} and {story.put.text!r}")
        if len(story.ids) == 2:
            self._found("doubled", f"{story.put.text!r} was put once and is {story.ids}")

    # Checking one message

    def _check_existence(self, name: str, story: Story) -> None:
        deletes = [act for act in story.acts if act.verb == "delete"]
        done = [act for act in deletes if act.acknowledged]
        if story.ids and not story.drained and not any(act.may_have_acted for act in deletes):
            self._found("lost", f"{name}: {story.put}")
        if len(done) > 1:
            self._found("deleted twice", f"{name}: {done}")
        for end in done:
            later = [birth for birth in story.births if birth.event.begun > end.ended]
            if later:
                self._found("resurrected", f"{name}: deleted by {end}, then {later}")

    def _check_deliveries(self, name: str, story: Story) -> None:
        seen = story.deliveries
        for (first, one), (second, two) in combinations(seen, 2):
            if one.dequeue_count == two.dequeue_count or (
                first.ended < second.begun and one.dequeue_count > two.dequeue_count
            ):
                self._found("dequeue count", f"{name}: {one} in {first}, then {two} in {second}")
        unanswered = sum(get.queue == story.put.queue for get in self._unanswered_gets)
        highest = max((delivery.dequeue_count for _, delivery in seen), default=1)
        if not 1 <= highest <= len(seen) + unanswered and seen:
            self._found("dequeue count", f"{name}: {highest} after {len(seen)} + {unanswered} gets")
        for birth in story.births:
            for event, delivery in seen:
                if _is_hidden(story, birth, event, delivery):
                    self._found("too early", f"{name}: {delivery} hidden by {birth.event}")

    def _check_texts(self, name: str, story: Story) -> None:
        writes = list(story.writes)
        for event, delivery in story.deliveries:
            possible = {
                write.text
                for write in writes
                if write.begun < event.ended
                and not any(
                    other.acknowledged and other.begun > write.ended and other.ended < event.begun
                    for other in writes
                )
            }
            if delivery.text not in possible:
                kinds = {write.text for write in writes}
                kind = "stale text" if delivery.text in kinds else "unexpected"
                self._found(kind, f"{name}: {delivery} in {event}; possible were {possible}")

    def _check_receipts(self, name: str, story: Story) -> None:
        receipts = [birth.receipt for birth in story.births]
        if len(set(receipts)) != len(receipts):
            self._found("receipt reused", f"{name}: {receipts}")
        born = {birth.receipt: birth.event for birth in story.births}
        for act in story.acts:
            own = born.get(act.receipt)
            if own is None:
                self._found("receipt", f"{name}: acted with a receipt of nobody: {act}")
            elif act.acknowledged:
                newer = [
                    birth.event
                    for birth in story.births
                    if birth.event.begun > own.ended and birth.event.ended < act.begun
                ]
                if newer:
                    self._found("stale receipt", f"{name}: {act} after {newer[-1]}")
            elif act.status is not None and not self._superseded(story, own, act):
                self._found("refused", f"{name}: {act}, though nothing has happened since {own}")

    def _superseded(self, story: Story, own: Event, act: Event) -> bool:
        """Tell whether anything may have taken the receipt from *own* before *act* was refused."""
        others = [birth.event for birth in story.births]
        others += [other for other in story.acts if other.may_have_acted]
        others += [get for get in self._unanswered_gets if get.queue == story.put.queue]
        return any(
            other is not own
            and other is not act
            and other.ended > own.begun
            and other.begun < act.ended
            for other in others
        )

    # Totals

    def acknowledged(self, verb: Verb) -> int:
        """Return how many calls of one verb were acknowledged."""
        return sum(event.verb == verb and event.acknowledged for event in self.events)

    def unanswered(self) -> int:
        """Return how many calls got no answer."""
        return sum(event.status is None for event in self.events)

    def recovered(self) -> int:
        """Return how many puts without an answer had taken effect."""
        return sum(story.put.status is None and bool(story.ids) for story in self.stories.values())

    def summary(self) -> str:
        """Return the totals in a few lines; a bound by the rule of three where nothing failed."""
        puts, deletes = self.acknowledged("put"), self.acknowledged("delete")
        lost = sum(found.kind == "lost" for found in self.violations)
        back = sum(found.kind == "resurrected" for found in self.violations)
        return (
            f"{lost} of {puts} acknowledged puts lost{_bound(lost, puts)}\n"
            f"{back} of {deletes} acknowledged deletes undone{_bound(back, deletes)}\n"
            f"{self.acknowledged('get')} gets, {self.acknowledged('update')} updates; "
            f"{self.unanswered()} calls unanswered, {self.recovered()} puts among them had worked\n"
            f"{len(self.drain.taken)} drained of {self.drain.counted} counted; "
            f"{len(self.violations)} violations"
        )


def _is_hidden(story: Story, birth: Birth, get: Event, delivery: Delivery) -> bool:
    """Tell whether *get* delivered what the call behind *birth* had hidden for longer."""
    cause = birth.event
    if birth.delivery is None:
        follows = cause.ended < get.begun
    else:  # of two gets, the later one has the higher count, even if they overlap
        follows = birth.delivery.dequeue_count < delivery.dequeue_count
    if not follows or get.ended_s >= cause.begun_s + cause.hidden_s - CLOCK_SLACK_S:
        return False
    return not any(  # an update may have ended the lease
        act.verb == "update" and act.may_have_acted and act is not cause
        for act in story.acts
        if act.ended > cause.begun and act.begun < get.ended
    )


def _bound(failed: int, tried: int) -> str:
    return f" (95 % upper bound {3 / tried:.1e})" if tried and not failed else ""
