"""Synthetic event logs, made on Spark: as large as wanted, in seconds.

Each message is put, waits, and is worked on. Its work takes a log-normal time that is its own.
Some workers crash, some work outlasts its lease, some attempts fail, and a few messages fail until
they are given up. The events are those that a server writes, in their order; nothing of it comes
from a real queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.spark.schemas import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS_PER_MESSAGE: Final = 3.16
"""On average, with the default shares."""
_BEGIN_MS: Final = 1_767_225_600_000
_ATTEMPTS: Final = 3
_FOREVER: Final = "cast(NULL AS long)"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the synthetic messages are like."""

    queues: int = 4
    """How many, 1 or more; the work of each takes half as long again as that of the one before."""
    types: int = 2
    """Of messages in each queue, 1 or more; their work is alike."""
    workers: int = 50
    """In each queue."""
    median_s: float = 4.0
    """Length of the work in the first queue."""
    sigma: float = 0.8
    """Of its logarithm."""
    lease_s: float = 30.0
    """Of the first attempt; each further one has twice the time."""
    crash_share: float = 0.01
    """Of first attempts whose worker dies."""
    failure_share: float = 0.02
    """Of first attempts that fail."""
    poison_share: float = 0.001
    """Of messages that fail each time."""
    wait_s: float = 2.0
    """Longest wait for a worker."""
    days: float = 7.0
    """Over which the messages are put."""


def event_log(
    spark: SparkSession,
    messages: int,
    *,
    world: World | None = None,
    seed: int = 1,
    partitions: int | None = None,
) -> DataFrame:
    """Return the events of so many messages, in no order; lazily.

    Args:
        spark: The session.
        messages: How many, 1 to 100,000,000. Each has some :data:`EVENTS_PER_MESSAGE` events.
        world: What they are like.
        seed: The same one, with the same number of partitions, gives the same log.
        partitions: Of the result; by default one for each 250,000 messages, two at least.
    """
    world = World() if world is None else world
    parts = max(2, -(-messages // 250_000)) if partitions is None else partitions
    rows = spark.range(0, messages, 1, parts).withColumn("z", F.randn(seed))
    for name, number in (("crash", 1), ("failure", 2), ("poison", 3), ("waiting", 4)):
        rows = rows.withColumn(name, F.rand(seed * 100 + number))
    gap_ms = world.days * 86_400_000 / messages
    rows = rows.selectExpr(
        "id",
        "waiting",
        f"cast({_BEGIN_MS} + id * {gap_ms} AS long) AS put_ms",
        f"cast(id % {world.queues} AS int) AS q",
        "hex(id) AS label",
        f"cast(1000 * {world.median_s} * pow(1.5, id % {world.queues})"
        f" * exp({world.sigma} * z) AS long) + 1 AS work_ms",
        f"crash < {world.crash_share} AS crashes",
        f"failure < {world.failure_share} AS fails",
        f"poison < {world.poison_share} AS is_poison",
    )
    rows = rows.selectExpr(
        "*",
        f"cast(put_ms + 1000 * {world.wait_s} * waiting AS long) AS start_1",
    )
    for number in range(1, _ATTEMPTS + 1):
        rows = _attempt(rows, number, world)
    return _events(rows, world)


def _attempt(rows: DataFrame, number: int, world: World) -> DataFrame:
    """Add how an attempt ends and when, and when the next begins; null for those there are not."""
    lease_ms = int(1000 * world.lease_s * 2 ** (number - 1))
    last = number == _ATTEMPTS
    kind = f"""
    CASE WHEN start_{number} IS NULL THEN NULL WHEN is_poison THEN 'failed'
         WHEN {number} = 1 AND crashes THEN 'crashed' WHEN {number} = 1 AND fails THEN 'failed'
         WHEN NOT {str(last).upper()} AND work_ms > {lease_ms} THEN 'slow' ELSE 'done' END
    """
    ends = f"""
    CASE WHEN kind_{number} = 'failed' THEN start_{number} + least(work_ms, {lease_ms}) DIV 2
         WHEN kind_{number} = 'done' THEN start_{number} + work_ms
         ELSE start_{number} + {lease_ms} END
    """
    goes_on = f"kind_{number} <> 'done'" + (" AND FALSE" if last else "")
    return (
        rows.withColumn(f"kind_{number}", F.expr(kind))
        .withColumn(f"end_{number}", F.expr(ends))
        .withColumn(
            f"start_{number + 1}",
            F.expr(f"IF({goes_on}, end_{number} + 1 + cast(1000 * waiting AS long), NULL)"),
        )
    )


def _events(rows: DataFrame, world: World) -> DataFrame:
    structs = [_struct("'put'", "put_ms", 0, "0", "'waiting'", "put_ms", "put_ms")]
    for number in range(1, _ATTEMPTS + 1):
        start, end, kind = f"start_{number}", f"end_{number}", f"kind_{number}"
        lease_ms = int(1000 * world.lease_s * 2 ** (number - 1))
        until, count = f"{start} + {lease_ms}", str(number)
        leased = (count, "'leased'", start, until)
        before = "put_ms" if number == 1 else f"end_{number - 1}"
        structs += [
            _struct("'received'", start, 1, *leased, seen=before, when=f"{start} IS NOT NULL"),
            _struct("'completed'", end, 0, *leased, seen=before, when=f"{kind} = 'done'"),
        ]
        if number < _ATTEMPTS:
            ran_out = f"{kind} IN ('crashed', 'slow')"
            late = f"greatest({start} + work_ms, start_{number + 1} + 1)"
            again = f"start_{number + 1}"
            next_until = f"{again} + {2 * lease_ms}"
            structs += [
                _struct("'lapsed'", again, 0, *leased, seen=before, when=ran_out),
                _struct(
                    "'refused'",
                    late,
                    2,
                    str(number + 1),
                    "'leased'",
                    start,
                    next_until,
                    seen=end,
                    reason="'superseded'",
                    when=f"{kind} = 'slow' AND {late} < {again} + work_ms",
                ),
                _struct(
                    "'released'",
                    end,
                    0,
                    count,
                    "'deferred'",
                    end,
                    end,
                    seen=before,
                    reason="'failed'",
                    when=f"{kind} = 'failed'",
                ),
            ]
        else:
            structs.append(
                _struct(
                    "'poisoned'",
                    end,
                    0,
                    count,
                    "'waiting'",
                    end,
                    end,
                    seen=before,
                    reason="'max_failures'",
                    when=f"{kind} = 'failed'",
                )
            )
    happened = f"filter(array({', '.join(structs)}), e -> e IS NOT NULL)"
    exploded = rows.selectExpr("id", "label", "q", "put_ms", f"explode({happened}) AS e")
    return _columns(exploded, world)


def _struct(  # noqa: PLR0913, PLR0917 - the parts of an event
    kind: str,
    at: str,
    place: int,
    count: str,
    phase: str,
    since: str,
    until: str,
    *,
    seen: str = _FOREVER,
    reason: str = "cast(NULL AS string)",
    when: str = "TRUE",
) -> str:
    parts = {
        "type": kind,
        "at": at,
        "place": str(place),
        "n": count,
        "phase": phase,
        "since": since,
        "until": until,
        "seen": seen,
        "reason": reason,
    }
    named = ", ".join(f"'{name}', {text}" for name, text in parts.items())
    return f"IF({when}, named_struct({named}), NULL)"


def _columns(exploded: DataFrame, world: World) -> DataFrame:
    failed = "e.type IN ('released', 'poisoned')"
    worker = f"concat('worker-', (id * 31 + e.n * 7) % {world.workers})"
    columns = {
        "seq": f"e.at - {_BEGIN_MS} + 1",
        "place": "id * 4 + e.place",
        "happened_at": "timestamp_millis(e.at)",
        "type": "e.type",
        "account": "'synthetic'",
        "queue": "concat('queue-', q)",
        "message_id": "concat(substr(md5(label), 1, 20), lpad(label, 12, '0'))",
        "inserted_at": "timestamp_millis(put_ms)",
        "expires_at": f"timestamp_millis(put_ms + {7 * 86_400_000})",
        "visible_at": "timestamp_millis(e.until)",
        "dequeue_count": "e.n",
        "fence": "e.n",
        "phase": "e.phase",
        "since": "timestamp_millis(e.since)",
        "visible_since": "timestamp_millis(e.seen)",
        "renewals": "0",
        "holder": f"IF(e.n = 0, NULL, {worker})",
        "priority": "8",
        "reason": "e.reason",
        "target": "IF(e.type = 'poisoned', concat('queue-', q, '-poison'), NULL)",
        "message_type": f"concat('type-', (id DIV {world.queues}) % {world.types})",
        "error_type": f"IF({failed}, 'ValueError', NULL)",
        "error_fingerprint": f"IF({failed}, hex(id % 8), NULL)",
        "error": f"IF({failed}, concat('it cannot be done: ', label), NULL)",
    }
    return exploded.select(
        *(
            F.expr(columns.get(field.name, "NULL")).cast(field.dataType).alias(field.name)
            for field in EVENTS
        )
    )
