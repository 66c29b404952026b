"""What ``/metrics`` tells: plain counters while serving, Prometheus' text when asked.

The hot path adds integers. At a scrape the counters are copied, which takes well under a
millisecond for a thousand queues, and the copy is written out on another thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from leasehold import __version__
from leasehold.clock import Clock
from leasehold.domain.oversight import COUNTED_STATES
from leasehold.engine.engine import Counted, Engine
from leasehold.engine.stats import LATENCY_BUCKETS_S, Histogram, QueueStats
from leasehold.http.admission import Admission
from leasehold.http.guard import Guard

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
OTHER: Final = "_other"
"""Account and queue under which the queues above the limit are added up; neither can exist."""

_QUEUE_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "sent": ("queue_sent", "Messages put."),
    "received": ("queue_received", "Messages received, each delivery counted."),
    "redelivered": ("queue_redeliveries", "Messages received for the second time or later."),
    "renewed": ("queue_lease_renewals", "Leases renewed, and messages given back or changed."),
    "completed": ("queue_completed", "Messages deleted by their holders."),
    "released": ("queue_released", "Messages given back with an outcome."),
    "poisoned": ("queue_poisoned", "Messages moved to the poison queue when given back."),
    "rejected_receipts": ("queue_receipt_rejected", "Stale or foreign receipts turned away."),
}


_Figures: TypeAlias = tuple[str, str, Sequence[int]]
"""Account, queue, figures."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Copies of all counters, taken at one moment."""

    requests: Sequence[tuple[str, int, int]]
    """Operation, status, count."""
    seconds: Sequence[tuple[str, Sequence[int], float]]
    """Operation, counts per bucket, sum."""
    commits: tuple[Sequence[int], float]
    refused: Sequence[tuple[str, int]]
    queues: Sequence[_Figures]
    """Counters in the order of their names above; queues without events are left out."""
    messages: Sequence[_Figures]
    """How many messages of each queue are in each state."""
    ages: Sequence[tuple[str, str, str, float]]
    """Account, queue, state, seconds that its oldest message has been in it."""
    timeouts: Sequence[tuple[str, str, int]]
    """Account, queue, visibility timeout in force."""
    counters: Mapping[str, int]
    gauges: Mapping[str, float]


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
        snapshot = self.snapshot(await self._engine.counts())
        return await asyncio.to_thread(self._write, snapshot)

    def snapshot(self, counted: Sequence[Counted] = ()) -> Snapshot:
        """Copy the counters; call it in the event loop, where they are changed.

        Args:
            counted: What the engine has counted just now.
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
            counters={
                "server_commands": stats.commands,
                "server_batches": stats.batches,
                "server_overloaded": admission.refused,
                "server_connections_accepted": guard.accepted,
            },
            gauges={
                "server_connections": len(guard.connections),
                "server_buffered_bytes": guard.buffered,
                "server_pending_requests": admission.pending,
                "server_waiting_receives": admission.waiting,
                "server_store_writable": float(self._engine.health().writable),
                "server_clock_drift_seconds": self._clock.wall_drift_s(),
            },
        )

    def _write(self, snapshot: Snapshot) -> bytes:
        return generate_latest(_Families(snapshot)) + generate_latest(self._process)


class _Families(CollectorRegistry):
    """Families made from a snapshot, in the form that prometheus_client writes out."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Make the families one by one."""
        yield from _request_families(self._snapshot)
        yield from _server_families(self._snapshot)
        yield from _queue_families(self._snapshot)


def _request_families(snapshot: Snapshot) -> Iterator[Metric]:
    total = CounterMetricFamily("server_requests", "Requests answered.", labels=("verb", "status"))
    for verb, status, count in snapshot.requests:
        total.add_metric((verb, str(status)), count)
    yield total
    seconds = HistogramMetricFamily(
        "server_request_seconds", "From a request's header to its answer.", labels=("verb",)
    )
    for verb, counts, sum_s in snapshot.seconds:
        seconds.add_metric((verb,), _buckets(counts), sum_s)
    yield seconds


_HELP: Final[Mapping[str, str]] = {
    "server_commands": "Commands carried out by the store.",
    "server_batches": "Transactions; commands divided by batches is the size of a batch.",
    "server_overloaded": "Requests turned away because too many were waiting.",
    "server_connections_accepted": "Connections since the start.",
    "server_connections": "Open connections.",
    "server_buffered_bytes": "Bodies of requests that are not answered yet.",
    "server_pending_requests": "Requests waiting for the store.",
    "server_waiting_receives": "Receives waiting for messages.",
    "server_store_writable": "0 while the disk is full.",
    "server_clock_drift_seconds": "How far the wall clock was moved since the server started.",
}


def _server_families(snapshot: Snapshot) -> Iterator[Metric]:
    info = GaugeMetricFamily("server_info", "Always 1.", labels=("version",))
    info.add_metric((__version__,), 1)
    yield info
    fsync = HistogramMetricFamily("server_fsync_seconds", "Commits: the wait for the disk.")
    counts, sum_s = snapshot.commits
    fsync.add_metric((), _buckets(counts), sum_s)
    yield fsync
    refused = CounterMetricFamily(
        "server_refused_connections", "Connections ended by the server.", labels=("reason",)
    )
    for reason, count in snapshot.refused:
        refused.add_metric((reason,), count)
    yield refused
    for name, value in snapshot.counters.items():
        yield CounterMetricFamily(name, _HELP[name], value=value)
    for name, gauge in snapshot.gauges.items():
        yield GaugeMetricFamily(name, _HELP[name], value=gauge)


def _queue_families(snapshot: Snapshot) -> Iterator[Metric]:
    for place, (name, text) in enumerate(_QUEUE_COUNTERS.values()):
        family = CounterMetricFamily(name, text, labels=("account", "queue"))
        for account, queue, figures in snapshot.queues:
            family.add_metric((account, queue), figures[place])
        yield family
    messages = GaugeMetricFamily(
        "queue_messages",
        "Messages by state, all of one queue at one instant; poisoned: in its poison queue.",
        labels=("account", "queue", "state"),
    )
    for account, queue, counts in snapshot.messages:
        for state, count in zip(COUNTED_STATES, counts, strict=True):
            messages.add_metric((account, queue, state), count)
    yield messages
    ages = GaugeMetricFamily(
        "queue_oldest_message_seconds",
        "How long the message that is longest in a state has been in it.",
        labels=("account", "queue", "state"),
    )
    for account, queue, oldest_in, age_s in snapshot.ages:
        ages.add_metric((account, queue, oldest_in), age_s)
    yield ages
    timeouts = GaugeMetricFamily(
        "queue_visibility_timeout_seconds",
        "The lease of a receive that names none, as set or adapted.",
        labels=("account", "queue"),
    )
    for account, queue, timeout_s in snapshot.timeouts:
        timeouts.add_metric((account, queue), timeout_s)
    yield timeouts


def _events(queues: Mapping[tuple[str, str], QueueStats]) -> Iterator[_Figures]:
    names = tuple(_QUEUE_COUNTERS)
    for key, stats in queues.items():
        yield *key, [getattr(stats, name) for name in names]


def _by_state(counted: Sequence[Counted]) -> Iterator[_Figures]:
    for each in counted:
        figures = [getattr(each.counts, state) for state in COUNTED_STATES]
        yield each.account, each.queue, figures


def _ages(counted: Sequence[Counted], now_ms: int) -> Iterator[tuple[str, str, str, float]]:
    for each in counted:
        for state, since_ms in each.counts.since.items():
            yield each.account, each.queue, state, max(0, now_ms - since_ms) / 1000


def _limited(rows: Iterator[_Figures], limit: int) -> Iterator[_Figures]:
    """Let *limit* queues pass and add up the others."""
    yield from islice(rows, limit)
    rest = [figures for _, _, figures in rows]
    if rest:
        yield OTHER, OTHER, [sum(column) for column in zip(*rest, strict=True)]


def _buckets(counts: Iterable[int]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))
