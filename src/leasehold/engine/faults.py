"""Failures on demand, for servers in test mode: how many are wanted, and a store that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand, Effect
from leasehold.domain.errors import LeaseholdError, Unavailable
from leasehold.stores.base import COMMANDS, RemoteStore, Store

_CHANGING: Final = frozenset(kind for kind in COMMANDS if kind.traits.effect is Effect.CHANGES)
"""What the server asks for by itself must not use up the failures meant for clients."""


@dataclass(slots=True)
class Faults:
    """What is to fail. A number goes down with each failure; 0 is none."""

    fail_commits: int = 0
    """Transactions that write something for a client and fail: nothing of them is done, and each
    client whose command was part of it is told Unavailable."""
    drop_answers: int = 0
    """Answers to requests that changed something and are not given: what was asked for is done,
    and the connection is cut."""
    delay_answers_s: float = 0.0
    """Seconds by the real clock that every answer is kept back, until this is set to 0."""

    def __post_init__(self) -> None:
        """Refuse less than nothing."""
        if min(self.fail_commits, self.drop_answers, self.delay_answers_s) < 0:
            raise ValueError("0 is the least that can fail")

    def replace(self, other: Faults) -> None:
        """Take over what *other* asks for."""
        self.fail_commits = other.fail_commits
        self.drop_answers = other.drop_answers
        self.delay_answers_s = other.delay_answers_s


def writes(command: AnyCommand) -> bool:
    """Tell whether *command* is a client's and may change something."""
    return type(command) in _CHANGING


def has_changed(command: AnyCommand, result: Any) -> bool:
    """Tell whether *command*, of which this is the result, has changed something for a client."""
    if not writes(command):
        return False
    if isinstance(result, k.Opened):
        return result.claim is not None
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        # Leases of a receive or results of a batch: there may be none, or all may be refusals.
        return any(not isinstance(each, LeaseholdError) for each in result)
    return not isinstance(result, LeaseholdError)


def faulty(store: Store, faults: Faults) -> Store:
    """Return *store*, with transactions that fail when *faults* tells them to.

    A failed one is refused before the store hears of it, as by a database that another process has
    locked: nothing of it is done, and the store goes on.
    """
    if isinstance(store, RemoteStore):
        return _FaultyRemoteStore(store, faults)
    return _FaultyStore(store, faults)


class _FaultyStore:
    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults
        self.commit = store.commit
        self.find_queue = store.find_queue
        self.message_counts = store.message_counts
        self.health = store.health
        self.last_seen_ms = store.last_seen_ms
        self.relieve = store.relieve
        self.close = store.close

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See ``Store``.

        Raises:
            Unavailable: This transaction was one of those that are to fail.
        """
        if self._is_to_fail(batch):
            self._faults.fail_commits -= 1
            raise Unavailable
        return self._store.execute(batch, now_ms=now_ms)

    def _is_to_fail(self, batch: Sequence[AnyCommand]) -> bool:
        return self._faults.fail_commits > 0 and any(map(writes, batch))

    @property
    def sealing_key(self) -> bytes:
        """See ``Store``."""
        return self._store.sealing_key

    @property
    def relocated_accounts(self) -> frozenset[str]:
        """See ``Store``."""
        return self._store.relocated_accounts


class _FaultyRemoteStore(_FaultyStore):
    _store: RemoteStore

    def __init__(self, store: RemoteStore, faults: Faults) -> None:
        super().__init__(store, faults)
        self.try_commit = store.try_commit

    def try_execute(
        self, batch: Sequence[AnyCommand], *, now_ms: int, within_s: float
    ) -> list[c.Result] | None:
        """See ``RemoteStore``."""
        if self._is_to_fail(batch):
            return None
        return self._store.try_execute(batch, now_ms=now_ms, within_s=within_s)
