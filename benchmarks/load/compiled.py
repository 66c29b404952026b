"""The load generator of cycles in C: see ``cycle.c``. It is compiled when it is first needed.

One that is written in Python takes as much of a core as the server that it drives, and more for
HTTP than for a protocol of lines, so that the ratio of two servers depends on it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.load.dialects import VERBS, Dialect
from benchmarks.load.job import Job
from benchmarks.load.workloads import LoadFailed
from benchmarks.records import Latency, Phase
from benchmarks.workspace import DEFAULT

_SOURCE: Final = Path(__file__).with_name("cycle.c")
_FLAGS: Final = ("-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror")
_ID, _RECEIPT = b"I" * 36, b"R" * 8
"""Stand for what a delete takes from the answer to a get."""
_NS: Final = 1e-9


class Refused(Exception):
    """It could not be compiled; the text says why."""


def can_drive(job: Job) -> bool:
    """Tell whether it can do a job: a cycle whose requests are constants, on one server."""
    fits = job.workload == "cycle" and job.dialect in {"azure", "noop", "beanstalkd"}
    return fits and job.auth != "sharedkey" and not job.until_killed


def program() -> Path | None:
    """Return the compiled program; None where there is no C compiler.

    Raises:
        Refused: The compiler is there and does not like the source.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    source = _SOURCE.read_bytes()
    made = DEFAULT / "load" / f"cycle-{hashlib.sha256(source).hexdigest()[:16]}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            fresh = Path(folder) / "cycle"
            command = [compiler, *_FLAGS, "-o", str(fresh), str(_SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Refused(f"{' '.join(command)}: {done.stderr[-2000:]}")
            fresh.rename(made)  # whole, also where two do this at once
    return made


def cycle(
    program: Path, job: Job, dialect: Dialect, duration_s: float, server_cpu_s: Callable[[], float]
) -> Phase:
    """Run cycles for a while.

    Args:
        program: What :func:`program` has returned.
        job: The port, the connections.
        dialect: What to send, and what to expect.
        duration_s: After this long no connection begins anew.
        server_cpu_s: Returns the processor time that the server has used so far.

    Raises:
        LoadFailed: A wrong answer, or none.
    """
    words = (str(job.port), str(job.connections), str(duration_s))
    kind = "l" if job.dialect == "beanstalkd" else "h"
    with subprocess.Popen(
        [program, *words, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for text in _requests(dialect):
                process.stdin.write(struct.pack("=Q", len(text)) + text)
            process.stdin.flush()
            if process.stdout.readline() == b"connected\n":
                before_s = server_cpu_s()
                process.stdin.write(b"\n")
                process.stdin.flush()
                figures = process.stdout.readline().split()
                if figures:
                    return _phase(figures, process.stdout.read(), server_cpu_s() - before_s)
        except BrokenPipeError:
            pass  # it says why
        process.kill()
        raise LoadFailed(process.stderr.read().decode(errors="replace").strip() or "no figures")


def _requests(dialect: Dialect) -> tuple[bytes, ...]:
    before, rest = dialect.delete(_ID + _RECEIPT).split(_ID)
    between, after = rest.split(_RECEIPT)
    return dialect.put(), dialect.get(1), before, between, after, *dialect.expected


def _phase(figures: list[bytes], content: bytes, server_cpu_s: float) -> Phase:
    *counts, empty_gets, wall_ns, user_ns, kernel_ns = map(int, figures)
    samples = array("Q", content)
    assert samples.itemsize == struct.calcsize("=Q")
    assert len(samples) == sum(counts), "the generator was cut short"
    latencies: dict[str, Latency] = {}
    at = 0
    for verb, count in zip((*VERBS, "cycle"), counts, strict=True):
        if count:
            latencies[verb] = Latency.of(samples[at : at + count])
        at += count
    requests = sum(counts[: len(VERBS)])
    return Phase(
        name="cycle",
        operations=requests - empty_gets,
        requests=requests,
        seconds=round(wall_ns * _NS, 6),
        latencies=latencies,
        server_cpu_s=round(server_cpu_s, 6),
        generator_cpu_s=round((user_ns + kernel_ns) * _NS, 6),
        generator_kernel_s=round(kernel_ns * _NS, 6),
        empty_gets=empty_gets,
        generator="C",
    )
