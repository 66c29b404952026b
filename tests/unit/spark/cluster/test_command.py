"""``leasehold spark cluster`` hands its options on."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from leasehold.cli import main
from leasehold.spark import cluster
from leasehold.spark.cluster import ClusterSettings


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ClusterSettings, Path | None]]:
    """What the cluster was started with."""
    calls: list[tuple[ClusterSettings, Path | None]] = []

    def run(settings: ClusterSettings, folder: Path | None) -> int:
        calls.append((settings, folder))
        return 1

    monkeypatch.setattr(cluster, "run", run)
    return calls


def test_defaults(given: list[tuple[ClusterSettings, Path | None]]) -> None:
    """Unless told otherwise there are two workers, and the master is where people look for it."""
    result = CliRunner().invoke(main, ["spark", "cluster"])
    assert result.exit_code == 1  # that of the program
    assert given == [
        (ClusterSettings(workers=2, cores=1, memory="1g", port=7077, web_port=0), None)
    ]


def test_all_options(given: list[tuple[ClusterSettings, Path | None]]) -> None:
    """Every option is one of the cluster's settings."""
    typed = "--workers 3 --cores 2 --memory 2g --port 0 --web-port 8080 --folder here"
    CliRunner().invoke(main, ["spark", "cluster", *typed.split()])
    settings = ClusterSettings(workers=3, cores=2, memory="2g", port=0, web_port=8080)
    assert given == [(settings, Path("here"))]


def test_a_wrong_number_of_workers_is_refused() -> None:
    """The command says what it takes before it starts anything."""
    result = CliRunner().invoke(main, ["spark", "cluster", "--workers", "0"])
    assert result.exit_code == 2
    assert "--workers" in result.stderr
