"""What workers and their stages say came of the work."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from leasehold.domain.limits import MAX_RESULT_BYTES
from leasehold.testing import InProcessServer
from leasehold.testing.time import ManualClock
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.message import Message
from leasehold.worker.stages import Done, StageMessage, Stages
from leasehold.worker.worker import Worker
from tests.unit.worker.stages.support import Bench


def of(stage: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(stage[name] for name in names)


def test_stages_and_the_last_state() -> None:
    """Each stage with its attempts, those that were skipped too; the last state is the output."""
    stages = Stages(results=True, clock=ManualClock(1_000))
    tried: list[int] = []

    @stages.stage("scan")
    def scan(message: StageMessage, state: Any) -> dict[str, int]:
        return {"frames": 3}

    @stages.stage("subtitle", when=lambda message, state: False)
    def subtitle(message: StageMessage, state: Any) -> None: ...

    @stages.stage("encode", retries=1)
    def encode(message: StageMessage, state: Any) -> dict[str, int]:
        tried.append(message.attempt)
        if message.attempt == 1:
            raise OSError("disk full")
        return {"frames": state["frames"], "bytes": 9}

    message = Bench().receive()
    stages(message)
    assert tried == [1, 2]
    result = message.result
    assert result["output"] == {"frames": 3, "bytes": 9}
    assert [of(each, "stage", "attempts", "outcome") for each in result["stages"]] == [
        ("scan", 1, "done"),
        ("subtitle", 0, "skipped"),
        ("encode", 2, "done"),
    ]
    assert {each["began_at_ms"] for each in result["stages"]} == {1_000}


def test_nothing_unless_it_is_wanted() -> None:
    """Plain stages say nothing, nor does one that ends the work early have an output."""
    plain = Stages()
    plain.stage("scan")(lambda message, state: 1)
    message = Bench().receive()
    plain(message)
    assert message.result is None
    early = Stages(results=True)
    early.stage("scan")(lambda message, state: Done)
    early.stage("encode")(lambda message, state: 1)
    message = Bench().receive()
    pickle.loads(pickle.dumps(Stages(results=True)))
    early(message)
    assert message.result["output"] is None
    assert [each["stage"] for each in message.result["stages"]] == ["scan"]


def test_an_output_that_is_too_large_is_left_out() -> None:
    """Its size is told; a handler that gives one by itself hears of it."""
    stages = Stages(results=True)
    stages.stage("scan")(lambda message, state: "x" * MAX_RESULT_BYTES)
    message = Bench().receive()
    stages(message)
    assert "output" not in message.result
    assert message.result["output_bytes"] == MAX_RESULT_BYTES + 2
    assert [each["stage"] for each in message.result["stages"]] == ["scan"]
    with pytest.raises(ValueError, match="16,384 are kept"):
        message.set_result("x" * MAX_RESULT_BYTES)
    with pytest.raises(TypeError, match="representable in JSON"):
        message.set_result(object())


def say(message: Message) -> None:
    """Say what came of it, if its body says so."""
    if message.body == b"result":
        message.set_result({"pages": 3})


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_a_worker_completes_with_the_result(runner: Any) -> None:
    """The event log has it, also where handlers run in processes of their own."""
    with InProcessServer(clock="system") as server, server.client() as client:
        queue = client.queue("orders")
        queue.create()
        queue.put_many(["result", "none"])
        worker = Worker(say, NativeQueue(queue), concurrency=2, runner=runner, wait_s=0.1)
        worker.start()
        try:
            while queue.counts().total:
                time.sleep(0.02)
        finally:
            worker.stop()
        found = [each.result for each in client.events() if each.type == "completed"]
    assert sorted(found, key=str) == [None, '{"output":{"pages":3}}']
