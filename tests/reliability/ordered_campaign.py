"""Workers with ``ordered=True`` that are killed, and stopped for longer than their leases."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from leasehold.client import Client
from leasehold.client.models import NewMessage
from tests.e2e.server import DEV_ACCOUNT
from tests.patience import PATIENCE_S
from tests.reliability.group_history import (
    Entry,
    Name,
    Notes,
    Promise,
    Put,
    Receive,
    Settle,
    check,
    figures,
    read_notes,
)
from tests.reliability.group_worker import body_of, name_of
from tests.reliability.ordered_worker import QUEUE, Job, faults_of_record, read_record
from tests.reliability.running import KillableServer, eventually

KINDS: Final[Sequence[Mapping[str, Any]]] = (
    {},
    {"session": True, "prefetch": None},
    {"runner": "processes", "concurrency": 2, "prefetch": 6},
)
"""What workers are like: threads, threads with a session, processes."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_PROGRAM: Final = "from tests.reliability.ordered_worker import run; run()"
_ROUND: Final = 8
"""Messages of each group that are put at once."""
_BACKLOG: Final = 40
"""More are put before a strike if fewer are visible."""
_STOPPED_LEASES: Final = 4
"""A worker is let go on after so many leases even if nobody was seen to take what it had."""


class OrderedWorker:
    """A process that was started; the processes of its handlers are in its group."""

    def __init__(self, job: Job) -> None:
        self.job = job
        with (Path(job.folder) / f"{job.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                cwd=_ROOT,
                env=os.environ | job.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the worker with SIGKILL; those that handle for it are not told."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End all of them, stopped or not."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(slots=True)
class OrderedCampaign:
    """One server, a queue whose groups are in order, and workers on it.

    Args:
        folder: For what is noted, and for the server.
        seed: Of all that is random.
        kinds: Of the workers, one each.
        job: Further fields of each :class:`Job`.
    """

    folder: Path
    seed: int
    kinds: Sequence[Mapping[str, Any]] = KINDS
    job: Mapping[str, Any] = field(default_factory=dict)
    groups: int = 4
    lease_s: int = 2
    done: Counter[str] = field(default_factory=Counter)
    """Kills, pauses, and how many of these others were seen to make use of."""
    faults: list[str] = field(default_factory=list)
    _rng: Random = field(init=False)
    _connection: str = ""
    _puts: Notes = field(init=False)
    _put: int = 0
    """Messages of each group so far."""
    _workers: list[OrderedWorker] = field(default_factory=list)
    _ended: list[OrderedWorker] = field(default_factory=list)
    _started: int = 0

    def play(self, kills: int, pauses: int) -> None:
        """Strike so often, then let all be worked off, and check."""
        self._rng = Random(self.seed)
        self._puts = Notes(self.folder / "puts.jsonl")
        server = KillableServer(self.folder / "data", options={"--disk-reserve-mib": "4"})
        with server as endpoint:
            self._connection = endpoint.connection_string
            with Client(endpoint.origin, DEV_ACCOUNT) as client:
                queue = client.queue(QUEUE)
                queue.create(settings={"groups": {"order": "fifo", "fair": True}})
                self._fill(queue)
                try:
                    self._workers = [self._worker(kind) for kind in self.kinds]
                    strikes = ["kill"] * kills + ["pause"] * pauses
                    self._rng.shuffle(strikes)
                    for strike in strikes:
                        if queue.counts().visible < _BACKLOG:
                            self._fill(queue)
                        if strike == "kill":
                            self._kill()
                        else:
                            self._pause()
                    left = self._drain(queue)
                finally:
                    for worker in (*self._workers, *self._ended):
                        worker.end()
                    self._puts.close()
        self._judge(left)

    def report(self) -> dict[str, Any]:
        """Return figures."""
        lines = [line for group in self._names() for line in read_record(self.folder, group)]
        kinds = Counter(f"handlers_{line.what}" for line in lines)
        effects = {(line.worker, line.number) for line in lines if line.what == "effect"}
        return {
            **self.done,
            **figures(read_notes(self.folder)),
            **kinds,
            "workers": len({worker for worker, _ in effects}),
            "violations": len(self.faults),
        }

    def _names(self) -> list[str]:
        return [f"{QUEUE}:g{number}" for number in range(self.groups)]

    def _fill(self, queue: Any) -> None:
        """Put a round of messages of each group, in one call, and so in their order."""
        puts = [
            Put(group=group, number=number, sent_s=time.monotonic())
            for number in range(self._put, self._put + _ROUND)
            for group in self._names()
        ]
        self._put += _ROUND
        for put in puts:
            self._puts.add(put)
        queue.put_many(
            NewMessage(body_of(str(p.group), p.number), group_id=str(p.group).split(":")[1])
            for p in puts
        )

    def _worker(self, kind: Mapping[str, Any]) -> OrderedWorker:
        self._started += 1
        told: dict[str, Any] = {
            "name": f"w{self._started}",
            "connection": self._connection,
            "folder": str(self.folder),
            "seed": self.seed,
            "lease_s": self.lease_s,
        }
        return OrderedWorker(Job(**{**told, **kind, **self.job}))

    # --- strikes -----------------------------------------------------------------------------

    def _kill(self) -> None:
        """Kill a worker that has messages, and start another one of its kind."""
        place = self._busy()
        victim, kind = self._workers[place], self.kinds[place]
        victim.kill()
        self._ended.append(victim)
        self._workers[place] = self._worker(kind)
        self.done["killed"] += 1

    def _pause(self) -> None:
        """Stop a worker that has messages until others have got one of them, then let it go on.

        Its handlers' processes are stopped as well, or go on meanwhile.
        """
        place = self._busy()
        pid = self._workers[place].process.pid
        send = self._rng.choice((os.kill, os.killpg))
        send(pid, signal.SIGSTOP)
        had = self._in_hand(self._workers[place])
        until_s = time.monotonic() + _STOPPED_LEASES * self.lease_s
        while not (taken := self._is_taken(had)) and time.monotonic() < until_s:
            time.sleep(0.05)
        send(pid, signal.SIGCONT)
        self.done["stopped"] += 1
        self.done["overtaken"] += taken

    def _busy(self) -> int:
        """Return the place of a worker that has messages, when there is one."""
        places = list(range(len(self._workers)))
        found: list[int] = []

        def look() -> bool:
            self._rng.shuffle(places)
            found[:] = [each for each in places if len(self._in_hand(self._workers[each])) > 1]
            return bool(found)

        eventually(look, "a worker has messages", PATIENCE_S)
        return found[0]

    def _in_hand(self, worker: OrderedWorker) -> dict[Name, int]:
        """Return the fences of what a worker has received and not begun to settle."""
        fences: dict[Name, int] = {}
        for entry in self._entries(worker.job.name):
            if isinstance(entry, Receive):
                fences[entry.group, entry.number] = entry.fence
            elif isinstance(entry, Settle):
                fences.pop((entry.group, entry.number), None)
        return fences

    def _is_taken(self, had: Mapping[Name, int]) -> bool:
        return any(
            entry.fence > had.get((entry.group, entry.number), entry.fence)
            for entry in self._entries("w*")
            if isinstance(entry, Receive)
        )

    def _entries(self, worker: str) -> list[Entry]:
        return read_notes(self.folder, f"{worker}.jsonl")

    # --- the end -----------------------------------------------------------------------------

    def _drain(self, queue: Any) -> list[Name]:
        """Wait until workers have done all there is; return what is left."""
        try:
            eventually(lambda: queue.counts().total == 0, "all is worked off", PATIENCE_S)
        except AssertionError as error:
            self.faults.append(f"stuck: {error}")
        return [name_of(view) for view in queue.inspect(body=True)]

    def _judge(self, left: Sequence[Name]) -> None:
        """Look for what may not be, in the notes and in the record."""
        self.faults += check(read_notes(self.folder), Promise(), left)
        for group in self._names():
            lines = read_record(self.folder, group)
            self.faults += faults_of_record(lines, group, range(self._put))


def run(folder: Path, seed: int, kills: int, pauses: int, **more: Any) -> OrderedCampaign:
    """Run a campaign and return it; *more* as for :class:`OrderedCampaign`."""
    campaign = OrderedCampaign(folder, seed, **more)
    campaign.play(kills, pauses)
    return campaign
