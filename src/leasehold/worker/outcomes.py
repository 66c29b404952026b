"""What became of a message in its handler, and what is to be done with it. Pure functions."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
import threading
import traceback
from collections import OrderedDict
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from leasehold.worker.adapters.protocol import (
    CountsFailures,
    Delivery,
    Denied,
    Fault,
    Forward,
    NotSupported,
    QueueClient,
    QueueError,
    Release,
    Tried,
)
from leasehold.worker.errors import Cancelled, GiveBack, LeaseLost, Poison, Retry
from leasehold.worker.retry_policy import PoisonRule, RetryRule, whole_seconds

_FINGERPRINT_CHARS: Final = 16
_CANCELLED_ITSELF: Final = "the handler was cancelled without a request"


class Kind(enum.StrEnum):
    """How the work on a message ended."""

    DONE = "done"
    FAILED = "failed"
    POISONED = "poisoned"
    """It can never succeed, or has failed too often."""
    RETURNED = "returned"
    """No handler worked on it, or the handler gave it back."""
    INTERRUPTED = "interrupted"
    """The worker had to stop."""
    CANCELLED = "cancelled"
    """An operator wanted it."""
    LOST = "lost"
    """Another worker has it, or may have it; or it could not be settled, and comes again."""


class Outcome(NamedTuple):
    """How the work on a message ended, and why."""

    kind: Kind
    fault: Fault | None = None
    delay_s: float | None = None
    """After a failure: what the handler wants."""
    result: Any = None
    """Of work that is done in another process: what came of it, as the handler said."""
    forward: Forward | None = None
    """Likewise: where the message goes on."""


DONE: Final = Outcome(Kind.DONE)
RETURNED: Final = Outcome(Kind.RETURNED)
LOST: Final = Outcome(Kind.LOST)
INTERRUPTED: Final = Outcome(Kind.INTERRUPTED)

Asked: TypeAlias = Literal["cancelled", "stopping"]
"""Who wanted a handler to stop while it had its lease: an operator, or the worker's end."""


class Complete(NamedTuple):
    """Remove the message."""


class Bury(NamedTuple):
    """Set it aside."""

    fault: Fault


class Give(NamedTuple):
    """Give it back."""

    outcome: Literal["failed", "interrupted", "returned"]
    delay_s: int | None
    fault: Fault | None

    def release(self, lease: object) -> Release:
        """Return what is sent for it."""
        return Release(lease=lease, outcome=self.outcome, delay_s=self.delay_s, fault=self.fault)  # type: ignore[arg-type]


Settlement: TypeAlias = Complete | Forward | Bury | Give | None
"""None: leave it to the end of its lease."""

COMPLETE: Final = Complete()


def outcome_of(  # noqa: PLR0911 - one for each thing that a handler can say
    error: BaseException | None, *, is_lost: bool, asked: Asked | None
) -> Outcome:
    """Say how the work on a message ended.

    Args:
        error: What the handler raised; None: it returned.
        is_lost: Whether the lease was lost by then. Whatever the handler says counts for nothing:
            another worker does, or has done, the same work.
        asked: Who wanted the handler to stop; it counts only if the handler did stop for that.
    """
    if is_lost:
        return LOST
    if error is None:
        return DONE
    if isinstance(error, Poison):
        return Outcome(Kind.POISONED, fault_of(error))
    if isinstance(error, Retry):
        return Outcome(Kind.FAILED, fault_of(error), error.delay_s)
    if isinstance(error, GiveBack):
        return RETURNED
    if isinstance(error, LeaseLost):
        return LOST
    if isinstance(error, Cancelled | asyncio.CancelledError):
        if asked == "cancelled":
            text = str(error) or "an operator requested a stop"
            return Outcome(Kind.CANCELLED, Fault(text=text, type="Cancelled"))
        if asked is not None or isinstance(error, Cancelled):
            return INTERRUPTED
        # Such as that of a task which the handler waits for: it would be so again at each try.
        fault = fault_of(error)
        return Outcome(Kind.FAILED, replace(fault, text=str(error) or _CANCELLED_ITSELF))
    return Outcome(Kind.FAILED, fault_of(error))


def settlement_of(  # noqa: PLR0913 - keyword-only, and all that the decision hangs on
    outcome: Outcome,
    delivery: Delivery,
    *,
    retries: RetryRule,
    poison: PoisonRule,
    max_delay_s: int,
    jitter: float,
    tried: Tried | None = None,
) -> Settlement:
    """Say what is to be done with a message.

    Args:
        outcome: How the work on it ended.
        delivery: The message.
        retries: When it is tried again.
        poison: When it is set aside.
        max_delay_s: The longest delay that the service knows.
        jitter: A random number from 0 to 1, which spreads the wait.
        tried: What the service knows of earlier deliveries; None: how many there were.
    """
    kind = outcome.kind
    if kind is Kind.DONE:
        return COMPLETE
    if kind is Kind.LOST:
        return None
    if kind is Kind.POISONED or kind is Kind.CANCELLED:
        return Bury(outcome.fault or Fault(text=kind.value))
    if kind is not Kind.FAILED:
        return Give("returned" if kind is Kind.RETURNED else "interrupted", None, None)
    fault = outcome.fault
    if poison.is_last(delivery, tried):
        return Bury(fault or Fault(text="failed"))
    if outcome.delay_s is not None:
        delay_s: int | None = whole_seconds(outcome.delay_s)
    else:
        delay_s = retries.delay_s(delivery.dequeue_count, jitter)
    return Give("failed", None if delay_s is None else min(delay_s, max_delay_s), fault)


def fault_of(error: BaseException) -> Fault:
    """Return what is kept of an exception for people.

    The fingerprint covers its type and the files and functions that it passed through, not line
    numbers, so that it stays the same over small edits.
    """
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    frames = traceback.extract_tb(error.__traceback__)
    seen = "\n".join([name, *(f"{frame.filename}:{frame.name}" for frame in frames)])
    fingerprint = hashlib.sha256(seen.encode("utf-8", "replace")).hexdigest()
    return Fault(text=str(error) or name, type=name, fingerprint=fingerprint[:_FINGERPRINT_CHARS])


# --- delivery counts ---------------------------------------------------------------------------
#
# What a worker knows about deliveries beyond the message in hand: earlier ones, and its own.


_log: Final = logging.getLogger("leasehold.worker")
_NOTHING_KNOWN: Final = Tried(0, 0)
_MOST: Final = 1000
"""Messages that are remembered, of a queue; the oldest is forgotten first."""
_FORGET_S: Final = 60.0
_HOLD_S: Final = (0.0, 0.1, 0.2, 0.4)
_DELAY_S: Final = (1, 2, 4, 8)


def tried_of(client: QueueClient, delivery: Delivery) -> Tried | None:
    """Return how the earlier deliveries of a message have ended, or None if it is unknown.

    A service that does not answer is taken to know of nothing: it is asked again when the message
    comes again, and until then nothing is set aside for what may not be so.
    """
    if not client.capabilities.counts_failures:
        return None
    asked: CountsFailures = client  # type: ignore[assignment]  # the capabilities say so
    try:
        return asked.tried(delivery)
    except (Denied, NotSupported) as error:
        _log.debug(
            "the failure count of message %s is not reported: %s", delivery.message_id, error
        )
        return None
    except QueueError as error:
        _log.info("the failure count of message %s is unknown: %s", delivery.message_id, error)
        return _NOTHING_KNOWN
    except Exception:  # noqa: BLE001 - a fault of the client must not cost other messages
        _log.exception("the failure count of message %s cannot be read", delivery.message_id)
        return None


class Pause(NamedTuple):
    """How long a message stays away that a handler has given back."""

    hold_s: float
    """Before it is given back."""
    delay_s: int | None
    """That the service is asked for, which counts in whole seconds; None: none."""


class GivenBackOften:
    """Sees to it that a message which its handlers give back does not come round without end.

    The first time it goes back at once: another worker is to have it. If it is this worker that
    gets it again, and gives it back again, that takes 0.1 s, then 0.2 s, 0.4 s, 1 s, and so on up
    to 8 s. It begins anew when nothing was heard of the message for a minute. Safe to use from any
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
