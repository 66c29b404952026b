"""Random interleavings: nobody waits while there is something, nothing goes to who has gone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, QueueNotFound
from leasehold.domain.model import NEVER_MS, Lease, Outcome
from leasehold.domain.queue_settings import FailurePolicy, QueueSettings
from tests.unit.engine.support import Acts, Received, World, put, receive

QUEUES: Final = ("queue", "queue-poison")
PENALTIES_MS: Final = 200
"""Longer than fruitless looks are ever spaced out."""


class Storm:
    """Does random things at random moments, and remembers what must not happen."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.acts: list[Acts] = []
        """What acts on messages, as far as it is known; much of it is stale."""
        self.waiting: dict[str, asyncio.Task[Received]] = {}
        self.gone: dict[str, int] = {}
        """Holders that went away while they only waited; receives made for them until then."""
        self.doing: set[asyncio.Future[None]] = set()
        self.number = 0

    async def blow(self, rounds: int) -> None:
        """Do things, many of them at once, and look at the state now and then."""
        for _ in range(rounds):
            for _ in range(self.random.randrange(1, 12)):
                self.strike()
                for _ in range(self.random.choice((0, 0, 0, 1, 2, 5))):
                    await asyncio.sleep(0)
            await self.check()

    def strike(self) -> None:
        """Do one thing without waiting for its end."""
        pick = self.random.random()
        if pick < 0.3:
            self.begin_wait()
        elif pick < 0.4 and self.waiting:
            self.go_away()
        elif pick < 0.45:
            self.world.clock.advance(ms=self.random.choice((1, 500, 5000, 30_000)))
            self.world.engine.waiting.check()
        else:
            self.doing.add(asyncio.ensure_future(self.perform(self.command())))

    def begin_wait(self) -> None:
        """Begin a receive that waits."""
        self.number += 1
        holder = f"w{self.number}"
        command = receive(
            holder,
            limit=self.random.choice((1, 1, 1, 2, 32)),
            lease_s=self.random.choice((1, 5, 30)),
            queue=self.random.choice(QUEUES),
        )
        task = self.world.begin(command, wait_s=3600)
        task.add_done_callback(lambda task: self.ended(holder, command.queue, task))
        self.waiting[holder] = task

    def ended(self, holder: str, queue: str, task: asyncio.Task[Received]) -> None:
        """Remember what a waiter was given; the only error is that the queue is gone."""
        self.waiting.pop(holder, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            assert isinstance(error, QueueNotFound)
            return
        assert task.result(), "an hour has not passed"
        self.keep(queue, task.result())

    def keep(self, queue: str, leases: Any) -> None:
        for lease in leases:
            if isinstance(lease, Lease):
                self.acts.append(("a", queue, lease.message.message_id, lease.receipt))

    def go_away(self) -> None:
        """Cancel one that waits."""
        holder = self.random.choice(list(self.waiting))
        begun = {
            waiter.command.holder
            for room in self.world.engine.waiting.by_queue.values()
            for waiter in room._waiters
            if waiter.is_trying
        }
        if holder not in begun:
            self.gone[holder] = self.receives(holder)
        self.waiting.pop(holder).cancel()

    def receives(self, holder: str) -> int:
        """Return how many receives were carried out for a holder."""
        return sum(each.holder == holder for each in self.world.store.commands(c.Receive))

    async def perform(self, command: AnyCommand) -> None:
        """Have a command carried out, whatever comes of it."""
        try:
            result = await self.world.engine.perform(command)
        except LeaseholdError:
            return
        if isinstance(command, c.Put):
            self.keep(command.queue, (result,))
        elif isinstance(command, c.Receive):
            self.keep(command.queue, result)

    def command(self) -> AnyCommand:
        """Return a random command."""
        roll = self.random
        queue = roll.choice(QUEUES)
        act: Acts = roll.choice(self.acts[-20:]) if self.acts else ("a", queue, "", "")
        delay_s = roll.choice((0, 0, 1, 5))
        weighted: list[tuple[int, AnyCommand]] = [
            (30, put(delay_s=delay_s, queue=queue)),
            (10, c.Batch(tuple(put(queue=queue) for _ in range(roll.randrange(5))))),
            (8, receive("plain", roll.choice((1, 5)), roll.choice((0, 5)), queue)),
            (8, c.Complete(*act)),
            (6, c.Renew(*act, delay_s)),
            (10, c.Release(*act, roll.choice(list(Outcome)), roll.choice((None, 0, 5)))),
            (3, c.Batch((c.Release(*act), c.Renew(*act, 0)), atomic=roll.random() < 0.5)),
            (4, o.EndLease(*act[:3], delay_s=delay_s)),
            (4, o.Amend(*act[:3], delay_s=delay_s, force=roll.random() < 0.5)),
            (2, o.Remove(*act[:3], force=True)),
            (6, c.SetQueueSettings("a", queue, self.settings())),
            (1, c.Clear("a", queue)),
            (1, c.DeleteQueue("a", queue)),
            (3, c.CreateQueue("a", queue, {})),
            (2, self.redrive()),
            (4, o.StepJob(f"job{self.number}", 3)),
        ]
        weights = [weight for weight, _ in weighted]
        return roll.choices(weighted, weights)[0][1]

    def redrive(self) -> AnyCommand:
        plan = o.JobPlan(kind=o.JobKind.REDRIVE)
        return o.StartJob("a", "queue", f"job{self.number}", plan)

    def settings(self) -> QueueSettings:
        """Return random settings that have to do with receiving."""
        roll, now_ms = self.random, self.world.clock.now_ms()
        return QueueSettings(
            paused_until_ms=roll.choice((None, None, None, now_ms + 3000, NEVER_MS)),
            max_receives_per_s=roll.choice((None, None, 0.5, 3.0)),
            failure_policy=roll.choice((None, FailurePolicy(max_deliveries=2))),
        )

    async def check(self) -> None:
        """Come to rest, and see that nobody waits for what is there."""
        world = self.world
        await world.rest()
        await asyncio.gather(*self.doing)
        self.doing.clear()
        for _ in range(5):
            if not world.missed():
                break
            # The next look may be waiting for a moment because the last ones found nothing.
            await world.advance(ms=PENALTIES_MS)
        assert world.missed() == []
        receives = Counter(each.holder for each in world.store.commands(c.Receive))
        for holder, before in self.gone.items():
            assert receives[holder] == before, "a receive was begun for who had gone"


@pytest.mark.parametrize("on_thread", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_nobody_waits_while_there_is_something(seed: int, on_thread: bool) -> None:
    """Whatever happens in whatever order, at rest no queue that is waited for has a message."""

    async def scenario() -> None:
        async with World(on_thread=on_thread) as world:
            await world.do(c.CreateQueue("a", "queue-poison", {}))
            await Storm(world, seed).blow(rounds=25)

    asyncio.run(scenario())
