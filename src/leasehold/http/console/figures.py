"""The figures of an account's queues and of the server, for people who watch.

With thousands of queues nothing may be done for each of them that takes long. So the counters that
the engine keeps anyway say which queues anything has happened in, and only the messages of those
are counted; the others, in which time alone changes something, have their turn by and by.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import resource
import shutil
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasehold import __version__
from leasehold.clock import Clock
from leasehold.domain.admin import CountMessages, Counts
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import MessageState, Queue
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.engine.account_router import ServerEngine
from leasehold.engine.stats import LATENCY_BUCKETS_S, QueueStats
from leasehold.http.admission import MAX_WAITERS, Admission
from leasehold.http.guard import Guard

MOST_COUNTED: Final = 500
"""Queues whose messages are counted at one sample; the rest is counted at the next ones."""
MOST_IN_TURN: Final = 50
"""Of these, such as nothing has happened in; more would cost more than all the rest."""
_AT_ONCE: Final = 50
"""Of these, such as are counted in one batch; then others have a turn."""
_LOOKED_AT_ONCE: Final = 500
_SETTINGS_EVERY: Final = 5
"""At each of so many looks, settings are compared of queues in which nothing has happened."""
_LONGEST_S: Final = 10.0
"""Rates are not told of longer intervals: nobody has looked meanwhile."""
SUMS: Final = (
    *("messages", "visible", "leased", "delayed", "deferred"),
    *("poisoned", "expired", "staged", "claimed"),
)
RATES: Final = ("in_per_s", "out_per_s", "failed_per_s")
_SIGNS: Final = attrgetter(
    *("sent", "received", "renewed", "completed", "released", "poisoned"),
    *("rejected_receipts", "last_receive_ms", "failed"),
)
_NO_SIGNS: Final = _SIGNS(QueueStats())
_SENT: Final = 0
_COMPLETED: Final = 3
_FAILED: Final = 8
"""Places in what _SIGNS gets."""
MOVES_EVERY_S: Final = 9.5
"""A little less than the ten seconds that are meant, as looks come at their own pace."""
MOVES_KEPT: Final = 18

Row = dict[str, Any]
"""What is shown of one queue."""


class _Seen(NamedTuple):
    """What a row was made from; while it stays the same, only time can change the row."""

    messages: int
    signs: tuple[Any, ...]
    queue: Queue | None


class Moves(NamedTuple):
    """What came and went in some seconds."""

    at_ms: int
    """When they ended."""
    rates: Mapping[str, tuple[float, float]]
    """Messages per second put and completed, of queues with any."""


_STILL: Final = (0.0, 0.0)
_NOTHING: Final = (0, 0)


class Overview:
    """What there is in the queues of one account.

    Args:
        account: Its name.
        engine: Counts.
        clock: The engine's, for moments; its monotonic seconds are what rates are told by.
        most_counted: Queues whose messages are counted at one sample.
    """

    def __init__(
        self,
        account: str,
        engine: ServerEngine,
        clock: Clock,
        most_counted: int = MOST_COUNTED,
    ) -> None:
        self.account = account
        self.rows: dict[str, Row] = {}
        """By name."""
        self.taken_s: float | None = None
        """Monotonic time of the last sample; None before the first."""
        self._engine = engine
        self._clock = clock
        self._most_counted = most_counted
        self._seen: dict[str, _Seen] = {}
        self._busy: set[str] = set()
        """Queues that had a rate at the last sample."""
        self._owed: set[str] = set()
        """Queues that something has happened in and that were not counted since."""
        self._looks = 0
        self._turns: list[str] = []
        """Names of queues that have not had their turn in this round."""
        self._poison: dict[str, str] = {}
        """Name of a poison queue -> the queue it belongs to."""
        self._poison_of: dict[str, str] = {}
        """The other way round."""
        self._sums = dict.fromkeys(SUMS, 0)
        self.moves: deque[Moves] = deque(maxlen=MOVES_KEPT)
        """What came and went in the last minutes, the oldest first."""
        self._moved_s: float | None = None
        self._counted: dict[str, tuple[int, int]] = {}
        """What had been put and completed when that was last noted, of queues with any."""
        self._lock = asyncio.Lock()

    def totals(self) -> Row:
        """Return the sums over all queues."""
        busy = [self.rows[name] for name in self._busy if name in self.rows]
        rates = {rate: round(sum(row[rate] or 0.0 for row in busy), 3) for rate in RATES}
        return {"queues": len(self.rows), **self._sums, **rates}

    def movement(self, name: str) -> list[tuple[float, float]]:
        """Return what came and went in a queue in each of the last intervals; empty if nothing."""
        told = [each.rates.get(name, _STILL) for each in self.moves]
        return told if any(each is not _STILL for each in told) else []

    async def fresh(self, age_s: float) -> None:
        """Take a sample, unless the last one is younger than *age_s* seconds."""
        async with self._lock:
            if self.taken_s is None or self._clock.monotonic_s() - self.taken_s >= age_s:
                await self._sample()

    async def sample(self) -> tuple[list[Row], list[str]]:
        """Look again; return the rows that are new or have changed, and names of those gone."""
        async with self._lock:
            return await self._sample()

    async def _sample(self) -> tuple[list[Row], list[str]]:
        now_s = self._clock.monotonic_s()
        since_s = None if self.taken_s is None else now_s - self.taken_s
        if since_s is not None and since_s > _LONGEST_S:
            since_s = None
        # What is said to have happened must be older than what is counted: so it is noted first,
        # and what happens while it is counted is seen the next time.
        try:
            due, removed = await self._look(since_s)
            self.taken_s = now_s
            self._note_moves(now_s)
            counted = await self._count(self._chosen(due))
        except BaseException:
            self._seen.clear()  # else nobody would look at what has been noted
            raise
        self._owed = {name for name in due if name not in counted}
        rows = [self._row(name, due.get(name), counts) for name, counts in counted.items()]
        rows += [self._row(name, due[name], None) for name in self._owed]
        return [row for row in rows if row is not None], removed

    async def _look(
        self, since_s: float | None
    ) -> tuple[dict[str, tuple[float | None, ...]], list[str]]:
        """Find the queues that something has happened in, with their rates, and those gone."""
        seen, rows = self._seen, self.rows
        names = self._engine.queues_of(self.account)
        stats_of, account = self._engine.stats.queues, self.account
        awaited = self._busy | self._owed
        checks_settings = not self._looks % _SETTINGS_EVERY
        self._looks += 1
        due: dict[str, tuple[float | None, ...]] = {}
        for number, (name, messages) in enumerate(names, 1):
            if not number % _LOOKED_AT_ONCE:
                await asyncio.sleep(0)
            stats = stats_of.get((account, name))
            signs = _NO_SIGNS if stats is None else _SIGNS(stats)
            last = seen.get(name)
            if (
                last is not None
                and last.messages == messages
                and last.signs == signs
                and not (checks_settings and self._queue(name) is not last.queue)
                and name not in awaited
            ):
                continue
            now = seen[name] = _Seen(messages, signs, self._queue(name))
            due[name] = _rates(now, last, since_s)
            if last is None or last.queue is not now.queue:
                self._note_poison(name, now.queue)
        self._busy = {name for name, rates in due.items() if any(rates)}
        removed: list[str] = []
        if max(len(seen), len(rows)) > len(names):
            there = {name for name, _ in names}
            removed = [name for name in rows if name not in there]
            for name in [name for name in seen if name not in there]:
                del seen[name]
        for name in removed:
            self._forget_poison(name)
            self._add(rows.pop(name), -1)
        return due, removed

    def _note_moves(self, now_s: float) -> None:
        """Note what came and went since that was last noted, every ten seconds."""
        since_s = None if self._moved_s is None else now_s - self._moved_s
        if since_s is not None and since_s < MOVES_EVERY_S:
            return
        counted = {
            name: (seen.signs[_SENT], seen.signs[_COMPLETED])
            for name, seen in self._seen.items()
            if seen.signs is not _NO_SIGNS
        }
        if since_s is not None and since_s > 2 * MOVES_EVERY_S:
            self.moves.clear()  # nobody has looked meanwhile: there is a hole
        elif since_s is not None:
            before = self._counted
            rates = {
                name: (
                    round(max(0, sent - before.get(name, _NOTHING)[0]) / since_s, 2),
                    round(max(0, done - before.get(name, _NOTHING)[1]) / since_s, 2),
                )
                for name, (sent, done) in counted.items()
                if before.get(name, _NOTHING) != (sent, done)
            }
            self.moves.append(Moves(self._clock.now_ms(), rates))
        self._moved_s, self._counted = now_s, counted

    def _queue(self, name: str) -> Queue | None:
        try:
            return self._engine.find_queue(self.account, name)
        except LeaseholdError:  # the account has moved to another store
            return None

    def _note_poison(self, name: str, queue: Queue | None) -> None:
        self._forget_poison(name)
        if queue is not None:
            poison = self._poison_of[name] = poison_queue_of(name, queue.settings)
            self._poison[poison] = name

    def _forget_poison(self, name: str) -> None:
        poison = self._poison_of.pop(name, None)
        if poison is not None and self._poison.get(poison) == name:
            del self._poison[poison]

    def _chosen(self, due: Collection[str]) -> list[str]:
        """Choose the queues to count: of those that are due, and of others, the oldest first."""
        oldest = heapq.nsmallest(self._most_counted, due, key=self._counted_at)
        left = min(MOST_IN_TURN, self._most_counted - len(oldest))
        return oldest + self._in_turn(left, due) if left > 0 else oldest

    def _in_turn(self, most: int, due: Collection[str]) -> list[str]:
        """Return the next queues in which time may have changed something."""
        chosen: list[str] = []
        if not self._turns:
            self._turns = list(self.rows)
        while self._turns and len(chosen) < most:
            name = self._turns.pop()
            row = self.rows.get(name)
            if row is not None and name not in due and _lives(row):
                chosen.append(name)
        return chosen

    def _counted_at(self, name: str) -> int:
        row = self.rows.get(name)
        return 0 if row is None or row["counted_at_ms"] is None else row["counted_at_ms"]

    async def _count(self, names: list[str]) -> dict[str, tuple[Counts, int]]:
        counted: dict[str, tuple[Counts, int]] = {}
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            now_ms = self._clock.now_ms()
            results = await asyncio.gather(
                *(self._engine.perform(CountMessages(self.account, name)) for name in part),
                return_exceptions=True,
            )
            for name, result in zip(part, results, strict=True):
                if isinstance(result, Counts):
                    counted[name] = result, now_ms
                elif not isinstance(result, LeaseholdError):
                    raise result
        return counted

    def _row(
        self,
        name: str,
        rates: tuple[float | None, ...] | None,
        counted: tuple[Counts, int] | None,
    ) -> Row | None:
        """Make a row anew; return it if it differs from the one before."""
        seen = self._seen.get(name)
        if seen is None:
            return None
        before = self.rows.get(name)
        if before is None:
            row: Row = {"name": name, **dict.fromkeys(SUMS, 0)}
            row |= {"messages": seen.messages, "oldest_since_ms": None, "counted_at_ms": None}
            row |= dict.fromkeys(RATES)
        else:
            row = dict(before)
        if counted is not None:
            row |= _of_counts(*counted)
        if rates is not None:
            row |= zip(RATES, rates, strict=True)
        row |= self._of_queue(name, seen.queue)
        if before is not None:
            # When it was counted alone is no news.
            before["counted_at_ms"] = row["counted_at_ms"]
            if row == before:
                return None
            self._add(before, -1)
        self.rows[name] = row
        self._add(row, 1)
        return row

    def _of_queue(self, name: str, queue: Queue | None) -> Row:
        activity = self._engine.activity(self.account, name)
        now_ms = self._clock.now_ms()
        source = self._poison.get(name)
        return {
            "sent": activity.sent,
            "received": activity.received,
            "completed": activity.completed,
            "released": activity.released,
            "poisoned_since_start": activity.poisoned,
            "waiting": activity.waiting,
            "last_send_ms": activity.last_send_ms,
            "last_receive_ms": activity.last_receive_ms,
            "last_complete_ms": activity.last_complete_ms,
            "paused": queue is not None and queue.settings.is_paused(now_ms),
            "poison_of": source,
        }

    def _add(self, row: Row, sign: int) -> None:
        for name in SUMS:
            self._sums[name] += sign * row[name]


def _rates(now: _Seen, last: _Seen | None, since_s: float | None) -> tuple[float | None, ...]:
    """Return messages per second put, completed and failed; None before a second sample."""
    if last is None or not since_s:
        return (None, None, None)
    changes = [now.signs[place] - last.signs[place] for place in (_SENT, _COMPLETED, _FAILED)]
    # A queue that was deleted and made again begins at 0.
    return tuple(round(max(0, change) / since_s, 3) for change in changes)


def _of_counts(counts: Counts, now_ms: int) -> Row:
    return {
        "messages": counts.total,
        "visible": counts.visible,
        "leased": counts.leased,
        "delayed": counts.delayed,
        "deferred": counts.deferred,
        "poisoned": counts.poisoned,
        "expired": counts.expired,
        "staged": counts.staged,
        "claimed": counts.claimed,
        "oldest_since_ms": counts.since.get(MessageState.VISIBLE),
        "counted_at_ms": now_ms,
    }


def _lives(row: Mapping[str, Any]) -> bool:
    """Tell whether time alone may change a row."""
    return bool(
        row["messages"] or row["poisoned"] or row["expired"] or row["staged"] or row["waiting"]
    )


# --- pages of it -------------------------------------------------------------------------------


class Page(NamedTuple):
    """Some of the rows, in order."""

    rows: list[Row]
    matched: int
    """How many there are that match."""
    next: str | None


ORDERS: Final[Mapping[str, Callable[[Row], float]]] = {
    "name": lambda _: 0,
    **{name: lambda row, name=name: -row[name] for name in SUMS[:6]},  # type: ignore[misc]
    "oldest": lambda row: row["oldest_since_ms"] or float("inf"),
    "in": lambda row: -(row["in_per_s"] or 0.0),
    "out": lambda row: -(row["out_per_s"] or 0.0),
    "failed": lambda row: -(row["failed_per_s"] or 0.0),
}
"""What rows may be sorted by; equal ones are sorted by name."""


def page_of(rows: Collection[Row], search: str, sort: str, limit: int, after: str | None) -> Page:
    """Return some of the rows.

    Args:
        rows: All.
        search: Part of the name, in any case; empty for all.
        sort: One of ORDERS.
        limit: 1 or more.
        after: ``next`` of the page before; the row it names may have moved or gone since.
    """
    wanted, order = search.lower(), ORDERS[sort]
    places = sorted((order(row), row["name"]) for row in rows if wanted in row["name"].lower())
    matched = len(places)
    if after is not None:
        place, _, name = after.partition(" ")
        since = float(place), name
        places = [each for each in places if each > since]
    by_name = {row["name"]: row for row in rows}
    shown = places[:limit]
    more = len(places) > limit
    return Page(
        [by_name[name] for _, name in shown],
        matched,
        f"{shown[-1][0]!r} {shown[-1][1]}" if more else None,
    )


# --- the server --------------------------------------------------------------------------------
#
# The same counters that ``/metrics`` tells, for people.


_STATM: Final = Path("/proc/self/statm")
_OPEN: Final = Path("/proc/self/fd")
_SHORTEST_S: Final = 1.0
"""Rates are not told of shorter intervals."""


class _Sample(NamedTuple):
    at_s: float
    buckets: tuple[int, ...]
    sum_s: float
    batches: int
    commands: int
    cpu_s: float


class ServerFigures:
    """Tells how a server is; rates are those since the figures were asked for before.

    Args:
        engine: Its counters, and how its store is.
        guard: Connections.
        admission: How many requests wait.
        clock: The engine's.
        draining: Tells whether the server is about to stop.
        max_pending: How many requests may wait for the store.
        data: A folder on the disk that the store is on; None if that is elsewhere.
        reserve_bytes: Room kept aside there.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a source of figures
        self,
        *,
        engine: ServerEngine,
        guard: Guard,
        admission: Admission,
        clock: Clock,
        draining: Callable[[], bool],
        max_pending: int,
        data: Path | None = None,
        reserve_bytes: int | None = None,
    ) -> None:
        self._engine = engine
        self._guard = guard
        self._admission = admission
        self._clock = clock
        self._draining = draining
        self._max_pending = max_pending
        self._data = data
        self._reserve_bytes = reserve_bytes
        self._last: _Sample | None = None
        self._rates: dict[str, Any] = _rates_between(None, self._sample())

    def take(self) -> dict[str, Any]:
        """Return the figures as they are now."""
        self._compare()
        engine, guard, admission = self._engine, self._guard, self._admission
        first = engine.stores()[0]
        health, exporter = first.health, engine.exporter
        return {
            "now_ms": self._clock.now_ms(),
            "version": __version__,
            "started_at_ms": engine.stats.since_ms,
            "ready": first.is_ready and not self._draining() and not guard.is_crowded,
            "draining": self._draining(),
            "store": {
                "kind": health.kind,
                "failed": first.failed,
                "reachable": first.reachable,
                "durable": health.durable,
                "writable": health.writable and not first.failed,
                "details": health.details,
            },
            "disk": self._disk(),
            "commits": {
                "total": engine.stats.batches,
                **self._rates["commits"],
                "since_start": _since_start(engine),
            },
            "commands": {"total": engine.stats.commands, **self._rates["commands"]},
            "load": {
                "crowded": guard.is_crowded,
                "connections": len(guard.connections),
                "max_connections": guard.limits.max_connections,
                "connections_accepted": guard.accepted,
                "buffered_bytes": guard.buffered,
                "max_buffered_bytes": guard.limits.max_buffered_bytes,
                "pending_requests": admission.pending,
                "max_pending_requests": self._max_pending,
                "waiting_receives": admission.waiting,
                "max_waiting_receives": MAX_WAITERS,
                "overloaded": admission.refused,
                "refused": dict(guard.refused),
            },
            "event_log": {
                "exporting": exporter is not None,
                "exported": 0 if exporter is None else exporter.exported,
                "lag_batches": 0 if exporter is None else exporter.lag_batches,
                "lag_s": 0.0 if exporter is None else round(exporter.lag_s(), 3),
            },
            "clock": {"wall_drift_s": round(self._clock.wall_drift_s(), 3)},
            "process": {
                **self._rates["process"],
                "resident_bytes": _resident_bytes(),
                "open_files": _open_files(),
                "max_open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                "pid": os.getpid(),
            },
        }

    def _sample(self) -> _Sample:
        stats = self._engine.stats
        used = resource.getrusage(resource.RUSAGE_SELF)
        return _Sample(
            self._clock.monotonic_s(),
            tuple(stats.commit_seconds.counts),
            stats.commit_seconds.sum_s,
            stats.batches,
            stats.commands,
            used.ru_utime + used.ru_stime,
        )

    def _compare(self) -> None:
        now = self._sample()
        if self._last is None or now.at_s - self._last.at_s >= _SHORTEST_S:
            self._rates = _rates_between(self._last, now)
            self._last = now

    def _disk(self) -> dict[str, int | None]:
        free = total = None
        if self._data is not None:
            with contextlib.suppress(OSError):
                usage = shutil.disk_usage(self._data)
                free, total = usage.free, usage.total
        return {
            "free_bytes": free,
            "total_bytes": total,
            "reserve_bytes": self._reserve_bytes,
            "data_bytes": None if self._data is None else _bytes_in(self._data),
        }


def _rates_between(last: _Sample | None, now: _Sample) -> dict[str, Any]:
    if last is None:
        nothing = dict.fromkeys(("per_s", "mean_s", "p50_s", "p95_s", "p99_s"))
        commands = {"per_s": None, "per_commit": None}
        process = {"cpu_s": round(now.cpu_s, 3), "cpu_share": None}
        return {"commits": nothing, "commands": commands, "process": process}
    took_s = now.at_s - last.at_s
    buckets = [after - before for after, before in zip(now.buckets, last.buckets, strict=True)]
    commits = sum(buckets)
    batches, performed = now.batches - last.batches, now.commands - last.commands
    return {
        "commits": {
            "per_s": round(batches / took_s, 3),
            "mean_s": round((now.sum_s - last.sum_s) / commits, 6) if commits else None,
            **{f"p{part}_s": quantile(buckets, part / 100) for part in (50, 95, 99)},
        },
        "commands": {
            "per_s": round(performed / took_s, 3),
            "per_commit": round(performed / batches, 3) if batches else None,
        },
        "process": {
            "cpu_s": round(now.cpu_s, 3),
            "cpu_share": round((now.cpu_s - last.cpu_s) / took_s, 4),
        },
    }


def quantile(buckets: Sequence[int], part: float) -> float | None:
    """Return the upper bound of the bucket that a quantile is in, in seconds.

    Args:
        buckets: Counts in the buckets of LATENCY_BUCKETS_S and one for all above, of which the
            last bound is told.
        part: 0 to 1.

    Returns: None if all buckets are empty.
    """
    wanted = part * sum(buckets)
    reached = 0
    for bound, count in zip((*LATENCY_BUCKETS_S, LATENCY_BUCKETS_S[-1]), buckets, strict=True):
        reached += count
        if count and reached >= wanted:
            return bound
    return None


def _since_start(engine: ServerEngine) -> dict[str, Any]:
    """Return how long commits have taken, the sync to the disk included, since the start."""
    taken = engine.stats.commit_seconds
    commits = sum(taken.counts)
    return {
        "count": commits,
        "mean_s": round(taken.sum_s / commits, 6) if commits else None,
        **{f"p{part}_s": quantile(taken.counts, part / 100) for part in (50, 95, 99)},
    }


def _bytes_in(folder: Path) -> int | None:
    """Return what the files in a folder take, without those in folders below."""
    try:
        with os.scandir(folder) as found:
            return sum(each.stat().st_size for each in found if each.is_file())
    except OSError:
        return None


def _open_files() -> int | None:
    try:
        return sum(1 for _ in _OPEN.iterdir())
    except OSError:
        return None


def _resident_bytes() -> int | None:
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
