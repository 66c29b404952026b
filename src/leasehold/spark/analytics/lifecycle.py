"""From events to what became of attempts and messages: two windows over one sort, all in SQL.

The events of a message are put in their order, and each is looked at beside the one before it.
An attempt is told by the event that ends it: the one before says that there was a lease, since
when and whose. So there is one shuffle and one sort for everything, and no row is touched by
Python. ``benchmarks/analytics_scale.py`` measures it.

The rows that come out, called stages here, are those events that end an attempt (columns
``a_...``), end a message's stay in a queue (``m_...``), or belong to a message that has not ended.
:mod:`leasehold.spark.analytics.deriving` makes tables of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.domain.events import EventType
from leasehold.domain.failures import BURIED, MAX_FAILURES, MAX_INTERRUPTIONS
from leasehold.domain.session_rules import NO_PROGRESS, SESSION_LOST
from leasehold.domain.types import Phase
from leasehold.spark.analytics.normal import (
    ARRIVED,
    ENDING,
    MOVING,
    STARTING,
    TAKING,
    codes,
    of_messages,
)
from leasehold.spark.analytics.schemas import Ending, Fate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T: Final = {each.name: int(each) for each in EventType}
"""Numbers of types by name, for SQL."""
LEASED: Final = int(Phase.LEASED)
TO_BE_CHECKED: Final = "poisoned"
"""Ending of an attempt whose message went to the poison queue for a reason that several endings
have: whether its session was lost decides."""


def staged(normal_events: DataFrame, partitions: int | None = None) -> DataFrame:
    """Return the stages of messages; lazily.

    Args:
        normal_events: As :func:`~leasehold.spark.analytics.normal.normal` makes them, of whole
            messages: from wherever on, without holes. Events that come twice are used once.
        partitions: Of the shuffle; what the session says by default. Some 250,000 events in each
            need little memory.
    """
    events = of_messages(normal_events)
    if partitions is not None:
        events = events.repartition(partitions, "message_id")
    told = _beside_the_one_before(events)
    told = told.where("p_seq IS NULL OR p_seq <> seq OR p_place <> place")
    told = _with_the_stay(_with_the_attempt(told))
    is_stage = "a_outcome IS NOT NULL OR m_outcome IS NOT NULL OR is_open"
    return told.where(is_stage)


def _beside_the_one_before(events: DataFrame) -> DataFrame:
    """Add ``p_...``: the message as it was after the event before; and what it begins with."""
    order = Window.partitionBy("message_id").orderBy("seq", "place")
    upto = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    # A refused completion names the beginning of its own lease, and else the message as it is.
    own_since = F.expr(f"IF(t = {T['REFUSED']}, NULL, since)")
    put, moved = codes(STARTING), codes((*MOVING, ARRIVED))
    base = f"CASE WHEN t IN ({put}) THEN 0 WHEN t IN ({moved}) THEN count END"
    begun = f"CASE WHEN t IN ({put}) THEN inserted WHEN t IN ({moved}) THEN at END"
    return events.select(
        "*",
        *(
            F.lag(name).over(order).alias(f"p_{name}")
            for name in (
                "seq",
                "place",
                "t",
                "phase",
                "visible",
                "expires",
                "count",
                "renewals",
                "holder",
                "session",
            )
        ),
        F.last(own_since, ignorenulls=True).over(before).alias("p_since"),
        # Which of its stays this is: one that has ended is final, whatever is refused later.
        F.count(F.expr(f"IF(t IN ({codes(MOVING)}), 1, NULL)")).over(before).alias("stay_number"),
        # Deliveries before it came into this queue, and when it did; from this event on.
        F.last(F.expr(base), ignorenulls=True).over(upto).alias("base"),
        F.last(F.expr(begun), ignorenulls=True).over(upto).alias("begun"),
    )


# The event of an attempt that was going on, as its message was until then.
_GOING_ON: Final = f"(p_phase = {LEASED} AND p_t <> {T['LAPSED']})"
# These leave the message as it was, and tell the lease themselves.
_AS_IT_WAS: Final = (
    f"coalesce(t IN ({codes(ENDING)}, {T['LAPSED']}) AND phase = {LEASED}"
    f" AND coalesce(p_t, 0) <> {T['LAPSED']}, FALSE)"
)
_LEASE_END: Final = "IF(is_as_it_was, visible, p_visible)"
DONE: Final = codes((EventType.COMPLETED, EventType.SETTLED))
_GIVEN_UP: Final = f"""
CASE WHEN reason = '{BURIED}' THEN '{Ending.BURIED}'
     WHEN reason = '{MAX_FAILURES}' THEN '{Ending.FAILED}'
     WHEN reason = '{MAX_INTERRUPTIONS}' THEN '{Ending.INTERRUPTED}'
     ELSE '{TO_BE_CHECKED}' END
"""
_LEASE_ENDED: Final = f"""
CASE WHEN reason = '{SESSION_LOST}' THEN '{Ending.SESSION_LOST}'
     WHEN reason = '{NO_PROGRESS}' THEN '{Ending.LAPSED}'
     ELSE '{Ending.INTERRUPTED}' END
"""
_OUTCOME: Final = f"""
CASE WHEN t IN ({DONE}) AND is_as_it_was
       THEN IF(visible <= at, '{Ending.COMPLETED_LATE}', '{Ending.COMPLETED}')
     WHEN t = {T["LAPSED"]} AND is_as_it_was THEN '{Ending.LAPSED}'
     WHEN t IN ({T["REMOVED"]}, {T["EXPIRED"]}) AND is_as_it_was
       THEN IF(visible <= IF(t = {T["EXPIRED"]}, least(at, expires), at),
               '{Ending.LAPSED}', '{Ending.REMOVED}')
     WHEN NOT goes_on THEN NULL
     WHEN t = {T["RELEASED"]} THEN reason
     WHEN t = {T["LEASE_ENDED"]} THEN {_LEASE_ENDED}
     WHEN t = {T["POISONED"]} THEN {_GIVEN_UP}
     WHEN t = {T["UNCLAIMED"]} AND phase <> {LEASED} THEN '{Ending.RETURNED}'
     WHEN t = {T["AMENDED"]} AND phase <> {LEASED}
       THEN IF(p_visible <= at, '{Ending.LAPSED}', '{Ending.INTERRUPTED}')
     WHEN t = {T["REDRIVEN"]} THEN IF(p_visible <= at, '{Ending.LAPSED}', '{Ending.REMOVED}')
     WHEN t IN ({codes(TAKING)}) THEN '{Ending.LAPSED}'
     END
"""
# An attempt begins with a delivery, or when its holder takes up again what it had given back.
BEGINS: Final = (
    f"(t IN ({codes(TAKING)}) OR (t = {T['RENEWED']} AND phase = {LEASED} AND renewals = 0"
    f" AND NOT goes_on))"
)
_IS_FIRST: Final = f"(t IN ({codes(TAKING)}) AND count - coalesce(base, 0) = 1)"


def _with_the_attempt(told: DataFrame) -> DataFrame:
    """Add ``a_...``: the attempt that the event ends, if it ends one."""
    told = told.withColumns(
        {"is_as_it_was": F.expr(_AS_IT_WAS), "goes_on": F.expr(f"coalesce({_GOING_ON}, FALSE)")}
    )
    return told.withColumns(
        {
            "a_outcome": F.expr(_OUTCOME),
            "a_leased": F.expr("IF(is_as_it_was, since, p_since)"),
            "a_lease_end": F.expr(_LEASE_END),
            "a_count": F.expr("IF(is_as_it_was, count, p_count)"),
            "a_holder": F.expr("IF(is_as_it_was, holder, p_holder)"),
            "a_session": F.expr("IF(is_as_it_was, session, p_session)"),
            "a_renewals": F.expr("IF(is_as_it_was, renewals, p_renewals)"),
        }
    )


def _with_the_stay(told: DataFrame) -> DataFrame:
    """Add ``m_...``: the stay in a queue that the event ends; and what a message begins with."""
    order = Window.partitionBy("message_id").orderBy("seq", "place")
    upto = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    whole = order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    entry = f"IF(t IN ({codes((*STARTING, *MOVING, ARRIVED))}), struct(seq, place), NULL)"
    refusal = f"IF(t = {T['REFUSED']}, struct(since, at, stay_number), NULL)"
    told = told.select(
        "*",
        # Of the attempt that is going on until this event, or that this event begins.
        F.last(F.expr(f"IF({BEGINS}, visible - since, NULL)"), ignorenulls=True)
        .over(before)
        .alias("a_first_ms"),
        F.last(F.expr(f"IF({BEGINS}, coalesce(target, ''), NULL)"), ignorenulls=True)
        .over(before)
        .alias("a_claim"),
        F.last(F.expr(f"IF({_IS_FIRST}, at, NULL)"), ignorenulls=True).over(upto).alias("first_at"),
        F.last(F.expr(f"IF({_IS_FIRST}, at - visible_since, NULL)"), ignorenulls=True)
        .over(upto)
        .alias("wait_ms"),
        F.lag("base").over(order).alias("p_base"),
        F.lag("begun").over(order).alias("p_begun"),
        F.lead("seq").over(order).isNull().alias("is_last"),
        F.last("t").over(whole).alias("last_t"),
        F.last(F.expr(entry), ignorenulls=True).over(whole).alias("entry"),
        F.collect_list(F.expr(refusal)).over(whole).alias("refusals"),
    )
    is_open = (
        f"last_t NOT IN ({codes(ENDING)})"
        " AND (entry IS NULL OR seq > entry.seq OR (seq = entry.seq AND place >= entry.place))"
    )
    fate = f"""
    CASE WHEN t IN ({DONE}) THEN '{Fate.COMPLETED}' WHEN t = {T["EXPIRED"]} THEN '{Fate.EXPIRED}'
         WHEN t = {T["REMOVED"]} THEN '{Fate.REMOVED}'
         WHEN t = {T["POISONED"]} THEN '{Fate.POISONED}'
         WHEN t = {T["REDRIVEN"]} THEN '{Fate.REMOVED}' END
    """
    return told.withColumns({"is_open": F.expr(is_open), "m_outcome": F.expr(fate)})
