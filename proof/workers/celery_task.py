"""The Celery application of the programs here, and plain texts as calls of its task."""

from __future__ import annotations

import base64
import json
import sys
import uuid
from typing import Any

from celery import Celery

from proof.workers.work import MAX_ATTEMPTS, QUEUE, WorkFailed, work

TASK = "proof.work"


def make_app(broker: str, **options: Any) -> Celery:
    """Return an application whose task does the work, is retried, and is acknowledged late.

    With ``early`` as an argument of the program it is acknowledged early, as Celery does by itself.
    """
    app = Celery("proof", broker=broker, broker_transport_options=options)
    app.conf.update(
        task_default_queue=QUEUE,
        task_acks_late="early" not in sys.argv,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )

    @app.task(  # type: ignore[untyped-decorator]  # Celery has no types
        name=TASK,
        autoretry_for=(WorkFailed,),
        default_retry_delay=1,
        max_retries=MAX_ATTEMPTS - 1,
    )
    def _do(text: str) -> None:
        work(text)

    return app


def run(app: Celery) -> None:
    """Work until asked to stop."""
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"]
    app.worker_main(["worker", "--pool=threads", "--concurrency=4", *quiet])


def call_of(text: str, *, encodes: bool) -> dict[str, Any]:
    """Return a text as the message that ``apply_async`` of the task would have put.

    Args:
        text: What ``leasehold certify`` has put.
        encodes: Whether the transport keeps the body in Base64.
    """
    body = json.dumps([[text], {}, {}])
    task_id = str(uuid.uuid4())
    properties = {
        "correlation_id": task_id,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": QUEUE},
        "delivery_tag": str(uuid.uuid4()),
        "priority": 0,
    }
    if encodes:
        body = base64.b64encode(body.encode()).decode()
        properties["body_encoding"] = "base64"
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": TASK, "id": task_id, "root_id": task_id, "lang": "py", "retries": 0},
        "properties": properties,
    }
