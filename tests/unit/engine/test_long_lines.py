"""Very many commands at once: how deep batches nest, and what may share one."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.domain import admin as o
from leasehold.domain.claims import ReadClaim, SettleClaims
from leasehold.domain.command import AnyCommand
from leasehold.domain.filters import EVERYTHING
from leasehold.domain.queue_settings import FailurePolicy
from leasehold.domain.sessions import Heartbeat
from leasehold.domain.transactions import CommitTogether, Publish, Stage
from leasehold.stores.memory import tables
from tests.patience import PATIENCE_S
from tests.unit.engine.support import World, bodies, play, put, receive


@pytest.mark.parametrize("on_thread", [False, True], ids=["in-loop", "on-thread"])
def test_a_line_of_batches_may_be_long(on_thread: bool) -> None:
    """However many batches wait, none begins within another: the stack would run out."""

    async def scenario(world: World) -> None:
        async with asyncio.timeout(PATIENCE_S):
            results = await world.do(*[receive(limit=5_000)] * 1_200)
            assert results == [()] * 1_200
            assert len(world.store.batches) == 1_200
            assert len(await world.do(put())) == 1

    play(scenario, on_thread=on_thread)


def test_looks_at_many_messages_are_few_to_a_batch() -> None:
    """Each holds the loop for a while, so that others have their turn in between."""

    async def scenario(world: World) -> None:
        await world.do(*[o.Inspect("a", "queue", EVERYTHING, "", 1)] * 9)
        assert [len(batch) for batch in world.store.batches] == [4, 4, 1]

    play(scenario)


def test_who_waits_gets_what_is_behind_much_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive that only moved poison has not shown that there is nothing: it goes on."""
    monkeypatch.setattr(tables, "POISONED_AT_ONCE", 2)

    async def scenario(world: World) -> None:
        await world.do(*[put()] * 7, receive(limit=7, lease_s=5))
        await world.do(put(b"good", delay_s=6))
        await world.set(failure_policy=FailurePolicy(max_deliveries=1))
        task = await world.wait()
        await world.advance(s=7)
        for _ in range(50):
            await world.advance(ms=100)
        assert bodies(task) == [b"good"]

    play(scenario)


@pytest.mark.parametrize(
    ("commands", "batches"),
    [
        ((Stage("a", "t", "p", 0, (put(),) * 300),) * 3, [1, 1, 1]),
        ((ReadClaim("a", "queue", "s", 1, 0, 1, "", 20_000), put()), [1, 1]),
        ((SettleClaims("a", "queue", "s", 1, 1),) * 512, [512]),
        ((SettleClaims("a", "queue", "s", 1, 1, publish=("t",)), put()), [1, 1]),
        ((SettleClaims("a", "queue", "s", 1, 1, sends=(put(),) * 300),) * 2, [1, 1]),
        ((Publish("a", "t"), Publish("a", "u")), [1, 1]),
        ((CommitTogether("a", (put(),) * 200),) * 3, [2, 1]),
        ((CommitTogether("a", (), ("t",)), put()), [1, 1]),
        ((Heartbeat("a", "none", dict.fromkeys(map(str, range(800)))),) * 6, [5, 1]),
    ],
)
def test_what_may_be_large_shares_its_batch_with_little(
    commands: tuple[AnyCommand, ...], batches: list[int]
) -> None:
    """Each command counts for as many messages as it works on, as far as that is known."""

    async def scenario(world: World) -> None:
        await world.do(*commands)
        assert [len(batch) for batch in world.store.batches] == batches

    play(scenario)
