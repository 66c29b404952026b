"""What those ask who look after a queue: look, count, move, remove, by id and by filter.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
None of these needs a receipt, and none but the moving ones changes anything a worker can see.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

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
from leasehold.domain.failures import last_error
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages are meant; what is left out matches all.

    :func:`leasehold.domain.admin.matches` decides.
    """

    states: frozenset[MessageState] | None = None
    min_age_s: float | None = None
    """Inserted at least so many seconds ago."""
    max_age_s: float | None = None
    min_dequeue_count: int | None = None
    max_dequeue_count: int | None = None
    holder: str | None = None
    message_type: str | None = None
    group_id: str | None = None
    reason: str | None = None
    """Why it was poisoned."""
    error: str | None = None
    """Part of the text, or the whole type, or the fingerprint, of its last error."""
    text: str | None = None
    """Part of the body, which is taken as UTF-8, or base64 of it."""
    json_path: str | None = None
    """Dotted path into a body that is JSON, such as ``order.lines[0].sku``."""
    json_value: str | None = None
    """What must be there, as JSON; None: anything."""


EVERYTHING = MessageFilter()


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


class JobKind(StrEnum):
    """What a job does with the messages it finds."""

    PURGE = "purge"
    REDRIVE = "redrive"


class JobState(StrEnum):
    """How far a job is."""

    RUNNING = "running"
    CANARY = "canary"
    """It has moved its first few messages and waits to see what becomes of them."""
    DONE = "done"
    STOPPED = "stopped"
    """An operator, or a failing canary, has stopped it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A purge or a redrive, kept by the store until it is done and for a while after."""

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
    """Messages purged or redriven."""
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


# --- matching ----------------------------------------------------------------------------------
#
# Which messages a filter means.
#
# A filter may look into the body, which is the users' own bytes: whatever they are, it answers yes
# or no. Bodies that are base64 text, as many Azure clients send them, are looked at decoded as
# well.


MAX_JSON_LEVELS: Final = 100
"""How deep a value to look for may be nested; reading one must not depend on who calls."""

_MS: Final = 1000
_ABSENT: Final = object()
_STEP: Final = re.compile(
    r"""\.?(?P<name>[^.\[\]"]+)|\[(?P<index>-?\d{1,9})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]"""
)
JsonPath: TypeAlias = tuple[str | int, ...]


def matches(message: Message, state: MessageState, filter: MessageFilter, now_ms: int) -> bool:  # noqa: A002 - named as what it is
    """Tell whether *message*, which is in *state* now, is one of those that *filter* means.

    The holder asked for is the one of the current lease or, without a lease, of the last one.

    Raises:
        ValueError: The filter itself is wrong; see :func:`check_filter`.
    """
    return (
        (filter.states is None or state in filter.states)
        and _matches_columns(message, filter, now_ms)
        and (not needs_detail(filter) or _matches_detail(message, filter))
        and (not needs_body(filter) or _matches_body(message.body, filter))
    )


def needs_detail(filter: MessageFilter) -> bool:  # noqa: A002 - as above
    """Tell whether the message's detail must be known to decide."""
    asked = filter.message_type, filter.group_id, filter.reason, filter.error
    return any(each is not None for each in asked)


def needs_body(filter: MessageFilter) -> bool:  # noqa: A002 - as above
    """Tell whether the message's body must be known to decide."""
    return not (filter.text is None and filter.json_path is None and filter.json_value is None)


def check_filter(filter: MessageFilter) -> None:  # noqa: A002 - as above
    """Refuse a filter whose path or value cannot be read.

    Raises:
        ValueError: With a sentence that says what is wrong.
    """
    if filter.json_path is not None:
        parse_json_path(filter.json_path)
    if filter.json_value is not None:
        parse_json_value(filter.json_value)


@lru_cache(maxsize=256)
def parse_json_path(text: str) -> JsonPath:
    """Return the steps of a path: names of members and positions in arrays.

    ``order.lines[0].sku`` and ``$.order.lines[0].sku`` are the same; ``["a.b"]`` is a member whose
    name is not plain, ``[-1]`` the last element, and ``$`` alone the whole document.

    Raises:
        ValueError: The text is no such path.
    """
    if not text:
        raise ValueError("a JSON path is not empty; $ is the whole document")
    rest = text[1:] if text == "$" or text.startswith(("$.", "$[")) else text
    steps: list[str | int] = []
    at = 0
    while at < len(rest):
        step = _STEP.match(rest, at)
        # Only the very first name may do without its dot, and only after no $.
        if step is None or (step["name"] and (rest[at] == ".") == (at == 0 and rest is text)):
            place = at + len(text) - len(rest) + 1
            raise ValueError(
                f"JSON path {text!r} cannot be read at character {place}: "
                'expected .name, [0] or ["name"]'
            )
        steps.append(_step(step, text))
        at = step.end()
    return tuple(steps)


def _step(step: re.Match[str], text: str) -> str | int:
    if step["name"]:
        return step["name"]
    if step["index"]:
        return int(step["index"])
    try:
        return str(json.loads(step["quoted"]))
    except ValueError:
        raise ValueError(f"JSON path {text!r}: {step['quoted']} is not a JSON string") from None


@lru_cache(maxsize=256)
def parse_json_value(text: str) -> Any:
    """Return the value that a filter asks for. The caller must not change it.

    Raises:
        ValueError: The text is not JSON, or nested deeper than MAX_JSON_LEVELS.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        value = _ABSENT
    except ValueError:
        raise ValueError("the value to look for is not JSON") from None
    if value is _ABSENT or _is_deep(value):
        raise ValueError(f"the value to look for has more than {MAX_JSON_LEVELS} levels")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_LEVELS):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in level)


def _matches_columns(message: Message, wanted: MessageFilter, now_ms: int) -> bool:
    age_s = (now_ms - message.inserted_at_ms) / _MS
    return (
        (wanted.min_age_s is None or age_s >= wanted.min_age_s)
        and (wanted.max_age_s is None or age_s <= wanted.max_age_s)
        and (wanted.min_dequeue_count is None or message.dequeue_count >= wanted.min_dequeue_count)
        and (wanted.max_dequeue_count is None or message.dequeue_count <= wanted.max_dequeue_count)
        and (wanted.holder is None or message.holder == wanted.holder)
    )


def _matches_detail(message: Message, wanted: MessageFilter) -> bool:
    detail = message.detail
    if wanted.message_type is not None and detail.message_type != wanted.message_type:
        return False
    if wanted.group_id is not None and detail.group_id != wanted.group_id:
        return False
    if wanted.reason is not None and (
        detail.poisoning is None or detail.poisoning.reason != wanted.reason
    ):
        return False
    return wanted.error is None or _matches_error(message, wanted.error)


def _matches_error(message: Message, wanted: str) -> bool:
    attempt = last_error(message)
    if attempt is None or attempt.error is None:
        return False
    error = attempt.error
    return wanted in (error.type, error.fingerprint) or wanted.casefold() in error.text.casefold()


def _matches_body(body: bytes, wanted: MessageFilter) -> bool:
    plain = _decoded_base64(body)
    forms = (body,) if plain is None else (body, plain)
    if wanted.text is not None and not any(_holds_text(form, wanted.text) for form in forms):
        return False
    if wanted.json_path is None and wanted.json_value is None:
        return True
    path = parse_json_path(wanted.json_path or "$")
    value = _ABSENT if wanted.json_value is None else parse_json_value(wanted.json_value)
    return any(_holds_json(form, path, value) for form in forms)


def _decoded_base64(body: bytes) -> bytes | None:
    """Return what the body encodes, if it is base64 of UTF-8; any other word may look like it."""
    text = body.strip()
    if not text or len(text) % 4:
        return None
    try:
        plain = binascii.a2b_base64(text, strict_mode=True)
        plain.decode()
    except ValueError:
        return None
    return plain


def _holds_text(body: bytes, text: str) -> bool:
    needle = text.casefold()
    if body.isascii():  # several times as fast, and most bodies are
        return needle.isascii() and needle.encode() in body.lower()
    return needle in body.decode(errors="replace").casefold()


def _holds_json(body: bytes, path: JsonPath, wanted: object) -> bool:
    try:
        found = _follow(json.loads(body.decode("utf-8-sig")), path)
        return found is not _ABSENT and (wanted is _ABSENT or _same(found, wanted))
    except (ValueError, RecursionError):
        return False


def _follow(value: Any, path: JsonPath) -> Any:
    for step in path:
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return _ABSENT
            value = value[step]
        else:
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return _ABSENT
            value = value[step]
    return value


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does: 1 is 1.0, but true is not 1, as it is in Python."""
    pairs = [(one, other)]  # not recursive: users nest as deep as they like
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pairs.extend((left[key], right[key]) for key in left)
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs.extend(zip(left, right, strict=True))
        elif isinstance(left, bool) is not isinstance(right, bool) or left != right:
            return False
    return True


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


def begin(command: StartJob, *, expected: int, end: int, now_ms: int) -> Job:
    """Return a job as it starts.

    A redrive takes what is poisoned and nothing else; a purge spares the poison queue unless the
    filter asks for that state.
    """
    plan = command.plan
    states = plan.filter.states
    if plan.kind is JobKind.REDRIVE:
        states = frozenset({MessageState.POISONED})
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
    )


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
