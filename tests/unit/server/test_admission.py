"""How many commands may wait, and which are let in last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.claims import ExtendClaim, OpenClaim, Opened, SettleClaims
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import Overloaded, QueueNotFound
from leasehold.domain.model import Lease
from leasehold.domain.sessions import EndSession, Heartbeat
from leasehold.domain.transactions import CommitTogether
from leasehold.engine.long_poll import Gone
from leasehold.http.admission import Admission

GET = c.Receive("account", "queue", 1, 30)
DELETE = c.Complete("account", "queue", "id", "receipt")
PUT = c.Put("account", "queue", b"x", 0, None, b"0123456789")
UPDATE = c.Renew("account", "queue", "id", "receipt", 30)


class Engine:
    """Holds every command until the test lets go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def perform(self, command: AnyCommand) -> Any:
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
        waiting: list[asyncio.Task[object]]
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


class LongEngine:
    """Holds every receive until the test lets go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked: list[tuple[c.Receive, float, object]] = []

    async def perform(self, command: AnyCommand) -> Any:
        """See ``Engine.perform``."""
        return () if command is GET else c.DONE

    async def receive(
        self, command: c.Receive, wait_s: float, gone: object = None
    ) -> tuple[Lease, ...]:
        """See ``Engine.receive``."""
        self.asked.append((command, wait_s, gone))
        await self.go.wait()
        return ()


def test_those_who_wait_for_messages_take_no_place() -> None:
    """Commands get through while as many receives wait as may, and one more is turned away."""

    async def scenario() -> None:
        engine = LongEngine()
        admission = Admission(engine.perform, limit=1, receive=engine.receive, max_waiters=3)
        waiting = [asyncio.create_task(admission.receive(GET, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        assert (admission.pending, admission.waiting) == (0, 3)
        assert await admission.perform(DELETE) == c.DONE
        with pytest.raises(Overloaded):
            await admission.receive(GET, 60)
        assert await admission.receive(GET, 0) == ()
        waiting.pop().cancel()
        await asyncio.sleep(0)
        assert (admission.refused, admission.waiting) == (1, 2)
        engine.go.set()
        assert await asyncio.gather(*waiting) == [(), ()]
        assert admission.waiting == 0

    asyncio.run(scenario())


def test_an_overloaded_server_begins_no_waits() -> None:
    """A receive that may wait has to be let in like any other command."""

    async def scenario() -> None:
        engine = Engine()
        admission = Admission(engine.perform, limit=1, receive=LongEngine().receive)
        pending = asyncio.create_task(admission.perform(DELETE))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await admission.receive(GET, 60)
        engine.go.set()
        await pending

    asyncio.run(scenario())


def test_the_engine_is_told_who_watches() -> None:
    """What tells that the client has gone is handed on; without waiting nothing is."""

    async def scenario() -> None:
        engine = LongEngine()
        engine.go.set()
        admission = Admission(engine.perform, limit=1, receive=engine.receive)
        gone = asyncio.Event().wait
        await admission.receive(GET, 0, gone)
        await admission.receive(GET, 20, gone)
        assert engine.asked == [(GET, 20, gone)]
        assert await Admission(engine.perform, limit=1).receive(GET, 20, gone) == ()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "command",
    [
        Heartbeat("account", "session"),
        EndSession("account", "session"),
        ExtendClaim("account", "queue", "stream", 1, 1, 30),
        SettleClaims("account", "queue", "stream", 1, 1),
        CommitTogether("account", (DELETE,)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_heals_an_overload_is_let_in_longer(command: AnyCommand) -> None:
    """Without heartbeats an overload would end the leases of all workers."""

    async def scenario() -> None:
        engine = Engine()
        admission = Admission(engine.perform, limit=4)
        waiting = [asyncio.create_task(admission.perform(DELETE)) for _ in range(4)]
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(admission.perform(command)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await admission.perform(CommitTogether("account", (PUT,)))
        engine.go.set()
        assert await asyncio.gather(*waiting) == [c.DONE] * 5

    asyncio.run(scenario())


def test_claims_wait_like_receives() -> None:
    """They do not keep the place of a command, and there is a limit to them."""

    async def scenario() -> None:
        go = asyncio.Event()
        asked: list[tuple[float, object]] = []

        async def open_claim(
            command: OpenClaim, wait_s: float = 0, gone: Gone | None = None
        ) -> Opened:
            asked.append((wait_s, gone))
            await go.wait()
            return Opened(None)

        admission = Admission(Engine().perform, limit=1, open_claim=open_claim, max_waiters=2)
        command = OpenClaim("account", "queue", "stream", 1, 1, 10, 30)
        waiting = [asyncio.create_task(admission.open_claim(command, 20, None)) for _ in range(2)]
        await asyncio.sleep(0)
        assert (admission.waiting, admission.pending) == (2, 0)
        with pytest.raises(Overloaded):
            await admission.open_claim(command)
        go.set()
        assert await asyncio.gather(*waiting) == [Opened(None)] * 2
        assert asked == [(20, None)] * 2
        assert admission.waiting == 0

    asyncio.run(scenario())
