"""What is in the poison queue in the end, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from azure.storage.queue import QueueClient
from examples.video_pipeline.ledger import Ledger

from leasehold.client import Client
from leasehold.worker.stages import EnvelopeForm


def buried(
    on: str, client: Client, poison: QueueClient, queue: str, ledger: Ledger
) -> Iterator[dict[str, Any]]:
    """Yield each message that was set aside: ``video``, ``dequeue_count`` and all ``reasons``.

    Args:
        on: Who did the work. Workers that speak Azure's protocol put a copy with the reason into
            the queue *poison*; executors speak our own, and the server keeps the message itself.
        client: Of the server.
        poison: The poison queue.
        queue: Name of the working queue.
        ledger: Knows the message ids.
    """
    if on == "workers":
        for message in poison.peek_messages(max_messages=32):
            yield _from_copy(json.loads(message.content))
        return
    for record in ledger.records.values():
        if record.result == "poisoned":
            found = client.queue(queue).get(record.message_id)
            errors = [each.error.text for each in found.attempts if each.error is not None]
            if found.last_error is not None and found.last_error.text not in errors[-1:]:
                errors.append(found.last_error.text)
            yield {
                "video": json.loads(found.body)["video"],
                "queue": found.queue,
                "dequeue_count": found.dequeue_count,
                "reasons": errors,
            }


def _from_copy(copy: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a copy; why earlier tries failed is in the progress that was saved."""
    body, saved = EnvelopeForm().unwrap(copy["text"])
    earlier = saved.state["failures"] if saved else []
    return {
        "video": json.loads(body)["video"],
        "queue": copy["queue"],
        "dequeue_count": copy["dequeue_count"],
        "reasons": [*earlier, copy["reason"]],
    }
