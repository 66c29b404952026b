"""How many requests may wait for the engine at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from leasehold.domain import commands as c
from leasehold.domain.errors import Overloaded

_FINISHING: Final = frozenset({c.Complete, c.Renew})
_EXTRA_SHARE: Final = 4


class Admission:
    """Stands before the engine and turns away what is too much.

    What finishes work heals an overload, so updates and deletes of messages are let in for a
    quarter longer than the rest.

    Args:
        perform: The engine's.
        limit: Commands that may wait at once.
    """

    def __init__(self, perform: Callable[[c.Command], Awaitable[c.Result]], *, limit: int) -> None:
        self.pending = 0
        """Commands waiting now."""
        self.refused = 0
        """Commands turned away since the start."""
        self._perform = perform
        self._limit = limit
        self._finishing_limit = limit + limit // _EXTRA_SHARE

    async def perform(self, command: c.Command) -> c.Result:
        """See :meth:`leasehold.engine.engine.Engine.perform`.

        Raises:
            Overloaded: Too many commands wait; this one was not begun.
            LeaseholdError: The engine's refusal.
        """
        if self.pending >= self._limit and (
            type(command) not in _FINISHING or self.pending >= self._finishing_limit
        ):
            self.refused += 1
            raise Overloaded
        self.pending += 1
        try:
            return await self._perform(command)
        finally:
            self.pending -= 1
