"""How a run is doing, from what its tasks tell."""

from __future__ import annotations

import io
import json

from leasehold.spark.pipeline.display import (
    Bars,
    JsonLines,
    Nothing,
    TextLines,
    display_for,
    line_of,
)
from leasehold.spark.pipeline.report import Board, Figures, Progress, StageFigures
from tests.unit.spark.pipeline.support import who


def figures(done: int, *, in_work: int = 0, waiting: int = 0, **outcomes: int) -> Figures:
    """Return those of a task."""
    stage = StageFigures(working=in_work, done=done, failed=1, seconds=done * 0.5)
    return Figures(
        stages={"scan": stage},
        outcomes={"done": done, **outcomes},
        in_work=in_work,
        waiting=waiting,
    )


def progress(board: Board, now_s: float = 10.0, backlog: int | None = 7) -> Progress:
    """Look at the board."""
    return board.progress(now_ms=1, now_s=now_s, backlog=backlog)


def test_tasks_are_summed_and_those_that_are_gone_have_nothing_in_work() -> None:
    """What a dead task has done stays done; what it had is in the queue again."""
    board = Board(["scan", "ship"], began_s=0)
    for link in ("a", "b"):
        board.came(who(link, executor=f"vm:{link}"))
        board.told(link, figures(10, in_work=4, waiting=2, poisoned=1))
    both = progress(board)
    assert (both.done, both.poisoned, both.in_work, both.waiting) == (20, 2, 8, 4)
    assert (both.tasks, both.executors) == (2, 2)
    assert both.stages["scan"].working == 8
    assert both.stages["ship"] == StageFigures()
    assert both.expected == 22 + 8 + 4 + 7
    board.went("a")
    one = progress(board)
    assert (one.done, one.in_work, one.waiting, one.tasks) == (20, 4, 2, 1)
    assert one.stages["scan"].working == 4
    board.came(who("a"))
    assert progress(board).tasks == 2


def test_the_rate_is_that_of_the_last_seconds() -> None:
    """A long quiet past does not hide that it goes fast now, and the other way round."""
    board = Board(["scan"], began_s=0)
    board.came(who("a"))
    for now_s in range(1, 64):
        board.told("a", figures(max(0, now_s - 60) * 100))
        seen = progress(board, float(now_s))
    assert seen.per_s == 60
    for now_s in range(64, 75):
        seen = progress(board, float(now_s))
    assert seen.per_s == 0
    assert seen.left_s is None


def test_the_end_is_foreseen() -> None:
    """What is left over what is done in a second."""
    board = Board(["scan"], began_s=0)
    board.came(who("a"))
    board.told("a", figures(50, in_work=3))
    seen = progress(board, 5.0, backlog=97)
    assert (seen.per_s, seen.left_s) == (10.0, 10.0)
    assert progress(board, 5.0, backlog=None).left_s is None


def test_machines_get_a_line_of_json() -> None:
    """Each line is an object that says what it is; the last is the end."""
    board, stream = Board(["scan"], began_s=0), io.StringIO()
    board.came(who("a"))
    board.told("a", figures(2, in_work=1, returned=1, interrupted=2))
    display = display_for("json", "films", ["scan"], stream)
    assert isinstance(display, JsonLines)
    display.update(progress(board))
    display.end(progress(board))
    first, last = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], last["event"]) == ("progress", "end")
    assert (first["done"], first["in_work"], first["given_back"]) == (2, 1, 3)
    assert first["stages"]["scan"] == {
        "working": 1,
        "done": 2,
        "failed": 1,
        "skipped": 0,
        "overdue": 0,
        "mean_s": 0.5,
    }


def test_people_see_a_bar_for_each_stage_with_the_figures() -> None:
    """Names in square brackets are no markup, and what is bad is said."""
    board, stream = Board(["scan", "ship"], began_s=0), io.StringIO()
    board.came(who("a"))
    board.told("a", figures(1200, in_work=3, poisoned=2, failed=4))
    bars = display_for("bars", "[bold]films", ["scan", "ship"], stream)
    assert isinstance(bars, Bars)
    bars.end(progress(board))
    text = stream.getvalue()
    lines = text.splitlines()
    assert "[bold]films" in lines[0]
    assert "1,200 done" in text
    assert "2 poisoned" in text
    assert "4 failed, to be tried again" in text
    assert any(line.startswith("scan") and "1,200/1,212" in line for line in lines)
    assert any(line.startswith("ship") and "0/1,212" in line for line in lines)


def test_elsewhere_a_line_says_it_all() -> None:
    """Logs have no bars."""
    board = Board(["scan"], began_s=0)
    board.came(who("a"))
    board.told("a", figures(2, in_work=1, poisoned=1, lost=3))
    assert isinstance(display_for("auto", "films", ["scan"], io.StringIO()), TextLines)
    assert isinstance(display_for(None, "films", ["scan"]), Nothing)
    said = line_of(progress(board))
    for part in ("2 done", "1 in work", "7 in the queue", "1 poisoned", "3 lost", "scan 1"):
        assert part in said
