"""Messages that were done at their first delivery: their last event tells everything.

Most messages are put, received and completed. The event of completing carries the lease that it
ends, when the message came and since when it could be received. Its fence says that there was no
other lease, renewal or move: each of them would have raised it. So these messages need no window,
no sort, and of their other events nothing but to be left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.domain.events import EventType
from leasehold.eventlog.names import PHASE_NAMES, TYPE_NAMES
from leasehold.spark.analytics.lifecycle import KEPT, LEASED, T
from leasehold.spark.analytics.normal import normal
from leasehold.spark.analytics.schemas import Ending, Fate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IS_PLAIN: Final = (
    f"type = '{TYPE_NAMES[EventType.COMPLETED]}' AND phase = '{PHASE_NAMES[LEASED]}'"
    " AND dequeue_count = 1 AND fence = 1"
)


def plain(events: DataFrame) -> DataFrame:
    """Return the last events of messages that were done at their first delivery.

    Args:
        events: With the columns of ``docs/reference/event-log.md``; none may be there twice.
    """
    return events.where(_IS_PLAIN)


def others(events: DataFrame, known: DataFrame, partitions: int) -> DataFrame:
    """Return the events of all other messages, in the form of ``OPEN`` and put together by message.

    Args:
        events: As for :func:`plain`.
        known: Events in that form already.
        partitions: Of the shuffle.
    """
    rest = normal(events.where(f"NOT coalesce({_IS_PLAIN}, FALSE)"))
    done = plain(events).select("message_id").repartition(partitions, "message_id")
    together = known.unionByName(rest).repartition(partitions, "message_id")
    # Spark would sort both sides.
    return together.join(done.hint("shuffle_hash"), "message_id", "left_anti").select(*rest.columns)


def plain_stages(events: DataFrame) -> DataFrame:
    """Return stages, as :func:`~leasehold.spark.analytics.lifecycle.staged` does for the others."""
    told = {
        "is_open": "FALSE",
        "stay": "cast(NULL AS string)",
        "entry_seq": "cast(NULL AS long)",
        "entry_place": "cast(NULL AS int)",
        "a_outcome": f"IF(visible <= at, '{Ending.COMPLETED_LATE}', '{Ending.COMPLETED}')",
        "a_leased": "since",
        "a_lease_end": "visible",
        "a_count": "count",
        "a_holder": "holder",
        "a_session": "session",
        "a_renewals": "renewals",
        "a_first_ms": "visible - since",
        "a_claim": "cast(NULL AS string)",
        "a_refused": "cast(NULL AS long)",
        "a_why": "cast(NULL AS string)",
        "m_outcome": f"'{Fate.COMPLETED}'",
        "m_inserted": "inserted",
        "m_ended": "at",
        "m_deliveries": "1",
        "m_expires": "expires",
        "m_first_at": "since",
        "m_wait_ms": "since - visible_since",
    }
    rows = normal(plain(events), [EventType.COMPLETED]).withColumn("t", F.lit(T["COMPLETED"]))
    return rows.select(
        *(F.expr(told[name]).alias(name) if name in told else F.col(name) for name in KEPT)
    )
