"""What a proof found, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

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
