"""Keys of large bodies in a database: which of them no row refers to any more."""

from __future__ import annotations

from leasehold.domain import bodies as b
from leasehold.domain import commands as c
from leasehold.stores.sql.state import State


class BodyKeyVerbs:
    """Each method carries out one command."""

    def __init__(self, state: State) -> None:
        self._state = state

    def read_garbage(self, command: b.ReadBodyGarbage, _now_ms: int) -> c.Result:
        """List keys of bodies whose rows are gone."""
        rows = self._state.fetch("unused_garbage", (command.limit,))
        return b.BodyKeys(tuple(key for (key,) in rows))

    def forget_garbage(self, command: b.ForgetBodyGarbage, _now_ms: int) -> c.Result:
        """Forget keys whose bodies have been removed."""
        sql, cursor = self._state.sql["forget_unused_garbage"], self._state.cursor
        cursor.executemany(sql, [(key,) for key in command.keys])
        return c.DONE

    def known(self, command: b.KnownBodies, _now_ms: int) -> c.Result:
        """Tell which of some keys a row refers to."""
        known = [key for key in command.keys if self._state.fetch("known_body", (key.encode(),))]
        return b.BodyKeys(tuple(known))
