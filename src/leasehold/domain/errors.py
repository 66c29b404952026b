"""Everything that can go wrong with a command, without a word about HTTP.

::

    LeaseholdError
    ├── QueueNotFound            ├── QueueExists
    ├── MessageNotFound          ├── LeaseLost
    ├── ReceiptMalformed         ├── OutOfRange
    ├── VisibilityPastExpiry     ├── BodyTooLarge
    ├── InvalidQueueName         ├── InvalidMarker
    ├── MessageLeased            ├── MessageNotLeased
    ├── JobNotFound              ├── NamedTwice
    ├── NotDone                  ├── SettingsDiffer
    ├── SessionNotFound          ├── SessionOver
    ├── StreamNotFound           ├── StaleToken
    ├── ClaimNotFound            ├── ClaimOutOfTurn
    ├── ClaimSettled             ├── ClaimLapsed
    ├── ClaimBroken              ├── MemberNotFound
    ├── StagedNotFound           ├── AlreadyPublished
    ├── ChunkOutOfTurn           ├── BodyUnreadable
    ├── NoGroups
    ├── GroupNotHeld
    └── Unavailable
        ├── StoreFull            ├── Overloaded
        ├── Stopping             ├── AccountMoved
        └── OutcomeUnknown
            ├── NotReplicated
            └── StoreFailed

The first line of a docstring is the message; facts are attributes. Each dialect has one table from
these classes to its own codes, and a test that the table is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal


class LeaseholdError(Exception):
    """The command could not be carried out."""

    def __init__(self) -> None:
        super().__init__((type(self).__doc__ or "").split("\n", 1)[0])


class QueueNotFound(LeaseholdError):
    """The queue does not exist."""


class QueueExists(LeaseholdError):
    """A queue of this name exists already and has other metadata."""


class SettingsDiffer(LeaseholdError):
    """A queue of this name exists already and has other settings than those given.

    ``differences`` has what is there and what was given, by the setting's name; of a part of one
    with a dot between, as in ``failure_policy.max_failures``.
    """

    def __init__(self, differences: Mapping[str, tuple[object, object]] | None = None) -> None:
        super().__init__()
        self.differences = differences or {}


class InvalidQueueName(LeaseholdError):
    """No queue can be called so, or none of the protocol's; see :mod:`leasehold.domain.limits`."""

    def __init__(self, name: str, reason: Literal["length", "characters"]) -> None:
        super().__init__()
        self.name = name
        self.reason = reason


class MessageNotFound(LeaseholdError):
    """The queue holds no such message: it was never there, or is completed, cleared or expired.

    ``late`` says that the receipt was of a lease of it in this queue: the message was moved to
    another queue meanwhile, such as the poison queue, or has expired and is not swept yet.
    """

    def __init__(self, *, late: bool = False) -> None:
        super().__init__()
        self.late = late


class LeaseLost(LeaseholdError):
    """The receipt is not the message's current one, so its holder may not act.

    ``reason`` is ``superseded`` (the message was received or renewed since), ``lapsed`` (strict
    rule only) or ``foreign`` (this store never issued the receipt, or it is another message's).
    """

    def __init__(self, reason: Literal["superseded", "lapsed", "foreign"]) -> None:
        super().__init__()
        self.reason = reason


class ReceiptMalformed(LeaseholdError):
    """The receipt does not have the form of a receipt."""

    def __init__(self, receipt: str) -> None:
        super().__init__()
        self.receipt = receipt


class OutOfRange(LeaseholdError):
    """A value is outside the limits in force."""

    def __init__(self, *, field: str, value: int, minimum: int, maximum: int) -> None:
        super().__init__()
        self.field = field
        self.value = value
        self.minimum = minimum
        self.maximum = maximum


class VisibilityPastExpiry(LeaseholdError):
    """The message would become visible only when it has expired."""

    def __init__(self, verb: Literal["put", "renew", "release"], visibility_timeout_s: int) -> None:
        super().__init__()
        self.verb = verb
        self.visibility_timeout_s = visibility_timeout_s


class BodyTooLarge(LeaseholdError):
    """The body is larger than the queue takes; ``size_bytes`` and ``limit_bytes`` say by how much.

    The size is that of the body itself, not of its encoding on the wire.
    """

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__()
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class InvalidMarker(LeaseholdError):
    """The marker of the page to list is not one that this server gave out."""


class MessageLeased(LeaseholdError):
    """The message is leased; ``holder`` and ``until_ms`` say who and until when."""

    def __init__(self, holder: str | None, until_ms: int) -> None:
        super().__init__()
        self.holder = holder
        self.until_ms = until_ms


class MessageNotLeased(LeaseholdError):
    """The message is not leased, so there is no lease to end."""


class JobNotFound(LeaseholdError):
    """There is no such job."""


class NamedTwice(LeaseholdError):
    """Another command of the same all-or-nothing batch names this message."""


class NotDone(LeaseholdError):
    """Nothing was done, because another command of the same all-or-nothing batch was refused."""


class SessionNotFound(LeaseholdError):
    """There is no such session; it may have been over for long."""


class SessionOver(LeaseholdError):
    """The session is over, and its leases have ended; ``state`` and ``reason`` say how."""

    def __init__(self, state: str, reason: str | None) -> None:
        super().__init__()
        self.state = state
        self.reason = reason


class StreamNotFound(LeaseholdError):
    """The queue has no such stream; attach it first."""


class StaleToken(LeaseholdError):
    """Another consumer has attached to the stream since; ``token`` is the current token."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token


class ClaimNotFound(LeaseholdError):
    """The stream has no claim of this number open."""


class ClaimOutOfTurn(LeaseholdError):
    """Claims are opened one after the other; ``expected`` is the next number."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected


class ClaimSettled(LeaseholdError):
    """The claim has been settled; ``last_settled`` is the last number that was.

    ``settled_with`` is the transaction whose publishing settled the last claims, or None.
    """

    def __init__(self, last_settled: int, settled_with: str | None = None) -> None:
        super().__init__()
        self.last_settled = last_settled
        self.settled_with = settled_with


class ClaimLapsed(LeaseholdError):
    """The claim was not extended in time; it must be opened again before it is read."""

    def __init__(self, until_ms: int) -> None:
        super().__init__()
        self.until_ms = until_ms


class ClaimBroken(LeaseholdError):
    """Others have taken members of the claim: it cannot be read whole any more.

    ``size`` is how many members it had, ``lost`` how many of them are gone.
    """

    def __init__(self, size: int, lost: int) -> None:
        super().__init__()
        self.size = size
        self.lost = lost


class MemberNotFound(LeaseholdError):
    """A message named is no member of the claim; ``message_id`` is the first such."""

    def __init__(self, message_id: str) -> None:
        super().__init__()
        self.message_id = message_id


class NoGroups(LeaseholdError):
    """The settings of the queue do not speak of message groups."""


class GroupNotHeld(LeaseholdError):
    """The session does not hold the message group, or does under another fence by now."""


class StagedNotFound(LeaseholdError):
    """Nothing is staged, or has been published, under this name; ``part`` names a missing part."""

    def __init__(self, name: str, part: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.part = part


class AlreadyPublished(LeaseholdError):
    """The transaction has been published: nothing can be added to it."""


class ChunkOutOfTurn(LeaseholdError):
    """The chunks of a part come one after the other; ``expected`` is the next number."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected


class BodyUnreadable(LeaseholdError):
    """The body of a message is kept outside the store of messages, and cannot be read there.

    ``reason`` is ``missing`` or ``corrupt``; the message itself is as it was.
    """

    def __init__(self, message_id: str, reason: str) -> None:
        super().__init__()
        self.message_id = message_id
        self.reason = reason


class Unavailable(LeaseholdError):
    """The server cannot do this now; the same call may work later.

    Nothing was changed, except perhaps after :class:`OutcomeUnknown`.
    """


class StoreFull(Unavailable):
    """The disk is full: nothing can be put until there is room, but consumers may go on."""


class Overloaded(Unavailable):
    """Too many requests are waiting for an answer."""


class Stopping(Unavailable):
    """The server is stopping."""


class AccountMoved(Unavailable):
    """The account was moved to another store, and this server still looks for it where it was."""

    def __init__(self, account: str) -> None:
        super().__init__()
        self.account = account


class OutcomeUnknown(Unavailable):
    """Whether the command took effect is not known: its commit has got no answer."""


class NotReplicated(OutcomeUnknown):
    """It took effect, but the wait for the synchronous standbys was cancelled.

    A failover of the database may lose it.
    """


class StoreFailed(OutcomeUnknown):
    """The store failed while writing, and is of no more use."""
