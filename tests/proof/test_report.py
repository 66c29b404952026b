"""What ``make proof`` says, keeps and repeats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from proof.bugs import planted
from proof.history.prove import Amounts, prove
from proof.report import Check, Order, concluded, empty_folder, shown

_DRAWN = re.compile(r'(?<=\.\.)[\w-]{6}|(?<="token":)"[^"]*"|(?<="message_id":)"[^"]*"')


def checks() -> Iterator[Check]:
    """Say something, and break."""
    yield Check(name="one", passed=True, said="nothing wrong")
    raise ValueError("out of paper")


def test_a_part_that_breaks_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it said before counts, the error is told, and the exit code says so."""
    order = Order(long=False, folder=tmp_path, seed=9)
    found = list(shown("log", checks(), order))
    assert [each["passed"] for each in found] == [True, False]
    assert concluded(found, tmp_path) == 1
    told = capsys.readouterr().out
    assert "ok     log: one: nothing wrong" in told
    assert "ValueError: out of paper" in told
    assert "make proof SEED=9 PARTS=log" in told
    assert json.loads((tmp_path / "report.json").read_text())[1]["seed"] == 9
    assert concluded(found[:1], tmp_path) == 0
    assert concluded([], tmp_path) == 1


def test_only_folders_of_its_own_are_emptied(tmp_path: Path) -> None:
    """Those that an earlier run has made."""
    folder = empty_folder(tmp_path / "out")
    (folder / "left").touch()
    assert [each.name for each in empty_folder(folder).iterdir()] == [".proof"]
    (tmp_path / "letters").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        empty_folder(tmp_path)


def test_a_failure_is_repeated_by_its_seed(tmp_path: Path) -> None:
    """A soak of a server with a bug fails in the same way again, and keeps its schedule."""
    only = Amounts(
        planted=0,
        seconds=0,
        kills=0,
        crash_states=0,
        database_seconds=0,
        failovers=0,
        patroni=0,
        soak_hours=0.1,
    )
    told: dict[str, list[str]] = {}
    for name, seed in (("one", 7), ("two", 7), ("three", 8)):
        order = Order(long=False, folder=empty_folder(tmp_path / name), seed=seed)
        with planted("lost-on-release"):
            failed = [check for check in prove(order, only) if not check.passed]
        assert [check.name for check in failed] == ["soak"]
        assert f"seed {seed}" in failed[0].said
        records = order.folder / "soak" / "records"
        assert str(records) in failed[0].said
        texts = [failed[0].said.replace(str(order.folder), "")]
        texts += [each.read_text() for each in sorted(records.glob("*.jsonl"))]
        # Receipts and ids are drawn so that nobody can guess them, and so nobody can repeat them.
        told[name] = [_DRAWN.sub("", each) for each in texts]
    assert told["one"] == told["two"]
    assert told["one"] != told["three"]
