"""What the worker library costs for each message, measured with handlers that do nothing.

``python -m benchmarks.worker_overhead --out benchmarks/results/worker_overhead.json`` starts
``leasehold serve`` with a store of its own, and in each round fills a queue and has it worked off,
32 messages at once, through Leasehold's native client:

- ``threads``: by a worker with a handler in threads;
- ``asyncio``: by a worker with an asynchronous handler;
- ``bare``: by a loop that receives and completes by itself and keeps no lease, to compare;
- ``stages``: by a worker with three stages that do nothing, as a pipeline is by default;
- ``stages_saved``: the same, with ``must_save`` for each stage: two saves for each message.

All of it is one process beside that of the server, and both share the machine's cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY
from benchmarks.long_poll import running_server
from benchmarks.single import Record, print_bars
from leasehold.worker.adapters import Outgoing, QueueClient
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.handlers import Handler
from leasehold.worker.message import Message
from leasehold.worker.stages import StageMessage, Stages
from leasehold.worker.worker import Worker

MESSAGES: Final = 40_000
BODY_BYTES: Final = 1024
CONCURRENCY: Final = 32
BARE_RECEIVE: Final = 512
LEASE_S: Final = 30
QUEUE: Final = "overhead"
_CONNECTIONS: Final = 100
_FILL: Final = 5_000
_PATIENCE_S: Final = 300

KINDS: Final = ("threads", "asyncio", "bare", "stages", "stages_saved")
STAGES: Final = ("scan", "encode", "index")
MOST_AT_STAGES: Final = 256
"""Messages at once in a pipeline, as on Spark, where saves at the same time share requests."""

BARS: Final = {
    "threads_messages_per_s": (">=", 5_000),
    "asyncio_messages_per_s": (">=", 5_000),
    "stages_messages_per_s": (">=", 1_000),
}


def handle(_message: Message) -> None:
    """Do nothing."""


async def handle_async(_message: Message) -> None:
    """Do nothing."""


def spec_of(port: int) -> QueueSpec:
    """Return the queue of a server on this machine."""
    endpoint = f"http://127.0.0.1:{port}/{EMULATOR_ACCOUNT}"
    parts = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": EMULATOR_ACCOUNT,
        "AccountKey": EMULATOR_KEY,
        "QueueEndpoint": endpoint,
    }
    connection = ";".join(f"{name}={value}" for name, value in parts.items())
    return QueueSpec(service="leasehold", queue=QUEUE, connection=connection)


def fill(client: QueueClient, count: int) -> None:
    """Put messages."""
    body = b"x" * BODY_BYTES
    for start in range(0, count, _FILL):
        failed = [
            result
            for result in client.put([Outgoing(body=body)] * min(_FILL, count - start))
            if result is not None
        ]
        if failed:
            raise failed[0]


def pipeline_of(*, must_save: bool) -> Stages:
    """Return a pipeline of stages that do nothing."""

    def run(message: StageMessage, _state: object) -> dict[str, str]:
        return {"done": message.stage}

    pipeline = Stages()
    for name in STAGES:
        pipeline.stage(name, must_save=must_save)(run)
    return pipeline


def work_off(client: QueueClient, kind: str) -> None:
    """Have a worker do everything that is in the queue."""
    handlers: dict[str, Handler] = {
        "threads": handle,
        "asyncio": handle_async,
        "stages": pipeline_of(must_save=False),
        "stages_saved": pipeline_of(must_save=True),
    }
    made = Worker(
        handlers[kind],
        client,
        concurrency=MOST_AT_STAGES if kind.startswith("stages") else CONCURRENCY,
        lease=LEASE_S,
        runner="asyncio" if kind == "asyncio" else "threads",
    )
    made.run_until_idle(_PATIENCE_S)


def loop(client: QueueClient) -> None:
    """Receive and complete, and nothing else."""
    while found := client.receive(BARE_RECEIVE, visibility_timeout_s=LEASE_S):
        failed = [each for each in client.complete([each.lease for each in found]) if each]
        if failed:
            raise failed[0]


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time that a process has used."""
    return float(sum(process.cpu_times()[:2]))


def measure(
    client: QueueClient, server: psutil.Process, count: int, act: Callable[[], None]
) -> dict[str, float]:
    """Fill the queue, have it worked off, and say what that took."""
    fill(client, count)
    time.sleep(1.5)  # the server's maintenance after the fill is no part of this
    own = psutil.Process()
    before, server_before, began = cpu_s(own), cpu_s(server), time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    left = client.depth().total
    if left:
        raise RuntimeError(f"{left} messages were left over")
    return {
        "messages_per_s": round(count / seconds, 1),
        "worker_cpu_us": round((cpu_s(own) - before) / count * 1e6, 2),
        "server_cpu_us": round((cpu_s(server) - server_before) / count * 1e6, 2),
    }


def measure_all(rounds: int, count: int, kinds: Sequence[str]) -> dict[str, list[dict[str, float]]]:
    """Measure everything against one server, by turns."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with running_server(_CONNECTIONS, ()) as (port, server):
        client = spec_of(port).open()
        client.create()
        for _ in range(rounds):
            for kind, figures in found.items():

                def act(kind: str = kind) -> None:
                    loop(client) if kind == "bare" else work_off(client, kind)

                figures.append(measure(client, server, count, act))
                print(kind, json.dumps(figures[-1]), file=sys.stderr, flush=True)
        client.close()
    return found


def summary_of(found: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Return the medians."""
    return {
        f"{kind}_{name}": round(statistics.median(each[name] for each in rounds), 2)
        for kind, rounds in found.items()
        for name in rounds[0]
    }


def main() -> None:
    """Measure, print the bars, and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = Record("worker-overhead")
    found = measure_all(given.rounds, given.messages, given.kinds)
    summary = summary_of(found)
    print_bars(summary, {name: bar for name, bar in BARS.items() if name in summary}, digits=1)
    if given.out:
        members = {
            "messages": given.messages,
            "body_bytes": BODY_BYTES,
            "concurrency": CONCURRENCY,
            "summary": summary,
            **found,
        }
        record.write(given.out, members)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
