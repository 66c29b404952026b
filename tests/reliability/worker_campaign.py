"""Rehearsals of workers by force: real processes, a real server, time that runs faster."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from leasehold.client import Client, RetryPolicy
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import Event
from tests.e2e.server import DEV_ACCOUNT, DEV_KEY
from tests.patience import PATIENCE_S
from tests.reliability.running import KillableServer, eventually
from tests.reliability.worker_handlers import Rehearsal
from tests.reliability.worker_ledger import Accounts, Entry, Ledger, entries
from tests.reliability.worker_time import Conductor

OPTIONS: Final = {"--test-mode": "--clock=virtual", "--disk-reserve-mib": "4"}
QUEUE: Final = "work"
SPEED: Final = 30.0
"""How fast time passes, if everybody can follow; on two cores about 20 to 25 come of it."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_ONE_TRY: Final = RetryPolicy(attempts=1)


class WorkerProcess:
    """A process that was started; see :mod:`tests.reliability.worker_process`.

    Args:
        rehearsal: What it does.
        conductor: Who moves its time; None: nobody.
    """

    def __init__(self, rehearsal: Rehearsal, conductor: Conductor | None) -> None:
        self.rehearsal = rehearsal
        self._conductor = conductor
        self._log = Path(rehearsal.folder) / f"{rehearsal.worker}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.reliability.worker_process"],
                cwd=_ROOT,
                env=os.environ | rehearsal.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What it and others with its name have said."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._leave()

    def stop(self) -> None:
        """Ask it to end; fail if it ends badly."""
        eventually(self._hears_signals, "it has started")
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self._leave()
        assert code == 0, f"{self.rehearsal.worker} ended with {code}:\n{self.log}"

    def _hears_signals(self) -> bool:
        own = self.rehearsal.worker
        return any(
            entry.what == "started" and entry.worker == own
            for entry in entries(Path(self.rehearsal.folder))
        )

    def freeze(self, *relatives: int) -> None:
        """Stop it with SIGSTOP, and others that it has started; the time of the rest goes on."""
        for pid in (self.process.pid, *relatives):
            os.kill(pid, signal.SIGSTOP)
            eventually(partial(_is_stopped, pid), "it has stopped")
        self._leave()

    def thaw(self, *relatives: int) -> None:
        """Let them go on."""
        for pid in (self.process.pid, *relatives):
            os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """End it however it is, with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._leave()

    @property
    def relatives(self) -> list[int]:
        """Process ids of what it has started, also when it is dead itself."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            with contextlib.suppress(OSError):  # it ended meanwhile
                state, _, group = _state(pid)
                if int(group) == self.process.pid != pid and state != "Z":
                    found.append(pid)
        return found

    def _leave(self) -> None:
        if self._conductor is not None and self.rehearsal.slot is not None:
            self._conductor.leave(self.rehearsal.slot)


def _state(pid: int) -> list[str]:
    """Return the state of a process, its parent and its group; see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]


def _is_stopped(pid: int) -> bool:
    return _state(pid)[0] == "T"


class Rig:
    """A server, its time, and workers; a context manager.

    Args:
        folder: For all files.
        speed: How fast time passes.
        rehearsal: What workers do where nothing else is said: fields of :class:`Rehearsal`.
    """

    def __init__(self, folder: Path, *, speed: float = SPEED, **rehearsal: Any) -> None:
        self.folder = folder
        self.server = KillableServer(folder / "data", options=OPTIONS)
        self.workers: list[WorkerProcess] = []
        self.deaths: Counter[int | None] = Counter()
        """How many workers were killed at each place."""
        self.sent: list[str] = []
        self._settings = rehearsal
        self._started = 0
        self._port = 0
        self._is_up = False
        Ledger.create(folder)
        self.conductor = Conductor(folder / "clock", speed, self._advance)

    def __enter__(self) -> Self:
        self.start_server()
        self.client.queue(QUEUE).create()
        self.conductor.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()
        self.conductor.__exit__()
        self.client.close()
        self.server.stop()

    # --- the server --------------------------------------------------------------------------

    def start_server(self) -> None:
        """Start it, again at the same place."""
        if self._port:
            self.server = KillableServer(self.folder / "data", port=self._port, options=OPTIONS)
        self._port = self.server.start().port
        self.client = Client(
            f"http://127.0.0.1:{self._port}", DEV_ACCOUNT, retries=_ONE_TRY, timeout_s=20
        )
        self._is_up = True

    def kill_server(self) -> None:
        """End it with SIGKILL; the time of the workers goes on."""
        self._is_up = False
        self.server.kill()
        self.client.close()

    @property
    def port(self) -> int:
        """Where the server listens."""
        return self._port

    def _advance(self, seconds: float) -> None:
        if self._is_up:
            with contextlib.suppress(LeaseholdClientError, RuntimeError):  # it is being killed
                self.client.test.advance(seconds)

    # --- what is to be done ------------------------------------------------------------------

    def send(self, count: int) -> None:
        """Put so many messages."""
        names = [f"{number:05d}" for number in range(len(self.sent), len(self.sent) + count)]
        self.client.queue(QUEUE).put_many(names)
        self.sent += names

    def start(self, slot: int, **rehearsal: Any) -> WorkerProcess:
        """Start a worker."""
        self._started += 1
        settings = {"worker": f"w{self._started}", **self._settings, **rehearsal}
        port = settings.pop("port", self._port)
        connection = (
            f"DefaultEndpointsProtocol=http;AccountName={DEV_ACCOUNT};AccountKey={DEV_KEY};"
            f"QueueEndpoint=http://127.0.0.1:{port}/{DEV_ACCOUNT};"
        )
        return self._start(
            Rehearsal(
                queue=QUEUE,
                connection=connection,
                folder=str(self.folder),
                clock=str(self.conductor.path),
                slot=slot,
                **settings,
            )
        )

    def restart(self, worker: WorkerProcess) -> WorkerProcess:
        """Start another worker that does the same, under a name of its own."""
        self._started += 1
        return self._start(replace(worker.rehearsal, worker=f"w{self._started}"))

    def _start(self, rehearsal: Rehearsal) -> WorkerProcess:
        worker = WorkerProcess(rehearsal, self.conductor)
        self.workers.append(worker)
        return worker

    def left(self) -> int:
        """Return how many messages there are, of any kind."""
        return self.client.queue(QUEUE).counts().total

    def noted(self, what: str) -> list[Entry]:
        """Return what stands in the journals so far, of one kind."""
        return [entry for entry in entries(self.folder) if entry.what == what]

    def await_noted(self, what: str, count: int, limit_s: float = 120) -> None:
        """Let time pass until so many of a kind stand in the journals."""
        self.conductor.until(
            lambda: len(self.noted(what)) >= count, limit_s, f"{count} times {what!r}"
        )

    def finish(self, limit_s: float) -> None:
        """Let time pass until the queue is empty, then stop the workers."""
        self.conductor.until(lambda: self.left() == 0, limit_s, "the queue is empty")
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.stop()

    def kill_now_and_then(
        self, kills: int, every_s: float, dice: random.Random, busy_with: str = "effect"
    ) -> None:
        """Kill a worker from time to time, and start another one of its kind in its place.

        Args:
            kills: How often, unless all is done before.
            every_s: From one kill to the next, on average.
            dice: Chooses moments and victims; in turn, so that all kinds die.
            busy_with: A victim has done this for a message that it still has.
        """
        for _ in range(kills):
            self.conductor.let_pass(every_s * (0.5 + dice.random()))
            busy: list[WorkerProcess] = []
            while not busy:
                if not self.left():
                    return
                busy = self._busy(busy_with)
                self.conductor.let_pass(0)
            dice.shuffle(busy)
            victim = min(busy, key=lambda worker: self.deaths[worker.rehearsal.slot])
            self.deaths[victim.rehearsal.slot] += 1
            victim.kill()
            self.restart(victim)

    def _busy(self, busy_with: str) -> list[WorkerProcess]:
        in_hand: dict[str, set[str]] = {}
        for entry in entries(self.folder):
            names = in_hand.setdefault(entry.worker, set())
            if entry.what in {busy_with, "repeated"}:
                names.add(entry.name)
            elif entry.what in {"settled", "lost"}:
                names.discard(entry.name)
        living = [worker for worker in self.workers if worker.process.poll() is None]
        return [worker for worker in living if in_hand.get(worker.rehearsal.worker)]

    def audit(self) -> Audit:
        """Account for everything, when the workers have ended."""
        return Audit(
            sent=tuple(self.sent),
            accounts=Accounts.of(self.folder),
            events=tuple(event for event in self.client.events() if event.queue == QUEUE),
            left=self.left(),
            queues=tuple(info.name for info in self.client.list_queues()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What came of a rehearsal, by the ledger, the journals and the events of the server."""

    sent: tuple[str, ...]
    accounts: Accounts
    events: tuple[Event, ...]
    """Of the server; none if it keeps no record."""
    left: int
    queues: tuple[str, ...]

    def problems(self) -> list[str]:
        """Return what must not be: effects lost or doubled, messages left over or set aside."""
        effects = Counter(name for name, _, _ in self.accounts.effects)
        found = [f"{name}: no effect" for name in self.sent if not effects[name]]
        found += [f"{name}: {count} effects" for name, count in effects.items() if count > 1]
        found += [f"{name}: nobody sent it" for name in effects.keys() - set(self.sent)]
        found += [
            f"{work_id}: {status} with fence {fence}"
            for work_id, status, fence in self.accounts.work
            if status != "done"
        ]
        if self.left:
            found.append(f"{self.left} messages are left")
        if self.queues != (QUEUE,):
            found.append(f"there are queues {self.queues}")
        completed = len(self.of("completed"))
        if self.events and completed != len(self.sent):
            found.append(f"{len(self.sent)} were sent, and {completed} completed")
        return found + list(self._two_holders()) + list(self._poisoned())

    def of(self, kind: str) -> list[Event]:
        """Return the events of one type."""
        return [event for event in self.events if event.type == kind]

    @property
    def redelivered(self) -> int:
        """How many deliveries were not the first of their message."""
        return sum((event.dequeue_count or 0) > 1 for event in self.of("received"))

    @property
    def repeated(self) -> int:
        """How many attempts found that the effect had happened."""
        return len(self.accounts.noted("repeated"))

    def summary(self, **figures: Any) -> str:
        """Return the figures for people."""
        kinds = Counter(event.type for event in self.events)
        deliveries = max((event.dequeue_count or 0 for event in self.of("received")), default=0)
        told = {
            **figures,
            "sent": len(self.sent),
            "effects": len(self.accounts.effects),
            "attempts": len(self.accounts.noted("begun")),
            "redelivered": self.redelivered,
            "effects skipped": self.repeated,
            "lost": len(self.accounts.noted("lost")),
            "most deliveries": deliveries,
            "events": dict(kinds),
        }
        return ", ".join(f"{name}: {value}" for name, value in told.items())

    def _two_holders(self) -> Iterator[str]:
        begun = Counter((entry.name, entry.fence) for entry in self.accounts.noted("begun"))
        for (name, fence), count in begun.items():
            if count > 1:
                yield f"{name}: {count} attempts with fence {fence}"

    def _poisoned(self) -> Iterator[str]:
        yield from (f"{event.message_id}: poison" for event in self.of("poisoned"))
