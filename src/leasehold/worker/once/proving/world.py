"""The world that a proof plays in: the user's handler, and the user's look at its effects."""

from __future__ import annotations

import copy
import inspect
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from leasehold.worker.once.proving.deliveries import Attempt, Draft, Shelf
from leasehold.worker.once.proving.tracing import LineSteps

_SHOWN: Final = 160
_TRIES: Final = 3
"""Deliveries to a handler that asks for another try."""


class CannotProve(Exception):
    """The proof would prove nothing: the handler fails, or the probe does not see its effect."""


@dataclass(slots=True)
class World:
    """What the user gave; see :func:`~leasehold.worker.once.proving.proof.prove`."""

    handler: Callable[[Any], Any]
    probe: Callable[[], Any]
    draft: Draft
    reset: Callable[[], object] | None
    patience_s: float
    files: Sequence[str]
    reference: Any = None
    """What the probe shows after one delivery, where each scenario starts from the same state."""
    _token: str = field(default_factory=lambda: secrets.token_hex(4))
    _made: int = 0

    def begin(self) -> Shelf:
        """Start a scenario: put the state back, or take a message that nobody has seen."""
        if self.reset is not None:
            self.reset()
            return Shelf(self.draft, "rehearsal")
        self._made += 1
        return Shelf(self.draft, f"rehearsal-{self._token}-{self._made}")

    def message_id(self) -> str:
        """Return the id of the message of the scenario that began last."""
        return "rehearsal" if self.reset else f"rehearsal-{self._token}-{self._made}"

    def look(self) -> Any:
        """Return what the probe shows, apart from what changes later."""
        return copy.deepcopy(self.probe())

    def run(self, shelf: Shelf, fence: int, steps: LineSteps | None = None) -> Attempt:
        """Deliver a message and wait for the end of the handler.

        Raises:
            CannotProve: It does not end.
        """
        attempt = Attempt(self.handler, shelf.deliver(fence), steps)
        if not attempt.join(self.longest_s):
            raise CannotProve(f"the handler was not done after {self.longest_s:.0f} s")
        return attempt

    def run_until_done(self, shelf: Shelf, fence: int) -> Attempt:
        """Deliver a message as a queue does: again, with newer fences, while the handler fails."""
        attempt = self.run(shelf, fence)
        for newer in range(fence + 1, fence + _TRIES):
            if attempt.error is None:
                break
            attempt = self.run(shelf, newer)
        return attempt

    @property
    def longest_s(self) -> float:
        """How long a delivery may take that nobody holds up."""
        return max(60.0, self.patience_s * 10)

    def calibrate(self) -> int:
        """Run the handler once; return how many of its lines ran.

        Raises:
            CannotProve: It fails, its effect is not seen, or two runs leave two states.
        """
        steps = LineSteps(self.files)
        shelf = self.begin()
        before = self.look()
        if self.look() != before:
            raise CannotProve("the probe shows something else each time, with nobody at work")
        attempt = self.run(shelf, 1, steps)
        if attempt.error is not None:
            raise CannotProve(f"the handler failed at a plain delivery: {attempt.failure}")
        after = self.look()
        if after == before:
            raise CannotProve("the probe does not see that the handler did anything")
        if self.reset is not None:
            self.run(self.begin(), 1)
            again = self.look()
            if again != after:
                raise CannotProve(
                    f"two plain deliveries, each from the start, leave two states: does the probe "
                    f"show a time, or reset forget something? {difference(after, again)}"
                )
            self.reference = after
        return steps.count


def difference(before: Any, after: Any) -> str:
    """Return both states for people."""
    return f"{_short(before)} became {_short(after)}"


def _short(state: Any) -> str:
    text = repr(state)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def source_of(handler: Callable[..., Any]) -> str | None:
    """Return the file whose lines are those of *handler*; None if there is none."""
    inner: Any = handler
    while True:
        if isinstance(inner, partial):
            inner = inner.func
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        else:
            break
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004 - not whether, but what
    code = getattr(inner, "__code__", None)
    return None if code is None else code.co_filename


def chosen(count: int, most: int) -> list[int]:
    """Return up to *most* of the numbers from 1 to *count*, the first and the last among them."""
    if count <= most:
        return list(range(1, count + 1))
    if most == 1:
        return [1]
    return sorted({1 + round(index * (count - 1) / (most - 1)) for index in range(most)})
