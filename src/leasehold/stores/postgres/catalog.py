"""The queues of a PostgreSQL store in the memory of one server of many.

What a server finds out while it receives, others make untrue without a word. So lanes remember
only for a moment where the first visible message was, and what is invisible is counted anew each
time.
"""

from __future__ import annotations

from typing import Any, Final

from leasehold.domain.types import Message, Phase
from leasehold.stores.sql.catalog import Catalog, Entry, Lane

TRUST_MS: Final = 250
"""How long a search begins where the last one has found something.

Before that place lie the entries of messages that were completed since the last vacuum, hundreds of
thousands after a minute of batches; a search that walks over them takes as long as all else. What
another server gives back with an earlier moment, because it committed late or its clock is behind,
is found after this time, or as soon as a search does not find as much as it wants.
"""
_BEHIND_MS: Final = 100
"""How far behind us the clock and the commits of other servers typically are, at the most."""


class SharedLane(Lane):
    """A lane that other servers write to as well."""

    __slots__ = ("_looked_at_ms",)

    is_sure = False

    def forget_scan(self) -> None:
        """Take it that any message may be alive."""
        self.live_from_ms = self.scanned_at_ms = self._looked_at_ms = 0

    @property
    def oldest_from_ms(self) -> list[int]:  # type: ignore[override]
        """By phase, the beginning of time: what is noted here is forgotten at once."""
        return [0] * len(Phase)

    def scanned(self, now_ms: int, first_visible_ms: int | None, *, found_all: bool) -> None:
        """Remember where to begin for a moment, if there is more than was looked for."""
        if not self.live_from_ms:
            self._looked_at_ms = now_ms
        self.scanned_at_ms = now_ms
        if found_all or first_visible_ms is None or now_ms - self._looked_at_ms >= TRUST_MS:
            self.live_from_ms = 0
        else:
            self.live_from_ms = min(first_visible_ms, now_ms - _BEHIND_MS)

    def leased_since(self, now_ms: int) -> None:
        """Remember nothing."""

    def written(self, message: Message) -> None:
        """Note that a message was put, or given back, as it is now."""
        self.live_from_ms = min(self.live_from_ms, message.visible_at_ms)


class SharedEntry(Entry):
    """A queue that other servers put to and receive from as well."""

    lane_type = SharedLane

    __slots__ = ("noted_count", "noted_retired")

    retired: int

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.noted_count = self.message_count
        """The count when it was last written down, so that the difference can be."""
        self.retired = self.noted_retired = 0


class SharedCatalog(Catalog):
    """Queues by (account, name)."""

    entry_type = SharedEntry

    def move(self, entry: Entry, partition: int) -> None:
        """Give a queue a new, empty partition."""
        super().move(entry, partition)
        assert isinstance(entry, SharedEntry)
        entry.noted_count = entry.noted_retired = 0
