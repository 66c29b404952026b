"""A good client beside forty that ask for the largest answers there are, or never read them.

``python -m benchmarks.read_flood --out benchmarks/results/read_flood.json`` starts ``leasehold
serve`` with 1,000 messages of 64 KiB in one queue, and forty callers in a process of their own.
Meanwhile one client puts, receives and completes small messages in another queue. Bar: its 99th
percentile is under 50 ms, and the server has less than 300 MiB resident.

The callers take processor time as well, and so do strangers: look at the figures without callers
first, and at those of the same run only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import psutil

from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY
from benchmarks.long_poll import running_server
from benchmarks.records import Latency
from benchmarks.single import Record

CALLERS: Final = 40
MESSAGES: Final = 1_000
BODY_BYTES: Final = 64 * 1024
CLAIMED: Final = 400
BAR_P99_MS: Final = 50.0
BAR_RSS_MIB: Final = 300.0
KINDS: Final = ("none", "peek", "list", "receive", "claim", "arrow", "events", "unread", "mixed")

_BASE: Final = f"/v1/accounts/{EMULATOR_ACCOUNT}/queues"
_HEADERS: Final = {"Authorization": f"Bearer {EMULATOR_KEY}", "Content-Type": "application/json"}
_CLAIM: Final = f"{_BASE}/large/streams/s/claims/1"
_MIXED: Final = ("peek", "list", "receive", "claim", "arrow", "unread")
_ASKED: Final = {
    "peek": ("POST", f"{_BASE}/large/messages/peek", '{"max_messages":1000}', ""),
    "list": ("GET", f"{_BASE}/large/messages?limit=1000", "", ""),
    "receive": (
        "POST",
        f"{_BASE}/large/messages/receive",
        '{"max_messages":1000,"visibility_timeout_s":1}',
        "",
    ),
    "claim": ("GET", f"{_CLAIM}/messages?limit=1000", "", ""),
    "arrow": (
        "GET",
        f"{_CLAIM}/messages?limit=20000",
        "",
        "Accept: application/vnd.apache.arrow.stream\r\n",
    ),
    "events": ("GET", f"/v1/accounts/{EMULATOR_ACCOUNT}/events?limit=10000", "", ""),
    "unread": ("POST", f"{_BASE}/large/messages/peek", '{"max_messages":1000}', ""),
}


# --- the callers -----------------------------------------------------------------------------


def request(kind: str) -> bytes:
    """Return a request as it goes over the wire."""
    method, path, body, more = _ASKED[kind]
    head = "".join(f"{name}: {value}\r\n" for name, value in _HEADERS.items())
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}{more}"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def call(port: int, kind: str, counts: Any) -> None:
    """Ask over and over; ``unread`` asks and leaves the answer where it is."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
            try:
                while True:
                    writer.write(request(kind))
                    if kind == "unread":
                        await _watch(writer)
                        break
                    size = await _skip(reader)
                    with counts.get_lock():
                        counts[0] += 1
                        counts[1] += size
            finally:
                writer.transport.abort()


async def _watch(writer: asyncio.StreamWriter) -> None:
    """Read nothing until the server has had enough."""
    cast("asyncio.Transport", writer.transport).pause_reading()
    while not writer.transport.is_closing():
        await asyncio.sleep(0.5)
        with contextlib.suppress(OSError):
            writer.write(b"\r\n")  # the reset of a connection shows only to who writes


async def _skip(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    left = length
    while left:
        got = len(await reader.read(min(left, 2**16)))
        if not got:
            raise ConnectionResetError
        left -= got
    return length


def run_callers(port: int, kind: str, counts: Any) -> None:
    """Run all callers; a process of its own."""

    async def all_of_them() -> None:
        kinds = [_MIXED[n % len(_MIXED)] if kind == "mixed" else kind for n in range(CALLERS)]
        await asyncio.gather(*(call(port, each, counts) for each in kinds))

    asyncio.run(all_of_them())


@contextmanager
def callers(port: int, kind: str) -> Iterator[Any]:
    """Run the callers; yields how many answers they have had, and how many bytes."""
    counts = multiprocessing.Array("q", 2)
    process = None
    if kind != "none":
        process = multiprocessing.Process(target=run_callers, args=(port, kind, counts))
        process.start()
    try:
        yield counts
    finally:
        if process is not None:
            process.kill()
            process.join()


# --- the good client -------------------------------------------------------------------------


class Client:
    """Asks one thing after the other over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of an answer."""
        content = None if body is None else json.dumps(body)
        self._connection.request(method, path, content, _HEADERS)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{answer.status}: {text[:200]!r}")
        return json.loads(text) if text else None


def fill(client: Client) -> None:
    """Put the large messages, some of them in a claim."""
    body = "x" * BODY_BYTES
    for start in range(0, MESSAGES, 50):
        count = min(50, MESSAGES - start)
        client.ask("POST", f"{_BASE}/large/messages", {"messages": [{"body": body}] * count})
        if start + count == CLAIMED:
            token = client.ask("PUT", f"{_BASE}/large/streams/s")["token"]
            claim = {"token": token, "limit": CLAIMED, "lease_s": 3600}
            client.ask("PUT", _CLAIM, claim)
    for _ in range(CLAIMED // 50):
        client.ask("POST", f"{_BASE}/large/messages", {"messages": [{"body": body}] * 50})


def _load_arrow(port: int) -> None:
    """Have the server load the library: that takes it seconds, once."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    accept = {"Accept": "application/vnd.apache.arrow.stream"}
    connection.request("GET", f"{_CLAIM}/messages?limit=1", headers=_HEADERS | accept)
    connection.getresponse().read()
    connection.close()


def work(client: Client, duration_s: float, server: psutil.Process) -> tuple[list[int], int]:
    """Put, receive and complete; return how long each took in nanoseconds, and the memory."""
    took: list[int] = []
    most = 0
    answer: Any = None
    messages = f"{_BASE}/small/messages"
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        for method, path, body in (
            ("POST", messages, {"messages": [{"body": "small"}]}),
            ("POST", f"{messages}/receive", {"max_messages": 1}),
            ("POST", f"{messages}/complete", None),
        ):
            given = body
            if given is None:
                (message,) = answer["messages"]
                given = {"items": [{"id": message["id"], "receipt": message["receipt"]}]}
            started = time.perf_counter_ns()
            answer = client.ask(method, path, given)
            took.append(time.perf_counter_ns() - started)
        most = max(most, server.memory_info().rss)
    return took, most


def measure(kind: str, duration_s: float) -> dict[str, Any]:
    """Measure beside one kind of callers, with a server of its own."""
    with running_server(1_000, ["large", "small"]) as (port, server):
        client = Client(port)
        fill(client)
        _load_arrow(port)
        with callers(port, kind) as counts:
            work(client, 2.0, server)
            before, began = (counts[0], counts[1]), time.monotonic()
            used = server.cpu_times()
            took, most = work(client, duration_s, server)
            passed_s = time.monotonic() - began
            cpu = server.cpu_times()
            answers, size = counts[0] - before[0], counts[1] - before[1]
    latency = Latency.of(took)
    return {
        "callers": kind,
        "requests": latency.count,
        "p50_ms": round(latency.p50_us / 1000, 2),
        "p99_ms": round(latency.p99_us / 1000, 2),
        "max_ms": round(latency.max_us / 1000, 2),
        "rss_mib": round(most / 2**20, 1),
        "answers_per_s": round(answers / passed_s, 1),
        "mib_per_s": round(size / passed_s / 2**20, 1),
        "server_cpu": round((cpu.user - used.user + cpu.system - used.system) / passed_s, 2),
    }


def main() -> int:
    """Measure, print, and tell whether the bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.read_flood", description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the JSON file")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each kind of callers")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    record = Record("read-flood")
    rounds = []
    for kind in given.kinds:
        found = measure(kind, given.seconds)
        rounds.append(found)
        print(json.dumps(found), flush=True)
    met = all(each["p99_ms"] < BAR_P99_MS and each["rss_mib"] < BAR_RSS_MIB for each in rounds)
    if given.out:
        beside = {"callers": CALLERS, "messages": MESSAGES, "body_bytes": BODY_BYTES}
        record.write(given.out, {**beside, "rounds": rounds, "met": met})
    return 0 if met else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
