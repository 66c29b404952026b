"""How often and how patiently to try again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


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
