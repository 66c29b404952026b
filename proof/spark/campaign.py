"""One query through many kills, each at a random moment, and a look at what came out.

Everything that is drawn follows from the seed. When exactly a kill comes does not: that depends on
the machine.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from tests.e2e.server import DEV_ACCOUNT, Endpoint
from tests.reliability.running import KillableServer
from tests.reliability.spark_campaign import Victim, _environment, _kill
from tests.reliability.spark_tripwire import Step, Tripwire

from leasehold.client import Client
from proof.log.real import judge
from proof.spark.query import DIE, STOP, Settings
from proof.spark.work import PLANTED, QUEUE, WORK, Work

VICTIMS: Final = (Victim.DRIVER, Victim.EXECUTOR, Victim.SERVER, Victim.PYTHON)
"""What is killed; of drivers, every second one with all processes that it has started."""
PATIENCE_S: Final = 900.0
"""How long a query may take to begin, and to come to its end. On a machine with nothing else to do
the first takes 10 s; on one that is busy the start of Java alone has taken four minutes."""
OWN_ENDS: Final = 30
"""So often a query may end by itself, as it does when its Python processes are killed."""
_FEED_EVERY_S: Final = 0.2
_LOOK_EVERY_S: Final = 0.1
_WITHIN_S: Final = 3.0
"""Half of the kills come by time, so much later at most;"""
_AFTER_MORE: Final = 0.7
"""So many of the kills come only when the query has done a micro-batch after the last one."""
_REQUESTS: Final = 12
"""half with one of so many next requests,"""
_AFTER_S: Final = 0.05
"""and so much later, at most."""
_LIMIT: Final = 20
_LEASES_S: Final = (5, 60)
"""Of which one ends before a driver is back and one does not, on most machines."""
_BACKEND: Final = "CoarseGrainedExecutorBackend"


@dataclass(slots=True)
class Outcome:
    """What a campaign has seen."""

    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    """What the server was asked last before a kill."""
    runs: int = 0
    """How often the query was started."""
    own_ends: int = 0
    """How often it ended by itself, after a kill of something else."""
    put: int = 0
    results: int = 0
    """How many must come out."""
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    """What came out more often than once, or must not come out at all."""
    left: int = 0
    events: int = 0
    wrong_events: int = 0
    """Violations that ``leasehold events check`` tells."""
    said: list[str] = field(default_factory=list)
    """Why it could not be judged."""

    @property
    def passed(self) -> bool:
        """Tell whether all is well."""
        return not (self.lost or self.doubled or self.left or self.wrong_events or self.said)


class Campaign:
    """A server, a query, and one who kills.

    Args:
        row: A name in :data:`WORK` or :data:`PLANTED`.
        seed: Of all that is drawn.
        folder: For all files; empty.
    """

    def __init__(self, row: str, seed: int, folder: Path) -> None:
        self._row = row
        self._random = random.Random(seed)
        self._root = folder / "query"
        self._root.mkdir(parents=True)
        self._work: Work = (WORK | PLANTED)[row](self._root)
        self._server = KillableServer(folder / "data", options={"--disk-reserve-mib": "4"})
        self._process: subprocess.Popen[bytes] | None = None
        self._server_lock = threading.Lock()
        self._seen = threading.Condition()
        self._count = 0
        """Requests of the query, before and after they are carried out."""
        self._opened = False
        """Whether the query has looked for work since it was started."""
        self._last = ""
        self._feeding = threading.Event()
        self._is_fed = False
        """Whether all was put, and the query had time to do it."""
        self._trouble: list[str] = []
        self._since_s = time.monotonic()
        self._left_alone: list[psutil.Process] = []
        """What drivers had started that were killed alone."""
        self.outcome = Outcome()

    def play(self, victims: Sequence[Victim]) -> Outcome:
        """Kill each of *victims* in a random order; let the query end; look."""
        order = self._random.sample(list(victims), len(victims))
        return self._played([partial(self._strike, victim) for victim in order])

    def play_planted(self, deaths: int) -> Outcome:
        """Have a planted sink kill its driver so often where its bug shows; then as before."""
        return self._played([self._die_where_planted] * deaths)

    def _played(self, deaths: Sequence[Callable[[], None]]) -> Outcome:
        with self._started():
            try:
                for die in deaths:
                    die()
                self._come_to_an_end()
            except TimeoutError as error:
                self.outcome.said.append(str(error))
            finally:
                self._kill_tree()
            self._look()
        return self.outcome

    @contextmanager
    def _started(self) -> Iterator[None]:
        endpoint = self._server.start()
        feeder = threading.Thread(target=self._feed, daemon=True)
        try:
            with Tripwire(self._server.port, self._watch) as wire:
                self._wire = wire
                with self._client() as client:
                    self._work.prepare(client)
                    self._work.feed(client)
                text = endpoint.connection_string
                self._settings = Settings(
                    row=self._row,
                    connection_string=text.replace(f":{endpoint.port}/", f":{wire.port}/"),
                    queue=QUEUE,
                    root=str(self._root),
                    limit=_LIMIT,
                    lease_s=self._random.choice(_LEASES_S),
                )
                self._run()
                self._feeding.set()
                feeder.start()
                yield
        finally:
            self._feeding.clear()
            self._kill_tree()
            self._server.stop()

    # --- work --------------------------------------------------------------------------------

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """Yield a client whose calls no kill of the server comes between."""
        with self._server_lock, Client(f"http://127.0.0.1:{self._server.port}") as client:
            yield client

    def _feed(self) -> None:
        while self._feeding.is_set():
            try:
                with self._client() as client:
                    self._work.feed(client)
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                self._trouble.append(f"feeding: {error!r}")
                return
            time.sleep(_FEED_EVERY_S)

    # --- the query ---------------------------------------------------------------------------

    def _note(self, told: str) -> None:
        """Write down what happened when, for people who look for the cause of something."""
        with (self._root / "campaign.log").open("a") as log:
            log.write(f"{time.monotonic() - self._since_s:8.2f} {told}\n")

    def _run(self) -> None:
        self.outcome.runs += 1
        self._note(f"run {self.outcome.runs}")
        with self._seen:
            self._opened = False
        log = self._root / f"run-{self.outcome.runs}.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "proof.spark.query", self._settings.text()),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )

    def _watch(self, step: Step, answered: bool) -> None:
        with self._seen:
            self._count += 1
            self._last = f"{'after' if answered else 'before'} {step}"
            if step is Step.OPEN and answered and not self._opened:
                self._opened = True
                self._note("it looks for work")
            self._seen.notify_all()

    def _ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def _until(self, holds: Callable[[], bool], what: str, *, again: bool = False) -> None:
        """Wait until something holds; with *again*, start a query again that has ended.

        Raises:
            TimeoutError: It does not.
        """
        give_up_at_s = time.monotonic() + PATIENCE_S
        while not holds():
            if again and self._ended():
                self.outcome.own_ends += 1
                self._note(f"it ended by itself: {self._tail()[:300]}")
                if self.outcome.own_ends > OWN_ENDS:
                    raise TimeoutError(f"the query ends again and again: {self._tail()}")
                self._run()
            if time.monotonic() > give_up_at_s or self._trouble:
                raise TimeoutError("; ".join([what, *self._trouble, self._tail()]))
            time.sleep(_LOOK_EVERY_S)

    def _tail(self) -> str:
        log = self._root / f"run-{self.outcome.runs}.log"
        lines = log.read_text(errors="replace").splitlines()
        told = [line for line in lines if "Error" in line or "Exception" in line]
        return " | ".join((told or lines)[-3:])

    def _works(self) -> bool:
        return self._opened and (self._commits() > 0 or not self._work.has_state)

    def _commits(self) -> int:
        """Return how many micro-batches are over, as far as Spark knows."""
        folder = self._root / "checkpoint" / "commits"
        return max((1 + int(each.name) for each in folder.glob("[0-9]*")), default=0)

    def _wait_until_it_works(self) -> None:
        self._until(self._works, "the query does not begin", again=True)

    def _come_to_an_end(self) -> None:
        self._feeding.clear()
        with self._client() as client:
            self._work.finish(client)
        self._is_fed = True

        def is_done() -> bool:
            with self._client() as client:
                return self._work.is_done(client)

        self._note("finished feeding")
        self._until(is_done, "it is not done", again=True)
        self._note("done")
        (self._root / STOP).touch()
        with suppress(TimeoutError):  # what matters is what has come out
            self._until(self._ended, "the query does not stop")

    # --- killing -----------------------------------------------------------------------------

    def _strike(self, victim: Victim) -> None:
        """Kill something that is there, at a random moment."""
        while True:
            self._wait_until_it_works()
            before = self._commits()
            if self._random.random() < _AFTER_MORE:
                self._until(lambda: self._commits() > before, "it does not go on", again=True)  # noqa: B023 - called at once
            if victim is Victim.EXECUTOR:
                self._until(lambda: bool(self._executors()), "there is no executor", again=True)
            self._let_pass()
            last = self._last
            if not self._ended() and self._blow(victim):
                break
        self._note(f"killed: {victim}, {last}")
        self.outcome.kills[Victim.DRIVER if victim is Victim.MACHINE else victim] += 1
        self.outcome.moments[last] += 1
        if self._ended():
            self._run()

    def _die_where_planted(self) -> None:
        """Have a planted sink kill its driver."""
        self._wait_until_it_works()
        (self._root / DIE).touch()
        self._until(self._ended, "the driver does not die")
        self.outcome.kills[Victim.DRIVER] += 1
        self._run()

    def _let_pass(self) -> None:
        if self._random.random() < 0.5:  # half of them by time, half by requests
            time.sleep(self._random.uniform(0, _WITHIN_S))
            return
        more = self._random.randint(1, _REQUESTS)
        pause_s = self._random.uniform(0, _AFTER_S)
        with self._seen:
            wanted = self._count + more
            self._seen.wait_for(lambda: self._count >= wanted, timeout=2 * _WITHIN_S)
        time.sleep(pause_s)

    def _blow(self, victim: Victim) -> bool:
        """Kill it; tell whether it was there."""
        if victim is Victim.SERVER:
            with self._server_lock:
                self._server.strike()
                self._server.kill()
                time.sleep(self._random.uniform(0, 1))
                self._server.start()
                self._wire.lead_to(self._server.port)
            return True
        if victim is Victim.DRIVER:
            assert self._process is not None
            if self._random.random() < 0.5:
                self._kill_tree()
            else:  # executors and Python processes have to notice by themselves
                driver = psutil.Process(self._process.pid)
                self._left_alone += self._below()
                java = [each for each in driver.children() if "java" in each.name()]
                for each in [*java, driver]:
                    _kill(each)
            self._process.wait()
            return True
        found = self._executors() if victim is Victim.EXECUTOR else self._pythons()
        if not found:
            return False
        chosen = self._random.choice(found)
        with suppress(psutil.NoSuchProcess):
            below = chosen.children(recursive=True) if victim is Victim.EXECUTOR else []
            chosen.kill()
            for each in below:
                _kill(each)
            return True
        return False

    def _below(self) -> list[psutil.Process]:
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            below: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
            return below
        return []

    def _executors(self) -> list[psutil.Process]:
        return [each for each in self._below() if _BACKEND in _command(each)]

    def _pythons(self) -> list[psutil.Process]:
        return [each for each in self._below() if "pyspark" in _command(each)]

    def _kill_tree(self) -> None:
        if self._process is None:
            return
        for each in [*self._below(), *self._left_alone]:
            _kill(each)
        self._process.kill()
        self._process.wait()

    # --- looking -----------------------------------------------------------------------------

    def _look(self) -> None:
        seen, work = self.outcome, self._work
        text = Endpoint(url=f"http://127.0.0.1:{self._server.port}/{DEV_ACCOUNT}").connection_string
        log = judge("", "--live", "--connection-string", text)
        seen.events = log.report["events"]
        seen.wrong_events = len(log.report["violations"])
        if log.code:
            seen.said.append(f"events check ends with {log.code}")
        with self._client() as client:
            seen.left = work.left(client)
            found = work.found(client)
        seen.put = work.put
        seen.results = work.expected.total()
        if self._is_fed:  # else it was given up on the way, and what is missing may still come
            seen.lost = sorted((work.expected - found).elements())
        seen.doubled = sorted((found - work.expected).elements())


def _command(process: psutil.Process) -> str:
    try:
        if process.name() == "java" or "python" in process.name():
            return " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        pass
    return ""
