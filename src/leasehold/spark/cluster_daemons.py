"""The processes of a small Spark cluster: a master and its workers, from PySpark's own package."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from leasehold.clock import SystemClock
from leasehold.spark.cluster_processes import processes, signal_all, with_descendants
from leasehold.spark.java import find_java
from leasehold.spark.session import QUICK_JAVA

READY_WITHIN_S: Final = 60.0
STOPPED_WITHIN_S: Final = 8.0
_LOOK_EVERY_S: Final = 0.1
_LINES: Final = 20
"""Of a log that are shown."""
_DAEMON_MEMORY: Final = "256m"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_PR_SET_PDEATHSIG: Final = 1  # Linux, prctl(2)


class ClusterFailed(RuntimeError):
    """The cluster did not come up; the text says where the log is and how it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How big a cluster is, and where it listens."""

    workers: int = 2
    cores: int = 1
    """Per worker: how many tasks of Spark it runs at the same time."""
    memory: str = "1g"
    """Per worker: what its executors may have together, as Spark writes it."""
    port: int = 0
    """Of the master; 0 takes a free one."""
    web_port: int = 0
    """Of the master's web page; 0 takes a free one."""
    folder: Path
    """For logs, and for the files of applications; it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A running process of the cluster."""

    name: str
    """``master``, ``worker-1``, ``worker-2``, …; its log is ``logs/NAME.log``."""
    pid: int
    host: str


class Daemons:
    """Starts master and workers when the block begins, and ends them with it.

    The processes stay in the process group of this one. On Linux they die with it, however it ends.
    To be used from the main thread: the system counts the thread that starts a process as its
    parent.

    Raises:
        NoJava: There is no Java that Spark could run on.
        ClusterFailed: They did not come up.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        host = "127.0.0.1"
        self.master = f"spark://{host}:{own_port(settings.port)}"
        self.web = f"http://{host}:{own_port(settings.web_port)}"
        self.daemons: list[Daemon] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._clock = SystemClock()
        self._home = spark_home()
        self._java = str(find_java().home)

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_all(self) -> None:
        folder = self.settings.folder
        for name in ("logs", "conf", "local"):
            (folder / name).mkdir(exist_ok=True)
        host, port = self.master.removeprefix("spark://").split(":")
        web_port = self.web.rpartition(":")[2]
        ports = ("--host", host, "--port", port, "--webui-port", web_port)
        self._start("master", host, _MASTER, ports)
        self._wait("the master does not answer", lambda: self._state() is not None)
        for number in range(1, self.settings.workers + 1):
            name, own = f"worker-{number}", own_host(number)
            size = ("--cores", str(self.settings.cores), "--memory", self.settings.memory)
            place = ("--host", own, "--webui-port", "0", "--work-dir", str(folder / name))
            self._start(name, own, _WORKER, (*place, *size, self.master))
        self._wait("not all workers have registered", self._is_complete)

    def _start(self, name: str, host: str, main: str, arguments: tuple[str, ...]) -> None:
        folder = self.settings.folder
        environment = {
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
            # Executors would inherit it, which they do not on machines of their own.
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "JAVA_HOME": self._java,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            # An empty one: its logs are to tell more than those of a driver.
            "SPARK_CONF_DIR": str(folder / "conf"),
        }
        with (folder / "logs" / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - the program in PySpark's package
                (str(self._home / "bin" / "spark-class"), main, *arguments),
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - there is one thread only
            )
        self._processes[name] = process
        self.daemons.append(Daemon(name=name, pid=process.pid, host=host))

    def _state(self) -> dict[str, Any] | None:
        """Return what the master says of itself; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.web}/json/", timeout=5) as answer:  # noqa: S310 - our own address
                state: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return None
        return state

    def _is_complete(self) -> bool:
        state = self._state()
        return state is not None and state["aliveworkers"] == self.settings.workers

    def _wait(self, problem: str, is_ready: Callable[[], bool]) -> None:
        give_up_at_s = self._clock.monotonic_s() + READY_WITHIN_S
        while not is_ready():
            if ended := self.ended():
                raise ClusterFailed(f"{ended[0]} has ended; {self._tail(ended[0])}")
            if self._clock.monotonic_s() > give_up_at_s:
                raise ClusterFailed(f"{problem}; {self._tail(self.daemons[-1].name)}")
            time.sleep(_LOOK_EVERY_S)

    def _tail(self, name: str) -> str:
        log = self.settings.folder / "logs" / f"{name}.log"
        lines = log.read_text(errors="replace").strip().splitlines()[-_LINES:]
        return "\n  ".join((f"the end of {log}:", *lines))

    def ended(self) -> list[str]:
        """Return the names of processes that have ended."""
        return [name for name, each in self._processes.items() if each.poll() is not None]

    def stop(self) -> None:
        """End all processes, the workers first, so that they end their executors."""
        started = self._started()
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.terminate()
        give_up_at_s = self._clock.monotonic_s() + STOPPED_WITHIN_S
        for process in self._processes.values():
            try:
                process.wait(max(give_up_at_s - self._clock.monotonic_s(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Those that stand still, or did not notice.
        left = {each.pid: each.command for each in processes()}
        signal_all([pid for pid in started if left.get(pid) == started[pid]], signal.SIGKILL)

    def _started(self) -> dict[int, str]:
        """Return what the workers have started and what came from that, with its commands."""
        known = processes()
        commands = {each.pid: each.command for each in known}
        ours = [pid for each in self.daemons for pid in with_descendants(known, each.pid)]
        return {pid: commands[pid] for pid in ours if pid in commands}


def spark_home() -> Path:
    """Return where PySpark's package is installed, with the programs of Spark in it."""
    import pyspark  # noqa: PLC0415 - it takes a while, and not everybody here needs it

    return Path(pyspark.__file__).parent


def own_host(number: int) -> str:
    """Return an address of this machine for worker *number*, from 1.

    Each worker has its own where the system allows it, as Linux does: Spark does not start a second
    attempt at a slow task on the host of the first.
    """
    host = f"127.0.0.{number}"
    try:
        free_port(host)
    except OSError:
        return "127.0.0.1"
    return host


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port on which nobody listens at this moment."""
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def own_port(wanted: int) -> int:
    """Return *wanted*, or for 0 a free port.

    Spark would take the next port without a word, and nobody would find it there.

    Raises:
        ClusterFailed: Somebody listens on it already.
    """
    if not wanted:
        return free_port()
    try:
        with socket.create_server(("127.0.0.1", wanted)):
            return wanted
    except OSError as error:
        raise ClusterFailed(f"port {wanted} cannot be listened on: {error.strerror}") from None


def die_with_parent() -> None:
    """Have the system end this process when its parent ends, where it can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
