"""pgmq: a table of PostgreSQL, whose rows are hidden until a moment and taken with SKIP LOCKED."""

from __future__ import annotations

import os
import pwd
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from benchmarks.peers.postgres import prepare_script
from tests.postgres import USER, Cluster, find_programs

from proof.history.adapters import Promise, Queue, Refused, Unknown
from proof.history.peers.server import TIMEOUT_S, PeerServer
from proof.history.records import Delivery

PROMISE: Final = Promise(
    fenced=False,  # delete and set_vt name a message, and no holder
    prompt=False,  # rows that another transaction has locked are skipped
    margin_s=0.05,
)


def _connect(port: int) -> psycopg.Connection[Any]:
    return psycopg.connect(
        f"host=127.0.0.1 port={port} user={USER} dbname=postgres connect_timeout=3"
        f" tcp_user_timeout={int(TIMEOUT_S * 1000)} options='-c statement_timeout=10s'",
        autocommit=True,
        prepare_threshold=None,
    )


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise Unknown(str(error)) from error


class PgmqQueue(Queue):
    """One queue over one connection."""

    def __init__(self, port: int, name: str) -> None:
        self._name = name
        self._me = uuid.uuid4().hex
        self._calls = 0
        with _errors():
            self._connection = _connect(port)

    def _ask(self, query: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        with _errors():
            return self._connection.execute(query, (self._name, *values)).fetchall()

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Send."""
        del group
        self._ask("SELECT pgmq.send(%s, to_jsonb(%s::text), %s)", body, int(delay_s))

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Read."""
        query: LiteralString = "SELECT msg_id, read_ct, message #>> '{}' FROM pgmq.read(%s, %s, %s)"
        rows = self._ask(query, int(lease_s), limit)
        self._calls += 1
        # There are no receipts: one of our own.
        return [
            Delivery(body, f"{msg_id}/{self._me}/{self._calls}", reads, str(msg_id))
            for msg_id, reads, body in rows
        ]

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Set the moment at which it is visible."""
        del saved
        if not self._ask(
            "SELECT msg_id FROM pgmq.set_vt(%s, %s::bigint, %s)", delivery.message_id, int(lease_s)
        ):
            raise Refused("gone")
        return delivery.token

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Set the moment at which it is visible."""
        self.renew(delivery, delay_s, "")

    def complete(self, delivery: Delivery) -> None:
        """Delete it."""
        if self._ask("SELECT pgmq.delete(%s, %s::bigint)", delivery.message_id) != [(True,)]:
            raise Refused("gone")

    def count(self) -> int | None:
        """Return how many rows there are."""
        return int(self._ask("SELECT queue_length FROM pgmq.metrics(%s)")[0][0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class PgmqConnector:
    """Connects; see :class:`proof.history.adapters.Connector`."""

    port: int

    def open(self, queue: str) -> PgmqQueue:
        """Connect."""
        return PgmqQueue(self.port, queue)


def _answers(port: int) -> bool:
    try:
        _connect(port).close()
    except psycopg.OperationalError:
        return False
    return True


def pgmq(folder: Path, script: Path) -> PeerServer:
    """Return a PostgreSQL with pgmq.

    Args:
        folder: Which PostgreSQL's user can reach.
        script: The SQL that pgmq's project publishes.
    """
    programs = find_programs()
    if programs is None:
        raise FileNotFoundError("no PostgreSQL is installed")
    cluster = Cluster(folder)
    cluster.make()
    data = next(folder.rglob("PG_VERSION")).parent
    user = []
    if os.geteuid() == 0:
        nobody = pwd.getpwuid(data.stat().st_uid)
        user = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]

    def make_queues(port: int, queues: Sequence[str]) -> None:
        with _connect(port) as connection:
            connection.execute(prepare_script(script.read_text()).encode())
            for name in queues:
                connection.execute("SELECT pgmq.create(%s)", (name,))

    return PeerServer(
        "pgmq",
        PROMISE,
        command=lambda port: [
            *(*user, str(programs / "postgres"), "-D", str(data), "-p", str(port)),
            *("-k", str(folder), "-c", "listen_addresses=127.0.0.1"),
            *("-c", "fsync=on", "-c", "synchronous_commit=on"),
        ],
        connect=PgmqConnector,
        make_queues=make_queues,
        is_ready=_answers,
        log=folder / "postgres.log",
    )
