"""The application of Celery that the workers of `celery_brokers` and of the tests run."""

import json
import os
import signal
import time
from pathlib import Path

from celery import Celery, Task
from celery.exceptions import Reject

app = Celery("app", broker=os.environ["BROKER_URL"], backend=os.environ.get("RESULT_BACKEND"))
app.conf.update(
    broker_transport_options=json.loads(os.environ.get("TRANSPORT_OPTIONS", "{}")),
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=int(os.environ.get("PREFETCH_MULTIPLIER", "4")),
    task_ignore_result="RESULT_BACKEND" not in os.environ,
)
_effects = os.open(
    os.environ.get("EFFECTS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
)


def effect(what: object) -> None:
    """Leave a line that outlives the process: what, when, and who."""
    os.write(_effects, f"{what} {time.time()} {os.getppid()}\n".encode())  # noqa: TID251


@app.task
def work(number: int, length_s: float = 0) -> int:
    """Take so long, and leave a line."""
    effect(f"begin-{number}")
    time.sleep(length_s)
    effect(number)
    return number


@app.task(acks_late=False)
def early(number: int, length_s: float = 0) -> None:
    """Be acknowledged before it begins."""
    work(number, length_s)


@app.task
def kill_itself_once(flag: str) -> None:
    """Lose the process that works on it, the first time."""
    if not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    effect("survived")


@app.task
def send_another(number: int) -> None:
    """Publish from a process of the pool."""
    work.delay(number)


@app.task(bind=True, max_retries=1)
def fail_once(self: Task, number: int) -> None:
    """Ask for another try, later."""
    effect(f"try-{number}")
    if not self.request.retries:
        raise self.retry(countdown=1)


@app.task
def reject(number: int) -> None:
    """Be set aside."""
    raise Reject(number, requeue=False)
