"""The video pipeline of ``examples/`` as a user runs it: exit code, summary and files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(150)]

CHECKOUT: Final = Path(__file__).resolve().parents[2]
GIVE_UP_S: Final = 90
OUTPUTS: Final = ["mp4", "small.mp4", "webm"]
GOOD: Final = ["harvest-tour", "cellar-walk", "vineyard-film", "spring-release"]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demonstration from the checkout; a story that does not end fails the test."""
    return subprocess.run(
        (sys.executable, "-m", "examples.video_pipeline", "--timeout", str(GIVE_UP_S), *arguments),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=GIVE_UP_S + 45,
    )


class Run:
    """One run with few and short videos, shared by the tests that read its outcome."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        facts = folder / "summary.json"
        size = ("--videos", "5", "--seconds", "2", "--lease", "3")
        self.process = run_demo("--data-dir", str(self.data), "--json", str(facts), *size)
        self.told = self.process.stdout + self.process.stderr
        assert facts.exists(), self.told
        self.summary: dict[str, Any] = json.loads(facts.read_text())

    def video(self, name: str) -> dict[str, Any]:
        """Return what the summary says about one video."""
        found: dict[str, Any]
        (found,) = (each for each in self.summary["videos"] if each["video"] == name)
        return found

    def check(self, beginning: str) -> dict[str, Any]:
        """Return the one check whose name begins like this."""
        found: dict[str, Any]
        checks = self.summary["checks"]
        (found,) = (each for each in checks if each["name"].startswith(beginning))
        return found

    def attempts(self, name: str, stage: str) -> list[tuple[str, str]]:
        """Return worker and outcome of every try at one stage of one video, in order."""
        tries = self.video(name)["attempts"]
        return [(each["worker"], each["outcome"]) for each in tries if each["stage"] == stage]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The demonstration has been run once, against a server that it started itself."""
    return Run(tmp_path_factory.mktemp("video-pipeline"))


def test_every_check_holds(run: Run) -> None:
    """A run in which everything comes out right ends with exit code 0 and says so."""
    failed = [check for check in run.summary["checks"] if not check["ok"]]
    assert failed == []
    assert len(run.summary["checks"]) == 10
    assert run.summary["ok"] is True
    assert run.process.returncode == 0, run.told
    assert "all 10 checks hold" in run.process.stdout


def test_good_videos_have_each_output_once(run: Run) -> None:
    """At-least-once delivery leaves every output exactly once, and nothing half-written."""
    there = sorted(path.name for path in (run.data / "outputs").iterdir())
    assert there == sorted(f"{video}.{end}" for video in GOOD for end in OUTPUTS)
    for video in GOOD:
        assert run.video(video)["result"] == "completed"
        assert sorted(run.video(video)["published"]) == [f"{video}.{end}" for end in OUTPUTS]


def test_work_of_a_killed_worker_is_resumed(run: Run) -> None:
    """The message of a killed worker goes on at the saved stage with somebody else."""
    ((scanner, scan),) = run.attempts("harvest-tour", "scan")
    encodes = run.attempts("harvest-tour", "encode")
    assert scan == "done"
    assert encodes[0] == (scanner, "killed")
    assert encodes[-1][1] == "done"
    assert encodes[-1][0] != scanner
    states = [each["state"] for each in run.video("harvest-tour")["deliveries"]]
    assert states[:2] == ["scan", "encode"]


def test_a_suspended_worker_steps_back(run: Run) -> None:
    """A worker whose message was taken over meanwhile stops, and cannot write in its name."""
    encodes = run.attempts("cellar-walk", "encode")
    assert encodes[0][1] == "lease lost"
    assert encodes[-1][1] == "done"
    assert encodes[-1][0] != encodes[0][0]
    events = run.video("cellar-walk")["events"]
    assert f"{encodes[0][0]} stepped back: it was not renewed in time" in events
    assert "fence 1 is too old" in run.check("a worker that woke up")["detail"]


def test_renewal_outlasts_the_lease(run: Run) -> None:
    """Work that takes longer than its lease goes through, because the lease is renewed."""
    assert run.video("vineyard-film")["renewals"] >= 1
    assert run.check("work longer than a lease")["ok"]


def test_a_delayed_message_stays_hidden(run: Run) -> None:
    """A message sent with a delay is not delivered before it."""
    assert run.video("spring-release")["delay_s"] == 4
    assert run.check("delayed messages")["ok"]


def test_a_corrupt_video_ends_in_the_poison_queue(run: Run) -> None:
    """After three failures a copy is in the poison queue, with all reasons and the message."""
    (buried,) = run.summary["poison"]
    assert buried["dequeue_count"] == 3
    reasons = [*buried["earlier"], buried["reason"]]
    assert len(reasons) == 3
    assert all("moov atom not found" in reason for reason in reasons)
    text = json.loads(buried["text"])
    assert text["saved"]["stage"] == "scan"
    assert json.loads(text["body"])["video"] == "broken-upload"
    assert run.video("broken-upload")["result"] == "poisoned"
    assert run.video("broken-upload")["published"] == []


def test_a_run_that_falls_short_names_the_failed_checks(tmp_path: Path) -> None:
    """When something promised did not happen, the exit code is 1 and the check is named."""
    facts = tmp_path / "summary.json"
    size = ("--videos", "5", "--seconds", "1", "--timeout", "0")
    process = run_demo("--data-dir", str(tmp_path / "data"), "--json", str(facts), *size)
    assert process.returncode == 1, process.stdout + process.stderr
    assert "✗  every good video was completed" in process.stdout
    assert json.loads(facts.read_text())["ok"] is False


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path: Path) -> None:
    """The data folder is emptied only if an earlier run has made it."""
    precious = tmp_path / "precious.txt"
    precious.write_text("keep me")
    process = run_demo("--data-dir", str(tmp_path))
    assert process.returncode == 1
    assert "not from an earlier run" in process.stdout
    assert precious.read_text() == "keep me"
