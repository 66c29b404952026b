"""What producers and workers noted down of a queue with groups, and what it must not show.

Each process writes what it does to a file of its own, before it goes on: so a process that is
killed has noted all that it did. Times are of the monotonic clock, which all processes of a machine
share. Everything is judged by what is certain: a message was leased between the moment its receive
was sent and the moment the answer was there, and a lease surely lasts from that answer until it was
given up, or could have ended by time.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from leasehold.client.models import Event

Outcome = Literal["done", "refused", "unknown"]
"""Of a settling: it was answered, it was certainly not carried out, or nobody can say."""
Act = Literal["complete", "poison", "return"]
"""What a settling would do: ``poison`` moves the message away for good, ``return`` does not."""

HANDED_OUT: Final = ("received", "claimed")
"""Types of the events with which a message is handed out: those that count for a rate."""
_RATE_MARGIN: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A message, as its producer knows it; numbers of a group rise by one with each put."""

    group: str | None
    number: int
    sent_s: float
    """When it was first sent."""
    time_to_live_s: float | None = None
    acknowledged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """A message in the answer to a receive."""

    group: str | None
    number: int
    answer: str
    """Name of the answer; all messages of one receive have the same."""
    place: int
    """In the answer."""
    fence: int
    count: int
    """How often it had been received."""
    sent_s: float
    got_s: float
    ends_s: float
    """Until when the lease surely lasts unless it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The work on a message, done to something that refuses whoever comes with a lower fence."""

    group: str | None
    number: int
    fence: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """A lease that its holder gave up; written down when it was sent, and again with the answer."""

    group: str | None
    number: int
    fence: int
    act: Act
    sent_s: float
    answered_s: float | None = None
    """None for want of an answer."""
    outcome: Outcome = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A group that a session has to itself; written down again when it lasts for longer, or ends.

    Those of one hold are in the file of one worker, where the last one counts.
    """

    group: str | None
    worker: str
    fence: int
    found: int
    """The state that was there: the largest number that was saved, 0 for none."""
    got_s: float
    ends_s: float
    """Until when it surely lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A larger number saved for a group; written down when it was sent, and again when it was
    answered.
    """

    group: str | None
    fence: int
    state: int
    answered_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A group that an operator has go on; written down when it was sent, and again when it was
    answered.
    """

    group: str | None
    sent_s: float
    answered_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """A session that its worker is about to end, whatever made it do so: its leases and holds may
    end from then on. A worker has one session at a time.
    """

    group: None = None
    worker: str
    sent_s: float


Entry = Put | Receive | Effect | Settle | Hold | Save | Resume | Close
_KINDS: Final = {
    kind.__name__: kind for kind in (Put, Receive, Effect, Settle, Hold, Save, Resume, Close)
}


class Notes:
    """A file of one process's own, with a line for each entry, written at once."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", buffering=1)

    def add(self, entry: Entry) -> None:
        """Note something down."""
        self._file.write(json.dumps([type(entry).__name__, asdict(entry)]) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_notes(folder: Path, names: str = "*.jsonl") -> list[Entry]:
    """Return what was noted in files of such names; a line that a kill has cut is left out."""
    entries: list[Entry] = []
    for path in sorted(folder.glob(names)):
        for line in path.read_text().splitlines():
            try:
                kind, members = json.loads(line)
            except ValueError:
                continue
            entries.append(_KINDS[kind](**members))
    return entries


Name = tuple[str | None, int]
"""Of a message: its group and its number."""


@dataclass(slots=True)
class _Message:
    """All that is known of one."""

    put: Put
    receives: list[Receive] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    settles: dict[tuple[int, float], Settle] = field(default_factory=dict)

    def could_end_s(self) -> float:
        """Return the first moment at which it can have been gone for good."""
        ends = [each.sent_s for each in self._final()]
        if self.put.time_to_live_s is not None:
            ends.append(self.put.sent_s + self.put.time_to_live_s)
        return min(ends, default=math.inf)

    def is_gone(self) -> bool:
        """Tell whether it may be gone without a fault."""
        return self.could_end_s() < math.inf

    def surely_gone_s(self) -> float:
        """Return from when on it is certain that it is gone for good."""
        answers = (s.answered_s for s in self._final() if s.outcome == "done")
        return min((each for each in answers if each is not None), default=math.inf)

    def _final(self) -> Iterable[Settle]:
        for each in self.settles.values():
            if each.act != "return" and each.outcome != "refused":
                yield each

    def held_until_s(self, receive: Receive) -> float:
        """Return until when a lease surely lasted."""
        gives_up = (s.sent_s for s in self.settles.values() if s.fence == receive.fence)
        return min(receive.ends_s, *gives_up, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the queue's settings say."""

    in_order: bool = True
    max_in_flight: int | None = None
    rate_per_s: float | None = None
    """Messages of a group a second; None for any number."""
    burst: int = 1
    halts: bool = False
    """Whether a group that had a message poisoned gives nothing until it is resumed."""


def is_free(group: str | None) -> bool:
    """Tell whether a name is not that of a group: it is empty behind the name of the queue."""
    return group is None or group.endswith(":")


def check(
    entries: Iterable[Entry], promise: Promise, left: Iterable[Name] | None = None
) -> list[str]:
    """Return what the entries show that may not be.

    Args:
        entries: What was noted, in any order.
        promise: What the queue is to keep.
        left: Messages still there in the end, in the queue or as poison; None if nobody looked.
    """
    entries = _cut_short(entries)
    messages, faults = _by_name(entries)
    faults += _faults_of_holds(entries)
    resumes = _resumes(entries)
    by_group: dict[str | None, list[_Message]] = defaultdict(list)
    for name in sorted(messages, key=lambda name: (name[0] or "", name[1])):
        by_group[name[0]].append(messages[name])
    for message in messages.values():
        faults += _faults_of_one(message)
    for group, members in by_group.items():
        if not is_free(group):
            if promise.in_order:
                faults += _disorder(members)
                faults += _effects_out_of_order(members)
            if promise.max_in_flight is not None:
                faults += _above(members, promise.max_in_flight)
            if promise.halts:
                faults += _past_a_halt(members, resumes[group])
    if left is not None:
        there = set(left)
        for name, message in messages.items():
            if message.put.acknowledged and name not in there and not message.is_gone():
                faults.append(f"lost: {name}")
            if name in there and message.surely_gone_s() < math.inf:
                faults += [f"back: {name}"] if _was_completed(message) else []
    return faults


def _cut_short(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries with receives and holds that end no later than their session's end."""
    entries = list(entries)
    closes_s: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry, Close):
            closes_s[entry.worker].append(entry.sent_s)
    for each in closes_s.values():
        each.sort()

    def shortened(entry: Entry) -> Entry:
        if isinstance(entry, Hold):
            worker = entry.worker
        elif isinstance(entry, Receive):
            worker = entry.answer.rpartition("-")[0]
        else:
            return entry
        later_s = closes_s[worker][bisect_left(closes_s[worker], entry.got_s) :]
        return replace(entry, ends_s=min([entry.ends_s, *later_s[:1]]))

    return [shortened(entry) for entry in entries if not isinstance(entry, Close)]


def _by_name(entries: Iterable[Entry]) -> tuple[dict[Name, _Message], list[str]]:
    messages: dict[Name, _Message] = {}
    others: list[Receive | Effect | Settle] = []
    for entry in entries:
        if isinstance(entry, Put):
            known = messages.get((entry.group, entry.number))
            if known is None:
                messages[entry.group, entry.number] = _Message(entry)
            elif entry.acknowledged:
                known.put = entry
        elif not isinstance(entry, Hold | Save | Resume | Close):
            others.append(entry)
    faults: list[str] = []
    for other in others:
        message = messages.get((other.group, other.number))
        if message is None:
            faults.append(f"from nowhere: {other}")
        elif isinstance(other, Receive):
            message.receives.append(other)
        elif isinstance(other, Effect):
            message.effects.append(other)
        else:
            key = (other.fence, other.sent_s)
            if key not in message.settles or other.answered_s is not None:
                message.settles[key] = other
    return messages, faults


def _was_completed(message: _Message) -> bool:
    return any(s.act == "complete" and s.outcome == "done" for s in message.settles.values())


def _faults_of_one(message: _Message) -> list[str]:
    """Two holders at once, a fence that does not rise, and one that comes back after its end."""
    faults: list[str] = []
    receives = sorted(message.receives, key=lambda each: each.fence)
    for one, two in pairwise(receives):
        if one.fence == two.fence:
            faults.append(f"two leases with one fence: {one}, {two}")
        if two.got_s < one.sent_s:
            faults.append(f"a fence that does not rise: {one}, {two}")
        if two.got_s < message.held_until_s(one):
            faults.append(f"two holders at once: {one}, {two}")
    gone_s = message.surely_gone_s()
    faults += [f"back: {each}" for each in receives if each.sent_s > gone_s]
    return faults


def _faults_of_holds(entries: Sequence[Entry]) -> list[str]:
    """Two holders of a group at once, others that get its messages, and a state that is not the
    last one.
    """
    holds: dict[str | None, dict[int, Hold]] = defaultdict(dict)
    saves: dict[str | None, list[Save]] = defaultdict(list)
    receives: dict[str | None, list[Receive]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry, Hold):
            known = holds[entry.group].setdefault(entry.fence, entry)
            holds[entry.group][entry.fence] = replace(known, ends_s=entry.ends_s)
        elif isinstance(entry, Save):
            saves[entry.group].append(entry)
        elif isinstance(entry, Receive):
            receives[entry.group].append(entry)
    faults: list[str] = []
    for group, by_fence in holds.items():
        in_order = [by_fence[fence] for fence in sorted(by_fence)]
        for one, two in pairwise(in_order):
            if two.got_s < one.ends_s:
                faults.append(f"two holders of a group: {one}, {two}")
        for hold in in_order:
            before = [each for each in saves[group] if each.fence < hold.fence]
            least = max((each.state for each in before if each.answered_s is not None), default=0)
            most = max((each.state for each in before), default=0)
            if not least <= hold.found <= most:
                faults.append(f"a state of {hold.found}, not {least} to {most}: {hold}")
            faults += [
                f"received past a holder: {each}, {hold}"
                for each in receives[group]
                if each.answer.rpartition("-")[0] != hold.worker
                and hold.got_s < each.sent_s
                and each.got_s < hold.ends_s
            ]
    return faults


def _disorder(members: Sequence[_Message]) -> list[str]:
    """Return receives of a group that let a message past an earlier one.

    A holder that got both in one answer may have both. Otherwise the earlier one must be gone, or
    must be able to be gone, when the later one was there; and if it was received after that it was
    not gone, whatever its holder may think.
    """
    faults: list[str] = []
    there_s = [
        max([each.could_end_s(), *(receive.sent_s for receive in each.receives)])
        for each in members
    ]
    latest_s = -math.inf
    for place, later in enumerate(members):
        for receive in later.receives if latest_s > -math.inf else ():
            if latest_s <= receive.got_s:
                continue
            for earlier, until_s in zip(members[:place], there_s, strict=False):
                if until_s > receive.got_s and not _has_answer(earlier, receive.answer):
                    name = (earlier.put.group, earlier.put.number)
                    faults.append(f"out of order: {receive} before {name}")
        latest_s = max(latest_s, there_s[place])
    answers: dict[str, list[int]] = defaultdict(list)
    for later in members:
        for receive in later.receives:
            answers[receive.answer].append(receive.place)
    faults += [f"out of order in one answer: {a}" for a, n in answers.items() if n != sorted(n)]
    return faults


def _has_answer(message: _Message, answer: str) -> bool:
    return any(each.answer == answer for each in message.receives)


def _effects_out_of_order(members: Sequence[_Message]) -> list[str]:
    """Return effects of a message that came while an earlier one could not be gone yet."""
    faults: list[str] = []
    latest_s = -math.inf
    for message in members:
        faults += [
            f"effects out of order: {each}" for each in message.effects if each.at_s < latest_s
        ]
        latest_s = max(latest_s, message.could_end_s())
    return faults


def _above(members: Sequence[_Message], limit: int) -> list[str]:
    """Return moments at which more messages of a group than allowed were surely on leases."""
    moments: list[tuple[float, int, Receive]] = []
    for message in members:
        for receive in message.receives:
            until_s = message.held_until_s(receive)
            if until_s > receive.got_s:
                moments += [(receive.got_s, 1, receive), (until_s, -1, receive)]
    faults: list[str] = []
    count = 0
    for at_s, step, receive in sorted(moments, key=lambda each: each[:2]):
        count += step
        if step > 0 and count > limit:
            faults.append(f"{count} in flight, {limit} allowed, at {at_s}: {receive}")
    return faults


def _resumes(entries: Iterable[Entry]) -> dict[str | None, list[Resume]]:
    """Return the resumes of each group, each once: answered, if it was."""
    found: dict[str | None, dict[float, Resume]] = defaultdict(dict)
    for entry in entries:
        if isinstance(entry, Resume):
            known = found[entry.group].setdefault(entry.sent_s, entry)
            if known.answered_s is None:
                found[entry.group][entry.sent_s] = entry
    return defaultdict(list, {group: list(by_time.values()) for group, by_time in found.items()})


def _past_a_halt(members: Sequence[_Message], resumes: Sequence[Resume]) -> list[str]:
    """Return receives of a group between a message's poisoning and whatever may have resumed it.

    The group surely stands still from the answer that says that the message was poisoned. A resume
    counts from when it was sent, unless it was answered before the poisoning was asked for.
    """
    faults: list[str] = []
    receives = [receive for message in members for receive in message.receives]
    for settle in (each for message in members for each in message.settles.values()):
        since_s = settle.answered_s
        if settle.act != "poison" or settle.outcome != "done" or since_s is None:
            continue
        until_s = min(
            (
                each.sent_s
                for each in resumes
                if each.answered_s is None or each.answered_s > settle.sent_s
            ),
            default=math.inf,
        )
        faults += [
            f"received while it stood still: {each}, {settle}"
            for each in receives
            if since_s < each.sent_s and each.got_s < until_s
        ]
    return faults


def logged_past_a_halt(events: Iterable[Event], queue: str) -> list[str]:
    """Return what a server's log has against groups that stand still, event by event.

    Args:
        events: All there are, in their order.
        queue: Whose groups stand still when a message of them is poisoned.
    """
    faults: list[str] = []
    halted: set[str] = set()
    for event in events:
        group = event.group_id
        if event.queue != queue or group is None:
            continue
        if event.type in {"poisoned", "group-halted"}:
            halted.add(group)
        elif event.type == "group-resumed":
            halted.discard(group)
        elif event.type in HANDED_OUT and group in halted:
            faults.append(f"handed out while its group stood still: {event}")
    return faults


def above_rate(times_s: Iterable[float], rate_per_s: float, burst: float) -> list[str]:
    """Return the receives of one group that came before a token bucket could have let them.

    Args:
        times_s: When the server gave a message, by its own clock.
        rate_per_s: Messages a second.
        burst: Messages at once, 1 or more.
    """
    faults: list[str] = []
    tokens, last_s = burst, -math.inf
    for at_s in sorted(times_s):
        tokens = min(burst, tokens + (at_s - last_s) * rate_per_s)
        last_s = at_s
        tokens -= 1
        if tokens < -_RATE_MARGIN:
            faults.append(f"above the rate at {at_s}")
            tokens = 0.0
    return faults


def figures(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return what was done, in numbers."""
    entries = list(entries)
    messages, _ = _by_name(entries)
    holds = {(each.group, each.fence) for each in entries if isinstance(each, Hold)}
    settles = [s for message in messages.values() for s in message.settles.values()]
    return {
        "messages": len(messages),
        "holds": len(holds),
        "resumes": sum(len(each) for each in _resumes(entries).values()),
        "acknowledged": sum(message.put.acknowledged for message in messages.values()),
        "receives": sum(len(message.receives) for message in messages.values()),
        "received_again": sum(max(0, len(m.receives) - 1) for m in messages.values()),
        "completed": sum(_was_completed(message) for message in messages.values()),
        "refused": sum(s.outcome == "refused" for s in settles),
        "unknown": sum(s.outcome == "unknown" for s in settles),
        "poisoned": sum(
            any(s.act == "poison" and s.outcome == "done" for s in m.settles.values())
            for m in messages.values()
        ),
    }
