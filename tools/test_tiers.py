"""Count the tests of each tier: ``python tools/test_tiers.py``; ``--record`` writes durations.json.

What is recorded is the last run of ``make test`` and of ``make test-long`` on this machine, which
should have had nothing else to do. A test whose cases take half a second each moves to ``make
test-long``, and comes back when they take half of that; those of the contracts stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.durations import RECORD, TIERS, Duration, Run, function_id, known_run, moved_tests  # noqa: E402

MOVED_S: Final = 0.5
STAY: Final = "tests/contract/"


class Count:
    """A plugin that counts cases, and looks at what the last runs took."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.unknown = set(moved_tests())
        """Names in the record that no test has."""
        self.runs: dict[str, tuple[Run | None, bool]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Count."""
        for item in items:
            marks = {mark.name for mark in item.iter_markers()} & {"slow", "long"}
            self.cases["test-slow" if "slow" in marks else "test-long" if marks else "test"] += 1
            self.cases["moved"] += function_id(item.nodeid) in moved_tests()
            self.unknown.discard(function_id(item.nodeid))
        self.runs = {tier: known_run(config, tier) for tier in TIERS}


def moved(tests: Mapping[str, Duration]) -> dict[str, float]:
    """Return the tests that are to move, and seconds per case."""
    chosen = {}
    for name, duration in sorted(tests.items()):
        case_s = duration.call_s / duration.cases
        if not name.startswith(STAY) and case_s >= MOVED_S / (1 + (name in moved_tests())):
            chosen[name] = round(case_s, 1)
    return chosen


def as_text(fields: Mapping[str, Any]) -> str:
    """Return JSON with a line for each test or file, so that changes can be read."""
    parts = []
    for name, value in fields.items():
        if name == "moved":
            text = _lines(value)
        else:
            text = f'{{"wall_s": {value["wall_s"]}, "tests": {_lines(value["tests"])}}}'
        parts.append(f"{json.dumps(name)}: {text}")
    return "{" + ",\n".join(parts) + "}\n"


def _lines(values: Mapping[str, Any]) -> str:
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def main() -> int:
    """Count, or record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write what the last runs took")
    options = parser.parse_args()
    count = Count()
    code = pytest.main(
        ["--collect-only", "-m", "", "-p", "no:terminal", f"--rootdir={ROOT}"], [count]
    )
    if code:
        return int(code)
    if options.record:
        tests = {
            name: duration
            for run, is_of_here in count.runs.values()
            if run and is_of_here
            for name, duration in run.tests.items()
        }
        fields: dict[str, Any] = {"moved": moved(tests)}
        for tier, (run, is_of_here) in count.runs.items():
            if run is None or not is_of_here:
                print(f"make {tier} has not run here.", file=sys.stderr)
                return 1
            fields[tier] = run.by_file().to_json()
        RECORD.write_text(as_text(fields), encoding="utf-8")
    for tier in (*TIERS, "test-slow"):
        run, _ = count.runs.get(tier, (None, False))
        print(
            f"make {tier:10}{count.cases[tier]:7,} cases" + (f"{run.wall_s:8.0f} s" if run else "")
        )
    print(f"Of make test-long, {count.cases['moved']:,} are there for what they took.")
    for name in sorted(count.unknown):
        print(f"{RECORD.name}: there is no test {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
