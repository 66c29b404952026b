"""Rounds of load and SIGKILL on a server with claims, staged sends, commits and large bodies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.reliability import spilling
from tests.reliability.claim_audit import Auditor
from tests.reliability.claim_calls import (
    INLINE_BYTES,
    OUT,
    Client,
    Line,
    PatientTarget,
    Rig,
    Trap,
    name_of,
)
from tests.reliability.claim_drivers import Driver
from tests.reliability.claim_history import (
    LONG_S,
    POISON_SUFFIX,
    Deed,
    Deeds,
    Judge,
)
from tests.reliability.claiming import SETTINGS, Producer, Stager, Tail, Worker
from tests.reliability.history import Violation
from tests.reliability.killing import FILES, integrity
from tests.reliability.running import KillableServer, eventually

SOURCES: Final = ("claims-a", "claims-b")
QUEUES: Final = (
    *SOURCES,
    *(name + POISON_SUFFIX for name in SOURCES),
    OUT,
    spilling.QUEUE,
)
TRAPS: Final = ("open", "settle", "give-back", "stage", "publish", "commit", "spill", "respill")
_ARMED_S: Final = 3.0
_SHORT_S: Final = 1
_PAGE: Final = 500


def server_in(folder: Path) -> KillableServer:
    """Return a server with its data in *folder*, which spills and exports often."""
    options = {
        "--disk-reserve-mib": "4",
        "--inline-body-bytes": str(INLINE_BYTES),
        "--expiry-grace-s": "0",
        "--events-folder": str(folder / "events"),
        "--events-export-interval-s": "1",
    }
    return KillableServer(folder / "data", options=options)


@dataclass(slots=True)
class ClaimCampaign:
    """Rounds of load and SIGKILL on one data folder.

    Args:
        folder: For the data, and the exported events.
        seed: Draws what the clients do, and roughly when the server dies.
    """

    folder: Path
    seed: int
    answers: tuple[int, int] = (40, 500)
    """Fewest and most answers of a round before the kill."""
    after_kill: Callable[[int], None] = lambda _: None
    """Called with the number of the kill while nothing runs."""
    enough: Callable[[], bool] = lambda: False
    """Asked after each round: whether to end before the last one."""
    kills: int = 0
    kills_while_starting: int = 0
    sprung: Counter[str] = field(default_factory=Counter)
    """Kills at a chosen moment, by act and moment."""
    broken: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    server: KillableServer = field(init=False)
    auditor: Auditor = field(init=False)
    _port: int = 0
    _target: PatientTarget = field(default_factory=PatientTarget)
    _trap: Trap = field(init=False)
    _clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = server_in(self.folder)
        self.auditor = Auditor(QUEUES, {spilling.QUEUE}, self.data, self.folder / "events")
        self._trap = Trap(self.server, self._target)

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "data"

    def play(self, rounds: int, records: Path) -> None:
        """Load and kill so many times, then let the clients end and check."""
        self._start()
        self._make_queues()
        self._hire(records)
        rng = random.Random(self.seed)
        for client in self._clients:
            client.thread.start()
        for _ in range(rounds):
            self._target.up(self._port)
            self._load(rng)
            self._kill(rng)
            self._look(final=False)
            if self._is_broken() or self.enough():
                break
        self._target.up(self._port)
        self._target.close()
        for client in self._clients:
            client.thread.join()
            self.broken += client.broken
            client.deeds.close()
        if not self.broken:
            self._look(final=True)
        self.deeds = [deed for client in self._clients for deed in client.deeds.all]

    # --- the load ----------------------------------------------------------------------------

    def _make_queues(self) -> None:
        line = Line(self._port)
        for queue in QUEUES:
            line.json("PUT", f"/queues/{queue}", {"settings": SETTINGS})
        line.close()

    def _hire(self, records: Path) -> None:
        numbers = count(1)

        def rig(name: str) -> Rig:
            deeds = Deeds(records / f"{name}.jsonl", numbers)
            return Rig(name, self.seed, self._target, self._trap, deeds)

        one, two = SOURCES
        self._clients = [
            Producer(rig("producer1"), one),
            Producer(rig("producer2"), two),
            Driver(rig("steady"), one, LONG_S),
            Driver(rig("second"), one, LONG_S),
            Driver(rig("brisk"), two, _SHORT_S),
            Worker(rig("worker"), two, in_sessions=False),
            Worker(rig("member"), two, in_sessions=True),
            Stager(rig("stager")),
            spilling.Spiller(rig("spiller")),
            Tail(rig("tail")),
        ]

    def _is_broken(self) -> bool:
        return any(client.broken for client in self._clients)

    def _answered(self) -> int:
        return sum(client.answered for client in self._clients)

    def _load(self, rng: random.Random) -> None:
        """Wait for so many answers, and mostly for a chosen moment of a chosen act."""
        wanted = self._answered() + rng.randint(*self.answers)
        eventually(lambda: self._answered() >= wanted or self._is_broken(), f"{wanted} answers")
        if rng.random() < 0.3:
            return
        act, moment = rng.choice(TRAPS), rng.choice(("sent", "answered"))
        delay_s = rng.choice((0.0, 0.0, 0.001, 0.003)) if moment == "sent" else 0.0
        self._trap.set(act, moment, rng.randint(1, 3), delay_s)
        self._trap.sprung.wait(_ARMED_S)
        if self._trap.disarm():
            self.sprung[f"{act} {moment}"] += 1

    # --- killing and looking -----------------------------------------------------------------

    def _start(self) -> None:
        self._port = self.server.start().port
        self._target.ready()

    def _kill(self, rng: random.Random) -> None:
        self._target.down()
        self.server.kill()
        self.kills += 1
        self.after_kill(self.kills)
        self.auditor.age_bodies()
        if rng.random() < 0.15:
            self.server.kill_while_starting(rng.uniform(0.0, 0.6))
            self.kills_while_starting += 1
        verdict = integrity(self.data / FILES[0])
        if verdict != "ok":
            self.broken.append(f"after {self.kills} kills: {verdict}")
        self._start()

    def _look(self, *, final: bool) -> None:
        line = Line(self._port)
        found = self.auditor.look(line, final=final)
        deeds = [deed for client in self._clients for deed in client.deeds.all]
        lasting = [each for each in found if each.queue != spilling.QUEUE]
        self.violations += Judge(deeds, lasting).judged()
        self.violations += spilling.SpillJudge(deeds, found).judged()
        for client in self._clients:
            if isinstance(client, Tail):
                self.auditor.check_tail(client.events)
                client.events.clear()
        self._take_violations()
        line.close()

    def _take_violations(self) -> None:
        self.violations += self.auditor.violations
        self.auditor.violations.clear()

    # --- the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """Give all claims back, take everything out, and check that nothing is left over.

        Raises:
            AssertionError: Something does not come to its end.
        """
        line = Line(self._port)
        self._end_flows(line)
        drained: list[str] = []
        eventually(lambda: self._is_drained(line, drained), "everything comes out")
        if len(set(drained)) < len(drained) or "" in drained:
            self.violations.append(Violation("drained", "twice, or with another body"))
        self.auditor.check_whole_log(line)
        line.close()
        self.auditor.age_bodies()
        self.server.stop()
        self._start()
        line = Line(self._port)
        eventually(lambda: not self.auditor.body_files(), "no body is left")
        eventually(lambda: self._staged(line) == 0, "nothing is staged")
        if found := self.auditor.look(line, final=True):
            self.violations.append(Violation("drained", f"not empty: {found}"))
        self.auditor.check_export()
        self._take_violations()
        line.close()

    def _end_flows(self, line: Line) -> None:
        for queue in SOURCES:
            for stream in line.json("GET", f"/queues/{queue}/streams")["streams"]:
                path = f"/queues/{queue}/streams/{stream['stream']}"
                token = line.json("PUT", path)["token"]
                for claim in stream["claims"]:
                    body = {"token": token}
                    line.json("POST", f"{path}/claims/{claim['number']}/give-back", body)
        while names := self._open_transactions(line):
            for name in names:
                line.json("POST", f"/transactions/{name}/discard", {})
        body = {"filter": {"message_type": "sweep"}, "wait_s": 5}
        line.json("POST", f"/queues/{spilling.QUEUE}/purge", body)

    @staticmethod
    def _open_transactions(line: Line) -> list[str]:
        """Return names; those that are about to vanish by themselves are left to it."""
        found = line.json("GET", "/transactions?state=staged&limit=1000")["transactions"]
        return [each["name"] for each in found if each["until_ms"] - each["created_at_ms"] > 60_000]

    @staticmethod
    def _staged(line: Line) -> int:
        counts = [line.json("GET", f"/queues/{queue}/counts") for queue in QUEUES]
        return sum(each["staged"] for each in counts)

    @staticmethod
    def _is_drained(line: Line, drained: list[str]) -> bool:
        """Take out what is visible; return whether nothing is left, leased or not."""
        left = 0
        for queue in QUEUES:
            path = f"/queues/{queue}/messages"
            while taken := _receive(line, path):
                drained += map(name_of, taken)
                items = [{"id": each["id"], "receipt": each["receipt"]} for each in taken]
                assert not line.json("POST", f"{path}/complete", {"items": items})["failed"]
            left += line.json("GET", f"/queues/{queue}/counts")["total"]
        return left == 0

    def summary(self) -> str:
        """Return the totals in a few lines."""
        done = Counter(deed.act for deed in self.deeds if deed.done)
        refused = Counter(f"{deed.act}: {deed.problem}" for deed in self.deeds if deed.problem)
        repeated = sum(deed.repeats > 0 for deed in self.deeds)
        already = sum(bool(deed.told.get("already")) for deed in self.deeds)
        unanswered = sum(not deed.answered for deed in self.deeds)
        trapped, log = sum(self.sprung.values()), self.auditor.log.events
        return f"""\
{self.kills} kills under load, {trapped} of them at a chosen moment
{self.kills_while_starting} kills while starting
chosen moments: {dict(self.sprung.most_common())}
acknowledged: {dict(done.most_common())}
refused: {dict(refused.most_common())}
{repeated} asked again for want of an answer, {already} of all found done already
{unanswered} unanswered for good
{len(log)} events, {self.auditor.compared} messages compared with them
{self.auditor.bodies_read} large bodies read
{len(self.violations)} violations, {len(self.broken)} calls broken"""


def _receive(line: Line, path: str) -> Sequence[Mapping[str, Any]]:
    body = {"max_messages": _PAGE, "visibility_timeout_s": 60}
    found: Sequence[Mapping[str, Any]] = line.json("POST", f"{path}/receive", body)["messages"]
    return found
