"""What traces cost, switched off and on, beside a source that knows none.

``python -m benchmarks.tracing_cost --base FOLDER --out FILE`` has a server and a client of each
form put, receive and complete messages, one at a time, and takes the processor time of both for a
message:

- ``base``: the source in FOLDER, such as a worktree of the commit before;
- ``off``: this source, without a provider and without the setting;
- ``on``: this source, with spans of all requests sent to a collector that drops them;
- ``sampled``: the same, where the client begins one trace of twenty.

All forms stand ready, and take turns of a fraction of a second, in another order in each round:
what else the machine does meanwhile hits all alike. A round gives a ratio to ``base``. Processes
of one source differ by some percent for as long as they live, so all are begun anew several times,
in another order. What counts is the median over these of the medians of their rounds. ``same`` is
the base once more: how far its ratio is from 1, so much is noise.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, TypeAlias

import psutil

from benchmarks.single import Record
from benchmarks.workspace import REPOSITORY, environment

_START_S: Final = 30
_WARM_UP: Final = 300
_SAMPLED: Final = {
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.05",
}
_Round: TypeAlias = dict[str, dict[str, float]]
"""Microseconds by form and side."""
_PROGRAM: Final = """
import sys, time
from leasehold.client import Client
url, count, warm_up, traces = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "on"
if traces:
    from leasehold.spans import start
    start("bench")
with Client(url) as client:
    queue = client.queue("cost")
    queue.create()
    def cycle(times):
        for _ in range(times):
            queue.put("x" * 100)
            (message,) = queue.receive()
            queue.complete(message)
    cycle(warm_up)
    print("warm", flush=True)
    while sys.stdin.readline():
        began = time.process_time()
        cycle(count)
        print((time.process_time() - began) / count, flush=True)
"""


class _Drop(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Measure, print the medians, and write down every round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=25, help="after each start")
    parser.add_argument("--count", type=int, default=60, help="messages of a turn")
    given = parser.parse_args()
    record = Record("tracing_cost")
    base, own = given.base / "src", REPOSITORY / "src"
    collector = ThreadingHTTPServer(("127.0.0.1", 0), _Drop)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    on = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}"}
    forms: dict[str, tuple[Path, dict[str, str]]] = {
        "base": (base, {}),
        "same": (base, {}),
        "off": (own, {}),
        "on": (own, on),
        "sampled": (own, on | _SAMPLED),
    }
    starts = []
    for number in range(given.starts):
        starts.append(_rounds(forms, given.rounds, given.count))
        print(f"{number + 1} of {given.starts}", file=sys.stderr, flush=True)
    summary = {}
    for side in ("server", "client"):
        for form in forms:
            summary[f"{side}_{form}_us"] = _middle(starts, side, form)
        for form in [*forms][1:]:
            summary[f"{side}_{form}_ratio"] = _middle(starts, side, form, "base")
    for name, figure in summary.items():
        print(f"{name:24} {figure:10.3f}")
    if given.out:
        record.write(given.out, {"messages": given.count, "starts": starts, "summary": summary})


def _rounds(
    forms: Mapping[str, tuple[Path, dict[str, str]]], rounds: int, count: int
) -> list[_Round]:
    """Begin all forms in some order, and let them take turns."""
    order = [*forms]
    random.shuffle(order)
    with ExitStack() as stack:
        pairs = {form: stack.enter_context(_pair(*forms[form], count)) for form in order}
        found = []
        for _ in range(rounds):
            random.shuffle(order)
            found.append({form: pairs[form].turn() for form in order})
        return found


def _middle(
    starts: Sequence[Sequence[_Round]], side: str, form: str, beside: str | None = None
) -> float:
    """Return the median over all starts of the median of their rounds.

    Args:
        starts: What was measured.
        side: ``server`` or ``client``.
        form: Whose figure it is.
        beside: The form that it is divided by in each round; None: none.
    """

    def figure(found: _Round) -> float:
        return found[form][side] / (1 if beside is None else found[beside][side])

    return statistics.median(statistics.median(map(figure, rounds)) for rounds in starts)


class _Pair:
    """A server and a client that wait for their turn."""

    def __init__(self, server: psutil.Process, client: subprocess.Popen[str], count: int) -> None:
        self._server = server
        self._client = client
        self._count = count

    def turn(self) -> dict[str, float]:
        """Return the microseconds of processor time that both take for a message."""
        before_s = _processor_s(self._server)
        client_s = float(self._ask())
        server_s = (_processor_s(self._server) - before_s) / self._count
        return {"server": server_s * 1e6, "client": client_s * 1e6}

    def _ask(self) -> str:
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        print(file=self._client.stdin, flush=True)
        return self._client.stdout.readline()


@contextmanager
def _pair(source: Path, traces: Mapping[str, str], count: int) -> Iterator[_Pair]:
    variables = {**environment(), "PYTHONPATH": str(source), **traces}
    with _server(variables, traces=bool(traces)) as (url, server):
        command = [sys.executable, "-c", _PROGRAM, url, str(count), str(_WARM_UP)]
        client = subprocess.Popen(
            [*command, "on" if traces else "off"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        if client.stdout.readline() != "warm\n":
            raise RuntimeError("the client did not start")
        try:
            yield _Pair(server, client, count)
        finally:
            client.communicate(timeout=60)


def _processor_s(process: psutil.Process) -> float:
    # In nanoseconds, where psutil tells hundredths of a second.
    threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


@contextmanager
def _server(variables: dict[str, str], *, traces: bool) -> Iterator[tuple[str, psutil.Process]]:
    with tempfile.TemporaryDirectory(prefix="tracing-cost-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "leasehold.cli", "serve", "--port", "0"]
        command += ["--data", str(Path(folder) / "data"), *(["--tracing"] if traces else [])]
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=variables, stdout=output, stderr=output)
        try:
            yield _url(log, process), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _url(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            return found[0]
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


if __name__ == "__main__":
    main()
