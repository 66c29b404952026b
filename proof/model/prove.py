"""The model's part of the proof: no step breaks a law, and every planted bug is found."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

from proof.model.bounds import MODELS, PLANTS, RULES
from proof.model.conform import walks
from proof.model.tlc import NoTlc, Run, check, jar, java, simulate
from proof.model.traces import planted
from proof.report import Check, Order

SHORT_WALK: Final = 20_000
"""Steps of each model; TLC checks some four steps for one that it takes."""
LONG_WALK: Final = 1_000_000
SHORT_COMPARED: Final = 300
LONG_COMPARED: Final = 20_000
DEPTH: Final = 200
CORES: Final = 2
WALKED: Final = ("two-leases", "settled-twice", "session-kept", "group-overtaken", "cap-exceeded")
"""Bugs that random walks must meet, one for each model."""


def prove(order: Order) -> Iterator[Check]:
    """Check the models whole in small bounds, at random in large ones, and with planted bugs."""
    try:
        jar(), java()
    except NoTlc as error:
        yield Check(name="TLC", passed=False, said=str(error))
        return
    yield from _whole(long=False)
    yield from _bugs()
    yield from _conformance(LONG_COMPARED if order.long else SHORT_COMPARED, order.seed)
    yield from _walks(LONG_WALK if order.long else SHORT_WALK, order.seed)
    if order.long:
        yield from _whole(long=True)


def _whole(*, long: bool) -> Iterator[Check]:
    for title, bounded in MODELS.items():
        for rule in RULES:
            run = check(bounded.long if long else bounded.short, rule=rule, workers=CORES)
            said = f"{run.generated:,} steps between all {run.states:,} states"
            yield _lawful(f"{title}, {rule}", run, said)


def _walks(steps: int, since: int) -> Iterator[Check]:
    total = 0
    for seed, rule in enumerate(RULES, since):
        for title, bounded in MODELS.items():
            how = partial(simulate, bounded.walk, rule=rule, steps=steps, depth=DEPTH)
            run = how(seed=seed, workers=CORES)
            total += run.generated
            yield _lawful(f"{title}, {rule}, random walks", run, f"{run.generated:,} steps")
    said = f"{total:,} steps in all"
    yield Check(name="random walks", passed=total > 0, said=said, figures={"steps": total})
    for bug in WALKED:
        plant = PLANTS[bug]
        model = MODELS[plant.model].walk
        model = replace(model, laws=(plant.law,))
        run = simulate(
            model, rule=RULES[0], bug=bug, steps=steps, depth=DEPTH, seed=since, workers=1
        )
        said = f"after {len(run.trace) - 1} steps of a walk" if run.broken else "not found"
        yield Check(name=f"walks find {bug}", passed=run.broken == plant.law, said=said)


def _conformance(number: int, seed: int) -> Iterator[Check]:
    """Have the store do what the model does; with the other rule it must not do the same."""
    for rule, other in zip(RULES, reversed(RULES), strict=True):
        compared = list(walks(rule, number, seed=seed))
        differing = sum(walk.model != walk.store for walk in compared)
        events = sum(len(walk.model) for walk in compared)
        said = f"{events:,} events of {len(compared):,} walks, {differing} walks differ"
        passed = events > 0 and not differing
        yield Check(name=f"store and model, {rule}", passed=passed, said=said)
        control = sum(
            walk.model != walk.store for walk in walks(rule, number, seed=seed, other=other)
        )
        said = f"{control} walks differ"
        yield Check(name=f"control: store with {other}", passed=control > 0, said=said)


def _lawful(name: str, run: Run, said: str) -> Check:
    figures = {"steps": run.generated, "states": run.states, "depth": run.depth}
    told = f"{run.broken} is broken after {len(run.trace) - 1} steps" if run.broken else said
    return Check(name=name, passed=run.broken is None, said=told, figures=figures)


def _bugs() -> Iterator[Check]:
    """Plant each bug; a positive control of the laws, so it is done every time."""
    with ThreadPoolExecutor(CORES) as pool:
        found = pool.map(lambda bug: planted(bug, RULES[0])[1], PLANTS)
        for (bug, plant), run in zip(PLANTS.items(), found, strict=True):
            steps = len(run.trace) - 1
            said = f"breaks {run.broken} in {steps} steps" if run.broken else "not found"
            figures = {"law": run.broken, "steps": steps}
            passed = run.broken == plant.law
            yield Check(name=f"planted {bug}", passed=passed, said=said, figures=figures)
