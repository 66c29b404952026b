"""One application of Celery on Leasehold, Redis and RabbitMQ, with late acknowledgement.

``python -m benchmarks.celery_brokers --out benchmarks/results/celery_brokers.json`` measures:

- ``speed``, in rounds with all brokers in turn: tasks that do nothing are published by one process,
  then worked on by one worker: tasks a second from the first to the last, and the processor time of
  the broker and of the worker for each;
- ``kills``: tasks of which some take longer than the visibility timeout, on two workers. One of
  them is killed every few seconds, with its whole process group. Counted are tasks whose effect is
  missing, and those whose effect is there twice: of workers that were killed, and of others.

Redis and RabbitMQ are Debian's packages with their defaults, but for the ports: Redis keeps what it
has in memory, RabbitMQ writes messages to disk. Leasehold has them on disk before it answers.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from celery import Celery

from benchmarks.load.process import ServerProcesses
from benchmarks.peers.base import Absent, Subject, SubjectFailed, accepts
from benchmarks.single import Record, print_bars
from benchmarks.workspace import DEFAULT, REPOSITORY, Workspace, python

APP: Final = "benchmarks.celery_app"
CONCURRENCY: Final = 4
VISIBILITY_TIMEOUT_S: Final = 3
SLOW_S: Final = 5.0
SHORT_S: Final = 0.005
SLOW_EVERY: Final = 100
"""Of so many tasks one is slow."""
KILL_EVERY_S: Final = 4.0
_LOOK_S: Final = 0.05
_PATIENCE_S: Final = 600.0


class Broker(Subject):
    """A broker that is started for the run."""

    scheme = ""
    options: Mapping[str, Any] = {}

    @property
    def url(self) -> str:
        """Its address for Celery."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """See if it is installed."""
        program = self.command()[0]
        if shutil.which(program) is None:
            raise Absent(f"{program} is not installed")

    def is_ready(self) -> bool:
        """Tell whether it listens."""
        return accepts(self.port)


class Leasehold(Broker):
    """This tree's server, on SQLite."""

    scheme = "leasehold+http"
    options: Mapping[str, Any] = {"visibility_timeout": VISIBILITY_TIMEOUT_S, "session_timeout": 4}

    def command(self) -> list[str]:
        """See the base class."""
        return [
            *python("-m", "leasehold.cli", "serve", "--port", str(self.port)),
            *("--data", str(self.folder)),
        ]


class Redis(Broker):
    """Redis with the defaults of its package."""

    scheme = "redis"
    # Checked for as often as that takes, or tasks of killed workers come back after minutes.
    options: Mapping[str, Any] = {
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }

    def command(self) -> list[str]:
        """See the base class."""
        return ["redis-server", "--port", str(self.port), "--dir", str(self.folder)]


class RabbitMq(Broker):
    """RabbitMQ with the defaults of its package."""

    scheme = "amqp"
    options: Mapping[str, Any] = {}

    def command(self) -> list[str]:
        """See the base class."""
        home = str(self.folder)
        return [
            *("/usr/bin/env", f"HOME={home}", "RABBITMQ_NODENAME=bench@localhost"),
            *(f"RABBITMQ_NODE_PORT={self.port}", f"RABBITMQ_DIST_PORT={self.port + 1}"),
            *(f"RABBITMQ_MNESIA_BASE={home}/data", f"RABBITMQ_LOG_BASE={home}/log"),
            f"RABBITMQ_ENABLED_PLUGINS_FILE={home}/plugins",
            "/usr/lib/rabbitmq/bin/rabbitmq-server",
        ]

    def prepare(self) -> None:
        """See if it is installed."""
        if not Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists():
            raise Absent("rabbitmq-server is not installed")


@dataclass
class Run:
    """The application on one broker: publishes, and has workers."""

    broker: Broker
    folder: Path
    options: Mapping[str, Any]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.effects = self.folder / "effects.log"
        self.effects.touch()

    def publish(self, lengths_s: Sequence[float], options: Mapping[str, Any] = {}) -> float:
        """Publish a task of each length; return how many a second."""
        app = Celery("app", broker=self.broker.url, set_as_current=False)
        app.conf.update(broker_transport_options={**self.options, **options})
        began_s = time.perf_counter()
        for number, length_s in enumerate(lengths_s):
            app.send_task(f"{APP}.work", (number, length_s))
        return len(lengths_s) / (time.perf_counter() - began_s)

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker in a process group of its own."""
        number = len(self.workers)
        environment = {
            **os.environ,
            "BROKER_URL": self.broker.url,
            "EFFECTS": str(self.effects),
            "TRANSPORT_OPTIONS": json.dumps(dict(self.options)),
            "C_FORCE_ROOT": "1",
        }
        with (self.folder / f"worker-{number}.log").open("wb") as log:
            made = subprocess.Popen(
                [
                    *python("-m", "celery", "-A", APP, "worker", "-l", "warning"),
                    *("--concurrency", str(CONCURRENCY), "--hostname", f"w{number}@bench"),
                    *("--without-gossip", "--without-mingle"),
                ],
                cwd=REPOSITORY,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.workers.append(made)
        return made

    def lines(self) -> list[tuple[str, float, int]]:
        """Return what was left: what, when, and which worker."""
        found = (line.split() for line in self.effects.read_text().splitlines())
        return [(what, float(at), int(pid)) for what, at, pid in found]

    def done(self) -> dict[str, float]:
        """Return when each task was first done."""
        moments: dict[str, float] = {}
        for what, at, _ in self.lines():
            if what.isdigit():
                moments.setdefault(what, at)
        return moments

    def close(self) -> None:
        """Stop the workers."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                kill(worker)


def kill(worker: subprocess.Popen[bytes]) -> None:
    """End a worker and its pool at once."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


@contextmanager
def running(broker: Broker, name: str, options: Mapping[str, Any]) -> Iterator[Run]:
    """Give a run that leaves no process behind."""
    made = Run(broker, broker.workspace.run / f"{broker.name}-{name}", options)
    try:
        yield made
    finally:
        made.close()


def measure_speed(broker: Broker, tasks: int, name: str) -> dict[str, float]:
    """Publish tasks that do nothing, and have them worked on."""
    with running(broker, name, {}) as run:
        server = ServerProcesses(broker.pids)
        before_s = server.cpu_s()
        publish_per_s = run.publish([0.0] * tasks)
        publish_cpu_s = server.cpu_s() - before_s
        worker = run.start_worker()
        wait(run.done, "the first task")
        before_s, worker_s, counted = server.cpu_s(), tree_s(worker.pid), len(run.done())
        wait(lambda: len(run.done()) >= tasks, "all tasks")
        rest = max(1, tasks - counted)
        moments = sorted(run.done().values())
        return {
            "publish_per_s": publish_per_s,
            "publish_broker_cpu_us": publish_cpu_s / tasks * 1e6,
            "work_per_s": (tasks - 1) / (moments[-1] - moments[0]),
            "work_broker_cpu_us": (server.cpu_s() - before_s) / rest * 1e6,
            "work_worker_cpu_us": (tree_s(worker.pid) - worker_s) / rest * 1e6,
        }


def measure_kills(broker: Broker, tasks: int, kills: int) -> dict[str, float]:
    """Kill workers while they work on tasks, some of which are slow."""
    lengths_s = [SHORT_S if number % SLOW_EVERY else SLOW_S for number in range(tasks)]
    slow = {str(number) for number in range(0, tasks, SLOW_EVERY)}
    with running(broker, "kills", broker.options) as run:
        run.publish(lengths_s)
        alive = [run.start_worker(), run.start_worker()]
        wait(run.done, "the first task")
        killed: set[int] = set()
        for turn in range(kills):
            time.sleep(KILL_EVERY_S)
            if len(run.done()) >= tasks:
                break
            victim = alive.pop(0)
            killed.add(victim.pid)
            kill(victim)
            alive.append(run.start_worker())
            print(f"{broker.name}: kill {turn + 1}, {len(run.done())} done", flush=True)
        with contextlib.suppress(SubjectFailed):  # what is missing is counted
            wait(lambda: len(run.done()) >= tasks, "all tasks")
        # Longer than whatever would bring a message a second time.
        time.sleep(3 * VISIBILITY_TIMEOUT_S + SLOW_S)
        lines = run.lines()
    times = Counter(what for what, _, _ in lines if what.isdigit())
    touched = {what.removeprefix("begin-") for what, _, pid in lines if pid in killed}
    doubles = {what for what, often in times.items() if often > 1}
    return {
        "tasks": tasks,
        "kills": len(killed),
        "missing": tasks - len(times),
        "doubles": len(doubles),
        "doubles_of_killed_workers": len(doubles & touched),
        "doubles_of_others": len(doubles - touched),
        "slow_tasks": len(slow),
        "doubles_of_slow_of_others": len((doubles - touched) & slow),
    }


def tree_s(pid: int) -> float:
    """Return the processor time of a worker and its pool, in seconds."""
    parent = psutil.Process(pid)
    return ServerProcesses([pid]).cpu_s() if parent.is_running() else 0.0


def wait(is_so: Any, what: str) -> None:
    """Wait for a condition.

    Raises:
        SubjectFailed: It is not so for long.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise SubjectFailed(f"waited for {what}")
        time.sleep(_LOOK_S)


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def main() -> None:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", nargs="+", default=["leasehold", "redis", "rabbitmq"])
    parser.add_argument("--parts", nargs="+", default=["speed", "kills"])
    parser.add_argument("--tasks", type=int, default=10_000, help="of the part kills")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--kills-of", nargs="+", default=["leasehold"], help="brokers of the part kills"
    )
    parser.add_argument("--speed-tasks", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record("celery-brokers")
    workspace = Workspace.open(DEFAULT)
    kinds: dict[str, Any] = {"leasehold": Leasehold, "redis": Redis, "rabbitmq": RabbitMq}
    members: dict[str, Any] = {"concurrency": CONCURRENCY, "absent": {}}
    brokers: dict[str, Broker] = {}
    try:
        for name in options.brokers:
            broker = kinds[name](name, name, workspace)
            try:
                broker.prepare()
                broker.start()
                brokers[name] = broker
            except Absent as error:
                members["absent"][name] = str(error)
        if "speed" in options.parts:
            members["speed"] = speed(brokers, options)
        if "kills" in options.parts:
            members["kills"] = {}
            for name, broker in brokers.items():
                if name not in options.kills_of:
                    continue
                found = measure_kills(broker, options.tasks, options.kills)
                members["kills"][name] = found
                print(name, found, flush=True)
    finally:
        for broker in brokers.values():
            broker.stop()
        workspace.close()
    if options.out is not None:
        record.write(options.out, members)


def speed(brokers: Mapping[str, Broker], options: argparse.Namespace) -> dict[str, Any]:
    """Measure all in turn, and compare."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in brokers}
    for number, (name, broker) in itertools.product(range(options.rounds), brokers.items()):
        found = measure_speed(broker, options.speed_tasks, f"speed-{number}")
        rounds[name].append(found)
        print(name, {key: round(value, 1) for key, value in found.items()}, flush=True)
    summary = {name: medians(each) for name, each in rounds.items()}
    if {"leasehold", "redis"} <= set(summary):
        ratios = [
            ours["work_per_s"] / theirs["work_per_s"]
            for ours, theirs in zip(rounds["leasehold"], rounds["redis"], strict=True)
        ]
        summary["ratios"] = {"work_of_leasehold_to_redis": statistics.median(ratios)}
        print_bars(summary["ratios"], {"work_of_leasehold_to_redis": (">=", 1.0)}, 2)
    return {"rounds": rounds, "summary": summary}


if __name__ == "__main__":
    main()
