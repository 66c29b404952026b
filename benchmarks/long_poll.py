"""Long polling, measured over HTTP against a server process: one JSON object a line.

``python -m benchmarks.long_poll`` starts ``leasehold serve`` with a store of its own, measures, and
stops it. Lines: ``latency`` (from the moment a message is sent to the moment a waiting receiver in
another process has it), ``lateness`` (the same for delayed messages, from their due moment; it
includes the way of the send, as the client cannot know when the server read its clock) and ``idle``
(CPU and memory of the server by itself, with open connections, and with as many receivers that wait
for messages that do not come).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.load.admin import create_queue
from benchmarks.load.job import EMULATOR_ACCOUNT, Job
from benchmarks.load.signing import VERSION, service_sas
from benchmarks.workspace import environment, measured_python

WAIT_S: Final = 60
"""What every receive waits, the longest there is."""
SPARE_CONNECTIONS: Final = 200
"""Connections of the server beside those that wait."""
QUEUE: Final = "long-poll"

_START_S: Final = 30.0
_READ_BYTES: Final = 65_536
_CROWD: Final = 50
"""So many connections are opened, or requests sent, at once."""
_PAUSE_S: Final = 0.02
_SETTLE_S: Final = 2.0
_REST_S: Final = 0.01
"""After an answer until the next message is sent: by then the receiver waits again."""


class Client:
    """One connection that sends requests made by hand."""

    def __init__(self, port: int, queue: str = QUEUE) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.queue = queue
        self._sas = service_sas(queue)

    def ask(self, request: bytes) -> bytes:
        """Send a request and return the answer, header and all."""
        self.socket.sendall(request)
        answer = b""
        while not _is_whole(answer):
            received = self.socket.recv(_READ_BYTES)
            if not received:
                raise ConnectionError("the server has closed the connection")
            answer += received
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(answer.decode(errors="replace"))
        return answer

    def put(self, text: str, delay_s: int = 0) -> None:
        """Put a message."""
        body = f"<QueueMessage><MessageText>{text}</MessageText></QueueMessage>"
        self.ask(_request("POST", self.queue, self._sas, f"visibilitytimeout={delay_s}", body))

    def receive(self) -> bytes:
        """Wait for a message."""
        return self.ask(receive_request(self.queue))


def receive_request(queue: str) -> bytes:
    """Return a request that waits for a message."""
    return _request("GET", queue, service_sas(queue), f"visibilitytimeout=3600&wait={WAIT_S}")


def _request(method: str, queue: str, sas: str, query: str, body: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if method == "POST" else ""
    return (
        f"{method} /{EMULATOR_ACCOUNT}/{queue}/messages?{query}&{sas} HTTP/1.1\r\n"
        f"Host: 127.0.0.1\r\nx-ms-version: {VERSION}\r\n{length}\r\n{body}"
    ).encode()


def _is_whole(answer: bytes) -> bool:
    head = answer.find(b"\r\n\r\n")
    if head < 0:
        return False
    length = re.search(rb"ontent-[Ll]ength: (\d+)", answer[:head])
    return length is None or len(answer) >= head + 4 + int(length[1])


# --- the server ------------------------------------------------------------------------------


@contextmanager
def running_server(connections: int, queues: Sequence[str]) -> Iterator[tuple[int, psutil.Process]]:
    """Run a server with some queues; yield its port and its process."""
    with tempfile.TemporaryDirectory(prefix="long-poll-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        log = Path(folder) / "log"
        command = measured_python(
            "-m", "leasehold.cli", "serve", "--host", "127.0.0.1", "--port", "0"
        )
        command += ["--data", str(data), "--max-connections", str(connections)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environment(), stdout=output, stderr=output)
        try:
            port = _port(log, process)
            for queue in queues:
                _create(port, queue)
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())
        if found:
            return int(found[1])
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


def _create(port: int, queue: str) -> None:
    create_queue(Job(workload="cycle", dialect="azure", port=port, queue=queue))


# --- latency ---------------------------------------------------------------------------------


def _receive_for_ever(port: int, pipe: Connection) -> None:
    """Receive, and tell the moment of each answer and what was in it; runs in its own process."""
    client = Client(port)
    while True:
        answer = client.receive()
        moment_ns = time.monotonic_ns()
        for text in re.findall(rb"<MessageText>(\d+)</MessageText>", answer):
            pipe.send((int(text), moment_ns))


@contextmanager
def receivers(port: int, count: int) -> Iterator[list[Connection]]:
    """Run some receivers; yield where they tell what they get."""
    context = get_context("spawn")
    pipes, processes = [], []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=_receive_for_ever, args=(port, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    time.sleep(_SETTLE_S)  # until all of them wait
    try:
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


def measure_latency(port: int, messages: int) -> dict[str, Any]:
    """Send messages one by one to a receiver that waits."""
    sender = Client(port)
    samples, after_answer = [], []
    with receivers(port, 1) as (pipe,):
        for _ in range(messages):
            sent_ns = time.monotonic_ns()
            sender.put(str(sent_ns))
            answered_ns = time.monotonic_ns()
            text, received_ns = pipe.recv()
            assert text == sent_ns
            samples.append(received_ns - sent_ns)
            after_answer.append(received_ns - answered_ns)
            time.sleep(_REST_S)
    return {"measure": "latency", **_spread(samples), "after_answer_ms": _spread(after_answer)}


def measure_lateness(port: int, messages: int, pause_s: float) -> dict[str, Any]:
    """Send messages with a delay of a second to a receiver that waits."""
    sender = Client(port)
    samples = []
    with receivers(port, 1) as (pipe,):
        for _ in range(messages):
            sender.put(str(time.monotonic_ns()), delay_s=1)
            time.sleep(pause_s)
        for _ in range(messages):
            sent_ns, received_ns = pipe.recv()
            samples.append(received_ns - sent_ns - 1_000_000_000)
    return {"measure": "lateness", **_spread(samples)}


def _spread(samples_ns: Sequence[int]) -> dict[str, float]:
    ordered = sorted(samples_ns)

    def rank_ms(percent: int) -> float:
        return round(ordered[-(-len(ordered) * percent // 100) - 1] / 1e6, 2)

    return {
        "count": len(ordered),
        "p50_ms": rank_ms(50),
        "p90_ms": rank_ms(90),
        "p99_ms": rank_ms(99),
        "max_ms": rank_ms(100),
    }


# --- idle waiters ----------------------------------------------------------------------------


async def _crowd(
    port: int, count: int, queues: Sequence[str], server: psutil.Process, seconds: float
) -> dict[str, Any]:
    """Open connections, have them wait for messages of *queues* if there are any, and look."""
    alone = server.memory_info().rss
    writers = []
    for number in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        if number % _CROWD == 0:
            await asyncio.sleep(_PAUSE_S)
    connected = server.memory_info().rss
    for number, writer in enumerate(writers if queues else []):
        writer.write(receive_request(queues[number % len(queues)]))
        if number % _CROWD == 0:
            await asyncio.sleep(_PAUSE_S)
    await asyncio.sleep(_SETTLE_S)
    begun_s, cpu_s = time.monotonic(), sum(server.cpu_times()[:2])
    await asyncio.sleep(seconds)
    cpu_s = sum(server.cpu_times()[:2]) - cpu_s
    waiting = server.memory_info().rss
    result = {
        "measure": "idle",
        "connections": count,
        "waiters": count if queues else 0,
        "queues": len(queues),
        "seconds": round(time.monotonic() - begun_s, 1),
        "cpu_s": round(cpu_s, 3),
        "rss_mb": round(waiting / 1e6, 1),
    }
    if count:
        result["kb_per_connection"] = round((connected - alone) / count / 1e3, 1)
    if queues:
        result["kb_per_waiter"] = round((waiting - connected) / count / 1e3, 1)
    for writer in writers:
        writer.close()
    return result


def measure_idle(connections: int, queues: int, seconds: float) -> dict[str, Any]:
    """Let receivers wait for nothing; with no queues they are only connected."""
    names = [f"{QUEUE}-{number}" for number in range(queues)]
    with running_server(connections + SPARE_CONNECTIONS, names) as (port, server):
        time.sleep(_SETTLE_S)
        return asyncio.run(_crowd(port, connections, names, server, seconds))


def main() -> None:
    """Measure, and print one object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--waiters", type=int, default=5000)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    with running_server(SPARE_CONNECTIONS, [QUEUE]) as (port, _):
        print(json.dumps(measure_latency(port, given.messages)), flush=True)
        print(json.dumps(measure_lateness(port, given.messages // 5, 0.05)), flush=True)
    for connections, queues in ((0, 0), (given.waiters, 0), (given.waiters, given.queues)):
        print(json.dumps(measure_idle(connections, queues, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
