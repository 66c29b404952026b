"""Batches of 100 messages beside pgmq, each side with its usual client.

``python -m benchmarks.batches_beside_pgmq --out benchmarks/results/batches_beside_pgmq.json``
starts a PostgreSQL cluster of its own, with all settings at their defaults. A *life* of a message
is its put, its receive and its complete, 100 messages of 1 KiB in a call and each call on disk
before it answers. In each round, in turn:

- ``embedded``: Leasehold in the process of its caller, the engine on its SQLite store, and as many
  tasks as connections elsewhere;
- ``served``: ``leasehold serve`` on its SQLite store, with Leasehold's client for Python, a process
  for each connection;
- ``pgmq``: pgmq's client for Python, a process for each connection;
- ``pgmq-driver``: the same statements from libpq, prepared, with nothing decoded, a thread for each
  connection: what PostgreSQL does without a client.

Then, with 8 and with 64 connections, two servers of Leasehold on that PostgreSQL beside ``pgmq``
and ``pgmq-driver``, in eight processes at most.

For each: lives a second and the processor time of everything, clients and servers, for a life. The
promises: embedded 1.5 times ``pgmq`` with 1, 2, 4 and 8 callers; two servers 1.2 times with 8
connections and 1.7 times with 64.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.fill import Fill
from benchmarks.load.admin import create_queue
from benchmarks.load.batch_clients import QUEUE, Task
from benchmarks.load.job import Job
from benchmarks.load.process import ServerProcesses
from benchmarks.peers.base import Subject
from benchmarks.peers.leasehold import Leasehold
from benchmarks.peers.postgres import Pgmq, PostgresPlace, published_script
from benchmarks.postgres_servers import Server
from benchmarks.single import Record, print_bars
from benchmarks.workspace import DEFAULT, REPOSITORY, Workspace, environment, measured_python

CALLERS: Final = (1, 2, 4, 8)
ON_POSTGRES: Final = (8, 64)
MOST_PROCESSES: Final = 8
PEER: Final = "pgmq"
BARS: Final = {
    **{f"embedded_{callers}_ratio": (">=", 1.5) for callers in CALLERS},
    "two-servers_8_ratio": (">=", 1.2),
    "two-servers_64_ratio": (">=", 1.7),
}


@dataclass(frozen=True, slots=True)
class Places:
    """What runs."""

    workspace: Workspace
    pgmq: Pgmq
    served: Leasehold
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    per_s: float
    client_cpu_us: float
    server_cpu_us: float
    """Processor time for a life, microseconds."""


@contextmanager
def running(workspace: Workspace, pgmq_sql: Path, pg_bin: Path | None) -> Iterator[Places]:
    """Start PostgreSQL and all servers."""
    with ExitStack() as stack:
        pgmq = Pgmq("pgmq", "pgmq", workspace, PostgresPlace(bin=pg_bin, pgmq_sql=pgmq_sql))
        pgmq.prepare()
        stack.callback(pgmq.stop)
        pgmq.start()
        with psycopg.connect(pgmq.conninfo, autocommit=True) as link:
            link.execute("SELECT pgmq.create(%s)", (QUEUE,))
        fill = Fill(messages=0, body_bytes=0, progress=lambda _: None)
        served = Leasehold("served", "Leasehold", workspace, fill)
        served.prepare()
        host, port, user, _ = (part.split("=", 1)[1] for part in pgmq.conninfo.split())
        url = f"postgresql://{user}@/postgres?host={host}&port={port}"
        servers = tuple(Server(name, workspace, url) for name in ("one", "two"))
        for server in (served, *servers):
            stack.callback(server.stop)
            server.start()
        for first in (served, servers[0]):
            create_queue(Job(workload="cycle", dialect="azure", port=first.port, queue=QUEUE))
        yield Places(workspace, pgmq, served, servers)


def tasks_of(name: str, callers: int, places: Places, seconds: float) -> list[Task]:
    """Return what each process of one measurement does."""

    def task(kind: str, here: int, where: str) -> Task:
        return Task(kind=kind, callers=here, where=where, seconds=seconds, warmup_s=seconds / 4)

    if name == "embedded":
        return [task(name, callers, str(places.workspace.run / "embedded"))]
    if name == "pgmq-driver":
        return [task(name, callers, places.pgmq.conninfo)]
    processes = min(callers, MOST_PROCESSES)
    each = callers // processes
    if name == PEER:
        return [task(name, each, places.pgmq.conninfo)] * processes
    servers: Sequence[Subject] = places.servers if name == "two-servers" else [places.served]
    return [
        task("leasehold", each, f"http://127.0.0.1:{servers[number % len(servers)].port}")
        for number in range(processes)
    ]


def servers_of(name: str, places: Places) -> list[int]:
    """Return the processes that serve in one measurement."""
    pids: dict[str, Sequence[Subject]] = {
        "embedded": [],
        "served": [places.served],
        "two-servers": [places.pgmq, *places.servers],
    }
    return [pid for server in pids.get(name, [places.pgmq]) for pid in server.pids]


def measure_once(name: str, callers: int, places: Places, seconds: float) -> Sample:
    """Let all processes of one measurement run."""
    if "pgmq" in name or name == "two-servers":
        with psycopg.connect(places.pgmq.conninfo, autocommit=True) as link:
            # Each begins on tables without dead rows, and with statistics.
            link.execute("VACUUM ANALYZE")
            link.execute("CHECKPOINT")
    running = []
    for task in tasks_of(name, callers, places, seconds):
        process = subprocess.Popen(
            measured_python("-m", "benchmarks.load.batch_clients"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env=environment(),
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(task.to_json() + "\n")
        process.stdin.flush()
        running.append(process)
    for process in running:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name}, {callers} callers: the client did not start")
    servers = ServerProcesses(servers_of(name, places), leave_out="autovacuum worker")
    server_s = servers.cpu_s()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = []
    for process in running:
        assert process.stdout is not None
        found.append(json.loads(process.stdout.readline() or "null"))
    server_s = servers.cpu_s() - server_s
    for process in running:
        process.communicate()
    if not all(found):
        raise RuntimeError(f"{name}, {callers} callers: a client has failed")
    messages = sum(each["messages"] for each in found)
    return Sample(
        per_s=sum(each["messages"] / each["seconds"] for each in found),
        client_cpu_us=sum(each["cpu_s"] for each in found) / messages * 1e6,
        server_cpu_us=server_s / messages * 1e6,
    )


def measure(places: Places, options: argparse.Namespace, say: Callable[[str], None]) -> list[Any]:
    """Measure, each round in the other order."""
    cases = [(name, callers) for callers in CALLERS for name in options.subjects]
    if options.postgres:
        on_postgres = ("two-servers", PEER, "pgmq-driver")
        cases += [(name, 64) for name in on_postgres] + [("two-servers", 8)]
    rounds = []
    for number in range(options.rounds):
        found: dict[str, dict[str, float]] = {}
        for name, callers in reversed(cases) if number % 2 else cases:
            sample = measure_once(name, callers, places, options.seconds)
            case = f"{name}_{callers}"
            found[case] = {
                "per_s": round(sample.per_s),
                "client_cpu_us": round(sample.client_cpu_us, 2),
                "server_cpu_us": round(sample.server_cpu_us, 2),
            }
            say(f"round {number + 1} of {options.rounds}: {case}: {found[case]}")
        rounds.append(found)
    return rounds


def summary_of(rounds: Sequence[dict[str, dict[str, float]]]) -> dict[str, float]:
    """Return the medians, and how each compares with pgmq of the same number of connections."""
    summary: dict[str, float] = {}
    for case in rounds[0]:
        for figure in ("per_s", "client_cpu_us", "server_cpu_us"):
            summary[f"{case}_{figure}"] = statistics.median(each[case][figure] for each in rounds)
        name, callers = case.rsplit("_", 1)
        peer = f"{PEER}_{callers}"
        if name != PEER and peer in rounds[0]:
            summary[f"{case}_ratio"] = statistics.median(
                each[case]["per_s"] / each[peer]["per_s"] for each in rounds
            )
            summary[f"{case}_cpu_ratio"] = statistics.median(
                _cpu_us(each[case]) / _cpu_us(each[peer]) for each in rounds
            )
    return summary


def _cpu_us(sample: dict[str, float]) -> float:
    return sample["client_cpu_us"] + sample["server_cpu_us"]


def main() -> None:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--subjects", nargs="+", default=["embedded", "served", PEER, "pgmq-driver"]
    )
    parser.add_argument("--no-postgres", dest="postgres", action="store_false")
    parser.add_argument("--pgmq-sql", type=Path, default=published_script())
    parser.add_argument("--pg-bin", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if importlib.util.find_spec("pgmq") is None:
        parser.error("pgmq's client is not installed: pip install pgmq")
    record = Record("batches-beside-pgmq")
    workspace = Workspace.open(DEFAULT)
    try:
        with running(workspace, options.pgmq_sql, options.pg_bin) as places:
            version = places.pgmq.version
            rounds = measure(places, options, lambda text: print(text, flush=True))
    finally:
        workspace.close()
    summary = summary_of(rounds)
    for name, value in summary.items():
        print(f"{name:32} {value:>12,.2f}")
    bars = print_bars(summary, {name: bar for name, bar in BARS.items() if name in summary}, 2)
    if options.out is not None:
        members = {"version": version, "rounds": rounds, "summary": summary}
        record.write(options.out, members, bars)


if __name__ == "__main__":
    main()
