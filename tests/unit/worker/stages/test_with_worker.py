"""Pipelines and payloads in the hands of a worker."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker.adapters import Outgoing, QueueClient
from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.handlers import name_of
from leasehold.worker.message import Message
from leasehold.worker.payloads import ClaimCheck, ClaimCheckCodec, ClaimChecked, JsonCodec
from leasehold.worker.retry_policy import RetryRule
from leasehold.worker.stages import KeepsProgress, MemoryProgress, StageMessage, Stages
from leasehold.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.unit.worker.stages import portable


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


def run(handler: Any, queue: QueueClient, **settings: Any) -> Worker:
    """Have a worker do all there is, and return it."""
    at_once = RetryRule(kind="fixed", initial_s=0)
    worker = Worker(handler, queue, **{"concurrency": 2, "retries": at_once, **settings})
    worker.run_until_idle(30)
    return worker


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
    run(pipeline, queue)
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
    ("lost", "reason"), [(True, "claim check: no object"), (False, "is not JSON")]
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


@pytest.mark.parametrize("runner", [None, "asyncio", "threads"])
@pytest.mark.parametrize("given", ["pipeline", "acall", "by queue"])
def test_asynchronous_stages_share_a_loop(runner: Any, given: str) -> None:
    """A worker runs them in its event loop if it is free to choose, and never makes one for each
    message."""
    queue = MemoryQueue("jobs")
    queue.put([Outgoing(body=str(number)) for number in range(6)])
    loops: list[tuple[asyncio.AbstractEventLoop, str]] = []
    pipeline = Stages()

    @pipeline.stage("only")
    async def only(message: StageMessage, state: Any) -> None:
        await asyncio.sleep(0)
        loops.append((asyncio.get_running_loop(), threading.current_thread().name))

    handlers = {"pipeline": pipeline, "acall": pipeline.acall, "by queue": {"jobs": pipeline}}
    worker = run(handlers[given], queue, runner=runner)
    assert len(loops) == 6
    assert worker._options.runner == (runner or "asyncio")
    if runner == "threads":
        assert {name for _, name in loops} <= {"leasehold-work-0", "leasehold-work-1"}
        assert len({id(loop) for loop, _ in loops}) <= 2
    else:
        assert {name for _, name in loops} == {"leasehold-loop"}


def test_an_asynchronous_stage_is_stopped_with_its_message() -> None:
    """Its task is cancelled when an operator wants the work to stop."""
    queue, begun = MemoryQueue("jobs"), threading.Event()
    queue.put([Outgoing(body="clip")])
    pipeline = Stages()

    @pipeline.stage("only")
    async def only(message: StageMessage, state: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    worker = Worker(pipeline, queue, concurrency=1, wait_s=0)
    with worker:
        assert begun.wait(PATIENCE_S)
        queue.cancel("jobs-1", "wrong clip")
        assert worker._threads is not None
        worker._threads._watch.look()
        while not queue.buried:
            assert not threading.Event().wait(0.01)
    assert [each for each, _ in queue.buried] == ["jobs-1"]


def test_ordinary_stages_stay_in_threads() -> None:
    """A pipeline without asynchronous stages is a handler like any function."""
    pipeline = failing_once([], asynchronous=False)
    assert Worker(pipeline, MemoryQueue("jobs"))._options.runner == "threads"


def test_a_pipeline_with_asynchronous_stages_in_a_process(tmp_path: Path) -> None:
    """It is sent by what it consists of, and its stages run in a loop there."""
    queue = MemoryQueue("jobs")
    queue.put([Outgoing(body=str(tmp_path / "pid"))])
    run(portable.pipeline, queue, runner="processes")
    assert int((tmp_path / "pid").read_text()) != os.getpid()


# --- names ---------------------------------------------------------------------------------------


def test_a_worker_has_the_name_of_its_pipeline() -> None:
    """That of the variable in its module, as for a function; or that which it was given."""
    queue = MemoryQueue("jobs")
    module = portable.__name__
    assert Worker(portable.pipeline, queue).name == f"{module}:pipeline"
    assert Worker(portable.pipeline.acall, queue).name == f"{module}:pipeline"
    named = Stages(name="videos")
    named.stage("only")(lambda message, state: None)
    worker = Worker({"jobs": named}, queue)
    assert worker.name == worker._core.sources[0].handler_name == "videos"


def test_a_pipeline_that_a_function_has_made() -> None:
    """It is told by its stages, and one without any by its class."""
    assert name_of(failing_once([], asynchronous=True)) == f"{__name__}:scan-encode"
    one = Stages()
    one.stage("only")(lambda message, state: None)
    assert name_of(one) == f"{__name__}:only"
    assert name_of(Stages()) == "Stages"
    odd = Stages()
    odd.stage("only")(partial(print))
    assert name_of(odd).endswith(":only")


# --- who closes what -----------------------------------------------------------------------------


def watchers() -> list[threading.Thread]:
    """Return the threads that watch for stages that take too long."""
    return [each for each in threading.enumerate() if each.name == "leasehold-stages"]


def limited(run: Any = lambda message, state: None) -> Stages:
    """Return a pipeline whose only stage is watched."""
    pipeline = Stages()
    pipeline.stage("only", timeout_s=600)(run)
    return pipeline


def test_no_thread_is_left() -> None:
    """A pipeline with limits leaves no thread behind when its worker ends, and goes on after it."""
    queue, pipeline = MemoryQueue("jobs"), limited()
    for _ in range(2):
        queue.put([Outgoing(body="clip")])
        run(pipeline, queue)
        assert watchers() == []
    assert queue.depth().total == 0


def test_a_pipeline_of_two_workers_goes_on_being_watched() -> None:
    """The end of one worker does not end the watch over the other's stages."""
    begun, goes_on = threading.Event(), threading.Event()

    def wait(message: StageMessage, state: Any) -> None:
        if message.text == "long":
            begun.set()
            assert goes_on.wait(PATIENCE_S)

    pipeline, first, second = limited(wait), MemoryQueue("first"), MemoryQueue("second")
    first.put([Outgoing(body="long")])
    second.put([Outgoing(body="short")])
    with Worker(pipeline, first, wait_s=0):
        assert begun.wait(PATIENCE_S)
        run(pipeline, second)
        (watcher,) = watchers()
        goes_on.set()
    watcher.join(PATIENCE_S)
    assert watchers() == []


def test_a_pipeline_on_a_queue_that_keeps_no_progress_is_refused() -> None:
    """Before the first message, and with the way out."""
    pipeline = failing_once([], asynchronous=False)
    queue = MemoryQueue("videos", capabilities=replace(MEMORY, saves="no"))
    for handler in (pipeline, pipeline.acall):
        with pytest.raises(UnsafeWorker, match="KeepsProgress"):
            Worker(handler, queue)
    Worker(pipeline, KeepsProgress(queue, MemoryProgress()))
