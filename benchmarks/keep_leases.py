"""What it takes to keep 10,000 leases: one manager, Leasehold's native client, a server beside it.

``python -m benchmarks.keep_leases --out benchmarks/results/keep_leases.json`` starts ``leasehold
serve`` with a store of its own, receives 10,000 messages over half a lease, and measures the
processor time of this process, which does nothing but keep their leases. Bar: less than a tenth of
a core, and no lease lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY
from benchmarks.long_poll import running_server
from benchmarks.single import Record
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import Outgoing
from leasehold.worker.leases import Held, LeaseManager, LeaseSettings
from leasehold.worker.leases.process import ProcessLeaseManager

LEASES: Final = 10_000
LEASE_S: Final = 30
BODY_BYTES: Final = 1024
QUEUE: Final = "keep-leases"
BAR: Final = 0.10
"""Of a core."""
_RECEIVE: Final = 100
_PUT: Final = 1_000


def connection(port: int) -> str:
    """Return the connection string of a server."""
    return (
        f"DefaultEndpointsProtocol=http;AccountName={EMULATOR_ACCOUNT};AccountKey={EMULATOR_KEY};"
        f"QueueEndpoint=http://127.0.0.1:{port}/{EMULATOR_ACCOUNT};"
    )


@contextmanager
def keeping(renewer: str) -> Iterator[LeaseManager | ProcessLeaseManager]:
    """Run a manager."""
    settings = LeaseSettings.of(LEASE_S)
    made = LeaseManager(settings) if renewer == "thread" else ProcessLeaseManager(settings)
    try:
        yield made
    finally:
        made.close()


def fill(queue: NativeQueue, count: int) -> None:
    """Put messages of 1 KiB."""
    for start in range(0, count, _PUT):
        batch = [Outgoing(body=b"x" * BODY_BYTES)] * min(_PUT, count - start)
        assert not any(queue.put(batch))


def take(
    manager: LeaseManager | ProcessLeaseManager, queue: NativeQueue, count: int, over_s: float
) -> list[Held]:
    """Receive messages, evenly over some time, as workers do."""
    began_s = time.monotonic()
    helds: list[Held] = []
    while len(helds) < count:
        asked_at_s = time.monotonic()
        helds += [
            manager.keep(queue, delivery, asked_at_s=asked_at_s)
            for delivery in queue.receive(_RECEIVE, visibility_timeout_s=LEASE_S)
        ]
        due_s = began_s + over_s * len(helds) / count
        time.sleep(max(0.0, due_s - time.monotonic()))
    return helds


def cpu_s(renewer: str) -> float:
    """Return the processor time of this process, and of that which renews for it."""
    own = psutil.Process()
    processes = [own, *own.children()] if renewer == "process" else [own]
    renewing = [each for each in processes if "serve" not in each.cmdline()]
    return float(sum(sum(each.cpu_times()[:2]) for each in renewing))


def measure(renewer: str, count: int, seconds: float) -> dict[str, Any]:
    """Keep leases for some time."""
    with running_server(100, [QUEUE]) as (port, server), keeping(renewer) as manager:
        queue = NativeQueue.from_connection_string(connection(port), QUEUE)
        fill(queue, count)
        helds = take(manager, queue, count, LEASE_S / 2)
        before, began_s, used_s = manager.counts.renewals, time.monotonic(), cpu_s(renewer)
        requests, server_s = manager.counts.requests, sum(server.cpu_times()[:2])
        time.sleep(seconds)
        used_s, took_s = cpu_s(renewer) - used_s, time.monotonic() - began_s
        renewals = manager.counts.renewals - before
        found = {
            "renewer": renewer,
            "leases": count,
            "lease_s": LEASE_S,
            "seconds": round(took_s, 2),
            "cpu_share": round(used_s / took_s, 4),
            "server_cpu_share": round((sum(server.cpu_times()[:2]) - server_s) / took_s, 4),
            "renewals": renewals,
            "requests": manager.counts.requests - requests,
            "cpu_us_per_renewal": round(used_s / max(renewals, 1) * 1e6, 1),
            "renewals_per_lease": round(renewals / count, 2),
            "lost": sum(manager.counts.losses.values()),
            "worst_lag_ms": round(manager.worst_lag_s * 1000, 1),
            "resident_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
        }
        completed = [
            result is None
            for start in range(0, count, _PUT)
            for result in queue.complete(
                [held.begin_settling() for held in helds[start : start + _PUT]]
            )
        ]
        found["completed"] = sum(completed)
        queue.close()
    return found


def main() -> int:
    """Measure, and hold it against the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leases", type=int, default=LEASES)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--renewer", choices=["thread", "process"], action="append")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = Record("keep-leases")
    rounds = []
    for _ in range(given.rounds):
        for renewer in given.renewer or ["thread", "process"]:
            rounds.append(measure(renewer, given.leases, given.seconds))
            print(json.dumps(rounds[-1]), flush=True)
    met = all(
        each["cpu_share"] < BAR and not each["lost"] and each["completed"] == given.leases
        for each in rounds
    )
    print(f"less than {BAR:.0%} of a core, nothing lost: {'met' if met else 'FALLS SHORT'}")
    if given.out:
        record.write(given.out, {"rounds": rounds})
    return 0 if met else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
