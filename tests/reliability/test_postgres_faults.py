"""Whatever PostgreSQL does to a batch, it has happened or not, and the store goes on with the next.

Nothing here is simulated: backends are ended, locks are held, servers are stopped and made to run
out of room, connections are cut.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from leasehold.domain import commands as c
from leasehold.domain.errors import NotReplicated, OutcomeUnknown, StoreFull, Unavailable
from leasehold.domain.model import Lease
from leasehold.stores.postgres import PostgresStore, primary
from leasehold.stores.postgres import store as postgres_store
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.store import Fault, fault_of
from tests.contract.stores.conftest import ACCOUNT, QUEUE
from tests.postgres import USER, Cluster, find_programs, take_deadlocks
from tests.reliability.disks import mounted
from tests.reliability.postgres_gate import Cut, Gate
from tests.reliability.postgres_rig import (
    Rig,
    held,
    meanwhile,
    put_when_possible,
    short_folder,
    waits_for_lock,
)
from tests.reliability.running import eventually
from tests.time_limited import TimeLimitedStore

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

_CONNECTIONS = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that may be stopped."""
    with short_folder() as folder:
        cluster = Cluster(
            folder, fsync="off", deadlock_timeout="100ms", max_connections=str(_CONNECTIONS)
        )
        cluster.make()
        cluster.start()
        yield cluster
        cluster.stop("immediate")


_schemas = iter(f"faults{number}" for number in range(1_000))


@pytest.fixture(params=[PostgresStore, TimeLimitedStore], ids=["patient", "time-limited"])
def kind(request: pytest.FixtureRequest) -> type[PostgresStore]:
    """Whether the store is given all the time it takes, or only what is left of a moment."""
    kind: type[PostgresStore] = request.param
    return kind


@pytest.fixture
def rig(cluster: Cluster, kind: type[PostgresStore]) -> Iterator[Rig]:
    """A store with one queue."""
    rig = Rig(cluster, cluster.url, next(_schemas), kind)
    yield rig
    rig.store.close()


@pytest.fixture
def gate(cluster: Cluster) -> Iterator[Gate]:
    """A gate before the server."""
    with short_folder() as folder, Gate(cluster.folder, folder) as gate:
        yield gate


@pytest.fixture
def gated(cluster: Cluster, gate: Gate, kind: type[PostgresStore]) -> Iterator[Rig]:
    """A store with one queue, seen through the gate."""
    rig = Rig(cluster, gate.url, next(_schemas), kind)
    yield rig
    rig.store.close()


# --- the connection ------------------------------------------------------------------------------


def test_a_backend_ended_between_batches(rig: Rig) -> None:
    """The next batch does not notice."""
    rig.asker.put("a")
    rig.terminate()
    rig.asker.put("b")
    rig.check("a", "b")


def test_a_backend_ended_within_a_batch(rig: Rig) -> None:
    """Nothing was committed, so it is played again; the answers are those of the second time."""
    results = rig.store.execute([rig.asker.put_command("a")], now_ms=rig.asker.clock.now_ms())
    (before,) = results
    rig.terminate()
    rig.store.commit()
    (after,) = results
    assert isinstance(after, Lease)
    assert before != after
    assert rig.asker.complete(after) == c.DONE
    rig.check()


def test_a_batch_that_is_played_again_counts_once(rig: Rig) -> None:
    """What it was given the first time may be given out again: the limit is a message a second."""
    rig.asker.put("a")
    rig.asker.put("b")
    rig.asker.govern(max_receives_per_s=1.0)
    receive = c.Receive(ACCOUNT, QUEUE, 2, 30)
    results = rig.store.execute([receive], now_ms=rig.asker.clock.now_ms())
    rig.terminate()
    rig.store.commit()
    (received,) = results
    assert isinstance(received, tuple)
    assert len(received) == 1
    assert rig.asker.ask(receive) == ()


@pytest.mark.parametrize("cut", Cut)
def test_a_connection_cut_at_the_commit(gated: Rig, gate: Gate, cut: Cut) -> None:
    """The store finds out whether it was done; either way it is done once."""
    results = gated.store.execute([gated.asker.put_command("a")], now_ms=gated.asker.clock.now_ms())
    gate.arm(cut)
    gated.store.commit()
    gated.check("a")
    (put,) = results
    assert isinstance(put, Lease)
    assert gated.asker.complete(put) == c.DONE
    gated.check()


@pytest.mark.parametrize("cut", Cut)
def test_a_connection_cut_at_a_commit_without_events(gated: Rig, gate: Gate, cut: Cut) -> None:
    """Then the number of the transaction tells."""
    command = c.SetAccountDocument(ACCOUNT, "kind", "new")
    gated.store.execute([command], now_ms=gated.asker.clock.now_ms())
    gate.arm(cut)
    gated.store.commit()
    assert gated.asker.ask(c.GetAccountDocument(ACCOUNT, "kind")).content == "new"
    gated.check()


@pytest.mark.parametrize("cut", Cut)
def test_a_connection_cut_at_every_statement_of_a_batch(gated: Rig, gate: Gate, cut: Cut) -> None:
    """Whichever it is, the batch is done once."""
    for number in range(12):
        gated.asker.put(f"{number}")
        gate.arm(cut) if number == 0 else _arm_later(gated, gate, cut, number)
        lease = gated.asker.receive_one()
        assert lease.message.body == f"{number}".encode()
        assert gated.asker.complete(lease) == c.DONE
    gated.check()


def _arm_later(rig: Rig, gate: Gate, cut: Cut, statements: int) -> None:
    """Arm the gate when so many more statements were sent."""
    cursor, left = rig.store._cursor, statements
    execute = type(cursor).execute

    def counting(query: str, bounds: Any = ()) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            gate.arm(cut)
            del cursor.execute
        return execute(cursor, query, bounds)

    cursor.execute = counting  # type: ignore[method-assign]


@pytest.mark.parametrize("cut", Cut)
def test_an_ordinary_role_is_enough(cluster: Cluster, gate: Gate, cut: Cut) -> None:
    """To make the schema, to find out about commits, and to end a backend of one's own."""
    name = f"ordinary_{cut.name.lower()}"
    with connect(Address.parse(cluster.url)) as raw:
        raw.execute(f"CREATE ROLE {name} LOGIN", prepare=False)
        raw.execute(f"CREATE DATABASE {name} OWNER {name}", prepare=False)
    rig = Rig(cluster, gate.url.replace(f"{USER}@/postgres", f"{name}@/{name}"), "leasehold")
    for command in (rig.asker.put_command("a"), c.SetAccountDocument(ACCOUNT, "kind", "new")):
        rig.store.execute([command], now_ms=rig.asker.clock.now_ms())
        gate.arm(cut)
        rig.store.commit()
    assert rig.asker.ask(c.GetAccountDocument(ACCOUNT, "kind")).content == "new"
    rig.check("a")
    rig.store.close()


@pytest.mark.parametrize("cut", Cut)
def test_a_connection_cut_after_a_look(gated: Rig, gate: Gate, cut: Cut) -> None:
    """What was seen was so; nothing is asked."""
    gated.asker.put("a")
    look = c.Peek(ACCOUNT, QUEUE, 10)
    (seen,) = gated.store.execute([look], now_ms=gated.asker.clock.now_ms())
    gate.arm(cut)
    gated.store.commit()
    assert isinstance(seen, tuple)
    assert len(seen) == 1
    gated.check("a")


def test_nobody_answers(gated: Rig, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are refused until somebody does, after the first one at once."""
    monkeypatch.setattr(primary, "PATIENCE_S", 0.2)
    pauses: list[float] = []
    gated.primary.sleep = pauses.append
    gate.is_open = False
    gated.terminate()
    with pytest.raises(Unavailable):
        gated.asker.put("a")
    assert pauses
    assert gated.store.health().details["connected"] == 0
    pauses.clear()
    with pytest.raises(Unavailable):
        gated.asker.put("b")
    assert not pauses
    gate.is_open = True
    put_when_possible(gated, "c")
    gated.check("c")


@pytest.mark.parametrize("cut", Cut)
def test_nobody_answers_after_a_commit(
    gated: Rig, gate: Gate, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be there or not, and nobody can be asked: no caller is told that nothing was done."""
    monkeypatch.setattr(primary, "PATIENCE_S", 0.2)
    gated.asker.put("a")
    put = gated.asker.put_command("b")
    gated.store.execute([put], now_ms=gated.asker.clock.now_ms())
    gate.arm(cut)
    gate.is_open = False
    with pytest.raises(OutcomeUnknown):
        gated.store.commit()
    gate.is_open = True
    put_when_possible(gated, "c")
    gated.check("a", "c", *(["b"] if cut is Cut.AFTER else []))


# --- the server ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_starts_again(rig: Rig, mode: str) -> None:
    """Orderly or after a crash: a batch with events is played again if it was not committed."""
    rig.asker.put("a")
    results = rig.store.execute([rig.asker.put_command("b")], now_ms=rig.asker.clock.now_ms())
    rig.cluster.stop(mode)
    rig.cluster.start()
    rig.store.commit()
    assert isinstance(results[0], Lease)
    rig.check("a", "b")


def test_a_crash_at_the_commit_of_a_batch_without_events(rig: Rig) -> None:
    """Numbers of transactions are no proof after a crash, so nobody is told anything."""
    command = c.SetAccountDocument(ACCOUNT, "kind", "new")
    rig.store.execute([command], now_ms=rig.asker.clock.now_ms())
    rig.cluster.stop("immediate")
    rig.cluster.start()
    with pytest.raises(OutcomeUnknown):
        rig.store.commit()
    assert rig.asker.ask(c.GetAccountDocument(ACCOUNT, "kind")).content is None
    rig.check()


def test_a_server_that_is_starting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for, within bounds."""
    monkeypatch.setattr(primary, "PATIENCE_S", 30.0)
    rig.asker.put("a")
    rig.cluster.stop("immediate")
    with meanwhile(lambda: rig.asker.put("b")) as found:
        rig.cluster.start()
    assert isinstance(found[0], Lease)
    rig.check("a", "b")


def test_a_server_that_was_made_read_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes are refused until it takes them again."""
    monkeypatch.setattr(primary, "PATIENCE_S", 0.1)
    rig.asker.put("a")
    with rig.raw() as raw:
        raw.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        try:
            raw.execute("SELECT pg_reload_conf()")
            query = "SHOW default_transaction_read_only"
            shown = rig.primary.connection.execute
            eventually(lambda: shown(query).fetchone() == ("on",), "it is read-only")
            with pytest.raises(Unavailable):
                rig.asker.put("b")
        finally:
            raw.execute("SET default_transaction_read_only = off")
            raw.execute("ALTER SYSTEM RESET default_transaction_read_only")
            raw.execute("SELECT pg_reload_conf()")
    put_when_possible(rig, "c")
    rig.check("a", "c")


def test_no_connection_is_left(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has taken the last one for another client refuses ours."""
    monkeypatch.setattr(primary, "PATIENCE_S", 0.1)
    rig.terminate()
    taken: list[psycopg.Connection[Any]] = []
    with suppress(psycopg.OperationalError):
        taken.extend(rig.raw() for _ in range(_CONNECTIONS + 1))
    with pytest.raises(Unavailable) as refused:
        rig.asker.put("a")
    assert "too many clients" in str(refused.value.__cause__)
    for each in taken:
        each.close()
    put_when_possible(rig, "b")
    rig.check("b")


# --- other transactions --------------------------------------------------------------------------


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the errors that stores have met."""
    names: list[str] = []

    def recording(error: psycopg.Error, *, closed: bool) -> Fault:
        names.append(type(error).__name__)
        return fault_of(error, closed=closed)

    monkeypatch.setattr(postgres_store, "fault_of", recording)
    return names


def test_a_deadlock(rig: Rig, met: list[str]) -> None:
    """The batch that was chosen to end it is played again."""
    leases = [rig.asker.put(f"{number}") for number in range(2)]
    commands = [rig.asker.complete_command(lease) for lease in leases]
    lock = "SELECT 1 FROM message WHERE body = $1 FOR UPDATE"
    with rig.raw() as raw, rig.raw() as watching:
        raw.execute("SET deadlock_timeout = '1min'")
        raw.execute("BEGIN")
        raw.execute(lock, (b"1",))
        with meanwhile(lambda: rig.asker.batch(*commands)) as found:
            pid = rig.pid
            eventually(lambda: waits_for_lock(watching, pid), "the store waits")
            raw.execute(lock, (b"0",))  # returns when the store has let go of it
            raw.execute("ROLLBACK")
    assert found == [[c.DONE, c.DONE]]
    assert set(met) == {"DeadlockDetected"}  # it may be chosen twice
    assert len(take_deadlocks()) == len(met)
    rig.check()


def test_a_serialization_failure(rig: Rig, met: list[str]) -> None:
    """The batch is played again."""
    lease = rig.asker.put("a")
    rig.set(default_transaction_isolation="repeatable read")
    with rig.raw() as raw, rig.raw() as watching:
        raw.execute("BEGIN")
        raw.execute("UPDATE message SET renewals = renewals + 1")
        with meanwhile(lambda: rig.asker.complete(lease)) as found:
            pid = rig.pid
            eventually(lambda: waits_for_lock(watching, pid), "the store waits")
            raw.execute("COMMIT")
    assert found == [c.DONE]
    assert met == ["SerializationFailure"]
    rig.check()


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
@pytest.mark.parametrize("table", ["change", "message"])
def test_a_lock_that_somebody_holds_for_long(rig: Rig, setting: str, table: str) -> None:
    """The batch is refused, and the next one that finds it free is not."""
    rig.asker.put("a")
    rig.set(**{setting: "50ms"})
    lock = f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
    with capture_logs() as logs:
        with rig.raw() as raw, held(raw, lock), pytest.raises(Unavailable):
            rig.asker.put("b")
        with rig.raw() as raw, held(raw, lock), pytest.raises(Unavailable):
            rig.asker.put("c")
    state = {"lock_timeout": "55P03", "statement_timeout": "57014"}[setting]
    named = [(line["event"], line["sqlstate"]) for line in logs]
    assert named == [("database.refused", state)]  # and not once more so soon
    rig.set(**{setting: "5s"})
    rig.check("a")


def test_a_batch_that_was_open_for_too_long(rig: Rig) -> None:
    """Its connection was ended, and it is played again."""
    rig.set(idle_in_transaction_session_timeout="20ms")
    pid = rig.pid
    results = rig.store.execute([rig.asker.put_command("a")], now_ms=rig.asker.clock.now_ms())
    with rig.raw() as raw:
        eventually(lambda: not rig.backend_is_there(raw, pid), "the backend has ended")
    rig.store.commit()
    assert isinstance(results[0], Lease)
    rig.check("a")


def test_a_wait_for_a_standby_that_somebody_has_ended(rig: Rig) -> None:
    """What is not where it has to be is not acknowledged, though it is there."""
    put: list[str] = []

    def put_until_refused() -> None:
        for number in range(10_000):  # until the setting is in force some are not
            put.append(f"{number}")
            rig.asker.put(f"{number}")

    with rig.raw() as raw:
        raw.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        raw.execute("SELECT pg_reload_conf()")
        try:
            with meanwhile(put_until_refused) as found:
                eventually(lambda: bool(found) or _end_wait(raw) is None, "the store gives up")
        finally:
            raw.execute("ALTER SYSTEM RESET synchronous_standby_names")
            raw.execute("SELECT pg_reload_conf()")
    assert isinstance(found[0], NotReplicated)
    rig.check(*put)


def _end_wait(raw: psycopg.Connection[Any]) -> bool:
    """End all waits for standbys."""
    query = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    return bool(raw.execute(query).fetchall())


# --- room ----------------------------------------------------------------------------------------


def test_a_full_disk(rig: Rig) -> None:
    """Producers are refused, consumers are served; with room again all is as before."""
    with (
        short_folder() as folder,
        mounted(folder / "disk", size_mib=2) as disk,
        rig.raw() as raw,
    ):
        os.chown(disk, *pwd.getpwnam("nobody")[2:4])
        raw.execute(f"CREATE TABLESPACE small LOCATION '{disk}'", prepare=False)
        raw.execute("ALTER TABLE message SET TABLESPACE small")
        put: list[Lease] = []
        with pytest.raises(StoreFull):
            put.extend(rig.asker.put(os.urandom(6_000)) for _ in range(2_000))
        assert len(put) > 10
        assert not rig.store.health().writable
        results = rig.asker.batch(
            rig.asker.put_command(os.urandom(6_000)), rig.asker.complete_command(put.pop())
        )
        assert isinstance(results[0], StoreFull)
        assert results[1] == c.DONE
        assert isinstance(rig.asker.receive_one(), Lease)
        raw.execute("ALTER TABLE message SET TABLESPACE pg_default")
        raw.execute("DROP TABLESPACE small", prepare=False)
        assert rig.store.relieve()
        rig.asker.put(os.urandom(6_000))
        assert rig.asker.count() == len(put) + 1
        rig.asker.ask(c.Clear(ACCOUNT, QUEUE))
        rig.check()
