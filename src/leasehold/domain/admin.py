"""What those ask who look after a queue: look, count, move, remove, by id and by filter.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
None of these needs a receipt, and none but the moving ones changes anything a worker can see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil
from typing import Final, NamedTuple

from leasehold.domain.command import (
    Answer,
    Command,
    Done,
    Lock,
    Rank,
    Refresh,
    always,
    changes,
    looks,
    never,
    one,
    quarter,
    upkeep,
)
from leasehold.domain.filters import EVERYTHING, MessageFilter
from leasehold.domain.model import (
    BEGINNING,
    BodyRef,
    GroupFigures,
    GroupHalt,
    GroupHold,
    Message,
    MessageState,
    Place,
)
from leasehold.domain.noisy_groups import GroupWork

COUNTED_STATES = (
    MessageState.VISIBLE,
    MessageState.LEASED,
    MessageState.DELAYED,
    MessageState.DEFERRED,
    MessageState.POISONED,
    MessageState.EXPIRED,
)
"""States that messages are counted by, named like the fields of :class:`Counts`."""


@dataclass(frozen=True, slots=True)
class Inspect(Command["MessagePage"]):
    """List messages, oldest first, without touching them. Answer: MessagePage, or QueueNotFound.

    With the state POISONED among those asked for, messages in the poison queue that came from this
    queue are listed after its own. A page may be short, or empty, and still not be the last.
    """

    traits = looks(Rank.FIRST, quarter, Lock.ALONE, Answer.MESSAGES, Refresh.COUNTS)

    account: str
    queue: str
    filter: MessageFilter
    after: str
    """``next_after`` of the page before; empty for the beginning."""
    limit: int
    with_bodies: bool = True
    """Whether bodies that are in the body store are read from there; stores do not look at it."""


class Seen(NamedTuple):
    """A message as an inspector sees it."""

    message: Message
    state: MessageState
    queue: str
    """The queue that it is in: a poisoned one is in another than the one asked."""
    under: str | None = None
    """``stream/number`` of the claim that holds it, or the name of the transaction that it is
    staged under."""


class MessagePage(NamedTuple):
    """Some messages, and where the next page starts (None at the end)."""

    messages: tuple[Seen, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class FindMessage(Command["Seen"]):
    """Look for one message by id, in the queue and its poison queue.

    Answer: :class:`Seen`, or QueueNotFound or MessageNotFound.
    """

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.MESSAGES, Refresh.NOTHING)

    account: str
    queue: str
    message_id: str
    with_bodies: bool = True
    """As for :class:`Inspect`."""


@dataclass(frozen=True, slots=True)
class LookAtGroup(Command["GroupStanding"]):
    """Look at what holds up a message group. Answer: :class:`GroupStanding`, or QueueNotFound."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    queue: str
    group_id: str
    limit: int = 10
    """Messages at most that are shown."""


class GroupStanding(NamedTuple):
    """What of a message group was received and is not visible now."""

    in_flight: int
    """Messages on leases, members of claims included."""
    held: tuple[Seen, ...]
    """Those on leases or given back with a delay, without bodies; the first to end comes first."""
    again_ms: int | None = None
    """When its rate allows one more; None if it does now."""
    halt: GroupHalt | None = None
    """Why it stands still; None if it does not."""
    hold: GroupHold | None = None
    noisy_limit: int | None = None
    """How many messages of it may be in flight while it is noisy; None for any number."""


class GroupPlace(NamedTuple):
    """Which message was the last that a look at the groups of a queue has counted."""

    lane: int
    group_id: str
    received: int
    visible_at_ms: int
    row_key: int


@dataclass(frozen=True, slots=True)
class CountGroups(Command["GroupPage"]):
    """Count the messages of a queue's groups, part by part.

    Answer: :class:`GroupPage`, or QueueNotFound. What moves meanwhile may count twice, or never.
    """

    traits = looks(Rank.FIRST, quarter, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    queue: str
    group_id: str | None = None
    """Only this group; None for all."""
    after: GroupPlace | None = None
    """``next_after`` of the page before; None for the beginning."""
    limit: int = 1_500
    """Messages at most that are counted, at some ten milliseconds."""


class GroupPage(NamedTuple):
    """Figures of some groups, and where to go on (None at the end).

    Those of a group on several pages are to be added.
    """

    groups: Mapping[str, GroupFigures]
    next_after: GroupPlace | None
    halts: Mapping[str, GroupHalt]
    """Of groups that stand still; also those without messages, and all of them on each page."""
    work: GroupWork = GroupWork()


@dataclass(frozen=True, slots=True)
class CountMessages(Command["Counts"]):
    """Count a queue's messages by state. Answer: :class:`Counts`, or QueueNotFound."""

    traits = looks(Rank.FIRST, one, Lock.ALONE, Answer.PLAIN, Refresh.COUNTS)

    account: str
    queue: str


class Counts(NamedTuple):
    """How many messages are in each state, all at one instant.

    *since* says when the message that has been longest in a state entered it; expired ones, of
    which there may be very many, have no such time.
    """

    visible: int
    leased: int
    delayed: int
    deferred: int
    poisoned: int
    """Messages in the queue's poison queue, in whatever state they are there."""
    since: Mapping[MessageState, int]
    """Unix milliseconds by state; states without messages are left out."""
    exact: bool = True
    """False while many messages that expired during a standstill have not been set aside yet.

    Some of those may then be counted as what they were before.
    """
    staged: int = 0
    """Messages staged for the queue and not published; not part of the total."""
    claimed: int = 0
    """Of the leased ones, how many are in claims."""
    expired: int = 0
    """Messages whose time to live is over, until their rows are removed; not part of the total."""
    halted_groups: int = 0
    """Message groups that give nothing until they are resumed."""
    held_groups: int = 0
    """Message groups that sessions hold."""

    @property
    def total(self) -> int:
        """Return how many are in the queue itself."""
        return self.visible + self.leased + self.delayed + self.deferred


class Workload(NamedTuple):
    """What a queue has for its workers."""

    visible: int
    """Messages that wait."""
    leased: int
    """Messages in work."""
    waiting_s: float = 0.0
    """Seconds that the visible message which has waited longest has waited."""


def desired_workers(
    work: Workload,
    *,
    messages_per_worker: int,
    leases_per_worker: int = 1,
    max_wait_s: float | None = None,
) -> int:
    """Say how many workers a queue needs: enough for its backlog, and for all that is in work.

    ``max(ceil(leased / leases_per_worker), ceil((leased + visible * urgency) /
    messages_per_worker))``, with the urgency ``max(1, waiting_s / max_wait_s)``. The first part is
    what keeps workers there that hold leases: with one lease to a worker the number is never less
    than that of the workers that hold one.

    Args:
        work: What there is to do; no figure is negative.
        messages_per_worker: Messages, waiting or in work, that one worker is to look after; 1 or
            more.
        leases_per_worker: How many messages a worker handles at once, 1 or more. If it is not
            known, 1 errs on the side of too many workers.
        max_wait_s: Seconds, more than 0, that a message may wait. If one has waited n times as
            long, the backlog counts n times. None: however long it takes.

    Returns: 0 only if nothing is visible or leased.
    """
    urgency = 1.0 if max_wait_s is None else max(1.0, work.waiting_s / max_wait_s)
    return max(
        ceil(work.leased / leases_per_worker),
        ceil((work.leased + work.visible * urgency) / messages_per_worker),
    )


@dataclass(frozen=True, slots=True)
class NextDue(Command["Due"]):
    """Ask when the next message becomes visible. Answer: :class:`Due`, or QueueNotFound."""

    traits = looks(Rank.NEXT_DUE, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    queue: str


class Due(NamedTuple):
    """The earliest moment, from now on, at which a receive may get something; None: no such."""

    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Amend(Command["Seen"]):
    """Change a message without a receipt. Answer: Seen.

    Or QueueNotFound, MessageNotFound, MessageLeased, VisibilityPastExpiry. What is None stays.
    A new fence kills the receipts of before.
    """

    traits = changes(
        Rank.FIRST, one, Lock.ALONE, always, Answer.MESSAGE, finishes=False, wakes=True
    )

    account: str
    queue: str
    message_id: str
    delay_s: int | None = None
    """Seconds from now until it can be received."""
    time_to_live_s: int | None = None
    """Seconds from now until it expires; -1 for never."""
    body: bytes | BodyRef | None = None
    """New body, or where it is in the body store."""
    priority: int | None = None
    properties: Mapping[str, str] | None = None
    force: bool = False
    """Also if it is leased: the lease ends then."""
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class Remove(Command[Done]):
    """Remove a message without a receipt. Answer: Done.

    Or QueueNotFound, MessageNotFound, MessageLeased.
    """

    traits = changes(Rank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True)

    account: str
    queue: str
    message_id: str
    force: bool = False
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class EndLease(Command["Seen"]):
    """End a lease: its receipt is dead, the message visible. Answer: Seen.

    Or QueueNotFound, MessageNotFound, MessageNotLeased.
    """

    traits = changes(Rank.FIRST, one, Lock.ALONE, never, Answer.MESSAGE, finishes=False, wakes=True)

    account: str
    queue: str
    message_id: str
    delay_s: int = 0
    reason: str | None = None
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class ExtendLease(Command["Seen"]):
    """Give the holder of a lease more time, or less, without its receipt. Answer: Seen.

    Or QueueNotFound, MessageNotFound, MessageNotLeased (also for members of claims, which their
    stream extends), VisibilityPastExpiry. The receipt stays good, and the holder is not told: its
    next renewal moves the end again.
    """

    traits = changes(
        Rank.FIRST, one, Lock.ALONE, never, Answer.MESSAGE, finishes=False, wakes=False
    )

    account: str
    queue: str
    message_id: str
    visibility_timeout_s: int
    """Seconds from now, 1 or more."""
    actor: str | None = None
    """Who asks for it, for the event log."""


class JobKind(StrEnum):
    """What a job does with the messages it finds."""

    PURGE = "purge"
    REDRIVE = "redrive"
    AMEND = "amend"
    END_LEASE = "end-lease"
    EXTEND_LEASE = "extend-lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What a job changes about each message; as for :class:`Amend` and the like."""

    delay_s: int | None = None
    """For AMEND and END_LEASE."""
    time_to_live_s: int | None = None
    """For AMEND."""
    priority: int | None = None
    """For AMEND."""
    force: bool = False
    """For AMEND: also what is leased, whose leases end then."""
    visibility_timeout_s: int | None = None
    """For EXTEND_LEASE."""
    reason: str | None = None
    """For END_LEASE."""


class JobState(StrEnum):
    """How far a job is."""

    RUNNING = "running"
    CANARY = "canary"
    """It has moved its first few messages and waits to see what becomes of them."""
    DONE = "done"
    STOPPED = "stopped"
    """An operator, or a failing canary, has stopped it."""


NO_CHANGE: Final = JobChange()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a job is to do."""

    kind: JobKind
    filter: MessageFilter = EVERYTHING
    dry_run: bool = False
    """Only count."""
    rate_per_s: float | None = None
    """Messages a second; None: as fast as they go."""
    canary: int = 0
    """Redrive so many first, and go on only when all of them have been completed."""
    target: str | None = None
    """Queue to redrive to; None for the one that each message failed in."""
    change: JobChange = NO_CHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A purge, a redrive or another change of many messages.

    It is kept by the store until it is done and for a while after.
    """

    job_id: str
    account: str
    queue: str
    """The queue asked: a redrive takes from its poison queue."""
    plan: JobPlan
    state: JobState
    created_at_ms: int
    updated_at_ms: int
    examined: int = 0
    matched: int = 0
    moved: int = 0
    """Messages purged, redriven or changed."""
    expected: int = 0
    """Messages there when it started, for those who watch."""
    note: str | None = None
    """Why it stopped."""
    cursor: str = ""
    """Where it goes on."""
    end: int = 0
    """It looks at nothing that came later than this."""
    canaries: tuple[str, ...] = field(default=())
    """Message ids that it waits for."""
    actor: str | None = None
    """Who started it."""


@dataclass(frozen=True, slots=True)
class StartJob(Command["Job"]):
    """Begin a job. Answer: :class:`Job`, or QueueNotFound."""

    traits = changes(
        Rank.FIRST,
        one,
        Lock.ALONE,
        always,
        Answer.PLAIN,
        finishes=False,
        wakes=True,
        refresh=Refresh.COUNTS,
    )

    account: str
    queue: str
    job_id: str
    plan: JobPlan
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class StepJob(Command["Job"]):
    """Carry a job on by up to *limit* messages. Answer: the Job, or JobNotFound."""

    traits = upkeep(Rank.FIRST, quarter, never, Refresh.NOTHING, wakes=True)

    job_id: str
    limit: int


@dataclass(frozen=True, slots=True)
class StopJob(Command["Job"]):
    """Stop a job where it is. Answer: the Job, or JobNotFound."""

    traits = changes(Rank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=False)

    account: str
    job_id: str
    actor: str | None = None  # who asks for it, for the event log


@dataclass(frozen=True, slots=True)
class GetJob(Command["Job"]):
    """Look at a job. Answer: the Job, or JobNotFound."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    job_id: str


@dataclass(frozen=True, slots=True)
class ListJobs(Command[tuple["Job", ...]]):
    """List jobs, the newest first. Answer: tuple of Job. Without an account: all that run."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str | None
    queue: str | None = None
    limit: int = 100


# --- jobs --------------------------------------------------------------------------------------
#
# How a purge or a redrive goes on: pure functions from one state of a job to the next.
#
# A job is kept by the store, and each step and what it moved are one transaction: a job that was
# cut off goes on where it was.


JOB_SCAN: Final = 1_000
"""Messages that one step may look at, some five milliseconds' worth."""
KEPT_MS: Final = 7 * 86_400_000
"""How long a job that is over can be looked at."""

EXPIRED_CANARY: Final = "it expired before it was completed"

_POISON: Final = Place(poison=True, row_key=0)
_OWN_STATES: Final = frozenset(MessageState) - {MessageState.POISONED}
_WAITING_STATES: Final = frozenset(
    {MessageState.VISIBLE, MessageState.DELAYED, MessageState.DEFERRED}
)


def begin(command: StartJob, *, expected: int, end: int, now_ms: int) -> Job:
    """Return a job as it starts.

    A redrive takes what is poisoned and nothing else; a purge spares the poison queue unless the
    filter asks for that state.
    """
    plan = command.plan
    states = plan.filter.states
    if plan.kind is JobKind.REDRIVE:
        states = frozenset({MessageState.POISONED})
    elif plan.kind in {JobKind.END_LEASE, JobKind.EXTEND_LEASE}:
        states = frozenset({MessageState.LEASED})
    elif plan.kind is JobKind.AMEND:
        states = _amended_states(states, force=plan.change.force)
    elif states is None:
        states = _OWN_STATES
    return Job(
        job_id=command.job_id,
        account=command.account,
        queue=command.queue,
        plan=replace(plan, filter=replace(plan.filter, states=states)),
        state=JobState.RUNNING,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        expected=expected,
        cursor=str(_POISON if plan.kind is JobKind.REDRIVE else BEGINNING),
        end=end,
        actor=command.actor,
    )


def _amended_states(
    asked: frozenset[MessageState] | None, *, force: bool
) -> frozenset[MessageState]:
    """Return which states a job amends messages in, of those that are asked for."""
    leased = {MessageState.LEASED} if force else set[MessageState]()
    if asked is None:
        return frozenset({*_WAITING_STATES, *leased})
    return asked & {*_WAITING_STATES, *leased, MessageState.POISONED}


def is_over(job: Job) -> bool:
    """Tell whether nothing more will happen."""
    return job.state in {JobState.DONE, JobState.STOPPED}


def is_kept(job: Job, now_ms: int) -> bool:
    """Tell whether a job is still to be shown."""
    return not is_over(job) or now_ms - job.updated_at_ms < KEPT_MS


def stop(job: Job, now_ms: int, note: str) -> Job:
    """Return the job stopped where it is."""
    return replace(job, state=JobState.STOPPED, updated_at_ms=now_ms, note=note)


def most_to_move(job: Job, limit: int) -> int:
    """Return how many messages the next step may take, of *limit*."""
    missing = job.plan.canary - job.moved
    return min(limit, missing) if missing > 0 and not job.plan.dry_run else limit


def after_step(  # noqa: PLR0913 - keyword-only: what one step has done
    job: Job,
    *,
    cursor: str,
    examined: int,
    matched: int,
    moved: Sequence[str],
    finished: bool,
    now_ms: int,
) -> Job:
    """Return the job after a step that moved the messages of these ids."""
    canaries = job.canaries
    state = JobState.DONE if finished else JobState.RUNNING
    if job.plan.canary > job.moved and not job.plan.dry_run:
        canaries = (*canaries, *moved)
        if canaries and (finished or len(canaries) >= job.plan.canary):
            state = JobState.CANARY
    return replace(
        job,
        state=state,
        updated_at_ms=now_ms,
        examined=job.examined + examined,
        matched=job.matched + matched,
        moved=job.moved + len(moved),
        cursor=cursor,
        canaries=canaries,
    )


def after_canaries(job: Job, present: Mapping[str, str | None], now_ms: int) -> Job:
    """Return the job after a look at its canaries.

    Args:
        job: The job, in the state CANARY.
        present: The canaries that are not completed: why they failed, None if they are waiting or
            being worked on.
        now_ms: The time, Unix milliseconds.
    """
    for message_id, reason in present.items():
        if reason is not None:
            return stop(job, now_ms, f"The canary {message_id} failed again: {reason}.")
    if present:
        return job
    return replace(job, state=JobState.RUNNING, canaries=(), updated_at_ms=now_ms)
