"""How many tests there are and how long they take, as of the last run on this machine.

pytest keeps that in its cache. ``durations.json`` has what was recorded last, for machines without
a run; ``tools/test_tiers.py --record`` writes it. It also names the tests that ``make test`` leaves
to ``make test-long`` for what they took, beside those that are marked ``long`` where they stand.
"""

from __future__ import annotations

import functools
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pytest

RECORD: Final = Path(__file__).with_name("durations.json")
TIERS: Final = {"test": "not slow and not long", "test-long": "long"}
"""Targets of make, and the marks that each runs."""
FULL_EXIT_CODES: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


class Duration(NamedTuple):
    """Of a test, or of all in a file."""

    cases: int
    seconds: float
    """With what it sets up, which may serve other tests too."""
    call_s: float
    """Without."""

    def plus(self, other: Duration) -> Duration:
        """Add them up."""
        seconds, call_s = self.seconds + other.seconds, self.call_s + other.call_s
        return Duration(self.cases + other.cases, round(seconds, 3), round(call_s, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What all tests of a tier took, by their ids or by their files.

    Attributes:
        wall_s: From the first test to the last, seconds.
        tests: All of them.
    """

    wall_s: float
    tests: Mapping[str, Duration]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Run:
        """Read what ``to_json`` has written."""
        tests = {name: Duration(*numbers) for name, numbers in fields["tests"].items()}
        return cls(wall_s=fields["wall_s"], tests=tests)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {"wall_s": self.wall_s, "tests": self.tests}

    def by_file(self) -> Run:
        """Return the same by files."""
        files: defaultdict[str, Duration] = defaultdict(lambda: Duration(0, 0.0, 0.0))
        for name, duration in self.tests.items():
            file = name.partition("::")[0]
            files[file] = files[file].plus(duration)
        return Run(wall_s=self.wall_s, tests=files)

    @property
    def cases(self) -> int:
        """How many there are."""
        return sum(duration.cases for duration in self.tests.values())


def function_id(node_id: str) -> str:
    """Return the test of which a case is one."""
    return node_id.partition("[")[0]


@functools.cache
def record() -> Mapping[str, Any]:
    """Return what was recorded."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def moved_tests() -> Mapping[str, float]:
    """Return the tests that took long when they were recorded, and their seconds per case."""
    return cast("Mapping[str, float]", record().get("moved", {}))


def tier_of(config: pytest.Config) -> str | None:
    """Return the target whose marks pytest runs; None for a choice of another kind."""
    if config.option.keyword:
        return None
    return next((name for name, marks in TIERS.items() if marks == config.option.markexpr), None)


def known_run(config: pytest.Config, tier: str) -> tuple[Run | None, bool]:
    """Return the last run on this machine or else the one recorded, and whether it was here."""
    cache = getattr(config, "cache", None)
    fields = cache.get(_key(tier), None) if cache else None
    recorded = record().get(tier)
    if fields:
        return Run.from_json(fields), True
    return (Run.from_json(recorded) if recorded else None), False


def durations_by_file(config: pytest.Config) -> Mapping[str, Duration]:
    """Return how long files of tests take, as far as it is known."""
    tier = tier_of(config)
    run = known_run(config, tier)[0] if tier else None
    return run.by_file().tests if run else {}


def announcement(config: pytest.Config) -> str:
    """Return how many tests there are and how long they take about; empty if that is unknown."""
    tier = tier_of(config)
    run, is_of_here = known_run(config, tier) if tier else (None, False)
    if run is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return ""
    minutes, seconds = divmod(round(run.wall_s), 60)
    source = "as the last time here" if is_of_here else "as recorded on two cores"
    others = [
        f"{other.cases:,} in make {name}"
        for name in TIERS
        if name != tier and (other := known_run(config, name)[0]) is not None
    ]
    return ", ".join(
        [f"make {tier}: {run.cases:,} tests in about {minutes}:{seconds:02} min {source}", *others]
    )


class Stopwatch:
    """The plugin that keeps what a full run took, in the process that shares the tests out."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._began_s = 0.0
        self._cases: defaultdict[str, set[str]] = defaultdict(set)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._call_s: defaultdict[str, float] = defaultdict(float)

    def pytest_sessionstart(self) -> None:
        """Begin."""
        self._began_s = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a step of a test took."""
        test = function_id(report.nodeid)
        self._cases[test].add(report.nodeid)
        self._seconds[test] += report.duration
        if report.when == "call":
            self._call_s[test] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Keep it."""
        cache = getattr(session.config, "cache", None)
        if exitstatus in FULL_EXIT_CODES and cache and not session.shouldfail:
            tests = {
                name: Duration(
                    len(cases), round(self._seconds[name], 3), round(self._call_s[name], 3)
                )
                for name, cases in self._cases.items()
            }
            run = Run(wall_s=round(time.monotonic() - self._began_s, 1), tests=tests)
            cache.set(_key(self._tier), run.to_json())


def _key(tier: str) -> str:
    return f"leasehold/{tier}"
