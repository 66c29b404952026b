"""What clients saw of claims, staged sends and commits, and what must be true after any kill.

What is done as one is a *unit*: settling claims, publishing a transaction, a commit. A unit takes
messages away and makes others visible; each has outputs that only it can make. So in a listing of
everything it can be seen whether a unit was done, and whether it was done whole, also where no
answer came.

Every call carries the number of its begin and that of its answer, from one counter, so "A had
ended before B began" is known without trusting a clock.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.reliability.history import Violation

LONG_S: Final = 600
"""A claim with such a lease never lapses while it is tested."""
MARK: Final = "exempt "
"""Begins what an exemption says in the attempts of its message."""
KEPT_ATTEMPTS: Final = 15
"""A message that was received no more often has all its attempts."""
BURIED: Final = "buried"
POISON_SUFFIX: Final = "-poison"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing that was asked for, and what came of it."""

    act: str
    what: str
    """The message, claim, stream or transaction that it is about, or the name of the unit."""
    begun: int
    asked: Mapping[str, Any] = field(default_factory=dict)
    ended: int = 0
    """0 if no answer came."""
    repeats: int = 0
    """How often it was asked again because no answer had come."""
    problem: str = ""
    """Code of a refusal."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What matters of the answer."""

    @property
    def answered(self) -> bool:
        """Whether it is known what came of it."""
        return self.ended > 0

    @property
    def done(self) -> bool:
        """Whether the server said that it has done it."""
        return self.answered and not self.problem


class Deeds:
    """The record of one client, in memory and in a file of its own.

    Args:
        path: On another file system than the data of the server.
        numbers: The one counter of all clients.
    """

    def __init__(self, path: Path, numbers: count[int]) -> None:
        self.all: list[Deed] = []
        self._numbers = numbers
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def intend(self, act: str, what: str, asked: Mapping[str, Any]) -> int:
        """Write down what is about to be asked; return its place."""
        self.all.append(Deed(act=act, what=what, begun=next(self._numbers), asked=asked))
        self._write(self.all[-1])
        return len(self.all) - 1

    def answer(self, place: int, repeats: int, problem: str, told: Mapping[str, Any]) -> None:
        """Write down what came of what was intended in this place."""
        intended = self.all[place]
        self.all[place] = replace(
            intended, ended=next(self._numbers), repeats=repeats, problem=problem, told=told
        )
        self._write(self.all[place])

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, deed: Deed) -> None:
        os.write(self._file, (json.dumps(asdict(deed)) + "\n").encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A message in a listing of the queue that it is in."""

    queue: str
    message_id: str
    name: str
    """As its body says; empty if the body is not what was put."""
    staged: bool = False
    dequeue_count: int = 0
    marks: tuple[str, ...] = ()
    """What exemptions have said."""
    reason: str = ""
    """Why it is in a poison queue."""


class Sighting(NamedTuple):
    """A message was shown to somebody who may work on it."""

    begun: int
    ended: int
    message_id: str
    fence: int
    who: str


@dataclass(slots=True)
class Unit:
    """What is done as one, or not at all."""

    name: str
    outputs: frozenset[str]
    ids: frozenset[str]
    """Messages that it takes away."""
    done: bool | None
    """None if no answer came."""
    ended: float = math.inf
    certain: bool = True
    """Whether it takes all of them: not if others may have taken some before."""
    exempt: Mapping[str, str] = field(default_factory=dict)
    """Outcomes by id."""
    mark: str = ""


@dataclass(slots=True)
class Membership:
    """A claim as it was first read."""

    rows: list[list[Any]]
    read: int
    """Number of the answer."""
    lease_s: int
    released: float = math.inf
    """Number of the call that may have let its members go."""


class Judge:
    """Compares all messages that there are with what is on record.

    Args:
        deeds: The record, each client's in its order.
        found: Listed while no client was at work.
    """

    def __init__(self, deeds: Iterable[Deed], found: Sequence[Found]) -> None:
        self.violations: list[Violation] = []
        self.units: dict[str, Unit] = {}
        self._listed = found
        self._puts: dict[str, set[str]] = {}
        """Ids by name; none if no put of it was answered."""
        self._sightings: dict[str, list[Sighting]] = defaultdict(list)
        self._claims: dict[str, Membership] = {}
        self._leases: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._staged: dict[tuple[str, str], dict[int, list[str]]] = defaultdict(dict)
        self._names: set[str] = set()
        self._streams: dict[str, tuple[int, int]] = {}
        """Token and last settled number."""
        self._over: set[str] = set()
        """Transactions that are published, and streams' numbers that are settled."""
        takers: dict[str, Callable[[Deed], None]] = {
            "put": self._take_put,
            "receive": self._take_receive,
            "attach": self._take_attach,
            "open": self._take_open,
            "read": self._take_read,
            "give-back": self._take_release,
            "settle": self._take_settle,
            "stage": self._take_stage,
            "publish": self._take_publish,
            "commit": self._take_commit,
            "refused": self._take_refused,
        }
        for deed in deeds:
            if take := takers.get(deed.act):
                take(deed)
        self._by_name: dict[str, list[Found]] = defaultdict(list)
        self._by_id: dict[str, list[Found]] = defaultdict(list)
        for each in found:
            self._by_id[each.message_id].append(each)
            if not each.staged:
                self._by_name[each.name].append(each)

    def _found(self, kind: str, detail: object) -> None:
        self.violations.append(Violation(kind, str(detail)))

    # --- taking the record in ----------------------------------------------------------------

    def _take_put(self, deed: Deed) -> None:
        ids = self._puts.setdefault(deed.what, set())
        if deed.done:
            ids.add(deed.told["id"])

    def _take_receive(self, deed: Deed) -> None:
        for message_id, name, fence in deed.told.get("rows", ()):
            self._see(deed, message_id, name, fence, f"receive {deed.begun}")

    def _see(self, deed: Deed, message_id: str, name: str, fence: int, who: str) -> None:
        if not name:
            self._found("body", f"{message_id} was given with another body by {deed}")
        self._sightings[message_id].append(Sighting(deed.begun, deed.ended, message_id, fence, who))

    def _take_attach(self, deed: Deed) -> None:
        if not deed.done:
            return
        token, settled = self._streams.get(deed.what, (0, 0))
        if deed.told["token"] <= token or deed.told["last_settled"] != settled:
            self._found("stream", f"{deed}, known as settled up to {settled}, token {token}")
        self._streams[deed.what] = deed.told["token"], settled

    def _take_open(self, deed: Deed) -> None:
        claim = deed.told.get("claim")
        if claim is None:
            if deed.done and deed.what in self._sizes:
                self._found("claim lost", deed)
            return
        known = self._sizes.setdefault(deed.what, claim["size"])
        self._leases[deed.what] = deed.asked["lease_s"]
        is_new, replayed = deed.asked["new"], deed.told["replayed"]
        wrong = not deed.repeats if is_new and replayed else not (is_new or replayed)
        if claim["size"] != known or wrong:
            self._found("claim changed", f"{deed} has had {known} members")
        if claim["lost"] and deed.asked["lease_s"] >= LONG_S:
            self._found("taken from a claim", deed)

    def _take_read(self, deed: Deed) -> None:
        if not deed.done:
            return
        rows = [list(row) for row in deed.told["rows"]]
        for row in rows:
            self._see(deed, row[0], row[1], row[-2], deed.what)
        claim = self._claims.get(deed.what)
        if claim is None:
            lease_s = self._leases.get(deed.what, 0)
            self._claims[deed.what] = Membership(rows, deed.ended, lease_s)
            if not deed.asked["loss"] and len(rows) != self._sizes.get(deed.what):
                self._found("claim changed", f"{deed.what} has {len(rows)} rows, not its size")
            return
        part, parts, size = deed.asked["part"], deed.asked["parts"], len(claim.rows)
        if deed.asked["loss"]:
            rest = iter(claim.rows)
            same = all(row in rest for row in rows)  # some may be gone, the order stays
        else:
            same = rows == claim.rows[part * size // parts : (part + 1) * size // parts]
        if not same:
            self._found("claim changed", f"{deed.what} was {claim.rows}, and is {rows}")

    def _take_release(self, deed: Deed) -> None:
        if claim := self._claims.get(deed.what):
            claim.released = min(claim.released, deed.begun)

    def _take_settle(self, deed: Deed) -> None:
        stream, _, number = deed.what.partition("/")
        if deed.what in self._over:
            if deed.answered and not (deed.done and deed.told["already"]):
                self._found("settled again", deed)
            return
        exempt: Mapping[str, str] = deed.asked["exempt"]
        ids = [message_id for claim in deed.asked["claims"].values() for message_id in claim]
        for name in deed.asked["claims"]:
            self._take_release(replace(deed, what=name))
        already = deed.done and deed.told["already"]
        lease_s = min(self._leases.get(name, 0) for name in deed.asked["claims"])
        unit = self._add_unit(deed, [each for each in ids if each not in exempt])
        unit.exempt, unit.mark = exempt, deed.asked["mark"]
        unit.certain = lease_s >= LONG_S or (deed.done and not already and not deed.told["lost"])
        if not deed.done:
            return
        self._over.add(deed.what)
        token, _ = self._streams[stream]
        self._streams[stream] = token, int(number)
        if already and not deed.repeats:
            self._found("settled by nobody", deed)
        if not already:
            self._check_settled(deed, unit)

    def _check_settled(self, deed: Deed, unit: Unit) -> None:
        told = deed.told
        size = sum(self._sizes.get(name, 0) for name in deed.asked["claims"])
        counted = told["completed"], told["exempted"], told["published"]
        expected = size - told["lost"] - len(unit.exempt), len(unit.exempt), deed.asked["rows"]
        if counted != expected or (unit.certain and told["completed"] != len(unit.ids)):
            self._found("settled in part", f"{deed}, expected {expected}")

    def _take_stage(self, deed: Deed) -> None:
        part = self._staged[deed.what, deed.asked["part"]]
        chunk, names = deed.asked["chunk"], deed.asked["names"]
        again = chunk in part
        part[chunk] = names
        self._names.update(names)
        if not deed.done:
            return
        counted = deed.told["rows"], deed.told["chunks"]
        if counted != (sum(map(len, part.values())), len(part)):
            self._found("staged twice", f"{deed}, known: {dict(part)}")
        if deed.told["duplicate"] is not again and not deed.repeats:
            self._found("staged twice", f"a repeated chunk: {again}; {deed}")

    def _take_publish(self, deed: Deed) -> None:
        if deed.what in self._over:
            if deed.answered and not (deed.done and deed.told["already"]):
                self._found("published again", deed)
            return
        unit = self._add_unit(deed, ())
        if not deed.done:
            return
        self._over.add(deed.what)
        if deed.told["already"] and not deed.repeats:
            self._found("published by nobody", deed)
        if deed.told["rows"] != len(unit.outputs):
            self._found("published in part", deed)

    def _take_commit(self, deed: Deed) -> None:
        unit = self._add_unit(deed, deed.asked["ids"])
        if deed.done and deed.told["failed"]:
            unit.done = False
        if deed.done and deed.told["already"] and not deed.repeats:
            self._found("committed by nobody", deed)

    def _take_refused(self, deed: Deed) -> None:
        """Something that is to be refused with a certain problem."""
        if deed.answered and deed.problem not in deed.asked["problems"]:
            self._found("not refused", deed)

    def _add_unit(self, deed: Deed, ids: Iterable[str]) -> Unit:
        outputs = frozenset(deed.asked["outputs"])
        name = f"{deed.act} {deed.what} {deed.begun}"
        done = deed.done if deed.answered else None
        unit = self.units[name] = Unit(name, outputs, frozenset(ids), done)
        unit.ended = deed.ended or math.inf
        self._names |= outputs
        return unit

    # --- judging -----------------------------------------------------------------------------

    def judged(self) -> list[Violation]:
        """Return everything that must not be."""
        for unit in self.units.values():
            self._check_unit(unit)
        self._check_names()
        self._check_places()
        self._check_sightings()
        self._check_claims()
        self._check_exemptions()
        return self.violations

    def _check_unit(self, unit: Unit) -> None:
        """Look for its outputs, and by them find out whether it was done."""
        there = sum(bool(self._by_name.get(name)) for name in unit.outputs)
        if unit.done is None and unit.outputs:
            unit.done = there > 0
            if not there:
                unit.ended = math.inf
        if unit.done and there < len(unit.outputs):
            self._found("half done", f"{there} of {len(unit.outputs)} outputs of {unit}")
        if unit.done is False and there:
            self._found("half done", f"not done, and {there} outputs of {unit}")

    def _check_names(self) -> None:
        published = frozenset[str]().union(
            *(unit.outputs for unit in self.units.values() if unit.done is not False)
        )
        for name, found in self._by_name.items():
            if not name:
                self._found("body", f"not what was put: {found}")
            elif len(found) > 1:
                self._found("doubled", f"{name}: {found}")
            elif name in self._puts:
                continue
            elif name not in self._names:
                self._found("unexpected", f"nobody has sent {name}: {found}")
            elif name not in published:
                self._found("not published", f"{name} is visible: {found}")
        for found_staged in self._listed:
            if found_staged.staged and found_staged.name in self._by_name:
                self._found("doubled", f"staged and visible: {found_staged}")

    def _check_places(self) -> None:
        """Look for every message that was put, where it must be and where it must not be."""
        takers: dict[str, list[Unit]] = defaultdict(list)
        perhaps: set[str] = set()
        for unit in self.units.values():
            for message_id in unit.ids:
                if unit.done and unit.certain:
                    takers[message_id].append(unit)
                elif unit.done is not False:
                    perhaps.add(message_id)
        for message_id, units in takers.items():
            if len(units) > 1:
                self._found("done twice", f"{message_id} by {units}")
            if found := self._by_id.get(message_id):
                self._found("resurrected", f"{found} after {units}")
        for name, ids in self._puts.items():
            if len(ids) > 1:
                self._found("doubled", f"{name} was put under one key and is {ids}")
            for message_id in ids:
                gone = message_id in takers or message_id in perhaps
                if not gone and not self._by_id.get(message_id):
                    self._found("lost", f"{name}, {message_id}")

    def _check_sightings(self) -> None:
        for unit in self.units.values():
            if unit.done and unit.certain:
                for message_id in unit.ids:
                    for seen in self._sightings.get(message_id, ()):
                        if seen.begun > unit.ended:
                            self._found("resurrected", f"{seen} after {unit}")
        for sightings in self._sightings.values():
            holders: dict[int, str] = {}
            for seen in sightings:
                holder = holders.setdefault(seen.fence, seen.who)
                if holder != seen.who:
                    self._found("one lease, two holders", f"{seen} and {holder}")
            sightings.sort()
            for before, after in pairwise(sightings):
                if before.ended < after.begun and after.fence < before.fence:
                    self._found("fence", f"{before}, then {after}")

    def _check_claims(self) -> None:
        """Nobody else sees the members of a claim that cannot have lapsed."""
        for name, claim in self._claims.items():
            if claim.lease_s < LONG_S:
                continue
            for row in claim.rows:
                for seen in self._sightings[row[0]]:
                    hidden = claim.read < seen.begun and seen.ended < claim.released
                    if hidden and seen.who != name:
                        self._found("taken from a claim", f"{seen}, a member of {name}")

    def _check_exemptions(self) -> None:
        """A message says that it was exempted if and only if that was done."""
        known = {unit.mark: unit for unit in self.units.values() if unit.mark}
        for found in self._listed:
            for mark in found.marks:
                unit = known.get(mark)
                if unit is None or unit.done is False or found.message_id not in unit.exempt:
                    self._found("exempted", f"{found} by {unit}")
        for unit in known.values():
            if unit.done:
                for message_id, outcome in unit.exempt.items():
                    for found in self._by_id.get(message_id, ()):
                        self._check_exempted(unit, found, outcome)

    def _check_exempted(self, unit: Unit, found: Found, outcome: str) -> None:
        if unit.mark not in found.marks and found.dequeue_count <= KEPT_ATTEMPTS:
            self._found("not exempted", f"{found}, {outcome} by {unit}")
        is_poison = found.queue.endswith(POISON_SUFFIX) and found.reason == BURIED
        if outcome == BURIED and not is_poison:
            self._found("not in the poison queue", f"{found}, buried by {unit}")
