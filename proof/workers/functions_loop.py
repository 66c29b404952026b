"""The loop that Azure Functions' manual describes for a queue trigger, written down again.

Not the host itself: batches of ``batchSize`` 16, a new batch when ``newBatchThreshold`` 8 are left,
a failed message visible again after ``visibilityTimeout`` 0, and after ``maxDequeueCount`` 5 a copy
in the poison queue. Leases are renewed at half their length. While the queue stays empty it is
asked less and less often, up to every second here (``maxPollingInterval``). SIGTERM drains.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from azure.core.exceptions import AzureError
from azure.storage.queue import QueueClient

from proof.workers.work import CONNECTION_STRING, LEASE_S, POISON_QUEUE, QUEUE, WorkFailed, work

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage

BATCH_SIZE: Final = 16
NEW_BATCH_THRESHOLD: Final = 8
MAX_DEQUEUE_COUNT: Final = 5


class Host:
    """Receives batches, and runs the function on each message."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._queue = QueueClient.from_connection_string(CONNECTION_STRING, QUEUE)
        self._poison = QueueClient.from_connection_string(CONNECTION_STRING, POISON_QUEUE)
        self._running = 0
        self._changed = threading.Condition()

    def run(self) -> None:
        """Work until asked to stop, then finish what was received."""
        idle_s = 0.1
        with ThreadPoolExecutor(BATCH_SIZE + NEW_BATCH_THRESHOLD) as pool:
            while not self.stopping.is_set():
                with self._changed:
                    if self._running > NEW_BATCH_THRESHOLD:
                        self._changed.wait(0.1)
                        continue
                batch = self._receive()
                with self._changed:
                    self._running += len(batch)
                for message in batch:
                    pool.submit(self._process, message)
                idle_s = 0.1 if batch else min(1, idle_s * 2)
                self.stopping.wait(0 if batch else idle_s)

    def _receive(self) -> list[QueueMessage]:
        try:
            pages = self._queue.receive_messages(
                messages_per_page=BATCH_SIZE, visibility_timeout=LEASE_S
            ).by_page()
            return list(next(pages, []))
        except AzureError:
            return []

    def _process(self, message: QueueMessage) -> None:
        is_over = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(message, is_over), daemon=True)
        renewing.start()
        try:
            is_done = self._does(message)
            is_over.set()
            renewing.join()
            if is_done:
                self._queue.delete_message(message)
            elif (message.dequeue_count or 0) >= MAX_DEQUEUE_COUNT:
                self._poison.send_message(message.content)
                self._queue.delete_message(message)
            else:
                self._queue.update_message(message, visibility_timeout=0)
        except AzureError as error:
            print(f"{type(error).__name__}: {error}"[:200])
        finally:
            is_over.set()
            with self._changed:
                self._running -= 1
                self._changed.notify()

    @staticmethod
    def _does(message: QueueMessage) -> bool:
        try:
            work(message.content)
        except WorkFailed:
            return False
        return True

    def _renew(self, message: QueueMessage, is_over: threading.Event) -> None:
        while not is_over.wait(LEASE_S / 2):
            try:
                renewed = self._queue.update_message(message, visibility_timeout=LEASE_S)
            except AzureError:
                return
            message.pop_receipt = renewed.pop_receipt


def main() -> None:
    """Work until asked to stop."""
    host = Host()
    signal.signal(signal.SIGTERM, lambda *_: host.stopping.set())
    host.run()


if __name__ == "__main__":
    main()
