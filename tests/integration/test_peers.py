"""Two engines on one database: who leads, and who is told of what."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from typing import Any

import pytest
from psycopg.errors import LockNotAvailable

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.claims import AttachStream, OpenClaim
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.model import NEVER_MS, Lease, Outcome, QueueKey
from leasehold.domain.queue_settings import QueueSettings
from leasehold.stores.postgres import peers
from leasehold.stores.postgres.peers import Link
from tests.integration.servers import (
    SCHEMA,
    TICK_S,
    WAIT_S,
    Server,
    answer_of,
    ask,
    put,
    until,
)
from tests.patience import PATIENCE_S
from tests.postgres import find_programs, open_empty

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")


@pytest.fixture(autouse=True)
def only_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the looks now and then off: what the tests see was told. The store is empty."""
    monkeypatch.setattr("leasehold.engine.engine.RECHECK_S", 3600.0)
    monkeypatch.setattr(peers, "_MEASURE_S", 0.2)
    open_empty(SCHEMA).close()


Pair = tuple[Server, Server]


def with_pair(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Play a scenario with two servers, the one that leads and the other. There is one queue."""

    async def played(arguments: dict[str, Any]) -> None:
        async with AsyncExitStack() as stack:
            servers = []
            for name in ("first", "second"):
                server = await Server(name).start()
                stack.push_async_callback(server.engine.stop)
                servers.append(server)
                if name == "first":
                    await until(server.peers.leads)
            await servers[0].do(c.CreateQueue("a", "queue", {}))
            await scenario(tuple(servers), **arguments)

    @functools.wraps(scenario)
    def test(**arguments: Any) -> None:
        asyncio.run(played(arguments))

    parameters = list(inspect.signature(scenario).parameters.values())
    test.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    return test


# --- who leads -----------------------------------------------------------------------------------


@with_pair
async def test_one_server_leads(pair: Pair) -> None:
    """Of two servers one leads; once it has stopped, the other one does."""
    first, second = pair
    assert first.engine.health().details["leads"] == 1
    assert second.engine.health().details["leads"] == 0
    await first.engine.stop()
    await until(second.peers.leads)


@with_pair
async def test_another_leads_when_the_link_of_the_leader_is_lost(pair: Pair) -> None:
    """Whoever loses its link leads no more, and the other takes over; there is no way back."""
    first, second = pair
    first.lose_link()
    await until(second.peers.leads)
    await until(lambda: not first.peers.leads())
    first.find_link()
    await until(lambda: not first.peers._is_away)
    await first.do(put())
    assert second.peers.leads()
    assert not first.peers.leads()


@with_pair
async def test_only_the_leader_sweeps(pair: Pair) -> None:
    """Expired messages are retired by the server that leads, and by the next one after it."""
    first, second = pair
    await second.do(c.Put("a", "queue", b"x", 0, 1, b"0123456789"))
    await until(lambda: first.engine._maintenance and first.engine._maintenance.retired)
    first.lose_link()
    await until(second.peers.leads)
    await first.do(c.Put("a", "queue", b"x", 0, 1, b"0123456789"))
    await until(lambda: second.engine._maintenance and second.engine._maintenance.retired)


@with_pair
async def test_the_leader_carries_on_what_another_server_started(pair: Pair) -> None:
    """A purge that was started on the other server is done by the leader, and can be waited for."""
    _, second = pair
    for number in range(5):
        await second.do(put(b"%d" % number))
    job = await second.do(o.StartJob("a", "queue", "job", o.JobPlan(kind=o.JobKind.PURGE)))
    done = await second.engine.jobs.wait("a", job.job_id, PATIENCE_S)
    assert (done.state, done.moved) == (o.JobState.DONE, 5)
    assert not second.engine.jobs._tasks


# --- what is shared ------------------------------------------------------------------------------


@with_pair
async def test_servers_share_the_rate_of_a_queue(pair: Pair) -> None:
    """Each hands out its part of a limit, and all of it once it is alone."""
    first, second = pair
    limit = QueueSettings(max_receives_per_s=4)
    await first.do(c.CreateQueue("a", "slow", {}, limit))
    for number in range(20):
        await first.do(put(b"%d" % number, "slow"))
    await until(lambda: all(each.engine.health().details["servers"] == 2 for each in pair))
    got = [len(await server.do(c.Receive("a", "slow", 32, 60))) for server in pair]
    assert got == [2, 2]
    await second.engine.stop()
    await until(lambda: first.store._state.catalog.servers == 1)
    entry = first.store._state.catalog.get("a", "slow")
    assert first.store._state.catalog.rate_of(entry) == 4


@with_pair
async def test_a_server_says_when_its_database_is_away(pair: Pair) -> None:
    """Whether it can be reached is told without a request, and so is that it is back."""
    first, _ = pair
    (served,) = first.engine.stores()
    assert served.is_ready
    first.lose_link()
    await until(lambda: not first.engine.stores()[0].reachable)
    first.find_link()
    await until(lambda: first.engine.stores()[0].is_ready)


# --- who is told ---------------------------------------------------------------------------------


async def leased(server: Server) -> tuple[str, str, str, str]:
    """Put a message, receive it, and return what it takes to act on it."""
    await server.do(put())
    ((message, receipt),) = await server.do(c.Receive("a", "queue", 1, 3600, "w"))
    return "a", "queue", message.message_id, receipt


async def give_back(server: Server) -> AnyCommand:
    """Return a command that makes a leased message visible."""
    return c.Release(*await leased(server), Outcome.INTERRUPTED)


async def renew_for_nothing(server: Server) -> AnyCommand:
    """Do the same in the manner of the Azure SDKs."""
    return c.Renew(*await leased(server), 0)


async def unpause(server: Server) -> AnyCommand:
    """Return a command that lets a queue give out messages again."""
    await server.do(c.SetQueueSettings("a", "queue", QueueSettings(paused_until_ms=NEVER_MS)))
    await server.do(put())
    return c.SetQueueSettings("a", "queue", QueueSettings())


async def delay(_: Server) -> AnyCommand:
    """Return a command that puts a message for a little later."""
    return put(delay_s=1)


async def just_put(_: Server) -> AnyCommand:
    """Return a command that puts a message."""
    return put()


@pytest.mark.parametrize("prepare", [just_put, give_back, renew_for_nothing, unpause, delay])
@with_pair
async def test_who_waits_is_told_by_the_other_server(
    pair: Pair, prepare: Callable[[Server], Awaitable[AnyCommand]]
) -> None:
    """A receive that waits gets what becomes visible by way of the other server."""
    first, second = pair
    command = await prepare(second)
    waiting = first.receives()
    await first.until_told()
    assert not waiting.done()
    await second.do(command)
    assert len(await answer_of(waiting)) == 1


@with_pair
async def test_a_claim_that_waits_is_told(pair: Pair) -> None:
    """A claim that is to be opened is opened when another server gets messages."""
    first, second = pair
    stream = await second.do(AttachStream("a", "queue", "s"))
    claim = OpenClaim("a", "queue", "s", stream.token, 1, 100, 30, "s")
    waiting = asyncio.create_task(first.engine.open_claim(claim, WAIT_S))
    await first.until_told()
    await second.do(put())
    opened = await answer_of(waiting)
    assert opened.claim.size == 1


@with_pair
async def test_what_comes_before_the_others_know_is_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is put while a server registers is not missed: it looks once more after."""
    first, second = pair
    began, go_on = threading.Event(), threading.Event()
    wait = Link.wait

    def late(link: Link, keys: Collection[QueueKey]) -> None:
        began.set()
        assert go_on.wait(PATIENCE_S)
        wait(link, keys)

    monkeypatch.setattr(Link, "wait", late)
    waiting = first.receives()
    await until(began.is_set)
    await first.engine.settle()
    await second.do(put())
    await second.engine.settle()
    assert not waiting.done()
    go_on.set()
    assert len(await answer_of(waiting)) == 1


@with_pair
async def test_what_comes_while_a_link_is_lost_is_found(pair: Pair) -> None:
    """A server that was away from the others for a while looks at everything afterwards."""
    first, second = pair
    waiting = second.receives()
    await second.until_told()
    second.lose_link()
    await until(lambda: second.peers._is_away)
    await first.do(put())
    await first.engine.settle()
    assert not waiting.done()
    second.find_link()
    assert len(await answer_of(waiting)) == 1


@with_pair
async def test_what_a_deleted_queue_means(pair: Pair) -> None:
    """Who waits for a queue that another server deletes is told so."""
    first, second = pair
    waiting = first.receives()
    await first.until_told()
    await second.do(c.DeleteQueue("a", "queue"))
    with pytest.raises(QueueNotFound):
        await answer_of(waiting)


@with_pair
async def test_nobody_is_told_of_what_nobody_waits_for(pair: Pair) -> None:
    """A server that waits for one queue does not hear of another; its own puts go to nobody."""
    first, second = pair
    await second.do(c.CreateQueue("a", "other", {}))
    waiting = first.receives()
    await first.until_told()
    heard: list[Collection[QueueKey]] = []
    first.peers._hear = heard.append
    await second.do(put(queue="other"))
    await second.do(put())
    await until(lambda: heard)
    assert heard == [{("a", "queue")}]
    waiting.cancel()


@with_pair
async def test_who_waits_no_more_is_told_for_a_while(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that nobody waits for any more is taken back after a minute, and not at once."""
    first, _ = pair
    waiting = first.receives()
    await first.until_told()
    waiting.cancel()
    await until(lambda: first.peers._waits.get(("a", "queue"), 0) < float("inf"))
    await asyncio.sleep(3 * TICK_S)
    assert ask("SELECT queue FROM waiting") == [("queue",)]
    monkeypatch.setattr(peers, "LINGER_S", 0.0)
    await until(lambda: not ask("SELECT queue FROM waiting"))


@with_pair
async def test_a_server_that_is_gone_is_forgotten(pair: Pair) -> None:
    """Whoever leads takes away what a server has left behind that ended without a word."""
    first, second = pair
    waiting = second.receives()
    await second.until_told()
    second.lose_link()
    await until(lambda: not ask("SELECT queue FROM waiting"))
    assert first.peers.leads()
    second.find_link()
    await until(lambda: ask("SELECT slot FROM waiting") == [(second.store.slot,)])
    waiting.cancel()


@with_pair
async def test_all_is_taken_back_at_the_end(pair: Pair) -> None:
    """A server that stops leaves nothing behind by which others would tell it of anything."""
    first, _ = pair
    waiting = first.receives()
    await first.until_told()
    await first.engine.stop()
    assert await waiting == ()
    assert ask("SELECT queue FROM waiting") == []


@with_pair
async def test_a_long_batch_does_not_cost_the_lead(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody has the store to himself for long, a server goes on leading and asks again."""
    first, second = pair
    wait, refused = Link.wait, threading.Event()

    def busy(link: Link, keys: Collection[QueueKey]) -> None:
        if not refused.is_set():
            refused.set()
            raise LockNotAvailable
        wait(link, keys)

    monkeypatch.setattr(Link, "wait", busy)
    waiting = first.receives()
    await first.until_told()
    assert refused.is_set()
    assert first.peers.leads()
    await second.do(put())
    assert len(await answer_of(waiting)) == 1


@with_pair
async def test_who_waits_again_at_the_last_moment_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is waited for again while it is taken back is made known again."""
    first, second = pair
    again: list[asyncio.Task[tuple[Lease, ...]]] = []
    loop, began = asyncio.get_running_loop(), threading.Event()
    leave = Link.leave

    def slow(link: Link, keys: Collection[QueueKey]) -> None:
        leave(link, keys)
        loop.call_soon_threadsafe(lambda: again.append(first.receives()))
        while first.peers._waits["a", "queue"] < math.inf:
            assert not began.wait(0.001)

    waiting = first.receives()
    await first.until_told()
    monkeypatch.setattr(Link, "leave", slow)
    monkeypatch.setattr(peers, "LINGER_S", 0.0)
    waiting.cancel()
    await until(lambda: again)
    await first.until_told()
    await second.do(put())
    assert len(await answer_of(again[0])) == 1
