"""A server that nothing happens on leaves the disk alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as t
from leasehold.engine import Engine
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock
from tests.unit.engine.support import World, claim, play, put, receive


class CountingStore(SqliteStore):
    """Counts the commits that had something to write."""

    written = 0

    def commit(self) -> bool:
        """See ``Store``."""
        wrote = super().commit()
        self.written += wrote
        return wrote


def test_sweeps_that_find_nothing_write_nothing(tmp_path: Path) -> None:
    """Whatever there is of sessions, claims and staged sends; and neither do heartbeats."""

    async def scenario() -> None:
        clock, store = ManualClock(), CountingStore(tmp_path)
        engine = Engine(store, clock)
        await engine.start()
        perform = engine.perform
        await perform(c.CreateQueue("a", "queue", {}))
        session = await perform(s.OpenSession("a", "w", b"0123456789", 600, 600))
        assert isinstance(session, s.Session)
        for _ in range(9):
            await perform(put())
        await perform(c.Receive("a", "queue", 1, 3600, None, session.session_id))
        await perform(k.AttachStream("a", "queue", "s"))
        await perform(claim(limit=3, lease_s=600))
        await perform(claim(number=2, limit=3, lease_s=1))
        await perform(t.Stage("a", "job", "p", 0, (put(),)))
        await perform(t.Publish("a", "job"))
        await perform(t.Stage("a", "job/2", "p", 0, (put(),)))
        clock.advance(s=2)
        await engine.sweep()  # the short claim lapses
        await engine.totals()
        written = store.written
        for _ in range(30):
            clock.advance(s=1)
            await perform(s.Heartbeat("a", session.session_id, {"none": None}))
            await engine.sweep()
            await engine.totals()
        assert store.written == written
        await perform(receive())
        assert store.written == written + 1
        await engine.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("on_thread", [False, True])
def test_an_idle_moment_is_one_in_which_no_client_waits(on_thread: bool) -> None:
    """A client that asks again as soon as it is answered leaves none."""

    async def scenario(world: World) -> None:
        batcher = world.engine._batcher
        assert batcher is not None
        over: list[str] = []

        async def ask(times: int) -> None:
            for _ in range(times):
                await world.engine.perform(put())
            over.append("client")

        async def wait(most_s: float) -> None:
            await batcher.wait_for_idle(0.001, most_s)
            over.append("idle")

        await asyncio.gather(ask(50), wait(60))
        assert over == ["client", "idle"]
        await wait(60)
        over.clear()
        client = asyncio.create_task(ask(1_000_000))
        await asyncio.sleep(0)
        await wait(0.01)
        assert over == ["idle"]  # it has not waited for ever
        client.cancel()

    play(scenario, on_thread=on_thread)
