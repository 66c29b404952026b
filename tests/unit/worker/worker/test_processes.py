"""Handlers in processes: they may die, or hold their interpreter, and nobody else notices."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters import LeaseGone, Outgoing
from leasehold.worker.errors import UnsafeWorker, WorkerError
from leasehold.worker.executors import child, processes
from leasehold.worker.executors.processes import KILL_AFTER_S, ProcessRunner
from leasehold.worker.outcomes import Kind
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.unit.worker.worker import handlers_of_tests as handlers
from tests.unit.worker.worker.support import (
    Heard,
    filled,
    handle_all,
    left,
    running,
)

AT_ONCE = RetryRule(initial_s=0)


def wait_for_file(path: Path) -> None:
    """Wait for what another process does."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if path.exists():
            return
        pause.wait(0.005)
    raise TimeoutError(f"{path} did not come")


def in_processes(handler: Any, queue: Any, **options: Any) -> Worker:
    return handle_all(handler, queue, **{"runner": "processes", "concurrency": 1, **options})


def test_handler_runs_in_another_process(tmp_path: Path) -> None:
    """The handler is found by its name in a process that is not this one."""
    queue = filled(str(tmp_path / "a"), str(tmp_path / "b"))
    worker = in_processes(handlers.note, queue)
    pids = {(tmp_path / name).read_text() for name in ("a", "b")}
    assert len(pids) == 1
    assert str(os.getpid()) not in pids
    assert worker.stats.count(Kind.DONE) == 2


def test_process_that_is_killed_fails_its_message_and_is_replaced() -> None:
    """The message of a dead process is tried again, in a new one."""
    queue, heard = filled("a"), Heard()
    worker = in_processes(handlers.die, queue, hooks=[heard], retries=AT_ONCE)
    assert heard.settlements == [("a", "failed"), ("a", "done")]
    fault = heard.outcomes[0].fault
    assert fault is not None
    assert (fault.type, fault.text) == (
        "ProcessDied",
        "the handler's process was killed by SIGKILL",
    )
    assert worker.stats.dead_processes == 1


def test_message_that_kills_processes_is_set_aside() -> None:
    """What takes its process with it each time is poison in the end."""
    queue = filled("a")
    in_processes(handlers.leave, queue, retries=AT_ONCE, poison=PoisonRule(max_failures=2))
    ((_, fault),) = queue.buried
    assert fault.text == "the handler's process ended with status 7"


def test_outcome_and_codec_cross_the_border() -> None:
    """Payloads are read, and errors are judged, in the process of the handler."""
    queue, heard = filled('{"what": "customer"}', "]"), Heard()
    in_processes(handlers.fail, queue, codec=json.loads, hooks=[heard])
    assert [kind for _, kind in heard.settlements] == ["poisoned", "poisoned"]
    texts = [fault.text for _, fault in queue.buried]
    assert texts[0] == "no customer"
    assert texts[1].startswith("encoding: ")


def test_failure_has_its_fault() -> None:
    """The fault of an exception names its type, and has a fingerprint."""
    queue = filled("a")
    in_processes(handlers.crash, queue)
    (fault,) = queue.faults_of("orders-1")
    assert (fault.type, fault.text) == ("LookupError", "'not here'"[1:-1])
    assert fault.fingerprint


def test_methods_of_a_message_work_from_afar(tmp_path: Path) -> None:
    """check, extend, seconds_left and checkpoint go over the pipe; sys.exit is only a failure."""
    queue = MemoryQueue("orders")
    queue.put([Outgoing(body="a", properties={"path": str(tmp_path / "out")})])
    worker = in_processes(handlers.progress, queue, retries=AT_ONCE)
    assert (tmp_path / "out").read_text() == "{'left': True}"
    assert worker.stats.count(Kind.FAILED) == 1
    assert worker.stats.dead_processes == 0


def test_loss_reaches_the_process(tmp_path: Path) -> None:
    """When the lease is lost, the token in the other process is set."""
    time = ManualTime()
    path = tmp_path / "why"
    queue, heard = filled(str(path), time=time), Heard()
    queue.faults.refuse("orders-1", LeaseGone("somebody else has it"))
    options = {"runner": "processes", "concurrency": 1, "lease": 5, "session": False}
    with running(handlers.wait, queue, time=time, hooks=[heard], **options):
        wait_for_file(path.with_suffix(".begun"))
        look_until(time, lambda: queue.calls["renew"] == 1)
        heard.wait_until(lost=1)
        assert queue.calls["complete"] == queue.calls["release"] == 0
    assert path.read_text() == "somebody else has it"


def look_until(time: ManualTime, reached: Any) -> None:
    """Let time pass, while threads wait for other processes, which settles nothing."""
    pause = threading.Event()
    for _ in range(4000):
        if reached():
            return
        time.jump(0.25)
        pause.wait(0.005)
    raise TimeoutError("it was not reached")


def test_task_in_a_process_is_cancelled(tmp_path: Path) -> None:
    """An asynchronous handler is cancelled in its process when an operator wants it."""
    path = tmp_path / "why"
    queue, heard = filled(str(path)), Heard()
    options = {"runner": "processes", "concurrency": 1}
    with running(handlers.wait_in_a_task, queue, hooks=[heard], **options) as worker:
        wait_for_file(path.with_suffix(".begun"))
        queue.cancel("orders-1", "wrong customer")
        assert worker._threads is not None
        worker._threads._watch.look()
        heard.wait_until(settled=1)
    assert heard.settlements[0][1] == "cancelled"
    assert path.read_text() == "cancelled"


def test_held_interpreter_disturbs_no_renewal(tmp_path: Path) -> None:
    """A handler that holds its interpreter for minutes keeps its lease, and others work on."""
    time = ManualTime()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    queue, heard = filled(str(pipe), time=time), Heard()
    options = {"runner": "processes", "concurrency": 1, "lease": 10}
    with running(handlers.hold_interpreter, queue, time=time, hooks=[heard], **options):
        wait_for_file(pipe.with_suffix(".begun"))
        look_until(time, lambda: queue.calls["renew"] >= 12)
        with pipe.open("wb") as end:
            end.write(b"x")
        heard.wait_until(settled=1)
    assert heard.settlements[0][1] == "done"
    assert left(queue) == []


def test_process_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    """At the end of the worker a handler that goes on is killed, and its message given back."""
    path = tmp_path / "x"
    queue, heard = filled(str(path)), Heard()
    options = {"runner": "processes", "concurrency": 1}
    with running(handlers.stay, queue, hooks=[heard], **options) as worker:
        wait_for_file(path.with_suffix(".begun"))
        assert worker._threads is not None
        worker._threads.hurry()
        worker.stop(0)
    assert heard.settlements[0][1] == "interrupted"
    assert left(queue) == [(str(path), 0)]


def test_process_that_goes_on_with_a_lost_message_is_killed(tmp_path: Path) -> None:
    """Some seconds after the loss the process is killed, since it may do harm."""
    path = tmp_path / "x"
    queue, heard = filled(str(path)), Heard()
    options = {"runner": "processes", "concurrency": 1, "session": False}
    with running(handlers.stay, queue, hooks=[heard], **options) as worker:
        wait_for_file(path.with_suffix(".begun"))
        (work,) = worker._core.in_work
        work.held.lose("planned")
        assert worker._threads is not None
        runner = worker._threads._runner
        assert isinstance(runner, ProcessRunner)
        now_s = worker._core.now_s()
        runner.tick(now_s)
        runner.tick(now_s + KILL_AFTER_S - 1)
        assert not heard.losses
        runner.tick(now_s + KILL_AFTER_S)
        heard.wait_until(lost=1)
        assert worker.stats.dead_processes == 0


def test_handler_that_cannot_be_found_is_refused() -> None:
    """A lambda has no name that another process could import."""
    with pytest.raises(UnsafeWorker, match="cannot be found by its name"):
        Worker(lambda _: None, filled(), runner="processes")


def test_codec_that_cannot_be_sent_is_refused() -> None:
    """The codec has to reach the other process too."""
    with pytest.raises(UnsafeWorker, match="codec: it cannot be sent"):
        Worker(handlers.nothing, filled(), runner="processes", codec=lambda body: body)


def test_processes_that_do_not_begin_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the other process dies before it is ready, the worker does not begin at all."""
    queue = filled("a")
    worker = Worker(handlers.nothing, queue, runner="processes", concurrency=2)
    monkeypatch.setattr(child, "main", os._exit)
    with pytest.raises(WorkerError, match="before it was ready"):
        worker.run(install_signals=False)
    assert not worker.is_running
    assert queue.calls["receive"] == 0


def test_buffer_of_processes_is_given_back(tmp_path: Path) -> None:
    """Stopping with processes gives back what waits, as with threads."""
    path = tmp_path / "x"
    queue = filled(str(path), "b", "c")
    with running(handlers.wait, queue, runner="processes", concurrency=1, prefetch=5) as worker:
        wait_for_file(path.with_suffix(".begun"))
        worker.stop(0)
    assert sorted(left(queue)) == sorted([(str(path), 0), ("b", 0), ("c", 0)])
    assert path.read_text() == "the worker is stopping"


def test_word_that_cannot_be_read_fails_its_message_alone() -> None:
    """What the worker cannot read ends the process, and the next message has a new one."""
    queue, heard = filled("odd", "b"), Heard()
    worker = in_processes(
        handlers.save_what_only_it_knows, queue, hooks=[heard], poison=PoisonRule(max_failures=1)
    )
    assert heard.settlements == [("odd", "poisoned"), ("b", "done")]
    fault = heard.outcomes[0].fault
    assert fault is not None
    assert "cannot be read" in fault.text
    assert worker.stats.count(Kind.DONE) == 1


def test_process_that_cannot_be_begun_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A system that has no more processes for a moment costs no hand for good."""
    monkeypatch.setattr(processes, "_RESTART_PAUSE_S", 0.01)
    real, spawned = ProcessRunner.spawn, []

    def spawn(self: ProcessRunner) -> Any:
        spawned.append(self)
        if len(spawned) == 2:
            raise BlockingIOError("no more processes")
        return real(self)

    monkeypatch.setattr(ProcessRunner, "spawn", spawn)
    queue, heard = filled("a"), Heard()
    in_processes(handlers.die, queue, hooks=[heard], retries=AT_ONCE)
    assert heard.settlements == [("a", "failed"), ("a", "done")]
    assert len(spawned) == 3
    assert "no more processes" in caplog.text
