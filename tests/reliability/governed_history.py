"""What clients saw of queues that are governed, and what must be true after any kill.

There are three kinds of messages. Those that STAY are sent, failed and completed; those to go AGAIN
are failed and redriven, never completed; those to SWEEP are purged, never completed. So of the
jobs, too, every single move is accounted for in the end.

A call without an answer may have taken effect or not: the checks allow both.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tests.reliability.history import Violation

Kind = Literal["stay", "again", "sweep"]
Act = Literal["send", "complete", "release", "job"]
KINDS: Final[tuple[Kind, ...]] = ("stay", "again", "sweep")
POISON_SUFFIX: Final = "-poison"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing that was asked for one message, or a job."""

    act: Act
    queue: str
    root: str = ""
    """Name of the message, also its deduplication key; of a job its kind."""
    message_id: str = ""
    """Of a send what the server answered; of a job its id. Empty if nothing came."""
    answered: bool = False
    done: bool = False
    """Whether the server said that it has done it."""
    poisoned: str = ""
    """Why a release moved the message to the poison queue."""

    @property
    def may_have_acted(self) -> bool:
        """Whether it has taken effect, or that is unknown."""
        return self.done or not self.answered


class Deeds:
    """The record of one client, in memory and in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.all: list[Deed] = []
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def intend(self, *deeds: Deed) -> range:
        """Write down what is about to be asked; return the places of it."""
        first = len(self.all)
        self.all += deeds
        self._write(deeds)
        return range(first, len(self.all))

    def answer(self, place: int, deed: Deed) -> None:
        """Write down what came of what was intended in this place."""
        self.all[place] = deed
        self._write([deed])

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, deeds: Iterable[Deed]) -> None:
        lines = "".join(json.dumps(asdict(deed)) + "\n" for deed in deeds)
        os.write(self._file, lines.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A message in a listing of the queue that it is in."""

    queue: str
    message_id: str
    root: str
    poisoned_in: str = ""
    """The queue that it failed in, as the message says."""
    reason: str = ""
    redriven: int = 0

    @property
    def is_poison(self) -> bool:
        """Whether it was found in a poison queue."""
        return self.queue.endswith(POISON_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All messages there are, listed while no client was at work."""

    found: Sequence[Found]
    jobs: Sequence[dict[str, Any]] = ()
    counted: dict[str, int] = field(default_factory=dict)
    """What each queue says it holds."""
    final: bool = True
    """Whether all jobs are over, and every send was answered."""


def kind_of(root: str) -> str:
    """Return the kind of the message of this name."""
    return root.partition("-")[0]


class Judge:
    """Compares an audit with what is on record."""

    def __init__(self, deeds: Sequence[Deed], audit: Audit) -> None:
        self.violations: list[Violation] = []
        self._audit = audit
        self._ids: dict[str, set[str]] = defaultdict(set)
        self._gone: set[str] = set()
        self._may_be_gone: set[str] = set()
        self._poisoned: dict[str, str] = {}
        self._started: list[str] = []
        self._roots: set[str] = set()
        for deed in deeds:
            self._take(deed)
        self._by_root: dict[str, list[Found]] = defaultdict(list)
        for found in audit.found:
            self._by_root[found.root].append(found)

    def _take(self, deed: Deed) -> None:
        if deed.act == "send":
            self._roots.add(deed.root)
            if deed.done:
                self._ids[deed.root].add(deed.message_id)
        elif deed.act == "complete" and deed.may_have_acted:
            self._may_be_gone.add(deed.root)
            if deed.done:
                self._gone.add(deed.root)
        elif deed.act == "release" and deed.poisoned:
            self._poisoned[deed.root] = deed.poisoned
        elif deed.act == "job" and deed.done:
            self._started.append(deed.message_id)

    def judged(self) -> list[Violation]:
        """Return everything that must not be."""
        self._check_identities()
        for root in self._roots:
            self._check_place(root)
        for found in self._audit.found:
            self._check_whole(found)
        if self._audit.final:
            self._check_jobs()
            self._check_counts()
        return self.violations

    def _found(self, kind: str, detail: str) -> None:
        self.violations.append(Violation(kind, detail))

    def _check_identities(self) -> None:
        for root, ids in self._ids.items():
            if len(ids) > 1:
                self._found("doubled", f"{root} was sent under one key and is {ids}")
        for root, found in self._by_root.items():
            if root not in self._roots:
                self._found("unexpected", f"nobody has sent {root}: {found}")
            # A job moves messages between the pages of a listing that is not the last.
            if len(found) > 1 and (self._audit.final or kind_of(root) == "stay"):
                self._found("in two places", f"{root}: {found}")
            for each in found:
                if self._ids[root] and each.message_id not in self._ids[root]:
                    self._found("doubled", f"{root}: {each}, known as {self._ids[root]}")

    def _check_place(self, root: str) -> None:
        """Look for one message where it must be; only jobs move the kinds that are not to stay."""
        found = self._by_root.get(root, [])
        if root in self._gone and found:
            self._found("resurrected", f"{root}: {found}")
        kind = kind_of(root)
        known = root in self._ids or (self._audit.final and root not in self._may_be_gone)
        if not known or not (kind == "stay" or (kind == "again" and self._audit.final)):
            return
        if not found and root not in self._may_be_gone:
            self._found("lost", root)
        if kind == "stay" and root in self._poisoned:
            reasons = [each.reason for each in found if each.is_poison]
            if reasons != [self._poisoned[root]]:
                self._found("not in the poison queue", f"{root}: {self._poisoned[root]}, {found}")

    def _check_whole(self, found: Found) -> None:
        """A move has changed the queue and what the message says of itself, or neither."""
        origin = found.queue.removesuffix(POISON_SUFFIX) if found.is_poison else ""
        if found.poisoned_in != origin or bool(found.reason) != found.is_poison:
            self._found("half moved", repr(found))
        if found.redriven and kind_of(found.root) != "again":
            self._found("outside the filter", f"redriven: {found}")

    def _check_jobs(self) -> None:
        jobs = self._audit.jobs
        known = {job["job_id"] for job in jobs}
        for job_id in self._started:
            if job_id not in known:
                self._found("job lost", job_id)
        for job in jobs:
            if job["state"] != "done" or job["matched"] != job["moved"]:
                self._found("job", repr(job))
        moved: Counter[str] = Counter()
        for job in jobs:
            moved[job["kind"]] += job["moved"]
        redriven = sum(found.redriven for found in self._audit.found)
        if redriven != moved["redrive"]:
            self._found("job count", f"{redriven} redriven, jobs say {moved['redrive']}")
        swept = {root for root in self._roots if kind_of(root) == "sweep"} - self._by_root.keys()
        if len(swept) != moved["purge"]:
            self._found("job count", f"{len(swept)} purged, jobs say {moved['purge']}")

    def _check_counts(self) -> None:
        listed = Counter(found.queue for found in self._audit.found)
        for queue, number in self._audit.counted.items():
            if listed[queue] != number:
                self._found("count", f"{queue}: {number} counted, {listed[queue]} listed")
