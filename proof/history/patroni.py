"""PostgreSQL under Patroni, which decides itself who is the primary and when.

Three nodes, each a Patroni with its PostgreSQL, and one etcd. A commit waits for a synchronous
standby, and for want of one it waits on (``synchronous_mode_strict``).
"""

from __future__ import annotations

import json
import os
import pwd
import random
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.postgres import USER, find_programs
from tests.reliability.postgres_pair import kill_postmaster
from tests.reliability.postgres_rig import short_folder
from tests.reliability.running import eventually

from proof.history.adapters import Restart
from proof.history.faults import NO_RESTART, Fault
from proof.history.leasehold import Leasehold
from proof.history.peers.server import accepts, free_port
from proof.history.postgres import end_backends
from proof.history.relay import Relay

_INSTALLED: Final = Path("/opt/patroni/bin")
"""Looked at after the path. Not in a home: who PostgreSQL runs as must be able to read it."""
_SCOPE: Final = "proof"
_NODES: Final = ("n1", "n2", "n3")
_SERVERS: Final = 2
_TTL_S: Final = 20
"""Of the leader's key, after which another one may take it; Patroni allows no less."""
_WITHIN_S: Final = 180.0
_LOOK_S: Final = 0.1
_LAG_S: Final = 3.0
_TWO_S: Final = 5.0
_ANSWER_S: Final = 5.0
_LOCAL: Final = "127.0.0.1"


def missing() -> str:
    """Return what is not installed; nothing if all is."""
    absent = [name for name in ("patroni", "patronictl") if _program(name) is None]
    absent += ["etcd"] if shutil.which("etcd") is None else []
    absent += ["PostgreSQL"] if find_programs() is None else []
    return ", ".join(absent)


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(str(_INSTALLED / name))


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a program as a user that PostgreSQL runs as, in a group of processes of its own."""
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **user,
        )


@dataclass(slots=True)
class Node:
    """One Patroni and its PostgreSQL."""

    name: str
    folder: Path
    relay: Relay | None
    """Which the others reach its PostgreSQL by, if there is one."""
    port: int
    """Of PostgreSQL."""
    api_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL when that may run."""
        program = _program("patroni")
        assert program is not None
        self.process = _start([program, str(self.folder / "patroni.json")], self.folder)

    def kill_patroni(self) -> None:
        """End Patroni with SIGKILL; PostgreSQL goes on."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def kill_postgres(self) -> None:
        """End all processes of PostgreSQL with SIGKILL; harmless if there are none."""
        with suppress(FileNotFoundError):
            kill_postmaster(self.folder / "data")

    def asked(self, path: str) -> dict[str, Any]:
        """Return an answer of Patroni.

        Raises:
            OSError: It does not answer.
        """
        url = f"http://{_LOCAL}:{self.api_port}/{path}"
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
            told: dict[str, Any] = json.load(answer)
            return told

    def configuration(self, etcd_port: int, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what its Patroni is configured with; *settings* are those of the cluster."""
        programs = find_programs()
        assert programs is not None
        port = self.relay.port if self.relay is not None else self.port
        return {
            "scope": _SCOPE,
            "name": self.name,
            "etcd3": {"hosts": f"{_LOCAL}:{etcd_port}"},
            "restapi": {
                "listen": f"{_LOCAL}:{self.api_port}",
                "connect_address": f"{_LOCAL}:{self.api_port}",
            },
            "bootstrap": {
                "dcs": settings,
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": {
                "bin_dir": str(programs),
                "data_dir": str(self.folder / "data"),
                "listen": f"{_LOCAL}:{self.port}",
                "connect_address": f"{_LOCAL}:{port}",
                "authentication": {
                    "superuser": {"username": USER},
                    "replication": {"username": "replicator"},
                },
                "pg_hba": [
                    "local all all trust",
                    f"host all all {_LOCAL}/32 trust",
                    f"host replication all {_LOCAL}/32 trust",
                ],
                "parameters": {"unix_socket_directories": str(self.folder)},
            },
        }


class PatroniCluster:
    """A cluster that is whole when this returns; a context manager ends it.

    Args:
        stack: What it is ended with.
        synchronous: Whether commits wait for a standby. If not, the nodes are behind relays too.
    """

    def __init__(self, stack: ExitStack, *, synchronous: bool = True) -> None:
        self._etcd_port = free_port()
        self._begin_etcd(stack)
        self.nodes: list[Node] = []
        for name in _NODES:
            port = free_port()
            relay = None if synchronous else stack.enter_context(Relay(port))
            node = Node(name, stack.enter_context(short_folder()), relay, port)
            stack.callback(node.kill_postgres)
            stack.callback(node.kill_patroni)
            configuration = node.configuration(self._etcd_port, _settings(synchronous=synchronous))
            (node.folder / "patroni.json").write_text(json.dumps(configuration))
            self.nodes.append(node)
        self._standby = "sync_standby" if synchronous else "replica"
        hosts = ",".join(f"{_LOCAL}:{node.port}" for node in self.nodes)
        self.url = f"postgresql://{USER}@{hosts}/postgres?target_session_attrs=read-write"
        """Where servers are to look for the primary."""
        first, *others = self.nodes
        first.start()
        self._wait(lambda: self._roles().get(first.name) == "leader", "there is a leader")
        for node in others:
            node.start()
        self.wait_until_whole()

    def leader(self) -> Node:
        """Return the node that is the leader now."""
        (name,) = (name for name, role in self._roles().items() if role == "leader")
        return self._node(name)

    def wait_for_another(self, old: Node) -> None:
        """Wait until another node has become the leader."""
        self._wait(
            lambda: any(n != old.name and r == "leader" for n, r in self._roles().items()),
            f"another one than {old.name} leads",
        )

    def wait_until_whole(self) -> None:
        """Wait until all nodes run, and one that is not the leader may become it."""
        self._wait(self._is_whole, "the cluster is whole")

    def switch_over(self) -> None:
        """Have the leader hand over to the standby that commits wait for."""
        roles = self._roles()
        leader = self.leader()
        candidate = next(name for name, role in roles.items() if role == self._standby)
        program = _program("patronictl")
        assert program is not None
        done = subprocess.run(
            [
                *(program, "-c", str(leader.folder / "patroni.json"), "switchover", _SCOPE),
                *("--leader", leader.name, "--candidate", candidate, "--force"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN_S,
        )
        if done.returncode:
            raise RuntimeError(f"patronictl: {done.stdout}{done.stderr}")

    def _begin_etcd(self, stack: ExitStack) -> None:
        folder = stack.enter_context(short_folder())
        client, peer = (f"http://{_LOCAL}:{port}" for port in (self._etcd_port, free_port()))
        etcd = _start(
            [
                *("etcd", "--name", "e", "--data-dir", str(folder / "data")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"e={peer}", "--log-outputs", "stderr"),
            ],
            folder,
        )
        stack.callback(etcd.wait)
        stack.callback(etcd.kill)

        def answers() -> bool:
            with suppress(OSError):
                return accepts(self._etcd_port)
            return False

        self._wait(answers, "etcd answers")

    def _roles(self) -> dict[str, str]:
        """Return the role of each member that runs, as the first node sees it that answers."""
        for node in self.nodes:
            with suppress(OSError, urllib.error.URLError):
                members = node.asked("cluster")["members"]
                running = {"running", "streaming"}
                return {each["name"]: each["role"] for each in members if each["state"] in running}
        return {}

    def _is_whole(self) -> bool:
        roles = list(self._roles().values())
        return len(roles) == len(_NODES) and {"leader", self._standby} <= set(roles)

    def _node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            time.sleep(_LOOK_S)
            return is_so()

        eventually(look, what, timeout_s=_WITHIN_S)


def _settings(*, synchronous: bool) -> dict[str, Any]:
    """Return the settings of a cluster, with times to wait as short as Patroni allows."""
    return {
        "ttl": _TTL_S,
        "loop_wait": 1,
        "retry_timeout": 5,
        "primary_start_timeout": 0,  # one whose PostgreSQL has ended is not waited for
        "maximum_lag_on_failover": 2**30,
        "synchronous_mode": synchronous,
        "synchronous_mode_strict": synchronous,
        "postgresql": {
            "use_pg_rewind": True,
            "remove_data_directory_on_rewind_failure": True,
            "remove_data_directory_on_diverged_timelines": True,
            "parameters": {"max_connections": 50, "wal_keep_size": "256MB"},
        },
    }


@dataclass
class LeaderStruck(ABC):
    """Something is done to the leader, and another one leads; in the end the old one follows."""

    cluster: PatroniCluster
    name: str = ""
    longest_s: float = 0.3
    is_alone: bool = True
    _struck: Node | None = None

    def start(self, rng: random.Random) -> str:
        """Do it."""
        del rng
        self._struck = self.cluster.leader()
        self.strike(self._struck)
        return self._struck.name

    def stop(self) -> Restart:
        """Wait until another one leads, and until the old one follows."""
        assert self._struck is not None
        self.cluster.wait_for_another(self._struck)
        self.bring_back(self._struck)
        self.cluster.wait_until_whole()
        return NO_RESTART

    @abstractmethod
    def strike(self, leader: Node) -> None:
        """Do what ends its lead."""

    def bring_back(self, old: Node) -> None:
        """Do what it needs to follow another one."""
        del old  # its Patroni goes on, and looks after it


@dataclass
class LeaderKilled(LeaderStruck):
    """Patroni and PostgreSQL of the leader are killed; they come back when another one leads."""

    name: str = "leader killed"

    def strike(self, leader: Node) -> None:
        """Kill both."""
        leader.kill_patroni()
        leader.kill_postgres()

    def bring_back(self, old: Node) -> None:
        """Start them."""
        old.start()


@dataclass
class PatroniKilled(LeaderStruck):
    """Patroni of the leader is killed, and its PostgreSQL goes on as if it were still the primary.

    That is what a watchdog is for, and there is none: it is killed when another one has led for a
    while.
    """

    name: str = "Patroni of the leader killed"

    def strike(self, leader: Node) -> None:
        """Kill Patroni alone."""
        leader.kill_patroni()

    def bring_back(self, old: Node) -> None:
        """Have two primaries for a while, and go on as with a leader that was killed."""
        time.sleep(_TWO_S)
        old.kill_postgres()
        old.start()


class LaggingLeaderKilled(LeaderKilled):
    """For the control: no commit waits for a standby, and they hear no more for a while."""

    def start(self, rng: random.Random) -> str:
        """Let the standbys fall behind, and kill the leader."""
        relay = self.cluster.leader().relay
        assert relay is not None
        relay.stall()
        time.sleep(_LAG_S)
        killed = super().start(rng)
        relay.reset()  # what was kept back is gone with the leader
        relay.heal()
        return killed


@dataclass
class DatabaseKilled(LeaderStruck):
    """PostgreSQL of the leader is killed, and Patroni goes on and gives up the lead."""

    name: str = "PostgreSQL of the leader killed"

    def strike(self, leader: Node) -> None:
        """Kill it."""
        leader.kill_postgres()


@dataclass
class Switchover(LeaderStruck):
    """An operator has the leader hand over, by ``patronictl switchover``."""

    name: str = "switchover"

    def strike(self, leader: Node) -> None:
        """Hand over."""
        del leader  # it finds that itself
        self.cluster.switch_over()


@contextmanager
def patroni_databases(
    data: Path, *, synchronous: bool = True
) -> Iterator[tuple[Leasehold, PatroniCluster]]:
    """Have two servers on a cluster that Patroni keeps."""
    with ExitStack() as stack:
        cluster = PatroniCluster(stack, synchronous=synchronous)
        system = Leasehold(
            data,
            store_url=cluster.url,
            servers=_SERVERS,
            settle=lambda: end_backends(cluster.url),
        )
        stack.callback(system.stop)
        yield system, cluster


def faults_of_patroni(cluster: PatroniCluster) -> list[Fault]:
    """Return what is done to the cluster."""
    return [
        LeaderKilled(cluster),
        PatroniKilled(cluster),
        DatabaseKilled(cluster),
        Switchover(cluster),
    ]
