"""The video pipeline of ``examples/`` as a user runs it: exit code, summary and files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.sdk

CHECKOUT: Final = Path(__file__).resolve().parents[2]
GIVE_UP_S: Final = 400
"""Beside other work on all cores it takes several times as long as alone."""
START_S: Final = 150
"""A Spark cluster takes its time on a busy machine."""
OUTPUTS: Final = ["mp4", "small.mp4", "webm"]
GOOD: Final = ["harvest-tour", "cellar-walk", "vineyard-film", "spring-release"]
CHECKS: Final = {"spark": 18, "workers": 12}


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demonstration from the checkout; a story that does not end fails the test."""
    return subprocess.run(
        (sys.executable, "-m", "examples.video_pipeline", "--timeout", str(GIVE_UP_S), *arguments),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=GIVE_UP_S + START_S,
    )


class Run:
    """One run with few and short videos, shared by the tests that read its outcome."""

    def __init__(self, folder: Path, on: str) -> None:
        self.on = on
        self.data = folder / "data"
        facts = folder / "summary.json"
        size = ("--on", on, "--videos", "6", "--seconds", "2", "--lease", "3")
        self.process = run_demo("--data-dir", str(self.data), "--json", str(facts), *size)
        self.told = self.process.stdout + self.process.stderr
        assert facts.exists(), self.told
        self.summary: dict[str, Any] = json.loads(facts.read_text())

    def video(self, name: str) -> dict[str, Any]:
        """Return what the summary says about one video."""
        found: dict[str, Any]
        (found,) = (each for each in self.summary["videos"] if each["video"] == name)
        return found

    def poisoned(self, name: str) -> dict[str, Any]:
        """Return what the summary says about one message of the poison queue."""
        found: dict[str, Any]
        (found,) = (each for each in self.summary["poison"] if each["video"] == name)
        return found

    def check(self, beginning: str) -> dict[str, Any]:
        """Return the one check whose name begins like this."""
        found: dict[str, Any]
        checks = self.summary["checks"]
        (found,) = (each for each in checks if each["name"].startswith(beginning))
        return found

    def attempts(self, name: str, stage: str) -> list[tuple[str, str]]:
        """Return who did every try at one stage of one video and how it ended, in order."""
        tries = self.video(name)["attempts"]
        return [(each["worker"], each["outcome"]) for each in tries if each["stage"] == stage]


def every_check_holds(run: Run) -> None:
    """A run in which everything comes out right ends with exit code 0 and says so."""
    failed = [check for check in run.summary["checks"] if not check["ok"]]
    assert failed == []
    count = CHECKS[run.on]
    assert len(run.summary["checks"]) == count
    assert run.summary["ok"] is True
    assert run.summary["on"] == run.on
    assert run.process.returncode == 0, run.told
    assert f"all {count} checks hold" in run.process.stdout
    page = {"spark": "pipelines", "workers": "queues"}[run.on]
    first = rf"console: http://127\.0\.0\.1:\d+/console/#/{page}/videos"
    assert re.fullmatch(first, run.process.stdout.splitlines()[0])


def good_videos_have_each_output_once(run: Run) -> None:
    """At-least-once delivery leaves every output exactly once, and nothing half-written."""
    there = sorted(path.name for path in (run.data / "outputs").iterdir())
    assert there == sorted(f"{video}.{end}" for video in GOOD for end in OUTPUTS)
    for video in GOOD:
        assert run.video(video)["result"] == "completed"
        assert sorted(run.video(video)["published"]) == [f"{video}.{end}" for end in OUTPUTS]


def work_of_who_was_killed_is_resumed(run: Run) -> None:
    """The message of who was killed goes on at the saved stage with somebody else."""
    ((scanner, scan),) = run.attempts("harvest-tour", "scan")
    encodes = run.attempts("harvest-tour", "encode")
    assert scan == "done"
    assert encodes[0] == (scanner, "killed")
    assert encodes[-1][1] == "done"
    assert encodes[-1][0] != scanner
    states = [each["state"] for each in run.video("harvest-tour")["deliveries"]]
    assert states[:2] == ["scan", "encode"]


def who_was_suspended_steps_back(run: Run) -> None:
    """Whoever finds their message taken over meanwhile stops, and cannot write in its name."""
    encodes = run.attempts("cellar-walk", "encode")
    assert encodes[0][1] == "lease lost"
    assert encodes[-1][1] == "done"
    assert encodes[-1][0] != encodes[0][0]
    events = run.video("cellar-walk")["events"]
    # Whichever of its threads has a turn first: that of the leases, or that of the session.
    reasons = {"it was not renewed in time", "the session and all its leases are lost"}
    assert any(f"{encodes[0][0]} stepped back: {reason}" in events for reason in reasons)
    assert "fence 1 is too old" in run.check("who woke up")["detail"]


def renewal_outlasts_the_lease(run: Run) -> None:
    """Work that takes longer than its lease goes through, because the lease is renewed."""
    assert run.video("vineyard-film")["renewals"] >= 1
    assert run.check("work longer than a lease")["ok"]


def a_delayed_message_stays_hidden(run: Run) -> None:
    """A message sent with a delay is not delivered before it."""
    assert run.video("spring-release")["delay_s"] == 4
    assert run.check("delayed messages")["ok"]


def a_corrupt_video_ends_in_the_poison_queue(run: Run) -> None:
    """After three failures the message is in the poison queue, with all reasons."""
    buried = run.poisoned("broken-upload")
    assert buried["dequeue_count"] == 3
    assert len(buried["reasons"]) >= 3
    assert all("moov atom not found" in reason for reason in buried["reasons"])
    assert run.video("broken-upload")["result"] == "poisoned"
    assert run.video("broken-upload")["published"] == []


def an_infected_upload_is_caught(run: Run) -> None:
    """What a rule of the scanner matches is set aside at once, and nothing is made of it."""
    buried = run.poisoned("free-tickets")
    assert buried["dequeue_count"] == 1
    assert any("eicar_test_file" in reason for reason in buried["reasons"])
    assert len(run.video("free-tickets")["deliveries"]) == 1
    assert run.video("free-tickets")["published"] == []


def the_page_needs_nothing_else(run: Run) -> None:
    """The timeline names every message and every holder, and fetches nothing."""
    page = (run.data / "index.html").read_text()
    for video in run.summary["videos"]:
        assert f">{video['video']}</text>" in page
        assert all(f"leased by {worker} from" in page for worker in video["workers"])
    assert "prefers-color-scheme: dark" in page
    assert re.findall(r"(?:src|href|url|import)\s*[=(]", page) == []
    assert "<script" not in page


LOOKS: Final = (
    every_check_holds,
    good_videos_have_each_output_once,
    work_of_who_was_killed_is_resumed,
    who_was_suspended_steps_back,
    renewal_outlasts_the_lease,
    a_delayed_message_stays_hidden,
    a_corrupt_video_ends_in_the_poison_queue,
    an_infected_upload_is_caught,
    the_page_needs_nothing_else,
)


@pytest.mark.long
@pytest.mark.parametrize("on", ["spark", "workers"])
def test_the_pipeline(on: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """One run, against a server that it starts itself, is looked at from all sides.

    A fixture would run it once in each process of pytest-xdist.
    """
    run = Run(tmp_path, on)
    for look in LOOKS:
        with subtests.test(look.__name__):
            look(run)


def test_a_run_that_falls_short_names_the_failed_checks(tmp_path: Path) -> None:
    """When something promised did not happen, the exit code is 1 and the check is named."""
    facts = tmp_path / "summary.json"
    size = ("--on", "workers", "--videos", "6", "--seconds", "1", "--timeout", "0")
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
