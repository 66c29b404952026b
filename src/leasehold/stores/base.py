"""What the engine asks of a store.

A store carries out *batches* of commands. One batch is one transaction; one transaction is one
commit to disk, however many clients it serves. A store never reads a clock, never waits and never
speaks to the network of a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from leasehold.domain import admin, claims, commands, events, sessions, transactions
from leasehold.domain.command import AnyCommand, kinds_in
from leasehold.domain.commands import Result
from leasehold.domain.model import Queue

COMMANDS: Final = kinds_in(
    *(each.__name__ for each in (commands, admin, sessions, claims, transactions, events))
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


class NotInTime(Exception):
    """A store has given up waiting, as it was told to; see :meth:`Store.set_deadline`."""


class Store(Protocol):
    """A place for messages.

    ``execute`` and ``commit`` are apart because the engine runs the statements where it is and
    only the commit, one long call into the database, on a thread of its own. Between the two
    nothing else may be called but ``find_queue``, ``message_counts`` and ``health``.
    """

    is_remote: bool
    """Whether carrying out a batch means waiting for a network. The engine then runs ``execute``,
    too, on the thread unless it is quick, and may call those three at any moment of it."""

    @property
    def relocated_accounts(self) -> frozenset[str]:
        """Accounts that were moved to another store, as the last batch left it."""
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
            StoreFailed: What was done of the batch is unknown, and the store is of no more use.
        """
        ...

    def set_deadline(self, within_s: float | None) -> None:
        """Give the calls that follow so much time, all together, to wait for a network.

        ``execute`` then raises NotInTime, also at once for what could take long, and must be called
        with the same batch again, which undoes what there is of it. ``commit`` raises NotInTime and
        must be called again, to hear what became of it. Whatever goes wrong is dealt with then,
        too. A store that is not remote has nothing to wait for.

        Args:
            within_s: Seconds from now; None to wait as long as it takes.
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
