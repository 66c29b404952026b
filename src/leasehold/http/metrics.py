"""What ``/metrics`` tells: plain counters while serving, Prometheus' text when asked.

The hot path adds integers. At a scrape the counters are copied, which takes well under a
millisecond for a thousand queues, and the copy is written out on another thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from leasehold.clock import Clock
from leasehold.domain.oversight import COUNTED_STATES
from leasehold.engine.census import CLAIM_STATES, NOTHING, Census
from leasehold.engine.engine import Counted, Engine
from leasehold.engine.stats import Histogram, QueueStats
from leasehold.http.admission import Admission
from leasehold.http.guard import Guard
from leasehold.http.metric_families import (
    BODY_COUNTERS,
    EXPORT_COUNTERS,
    EXPORT_GAUGES,
    LOG_GAUGES,
    QUEUE_COUNTERS,
    Families,
    Figures,
    Snapshot,
)

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
OTHER: Final = "_other"
"""Account and queue under which the queues above the limit are added up; neither can exist."""


class _Verb:
    """Counters of one operation."""

    __slots__ = ("seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.seconds = Histogram()


class RequestStats:
    """Requests by operation and status, and how long they took.

    A dialect calls :meth:`answered` as the last thing it does with a request, and the application
    :meth:`took` before anything else can run, so that both speak of the same request.
    """

    def __init__(self) -> None:
        self.verbs: dict[str, _Verb] = {}
        self._last = _Verb()

    def answered(self, operation: str, status: int) -> None:
        """Count a request; *operation* is one of a fixed set of names."""
        verb = self.verbs.get(operation)
        if verb is None:
            verb = self.verbs[operation] = _Verb()
        verb.statuses[status] += 1
        self._last = verb

    def took(self, duration_s: float) -> None:
        """Count how long the last request took."""
        self._last.seconds.observe(duration_s)


class Metrics:
    """Collects the figures of one server.

    Args:
        requests: Counters of the application.
        engine: Its counters, and how its store is.
        admission: How many requests wait.
        guard: Connections, and why some were refused.
        clock: How far the wall clock was moved.
        max_queues: Queues with figures of their own; the rest are added up.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a source of figures
        self,
        *,
        requests: RequestStats,
        engine: Engine,
        admission: Admission,
        guard: Guard,
        clock: Clock,
        max_queues: int,
    ) -> None:
        self._requests = requests
        self._engine = engine
        self._admission = admission
        self._guard = guard
        self._clock = clock
        self._max_queues = max_queues
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def text(self) -> bytes:
        """Return the page in Prometheus' text format."""
        snapshot = self.snapshot(await self._engine.counts(), await self._engine.census())
        return await asyncio.to_thread(self._write, snapshot)

    def snapshot(self, counted: Sequence[Counted] = (), census: Census = NOTHING) -> Snapshot:
        """Copy the counters; call it in the event loop, where they are changed.

        Args:
            counted: What the engine has counted just now.
            census: That as well.
        """
        shown = counted[: self._max_queues]
        verbs = self._requests.verbs.items()
        stats, guard, admission = self._engine.stats, self._guard, self._admission
        return Snapshot(
            requests=[
                (name, status, count)
                for name, verb in verbs
                for status, count in verb.statuses.items()
            ],
            seconds=[(name, list(verb.seconds.counts), verb.seconds.sum_s) for name, verb in verbs],
            commits=(list(stats.commit_seconds.counts), stats.commit_seconds.sum_s),
            refused=list(guard.refused.items()),
            queues=list(_limited(_events(stats.queues), self._max_queues)),
            messages=list(_limited(_by_state(counted), self._max_queues)),
            ages=list(_ages(shown, self._clock.now_ms())),
            timeouts=[(each.account, each.queue, each.visibility_timeout_s) for each in shown],
            claims=list(_limited(_claims(census), self._max_queues)),
            sessions=[(*key, number) for key, number in census.sessions.items()],
            counters={
                "server_sessions_lost": census.lost_sessions,
                "server_commands": stats.commands,
                "server_batches": stats.batches,
                "server_overloaded": admission.refused,
                "server_connections_accepted": guard.accepted,
                **_export_counters(self._engine),
                **_body_counters(self._engine),
            },
            gauges={
                "server_connections": len(guard.connections),
                "server_buffered_bytes": guard.buffered,
                "server_unproved_bytes": guard.unproved_bytes,
                "server_pending_requests": admission.pending,
                "server_waiting_receives": admission.waiting,
                "server_store_writable": float(self._engine.health().writable),
                "server_clock_drift_seconds": self._clock.wall_drift_s(),
                **_log_gauges(census, self._clock.now_ms()),
                **_export_gauges(self._engine),
            },
        )

    def _write(self, snapshot: Snapshot) -> bytes:
        return generate_latest(Families(snapshot)) + generate_latest(self._process)


def _events(queues: Mapping[tuple[str, str], QueueStats]) -> Iterator[Figures]:
    names = tuple(QUEUE_COUNTERS)
    for key, stats in queues.items():
        yield *key, [getattr(stats, name) for name in names]


def _by_state(counted: Sequence[Counted]) -> Iterator[Figures]:
    for each in counted:
        counts = each.counts
        figures = [getattr(counts, state) for state in COUNTED_STATES]
        yield each.account, each.queue, [*figures, counts.claimed, counts.staged]


def _claims(census: Census) -> Iterator[Figures]:
    for key, states in census.claims.items():
        yield *key, [states[state] for state in CLAIM_STATES]


def _log_gauges(census: Census, now_ms: int) -> dict[str, float]:
    log = census.log
    if log is None or log.oldest_at_ms is None:
        return dict.fromkeys(LOG_GAUGES, 0.0)
    figures = (
        log.last_seq - log.first_seq + 1,
        log.bytes,
        max(0, now_ms - log.oldest_at_ms) / 1000,
    )
    return dict(zip(LOG_GAUGES, figures, strict=True))


def _export_counters(engine: Engine) -> dict[str, int]:
    exporter = engine.exporter
    if exporter is None:
        return dict.fromkeys(EXPORT_COUNTERS, 0)
    figures = (exporter.exported, exporter.files, exporter.trimmed, exporter.lost)
    return dict(zip(EXPORT_COUNTERS, figures, strict=True))


def _export_gauges(engine: Engine) -> dict[str, float]:
    exporter = engine.exporter
    if exporter is None:
        return dict.fromkeys(EXPORT_GAUGES, 0.0)
    return dict(zip(EXPORT_GAUGES, (exporter.lag_batches, exporter.lag_s()), strict=True))


def _body_counters(engine: Engine) -> dict[str, int]:
    bodies = engine.bodies
    if bodies is None:
        return dict.fromkeys(BODY_COUNTERS, 0)
    reader = bodies.reader
    figures = (bodies.written, reader.read, bodies.removed, bodies.orphans, reader.unreadable)
    return dict(zip(BODY_COUNTERS, figures, strict=True))


def _ages(counted: Sequence[Counted], now_ms: int) -> Iterator[tuple[str, str, str, float]]:
    for each in counted:
        for state, since_ms in each.counts.since.items():
            yield each.account, each.queue, state, max(0, now_ms - since_ms) / 1000


def _limited(rows: Iterator[Figures], limit: int) -> Iterator[Figures]:
    """Let *limit* queues pass and add up the others."""
    yield from islice(rows, limit)
    rest = [figures for _, _, figures in rows]
    if rest:
        yield OTHER, OTHER, [sum(column) for column in zip(*rest, strict=True)]
