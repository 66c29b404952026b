"""The ways in which a message can come twice."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from leasehold.worker.once.proving.deliveries import Attempt, Shelf
from leasehold.worker.once.proving.dying import ChildFailed, die_at
from leasehold.worker.once.proving.report import Scenario, Verdict
from leasehold.worker.once.proving.tracing import Killed, LineSteps, Pause
from leasehold.worker.once.proving.world import World, difference

_NEEDS_RESET = "needs reset: without it nobody can tell one effect from two"


@dataclass(slots=True)
class _Places:
    """Sums up what was seen at the places of a handler."""

    name: str
    good: Verdict
    bad: Verdict
    tried: int = 0
    detail: str = ""
    wrong: list[str] = field(default_factory=list)
    unclear: str = ""

    def fail(self, place: str, detail: str) -> None:
        """Note that it went wrong."""
        self.detail = self.detail or detail
        if place not in self.wrong:
            self.wrong.append(place)

    def scenario(self) -> Scenario:
        """Return the sum. One place where it went wrong is enough."""
        if self.wrong:
            verdict, detail = self.bad, self.detail
        elif self.unclear or not self.tried:
            verdict = Verdict.UNDECIDED
            detail = self.unclear or "the handler has no lines of Python to stop at"
        else:
            verdict, detail = self.good, ""
        return Scenario(
            name=self.name,
            verdict=verdict,
            detail=detail,
            tried=self.tried,
            places=tuple(self.wrong),
        )


def delivered_again(world: World, *, same_lease: bool) -> Scenario:
    """Deliver a message again after its work was done, and completing it was not."""
    shelf = world.begin()
    world.run_until_done(shelf, 1)
    before = world.look()
    world.run(shelf, 1 if same_lease else 2)
    name = "same lease run twice" if same_lease else "delivered again after success"
    return _compared(name, before, world.look(), Verdict.IDEMPOTENT, Verdict.NOT_IDEMPOTENT)


def zombie_after(world: World, later: Callable[[], object] | None = None) -> Scenario:
    """Let a worker do all its work after the next one has done it, and perhaps more happened."""
    shelf = world.begin()
    late = shelf.deliver(1)
    world.run_until_done(shelf, 2)
    if later is not None:
        later()
    before = world.look()
    zombie = Attempt(world.handler, late)
    name = "zombie after the next holder" if later is None else "zombie after later work"
    if not zombie.join(world.longest_s):
        return Scenario(name=name, verdict=Verdict.UNDECIDED, detail="the zombie never ended")
    return _compared(name, before, world.look(), Verdict.FENCED, Verdict.NOT_FENCED)


def zombie_in_the_middle(world: World, steps: Iterable[int]) -> Scenario:
    """Stop a worker before each of its lines, let the next one do its work, let it go on."""
    places = _Places("zombie in the middle", Verdict.FENCED, Verdict.NOT_FENCED)
    for step in steps:
        _stop_at(world, step, places)
    return places.scenario()


def _stop_at(world: World, step: int, places: _Places) -> None:
    shelf = world.begin()
    pause = Pause(step)
    zombie = Attempt(
        world.handler, shelf.deliver(1), LineSteps(world.files, pause), at_end=pause.pass_by
    )
    try:
        reached = pause.wait(world.longest_s)
        if reached and pause.place is None:
            return
        places.tried += 1
        newer = Attempt(world.handler, shelf.deliver(2))
        is_past = newer.join(world.patience_s) and newer.error is None
        before = world.look() if is_past else None
    finally:
        pause.release()
    place = pause.place or "?"
    if not (zombie.join(world.longest_s) and newer.join(world.longest_s)):
        places.unclear = f"stopped at {place}, the deliveries never ended"
        return
    if not is_past:
        # A lock or a transaction of the zombie held it up, or it asked for another try.
        last = newer if newer.error is None else world.run_until_done(shelf, 3)
        if last.error is not None:
            places.unclear = f"after a stop at {place} no delivery ends well: {last.failure}"
            return
    _judge(world, place, before, is_past=is_past, places=places)


def _judge(world: World, place: str, before: Any, *, is_past: bool, places: _Places) -> None:
    after = world.look()
    if is_past and after != before:
        places.fail(place, f"the zombie went on: {difference(before, after)}")
    elif world.reset is None:
        if not is_past:
            places.unclear = f"the next holder had to wait for the zombie, and this {_NEEDS_RESET}"
    elif after != world.reference:
        text = difference(world.reference, after)
        places.fail(place, f"other than after one delivery: {text}")


def crash(world: World, steps: Iterable[int], name: str | None) -> Scenario:
    """Let a worker die before each of its lines, and deliver the message again.

    Args:
        world: To play in.
        steps: The numbers of the lines.
        name: The handler as another process finds it, which is then killed; None: the death is
            played by an exception.
    """
    places = _Places("crash before completion", Verdict.IDEMPOTENT, Verdict.NOT_IDEMPOTENT)
    if world.reset is None:
        places.unclear = f"it {_NEEDS_RESET}"
        return places.scenario()
    for step in steps:
        _die_at(world, step, name, places)
    return places.scenario()


def _die_at(world: World, step: int, name: str | None, places: _Places) -> None:
    shelf = world.begin()
    before = world.look()
    try:
        place = (
            _raise_at(world, shelf, step) if name is None else _kill_at(world, shelf, step, name)
        )
    except ChildFailed as error:
        places.unclear = f"the handler in a process of its own: {error}"
        return
    if place is None:
        return
    places.tried += 1
    last = world.run_until_done(shelf, 2)
    if last.error is not None:
        places.unclear = f"after a crash at {place} no delivery ends well: {last.failure}"
        return
    after = world.look()
    if after == before:
        places.fail(place, f"the effect is lost: {difference(world.reference, after)}")
    elif after != world.reference:
        text = difference(world.reference, after)
        places.fail(place, f"other than after one delivery: {text}")


def _raise_at(world: World, shelf: Shelf, step: int) -> str | None:
    """Return before which line the handler was stopped; None if it was over."""
    place: str | None = None

    def at_step(count: int, here: str) -> None:
        nonlocal place
        if count == step:
            place = here
            raise Killed

    world.run(shelf, 1, LineSteps(world.files, at_step))
    # As with a process that is dead: a connection that nobody closed must not keep its locks.
    gc.collect()
    return place


def _kill_at(world: World, shelf: Shelf, step: int, name: str) -> str | None:
    place, saved = die_at(
        step,
        name=name,
        draft=world.draft,
        message_id=world.message_id(),
        fence=1,
        files=world.files,
    )
    if saved is not None:
        shelf.deliver(1)
        shelf.save(1, saved)
    return place


def _compared(name: str, before: Any, after: Any, good: Verdict, bad: Verdict) -> Scenario:
    if before == after:
        return Scenario(name=name, verdict=good)
    return Scenario(name=name, verdict=bad, detail=difference(before, after))
