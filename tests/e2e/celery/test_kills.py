"""What becomes of tasks when workers are killed, by the harness of the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.celery.conftest import ROOT
from tests.patience import PROGRAM_S


@pytest.mark.long
def test_kills_lose_nothing_and_double_only_what_was_with_the_killed(tmp_path: Path) -> None:
    """Every task's effect is there; slow tasks of workers that live are not doubled."""
    out = tmp_path / "kills.json"
    command = [sys.executable, "-m", "benchmarks.celery_brokers", "--parts", "kills"]
    command += ["--brokers", "leasehold", "--tasks", "800", "--kills", "3", "--out", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PROGRAM_S
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["kills"]["leasehold"]
    assert found["kills"] >= 1
    assert found["slow_tasks"] == 8
    assert (found["missing"], found["doubles_of_others"]) == (0, 0), found
