"""Stages in processes of their own: killed when they take too long, whatever they do."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.worker.errors import LeaseLost, Poison
from leasehold.worker.stages import Goto, StageDied, StageMessage, StageOverdue, Stages
from tests.unit.worker.stages.support import Bench, Diary


def where(message: StageMessage, state: Any) -> dict[str, Any]:
    """Say in which process it is, and what it got."""
    return {"pid": os.getpid(), "got": state, "text": message.text, "stage": message.stage}


def deaf(message: StageMessage, state: Any) -> None:
    """Never look whether it is to stop, and hold the interpreter lock as much as it can."""
    message.checkpoint({"frame": 7})
    while True:
        time.sleep(0.001)


def fails(message: StageMessage, state: Any) -> None:
    """Find the message to be bad."""
    raise Poison("not a video")


def dies(message: StageMessage, state: Any) -> None:
    """End as a fault in a library would."""
    os.kill(os.getpid(), signal.SIGSEGV)


def jumps(message: StageMessage, state: Any) -> Goto:
    """Leave out what is between."""
    message.check()
    return Goto("b", {"jumped": True})


async def waits(message: StageMessage, state: Any) -> str:
    """Be asynchronous."""
    return "awaited"


def test_a_stage_runs_elsewhere_and_its_state_comes_back() -> None:
    """The process is used again, and ends with the pipeline; what follows is as ever."""
    seen: list[Any] = []
    pipeline = Stages()
    pipeline.stage("a", isolate="process")(where)

    @pipeline.stage("b")
    def b(message: StageMessage, state: Any) -> None:
        seen.append(state)

    for _ in range(2):
        pipeline(Bench().receive())
    assert [each["got"] for each in seen] == [None, None]
    assert {(each["text"], each["stage"]) for each in seen} == {("clip", "a")}
    (pid,) = {each["pid"] for each in seen}
    assert pid != os.getpid()
    pipeline.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_does_not_look_at_the_time_is_killed_at_its_limit() -> None:
    """The outcome is that of any timeout, and what it has saved by then is kept."""
    diary = Diary()
    pipeline = Stages(hooks=[diary])
    pipeline.stage("a", isolate="process", timeout_s=2, retries=3)(deaf)
    pipeline.stage("b")(where)
    bench = Bench()
    with pytest.raises(StageOverdue, match="stage 'a' took longer than 2 s"):
        pipeline(bench.receive())
    assert bench.saves == [("a", {"frame": 7})]
    assert diary.lines == [
        "begun a",
        "overdue a after 2",
        "failed a: stage 'a' took longer than 2 s",
    ]
    pipeline.close()


@pytest.mark.parametrize(
    ("stage", "error", "text"),
    [(fails, Poison, "not a video"), (dies, StageDied, "was killed by SIGSEGV")],
)
def test_how_it_fails_is_known(stage: Any, error: type[Exception], text: str) -> None:
    """What it raises is raised here, and the death of its process is a failure like others."""
    pipeline = Stages()
    pipeline.stage("a", isolate="process")(stage)
    with pytest.raises(error, match=text):
        pipeline(Bench().receive())
    pipeline.close()


def test_a_lost_lease_is_noticed_by_a_check() -> None:
    """The lease is kept here, and asked for from there."""
    pipeline = Stages()
    pipeline.stage("a", isolate="process")(jumps)
    pipeline.stage("b")(where)
    bench = Bench()
    message = bench.receive()
    bench.holding.lost = "another worker has it"
    seen = StageMessage(message, pipeline.layout, 0, None, resumed=False)
    stage: Any = pipeline._stages[0].run
    stage.prepare(seen)
    with pytest.raises(LeaseLost, match="another worker"):
        stage(seen, None)
    pipeline.close()


def test_it_may_leave_the_order_be_asynchronous_and_be_no_module_function() -> None:
    """Functions that cannot be imported are sent as Spark sends them."""
    pipeline = Stages(save_end=True)
    pipeline.stage("a", isolate="process")(jumps)
    pipeline.stage("left-out")(fails)
    pipeline.stage("b", isolate="process")(lambda message, state: {**state, "local": True})
    pipeline.stage("c", isolate="process")(waits)
    bench = Bench(time=ManualTime())
    pipeline(bench.receive())
    assert bench.saves[:2] == [("b", {"jumped": True}), ("c", {"jumped": True, "local": True})]
    pipeline.close()


def test_only_processes_are_known() -> None:
    """Other words are refused where they are said."""
    with pytest.raises(ValueError, match="'process' or None"):
        Stages().stage("a", isolate="thread")(where)  # type: ignore[arg-type]  # that is the point
