"""Celery on kombu's transport for Azure Storage queues, with late acknowledgement.

The transport keeps its messages as JSON. What ``leasehold certify`` puts is plain text, so the one
function that reads JSON is replaced; all that is done with requests stays kombu's. ``raw`` as an
argument leaves that function alone.
"""

from __future__ import annotations

import sys
from typing import Any

from azure.storage.queue import QueueClient
from kombu.transport import azurestoragequeues

from proof.workers.celery_task import call_of, make_app, run
from proof.workers.work import CONNECTION_STRING, QUEUE

_loads = azurestoragequeues.loads


def _read(content: str) -> Any:
    """Return a message of kombu's, also of a text that kombu has not put."""
    return _loads(content) if content.startswith('{"body"') else call_of(content, encodes=True)


def main() -> None:
    """Work until asked to stop."""
    if "raw" not in sys.argv:
        azurestoragequeues.loads = _read
    client = QueueClient.from_connection_string(CONNECTION_STRING, QUEUE)
    account = client.url.rpartition("/")[0]
    run(make_app(f"azurestoragequeues://{client.credential.account_key}@{account}"))


if __name__ == "__main__":
    main()
