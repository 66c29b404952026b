"""A summary that goes on: events in, and at any time what there is to say of the work so far.

:mod:`leasehold.advisor.tables` tells the lifecycle of a whole log in SQL. A streaming query sees
each event once, and so keeps what may still matter: messages that have been received and are not
gone, and of all others counts and lengths by the hour. Both come to the same
:class:`~leasehold.advisor.summaries.Work`: see :meth:`LiveSummary.works` for the one difference.

Moments are Unix milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from leasehold.advisor.summaries import MOST_REPEATS, Work
from leasehold.advisor.tallies import (
    COMPLETED,
    HOUR_MS,
    LAPSED,
    LATE,
    LOST,
    OPEN,
    REFUSED,
    REMOVED,
    WEEK_MS,
    EndedAttempt,
    KindTallies,
    Stay,
    count_attempt,
    count_observation,
    count_stay,
    groups,
    key_of,
    observation,
    observed,
    settled_at_ms,
    with_refusal,
    work_of,
)
from leasehold.domain.events import EventType
from leasehold.domain.failures import (
    BURIED,
    MAX_FAILURES,
    MAX_INTERRUPTIONS,
    MAX_LAPSES,
)
from leasehold.domain.model import Phase
from leasehold.domain.sessions import NO_PROGRESS, SESSION_LOST

_LEASED: Final = int(Phase.LEASED)
_T: Final = EventType
_STARTING: Final = frozenset({_T.PUT, _T.PUBLISHED})
_MOVING: Final = frozenset({_T.POISONED, _T.REDRIVEN})
_TAKING: Final = frozenset({_T.RECEIVED, _T.CLAIMED})
_DONE: Final = frozenset({_T.COMPLETED, _T.SETTLED})
_ENDING: Final = frozenset({*_DONE, _T.EXPIRED, _T.REMOVED})
_CLEARING: Final = frozenset({_T.QUEUE_CLEARED, _T.QUEUE_DELETED})
_OVER: Final = frozenset({_T.SESSION_LOST, _T.SESSION_ENDED})
_TELLING: Final = frozenset({_T.POISONED, _T.LEASE_ENDED, _T.REMOVED, _T.LAPSED})
"""The events of which the reason is that of the attempt, too."""

_SILENCE: Final = re.compile(r"no heartbeat for ([0-9]+) s")


class Happened(NamedTuple):
    """An event, as far as it matters here: columns of the lifecycle's events, see ``OPEN``."""

    seq: int
    place: int
    at: int
    t: int
    """Number of an :class:`~leasehold.domain.events.EventType`."""
    queue: str | None
    message_id: str | None
    expires: int | None
    visible: int | None
    dequeue_count: int | None
    phase: int | None
    since: int | None
    renewals: int | None
    session: str | None
    reason: str | None
    target: str | None
    message_type: str | None


class _Message(msgspec.Struct, array_like=True):
    """A message that was received and is not gone: how the newest event left it."""

    queue: str
    """Where it is."""
    message_type: str | None
    t: int
    at: int
    visible: int
    count: int
    phase: int
    renewals: int
    session: str | None
    since: int | None = None
    base: int = 0
    """Deliveries before it came into its queue."""
    first_ms: int | None = None
    claim: str = ""
    attempts: list[EndedAttempt] = []
    refused: list[tuple[int, int]] = []
    """Of completions that came too late: when their lease began, and when they came."""


class _Queue(msgspec.Struct, array_like=True):
    """What the log says of a queue's settings."""

    changed_ms: int = 0
    advised_ms: int = 0


class Settings(NamedTuple):
    """When a queue's settings were changed, as far as the log tells; 0 for never."""

    changed_ms: int
    """Its visibility timeout, or the bounds within which it adapts."""
    advised_ms: int
    """Advice was written into them, or taken back."""


class Since(NamedTuple):
    """Deletes of leases that began since the timeout of the queue was last changed."""

    done: int
    """In time and late."""
    late: int
    """Those that came when the lease was over, refused or not."""


class _State(msgspec.Struct, array_like=True):
    format: int = 1
    upto: tuple[int, int] = (0, -1)
    until_ms: int = 0
    events: int = 0
    messages: dict[str, _Message] = {}
    young: list[Stay] = []
    kinds: dict[str, dict[str, KindTallies]] = {}
    """By queue, and by type with a letter before it, or nothing for none."""
    queues: dict[str, _Queue] = {}
    sessions: dict[str, tuple[int, int, int | None]] = {}
    """How a session ended: the event, when, and for how many seconds nothing had been heard."""


class UnreadableState(ValueError):
    """State was kept by a newer version."""


class LiveSummary:
    """What one account's log has told so far; to be fed with more.

    Args:
        keep_ms: Hours older than this are forgotten, and so are messages of which nothing was heard
            for as long. Milliseconds, an hour or more.
    """

    def __init__(self, keep_ms: int = WEEK_MS) -> None:
        self._keep_ms = keep_ms
        self._state = _State()

    @classmethod
    def from_bytes(cls, data: bytes, keep_ms: int = WEEK_MS) -> LiveSummary:
        """Return what :meth:`to_bytes` has kept.

        Raises:
            UnreadableState: A newer version has kept it.
        """
        found = cls(keep_ms)
        state = msgspec.msgpack.decode(data, type=_State)
        if state.format > _State().format:
            raise UnreadableState(f"the state is of format {state.format}, which is newer")
        found._state = state
        return found

    def to_bytes(self) -> bytes:
        """Return it as bytes, to go on from later."""
        return msgspec.msgpack.encode(self._state)

    @property
    def until_ms(self) -> int:
        """When the newest event happened; 0 before the first."""
        return self._state.until_ms

    @property
    def upto_seq(self) -> int:
        """The highest number of those that were used; 0 before the first."""
        return self._state.upto[0]

    @property
    def events(self) -> int:
        """How many were used."""
        return self._state.events

    def feed(self, events: Iterable[Happened]) -> set[str]:
        """Add events, in the order of ``seq`` and ``place``; return the queues that they are of.

        What is not behind all that was fed before is passed over, so that a log may be read twice.
        """
        state, touched = self._state, set[str]()
        before = state.upto
        for event in events:
            position = event.seq, event.place
            if position <= before:
                continue
            state.upto = max(state.upto, position)
            state.until_ms = max(state.until_ms, event.at)
            state.events += 1
            if event.queue is not None:
                touched.add(event.queue)
            if event.t == _T.POISONED and event.target is not None:
                touched.add(event.target)
            self._add(event)
        self._forget()
        return touched

    # --- events --------------------------------------------------------------------------------

    def _add(self, event: Happened) -> None:
        kind, state = event.t, self._state
        if kind in _OVER:
            silent = _SILENCE.search(event.reason or "")
            told = kind, event.at, int(silent[1]) if silent else None
            state.sessions.setdefault(event.session or "", told)
        elif kind in _CLEARING:
            self._clear(event)
        elif kind == _T.QUEUE_UPDATED:
            self._changed(event)
        elif event.message_id is not None and event.queue is not None:
            self._of_message(event, event.queue, event.message_id)

    def _changed(self, event: Happened) -> None:
        names = {part.partition(":")[0].strip() for part in (event.reason or "").split(";")}
        queue = self._state.queues.setdefault(event.queue or "", _Queue())
        if any(each.startswith("advised") for each in names):
            queue.advised_ms = event.at
        if any(each.startswith(_OF_TIMEOUT) for each in names):
            queue.changed_ms = event.at
            for each in self._state.kinds.get(event.queue or "", {}).values():
                each.done_since = each.late_since = 0

    def _of_message(self, event: Happened, queue: str, message_id: str) -> None:
        kind, state = event.t, self._state
        was = state.messages.get(message_id)
        if was is None and kind not in _TAKING and kind not in _MOVING and kind not in _ENDING:
            return  # Nothing of it matters before somebody has received it.
        if kind == _T.REFUSED and was is not None and event.since:
            was.refused.append((event.since, event.at))
        self._count_delete(event, queue)
        ended = self._ended(event, queue, was)
        if ended is not None and was is not None:
            was.attempts.append(ended)
        if kind in _MOVING or kind in _ENDING:
            self._leave(event, queue, was)
        if kind == _T.POISONED and was is not None:
            _give_reason(was, event)
        if kind in _ENDING:
            if was is not None:
                self._gone(message_id, was)
            elif ended is not None:
                self._keep(ended.queue, ended.message_type, message_id, [ended], [])
            return
        if was is None:
            was = state.messages[message_id] = _Message(
                queue, event.message_type, kind, event.at, 0, 0, 0, 0, None
            )
        _go_on(was, event, queue)

    def _count_delete(self, event: Happened, queue: str) -> None:
        """Count deletes by the leases that they are of, for what came of a change."""
        late = event.t == _T.REFUSED
        if not event.since or not (late or event.t in _DONE):
            return
        known = self._state.queues.get(queue)
        if known is not None and event.since < known.changed_ms:
            return
        if not late and (event.phase != _LEASED or event.visible is None):
            return
        kind = self._kind(queue, event.message_type)
        kind.done_since += 1
        kind.late_since += late or (event.visible or 0) <= event.at

    def _ended(self, event: Happened, queue: str, was: _Message | None) -> EndedAttempt | None:
        """Return the attempt that an event ends, if it ends one."""
        as_it_was = (
            (event.t in _ENDING or event.t == _T.LAPSED)
            and event.phase == _LEASED
            and (was is None or was.t != _T.LAPSED)
        )
        goes_on = was is not None and was.phase == _LEASED and was.t != _T.LAPSED
        outcome = _outcome(event, was, as_it_was=as_it_was, goes_on=goes_on)
        if outcome is None:
            return None
        if as_it_was:
            leased, lease_end = event.since, event.visible or 0
            count, session, renewals = event.dequeue_count, event.session, event.renewals
        else:
            assert was is not None
            leased, lease_end = was.since, was.visible
            count, session, renewals = was.count, was.session, was.renewals
        if leased is None:
            return None
        mark = self._state.sessions.get(session or "")
        if outcome == _TO_BE_CHECKED:
            outcome = _checked(event, mark)
        ended = over = _over(event)
        if outcome == LAPSED and event.t not in {_T.LEASE_ENDED, _T.POISONED}:
            ended = min(lease_end, over)
        worked_until = ended
        if outcome == LOST:
            worked_until = over
            if mark is not None and mark[2] is not None:
                worked_until = min(over, mark[1] - 1000 * mark[2])
        claim = was.claim if was is not None else ""
        if event.t == _T.SETTLED:
            claim = claim or event.target or ""
        why = event.reason if event.t in _TELLING and event.t != _T.LAPSED else None
        return EndedAttempt(
            queue=queue,
            message_type=event.message_type,
            leased=leased,
            lease_end=lease_end,
            count=count or 0,
            renewals=renewals or 0,
            first_ms=None if was is None else was.first_ms,
            claimed=bool(claim),
            outcome=outcome,
            ended=ended,
            worked_until=worked_until,
            why=why,
            noticed=(event.seq, event.place) if event.t == _T.LAPSED else None,
        )

    def _leave(self, event: Happened, queue: str, was: _Message | None) -> None:
        """Count a message's stay in a queue that ends with this event."""
        kind = event.t
        count = event.dequeue_count or 0
        if kind == _T.REDRIVEN:
            count = 0 if was is None else was.count
        deliveries = max(0, count - (0 if was is None else was.base))
        tally = self._kind(queue, event.message_type).tally(event.at)
        tally.add("done", kind in _DONE)
        tally.add("set_aside", kind == _T.POISONED)
        count_stay(tally, deliveries)

    def _clear(self, event: Happened) -> None:
        state = self._state
        for message_id, was in [*state.messages.items()]:
            if was.queue != event.queue:
                continue
            going_on = _going_on(was, event.at)
            if going_on is not None:
                was.attempts.append(going_on)
            tally = self._kind(was.queue, was.message_type).tally(event.at)
            count_stay(tally, _deliveries(was))
            self._gone(message_id, was)

    # --- what is kept --------------------------------------------------------------------------

    def _kind(self, queue: str, message_type: str | None) -> KindTallies:
        types = self._state.kinds.setdefault(queue, {})
        return types.setdefault(_name_of(message_type), KindTallies())

    def _gone(self, message_id: str, was: _Message) -> None:
        """Count a message's attempts: it is gone, so no completion of them can come any more."""
        self._state.messages.pop(message_id, None)
        key = key_of
        for (queue, kind), own in groupby(sorted(was.attempts, key=key), key=key):
            self._keep(queue, kind or None, message_id, [*own], was.refused)

    def _keep(
        self,
        queue: str,
        message_type: str | None,
        message_id: str,
        attempts: Sequence[EndedAttempt],
        refused: Sequence[tuple[int, int]],
    ) -> None:
        kind, until_ms = self._kind(queue, message_type), self._state.until_ms
        leases = []
        for each in attempts:
            told = with_refusal(each, refused)
            if each.claimed:
                continue
            count_attempt(kind, told)
            leases.append(observed(told, until_ms))
        for group in groups(leases):
            stay = Stay(queue, message_type, message_id, group)
            if settled_at_ms(group) > until_ms:
                self._state.young.append(stay)
            else:
                self._observe(kind, stay, until_ms)

    @staticmethod
    def _observe(kind: KindTallies, stay: Stay, until_ms: int) -> None:
        seen = observation(stay.leases, until_ms)
        tally = kind.tally(seen.over)
        count_observation(tally, seen)
        if seen.pair is not None:
            kind.repeats.append((stay.message_id, seen.over // HOUR_MS, *seen.pair))

    def _forget(self) -> None:
        state = self._state
        until_ms, oldest_ms = state.until_ms, state.until_ms - self._keep_ms
        for message_id, was in [*state.messages.items()]:
            if max(was.at, was.visible) < oldest_ms:
                self._gone(message_id, was)
        young, state.young = state.young, []
        for stay in young:
            if settled_at_ms(stay.leases) > until_ms:
                state.young.append(stay)
            else:
                self._observe(self._kind(stay.queue, stay.message_type), stay, until_ms)
        first = oldest_ms // HOUR_MS
        for types in state.kinds.values():
            for kind in types.values():
                for hour in [each for each in kind.hours if each < first]:
                    del kind.hours[hour]
                kept = sorted(each for each in kind.repeats if each[1] >= first)
                kind.repeats = kept[:MOST_REPEATS]
        for session in [key for key, mark in state.sessions.items() if mark[1] < oldest_ms]:
            del state.sessions[session]

    # --- what is told --------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """Return the queues of which anything is known, by name."""
        return sorted(self._state.kinds)

    def settings(self, queue: str) -> Settings:
        """Return when a queue's settings were changed."""
        found = self._state.queues.get(queue, _Queue())
        return Settings(found.changed_ms, found.advised_ms)

    def since(self, queue: str, message_type: str | None) -> Since:
        """Return the deletes of a type since the queue's timeout was changed."""
        found = self._kind(queue, message_type)
        return Since(found.done_since, found.late_since)

    def works(self, queue: str, until_ms: int | None = None) -> list[Work]:
        """Return what became of the messages of a queue, by type.

        It is what :func:`leasehold.advisor.tables.summarize.summarize` makes of the same events,
        but for this: an observation's ``day`` is told by the hour in which it ended, and so can be
        another one if that was within the hour in which a day ends, counted back from *until_ms*.
        Types of which no message was received are left out.

        Args:
            queue: Its name.
            until_ms: The end of the log, Unix milliseconds; None for the newest event.
        """
        state, until = self._state, self._state.until_ms if until_ms is None else until_ms
        # What is there goes on; so it is counted beside what is kept, and not into it.
        beside: dict[str, KindTallies] = {}

        def of(message_type: str | None) -> KindTallies:
            return beside.setdefault(
                "" if message_type is None else f"t{message_type}", KindTallies()
            )

        for message_id, was in state.messages.items():
            attempts = [each for each in was.attempts if each.queue == queue]
            if was.queue == queue:
                count_stay(of(was.message_type).tally(was.at), _deliveries(was))
                going_on = _going_on(was, None)
                attempts += [] if going_on is None else [going_on]
            key = key_of
            for (_, kind), own in groupby(sorted(attempts, key=key), key=key):
                leases = []
                for each in own:
                    told = with_refusal(each, was.refused)
                    if not each.claimed:
                        count_attempt(of(kind or None), told)
                        leases.append(observed(told, until))
                for group in groups(leases):
                    stay = Stay(queue, kind or None, message_id, group)
                    self._observe(of(kind or None), stay, until)
        for stay in state.young:
            if stay.queue == queue:
                self._observe(of(stay.message_type), stay, until)
        kept = state.kinds.get(queue, {})
        return [
            work_of(name[1:] if name else None, found, until)
            for name in sorted({*kept, *beside}, key=lambda name: repr(name[1:] if name else None))
            if (found := [each[name] for each in (kept, beside) if name in each])
            and any(tally.counts for kind in found for tally in kind.hours.values())
        ]


def _name_of(message_type: str | None) -> str:
    return "" if message_type is None else f"t{message_type}"


# --- attempts ----------------------------------------------------------------------------------

_TO_BE_CHECKED: Final = "poisoned"
_OF_TIMEOUT: Final = ("visibility_timeout_s", "adaptive", "timeouts_by_type")
"""What names of settings begin with that say how long leases last."""
_GIVEN_UP: Final = {
    BURIED: "buried",
    MAX_FAILURES: "failed",
    MAX_INTERRUPTIONS: "interrupted",
}
_LEASE_ENDED: Final = {SESSION_LOST: LOST, NO_PROGRESS: LAPSED}


def _outcome(
    event: Happened, was: _Message | None, *, as_it_was: bool, goes_on: bool
) -> str | None:
    """Return how an event ends an attempt; see ``lifecycle._OUTCOME``, which is the same in SQL."""
    kind, visible = event.t, event.visible or 0
    if not as_it_was:
        return _ended_by(event, was) if goes_on and was is not None else None
    if kind in _DONE:
        return LATE if visible <= event.at else COMPLETED
    return LAPSED if kind == _T.LAPSED or visible <= _over(event) else REMOVED


def _over(event: Happened) -> int:
    """Return when that was of which an event tells: a message expires before that is noticed."""
    if event.t == _T.EXPIRED and event.expires is not None:
        return min(event.at, event.expires)
    return event.at


def _ended_by(  # noqa: PLR0911 - a word for each kind of end
    event: Happened, was: _Message
) -> str | None:
    kind, had_lapsed = event.t, was.visible <= event.at
    if kind == _T.RELEASED:
        return event.reason
    if kind == _T.LEASE_ENDED:
        return _LEASE_ENDED.get(event.reason or "", "interrupted")
    if kind == _T.POISONED:
        return _GIVEN_UP.get(event.reason or "", _TO_BE_CHECKED)
    if kind == _T.REDRIVEN:
        return LAPSED if had_lapsed else REMOVED
    if kind in _TAKING:
        return LAPSED
    if event.phase == _LEASED or kind not in {_T.UNCLAIMED, _T.AMENDED}:
        return None
    if kind == _T.UNCLAIMED:
        return "returned"
    return LAPSED if had_lapsed else "interrupted"


def _checked(event: Happened, mark: tuple[int, int, int | None] | None) -> str:
    if mark is not None:
        return LOST if mark[0] == _T.SESSION_LOST else "interrupted"
    return LAPSED if event.reason == MAX_LAPSES else "failed"


def _give_reason(was: _Message, event: Happened) -> None:
    """Let a lapse that was noticed just before its message was given up have the reason of that."""
    if not was.attempts:
        return
    last = was.attempts[-1]
    if last.noticed is None or last.count != event.dequeue_count:
        return
    seq, place = last.noticed
    if seq == event.seq and event.place - place in {1, 2}:
        last.why = event.reason


def _go_on(was: _Message, event: Happened, queue: str) -> None:
    """Let a message be as an event has left it."""
    kind = event.t
    begins = kind in _TAKING or (
        kind == _T.RENEWED and event.phase == _LEASED and event.renewals == 0
    )
    if begins:
        was.first_ms = None
        if event.visible is not None and event.since is not None:
            was.first_ms = event.visible - event.since
        was.claim = event.target or ""
    if kind in _STARTING:
        was.base = 0
    elif kind in _MOVING:
        was.base = event.dequeue_count or 0
    if kind != _T.REFUSED:
        was.queue = (event.target or queue) if kind in _MOVING else queue
        if event.since is not None:
            was.since = event.since
    was.t, was.at, was.message_type = kind, event.at, event.message_type
    was.visible, was.count = event.visible or 0, event.dequeue_count or 0
    was.phase = -1 if event.phase is None else event.phase
    was.renewals, was.session = event.renewals or 0, event.session


def _going_on(was: _Message, cleared_ms: int | None) -> EndedAttempt | None:
    """Return the lease that no event has ended, if there is one.

    Args:
        was: The message.
        cleared_ms: When its queue was cleared; None if it was not.
    """
    if was.phase != _LEASED or was.t == _T.LAPSED or was.since is None:
        return None
    late = [at for since, at in was.refused if since == was.since]
    lapsed = cleared_ms is not None and was.visible <= cleared_ms
    outcome, ended, why = OPEN, -1, None
    if late and (lapsed or max(late) >= was.visible):
        outcome, ended, why = LATE, min(late), REFUSED
    elif cleared_ms is not None:
        outcome, ended = (LAPSED, was.visible) if lapsed else (REMOVED, cleared_ms)
    return EndedAttempt(
        queue=was.queue,
        message_type=was.message_type,
        leased=was.since,
        lease_end=was.visible,
        count=was.count,
        renewals=was.renewals,
        first_ms=was.first_ms,
        claimed=bool(was.claim),
        outcome=outcome,
        ended=ended,
        worked_until=ended,
        why=why,
    )


def _deliveries(was: _Message) -> int:
    return 0 if was.t in _MOVING else max(0, was.count - was.base)
