"""When a message is tried again, and when it is set aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from leasehold.worker.queues.protocol import Delivery, Fault

_MOST: Final = 1_000_000
"""No wait grows past so many tries, and float powers overflow with larger numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """How long a message waits after a failure: its *n*-th delivery has failed.

    ======================  ===================================
    ``fixed``               initial
    ``linear``              initial * n
    ``exponential``         initial * factor ** (n - 1)
    ``service``             what the service does by itself
    ======================  ===================================

    Each is cut to the cap, and then made longer or shorter at random by up to the jitter.
    """

    kind: Literal["fixed", "linear", "exponential", "service"] = "exponential"
    """``service``: for queues of Leasehold with a failure policy; elsewhere it is at once."""
    initial_s: float = 1.0
    """Seconds after the first failure, 0 or more."""
    factor: float = 2.0
    """1 or more."""
    cap_s: float = 300.0
    """Seconds, 0 or more."""
    jitter: float = 0.1
    """0 to 1: the share of the wait by which it is moved at random, so that messages which failed
    together do not come back together."""

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        found = []
        if self.kind not in {"fixed", "linear", "exponential", "service"}:
            found.append(
                f"retries.kind is {self.kind!r}; it must be fixed, linear, exponential or service"
            )
        if not self.initial_s >= 0:
            found.append(f"retries.initial_s is {self.initial_s}; it must be 0 or more")
        if not self.factor >= 1:
            found.append(f"retries.factor is {self.factor}; it must be 1 or more")
        if not self.cap_s >= 0:
            found.append(f"retries.cap_s is {self.cap_s}; it must be 0 or more")
        if not 0 <= self.jitter <= 1:
            found.append(f"retries.jitter is {self.jitter}; it must be 0 to 1")
        return found

    def delay_s(self, tries: int, dice: float) -> int | None:
        """Return the wait in whole seconds, which is what services count in; None: theirs.

        A wait of less than half a second is one second, unless the rule says 0.

        Args:
            tries: How often the message was delivered, this time included.
            dice: A random number from 0 to 1; 0.5 gives the wait without jitter.
        """
        if self.kind == "service":
            return None
        wait_s = min(self._growth_s(min(max(tries, 1), _MOST)), self.cap_s)
        return whole_seconds(wait_s * (1 + self.jitter * (2 * dice - 1)))

    def _growth_s(self, tries: int) -> float:
        if self.kind == "fixed" or self.initial_s == 0:
            return self.initial_s
        if self.kind == "linear":
            return self.initial_s * tries
        try:
            return float(self.initial_s * float(self.factor) ** (tries - 1))
        except OverflowError:
            return self.cap_s


def whole_seconds(wait_s: float) -> int:
    """Round to whole seconds; only 0 becomes 0."""
    return 0 if wait_s <= 0 else max(1, round(wait_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonRule:
    """When a message is set aside.

    Services count deliveries. Those of a worker that was killed are among them, and those that were
    given back where :attr:`~leasehold.worker.queues.Capabilities.counts_returns` says so. A queue
    of Leasehold can have separate budgets of its own; then leave the number out here.
    """

    max_failures: int | None = 5
    """Deliveries that a message gets, 1 or more: when the last of them fails it is set aside with
    the failure as the reason, and when it comes once more, because that worker died, before any
    work. None: the service has a rule of its own."""

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        if self.max_failures is not None and not self.max_failures >= 1:
            return [f"poison.max_failures is {self.max_failures}; it must be 1 or more"]
        return []

    def refusal(self, delivery: Delivery) -> Fault | None:
        """Say why a message that has just come is not worked on; None if it is."""
        if delivery.body_problem is not None:
            return Fault(text=f"encoding: {delivery.body_problem}", type="BadEncoding")
        if self.max_failures is not None and delivery.dequeue_count > self.max_failures:
            earlier = delivery.dequeue_count - 1
            text = f"delivered {earlier} times without being completed; at most {self.max_failures}"
            return Fault(text=text, type="TooManyDeliveries")
        return None

    def is_last(self, delivery: Delivery) -> bool:
        """Return whether a failure now sets the message aside."""
        return self.max_failures is not None and delivery.dequeue_count >= self.max_failures
