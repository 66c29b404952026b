"""A store on PostgreSQL that must not wait for long gives up in time, and loses nothing by it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import psycopg
import pytest

from leasehold.domain import commands as c
from leasehold.domain.model import Detail
from leasehold.domain.queue_settings import GroupSettings
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.cursor import Direct, NotInTime
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.postgres import empty, find_programs, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")
_SCHEMA = "time_limits"
_MOMENT_S = 0.02
_URL = "{}&schema=" + _SCHEMA


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    """An empty store."""
    empty(_SCHEMA)
    store = PostgresStore(_URL.format(shared_cluster().url))
    yield store
    store.close()


@pytest.fixture
def asker(store: PostgresStore) -> Asker:
    """Asks it; there is a queue."""
    asker = Asker(store, ManualClock())
    asker.ask(c.CreateQueue(ACCOUNT, QUEUE, {}))
    asker.put("first")  # what is to be prepared is
    return asker


@pytest.fixture
def other() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Another connection to the same tables."""
    with connect(Address.parse(_URL.format(shared_cluster().url))) as other:
        yield other


def _bodies(asker: Asker) -> list[bytes]:
    return sorted(body for body, _ in asker.inspected())


def test_a_batch_that_has_to_wait_is_given_up(
    store: PostgresStore, asker: Asker, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    """It waits for a lock; executed after that, it is done once."""
    now_ms = asker.clock.now_ms()
    batch = [asker.put_command("second")]
    with other.transaction():
        other.execute("LOCK TABLE message IN EXCLUSIVE MODE")
        for _ in range(2):
            assert store.try_execute(batch, now_ms=now_ms, within_s=_MOMENT_S) is None
    store.execute(batch, now_ms=now_ms)
    assert store.commit()
    assert _bodies(asker) == [b"first", b"second"]


def test_a_receive_that_is_given_up_takes_no_turn(
    store: PostgresStore, asker: Asker, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    """The group whose message it would have given out is still the next one."""
    asker.receive_one()
    for group in ("c", "a", "b"):
        asker.put(group, detail=Detail(group_id=group))
    asker.govern(groups=GroupSettings(fair=True))
    assert asker.received(1) == [b"c"]
    with other.transaction():
        other.execute("LOCK TABLE message IN EXCLUSIVE MODE")
        receive = [c.Receive(ACCOUNT, QUEUE, 1, 30, None)]
        now_ms = asker.clock.now_ms()
        assert store.try_execute(receive, now_ms=now_ms, within_s=_MOMENT_S) is None
    assert [*asker.received(1), *asker.received(1)] == [b"a", b"b"]


def test_a_commit_that_has_to_wait_is_not_repeated(
    store: PostgresStore, asker: Asker, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    """It waits for a standby that there is not; asked again, the store waits for the answer."""
    store._primary.connection.execute("SET synchronous_commit = 'on'")
    store.execute([asker.put_command("second")], now_ms=asker.clock.now_ms())
    _name_standbys(other, "nobody")
    try:
        for _ in range(2):
            assert not store.try_commit(within_s=_MOMENT_S)
    finally:
        _name_standbys(other, "")
    assert store.commit()
    assert _bodies(asker) == [b"first", b"second"]


def _name_standbys(other: psycopg.Connection[tuple[object, ...]], names: str) -> None:
    other.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    other.execute("SELECT pg_reload_conf()")
    # The processes of the server hear of it one by one.
    seen = "SELECT pg_sleep(0.1) FROM pg_settings WHERE name = 'synchronous_standby_names'"
    while other.execute(f"{seen} AND setting <> '{names}'").fetchone():
        pass
    # Commits go by what the checkpointer has heard, which reads its settings before a checkpoint.
    other.execute("CHECKPOINT")


def test_what_others_must_not_see_half_done_is_not_tried(
    store: PostgresStore, asker: Asker
) -> None:
    """A batch that needs the database for itself is not even begun."""
    batch = [c.CreateQueue(ACCOUNT, "other", {})]
    assert store.try_execute(batch, now_ms=asker.clock.now_ms(), within_s=_MOMENT_S) is None
    assert store.find_queue(ACCOUNT, "other") is None
    asker.put("second")
    assert _bodies(asker) == [b"first", b"second"]


@pytest.fixture
def direct(other: psycopg.Connection[tuple[object, ...]]) -> Direct:
    """Statements, two of them prepared."""
    direct = Direct(other)
    direct.execute("SELECT $1 + 1", (1,))
    direct.execute("SELECT pg_sleep($1::int / 1000.0), 'slept'", (0,))
    return direct


def test_answers_that_come_in_time(direct: Direct) -> None:
    """They are the same as without a deadline, rows and errors."""
    direct.set_deadline(10)
    assert direct.execute("SELECT $1 + 1", (2,)) == [(3,)]
    assert direct.changes == 1
    assert direct.run(b"SELECT 1; SELECT 2, 3").nfields == 2
    with pytest.raises(psycopg.errors.SyntaxError):
        direct.run(b"SELECT 1; SELEC 2")
    assert direct.execute("SELECT $1 + 1", (3,)) == [(4,)]


def test_an_answer_that_comes_too_late_is_nobody_elses(direct: Direct) -> None:
    """The next statement has its own; what was sent without bounds is waited for, not repeated."""
    direct.set_deadline(_MOMENT_S)
    with pytest.raises(NotInTime):
        direct.execute("SELECT pg_sleep($1::int / 1000.0), 'slept'", (100,))
    direct.set_deadline(None)
    assert direct.execute("SELECT $1 + 1", (2,)) == [(3,)]
    direct.run(b"CREATE TEMP SEQUENCE asked")
    once = b"SELECT nextval('asked') FROM pg_sleep(0.1)"
    direct.set_deadline(_MOMENT_S)
    for _ in range(2):
        with pytest.raises(NotInTime):
            direct.run(once)
        assert direct.owes(once)
    direct.set_deadline(None)
    assert direct.run(once).get_value(0, 0) == b"1"
    assert not direct.owes(once)


def test_what_is_large(direct: Direct) -> None:
    """It takes more than one step to send, and to read; one that was given up is not lost."""
    large = bytes(20_000_000)
    twice = "SELECT $1::bytea || $2::bytea"
    assert direct.execute(twice, (b"a", b"b")) == [(b"ab",)]
    direct.set_deadline(10)
    assert direct.execute(twice, (b"a", large)) == [(b"a" + large,)]
    direct.set_deadline(0.001)
    with pytest.raises(NotInTime):
        direct.execute(twice, (b"a", large))
    direct.set_deadline(None)
    assert direct.execute("SELECT $1 + 1", (2,)) == [(3,)]


def test_what_could_take_long_is_not_begun_with_a_deadline(direct: Direct) -> None:
    """To prepare a statement takes a round trip that nothing can cut short."""
    direct.set_deadline(10)
    with pytest.raises(NotInTime):
        direct.execute("SELECT $1 + 2", (1,))
    direct.set_deadline(None)
    assert direct.execute("SELECT $1 + 2", (1,)) == [(3,)]


def test_settings_of_a_role_do_not_reach_the_store() -> None:
    """What the safety depends on is set in each session, whatever is set for people's sessions."""
    usual = {
        "client_min_messages": "error",
        "statement_timeout": "10s",
        "idle_session_timeout": "10s",
        "default_transaction_isolation": "serializable",
    }
    cluster = shared_cluster()
    with contextlib.closing(connect(Address.parse(cluster.url))) as connection:
        connection.execute("CREATE ROLE strict_role LOGIN")
        try:
            for name, value in usual.items():
                connection.execute(f"ALTER ROLE strict_role SET {name} = '{value}'".encode())
            url = re.sub(r"//[^@]*@", "//strict_role@", cluster.url)
            with contextlib.closing(connect(Address.parse(url))) as ours:
                found = {
                    name: ours.execute(f"SHOW {name}".encode()).fetchall()[0][0] for name in usual
                }
        finally:
            connection.execute("DROP ROLE strict_role")
    assert found == {
        "client_min_messages": "warning",
        "statement_timeout": "0",
        "idle_session_timeout": "0",
        "default_transaction_isolation": "read committed",
    }
