"""Proof that a late worker does no harm: deliveries are played against the user's own handler."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

from leasehold.testing.fencing_runs import (
    Attempt,
    CannotProve,
    ChildFailed,
    Draft,
    Killed,
    LineSteps,
    Pause,
    Shelf,
    World,
    chosen,
    die_at,
    difference,
    name_of,
    source_of,
)

__all__ = ["CannotProve", "ProofReport", "Scenario", "Verdict", "prove"]


# --- proof -------------------------------------------------------------------------------------
#
# The proof: all scenarios, one after the other.


DEFAULT_PLACES: Final = 40
DEFAULT_PATIENCE_S: Final = 1.0


def prove(  # noqa: PLR0913 - all but the first two by name
    handler: Callable[[Any], Any],
    probe: Callable[[], Any],
    *,
    body: bytes = b"",
    queue: str = "rehearsal",
    message_type: str | None = None,
    properties: Mapping[str, str] | None = None,
    decode: Callable[[bytes], Any] | None = None,
    reset: Callable[[], object] | None = None,
    later: Callable[[], object] | None = None,
    death: Literal["raise", "kill"] = "raise",
    files: Sequence[str] = (),
    max_places: int = DEFAULT_PLACES,
    patience_s: float = DEFAULT_PATIENCE_S,
) -> ProofReport:
    """Play late and dying workers against a handler, and look at what they did.

    The message is delivered with rising fences, as by a queue, but to workers that do not notice
    when their lease has ended: ``check`` and ``checkpoint`` raise nothing. What the probe shows
    before and after the late worker must be the same.

    It writes to whatever the handler writes to: use a database for tests.

    Args:
        handler: Takes a message; synchronous or not, each run in a thread (and loop) of its own.
        probe: Returns the effects as something that can be compared and copied, times and random
            ids left out: the rows of a table, say.
        body: Of the message.
        queue: Of the message.
        message_type: Of the message.
        properties: Of the message.
        decode: Makes the payload of the message, as the codec of the worker does.
        reset: Puts the effects, and the history, back to the start. Without it each scenario has a
            message of its own, and two kinds of harm cannot be seen: an effect that happens twice
            while the next holder waits for the late one, or after a crash.
        later: What happens in the same rows after the message was done: a second message, say. A
            late worker that writes its old values again is found out only with it.
        death: How a worker dies: by an exception in its thread, or killed in a process of its own,
            which imports the handler by its name. Only the second leaves no time to clean up.
        files: Whose lines a worker is stopped and killed at; none given: the file of the handler.
        max_places: At most so many lines, evenly chosen, if more of them run.
        patience_s: How long the next holder may wait for one who was stopped, in seconds, before
            that one goes on. Once for each line inside of a transaction.

    Raises:
        CannotProve: The handler fails at a plain delivery, or the probe does not see its effect.
        ValueError: With ``death="kill"``: no other process can import the handler, or decode is
            given.
    """
    own = source_of(handler)
    world = World(
        handler=handler,
        probe=probe,
        draft=Draft(queue, body, message_type, dict(properties or {}), decode),
        reset=reset,
        patience_s=patience_s,
        files=list(files) or ([own] if own is not None else []),
    )
    name = _importable(handler, decode) if death == "kill" else None
    places = chosen(world.calibrate(), max_places)
    title = f"{getattr(handler, '__module__', '?')}:{getattr(handler, '__qualname__', handler)}"
    return ProofReport(handler=title, scenarios=tuple(_scenarios(world, places, name, later)))


def _scenarios(
    world: World, places: Sequence[int], name: str | None, later: Callable[[], object] | None
) -> Iterator[Scenario]:
    yield delivered_again(world, same_lease=False)
    yield delivered_again(world, same_lease=True)
    yield zombie_after(world)
    if later is not None:
        yield zombie_after(world, later)
    yield zombie_in_the_middle(world, places)
    yield crash(world, places, name)


def _importable(handler: Callable[[Any], Any], decode: Callable[[bytes], Any] | None) -> str:
    if decode is not None:
        raise ValueError("decode cannot be taken into another process: use death='raise'")
    return name_of(handler)


# --- report ------------------------------------------------------------------------------------
#
# What a proof found, for people and for programs.


_SHOWN_PLACES: Final = 6


class Verdict(Enum):
    """What came of one scenario."""

    FENCED = "FENCED"
    """The late worker changed nothing."""
    IDEMPOTENT = "IDEMPOTENT"
    """The effect is there once."""
    NOT_FENCED = "NOT FENCED"
    """The late worker changed something."""
    NOT_IDEMPOTENT = "NOT IDEMPOTENT"
    """The effect is there twice, or is lost."""
    UNDECIDED = "UNDECIDED"
    """It could not be found out; the detail says why."""

    @property
    def is_good(self) -> bool:
        """Whether the handler passed."""
        return self in {Verdict.FENCED, Verdict.IDEMPOTENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way in which messages are delivered."""

    name: str
    verdict: Verdict
    detail: str = ""
    """What was seen, or why nothing could be."""
    tried: int = 1
    """At how many places of the handler."""
    places: tuple[str, ...] = ()
    """Where it went wrong: the line of the handler that was about to run, or whose function was
    about to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofReport:
    """What came of all scenarios."""

    handler: str
    scenarios: tuple[Scenario, ...]

    @property
    def holds(self) -> bool:
        """Whether the handler passed them all."""
        return all(scenario.verdict.is_good for scenario in self.scenarios)

    def table(self) -> str:
        """Return a table for a terminal, a line for each scenario and more where it failed."""
        width = max(len(scenario.name) for scenario in self.scenarios)
        most = max(len(verdict.value) for verdict in Verdict)
        lines = [f"{self.handler}:"]
        for scenario in self.scenarios:
            tried = f"tried at {scenario.tried} places" if scenario.tried > 1 else ""
            line = f"  {scenario.name:{width}}  {scenario.verdict.value:{most}}  {tried}"
            lines.append(line.rstrip())
            if scenario.detail:
                lines.append(f"    {scenario.detail}")
            if scenario.places:
                more = len(scenario.places) - _SHOWN_PLACES
                rest = f" and {more} more" if more > 0 else ""
                lines.append(f"    at {', '.join(scenario.places[:_SHOWN_PLACES])}{rest}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON can say it."""
        return {
            "handler": self.handler,
            "holds": self.holds,
            "scenarios": [
                {
                    "name": scenario.name,
                    "verdict": scenario.verdict.value,
                    "detail": scenario.detail,
                    "tried": scenario.tried,
                    "places": list(scenario.places),
                }
                for scenario in self.scenarios
            ],
        }


# --- scenarios ---------------------------------------------------------------------------------
#
# The ways in which a message can come twice.


_NEEDS_RESET = "needs reset: without it one effect cannot be distinguished from two"


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
    # As with a process that is dead: a connection that was not closed must not keep its locks.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Python 3.13 warns of such a connection
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
