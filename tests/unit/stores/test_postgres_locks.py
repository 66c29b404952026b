"""Which lock a batch on PostgreSQL takes, and what two servers may do beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, cast

import psycopg
import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import sessions as s
from leasehold.domain import transactions as t
from leasehold.domain.command import AnyCommand, Lock
from leasehold.domain.commands import KnownBodies, ReadBodyGarbage, ReadBodyPlace
from leasehold.domain.errors import LeaseholdError, LeaseLost
from leasehold.domain.filters import EVERYTHING
from leasehold.domain.model import ENTROPY_BYTES, Detail, Lease, Outcome, Progress
from leasehold.domain.queue_settings import GroupOrder, GroupSettings
from leasehold.stores.base import COMMANDS
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.peers import Link
from leasehold.stores.postgres.state import SharedState
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, STREAM, Asker
from tests.postgres import empty, find_programs, shared_cluster
from tests.reliability.postgres_rig import meanwhile, waits_for_lock
from tests.reliability.running import eventually

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

SCHEMA: Final = "locks"
SHARED, ALONE = "RowShareLock", "ExclusiveLock"
HALF: Final = Progress(at_ms=0, fraction=0.5)


@pytest.fixture
def servers() -> Iterator[tuple[Asker, Asker]]:
    """Two servers on one database, with a queue of messages, a claim, a job and staged messages."""
    empty(SCHEMA)
    clock = ManualClock()
    url = f"{shared_cluster().url}&schema={SCHEMA}"
    stores = [PostgresStore(url, name=name) for name in ("one", "two")]
    one, two = (Asker(store, clock) for store in stores)
    one.create()
    for number in range(5):
        one.put(f"{number}")
    one.attach()
    one.claim(limit=3)
    one.stage("staged")
    one.start_job(o.JobKind.PURGE, dry_run=True)
    yield one, two
    for store in stores:
        store.close()


@pytest.fixture
def watcher() -> Iterator[psycopg.Connection[Any]]:
    """A connection that looks at the locks of others."""
    with connect(Address.parse(f"{shared_cluster().url}&schema={SCHEMA}")) as connection:
        yield connection


def pid_of(asker: Asker) -> int:
    store = asker.store
    assert isinstance(store, PostgresStore)
    assert store._primary.writer is not None
    return store._primary.writer.pid


def locks_of(watcher: psycopg.Connection[Any], asker: Asker) -> set[str]:
    """Return how the open batch of a server holds the store."""
    query = "SELECT mode FROM pg_locks WHERE relation = 'change'::regclass AND pid = $1 AND granted"
    held = {mode for (mode,) in watcher.execute(query, (pid_of(asker),)).fetchall()}
    return held & {SHARED, ALONE}


def leased(asker: Asker) -> tuple[s.Session, Lease]:
    """Return a session, and a lease of it."""
    session = asker.open_session()
    (lease,) = asker.receive_in(session)
    return session, lease


def beat(session: s.Session, *leases: Lease) -> s.Heartbeat:
    """Return a heartbeat that tells of messages."""
    told: Mapping[str, Progress | None] = {lease.message.message_id: HALF for lease in leases}
    return s.Heartbeat(ACCOUNT, session.session_id, told)


LOOKS: Final[dict[str, AnyCommand]] = {
    type(command).__name__: command
    for command in (
        c.GetQueue(ACCOUNT, QUEUE),
        c.ListQueues(ACCOUNT, "", "", 10),
        c.GetAccountDocument(ACCOUNT, "kind"),
        c.Peek(ACCOUNT, QUEUE, 5),
        o.Inspect(ACCOUNT, QUEUE, EVERYTHING, "", 5),
        o.FindMessage(ACCOUNT, QUEUE, "0" * 8),
        o.LookAtGroup(ACCOUNT, QUEUE, "a"),
        o.CountGroups(ACCOUNT, QUEUE),
        o.CountMessages(ACCOUNT, QUEUE),
        o.NextDue(ACCOUNT, QUEUE),
        o.GetJob(ACCOUNT, "job"),
        o.ListJobs(ACCOUNT),
        s.GetSession(ACCOUNT, "none"),
        s.ListSessions(ACCOUNT),
        s.ListLeases(ACCOUNT, "none"),
        k.ReadClaim(ACCOUNT, QUEUE, STREAM, 1, 0, 1, "", 100),
        k.GetStream(ACCOUNT, QUEUE, STREAM),
        k.ListStreams(ACCOUNT, QUEUE),
        t.GetTransaction(ACCOUNT, "tx"),
        t.ListTransactions(ACCOUNT),
        e.ReadEvents(0, 10),
        e.TailEvents(ACCOUNT, e.NEWEST),
        e.LogExtent(),
        e.ReadNote("name"),
        ReadBodyGarbage(10),
        ReadBodyPlace(10),
        KnownBodies(("key",)),
    )
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_takes_the_lock_that_it_declares(
    servers: tuple[Asker, Asker], watcher: psycopg.Connection[Any], name: str
) -> None:
    """And finds the same beside another server's batch as alone, whichever that is."""
    one, two = servers
    command = LOOKS[name]
    before = one.ask(command)
    (result,) = one.store.execute([command], now_ms=one.clock.now_ms())
    shares = command.traits.lock is Lock.SHARED
    assert locks_of(watcher, one) == ({SHARED} if shares else {ALONE})
    one.store.commit()
    assert isinstance(result, LeaseholdError) or result == before
    if shares:
        two.store.execute([two.put_command("beside")], now_ms=two.clock.now_ms())
        beside = one.ask(command)
        two.store.commit()
        assert isinstance(beside, LeaseholdError) or beside == before


def test_every_look_was_tried() -> None:
    """Also one that is new."""
    assert {type(command) for command in LOOKS.values()} == {
        kind for kind in COMMANDS if kind.traits.effect.name == "LOOKS"
    }


def test_counts_by_state_are_of_one_instant(
    servers: tuple[Asker, Asker], watcher: psycopg.Connection[Any]
) -> None:
    """They are read with several statements, so nobody may write in between; a number is one."""
    one, _ = servers
    for with_counts, lock in ((False, SHARED), (True, ALONE)):
        command = c.GetQueue(ACCOUNT, QUEUE, with_counts)
        one.store.execute([command, one.put_command()], now_ms=one.clock.now_ms())
        assert locks_of(watcher, one) == {lock}
        one.store.commit()


@pytest.mark.parametrize("told", [False, True], ids=["alive", "gets-on"])
def test_a_heartbeat_shares_the_store(
    servers: tuple[Asker, Asker], watcher: psycopg.Connection[Any], told: bool
) -> None:
    """A worker says that it lives while another server is in the middle of a batch."""
    one, two = servers
    session, lease = leased(one)
    two.store.execute([two.put_command("beside")], now_ms=two.clock.now_ms())
    command = beat(session, lease) if told else s.Heartbeat(ACCOUNT, session.session_id)
    (answer,) = one.store.execute([command], now_ms=one.clock.now_ms())
    assert locks_of(watcher, one) == locks_of(watcher, two) == {SHARED}
    one.store.commit()
    two.store.commit()
    assert isinstance(answer, s.Beat)
    assert answer.lost == ()


def release(asker: Asker, lease: Lease) -> AnyCommand:
    return asker.release_command(lease, Outcome.FAILED, delay_s=0)


def renewal(_: Asker, lease: Lease) -> AnyCommand:
    return c.Renew(ACCOUNT, QUEUE, lease.message.message_id, lease.receipt, 60, saved='{"at":1}')


def completion(asker: Asker, lease: Lease) -> c.Complete:
    return asker.complete_command(lease)


@pytest.mark.parametrize(
    ("change", "lost"), [(release, True), (renewal, False), (completion, True)]
)
def test_what_a_heartbeat_tells_does_not_undo_what_another_server_does(
    servers: tuple[Asker, Asker],
    watcher: psycopg.Connection[Any],
    change: Callable[[Asker, Lease], AnyCommand],
    lost: bool,
) -> None:
    """It waits for the message, and tells of it as the other has left it."""
    one, two = servers
    session, lease = leased(one)
    message_id = lease.message.message_id
    two.store.execute([change(two, lease)], now_ms=two.clock.now_ms())
    with meanwhile(lambda: one.ask(beat(session, lease))) as answers:
        eventually(lambda: waits_for_lock(watcher, pid_of(one)), "the heartbeat waits")
        two.store.commit()
    (answer,) = answers
    assert isinstance(answer, s.Beat), answer
    assert answer.lost == ((message_id,) if lost else ())
    seen = one.find(lease)
    if change is release:
        assert isinstance(seen, o.Seen)
        assert (seen.message.detail.failures, seen.message.detail.progress) == (1, None)
    elif change is renewal:
        assert isinstance(seen, o.Seen)
        assert seen.message.detail.progress == HALF
        assert seen.message.fence == lease.message.fence + 1
        assert isinstance(one.complete(lease), LeaseLost)


def test_what_comes_back_during_a_look_is_not_overtaken(
    servers: tuple[Asker, Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server gives a message back after what is visible of its group was read."""
    one, two = servers
    one.create("ordered")
    one.govern("ordered", groups=GroupSettings(order=GroupOrder.FIFO))
    for body in ("first", "second"):
        one.put(body, queue="ordered", detail=Detail(group_id="a"))
    (held,) = one.receive(1, queue="ordered")
    store = two.store
    assert isinstance(store, PostgresStore)
    fetch, given_back = SharedState.fetch, list[object]()

    def fetch_late(state: SharedState, query: str, *bounds: Any) -> list[Any]:
        if state is store._state and query == "groups_held" and not given_back:
            given_back.append(one.release(held, queue="ordered"))
        return fetch(state, query, *bounds)

    monkeypatch.setattr(SharedState, "fetch", fetch_late)
    assert two.receive(1, queue="ordered") == ()
    monkeypatch.undo()
    assert len(given_back) == 1
    two.clock.advance(ms=50)
    got = two.receive(2, queue="ordered")
    assert [lease.message.body for lease in got] == [b"first", b"second"]


@pytest.mark.parametrize("order", GroupOrder)
def test_groups_that_have_nothing_are_not_asked_for(
    servers: tuple[Asker, Asker], order: GroupOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of groups that have come and gone, a receive costs what it did."""
    one, two = servers
    one.create("shared")
    one.govern("shared", groups=GroupSettings(order=order, fair=True))
    for asker in servers:
        assert isinstance(asker.store, PostgresStore)
        asker.store.share_limits(2)
    for number in range(20):
        one.put(str(number), queue="shared", detail=Detail(group_id=f"order {number}"))
    for lease in one.receive(20, queue="shared"):
        one.complete(lease, queue="shared")
    fetch, asked = SharedState.fetch, list[str]()

    def fetch_noted(state: SharedState, query: str, *bounds: Any) -> list[Any]:
        asked.append(query)
        return fetch(state, query, *bounds)

    one.clock.advance(ms=200)
    one.receive(1, queue="shared")  # may look at each once more
    monkeypatch.setattr(SharedState, "fetch", fetch_noted)
    for _ in range(3):
        one.clock.advance(ms=200)
        assert one.receive(1, queue="shared") == ()
    assert len([query for query in asked if query.startswith("group_heads")]) < 10
    two.put("another", queue="shared", detail=Detail(group_id="order 7"))
    assert [lease.message.body for lease in one.receive(1, queue="shared")] == [b"another"]


def test_what_another_server_commits_late_is_received(servers: tuple[Asker, Asker]) -> None:
    """Also in a group that had nothing, and when it should have been visible long ago."""
    one, two = servers
    one.create("late")
    one.govern("late", groups=GroupSettings(order=GroupOrder.FIFO))
    for asker in servers:
        assert isinstance(asker.store, PostgresStore)
        asker.store.share_limits(2)
    one.put("first", queue="late", detail=Detail(group_id="a"))
    (lease,) = one.receive(1, queue="late")
    one.complete(lease, queue="late")
    put_ms = one.clock.now_ms()
    one.clock.advance(ms=5_000)
    assert one.receive(1, queue="late") == ()
    late = c.Put(ACCOUNT, "late", b"late", 0, 3_600, bytes(ENTROPY_BYTES), Detail(group_id="a"))
    two.store.execute([late], now_ms=put_ms)
    two.store.commit()
    for _ in range(11):
        one.clock.advance(ms=1_000)
        got = one.receive(1, queue="late")
        if got:
            break
    assert [lease.message.body for lease in got] == [b"late"]


def test_many_groups_that_wait_are_not_asked_for_at_once(
    servers: tuple[Asker, Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server may free any of them, and who receives must not ask for all each time."""
    one, two = servers
    groups = 800
    one.create("busy")
    one.govern("busy", groups=GroupSettings(order=GroupOrder.FIFO, fair=True))
    for asker in servers:
        assert isinstance(asker.store, PostgresStore)
        asker.store.share_limits(2)
    details = [Detail(group_id=f"order {number}") for number in range(groups)] * 2
    puts = [c.Put(ACCOUNT, "busy", b"", 0, 3_600, bytes(ENTROPY_BYTES), each) for each in details]
    one.batch(*puts)
    receives = [c.Receive(ACCOUNT, "busy", 1, 3_600) for _ in range(groups)]
    (lease,) = cast("tuple[Lease]", one.batch(*receives)[7])
    fetch, asked = SharedState.fetch, list[int]()

    def fetch_noted(state: SharedState, query: str, *bounds: Any) -> list[Any]:
        if query.startswith("group_heads"):
            asked.append(str(bounds[0][1]).count("order"))
        return fetch(state, query, *bounds)

    monkeypatch.setattr(SharedState, "fetch", fetch_noted)
    one.clock.advance(ms=500)
    one.receive(1, queue="busy")
    asked.clear()
    for _ in range(5):
        one.clock.advance(ms=100)
        assert one.receive(1, queue="busy") == ()
    assert 0 < sum(asked) < 2 * groups
    two.complete(lease, queue="busy")
    for _ in range(6):
        one.clock.advance(ms=100)
        got = one.receive(1, queue="busy")
        if got:
            break
    assert [each.message.detail.group_id for each in got] == ["order 7"]


def test_more_groups_than_there_are_locks(servers: tuple[Asker, Asker]) -> None:
    """One transaction takes messages of more groups than PostgreSQL has room for locks."""
    one, _ = servers
    one.create("wide")
    one.govern("wide", groups=GroupSettings(order=GroupOrder.FIFO))
    put = c.Put(ACCOUNT, "wide", b"", 0, 3_600, bytes(ENTROPY_BYTES))
    one.batch(*(put._replace(detail=Detail(group_id=f"{each}")) for each in range(9_000)))
    assert len(one.receive(9_000, queue="wide")) == 9_000


def test_more_keys_than_there_are_locks(servers: tuple[Asker, Asker]) -> None:
    """One request puts more messages with keys of their own than PostgreSQL has room for locks."""
    one, two = servers
    put = one.put_command("work")
    keyed = [put._replace(detail=Detail(dedup_key=f"{each}")) for each in range(9_000)]
    assert all(isinstance(each, Lease) for each in one.batch(*keyed))
    assert isinstance(two.batch(keyed[5])[0], c.Duplicate)


def test_a_late_batch_does_not_fill_the_rate_of_a_group(servers: tuple[Asker, Asker]) -> None:
    """A server that was stopped carries on at the time that it had: no clock was set back."""
    one, two = servers
    one.create("rated")
    one.govern("rated", groups=GroupSettings(rate_per_s=2.0, burst=2))
    for number in range(8):
        one.put(f"{number}", queue="rated", detail=Detail(group_id="a"))
    one.clock.advance(s=3)
    assert one.received(8, queue="rated") == [b"0", b"1"]
    late_ms = one.clock.now_ms() - 2_000
    (received,) = two.store.execute([c.Receive(ACCOUNT, "rated", 8, 30)], now_ms=late_ms)
    two.store.commit()
    assert received == ()
    one.clock.advance(ms=500)
    assert one.received(8, queue="rated") == [b"2"]


# --- the order of locks ----------------------------------------------------------------------


def test_a_dead_server_is_taken_over_beside_batches(
    servers: tuple[Asker, Asker], watcher: psycopg.Connection[Any]
) -> None:
    """The link waits before it locks what a batch of its own server counts, and not after."""
    one, two = servers
    two.put("counted by the one that dies")
    store = one.store
    assert isinstance(store, PostgresStore)
    entry = store._state.catalog.find(ACCOUNT, QUEUE)
    assert entry is not None
    address = Address.parse(f"{shared_cluster().url}&schema={SCHEMA}")
    link = Link(address, store.slot)
    try:
        store.execute([e.LogExtent()], now_ms=one.clock.now_ms())
        assert locks_of(watcher, one) == {ALONE}
        with meanwhile(link.forget_dead) as taken_over:
            pid = link._connection.info.backend_pid
            eventually(lambda: waits_for_lock(watcher, pid), "the link waits")
            store._state.add_counts({entry.partition: 1})
            store.commit()
        assert taken_over == [None]
    finally:
        link.close()


def test_keys_are_locked_in_one_order(
    servers: tuple[Asker, Asker], watcher: psycopg.Connection[Any]
) -> None:
    """Of keys that two servers are given in different orders neither holds what the other needs."""
    one, two = servers
    put = one.put_command("work")
    keyed = [put._replace(detail=Detail(dedup_key=key)) for key in ("a", "b", "c")]
    two.store.execute(keyed[:1], now_ms=two.clock.now_ms())
    for others in ([keyed[1], keyed[0]], [keyed[2], keyed[0]]):
        hashes = (
            "SELECT hashtextextended(k, (SELECT scope FROM queue)) FROM unnest($1::text[]) AS r (k)"
        )
        before, after = watcher.execute(hashes, (["a", others[0].detail.dedup_key],)).fetchall()
        with meanwhile(partial(one.batch, *others)) as found:
            eventually(lambda: waits_for_lock(watcher, pid_of(one)), "it waits for the first key")
            counting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1"
            held = watcher.execute(f"{counting} AND granted", (pid_of(one),)).fetchall()
            two.store.commit()
        assert held == [(int(after < before),)]
        assert isinstance(found[0], list)
        assert [type(each) for each in found[0]] == [Lease, c.Duplicate]
        two.store.execute(keyed[:1], now_ms=two.clock.now_ms())
    two.store.commit()


def test_messages_are_locked_in_one_order(
    servers: tuple[Asker, Asker], watcher: psycopg.Connection[Any]
) -> None:
    """Of messages that two servers are given in different orders, too."""
    one, two = servers
    session = one.open_session()
    first, second = (one.receive_in(session)[0] for _ in range(2))
    two.store.execute([renewal(two, first)], now_ms=two.clock.now_ms())
    reversed_order = [renewal(one, second), release(one, first)]
    lock = "SELECT 1 FROM message WHERE body = $1 FOR UPDATE NOWAIT"
    for commands in (reversed_order, [beat(session, second, first)]):
        with meanwhile(partial(one.batch, *commands)):
            eventually(lambda: waits_for_lock(watcher, pid_of(one)), "it waits for the first one")
            assert watcher.execute(lock, (second.message.body,)).fetchall() == [(1,)]
            two.store.commit()
        two.store.execute([beat(session, first)], now_ms=two.clock.now_ms())
    two.store.commit()


def test_messages_of_several_requests_are_locked_in_one_order(
    servers: tuple[Asker, Asker], watcher: psycopg.Connection[Any]
) -> None:
    """Each request is carried out by itself, so its completes are a statement of their own."""
    one, two = servers
    first, second = one.receive(2)
    two.store.execute([renewal(two, first)], now_ms=two.clock.now_ms())
    requests = [c.Batch((completion(one, lease),)) for lease in (second, first)]
    lock = "SELECT 1 FROM message WHERE body = $1 FOR UPDATE NOWAIT"
    with meanwhile(partial(one.batch, *requests)):
        eventually(lambda: waits_for_lock(watcher, pid_of(one)), "it waits for the first one")
        assert watcher.execute(lock, (second.message.body,)).fetchall() == [(1,)]
        two.store.commit()
