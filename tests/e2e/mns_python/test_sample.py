"""The sample of ``examples/mns_change_visibility`` as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

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


@pytest.mark.long
def test_long_work_and_a_stuck_worker() -> None:
    """All checks hold, with a server of its own."""
    done = run(
        *("--message-minimal-life", "0.6", "--timer-interval", "0.2"),
        *("--queue-message-visibility-timeout", "2", "--message-timeout", "4", "--jobs", "3"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(
        "MessageMinimalLife 0.6 s, TimerInterval 0.2 s, QueueMessageVisibilityTimeout 2 s, "
        "MessageTimeout 4 s\n"
    )
    assert "FAILED" not in done.stdout
    assert done.stdout.count("[ok]") == 6
    assert "may not delete" in done.stdout


def test_settings_that_cannot_be_safe() -> None:
    """The rule that the sample's documentation gives is checked, in its words."""
    done = run("--message-minimal-life", "2.6")
    assert done.returncode == 2
    assert done.stdout.startswith(
        "QueueMessageVisibilityTimeout is 3; it must be above TimerInterval + MessageMinimalLife"
    )


def test_settings_that_the_service_does_not_have() -> None:
    """Its own bounds are known before anything is sent."""
    done = run("--queue-message-visibility-timeout", "43201", "--message-timeout", "90000")
    assert done.returncode == 2
    assert "QueueMessageVisibilityTimeout is 43201" in done.stdout
