"""What ``leasehold worker run`` says before it begins, and when it is over."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.listing import Cell, Column, Listing
from leasehold.cli.texts import clean, counted, length, number, per_second
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.outcomes import Kind
from leasehold.worker.retrying import PoisonRule, RetryRule
from leasehold.worker.stats import QueueStats, Stats

_COLUMNS: Final = (
    Column("QUEUE", cut=True, least=8),
    Column("DONE", right=True),
    Column("FAILED", right=True),
    Column("GIVEN BACK", right=True),
    Column("BURIED", right=True),
    Column("LOST", right=True),
    Column("PER SECOND", right=True, drop=1),
)
_FIRST_WAITS: Final = 3
_MIDDLE: Final = 0.5
_TROUBLES: Final = (
    ("receive_errors", "Receives that failed"),
    ("settle_errors", "Messages that could not be settled, and come again"),
    ("redone", "Messages that came again although they were done"),
)


def lease_text(lease: LeaseSettings, renewer: str) -> str:
    """Say how leases are kept."""
    by = "a process of its own" if renewer == "process" else "a thread"
    return (
        f"{length(lease.visibility_timeout_s)}, renewed by {by} when {length(lease.renew_at_s)} are"
        f" left, for {length(lease.message_timeout_s)} at most"
    )


def prefetch_text(prefetch: int | None) -> str:
    """Say how many messages may wait."""
    if prefetch is None:
        return "as many messages as bridge the round trips"
    if prefetch == 0:
        return "none: a message is received when there is a hand free for it"
    return f"at most {number(prefetch)}, and no more than can begin within their lease"


def failures_text(retries: RetryRule, poison: PoisonRule) -> str:
    """Say what becomes of a message whose work fails."""
    most = poison.max_failures or 1
    unseen = f"or unseen after {counted(poison.most_deliveries or 0, 'delivery', 'deliveries')}"
    if most == 1:
        return f"a message whose work fails is buried, {unseen}"
    waits = (retries.delay_s(tries, _MIDDLE) or 0 for tries in range(1, most))
    shown = ", ".join(length(each) for each in islice(waits, _FIRST_WAITS))
    more = ", ..." if most - 1 > _FIRST_WAITS else ""
    return f"tried again after {shown}{more}; buried by failure {number(most)}, {unseen}"


def summary_table(stats: Stats, took_s: float) -> RenderableType:
    """Return what was done, a row for each queue."""
    rows = [_row(each.queue, [each], took_s) for each in stats.queues]
    foot = _row("all", stats.queues, took_s) if len(rows) > 1 else None
    parts: list[RenderableType] = [Listing(_COLUMNS, rows, foot=foot)]
    parts += [Text(f"{what}: {number(many)}", "yellow") for many, what in _troubles(stats) if many]
    return Group(*parts)


def summary_members(name: str, stats: Stats, took_s: float) -> dict[str, Any]:
    """Return the same for scripts."""
    return {
        "worker": name,
        "seconds": round(took_s, 3),
        "queues": [
            {
                "queue": each.queue,
                **_counts([each]),
                "receive_errors": each.receive_errors,
                "settle_errors": each.settle_errors,
                "redone": each.redone,
            }
            for each in stats.queues
        ],
        **_counts(stats.queues),
        "done_per_second": round(_counts(stats.queues)["done"] / took_s, 3) if took_s else 0.0,
        "lost_sessions": stats.lost_sessions,
        "dead_processes": stats.dead_processes,
        "late_renewals": stats.late_renewals,
    }


def _counts(queues: Iterable[QueueStats]) -> dict[str, int]:
    def count(*kinds: Kind) -> int:
        return sum(each.outcomes[kind] for each in found for kind in kinds)

    found = list(queues)
    return {
        "done": count(Kind.DONE),
        "failed": count(Kind.FAILED),
        "given_back": count(Kind.RETURNED, Kind.INTERRUPTED),
        "buried": count(Kind.POISONED, Kind.CANCELLED),
        "lost": count(Kind.LOST),
    }


def _row(name: str, queues: Iterable[QueueStats], took_s: float) -> tuple[Cell, ...]:
    counts = _counts(queues)
    rate = counts["done"] / took_s if took_s > 0 else 0.0
    return (clean(name), *map(number, counts.values()), per_second(rate))


def _troubles(stats: Stats) -> Iterable[tuple[int, str]]:
    for name, what in _TROUBLES:
        yield sum(getattr(each, name) for each in stats.queues), what
    yield stats.lost_sessions, "Sessions that were lost, with all their leases"
    yield stats.dead_processes, "Processes of handlers that died"
    yield stats.late_renewals, "Times that renewals were late enough to endanger leases"
