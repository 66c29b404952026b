"""Holding a message with the official SDK: renew, save, give back, complete. No ffmpeg here."""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from typing import Final

from azure.core.exceptions import HttpResponseError
from azure.storage.queue import LinearRetry, QueueClient, QueueMessage


class LeaseLost(Exception):
    """The message is no longer ours: somebody else has it, or it is gone."""


def open_queue(connection_string: str, name: str) -> QueueClient:
    """Return a client whose patience suits leases of a few seconds.

    The SDK's own settings wait 15 seconds before the first repetition and 60 for an answer: a
    renewal that late would find the message with somebody else.
    """
    return QueueClient.from_connection_string(
        connection_string,
        name,
        retry_policy=LinearRetry(backoff=1, retry_total=1, random_jitter_range=0),
        connection_timeout=2,
        read_timeout=5,
    )


class Lease:
    """One received message.

    Every update makes a new pop receipt and kills the one before. Renewals come from a timer
    thread, progress and completion from the working thread: one lock per message puts them in a
    row, so that each call is made with the receipt that the call before it returned.
    """

    def __init__(
        self, queue: QueueClient, message: QueueMessage, *, lease_s: int, asked_at_s: float
    ) -> None:
        self.id: Final[str] = message.id
        self.text: Final = str(message.content)
        self.dequeue_count: Final[int] = message.dequeue_count or 0
        self.received_at_s: Final = asked_at_s
        self.name: str = message.id
        """What the journal calls the message; whoever has read its text may say better."""
        self.lost: Final = threading.Event()
        """Set once the message is known to be no longer ours."""
        self.lost_because = ""
        self._queue = queue
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._receipt = message.pop_receipt
        # Counted from before the request, so that we never believe to hold it longer than we do.
        self._until_s = asked_at_s + lease_s
        self._ended = False

    def remaining_s(self) -> float:
        """Return for how many seconds the lease surely lasts; negative if it may have ended."""
        return self._until_s - time.monotonic()

    def renew(self) -> bool:
        """Lease the message for the full time again; return False if it has been settled."""
        with self._lock:
            if self._ended:
                return False
            # By id, not by the message object: the SDK would send the object's text along and
            # so put the state as received over the state that was saved since.
            self._update(content=None, visibility_timeout_s=self._lease_s)
            return True

    def confirm(self) -> None:
        """Make sure that the message is still ours; raises LeaseLost if it is not."""
        if self.lost.is_set() or self.remaining_s() <= 0:
            self.renew()

    def save(self, text: str) -> None:
        """Write the progress into the message and renew the lease in the same call."""
        with self._lock:
            self._update(content=text, visibility_timeout_s=self._lease_s)

    def give_back(self, text: str | None, *, delay_s: int) -> None:
        """Let the message be delivered again in *delay_s* seconds; None keeps its text."""
        with self._lock:
            self._update(content=text, visibility_timeout_s=delay_s)
            self._ended = True

    def complete(self) -> None:
        """Delete the message."""
        with self._lock:
            self._check_held()
            try:
                self._queue.delete_message(self.id, self._receipt)
            except HttpResponseError as error:
                self._raise_if_lost(error)
                raise
            self._ended = True

    def lose(self, because: str) -> None:
        """Declare the lease lost, so that whoever works on the message stops."""
        self.lost_because = self.lost_because or because
        self.lost.set()

    def _update(self, *, content: str | None, visibility_timeout_s: int) -> None:
        self._check_held()
        asked_at_s = time.monotonic()
        try:
            updated = self._queue.update_message(
                self.id, self._receipt, content=content, visibility_timeout=visibility_timeout_s
            )
        except HttpResponseError as error:
            self._raise_if_lost(error)
            raise
        self._receipt = updated.pop_receipt
        self._until_s = asked_at_s + visibility_timeout_s

    def _check_held(self) -> None:
        if self.lost.is_set() or self._ended:
            raise LeaseLost(self.lost_because)

    def _raise_if_lost(self, error: HttpResponseError) -> None:
        """A receipt that no longer fits is answered 404; some emulators say 400 instead."""
        code = getattr(error, "error_code", "")
        code = getattr(code, "value", code)
        if error.status_code == HTTPStatus.NOT_FOUND or code == "PopReceiptMismatch":
            self.lose(f"refused with {error.status_code} {code}")
            raise LeaseLost(self.lost_because) from error
