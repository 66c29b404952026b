"""A careful loop on Azure's SDK for Python, which renews with ``update_message`` in a thread.

It does what a user of the SDK can do with its documented calls: it renews at a third of the lease,
deletes with the newest receipt, gives a failed message back, sets a poison message aside, goes on
after an error of the service, and ends when asked to. ``quick`` as an argument makes the SDK
repeat a request after 0.2 seconds instead of its 18 and more.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.storage.queue import LinearRetry, QueueClient

from proof.workers.work import (
    CONNECTION_STRING,
    LEASE_S,
    MAX_ATTEMPTS,
    POISON_QUEUE,
    QUEUE,
    WorkFailed,
    work,
)

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage


class Renewer:
    """Renews the lease of one message until its work is over."""

    def __init__(self, queue: QueueClient, message: QueueMessage) -> None:
        self.message = message
        self.is_lost = False
        self._queue = queue
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._is_over.wait(LEASE_S / 3):
            try:
                renewed = self._queue.update_message(self.message, visibility_timeout=LEASE_S)
            except HttpResponseError as error:
                self.is_lost = error.status_code in {400, 404}
                if self.is_lost:
                    return
            except AzureError:
                continue
            else:
                self.message.pop_receipt = renewed.pop_receipt

    def end(self) -> None:
        """Stop, when a renewal that is on its way has been answered."""
        self._is_over.set()
        self._thread.join()


def _handle(queue: QueueClient, poison: QueueClient, message: QueueMessage) -> None:
    renewer = Renewer(queue, message)
    try:
        work(message.content)
    except WorkFailed:
        renewer.end()
        if renewer.is_lost:
            return
        if (message.dequeue_count or 0) < MAX_ATTEMPTS:
            queue.update_message(message, visibility_timeout=0)
            return
        poison.send_message(message.content)
    else:
        renewer.end()
    if not renewer.is_lost:
        queue.delete_message(message)


def main() -> None:
    """Work until asked to stop."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    options: dict[str, Any] = {}
    if "quick" in sys.argv:
        options["retry_policy"] = LinearRetry(backoff=0, random_jitter_range=0, retry_total=10)
        options["retry_policy"].get_backoff_time = lambda _: 0.2
    queue = QueueClient.from_connection_string(CONNECTION_STRING, QUEUE, **options)
    poison = QueueClient.from_connection_string(CONNECTION_STRING, POISON_QUEUE, **options)
    while not stopping.is_set():
        try:
            message = queue.receive_message(visibility_timeout=LEASE_S)
            if message is not None:
                _handle(queue, poison, message)
                continue
        except AzureError as error:
            print(f"{type(error).__name__}: {error}"[:200])
        stopping.wait(0.5)


if __name__ == "__main__":
    main()
