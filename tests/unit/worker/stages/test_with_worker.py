"""Pipelines and payloads in the hands of a worker."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.message import Message
from leasehold.worker.payloads import ClaimCheck, ClaimCheckCodec, ClaimChecked, JsonCodec
from leasehold.worker.queues import Outgoing, QueueClient
from leasehold.worker.queues.memory import MEMORY, MemoryQueue
from leasehold.worker.retrying import RetryRule
from leasehold.worker.stages import KeepsProgress, MemoryProgress, StageMessage, Stages
from leasehold.worker.worker import Worker


def failing_once(log: list[str], *, asynchronous: bool) -> Stages:
    """Return a pipeline that fails in the middle of its second stage, at the first delivery."""
    pipeline = Stages()

    @pipeline.stage("scan")
    def scan(message: StageMessage, state: Any) -> dict[str, int]:
        log.append("scan")
        return {"frame": 0}

    def encode(message: StageMessage, state: Any) -> None:
        for frame in range(state["frame"], 4):
            if frame == 2 and message.dequeue_count == 1:
                raise OSError("disk full")
            log.append(f"frame {frame}")
            message.checkpoint({"frame": frame + 1})

    async def aencode(message: StageMessage, state: Any) -> None:
        for frame in range(state["frame"], 4):
            if frame == 2 and message.dequeue_count == 1:
                raise OSError("disk full")
            log.append(f"frame {frame}")
            await message.acheckpoint({"frame": frame + 1})

    pipeline.stage("encode")(aencode if asynchronous else encode)
    return pipeline


def run(handler: Any, queue: QueueClient, **settings: Any) -> None:
    """Have a worker do all there is."""
    at_once = RetryRule(kind="fixed", initial_s=0)
    Worker(handler, queue, concurrency=2, retries=at_once, **settings).run_until_idle(30)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_failed_message_goes_on_where_it_was(asynchronous: bool, keeps: bool) -> None:
    """Each piece of work is done once although the handler failed in between."""
    log: list[str] = []
    pipeline = failing_once(log, asynchronous=asynchronous)
    queue: QueueClient = MemoryQueue("jobs")
    store = MemoryProgress()
    if keeps:
        lacking = MemoryQueue("jobs", capabilities=replace(MEMORY, saves="no"))
        queue = KeepsProgress(lacking, store)
    queue.put([Outgoing(body="clip")])
    run(pipeline.acall if asynchronous else pipeline, queue)
    assert log == ["scan", "frame 0", "frame 1", "frame 2", "frame 3"]
    assert queue.depth().total == 0
    assert len(store) == 0


def test_an_unknown_stage_is_set_aside() -> None:
    """A message that an older pipeline left in a stage of its own is buried, with the reason."""
    queue = MemoryQueue("jobs")
    queue.put([Outgoing(body="clip")])
    old = Stages()
    old.stage("scan")(lambda message, state: None)

    @old.stage("upload")
    def upload(message: StageMessage, state: Any) -> None:
        raise OSError

    new = Stages()
    new.stage("scan")(lambda message, state: None)

    def deploy_after_the_first(message: Message) -> None:
        (old if message.dequeue_count == 1 else new)(message)

    run(deploy_after_the_first, queue)
    [(_, fault)] = queue.buried
    assert "saved stage 'upload' is unknown" in fault.text


def test_bodies_are_fetched_for_the_handler(tmp_path: Path) -> None:
    """A large body is fetched when it is asked for, and its object goes with the message."""
    check = ClaimCheck(str(tmp_path / "bodies"), threshold_bytes=100)
    codec = ClaimCheckCodec(check, JsonCodec())
    queue = ClaimChecked(MemoryQueue("jobs"), check, delete_after=True)
    values = [["x" * size] for size in (10, 1000)]
    queue.put([Outgoing(body=codec.encode(each)) for each in values])
    seen: list[Any] = []
    run(lambda message: seen.append(message.payload), queue, codec=codec)
    assert sorted(seen) == sorted(values)
    assert check._objects() == []


@pytest.mark.parametrize(
    ("lost", "reason"), [(True, "claim check: there is no object"), (False, "is not JSON")]
)
def test_bodies_that_cannot_be_had_are_set_aside(tmp_path: Path, lost: bool, reason: str) -> None:
    """A missing object and a body of another kind are buried at once, with the reason."""
    check = ClaimCheck(str(tmp_path / "bodies"), threshold_bytes=100)
    inner = MemoryQueue("jobs")
    queue = ClaimChecked(inner, check, delete_after=True)
    sent = check.put(b"{" * 1000)
    if lost:
        check.delete(sent)
    queue.put([Outgoing(body=sent)])
    run(lambda message: message.payload, queue, codec=ClaimCheckCodec(check, JsonCodec()))
    [(_, fault)] = inner.buried
    assert reason in fault.text


def test_no_thread_is_left() -> None:
    """A pipeline with limits, once it is closed, leaves no thread behind."""
    queue = MemoryQueue("jobs")
    queue.put([Outgoing(body="clip")])
    pipeline = Stages()
    pipeline.stage("only", timeout_s=600)(lambda message, state: None)
    run(pipeline, queue)
    pipeline.close()
    assert not [each for each in threading.enumerate() if each.name == "leasehold-stages"]


def test_a_pipeline_on_a_queue_that_keeps_no_progress_is_refused() -> None:
    """Before the first message, and with the way out."""
    pipeline = failing_once([], asynchronous=False)
    queue = MemoryQueue("videos", capabilities=replace(MEMORY, saves="no"))
    for handler in (pipeline, pipeline.acall):
        with pytest.raises(UnsafeWorker, match="KeepsProgress"):
            Worker(handler, queue)
    Worker(pipeline, KeepsProgress(queue, MemoryProgress()))
