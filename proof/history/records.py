"""What clients write down of their calls, and what it makes together: a history.

Each client has a file of its own. A line is written before a call is made and another one when its
end is known; both go straight to the operating system, so a client may be killed at any time. The
times are those of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

_PATTERN: Final = "0123456789abcdef"


class Verb(StrEnum):
    """What is asked of a queue."""

    PUT = "put"
    RECEIVE = "receive"
    PEEK = "peek"
    RENEW = "renew"
    RELEASE = "release"
    COMPLETE = "complete"
    COUNT = "count"


class Outcome(StrEnum):
    """What is known of the end of a call."""

    OK = "ok"
    """It was done."""
    REFUSED = "refused"
    """It was not done, and never will be."""
    UNKNOWN = "unknown"
    """It was done, or not, or will be: nobody has told."""


class Delivery(Struct, frozen=True, omit_defaults=True):
    """One message in the answer to a receive or a peek."""

    body: str
    token: str = ""
    """The receipt of this lease; empty after a peek."""
    attempt: int | None = None
    """How often it was handed out, this time included; None if the system does not say."""
    message_id: str = ""
    """The system's own name of the message; empty if it has none."""
    saved: str = ""
    """What a holder had saved with it."""


class Invocation(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="i"):
    """A call that is about to be made."""

    client: str
    number: int
    """Of the call, among those of the client."""
    verb: Verb
    queue: str
    invoked_s: float
    message: str = ""
    """The message's name, of all but receive, peek and count."""
    group: str = ""
    hidden_s: float = 0.0
    """The lease of a receive or renewal, the delay of a put or release."""
    limit: int = 0
    """Most messages that a receive takes."""
    token: str = ""
    """The receipt that is presented."""
    saved: str = ""
    """What a renewal is to save; empty: nothing."""


class Completion(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="c"):
    """The end of a call, by number of its invocation."""

    client: str
    number: int
    completed_s: float
    outcome: Outcome
    reason: str = ""
    """Why it was refused, or why nothing is known."""
    delivered: tuple[Delivery, ...] = ()
    token: str = ""
    """The receipt that a renewal gave."""
    count: int | None = None


class FaultRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="f"):
    """Something was done to the system under test."""

    name: str
    begun_s: float
    ended_s: float
    detail: str = ""
    step_s: float = 0.0
    """How far the system's own time may have been moved meanwhile, seconds, forward above 0. A
    system that promises not to notice a step has 0 here."""


class Barrier(Struct, frozen=True, tag="b"):
    """No call whose client had given up before this moment can take effect after it."""

    at_s: float


class ClockReading(Struct, frozen=True, tag="k"):
    """How far the wall clock was ahead of the monotonic one, less what it was at first."""

    at_s: float
    drift_s: float


class Drained(Struct, frozen=True, tag="d"):
    """All that could be received was received and completed, with nobody else about."""

    at_s: float


class Ended(Struct, frozen=True, tag="e"):
    """A client's process was gone by this moment, and its open call given up with it."""

    client: str
    at_s: float


Record = Invocation | Completion | FaultRecord | Barrier | ClockReading | Drained | Ended
_DECODER: Final = msgspec.json.Decoder(Record)


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """One call, whole. See :class:`Invocation` and :class:`Completion` for what is in it."""

    client: str
    number: int
    verb: Verb
    queue: str
    invoked_s: float
    completed_s: float
    """When the client knew, or gave up; infinite if it was never heard of again."""
    outcome: Outcome
    message: str = ""
    group: str = ""
    hidden_s: float = 0.0
    limit: int = 0
    token: str = ""
    saved: str = ""
    reason: str = ""
    delivered: tuple[Delivery, ...] = ()
    new_token: str = ""
    count: int | None = None

    @property
    def is_ok(self) -> bool:
        """Whether it was done for certain."""
        return self.outcome is Outcome.OK

    @property
    def may_have_acted(self) -> bool:
        """Whether it was done, or that is unknown."""
        return self.outcome is not Outcome.REFUSED

    def __str__(self) -> str:
        end = "never" if self.completed_s == inf else f"{self.completed_s:.6f}"
        asked = f"{self.message or self.queue}"
        asked += f" for {self.hidden_s:g} s" if self.hidden_s else ""
        asked += f" with ..{self.token[-6:]}" if self.token else ""
        told = f" ({self.reason})" if self.reason else ""
        who = f"{self.client}#{self.number}"
        return f"[{self.invoked_s:.6f}, {end}] {who} {self.verb} {asked}: {self.outcome}{told}"


@dataclass(slots=True, kw_only=True)
class History:
    """All that is on record of one run."""

    operations: list[Operation] = field(default_factory=list)
    """In the order in which they were invoked."""
    faults: list[FaultRecord] = field(default_factory=list)
    barriers: list[float] = field(default_factory=list)
    drifts: list[ClockReading] = field(default_factory=list)
    drained_s: float | None = None
    """When all was drained; None if that was not tried, or did not succeed."""

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        """Put records together; those of one client must be in its order."""
        history = cls()
        ended_s: dict[str, float] = {}
        open_calls: dict[tuple[str, int], Operation] = {}
        for record in records:
            if isinstance(record, Invocation):
                operation = _begun(record)
                open_calls[record.client, record.number] = operation
                history.operations.append(operation)
            elif isinstance(record, Completion):
                _end(open_calls.pop((record.client, record.number)), record)
            elif isinstance(record, FaultRecord):
                history.faults.append(record)
            elif isinstance(record, Barrier):
                history.barriers.append(record.at_s)
            elif isinstance(record, ClockReading):
                history.drifts.append(record)
            elif isinstance(record, Ended):
                ended_s[record.client] = record.at_s
            else:
                history.drained_s = record.at_s
        for (client, _), operation in open_calls.items():
            operation.completed_s = ended_s.get(client, inf)
        history.operations.sort(key=lambda each: each.invoked_s)
        history.barriers.sort()
        return history

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read all files of a run."""
        return cls.of(record for path in sorted(folder.glob("*.jsonl")) for record in _lines(path))


def _begun(record: Invocation) -> Operation:
    return Operation(
        client=record.client,
        number=record.number,
        verb=record.verb,
        queue=record.queue,
        invoked_s=record.invoked_s,
        completed_s=inf,
        outcome=Outcome.UNKNOWN,
        message=record.message,
        group=record.group,
        hidden_s=record.hidden_s,
        limit=record.limit,
        token=record.token,
        saved=record.saved,
        reason="the client was killed",
    )


def _end(operation: Operation, record: Completion) -> None:
    operation.completed_s = record.completed_s
    operation.outcome = record.outcome
    operation.reason = record.reason
    operation.delivered = record.delivered
    operation.new_token = record.token
    operation.count = record.count


def _lines(path: Path) -> Iterator[Record]:
    """Yield what is in a file; the last line of a client that was killed may be a part of one."""
    content = path.read_bytes()
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        yield _DECODER.decode(line)


class Recorder:
    """The file of one client.

    Args:
        path: Appended to; on another file system than the data of the system under test.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, record: Record) -> None:
        """Write one record; when this returns, the end of the process cannot undo it."""
        os.write(self._file, msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def body_of(message: str, size: int = 0) -> str:
    """Return the body of a message by its name, which has no colon; *size* characters follow."""
    repeated = _PATTERN * (size // len(_PATTERN) + 1)
    return f"{message}:{size}:{repeated[:size]}"


def message_of(body: str) -> str:
    """Return the name of the message with this body; empty if nobody can have put it so."""
    message, _, rest = body.partition(":")
    size, _, _ = rest.partition(":")
    if size.isdecimal() and body == body_of(message, int(size)):
        return message
    return ""
