"""A pooler between a server and PostgreSQL, and databases that are not fit for a store."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import psycopg
import pytest
from structlog.testing import capture_logs

from leasehold.domain.model import Lease
from leasehold.stores.postgres import PostgresStore, connection
from leasehold.stores.postgres.connection import Address, WrongDatabase, connect
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import Asker
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.postgres import PORT, USER, find_programs, shared_cluster
from tests.reliability.postgres_rig import short_folder
from tests.reliability.running import eventually

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

DATABASE: Final = "postgres"


@contextmanager
def pooler(mode: str, **settings: object) -> Iterator[str]:
    """Run PgBouncer in front of the cluster of the tests; yield the URL that leads through it."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    with short_folder() as folder:
        options = {
            "listen_addr": "127.0.0.1",
            "listen_port": free_port(),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": folder / "users",
            "pool_mode": mode,
            "logfile": folder / "log",
            **settings,
        }
        lines = [f"{name} = {value}" for name, value in options.items()]
        (folder / "users").write_text(f'"{USER}" ""\n')
        (folder / "ini").write_text(
            f"[databases]\n* = host={shared_cluster().folder} port={PORT}\n[pgbouncer]\n"
            + "\n".join(lines)
        )
        as_user = []
        if os.getuid() == 0:  # it refuses to run as root
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, "nobody")
            as_user = ["runuser", "-u", "nobody", "--"]
        process = subprocess.Popen(
            [*as_user, program, "-q", str(folder / "ini")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        url = f"postgresql://{USER}@127.0.0.1:{options['listen_port']}/{DATABASE}"
        try:
            eventually(lambda: _answers(url), "PgBouncer answers")
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def busy(url: str, clients: int) -> Iterator[None]:
    """Have other clients run transactions through a pooler."""
    ended = threading.Event()

    def work() -> None:
        with psycopg.connect(url, prepare_threshold=None) as client:
            while not ended.is_set():
                client.execute("SELECT pg_sleep(0.001)")
                client.commit()

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("mode", "size", "clients"),
    [
        ("transaction", 20, 0),
        ("transaction", 20, 4),
        ("transaction", 3, 6),
        ("transaction", 1, 0),
        ("transaction", 1, 2),
        ("statement", 20, 0),
    ],
    ids=["idle", "busy", "crowded", "of-one", "of-one-busy", "statements"],
)
def test_shared_backends_are_refused(mode: str, size: int, clients: int) -> None:
    """With what to do; and what others get from the pool afterwards is as it was."""
    with ExitStack() as stack:
        url = stack.enter_context(pooler(mode, default_pool_size=size))
        stack.enter_context(busy(url, clients))
        with pytest.raises(WrongDatabase, match="set pool_mode = session for this database"):
            PostgresStore(url)
        with psycopg.connect(url, prepare_threshold=None, autocommit=True) as other:
            for name in ("search_path", "enable_seqscan", "idle_in_transaction_session_timeout"):
                query = "SELECT setting = reset_val FROM pg_settings WHERE name = %s"
                assert other.execute(query, (name,)).fetchone() == (True,)


def test_sessions_are_served() -> None:
    """In session mode a server has its backends to itself, two of them."""
    with pooler("session", default_pool_size=2) as url:
        store = PostgresStore(f"{url}?schema=pooled")
        asker = Asker(store, ManualClock())
        asker.create("through-a-pooler")
        assert isinstance(asker.put("work", queue="through-a-pooler"), Lease)
        assert asker.received(queue="through-a-pooler") == [b"work"]
        store.close()


def test_a_pool_of_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no second connection: the log says so, and the pooler ends the wait."""
    monkeypatch.setattr(connection, "_PROMPT_S", 0.1)
    with (
        pooler("session", default_pool_size=1, query_wait_timeout=1) as url,
        capture_logs() as logs,
        pytest.raises(psycopg.Error, match="query_wait_timeout"),
    ):
        connect(Address.parse(url))
    assert [line["event"] for line in logs] == ["database.slow"]


# --- databases and roles ---------------------------------------------------------------------


@contextmanager
def database(name: str, *clauses: str) -> Iterator[str]:
    """Create a database; yield what to put for the user and the database in a URL."""
    with psycopg.connect(shared_cluster().url, autocommit=True) as raw:
        raw.execute(f"CREATE DATABASE {name} {' '.join(clauses)}".encode())
        yield shared_cluster().url.replace("/postgres?", f"/{name}?")
        raw.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def role(name: str, *clauses: str) -> Iterator[str]:
    """Create a role; yield a URL with it."""
    with psycopg.connect(shared_cluster().url, autocommit=True) as raw:
        raw.execute(f"CREATE ROLE {name} LOGIN".encode())
        for clause in clauses:
            raw.execute(f"ALTER ROLE {name} SET {clause}".encode())
        yield shared_cluster().url.replace(f"{USER}@", f"{name}@")
        raw.execute(f"DROP OWNED BY {name} CASCADE".encode())
        raw.execute(f"DROP ROLE {name}".encode())


def serves(url: str) -> None:
    """Put and receive with a store."""
    store = PostgresStore(url)
    try:
        asker = Asker(store, ManualClock())
        asker.create()
        asker.put("Grüße 你好")
        assert asker.received() == ["Grüße 你好".encode()]
    finally:
        store.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_another_encoding_is_refused(encoding: str) -> None:
    """The sentence says how to create a database that is fit."""
    clauses = f"ENCODING '{encoding}'", "LOCALE 'C'", "TEMPLATE template0"
    with (
        database("encoded", *clauses) as url,
        pytest.raises(WrongDatabase, match=f"is {encoding}, .* ENCODING 'UTF8'"),
    ):
        PostgresStore(url)


def test_a_role_with_limits_of_its_own_serves() -> None:
    """What is set for people's sessions does not reach those of a server."""
    limits = (
        "statement_timeout = '7min'",
        "lock_timeout = '7min'",
        "idle_session_timeout = '7min'",
        "idle_in_transaction_session_timeout = '7min'",
        "client_min_messages = error",
        "default_transaction_isolation = serializable",
        "bytea_output = escape",
        "standard_conforming_strings = off",
        "search_path = pg_catalog",
        "DateStyle = German",
        "TimeZone = 'Asia/Kathmandu'",
    )
    with role("limited", *limits) as url:
        with psycopg.connect(shared_cluster().url, autocommit=True) as raw:
            raw.execute("GRANT CREATE ON DATABASE postgres TO limited")
        serves(f"{url}&schema=limited")
        with connect(Address.parse(f"{url}&schema=limited")) as ours:
            query = "SELECT name FROM pg_settings WHERE setting = '420000'"
            assert ours.execute(query).fetchall() == []


def test_a_schema_made_beforehand_serves() -> None:
    """A role that may not create schemas is given one by an administrator."""
    with role("guest") as url:
        with psycopg.connect(shared_cluster().url, autocommit=True) as raw:
            raw.execute("CREATE SCHEMA guests AUTHORIZATION guest")
        serves(f"{url}&schema=guests")


@pytest.mark.parametrize("is_there", [False, True], ids=["no-schema", "of-another-role"])
def test_missing_rights_are_named(is_there: bool) -> None:
    """With the statement that grants them."""
    with role("stranger") as url, psycopg.connect(shared_cluster().url, autocommit=True) as raw:
        if is_there:
            raw.execute("CREATE SCHEMA strange")
        expected = "role stranger may not .* GRANT CREATE ON DATABASE postgres TO stranger"
        try:
            with pytest.raises(WrongDatabase, match=expected):
                PostgresStore(f"{url}&schema=strange")
        finally:
            raw.execute("DROP SCHEMA IF EXISTS strange")
