"""A real Spark cluster on this machine: a master and workers, each a process of its own.

For tests and demonstrations of what ``local[2]`` cannot show: executors that die, tasks that run
twice, code that must reach another process. As a block::

    with running_cluster(workers=2) as cluster:
        spark = cluster_session(cluster.master)

or from a shell, until Ctrl+C: ``python -m leasehold.spark.cluster``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from leasehold.spark.cluster_daemons import (
    STOPPED_WITHIN_S,
    ClusterFailed,
    ClusterSettings,
    Daemon,
    Daemons,
)
from leasehold.spark.cluster_processes import (
    Executor,
    executors_among,
    processes,
    signal_all,
    with_descendants,
)
from leasehold.spark.java import NoJava

__all__ = ["Cluster", "ClusterFailed", "Executor", "main", "running_cluster"]

_GRACE_S: Final = STOPPED_WITHIN_S + 5
_LOOK_EVERY_S: Final = 0.5
_STATE: Final = "leasehold-spark-cluster "
"""Begins the line on which the cluster says where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that is up."""

    master: str
    """Its address: ``spark://127.0.0.1:PORT``."""
    web: str
    """Address of the master's web page."""
    folder: Path
    """``logs`` has the logs of master and workers, ``worker-N`` the files of its applications."""
    daemons: tuple[Daemon, ...]

    def executors(self) -> list[Executor]:
        """Return the executors that run now, of all applications."""
        workers = [each.pid for each in self.daemons if each.name != "master"]
        return executors_among(processes(), workers)

    def kill(self, executor: Executor) -> None:
        """End an executor and all it has started, at once, as a power cut would (SIGKILL).

        Its worker starts another for the application.
        """
        self._signal(executor, signal.SIGKILL)

    def suspend(self, executor: Executor) -> None:
        """Let an executor and all it has started stand still, as a machine that hangs."""
        self._signal(executor, signal.SIGSTOP)

    def wake(self, executor: Executor) -> None:
        """Let a suspended executor go on."""
        self._signal(executor, signal.SIGCONT)

    @staticmethod
    def _signal(executor: Executor, number: signal.Signals) -> None:
        signal_all(with_descendants(processes(), executor.pid), number)


@contextmanager
def running_cluster(  # noqa: PLR0913 - each is a setting of its own
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    port: int = 0,
    web_port: int = 0,
    folder: Path | None = None,
) -> Iterator[Cluster]:
    """Run a cluster while the block runs. It ends with this process, however that ends.

    Args:
        workers: How many, 1 or more.
        cores: Tasks that each runs at the same time.
        memory: Of each, for its executors, as Spark writes it. An executor takes 1g unless
            ``spark.executor.memory`` says otherwise.
        port: Of the master; 0 takes a free one.
        web_port: Of the master's web page; 0 takes a free one.
        folder: For logs and the files of applications, created if need be; None: one that is
            removed in the end.

    Raises:
        ClusterFailed: It did not come up; the text says why.
    """
    kept = tempfile.TemporaryDirectory(prefix="leasehold-spark-") if folder is None else None
    with kept or nullcontext(str(folder)) as place:
        Path(place).mkdir(parents=True, exist_ok=True)
        size = ("--workers", str(workers), "--cores", str(cores), "--memory", memory)
        ports = ("--port", str(port), "--web-port", str(web_port))
        command = (sys.executable, "-m", __name__, "--held", "--folder", place, *size, *ports)
        process = subprocess.Popen(  # noqa: S603 - this module
            command,
            stdin=subprocess.PIPE,  # it breaks when we are gone, whatever the reason
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # Ctrl+C ends the block first, and the block ends the cluster
        )
        try:
            yield _read_state(process)
        finally:
            _stop(process)


def _read_state(process: subprocess.Popen[bytes]) -> Cluster:
    assert process.stdout is not None
    line = process.stdout.readline().decode(errors="replace")
    if not line.startswith(_STATE):
        raise ClusterFailed((line + process.stdout.read().decode(errors="replace")).strip())
    facts: dict[str, Any] = json.loads(line.removeprefix(_STATE))
    return Cluster(
        master=facts["master"],
        web=facts["web"],
        folder=Path(facts["folder"]),
        daemons=tuple(Daemon(**each) for each in facts["daemons"]),
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        process.stdout.close()
        # Executors that have outlived their worker are in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Let this package be found where it is not installed but lies on the path."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


# --- the process that holds the cluster --------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a cluster until SIGTERM or Ctrl+C, or with ``--held`` until standard input ends."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    made = tempfile.TemporaryDirectory(prefix="leasehold-spark-") if not options.folder else None
    with made or nullcontext(options.folder) as place:
        folder = Path(place).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        settings = ClusterSettings(
            workers=options.workers,
            cores=options.cores,
            memory=options.memory,
            port=options.port,
            web_port=options.web_port,
            folder=folder,
        )
        try:
            with Daemons(settings) as running:
                _tell(running, is_held=options.held)
                return _follow(running, is_held=options.held)
        except (ClusterFailed, NoJava) as error:
            print(error, file=sys.stdout if options.held else sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m leasehold.spark.cluster",
        description="Run a Spark master and its workers on this machine, until Ctrl+C.",
    )
    add = parser.add_argument
    add("--workers", type=int, choices=range(1, 17), default=2, metavar="N", help="1 to 16 (2)")
    add("--cores", type=int, default=1, metavar="N", help="tasks at the same time per worker (1)")
    add("--memory", default="1g", help="for executors, per worker (1g)")
    add("--port", type=int, default=0, help="of the master; 0 takes a free one (0)")
    add("--web-port", type=int, default=0, help="of the master's page; 0 takes a free one (0)")
    add("--folder", help="for logs and applications' files; else one that is removed")
    add("--held", action="store_true", help=argparse.SUPPRESS)
    return parser


def _tell(running: Daemons, *, is_held: bool) -> None:
    if is_held:
        facts = {
            "master": running.master,
            "web": running.web,
            "folder": str(running.settings.folder),
            "daemons": [asdict(each) for each in running.daemons],
        }
        print(_STATE + json.dumps(facts), flush=True)  # noqa: T201 - read by the holder
        return
    print(  # noqa: T201 - a program
        f"Master:   {running.master}\n"
        f"Web page: {running.web}\n"
        f"Logs:     {running.settings.folder / 'logs'}\n"
        "Ctrl+C ends the cluster.",
        flush=True,
    )


def _follow(running: Daemons, *, is_held: bool) -> int:
    if is_held:
        sys.stdin.buffer.read()
        return 0
    while not (ended := running.ended()):
        time.sleep(_LOOK_EVERY_S)
    print(f"{', '.join(ended)} ended early", file=sys.stderr)  # noqa: T201 - a program
    return 1


if __name__ == "__main__":
    sys.exit(main())
