"""A place for large bodies that is not the one which the store knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from leasehold.bodies import open_bodies
from leasehold.bodies.base import BodyStore
from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import StoreFull, Unavailable
from leasehold.domain.filters import EVERYTHING
from leasehold.domain.model import Lease
from leasehold.domain.queue_settings import FailurePolicy, QueueSettings
from leasehold.engine import Engine
from leasehold.engine import large_bodies as large_bodies_module
from leasehold.engine.large_bodies import LargeBodies
from leasehold.engine.maintenance import MaintenancePlan
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.unit.bodies.faulty import FaultyBodies
from tests.unit.engine.support import put

LARGE = b"large" * 100
NEVER = MaintenancePlan(interval_s=3_600)


class Server:
    """An engine whose large bodies are in a place."""

    def __init__(self, store: Store, place: Path | BodyStore) -> None:
        self.clock = ManualClock()
        kept = open_bodies(str(place)) if isinstance(place, Path) else place
        self.bodies = LargeBodies(kept, self.clock, inline_bytes=100)
        self.engine = Engine(store, self.clock, plan=NEVER, inline_below_s=1.0, bodies=self.bodies)

    async def do(self, command: AnyCommand) -> Any:
        """Carry a command out."""
        return await self.engine.perform(command)

    async def begin(self, *, look: bool = True) -> None:
        """Start, with a queue in which one failure is one too many."""
        await self.engine.start()
        await self.bodies.stop()  # the tests look by hand
        if look:
            await self.bodies.look()
        settings = QueueSettings(max_body_bytes=1_000, failure_policy=FailurePolicy(max_failures=1))
        await self.do(c.CreateQueue("a", "queue", {}, settings))

    async def receive(self) -> tuple[Lease, ...]:
        """Receive all."""
        leases = await self.do(c.Receive("a", "queue", 10, 30))
        assert isinstance(leases, tuple)
        return leases

    async def look(self) -> bool:
        """Do what each round of the collection does first."""
        return await self.bodies.look()

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        return self.engine.stores()[0].is_ready

    async def put(self, count: int) -> list[Lease]:
        """Put large messages."""
        return [await self.do(put(LARGE)) for _ in range(count)]


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario; nothing here waits long."""
    asyncio.run(scenario())  # type: ignore[arg-type]


async def counted(server: Server) -> tuple[int, int]:
    """Return how many messages are in the queue, and how many failures they have together."""
    page = await server.do(o.Inspect("a", "queue", EVERYTHING, "", 100, with_bodies=False))
    return len(page.messages), sum(seen.message.detail.failures for seen in page.messages)


@pytest.mark.parametrize("how", ["away", "empty", "another"])
def test_a_folder_that_goes_away_costs_no_message_a_failure(tmp_path: Path, how: str) -> None:
    """Receives and puts are refused, the server is not ready, and all is well when it is back."""

    async def scenario() -> None:
        folder, elsewhere = tmp_path / "bodies", tmp_path / "elsewhere"
        server = Server(MemoryStore(), folder)
        await server.begin()
        await server.put(10)
        assert server.is_ready
        folder.rename(elsewhere)
        if how != "away":
            folder.mkdir()
        if how == "another":
            (folder / "mark").write_text("of another store")
        with capture_logs() as logs:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await server.receive()
                server.clock.advance(s=60)
                with pytest.raises(Unavailable):
                    await server.put(1)
            await server.look()
        assert [each["event"] for each in logs] == ["body.place_unknown"], logs
        assert not server.is_ready
        assert await counted(server) == (10, 0)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if folder.exists():
            folder.rmdir()
        elsewhere.rename(folder)
        await server.look()
        assert server.is_ready
        server.clock.advance(s=60)
        bodies = [lease.message.body for _ in range(10) for lease in await server.receive()]
        assert bodies == [LARGE] * 10
        assert await counted(server) == (10, 0)
        await server.engine.stop()

    play(scenario)


def test_a_body_that_is_missing_in_the_right_place_is_missing(tmp_path: Path) -> None:
    """Control: its message fails, as before."""

    async def scenario() -> None:
        server = Server(MemoryStore(), tmp_path / "bodies")
        await server.begin()
        await server.put(1)
        for path in (tmp_path / "bodies").rglob("*"):
            if len(path.name) == 32:
                path.unlink()
        assert await server.receive() == ()
        assert server.is_ready
        await server.engine.stop()

    play(scenario)


@pytest.mark.parametrize("how", ["empty", "another's", "its own"])
def test_a_place_is_looked_at_when_a_server_starts(tmp_path: Path, how: str) -> None:
    """It is right if its mark is, or if it has a body of this store, as where it was copied to."""

    async def scenario() -> None:
        store = MemoryStore()
        first = Server(store, tmp_path / "bodies")
        await first.begin()
        await first.put(3)
        await first.engine.stop()
        place = tmp_path / "place"
        if how == "its own":
            (tmp_path / "bodies").rename(place)
            (place / "mark").unlink()
        elif how == "another's":
            other = Server(MemoryStore(), place)
            await other.begin()
            await other.put(2)
            await other.engine.stop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(large_bodies_module, "ORPHAN_AGE_MS", -(10**13))  # all are old
            second = Server(store, place)
            await second.begin()
            assert second.is_ready is (how == "its own")
            if how == "its own":
                assert sum([len(await second.receive()) for _ in range(3)]) == 3
            else:
                for work in (second.receive, second.bodies.search):
                    with pytest.raises(Unavailable):
                        await work()
            await second.engine.stop()
        left = [path for path in place.rglob("*") if len(path.name) == 32]
        assert len(left) == {"empty": 0, "another's": 2, "its own": 3}[how]

    play(scenario)


def test_an_operator_can_say_that_all_bodies_are_lost(tmp_path: Path) -> None:
    """With an empty mark in the place; messages whose bodies are gone then fail."""

    async def scenario() -> None:
        store, place = MemoryStore(), tmp_path / "new"
        first = Server(store, tmp_path / "bodies")
        await first.begin()
        await first.put(1)
        await first.engine.stop()
        second = Server(store, place)
        await second.begin()
        assert not second.is_ready
        (place / "mark").touch()
        await second.look()
        assert second.is_ready
        assert await second.receive() == ()
        assert (place / "mark").read_text() != ""
        await second.engine.stop()

    play(scenario)


def test_a_store_that_names_no_body_takes_any_place(tmp_path: Path) -> None:
    """Nothing can be missing."""

    async def scenario() -> None:
        store = MemoryStore()
        for name in ("one", "two"):
            server = Server(store, tmp_path / name)
            await server.begin()
            assert server.is_ready
            for lease in await server.put(1):
                named = ("a", "queue", lease.message.message_id, lease.receipt)
                await server.do(c.Complete(*named))
            await server.engine.stop()

    play(scenario)


def test_a_place_of_another_store_is_not_taken_by_one_without_bodies(tmp_path: Path) -> None:
    """Or its search for orphans would remove what it does not know of."""

    async def scenario() -> None:
        other = Server(MemoryStore(), tmp_path / "others")
        await other.begin()
        await other.put(2)
        await other.engine.stop()
        store = MemoryStore()
        first = Server(store, tmp_path / "bodies")
        await first.begin()
        await first.engine.stop()
        second = Server(store, tmp_path / "others")
        await second.begin()
        assert not second.is_ready
        await second.engine.stop()

    play(scenario)


def test_what_was_not_mounted_at_a_start_is_another_place_afterwards(tmp_path: Path) -> None:
    """No body was named, so the empty folder was taken; those written there are not lost unseen."""

    async def scenario() -> None:
        folder, elsewhere, store = tmp_path / "bodies", tmp_path / "disk", MemoryStore()
        first = Server(store, folder)
        await first.begin()
        await first.engine.stop()
        folder.rename(elsewhere)
        second = Server(store, folder)
        await second.begin()
        await second.put(1)
        folder.rename(tmp_path / "under it")
        elsewhere.rename(folder)
        with pytest.raises(Unavailable):
            await second.receive()
        await second.look()
        assert not second.is_ready
        assert await counted(second) == (1, 0)
        await second.engine.stop()

    play(scenario)


def test_bodies_are_read_though_there_is_no_room_for_a_mark() -> None:
    """Consumers must be able to drain a full disk, also at the first start of this version."""

    async def scenario() -> None:
        kept, store = FaultyBodies(ManualClock()), MemoryStore()
        first = Server(store, kept)
        await first.begin()
        await first.put(1)
        await first.engine.stop()
        kept.mark, kept.mark_error = None, StoreFull()
        second = Server(store, kept)
        await second.begin()
        assert await second.look()
        assert len(await second.receive()) == 1
        assert kept.mark is None
        kept.mark_error = None
        await second.look()
        assert kept.mark is not None
        await second.engine.stop()

    play(scenario)


def test_a_start_does_not_wait_for_an_object_store() -> None:
    """One that accepts connections and never answers took three minutes."""

    async def scenario() -> None:
        kept = FaultyBodies(ManualClock())
        kept.mark_gate = asyncio.Event()
        server = Server(MemoryStore(), kept)
        await server.begin(look=False)
        with pytest.raises(Unavailable):
            await server.put(1)
        looking = asyncio.ensure_future(server.look())
        kept.mark_gate.set()
        assert await looking
        await server.put(1)
        await server.engine.stop()

    play(scenario)


def test_a_place_in_memory_has_no_mark(tmp_path: Path) -> None:
    """After a restart its bodies are lost, and it says so of each message."""

    async def scenario() -> None:
        kept, store = FaultyBodies(ManualClock()), MemoryStore()
        kept.place = "memory:///"
        first = Server(store, kept)
        await first.begin()
        await first.put(1)
        await first.engine.stop()
        kept.kept.clear()
        second = Server(store, kept)
        await second.begin()
        assert second.is_ready
        assert kept.mark is None
        assert await second.receive() == ()
        await second.engine.stop()

    play(scenario)


def test_servers_that_start_together_agree(tmp_path: Path) -> None:
    """Each may have written a mark of its own; the next look takes that of the database."""

    async def scenario() -> None:
        store = MemoryStore()
        server = Server(store, tmp_path / "bodies")
        await server.begin()
        await server.put(1)
        (tmp_path / "bodies" / "mark").write_text("of the other")
        await server.do(c.MarkBodyPlace("of the other"))
        await server.look()
        assert server.is_ready
        assert len(await server.receive()) == 1
        await server.engine.stop()

    play(scenario)


def test_an_object_store_without_its_bucket_is_another_place() -> None:
    """Such a store says that there is no body, and that there is no mark either."""

    async def scenario() -> None:
        clock = ManualClock()
        kept = FaultyBodies(clock)
        server = Server(MemoryStore(), kept)
        await server.begin()
        await server.put(2)
        bodies, kept.kept, mark, kept.mark = kept.kept, {}, kept.mark, None
        with pytest.raises(Unavailable):
            await server.receive()
        assert not server.is_ready
        assert await counted(server) == (2, 0)
        kept.kept, kept.mark = bodies, mark
        await server.look()
        server.clock.advance(s=60)
        assert sum([len(await server.receive()) for _ in range(2)]) == 2
        await server.engine.stop()

    play(scenario)


def test_a_place_that_cannot_be_asked_at_the_start_is_asked_again() -> None:
    """Until then nothing is read. The server is ready, as when an object store is down later."""

    async def scenario() -> None:
        kept = FaultyBodies(ManualClock())
        store = MemoryStore()
        first = Server(store, kept)
        await first.begin()
        await first.put(1)
        await first.engine.stop()
        mark, kept.mark, kept.get_error = kept.mark, "unread", Unavailable()
        second = Server(store, kept)
        await second.begin()
        assert second.is_ready
        with pytest.raises(Unavailable):
            await second.receive()
        kept.mark, kept.get_error = mark, None
        await second.look()
        second.clock.advance(s=60)
        assert len(await second.receive()) == 1
        await second.engine.stop()

    play(scenario)
