"""What the compiled hot path gains: the cycle over HTTP, in turns with the pure form.

``python -m benchmarks.compiled_form --out FILE`` starts a server of each form and has the load
generator in C drive them by turns, in another order in each round. A round gives a ratio to
``pure``; what counts is the median of these. ``same`` is the pure form once more: how far its ratio
is from 1, so much is noise.

``--data`` says where the stores are. In a file system in memory, such as ``/dev/shm``, a commit
does not wait, and the processor time is that of the server without the disk's. It takes about 100
seconds.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.load import admin, compiled
from benchmarks.load.dialects import make_dialect
from benchmarks.load.job import Job
from benchmarks.load.process import ServerProcesses
from benchmarks.single import Record
from benchmarks.workspace import environment

_START_S: Final = 60
_WARM_UP_S: Final = 1.0
_SWITCH: Final = "COMPILED_LEASEHOLD"
FORMS: Final = {"pure": "0", "same": "0", "compiled": "1"}


class Turn(NamedTuple):
    """What one turn has shown."""

    rate: float
    """Operations per second."""
    server_us: float
    """Processor time of the server per operation."""


class Server:
    """One that waits for its turn."""

    def __init__(self, pid: int, port: int, program: Path) -> None:
        self._processes = ServerProcesses([pid])
        self._program = program
        self._job = Job(workload="cycle", dialect="azure", port=port)
        admin.create_queue(self._job)

    def turn(self, connections: int, duration_s: float) -> Turn:
        """Drive it for a while."""
        job = Job(workload="cycle", dialect="azure", port=self._job.port, connections=connections)
        phase = compiled.cycle(
            self._program, job, make_dialect(job), duration_s, self._processes.cpu_s
        )
        operations = phase.operations
        return Turn(operations / phase.seconds, phase.server_cpu_s / operations * 1e6)


@contextmanager
def serving(form: str, data: Path | None, program: Path) -> Iterator[Server]:
    """Start a server of some form, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="compiled-form-", dir=data) as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "leasehold.cli", "serve", "--port", "0"]
        command += ["--mns-port", "0", "--data", str(Path(folder) / "data")]
        with log.open("wb") as output:
            variables = {**environment(), _SWITCH: FORMS[form]}
            process = subprocess.Popen(command, env=variables, stdout=output, stderr=output)
        try:
            port = _port(log, process, "compiled" if FORMS[form] == "1" else "pure")
            yield Server(process.pid, port, program)
        finally:
            process.terminate()
            process.wait(60)


def _port(log: Path, process: subprocess.Popen[bytes], form: str) -> int:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        text = log.read_text()
        found = re.search(r"url=http://127\.0\.0\.1:(\d+)", text)
        if found:
            if f"form={form}" not in text:
                sys.exit(f"it is not {form}: run make setup")
            return int(found[1])
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


def main() -> None:
    """Measure, print the medians, and write down every round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", type=Path, help="folder for the stores")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32])
    given = parser.parse_args()
    record = Record("compiled_form")
    program = compiled.program()
    if program is None:
        sys.exit("there is no C compiler")
    turns: list[dict[str, dict[int, Turn]]] = []
    with ExitStack() as stack:
        servers = {form: stack.enter_context(serving(form, given.data, program)) for form in FORMS}
        for server in servers.values():
            server.turn(max(given.connections), _WARM_UP_S)
        for _ in range(given.rounds):
            order = random.sample(list(FORMS), len(FORMS))
            turns.append({form: {} for form in FORMS})
            for connections in given.connections:
                for form in order:
                    turns[-1][form][connections] = servers[form].turn(connections, given.seconds)
    summary = {}
    for connections in given.connections:
        for form in FORMS:
            mine = [found[form][connections] for found in turns]
            pure = [found["pure"][connections] for found in turns]
            pairs = list(zip(mine, pure, strict=True))
            summary[f"{form}_{connections}"] = {
                "rate": statistics.median(turn.rate for turn in mine),
                "server_us": statistics.median(turn.server_us for turn in mine),
                "rate_ratio": statistics.median(a.rate / b.rate for a, b in pairs),
                "server_ratio": statistics.median(a.server_us / b.server_us for a, b in pairs),
            }
    for name, figures in summary.items():
        print(f"{name:14}", *(f"{key} {figure:,.3f}  " for key, figure in figures.items()))
    if given.out:
        record.write(given.out, {"turns": turns, "summary": summary})


if __name__ == "__main__":
    main()
