"""Plays scenarios with a worker, several at once, and says what was found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from leasehold.clock import Clock
from leasehold.testing.certify.judge import Finding, Seen, judge
from leasehold.testing.certify.scenarios import SCENARIOS, Scenario
from leasehold.testing.certify.trial import QUEUE, Missed, Options, Trial, trial


class Played(NamedTuple):
    """What came of one scenario."""

    scenario: Scenario
    findings: tuple[Finding, ...]
    output: str
    """The end of what the worker wrote."""
    took_s: float


def scenarios_for(names: Sequence[str], *, saves_progress: bool) -> list[Scenario]:
    """Return scenarios by name, or all that fit the worker if none is named.

    Raises:
        KeyError: There is none of a name.
    """
    if names:
        return [SCENARIOS[name] for name in names]
    return [each for each in SCENARIOS.values() if saves_progress or not each.for_progress]


async def play(scenario: Scenario, options: Options, clock: Clock) -> Played:
    """Play one scenario from beginning to end."""
    began_s = clock.monotonic_s()
    found: list[tuple[str, str]] = []
    async with trial(options, clock) as made:
        try:
            await scenario.play(made)
        except Missed as missed:
            found.append((missed.rule, missed.told))
        found += judge(await _seen(made, scenario))
        output = made.worker.output.decode("utf-8", "replace") if made.worker else ""
    findings = tuple(Finding(rule, scenario.name, told) for rule, told in dict.fromkeys(found))
    return Played(scenario, findings, output, clock.monotonic_s() - began_s)


async def _seen(made: Trial, scenario: Scenario) -> Seen:
    return Seen(
        works=tuple(made.works),
        exchanges=[each for each in made.proxy.exchanges if each.queue == QUEUE],
        events=await made.events(),
        texts={message_id: text for text, message_id in made.ids.items()},
        repeats=made.repeats,
        loses_leases=scenario.loses_leases,
    )


async def play_all(
    scenarios: Iterable[Scenario], options: Options, clock: Clock, *, at_once: int
) -> AsyncIterator[Played]:
    """Play scenarios, so many at once, and yield each when it is over."""
    room = asyncio.Semaphore(at_once)

    async def one(scenario: Scenario) -> Played:
        async with room:
            return await play(scenario, options, clock)

    tasks = [asyncio.create_task(one(scenario)) for scenario in scenarios]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
