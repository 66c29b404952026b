"""A real Spark cluster on this machine: a master and workers, each a process of its own.

For tests and demonstrations of what ``local[2]`` cannot show: executors that die, tasks that run
twice, code that must reach another process. As a block::

    with running_cluster(workers=2) as cluster:
        spark = cluster_session(cluster.master)

or from a shell, until Ctrl+C: ``leasehold spark cluster``.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from leasehold.clock import Clock, SystemClock
from leasehold.spark.session import QUICK_JAVA, NoJava, find_java

# --- cluster daemons ---------------------------------------------------------------------------
#
# The processes of a small Spark cluster: a master and its workers, from PySpark's own package.


QUIET_S: Final = 300.0
"""A cluster that starts is given up when its logs have not grown for so long. There is no deadline:
a machine that is slow, or busy, takes minutes."""
STOPPED_WITHIN_S: Final = 8.0
_DAEMON_LOOK_EVERY_S: Final = 0.1
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
    """1 or more."""
    cores: int = 1
    """Per worker: how many tasks of Spark it runs at the same time."""
    memory: str = "1g"
    """Per worker: what its executors may have together, as Spark writes it. An executor takes 1g
    unless ``spark.executor.memory`` says otherwise."""
    port: int = 0
    """Of the master; 0 takes a free one."""
    web_port: int = 0
    """Of the master's web page; 0 takes a free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A running process of the cluster."""

    name: str
    """``master``, ``worker-1``, ``worker-2``, …; its log is ``logs/NAME.log``."""
    pid: int
    host: str


class LogGrowth:
    """Tells since when the logs in a folder have not grown.

    Args:
        folder: It holds the logs, and nothing else.
        clock: Its monotonic time counts.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._bytes = -1
        self._grown_at_s = clock.monotonic_s()

    def still_s(self) -> float:
        """Return the seconds since a call has seen the logs larger than the call before."""
        now_s = self._clock.monotonic_s()
        size_bytes = sum(log.stat().st_size for log in self._folder.iterdir())
        if size_bytes != self._bytes:
            self._bytes, self._grown_at_s = size_bytes, now_s
        return now_s - self._grown_at_s


class Daemons:
    """Starts master and workers when the block begins, and ends them with it.

    The processes stay in the process group of this one. On Linux they die with it, however it ends.
    To be used from the main thread: the system counts the thread that starts a process as its
    parent.

    Args:
        settings: How big it is.
        folder: For logs, and for the files of applications; it is there.
        clock: By which it is found that their logs no longer grow; None: the system's.

    Raises:
        NoJava: There is no Java that Spark could run on.
        ClusterFailed: They did not come up.
    """

    def __init__(self, settings: ClusterSettings, folder: Path, clock: Clock | None = None) -> None:
        self.settings = settings
        self.folder = folder
        host = "127.0.0.1"
        self.master = f"spark://{host}:{own_port(settings.port)}"
        self.web = f"http://{host}:{own_port(settings.web_port)}"
        self.daemons: list[Daemon] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._clock = clock or SystemClock()
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
        folder = self.folder
        for name in ("logs", "conf", "local"):
            (folder / name).mkdir(exist_ok=True)
        host, port = self.master.removeprefix("spark://").split(":")
        web_port = self.web.rpartition(":")[2]
        ports = ("--host", host, "--port", port, "--webui-port", web_port)
        self._start("master", host, _MASTER, ports)
        self._wait("no answer on its page", self._missing_master)
        for number in range(1, self.settings.workers + 1):
            name, own = f"worker-{number}", own_host(number)
            size = ("--cores", str(self.settings.cores), "--memory", self.settings.memory)
            place = ("--host", own, "--webui-port", "0", "--work-dir", str(folder / name))
            self._start(name, own, _WORKER, (*place, *size, self.master))
        self._wait("not registered at the master", self._missing_workers)

    def _start(self, name: str, host: str, main: str, arguments: tuple[str, ...]) -> None:
        folder = self.folder
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
            with urllib.request.urlopen(f"{self.web}/json/", timeout=60) as answer:  # noqa: S310 - our own address
                state: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return None
        return state

    def _missing_master(self) -> list[str]:
        return [] if self._state() else ["master"]

    def _missing_workers(self) -> list[str]:
        """Return the names of the workers that the master does not list as alive."""
        state = self._state() or {"workers": []}
        hosts = [worker["host"] for worker in state["workers"] if worker["state"] == "ALIVE"]
        missing = []
        for daemon in self.daemons[1:]:  # the first is the master
            if daemon.host in hosts:
                hosts.remove(daemon.host)
            else:
                missing.append(daemon.name)
        return missing

    def _wait(self, problem: str, missing: Callable[[], list[str]]) -> None:
        """Wait for processes as long as all are alive and one of them writes to its log.

        Raises:
            ClusterFailed: One has ended, or none has written for ``QUIET_S``.
        """
        growth = LogGrowth(self.folder / "logs", self._clock)
        while names := missing():
            if ended := self.ended():
                raise ClusterFailed(f"{ended[0]} has ended; {self._tail(ended[0])}")
            if growth.still_s() > QUIET_S:
                raise ClusterFailed(f"{', '.join(names)}: {problem}; {self._tail(names[0])}")
            time.sleep(_DAEMON_LOOK_EVERY_S)

    def _tail(self, name: str) -> str:
        log = self.folder / "logs" / f"{name}.log"
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
    """Return a port on which no process listens at this moment."""
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def own_port(wanted: int) -> int:
    """Return *wanted*, or for 0 a free port.

    Spark would take the next port without a word, and it would not be found there.

    Raises:
        ClusterFailed: A process listens on it already.
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


# --- cluster -----------------------------------------------------------------------------------


__all__ = ["Cluster", "ClusterFailed", "ClusterSettings", "Executor", "run", "running_cluster"]

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
        # Stopped first: one that is killed last would see the others' end, and tell of a failure.
        # The executor last: when it ends, the system lets what it has started go on (SIGCONT).
        self._signal(executor, signal.SIGSTOP)
        signal_all(reversed(with_descendants(processes(), executor.pid)), signal.SIGKILL)

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
        workers: How many, 1 or more; the others are as in :class:`ClusterSettings`.
        cores: Tasks that each runs at the same time.
        memory: Of each, for its executors.
        port: Of the master; 0 takes a free one.
        web_port: Of the master's web page; 0 takes a free one.
        folder: For logs and the files of applications, created if need be; None: one that is
            removed in the end.

    Raises:
        ClusterFailed: It did not come up; the text says why.
    """
    with _place(folder) as place:
        settings = ClusterSettings(
            workers=workers, cores=cores, memory=memory, port=port, web_port=web_port
        )
        told = json.dumps({"folder": str(place), **asdict(settings)})
        process = subprocess.Popen(  # noqa: S603 - this module
            (sys.executable, "-m", __name__, told),
            stdin=subprocess.PIPE,  # it breaks when we are gone, whatever the reason
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # Ctrl+C ends the block first, and the block ends the cluster
        )
        try:
            yield _read_state(process)
        finally:
            _stop(process)


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    kept = tempfile.TemporaryDirectory(prefix="leasehold-spark-") if folder is None else None
    with kept or nullcontext(str(folder)) as name:
        place = Path(name).resolve()
        place.mkdir(parents=True, exist_ok=True)
        yield place


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


def run(settings: ClusterSettings, folder: Path | None = None) -> int:
    """Run a cluster until SIGTERM or Ctrl+C, and say where it is; return the exit code."""
    with _place(folder) as place:
        return _held(settings, place, _follow)


def _held(settings: ClusterSettings, folder: Path, until: Callable[[Daemons], int]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with Daemons(settings, folder) as running:
            return until(running)
    except (ClusterFailed, NoJava) as error:
        print(error, file=sys.stderr if until is _follow else sys.stdout)
        return 1
    except KeyboardInterrupt:
        return 0


def _follow(running: Daemons) -> int:
    """Tell people of the cluster, and wait for a process of it to end."""
    print(  # noqa: T201 - a program
        f"Master:   {running.master}\n"
        f"Web page: {running.web}\n"
        f"Logs:     {running.folder / 'logs'}\n"
        "Ctrl+C ends the cluster.",
        flush=True,
    )
    while not (ended := running.ended()):
        time.sleep(_LOOK_EVERY_S)
    print(f"{', '.join(ended)} ended early", file=sys.stderr)  # noqa: T201 - a program
    return 1


def _obey(running: Daemons) -> int:
    """Tell the process that holds the pipe of the cluster, and wait for it to let go."""
    facts = {
        "master": running.master,
        "web": running.web,
        "folder": str(running.folder),
        "daemons": [asdict(each) for each in running.daemons],
    }
    print(_STATE + json.dumps(facts), flush=True)  # noqa: T201 - read by the holder
    sys.stdin.buffer.read()
    return 0


# --- cluster processes -------------------------------------------------------------------------
#
# Which processes of this machine are executors, and what they have started.


_PROC: Final = Path("/proc")
_BACKEND: Final = "CoarseGrainedExecutorBackend"
_ID: Final = re.compile(r"--executor-id (\S+)")
_APPLICATION: Final = re.compile(r"--app-id (\S+)")
_HOST: Final = re.compile(r"--hostname (\S+)")


class Process(NamedTuple):
    """A process of this machine."""

    pid: int
    parent: int
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """A process that runs tasks of one application."""

    id: str
    """Counted by Spark from 0 within the application; a successor has another."""
    application: str
    host: str
    pid: int


def processes() -> list[Process]:
    """Return all processes that this user may see."""
    if _PROC.joinpath("self/stat").exists():
        return [found for each in _PROC.glob("[0-9]*") if (found := _from_proc(each)) is not None]
    listing = subprocess.run(
        ("ps", "-axww", "-o", "pid=,ppid=,args="),  # noqa: S607 - where it is differs by system
        capture_output=True,
        text=True,
        check=True,
    )
    return [parse_ps(line) for line in listing.stdout.splitlines() if line.strip()]


def _from_proc(folder: Path) -> Process | None:
    try:
        stat = (folder / "stat").read_text()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None  # it has ended
    # The name before it is in brackets and may have blanks in it.
    parent = int(stat.rpartition(")")[2].split()[1])
    return Process(int(folder.name), parent, command.strip())


def parse_ps(line: str) -> Process:
    """Return the process in one line of ``ps -o pid=,ppid=,args=``."""
    pid, parent, command = line.split(maxsplit=2)
    return Process(int(pid), int(parent), command)


def executors_among(all_of_them: Iterable[Process], workers: Sequence[int]) -> list[Executor]:
    """Return the executors that the workers with these process ids have started."""
    found = []
    for each in all_of_them:
        if each.parent in workers and _BACKEND in each.command:
            numbers = (pattern.search(each.command) for pattern in (_ID, _APPLICATION, _HOST))
            number, application, host = (one[1] if one else "" for one in numbers)
            found.append(Executor(id=number, application=application, host=host, pid=each.pid))
    return sorted(found, key=lambda each: (each.application, each.id))


def with_descendants(all_of_them: Sequence[Process], pid: int) -> list[int]:
    """Return *pid* and all processes that come from it, the eldest first."""
    found = [pid]
    for one in found:
        found += [each.pid for each in all_of_them if each.parent == one]
    return found


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    place = Path(given.pop("folder"))
    sys.exit(_held(ClusterSettings(**given), place, _obey))
