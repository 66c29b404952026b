"""How many commands may wait, and which are let in last."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import Overloaded, QueueNotFound
from leasehold.http.admission import Admission

GET = c.Receive("account", "queue", 1, 30)
DELETE = c.Complete("account", "queue", "id", "receipt")
UPDATE = c.Renew("account", "queue", "id", "receipt", 30)


class Engine:
    """Holds every command until the test lets go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def perform(self, command: c.Command) -> c.Result:
        """See ``Engine.perform``."""
        await self.go.wait()
        if command is GET:
            raise QueueNotFound
        return c.DONE


def test_overload_turns_new_work_away_and_lets_work_be_finished() -> None:
    """Above the limit only updates and deletes get in, and those up to a quarter more."""

    async def scenario() -> None:
        engine = Engine()
        admission = Admission(engine.perform, limit=4)
        waiting = [asyncio.create_task(admission.perform(DELETE)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await admission.perform(GET)
        waiting.append(asyncio.create_task(admission.perform(UPDATE)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await admission.perform(DELETE)
        assert (admission.pending, admission.refused) == (5, 2)
        engine.go.set()
        assert await asyncio.gather(*waiting) == [c.DONE] * 5
        assert admission.pending == 0

    asyncio.run(scenario())


def test_refused_command_makes_room() -> None:
    """What the engine refuses no longer waits."""

    async def scenario() -> None:
        engine = Engine()
        engine.go.set()
        admission = Admission(engine.perform, limit=1)
        for _ in range(3):
            with pytest.raises(QueueNotFound):
                await admission.perform(GET)
        assert admission.pending == 0

    asyncio.run(scenario())
