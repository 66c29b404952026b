"""Events in the form that the lifecycle is made of: moments and words as numbers, few columns.

What is not about a message, and matters to many at once, is kept apart as a mark: a queue that was
cleared or deleted, a session that was lost or ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.domain.events import EventType
from leasehold.domain.types import Phase
from leasehold.eventlog.names import PHASE_NAMES, TYPE_NAMES
from leasehold.spark.analytics.schemas import OPEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STARTING: Final = (EventType.PUT, EventType.PUBLISHED)
"""With these a message comes into its first queue."""
MOVING: Final = (EventType.POISONED, EventType.REDRIVEN)
"""With these it leaves a queue and comes into another."""
ARRIVED: Final = 127
"""In place of an event of moving, as 0.1 kept events of messages that had not ended: the stay that
it ended was told, and the message is in its new queue. Not a type of the log."""
TAKING: Final = (EventType.RECEIVED, EventType.CLAIMED)
ENDING: Final = (EventType.COMPLETED, EventType.SETTLED, EventType.EXPIRED, EventType.REMOVED)
"""After these it is gone."""
CLEARING: Final = (EventType.QUEUE_CLEARED, EventType.QUEUE_DELETED)
OVER: Final = (EventType.SESSION_LOST, EventType.SESSION_ENDED)
MARKS: Final = (*CLEARING, *OVER)

# The usual ones first: they are looked for in this order, for every event.
_OF_MESSAGES: Final = (
    EventType.PUT,
    EventType.RECEIVED,
    EventType.COMPLETED,
    EventType.RENEWED,
    EventType.RELEASED,
    EventType.LAPSED,
    EventType.REFUSED,
    EventType.CLAIMED,
    EventType.SETTLED,
    EventType.UNCLAIMED,
    EventType.LEASE_ENDED,
    EventType.EXPIRED,
    EventType.POISONED,
    EventType.REDRIVEN,
    EventType.AMENDED,
    EventType.REMOVED,
    EventType.CANCEL_ASKED,
    EventType.PUBLISHED,
)
"""What is staged is in no queue yet, so ``staged`` and ``discarded`` are not among them."""

_OPTIONAL: Final = ("message_type", "error_type", "error_fingerprint")
"""Columns that logs of other systems, and of older versions, do not have."""


def codes(types: Iterable[int]) -> str:
    """Return the numbers of types, for an SQL ``IN``."""
    return ", ".join(str(int(each)) for each in types)


def normal(events: DataFrame, types: Iterable[EventType] = (*_OF_MESSAGES, *MARKS)) -> DataFrame:
    """Return events in the form of :data:`~leasehold.spark.analytics.schemas.OPEN`.

    Args:
        events: With the columns of ``docs/reference/event-log.md``; ``message_type``,
            ``error_type`` and ``error_fingerprint`` are taken where they are. Types that are not
            known, or say nothing about a lifecycle, are left out.
        types: Only these. Spark can tell by them what of a file need not be read.
    """
    known = [TYPE_NAMES[each] for each in types]
    of_phase = {PHASE_NAMES[each]: int(each) for each in (Phase.LEASED, *Phase)}
    of_type = {TYPE_NAMES[each]: int(each) for each in (*_OF_MESSAGES, *MARKS)}

    def millis(name: str) -> Column:
        return F.unix_millis(F.col(name).cast("timestamp"))

    columns = {
        "at": millis("happened_at"),
        "t": _number("type", of_type),
        "inserted": millis("inserted_at"),
        "expires": millis("expires_at"),
        "visible": millis("visible_at"),
        "count": F.col("dequeue_count"),
        "phase": _number("phase", of_phase),
        "since": millis("since"),
        "visible_since": millis("visible_since"),
        **{name: F.col(name) if name in events.columns else F.lit(None) for name in _OPTIONAL},
    }
    return events.where(F.col("type").isin(known)).select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in OPEN
        )
    )


def marks(normal_events: DataFrame) -> DataFrame:
    """Return what is not about a single message."""
    return normal_events.where(f"t IN ({codes(MARKS)})")


def of_messages(normal_events: DataFrame) -> DataFrame:
    """Return what is about messages."""
    return normal_events.where(f"message_id IS NOT NULL AND t NOT IN ({codes(MARKS)})")


def _number(name: str, of: dict[str, int]) -> Column:
    found = F.lit(None)
    for word, number in reversed(of.items()):
        found = F.when(F.col(name) == word, number).otherwise(found)
    return found
