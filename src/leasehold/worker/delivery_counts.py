"""What a worker knows about deliveries beyond the message in hand: earlier ones, and its own."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from leasehold.worker.queues.errors import Denied, NotSupported, QueueError
from leasehold.worker.queues.protocol import CountsFailures, Delivery, Fault, QueueClient, Tried

_log: Final = logging.getLogger("leasehold.worker")
_NOTHING_KNOWN: Final = Tried(0, 0)
_MOST: Final = 1000
"""Messages that are remembered, of a queue; the oldest is forgotten first."""
_FORGET_S: Final = 60.0
_HOLD_S: Final = (0.0, 0.1, 0.2, 0.4)
_DELAY_S: Final = (1, 2, 4, 8)


def tried_of(client: QueueClient, delivery: Delivery) -> Tried | None:
    """Return how the earlier deliveries of a message have ended, or None if nobody can say.

    A service that does not answer is taken to know of nothing: it is asked again when the message
    comes again, and until then nothing is set aside for what may not be so.
    """
    if not client.capabilities.counts_failures:
        return None
    asked: CountsFailures = client  # type: ignore[assignment]  # the capabilities say so
    try:
        return asked.tried(delivery)
    except (Denied, NotSupported) as error:
        _log.debug("how often message %s failed is not told: %s", delivery.message_id, error)
        return None
    except QueueError as error:
        _log.info("how often message %s failed is not known: %s", delivery.message_id, error)
        return _NOTHING_KNOWN
    except Exception:  # noqa: BLE001 - a fault of the client must not cost other messages
        _log.exception("how often message %s failed cannot be asked", delivery.message_id)
        return None


class Pause(NamedTuple):
    """How long a message stays away that a handler has given back."""

    hold_s: float
    """Before it is given back."""
    delay_s: int | None
    """That the service is asked for, which counts in whole seconds; None: none."""


class GivenBackOften:
    """Sees to it that a message which its handlers give back does not come round without end.

    The first time it goes back at once: somebody else is to have it. If it is this worker that gets
    it again, and gives it back again, that takes 0.1 s, then 0.2 s, 0.4 s, 1 s, and so on up to
    8 s. It begins anew when nothing was heard of the message for a minute. Safe to use from any
    thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def pause(self, message_id: str, now_s: float) -> Pause:
        """Take note that a message is given back once more; return what is to be waited."""
        with self._lock:
            times, last_s = self._times.pop(message_id, (0, now_s))
            if now_s - last_s > _FORGET_S:
                times = 0
            self._times[message_id] = times + 1, now_s
            if len(self._times) > _MOST:
                self._times.popitem(last=False)
        if times < len(_HOLD_S):
            return Pause(_HOLD_S[times], None)
        return Pause(0.0, _DELAY_S[min(times - len(_HOLD_S), len(_DELAY_S) - 1)])


class Condemned:
    """Messages that were to be set aside, and of which that is not certain. Safe from any thread.

    When one of them comes again it is set aside without being worked on once more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: OrderedDict[str, tuple[Fault, int]] = OrderedDict()

    def add(self, delivery: Delivery, fault: Fault) -> None:
        """Remember one."""
        with self._lock:
            self._faults[delivery.message_id] = fault, delivery.dequeue_count
            self._faults.move_to_end(delivery.message_id)
            if len(self._faults) > _MOST:
                self._faults.popitem(last=False)

    def forget(self, message_id: str) -> None:
        """It is set aside."""
        if self._faults:
            with self._lock:
                self._faults.pop(message_id, None)

    def fault_of(self, delivery: Delivery) -> Fault | None:
        """Return why a message that has come is to be set aside; None if nobody wants that."""
        if not self._faults:
            return None
        with self._lock:
            fault, count = self._faults.get(delivery.message_id, (None, 0))
            if fault is not None and delivery.dequeue_count <= count:
                # It was set aside after all, and somebody has brought it back for a fresh start.
                del self._faults[delivery.message_id]
                return None
            return fault
