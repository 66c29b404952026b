"""What a memory store holds: queues, the messages in them, and how to get at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from leasehold.domain import claim_rules
from leasehold.domain.claims import Claim, Exemption, Stream
from leasehold.domain.commands import Complete, Duplicate, Release, Renew
from leasehold.domain.errors import LeaseLost, MessageNotFound, QueueNotFound, ReceiptMalformed
from leasehold.domain.event_log import Recorder, is_recorded, late, late_elsewhere
from leasehold.domain.events import EventType
from leasehold.domain.ids import row_key_of
from leasehold.domain.oversight import Job, Seen
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.domain.receipts import ReceiptParts, issue_receipt, read_receipt
from leasehold.domain.throttle import Bucket
from leasehold.domain.types import ErrorReport, Lease, Message, MessageState, Queue
from leasehold.domain.visibility import receipt_refusal, state_of

Rows: TypeAlias = dict[int, Message]


@dataclass(slots=True, eq=False)
class Holding:
    """A claim and its members, which stay on the shelf of their queue."""

    claim: Claim
    members: set[int] = field(default_factory=set)
    """Row keys of those that are still in it."""
    hidden: bool = True
    """Whether nobody else can have the members: until the claim lapses."""
    accepted_loss: bool = False
    """Whether it was opened in spite of its last loss."""
    dissolving: bool = False
    """Whether it was given back: its stream knows it no more, and its members leave it in steps."""
    notes: dict[int, Exemption] = field(default_factory=dict)
    """By row key: what becomes of members, also of some lost since, when it is settled."""


@dataclass(slots=True)
class StreamShelf:
    """A stream and its claims by number."""

    account: str
    queue: str
    name: str
    token: int = 0
    last_settled: int = 0
    attached_at_ms: int = 0
    settled_with: str | None = None
    claims: dict[int, Holding] = field(default_factory=dict)

    def as_stream(self) -> Stream:
        """Return the stream as others see it."""
        return Stream(
            account=self.account,
            queue=self.queue,
            stream=self.name,
            token=self.token,
            last_settled=self.last_settled,
            attached_at_ms=self.attached_at_ms,
            settled_with=self.settled_with,
            claims=tuple(self.claims[number].claim for number in sorted(self.claims)),
        )


@dataclass(slots=True)
class Shelf:
    """A queue and what is in it."""

    queue: Queue
    rows: Rows = field(default_factory=dict)
    retired: Rows = field(default_factory=dict)
    bucket: Bucket | None = None
    keys: dict[str, tuple[Duplicate, int]] = field(default_factory=dict)
    """By deduplication key: the first message, and the end of the window."""
    streams: dict[str, StreamShelf] = field(default_factory=dict)
    held: dict[int, Holding] = field(default_factory=dict)
    """By row key: the claim that the message is in, hidden or not."""

    def first_with(self, key: str | None, now_ms: int) -> Duplicate | None:
        """Return the message that has used a deduplication key, if its window is open."""
        if key is None or key not in self.keys or now_ms >= self.keys[key][1]:
            return None
        return self.keys[key][0]

    def keep_key(self, message: Message, receipt: str) -> None:
        """Remember the key of a message that is put now, for as long as the window is."""
        key, window_s = message.detail.dedup_key, self.queue.settings.dedup_window_s
        if key is not None and window_s:
            first = Duplicate(
                message.message_id,
                receipt,
                message.inserted_at_ms,
                message.expires_at_ms,
                message.visible_at_ms,
            )
            self.keys[key] = first, message.inserted_at_ms + window_s * 1000

    def hides(self, row_key: int) -> bool:
        """Tell whether a claim hides the message from everybody else."""
        holding = self.held.get(row_key)
        return holding is not None and holding.hidden

    def state_of(self, row_key: int, now_ms: int) -> MessageState:
        """Say in which state a message is; what a claim hides does not expire."""
        if self.hides(row_key):
            return MessageState.LEASED
        return state_of(self.rows[row_key], now_ms)

    def seen(self, row_key: int, now_ms: int) -> Seen:
        """Return a message as an inspector sees it: under a claim while that hides it."""
        under = claim_rules.name_of(self.held[row_key].claim) if self.hides(row_key) else None
        return Seen(self.rows[row_key], self.state_of(row_key, now_ms), self.queue.name, under)


class Shelves:
    """All queues of a store, and the time of the batch."""

    def __init__(self, receipt_key: bytes) -> None:
        self.receipt_key = receipt_key
        self.queues: dict[tuple[str, str], Shelf] = {}
        self.jobs: dict[str, Job] = {}
        self.holdings: list[Holding] = []
        """All claims that are not settled, in the order in which they were opened."""
        self.log = Recorder()
        self.last_row_key = 0
        self.last_token = 0
        self.dropped: list[Message] = []
        """What was cleared, deleted, settled or discarded, until it is reaped."""
        self.body_keys: set[str] = set()
        """Keys of the body store that a message has referred to, until they are forgotten."""
        self.now_ms = 0

    def get(self, account: str, queue: str) -> Shelf:
        """Return a queue, or raise QueueNotFound."""
        try:
            return self.queues[account, queue]
        except KeyError:
            raise QueueNotFound from None

    def create(self, queue: Queue) -> Shelf:
        """Put up a new queue."""
        shelf = self.queues[queue.account, queue.name] = Shelf(queue)
        self.note(EventType.QUEUE_CREATED, shelf)
        return shelf

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
            found = self.create(Queue(account=queue.account, name=name, created_at_ms=self.now_ms))
        return found

    # --- changes -----------------------------------------------------------------------------

    def keep(self, shelf: Shelf, row_key: int, message: Message) -> Lease:
        """Put a message on a shelf; return it with the receipt that acts on it now.

        One that was in a claim has been taken from it.
        """
        self.leave(shelf, row_key)
        shelf.rows[row_key] = message
        self.note_body(message)
        return Lease(message, issue_receipt(self.receipt_key, row_key, message.fence))

    def note_body(self, message: Message) -> None:
        """Note where the body of a new or changed message is."""
        if message.detail.body_ref is not None:
            self.body_keys.add(message.detail.body_ref.key)

    def take(self, shelf: Shelf, row_key: int) -> Message:
        """Take a message from its shelf, and from its claim."""
        self.leave(shelf, row_key)
        return shelf.rows.pop(row_key)

    def leave(self, shelf: Shelf, row_key: int) -> None:
        """Take a message out of its claim, if it is in one: that is a loss to the claim."""
        holding = shelf.held.pop(row_key, None)
        if holding is not None:
            holding.members.remove(row_key)
            holding.claim = claim_rules.after_loss(holding.claim, 1)
            holding.accepted_loss = False

    def drop(self, shelf: Shelf) -> None:
        """Note that the messages of a queue wait for the reaper."""
        self.dropped += [*shelf.rows.values(), *shelf.retired.values()]

    def note(  # noqa: PLR0913, PLR0917 - the parts of an event
        self,
        kind: EventType,
        shelf: Shelf,
        message: Message | None = None,
        reason: str | None = None,
        target: str | None = None,
        error: ErrorReport | None = None,
    ) -> None:
        """Record what happened to a message, which is as it is after that, or to a queue."""
        if shelf.queue.settings.event_log:
            of = shelf.queue.account, shelf.queue.name
            self.log.add(kind, *of, message, reason, target, error)

    # --- looking -----------------------------------------------------------------------------

    def live(self, shelf: Shelf, message_id: str) -> tuple[int, Message]:
        """Return the row of a message that has not expired, or raise MessageNotFound."""
        row_key = row_key_of(message_id)
        message = shelf.rows.get(row_key) if row_key is not None else None
        if (
            row_key is None
            or message is None
            or message.message_id != message_id
            or shelf.state_of(row_key, self.now_ms) is MessageState.EXPIRED
        ):
            raise MessageNotFound
        return row_key, message

    def acting(self, command: Renew | Complete | Release) -> tuple[Shelf, int, Message]:
        """Return the message a receipt acts on, or raise why it may not."""
        shelf = self.get(command.account, command.queue)
        try:
            row_key, message = self.live(shelf, command.message_id)
        except MessageNotFound:
            raise self._not_found(command, shelf) from None
        receipt = read_receipt(self.receipt_key, command.receipt)
        rule = shelf.queue.settings.lapsed_receipts
        renew = command if isinstance(command, Renew) else None
        refusal = receipt_refusal(message, row_key, receipt, self.now_ms, rule, renew)
        if refusal:
            if isinstance(command, Complete) and isinstance(refusal, LeaseLost):
                self._note_late(shelf, message, receipt, refusal)
            raise refusal
        return shelf, row_key, message

    def _not_found(self, command: Renew | Complete | Release, shelf: Shelf) -> MessageNotFound:
        """Return the refusal; record a complete that came when its message had left the queue."""
        row_key = row_key_of(command.message_id)
        if not isinstance(command, Complete) or row_key is None:
            return MessageNotFound()
        try:
            receipt = read_receipt(self.receipt_key, command.receipt)
        except ReceiptMalformed:
            return MessageNotFound()
        own = shelf.queue
        for place in self.queues.values():
            message = place.rows.get(row_key)
            is_it = message is not None and message.message_id == command.message_id
            if message is None or not is_it or place.queue.account != own.account:
                continue
            told = late_elsewhere(message, row_key, receipt, own.name, here=place is shelf)
            if told is not None:
                self.note(EventType.REFUSED, shelf, *told)
                return MessageNotFound(late=True)
        return MessageNotFound()

    def _note_late(
        self, shelf: Shelf, message: Message, receipt: ReceiptParts, refusal: LeaseLost
    ) -> None:
        if is_recorded(refusal):
            self.note(EventType.REFUSED, shelf, late(message, receipt), refusal.reason)

    def everything(self) -> Iterator[tuple[Shelf, int, Message]]:
        """Go over all messages that are not retired."""
        for shelf in self.queues.values():
            for row_key, message in shelf.rows.items():
                yield shelf, row_key, message
