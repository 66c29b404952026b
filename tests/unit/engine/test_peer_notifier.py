"""What other servers are told of, and when: with a link that only remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.model import Outcome, QueueKey
from leasehold.domain.queue_settings import FailurePolicy, QueueSettings
from leasehold.engine import Engine, MaintenancePlan
from leasehold.engine.peers import RECHECK_S
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.unit.engine.support import put, receive

QUEUE: QueueKey = ("a", "queue")
POISON: QueueKey = ("a", "queue-poison")


class FakePeers:
    """The link to servers that are not there."""

    def __init__(self) -> None:
        self.is_leader = True
        self.told: list[set[QueueKey]] = []
        self.waits: list[tuple[str, QueueKey]] = []
        self.looks = self.calls = 0
        self.seen = 1
        self.waited_for: tuple[int, Collection[QueueKey]] = (1, ())
        self.is_stopped = False
        self.hear: Callable[[Collection[QueueKey]], None]
        self.renew: Callable[[], None]
        self.work: Callable[[], None]

    def start(
        self,
        *,
        hear: Callable[[Collection[QueueKey]], None],
        renew: Callable[[], None],
        work: Callable[[], None],
    ) -> None:
        self.hear, self.renew, self.work = hear, renew, work
        renew()

    def stop(self) -> None:
        self.is_stopped = True

    def leads(self) -> bool:
        return self.is_leader

    def begin_waiting(self, key: QueueKey) -> None:
        self.waits.append(("begin", key))

    def end_waiting(self, key: QueueKey) -> None:
        self.waits.append(("end", key))

    def look(self) -> None:
        self.looks += 1

    def tell(self, keys: Collection[QueueKey]) -> None:
        self.told.append(set(keys))

    def call_leader(self) -> None:
        self.calls += 1

    def about(self) -> dict[str, str | int]:
        return {"leads": int(self.is_leader)}

    def others_wait_for(self, *keys: QueueKey) -> None:
        """Let it be known where others wait."""
        self.seen += 1
        self.waited_for = self.seen, keys
        self.renew()


class World:
    """An engine with a queue and its poison queue, for both of which others wait."""

    def __init__(self, plan: MaintenancePlan | None = None) -> None:
        self.peers = FakePeers()
        self.clock = ManualClock()
        self.engine = Engine(MemoryStore(), self.clock, plan=plan, peers=self.peers)

    async def do(self, command: AnyCommand) -> Any:
        return await self.engine.perform(command)

    async def leased(self, lease_s: int = 3600) -> tuple[str, str, str, str]:
        """Put a message, receive it, and return what it takes to act on it."""
        await self.do(put())
        ((message, receipt),) = await self.do(receive(lease_s=lease_s))
        self.peers.told.clear()
        return "a", "queue", message.message_id, receipt


def play(scenario: Callable[[World], Awaitable[None]], **more: Any) -> None:
    """Play a scenario."""

    async def run() -> None:
        world = World(**more)
        await world.engine.start()
        for queue in ("queue", "queue-poison", "other"):
            await world.do(c.CreateQueue("a", queue, {}))
        world.peers.others_wait_for(QUEUE, POISON)
        world.peers.told.clear()
        try:
            await scenario(world)
        finally:
            await world.engine.stop()

    asyncio.run(run())


def test_a_put_is_told_once_it_is_durable() -> None:
    """Of a queue that others wait for, and of no other."""

    async def scenario(world: World) -> None:
        await world.do(put(queue="other"))
        assert world.peers.told == []
        await world.do(put())
        assert world.peers.told == [{QUEUE}]

    play(scenario)


def test_a_batch_is_told_of_in_one_word() -> None:
    """However many messages it has put."""

    async def scenario(world: World) -> None:
        await asyncio.gather(*(world.do(put()) for _ in range(5)))
        assert world.peers.told == [{QUEUE}]

    play(scenario)


def test_what_somebody_here_got_at_once_is_not_told() -> None:
    """Others would look in vain; but of the rest they hear."""

    async def scenario(world: World) -> None:
        waiting = [asyncio.create_task(world.engine.receive(receive(), 60)) for _ in range(2)]
        await world.engine.settle()
        await asyncio.gather(world.do(put()), world.do(put()))
        await asyncio.gather(*waiting)
        assert world.peers.told == []
        last = asyncio.create_task(world.engine.receive(receive(), 60))
        await world.engine.settle()
        await asyncio.gather(world.do(put()), world.do(put()))
        assert len(await last) == 1
        assert world.peers.told == [{QUEUE}]

    play(scenario)


@pytest.mark.parametrize(("delay_s", "is_told"), [(RECHECK_S, True), (4 * RECHECK_S, False)])
def test_what_comes_later_than_the_next_look_is_not_told(delay_s: float, is_told: bool) -> None:
    """A look now and then learns of it in time."""

    async def scenario(world: World) -> None:
        await world.do(put(delay_s=int(delay_s)))
        assert world.peers.told == ([{QUEUE}] if is_told else [])

    play(scenario)


def test_short_leases_are_told_of() -> None:
    """Their end is, because it may come before the next look; that of long ones is not."""

    async def scenario(world: World) -> None:
        await world.leased(3600)
        await world.do(put())
        world.peers.told.clear()
        await world.do(receive(lease_s=1))
        assert world.peers.told == [{QUEUE}]

    play(scenario)


def test_what_is_given_back_is_told() -> None:
    """A release makes a message visible at once."""

    async def scenario(world: World) -> None:
        acts = await world.leased()
        await world.do(c.Release(*acts, Outcome.INTERRUPTED))
        assert world.peers.told == [{QUEUE}]

    play(scenario)


def test_what_is_removed_is_not_told() -> None:
    """Nobody waits for a message to be gone."""

    async def scenario(world: World) -> None:
        await world.do(c.Complete(*await world.leased()))
        assert world.peers.told == []

    play(scenario)


def test_a_refusal_is_not_told() -> None:
    """Nothing has happened."""

    async def scenario(world: World) -> None:
        with pytest.raises(QueueNotFound):
            await world.do(put(queue="none"))
        assert world.peers.told == []

    play(scenario)


def test_the_poison_queue_is_told_of() -> None:
    """Whoever waits for messages that failed hears of one that is buried."""

    async def scenario(world: World) -> None:
        policy = QueueSettings(failure_policy=FailurePolicy(max_failures=5))
        await world.do(c.SetQueueSettings("a", "queue", policy))
        acts = await world.leased()
        await world.do(c.Release(*acts, Outcome.BURIED))
        assert POISON in world.peers.told[-1]

    play(scenario)


def test_a_batch_that_knows_more_than_the_server_is_told_of_later() -> None:
    """Where others wait is found out first; nothing is lost and nothing is told twice."""

    async def scenario(world: World) -> None:
        peers = world.peers
        peers.others_wait_for()
        peers.seen += 1  # somebody waits by now, and the batch has seen that
        await world.do(put())
        await world.do(put())
        assert (peers.looks, peers.told) == (2, [])
        peers.waited_for = peers.seen - 1, ()
        peers.renew()  # of a look that was too early
        assert (peers.looks, peers.told) == (3, [])
        peers.waited_for = peers.seen, (QUEUE,)
        peers.renew()
        assert peers.told == [{QUEUE}]

    play(scenario)


def test_others_learn_who_waits_here() -> None:
    """The first that waits for a queue is made known, and the last that leaves."""

    async def scenario(world: World) -> None:
        waiting = [asyncio.create_task(world.engine.receive(receive(), 60)) for _ in range(3)]
        await world.engine.settle()
        assert world.peers.waits == [("begin", QUEUE)]
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await world.engine.settle()
        assert world.peers.waits == [("begin", QUEUE), ("end", QUEUE)]

    play(scenario)


def test_a_job_of_another_server_is_called_for() -> None:
    """Who does not lead calls the leader and does not carry the job on; who begins to lead does."""

    async def scenario(world: World) -> None:
        world.peers.is_leader = False
        await world.do(put())
        plan = o.JobPlan(kind=o.JobKind.PURGE)
        await world.do(o.StartJob("a", "queue", "job", plan))
        await world.engine.settle()
        assert world.peers.calls == 1
        job = await world.do(o.GetJob("a", "job"))
        assert job.state is o.JobState.RUNNING
        world.peers.is_leader = True
        world.peers.work()
        while job.state is o.JobState.RUNNING:
            job = await world.do(o.GetJob("a", "job"))
        assert job.moved == 1

    play(scenario)


def test_a_job_is_let_go_by_who_leads_no_more() -> None:
    """It stays as it is for the next leader."""

    async def scenario(world: World) -> None:
        for _ in range(300):
            await world.do(put())
        plan = o.JobPlan(kind=o.JobKind.PURGE, rate_per_s=1000.0)
        await world.do(o.StartJob("a", "queue", "job", plan))
        waiting = asyncio.create_task(world.engine.jobs.wait("a", "job", 60))
        await asyncio.sleep(0)
        world.peers.is_leader = False
        assert (await waiting).state is o.JobState.RUNNING

    play(scenario)


def test_all_end_with_the_engine() -> None:
    """The link is let go of once everything is answered."""

    async def scenario(world: World) -> None:
        assert world.engine.health().details["leads"] == 1
        await world.engine.stop()
        assert world.peers.is_stopped

    play(scenario)
