"""The engine: group commit, failure, a full disk, stopping, maintenance."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Self

import pytest

from leasehold.domain import commands as c
from leasehold.domain.admin import CountMessages, NextDue
from leasehold.domain.claims import OpenClaim, SettleClaims
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import (
    LeaseholdError,
    QueueNotFound,
    Stopping,
    StoreFailed,
    StoreFull,
)
from leasehold.domain.model import Outcome
from leasehold.domain.sessions import Heartbeat, LoseSessions
from leasehold.domain.transactions import Stage
from leasehold.engine import Engine, MaintenancePlan
from leasehold.engine.stats import QueueActivity
from leasehold.stores.base import StoreHealth
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S


class WatchedStore(MemoryStore):
    """A memory store that records its batches and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.execute_errors: list[Exception] = []
        self.commit_errors: list[Exception] = []
        self.committed_on: set[str] = set()
        self.full = False
        self.relieved = 0
        self.relieved_thrice = asyncio.Event()
        self.relieve_error: Exception | None = None
        self.closed = False
        self.seen_ms = 0
        self.noted: list[AnyCommand] = []

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        self.batches.append([type(command).__name__ for command in batch])
        self.noted += [command for command in batch if isinstance(command, c.NoteTime)]
        if self.execute_errors:
            raise self.execute_errors.pop(0)
        if self.full:
            return [StoreFull() if isinstance(command, c.Put) else c.DONE for command in batch]
        return super().execute(batch, now_ms=now_ms)

    def commit(self) -> bool:
        self.committed_on.add(threading.current_thread().name)
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        return True

    def health(self) -> StoreHealth:
        return StoreHealth(kind="watched", durable=True, writable=not self.full, details={})

    def last_seen_ms(self) -> int:
        return self.seen_ms

    def relieve(self) -> bool:
        self.relieved += 1
        if self.relieved == 3:
            self.relieved_thrice.set()
        if self.relieve_error is not None:
            raise self.relieve_error
        self.full = False
        return True

    def close(self) -> None:
        self.closed = True


def put(body: bytes = b"x", ttl_s: int | None = None) -> c.Put:
    return c.Put("a", "queue", body, 0, ttl_s, b"0123456789")


RECEIVE = c.Receive("a", "queue", 32, 30)


class Running:
    """An engine over a watched store with one queue."""

    inline_below_s = 1.0

    def __init__(self, plan: MaintenancePlan | None = None) -> None:
        self.store = WatchedStore()
        self.clock = ManualClock()
        self.engine = Engine(self.store, self.clock, plan=plan, inline_below_s=self.inline_below_s)

    async def __aenter__(self) -> Self:
        await self.engine.start()
        await self.engine.perform(c.CreateQueue("a", "queue", {}))
        self.store.batches.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.store.closed:
            await self.engine.stop()

    async def all(self, *commands: AnyCommand) -> list[Any]:
        return await asyncio.gather(
            *(self.engine.perform(command) for command in commands), return_exceptions=True
        )


@pytest.fixture(params=["on-thread", "in-loop", "remote"])
def where_commits_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commits run in each place in turn, and the store be here or elsewhere."""
    monkeypatch.setattr(Running, "inline_below_s", 1.0 if request.param == "in-loop" else 0.0)
    if request.param == "remote":
        monkeypatch.setattr(WatchedStore, "try_execute", None, raising=False)
        monkeypatch.setattr(WatchedStore, "try_commit", None, raising=False)


WHEREVER_COMMITS_RUN = pytest.mark.usefixtures("where_commits_run")


@WHEREVER_COMMITS_RUN
def test_concurrent_commands_share_a_batch() -> None:
    """What is asked in one turn of the loop is one transaction, alike commands side by side."""

    async def scenario() -> None:
        async with Running() as running:
            results = await running.all(RECEIVE, put(), c.GetQueue("a", "queue"), RECEIVE, put())
            assert running.store.batches == [["GetQueue", "Put", "Put", "Receive", "Receive"]]
            assert [len(results[0]), len(results[3])] == [2, 0]
            assert running.engine.stats.batches == 2
            assert running.engine.stats.commands == 6

    asyncio.run(scenario())


def test_refusals_are_raised_to_their_own_caller_only() -> None:
    """One refused command of a batch does not disturb the others."""

    async def scenario() -> None:
        async with Running() as running:
            refused, leased = await running.all(c.Peek("a", "missing", 1), put())
            assert isinstance(refused, QueueNotFound)
            assert leased.message.body == b"x"

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
def test_commits_run_where_they_cost_least() -> None:
    """Quick ones in the loop, others on the thread that is there for them."""

    async def scenario() -> None:
        async with Running() as running:
            await running.all(put())
            in_loop = running.inline_below_s > 0
            expected = threading.current_thread().name if in_loop else "commit"
            assert running.store.committed_on == {expected}

    asyncio.run(scenario())


def test_huge_bursts_are_cut_into_bounded_batches() -> None:
    """No transaction grows without limit, and nobody is forgotten."""

    async def scenario() -> None:
        async with Running() as running:
            results = await running.all(*(put() for _ in range(1100)))
            assert len(results) == 1100
            assert [len(batch) for batch in running.store.batches] == [512, 512, 76]

    asyncio.run(scenario())


def test_commands_that_stand_for_many_count_for_more() -> None:
    """A transaction is bounded in messages, not in requests; one huge request still passes."""

    async def scenario() -> None:
        async with Running() as running:
            many = c.Batch(tuple(put() for _ in range(300)))
            await running.all(many, put(), many, c.Batch((put(),) * 2000))
            assert running.store.batches == [["Put", "Batch"], ["Batch"], ["Batch"]]
            running.store.batches.clear()
            big = c.Receive("a", "queue", 800, 30)
            await running.all(*(big for _ in range(11)))
            assert [len(batch) for batch in running.store.batches] == [5, 5, 1]

    asyncio.run(scenario())


def test_what_finishes_work_goes_first() -> None:
    """Within a batch, work is put and finished before new work is taken."""

    async def scenario() -> None:
        async with Running() as running:
            acting = ("a", "queue", "", "")
            await running.all(
                NextDue("a", "queue"),
                RECEIVE,
                c.Batch(()),
                c.Release(*acting),
                LoseSessions(),
                OpenClaim("a", "queue", "s", 1, 1, 1, 30),
                Heartbeat("a", "none"),
                SettleClaims("a", "queue", "s", 1, 1),
                c.Renew(*acting, 1),
                c.Complete(*acting),
                Stage("a", "t", "p", 0, (put(),)),
                put(),
                c.GetQueue("a", "queue"),
                RECEIVE,
            )
            expected = (
                "GetQueue Put Stage Complete Renew Release Batch Heartbeat SettleClaims "
                "LoseSessions Receive OpenClaim Receive NextDue"
            )
            assert running.store.batches == [expected.split()]


@WHEREVER_COMMITS_RUN
def test_a_caller_that_went_away_does_not_disturb_the_rest() -> None:
    """A cancelled request is carried out like any other; its answer is dropped."""

    async def scenario() -> None:
        async with Running() as running:
            gone = asyncio.ensure_future(running.engine.perform(put()))
            await asyncio.sleep(0)
            gone.cancel()
            await running.engine.perform(put())
            assert len(await running.engine.perform(RECEIVE)) == 2

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
@pytest.mark.parametrize("where", ["execute_errors", "commit_errors"])
def test_a_failed_store_is_never_used_again(where: str) -> None:
    """After a failed write everybody is told, the signal is set, and nothing more is tried."""

    async def scenario() -> None:
        async with Running() as running:
            getattr(running.store, where).append(StoreFailed())
            first, second = await running.all(put(), put())
            assert isinstance(first, StoreFailed)
            assert isinstance(second, StoreFailed)
            assert running.engine.failed.is_set()
            batches = len(running.store.batches)
            with pytest.raises(StoreFailed):
                await running.engine.perform(RECEIVE)
            assert len(running.store.batches) == batches

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
def test_unforeseen_error_of_a_commit_is_a_failed_store() -> None:
    """Whatever a commit raises, the callers hear of it."""

    async def scenario() -> None:
        async with Running() as running:
            running.store.commit_errors.append(ValueError("surprise"))
            (result,) = await running.all(put())
            assert isinstance(result, StoreFailed)
            assert isinstance(result.__cause__, ValueError)
            assert running.engine.failed.is_set()

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
@pytest.mark.parametrize("where", ["execute_errors", "commit_errors"])
def test_on_a_full_disk_the_batch_is_played_once_more(where: str) -> None:
    """Puts are refused and completes go through, in the same batch, and the store lives on."""

    async def scenario() -> None:
        async with Running() as running:
            getattr(running.store, where).append(StoreFull())
            running.store.full = True
            complete = c.Complete("a", "queue", "", "")
            refused, done = await running.all(put(), complete)
            assert isinstance(refused, StoreFull)
            assert done == c.DONE
            assert not running.engine.failed.is_set()
            await running.engine.sweep()
            assert running.store.relieved == 1
            assert (await running.engine.perform(put())).message.body == b"x"  # type: ignore[union-attr]

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
def test_a_disk_full_twice_refuses_the_batch_and_lives_on() -> None:
    """Even when the reserve does not help, the store is not given up."""

    async def scenario() -> None:
        async with Running() as running:
            running.store.commit_errors += [StoreFull(), StoreFull()]
            (refused,) = await running.all(put())
            assert isinstance(refused, StoreFull)
            assert (await running.engine.perform(RECEIVE)) is not None
            assert not running.engine.failed.is_set()

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
def test_stop_finishes_what_was_taken_and_refuses_what_is_new() -> None:
    """Nobody who was let in is left without an answer; the store is closed at the end."""

    async def scenario() -> None:
        async with Running() as running:
            taken = [asyncio.ensure_future(running.engine.perform(put())) for _ in range(3)]
            await asyncio.sleep(0)
            await running.engine.stop()
            assert [type(future.result()).__name__ for future in taken] == ["Lease"] * 3
            assert running.store.closed
            with pytest.raises(Stopping):
                await running.engine.perform(put())

    asyncio.run(scenario())


def test_sweep_retires_then_removes_after_the_grace() -> None:
    """Expired messages stop counting at once and leave the disk a grace later."""

    async def scenario() -> None:
        async with Running(MaintenancePlan(interval_s=3600, expiry_grace_s=100)) as running:
            await running.all(*(put(ttl_s=10) for _ in range(3)))
            running.clock.advance(s=10)
            await running.engine.sweep()
            info = await running.engine.perform(c.GetQueue("a", "queue"))
            assert info.message_count == 0
            counts = await running.engine.perform(CountMessages("a", "queue"))
            assert (counts.total, counts.expired) == (0, 3)
            running.clock.advance(s=101)
            await running.engine.sweep()
            counts = await running.engine.perform(CountMessages("a", "queue"))
            assert counts.expired == 0

    asyncio.run(scenario())


def test_activity_says_who_did_what_when() -> None:
    """Times, the last receiver and counters of a queue, with those inside of batches."""

    async def scenario() -> None:
        async with Running() as running:
            clock, start_ms = running.clock, running.clock.now_ms()
            await running.all(c.Batch((put(), put(), put(), put())))
            clock.advance(s=1)
            receive = c.Receive("a", "queue", 4, 30, holder="worker-1")
            (leases,) = await running.all(receive)
            acts = [("a", "queue", each.message.message_id, each.receipt) for each in leases]
            clock.advance(s=1)
            await running.all(
                c.Batch((c.Complete(*acts[0]), c.Complete(*acts[0]))), c.Release(*acts[1])
            )
            buried = c.Release(*acts[2], outcome=Outcome.BURIED)
            await running.all(buried, c.Complete(*acts[1]), c.Batch((put(),), atomic=True))
            clock.advance(s=1)
            await running.engine.receive(c.Receive("a", "queue", 9, 30), 0)
            assert running.engine.activity("a", "queue") == QueueActivity(
                since_ms=start_ms,
                last_receive_ms=start_ms + 3000,
                last_receiver=None,
                last_send_ms=start_ms + 2000,
                last_complete_ms=start_ms + 2000,
                sent=5,
                received=6,
                redelivered=1,
                completed=1,
                released=2,
                rejected_receipts=1,
                poisoned=1,
            )
            assert running.engine.activity("a", "missing").last_send_ms is None

    asyncio.run(scenario())


def test_counters_are_kept_for_queues_that_exist_only() -> None:
    """Asking for missing queues and deleting queues leaves nothing behind."""

    async def scenario() -> None:
        async with Running() as running:
            await running.all(c.Receive("a", "missing", 1, 30), put())
            assert list(running.engine.stats.queues) == [("a", "queue")]
            await running.engine.perform(c.DeleteQueue("a", "queue"))
            assert not running.engine.stats.queues

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
@pytest.mark.parametrize("where", ["execute_errors", "relieve"])
def test_an_unforeseen_error_fails_its_own_batch_only(where: str) -> None:
    """Nobody is left without an answer, and the engine goes on."""

    async def scenario() -> None:
        async with Running() as running:
            if where == "relieve":
                running.store.full = True
                running.store.relieve_error = OSError("no file handles")
                with pytest.raises(OSError, match="no file handles"):
                    await running.engine.sweep()
                running.store.full = False
            else:
                running.store.execute_errors.append(ValueError("surprise"))
                first, second = await running.all(put(), put())
                assert type(first) is type(second) is LeaseholdError
            assert not running.engine.failed.is_set()
            assert (await running.all(put()))[0].message.body == b"x"

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
def test_a_caller_that_went_away_does_not_hide_a_failed_store() -> None:
    """The engine can be stopped after a failure, whoever has stopped waiting."""

    async def scenario() -> None:
        async with Running() as running:
            running.store.commit_errors.append(StoreFailed())
            tasks = [asyncio.ensure_future(running.engine.perform(put())) for _ in range(600)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            async with asyncio.timeout(PATIENCE_S):
                await running.engine.failed.wait()
                await running.engine.stop()
            assert running.store.closed

    asyncio.run(scenario())


@WHEREVER_COMMITS_RUN
def test_a_broken_sweep_does_not_end_the_sweeping() -> None:
    """Whatever a sweep runs into, the next one is tried, and the engine stops cleanly."""

    async def scenario() -> None:
        async with Running(MaintenancePlan(interval_s=0)) as running:
            running.store.full = True
            running.store.relieve_error = OSError("no file handles")
            async with asyncio.timeout(PATIENCE_S):
                await running.store.relieved_thrice.wait()
                await running.engine.stop()
            assert running.store.closed

    asyncio.run(scenario())
