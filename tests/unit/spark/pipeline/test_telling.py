"""A run tells the queue's server how it is doing, and is none the worse if that fails."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.client import Client
from leasehold.client.models import ExecutorReport, PipelineReport
from leasehold.spark.pipeline import backlog
from leasehold.spark.pipeline.backlog import Teller
from leasehold.spark.pipeline.report import Board, Figures, Progress, StageFigures, Who
from leasehold.worker.adapters.specs import QueueSpec

SPEC = QueueSpec("leasehold", "videos", "UseDevelopmentStorage=true")


def _board() -> Board:
    board = Board(["scan"], 0.0)
    for number, executor in enumerate(("e-0", "e-0", "e-1")):
        link = f"l{number}"
        board.came(Who(link, executor, "h", 1, number, 0))
        stages = {"scan": StageFigures(working=1, done=2, seconds=3.0)}
        board.told(link, Figures(stages=stages, outcomes={"done": 2}, in_work=1))
    board.went("l2")
    return board


def _look(board: Board) -> Progress:
    return board.progress(now_ms=5_000, now_s=5.0, backlog=7)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, PipelineReport]]:
    """Give what is reported, in its order."""
    found: list[tuple[str, PipelineReport]] = []
    monkeypatch.setattr(
        Client, "report_pipeline", lambda _, name, report: found.append((name, report))
    )
    monkeypatch.setattr(backlog, "REPORT_EVERY_S", 0.01)
    return found


def test_from_the_start_to_the_end(told: list[tuple[str, PipelineReport]]) -> None:
    """The first report comes at once, the last one says how it ended."""
    board = _board()
    teller = Teller(SPEC, "my videos", 1_000, lambda: _look(board))
    teller.start()
    teller.end("failed", "x" * 1_000, _look(board))
    names, reports = zip(*told, strict=True)
    assert set(names) == {"my-videos"}
    assert [reports[0].state, reports[-1].state] == ["running", "failed"]
    last = reports[-1]
    assert (last.queue, last.began_at_ms, last.backlog, last.done) == ("videos", 1_000, 7, 6)
    assert len(last.failure or "") == 256
    [stage] = last.stages
    assert (stage.name, stage.working, stage.done, stage.mean_s) == ("scan", 2, 6, 1.5)
    assert last.executors == (ExecutorReport("e-0", 2, 2, 4), ExecutorReport("e-1", 0, 0, 2))


@pytest.mark.parametrize(("service", "began_ms"), [("azure", 1), ("leasehold", None)])
def test_nobody_to_tell(
    told: list[tuple[str, PipelineReport]], service: Any, began_ms: int | None
) -> None:
    """Other services, and servers that do not tell the time, hear nothing."""
    spec = QueueSpec(service, "videos", "UseDevelopmentStorage=true")
    board = _board()
    teller = Teller(spec, "v", began_ms, lambda: _look(board))
    teller.start()
    teller.end("done", None, _look(board))
    assert told == []


def test_a_server_that_refuses_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on, and its end waits for nothing."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("no such route")

    monkeypatch.setattr(Client, "report_pipeline", refuse)
    board = _board()
    teller = Teller(SPEC, "v", 1, lambda: _look(board))
    teller.start()
    teller.end("done", None, _look(board))
