"""A worker's figures for Prometheus. Needs ``prometheus-client``.

They are read when they are asked for; handling a message costs nothing more. All names begin with
``leasehold_worker_``, and all have the label ``worker``, the worker's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from leasehold.worker.reporting import BOUNDS_S, Snapshot, Stats

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_PREFIX: Final = "leasehold_worker_"
_QUEUE: Final = ("worker", "queue")
_WORKER: Final = ("worker",)

COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "received": ("Messages received.", _QUEUE),
    "ended": (
        "Messages whose work has ended, by outcome; failed ones are retried.",
        (*_QUEUE, "outcome"),
    ),
    "redone": ("Messages delivered again after they were done; completed immediately.", _QUEUE),
    "receive_errors": ("Receives that failed.", _QUEUE),
    "settle_errors": ("Messages that could not be settled and are delivered again.", _QUEUE),
    "hook_failures": ("Hooks that raised an error.", _WORKER),
    "dead_processes": ("Handler processes that died while processing a message.", _WORKER),
    "lost_sessions": ("Sessions that were lost, with all their leases.", _WORKER),
    "renewals": ("Leases renewed.", _WORKER),
    "late_renewals": ("Times that renewals were late enough to endanger leases.", _WORKER),
}
"""By name without the prefix and ``_total``."""

GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "in_work": ("Messages with a handler.", _QUEUE),
    "buffered": ("Messages received that no handler has started.", _QUEUE),
    "concurrency": ("Largest number of messages processed at the same time.", _WORKER),
    "prefetch": ("Current limit of the buffer, in messages.", _WORKER),
    "oldest_in_work_seconds": (
        "Age of the oldest message in progress; 0 if there is none.",
        _WORKER,
    ),
    "renewal_lag_seconds": ("Delay of the last round of renewals.", _WORKER),
}

HISTOGRAM: Final = "handling_seconds"


class Exported(Protocol):
    """What a worker shows of itself."""

    name: str

    @property
    def stats(self) -> Stats:
        """What it has done so far."""
        ...

    @property
    def hook_failures(self) -> int:
        """How many hooks have raised an error."""
        ...

    def snapshot(self) -> Snapshot:
        """Return how it is doing at the moment."""
        ...


def export(worker: Exported, registry: CollectorRegistry | None = None) -> None:
    """Have a worker's figures in a registry for as long as the worker exists.

    Args:
        worker: Several in one registry should have different names.
        registry: None: the default one.

    Raises:
        ImportError: prometheus-client is not installed.
    """
    import prometheus_client  # noqa: PLC0415 - optional

    where = prometheus_client.REGISTRY if registry is None else registry
    collector = _collectors.get(where)
    if collector is None:
        collector = _collectors[where] = _Collector()
        where.register(collector)
    collector.workers.add(worker)


class _Collector:
    """Of all workers in one registry: a name may be registered there once."""

    def __init__(self) -> None:
        self.workers: WeakSet[Exported] = WeakSet()

    def describe(self) -> Iterable[Metric]:
        """Return what there will be, so that nobody is asked for it before there is anything."""
        return _families().values()

    def collect(self) -> Iterator[Metric]:
        """Return the figures as they are now."""
        families = _families()
        for worker in list(self.workers):
            _add(families, worker)
        yield from families.values()


_collectors: Final[WeakKeyDictionary[Any, _Collector]] = WeakKeyDictionary()


def _families() -> dict[str, Any]:
    from prometheus_client import core  # noqa: PLC0415 - optional

    families: dict[str, Any] = {}
    for name, (text, labels) in COUNTERS.items():
        families[name] = core.CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for name, (text, labels) in GAUGES.items():
        families[name] = core.GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    text = "Duration of handlers."
    families[HISTOGRAM] = core.HistogramMetricFamily(_PREFIX + HISTOGRAM, text, labels=_QUEUE)
    return families


def _add(families: Mapping[str, Any], worker: Exported) -> None:
    stats, now = worker.stats, worker.snapshot()
    own = [worker.name]
    for queue in stats.queues:
        labels = [worker.name, queue.queue]
        for name in ("received", "redone", "receive_errors", "settle_errors"):
            families[name].add_metric(labels, getattr(queue, name))
        for kind, count in queue.outcomes.items():
            families["ended"].add_metric([*labels, kind.value], count)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(queue.handled), strict=True))
        families[HISTOGRAM].add_metric(labels, buckets=buckets, sum_value=queue.handling_s)
        families["in_work"].add_metric(labels, now.in_work_by_queue.get(queue.queue, 0))
        families["buffered"].add_metric(labels, now.buffered_by_queue.get(queue.queue, 0))
    figures = {
        "hook_failures": worker.hook_failures,
        "dead_processes": stats.dead_processes,
        "lost_sessions": stats.lost_sessions,
        "late_renewals": stats.late_renewals,
        "renewals": now.renewals,
        "concurrency": now.concurrency,
        "prefetch": now.prefetch,
        "oldest_in_work_seconds": now.oldest_s or 0.0,
        "renewal_lag_seconds": now.lag_s,
    }
    for name, value in figures.items():
        families[name].add_metric(own, value)
