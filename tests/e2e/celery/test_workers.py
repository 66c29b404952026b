"""What applications of Celery rely on, with workers that are killed."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasehold.client import Client
from tests.e2e.celery.conftest import Application, Broker, wait_until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long

_TEN_YEARS_S = 315_360_000


def test_tasks_longer_than_the_visibility_timeout_run_once(
    application: Application, client: Client, prefix: str
) -> None:
    """The lease is renewed while a task runs and while it waits in the worker."""
    for number in range(6):
        application.send("work", number, 5.0)
    application.worker()
    application.worker()
    application.wait_for_effects(*range(6))
    wait_until(lambda: client.queue(f"{prefix}celery").counts().total == 0, "all acknowledged")
    assert application.effects() == {
        f"{part}{number}": 1 for number in range(6) for part in ("", "begin-")
    }


def test_tasks_of_a_killed_worker_run_in_another(application: Application) -> None:
    """Late acknowledgement; the session of the dead worker is lost within seconds."""
    first = application.worker()
    for number in range(4):
        application.send("work", number, 4.0)
    application.wait_for_effects("begin-0")
    first.kill()
    second = application.worker()
    application.wait_for_effects(*range(4))
    assert "received" in second.log


def test_early_acknowledged_tasks_of_a_killed_worker_are_gone(
    application: Application, client: Client, prefix: str
) -> None:
    """As with every broker of Celery, that is what ``acks_late=False`` means."""
    first = application.worker(PREFETCH_MULTIPLIER="1")
    application.send("early", 1, 60.0)
    application.wait_for_effects("begin-1")
    wait_until(lambda: client.queue(f"{prefix}celery").counts().total == 0, "acknowledged")
    first.kill()


def test_a_task_whose_process_is_lost_runs_again(application: Application, tmp_path: Path) -> None:
    """``task_reject_on_worker_lost`` gives the message back."""
    application.worker()
    application.send("kill_itself_once", str(tmp_path / "flag"))
    application.wait_for_effects("survived")


def test_a_countdown_is_held_by_the_server(
    application: Application, client: Client, prefix: str
) -> None:
    """The task is no burden of a worker, and runs when it is time."""
    application.worker()
    application.send("work", 1, countdown=_TEN_YEARS_S // 2)
    application.send("work", 2, eta=datetime.now(UTC) + timedelta(seconds=4))  # noqa: TID251
    queue = client.queue(f"{prefix}celery")
    assert (queue.counts().delayed, queue.counts().leased) == (2, 0)
    application.wait_for_effects(2)
    wait_until(lambda: queue.counts().leased == 0, "acknowledged")
    assert queue.counts().delayed == 1
    (waiting,) = queue.inspect(states=["delayed"])
    assert waiting.type == "benchmarks.celery_app.work"


def test_a_retry_runs_after_its_countdown(application: Application) -> None:
    """``self.retry`` publishes the task anew, with a delay."""
    application.worker()
    application.send("fail_once", 1)
    wait_until(lambda: application.effects()["try-1"] == 2, "a second try")


def test_priorities(application: Application) -> None:
    """As with AMQP, the higher number goes first."""
    for number, priority in enumerate([0, 3, 9]):
        application.send("work", number, priority=priority)
    worker = application.worker("--concurrency", "1", PREFETCH_MULTIPLIER="1")
    application.wait_for_effects(0, 1, 2)
    begun = [each for each in application.effects() if each.startswith("begin")]
    assert begun == ["begin-2", "begin-1", "begin-0"], worker.log


def test_remote_control(application: Application, client: Client, prefix: str) -> None:
    """Ping, inspect and revoke reach the workers, and replies come back."""
    application.worker()
    control = application.celery.control
    assert list(control.inspect(timeout=10).ping()) == ["w0@test"]
    application.send("work", 1, countdown=3, task_id="unwanted")
    application.send("work", 2, countdown=3)
    assert control.revoke("unwanted", reply=True, timeout=10)
    application.wait_for_effects(2)
    queue = client.queue(f"{prefix}celery")
    wait_until(lambda: queue.counts().total == 0, "the revoked task is acknowledged too")
    assert not application.effects()["1"]


def test_queues_for_replies_do_not_pile_up(
    application: Application, client: Client, prefix: str
) -> None:
    """They go with the session of whoever waits, also if that is killed."""
    application.worker().kill()
    left = {queue.name for queue in client.list_queues(prefix)}
    assert len(left) == 2, "its own queue for commands has no owner now"
    time.sleep(6)  # the session of the killed worker is lost
    other = application.worker("--hostname", "other@test")
    application.celery.control.inspect(timeout=10).ping()
    application.celery.control.inspect(timeout=10).ping()
    application.celery.pool.force_close_all()
    names = {queue.name for queue in client.list_queues(prefix)}
    assert not (left - {f"{prefix}celery"}) & names, other.log
    other.stop()
    wait_until(
        lambda: {queue.name for queue in client.list_queues(prefix)} == {f"{prefix}celery"},
        "only the queue of tasks is left",
    )


def test_a_worker_that_stops_gives_back_what_it_has_not_begun(
    application: Application, client: Client, prefix: str
) -> None:
    """A warm shutdown finishes the tasks that run, and others have the rest at once."""
    worker = application.worker("--concurrency", "1")
    for number in range(4):
        application.send("work", number, 3.0)
    application.wait_for_effects("begin-0")
    worker.stop()
    assert application.effects()["0"] == 1
    counts = client.queue(f"{prefix}celery").counts()
    assert (counts.visible, counts.leased) == (3, 0), worker.log


def test_processes_of_the_pool_publish(application: Application) -> None:
    """Sockets, threads and locks of the parent are left to it after a fork."""
    application.worker()
    for number in range(10):
        application.send("send_another", number)
    application.wait_for_effects(*range(10))
    assert sum(application.effects().values()) == 20


def test_a_rejected_task_is_set_aside(
    application: Application, client: Client, prefix: str
) -> None:
    """Without requeue, as with a dead-letter exchange, it is in the poison queue."""
    application.worker()
    application.send("reject", 1)
    poison = client.queue(f"{prefix}celery-poison")
    wait_until(
        lambda: poison.name in {each.name for each in client.list_queues(prefix)}, "poison queue"
    )
    wait_until(lambda: poison.counts().visible == 1, "set aside")


def test_results_over_the_broker(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """``rpc://`` needs no other server."""
    application.worker(RESULT_BACKEND="rpc://")
    application.celery.conf.result_backend = "rpc://"
    sent = application.celery.send_task("benchmarks.celery_app.work", (7,))
    assert sent.get(timeout=PATIENCE_S) == 7


def test_a_worker_that_stood_still_works_on(application: Application) -> None:
    """Another worker has its task meanwhile."""
    worker = application.worker()
    application.send("work", 1, 3.0)
    application.wait_for_effects("begin-1")
    os.killpg(worker.process.pid, signal.SIGSTOP)
    other = application.worker()
    wait_until(lambda: application.effects()["begin-1"] == 2, "the other has the task")
    os.killpg(worker.process.pid, signal.SIGCONT)
    application.wait_for_effects(1)
    other.stop()
    application.send("work", 2)
    application.wait_for_effects(2)


def test_a_worker_whose_session_was_ended_connects_anew(
    application: Application, client: Client
) -> None:
    """An operator has ended it; the tasks that it had run again."""
    worker = application.worker()
    application.send("work", 1)
    application.wait_for_effects(1)
    for session in client.list_sessions():
        if session.state == "live":
            client.end_session(session.session_id, "test")
    worker.wait_for("onnection to broker lost")
    application.send("work", 2)
    application.wait_for_effects(2)


def test_a_server_that_restarts(broker: Broker, application: Application) -> None:
    """Tasks that run meanwhile are acknowledged to the new one, and run once."""
    worker = application.worker()
    for number in range(6):
        application.send("work", number, 2.0)
    application.wait_for_effects("begin-0")
    broker.kill()
    broker.start()
    application.send("work", 6)
    application.wait_for_effects(*range(7))
    assert max(application.effects().values()) == 1, worker.log


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools(application: Application, pool: str) -> None:
    """Threads, and the worker's own."""
    application.worker("--pool", pool)
    for number in range(20):
        application.send("work", number)
    application.wait_for_effects(*range(20))


@pytest.mark.parametrize(
    "application",
    [{"queue_settings": {"groups": {"order": "fifo", "max_in_flight": 1}}}],
    indirect=True,
)
def test_groups_run_in_order(application: Application) -> None:
    """``MessageGroupId`` is the name of the group, as with SQS."""
    application.worker()
    application.worker()
    for number in range(12):
        application.send("work", number, 0.05, MessageGroupId=f"group {number % 2}")
    application.wait_for_effects(*range(12))
    begun = [int(each[6:]) for each in application.effects() if each.startswith("begin")]
    for group in (0, 1):
        mine = [number for number in begun if number % 2 == group]
        assert mine == sorted(mine)
