"""The loop of the quickstart of Azure's SDK for Python: receive, work, delete."""

from __future__ import annotations

import time

from azure.storage.queue import QueueClient

from proof.workers.work import CONNECTION_STRING, LEASE_S, QUEUE, work


def main() -> None:
    """Work until killed."""
    queue = QueueClient.from_connection_string(CONNECTION_STRING, QUEUE)
    while True:
        for message in queue.receive_messages(visibility_timeout=LEASE_S):
            work(message.content)
            queue.delete_message(message)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
