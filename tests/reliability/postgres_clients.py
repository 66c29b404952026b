"""Clients of a server that speak HTTP, and write down what they were told."""

from __future__ import annotations

import random
import threading

from leasehold.domain.model import NO_DETAIL, Message, Phase
from tests.reliability.postgres_ledger import Ledger
from tests.reliability.running import CLOCK, Client, Delivery, deliveries

QUEUE = "failover"
_LEASE_S = 2
_SLACK_MS = 50
"""How well the clocks of two servers agree."""
_BUSY = 503
_BACK_OFF_S = 0.02


class HttpClient(threading.Thread):
    """Puts, gets, and deletes most of what it gets, until it is told to stop.

    Args:
        port: Of its server.
        number: Its own.
        ledger: Of all clients.
    """

    def __init__(self, port: int, number: int, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self.answered_s = 0.0
        """When it last heard that something was done, on the monotonic clock."""
        self.is_stopping = False
        self.broken: list[BaseException] = []
        self._client = Client(port)
        self._ledger = ledger
        self._number = number
        self._rng = random.Random(number)
        self._puts = 0
        self._pause = threading.Event()

    def run(self) -> None:
        """See :class:`threading.Thread`."""
        try:
            while not self.is_stopping:
                self._put()
                for taken in self._get():
                    if self._rng.random() < 0.9:  # else the lease lapses
                        self._settle(taken)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.broken.append(error)
        finally:
            self._client.close()

    def _heard(self, status: int | None, *fine: int) -> bool:
        """Tell whether it was done; without an answer nobody knows."""
        if status in {None, _BUSY}:
            self._ledger.note("no answer" if status is None else "refused")
            self._pause.wait(_BACK_OFF_S)
            return False
        assert status in fine, status
        self.answered_s = CLOCK.monotonic_s()
        return True

    def _put(self) -> None:
        self._puts += 1
        text = f"{self._number}-{self._puts}"
        try:
            status = self._client.put(QUEUE, text).status
        except OSError:
            status = None
        self._ledger.put([text.encode()], known=self._heard(status, 201))

    def _get(self) -> tuple[Delivery, ...]:
        asked_ms = CLOCK.now_ms()
        try:
            answer = self._client.get(QUEUE, self._rng.randint(1, 4), _LEASE_S)
        except OSError:
            self._heard(None)
            return ()
        if not self._heard(answer.status, 200):
            return ()
        taken = deliveries(answer)
        for each in taken:
            self._ledger.granted(
                _leased(each, asked_ms + _LEASE_S * 1000 - _SLACK_MS), CLOCK.now_ms()
            )
        return taken

    def _settle(self, taken: Delivery) -> None:
        try:
            status = self._client.delete(QUEUE, taken.message_id, taken.receipt).status
        except OSError:
            status = None
        known = self._heard(status, 204, 404)
        if status != 404:  # another client has it: the lease had lapsed
            self._ledger.done([taken.text.encode()], known=known)


def _leased(taken: Delivery, until_ms: int) -> Message:
    """Return the message as the ledger wants it; its fence is how often it was handed out."""
    body, count = taken.text.encode(), taken.dequeue_count
    fields = (0, 0, until_ms, count, count, Phase.LEASED, 0, 0, 0, None, 8, NO_DETAIL, None)
    return Message(taken.message_id, body, *fields)
