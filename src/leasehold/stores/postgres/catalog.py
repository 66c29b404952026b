"""The queues of a PostgreSQL store in the memory of one server of many.

What a server finds out while it receives, others make untrue without a word. So lanes remember
nothing of their rows here, and what is invisible is counted anew each time.
"""

from __future__ import annotations

from typing import Any

from leasehold.domain.types import Message, Phase
from leasehold.stores.sql.catalog import Catalog, Entry, Lane


class SharedLane(Lane):
    """A lane that other servers write to as well."""

    __slots__ = ()

    def forget_scan(self) -> None:
        """Take it that any message may be alive; it stays so."""
        self.live_from_ms = self.scanned_at_ms = 0

    @property
    def oldest_from_ms(self) -> list[int]:  # type: ignore[override]
        """By phase, the beginning of time: what is noted here is forgotten at once."""
        return [0] * len(Phase)

    def scanned(self, now_ms: int, first_visible_ms: int | None) -> None:
        """Remember nothing."""

    def leased_since(self, now_ms: int) -> None:
        """Remember nothing."""

    def written(self, message: Message) -> None:
        """Remember nothing."""


class SharedEntry(Entry):
    """A queue that other servers put to and receive from as well."""

    lane_type = SharedLane

    __slots__ = ("noted_count",)

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.noted_count = self.message_count
        """The count when it was last written down, so that the difference can be."""


class SharedCatalog(Catalog):
    """Queues by (account, name)."""

    entry_type = SharedEntry

    def move(self, entry: Entry, partition: int) -> None:
        """Give a queue a new, empty partition."""
        super().move(entry, partition)
        assert isinstance(entry, SharedEntry)
        entry.noted_count = 0
