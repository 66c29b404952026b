"""When a message is tried again, and when it is set aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from leasehold.domain.wording import times_of
from leasehold.worker.adapters.protocol import Delivery, Fault, Tried

_MOST: Final = 1_000_000
"""No wait grows past so many tries, and float powers overflow with larger numbers."""
_LONGEST_S: Final = 10**9
"""Three decades. Services cut a wait to less."""
_SPARE: Final = 4
"""A message is set aside unseen only after so many times the failures that it may have: what lay in
the buffer beside one that kills its workers should be done by then."""


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

    def delay_s(self, tries: int, jitter: float) -> int | None:
        """Return the wait in whole seconds, which is what services count in; None: theirs.

        A wait of less than half a second is one second, unless the rule says 0.

        Args:
            tries: How often the message was delivered, this time included.
            jitter: A random number from 0 to 1; 0.5 gives the wait without jitter.
        """
        if self.kind == "service":
            return None
        wait_s = min(self._growth_s(min(max(tries, 1), _MOST)), self.cap_s)
        return whole_seconds(wait_s * (1 + self.jitter * (2 * jitter - 1)))

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
    """Round to whole seconds; only 0 becomes 0. What is endless becomes very long."""
    return 0 if wait_s <= 0 else max(1, round(min(_LONGEST_S, wait_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonRule:
    """When a message is set aside.

    Services count deliveries, and some count nothing else: also those to workers that had a message
    in their buffer and never began with it, and those that were given back where
    :attr:`~leasehold.worker.adapters.Capabilities.counts_returns` says so. So a count alone sets
    nothing aside before a handler has seen the message fail, unless it is very high. A queue of
    Leasehold can have separate budgets of its own; then leave the number out here.
    """

    max_failures: int | None = 5
    """Failures that a message gets, 1 or more: the last one sets it aside, and is the reason. Where
    the service counts deliveries only, that is a failure at delivery number *max_failures* or any
    later one. None: the service has a rule of its own."""
    max_deliveries: int | None = None
    """Deliveries that a message gets, *max_failures* or more: when it comes once more it is set
    aside before any work. It is for messages that kill their workers, so that no failure is ever
    reported. What was given back without a failure counts only where the service cannot tell.
    None: four times *max_failures*, or no limit if that is None."""

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        found = []
        if self.max_failures is not None and not self.max_failures >= 1:
            found.append(f"poison.max_failures is {self.max_failures}; it must be 1 or more")
        least = self.max_failures or 1
        if self.max_deliveries is not None and not self.max_deliveries >= least:
            found.append(
                f"poison.max_deliveries is {self.max_deliveries}; it must be {least} or more"
            )
        return found

    @property
    def most_deliveries(self) -> int | None:
        """The limit of deliveries that is in force; None: there is none."""
        if self.max_deliveries is not None or self.max_failures is None:
            return self.max_deliveries
        return _SPARE * self.max_failures

    def is_suspect(self, delivery: Delivery) -> bool:
        """Return whether a message came so often that it is begun before all others.

        It must not wait where a worker that dies or stops would count it once more.
        """
        return self.max_failures is not None and delivery.dequeue_count > self.max_failures

    def may_be_refused(self, delivery: Delivery) -> bool:
        """Return whether :meth:`refusal` wants to know how the message was tried."""
        most = self.most_deliveries
        return most is not None and delivery.dequeue_count > most

    def may_be_last(self, delivery: Delivery) -> bool:
        """Return whether :meth:`is_last` wants to know how the message was tried."""
        return self.max_failures is not None and delivery.dequeue_count >= self.max_failures

    def refusal(self, delivery: Delivery, tried: Tried | None = None) -> Fault | None:
        """Say why a message that has just come is not worked on; None if it is.

        Args:
            delivery: The message.
            tried: What the service knows about it; None: how often it was delivered.
        """
        if delivery.body_problem is not None:
            return Fault(text=f"encoding: {delivery.body_problem}", type="BadEncoding")
        most = self.most_deliveries
        if most is None:
            return None
        if tried is None:
            ended = delivery.dequeue_count - 1
            how = "whether its processing ever started is unknown"
        else:
            ended = tried.failures + tried.lapses
            how = f"{tried.failures} failed, {tried.lapses} lapsed"
        if ended < most:
            return None
        text = f"delivered {times_of(ended)} without being completed, at most {most}: {how}"
        return Fault(text=text, type="TooManyDeliveries")

    def is_last(self, delivery: Delivery, tried: Tried | None = None) -> bool:
        """Return whether a failure now sets the message aside; see :meth:`refusal`."""
        if self.max_failures is None:
            return False
        failures = delivery.dequeue_count if tried is None else tried.failures + 1
        return failures >= self.max_failures
