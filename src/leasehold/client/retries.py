"""When to try again, and how long to wait before: decisions only, no waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.client.errors import (
    REFUSED_BEFORE_WORK,
    ConnectionFailed,
    LeaseholdClientError,
    ServerProblem,
    UnexpectedAnswer,
)

_TOO_MANY_REQUESTS: Final = 429
_MAYBE_LATER: Final = frozenset({502, 503, 504})
_SMALLEST_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a call is tried again.

    A call is tried again only where that is safe: nothing was done, or doing it twice is the same
    as doing it once. A put without a deduplication key, a receive, the opening of a session, a
    commit without a name, and the start of a job are never repeated once they may have reached the
    server.
    """

    attempts: int = 4
    """Tries in all, 1 or more; 1: never try again."""
    initial_s: float = 0.2
    """Wait before the second try, 0 or more; it doubles from try to try, less up to half of it at
    random so that clients do not come back all at once."""
    cap_s: float = 5.0
    """Longest wait of our own choosing. Where the server names a wait (Retry-After), that is the
    least."""
    patience_s: float = 30.0
    """Most that the waits of one call may come to; a server that asks for more ends the call."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be 1 or more, not {self.attempts}")
        for name in ("initial_s", "cap_s", "patience_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")


NO_RETRIES: Final = RetryPolicy(attempts=1)


class Tries:
    """The tries of one call."""

    __slots__ = ("_made", "_policy", "_repeatable", "_waited_s", "maybe_done")

    def __init__(self, policy: RetryPolicy, *, repeatable: bool) -> None:
        """*repeatable*: whether doing the call twice is the same as doing it once."""
        self._policy = policy
        self._repeatable = repeatable
        self._made = 0
        self._waited_s = 0.0
        self.maybe_done = False
        """Whether a failed try may have been carried out."""

    def wait_s(self, failure: LeaseholdClientError, jitter: float) -> float | None:
        """Note a failed try; return the seconds to wait before the next, or None to give up.

        Args:
            failure: How the try ended.
            jitter: A random number from 0 to 1.
        """
        policy = self._policy
        self._made += 1
        self.maybe_done = self.maybe_done or failure.outcome_unknown
        if self._made >= policy.attempts or not may_repeat(failure, repeatable=self._repeatable):
            return None
        own_s = min(policy.cap_s, policy.initial_s * 2.0 ** (self._made - 1))
        asked_s = failure.problem.retry_after_s if isinstance(failure, ServerProblem) else None
        if asked_s is None:
            pause_s = own_s * (_SMALLEST_SHARE + (1 - _SMALLEST_SHARE) * jitter)
        else:
            pause_s = max(asked_s, 0.0) + own_s * jitter
        self._waited_s += pause_s
        return pause_s if self._waited_s <= policy.patience_s else None


def may_repeat(failure: LeaseholdClientError, *, repeatable: bool) -> bool:
    """Tell whether the call may be made again after *failure*."""
    if isinstance(failure, ConnectionFailed):
        return repeatable or not failure.outcome_unknown
    if isinstance(failure, ServerProblem):
        if failure.code in REFUSED_BEFORE_WORK or failure.status == _TOO_MANY_REQUESTS:
            return True
        return repeatable and failure.status in _MAYBE_LATER
    if isinstance(failure, UnexpectedAnswer):
        # A proxy that says 502, 503 or 504 does not know what became of the request.
        return failure.status == _TOO_MANY_REQUESTS or (
            repeatable and failure.status in _MAYBE_LATER
        )
    return False


def is_done(failure: LeaseholdClientError, done_if: str | None) -> bool:
    """Tell whether the refusal of a repeated call means that an earlier try has succeeded."""
    return isinstance(failure, ServerProblem) and failure.code == done_if
