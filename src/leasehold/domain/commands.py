"""What can be asked of a store: one small immutable value per verb.

Each class names the type of its result and declares its traits, see :mod:`.command`.

A command's answer is a value: the result named in its docstring, or an instance (not a raise) of
:class:`~leasehold.domain.errors.LeaseholdError`, because one refused command must not disturb the
others of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain.admin import Counts
from leasehold.domain.command import DONE as DONE  # noqa: PLC0414 - part of this vocabulary
from leasehold.domain.command import (
    Answer,
    AnyCommand,
    Command,
    Lock,
    Rank,
    Refresh,
    always,
    by_limit,
    by_subcommands,
    changes,
    looks,
    never,
    one,
    upkeep,
)
from leasehold.domain.command import Done as Done  # noqa: PLC0414
from leasehold.domain.command import Swept as Swept  # noqa: PLC0414
from leasehold.domain.model import (
    DEFAULT_PRIORITY,
    NO_DETAIL,
    AccessPolicy,
    BodyRef,
    Detail,
    ErrorReport,
    Lease,
    Message,
    Outcome,
    Progress,
    Queue,
)
from leasehold.domain.queue_settings import DEFAULT_SETTINGS, Adapted, QueueSettings


@dataclass(frozen=True, slots=True)
class CreateQueue(Command["QueueCreated"]):
    """Create a queue.

    Answer: :class:`QueueCreated`. Of one that is there: SettingsDiffer if its settings are not
    those given, or else QueueExists if its metadata differ.
    """

    traits = changes(Rank.FIRST, one, Lock.ALONE, always, Answer.PLAIN, finishes=False, wakes=False)

    account: str
    queue: str
    metadata: Mapping[str, str]
    settings: QueueSettings = DEFAULT_SETTINGS
    """Those of a new queue; one that is there keeps its own."""
    given: tuple[tuple[str, ...], ...] = ()
    """Which of them were asked for, as paths of names: a queue that is there must have the same."""
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class QueueCreated:
    """*created* is False when the same queue was there already."""

    created: bool


@dataclass(frozen=True, slots=True)
class DeleteQueue(Command[Done]):
    """Delete a queue and all its messages. Answer: :class:`Done`, or QueueNotFound."""

    traits = changes(Rank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True)

    account: str
    queue: str
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class GetQueue(Command["QueueInfo"]):
    """Look at a queue. Answer: :class:`QueueInfo`, or QueueNotFound."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.COUNTS)

    account: str
    queue: str
    with_counts: bool = False
    """Whether to count by state as well."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue and how many messages it holds, visible or not; expired ones may be included."""

    queue: Queue
    message_count: int
    counts: Counts | None = None
    """By state, if asked for; expired messages are in none of them."""


@dataclass(frozen=True, slots=True)
class SetQueueMetadata(Command[Done]):
    """Replace all of a queue's metadata. Answer: :class:`Done`, or QueueNotFound."""

    traits = changes(Rank.FIRST, one, Lock.ALONE, always, Answer.PLAIN, finishes=False, wakes=False)

    account: str
    queue: str
    metadata: Mapping[str, str]
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class SetQueueSettings(Command[Done]):
    """Replace a queue's settings, all but ``adapted`` and ``adapted_by_type``.

    Answer: Done, or QueueNotFound.
    """

    traits = changes(Rank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True)

    account: str
    queue: str
    settings: QueueSettings
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class SetAdapted(Command[Done]):
    """Set the visibility timeout that the server has chosen. Answer: Done, or QueueNotFound."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    account: str
    queue: str
    adapted: Adapted | None
    rule: str | None = None
    """For which of the timeouts by type; None for the queue itself."""


@dataclass(frozen=True, slots=True)
class SetQueuePolicies(Command[Done]):
    """Replace all of a queue's stored access policies. Answer: Done, or QueueNotFound."""

    traits = changes(Rank.FIRST, one, Lock.ALONE, always, Answer.PLAIN, finishes=False, wakes=False)

    account: str
    queue: str
    policies: tuple[AccessPolicy, ...]
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class ListQueues(Command["QueuePage"]):
    """List queues by name in the order of their bytes. Answer: :class:`QueuePage`."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

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
class GetAccountDocument(Command["AccountDocument"]):
    """Read a document that a dialect keeps for an account. Answer: :class:`AccountDocument`."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    kind: str


@dataclass(frozen=True, slots=True)
class AccountDocument:
    """What was kept, or None."""

    content: str | None


@dataclass(frozen=True, slots=True)
class SetAccountDocument(Command[Done]):
    """Keep a document for an account, in place of the one of the same kind. Answer: Done."""

    traits = changes(Rank.FIRST, one, Lock.ALONE, always, Answer.PLAIN, finishes=False, wakes=False)

    account: str
    kind: str
    content: str


class _Put(NamedTuple):
    account: str
    queue: str
    body: bytes
    delay_s: int
    """Seconds until the message can first be received."""
    time_to_live_s: int | None
    """Seconds until the message expires; None for never."""
    entropy: bytes
    """``ids.ENTROPY_BYTES`` random bytes for the message id."""
    detail: Detail = NO_DETAIL
    """What is sent along; a key in it that the queue remembers makes this a duplicate."""
    priority: int = DEFAULT_PRIORITY


class Put(_Put, Command["Lease | Duplicate"]):
    """Put a message. Answer: its Lease, Duplicate or QueueNotFound.

    The receipt in the answer acts until the message is first received.
    """

    __slots__ = ()
    traits = changes(Rank.PUT, one, Lock.SHARED, always, Answer.PLAIN, finishes=False, wakes=True)


class Duplicate(NamedTuple):
    """Nothing was put: within the queue's window a message with the same key was."""

    message_id: str
    """The id of the first one, which may be completed by now."""
    receipt: str
    """The receipt that the first sender was given."""
    inserted_at_ms: int
    expires_at_ms: int
    visible_at_ms: int
    """The times of the first one, as it was put."""


class _Receive(NamedTuple):
    account: str
    queue: str
    limit: int
    visibility_timeout_s: int | None
    """Length of the lease; None for what the message, its type or the queue has, in this order:
    :meth:`leasehold.domain.queue_settings.QueueSettings.timeout_of`."""
    holder: str | None = None
    """Who receives, for those who look at the message meanwhile."""
    session: str | None = None
    """Id of a live session, with which the leases end; the holder is then the session's. Refused
    with SessionNotFound or SessionOver."""
    group: str | None = None
    """Only messages of this group, which the session holds. Refused with GroupNotHeld."""


class Receive(_Receive, Command[tuple[Lease, ...]]):
    """Lease up to *limit* messages. Answer: tuple of Lease, or QueueNotFound.

    Each message comes with a new receipt and a dequeue count one higher. Which come first is said
    by :func:`visibility.receive_order`; a message whose budget is used up is moved to the poison
    queue instead, up to ``failures.POISONED_AT_ONCE``: with more of them, there are fewer leases
    than there could be. A queue that is paused, or has given as many as it may, gives none.
    """

    __slots__ = ()
    traits = changes(
        Rank.TAKE, by_limit, Lock.SHARED, never, Answer.MESSAGES, finishes=False, wakes=True
    )


class _Peek(NamedTuple):
    account: str
    queue: str
    limit: int
    with_bodies: bool = True
    """Whether bodies that are in the body store are read from there; stores do not look at it."""


class Peek(_Peek, Command[tuple[Message, ...]]):
    """Look at what :class:`Receive` would lease. Answer: tuple of Message, or QueueNotFound.

    No more than have LOOK_BYTES of bodies that are in the store, together; the first one always.
    """

    __slots__ = ()
    traits = looks(Rank.PEEK, by_limit, Lock.SHARED, Answer.MESSAGES, Refresh.NOTHING)


def _keeps_more(command: _Renew) -> bool:
    return command.body is not None or bool(command.saved)


class _Renew(NamedTuple):
    account: str
    queue: str
    message_id: str
    receipt: str
    visibility_timeout_s: int
    """Seconds from now; 0 makes the message visible at once."""
    body: bytes | BodyRef | None = None
    """New body, or where it is in the body store; None to keep the old one."""
    progress: Progress | None = None
    """What the holder has to report, or None to leave it as it is."""
    saved: str | None = None
    """JSON to keep with the message across leases, in place of what was saved before;
    :data:`REMOVE_SAVED` to remove that, None to leave it."""
    may_repeat: bool = False
    """Whether it may be sent once more because its answer was lost: then the receipt that the first
    one replaced still leads to the newest. See :func:`leasehold.domain.visibility.is_repeat`."""
    past_expiry: bool = False
    """Whether it may end after the message expires, which is removed then all the same."""


class Renew(_Renew, Command[Lease]):
    """Move the end of a lease, and replace the body if one is given. Answer: the new Lease.

    Or QueueNotFound, MessageNotFound, ReceiptMalformed, LeaseLost, VisibilityPastExpiry. The old
    receipt is dead from the answer on, but see *may_repeat*.
    """

    __slots__ = ()
    traits = changes(
        Rank.RENEW, one, Lock.SHARED, _keeps_more, Answer.PLAIN, finishes=True, wakes=True
    )


REMOVE_SAVED = ""
"""As ``Renew.saved``. No JSON is empty."""


class _Complete(NamedTuple):
    account: str
    queue: str
    message_id: str
    receipt: str
    result: str | None = None
    """JSON that the event log keeps: what came of the work."""


class Complete(_Complete, Command[Done]):
    """Remove a message whose work is done. Answer: Done, or as for :class:`Renew`."""

    __slots__ = ()
    traits = changes(
        Rank.COMPLETE, one, Lock.SHARED, never, Answer.PLAIN, finishes=True, wakes=True
    )


class _Release(NamedTuple):
    account: str
    queue: str
    message_id: str
    receipt: str
    outcome: Outcome = Outcome.RETURNED
    """FAILED, INTERRUPTED, RETURNED, or BURIED for the poison queue whatever the budgets say."""
    delay_s: int | None = None
    """Seconds until it can be received again; None for the queue's back-off after a failure, and
    at once otherwise."""
    error: ErrorReport | None = None
    jitter: float = 0.5
    """A random number from 0 to 1, which spreads the back-off."""


class Release(_Release, Command["Released"]):
    """Give a message back. Answer: :class:`Released`, or as for :class:`Renew`."""

    __slots__ = ()
    traits = changes(Rank.RELEASE, one, Lock.SHARED, never, Answer.PLAIN, finishes=True, wakes=True)


class Released(NamedTuple):
    """A message given back, or moved to the poison queue."""

    message_id: str
    visible_at_ms: int
    poisoned: str | None = None
    """Which budget was used up, or ``buried``; None if the message stays in its queue."""


class _Batch(NamedTuple):
    commands: tuple[Put | Renew | Complete | Release, ...]
    atomic: bool = False
    actor: str | None = None
    """Who asks for it, for the event log; None for workers and producers."""


class Batch(_Batch, Command[tuple["Result", ...]]):
    """Several commands on messages as one. Answer: a tuple with the result of each.

    With *atomic*, either all are carried out or none: if any would be refused, those have their
    error as the result and the others NotDone. Receives and peeks cannot be part of that, and no
    message may be named twice.
    """

    __slots__ = ()
    traits = changes(
        Rank.BATCH, by_subcommands, Lock.SHARED, never, Answer.PLAIN, finishes=True, wakes=True
    )

    def subcommands(self) -> Sequence[AnyCommand]:
        """See :meth:`Command.subcommands`."""
        return self.commands

    def carrying(self, commands: tuple[Any, ...]) -> Batch:
        """See :meth:`Command.carrying`."""
        return self._replace(commands=commands)


@dataclass(frozen=True, slots=True)
class Clear(Command[Done]):
    """Remove all messages of a queue, leased or not. Answer: Done, or QueueNotFound."""

    traits = changes(Rank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=False)

    account: str
    queue: str
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class RetireExpired(Command[Swept]):
    """Set aside up to *limit* expired messages for good. Answer: :class:`Swept`.

    A message set aside no longer counts and can never be received again, even if the clock were to
    go back; its row stays until :class:`RemoveRetired` so that a clock accident can be undone.
    """

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    limit: int


@dataclass(frozen=True, slots=True)
class RemoveRetired(Command[Swept]):
    """Remove up to *limit* retired messages that expired before a moment. Answer: Swept."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    expired_before_ms: int
    limit: int


@dataclass(frozen=True, slots=True)
class ReapDropped(Command[Swept]):
    """Free up to *limit* rows of cleared or deleted queues. Answer: Swept."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    limit: int


@dataclass(frozen=True, slots=True)
class ForgetKeys(Command[Swept]):
    """Forget up to *limit* deduplication keys whose window is over. Answer: Swept."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    limit: int


AHEAD_MS: Final = 2_000
"""What another server puts may be so far ahead of our time: see ``AGREED_WITHIN_S``."""


@dataclass(frozen=True, slots=True)
class CatchUp(Command[Swept]):
    """Make up to *limit* messages visible that were before the clock was set back. Answer: Swept.

    Those that were put or given back without a delay at a time which is to come once more, by more
    than :data:`AHEAD_MS`. They become visible at one moment, in their order, before all that is put
    after it.
    """

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    at_ms: int
    """When the server was started: they are visible as of then."""
    until_ms: int
    """The latest time at which they may have been put or given back."""
    limit: int


@dataclass(frozen=True, slots=True)
class NoteTime(Command[Done]):
    """Keep the time, so that a clock far ahead is noticed at the next start. Answer: Done."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    trusted: bool = True
    """Whether the clock is believed; the time that was kept before stays otherwise, so that the
    next start is as suspicious."""


# --- bodies ------------------------------------------------------------------------------------
#
# Large bodies: kept outside the store of messages, which knows only where they are.
#
# A body is written to the body store before the command that puts it is carried out, and removed
# after the last row that names it is gone. A store of messages notes, in the transaction in which
# a row with a :class:`~leasehold.domain.model.BodyRef` is removed or gets another body, that the
# old key is garbage; the commands here let the engine collect it.


@dataclass(frozen=True, slots=True)
class ReadBodyGarbage(Command["BodyKeys"]):
    """List up to *limit* keys of bodies whose rows are gone. Answer: :class:`BodyKeys`.

    In any order; they stay listed until they are forgotten. A key that a row refers to (again, or
    still) is never among them.
    """

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    limit: int


@dataclass(frozen=True, slots=True)
class ForgetBodyGarbage(Command[Done]):
    """Forget keys whose bodies have been removed. Answer: Done; unknown keys do not matter."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownBodies(Command["BodyKeys"]):
    """Tell which of some keys a row refers to. Answer: :class:`BodyKeys`.

    Rows that are staged, claimed, poisoned, retired, or cleared and not reaped yet count as well:
    whatever will become garbage in time.
    """

    traits = looks(Rank.FIRST, one, Lock.ALONE, Answer.PLAIN, Refresh.NOTHING)

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadBodyPlace(Command["BodyPlace"]):
    """Tell by what the place for bodies is known. Answer: :class:`BodyPlace`."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    limit: int
    """Most keys in the answer."""


@dataclass(frozen=True, slots=True)
class MarkBodyPlace(Command[Done]):
    """Keep the mark of the place for bodies. Answer: Done."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.NOTHING, wakes=False)

    mark: str


@dataclass(frozen=True, slots=True)
class BodyPlace:
    """By what the place for bodies is known."""

    mark: str | None
    """What stands in the place as well; None if it was never marked."""
    keys: tuple[str, ...]
    """Some that rows refer to: the place must have them."""


@dataclass(frozen=True, slots=True)
class BodyKeys:
    """Names within the body store."""

    keys: tuple[str, ...]
    held: bool = False
    """Whether a backup is under way: its copy of the store may name bodies that no row refers to
    any more, so none may be removed now."""


# --- results -----------------------------------------------------------------------------------


Result: TypeAlias = object
"""The answer to a command, of the type that its class declares; or a LeaseholdError."""
