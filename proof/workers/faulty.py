"""A small worker on the native client that is right, or has the fault that its argument names.

It shows that each rule of ``leasehold certify`` is able to find something. ``mns`` as a second
argument makes it speak MNS through that SDK, with ``base64`` as a third one in its own coding.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from leasehold.client import Client, RetryPolicy
from leasehold.client.errors import LeaseholdClientError, LeaseLost, MessageNotFound
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
    from leasehold.client import ReceivedMessage
    from proof.workers.mns_queue import Received

    Message = ReceivedMessage | Received

FAULTS: Final = {
    "none": "",
    "deletes-first": "deleted-early",
    "never-renews": "lease-lost",
    "renews-too-late": "lease-lost",
    "renews-only-the-first": "lease-lost",
    "keeps-old-receipt": "deleted-late",
    "ignores-failed-renewal": "ignored-loss",
    "crashes-on-failure": "crashed",
    "gives-up": "crashed",
    "ignores-sigterm": "impolite-stop",
    "leaves-leases": "left-leased",
    "polls-busily": "busy-poll",
    "tries-for-ever": "poison-endless",
    "throws-poison-away": "poison-lost",
    "forgets-progress": "progress-lost",
    "works-again": "acted-twice",
    "takes-more": "took-more",
}
"""What can be wrong, and the rule that finds it."""

NOT_OVER_MNS: Final = frozenset({"forgets-progress"})
"""What cannot be wrong there: a message keeps no progress."""


def open_queues() -> tuple[Any, Any]:
    """Return the queue to work on, and the one for poison."""
    if "mns" in sys.argv:
        from proof.workers.mns_queue import MnsQueue  # noqa: PLC0415 - an SDK that few need

        encodes = "base64" in sys.argv
        return MnsQueue(QUEUE, encodes=encodes), MnsQueue(POISON_QUEUE, encodes=encodes)
    # Requests are repeated here, so that a fault is what this program does.
    once = RetryPolicy(attempts=1)
    client = Client.from_connection_string(CONNECTION_STRING, retries=once)
    return client.queue(QUEUE), client.queue(POISON_QUEUE)


class FaultyWorker:
    """Receives, renews beside the work, and deletes."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._queue, self._poison = open_queues()
        self._is_stopping = threading.Event()
        self._waiting: list[Message] = []

    def run(self) -> None:
        """Work until asked to stop."""
        if self._fault == "ignores-sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif self._fault != "leaves-leases":
            signal.signal(signal.SIGTERM, lambda *_: self._is_stopping.set())
        while not self._is_stopping.is_set() or (self._fault == "takes-more" and self._fetch()):
            if not self._fetch():
                time.sleep(0 if self._fault == "polls-busily" else 0.2)
        for message in self._waiting:
            self._try(lambda message=message: self._queue.release(message))

    def _fetch(self) -> bool:
        """Work on a message; tell whether there was one."""
        count = 10 if self._fault in {"renews-only-the-first", "takes-more"} else 1
        if not self._waiting:
            try:
                self._waiting = self._queue.receive(count, visibility_timeout_s=LEASE_S)
            except LeaseholdClientError:
                if self._fault == "gives-up":
                    raise
                return False
        if not self._waiting:
            return False
        self._handle(self._waiting.pop(0))
        return True

    def _handle(self, message: Message) -> None:
        if self._fault == "deletes-first":
            self._queue.complete(message)
        keeper = _Keeper(self._queue, message, self._fault)
        try:
            with keeper:
                self._work(message, keeper)
        except WorkFailed:
            if self._fault == "crashes-on-failure":
                raise
            self._failed(keeper.message)
            return
        if keeper.is_lost and self._fault != "ignores-failed-renewal":
            return
        current = message if self._fault == "keeps-old-receipt" else keeper.message
        if not self._try(lambda: self._queue.complete(current)) and self._fault == "works-again":
            self._handle(current)

    def _work(self, message: Message, keeper: _Keeper) -> None:
        kind, _, count = message.text.partition(":")
        if kind != "steps":
            work(message.text)
            return
        saved = message.saved["done"] if message.saved else 0
        done = 0 if self._fault == "forgets-progress" else saved
        for step in range(done + 1, int(count) + 1):
            work(message.text, step)
            keeper.save({"done": step})

    def _failed(self, message: Message) -> None:
        tries = 1 if self._fault == "throws-poison-away" else MAX_ATTEMPTS
        if message.dequeue_count < tries or self._fault == "tries-for-ever":
            self._try(lambda: self._queue.release(message))
            return
        if self._fault != "throws-poison-away":
            self._poison.put(message.text)
        self._try(lambda: self._queue.complete(message))

    def _try(self, act: object) -> bool:
        """Do something up to four times; tell whether it was done."""
        assert callable(act)
        for _ in range(1 if self._fault == "works-again" else 4):
            try:
                act()
            except LeaseholdClientError:
                time.sleep(0.1)
            else:
                return True
        return False


class _Keeper:
    """Renews one lease while its message is worked on."""

    def __init__(self, queue: Any, message: Message, fault: str) -> None:
        self.message = message
        self.is_lost = False
        self._queue = queue
        self._fault = fault
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Self:
        if self._fault not in {"never-renews", "deletes-first"}:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def save(self, state: dict[str, int]) -> None:
        """Save progress, which renews too."""
        self._renew(saved=state)

    def _keep(self) -> None:
        share = 1.3 if self._fault == "renews-too-late" else 0.3
        while not self._is_over.wait(LEASE_S * share):
            self._renew()

    def _renew(self, **saved: Any) -> None:
        with self._lock:
            for _ in range(4):
                try:
                    self.message = self._queue.renew(self.message, LEASE_S, **saved)
                except (LeaseLost, MessageNotFound):
                    self.is_lost = True
                    return
                except LeaseholdClientError:
                    time.sleep(0.1)
                else:
                    return


def main() -> None:
    """Run with the fault that is named."""
    FaultyWorker(sys.argv[1]).run()


if __name__ == "__main__":
    main()
