"""The queues of a SQLite store, held in memory beside their rows.

There are few queues and every command names one, so looking them up must cost a dictionary access.
The rows are the truth: after an undone batch the catalog is read from them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TypeAlias

from leasehold.domain.errors import QueueNotFound
from leasehold.domain.types import AccessPolicy, LapsedReceipts, Queue

QueueRow: TypeAlias = tuple[str, str, int, str, str, str, int, int]
"""Account, name, partition, metadata, policies, lapsed receipts, created, message count."""


class Entry:
    """A queue, the partition its messages are in, and how many there are."""

    __slots__ = (
        "live_from_ms",
        "message_count",
        "partition",
        "queue",
        "scanned_at_ms",
        "strict",
    )

    def __init__(self, queue: Queue, partition: int, message_count: int) -> None:
        self.queue = queue
        self.partition = partition
        self.message_count = message_count
        self.strict = queue.lapsed_receipts is LapsedReceipts.STRICT
        self.forget_scan()

    def forget_scan(self) -> None:
        """Take it that any message may be alive."""
        # No message visible before this moment is alive, so receives need not look at them ...
        self.live_from_ms = 0
        # ... as was found then; with the clock set back it need not be so.
        self.scanned_at_ms = 0

    def scanned(self, now_ms: int, first_visible_ms: int | None) -> None:
        """Note what a search for visible messages has found first, None for nothing."""
        self.live_from_ms = now_ms if first_visible_ms is None else first_visible_ms
        self.scanned_at_ms = now_ms

    def written(self, visible_at_ms: int) -> None:
        """Note that a message was put, or given back, that becomes visible at this moment."""
        self.live_from_ms = min(self.live_from_ms, visible_at_ms)


class Catalog:
    """Queues by (account, name)."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._by_partition: dict[int, Entry] = {}

    def load(self, rows: list[QueueRow]) -> None:
        """Take the rows of the ``load_queues`` statement for the whole truth."""
        loaded = Catalog()
        for account, name, partition, metadata, policies, lapsed, created_at_ms, count in rows:
            queue = Queue(
                account=account,
                name=name,
                metadata=json.loads(metadata),
                policies=policies_from_json(policies),
                lapsed_receipts=LapsedReceipts(lapsed),
                created_at_ms=created_at_ms,
            )
            loaded.add(Entry(queue, partition, count))
        # At once, because another thread may be looking something up.
        self._entries, self._by_partition = loaded._entries, loaded._by_partition

    def add(self, entry: Entry) -> None:
        """Add a queue."""
        self._entries[entry.queue.account, entry.queue.name] = entry
        self._by_partition[entry.partition] = entry

    def remove(self, entry: Entry) -> None:
        """Take a queue out."""
        del self._entries[entry.queue.account, entry.queue.name]
        del self._by_partition[entry.partition]

    def move(self, entry: Entry, partition: int) -> None:
        """Give a queue a new, empty partition."""
        del self._by_partition[entry.partition]
        entry.partition = partition
        entry.message_count = 0
        entry.forget_scan()
        self._by_partition[partition] = entry

    def find(self, account: str, name: str) -> Entry | None:
        """Return the queue, or None."""
        return self._entries.get((account, name))

    def get(self, account: str, name: str) -> Entry:
        """Return the queue.

        Raises:
            QueueNotFound: There is none of this name.
        """
        try:
            return self._entries[account, name]
        except KeyError:
            raise QueueNotFound from None

    def message_counts(self) -> list[tuple[str, str, int]]:
        """Return account, name and message count of every queue."""
        return [(*key, entry.message_count) for key, entry in list(self._entries.items())]

    def of_partition(self, partition: int) -> Entry | None:
        """Return the queue whose messages are in *partition*, or None when it was dropped."""
        return self._by_partition.get(partition)


def metadata_to_json(metadata: Mapping[str, str]) -> str:
    """Return metadata as stored."""
    return json.dumps(dict(metadata), ensure_ascii=False)


def policies_to_json(policies: tuple[AccessPolicy, ...]) -> str:
    """Return stored access policies as stored."""
    return json.dumps([asdict(policy) for policy in policies], ensure_ascii=False)


def policies_from_json(text: str) -> tuple[AccessPolicy, ...]:
    """Reverse :func:`policies_to_json`."""
    return tuple(AccessPolicy(**fields) for fields in json.loads(text))
