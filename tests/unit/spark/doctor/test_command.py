"""``leasehold doctor`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from leasehold.cli import spark as command
from leasehold.spark.doctor import Finding, Level
from tests.unit.cli.support import Shell


@pytest.fixture
def shell() -> Shell:
    """The command line, with a server that has no answers yet."""
    return Shell()


def test_clean_bill(shell: Shell, tmp_path: Path) -> None:
    """Where nothing is wrong the exit code is 0."""
    program = tmp_path / "job.py"
    program.write_text("x = 1\n")
    result = shell("doctor", "--no-server", "--program", str(program))
    assert result.exit_code == 0
    assert "All checks passed." in result.output


def test_warning_has_a_code_of_its_own(shell: Shell, tmp_path: Path) -> None:
    """Scripts can tell a warning from a failure, and read the same facts."""
    program = tmp_path / "job.py"
    program.write_text("w.trigger(once=True)\n")
    result = shell("doctor", "--no-server", "--program", str(program), "--json")
    assert result.exit_code == 4
    told = json.loads(result.output)
    assert told["level"] == "warn"
    (finding,) = told["findings"]
    assert (finding["check"], finding["level"]) == ("trigger", "warn")
    assert finding["cure"] == "Say trigger(availableNow=True)."


def test_missing_server_is_a_finding(shell: Shell) -> None:
    """A server that does not answer fails the check, with a cure in place of an error."""
    refused = httpx.ConnectError("refused")
    shell.server._replies["GET", "/readyz"] = [refused]
    shell.server.on("GET", "/queues", refused)
    result = shell("doctor")
    assert result.exit_code == 1
    assert "server-reachable" in result.output
    assert "What to do: Start a server" in result.output


def test_settings_of_spark_are_looked_at(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """--conf asks for the checks of Spark, and is what they look at."""
    monkeypatch.setattr(command, "_look_at_spark", lambda settings: [_told(*settings)])
    result = shell("doctor", "--no-server", "--conf", "spark.master=local[2]")
    assert "spark.master=local[2]" in result.output


def test_setting_without_a_value_is_refused(shell: Shell) -> None:
    """A setting that is none is a mistake in the command line."""
    result = shell("doctor", "--no-server", "--conf", "spark.master")
    assert result.exit_code == 2
    assert "NAME=VALUE" in result.output


def _told(found: str) -> Finding:
    return Finding(check="told", level=Level.OK, found=found)
