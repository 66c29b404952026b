"""The virtual clock and its timers."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from leasehold.clock import LoopTimers, VirtualClock
from leasehold.testing import ManualClock

START_MS = 1_000_000


def test_it_stands_still() -> None:
    """Time passes when it is told to, and only then."""
    clock = VirtualClock(START_MS)
    assert (clock.now_ms(), clock.monotonic_s(), clock.wall_drift_s()) == (START_MS, 0.0, 0.0)
    clock.advance(s=1.5, ms=7)
    assert (clock.now_ms(), clock.monotonic_s()) == (START_MS + 1507, 1.507)


def test_it_can_go_back() -> None:
    """Tests play wrong clocks with it."""
    clock = ManualClock(START_MS)
    clock.advance(s=-2)
    assert clock.now_ms() == START_MS - 2000


def test_timers_are_called_in_the_order_of_their_moments() -> None:
    """Each sees its own moment; those of the same moment go in the order in which they were set."""
    clock = VirtualClock(0)
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, clock.now_ms()))

    for name, delay_s in (("c", 3.0), ("a", 1.0), ("b1", 2.0), ("b2", 2.0), ("late", 3.001)):
        clock.call_later(delay_s, partial(note, name))
    clock.advance(s=3)
    assert seen == [("a", 1000), ("b1", 2000), ("b2", 2000), ("c", 3000)]
    assert (clock.now_ms(), clock.next_timer_ms()) == (3000, 3001)


def test_timers_set_on_the_way_are_called_as_well() -> None:
    """A timer that sets itself anew runs as often as it has room."""
    clock = VirtualClock(0)
    seen: list[int] = []

    def tick() -> None:
        seen.append(clock.now_ms())
        clock.call_later(2, tick)

    tick()
    clock.advance(s=7)
    assert seen == [0, 2000, 4000, 6000]
    assert clock.now_ms() == 7000


def test_a_cancelled_timer_is_not_called() -> None:
    """Nor does anybody stop for it."""
    clock = VirtualClock(0)
    seen: list[int] = []
    timer = clock.call_later(1, lambda: seen.append(1))
    timer.cancel()
    timer.cancel()
    assert clock.next_timer_ms() is None
    clock.advance(s=2)
    assert seen == []


def test_sleep_ends_by_the_clock() -> None:
    """However long the process takes, a sleeper sleeps until the clock is moved."""

    async def scenario() -> None:
        clock = VirtualClock(0)
        sleeper = asyncio.create_task(clock.sleep(10))
        for _ in range(20):
            await asyncio.sleep(0)
        clock.advance(s=9.999)
        await asyncio.sleep(0)
        assert not sleeper.done()
        clock.advance(ms=1)
        await sleeper

    asyncio.run(scenario())


def test_a_sleeper_that_is_cancelled_leaves_no_timer() -> None:
    """Or every journey would stop there."""

    async def scenario() -> None:
        clock = VirtualClock(0)
        sleeper = asyncio.create_task(clock.sleep(10))
        await asyncio.sleep(0)
        sleeper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeper
        assert clock.next_timer_ms() is None

    asyncio.run(scenario())


@pytest.mark.parametrize("delay_s", [-1.0, 0.0, 0.0004])
def test_no_time_takes_a_turn_of_the_loop(delay_s: float) -> None:
    """It needs no moving of the clock, and lets others run first."""

    async def scenario() -> None:
        clock = VirtualClock(0)
        order: list[str] = []
        asyncio.get_running_loop().call_soon(order.append, "other")
        clock.call_later(delay_s, partial(order.append, "timer"))
        assert order == []
        await clock.sleep(delay_s)
        assert order == ["other", "timer"]

    asyncio.run(scenario())


def test_the_timers_of_the_loop_go_by_the_loop() -> None:
    """What the server uses outside of tests needs no moving."""

    async def scenario() -> None:
        called = asyncio.Event()
        LoopTimers().call_later(0.001, called.set)
        assert not called.is_set()
        await called.wait()
        await LoopTimers().sleep(0)

    asyncio.run(scenario())
