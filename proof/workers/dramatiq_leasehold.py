"""Dramatiq on Leasehold's broker.

A plain text that ``leasehold certify`` has put is made a message of the actor by Dramatiq's own
way to say how messages are read, an encoder.
"""

from __future__ import annotations

import signal
import threading
import uuid
from typing import Any

import dramatiq
from dramatiq.encoder import JSONEncoder

from leasehold.brokers.dramatiq import LeaseholdBroker
from proof.workers.work import CONNECTION_STRING, LEASE_S, MAX_ATTEMPTS, QUEUE, work


class PlainTextEncoder(JSONEncoder):  # type: ignore[misc]  # checked without Dramatiq's types
    """Reads messages of Dramatiq's, and plain texts as the argument of the actor."""

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the fields of a message."""
        if data.startswith(b'{"queue_name"'):
            found: dict[str, Any] = super().decode(data)
            return found
        return {
            "queue_name": QUEUE,
            "actor_name": "do",
            "args": [data.decode()],
            "kwargs": {},
            "options": {},
            "message_id": str(uuid.uuid4()),
            "message_timestamp": 0,
        }


def do(text: str) -> None:
    """Do the work of a message."""
    work(text)


def main() -> None:
    """Work until asked to stop."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    broker = LeaseholdBroker(CONNECTION_STRING, visibility_timeout_s=LEASE_S)
    dramatiq.set_broker(broker)
    dramatiq.set_encoder(PlainTextEncoder())
    dramatiq.actor(
        do, queue_name=QUEUE, max_retries=MAX_ATTEMPTS - 1, min_backoff=500, max_backoff=1_000
    )
    worker = dramatiq.Worker(broker, worker_threads=4)
    worker.start()
    stopping.wait()
    worker.stop()
    broker.close()


if __name__ == "__main__":
    main()
