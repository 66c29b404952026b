"""PostgreSQL under Leasehold: faults of the database, and failover to a synchronous standby."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.postgres import PORT, USER, Cluster, find_programs
from tests.reliability.postgres_pair import Pair
from tests.reliability.postgres_rig import short_folder
from tests.reliability.running import eventually

from leasehold.stores.postgres.connection import Address, connect
from proof.history.adapters import Restart, System
from proof.history.faults import NO_RESTART, Fault, faults_for
from proof.history.leasehold import Leasehold
from proof.history.relay import Relay

_SOCKET: Final = f".s.PGSQL.{PORT}"
_SERVERS: Final = 2
_LAG_S: Final = 3.0
_BACKENDS: Final = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"


def is_available() -> bool:
    """Tell whether a PostgreSQL is installed."""
    return find_programs() is not None


def end_backends(url: str) -> None:
    """End whatever the database still does for servers that were killed; wait until it has."""
    with connect(Address.parse(url)) as connection:
        # Those of Patroni, which are never all gone, have a name.
        client = "AND backend_type = 'client backend' AND application_name NOT LIKE 'Patroni%'"
        connection.execute(f"SELECT pg_terminate_backend(pid) {_BACKENDS} {client}")
        eventually(
            lambda: not connection.execute(f"SELECT 1 {_BACKENDS} {client}").fetchall(),
            "what killed servers had begun is over",
        )


@dataclass(slots=True)
class Crash:
    """The database ends as in a crash, and is started again."""

    cluster: Cluster
    name: str = "database crash"
    longest_s: float = 0.5
    is_alone: bool = True  # a server cannot start meanwhile

    def start(self, rng: random.Random) -> str:
        """Stop it at once."""
        del rng
        self.cluster.stop("immediate")
        return ""

    def stop(self) -> Restart:
        """Start it."""
        self.cluster.start()
        return NO_RESTART


@dataclass(slots=True)
class Failover:
    """The primary is killed and the standby promoted; later a new standby follows that."""

    pair: Pair
    name: str = "failover"
    longest_s: float = 0.3
    is_alone: bool = True

    def start(self, rng: random.Random) -> str:
        """Kill all processes of the primary."""
        del rng
        self.pair.kill_primary()
        return ""

    def stop(self) -> Restart:
        """Promote the standby, which takes writes from then on, and give it a standby."""
        self.pair.promote()
        self.pair.follow()
        return NO_RESTART


class LaggingFailover(Failover):
    """For the control: commits do not wait for the standby, which hears no more for a while."""

    def start(self, rng: random.Random) -> str:
        """Let the standby fall behind, and kill the primary."""
        self.pair.detach()
        time.sleep(_LAG_S)
        return super().start(rng)


@contextmanager
def shared_database(
    data: Path, *, bug: str | None = None
) -> Iterator[tuple[Leasehold, list[Relay], Cluster]]:
    """Have two servers on one database, with a relay between; give the system and its faults."""
    with ExitStack() as stack:
        folder, front = (stack.enter_context(short_folder()) for _ in range(2))
        cluster = Cluster(folder)
        cluster.make()
        cluster.start()
        stack.callback(cluster.stop, "immediate")
        relay = stack.enter_context(Relay(folder / _SOCKET, front / _SOCKET))
        url = f"postgresql://{USER}@/postgres?host={front}&port={PORT}"
        system = Leasehold(
            data,
            store_url=url,
            servers=_SERVERS,
            bug=bug,
            settle=lambda: end_backends(cluster.url),
        )
        stack.callback(system.stop)
        yield system, [relay], cluster


def faults_of_database(system: Leasehold, relays: Sequence[Relay], cluster: Cluster) -> list[Fault]:
    """Return what may be done to servers on a database, and to the database."""
    return [*faults_for(system, relays=system.relays, database=relays), Crash(cluster)]


@contextmanager
def pair_of_databases(data: Path) -> Iterator[tuple[Leasehold, Pair]]:
    """Have two servers on a primary with a synchronous standby."""
    with ExitStack() as stack:
        pair = Pair(*(stack.enter_context(short_folder()) for _ in range(2)))
        stack.callback(pair.stop)
        pair.follow()
        system = Leasehold(
            data,
            store_url=pair.url,
            servers=_SERVERS,
            settle=lambda: end_backends(pair.url),
        )
        stack.callback(system.stop)
        yield system, pair


def faults_of_pair(system: System, pair: Pair) -> list[Fault]:
    """Return the failover alone."""
    del system
    return [Failover(pair)]
