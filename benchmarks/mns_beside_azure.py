"""The MNS dialect beside that of Azure, on one server and in turn.

``python -m benchmarks.mns_beside_azure --out benchmarks/results/mns_beside_azure.json`` starts
``leasehold serve`` with a store of its own. In each round it lets the same clients do the same work
through either protocol, both with signatures made anew for each request:

- ``cycle``: 32 connections, each of which puts a message, gets one, deletes that one;
- ``phases``: puts, then gets of 16 messages each, then deletes;
- ``long_poll``: 16 receivers that wait, and senders that send as soon as one of them waits.

The promise is that MNS reaches 0.85 of what Azure reaches in the same run, each by its median.
``batch`` says besides what only MNS has: 16 messages in each send, receive and delete.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.load.dialects import SharedKey, http_reply_length
from benchmarks.load.job import Job
from benchmarks.load.mns import Mns
from benchmarks.long_poll import running_server
from benchmarks.single import Record, print_bars
from benchmarks.workspace import REPOSITORY, environment, python
from leasehold.clock import SystemClock

QUEUE: Final = "beside"
CONNECTIONS: Final = 32
BATCH: Final = 16
RECEIVERS: Final = 16
SENDERS: Final = 4
WAIT_S: Final = 20
PROMISED: Final = 0.85
BARS: Final = {
    f"{name}_ratio": (">=", PROMISED)
    for name in ("cycle", "phases_put", "phases_get", "phases_delete", "long_poll")
}
_SPARE: Final = 200
_READ: Final = 1 << 18
_CLOCK: Final = SystemClock()


class WaitingSharedKey(SharedKey):
    """Azure's protocol with the server's own parameter to wait."""

    def tick(self, now_ms: int) -> None:
        """See :class:`Dialect`."""
        super().tick(now_ms)
        query = [("numofmessages", "1"), ("visibilitytimeout", "3600"), ("wait", str(WAIT_S))]
        self._wait = self._parts("GET", query)

    def wait(self, seconds: int) -> bytes:
        """Return a request for one message that waits for it."""
        assert seconds == WAIT_S
        before, after, head = self._wait
        request_id = next(self._ids).encode()
        return b"GET %b%b%b\r\nx-ms-client-request-id: %b\r\n\r\n" % (
            self._path_bytes,
            head,
            self._sign(before + request_id + after),
            request_id,
        )


class Link:
    """One connection that asks and waits for the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: bytes, *statuses: bytes) -> bytes:
        """Return the answer, which must have one of these statuses."""
        self._writer.write(request)
        answer = b""
        while (length := http_reply_length(answer)) < 0 or len(answer) < length:
            part = await self._reader.read(_READ)
            if not part:
                raise ConnectionError("the server has closed the connection")
            answer += part
        if answer[9:12] not in statuses:
            raise RuntimeError(answer[:2000].decode(errors="replace"))
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def connect(port: int, count: int) -> list[Link]:
    """Open connections."""
    return [Link(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]


def dialect_of(protocol: str, port: int) -> Any:
    """Return what to send, with the time of now in it; a run is much shorter than its validity."""
    job = Job(
        workload="cycle",
        dialect="mns" if protocol == "mns" else "azure",
        port=port,
        queue=QUEUE,
        auth="sharedkey",
        batch=BATCH,
    )
    made = Mns(job) if protocol == "mns" else WaitingSharedKey(job)
    made.tick(_CLOCK.now_ms())
    return made


async def long_polls_per_s(protocol: str, port: int, seconds: float) -> float:
    """Return how many messages a second reach receivers that wait, and are deleted."""
    dialect = dialect_of(protocol, port)
    receivers, senders = await connect(port, RECEIVERS), await connect(port, SENDERS)
    wanted = asyncio.Semaphore(RECEIVERS)
    count, is_over = 0, False

    async def receive(link: Link) -> None:
        nonlocal count
        while not is_over:
            answer = await link.ask(dialect.wait(WAIT_S), b"200", b"404")
            for handle in dialect.handles(answer):
                await link.ask(dialect.delete(handle), b"204")
                count += 1
                wanted.release()

    async def send(link: Link) -> None:
        while not is_over:
            await wanted.acquire()
            await link.ask(dialect.put(), b"201")

    began_s = time.perf_counter()
    tasks = [asyncio.create_task(receive(link)) for link in receivers]
    sending = [asyncio.create_task(send(link)) for link in senders]
    await asyncio.sleep(seconds)
    found, passed_s = count, time.perf_counter() - began_s
    is_over = True
    for _ in range(RECEIVERS + SENDERS):
        wanted.release()  # so that nobody waits any more, and each receiver gets a last message
    await asyncio.gather(*sending)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for link in (*receivers, *senders):
        link.close()
    return found / passed_s


async def batches_per_s(port: int, seconds: float) -> float:
    """Return how many messages a second go through MNS in batches."""
    dialect = dialect_of("mns", port)
    links = await connect(port, 4)
    count, end_s = 0, time.perf_counter() + seconds

    async def work(link: Link) -> None:
        nonlocal count
        while time.perf_counter() < end_s:
            await link.ask(dialect.put_many(BATCH), b"201")
            answer = await link.ask(dialect.get(BATCH), b"200", b"404")
            handles = dialect.handles(answer)
            if handles:
                await link.ask(dialect.delete_many(handles), b"204")
            count += len(handles)

    began_s = time.perf_counter()
    await asyncio.gather(*map(work, links))
    passed_s = time.perf_counter() - began_s
    for link in links:
        link.close()
    return count / passed_s


def load(job: Job) -> dict[str, float]:
    """Run the load generator in a process of its own; return operations a second by phase."""
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
    return {each["name"]: each["operations"] / each["seconds"] for each in measured["phases"]}


def measure(protocol: str, port: int, seconds: float) -> dict[str, float]:
    """Return all figures of one protocol in one round."""
    dialect = "mns" if protocol == "mns" else "azure"
    common: dict[str, Any] = {
        "dialect": dialect,
        "port": port,
        "queue": QUEUE,
        "auth": "sharedkey",
        "connections": CONNECTIONS,
    }
    cycle = load(Job(workload="cycle", duration_s=seconds, warmup_s=seconds / 5, **common))
    phases = load(Job(workload="phases", duration_s=seconds / 3, batch=BATCH, **common))
    found = {"cycle": cycle["cycle"], **{f"phases_{name}": each for name, each in phases.items()}}
    found["long_poll"] = uvloop.run(long_polls_per_s(protocol, port, seconds))
    if protocol == "mns":
        found["batch"] = uvloop.run(batches_per_s(port, seconds))
    return found


def summarize(rounds: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    """Return the medians of all rounds, and what MNS is of Azure."""
    summary: dict[str, float] = {}
    for protocol in ("azure", "mns"):
        for name in rounds[0][protocol]:
            values = [each[protocol][name] for each in rounds]
            summary[f"{protocol}_{name}_per_s"] = statistics.median(values)
    for bar in BARS:
        name = bar.removesuffix("_ratio")
        summary[bar] = summary[f"mns_{name}_per_s"] / summary[f"azure_{name}_per_s"]
    return summary


def run(rounds: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, each round in the other order."""
    found: list[dict[str, dict[str, float]]] = []
    with running_server(CONNECTIONS + _SPARE, [QUEUE]) as (port, _):
        for number in range(rounds):
            order = ("azure", "mns") if number % 2 == 0 else ("mns", "azure")
            found.append({protocol: measure(protocol, port, seconds) for protocol in order})
            say(f"round {number + 1} of {rounds}: {found[-1]}")
    return {"rounds": found, "summary": summarize(found)}


def main() -> None:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record("mns-beside-azure")
    members = run(options.rounds, options.seconds, lambda text: print(text, flush=True))
    for name, value in members["summary"].items():
        print(f"{name:32} {value:>12,.2f}")
    print_bars(members["summary"], BARS, 2)
    if options.out is not None:
        record.write(options.out, members)


if __name__ == "__main__":
    main()
