"""What the engine asks of a store.

A store carries out *batches* of commands. One batch is one transaction; one transaction is one
commit to disk, however many clients it serves. A store never reads a clock, never waits and never
speaks to the network of a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from leasehold.domain import admin, claims, commands, events, groups, sessions, transactions
from leasehold.domain.command import AnyCommand, kinds_in
from leasehold.domain.commands import Result
from leasehold.domain.model import Queue

COMMANDS: Final = kinds_in(
    *(each.__name__ for each in (commands, admin, groups, sessions, claims, transactions, events))
)
"""All commands that there are; each store carries out all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """What a store says of itself; everything here was read back, not assumed."""

    kind: str
    """Name of the store, for people."""
    durable: bool
    """Whether an answered command survives a power cut."""
    writable: bool
    """False while the disk is full."""
    details: dict[str, str | int]
    """Settings as the database reports them."""


class Store(Protocol):
    """A place for messages.

    ``execute`` and ``commit`` are apart because the engine runs the statements where it is and
    only the commit, one long call into the database, on a thread of its own. Between the two
    nothing else may be called but ``find_queue``, ``message_counts`` and ``health``.
    """

    @property
    def relocated_accounts(self) -> frozenset[str]:
        """Accounts that were moved to another store, as the last batch left it."""
        ...

    @property
    def sealing_key(self) -> bytes:
        """The secret for what a server seals and takes back, such as sessions of the console.

        No client, export or look at the store shows it. All servers of a database have the same;
        a restored store has another one.
        """
        ...

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[Result]:
        """Carry out *batch* in the order given, inside a transaction left open.

        Every command sees what those before it did. A refused command changes nothing and has an
        error as its result; the others are not disturbed. Results come in the batch's order and
        may be told to no client before ``commit`` has returned.

        Args:
            batch: Commands whose values are within the limits in force.
            now_ms: The time, Unix milliseconds, the same for the whole batch.

        Raises:
            StoreFull: As for ``commit``.
            StoreFailed: Nothing of the batch was done, and the store is of no more use.
            Exception: Anything else; nothing of the batch was done, and the store goes on.
        """
        ...

    def commit(self) -> bool:
        """Make the batch durable. May be called from another thread than ``execute``.

        A database that has undone the batch at the last moment may play it again: the list that
        ``execute`` has returned then holds its new results. So read it only afterwards.

        Returns:
            Whether there was anything to write.

        Raises:
            StoreFull: There is no room on the disk. Nothing of the batch was done. ``execute``
                may be called with it once more: whatever needs room is then refused with
                StoreFull, and the rest works from a reserve.
            OutcomeUnknown: What was done of the batch is unknown; the store goes on.
            StoreFailed: The same, and the store is of no more use.
        """
        ...

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """Return a queue as the last batch left it, without waiting for anything."""
        ...

    def message_counts(self) -> list[tuple[str, str, int]]:
        """Return account, queue and message count of every queue, as the last batch left them.

        The counts are those of :class:`~leasehold.domain.commands.QueueInfo`. It takes time by the
        number of queues, not of messages.
        """
        ...

    def health(self) -> StoreHealth:
        """Say how the store is."""
        ...

    def last_seen_ms(self) -> int:
        """Return the time last noted before the store was opened, 0 if none was."""
        ...

    def relieve(self) -> bool:
        """Try to make the store writable again after StoreFull; tell whether it is writable."""
        ...

    def close(self) -> None:
        """Give everything back. What was committed stays; an open batch is undone."""
        ...


@runtime_checkable
class RemoteStore(Store, Protocol):
    """A store behind a network, where every step of a batch waits.

    So ``execute`` and ``commit`` may take seconds, both are called on a thread, and ``find_queue``,
    ``message_counts`` and ``health`` may be called from another at any moment of them. The other
    two wait for a moment at most, and are called in the event loop.
    """

    def try_execute(
        self, batch: Sequence[AnyCommand], *, now_ms: int, within_s: float
    ) -> list[Result] | None:
        """Carry out *batch* as ``execute`` does, if nothing is in its way.

        Args:
            batch: As for ``execute``.
            now_ms: As for ``execute``.
            within_s: Seconds that it may take.

        Returns:
            The results; None if it was not over in time, could take long, or went wrong. Then
            nothing of it counts: ``execute`` comes next, which clears up what there is of it.
        """
        ...

    def try_commit(self, *, within_s: float) -> bool:
        """Make the batch durable.

        Returns:
            Whether that is done. If not, it is unknown: ``commit`` comes next, which finds out.
        """
        ...
