"""From events to what became of attempts and messages: one window over one sort, all in SQL.

The events of a message are put in their order, and each is looked at beside the one before it.
An attempt is told by the event that ends it: the one before says that there was a lease, since
when and whose. So there is one shuffle, one sort and one window for everything, and no row is
touched by Python. ``benchmarks/analytics_scale.py`` measures it.

The rows that come out, called stages here, are those events that end an attempt (columns
``a_...``), end a message's stay in a queue (``m_...``), or belong to a message that has not ended.
:mod:`leasehold.advisor.tables.derive` makes tables of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.advisor.tables.schemas import OPEN, Ending, Fate
from leasehold.domain.events import EventType
from leasehold.domain.failures import BURIED, MAX_FAILURES, MAX_INTERRUPTIONS
from leasehold.domain.model import Phase
from leasehold.domain.sessions import NO_PROGRESS, SESSION_LOST
from leasehold.events.names import PHASE_NAMES, TYPE_NAMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# --- normal ------------------------------------------------------------------------------------
#
# Events in the form that the lifecycle is made of: moments and words as numbers, few columns.
#
# What is not about a message, and matters to many at once, is kept apart as a mark: a queue that
# was cleared or deleted, a session that was lost or ended.


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

FOLLOWED: Final = (*_OF_MESSAGES, *MARKS, EventType.QUEUE_UPDATED)
"""What a summary that goes on takes: also that queues were set otherwise."""
_OPTIONAL: Final = ("message_type", "error_type", "error_fingerprint", "group_id")
"""Columns that logs of other systems, and of older versions, do not have."""


def codes(types: Iterable[int]) -> str:
    """Return the numbers of types, for an SQL ``IN``."""
    return ", ".join(str(int(each)) for each in types)


def normal(events: DataFrame, types: Iterable[EventType] = (*_OF_MESSAGES, *MARKS)) -> DataFrame:
    """Return events in the form of :data:`~leasehold.advisor.tables.schemas.OPEN`.

    Args:
        events: With the columns of ``docs/reference/event-log.md``; ``message_type``,
            ``error_type``, ``error_fingerprint`` and ``group_id`` are taken where they are. Types
            that are not known, or say nothing about a lifecycle, are left out.
        types: Only these. Spark can tell by them what of a file need not be read.
    """
    of_type = {TYPE_NAMES[each]: int(each) for each in types}
    of_phase = {PHASE_NAMES[each]: int(each) for each in (Phase.LEASED, *Phase)}

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
    return events.where(F.col("type").isin([*of_type])).select(
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


# --- lifecycle ---------------------------------------------------------------------------------


T: Final = {each.name: int(each) for each in EventType}
"""Numbers of types by name, for SQL."""
LEASED: Final = int(Phase.LEASED)
TO_BE_CHECKED: Final = "poisoned"
"""Ending of an attempt whose message went to the poison queue for a reason that several endings
have: whether its session was lost decides."""


def staged(normal_events: DataFrame, partitions: int | None = None) -> DataFrame:
    """Return the stages of messages; lazily.

    Args:
        normal_events: As :func:`~leasehold.advisor.tables.lifecycle.normal` makes them, of whole
            messages: from wherever on, without holes. Events that come twice are used once.
        partitions: Of the shuffle; what the session says by default. Some 250,000 events in each
            need little memory.
    """
    events = of_messages(normal_events)
    if partitions is not None:
        events = events.repartition(partitions, "message_id")
    told = _beside_the_others(events)
    # Nothing above depends on how often the same event is there.
    told = told.where("p_seq IS NULL OR p_seq <> seq OR p_place <> place")
    told = told.withColumns({"is_as_it_was": F.expr(_AS_IT_WAS), "goes_on": F.expr(_GOES_ON)})
    told = told.withColumns(
        {
            "is_open": F.expr(f"last_t NOT IN ({codes(ENDING)})"),
            "a_outcome": F.expr(_OUTCOME),
            "m_outcome": F.expr(_FATE),
            "base": F.expr(f"coalesce({_BASE}, p_base)"),
        }
    )
    stages = told.where("a_outcome IS NOT NULL OR m_outcome IS NOT NULL OR is_open")
    return _with_the_attempt(_with_the_stay(stages)).select(*KEPT, *_if_open())


# --- one event beside the others ---------------------------------------------------------------

_ENTERING: Final = f"t IN ({codes((*STARTING, *MOVING, ARRIVED))})"
_TAKES: Final = f"t IN ({codes(TAKING)})"
# Deliveries before it came into its queue, and when it did.
_BASE: Final = f"""
CASE WHEN t IN ({codes(STARTING)}) THEN 0 WHEN t IN ({codes((*MOVING, ARRIVED))}) THEN count END
"""
_BEGUN: Final = f"""
CASE WHEN t IN ({codes(STARTING)}) THEN inserted WHEN t IN ({codes((*MOVING, ARRIVED))}) THEN at END
"""
BEGINS: Final = f"({_TAKES} OR (t = {T['RENEWED']} AND phase = {LEASED} AND renewals = 0))"
"""An attempt begins with a delivery, or when its holder takes up again what it had given back."""
# What few messages have, and is looked for only if need be.
_RARE: Final = f"""
IF(t IN ({T["REFUSED"]}, {T["POISONED"]}) OR ({_TAKES} AND count > 1),
   struct(struct(seq, place) AS pos, t, at, since, visible_since, count, reason), NULL)
"""
_BEFORE_IT: Final = (
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


def _beside_the_others(events: DataFrame) -> DataFrame:
    """Add ``p_...``: the message as it was before the event; and what there is to know of all.

    What is computed here may use columns of the event itself and nothing else: a second window
    would cost as much again.
    """
    order = Window.partitionBy("message_id").orderBy("seq", "place")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    whole = order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)

    def last(expression: str) -> Column:
        return F.last(F.expr(expression), ignorenulls=True)

    so_far = {
        # A refused completion names the beginning of its own lease, and else the message as it is.
        "p_since": f"IF(t = {T['REFUSED']}, NULL, since)",
        "p_base": _BASE,
        "p_begun": _BEGUN,
        # Of the attempt that is going on until this event.
        "p_first_ms": f"IF({BEGINS}, visible - since, NULL)",
        "p_claim": f"IF({BEGINS}, coalesce(target, ''), NULL)",
        # The first delivery since it was put, or came back from the poison queue.
        "p_first_at": f"IF({_TAKES} AND count = 1, at, NULL)",
        "p_wait_ms": f"IF({_TAKES} AND count = 1, at - visible_since, NULL)",
    }
    at_last = {
        "last_seq": "seq",
        "last_place": "place",
        "last_t": "t",
        "entry_seq": f"IF({_ENTERING}, seq, NULL)",
        "entry_place": f"IF({_ENTERING}, place, NULL)",
        # A completion may be refused in a queue that the message has left.
        "stay": f"IF(t = {T['REFUSED']}, NULL, IF(t IN ({codes(MOVING)}), target, queue))",
    }
    return events.select(
        "*",
        *(F.lag(name).over(order).alias(f"p_{name}") for name in _BEFORE_IT),
        *(last(text).over(before).alias(name) for name, text in so_far.items()),
        *(last(text).over(whole).alias(name) for name, text in at_last.items()),
        F.collect_list(F.expr(_RARE)).over(whole).alias("rare"),
    )


_IS_LAST: Final = "(seq = last_seq AND place = last_place)"

# --- the attempt -------------------------------------------------------------------------------

# The event of an attempt that was going on, as its message was until then.
_GOES_ON: Final = f"coalesce(p_phase = {LEASED} AND p_t <> {T['LAPSED']}, FALSE)"
# These leave the message as it was, and tell the lease themselves.
_AS_IT_WAS: Final = (
    f"coalesce(t IN ({codes(ENDING)}, {T['LAPSED']}) AND phase = {LEASED}"
    f" AND coalesce(p_t, 0) <> {T['LAPSED']}, FALSE)"
)
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


def _refused(leased: str, which: str = "min") -> str:
    """Return SQL for when the completion of a lease was refused, in whatever queue; or null.

    Args:
        leased: SQL for when the lease began.
        which: Of several: ``min`` for the first, ``max`` for the last.
    """
    is_it = f"r.t = {T['REFUSED']} AND r.since = {leased}"
    found = f"array_{which}(transform(filter(rare, r -> {is_it}), r -> r.at))"
    return f"IF(size(rare) > 0, {found}, NULL)"


def _with_the_attempt(stages: DataFrame) -> DataFrame:
    """Add ``a_...``: the attempt that the event ends, if it ends one."""
    told = {
        "leased": "IF(is_as_it_was, since, p_since)",
        "lease_end": "IF(is_as_it_was, visible, p_visible)",
        "count": "IF(is_as_it_was, count, p_count)",
        "holder": "IF(is_as_it_was, holder, p_holder)",
        "session": "IF(is_as_it_was, session, p_session)",
        "renewals": "IF(is_as_it_was, renewals, p_renewals)",
        "first_ms": "p_first_ms",
        "claim": f"coalesce(nullif(p_claim, ''), IF(t = {T['SETTLED']}, target, NULL))",
    }
    # A lapse after which the message was given up is noticed just before that; between the two
    # there is nothing but, at times, the event of making the poison queue.
    is_next = (
        f"r.t = {T['POISONED']} AND r.pos.seq = seq AND r.pos.place - place IN (1, 2)"
        " AND r.count = count"
    )
    given_up = f"IF(size(rare) > 0, try_element_at(filter(rare, r -> {is_next}), 1).reason, NULL)"
    told["why"] = f"IF(t = {T['LAPSED']}, {given_up}, reason)"
    stages = stages.withColumns(
        {f"a_{name}": F.expr(f"IF(a_outcome IS NULL, NULL, {text})") for name, text in told.items()}
    )
    may_be_late = f"('{Ending.LAPSED}', '{Ending.SESSION_LOST}', '{TO_BE_CHECKED}')"
    late = f"IF(a_outcome IN {may_be_late}, {_refused('a_leased')}, NULL)"
    return stages.withColumn("a_refused", F.expr(late))


# --- the stay ----------------------------------------------------------------------------------

_FATE: Final = f"""
CASE WHEN t IN ({DONE}) THEN '{Fate.COMPLETED}' WHEN t = {T["EXPIRED"]} THEN '{Fate.EXPIRED}'
     WHEN t = {T["REMOVED"]} THEN '{Fate.REMOVED}'
     WHEN t = {T["POISONED"]} THEN '{Fate.POISONED}'
     WHEN t = {T["REDRIVEN"]} THEN '{Fate.REMOVED}' END
"""


def _with_the_stay(stages: DataFrame) -> DataFrame:
    """Add ``m_...``: the stay that the event ends; else the one in which the message is."""
    moves = f"t IN ({codes(MOVING)})"
    stages = stages.withColumns(
        {
            "m_base": F.expr(f"coalesce(IF({moves}, p_base, base), 0)"),
            "m_begun": F.expr(f"IF({moves}, p_begun, coalesce({_BEGUN}, p_begun))"),
        }
    )
    # In a poison queue the count goes on from where it was.
    is_first = f"r.t IN ({codes(TAKING)}) AND r.count = m_base + 1 AND r.pos <= struct(seq, place)"
    first = f"try_element_at(filter(rare, r -> {is_first}), -1)"
    at_once = f"{_TAKES} AND count = 1"
    told = {
        "inserted": "coalesce(m_begun, inserted)",
        "ended": f"IF(t = {T['EXPIRED']}, least(at, expires), at)",
        "deliveries": f"greatest(0, IF(t = {T['REDRIVEN']}, coalesce(p_count, 0), count) - m_base)",
        "expires": f"IF({moves}, p_expires, expires)",
        "first_at": f"CASE WHEN m_base > 0 THEN {first}.at"
        f" WHEN {at_once} THEN at ELSE p_first_at END",
        "wait_ms": f"CASE WHEN m_base > 0 THEN {first}.at - {first}.visible_since"
        f" WHEN {at_once} THEN at - visible_since ELSE p_wait_ms END",
    }
    return stages.withColumns({f"m_{name}": F.expr(text) for name, text in told.items()})


# --- what is kept ------------------------------------------------------------------------------

KEPT: Final = (
    "is_open",
    "seq",
    "place",
    "t",
    "account",
    "queue",
    "message_id",
    "message_type",
    "error_type",
    "error_fingerprint",
    "group_id",
    "reason",
    "target",
    "stay",
    "entry_seq",
    "entry_place",
    "a_outcome",
    "a_leased",
    "a_lease_end",
    "a_count",
    "a_holder",
    "a_session",
    "a_renewals",
    "a_first_ms",
    "a_claim",
    "a_refused",
    "a_why",
    "m_outcome",
    "m_inserted",
    "m_ended",
    "m_deliveries",
    "m_expires",
    "m_first_at",
    "m_wait_ms",
)
"""The columns of stages that have to do with what has ended."""


def _if_open() -> list[Column]:
    """Return what is kept of messages that have not ended: null for the others, so it costs little.

    These are the events themselves, and ``g_...``: the attempt that goes on after the last one.
    """
    on_lease = f"is_open AND {_IS_LAST} AND phase = {LEASED} AND t <> {T['LAPSED']}"
    leased = f"IF(t = {T['REFUSED']}, p_since, since)"
    going_on = {
        "g_leased": leased,
        "g_first_ms": f"IF({BEGINS}, visible - since, p_first_ms)",
        "g_claim": f"nullif(IF({BEGINS}, coalesce(target, ''), p_claim), '')",
        "g_refused": _refused(leased),
        "g_refused_last": _refused(leased, "max"),
    }
    events = [name for name in OPEN.names if name not in KEPT]
    return [
        F.expr(f"is_open AND {_IS_LAST}").alias("is_last"),
        *(F.expr(f"IF(is_open, {name}, NULL)").alias(name) for name in events),
        *(F.expr(f"IF({on_lease}, {text}, NULL)").alias(name) for name, text in going_on.items()),
    ]
