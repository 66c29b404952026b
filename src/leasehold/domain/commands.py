"""What can be asked of a store: one small immutable value per verb.

A command's answer is a value: the result named in its docstring, or an instance (not a raise) of
:class:`~leasehold.domain.errors.LeaseholdError`, because one refused command must not disturb the
others of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from leasehold.domain.errors import LeaseholdError
from leasehold.domain.types import AccessPolicy, LapsedReceipts, Lease, Message, Queue


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """Create a queue. Answer: :class:`QueueCreated`, or QueueExists if its metadata differ."""

    account: str
    queue: str
    metadata: Mapping[str, str]
    lapsed_receipts: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN
    """The rule for a new queue; one that is there keeps its own."""


@dataclass(frozen=True, slots=True)
class QueueCreated:
    """*created* is False when the same queue was there already."""

    created: bool


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Delete a queue and all its messages. Answer: :class:`Done`, or QueueNotFound."""

    account: str
    queue: str


@dataclass(frozen=True, slots=True)
class GetQueue:
    """Look at a queue. Answer: :class:`QueueInfo`, or QueueNotFound."""

    account: str
    queue: str


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue and how many messages it holds, visible or not; expired ones may be included."""

    queue: Queue
    message_count: int


@dataclass(frozen=True, slots=True)
class SetQueueMetadata:
    """Replace all of a queue's metadata. Answer: :class:`Done`, or QueueNotFound."""

    account: str
    queue: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetQueuePolicies:
    """Replace all of a queue's stored access policies. Answer: Done, or QueueNotFound."""

    account: str
    queue: str
    policies: tuple[AccessPolicy, ...]


@dataclass(frozen=True, slots=True)
class ListQueues:
    """List queues by name in the order of their bytes. Answer: :class:`QueuePage`."""

    account: str
    prefix: str
    start: str
    """Name of the first queue that may be listed; empty for the beginning."""
    limit: int


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Some queues, and the name at which the next page starts (None at the end)."""

    queues: tuple[Queue, ...]
    next_start: str | None


@dataclass(frozen=True, slots=True)
class GetAccountDocument:
    """Read a document that a dialect keeps for an account. Answer: :class:`AccountDocument`."""

    account: str
    kind: str


@dataclass(frozen=True, slots=True)
class AccountDocument:
    """What was kept, or None."""

    content: str | None


@dataclass(frozen=True, slots=True)
class SetAccountDocument:
    """Keep a document for an account, in place of the one of the same kind. Answer: Done."""

    account: str
    kind: str
    content: str


@dataclass(frozen=True, slots=True)
class Put:
    """Put a message. Answer: its :class:`~leasehold.domain.types.Lease`, or QueueNotFound.

    The receipt in the answer acts until the message is first received.
    """

    account: str
    queue: str
    body: bytes
    delay_s: int
    """Seconds until the message can first be received."""
    time_to_live_s: int | None
    """Seconds until the message expires; None for never."""
    entropy: bytes
    """``ids.ENTROPY_BYTES`` random bytes for the message id."""


@dataclass(frozen=True, slots=True)
class Receive:
    """Lease up to *limit* messages, next-visible first. Answer: tuple of Lease, or QueueNotFound.

    Each message comes with a new receipt and a dequeue count one higher.
    """

    account: str
    queue: str
    limit: int
    visibility_timeout_s: int


@dataclass(frozen=True, slots=True)
class Peek:
    """Look at what :class:`Receive` would lease. Answer: tuple of Message, or QueueNotFound."""

    account: str
    queue: str
    limit: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Move the end of a lease, and replace the body if one is given. Answer: the new Lease.

    Or QueueNotFound, MessageNotFound, ReceiptMalformed, LeaseLost, VisibilityPastExpiry. The old
    receipt is dead from the answer on.
    """

    account: str
    queue: str
    message_id: str
    receipt: str
    visibility_timeout_s: int
    """Seconds from now; 0 makes the message visible at once."""
    body: bytes | None = None
    """New body, or None to keep the old one."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Remove a message whose work is done. Answer: Done, or as for :class:`Renew`."""

    account: str
    queue: str
    message_id: str
    receipt: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove all messages of a queue, leased or not. Answer: Done, or QueueNotFound."""

    account: str
    queue: str


@dataclass(frozen=True, slots=True)
class RetireExpired:
    """Set aside up to *limit* expired messages for good. Answer: :class:`Swept`.

    A message set aside no longer counts and can never be received again, even if the clock were to
    go back; its row stays until :class:`RemoveRetired` so that a clock accident can be undone.
    """

    limit: int


@dataclass(frozen=True, slots=True)
class RemoveRetired:
    """Remove up to *limit* retired messages that expired before a moment. Answer: Swept."""

    expired_before_ms: int
    limit: int


@dataclass(frozen=True, slots=True)
class ReapDropped:
    """Free up to *limit* rows of cleared or deleted queues. Answer: Swept."""

    limit: int


@dataclass(frozen=True, slots=True)
class NoteTime:
    """Keep the time, so that a clock far ahead is noticed at the next start. Answer: Done."""


@dataclass(frozen=True, slots=True)
class Swept:
    """How many rows the maintenance step took; as many as its limit means that more may wait."""

    count: int


@dataclass(frozen=True, slots=True)
class Done:
    """It is done."""


DONE = Done()

QueueCommand: TypeAlias = (
    CreateQueue | DeleteQueue | GetQueue | SetQueueMetadata | SetQueuePolicies | ListQueues
)
AccountCommand: TypeAlias = GetAccountDocument | SetAccountDocument
MessageCommand: TypeAlias = Put | Receive | Peek | Renew | Complete | Clear
MaintenanceCommand: TypeAlias = RetireExpired | RemoveRetired | ReapDropped | NoteTime
Command: TypeAlias = QueueCommand | AccountCommand | MessageCommand | MaintenanceCommand

Result: TypeAlias = (
    Done
    | QueueCreated
    | QueueInfo
    | QueuePage
    | AccountDocument
    | Lease
    | tuple[Lease, ...]
    | tuple[Message, ...]
    | Swept
    | LeaseholdError
)
