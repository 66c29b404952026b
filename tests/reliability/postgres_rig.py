"""A store whose PostgreSQL a test does something to."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from leasehold.domain import commands as c
from leasehold.domain.errors import Unavailable
from leasehold.domain.model import Lease
from leasehold.stores.postgres import PostgresStore, primary
from leasehold.stores.postgres.connection import Address, connect
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.postgres import Cluster
from tests.reliability.running import eventually


@contextmanager
def short_folder() -> Iterator[Path]:
    """Return a folder whose path has room for the name of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="lhpg"))
    if os.getuid() == 0:
        os.chown(folder, *pwd.getpwnam("nobody")[2:4])
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder_in(url: str) -> str:
    """Return the folder of the socket that a URL names."""
    return url.split("host=")[1].split("&", maxsplit=1)[0]


class Rig:
    """A store, and what a test does to its database."""

    def __init__(
        self, cluster: Cluster, url: str, schema: str, kind: type[PostgresStore] = PostgresStore
    ) -> None:
        self.cluster = cluster
        self.url = f"{url}&schema={schema}"
        self.direct_url = f"{url.replace(_folder_in(url), str(cluster.folder))}&schema={schema}"
        self.store = kind(self.url)
        self.asker = Asker(self.store, ManualClock())
        self.asker.create()

    def raw(self) -> psycopg.Connection[Any]:
        """Return another connection to the same tables."""
        return connect(Address.parse(self.direct_url))

    def set(self, **settings: str) -> None:
        """Change settings of the store's own connection."""
        for name, value in settings.items():
            self.primary.connection.execute(f"SET {name} = '{value}'")

    @property
    def primary(self) -> primary.Primary:
        """The store's connection."""
        return self.store._primary

    @property
    def pid(self) -> int:
        """Of the store's backend."""
        assert self.primary.writer is not None
        return self.primary.writer.pid

    def terminate(self) -> None:
        """End the store's backend, and wait until it is gone."""
        pid = self.pid
        with self.raw() as raw:
            raw.execute("SELECT pg_terminate_backend($1::int)", (pid,))
            eventually(lambda: not self.backend_is_there(raw, pid), "the backend is gone")

    @staticmethod
    def backend_is_there(raw: psycopg.Connection[Any], pid: int) -> bool:
        """Tell whether a backend has not ended."""
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = $1"
        return raw.execute(query, (pid,)).fetchone() is not None

    def check(self, *bodies: str) -> None:
        """Check that the store works, knows what its database does, and has these messages."""
        put = self.asker.put("after")
        assert isinstance(put, Lease)
        assert self.asker.complete(put) == c.DONE
        found = sorted(body for body, _ in self.asker.inspected())
        assert found == sorted(body.encode() for body in bodies)
        assert self.asker.count() == len(bodies)
        fresh = PostgresStore(self.direct_url)
        assert fresh.message_counts() == self.store.message_counts()
        assert fresh.find_queue(ACCOUNT, QUEUE) == self.store.find_queue(ACCOUNT, QUEUE)
        fresh.close()


@contextmanager
def held(connection: psycopg.Connection[Any], statement: str) -> Iterator[None]:
    """Run a statement in a transaction that stays open meanwhile."""
    connection.execute("BEGIN")
    connection.execute(statement)
    yield
    connection.execute("ROLLBACK")


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[list[object]]:
    """Do *work* on a thread; the list has what it has returned, or raised, in the end."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield found
    thread.join()


def waits_for_lock(raw: psycopg.Connection[Any], pid: int) -> bool:
    """Tell whether a backend waits for somebody's lock."""
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
    return raw.execute(query, (pid,)).fetchone() == (True,)


def put_when_possible(rig: Rig, body: str) -> None:
    """Put as soon as that is not refused."""

    def put() -> bool:
        with suppress(Unavailable):
            rig.asker.put(body)
            return True
        return False

    eventually(put, "the store is back")
