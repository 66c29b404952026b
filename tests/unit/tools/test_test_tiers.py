"""The tiers of the tests: what is recorded of them, and files that are collected in their turn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import test_tiers

from tests.durations import RECORD, Duration, moved_tests, record
from tests.patience import PATIENCE_S

ROOT = RECORD.parent.parent
TOO_MUCH = 0.1
"""Of all cases; so many stay out of ``make test`` at most for what they take."""


def test_most_tests_are_in_make_test() -> None:
    """Nine of ten; all of the contracts."""
    moved = moved_tests()
    assert not [name for name in moved if name.startswith("tests/contract/")]
    cases = {tier: record()[tier]["tests"] for tier in ("test", "test-long")}
    count = {tier: sum(each[0] for each in tests.values()) for tier, tests in cases.items()}
    assert count["test-long"] < TOO_MUCH * sum(count.values())


def test_which_tests_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose cases take half a second; one that moved comes back below half of that."""
    monkeypatch.setattr(test_tiers, "moved_tests", lambda: {"tests/a.py::was_long": 0.7})
    tests = {
        "tests/a.py::long": Duration(4, 9.0, 2.0),
        "tests/a.py::was_long": Duration(1, 0.3, 0.3),
        "tests/a.py::short_after_a_long_setup": Duration(1, 5.0, 0.3),
        "tests/contract/a.py::long": Duration(1, 5.0, 5.0),
    }
    assert test_tiers.moved(tests) == {"tests/a.py::long": 0.5, "tests/a.py::was_long": 0.3}


def test_the_record_reads_back() -> None:
    """It is JSON with a line for each test."""
    fields = {"moved": {"b": 0.5, "a": 1.0}, "test": {"wall_s": 1.0, "tests": {"c": [1, 2.0, 3]}}}
    text = test_tiers.as_text(fields)
    assert json.loads(text) == fields
    assert '\n"a": 1.0\n' in text


PLAIN = """
import pytest

@pytest.fixture(scope="session")
def opened():
    print("opened")
    yield
    print("closed")

def test_good(opened): pass

def test_bad(opened): assert 0, "as it should"

@pytest.mark.long
@pytest.mark.parametrize("number", range(3))
def test_many(number, shared): assert shared == "here"
"""


@pytest.mark.long
def test_processes_collect_what_they_run(tmp_path: Path) -> None:
    """They find the same as one alone, fixtures of folders too; what cannot be imported fails."""
    folder = tmp_path / "tests"
    (folder / "sub").mkdir(parents=True)
    for name in ("__init__.py", "by_file.py", "durations.py", "conftest.py"):
        (folder / name).write_bytes((RECORD.parent / name).read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    shared = 'import pytest\n@pytest.fixture\ndef shared(): return "here"\n'
    (folder / "sub" / "conftest.py").write_text(shared)
    (folder / "sub" / "test_one.py").write_text(PLAIN)
    (folder / "sub" / "test_two.py").write_text(PLAIN)
    (folder / "test_broken.py").write_text("import there_is_no_such_module\n")
    (folder / "broken").mkdir()
    (folder / "broken" / "conftest.py").write_text("import there_is_no_such_module\n")
    (folder / "broken" / "test_three.py").write_text(PLAIN)

    def outcomes(*arguments: str) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, "-p", "no:cacheprovider"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert run.returncode == 1, run.stdout + run.stderr
        return re.sub(r" in .*", "", run.stdout.splitlines()[-1])

    assert "2 failed, 2 passed, 2 errors" in outcomes("-n", "2")
    assert "1 failed, 1 passed" in outcomes("-n", "2", "tests/sub/test_one.py")
    assert "2 failed, 2 passed" in outcomes("-n", "2", "tests/sub", "-k", "good or bad", "-m", "")
    assert "2 failed, 8 passed" in outcomes("-n", "2", "tests/sub", "-m", "")
    assert "2 errors" in outcomes("-n", "2", "--ignore", "tests/sub")
