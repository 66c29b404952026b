"""The comparisons, with PostgreSQL for the store that is compared; with several servers, too.

Batches go to one server or another, drawn anew each time. What they answer must be what one store
would: whatever a server keeps in memory, the next batch finds it true.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.postgres import empty, shared_cluster
from tests.time_limited import TimeLimitedStore

from .binding import BindingComparison
from .comparison import OracleComparison
from .governed import GovernedComparison
from .holding import HoldingComparison
from .staged_keys import StagedKeysComparison
from .test_twins import Twins

SCHEMA = "tests"


class Server(TimeLimitedStore):
    """A server that notes which row keys a batch has used, so that the oracle can use the same."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{shared_cluster().url}&schema={SCHEMA}", name=name)
        self.used: list[tuple[int, int]] = []
        """The first row key of each run that the open batch has taken, and how many."""
        self._take = self._state.take_row_keys
        self._state.take_row_keys = self._note  # type: ignore[method-assign]

    def _note(self, count: int) -> int:
        first = self._take(count)
        self.used.append((first, count))
        return first

    def _attempt(self, *arguments: Any, **named: Any) -> list[c.Result]:
        self.used.clear()  # those of a play that was undone are lost
        return super()._attempt(*arguments, **named)


class Servers:
    """Servers of one empty database, to be used as one store.

    Args:
        oracle: Is to use the row keys that they use.
        seed: Draws which of them is asked.
        count: How many there are.
    """

    def __init__(self, seed: int, count: int) -> None:
        empty(SCHEMA)
        self._rng = random.Random(seed)
        self._count = count
        self._highest = 0
        self.open()

    def open(self) -> None:
        """Start all servers."""
        self._servers = [Server(f"s{number}") for number in range(self._count)]
        self._asked = self._servers[0]

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See ``Store``."""
        self._asked = self._rng.choice(self._servers)
        return self._asked.execute(batch, now_ms=now_ms)

    def commit(self) -> bool:
        """See ``Store``."""
        return self._asked.commit()

    def close(self) -> None:
        """Stop all servers."""
        for server in self._servers:
            server.close()

    @property
    def receipt_key(self) -> bytes:
        """What seals receipts."""
        return self._asked._state.receipt_key

    def follow(self, oracle: MemoryStore) -> None:
        """Have the oracle go on with the row keys that the last batch has used."""
        used = self._asked.used
        for (first, count), (after, _) in pairwise(used):
            assert after == first + count, "the batch has used keys of two blocks"
        self._highest = max([self._highest, *(first + count - 1 for first, count in used)])
        oracle._tables.last_row_key = used[0][0] - 1 if used else self._highest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asked, name)


class DatabaseClock(ManualClock):
    """A clock that does not go back: servers make up slowly for what a database's clock does.

    When a session was last heard of is the latest that any of them has heard.
    """

    def advance(self, *, s: float = 0, ms: int = 0) -> None:
        """Let time pass; moves back are left out."""
        super().advance(s=max(0, s), ms=max(0, ms))


class OnPostgres(OracleComparison):
    """A comparison with PostgreSQL; with one server, as each has limits of rates of its own."""

    servers = 1

    def open_tested(self) -> Store:
        """Start the servers, for the first time or again."""
        tested = getattr(self, "tested", None)
        if isinstance(tested, Servers):
            tested.open()
            return tested
        return Servers(0, self.servers)

    def forget(self) -> None:
        """Heartbeats are written down: of all that a server forgets, there is only what it gave."""
        OracleComparison.forget(self)

    def _run(self, store: Store, batch: Sequence[AnyCommand]) -> list[c.Result]:
        results = super()._run(store, batch)
        if isinstance(store, Servers):
            store.follow(self.oracle)
        return results


class PlainOnPostgres(OnPostgres, OracleComparison):
    """Messages, on two servers."""

    servers = 2


class GovernedOnPostgres(OnPostgres, GovernedComparison):
    """What those do who look after a queue."""


class BindingOnPostgres(OnPostgres, BindingComparison):
    """Claims, staged sends and sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = DatabaseClock()


class StagedKeysOnPostgres(OnPostgres, StagedKeysComparison):
    """Staged messages with keys."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = DatabaseClock()


class HoldingOnPostgres(OnPostgres, HoldingComparison):
    """Groups that sessions hold."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = DatabaseClock()


class PostgresTwins(Twins):
    """Two servers, and an oracle that gives out the same ids and receipts."""

    def __init__(self, seed: int, servers: int = 2) -> None:
        self._opened: Servers | None = None
        self._seed, self._count = seed, servers
        super().__init__(None, DatabaseClock())

    def open_tested(self) -> Store:
        """Start the servers, for the first time or again."""
        if self._opened is None:
            self._opened = Servers(self._seed, self._count)
        else:
            self._opened.open()
        return self._opened

    def forget(self) -> None:
        """Nothing is forgotten but what was received in the last second."""
        for table in self.oracle._tables.queues.values():
            table.bucket = None

    def _run(self, store: Store, *commands: AnyCommand) -> list[c.Result]:
        results = super()._run(store, *commands)
        if isinstance(store, Servers):
            store.follow(self.oracle)
        return results
