"""Where a holder goes on: pure functions from what was saved to the stage to begin with.

A stage is saved under its name; a version of the pipeline above 1 follows it, as in ``encode@2``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

from leasehold.worker.errors import Poison, Retry
from leasehold.worker.queues.protocol import Saved
from leasehold.worker.stages.declared import COMPLETED

Migration: TypeAlias = Callable[[str, Any], "tuple[str, Any]"]
"""From the stage and the state of one version to those of the next."""
Older: TypeAlias = Literal["restart", "keep", "poison"]
"""What becomes of progress of an older version that nothing migrates: begin anew, take it as it is,
or set the message aside."""


class Begin(NamedTuple):
    """Where to begin."""

    place: int
    """Index of the stage; the number of stages if nothing is left to be done."""
    state: Any
    decided: bool
    """Whether it is known already that this stage is to be done."""
    dropped: str | None = None
    """Why what was saved is not used; None if it is, or if nothing was saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order of the stages, and what earlier orders have become."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    version: int = 1
    renamed: Mapping[str, str] = field(default_factory=dict)
    migrations: Mapping[int, Migration] = field(default_factory=dict)
    """By the version that each begins from."""
    older: Older = "restart"

    def check(self) -> None:
        """Raise ValueError if there is no stage, or a name leads nowhere."""
        if not self.names:
            raise ValueError("the pipeline has no stage")
        if self.version < 1:
            raise ValueError(f"version is {self.version}; it must be 1 or more")
        for old, new in self.renamed.items():
            if old in self.names:
                raise ValueError(f"renamed: there is a stage {old!r} still")
            if new not in self.names and new != COMPLETED:
                raise ValueError(f"renamed: there is no stage {new!r}")
        for version in self.migrations:
            if not 1 <= version < self.version:
                raise ValueError(
                    f"a migration begins from version {version}; this is version {self.version}"
                )

    def place(self, name: str) -> int:
        """Return the index of a stage.

        Raises:
            ValueError: There is none of that name.
        """
        if name == COMPLETED:
            return len(self.names)
        try:
            return self.names.index(name)
        except ValueError:
            raise ValueError(
                f"there is no stage {name!r}; the stages are {', '.join(self.names)}"
            ) from None

    def saved(self, place: int, state: Any, fraction: float) -> Saved:
        """Return what to save when the stage at *place* is to be done next.

        Args:
            place: Its index; the number of stages if all is done.
            state: What it gets.
            fraction: How much of that stage is done.
        """
        name = COMPLETED if place == len(self.names) else self.names[place]
        label = name if self.version == 1 else f"{name}@{self.version}"
        return Saved(stage=label, state=state, fraction=self.fraction(place, fraction))

    def fraction(self, place: int, within: float) -> float:
        """Return how much of the whole is done when *within* of the stage at *place* is."""
        if place >= len(self.names):
            return 1
        before = [0, *accumulate(self.weights)]
        within = min(max(within, 0), 1)
        return (before[place] + within * self.weights[place]) / before[-1]

    def begin(self, saved: Saved | None) -> Begin:
        """Return where to begin.

        Raises:
            Poison: What was saved leads to no stage.
            Retry: A newer version of the pipeline has saved it; somebody who runs that shall go on.
        """
        if saved is None or saved.stage is None:
            return Begin(0, None if saved is None else saved.state, decided=False)
        name, version = split_label(saved.stage)
        state = saved.state
        if version > self.version:
            raise Retry(
                reason=f"version {version} of the pipeline has saved the progress; "
                f"this worker runs version {self.version}"
            )
        while version < self.version:
            migration = self.migrations.get(version)
            if migration is not None:
                name, state = migration(name, state)
            elif self.older != "keep":
                return self._old(version)
            version += 1
        return self._found(self.renamed.get(name, name), state)

    def _old(self, version: int) -> Begin:
        why = (
            f"version {version} of the pipeline has saved the progress, "
            f"and nothing makes that of version {self.version}"
        )
        if self.older == "poison":
            raise Poison(why)
        return Begin(0, None, decided=False, dropped=why)

    def _found(self, name: str, state: Any) -> Begin:
        if name == COMPLETED:
            return Begin(len(self.names), None, decided=True)
        if name not in self.names:
            raise Poison(
                f"the saved stage {name!r} is unknown; the stages are {', '.join(self.names)}"
            )
        return Begin(self.names.index(name), state, decided=True)


def split_label(label: str) -> tuple[str, int]:
    """Return the name of a stage and the version of its pipeline, of a label as it is saved."""
    name, mark, version = label.rpartition("@")
    if mark and version.isascii() and version.isdigit():
        return name, int(version)
    return label, 1


def as_json(state: Any) -> Any:
    """Return *state* as it comes back when it is saved: tuples as lists, keys as text.

    So a stage gets the same whether it follows at once or in another process.

    Raises:
        TypeError: JSON cannot say it.
    """
    if state is None or isinstance(state, str | bool | int):
        return state
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a state must be what JSON can say: {error}") from error
