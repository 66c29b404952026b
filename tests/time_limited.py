"""A store on PostgreSQL that is asked as the engine asks it."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.engine.commit_policy import STAND_BACK_S
from leasehold.stores.postgres import PostgresStore


class TimeLimitedStore(PostgresStore):
    """Has little time for each step first, and all the time it takes if that will not do."""

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See ``Store``."""
        results = self.try_execute(batch, now_ms=now_ms, within_s=STAND_BACK_S)
        return super().execute(batch, now_ms=now_ms) if results is None else results

    def commit(self) -> bool:
        """See ``Store``."""
        return self.try_commit(within_s=STAND_BACK_S) or super().commit()
