"""Where a batch is committed, and what its policy says of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import StoreFull
from leasehold.engine.commit_policy import BatchResult, CommitPolicy, policy_of
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S
from tests.unit.engine.support import put


class SlowDisk(MemoryStore):
    """A local store whose commits take some time by a clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.commit_s = 0.0
        self.committed_on = ""
        self.errors: list[BaseException] = []
        self.executed: list[int] = []
        self.now_ms: list[int] = []

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See ``Store``."""
        self.executed.append(len(batch))
        self.now_ms.append(now_ms)
        return super().execute(batch, now_ms=now_ms)

    def commit(self) -> bool:
        """See ``Store``."""
        self.committed_on = threading.current_thread().name
        self.clock.advance(s=self.commit_s)
        if self.errors:
            raise self.errors.pop(0)
        return True


class Applied:
    """A policy, and what it told last."""

    def __init__(self, inline_below_s: float) -> None:
        self.store = SlowDisk(ManualClock())
        self._told: asyncio.Future[BatchResult]
        self.policy: CommitPolicy = policy_of(
            self.store, self.store.clock, self._tell, inline_below_s
        )

    def _tell(self, told: BatchResult) -> None:
        self._told.set_result(told)

    async def apply(self, *commands: AnyCommand) -> BatchResult:
        """Give it a batch."""
        self._told = asyncio.get_running_loop().create_future()
        self.policy.apply(commands, self.store.clock.now_ms())
        return await asyncio.wait_for(self._told, PATIENCE_S)


def run(
    scenario: Callable[[Applied], Coroutine[Any, Any, None]], inline_below_s: float = 0.001
) -> None:
    """Run a scenario with a policy, in a loop of its own."""

    async def around() -> None:
        applied = Applied(inline_below_s)
        await applied.apply(c.CreateQueue("a", "queue", {}))
        await scenario(applied)
        applied.policy.stop()

    asyncio.run(around())


def test_commits_move_to_the_thread_when_the_disk_is_slow() -> None:
    """What is typical follows the disk, both ways, and one slow commit decides nothing."""

    async def scenario(applied: Applied) -> None:
        here = threading.current_thread().name
        for commit_s, count, expected in (
            (0.0001, 40, here),
            (0.003, 1, here),
            (0.02, 40, "commit"),
            (0.0001, 60, here),
        ):
            applied.store.commit_s = commit_s
            for _ in range(count + 1):
                await applied.apply(put())
            assert applied.store.committed_on == expected

    run(scenario)


def test_a_full_disk_has_a_batch_played_once_more() -> None:
    """In the loop or on the thread, with the time of the first play."""

    async def scenario(applied: Applied) -> None:
        applied.store.executed.clear()
        applied.store.now_ms.clear()
        applied.store.commit_s = 0.1
        applied.store.errors = [StoreFull()]
        told = await applied.apply(put(), put())
        assert told.error is None
        assert applied.store.executed == [2, 2]
        assert len(set(applied.store.now_ms)) == 1
        applied.store.errors = [StoreFull(), StoreFull()]
        assert isinstance((await applied.apply(put())).error, StoreFull)

    run(scenario, 1.0)
    run(scenario, 0.0)
