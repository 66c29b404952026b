"""Which events are wanted: from options and from Spark's filters to one list of comparisons.

A comparison is evaluated by Arrow, for files and for what the server answers alike. Those of
numbers and times also tell which part of the log need not be read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from leasehold.eventlog.schema import MOMENT, SCHEMA
from leasehold.spark.options import BadOption, ReadOptions

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SIGNS: Final = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = 1000
"""Microseconds in a millisecond."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a column of the event log."""

    column: str
    sign: str
    """``=``, ``>``, ``>=``, ``<``, ``<=``, ``in``, ``null`` or ``not null``."""
    value: Any = None
    """Moments are Unix milliseconds; for ``in`` a tuple."""

    @property
    def expression(self) -> Any:
        """The same for Arrow, over columns of the types of the exported log."""
        field, kind = pc.field(self.column), SCHEMA.field(self.column).type
        if self.sign == "null":
            return field.is_null()
        if self.sign == "not null":
            return field.is_valid()
        if self.sign == "in":
            return field.isin(pa.array(self.value, kind))
        return _COMPARE[self.sign](field, pa.scalar(self.value, kind))


def together(conditions: Iterable[Condition]) -> Any:
    """Return an expression for all conditions; None if there is none."""
    whole: Any = None
    for each in conditions:
        whole = each.expression if whole is None else whole & each.expression
    return whole


def span(conditions: Iterable[Condition], column: str) -> tuple[int | None, int | None]:
    """Return the least and the greatest value that a column of whole numbers or moments can have.

    Both are included; None where there is no such bound.
    """
    least: int | None = None
    most: int | None = None
    for each in conditions:
        if each.column != column:
            continue
        low, high = _bounds(each)
        least = low if least is None else least if low is None else max(least, low)
        most = high if most is None else most if high is None else min(most, high)
    return least, most


def _bounds(condition: Condition) -> tuple[int | None, int | None]:
    value = condition.value
    match condition.sign:
        case "=":
            return value, value
        case "in" if value:
            return min(value), max(value)
        case ">" | ">=":
            return value + (condition.sign == ">"), None
        case "<" | "<=":
            return None, value - (condition.sign == "<")
    return None, None


# --- options -----------------------------------------------------------------------------------


def of_options(options: ReadOptions) -> tuple[Condition, ...]:
    """Return the conditions that the options set.

    Raises:
        BadOption: A time is not one.
    """
    conditions = []
    if options.place.queue is not None:
        conditions.append(Condition("queue", "=", options.place.queue))
    if options.starting_seq is not None:
        conditions.append(Condition("seq", ">", options.starting_seq))
    if options.starting_time is not None:
        moment_ms = _moment_ms("startingTime", options.starting_time)
        conditions.append(Condition("happened_at", ">=", moment_ms))
    if options.ending_time is not None:
        moment_ms = _moment_ms("endingTime", options.ending_time)
        conditions.append(Condition("happened_at", "<", moment_ms))
    return tuple(conditions)


def _moment_ms(name: str, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"option {name}: {text!r} is not a time such as 2026-11-21T09:00:00Z"
        ) from None
    # Without a zone it is UTC, as all times of the log are.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _ceiling(_microseconds(moment))


# --- Spark's filters ---------------------------------------------------------------------------


def of_filters(filters: Sequence[Filter]) -> tuple[tuple[Condition, ...], list[Filter]]:
    """Return the conditions that filters are, and the filters that Spark has to apply itself."""
    taken: list[Condition] = []
    left: list[Filter] = []
    for each in filters:
        condition = _condition_of(each)
        if condition is None:
            left.append(each)
        else:
            taken.append(condition)
    return tuple(taken), left


def _condition_of(given: Filter) -> Condition | None:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if column not in SCHEMA.names:
        return None
    if isinstance(given, IsNull):
        return Condition(column, "null")
    if isinstance(given, IsNotNull):
        return Condition(column, "not null")
    if isinstance(given, In):
        values = tuple(_exact(column, each) for each in given.value if each is not None)
        return None if None in values else Condition(column, "in", values)
    sign = _SIGNS.get(type(given))
    return None if sign is None else _compared(column, sign, getattr(given, "value", None))


def _compared(column: str, sign: str, value: Any) -> Condition | None:
    kind = SCHEMA.field(column).type
    if kind == MOMENT and isinstance(value, datetime) and value.tzinfo and sign != "=":
        # The log has whole milliseconds: round to the side on which none is between.
        exact_us = _microseconds(value)
        up = sign in {">=", "<"}
        return Condition(column, sign, _ceiling(exact_us) if up else exact_us // _US)
    exact = _exact(column, value)
    return None if exact is None else Condition(column, sign, exact)


def _exact(column: str, value: Any) -> Any:
    """Return a value as the log has it; None if it has none like it, or it is of another type."""
    kind = SCHEMA.field(column).type
    if kind == MOMENT:
        if not isinstance(value, datetime) or not value.tzinfo:
            return None
        whole_ms, rest = divmod(_microseconds(value), _US)
        return None if rest else whole_ms
    if pa.types.is_integer(kind):
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return value if isinstance(value, str) else None


def _ceiling(moment_us: int) -> int:
    return -(-moment_us // _US)


def _microseconds(moment: datetime) -> int:
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
