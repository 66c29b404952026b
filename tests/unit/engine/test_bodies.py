"""Large bodies on their way in: written before the commit, removed if it is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import transactions as t
from leasehold.domain.errors import (
    LeaseholdError,
    LeaseLost,
    QueueNotFound,
    StoreFull,
    Unavailable,
)
from leasehold.domain.model import Detail, Lease
from tests.unit.engine.bodies_support import (
    INLINE,
    LARGE,
    LARGER,
    QUEUE,
    SMALL,
    Scenario,
    World,
    body_of,
    play,
    puts,
    until,
)
from tests.unit.engine.support import put

# --- writing -------------------------------------------------------------------------------------


def test_a_small_body_stays_in_the_store() -> None:
    """Up to the limit nothing is asked of the body store."""

    async def scenario(world: World) -> None:
        await world.put(SMALL)
        (lease,) = await world.receive()
        assert lease.message.body == SMALL
        assert lease.message.detail.body_ref is None
        assert world.kept.asked == []

    play(scenario)


def test_a_large_body_goes_to_the_body_store() -> None:
    """The store of messages gets where it is; a receive gives it whole."""

    async def scenario(world: World) -> None:
        await world.do(put(LARGE)._replace(detail=Detail(properties={"a": "b"})))
        (kept,) = world.store.commands(c.Put)
        assert kept.body == b""
        assert kept.detail.body_ref.size_bytes == len(LARGE)
        assert world.kept.kept == {kept.detail.body_ref.key: LARGE}
        (lease,) = await world.receive()
        assert body_of(lease.message) == LARGE
        assert lease.message.detail.properties == {"a": "b"}

    play(scenario)


def test_the_body_is_written_before_the_commit() -> None:
    """While the body store takes its time, the store of messages has not heard of the message."""

    async def scenario(world: World) -> None:
        world.kept.gate = asyncio.Event()
        sending = asyncio.create_task(world.put())
        await until(lambda: world.kept.waiting)
        assert world.store.commands(c.Put) == []
        world.kept.gate.set()
        await sending
        assert len(world.store.commands(c.Put)) == 1

    play(scenario)


BRINGING: dict[str, Callable[[World], Awaitable[Any]]] = {
    "batch": lambda world: world.do(c.Batch(puts(SMALL, LARGE, LARGER))),
    "atomic": lambda world: world.do(c.Batch(puts(LARGE, SMALL, LARGER), atomic=True)),
    "commit": lambda world: world.do(t.CommitTogether("a", puts(LARGE, LARGER, SMALL))),
}


@pytest.mark.parametrize("how", BRINGING)
def test_several_bodies_come_back_to_their_messages(how: str) -> None:
    """Of many bodies in one command the large ones are moved, and none is mixed up."""

    async def scenario(world: World) -> None:
        await BRINGING[how](world)
        assert sorted(world.kept.kept.values()) == [LARGE, LARGER]
        bodies = [body_of(lease.message) for lease in await world.receive(10)]
        assert sorted(bodies) == [SMALL, LARGE, LARGER]

    play(scenario)


def test_staged_bodies_are_moved_and_published_with_their_messages() -> None:
    """What is staged is not garbage, and is read once it is published."""

    async def scenario(world: World) -> None:
        await world.do(t.Stage("a", "name", "part", 0, puts(LARGE, SMALL)))
        await world.engine.sweep()
        assert list(world.kept.kept.values()) == [LARGE]
        await world.do(t.Publish("a", "name"))
        bodies = [body_of(lease.message) for lease in await world.receive(10)]
        assert sorted(bodies) == [SMALL, LARGE]

    play(scenario)


def test_what_settling_sends_is_moved() -> None:
    """Messages sent when claims are settled have their bodies moved, once."""

    async def scenario(world: World) -> None:
        stream = await world.do(k.AttachStream(*QUEUE, "s"))
        await world.put()
        await world.do(k.OpenClaim(*QUEUE, "s", stream.token, 1, 10, 60))
        settle = k.SettleClaims(*QUEUE, "s", stream.token, 1, sends=puts(LARGER))
        await world.do(settle)
        await world.do(settle)
        await world.settle()
        await world.engine.sweep()
        assert list(world.kept.kept.values()) == [LARGER]
        (lease,) = await world.receive()
        assert body_of(lease.message) == LARGER

    play(scenario)


def test_a_body_sent_along_in_vain_is_removed() -> None:
    """A message that is known by its key is not sent again when claims are settled."""

    async def scenario(world: World) -> None:
        stream = await world.do(k.AttachStream(*QUEUE, "s"))
        keyed = [
            put._replace(detail=replace(put.detail, dedup_key=key))
            for put, key in zip(puts(LARGE, LARGER), ("known", "new"), strict=True)
        ]
        await world.do(keyed[0])
        await world.do(k.OpenClaim(*QUEUE, "s", stream.token, 1, 10, 60))
        await world.do(k.SettleClaims(*QUEUE, "s", stream.token, 1, sends=tuple(keyed)))
        await world.settle()
        await world.engine.sweep()
        await world.engine.sweep()
        assert list(world.kept.kept.values()) == [LARGER]
        (lease,) = await world.receive()
        assert body_of(lease.message) == LARGER

    play(scenario)


@pytest.mark.parametrize("before", [SMALL, LARGE])
@pytest.mark.parametrize("after", [SMALL + b"!", SMALL[1:]])
def test_a_renewal_can_bring_a_body(before: bytes, after: bytes) -> None:
    """A renewal replaces a body by a larger or a smaller one; the old one is garbage."""

    async def scenario(world: World) -> None:
        await world.put(before)
        (lease,) = await world.receive()
        acts = (*QUEUE, lease.message.message_id, lease.receipt)
        await world.do(c.Renew(*acts, 30, after))
        await world.engine.sweep()
        assert list(world.kept.kept.values()) == ([after] if len(after) > INLINE else [])
        assert body_of((await world.find(lease.message.message_id)).message) == after

    play(scenario)


def test_a_renewal_without_a_body_leaves_it() -> None:
    """Renewing, releasing and redriving keep a body where it is."""

    async def scenario(world: World) -> None:
        await world.put()
        (lease,) = await world.receive()
        acts = (*QUEUE, lease.message.message_id)
        renewed = await world.do(c.Renew(*acts, lease.receipt, 30))
        await world.do(c.Release(*acts, renewed.receipt))
        await world.engine.sweep()
        (again,) = await world.receive()
        assert body_of(again.message) == LARGE
        assert world.kept.count("put") == 1
        assert world.kept.count("delete") == 0

    play(scenario)


def test_an_amendment_can_bring_a_body() -> None:
    """An operator's new body goes where it belongs, and is shown in the answer."""

    async def scenario(world: World) -> None:
        lease = await world.put()
        message_id = lease.message.message_id
        seen = await world.do(o.Amend(*QUEUE, message_id, body=LARGER))
        assert body_of(seen.message) == LARGER
        await world.engine.sweep()
        assert list(world.kept.kept.values()) == [LARGER]
        seen = await world.do(o.Amend(*QUEUE, message_id, priority=3))
        assert body_of(seen.message) == LARGER
        seen = await world.do(o.Amend(*QUEUE, message_id, body=SMALL))
        assert body_of(seen.message) == SMALL
        await world.engine.sweep()
        assert world.kept.kept == {}

    play(scenario)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreFull(), Unavailable()])
def test_a_body_that_cannot_be_written_is_refused(error: Exception) -> None:
    """With no room, or nobody there, the put is refused and nothing of it is left."""

    async def scenario(world: World) -> None:
        world.kept.put_errors = [error]
        with pytest.raises(type(error)):
            await world.put()
        assert world.store.commands(c.Put) == []
        await world.put()
        await world.settle()
        assert len(world.kept.kept) == 1

    play(scenario)


def test_a_batch_whose_second_body_fails_leaves_nothing() -> None:
    """Bodies that were written already are removed again; none of the messages is put."""

    async def scenario(world: World) -> None:
        world.kept.put_errors = [None, StoreFull(), None]
        with pytest.raises(StoreFull):
            await world.do(c.Batch(puts(LARGE, LARGER, LARGE, SMALL)))
        await world.settle()
        assert world.kept.kept == {}
        assert world.store.batches == []

    play(scenario)


def test_a_full_store_keeps_what_is_left_for_consumers() -> None:
    """While the store of messages has no room, no body takes what its reserve has set free."""

    async def scenario(world: World) -> None:
        world.store.writable = False
        with pytest.raises(StoreFull):
            await world.put()
        assert world.kept.asked == []

    play(scenario)


async def _to_no_queue(world: World) -> None:
    with pytest.raises(QueueNotFound):
        await world.do(put(LARGE, queue="none"))


async def _twice(world: World) -> None:
    command = put(LARGE)._replace(detail=Detail(dedup_key="k"))
    assert isinstance(await world.do(command), Lease)
    assert isinstance(await world.do(command), c.Duplicate)


async def _with_an_old_receipt(world: World) -> None:
    lease = await world.put()
    await world.receive()
    with pytest.raises(LeaseLost):
        await world.do(c.Renew(*QUEUE, lease.message.message_id, lease.receipt, 30, LARGER))


async def _all_or_nothing(world: World) -> None:
    lease = await world.put()
    await world.receive()
    late = c.Complete(*QUEUE, lease.message.message_id, lease.receipt)
    results = await world.do(c.Batch((put(LARGER), late), atomic=True))
    assert all(isinstance(result, LeaseholdError) for result in results)


async def _one_of_two(world: World) -> None:
    results = await world.do(c.Batch((put(LARGE), put(LARGER, queue="none"))))
    assert isinstance(results[1], QueueNotFound)


async def _staged_twice(world: World) -> None:
    stage = t.Stage("a", "name", "part", 0, puts(LARGE))
    await world.do(stage)
    assert (await world.do(stage)).duplicate


async def _committed_twice(world: World) -> None:
    commit = t.CommitTogether("a", puts(LARGE), name="name")
    await world.do(commit)
    assert (await world.do(commit)).already


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        (_to_no_queue, 0),
        (_twice, 1),
        (_with_an_old_receipt, 1),
        (_all_or_nothing, 1),
        (_one_of_two, 1),
        (_staged_twice, 1),
        (_committed_twice, 1),
    ],
)
def test_the_bodies_of_what_is_refused_are_removed(refused: Scenario, left: int) -> None:
    """A refused command leaves no body behind, and takes nobody else's with it."""

    async def scenario(world: World) -> None:
        await refused(world)
        await world.settle()
        assert len(world.kept.kept) == left
        assert world.refs() == set(world.kept.kept)

    play(scenario)


def test_trouble_is_logged_once() -> None:
    """A full disk under load does not fill the log as well."""

    async def scenario(world: World) -> None:
        for errors in ([StoreFull(), StoreFull(), StoreFull(), None], [StoreFull()]):
            world.kept.put_errors = [*errors]
            for _ in errors:
                with contextlib.suppress(StoreFull):
                    await world.put()

    with capture_logs() as logs:
        play(scenario)
    assert [each["event"] for each in logs] == ["body.not_written"] * 2
