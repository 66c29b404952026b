"""Streaming queries whose driver, executors or server are killed at chosen moments.

The outside record is what was put, and what is in the output at the end: each message exactly once,
and nothing left in the queue, visible or not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import psutil
import pyarrow.parquet as pq

from leasehold.client import Client
from leasehold.client.models import Completion, NewMessage
from leasehold.spark.cluster import Cluster
from tests.e2e.server import Endpoint
from tests.patience import PROGRAM_S
from tests.reliability.running import KillableServer
from tests.reliability.spark_query import Settings, chained, is_bad, state_file
from tests.reliability.spark_tripwire import Step, Tripwire

QUEUE: Final = "spark-kill"
_DRAIN_LEASE_S: Final = 60
_QUEUES: Final = ("queue", "pipeline")
"""Sinks that write to a queue."""


class Point(StrEnum):
    """When something is killed."""

    CLAIMED = "after the claim"
    READING = "in the read"
    NOTED = "after the exemptions"
    """Of a pipeline: what has failed is noted, and nothing is published yet."""
    WRITTEN = "after the sink's commit"
    SETTLING = "before the settle"


class Victim(StrEnum):
    """What is killed."""

    DRIVER = "driver"
    """Spark's JVM and the program that started it; Python processes see their connections end."""
    MACHINE = "machine"
    """The driver with every process that it has started: nobody can tidy up."""
    PYTHON = "Python workers"
    """All processes of Python that the driver has started: its source's and those of tasks."""
    SERVER = "server"
    EXECUTOR = "executor"


_ENDING: Final = frozenset({Victim.DRIVER, Victim.MACHINE, Victim.PYTHON})
"""Those without whom the run ends."""


@dataclass(slots=True)
class Outcome:
    """What a campaign has seen."""

    put: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    batches: int = 0
    """Micro-batches, where groups are looked at."""
    tasks: int = 0
    """Tasks of these that had rows."""
    left: int = 0
    """Messages in the queue at the end, in any state."""
    missing: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    """What groups were seen in another order than they were put in, or not whole in one task."""
    tails: list[str] = field(default_factory=list)
    """The last lines of runs that failed without having been struck."""

    @property
    def violations(self) -> list[str]:
        """What must not be; empty if all is well."""
        found = [f"lost: {body}" for body in self.missing] + [f"twice: {b}" for b in self.twice]
        found += [f"out of order: {group}" for group in self.disordered]
        return found + ([f"{self.left} left in the queue"] if self.left else []) + self.tails


class Campaign:
    """One queue, one checkpoint, and a query that is run until the queue is empty.

    Args:
        server: Which the query reads from; it can be killed and comes back on another port.
        root: Folder of the checkpoint and the output.
        sink: ``table``, ``queue``, ``groups`` or ``pipeline``.
        lease_s: Of the claims.
        cluster: On which the query runs; None: in the driver's own process.
    """

    def __init__(
        self,
        server: KillableServer,
        root: Path,
        sink: str,
        *,
        lease_s: int = 5,
        cluster: Cluster | None = None,
    ) -> None:
        self._server = server
        self._root = root
        self._sink = sink
        self._lease_s = lease_s
        self._cluster = cluster
        self._armed: deque[tuple[Victim, Point]] = deque()
        self._struck: list[tuple[Victim, Point]] = []
        self._is_away = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = root / "query.log"
        self._bodies: list[str] = []
        self.outcome = Outcome()
        root.mkdir(parents=True, exist_ok=True)

    def play(self, kills: list[tuple[Victim, Point]], *, messages: int, limit: int) -> Outcome:
        """Put messages, strike once for each of *kills*, then let the query end and look."""
        endpoint = self._server.start()
        bodies = [f"message {number}" for number in range(messages)]
        with Tripwire(self._server.port, self._watch) as wire:
            self._wire = wire
            settings = self._settings(endpoint, limit)
            self._put(bodies)
            for group in _in_one_run(kills):
                if self._is_empty():
                    self._put(bodies, again=True)
                self._strike(settings, group)
            for _ in range(3):  # a claim of a machine that is gone is open until its lease ends
                self._run(settings)
                if self._is_empty():
                    break
            self._look()
        return self.outcome

    def _settings(self, endpoint: Endpoint, limit: int) -> Settings:
        through = endpoint.connection_string.replace(f":{endpoint.port}/", f":{self._wire.port}/")
        return Settings(
            connection_string=through,
            queue=QUEUE,
            stream="kill-matrix",
            root=str(self._root),
            sink=self._sink,
            limit=limit,
            lease_s=self._lease_s,
            master="local" if self._cluster is None else self._cluster.master,
        )

    # --- killing -------------------------------------------------------------------------------

    def _strike(self, settings: Settings, group: list[tuple[Victim, Point]]) -> None:
        """Run the query, and kill each victim when it comes to its point."""
        dies = group[0][0] in _ENDING
        writes = self._sink not in _QUEUES and group[0][1] is Point.WRITTEN
        dies_itself = group[0][0] in {Victim.DRIVER, Victim.MACHINE} and writes
        with self._lock:
            self._armed.extend(() if dies_itself else group)
        self._run(replace(settings, die_after_write=dies_itself), may_die=dies)
        with self._lock:
            self._struck.extend(group if dies_itself else ())
            for victim, point in self._struck:
                self.outcome.kills[f"{victim}, {point}"] += 1
            self._struck.clear()
            self._armed.clear()

    def _place_of(self, point: Point) -> tuple[Step, bool]:
        if point is Point.CLAIMED:
            return Step.OPEN, True
        if point is Point.READING:
            return Step.READ, True
        if point is Point.SETTLING:
            return Step.SETTLE, False
        if point is Point.NOTED:
            return Step.EXEMPT, True
        return (Step.PUBLISH, True) if self._sink in _QUEUES else (Step.SETTLE, False)

    def _blow(self, victim: Victim) -> Callable[[], None]:
        return {
            Victim.DRIVER: self._kill_driver,
            Victim.MACHINE: self._kill_machine,
            Victim.PYTHON: self._kill_python,
            Victim.SERVER: self._kill_server,
            Victim.EXECUTOR: self._kill_executor,
        }[victim]

    def _watch(self, step: Step, answered: bool) -> None:
        with self._lock:
            if not self._armed or self._is_away:
                return
            victim, point = self._armed[0]
            if (step, answered) != self._place_of(point):
                return
            self._struck.append(self._armed.popleft())
            self._is_away = victim is Victim.SERVER
        self._blow(victim)()

    def _kill_driver(self) -> None:
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        for each in [child for child in driver.children() if "java" in child.name()] + [driver]:
            _kill(each)

    def _kill_machine(self) -> None:
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        for each in [driver, *driver.children(recursive=True)]:
            _kill(each)

    def _kill_python(self) -> None:
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        for each in driver.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "python" in each.name():
                    _kill(each)

    def _kill_server(self) -> None:
        self._server.strike()
        threading.Thread(target=self._bring_back, daemon=True).start()

    def _bring_back(self) -> None:
        self._server.kill()
        self._server.start()
        self._wire.lead_to(self._server.port)
        with self._lock:
            self._is_away = False

    def _kill_executor(self) -> None:
        assert self._cluster is not None
        self._cluster.kill(random.choice(self._cluster.executors()))

    # --- running -------------------------------------------------------------------------------

    def _run(self, settings: Settings, *, may_die: bool = False) -> None:
        self.outcome.runs += 1
        command = (sys.executable, "-m", "tests.reliability.spark_query", settings.text())
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_environment()
            )
            try:
                code = self._process.wait(PROGRAM_S)
            except subprocess.TimeoutExpired:
                self._kill_machine()
                code = self._process.wait()
        # Where Python workers have died, Spark says so and ends by itself.
        if code and not (may_die and (code < 0 or Victim.PYTHON in dict(self._struck))):
            lines = self._log.read_text(errors="replace").splitlines()
            told = [line for line in lines if "Error" in line or "Exception" in line]
            self.outcome.tails.append(f"run ended with {code}: " + " | ".join(told[-3:]))

    # --- looking -------------------------------------------------------------------------------

    @contextmanager
    def _client(self) -> Iterator[Client]:
        with Client(f"http://127.0.0.1:{self._server.port}") as client:
            yield client

    def _put(self, bodies: list[str], *, again: bool = False) -> None:
        with self._client() as client:
            for name in (QUEUE, f"{QUEUE}-out"):
                if not again:
                    client.create_queue(name)
                    if self._sink == "groups":
                        client.queue(name).update(settings={"groups": {"order": "fifo"}})
            extra = self.outcome.runs if again else 0
            named = [f"{body} + {extra}" if again else body for body in bodies]
            sent = [
                NewMessage(body, group_id=_group_of(body), priority=1 + place % 16)
                for place, body in enumerate(named)
            ]
            client.queue(QUEUE).put_many(sent if self._sink == "groups" else named)
        self._bodies += named

    def _is_empty(self) -> bool:
        with self._client() as client:
            return client.queue(QUEUE).counts().total == 0

    def _look(self) -> None:
        aside = [f"aside: {each}" for each in self._bodies if self._is_pipeline and is_bad(each)]
        good = [each for each in self._bodies if not (self._is_pipeline and is_bad(each))]
        expected = Counter(good + aside)
        self.outcome.put = expected.total()
        with self._client() as client:
            counts = client.queue(QUEUE).counts()
            self.outcome.left = counts.total + counts.staged
            found = Counter(self._queue(client) if self._sink in _QUEUES else self._table())
        self.outcome.missing = sorted((expected - found).elements())
        self.outcome.twice = sorted((found - expected).elements())

        if self._sink == "groups":
            self._look_at_groups()

    def _look_at_groups(self) -> None:
        """Compare the order of each group, and the state it was folded into, with the puts."""
        seen: dict[str, list[str]] = {}
        for batch_id in range(len(list((self._root / "table").glob("batch=*")))):
            rows = sorted(self._folded(batch_id))
            places: dict[str, set[int]] = {}
            for task, _, group, body in rows:
                places.setdefault(group, set()).add(task)
                seen.setdefault(group, []).append(body)
            spread = [group for group, tasks in places.items() if len(tasks) > 1]
            self.outcome.disordered += [f"{group} in tasks of batch {batch_id}" for group in spread]
            self.outcome.batches += 1
            self.outcome.tasks += len({row[0] for row in rows})
        states = json.loads(state_file(self._root, self.outcome.batches - 1).read_text())
        wanted: dict[str, list[str]] = {}
        for body in self._bodies:
            wanted.setdefault(_group_of(body), []).append(body)
        for group, bodies in wanted.items():
            state = ""
            for body in bodies:
                state = chained(state, body.encode())
            if seen.get(group) != bodies:
                self.outcome.disordered.append(f"{group}: {seen.get(group)}")
            if states.get(group) != state:
                self.outcome.disordered.append(f"{group}: its state is of other messages")

    def _folded(self, batch_id: int) -> Iterator[tuple[int, int, str, str]]:
        """Yield task, place, group and body of the rows of a micro-batch."""
        for path in (self._root / "table" / f"batch={batch_id}").glob("*.parquet"):
            for row in pq.ParquetFile(path).read().to_pylist():
                yield row["task"], row["place"], row["group_id"], row["body"].decode()

    def _table(self) -> Iterator[str]:
        for path in sorted((self._root / "table").glob("batch=*/*.parquet")):
            for body in pq.ParquetFile(path).read(["body"])["body"].to_pylist():
                yield body.decode()

    def _queue(self, client: Client) -> Iterator[str]:
        out = client.queue(f"{QUEUE}-out")
        while received := out.receive(1_000, visibility_timeout_s=_DRAIN_LEASE_S):
            for message in received:
                yield message.json() if self._is_pipeline else message.text
        if self._is_pipeline:
            for poisoned in client.queue(f"{QUEUE}-poison").inspect(body=True):
                yield f"aside: {poisoned.text}"

    @property
    def _is_pipeline(self) -> bool:
        return self._sink == "pipeline"


class ResultsCampaign(Campaign):
    """A query over the results of a queue whose messages are completed or set aside meanwhile.

    Each strike has new messages. There is nothing to settle, so :data:`Point.SETTLING` is the
    driver's look for more.
    """

    def __init__(
        self, server: KillableServer, root: Path, *, cluster: Cluster | None = None
    ) -> None:
        super().__init__(server, root, "results", cluster=cluster)

    def _place_of(self, point: Point) -> tuple[Step, bool]:
        if point in {Point.WRITTEN, Point.SETTLING}:
            return Step.OPEN, False
        return super()._place_of(point)

    def _put(self, bodies: list[str], *, again: bool = False) -> None:
        with self._client() as client:
            queue = client.queue(QUEUE)
            if not again:
                queue.create()
            named = [f"{body} + {self.outcome.runs}" for body in bodies]
            queue.put_many(named)
            while taken := queue.receive(100, visibility_timeout_s=_DRAIN_LEASE_S):
                done = [each for place, each in enumerate(taken) if place % 4]
                queue.complete_many([Completion(each, {"output": each.text}) for each in done])
                for each in taken[::4]:
                    queue.bury(each, error=each.text)
        self._bodies += named

    def _is_empty(self) -> bool:
        return True

    def _look(self) -> None:
        expected = Counter(self._bodies)
        self.outcome.put = expected.total()
        found = Counter(self._table())
        self.outcome.missing = sorted((expected - found).elements())
        self.outcome.twice = sorted((found - expected).elements())

    def _table(self) -> Iterator[str]:
        """Yield what the rows say, of the files that the sink's log says belong to the table."""
        table = self._root / "table"
        paths: set[str] = set()
        for each in (table / "_spark_metadata").glob("[0-9]*"):
            entries = each.read_text().splitlines()[1:]
            paths |= {json.loads(entry)["path"].rpartition("/")[2] for entry in entries}
        for path in sorted(paths):
            for row in pq.ParquetFile(table / path).read().to_pylist():
                yield row["error"] or json.loads(row["output"])


def _group_of(body: str) -> str:
    """Return the group of a message in a queue of groups: one of seven, by its number."""
    return f"group {int(body.split()[1]) % 7}"


def _in_one_run(kills: list[tuple[Victim, Point]]) -> Iterator[list[tuple[Victim, Point]]]:
    """Yield kills in groups that one run of the query can go through, in their order."""
    group: list[tuple[Victim, Point]] = []
    for kill in kills:
        if group and (kill[0] in _ENDING or group[0][0] in _ENDING):
            yield group
            group = []
        group.append(kill)
    if group:
        yield group


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


def _environment() -> dict[str, str]:
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
