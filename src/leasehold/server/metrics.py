"""What ``/metrics`` tells: plain counters while serving, Prometheus' text when asked.

The hot path adds integers. At a scrape the counters are copied, which takes well under a
millisecond for a thousand queues, and the copy is written out on another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
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
from leasehold.domain.admin import COUNTED_STATES
from leasehold.domain.model import MessageState, QueueKey
from leasehold.engine.account_router import ServerEngine
from leasehold.engine.engine import Counted
from leasehold.engine.stats import (
    CLAIM_STATES,
    LATENCY_BUCKETS_S,
    NOTHING,
    GroupsCounter,
    GroupTotals,
    QueueStats,
    Totals,
)
from leasehold.http.admission import Admission
from leasehold.http.app import RequestStats
from leasehold.http.guard import Guard

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_NO_GROUPS: Final[Mapping[QueueKey, GroupTotals]] = {}
PREFIX: Final = "leasehold_"
"""Of the name of every metric, but for those of the process."""
OTHER: Final = "_other"
"""Account and queue under which the queues above the limit are added up; neither can exist."""


class Metrics:
    """Collects the figures of one server.

    Args:
        requests: Counters of the application.
        engine: Its counters, and how its store is.
        admission: How many requests wait.
        guard: Connections, and why some were refused.
        clock: How far the wall clock was moved.
        max_queues: Queues with figures of their own; the rest are added up.
        groups: Message groups of each queue with figures of their own; 0 to count none.
        old_names: Whether each figure is also told under the name that it had before 0.2.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a source of figures
        self,
        *,
        requests: RequestStats,
        engine: ServerEngine,
        admission: Admission,
        guard: Guard,
        clock: Clock,
        max_queues: int,
        groups: int = 0,
        old_names: bool = False,
    ) -> None:
        self._requests = requests
        self._engine = engine
        self._admission = admission
        self._guard = guard
        self._clock = clock
        self._max_queues = max_queues
        self._old_names = old_names
        self._groups = GroupsCounter(engine.perform, clock, groups)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def text(self) -> bytes:
        """Return the page in Prometheus' text format."""
        counted = await self._engine.counts()
        grouped = [
            (each.account, each.queue) for each in counted[: self._max_queues] if each.has_groups
        ]
        groups = await self._groups.take(grouped)
        snapshot = self.snapshot(counted, await self._engine.totals(), groups)
        return await asyncio.to_thread(self._write, snapshot)

    def snapshot(
        self,
        counted: Sequence[Counted] = (),
        totals: Totals = NOTHING,
        groups: Mapping[QueueKey, GroupTotals] = _NO_GROUPS,
    ) -> Snapshot:
        """Copy the counters; call it in the event loop, where they are changed.

        Args:
            counted: What the engine has counted just now.
            totals: That as well.
            groups: What was counted of message groups some seconds ago.
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
            claims=list(_limited(_claims(totals), self._max_queues)),
            groups=groups,
            groups_age_s=[
                (*key, max(0, self._clock.now_ms() - each.at_ms) / 1000)
                for key, each in groups.items()
            ],
            sessions=[(*key, number) for key, number in totals.sessions.items()],
            counters={
                "server_sessions_lost": totals.lost_sessions,
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
                **_log_gauges(totals, self._clock.now_ms()),
                **_export_gauges(self._engine),
            },
        )

    def _write(self, snapshot: Snapshot) -> bytes:
        return generate_latest(Families(snapshot, self._old_names)) + generate_latest(self._process)


def _events(queues: Mapping[tuple[str, str], QueueStats]) -> Iterator[Figures]:
    names = tuple(QUEUE_COUNTERS)
    for key, stats in queues.items():
        yield *key, [getattr(stats, name) for name in names]


def _by_state(counted: Sequence[Counted]) -> Iterator[Figures]:
    for each in counted:
        counts = each.counts
        figures = [getattr(counts, state) for state in COUNTED_STATES]
        yield (
            each.account,
            each.queue,
            [
                *figures,
                counts.claimed,
                counts.staged,
                counts.halted_groups,
                counts.held_groups,
            ],
        )


def _claims(totals: Totals) -> Iterator[Figures]:
    for key, states in totals.claims.items():
        yield *key, [states[state] for state in CLAIM_STATES]


def _log_gauges(totals: Totals, now_ms: int) -> dict[str, float]:
    log = totals.log
    if log is None or log.oldest_at_ms is None:
        return dict.fromkeys(LOG_GAUGES, 0.0)
    figures = (
        log.last_seq - log.first_seq + 1,
        log.bytes,
        max(0, now_ms - log.oldest_at_ms) / 1000,
    )
    return dict(zip(LOG_GAUGES, figures, strict=True))


def _export_counters(engine: ServerEngine) -> dict[str, int]:
    exporter = engine.exporter
    if exporter is None:
        return dict.fromkeys(EXPORT_COUNTERS, 0)
    figures = (exporter.exported, exporter.files, exporter.trimmed, exporter.lost)
    return dict(zip(EXPORT_COUNTERS, figures, strict=True))


def _export_gauges(engine: ServerEngine) -> dict[str, float]:
    exporter = engine.exporter
    if exporter is None:
        return dict.fromkeys(EXPORT_GAUGES, 0.0)
    return dict(zip(EXPORT_GAUGES, (exporter.lag_batches, exporter.lag_s()), strict=True))


def _body_counters(engine: ServerEngine) -> dict[str, int]:
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


# --- metric families ---------------------------------------------------------------------------
#
# The families of ``/metrics``: names, help texts, and how figures become samples.


QUEUE_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "sent": ("queue_sent", "Messages put."),
    "received": ("queue_received", "Messages received, each delivery counted."),
    "redelivered": ("queue_redeliveries", "Messages received for the second time or later."),
    "renewed": ("queue_lease_renewals", "Leases renewed, and messages released or changed."),
    "completed": ("queue_completed", "Messages deleted by their holders."),
    "released": ("queue_released", "Messages released with an outcome."),
    "failed": ("queue_failed", "Of these, messages released as failed."),
    "poisoned": ("queue_poisoned", "Messages moved to the poison queue when released."),
    "rejected_receipts": ("queue_receipt_rejected", "Stale or foreign receipts refused."),
}


Figures: TypeAlias = tuple[str, str, Sequence[int]]
"""Account, queue, figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Copies of all counters, taken at one moment."""

    requests: Sequence[tuple[str, int, int]]
    """Operation, status, count."""
    seconds: Sequence[tuple[str, Sequence[int], float]]
    """Operation, counts per bucket, sum."""
    commits: tuple[Sequence[int], float]
    refused: Sequence[tuple[str, int]]
    queues: Sequence[Figures]
    """Counters in the order of their names above; queues without events are left out."""
    messages: Sequence[Figures]
    """How many messages of each queue are in each state, and how many are claimed and staged;
    and how many groups stand still, and are held."""
    ages: Sequence[tuple[str, str, str, float]]
    """Account, queue, state, seconds that its oldest message has been in it."""
    timeouts: Sequence[tuple[str, str, int]]
    """Account, queue, visibility timeout in force."""
    claims: Sequence[Figures]
    """How many claims of each queue are in each state, for queues with streams."""
    groups: Mapping[QueueKey, GroupTotals]
    """Message groups of queues, as far as they are counted."""
    groups_age_s: Sequence[tuple[str, str, float]]
    """Account, queue, seconds since they were."""
    sessions: Sequence[tuple[str, str, int]]
    """Account, state, how many."""
    counters: Mapping[str, int]
    gauges: Mapping[str, float]


class Families(CollectorRegistry):
    """Families made from a snapshot, in the form that prometheus_client writes out.

    Args:
        snapshot: Copies of all counters.
        old_names: Whether to give each family a second time, without the prefix.
    """

    def __init__(self, snapshot: Snapshot, old_names: bool = False) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._old_names = old_names

    def collect(self) -> Iterator[Metric]:
        """Make the families one by one."""
        snapshot = self._snapshot
        parts = (_request_families, _server_families, _queue_families)
        for family in chain.from_iterable(part(snapshot) for part in parts):
            if self._old_names:
                yield family
            yield _prefixed(family)


def _prefixed(family: Metric) -> Metric:
    # In one place, so that no family can be without it.
    named = Metric(PREFIX + family.name, family.documentation, family.type)
    named.samples = [each._replace(name=PREFIX + each.name) for each in family.samples]
    return named


def _request_families(snapshot: Snapshot) -> Iterator[Metric]:
    total = CounterMetricFamily("server_requests", "Requests answered.", labels=("verb", "status"))
    for verb, status, count in snapshot.requests:
        total.add_metric((verb, str(status)), count)
    yield total
    seconds = HistogramMetricFamily(
        "server_request_seconds", "Time from a request's header to its response.", labels=("verb",)
    )
    for verb, counts, sum_s in snapshot.seconds:
        seconds.add_metric((verb,), _buckets(counts), sum_s)
    yield seconds


_HELP: Final[Mapping[str, str]] = {
    "server_commands": "Commands executed by the store.",
    "server_batches": "Transactions; commands divided by batches is the size of a batch.",
    "server_overloaded": "Requests refused because too many were waiting.",
    "server_connections_accepted": "Connections since the start.",
    "server_connections": "Open connections.",
    "server_buffered_bytes": "Bytes of request bodies without a response yet, and of large "
    "responses.",
    "server_unproved_bytes": "Of these, bytes for requests without credentials.",
    "server_pending_requests": "Requests waiting for the store.",
    "server_waiting_receives": "Receives and claims waiting for messages.",
    "server_store_writable": "0 while the disk is full.",
    "server_clock_drift_seconds": "How far the wall clock has moved since the server started.",
    "server_sessions_lost": "Sessions lost because no heartbeat arrived.",
    "server_event_batches": "Batches of events in the event log.",
    "server_event_bytes": "Approximate size of the event log.",
    "server_event_oldest_seconds": "Age of the oldest batch of events; 0 if there is none.",
    "server_events_exported": "Events written to files of the export.",
    "server_event_files": "Files of the export written.",
    "server_event_batches_forgotten": "Batches of events removed from the event log.",
    "server_event_batches_lost": "Of these, batches that were lost to the export.",
    "server_event_export_lag_batches": "Batches that the last export left for the next one.",
    "server_event_export_lag_seconds": "Time since the last complete export began.",
    "server_bodies_written": "Large bodies written to the body store.",
    "server_bodies_read": "Large bodies requested from the body store.",
    "server_bodies_removed": "Large bodies removed because their messages were gone.",
    "server_bodies_orphaned": "Large bodies removed that no message ever referenced.",
    "server_bodies_unreadable": "Reads of large bodies that found them missing or corrupt.",
}


LOG_GAUGES: Final = ("server_event_batches", "server_event_bytes", "server_event_oldest_seconds")
EXPORT_COUNTERS: Final = (
    "server_events_exported",
    "server_event_files",
    "server_event_batches_forgotten",
    "server_event_batches_lost",
)
EXPORT_GAUGES: Final = ("server_event_export_lag_batches", "server_event_export_lag_seconds")
BODY_COUNTERS: Final = (
    "server_bodies_written",
    "server_bodies_read",
    "server_bodies_removed",
    "server_bodies_orphaned",
    "server_bodies_unreadable",
)
"""All of these are 0 for a server without an export, or without a body store."""


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
    sessions = GaugeMetricFamily(
        "server_sessions",
        "Sessions by state; those that are over for the hour for which they are remembered.",
        labels=("account", "state"),
    )
    for account, state, number in snapshot.sessions:
        sessions.add_metric((account, state), number)
    yield sessions


def _queue_families(snapshot: Snapshot) -> Iterator[Metric]:
    for place, (name, text) in enumerate(QUEUE_COUNTERS.values()):
        family = CounterMetricFamily(name, text, labels=("account", "queue"))
        for account, queue, figures in snapshot.queues:
            family.add_metric((account, queue), figures[place])
        yield family
    messages = GaugeMetricFamily(
        "queue_messages",
        "Messages by state, all of one queue at one instant; poisoned: in its poison queue; "
        "expired: not removed yet.",
        labels=("account", "queue", "state"),
    )
    claimed = GaugeMetricFamily(
        "queue_claimed_messages",
        "Leased messages that are members of claims.",
        labels=("account", "queue"),
    )
    staged = GaugeMetricFamily(
        "queue_staged_messages",
        "Messages staged for the queue and not published.",
        labels=("account", "queue"),
    )
    halted = GaugeMetricFamily(
        "queue_halted_groups",
        "Halted message groups.",
        labels=("account", "queue"),
    )
    held = GaugeMetricFamily(
        "queue_held_groups",
        "Message groups held by sessions.",
        labels=("account", "queue"),
    )
    for account, queue, (*counts, in_claims, not_published, standing, in_hold) in snapshot.messages:
        for state, count in zip(COUNTED_STATES, counts, strict=True):
            messages.add_metric((account, queue, state), count)
        claimed.add_metric((account, queue), in_claims)
        staged.add_metric((account, queue), not_published)
        halted.add_metric((account, queue), standing)
        held.add_metric((account, queue), in_hold)
    yield from (messages, claimed, staged, halted, held)
    yield from _group_families(snapshot)
    claims = GaugeMetricFamily(
        "queue_claims",
        "Claims that are not settled, by state; for queues with streams.",
        labels=("account", "queue", "state"),
    )
    for account, queue, figures in snapshot.claims:
        for claim_state, count in zip(CLAIM_STATES, figures, strict=True):
            claims.add_metric((account, queue, claim_state), count)
    yield claims
    ages = GaugeMetricFamily(
        "queue_oldest_message_seconds",
        "Age in its state of the message that has been in it longest.",
        labels=("account", "queue", "state"),
    )
    for account, queue, oldest_in, age_s in snapshot.ages:
        ages.add_metric((account, queue, oldest_in), age_s)
    yield ages
    timeouts = GaugeMetricFamily(
        "queue_visibility_timeout_seconds",
        "Length of a lease unless the receive sets one, as set or adapted.",
        labels=("account", "queue"),
    )
    for account, queue, timeout_s in snapshot.timeouts:
        timeouts.add_metric((account, queue), timeout_s)
    yield timeouts


def _group_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Make the families of groups; they have no samples where groups are not counted."""
    of_queue = ("account", "queue")
    groups = GaugeMetricFamily(
        "queue_groups",
        "Message groups that have messages waiting, have some in flight, or are noisy.",
        labels=(*of_queue, "state"),
    )
    messages = GaugeMetricFamily(
        "queue_group_messages",
        "Messages of the groups with the most messages waiting.",
        labels=(*of_queue, "group", "state"),
    )
    oldest = GaugeMetricFamily(
        "queue_group_oldest_message_seconds",
        "Age of the oldest visible message of such a group.",
        labels=(*of_queue, "group"),
    )
    for queue, totals in snapshot.groups.items():
        for state in ("waiting", "in_flight", "noisy"):
            groups.add_metric((*queue, state), getattr(totals, state))
        for name, figures in totals.largest:
            messages.add_metric((*queue, name, MessageState.VISIBLE), figures.waiting)
            messages.add_metric((*queue, name, MessageState.LEASED), figures.in_flight)
            if figures.oldest_ms is not None:
                age_s = max(0, totals.at_ms - figures.oldest_ms) / 1000
                oldest.add_metric((*queue, name), age_s)
    ages = GaugeMetricFamily(
        "queue_groups_age_seconds",
        "Time since the message groups of the queue were counted.",
        labels=of_queue,
    )
    for account, name, age_s in snapshot.groups_age_s:
        ages.add_metric((account, name), age_s)
    yield from (groups, messages, oldest, ages)


def _buckets(counts: Iterable[int]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))
