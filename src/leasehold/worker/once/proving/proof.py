"""The proof: all scenarios, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from leasehold.worker.once.proving.deliveries import Draft
from leasehold.worker.once.proving.dying import name_of
from leasehold.worker.once.proving.report import ProofReport, Scenario
from leasehold.worker.once.proving.scenarios import (
    crash,
    delivered_again,
    zombie_after,
    zombie_in_the_middle,
)
from leasehold.worker.once.proving.world import CannotProve, World, chosen, source_of

DEFAULT_PLACES: Final = 40
DEFAULT_PATIENCE_S: Final = 1.0

__all__ = ["CannotProve", "prove"]


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
