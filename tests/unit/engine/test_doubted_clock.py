"""What an engine does while it does not believe its clock: nothing that cannot be undone."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from tests.unit.engine.test_engine import RECEIVE, Running, put


def test_a_start_far_ahead_of_the_time_last_seen_retires_nothing_for_an_hour() -> None:
    """With a suspicious clock expiry hides, but nothing irrevocable is done."""

    async def scenario() -> None:
        running = Running()
        running.store.seen_ms = running.clock.now_ms() - 400 * 86_400_000
        async with running:
            await running.all(put(ttl_s=10))
            running.clock.advance(s=60)
            await running.engine.sweep()
            assert running.engine.message_counts() == [("a", "queue", 1)]
            assert await running.engine.perform(RECEIVE) == ()
            running.clock.advance(s=3600)
            await running.engine.sweep()
            assert running.engine.message_counts() == [("a", "queue", 0)]

    asyncio.run(scenario())


def test_a_doubted_time_is_not_noted() -> None:
    """Or the next start, with the same wrong clock, would find nothing wrong with it."""

    async def scenario() -> None:
        running = Running()
        running.store.seen_ms = running.clock.now_ms() - 400 * 86_400_000
        async with running:
            await running.engine.sweep()
            assert running.store.noted == [c.NoteTime(trusted=False)]
            running.clock.advance(s=3600)
            await running.engine.sweep()
            assert running.store.noted[1:] == [c.NoteTime(trusted=True)]

    asyncio.run(scenario())


def test_lapsed_claims_are_kept_together_while_the_clock_is_doubted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may have lapsed only by a wrong clock, and can be reopened while they are whole."""
    monkeypatch.setattr(k, "MAX_LAPSED", 1)

    async def scenario() -> None:
        running = Running()
        running.store.seen_ms = running.clock.now_ms() - 400 * 86_400_000
        async with running:
            perform = running.engine.perform
            await perform(k.AttachStream("a", "queue", "s"))
            for number in (1, 2, 3):
                await perform(put())
                await perform(k.OpenClaim("a", "queue", "s", 1, number, 1, 10))
            running.clock.advance(s=60)
            await running.engine.sweep()
            assert await states(running) == ["lapsed"] * 3
            running.clock.advance(s=3600)
            await running.engine.sweep()
            assert await states(running) == ["broken", "broken", "lapsed"]

    asyncio.run(scenario())


async def states(running: Running) -> list[str]:
    """Return the states of all claims."""
    stream = await running.engine.perform(k.GetStream("a", "queue", "s"))
    assert isinstance(stream, k.Stream)
    return [str(claim.state) for claim in stream.claims]
