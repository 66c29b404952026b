"""Many requests in place of one, for services that have no batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from leasehold.worker.queues.errors import (
    Denied,
    NotSupported,
    PastExpiry,
    QueueError,
    QueueMissing,
    Unreachable,
)

_T = TypeVar("_T")
_R = TypeVar("_R")

_REQUEST_SHARE: Final = 1 / 3
"""Of a lease, which is renewed when half of it is left."""
_LONGEST_REQUEST_S: Final = 10.0


def one_by_one(items: Sequence[_T], work: Callable[[_T], _R]) -> list[_R | QueueError]:
    """Do *work* for each item; return its result, or the error that it raised.

    When nobody answers, or the queue is not there, the rest is left alone: to wait for each would
    take as many time-outs as there are items.

    Raises:
        QueueError: There was one item only, and all that is wrong concerns the whole call.
    """
    results: list[_R | QueueError] = []
    for item in items:
        try:
            results.append(work(item))
        except QueueError as error:
            if len(items) == 1 and isinstance(error, Unreachable | QueueMissing | Denied):
                raise
            results.append(error)
            if isinstance(error, Unreachable | QueueMissing):
                results += [_left_alone(error)] * (len(items) - len(results))
                break
    return results


def _left_alone(error: QueueError) -> QueueError:
    if isinstance(error, Unreachable):
        return Unreachable(
            f"not tried: {error}", outcome_unknown=False, retry_after_s=error.retry_after_s
        )
    return type(error)(str(error))


def shortened(ask: Callable[[int], _R], wanted_s: int) -> tuple[_R, int]:
    """Ask for a lease, and for shorter ones while they would end after the message expires.

    Returns:
        What came of it, and the length that was granted.

    Raises:
        PastExpiry: The message expires within a second.
        QueueError: It was refused for another reason.
    """
    length_s = wanted_s
    while True:
        try:
            return ask(length_s), length_s
        except PastExpiry:
            length_s = length_s * 3 // 4
            if not length_s:
                raise


def life_s(
    visible_at_ms: int | None, expires_at_ms: int | None, lease_s: int, unsure_ms: int = 0
) -> float | None:
    """Return how long a message lives from the moment it was leased, in seconds.

    Both moments are the service's, so that no difference of clocks counts.

    Args:
        visible_at_ms: When the lease ends.
        expires_at_ms: When the message expires; None: never, or that is not known.
        lease_s: How long the lease is.
        unsure_ms: By how much the difference of the two may be less than it seems.
    """
    if visible_at_ms is None or expires_at_ms is None:
        return None
    return max(0.0, (expires_at_ms - visible_at_ms - unsure_ms) / 1000 + lease_s)


def check_lengths(visibility_timeout_s: int, shortest_s: int, longest_s: int) -> None:
    """Refuse a lease that the service does not take.

    Raises:
        TypeError: It is not in whole seconds.
        ValueError: It is outside the range.
    """
    if not isinstance(visibility_timeout_s, int):
        raise TypeError("visibility_timeout_s must be whole seconds")
    if not shortest_s <= visibility_timeout_s <= longest_s:
        raise ValueError(
            f"visibility_timeout_s is {visibility_timeout_s}; "
            f"it must be {shortest_s} to {longest_s}"
        )


def request_timeout_s(visibility_timeout_s: int) -> float:
    """Return how long a request may take that saves progress, or settles a message.

    Nobody renews the lease meanwhile. If no answer comes there must be time for one more request.
    """
    return min(_LONGEST_REQUEST_S, visibility_timeout_s * _REQUEST_SHARE)


def refuse_extras(names: Sequence[tuple[str, object]], service: str) -> None:
    """Refuse what a service has no place for.

    Raises:
        NotSupported: One of the values is something.
    """
    for name, value in names:
        if value:
            raise NotSupported(f"{service} has no place for {name}")
