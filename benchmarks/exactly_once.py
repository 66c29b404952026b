"""Claims, staged sends and the event log, measured over HTTP against a server process.

``python -m benchmarks.exactly_once --out benchmarks/results/exactly_once.json`` starts ``leasehold
serve`` with a store of its own and measures, in rounds:

- ``claim``: a claim of 100,000 messages of 1 KiB is opened, read as Arrow and settled; and
  how long the server's processor works afterwards to free the rows;
- ``beside``: put, receive and complete of one connection while no claim is open, and while 100 are;
- ``staged``: 100,000 rows staged as Arrow in ten chunks, and published;
- ``log``: cycles of single messages and of batches of 100, on a queue with an event log and on one
  without.

The client and the server share the machine's cores, as they do in practice.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa

from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY, Job
from benchmarks.long_poll import running_server
from benchmarks.single import Record, print_bars
from benchmarks.workspace import environment, python

MESSAGES: Final = 100_000
BODY_BYTES: Final = 1024
CHUNK: Final = 10_000
PAGE: Final = 10_000
BESIDE_CLAIMS: Final = 100
BESIDE_SIZE: Final = 1_000
BESIDE_CYCLES: Final = 1_500
LEASE_S: Final = 600
EXTENSIONS: Final = 20
_ARROW: Final = "application/vnd.apache.arrow.stream"
_ACCOUNT: Final = f"/v1/accounts/{EMULATOR_ACCOUNT}"
_IDLE_S: Final = 0.2
_CONNECTIONS: Final = 300

BARS: Final = {
    "claim_messages_per_s": (">=", 100_000),
    "extend_ms": ("<", 5),
    "receive_beside_100_claims": ("<=", 1.10),
    "staged_rows_per_s": (">=", 60_000),
    "log_cost_of_single_messages": ("<=", 0.10),
    "log_cost_of_batches": ("<=", 0.25),
}


class Api:
    """One connection to the native API."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        accept: str = "application/json",
    ) -> tuple[bytes, http.client.HTTPResponse]:
        """Send a request and return the answer's body.

        Raises:
            RuntimeError: It was refused.
        """
        headers = {"Authorization": f"Bearer {EMULATOR_KEY}", "Accept": accept}
        content: bytes | None = None
        if isinstance(body, bytes):
            content, headers["Content-Type"] = body, _ARROW
        elif body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        self._connection.request(method, _ACCOUNT + path, content, headers)
        answer = self._connection.getresponse()
        received = answer.read()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise RuntimeError(received.decode())
        return received, answer

    def json(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and return what the answer says."""
        received, _ = self.ask(method, path, body)
        return json.loads(received) if received else None


def fill(api: Api, queue: str, count: int) -> None:
    """Put messages."""
    body = "x" * BODY_BYTES
    for start in range(0, count, 1_000):
        messages = [{"body": body}] * min(1_000, count - start)
        api.json("POST", f"/queues/{queue}/messages", {"messages": messages})


def cpu_s(server: psutil.Process) -> float:
    """Return the processor time that the server has used."""
    return float(sum(server.cpu_times()[:2]))


def wait_until_idle(server: psutil.Process) -> float:
    """Wait until the server has nothing to do; return the processor time of that, in seconds."""
    began = cpu_s(server)
    while True:
        before = cpu_s(server)
        time.sleep(_IDLE_S)
        if cpu_s(server) - before < _IDLE_S * 0.1:
            # Sweeps run once a second.
            time.sleep(1.1)
            if cpu_s(server) - before < _IDLE_S * 0.3:
                return cpu_s(server) - began


# --- claims --------------------------------------------------------------------------------------


def read_arrow(api: Api, claim: str) -> int:
    """Read a claim as Arrow and return how many rows that was."""
    after, rows = "", 0
    while True:
        path = f"{claim}/messages?limit={PAGE}&after={after}"
        received, answer = api.ask("GET", path, accept=_ARROW)
        with pa.ipc.open_stream(received) as stream:
            rows += sum(int(batch.num_rows) for batch in stream)
        after = answer.getheader("leasehold-next-after") or ""
        if not after:
            return rows


def measure_claim(api: Api, server: psutil.Process, number: int) -> dict[str, float]:
    """Open, extend, read and settle one claim."""
    fill(api, "claims", MESSAGES)
    wait_until_idle(server)
    stream = "/queues/claims/streams/bench"
    token = api.json("PUT", stream)["token"]
    claim = f"{stream}/claims/{number}"
    began = time.perf_counter()
    opened = api.json("PUT", claim, {"token": token, "limit": MESSAGES, "lease_s": LEASE_S})
    open_s = time.perf_counter() - began
    began = time.perf_counter()
    rows = read_arrow(api, claim)
    read_s = time.perf_counter() - began
    if not opened["claim"]["size"] == rows == MESSAGES:
        raise RuntimeError(f"{rows} rows of {opened}")
    extensions = []
    for _ in range(EXTENSIONS):
        began = time.perf_counter()
        api.json("POST", f"{claim}/extend", {"token": token, "lease_s": LEASE_S})
        extensions.append((time.perf_counter() - began) * 1e3)
    began = time.perf_counter()
    settled = api.json("POST", f"{stream}/settle", {"token": token, "upto": number})
    settle_s = time.perf_counter() - began
    if settled["completed"] != MESSAGES:
        raise RuntimeError(f"settled {settled}")
    total_s = open_s + read_s + settle_s
    return {
        "open_s": open_s,
        "read_s": read_s,
        "settle_s": settle_s,
        "messages_per_s": MESSAGES / total_s,
        "extend_p50_ms": statistics.median(extensions),
        "extend_max_ms": max(extensions),
        "freeing_cpu_s": wait_until_idle(server),
    }


def cycles(api: Api, queue: str, count: int) -> dict[str, list[float]]:
    """Put, receive and complete one message at a time; return milliseconds by verb."""
    path = f"/queues/{queue}/messages"
    put = {"messages": [{"body": "x" * BODY_BYTES}]}
    receive = {"max_messages": 1, "visibility_timeout_s": 30}
    taken: dict[str, list[float]] = {"put": [], "receive": [], "complete": []}
    for _ in range(count):
        at = [time.perf_counter()]
        api.json("POST", path, put)
        at.append(time.perf_counter())
        (message,) = api.json("POST", f"{path}/receive", receive)["messages"]
        at.append(time.perf_counter())
        item = {"id": message["id"], "receipt": message["receipt"]}
        api.json("POST", f"{path}/complete", {"items": [item]})
        at.append(time.perf_counter())
        for verb, start, end in zip(taken, at, at[1:], strict=False):
            taken[verb].append((end - start) * 1e3)
    return taken


def measure_beside(api: Api, server: psutil.Process, first: int) -> dict[str, float]:
    """Receive while no claim is open and while many are, in the same queue."""
    queue = "/queues/beside"
    wait_until_idle(server)
    without = cycles(api, "beside", BESIDE_CYCLES)
    fill(api, "beside", BESIDE_CLAIMS * BESIDE_SIZE)
    stream = f"{queue}/streams/bench"
    token = api.json("PUT", stream)["token"]
    open_one = {"token": token, "limit": BESIDE_SIZE, "lease_s": LEASE_S}
    for number in range(first, first + BESIDE_CLAIMS):
        api.json("PUT", f"{stream}/claims/{number}", open_one)
    wait_until_idle(server)
    beside = cycles(api, "beside", BESIDE_CYCLES)
    last = first + BESIDE_CLAIMS - 1
    api.json("POST", f"{stream}/settle", {"token": token, "upto": last})
    wait_until_idle(server)
    again = cycles(api, "beside", BESIDE_CYCLES)
    alone = statistics.median(without["receive"] + again["receive"])
    return {
        "alone_receive_ms": alone,
        "beside_receive_ms": statistics.median(beside["receive"]),
        "ratio": statistics.median(beside["receive"]) / alone,
    }


# --- staged sends --------------------------------------------------------------------------------


def measure_staged(api: Api, server: psutil.Process, number: int) -> dict[str, float]:
    """Stage rows as Arrow and publish them."""
    body = pa.array([b"x" * BODY_BYTES] * CHUNK, pa.binary())
    batch = pa.record_batch({"body": body})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    chunk_bytes = sink.getvalue().to_pybytes()
    wait_until_idle(server)
    transaction = f"/transactions/bench-{number}"
    began = time.perf_counter()
    for chunk in range(MESSAGES // CHUNK):
        path = f"{transaction}/stage?part=0&chunk={chunk}&queue=staged"
        api.ask("POST", path, chunk_bytes)
    stage_s = time.perf_counter() - began
    began = time.perf_counter()
    published = api.json("POST", f"{transaction}/publish", {})
    publish_s = time.perf_counter() - began
    if published["rows"] != MESSAGES:
        raise RuntimeError(f"published {published}")
    api.json("DELETE", "/queues/staged")
    api.json("PUT", "/queues/staged")
    return {
        "stage_s": stage_s,
        "publish_s": publish_s,
        "rows_per_s": MESSAGES / (stage_s + publish_s),
    }


# --- the event log -------------------------------------------------------------------------------


def run_job(job: Job) -> dict[str, Any]:
    """Run the load generator and return its first phase."""
    done = subprocess.run(
        python("-m", "benchmarks.load"),
        input=job.to_json(),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    if "error" in measured:
        raise RuntimeError(measured["error"])
    phase: dict[str, Any] = measured["phases"][0]
    return phase


def measure_log(port: int, server: psutil.Process, duration_s: float) -> dict[str, float]:
    """Drive a queue with a log and one without, one after the other."""
    figures: dict[str, float] = {}
    single = Job(
        workload="cycle",
        dialect="azure",
        port=port,
        server_pids=(server.pid,),
        duration_s=duration_s,
        warmup_s=0.5,
    )
    batches = replace(
        single, workload="batches", dialect="native", auth="bearer", connections=4, batch=100
    )
    for kind, job in (("single", single), ("batch", batches)):
        for log in ("with", "without"):
            wait_until_idle(server)
            phase = run_job(replace(job, queue=f"log-{log}"))
            figures[f"{kind}_{log}_per_s"] = phase["operations"] / phase["seconds"]
            figures[f"{kind}_{log}_cpu_us"] = phase["server_cpu_s"] / phase["operations"] * 1e6
    return figures


# --- all of it -----------------------------------------------------------------------------------


def rounds_of(measure: Callable[[int], dict[str, float]], count: int) -> list[dict[str, float]]:
    """Measure some rounds."""
    found = []
    for number in range(count):
        found.append({name: round(each, 4) for name, each in measure(number).items()})
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def median_of(rounds: Sequence[dict[str, float]], name: str) -> float:
    """Return the median of one figure."""
    return round(float(statistics.median(each[name] for each in rounds)), 4)


def measure_all(count: int, duration_s: float) -> dict[str, Any]:
    """Measure everything against one server."""
    with running_server(_CONNECTIONS, ()) as (port, server):
        api = Api(port)
        for queue in ("claims", "beside", "staged", "log-with", "log-without"):
            api.json("PUT", f"/queues/{queue}")
        api.json("PATCH", "/queues/log-without", {"settings": {"event_log": False}})
        return {
            "log": rounds_of(lambda _: measure_log(port, server, duration_s), count),
            "claim": rounds_of(lambda number: measure_claim(api, server, number + 1), count),
            "staged": rounds_of(lambda number: measure_staged(api, server, number), count),
            "beside": rounds_of(
                lambda number: measure_beside(api, server, 1 + number * BESIDE_CLAIMS), count
            ),
            "resident_mb": round(server.memory_info().rss / 1e6, 1),
        }


def summary_of(found: dict[str, Any]) -> dict[str, float]:
    """Return the figures that there are bars for."""
    log = found["log"]

    def cost(kind: str) -> float:
        shares = [each[f"{kind}_without_per_s"] / each[f"{kind}_with_per_s"] - 1 for each in log]
        return round(float(statistics.median(shares)), 4)

    return {
        "claim_messages_per_s": median_of(found["claim"], "messages_per_s"),
        "extend_ms": median_of(found["claim"], "extend_p50_ms"),
        "receive_beside_100_claims": median_of(found["beside"], "ratio"),
        "staged_rows_per_s": median_of(found["staged"], "rows_per_s"),
        "log_cost_of_single_messages": cost("single"),
        "log_cost_of_batches": cost("batch"),
    }


def main() -> None:
    """Measure, print the bars, and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = Record("exactly-once")
    found = measure_all(given.rounds, given.seconds)
    summary = summary_of(found)
    print_bars(summary, BARS, digits=3)
    if given.out:
        members = {
            "summary": summary,
            **found,
        }
        record.write(given.out, members)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
