"""``leasehold spark cluster`` hands its options on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from leasehold.cli import main
from leasehold.spark import cluster


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the program of the cluster was started with."""
    words: list[str] = []

    def run(arguments: Sequence[str]) -> int:
        words.extend(arguments)
        return 1

    monkeypatch.setattr(cluster, "main", run)
    return words


def test_defaults(given: list[str]) -> None:
    """Unless told otherwise there are two workers, and the master is where people look for it."""
    result = CliRunner().invoke(main, ["spark", "cluster"])
    assert result.exit_code == 1  # that of the program
    assert dict(zip(given[::2], given[1::2], strict=True)) == {
        "--workers": "2",
        "--cores": "1",
        "--memory": "1g",
        "--port": "7077",
        "--web-port": "0",
    }


def test_all_options(given: list[str]) -> None:
    """Every option is one of the program."""
    typed = "--workers 3 --cores 2 --memory 2g --port 0 --web-port 8080 --folder here"
    CliRunner().invoke(main, ["spark", "cluster", *typed.split()])
    assert sorted(zip(given[::2], given[1::2], strict=True)) == sorted(
        zip(typed.split()[::2], typed.split()[1::2], strict=True)
    )
