"""The two ends of a move: what a store must be able to do to be read from, or written to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from leasehold.stores.moving.digests import Digests
from leasehold.stores.moving.tables import Table

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]

AT_ONCE: Final = 2_000
"""Rows that are in memory at a time."""


class MoveRefused(Exception):
    """The move cannot be made; nothing was changed. The text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWater:
    """Numbers up to which a store has used, or may have used, what is never used twice.

    Attributes:
        row_key: Row keys of messages.
        partition: Partitions, of queues, claims and parts of transactions.
        token: Tokens of streams.
        event_seq: Numbers of event batches.
        stream_id: Numbers of streams.
    """

    row_key: int
    partition: int
    token: int
    event_seq: int
    stream_id: int


class End(Protocol):
    """A store that is not served now. Between ``lock`` and ``commit`` nobody else can change it."""

    shown: str
    """The store, for people: without a password."""

    def lock(self) -> None:
        """Begin a transaction, and keep everybody else from the store until its end.

        Raises:
            MoveRefused: Somebody serves it.
        """
        ...

    def commit(self) -> None:
        """Make the transaction durable, and let others in; servers read everything anew."""
        ...

    def roll_back(self) -> None:
        """Undo the transaction, if there is one."""
        ...

    def meta(self) -> dict[str, Any]:
        """Return the values that the store keeps about itself, by name."""
        ...

    def set_meta(self, name: str, value: int | str | bytes | None) -> None:
        """Keep a value under a name; None forgets it."""
        ...

    def select(self, account: str | None) -> None:
        """Have all below concern the rows of one account only; None for all rows."""
        ...

    def count(self, table: Table) -> int:
        """Return how many rows there are."""
        ...

    def read(self, table: Table) -> Iterator[Rows]:
        """Return the rows by slices, in the order of the table's key."""
        ...

    def write(self, table: Table, slices: Iterable[Rows]) -> None:
        """Add rows.

        Raises:
            MoveRefused: There is a row of that key.
        """
        ...

    def digests(self, table: Table) -> Digests:
        """Return counts and digests of the rows as the database has them now."""
        ...

    def prepare_bulk(self) -> None:
        """Make an empty store ready for many rows."""
        ...

    def finish_bulk(self) -> None:
        """Bring it back to what it was."""
        ...

    def partitions(self) -> set[int]:
        """Return all partitions and scopes in use, of all accounts."""
        ...

    def selected_partitions(self) -> set[int]:
        """Return those of the account that was selected."""
        ...

    def high_water(self) -> HighWater:
        """Return what the store has used."""
        ...

    def raise_to(self, high: HighWater) -> None:
        """Take it that as much was used, if it was not more."""
        ...

    def drop_selected(self) -> None:
        """Take an account out: its messages are left to the server's maintenance."""
        ...

    def large_body_keys(self) -> list[str]:
        """Return the keys of bodies that are not in the database."""
        ...

    def close(self) -> None:
        """Give everything back; an open transaction is undone."""
        ...
