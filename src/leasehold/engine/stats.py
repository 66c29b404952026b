"""What the engine counts: plain integers, added up on the hot path and read at scrape time."""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from leasehold.clock import Clock
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain.admin import CountGroups, GroupPlace
from leasehold.domain.claims import AttachStream, ClaimState, ListStreams
from leasehold.domain.command import AnyCommand, Perform
from leasehold.domain.errors import LeaseholdError, LeaseLost
from leasehold.domain.events import Extent, LogExtent
from leasehold.domain.model import GroupFigures, GroupHalt, Lease, Outcome, QueueKey
from leasehold.domain.noisy_groups import noisy_among
from leasehold.domain.sessions import ListSessions, OpenSession, Session, SessionState
from leasehold.domain.transactions import (
    Committed,
    CommitTogether,
    Publish,
    Published,
    RowsByQueue,
    StreamSettled,
)
from leasehold.engine.listeners import ReceiveOrClaim

LATENCY_BUCKETS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class Histogram:
    """Counts of durations in the buckets of LATENCY_BUCKETS_S and one for all above."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one duration, in seconds."""
        self.counts[bisect_left(LATENCY_BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s


class _LastTimes:
    """When something last happened in one queue, Unix milliseconds; None: not since the start."""

    __slots__ = ("last_complete_ms", "last_receive_ms", "last_receiver", "last_send_ms")

    def __init__(self) -> None:
        self.last_receive_ms: int | None = None
        """When a consumer last asked for messages, whether there were any or not."""
        self.last_receiver: str | None = None
        """Who that was, as far as they said."""
        self.last_send_ms: int | None = None
        self.last_complete_ms: int | None = None


class QueueStats(_LastTimes):
    """What happened in one queue since the server started."""

    __slots__ = (
        "completed",
        "failed",
        "poisoned",
        "received",
        "redelivered",
        "rejected_receipts",
        "released",
        "renewed",
        "sent",
    )

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        """Messages put, sent along with something else, or published; not those only staged."""
        self.received = 0
        self.redelivered = 0
        """Messages received for the second time or later; members of claims are not looked at."""
        self.renewed = 0
        self.completed = 0
        self.released = 0
        """Messages given back, those that went to the poison queue then included."""
        self.failed = 0
        """Of those, messages whose work went wrong; members exempted from claims included."""
        self.poisoned = 0
        """Messages that went to the poison queue when they were given back."""
        self.rejected_receipts = 0


class QueueActivity(NamedTuple):
    """What happened in one queue, for people; see :class:`QueueStats`."""

    since_ms: int
    """Since when this has been counted."""
    last_receive_ms: int | None
    last_receiver: str | None
    last_send_ms: int | None
    last_complete_ms: int | None
    sent: int
    received: int
    redelivered: int
    completed: int
    released: int
    rejected_receipts: int
    poisoned: int
    waiting: int = 0
    """Receives that wait for messages now."""


class EngineStats:
    """Counters of one engine.

    Args:
        since_ms: When it was made.
    """

    def __init__(self, since_ms: int = 0) -> None:
        self.since_ms = since_ms
        self.now_ms = since_ms
        """The time of the batch being counted."""
        self.batches = 0
        self.commands = 0
        self.commit_seconds = Histogram()
        self.queues: dict[tuple[str, str], QueueStats] = {}

    def count(self, command: AnyCommand, result: c.Result) -> None:
        """Count what one command did."""
        kind = type(command)
        if kind not in _COUNTED:
            self._count_others(command, result)
            return
        asked: Any = command
        given: Any = result
        key: tuple[str, str] = asked[:2]
        stats = self.queues.get(key)
        if stats is None:
            # Anybody can ask for queues that are not there.
            if isinstance(result, LeaseholdError) and type(result) is not LeaseLost:
                return
            stats = self.queues[key] = QueueStats()
        gave = type(given)
        if gave is tuple:
            stats.last_receive_ms = self.now_ms
            stats.last_receiver = asked.holder
            for lease in given:
                stats.received += 1
                stats.redelivered += lease.message.dequeue_count > 1
        elif gave is Lease:
            if kind is c.Put:
                stats.sent += 1
                stats.last_send_ms = self.now_ms
            else:
                stats.renewed += 1
        elif gave is c.Done:
            stats.completed += 1
            stats.last_complete_ms = self.now_ms
        elif gave is c.Released:
            stats.released += 1
            stats.failed += asked.outcome in _FAILED
            stats.poisoned += given.poisoned is not None
        else:
            stats.rejected_receipts += gave is LeaseLost

    def _count_others(self, command: AnyCommand, result: c.Result) -> None:
        if type(command) is c.Batch:
            if type(result) is tuple:
                self._count_all(command.commands, cast("tuple[c.Result, ...]", result))
        elif type(command) is k.OpenClaim and type(result) is k.Opened:
            self._count_claim(command, result)
        elif type(command) is k.SettleClaims and type(result) is k.Settled:
            if not result.already:
                self._count_settled(command, result)
        elif type(command) is CommitTogether and type(result) is Committed:
            if not result.already:
                self._count_all(command.commands, result.results)
                self._count_published(command.account, result.by_queue)
                self._count_streams(command.account, result.settled)
        elif type(command) is Publish and type(result) is Published:
            self._count_published(command.account, result.by_queue)
            self._count_streams(command.account, result.settled)
        elif type(command) is c.DeleteQueue:
            self.queues.pop((command.account, command.queue), None)

    def _count_all(self, parts: Sequence[AnyCommand], results: Sequence[c.Result]) -> None:
        kinds = frozenset({*map(type, parts), *map(type, results)})
        if kinds in {_SENT, _COMPLETED} and len({*map(_QUEUE_OF, parts)}) == 1:  # as most often
            stats = self._of(*_QUEUE_OF(parts[0]))
            if kinds == _SENT:
                stats.sent += len(parts)
                stats.last_send_ms = self.now_ms
            else:
                stats.completed += len(parts)
                stats.last_complete_ms = self.now_ms
            return
        for part, result in zip(parts, results, strict=True):
            self.count(part, result)

    def _of(self, account: str, queue: str) -> QueueStats:
        return self.queues.setdefault((account, queue), QueueStats())

    def _count_claim(self, command: k.OpenClaim, opened: k.Opened) -> None:
        """Count the members once, when the last step has taken them all."""
        stats, claim = self._of(command.account, command.queue), opened.claim
        stats.last_receive_ms = self.now_ms
        stats.last_receiver = command.holder
        if claim is not None and not opened.replayed and claim.state is not k.ClaimState.OPENING:
            stats.received += claim.size

    def _count_settled(self, command: k.SettleClaims, settled: k.Settled) -> None:
        done = settled.last_settled, settled.completed, settled.exempted, settled.lost
        own = StreamSettled(command.queue, command.stream, *done)
        self._count_streams(command.account, (own, *settled.beside))
        for put in command.sends:
            self._count_sent(put.account, put.queue, 1)
        self._count_published(command.account, settled.published_by_queue)

    def _count_streams(self, account: str, streams: Iterable[StreamSettled]) -> None:
        for each in streams:
            stats = self._of(account, each.queue)
            stats.completed += each.completed
            stats.released += each.exempted
            stats.failed += each.exempted
            if each.completed:
                stats.last_complete_ms = self.now_ms

    def _count_published(self, account: str, by_queue: RowsByQueue) -> None:
        for queue, rows in by_queue:
            self._count_sent(account, queue, rows)

    def _count_sent(self, account: str, queue: str, count: int) -> None:
        stats = self._of(account, queue)
        stats.sent += count
        stats.last_send_ms = self.now_ms

    def is_received(self, command: ReceiveOrClaim, now_ms: int) -> None:
        """Note that a consumer asks for messages, and may wait for them."""
        stats = self.queues.get((command.account, command.queue))
        if stats is not None:
            stats.last_receive_ms = now_ms
            stats.last_receiver = command.holder

    def activity(self, account: str, queue: str) -> QueueActivity:
        """Return what happened in a queue; all zero for one that nothing has happened in."""
        stats = self.queues.get((account, queue)) or QueueStats()
        figures = [getattr(stats, name) for name in QueueActivity._fields[1:-1]]
        return QueueActivity(self.since_ms, *figures)


_COUNTED: Final = frozenset({c.Put, c.Receive, c.Renew, c.Complete, c.Release})
_FAILED: Final = frozenset({Outcome.FAILED, Outcome.BURIED})
_SENT: Final = frozenset({c.Put, Lease})
_COMPLETED: Final = frozenset({c.Complete, c.Done})
_QUEUE_OF: Final[Callable[[Any], tuple[str, str]]] = itemgetter(0, 1)


# --- totals ------------------------------------------------------------------------------------
#
# What there is of sessions, claims and event log: counted when they are asked for.


CLAIM_STATES: Final[tuple[ClaimState, ...]] = tuple(
    state for state in ClaimState if state is not ClaimState.SETTLED
)
"""States that claims are counted by; those settled are gone."""
_ASKED_AT_ONCE: Final = 128
_ALL: Final = 1_000_000


class Totals(NamedTuple):
    """How many there are."""

    sessions: Mapping[tuple[str, SessionState], int]
    """By account and state; every account that is known has all states."""
    lost_sessions: int
    """Sessions lost since the server started, as far as they were still remembered when counted."""
    claims: Mapping[QueueKey, Mapping[ClaimState, int]]
    """By queue and state, for queues with streams."""
    log: Extent | None
    """None if the store could not say."""


COUNTED: Final = (AttachStream, OpenSession, c.DeleteQueue)
"""Commands that a :class:`TotalsCounter` wants to hear of."""
NOTHING: Final = Totals({}, 0, {}, None)


class TotalsCounter:
    """Counts, and remembers where it need not look.

    Args:
        since_ms: When the server started; what was lost before is not its to count.
    """

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._accounts: set[str] = set()
        """Accounts in which sessions were opened; they need not have queues."""
        self._with_streams: set[QueueKey] = set()
        """Queues that have had a stream, as far as is known."""
        self._knows_streams = False
        """Whether all queues have been asked, so that no others have one."""
        self._lost: set[str] = set()
        """Sessions that have been counted as lost and are remembered by the store still."""
        self._lost_count = 0

    def note(self, command: AnyCommand, _: c.Result) -> None:
        """Hear of a command that was carried out."""
        if type(command) is AttachStream:
            self._with_streams.add((command.account, command.queue))
        elif type(command) is c.DeleteQueue:
            self._with_streams.discard((command.account, command.queue))
        elif type(command) is OpenSession:
            self._accounts.add(command.account)

    async def take(self, perform: Perform, queues: Collection[QueueKey]) -> Totals:
        """Count, in all accounts and queues that there are.

        What cannot be counted now is left out.
        """
        accounts = sorted({account for account, _ in queues} | self._accounts)
        found = await _ask(perform, [ListSessions(account, _ALL) for account in accounts])
        sessions: Counter[tuple[str, SessionState]] = Counter()
        for account, listed in zip(accounts, found, strict=True):
            sessions.update({(account, state): 0 for state in SessionState})
            sessions.update((account, each.state) for each in listed or ())
        self._count_lost(each for listed in found for each in listed or ())
        (log,) = await _ask(perform, [LogExtent()])
        claims = await self._count_claims(perform, queues)
        return Totals(sessions, self._lost_count, claims, log)

    def _count_lost(self, sessions: Iterable[Session]) -> None:
        lost = {
            each.session_id
            for each in sessions
            if each.state is SessionState.LOST and (each.ended_at_ms or 0) >= self._since_ms
        }
        self._lost_count += len(lost - self._lost)
        self._lost = lost

    async def _count_claims(
        self, perform: Perform, queues: Collection[QueueKey]
    ) -> dict[QueueKey, Mapping[ClaimState, int]]:
        asked = sorted(self._with_streams.intersection(queues) if self._knows_streams else queues)
        found = await _ask(perform, [ListStreams(*key) for key in asked])
        claims: dict[QueueKey, Mapping[ClaimState, int]] = {}
        for key, streams in zip(asked, found, strict=True):
            if streams:
                self._with_streams.add(key)
                states = Counter(claim.state for stream in streams for claim in stream.claims)
                claims[key] = {state: states[state] for state in CLAIM_STATES}
        self._knows_streams = self._knows_streams or None not in found
        return claims


async def _ask(perform: Perform, commands: Sequence[AnyCommand]) -> list[Any]:
    """Return the answers; None for what was refused."""
    answers: list[Any] = []
    for start in range(0, len(commands), _ASKED_AT_ONCE):
        part = commands[start : start + _ASKED_AT_ONCE]
        results = await asyncio.gather(*map(perform, part), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, LeaseholdError):
                raise result
            answers.append(None if isinstance(result, LeaseholdError) else result)
    return answers


# --- message groups ----------------------------------------------------------------------------
#
# Counted page by page, as there may be very many; for people when they ask, for metrics at times.


_GROUPS_KEPT_S: Final = 15.0
"""For so long at least figures of groups are told before they are counted again."""
_REST_FACTOR: Final = 4.0
"""Counting, of which pauses are half, is followed by so many times its length without any: so it
takes a tenth of the time at most."""
_LONGEST_PAUSE_S: Final = 0.25
"""Between two pages, also if a clock was moved meanwhile."""
_GROUPS_WAIT_S: Final = 0.5
"""For so long whoever asks waits for figures that are being counted, before older ones are told."""


class CountedGroups(NamedTuple):
    """What groups of a queue there are."""

    figures: Mapping[str, GroupFigures]
    """Of those with messages."""
    halts: Mapping[str, GroupHalt]
    """Of those that stand still."""
    shares: Mapping[str, float]
    """Of the time worked lately, 0 to 1; 0 for those not named."""
    noisy: Collection[str]


async def count_groups(
    perform: Perform, queue: QueueKey, between: Callable[[], Awaitable[None]] | None = None
) -> CountedGroups:
    """Count the messages of all groups of a queue, with room for other commands between the pages.

    Args:
        perform: Carries commands out.
        queue: Account and name.
        between: Awaited after each page but the last; None for nothing.

    Raises:
        QueueNotFound: There is no such queue.
    """
    found: dict[str, GroupFigures] = {}
    after: GroupPlace | None = None
    while True:
        page = await perform(CountGroups(*queue, None, after))
        for name, figures in page.groups.items():
            known = found.get(name)
            found[name] = figures if known is None else known.plus(figures)
        after = page.next_after
        if after is None:
            shares, weights = page.work
            return CountedGroups(found, page.halts, shares, noisy_among(found, shares, weights))
        if between is not None:
            await between()


class GroupTotals(NamedTuple):
    """How many groups of one queue are in what state, and figures of the largest."""

    at_ms: int
    """When they were counted, Unix milliseconds."""
    waiting: int
    """Groups that have messages waiting."""
    in_flight: int
    """Groups that have messages on leases."""
    noisy: int
    largest: Sequence[tuple[str, GroupFigures]]
    """Those with the most messages waiting, by name; none that have nothing waiting or in flight.
    """


class GroupsCounter:
    """Counts groups for metrics: in the background, and seldom enough to leave room for work.

    Args:
        perform: Carries commands out.
        clock: Its monotonic seconds say when to count again.
        most: Groups of each queue with figures of their own; 0 to count nothing.
    """

    def __init__(self, perform: Perform, clock: Clock, most: int) -> None:
        self._perform = perform
        self._clock = clock
        self._most = most
        self._task: asyncio.Task[None] | None = None
        self._due_s = float("-inf")
        self._found: dict[QueueKey, GroupTotals] = {}

    async def take(self, queues: Collection[QueueKey]) -> dict[QueueKey, GroupTotals]:
        """Return what was counted last, which is some seconds old; see ``at_ms``.

        Args:
            queues: Those to tell of. One that has not been counted yet is left out.
        """
        if not self._most:
            return {}
        if self._task is None and queues and self._clock.monotonic_s() >= self._due_s:
            self._task = asyncio.create_task(self._count(tuple(queues)), name="count-groups")
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=_GROUPS_WAIT_S)
            if self._task.done():
                task, self._task = self._task, None
                task.result()
        return {queue: self._found[queue] for queue in queues if queue in self._found}

    async def _count(self, queues: Iterable[QueueKey]) -> None:
        begun_s = self._clock.monotonic_s()
        found: dict[QueueKey, GroupTotals] = {}
        for queue in queues:
            at_ms = self._clock.now_ms()
            try:
                counted = await count_groups(self._perform, queue, self._pause_after_page())
            except LeaseholdError:  # deleted meanwhile, or its store cannot be asked now
                continue
            found[queue] = _totals_of(counted, at_ms, self._most)
            # What takes long is told as soon as it is known.
            self._found[queue] = found[queue]
        self._found = found
        took_s = self._clock.monotonic_s() - begun_s
        self._due_s = begun_s + took_s + max(_GROUPS_KEPT_S, _REST_FACTOR * took_s)

    def _pause_after_page(self) -> Callable[[], Awaitable[None]]:
        """Return what pauses for as long as the page before it took."""
        since_s = self._clock.monotonic_s()

        async def pause() -> None:
            nonlocal since_s
            await asyncio.sleep(min(_LONGEST_PAUSE_S, self._clock.monotonic_s() - since_s))
            since_s = self._clock.monotonic_s()

        return pause


def _totals_of(counted: CountedGroups, at_ms: int, most: int) -> GroupTotals:
    active = [each for each in counted.figures.items() if each[1].waiting or each[1].in_flight]
    return GroupTotals(
        at_ms=at_ms,
        waiting=sum(bool(each.waiting) for _, each in active),
        in_flight=sum(bool(each.in_flight) for _, each in active),
        noisy=len(counted.noisy),
        largest=heapq.nsmallest(most, active, key=lambda each: (-each[1].waiting, each[0])),
    )
