"""``leasehold job``, and purge and redrive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold.client import Client
from leasehold.testing.time import START_MS
from tests.unit.cli.support import COUNTS, JOB, Shell

RUNNING = JOB | {"state": "running", "examined": 10, "matched": 8, "moved": 8}


def test_purge(shell: Shell) -> None:
    """A small job is over with the first answer."""
    shell.server.on("POST", "/queues/orders/purge", JOB)
    words = ("queue", "purge", "orders", "--state", "delayed", "--older-than", "7d", "--yes")
    result = shell(*words)
    assert result.output == "1,236 messages removed, of 1,236 examined.\n"
    wanted = {"states": ["delayed"], "min_age_s": 604_800}
    assert shell.server.sent == {"filter": wanted, "wait_s": 1.0}


def test_purge_asks(shell: Shell) -> None:
    """How many there are is counted first, exactly for a filter."""
    shell.is_interactive = True
    shell.server.on("GET", "/queues/orders/counts", COUNTS)
    shell.server.on("POST", "/queues/orders/purge", JOB | {"matched": 3, "dry_run": True})
    refused = shell("queue", "purge", "orders", stdin="n\n")
    assert refused.exit_code == 1
    assert "Remove 1,236 messages of queue orders for good?" in refused.stderr
    refused = shell("queue", "purge", "orders", "--text", "x", stdin="n\n")
    assert "Remove 3 messages of queue orders for good?" in refused.stderr
    assert shell.server.sent["dry_run"] is True


@pytest.mark.parametrize("words", [("queue", "purge", "orders"), ("redrive", "orders")])
def test_nobody_to_ask(shell: Shell, words: tuple[str, ...]) -> None:
    """Without a terminal nothing is begun unless --yes is there."""
    result = shell(*words, stdin="y\n")
    assert result.exit_code == 2
    assert shell.server.requests == []


def test_dry_run_needs_no_confirmation(shell: Shell) -> None:
    """Nothing happens to anything."""
    shell.server.on("POST", "/queues/orders/purge", JOB | {"dry_run": True, "moved": 0})
    result = shell("queue", "purge", "orders", "--dry-run")
    assert result.output == "1,236 messages matched, of 1,236 examined.\n"


@pytest.mark.parametrize("words", [("redrive",), ("queue", "redrive")])
def test_redrive(shell: Shell, words: tuple[str, ...]) -> None:
    """With everything that can be said about how."""
    shell.is_interactive = True
    shell.server.on("GET", "/queues/orders/counts", COUNTS)
    shell.server.on("POST", "/queues/orders/redrive", JOB | {"kind": "redrive", "moved": 5})
    options = ("--rate", "10", "--canary", "5", "--target", "other")
    result = shell(*words, "orders", *options, stdin="y\n")
    assert "Move 5 messages back to queue other?" in result.stderr
    assert result.stdout == "5 messages brought back, of 1,236 examined.\n"
    assert shell.server.sent == {
        "rate_per_s": 10.0,
        "canary": 5,
        "target": "other",
        "wait_s": 1.0,
    }


def test_a_job_that_takes_longer_is_followed(shell: Shell) -> None:
    """To its end, which decides about the exit code."""
    stopped = JOB | {"state": "stopped", "moved": 8, "note": "The canary failed."}
    shell.server.on("POST", "/queues/orders/purge", RUNNING)
    shell.server.on("GET", "/jobs/j1", stopped)
    result = shell("queue", "purge", "orders", "-y")
    assert result.exit_code == 1
    assert result.output == "Stopped after 8 messages removed. The canary failed.\n"


def test_no_wait(shell: Shell) -> None:
    """The job is named, and how to follow it."""
    shell.server.on("POST", "/queues/orders/purge", RUNNING)
    result = shell("queue", "purge", "orders", "-y", "--no-wait")
    assert (result.exit_code, "wait_s" in shell.server.sent) == (0, False)
    assert "continues as job j1: 8 messages removed so far." in result.stdout
    assert "leasehold job watch j1" in result.stderr


def test_ctrl_c_ends_the_watching_and_not_the_job(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, with the command that would stop it."""

    def interrupted(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait_for_job", interrupted)
    shell.server.on("GET", "/jobs/j1", RUNNING)
    result = shell("job", "watch", "j1")
    assert result.exit_code == 130
    assert "leasehold job stop j1" in result.stderr
    assert shell.server.asked == ["GET /jobs/j1"]


def test_list(shell: Shell) -> None:
    """The newest first, as the server gives them."""
    made = RUNNING | {"created_at_ms": START_MS - 30_000, "dry_run": True, "note": "n"}
    shell.server.on("GET", "/jobs", {"jobs": [made]})
    text = shell("job", "list", "--queue", "orders", "--limit", "7").output
    assert text.splitlines()[2].split() == [
        *("j1", "orders", "purge", "(dry", "run)", "running", "30", "s"),
        *("10", "of", "1,236", "8", "8", "n"),
    ]
    assert dict(shell.server.requests[-1].url.params) == {"limit": "7", "queue": "orders"}
    assert json.loads(shell("job", "list", "--json").output)["job_id"] == "j1"
    shell.server.on("GET", "/jobs", {"jobs": []})
    assert shell("job", "list").output == "There are no jobs.\n"


def test_show_and_stop(shell: Shell) -> None:
    """One job, in words and in JSON."""
    shell.server.on("GET", "/jobs/j1", RUNNING | {"created_at_ms": START_MS - 30_000})
    text = shell("job", "show", "j1").output
    assert "  examined     10 of 1,236" in text.splitlines()
    assert json.loads(shell("job", "show", "j1", "--json").output)["examined"] == 10
    shell.server.on("POST", "/jobs/j1/stop", RUNNING | {"state": "stopped"})
    result = shell("job", "stop", "j1")
    assert (result.exit_code, result.output) == (0, "Stopped after 8 messages removed.\n")


@pytest.mark.parametrize(
    ("options", "sent", "said"),
    [
        (
            ("--delay", "0", "--priority", "1", "--time-to-live", "never", "--rate", "5"),
            {"action": "amend", "delay_s": 0, "priority": 1, "time_to_live_s": -1, "rate_per_s": 5},
            "changed",
        ),
        (
            ("--priority", "2", "--force"),
            {"action": "amend", "priority": 2, "force": True},
            "changed",
        ),
        (
            ("--end-lease", "--delay", "1m", "--note", "wrong version"),
            {"action": "end-lease", "delay_s": 60, "reason": "wrong version"},
            "taken back",
        ),
        (("--end-lease",), {"action": "end-lease"}, "taken back"),
        (
            ("--extend-lease", "1h"),
            {"action": "extend-lease", "visibility_timeout_s": 3_600},
            "given more time",
        ),
    ],
)
def test_change(shell: Shell, options: tuple[str, ...], sent: dict[str, Any], said: str) -> None:
    """Each action with what it can be told, for the messages that the filter means."""
    kind = {"kind": sent["action"]}
    shell.server.on("POST", "/queues/orders/change", JOB | kind | {"moved": 5})
    result = shell("message", "change", "orders", "--holder", "worker-7", *options, "--yes")
    assert result.output == f"5 messages {said}, of 1,236 examined.\n"
    assert shell.server.sent == sent | {"filter": {"holder": "worker-7"}, "wait_s": 1.0}


def test_change_asks(shell: Shell) -> None:
    """Always after counting: without a filter not all messages are meant either."""
    shell.is_interactive = True
    shell.server.on("POST", "/queues/orders/change", JOB | {"matched": 3, "dry_run": True})
    refused = shell("message", "change", "orders", "--extend-lease", "1h", stdin="n\n")
    assert refused.exit_code == 1
    assert "Extend the leases of 3 messages of queue orders?" in refused.stderr
    assert shell.server.sent["dry_run"] is True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "There is nothing to change"),
        (("--note", "x"), "--note needs --end-lease"),
        (("--extend-lease", "1h", "--priority", "1"), "excludes all other changes"),
        (("--extend-lease", "1h", "--end-lease"), "excludes all other changes"),
        (("--end-lease", "--priority", "1"), "can have --delay and --note only"),
        (("--end-lease", "--force"), "can have --delay and --note only"),
    ],
)
def test_changes_that_are_none(shell: Shell, options: tuple[str, ...], said: str) -> None:
    """Nothing is asked of the server."""
    result = shell("message", "change", "orders", *options, "--yes")
    assert result.exit_code == 2
    assert said in result.output
    assert shell.server.requests == []
