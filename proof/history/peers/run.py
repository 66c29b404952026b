"""Run a peer under load and faults, and judge it by its own promise."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from proof.history.adapters import Restart
from proof.history.campaign import Campaign
from proof.history.checker import Verdict, Violation
from proof.history.faults import Kill, Pause
from proof.history.peers.moto import PROGRAM as MOTO
from proof.history.peers.moto import moto
from proof.history.peers.server import PeerServer
from proof.history.records import History, Outcome
from proof.history.shim import Shim

_MEMORY: Final = Path("/dev/shm")  # records there are on no disk that faults are done to
PGMQ_SQL: Final = Path.home() / ".cache/leasehold-bench/pgmq.sql"
"""Where the benchmarks look for the script, too."""


Result: TypeAlias = dict[str, Any]
"""What is written into the file of results."""
_ENDINGS: Final = {"kill", "power cut"}


class Absent(Exception):
    """The peer is not installed; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One peer with its settings.

    Args:
        title: Of a row of a table, with a place for its version.
        make: Makes it in a folder.
        said: What its makers promise, in a line.
        source: Where they say so.
        settings: What it is started with.
        version: The command that tells its version.
        connection: Whether a lease ends with its connection, and so with the server.
        quiet_s: Between two faults, at least and at most: time for a start that takes long.
        not_promised: Columns that its makers promise nothing of: counted, and not blamed.
        lasts: Whether anything is there after its process has ended; else nobody asks what is lost.
    """

    title: str
    make: Callable[[Path], PeerServer]
    said: str
    source: str
    settings: str
    version: tuple[str, ...]
    connection: bool = False
    quiet_s: tuple[float, float] = (0.05, 0.6)
    not_promised: frozenset[str] = field(default_factory=frozenset)
    lasts: bool = True


def _beanstalkd(folder: Path) -> PeerServer:
    from proof.history.peers.beanstalkd import beanstalkd  # noqa: PLC0415 - one peer, one driver

    _need("beanstalkd")
    return beanstalkd(folder)


def _redis(appendfsync: str) -> Callable[[Path], PeerServer]:
    def make(folder: Path) -> PeerServer:
        _need("redis-server")
        from proof.history.peers.redis_streams import redis_streams  # noqa: PLC0415 - as above

        return redis_streams(folder, appendfsync)

    return make


def _celery(folder: Path) -> PeerServer:
    _need("redis-server")
    try:
        from proof.history.peers.celery_redis import celery_redis  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise Absent("kombu or redis is not installed") from error
    return celery_redis(folder)


def _pgmq(folder: Path) -> PeerServer:
    from proof.history.peers.pgmq import pgmq  # noqa: PLC0415 - as above

    if not PGMQ_SQL.exists():
        raise Absent(f"pgmq's SQL is not at {PGMQ_SQL}")
    try:
        return pgmq(folder, PGMQ_SQL)
    except FileNotFoundError as error:
        raise Absent(str(error)) from error


def _azurite(folder: Path) -> PeerServer:
    from proof.history.peers.azurite import PACKAGE, azurite  # noqa: PLC0415 - as above

    _need("node")
    if not PACKAGE.exists():
        raise Absent("Azurite is not where the benchmarks install it")
    return azurite(folder)


def _rabbitmq(kind: str, *, pushed: bool) -> Callable[[Path], PeerServer]:
    def make(folder: Path) -> PeerServer:
        from proof.history.peers.rabbitmq import PROGRAM, rabbitmq  # noqa: PLC0415 - as above

        _need(str(PROGRAM))
        return rabbitmq(folder, kind, pushed=pushed)

    return make


def _jetstream(folder: Path) -> PeerServer:
    _need("nats-server")
    try:
        from proof.history.peers.jetstream import jetstream  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise Absent("nats-py is not installed") from error
    return jetstream(folder)


def _moto(folder: Path) -> PeerServer:
    _need(str(MOTO))
    return moto(folder)


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise Absent(f"{program} is not installed")


def _quorum(how: str, method: str, *, pushed: bool) -> Peer:
    """Return quorum queues of RabbitMQ, by the way in which clients take messages."""
    return Peer(
        title=f"RabbitMQ {{version}}, quorum, {how}",
        make=_rabbitmq("quorum", pushed=pushed),
        said="a message that was confirmed is on the disk of a majority, and stays",
        source="RabbitMQ documentation: quorum queues, confirms",
        settings=f"one node; quorum queues with one member, publisher confirms; {method}",
        version=("dpkg-query", "-W", "rabbitmq-server"),
        connection=True,
        quiet_s=(1.0, 4.0),
        not_promised=frozenset({"back"}),  # nothing confirms an acknowledgement
    )


PEERS: Final = {
    "beanstalkd": Peer(
        title="beanstalkd {version}, sync at each write",
        make=_beanstalkd,
        said="jobs in the binlog are there after a restart and, with -f 0, a power failure",
        source="beanstalkd(1), -b and -f; protocol.txt: put, reserve",
        settings="-b -f 0: fsync at each write",
        version=("beanstalkd", "-v"),
        connection=True,
    ),
    "redis-always": Peer(
        title="Redis {version} streams, `always`",
        make=_redis("always"),
        said="at least once; written and synced before the answer",
        source="Redis documentation: persistence, XAUTOCLAIM",
        settings="streams; appendonly yes, appendfsync always",
        version=("redis-server", "--version"),
    ),
    "redis-everysec": Peer(
        title="Redis {version} streams, `everysec`",
        make=_redis("everysec"),
        said="at least once; a second of writes may be lost in a disaster",
        source="Redis documentation: persistence, XAUTOCLAIM",
        settings="streams; appendonly yes, appendfsync everysec",
        version=("redis-server", "--version"),
        not_promised=frozenset({"lost", "back", "doubled", "refused"}),  # of the last second
    ),
    "celery-redis": Peer(
        title="Celery's broker on Redis {version}, `always`",
        make=_celery,
        said="again after the visibility timeout; may lose data if Redis ends abruptly",
        source="Celery documentation: backends and brokers; Redis, visibility timeout",
        settings="kombu 5.7.0, visibility_timeout and unacked_mutex_expire 3 s; appendfsync always",
        version=("redis-server", "--version"),
        connection=True,
        # A task is taken and noted as taken by two commands, and nobody is told that an
        # acknowledgement came too late.
        not_promised=frozenset({"lost", "back", "doubled"}),
    ),
    "pgmq": Peer(
        title="pgmq on PostgreSQL {version}",
        make=_pgmq,
        said="exactly one reader within the visibility timeout; as durable as PostgreSQL",
        source="pgmq's README; PostgreSQL documentation: reliability",
        settings="fsync on, synchronous_commit on",
        version=("postgres", "--version"),
    ),
    "azurite": Peer(
        title="Azurite {version}",
        make=_azurite,
        said="an emulator: nothing of durability; else as Azure Queue Storage",
        source="Azurite's README",
        settings="data on disk",
        version=(),
        quiet_s=(2.0, 6.0),
        # After a kill, from which it comes back as it was when it was last saved.
        not_promised=frozenset({"lost", "back", "doubled", "stale", "refused"}),
    ),
    "nats": Peer(
        title="NATS JetStream {version}",
        make=_jetstream,
        said="at least once, with a time to acknowledge; a publish that was answered is stored",
        source="NATS documentation: JetStream, consumers",
        settings="one server; file storage, work-queue retention, sync_interval 2m (the default)",
        version=("nats-server", "--version"),
        quiet_s=(1.0, 3.0),
        # After a kill it has forgotten a part of who holds what and what was acknowledged.
        not_promised=frozenset({"back", "doubled"}),
    ),
    "moto": Peer(
        title="moto {version}, SQS",
        make=_moto,
        said="a stand-in for tests, in memory: nothing of durability; else as SQS",
        source="moto's documentation; SQS developer guide: visibility timeout",
        settings="moto_server",
        version=(str(MOTO.with_name("python")), "-c", "import moto; print(moto.__version__)"),
        lasts=False,
    ),
    "rabbitmq-classic": Peer(
        title="RabbitMQ {version}, classic durable",
        make=_rabbitmq("classic", pushed=False),
        said="a persistent message that was confirmed is there after a restart of the node",
        source="RabbitMQ documentation: reliability, confirms, queues",
        settings="one node; classic durable queues, persistent messages, publisher confirms",
        version=("dpkg-query", "-W", "rabbitmq-server"),
        connection=True,
        quiet_s=(1.0, 4.0),
        not_promised=frozenset({"back"}),  # nothing confirms an acknowledgement
    ),
    "rabbitmq-quorum": _quorum("consumed", "basic.consume", pushed=True),
    "rabbitmq-quorum-get": _quorum("`basic.get`", "basic.get", pushed=False),
}


def without_ended_leases(found: list[Violation], history: History) -> list[Violation]:
    """Leave out what is explained by a lease that ended with its connection.

    The checker knows leases by their time alone. With a server that ends them with the connection
    or with itself, a message may come again as soon as a client involved had an outcome that it
    did not know, after which it closes; or was killed; or the server was.
    """
    return [each for each in found if not _is_explained(each, history)]


def _is_explained(violation: Violation, history: History) -> bool:
    if violation.rule not in {"D1", "D5", "R1", "E2"}:
        return False
    evidence = violation.evidence
    since_s = min(each.invoked_s for each in evidence)
    until_s = max(each.completed_s for each in evidence)
    clients = {each.client for each in evidence}
    queue = evidence[0].queue
    faults = (each for each in history.faults if each.name in _ENDINGS)
    if any(each.begun_s <= until_s and each.ended_s >= since_s for each in faults):
        return True
    last_s: dict[str, float] = {}
    for each in history.operations:
        if each.client in clients:
            last_s[each.client] = each.invoked_s
            ended = each.outcome is Outcome.UNKNOWN and each.queue == queue
            if ended and each.invoked_s <= until_s and each.completed_s >= since_s:
                return True
    # A client that never calls again has been ended, at any moment after its last call.
    taker = max(evidence, key=lambda each: each.completed_s).client
    return any(last_s[client] <= until_s for client in clients - {taker})


@contextmanager
def _folders() -> Iterator[tuple[Path, Path]]:
    with (
        tempfile.TemporaryDirectory(prefix="lhpeer", dir="/var/tmp") as data,
        tempfile.TemporaryDirectory(prefix="lhpeer", dir=_MEMORY) as records,
    ):
        Path(data).chmod(0o755)
        yield Path(data), Path(records)


class PowerCut(Kill):
    """Kills, and takes all writes away that were not synced; names of files are kept.

    Args:
        system: Whose server runs under the shim.
        shim: The shim.
        lies: Whether syncs keep nothing, for the control.
    """

    def __init__(self, system: PeerServer, shim: Shim, *, lies: bool) -> None:
        super().__init__(system, power=shim, damage="none")
        self._shim = shim
        self._lies = lies

    def stop(self) -> Restart:
        """Start again."""
        if self._lies:
            self._shim.lie()
        return super().stop()


Fault: TypeAlias = Literal["kill", "pause", "kill and pause", "power cut", "lying disk"]
"""What is done. A lying disk is a power cut whose syncs have kept nothing: a control."""


def run(name: str, fault: Fault, *, times: int, seed: int, keep: Path | None = None) -> Result:
    """Do faults to a peer, so many of them.

    Raises:
        Absent: It is not installed.
    """
    peer = PEERS[name]
    with _folders() as (data, records):
        (data / "server").mkdir()
        system = peer.make(data / "server")
        faults: list[Kill | Pause] = [Kill(system)]
        if fault == "pause":
            faults = [Pause(system)]
        elif fault == "kill and pause":
            faults.append(Pause(system))
        elif fault != "kill":
            shim = Shim(data / "shim", data / "server")
            system.environment = shim.environment
            faults = [PowerCut(system, shim, lies=fault == "lying disk")]
        campaign = Campaign(
            system=system,
            faults_of=lambda _: faults,
            folder=records,
            seed=seed,
            least_pause_s=0.002,
            quiet_s=peer.quiet_s,
        )
        verdict = campaign.run(faults=times, drain=peer.lasts)
        result = judged(peer, campaign.history, verdict)
        result |= {"peer": name, "fault": fault, "seed": seed, "done": dict(campaign.done)}
        if keep is not None and any(result["found"].values()):
            shutil.copytree(records, keep / f"{name}-{fault}-{seed}", dirs_exist_ok=True)
    return result


def judged(peer: Peer, history: History, verdict: Verdict) -> Result:
    """Return the counts of a verdict, less what the peer's leases explain."""
    found = dict(verdict.found)
    if not peer.lasts:
        del found["lost"]
    if peer.connection:
        found = {name: without_ended_leases(each, history) for name, each in found.items()}
    rules = Counter(each.rule for violations in found.values() for each in violations)
    return {
        "found": {name: len(each) for name, each in found.items()},
        "rules": dict(rules),
        "first": [str(each) for violations in found.values() for each in violations[:2]],
        "figures": verdict.figures,
        "blamed": sum(len(each) for name, each in found.items() if name not in peer.not_promised),
    }


def version_of(peer: Peer) -> str:
    """Return the version of a peer that is installed."""
    if not peer.version:
        from benchmarks.peers.others import AZURITE  # noqa: PLC0415 - of this peer alone

        return AZURITE
    said = subprocess.run(peer.version, capture_output=True, text=True, check=True)
    found = re.search(r"\d+\.[\d.]*\d", said.stdout + said.stderr)
    return found[0] if found else said.stdout.strip()
