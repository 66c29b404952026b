"""Plays scenarios with a worker, several at once, and says what was found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, NamedTuple

from leasehold.clock import Clock
from leasehold.testing.certify.judge import Finding, Seen, judge
from leasehold.testing.certify.scenarios import BASE64, PROGRESS, SCENARIOS, Scenario
from leasehold.testing.certify.trial import QUEUE, Missed, Options, Trial, trial

_TRIES: Final = 3
"""So often at most a scenario is played in which something is found on a starved machine."""


class Played(NamedTuple):
    """What came of one scenario."""

    scenario: Scenario
    findings: tuple[Finding, ...]
    output: str
    """The end of what the worker wrote."""
    took_s: float


def scenarios_for(names: Sequence[str], options: Options) -> list[Scenario]:
    """Return scenarios by name, or all that fit the worker if none is named.

    Raises:
        KeyError: There is none of a name.
    """
    if names:
        return [SCENARIOS[name] for name in names]
    given = {"", *([PROGRESS] * options.saves_progress), *([BASE64] * options.reads_base64)}
    return [each for each in SCENARIOS.values() if each.option in given]


async def play(scenario: Scenario, options: Options, clock: Clock) -> Played:
    """Play one scenario from beginning to end.

    If something is found while the machine is starved, it is played again, and only what is found
    each time counts.
    """
    began_s = clock.monotonic_s()
    played, is_sure = await _play_once(scenario, options, clock)
    for _ in range(_TRIES - 1):
        if is_sure or not played.findings:
            break
        before = {each.rule for each in played.findings}
        played, is_sure = await _play_once(scenario, options, clock)
        if not is_sure:
            again = tuple(each for each in played.findings if each.rule in before)
            played = played._replace(findings=again)
    return played._replace(took_s=clock.monotonic_s() - began_s)


async def _play_once(scenario: Scenario, options: Options, clock: Clock) -> tuple[Played, bool]:
    """Return what came of one play, and whether the machine had time enough for it."""
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
    took_s = clock.monotonic_s() - began_s
    return Played(scenario, findings, output, took_s), not made.was_starved


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
