"""``leasehold simulate``: what it prints, what it reads, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from leasehold.cli.simulate import simulate

QUICK = ("--work", "exponential:2", "--for", "5m", "--crash-every", "1m")
ROWS = [{"seconds": float(each % 9 + 1), "finished": each % 9 < 8} for each in range(90)]


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(simulate, arguments)


def document(*arguments: str) -> Any:
    """Run the command, and return what it writes for scripts."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_table_has_a_row_for_each_setting_and_for_the_advice() -> None:
    """With the reason for the advice."""
    result = run(*QUICK, "--timeout", "5", "--timeout", "1m")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any(line.strip().startswith("5 s ") for line in lines)
    assert any(line.strip().startswith("60 s ") for line in lines)
    assert sum("advice: " in line for line in lines) == 2
    why = result.stdout.split("\nWhy\n")[1]
    assert "a worker dies once in 60 s of work" in why
    assert "cost at most 5 % more, as estimated; at most " in " ".join(why.split())
    assert "\nWith the first setting\n  messages done a second at the end: " in result.stdout


def test_same_messages_come_for_each_setting_and_each_time() -> None:
    """Chance depends on the seed alone."""
    found = document(*QUICK, "--timeout", "5", "--timeout", "60", "--no-advice")
    short, long = found["settings"]
    assert short["arrived"] == long["arrived"]
    assert short["redeliveries"] > long["redeliveries"]
    assert "advice" not in found
    assert document(*QUICK, "--timeout", "5", "--timeout", "60", "--no-advice") == found
    assert document(*QUICK, "--seed", "2")["settings"][0]["arrived"] != short["arrived"]


def test_settings_are_played_as_given() -> None:
    """Renewal sends renewals; strict receipts and large batches waste work after an outage."""
    renewed = document(*QUICK, "--timeout", "6", "--renew", "3", "--guard", "2", "--no-advice")
    assert renewed["settings"][0]["renewals"] > 0
    assert renewed["settings"][0]["renew_every_s"] == 3
    outage = ("--work", "exponential:1", "--for", "20m", "--outage", "1m-3m", "--timeout", "20")
    worst = ("--batch", "32", "--order", "id", "--lapsed-receipts", "strict", "--load", "0.9")
    assert document(*outage, *worst, "--no-advice")["settings"][0]["wasted_share"] > 0.2
    cured = document(*outage, *worst, "--skip-late", "--no-advice")["settings"][0]
    assert cured["wasted_share"] < 0.02


def test_mixtures_are_drawn_by_their_shares() -> None:
    """Nine of ten take a second, one takes a minute: the advice sees both."""
    found = document("--work", "0.9*constant:1", "--work", "0.1*constant:60", "--for", "1h")
    assert found["work"] == "0.9*constant:1 + 0.1*constant:60"
    assert found["advice"]["timeout_s"] >= 60


@pytest.mark.parametrize("kind", ["list", "lines", "parquet"])
def test_attempts_are_read_from_a_file(tmp_path: Path, kind: str) -> None:
    """As a JSON list, as lines of JSON, as Parquet: all three give the same."""
    path = tmp_path / f"attempts.{'parquet' if kind == 'parquet' else 'json'}"
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "list":
        path.write_text(json.dumps(ROWS))
    else:
        path.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    found = document("--log", str(path), "--for", "10m", "--timeout", "5")
    assert found["work"] == f"90 attempts of {path.name}"
    assert found["settings"][0]["redeliveries"] > 10
    assert found["advice"]["timeout_s"] >= 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "there are no attempts in it"),
        ("{", "cannot be used"),
        ("[3]", "attempt 1: it is no object"),
        ('[{"seconds": -1, "finished": true}]', "attempt 1: seconds must be"),
        ('[{"seconds": 1, "finished": "yes"}]', "attempt 1: finished must be"),
        ('[{"seconds": 1, "finished": true, "weight": 0}]', "attempt 1: weight must be"),
    ],
)
def test_files_with_something_else_in_them_are_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    """With the attempt that is wrong."""
    path = tmp_path / "attempts.json"
    path.write_text(text)
    result = run("--log", str(path))
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "The length of work is missing"),
        (("--work", "gamma:1"), "must be one of"),
        (("--work", "lognormal:20"), "needs a second number"),
        (("--work", "twenty"), "write it like"),
        ((*QUICK, "--outage", "5m-2m"), "ends before it begins"),
        ((*QUICK, "--timeout", "0"), "--timeout must be above 0"),
        ((*QUICK, "--timeout", "3", "--renew", "5"), "longer than --guard"),
        ((*QUICK, "--crash-every", "0"), "--crash-every must be above 0"),
        ((*QUICK, "--per-second", "1e9"), "the limit is"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], said: str) -> None:
    """With a word on what to write."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
