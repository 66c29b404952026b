"""A good client beside many connections whose requests never come whole.

``python -m benchmarks.unfinished_flood`` starts ``leasehold serve`` and measures one client that
puts messages, first alone and then beside 1,420 connections that each hold back the last byte of a
request of the largest size: with no credentials, in the header, and with a signature that may put.
They come from another address, 127.0.0.2. Whoever is cut off waits up to 20 seconds and comes
again; ``--again-s 1`` makes a flood of connections of it, which costs the server more than what
they hold. The client waits 5 ms between two puts, and opens a new connection for every tenth. The
memory is that of the server's process, looked at all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil

from benchmarks.load.job import EMULATOR_ACCOUNT
from benchmarks.load.signing import VERSION, service_sas
from benchmarks.long_poll import Client, running_server
from benchmarks.single import Record, print_bars

CONNECTIONS: Final = 1_420
BODY_BYTES: Final = 131_584
QUEUE: Final = "flooded"
FORMS: Final = ("alone", "no credentials", "header", "signed")

_BARS: Final = {"p99_ms": ("<=", 100.0), "rss_mib": ("<=", 300.0), "refused": ("<=", 0.0)}
_WARM_S: Final = 5.0
"""In which the connections are opened, before anything is measured."""
_PAUSE_S: Final = 0.005
_NEW_EVERY: Final = 10
_MIB: Final = 1024 * 1024


def unfinished(form: str) -> bytes:
    """Return a request without its last byte."""
    if form == "header":
        return b"GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"a" * 30_000
    query = f"?{service_sas(QUEUE)}" if form == "signed" else ""
    head = (
        f"POST /{EMULATOR_ACCOUNT}/{QUEUE}/messages{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"x-ms-version: {VERSION}\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    )
    return head.encode() + b"x" * (BODY_BYTES - 1)


def _flood(port: int, form: str, again_s: float) -> None:
    """Keep the connections up until the process is ended."""
    request = unfinished(form)
    random = Random(form)

    async def one() -> None:
        await asyncio.sleep(random.uniform(0, _WARM_S))
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=("127.0.0.2", 0)
                )
                try:
                    writer.write(request)
                    await writer.drain()
                    await reader.read()
                finally:
                    writer.close()
            await asyncio.sleep(random.uniform(0, again_s))

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(CONNECTIONS)))

    asyncio.run(all_of_them())


@contextlib.contextmanager
def _flooding(port: int, form: str, again_s: float) -> Iterator[None]:
    if form == "alone":
        yield
        return
    process = get_context("spawn").Process(target=_flood, args=(port, form, again_s), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _largest_rss(process: psutil.Process, done: threading.Event, found: list[float]) -> None:
    while not done.wait(0.02):
        found.append(process.memory_info().rss / _MIB)


def _measure_puts(port: int, seconds: float) -> dict[str, Any]:
    took_ms: list[float] = []
    refused = 0
    client = Client(port, QUEUE)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        begun_s = time.perf_counter()
        try:
            if len(took_ms) % _NEW_EVERY == 0:
                client.socket.close()
                client = Client(port, QUEUE)
            client.put("good")
        except (OSError, RuntimeError):
            refused += 1
            client = Client(port, QUEUE)
        took_ms.append((time.perf_counter() - begun_s) * 1000)
        time.sleep(_PAUSE_S)
    client.socket.close()
    return {
        "puts": len(took_ms),
        "refused": refused,
        "p50_ms": round(statistics.median(took_ms), 2),
        "p99_ms": round(statistics.quantiles(took_ms, n=100)[98], 2),
        "max_ms": round(max(took_ms), 2),
    }


def measure(form: str, seconds: float, again_s: float) -> dict[str, Any]:
    """Measure the good client beside a flood of one form, on a server of its own."""
    with running_server(4_096, [QUEUE]) as (port, process):
        found: list[float] = []
        done = threading.Event()
        watching = threading.Thread(target=_largest_rss, args=(process, done, found))
        watching.start()
        try:
            with _flooding(port, form, again_s):
                time.sleep(0 if form == "alone" else _WARM_S)
                figures = _measure_puts(port, seconds)
        finally:
            done.set()
            watching.join()
    return {"form": form, **figures, "rss_mib": round(max(found), 1)}


def main() -> None:
    """Measure all forms, print the figures and keep them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--again-s", type=float, default=20.0)
    given = options.parse_args()
    record = Record("unfinished_flood")
    results = []
    for form in FORMS:
        figures = measure(form, given.seconds, given.again_s)
        print(form)
        print_bars(figures, _BARS, 1)
        results.append(figures)
    if given.out:
        members = {
            "connections": CONNECTIONS,
            "body_bytes": BODY_BYTES,
            "again_s": given.again_s,
            "results": results,
        }
        record.write(given.out, members)


if __name__ == "__main__":
    main()
