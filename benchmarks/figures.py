"""Medians over the rounds, and the shape of a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.records import Phase, Run


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of the rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of *values*, of which there must be some."""
        kept = list(values)
        return cls(median(kept), min(kept), max(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One phase of one subject in one case, over all rounds."""

    case: str
    subject: str
    phase: str
    rounds: int
    per_s: Spread
    """Operations per second."""
    server_us: Spread
    """CPU time of the server per operation, microseconds."""
    generator_us: Spread
    """CPU time of the generator per request, microseconds."""
    generator_kernel_us: Spread
    """The part of it spent in the kernel."""
    latency_us: Mapping[str, Mapping[str, float]]
    """By verb: medians of p50, p90 and p99, and the highest max."""


def rows(run: Run) -> list[Row]:
    """Return the medians of *run* in the order of measurement."""
    groups: dict[tuple[str, str, str], list[Phase]] = {}
    for sample in run.samples:
        for phase in sample.measured.phases:
            groups.setdefault((sample.case, sample.subject, phase.name), []).append(phase)
    return [
        Row(
            case=case,
            subject=subject,
            phase=name,
            rounds=len(phases),
            per_s=Spread.of(phase.per_s for phase in phases),
            server_us=Spread.of(phase.server_us for phase in phases),
            generator_us=Spread.of(phase.generator_us for phase in phases),
            generator_kernel_us=Spread.of(phase.generator_kernel_us for phase in phases),
            latency_us=_latencies(phases),
        )
        for (case, subject, name), phases in groups.items()
    ]


def _latencies(phases: list[Phase]) -> dict[str, dict[str, float]]:
    verbs = {verb: None for phase in phases for verb in phase.latencies}
    found = {}
    for verb in verbs:
        taken = [phase.latencies[verb] for phase in phases if verb in phase.latencies]
        found[verb] = {
            "p50": median(one.p50_us for one in taken),
            "p90": median(one.p90_us for one in taken),
            "p99": median(one.p99_us for one in taken),
            "max": max(one.max_us for one in taken),
        }
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One promise and what was measured of it."""

    name: str
    bound: str
    """The promise, such as ``>= 0.35``."""
    value: float | None
    """None when it was not measured."""
    passed: bool | None
    detail: str
    """The figures behind the value, or why there is none."""


def why_missing(run: Run, subject: str) -> str:
    """Say why there are no figures of *subject*."""
    reasons = [info.absent for info in run.subjects if info.name == subject and info.absent]
    reasons += [failure.reason for failure in run.failures if failure.subject == subject]
    if not reasons:
        return "not part of this run"
    return "not measured: " + reasons[0].splitlines()[-1]
