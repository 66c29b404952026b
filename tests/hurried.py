"""A store on PostgreSQL that is asked as the engine asks it."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.engine.batcher import STAND_BACK_S
from leasehold.stores.base import NotInTime
from leasehold.stores.postgres import PostgresStore


class HurriedStore(PostgresStore):
    """Has each batch done in a hurry first, and with all the time it takes if that will not do."""

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See ``Store``."""
        self.set_deadline(STAND_BACK_S)
        try:
            return super().execute(batch, now_ms=now_ms)
        except NotInTime:
            self.set_deadline(None)
            return super().execute(batch, now_ms=now_ms)

    def commit(self) -> bool:
        """See ``Store``."""
        try:
            return super().commit()
        except NotInTime:
            self.set_deadline(None)
            return super().commit()
        finally:
            self.set_deadline(None)
