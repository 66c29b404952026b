"""Spark queries that are killed at random moments: each message once, and planted bugs found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from proof.spark import results
from proof.spark.__main__ import play
from proof.spark.campaign import VICTIMS, Outcome
from proof.spark.work import PLANTED, WORK

from leasehold.testing import InProcessServer


def piece(row: str, **figures: Any) -> dict[str, Any]:
    """Return what a piece says in which nothing was wrong."""
    names = ("runs", "put", "results", "lost", "doubled", "left", "events", "wrong_events")
    return {"row": row, "passed": True, "kills": {}} | dict.fromkeys(names, 0) | figures


def test_pieces_add_up() -> None:
    """By row and by what was killed; a planted bug is no row of the table."""
    pieces = [
        piece("join", kills={"driver": 2, "server": 1}, put=10),
        piece("join", kills={"driver": 1}, put=5, lost=1, passed=False),
        piece("planted: appends again", kills={"driver": 2}, put=40, doubled=20),
    ]
    total = results.totals(pieces)["join"]
    assert total["kills"] == {"driver": 3, "executor": 0, "server": 1, "Python workers": 0}
    assert (total["put"], total["lost"], total["failed"]) == (15, 1, 1)
    table = results.table(pieces).splitlines()
    assert table[-2] == "| join | 3 | 0 | 1 | 0 | 4 | 15 | 1 | 0 |"
    assert table[-1] == "| all | 3 | 0 | 1 | 0 | 4 | 15 | 1 | 0 |"


def test_the_table_has_all_rows() -> None:
    """And no others: a query that is added is shown."""
    assert tuple(WORK) == results.ROWS
    assert tuple(PLANTED) == results.PLANTED
    assert tuple(map(str, VICTIMS)) == results.VICTIMS


@pytest.mark.parametrize("wrong", ["lost", "doubled", "left", "wrong_events", "said"])
def test_whatever_is_wrong_fails_a_piece(wrong: str) -> None:
    """One message is enough."""
    assert Outcome().passed
    bad = 1 if wrong in {"left", "wrong_events"} else ["message 1"]
    assert not Outcome(**{wrong: bad}).passed  # type: ignore[arg-type]


@pytest.mark.parametrize("row", WORK)
def test_work_that_no_query_does_is_missed(row: str, tmp_path: Path) -> None:
    """All that must come out is expected, and nothing of it is found."""
    work = WORK[row](tmp_path)
    with InProcessServer() as server, server.client() as client:
        work.prepare(client)
        work.feed(client)
        work.finish(client)
        assert work.expected.total() > 0
        assert not work.is_done(client)
        assert not work.found(client)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("row", WORK)
def test_each_message_once_through_a_kill_of_each_kind(row: str, tmp_path: Path) -> None:
    """Driver, executor, server and a Python process; more of them: ``python -m proof.spark``."""
    seen = play(row, len(VICTIMS), 1, tmp_path / "kills")
    assert seen["passed"], seen
    assert sum(seen["kills"].values()) == len(VICTIMS)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("row", PLANTED)
def test_a_planted_bug_is_found(row: str, tmp_path: Path) -> None:
    """A sink that adds its rows again doubles them; one that notes too early loses them."""
    seen = play(row, 0, 1, tmp_path / "kills")
    assert seen["passed"], seen
    assert seen["doubled" if row.endswith("again") else "lost"]
