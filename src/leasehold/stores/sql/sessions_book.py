"""What the verbs on messages ask of sessions."""

from __future__ import annotations

from typing import Protocol

from leasehold.domain.commands import Receive
from leasehold.domain.types import Message


class SessionBook(Protocol):
    """Knows the sessions of a store."""

    def receives(self, command: Receive, now_ms: int) -> str:
        """Return the holder of the session that receives, which is alive from now on.

        Raises:
            SessionNotFound: There is no such session.
            SessionOver: It is over.
        """
        ...

    def renewed(self, message: Message, now_ms: int) -> None:
        """Note that a lease of a session was renewed."""
        ...
