"""Days of a queue in minutes: the real server in this process, on a clock that is moved.

All clients take turns in one thread, so a seed repeats the whole run. Answers get lost, commits
fail, and the server is stopped and started on its data.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from leasehold.client import Client
from leasehold.server.settings import DEV_ACCOUNT
from leasehold.testing.server import InProcessServer
from leasehold.testing.time import START_MS
from proof.history.checker import Verdict, check
from proof.history.client import Caller, Job, Schedule
from proof.history.leasehold import PROMISE, LeaseholdConnector, LeaseholdQueue
from proof.history.records import Barrier, Drained, FaultRecord, History, Recorder

_QUEUES: Final = ("one", "two")
_ORDERED: Final = ("groups",)
_CLIENTS: Final = 4
_LEASES_S: Final = (1, 5, 30, 120, 600)
_DELAYS_S: Final = (0, 0, 0, 1, 60, 900)
_PATIENCE_S: Final = 60.0
"""Of the clients, by the real clock: no call may end by itself."""
_TICK_S: Final = 1e-9
"""Between two readings of the clock of the record, while that of the server stands still."""


@dataclass(slots=True)
class Soak:
    """One run.

    Args:
        folder: For the records and the data; empty.
        seed: Of all that is random.
    """

    folder: Path
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    """How often each fault was done."""
    _server: InProcessServer = field(init=False)
    _recorder: Recorder = field(init=False)
    _readings: count[int] = field(default_factory=count)
    _url: str = ""
    _port: int = 0

    def run(self, hours: float) -> Verdict:
        """Let so many hours pass, drain, and check."""
        rng = random.Random(f"{self.seed}/soak")
        records, data = self.folder / "records", self.folder / "data"
        records.mkdir()
        data.mkdir()
        self._recorder = Recorder(records / "soak.jsonl")
        self._start(data, START_MS)
        try:
            with Client(self._server.url, DEV_ACCOUNT) as client:
                for name in _QUEUES:
                    client.queue(name).create()
                client.queue(_ORDERED[0]).create(settings={"groups": {"order": "fifo"}})
            clients = [
                Schedule(self._job(number, records), self._now_s) for number in range(_CLIENTS)
            ]
            end_ms = START_MS + round(hours * 3_600_000)
            while self._server.now_ms() < end_ms:
                self._turn(rng, data, clients)
            for each in clients:
                each.close()
            self._drain(records)
        finally:
            self._server.stop()
            self._recorder.close()
        return check(History.read(records), PROMISE)

    def _turn(self, rng: random.Random, data: Path, clients: list[Schedule]) -> None:
        """Let one client make one call, under a fault now and then, and let time pass."""
        draw = rng.random()
        if draw < 0.01:
            self._fault("answer lost", lambda: self._server.faults.drop_answers(1))
        elif draw < 0.02:
            self._fault("commit failed", lambda: self._server.faults.fail_commits(1))
        elif draw < 0.022:
            self._fault("restart", lambda: self._restart(data))
        if not rng.choice(clients).step():
            # An answer is lost after the call was carried out, and this server has no other call.
            # (After a call that was refused for now there is nothing to end.)
            self._recorder.add(Barrier(self._now_s()))
        if rng.random() < 0.5:
            self._server.advance(rng.choice((0.001, 0.1, 1, 3, 10, 60)))

    def _fault(self, name: str, do: Callable[[], None]) -> None:
        begun_s = self._now_s()
        do()
        self.done[name] += 1
        self._recorder.add(FaultRecord(name=name, begun_s=begun_s, ended_s=self._now_s()))

    def _start(self, data: Path, now_ms: int) -> None:
        more: dict[str, Any] = {"port": self._port, "mns_port": "off"}
        self._server = InProcessServer(store=data, start_ms=now_ms, seed=self.seed % 2**32, **more)
        self._server.start()
        self._url = self._server.url
        self._port = int(self._url.rpartition(":")[2])

    def _restart(self, data: Path) -> None:
        now_ms = self._server.now_ms()
        self._server.stop()
        self._start(data, now_ms)

    def _now_s(self) -> float:
        """Return the server's time since the start, and a bit more with each reading."""
        passed_ms = self._server.now_ms() - START_MS
        return passed_ms / 1000 + next(self._readings) * _TICK_S

    def _job(self, number: int, records: Path) -> Job:
        return Job(
            name=f"c{number}",
            connector=self,
            promise=PROMISE,
            queues=_QUEUES,
            ordered=_ORDERED,
            folder=records,
            seed=self.seed,
            leases_s=_LEASES_S,
            delays_s=_DELAYS_S,
        )

    def open(self, queue: str) -> LeaseholdQueue:
        """Connect to where the server is now; see :class:`proof.history.adapters.Connector`."""
        return LeaseholdConnector(self._url, _PATIENCE_S).open(queue)

    def _drain(self, records: Path) -> None:
        """Let all leases and delays end, and take what there is."""
        self._server.faults.clear()
        self._server.advance(max(*_LEASES_S, *_DELAYS_S) + 1)
        recorder = Recorder(records / "drain.jsonl")
        numbers = count(1)
        for name in (*_QUEUES, *_ORDERED):
            caller, queue = (
                Caller("drain", name, recorder, lambda: next(numbers), self._now_s),
                self.open(name),
            )
            while taken := caller.receive(queue, 32, 600).delivered:
                for each in taken:
                    caller.complete(queue, each)
            caller.count(queue)
            queue.close()
        recorder.close()
        self._recorder.add(Drained(self._now_s()))
