"""Two Leasehold servers on one PostgreSQL, beside pgmq on the same PostgreSQL.

``python -m benchmarks.postgres_servers --out benchmarks/results/postgres_servers.json`` starts a
cluster of its own, with all settings at their defaults, and two of ``leasehold serve --store-url``.
In each round, in turn:

- ``cycle``: 64 connections, each of which puts a message, gets one, deletes that one: on pgmq with
  a statement each, on Leasehold over HTTP with the protocol of Azure, half of them on each server;
- ``batches``: the same with 100 messages at once; for Leasehold with its native API;
- ``few``: as ``batches``, over 8 connections, where pgmq's backends are not in each other's way.

At the end, with ``--soak 5000000``, as many messages pass through both servers in batches, and the
rate of the last minute is compared with that of the first. The promises: twice pgmq's cycles, one
and a half times its batches, and at most 15 % less after five million messages.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from benchmarks.load.admin import create_queue
from benchmarks.load.job import Dialect, Job
from benchmarks.peers.base import Subject
from benchmarks.peers.postgres import Pgmq, PostgresPlace, published_script
from benchmarks.single import Record, print_bars
from benchmarks.workspace import (
    DEFAULT,
    REPOSITORY,
    Workspace,
    environment,
    measured_python,
    python,
)

CONNECTIONS: Final = 64
BATCH: Final = 100
FEW_CONNECTIONS: Final = 8
QUEUE: Final = "bench"
BARS: Final = {"cycle_ratio": (">=", 2.0), "batches_ratio": (">=", 1.5)}
SOAK_BARS: Final = {"soak_ratio": (">=", 0.85)}
_MINUTE_S: Final = 60.0

WORKLOADS: Final = (
    ("cycle", 1, CONNECTIONS),
    ("batches", BATCH, CONNECTIONS),
    ("few", BATCH, FEW_CONNECTIONS),
)
"""Name, messages of a request, connections."""


class Server(Subject):
    """``leasehold serve`` on a database."""

    dialect: ClassVar[Dialect] = "azure"

    def __init__(self, name: str, workspace: Workspace, url: str) -> None:
        super().__init__(name, f"Leasehold, {name}", workspace)
        self._url = url

    def prepare(self) -> None:
        """See :class:`Subject`."""

    def command(self) -> list[str]:
        """See :class:`Subject`."""
        return [
            *measured_python("-m", "leasehold.cli", "serve", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--mns-port", "0", "--store-url", self._url),
        ]

    def is_ready(self) -> bool:
        """See :class:`Subject`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except http.client.HTTPException:
            return False
        finally:
            connection.close()


def load(jobs: Sequence[Job]) -> float:
    """Run load generators side by side, a process each; return messages a second of all.

    A message counts when it is deleted.
    """

    def run(job: Job) -> float:
        done = subprocess.run(
            python("-m", "benchmarks.load"),
            input=job.to_json(),
            cwd=REPOSITORY,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        measured = json.loads(done.stdout or '{"error": "no output"}')
        if "error" in measured:
            raise RuntimeError(f"{measured['error']}\n{done.stderr}")
        (phase,) = measured["phases"]
        # Of a cycle each request is an operation; of batches, each message.
        share = 3 if job.workload == "cycle" else 1
        return float(phase["operations"] / phase["seconds"] / share)

    with ThreadPoolExecutor(len(jobs)) as pool:
        return sum(pool.map(run, jobs))


@contextmanager
def running(workspace: Workspace, pgmq_sql: Path) -> Iterator[tuple[Pgmq, list[Server]]]:
    """Start a cluster and two servers on it."""
    with ExitStack() as stack:
        pgmq = Pgmq("pgmq", "pgmq", workspace, PostgresPlace(pgmq_sql=pgmq_sql))
        pgmq.prepare()
        stack.callback(pgmq.stop)
        pgmq.start()
        host, port, user, _ = (part.split("=", 1)[1] for part in pgmq.conninfo.split())
        url = f"postgresql://{user}@/postgres?host={host}&port={port}"
        servers = [Server(name, workspace, url) for name in ("one", "two")]
        for server in servers:
            stack.callback(server.stop)
            server.start()
        create_queue(Job(workload="cycle", dialect="azure", port=servers[0].port, queue=QUEUE))
        yield pgmq, servers


def jobs_of(
    pgmq: Pgmq | None,
    servers: Sequence[Server],
    *,
    batch: int,
    connections: int,
    seconds: float,
) -> list[Job]:
    """Return what to run: on pgmq if given, or on the servers, half of the connections each."""
    times: dict[str, Any] = {"duration_s": seconds, "warmup_s": seconds / 5}
    if pgmq is not None:
        own: dict[str, Any] = {"dialect": "pgmq", "port": 0, "conninfo": pgmq.conninfo}
        return [
            Job(
                workload="batches",
                batch=batch,
                connections=connections,
                server_pids=pgmq.pids,
                **own,
                **times,
            )
        ]
    return [
        Job(
            workload="cycle" if batch == 1 else "batches",
            dialect="azure" if batch == 1 else "native",
            auth="sas" if batch == 1 else "bearer",
            port=server.port,
            queue=QUEUE,
            is_shared=True,
            batch=batch,
            connections=connections // len(servers),
            server_pids=server.pids,
            **times,
        )
        for server in servers
    ]


def soak(servers: Sequence[Server], messages: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Let many messages pass; return the rate of each minute, and last over first."""
    rates: list[float] = []
    passed = 0.0
    while passed < messages:
        began = time.perf_counter()
        jobs = jobs_of(None, servers, batch=BATCH, connections=CONNECTIONS, seconds=_MINUTE_S)
        rates.append(load(jobs))
        passed += rates[-1] * _MINUTE_S
        took_s = time.perf_counter() - began
        say(f"soak: {passed:,.0f} of {messages:,} ({rates[-1]:,.0f}/s, {took_s:.0f} s)")
    return {"rates_per_s": rates, "messages": passed, "soak_ratio": rates[-1] / rates[0]}


def measure(
    workspace: Workspace,
    options: argparse.Namespace,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure, each round in the other order."""
    rounds: list[dict[str, float]] = []
    with running(workspace, options.pgmq_sql) as (pgmq, servers):
        for number in range(options.rounds):
            found: dict[str, float] = {}
            for name, batch, connections in WORKLOADS:
                for who in ("pgmq", "leasehold") if number % 2 else ("leasehold", "pgmq"):
                    jobs = jobs_of(
                        pgmq if who == "pgmq" else None,
                        servers,
                        batch=batch,
                        connections=connections,
                        seconds=options.seconds,
                    )
                    found[f"{who}_{name}_per_s"] = load(jobs)
            rounds.append(found)
            say(f"round {number + 1} of {options.rounds}: {_rounded(found)}")
        summary = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        for name, _, _ in WORKLOADS:
            summary[f"{name}_ratio"] = (
                summary[f"leasehold_{name}_per_s"] / summary[f"pgmq_{name}_per_s"]
            )
        members: dict[str, Any] = {"version": pgmq.version, "rounds": rounds, "summary": summary}
        if options.soak:
            members["soak"] = soak(servers, options.soak, say)
            summary["soak_ratio"] = members["soak"]["soak_ratio"]
    return members


def _rounded(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in found.items())


def main() -> None:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--soak", type=int, default=0, help="messages; 5000000 for the promise")
    parser.add_argument("--pgmq-sql", type=Path, default=published_script())
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record("postgres-servers")
    workspace = Workspace.open(DEFAULT)
    try:
        members = measure(workspace, options, lambda text: print(text, flush=True))
    finally:
        workspace.close()
    for name, value in members["summary"].items():
        print(f"{name:32} {value:>12,.2f}")
    bars = {**BARS, **(SOAK_BARS if options.soak else {})}
    print_bars(members["summary"], bars, 2)
    if options.out is not None:
        record.write(options.out, members)


if __name__ == "__main__":
    main()
