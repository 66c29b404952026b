"""What a task of Spark does, without Spark, on a real server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasehold.client import Client
from leasehold.spark.pipeline import Pipeline
from leasehold.spark.pipeline.channel import Answer, TaskResult
from leasehold.spark.pipeline.task import HANDED_OVER, Plan, Task, leaving_on_signals
from leasehold.testing import InProcessServer
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import Poison
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from tests.patience import PATIENCE_S
from tests.unit.spark.pipeline.support import who


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """Return a server whose clock goes by itself."""
    with InProcessServer(clock="system") as started:
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """Return a client of it; the queue ``films`` is there."""
    with server.client() as made:
        made.queue("films").create()
        yield made


def plan(server: InProcessServer, pipeline: Pipeline, **more: Any) -> Plan:
    """Return what a task is told."""
    given: dict[str, Any] = {
        "name": pipeline.name,
        "stage_names": pipeline.names,
        "make_stages": pipeline.stages,
        "batch_rows": pipeline.stages_in("films").batch_rows,
        "queue": QueueSpec("leasehold", "films", server.connection_string),
        "address": None,
        "drains": True,
        "at_once": 4,
        "lease": LeaseSettings.of(30),
        "prefetch": None,
        "retries": RetryRule(kind="fixed", initial_s=0),
        "poison": PoisonRule(max_failures=3),
        "grace_s": 10.0,
    }
    return Plan(**(given | more))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for another thread; the test's time-out bounds it."""
    pause = threading.Event()
    while not is_so():
        pause.wait(0.002)


def keep(message: Any, state: Any) -> Any:
    """Go on."""
    return state


@pytest.mark.parametrize(("as_set", "lease_s"), [(True, 90), (False, 30)])
def test_leases_are_as_long_as_is_set(
    server: InProcessServer, client: Client, as_set: bool, lease_s: int
) -> None:
    """For the type of a message, where that is asked for."""
    films = client.queue("films")
    films.update(settings={"timeouts_by_type": {"film": {"visibility_timeout_s": 90}}})
    films.put("a", type="film")
    pipeline = Pipeline("films").stage("see", lambda _message, _state: None)
    Task(plan(server, pipeline, lease_as_set=as_set), who()).run()
    [received] = [each for each in client.events() if each.type == "received"]
    assert received.visible_at_ms == received.at_ms + lease_s * 1_000


@pytest.mark.usefixtures("client")
def test_the_largest_batches_fit_into_what_a_worker_may_have(server: InProcessServer) -> None:
    """One is worked on while the next one comes together, up to the most messages at once."""
    pipeline = Pipeline("films").stage("see", lambda _: None, batch="arrow", rows=10_000)
    assert Task(plan(server, pipeline, at_once=None), who()).run().failure is None


def test_a_queue_is_worked_off_and_the_task_ends(server: InProcessServer, client: Client) -> None:
    """Each message has a row with its stages; nothing is left."""
    client.queue("films").put_many([f"film {number}" for number in range(20)])
    pipeline = Pipeline("films").stage("scan", keep).stage("ship", keep)
    left = Task(plan(server, pipeline), who()).run()
    assert left.failure is None
    assert len(left.rows) == 20
    assert {row.outcome for row in left.rows} == {"done"}
    assert all([run.stage for run in row.stages] == ["scan", "ship"] for row in left.rows)
    assert left.figures.stages["ship"].done == 20
    assert client.queue("films").counts().total == 0


def test_what_fails_is_tried_again_within_the_run_and_what_cannot_succeed_is_set_aside(
    server: InProcessServer, client: Client
) -> None:
    """The run ends when nothing is left to be tried again."""
    client.queue("films").put_many(["good", "bad", "flaky"])
    tries: list[str] = []

    def scan(message: Any, state: Any) -> Any:
        tries.append(message.text)
        if message.text == "bad":
            raise Poison("not a film")
        if message.text == "flaky" and tries.count("flaky") < 3:
            raise OSError("busy")
        return state

    left = Task(plan(server, Pipeline("films").stage("scan", scan)), who()).run()
    ended = [(row.outcome, row.delivery, row.reason) for row in left.rows]
    assert sorted(ended) == [
        ("done", 1, None),
        ("done", 3, None),
        ("failed", 1, "busy"),
        ("failed", 2, "busy"),
        ("poisoned", 1, "not a film"),
    ]
    assert client.queue("films").counts().poisoned == 1


def test_messages_that_are_due_later_are_not_waited_for(
    server: InProcessServer, client: Client
) -> None:
    """What the sender has delayed stays in the queue."""
    client.queue("films").put("later", delay_s=3600)
    client.queue("films").put("now")
    left = Task(plan(server, Pipeline("films").stage("scan", keep)), who()).run()
    assert [row.outcome for row in left.rows] == ["done"]
    assert client.queue("films").counts().delayed == 1


def test_a_saved_stage_is_gone_on_with(server: InProcessServer, client: Client) -> None:
    """Who gets the message next begins there, with the state."""
    client.queue("films").put("harvest")
    seen: list[Any] = []

    def encode(message: Any, state: Any) -> Any:
        seen.append((message.resumed, state))
        if len(seen) == 1:
            raise OSError("the power failed")
        return state

    pipeline = Pipeline("films").stage("scan", lambda *_: {"n": 1}).stage("encode", encode)
    left = Task(plan(server, pipeline), who()).run()
    assert seen == [(False, {"n": 1}), (True, {"n": 1})]
    assert [row.resumed_at for row in left.rows] == [None, "encode"]
    assert [run.stage for run in left.rows[1].stages] == ["encode"]


def stopped(task: Task, begun: threading.Event, wish: Answer, then: Callable[[], None]) -> Any:
    """Run a task, and have it told to stop once a message is in work."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(task.run()))
    thread.start()
    assert begun.wait(PATIENCE_S)
    task._heard(wish)
    then()
    thread.join(PATIENCE_S)
    return found[0]


def test_a_task_waits_for_what_is_still_to_come_from_other_queues(
    server: InProcessServer, client: Client
) -> None:
    """Its own queue is empty at first; what was sent on is no message that was resumed."""
    client.queue("films-gpu").create()
    client.queue("films").put("film")
    pipeline = Pipeline("films").stage("scan", keep).stage("encode", keep, queue="films-gpu")
    later = plan(
        server,
        pipeline,
        queue=QueueSpec("leasehold", "films-gpu", server.connection_string),
        before=pipeline.stages_in("films-gpu").before,
    )
    task, ends = Task(later, who()), list[TaskResult]()
    thread = threading.Thread(target=lambda: ends.append(task.run()))
    thread.start()
    first = Task(plan(server, pipeline), who()).run()
    thread.join()
    [last] = ends
    stages = [[run.stage for run in row.stages] for row in (*first.rows, *last.rows)]
    assert stages == [["scan"], ["encode"]]
    assert last.figures.resumed == 0
    assert client.queue("films-gpu").counts().total == 0


def test_a_wish_to_stop_lets_messages_in_work_finish(
    server: InProcessServer, client: Client
) -> None:
    """What is in work is done, what is not begun is given back."""
    client.queue("films").put_many([f"film {number}" for number in range(9)])
    begun, go_on = threading.Event(), threading.Event()

    def scan(message: Any, state: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return state

    pipeline = Pipeline("films").stage("scan", scan)
    task = Task(plan(server, pipeline, at_once=1, drains=False), who())

    def finish() -> None:
        hands = task._hands
        assert hands is not None
        while hands._first.is_running:
            threading.Event().wait(0.002)
        go_on.set()

    left = stopped(task, begun, Answer(stop_s=20), finish)
    assert [row.outcome for row in left.rows] == ["done"]
    counts = client.queue("films").counts()
    assert (counts.visible, counts.leased) == (8, 0)


def test_without_grace_messages_in_work_are_given_back_with_their_progress(
    server: InProcessServer, client: Client
) -> None:
    """A stage that looks up is stopped at once."""
    client.queue("films").put("long")
    begun = threading.Event()

    def encode(message: Any, state: Any) -> Any:
        begun.set()
        while not message.cancel_token.wait(PATIENCE_S):
            raise AssertionError("it was not stopped")
        message.check()

    pipeline = Pipeline("films").stage("scan", lambda *_: {"n": 1}).stage("encode", encode)
    task = Task(plan(server, pipeline, drains=False), who())
    left = stopped(task, begun, Answer(stop_s=0, hurry=True), lambda: None)
    assert [row.outcome for row in left.rows] == ["interrupted"]
    [message] = client.queue("films").receive()
    assert message.saved["stage"] == "encode"


def test_what_makes_all_work_impossible_is_told_and_not_raised(server: InProcessServer) -> None:
    """Spark would try again what cannot succeed."""
    left = Task(plan(server, Pipeline("films").stage("scan", keep)), who()).run()
    assert left.failure is not None
    assert "QueueMissing" in left.failure


def test_asynchronous_stages_run_in_one_event_loop(server: InProcessServer, client: Client) -> None:
    """Many messages wait at the same time without threads."""
    client.queue("films").put_many(["a", "b"])
    threads: set[str] = set()

    async def scan(message: Any, state: Any) -> Any:
        threads.add(threading.current_thread().name)
        return state

    left = Task(plan(server, Pipeline("films").stage("scan", scan)), who()).run()
    assert [row.outcome for row in left.rows] == ["done", "done"]
    assert len(threads) == 1


def test_a_task_that_is_to_leave_hands_over_at_the_next_checkpoint(
    server: InProcessServer, client: Client
) -> None:
    """What it has saved is there, the message is visible at once, and the task ends."""
    queue = client.queue("films")
    queue.put("a long film")
    begun, go_on = threading.Event(), threading.Event()

    def encode(message: Any, state: Any) -> Any:
        begun.set()
        go_on.wait(PATIENCE_S)
        message.checkpoint({"frame": 7})
        return state

    pipeline = Pipeline("films").stage("scan", keep).stage("encode", encode)
    task = Task(plan(server, pipeline, lease=LeaseSettings.of(600)), who())
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(task.run()))
    thread.start()
    assert begun.wait(PATIENCE_S)
    task.leave()
    wait_until(lambda: task._recorder._hands_over)
    go_on.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    (row,) = [row for row in results[0].rows if row.outcome == "interrupted"]
    assert row.reason == HANDED_OVER
    assert row.stages[-1].stage == "encode"
    (again,) = queue.receive(visibility_timeout_s=30)
    saved = again.saved
    assert (saved["stage"], saved["state"]) == ("encode", {"frame": 7})


def test_a_signal_to_the_process_has_the_task_leave_and_is_ignored_afterwards() -> None:
    """SIGHUP is what the workers of an executor get that ends; it must not end them at once."""
    heard = []
    before = signal.getsignal(signal.SIGHUP)
    with leaving_on_signals(lambda: heard.append(1)):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    assert len(heard) == 2
    assert signal.getsignal(signal.SIGHUP) is before
