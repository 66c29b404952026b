"""A week on a virtual clock: delays, leases, five rounds of dead-lettering, waits, expiry.

How long it takes is measured by ``benchmarks/seven_days.py``.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from benchmarks.seven_days import (
    DAY_S,
    DELIVERIES,
    HOUR_S,
    ROUNDS,
    WORLDS,
    Delivery,
    main,
    play_week,
)


def week(name: str, *, waits: bool) -> list[Delivery]:
    """Play a week in a new world."""

    async def run() -> list[Delivery]:
        async with WORLDS[name](0) as world:
            return await play_week(world, waits=waits)

    return asyncio.run(run())


def expected(*, waits: bool) -> list[Delivery]:
    """Return what is delivered, and when, if every second counts as it should."""
    found: list[Delivery] = []
    now_s = 0.0
    for day in range(1, 8):
        if day <= ROUNDS:
            for delivery in range(DELIVERIES):  # brought back, it begins anew
                found.append((now_s, "unlucky", delivery + 1))
                now_s += HOUR_S
        due_s = day * DAY_S - HOUR_S
        now_s = due_s + 30 if waits else due_s
        found.append((now_s, f"day {day}", 1))
    return found


@pytest.mark.parametrize("name", [name for name in WORLDS if name.startswith("engine")])
def test_a_week_of_the_engine(name: str) -> None:
    """Everything happens in its order and at its moment, whatever the store."""
    assert week(name, waits=True) == expected(waits=True)


@pytest.mark.parametrize("name", [name for name in WORLDS if name.startswith("HTTP")])
def test_a_week_over_http(name: str) -> None:
    """The same on the wire, through the native client."""
    assert week(name, waits=False) == expected(waits=False)


def test_the_benchmark_writes_down_what_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each world has its line and its figures; how good they are is not a matter of this test."""
    main(["--weeks", "1", "--runs", "1", "--out", str(tmp_path / "out.json")])
    report = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert list(report["weeks"]) == list(report["repeated"]) == list(WORLDS)
    assert all(each["same"] == each["runs"] for each in report["repeated"].values())
    lines = capsys.readouterr().out.splitlines()
    for name in WORLDS:
        assert len([line for line in lines if line.startswith(f"{name}: ")]) == 2
