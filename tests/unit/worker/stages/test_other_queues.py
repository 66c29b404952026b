"""Stages that have queues of their own: messages go on there, each in one step."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.client import Client
from leasehold.testing import InProcessServer
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters import (
    Forward,
    Lease,
    LeaseGone,
    Outgoing,
    QueueError,
    Saved,
    Unreachable,
)
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.payloads import ClaimCheck, ClaimCheckCodec, ClaimChecked
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.stages import Goto, StageMessage, Stages
from leasehold.worker.worker import Worker
from tests.unit.worker.stages import apart

GPU = "videos-gpu"


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    with InProcessServer(clock="system") as started:
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """Return a client of a server that has both queues."""
    with server.client() as made:
        made.queue("videos").create()
        made.queue(GPU).create()
        yield made


def work_off(client: Client, stages: Stages, *queues: str, **settings: Any) -> None:
    """Have a worker for each queue in turn do all there is in it."""
    at_once = RetryRule(kind="fixed", initial_s=0)
    for name in queues:
        queue = NativeQueue(client.queue(name))
        Worker(stages, queue, **{"retries": at_once, **settings}).run_until_idle(30)


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_each_queue_has_its_stages_done_by_its_own_workers(client: Client, runner: Any) -> None:
    """The message keeps what it was sent with, and its last result tells of all the stages."""
    queue, gpu = client.queue("videos"), client.queue(GPU)
    sent = queue.put("clip", type="film", properties={"by": "ann"}, group_id="g")
    work_off(client, apart.stages, "videos", runner=runner, concurrency=1)
    assert queue.counts().total == 0
    [there] = gpu.inspect()
    assert (there.type, there.group_id, there.properties["by"]) == ("film", "g", "ann")
    assert there.expires_at_ms is not None
    assert sent.expires_at_ms is not None
    assert abs(there.expires_at_ms - sent.expires_at_ms) <= 1_500
    work_off(client, apart.stages, GPU, "videos", runner=runner, concurrency=1)
    assert queue.counts().total == gpu.counts().total == 0
    *sent_on, last = [
        json.loads(each.result or "") for each in client.events() if each.type == "completed"
    ]
    assert [next(iter(each.items())) for each in sent_on] == [
        ("leasehold.forwarded_to", GPU),
        ("leasehold.forwarded_to", "videos"),
    ]
    assert last["origin_id"] == sent.id
    assert last["output"] == {"queues": ["videos", GPU, "videos"], "text": "clip"}
    assert [each["stage"] for each in last["stages"]] == ["scan", "encode", "publish"]


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_worker_that_is_killed_while_it_sends_a_message_on(
    server: InProcessServer, client: Client, tmp_path: Path, dies: str
) -> None:
    """Before the commit the message is still here, and only sent on; after it, it is only there."""
    queue, gpu = client.queue("videos"), client.queue(GPU)
    sent = queue.put("clip")
    log = tmp_path / "log"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.unit.worker.stages.apart", server.connection_string, dies],
        env={**os.environ, "STAGES_LOG": str(log)},
        cwd=Path(__file__).parents[4],
        timeout=60,
        check=False,
    )
    assert killed.returncode == 9
    left = (1, 0) if dies == "before" else (0, 1)
    assert (queue.counts().total, gpu.counts().total) == left
    for each in client.list_sessions():
        client.end_session(each.session_id)
    work_off(client, apart.stages, "videos", GPU, "videos")
    assert log.read_text() == "scan clip\n"  # what comes after is done in this process
    assert queue.counts().total == gpu.counts().total == 0
    ends = [json.loads(each.result or "") for each in client.events() if each.type == "completed"]
    assert [each["origin_id"] for each in ends if "output" in each] == [sent.id]


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again(server: InProcessServer, client: Client) -> None:
    """Forty kills of workers at work on two thousand messages: each comes to its end once."""
    rng = random.Random(63)
    queues = {name: client.queue(name) for name in ("videos", GPU)}
    sent = 0
    working = {name: begun(server, name) for name in queues}
    pause = threading.Event()
    try:
        for _ in range(40):
            queues["videos"].put_many([f"clip {sent + more}" for more in range(50)])
            sent += 50
            pause.wait(0.8 + rng.random())
            name = rng.choice(("videos", GPU))
            working[name].kill()
            working[name].wait()
            working[name] = begun(server, name)
        while any(each.counts().total for each in queues.values()):
            assert not any(each.poll() for each in working.values())
            pause.wait(0.1)
    finally:
        for each in working.values():
            each.kill()
            each.wait()
    ends = [json.loads(each.result or "") for each in client.events() if each.type == "completed"]
    outputs = [each["output"]["text"] for each in ends if "output" in each]
    assert sorted(outputs) == sorted(f"clip {number}" for number in range(sent))
    assert len(ends) == 3 * sent  # each was sent on twice
    retaken = [
        each
        for each in client.events()
        if each.type == "received" and (each.dequeue_count or 0) > 1
    ]
    assert retaken  # kills have hit work


def begun(server: InProcessServer, queue: str) -> subprocess.Popen[bytes]:
    """Return a worker's process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.worker.stages.apart", server.connection_string, queue],
        cwd=Path(__file__).parents[4],
    )


class Deaf(NativeQueue):
    """Does not hear the answer to the first forward."""

    heard: list[str | None]

    def forward(self, given: Any, *, timeout_s: float | None = None) -> list[QueueError | None]:
        """Forward them."""
        results = super().forward(given, timeout_s=timeout_s)
        if not hasattr(self, "heard"):
            self.heard = []
            return [Unreachable("no answer") for _ in results]
        self.heard += [None if each is None else type(each).__name__ for each in results]
        return results


def test_a_lost_answer_is_no_reason_to_send_it_on_twice(client: Client) -> None:
    """The commit is sent again, and refused: so it was carried out, and the message is done."""
    client.queue("videos").put("clip")
    queue = Deaf(client.queue("videos"))
    worker = Worker(apart.stages, queue)
    worker.run_until_idle(30)
    assert queue.heard == ["LeaseGone"]
    assert worker.snapshot().done == 1
    assert (client.queue("videos").counts().total, client.queue(GPU).counts().total) == (0, 1)


def test_many_share_a_commit_and_a_lost_lease_does_not_keep_the_others(client: Client) -> None:
    """Of three the one that was completed meanwhile is refused; of the two each has its place."""
    queue, gpu = client.queue("videos"), client.queue(GPU)
    queue.put_many(["one", "two", "three"])
    native = NativeQueue(queue)
    deliveries = native.receive(3, visibility_timeout_s=30)
    given = [
        (
            Lease(each.message_id, each.receipt),
            Forward(queue=GPU, outgoing=Outgoing(body=each.body), saved=Saved(stage="encode")),
        )
        for each in deliveries
    ]
    assert native.complete([given[1][0]]) == [None]
    first, second, third = native.forward(given)
    assert first is None
    assert third is None
    assert isinstance(second, LeaseGone)
    assert sorted(each.body for each in NativeQueue(gpu).receive(9, visibility_timeout_s=30)) == [
        deliveries[0].body,
        deliveries[2].body,
    ]
    assert queue.counts().total == 0


def test_without_the_other_queue_the_message_fails_and_keeps_what_was_done(
    client: Client,
) -> None:
    """The fault names the queue; when it is there the stage before it is not repeated."""
    scanned: list[int] = []
    stages = Stages(save_within_s=0)

    @stages.stage("scan")
    def scan(message: StageMessage, state: Any) -> int:
        scanned.append(message.dequeue_count)
        return 1

    stages.stage("encode", queue="nowhere")(lambda message, state: None)
    queue = client.queue("videos")
    queue.put("clip")
    work_off(client, stages, "videos", poison=PoisonRule(max_deliveries=5))
    [buried] = client.queue("videos-poison").inspect()
    assert buried.poisoned is not None
    error = buried.attempts[-1].error
    assert error is not None
    assert error.text.startswith("it cannot continue in queue nowhere: ")
    client.queue("nowhere").create()
    queue.redrive(wait_s=10)
    work_off(client, stages, "videos")
    assert scanned == [1]
    assert client.queue("nowhere").counts().total == 1


def test_a_stage_may_lead_back_to_one_of_another_queue(client: Client) -> None:
    """As often as it says so: each time it is a message of its own, of the same origin."""
    stages = Stages()
    origins: list[tuple[str, str]] = []

    @stages.stage("scan")
    def scan(message: StageMessage, state: Any) -> int:
        return (state or 0) + 1

    @stages.stage("check", queue=GPU)
    def check(message: StageMessage, state: int) -> Any:
        origins.append(message.message.origin)
        return Goto("scan", state) if state < 3 else None

    sent = client.queue("videos").put("clip")
    work_off(client, stages, *(["videos", GPU] * 3))
    assert origins == [("videos", sent.id)] * 3
    assert client.queue(GPU).counts().total == client.queue("videos").counts().total == 0


def test_a_service_that_cannot_do_it_is_refused_at_the_start() -> None:
    """The description says where a stage is, and a worker does not begin."""
    assert "encode   in queue videos-gpu" in apart.stages.describe()
    with pytest.raises(UnsafeWorker, match="leave out the queues"):
        Worker(apart.stages, MemoryQueue("videos")).run_until_idle(5)


def test_what_is_kept_elsewhere_stays_until_the_last_stage(client: Client, tmp_path: Path) -> None:
    """The object of a large body is there for the stages in the other queue, and then removed."""
    check = ClaimCheck(str(tmp_path / "bodies"), threshold_bytes=100)
    queues = [
        ClaimChecked(NativeQueue(client.queue(name)), check, delete_after=True)
        for name in ("videos", GPU)
    ]
    seen: list[tuple[str, int]] = []
    stages = Stages()
    for name, queue in (("scan", None), ("encode", GPU)):
        stages.stage(name, queue=queue)(
            lambda message, state: seen.append((message.queue, len(message.payload)))
        )
    queues[0].put([Outgoing(body=b"x" * 1_000)])
    for each in queues:
        Worker(stages, each, codec=ClaimCheckCodec(check)).run_until_idle(30)
    assert seen == [("videos", 1_000), (GPU, 1_000)]
    assert check._objects() == []


def test_asynchronous_stages_and_first_stages_elsewhere(client: Client) -> None:
    """A message goes on at once if nothing is to be done with it where it was put."""
    stages = Stages()

    @stages.stage("encode", queue=GPU)
    async def encode(message: StageMessage, state: Any) -> None:
        message.set_result(message.origin)

    sent = client.queue("videos").put("clip")
    work_off(client, stages, "videos", GPU)
    last = [each.result for each in client.events() if each.type == "completed"][-1]
    assert json.loads(last or "") == {"output": ["videos", sent.id]}
