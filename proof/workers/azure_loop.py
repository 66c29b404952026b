"""The loop of the quickstart of Azure's SDK for Python: receive, work, delete.

``pages`` as an argument makes it receive ten messages at once, ``retries=0`` turns the SDK's own
repetitions of requests off.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from azure.storage.queue import QueueClient

from proof.workers.work import CONNECTION_STRING, LEASE_S, QUEUE, work

_PAGE: Final = 10


def main() -> None:
    """Work until killed."""
    options: dict[str, Any] = {"retry_total": 0} if "retries=0" in sys.argv else {}
    queue = QueueClient.from_connection_string(CONNECTION_STRING, QUEUE, **options)
    page = _PAGE if "pages" in sys.argv else None
    while True:
        for message in queue.receive_messages(visibility_timeout=LEASE_S, messages_per_page=page):
            work(message.content)
            queue.delete_message(message)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
