"""How a worker ends: nothing is lost, nothing is counted that was not begun."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold.testing import ManualTime
from leasehold.worker import threads as worker_threads
from leasehold.worker.adapters import Denied, Outgoing, Release
from leasehold.worker.executors import threads
from leasehold.worker.hooks import Hooks
from leasehold.worker.leases import BaseLeaseManager
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind
from leasehold.worker.threads import CANCEL_S
from leasehold.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.unit.worker.worker.support import (
    Heard,
    Held,
    attempts_of,
    filled,
    left,
    running,
    stop_beside,
    wait_for,
)


def test_buffer_is_given_back_uncounted() -> None:
    """What nobody began is there again at once, with the count that it had."""
    time = ManualTime()
    queue, handler = filled("a", "b", "c", time=time), Held(time)
    with running(handler, queue, concurrency=1, prefetch=5, time=time) as worker:
        handler.wait_until_begun()
        thread = stop_beside(worker, time, 30)
        time.settle()
        assert sorted(left(queue)) == [("a", 1), ("b", 0), ("c", 0)]
        assert queue.depth().visible == 2
        handler.go_on()
        thread.join(PATIENCE_S)
    assert left(queue) == [("b", 0), ("c", 0)]
    assert worker.stats.count(Kind.RETURNED) == 2


def test_running_handlers_finish_and_keep_their_leases() -> None:
    """During the grace what is in work is renewed, completed in the end, and nothing new comes."""
    time = ManualTime()
    queue, handler = filled("a", time=time), Held(time)
    with running(handler, queue, concurrency=1, lease=5, time=time) as worker:
        handler.wait_until_begun()
        thread = stop_beside(worker, time, 60)
        queue.put([Outgoing(body="late")])
        time.advance(50)
        assert queue.depth().leased == 1
        assert not handler.messages[0].cancelled
        handler.go_on()
        thread.join(PATIENCE_S)
    assert left(queue) == [("late", 0)]
    assert worker.stats.count(Kind.DONE) == 1


def test_handler_that_takes_too_long_is_interrupted() -> None:
    """After the grace handlers are told to stop; who does has its message given back uncounted."""
    time = ManualTime()
    queue, handler = filled("a", time=time), Held(time)
    with running(handler, queue, concurrency=1, time=time) as worker:
        handler.wait_until_begun()
        thread = stop_beside(worker, time, 30)
        time.advance(29)
        assert not handler.messages[0].cancelled
        time.advance(2)
        thread.join(PATIENCE_S)
    assert handler.messages[0].cancel_reason == "the worker is stopping"
    assert left(queue) == [("a", 0)]
    assert attempts_of(queue, "orders-1") == ["interrupted"]
    assert queue.depth().visible == 1
    assert worker.stats.count(Kind.INTERRUPTED) == 1


def test_handler_that_does_not_stop_is_left_behind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is given back all the same, and what it says later is not heard."""
    monkeypatch.setattr(threads, "_PATIENCE_S", 0.01)
    time = ManualTime()
    queue, heard, handler = filled("a", time=time), Heard(), Held(time, stops=False)
    with (
        caplog.at_level(logging.ERROR, "leasehold.worker"),
        running(handler, queue, concurrency=1, time=time, hooks=[heard]) as worker,
    ):
        handler.wait_until_begun()
        thread = stop_beside(worker, time, 0)
        time.advance_until(lambda: bool(heard.settlements), step_s=0.5)
        assert time.monotonic_s() <= 1000 + CANCEL_S + 1
        thread.join(PATIENCE_S)
    assert heard.settlements == [("a", "interrupted")]
    assert left(queue) == [("a", 0)]
    assert "does not stop" in caplog.text
    assert queue.calls["complete"] == 0


def test_message_that_comes_too_late_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a receive brings that was under way when the worker stopped goes straight back."""
    monkeypatch.setattr(worker_threads, "_LEAVE_S", 0.01)
    queue = filled("a")
    gate = queue.faults.hold(method="receive", after=True)
    worker = Worker(lambda _: None, queue, wait_s=0)
    worker.start()
    gate.wait_until_entered()
    worker.stop()
    assert queue.depth().leased in {0, 1}
    gate.open()
    for thread in threading.enumerate():
        if thread.name.startswith("leasehold-receive"):
            thread.join(PATIENCE_S)
    assert queue.depth().visible == 1
    assert queue.calls["complete"] == 0


def test_second_stop_waits_for_the_first() -> None:
    """Several may stop a worker; all return when it has stopped."""
    queue, handler = filled("a"), Held()
    with running(handler, queue) as worker:
        handler.wait_until_begun()
        threads = [threading.Thread(target=worker.stop) for _ in range(3)]
        for thread in threads:
            thread.start()
        handler.go_on()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert left(queue) == []


def test_handler_can_ask_for_the_end() -> None:
    """A stop that is asked for from inside does not wait for the handler that asks."""
    queue, seen = filled("a", "b"), []

    def handle(message: Message) -> None:
        seen.append(message.text)
        worker.request_stop()

    worker = Worker(handle, queue, concurrency=1, prefetch=0, wait_s=0)
    worker.run(install_signals=False)
    assert seen[0] == "a"
    assert not worker.is_running


def test_worker_is_started_once() -> None:
    """A worker that has stopped does not begin again, and stopping it again does nothing."""
    worker = Worker(lambda _: None, filled(), wait_s=0)
    worker.stop()
    with worker:
        assert worker.is_running
        with pytest.raises(RuntimeError, match="once"):
            worker.start()
    assert not worker.is_running
    worker.stop()
    with pytest.raises(RuntimeError, match="once"):
        worker.run()


def test_worker_in_a_coroutine() -> None:
    """As an asynchronous context it does not block the loop."""
    queue, heard = filled("a"), Heard()

    async def main() -> None:
        async with Worker(lambda _: None, queue, hooks=[heard], wait_s=0):
            await asyncio.to_thread(heard.wait_until, 1)

    asyncio.run(main())
    assert left(queue) == []


def test_idle_worker_waits_for_what_handlers_put() -> None:
    """Work that makes more work is done to its end before the worker is idle."""
    queue = filled("5")

    def handle(message: Message) -> None:
        if int(message.text):
            queue.put([Outgoing(body=str(int(message.text) - 1))])

    worker = Worker(handle, queue, wait_s=0)
    stats = worker.run_until_idle(PATIENCE_S)
    assert stats.count(Kind.DONE) == 6


def test_worker_that_does_not_become_idle_stops_in_time() -> None:
    """A batch that takes too long raises TimeoutError, and gives back what it had."""
    time = ManualTime()
    queue, handler = filled("a", time=time), Held(time)
    worker, found = Worker(handler, queue, time=time, concurrency=1), []

    def run() -> None:
        try:
            worker.run_until_idle(60)
        except TimeoutError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    handler.wait_until_begun()
    while thread not in time._waits:
        thread.join(0.001)
    time.advance_until(lambda: bool(found))
    thread.join(PATIENCE_S)
    assert found == ["there was still work after 60 s"]
    assert left(queue) == [("a", 0)]


def test_missing_queue_ends_a_batch() -> None:
    """A queue that is not there is an error, and not an idle worker."""
    queue = filled()
    queue.delete()
    with pytest.raises(Exception, match="no queue"):
        Worker(lambda _: None, queue).run_until_idle(PATIENCE_S)


class Turns(Hooks):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def starting(self, worker: Worker) -> None:
        self.heard.append("starting")

    def stopping(self, worker: Worker) -> None:
        self.heard.append("stopping")

    def stopped(self, worker: Worker) -> None:
        self.heard.append("stopped")


def test_hooks_hear_of_the_turns() -> None:
    """Hooks are told when the worker begins, when it stops, and when it has."""
    turns = Turns()
    with running(lambda _: None, filled(), hooks=[turns]):
        assert turns.heard == ["starting"]
    assert turns.heard == ["starting", "stopping", "stopped"]


def test_renewer_that_fails_ends_the_worker() -> None:
    """When nobody renews leases any more, the worker stops and says why."""
    queue, handler = filled("a"), Held()
    worker, found = Worker(handler, queue, wait_s=0), []

    def run() -> None:
        try:
            worker.run(install_signals=False)
        except ZeroDivisionError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    handler.wait_until_begun()
    assert worker._manager is not None
    worker._manager._fail(ZeroDivisionError("planned"))
    thread.join(PATIENCE_S)
    assert len(found) == 1
    assert queue.calls["complete"] == 0


_SCRIPT = """
import sys
from leasehold.worker.hooks import Hooks
from leasehold.worker.adapters import Outgoing
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.worker import Worker

queue = MemoryQueue("orders")
queue.put([Outgoing(body="a"), Outgoing(body="b")])

def handle(message):
    print("begun", flush=True)
    while not message.cancel_token.wait(20):
        pass
    message.check()

class Tell(Hooks):
    def stopping(self, worker):
        print("stopping", flush=True)

worker = Worker(handle, queue, concurrency=1, prefetch=1, hooks=[Tell()])
worker.run(grace_s=float(sys.argv[1]))
failures = [(each.body.decode(), queue.tried(each).failures) for each in queue.left()]
print(failures, flush=True)
"""


@contextmanager
def script(tmp_path: Path, grace_s: float) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT)
    command = [sys.executable, str(path), str(grace_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_worker(tmp_path: Path, number: signal.Signals) -> None:
    """A signal ends run() gracefully: both messages are given back uncounted."""
    with script(tmp_path, 0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        rest, _ = process.communicate(timeout=PATIENCE_S)
    assert rest == "stopping\n[('a', 0), ('b', 0)]\n"
    assert process.returncode == 0


def test_second_signal_does_not_wait(tmp_path: Path) -> None:
    """Who sends a second signal does not want to wait for handlers."""
    with script(tmp_path, 3600) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=PATIENCE_S)
    assert rest == "[('a', 0), ('b', 0)]\n"
    assert process.returncode == 0


def test_signals_are_left_alone_elsewhere() -> None:
    """In another thread than the main one, run() installs nothing and works all the same."""
    before = signal.getsignal(signal.SIGTERM)
    queue, heard = filled("a"), Heard()
    worker, ended = Worker(lambda _: None, queue, hooks=[heard], wait_s=0), threading.Event()

    def run() -> None:
        worker.run()
        ended.set()

    threading.Thread(target=run).start()
    heard.wait_until(settled=1)
    assert signal.getsignal(signal.SIGTERM) is before
    worker.stop()
    wait_for(ended)


def test_stop_while_it_begins_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped while it begins does not go on after it has stopped."""
    queue, begins = filled("a"), threading.Event()
    worker = Worker(lambda _: None, queue, wait_s=0)
    make = worker._lease_manager

    def slowly() -> BaseLeaseManager:
        begins.set()
        while worker.is_running:
            threading.Event().wait(0.001)
        return make()

    monkeypatch.setattr(worker, "_lease_manager", slowly)
    thread = threading.Thread(target=worker.run, kwargs={"install_signals": False})
    thread.start()
    wait_for(begins)
    worker.stop()
    thread.join(PATIENCE_S)
    assert not worker.is_running
    queue.put([Outgoing(body="late")])
    received = queue.calls["receive"]
    assert [each for each in threading.enumerate() if each.name.startswith("leasehold-work")] == []
    assert queue.calls["receive"] == received
    assert "late" in [body for body, _ in left(queue)]


def test_hook_that_sees_it_begin_can_ask_for_the_end() -> None:
    """It stops like any other worker."""

    class Ends(Hooks):
        def starting(self, worker: Worker) -> None:
            worker.request_stop()
            while worker.is_running:
                threading.Event().wait(0.001)

    heard = Heard()
    worker = Worker(lambda _: None, filled("a"), hooks=[Ends(), heard], wait_s=0)
    worker.run(install_signals=False)
    assert not worker.is_running
    assert worker._core.outstanding == 0


def test_stop_of_one_that_could_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops it meanwhile returns, and the error is for who began it."""
    worker, begins = Worker(lambda _: None, filled(), wait_s=0), threading.Event()

    def fails() -> BaseLeaseManager:
        begins.set()
        while worker.is_running:
            threading.Event().wait(0.001)
        raise RuntimeError("no threads")

    monkeypatch.setattr(worker, "_lease_manager", fails)
    failures: list[BaseException] = []

    def start() -> None:
        try:
            worker.start()
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_for(begins)
    worker.stop()
    thread.join(PATIENCE_S)
    assert [str(error) for error in failures] == ["no threads"]


def test_end_does_not_wait_for_answers_about_earlier_deliveries() -> None:
    """What came too often is given back unseen if the worker stops before it could ask."""
    queue = filled("a", "b", "c")
    for _ in range(20):
        queue.release(
            [
                Release(lease=each.lease, outcome="failed")
                for each in queue.receive(9, visibility_timeout_s=30)
            ]
        )
    gate = queue.faults.hold(method="tried")
    worker = Worker(lambda _: None, queue, wait_s=0, concurrency=4, session=False)
    worker.start()
    gate.wait_until_entered()
    thread = threading.Thread(target=worker.stop)
    thread.start()
    while not worker._core.is_stopping:
        threading.Event().wait(0.001)
    gate.open()
    thread.join(PATIENCE_S)
    assert queue.calls["tried"] == 1
    assert len(queue.buried) == 1
    assert queue.depth().visible == 2


def test_credentials_that_never_worked_end_it() -> None:
    """There is nobody to whom a log that repeats itself for ever would be of use."""
    queue = filled("a")
    queue.faults.fail(1000, method="receive", error=Denied("wrong key"))
    worker = Worker(print, queue)
    with pytest.raises(Denied, match="wrong key"):
        worker.run(install_signals=False)
    assert not worker.is_running
    assert left(queue) == [("a", 0)]


def test_credentials_that_fail_later_are_tried_again() -> None:
    """What was good before may be so again: the worker goes on without a start by hand."""
    queue = filled("a")

    def handle(message: Message) -> None:
        if message.text == "b":
            worker.request_stop()
            return
        # These take longer than the worker takes to look whether it was refused.
        queue.faults.fail(2, method="receive", error=Denied("key withdrawn"))
        queue.put([Outgoing(body="b")])

    worker = Worker(handle, queue, concurrency=1, prefetch=0)
    worker.run(install_signals=False)
    assert left(queue) == []
    assert sum(each.receive_errors for each in worker.stats.queues) == 2
