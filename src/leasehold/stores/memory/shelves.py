"""What a memory store holds: queues, the messages in them, and how to get at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from leasehold.domain.commands import Complete, Duplicate, Release, Renew
from leasehold.domain.errors import MessageNotFound, QueueNotFound
from leasehold.domain.ids import row_key_of
from leasehold.domain.oversight import Job
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.domain.receipts import issue_receipt, read_receipt
from leasehold.domain.throttle import Bucket
from leasehold.domain.types import Lease, Message, Queue
from leasehold.domain.visibility import is_expired, receipt_refusal

Rows: TypeAlias = dict[int, Message]


@dataclass(slots=True)
class Shelf:
    """A queue and what is in it."""

    queue: Queue
    rows: Rows = field(default_factory=dict)
    retired: Rows = field(default_factory=dict)
    bucket: Bucket | None = None
    keys: dict[str, tuple[Duplicate, int]] = field(default_factory=dict)
    """By deduplication key: the first message, and the end of the window."""


class Shelves:
    """All queues of a store, and the time of the batch."""

    def __init__(self, receipt_key: bytes) -> None:
        self.receipt_key = receipt_key
        self.queues: dict[tuple[str, str], Shelf] = {}
        self.jobs: dict[str, Job] = {}
        self.last_row_key = 0
        self.dropped_rows = 0
        self.now_ms = 0

    def get(self, account: str, queue: str) -> Shelf:
        """Return a queue, or raise QueueNotFound."""
        try:
            return self.queues[account, queue]
        except KeyError:
            raise QueueNotFound from None

    def poison_of(self, shelf: Shelf) -> Shelf | None:
        """Return the poison queue of a queue, if there is one."""
        name = poison_queue_of(shelf.queue.name, shelf.queue.settings)
        return self.queues.get((shelf.queue.account, name))

    def make_poison_of(self, shelf: Shelf) -> Shelf:
        """Return the poison queue of a queue, created if need be."""
        found = self.poison_of(shelf)
        if found is None:
            queue = shelf.queue
            name = poison_queue_of(queue.name, queue.settings)
            made = Queue(account=queue.account, name=name, created_at_ms=self.now_ms)
            found = self.queues[queue.account, name] = Shelf(made)
        return found

    def keep(self, shelf: Shelf, row_key: int, message: Message) -> Lease:
        """Put a message on a shelf; return it with the receipt that acts on it now."""
        shelf.rows[row_key] = message
        return Lease(message, issue_receipt(self.receipt_key, row_key, message.fence))

    def live(self, shelf: Shelf, message_id: str) -> tuple[int, Message]:
        """Return the row of a message that has not expired, or raise MessageNotFound."""
        row_key = row_key_of(message_id)
        message = shelf.rows.get(row_key) if row_key is not None else None
        if (
            row_key is None
            or message is None
            or message.message_id != message_id
            or is_expired(message, self.now_ms)
        ):
            raise MessageNotFound
        return row_key, message

    def acting(self, command: Renew | Complete | Release) -> tuple[Shelf, int, Message]:
        """Return the message a receipt acts on, or raise why it may not."""
        shelf = self.get(command.account, command.queue)
        row_key, message = self.live(shelf, command.message_id)
        receipt = read_receipt(self.receipt_key, command.receipt)
        rule = shelf.queue.settings.lapsed_receipts
        refusal = receipt_refusal(message, row_key, receipt, self.now_ms, rule)
        if refusal:
            raise refusal
        return shelf, row_key, message

    def drop(self, shelf: Shelf) -> None:
        """Note that the messages of a queue wait for the reaper."""
        self.dropped_rows += len(shelf.rows) + len(shelf.retired)

    def everything(self) -> Iterator[tuple[Shelf, int, Message]]:
        """Go over all messages that are not retired."""
        for shelf in self.queues.values():
            for row_key, message in shelf.rows.items():
                yield shelf, row_key, message
