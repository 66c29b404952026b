"""The sample of ``examples/mns_change_visibility`` as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.timeout(120)

CHECKOUT: Final = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the sample from the checkout."""
    return subprocess.run(
        (sys.executable, "-m", "examples.mns_change_visibility", *arguments),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_long_work_and_a_stuck_worker() -> None:
    """All checks hold, with a server of its own."""
    done = run(
        *("--message-minimal-life", "0.6", "--timer-interval", "0.2"),
        *("--queue-message-visibility-timeout", "2", "--message-timeout", "4", "--jobs", "3"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.count("[ok]") == 6
    assert "may not delete" in done.stdout


def test_settings_that_cannot_be_safe() -> None:
    """The rule that the sample's documentation gives is checked."""
    done = run("--message-minimal-life", "2.6")
    assert done.returncode == 2
    assert "visibility_timeout_s" in done.stdout
