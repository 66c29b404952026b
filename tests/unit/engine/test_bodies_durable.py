"""Large bodies over the real stores: files of a folder, rows of SQLite, and a server that dies."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold.bodies import open_bodies
from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import transactions as t
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, StoreFull
from leasehold.domain.filters import EVERYTHING
from leasehold.domain.limits import DEFAULT_STAGING_TIMEOUT_S
from leasehold.domain.model import Lease, Outcome
from leasehold.domain.queue_settings import FailurePolicy, QueueSettings
from leasehold.engine import Engine
from leasehold.engine.large_bodies import ORPHAN_AGE_MS, LargeBodies
from leasehold.stores.sqlite.store import SqliteStore
from leasehold.testing import ManualClock
from tests.unit.engine.support import ENTROPY

INLINE = 300
"""Above what SQLite keeps in the row itself, so that all three places are in use."""
SIZES = (10, 280, 301, 2_000)
QUEUES = ("queue", "other")


class Server:
    """An engine over a folder, which can be killed and begun anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.engine: Engine
        self.bodies: LargeBodies

    async def begin(self) -> None:
        """Open the folder."""
        store = SqliteStore(self.folder)
        kept = open_bodies(str(self.folder / "bodies"))
        self.bodies = LargeBodies(kept, self.clock, inline_bytes=INLINE)
        self.engine = Engine(store, self.clock, inline_below_s=1.0, bodies=self.bodies)
        await self.engine.start()
        self.store = store

    async def do(self, command: AnyCommand) -> Any:
        """Carry a command out; a refusal is an answer as well."""
        try:
            return await self.engine.perform(command)
        except LeaseholdError as error:
            return error

    async def kill(self) -> None:
        """Drop everything without a word, and begin again."""
        for task in self.bodies._tasks:
            task.cancel()
        self.store._state.cursor.close(force=True)
        self.store._connection.close()
        batcher: Any = self.engine._batcher
        batcher._policy.stop()
        await self.begin()

    def files(self) -> dict[str, Path]:
        """Return all files of bodies by key."""
        paths = (self.folder / "bodies").rglob("*")
        return {path.name: path for path in paths if path.is_file()}

    async def known(self) -> set[str]:
        """Return the keys that rows refer to, of those there are files of."""
        found = await self.do(c.KnownBodies(tuple(self.files())))
        assert isinstance(found, c.BodyKeys)
        return set(found.keys)

    async def readable(self) -> list[bytes]:
        """Return the bodies of all messages; all of them must be there."""
        bodies = []
        for queue in QUEUES:
            page = await self.do(o.Inspect("a", queue, EVERYTHING, "", 1_000))
            for seen in page.messages:
                ref = seen.message.detail.body_ref
                assert ref is None or ref.problem is None, ref
                assert ref is None or len(seen.message.body) == ref.size_bytes
                bodies.append(seen.message.body)
        return bodies


def play(folder: Path, scenario: Callable[[Server], Awaitable[None]]) -> None:
    """Run a scenario over a new folder."""

    async def run() -> None:
        server = Server(folder)
        await server.begin()
        policy = FailurePolicy(max_failures=2, poison_queue="other")
        await server.do(c.CreateQueue("a", "queue", {}, QueueSettings(failure_policy=policy)))
        await server.do(c.CreateQueue("a", "other", {}))
        await scenario(server)
        await server.engine.stop()

    asyncio.run(run())


def put(body: bytes, queue: str = "queue") -> c.Put:
    """Return a put of a message that lives for a while."""
    return c.Put("a", queue, body, 0, 1_000, ENTROPY)


class Player:
    """Does one thing after the other, at random, and remembers what was acknowledged."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.dice = random.Random(seed)
        self.leases: list[tuple[str, Lease]] = []
        self.stream: k.Stream | None = None
        self.claim = 0
        self.staged = 0

    def body(self) -> bytes:
        """Return a body of one of the sizes."""
        return self.dice.randbytes(self.dice.choice(SIZES))

    def acts(self) -> tuple[str, str, str, str]:
        """Return what it takes to act on some message that was received."""
        if not self.leases:
            return "a", "queue", "none", "none"
        queue, lease = self.leases.pop(self.dice.randrange(len(self.leases)))
        return "a", queue, lease.message.message_id, lease.receipt

    async def step(self) -> None:
        """Do something."""
        await self.dice.choice(self.MOVES)(self)

    async def put(self) -> None:
        await self.server.do(put(self.body(), self.dice.choice(QUEUES)))

    async def put_many(self) -> None:
        puts = tuple(put(self.body()) for _ in range(4))
        await self.server.do(c.Batch(puts, atomic=self.dice.random() < 0.5))

    async def receive(self) -> None:
        queue = self.dice.choice(QUEUES)
        result = await self.server.do(c.Receive("a", queue, 3, 30))
        for lease in result:
            assert lease.message.body
        self.leases += [(queue, lease) for lease in result]

    async def renew(self) -> None:
        acts = self.acts()
        body = self.body() if self.dice.random() < 0.7 else None
        lease = await self.server.do(c.Renew(*acts, 30, body))
        if isinstance(lease, Lease):
            self.leases.append((acts[1], lease))

    async def complete(self) -> None:
        await self.server.do(c.Complete(*self.acts()))

    async def release(self) -> None:
        outcome = self.dice.choice((Outcome.RETURNED, Outcome.FAILED, Outcome.BURIED))
        await self.server.do(c.Release(*self.acts(), outcome))

    async def amend(self) -> None:
        acts = self.acts()
        await self.server.do(o.Amend(*acts[:3], body=self.body(), force=True))

    async def remove(self) -> None:
        await self.server.do(o.Remove(*self.acts()[:3], force=True))

    async def stage(self) -> None:
        name = f"t{self.staged}"
        self.staged += 1
        await self.server.do(t.Stage("a", name, "part", 0, (put(self.body()), put(self.body()))))
        if self.dice.random() < 0.5:
            await self.server.do(t.Publish("a", name))
        elif self.dice.random() < 0.5:
            await self.server.do(t.Discard("a", name))

    async def work_on_claim(self) -> None:
        stream = await self.server.do(k.AttachStream("a", "queue", "s"))
        number = stream.last_settled + 1
        named = ("a", "queue", "s")
        opened = await self.server.do(k.OpenClaim(*named, stream.token, number, 5, 60))
        if not isinstance(opened, k.Opened) or opened.claim is None:
            return
        page = await self.server.do(k.ReadClaim(*named, number, 0, 1, "", 100))
        if isinstance(page, k.MemberPage):
            assert all(message.body for message in page.messages)
        if self.dice.random() < 0.5:
            sends = (put(self.body(), "other"),)
            await self.server.do(k.SettleClaims(*named, stream.token, number, sends=sends))
        else:
            await self.server.do(k.GiveBackClaim(*named, stream.token, number))

    async def clear(self) -> None:
        if self.dice.random() < 0.2:
            await self.server.do(c.Clear("a", self.dice.choice(QUEUES)))

    async def let_pass(self) -> None:
        self.server.clock.advance(s=self.dice.choice((1, 40, 300)))

    async def sweep(self) -> None:
        await self.server.engine.sweep()

    async def kill(self) -> None:
        if self.dice.random() < 0.3:
            await self.server.kill()

    MOVES = (
        put,
        put,
        put_many,
        receive,
        receive,
        renew,
        complete,
        release,
        amend,
        remove,
        stage,
        work_on_claim,
        clear,
        let_pass,
        sweep,
        kill,
    )


@pytest.mark.parametrize("seed", range(6))
def test_every_message_has_its_body_and_every_body_its_message(tmp_path: Path, seed: int) -> None:
    """Whatever is done, and whenever the server dies, no body is missing and none is left over."""

    async def scenario(server: Server) -> None:
        player = Player(server, seed)
        for _ in range(120):
            await player.step()
        await server.readable()
        while server.bodies._tasks:
            await asyncio.gather(*server.bodies._tasks)
            await asyncio.sleep(0)  # their callbacks take them out
        await server.engine.sweep()
        await server.engine.sweep()
        # Those of refused puts that a killed server had no time to remove.
        for path in server.files().values():
            os.utime(path, ns=(0, 0))
        await server.bodies.search()
        await server.readable()
        left_over = set(server.files()) - await server.known()
        assert not left_over
        # In the end all of them expire, are staged in vain or are dropped.
        for queue in (*QUEUES, "other-poison"):
            await server.do(c.DeleteQueue("a", queue))
        server.clock.advance(s=DEFAULT_STAGING_TIMEOUT_S + 1)
        for _ in range(3):
            server.clock.advance(s=100)
            await server.engine.sweep()
        assert server.files() == {}

    play(tmp_path, scenario)


def test_a_body_survives_the_server(tmp_path: Path) -> None:
    """What was acknowledged is there with its body when the server was killed."""

    async def scenario(server: Server) -> None:
        bodies = [bytes([size % 251]) * size for size in SIZES]
        for body in bodies:
            assert isinstance(await server.do(put(body)), Lease)
        await server.kill()
        assert sorted(await server.readable()) == sorted(bodies)

    play(tmp_path, scenario)


def test_an_orphan_goes_and_nothing_else(tmp_path: Path) -> None:
    """A file that was written for a put that never came is removed once it is old."""

    async def scenario(server: Server) -> None:
        await server.do(put(b"k" * 1_000))
        orphan, unfinished = "a" * 32, "b" * 32
        await server.bodies._place.put(orphan, b"o" * 1_000)
        (server.folder / "bodies" / "incoming" / unfinished).write_bytes(b"half")
        await server.kill()
        now_ms = server.clock.now_ms()
        for path in server.files().values():
            os.utime(path, ns=(0, (now_ms - ORPHAN_AGE_MS + 60_000) * 1_000_000))
        await server.bodies.search()
        assert len(server.files()) == 3
        server.clock.advance(s=61)
        await server.bodies.search()
        assert await server.readable() == [b"k" * 1_000]
        assert len(server.files()) == 1

    play(tmp_path, scenario)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("where", ["write", "fsync"])
def test_a_disk_without_room_refuses_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: str
) -> None:
    """The put is told that there is no room, half a file is not left, and later there is room."""

    async def scenario(server: Server) -> None:
        await server.do(put(b"k" * 1_000))

        def full(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, where, full)
            assert isinstance(await server.do(put(b"n" * 1_000)), StoreFull)
            batch = c.Batch((put(b"s" * 10), put(b"n" * 1_000)))
            assert isinstance(await server.do(batch), StoreFull)
        while server.bodies._tasks:
            await asyncio.gather(*server.bodies._tasks)
        assert len(server.files()) == 1
        assert await server.readable() == [b"k" * 1_000]
        assert isinstance(await server.do(put(b"n" * 1_000)), Lease)

    play(tmp_path, scenario)


def test_a_full_disk_at_the_start_does_not_keep_consumers_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server can be started on a full disk; its folder for bodies is made when there is room."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", full)
            store = open_bodies(str(tmp_path / "bodies"))
            with pytest.raises(StoreFull):
                await store.put("a" * 32, b"x")
            assert [page async for page in store.pages()] == []
        await store.put("a" * 32, b"x")
        assert await store.get("a" * 32) == b"x"
        await store.close()

    asyncio.run(scenario())
