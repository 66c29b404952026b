"""What has to be done now and then: ending what is dead, expiry, reaping, noticing room on a disk.

Each step is a command with a limit and goes through the batcher like any other, so that it never
holds up clients for longer than a slice takes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import structlog

from leasehold.clock import Clock, VirtualClock, may_retire
from leasehold.domain import commands as c
from leasehold.domain.adaptive import Window, decide
from leasehold.domain.claims import LapseClaims
from leasehold.domain.command import AnyCommand, Perform
from leasehold.domain.errors import LeaseholdError, LeaseLost, MessageNotFound, Unavailable
from leasehold.domain.model import NO_DETAIL, Lease, Outcome, Queue, QueueKey
from leasehold.domain.queue_settings import Adapted, Adaptive, QueueSettings, TimeoutSource
from leasehold.domain.sessions import LoseSessions
from leasehold.domain.transactions import Committed, CommitTogether, ExpireStaged
from leasehold.stores.base import Store

SLICE_ROWS: Final = 500
"""Rows one step may take, some two milliseconds' worth."""
_SLICE_DROPPED: Final = 1_000
"""The same where there is nothing to do but to free rows: a step costs as much as 150 of them."""
_QUIET_S: Final = 0.005
"""Seconds without a client behind which a step of freeing goes: nobody waits for what it frees, and
whoever asks while it runs would wait for it. So it leaves most of an idle processor to others."""
_IDLE_WAIT_S: Final = 0.05
"""Seconds that it waits for that, at most."""
_PATIENCE_S: Final = 5.0
"""Seconds of freeing with such waits. If it is not done by then it takes its turn like a client, so
that it keeps up where more is dropped than idle moments have room for."""
_SLICE_TRANSACTIONS: Final = 4
"""Staged transactions that one step drops: each may have many rows."""
_NOTICED_STALL_S: Final = 0.5
"""The loop, or the machine, stood still for so long: heartbeats of that time are still unread."""
_STALL_GRACE_S: Final = 5.0
"""How long they are waited for at most, a little more than the default interval of heartbeats."""

_log = structlog.get_logger(__name__)


Sleep: TypeAlias = Callable[[float], Awaitable[None]]
_Sweep: TypeAlias = (
    LoseSessions
    | LapseClaims
    | ExpireStaged
    | c.RetireExpired
    | c.RemoveRetired
    | c.ReapDropped
    | c.ForgetKeys
    | c.CatchUp
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """How often and with how much patience."""

    interval_s: float = 1.0
    """Between sweeps, and between looks for silent sessions and lapsed claims."""
    note_time_interval_s: float = 60.0
    adapt_interval_s: float = 10.0
    """Between looks at timeouts that adapt, and at deduplication keys and staged messages that can
    be forgotten."""
    expiry_grace_s: int = 86_400
    """Seconds that an expired message is kept out of reach before its row is removed."""


class Maintenance:
    """Runs the sweeps of one engine."""

    def __init__(  # noqa: PLR0913 - each is a collaborator of its own
        self,
        store: Store,
        clock: Clock,
        plan: MaintenancePlan,
        *,
        perform: Perform,
        wait_for_idle: Callable[[float, float], Awaitable[None]],
        relieve: Callable[[], Awaitable[bool]],
        adapt: Callable[[Perform, int], Awaitable[None]],
        leads: Callable[[], bool] | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.retired = 0
        """Messages retired since the start."""
        self._store = store
        self._clock = clock
        self._perform = perform
        self._wait_for_idle = wait_for_idle
        self._relieve = relieve
        self._adapt = adapt
        self._leads = leads or always
        self._sleep = sleep
        self._plan = plan
        self._started_at_ms = clock.now_ms()
        self._started_s = clock.monotonic_s()
        self._last_seen_ms = store.last_seen_ms()
        self._next_note_s = self._started_s
        self._next_adapt_s = self._started_s
        self._waiting_for_clock = False
        self._is_behind = self._started_at_ms < self._last_seen_ms
        self._told_full = not store.health().writable
        """Whether it was said that there is no room; whoever opened the store has said it first."""
        self._was_deaf = leads is not None
        """Whether heartbeats may have been lost: the store was away, or another server led."""

    async def run(self) -> None:
        """Sweep until cancelled. Nothing that takes long delays the end of what is dead."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name="maintenance-watch")
            group.create_task(self._clean(), name="maintenance-clean")
            group.create_task(self._free(), name="maintenance-free")

    async def sweep(self) -> None:
        """Do all that is due now."""
        await self._make_room()
        await self._clean_up()  # which may make room for the rest
        await self._free_dropped(0)
        await self._end_dead()

    @property
    def trusts_clock(self) -> bool:
        """Whether the clock is good enough to do something for its sake that cannot be undone."""
        return self._may_retire()

    async def _watch(self) -> NoReturn:
        while True:
            began_ms = self._clock.now_ms()
            await self._sleep(self._plan.interval_s)
            stalled_s = (self._clock.now_ms() - began_ms) / 1000 - self._plan.interval_s
            if stalled_s > _NOTICED_STALL_S and not isinstance(self._clock, VirtualClock):
                # Whoever seems silent may only not have been heard.
                _log.warning("maintenance.stalled", stalled_s=round(stalled_s, 3))
                await self._sleep(min(stalled_s, _STALL_GRACE_S))
            if not self._leads():
                self._was_deaf = True
                continue
            await self._surely(self._listen_and_end_dead)

    async def _listen_and_end_dead(self) -> None:
        """End what is dead; but hear it out first if no heartbeat could arrive until now."""
        try:
            if self._was_deaf:
                await self._perform(c.GetAccountDocument("", ""))  # any that changes nothing
                await self._sleep(_STALL_GRACE_S)
                self._was_deaf = False
            await self._end_dead()
        except Unavailable:
            self._was_deaf = True
            raise

    async def _clean(self) -> NoReturn:
        while True:
            # Each server by itself: none knows of another that its store is full.
            await self._surely(self._make_room)
            if self._leads():
                await self._surely(self._clean_up)
            await self._sleep(self._plan.interval_s)

    async def _free(self) -> NoReturn:
        # Of a million rows it takes seconds, which nothing else has to wait for.
        patience_s = 0.0 if isinstance(self._clock, VirtualClock) else _PATIENCE_S
        while True:
            if self._leads():
                await self._surely(partial(self._free_dropped, patience_s))
            await self._sleep(self._plan.interval_s)

    async def _surely(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - tomorrow's sweep may go better
            _log.warning("maintenance.failed", error=str(error) or type(error).__name__)

    async def _end_dead(self) -> None:
        """End the leases of silent and stuck workers, and the claims that are not extended."""
        # Side by side, so that they share a batch.
        await asyncio.gather(
            self._to_the_end(LoseSessions()),
            self._to_the_end(LapseClaims(fold=self.trusts_clock)),
        )

    async def _make_room(self) -> None:
        """Try to make a full store writable again; tell the log when that changes.

        There is room only when the next round still finds some: a store may have to be written to
        before it knows.
        """
        health = self._store.health()
        if health.writable:
            if self._told_full:
                self._told_full = False
                _log.info("store.has_room", store=health.kind)
            return
        if not self._told_full:
            self._told_full = True
            _log.warning(
                "store.full",
                store=health.kind,
                consequence="puts are refused with 503 until disk space is available; consumers "
                "continue",
            )
        await self._relieve()

    async def _clean_up(self) -> None:
        if self._is_behind:
            latest_ms = self._last_seen_ms + round(self._plan.note_time_interval_s * 1000)
            await self._to_the_end(c.CatchUp(self._started_at_ms, latest_ms, SLICE_ROWS))
            self._is_behind = False
        believed = self._clock_is_believed()
        if self._clock.monotonic_s() >= self._next_note_s:
            self._next_note_s = self._clock.monotonic_s() + self._plan.note_time_interval_s
            await self._perform(c.NoteTime(believed))
        if believed:
            self.retired += await self._to_the_end(c.RetireExpired(SLICE_ROWS))
            before_ms = self._clock.now_ms() - self._plan.expiry_grace_s * 1000
            await self._to_the_end(c.RemoveRetired(before_ms, SLICE_ROWS))
        if self._clock.monotonic_s() >= self._next_adapt_s:
            self._next_adapt_s = self._clock.monotonic_s() + self._plan.adapt_interval_s
            if not self._waiting_for_clock:
                await self._to_the_end(c.ForgetKeys(SLICE_ROWS))
                await self._to_the_end(ExpireStaged(_SLICE_TRANSACTIONS))
            await self._adapt(self._perform, self._clock.now_ms())

    async def _free_dropped(self, patience_s: float) -> None:
        """Free the rows of what was dropped.

        Args:
            patience_s: How long steps after the first wait for idle moments; behind that they take
                turns with all others. Where there is no room they do not wait: this makes room.
        """
        waits_until_s = self._clock.monotonic_s() + patience_s
        while (await self._perform(c.ReapDropped(_SLICE_DROPPED))).count == _SLICE_DROPPED:
            if self._clock.monotonic_s() < waits_until_s and self._store.health().writable:
                await self._wait_for_idle(_QUIET_S, _IDLE_WAIT_S)

    async def _to_the_end(self, command: _Sweep) -> int:
        total = 0
        while True:
            swept = await self._perform(command)
            total += swept.count
            if swept.count < command.limit:
                return total

    def _may_retire(self) -> bool:
        return may_retire(
            last_seen_ms=self._last_seen_ms,
            started_at_ms=self._started_at_ms,
            running_s=self._clock.monotonic_s() - self._started_s,
            wall_drift_s=self._clock.wall_drift_s(),
        )

    def _clock_is_believed(self) -> bool:
        """Tell whether the clock may be believed, and the log when that changes."""
        believed = self._may_retire()
        if believed == self._waiting_for_clock:
            self._waiting_for_clock = not believed
            if believed:
                _log.info("clock.believed")
            else:
                _log.warning(
                    "clock.doubted",
                    last_seen_ms=self._last_seen_ms,
                    started_at_ms=self._started_at_ms,
                    wall_drift_s=round(self._clock.wall_drift_s(), 3),
                    consequence="expired messages are hidden but not removed until it is confirmed",
                )
        return believed


def always() -> bool:
    """Tell that this server leads: it has the store to itself."""
    return True


# --- timeouts that adapt -----------------------------------------------------------------------
#
# How long leases are worked on, for queues whose visibility timeout adapts, or that of a type does.
#
# Only leases of the default length are followed: one whose length a worker chose says nothing about
# the default. What is known is forgotten with the process; the timeout chosen last is kept.


MAX_FOLLOWED: Final = 100_000
"""Leases followed at once, some 30 MiB; with more, the oldest are lost sight of."""


class _Watched:
    """A queue of which a timeout adapts, with a window for each timeout that does.

    Args:
        settings: Those of the queue.
    """

    __slots__ = ("settings", "windows")

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.windows = {rule: Window() for rule in adapting(settings)}
        """By rule of ``timeouts_by_type``; None for the queue's own timeout."""

    def follow(self, settings: QueueSettings) -> None:
        """Go on with other settings; what was seen of timeouts that still adapt is kept."""
        if settings is not self.settings:
            self.settings = settings
            self.windows = {rule: self.windows.get(rule) or Window() for rule in adapting(settings)}

    def window_of(self, lease: Lease) -> Window | None:
        """Return the window of the timeout that decided the length of a lease, if it adapts."""
        if not self.settings.timeouts_by_type and lease.message.detail is NO_DETAIL:
            return self.windows.get(None)
        detail = lease.message.detail
        found = self.settings.timeout_of(detail.message_type, detail.visibility_timeout_s)
        if found.source is TimeoutSource.MESSAGE:
            return None
        return self.windows.get(found.rule)


def adapting(settings: QueueSettings) -> dict[str | None, Adaptive]:
    """Return the bounds of the timeouts that adapt, by rule; None for the queue's own."""
    found: dict[str | None, Adaptive] = {}
    if settings.adaptive is not None:
        found[None] = settings.adaptive
    for name, rule in settings.timeouts_by_type.items():
        if rule.adaptive is not None:
            found[name] = rule.adaptive
    return found


class _Followed(NamedTuple):
    """A lease whose length was the default of its queue or type."""

    since_ms: int
    renewed_ms: int
    window: Window


class AdaptiveTimeouts:
    """Windows of observation by queue and type, and what they lead to.

    Args:
        find_queue: The store's.
    """

    def __init__(self, find_queue: Callable[[str, str], Queue | None]) -> None:
        self.watched: dict[QueueKey, _Watched] = {}
        """Queues with timeouts that adapt; while there are none, nothing here costs anything."""
        self._find_queue = find_queue
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        """By receipt."""

    def watch(self, queues: list[Queue]) -> None:
        """Watch those of *queues* that adapt, and no others."""
        settings = {(queue.account, queue.name): queue.settings for queue in queues}
        for key in list(self.watched):
            if key not in settings:
                del self.watched[key]
        for key, each in settings.items():
            self._watch(key, each)
        if not self.watched:
            self._followed.clear()

    def watch_one(self, account: str, queue: str) -> None:
        """Look again whether a queue adapts."""
        found = self._find_queue(account, queue)
        self._watch((account, queue), None if found is None else found.settings)

    def _watch(self, key: QueueKey, settings: QueueSettings | None) -> None:
        if settings is None or not (
            settings.adaptive or (settings.timeouts_by_type and adapting(settings))
        ):
            self.watched.pop(key, None)
        elif key in self.watched:
            self.watched[key].follow(settings)
        else:
            self.watched[key] = _Watched(settings)

    def note(self, command: AnyCommand, result: c.Result, now_ms: int) -> None:
        """Hear of the result of a command."""
        if isinstance(command, c.Batch | CommitTogether):
            # What was refused as a whole has another answer, what was done before has none.
            results: Any = result.results if type(result) is Committed else result
            if type(results) is tuple and results:
                for part, its_result in zip(command.commands, results, strict=True):
                    self.note(part, its_result, now_ms)
            return
        observe = _OBSERVERS.get(type(command))
        if observe is not None:
            asked: Any = command
            watched = self.watched.get(asked[:2])
            if watched is not None:
                observe(self, watched, asked, result, now_ms)

    def _received(self, watched: _Watched, command: c.Receive, result: Any, now_ms: int) -> None:
        if command.visibility_timeout_s is None and type(result) is tuple:
            for lease in result:
                window = watched.window_of(lease)
                if window is not None:
                    self._follow(lease.receipt, _Followed(now_ms, now_ms, window))

    def _renewed(self, _: _Watched, command: c.Renew, result: Any, now_ms: int) -> None:
        lease = self._followed.pop(command.receipt, None)
        if lease is None:
            return
        if type(result) is not Lease:
            self._refused(lease, result, now_ms)
        elif command.visibility_timeout_s:
            lease.window.observe_renewed((now_ms - lease.renewed_ms) / 1000)
            self._follow(result.receipt, lease._replace(renewed_ms=now_ms))

    def _completed(self, _: _Watched, command: c.Complete, result: Any, now_ms: int) -> None:
        lease = self._followed.pop(command.receipt, None)
        if type(result) is not c.Done:
            self._refused(lease, result, now_ms)
        elif lease is not None:
            lease.window.observe_completed((now_ms - lease.since_ms) / 1000)

    def _released(self, watched: _Watched, command: c.Release, result: Any, now_ms: int) -> None:
        lease = self._followed.pop(command.receipt, None)
        if type(result) is not c.Released:
            self._refused(lease, result, now_ms)
        elif command.outcome in {Outcome.FAILED, Outcome.BURIED}:
            # Whose type it is is not known of a lease that is not followed.
            window = watched.windows.get(None) if lease is None else lease.window
            if window is not None:
                window.observe_failed()

    @staticmethod
    def _refused(lease: _Followed | None, result: Any, now_ms: int) -> None:
        # A receipt that this process never gave out with the default length is not counted: it may
        # be anybody's, and the lease may have been of any length.
        # One that has left the queue was worked on for too long as well, such as by the last of as
        # many deliveries as its budget allows.
        is_late = type(result) is LeaseLost or (type(result) is MessageNotFound and result.late)
        if is_late and lease is not None:
            lease.window.observe_late((now_ms - lease.since_ms) / 1000)

    def _follow(self, receipt: str, lease: _Followed) -> None:
        self._followed[receipt] = lease
        if len(self._followed) > MAX_FOLLOWED:
            self._followed.popitem(last=False)

    async def adapt(self, perform: Perform, now_ms: int) -> None:
        """Choose new timeouts where there is a reason to."""
        for account, name in list(self.watched):
            self.watch_one(account, name)  # it may be gone, or set otherwise by another server
            watched = self.watched.get((account, name))
            if watched is None:
                continue
            settings = watched.settings
            for rule, bounds in adapting(settings).items():
                current_s = settings.lease_s() if rule is None else settings.lease_by(rule)
                adapted = decide(watched.windows[rule], bounds, current_s, now_ms)
                if adapted is not None:
                    command = c.SetAdapted(account, name, adapted, rule)
                    await _set(perform, command, adapted, current_s)


async def _set(perform: Perform, command: c.SetAdapted, adapted: Adapted, current_s: int) -> None:
    """Set a timeout that was chosen, and tell the log."""
    place = {"account": command.account, "queue": command.queue}
    if command.rule is not None:
        place["type"] = command.rule
    try:
        await perform(command)
    except LeaseholdError as error:
        _log.warning("queue.not_adapted", **place, reason=str(error))
        return
    _log.info(
        "queue.adapted",
        **place,
        visibility_timeout_s=adapted.visibility_timeout_s,
        before_s=current_s,
        because=adapted.because,
    )


_OBSERVERS: Final[dict[type, Callable[[AdaptiveTimeouts, _Watched, Any, Any, int], None]]] = {
    c.Receive: AdaptiveTimeouts._received,  # noqa: SLF001 - one table instead of a chain of ifs
    c.Renew: AdaptiveTimeouts._renewed,  # noqa: SLF001
    c.Complete: AdaptiveTimeouts._completed,  # noqa: SLF001
    c.Release: AdaptiveTimeouts._released,  # noqa: SLF001
}
