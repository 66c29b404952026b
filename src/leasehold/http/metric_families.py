"""The families of ``/metrics``: names, help texts, and how figures become samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from leasehold import __version__
from leasehold.domain.oversight import COUNTED_STATES
from leasehold.engine.census import CLAIM_STATES
from leasehold.engine.stats import LATENCY_BUCKETS_S

QUEUE_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "sent": ("queue_sent", "Messages put."),
    "received": ("queue_received", "Messages received, each delivery counted."),
    "redelivered": ("queue_redeliveries", "Messages received for the second time or later."),
    "renewed": ("queue_lease_renewals", "Leases renewed, and messages given back or changed."),
    "completed": ("queue_completed", "Messages deleted by their holders."),
    "released": ("queue_released", "Messages given back with an outcome."),
    "poisoned": ("queue_poisoned", "Messages moved to the poison queue when given back."),
    "rejected_receipts": ("queue_receipt_rejected", "Stale or foreign receipts turned away."),
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
    """How many messages of each queue are in each state, and how many are claimed and staged."""
    ages: Sequence[tuple[str, str, str, float]]
    """Account, queue, state, seconds that its oldest message has been in it."""
    timeouts: Sequence[tuple[str, str, int]]
    """Account, queue, visibility timeout in force."""
    claims: Sequence[Figures]
    """How many claims of each queue are in each state, for queues with streams."""
    sessions: Sequence[tuple[str, str, int]]
    """Account, state, how many."""
    counters: Mapping[str, int]
    gauges: Mapping[str, float]


class Families(CollectorRegistry):
    """Families made from a snapshot, in the form that prometheus_client writes out.

    Args:
        snapshot: Copies of all counters.
    """

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
    "server_buffered_bytes": "Bodies of requests that are not answered yet, and large answers.",
    "server_unproved_bytes": "What is held for requests without credentials.",
    "server_pending_requests": "Requests waiting for the store.",
    "server_waiting_receives": "Receives and claims waiting for messages.",
    "server_store_writable": "0 while the disk is full.",
    "server_clock_drift_seconds": "How far the wall clock was moved since the server started.",
    "server_sessions_lost": "Sessions lost because their worker went silent.",
    "server_event_batches": "Batches of events in the event log.",
    "server_event_bytes": "What they take, roughly.",
    "server_event_oldest_seconds": "Age of the oldest of them; 0 if there is none.",
    "server_events_exported": "Events written to files of the export.",
    "server_event_files": "Files of the export written.",
    "server_event_batches_forgotten": "Batches of events removed from the event log.",
    "server_event_batches_lost": "Of these, batches that were to be exported and were not.",
    "server_event_export_lag_batches": "Batches that the last export left for the next one.",
    "server_event_export_lag_seconds": "How long ago the last complete export began.",
    "server_bodies_written": "Large bodies written to the body store.",
    "server_bodies_read": "Large bodies asked of the body store.",
    "server_bodies_removed": "Large bodies removed because their messages were gone.",
    "server_bodies_orphaned": "Large bodies removed that no message had ever named.",
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
    for account, queue, (*counts, in_claims, not_published) in snapshot.messages:
        for state, count in zip(COUNTED_STATES, counts, strict=True):
            messages.add_metric((account, queue, state), count)
        claimed.add_metric((account, queue), in_claims)
        staged.add_metric((account, queue), not_published)
    yield from (messages, claimed, staged)
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


def _buckets(counts: Iterable[int]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))
