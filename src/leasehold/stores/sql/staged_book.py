"""Which transactions there are, and which slots are whose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from leasehold.domain.claims import Bound
from leasehold.domain.staging import TransactionState
from leasehold.stores.sql.annexes import Slot
from leasehold.stores.sql.state import State


class TransactionRow(NamedTuple):
    """A row of ``staged_transaction``."""

    state: str
    created_at_ms: int
    until_ms: int
    rows: int
    """Published."""
    duplicates: int = 0
    """Dropped in place of being published."""

    @property
    def is_published(self) -> bool:
        """Tell whether the name is only remembered."""
        return self.state == TransactionState.PUBLISHED


class StagedBook:
    """Transactions and their parts, in the database, and the slots, in the catalog as well."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_name: dict[tuple[str, str], list[Slot]] = {}
        self._sorted: dict[int, Slot] | None = None
        """The slots that are sorted by name: not those of the catalog once it was loaded anew."""

    def find(self, account: str, name: str) -> TransactionRow | None:
        """Return a transaction, or None."""
        rows = self._state.fetch("get_transaction", (account, name))
        return TransactionRow(*rows[0]) if rows else None

    def keep(self, account: str, name: str, row: TransactionRow) -> None:
        """Write a transaction as it is now."""
        self._run("keep_transaction", account, name, *row)

    def forget(self, account: str, name: str) -> None:
        """Forget a transaction."""
        self._run("forget_transaction", account, name)

    def forget_if_empty(self, account: str, name: str) -> None:
        """Forget a transaction, not published, with nothing to publish and nothing to settle."""
        if not self.parts(account, name) and not self.bound(account, name):
            self.forget(account, name)

    def bound(self, account: str, name: str) -> list[Bound]:
        """Return the claims bound to a transaction by queue, stream and number."""
        found = self._state.catalog.bound.get((account, name))
        return sorted(found.values()) if found else []

    def bind(self, account: str, name: str, bound: Bound) -> None:
        """Write that a claim is bound to a transaction."""
        self._state.catalog.bound.setdefault((account, name), {})[bound[:3]] = bound
        self._run("keep_bound", account, name, *bound)

    def unbind(self, account: str, name: str, bound: Bound) -> None:
        """Write that a claim is bound to a transaction no longer."""
        left = self._state.catalog.bound[account, name]
        del left[bound[:3]]
        if not left:
            del self._state.catalog.bound[account, name]
        self._run("forget_bound", account, name, *bound[:3])

    def parts(self, account: str, name: str) -> list[tuple[str, int]]:
        """Return the parts of a transaction by name, and how many chunks each has."""
        return self._state.fetch("get_parts", (account, name))

    def chunks(self, account: str, name: str, part: str) -> int:
        """Return how many chunks a part has."""
        rows = self._state.fetch("get_chunks", (account, name, part))
        return rows[0][0] if rows else 0

    def keep_part(self, account: str, name: str, part: str, chunks: int) -> None:
        """Write how many chunks a part has."""
        self._run("keep_part", account, name, part, chunks)

    def forget_part(self, account: str, name: str, part: str) -> None:
        """Forget a part."""
        self._run("forget_part", account, name, part)

    def forget_parts(self, account: str, name: str) -> None:
        """Forget all parts of a transaction."""
        self._run("forget_parts", account, name)

    def slots(self, account: str, name: str) -> list[Slot]:
        """Return the slots of a transaction by part; the list is the caller's."""
        slots = self._state.catalog.slots
        if slots is not self._sorted:
            self._sorted, self._by_name = slots, {}
            for slot in slots.values():
                self._by_name.setdefault((slot.account, slot.name), []).append(slot)
        found = self._by_name.get((account, name), ())
        return sorted(found, key=lambda slot: (slot.part, slot.partition))

    def add(self, slot: Slot) -> None:
        """Add a slot to those of its transaction, which were asked for in this batch."""
        self._state.catalog.slots[slot.partition] = slot
        self._by_name.setdefault((slot.account, slot.name), []).append(slot)

    def keep_slot(self, slot: Slot) -> None:
        """Write a slot as it is now."""
        named = slot.account, slot.name, slot.part, slot.queue
        self._run("keep_slot", slot.partition, *named, slot.lanes_used, slot.rows, slot.keyed)

    def remove(self, slot: Slot) -> None:
        """Take a slot out; its rows are elsewhere."""
        key = slot.account, slot.name
        self._run("forget_slot", slot.partition)
        del self._state.catalog.slots[slot.partition]
        self._by_name[key].remove(slot)
        if not self._by_name[key]:
            del self._by_name[key]

    def _run(self, query: str, *bounds: object) -> None:
        self._state.cursor.execute(self._state.sql[query], bounds)


def rows_in(slots: Iterable[Slot]) -> int:
    """Return how many rows some slots have."""
    return sum(slot.rows for slot in slots)
