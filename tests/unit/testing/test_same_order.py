"""The same work gives the same deliveries in the same order, each time.

``benchmarks/seven_days.py`` repeats it a thousand times.
"""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.seven_days import SETTINGS, WORLDS, Delivery, play_at_random

RUNS = 5
STEPS = 60
IN_PROCESS = ["engine, memory", "engine, SQLite"]


def deliveries(name: str, seed: int) -> list[Delivery]:
    """Do what *seed* says in a new world."""

    async def run() -> list[Delivery]:
        async with WORLDS[name](seed) as world:
            return await play_at_random(world, seed, steps=STEPS)

    return asyncio.run(run())


@pytest.mark.parametrize("name", IN_PROCESS)
def test_the_same_seed_gives_the_same_order(name: str) -> None:
    """What is delivered, when, and for the how manieth time."""
    first = deliveries(name, 7)
    assert len(first) > 10
    assert len({body for _, body, count in first if count > 1}) > 1, "nothing was redelivered"
    for _ in range(RUNS - 1):
        assert deliveries(name, 7) == first


def test_stores_give_the_same_order() -> None:
    """Which one it is does not show, and HTTP makes no difference."""
    first = deliveries("engine, memory", 11)
    assert deliveries("engine, SQLite", 11) == first
    over_http = deliveries("HTTP, memory", 11)
    assert over_http == deliveries("HTTP, memory", 11) == deliveries("HTTP, SQLite", 11)


def retries(seed: int) -> list[str]:
    """Have eight messages fail at once; return the order in which they come back."""

    async def run() -> list[str]:
        async with WORLDS["HTTP, memory"](seed) as world:
            await world.create("unlucky", SETTINGS)
            for number in range(8):
                await world.put("unlucky", str(number))
            for got in await world.receive("unlucky", limit=8):
                await world.fail("unlucky", got)
            order: list[str] = []
            while len(order) < 8:
                await world.advance(10)
                order += [got.body for got in await world.receive("unlucky", limit=8)]
            return order

    return asyncio.run(run())


def test_another_seed_spreads_retries_otherwise() -> None:
    """The server's own random numbers come from its seed, and from nowhere else."""
    first = retries(1)
    assert first != sorted(first)
    assert retries(1) == first
    assert retries(2) != first
