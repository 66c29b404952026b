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

    __slots__ = ("message_count", "partition", "queue", "strict")

    def __init__(self, queue: Queue, partition: int, message_count: int) -> None:
        self.queue = queue
        self.partition = partition
        self.message_count = message_count
        self.strict = queue.lapsed_receipts is LapsedReceipts.STRICT


class Catalog:
    """Queues by (account, name)."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._by_partition: dict[int, Entry] = {}

    def load(self, rows: list[QueueRow]) -> None:
        """Take the rows of the ``load_queues`` statement for the whole truth."""
        self._entries.clear()
        self._by_partition.clear()
        for account, name, partition, metadata, policies, lapsed, created_at_ms, count in rows:
            queue = Queue(
                account=account,
                name=name,
                metadata=json.loads(metadata),
                policies=policies_from_json(policies),
                lapsed_receipts=LapsedReceipts(lapsed),
                created_at_ms=created_at_ms,
            )
            self.add(Entry(queue, partition, count))

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
        return [(*key, entry.message_count) for key, entry in self._entries.items()]

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
