"""The event log as a table: what the readers of both places have in common."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from leasehold.client import Client
from leasehold.client.models import Event, EventPage
from leasehold.events.names import FIELDS, range_of
from leasehold.events.parquet import MOMENT, SCHEMA, check_format, files_of
from leasehold.spark.connection import connect, patient
from leasehold.spark.options import BadOption, Place, ReadOptions
from leasehold.spark.schemas import (
    EVENTS,
    arrow_schema,
    checked,
    first_where,
    groups,
    part_count,
    ranges,
    shaped,
)


@dataclass(frozen=True, slots=True)
class EventPart(InputPartition):
    """What one task reads."""

    value: Files | Pages


class EventsReader(DataSourceReader):
    """Reads the event log once, up to what there is when the read is planned.

    It is made and asked for its parts at each planning, also of ``explain``; that takes a few
    requests, or a listing of the folder.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked(schema, EVENTS)
        self._conditions: tuple[Condition, ...] = of_options(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the log into parts."""
        if self._options.event_log is not None:
            return [EventPart(each) for each in plan_files(self._options, self._conditions)]
        return [EventPart(each) for each in plan_pages(self._options, self._conditions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a part, on an executor; every time the same, but for what is gone."""
        part = partition.value
        columns = tuple(self._schema.names)
        found: Iterable[Any]
        if isinstance(part, Files):
            found = read_files(part, columns, self._conditions)
        else:
            found = read_pages(part, self._options.place, columns, self._conditions)
        return shaped(found, arrow_schema(self._schema), self._options.limit)


class FilteringEventsReader(EventsReader):
    """The same, taking filters from Spark. Spark refuses such a reader unless it is told to."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that can be evaluated here, and return the others."""
        taken, left = of_filters(filters)
        self._conditions += taken
        return left


def events_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return what reads the event log.

    Raises:
        BadOption: The schema has columns that events do not have, or a time is not one.
    """
    return (FilteringEventsReader if options.pushdown else EventsReader)(options, schema)


# --- conditions --------------------------------------------------------------------------------
#
# Which events are wanted: from options and from Spark's filters to one list of comparisons.
#
# A comparison is evaluated by Arrow, for files and for what the server answers alike. Those of
# numbers and times also tell which part of the log need not be read.


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


# --- event files -------------------------------------------------------------------------------
#
# The exported event log: which files and row groups can hold what is wanted.


_WORTHWHILE_BYTES: Final = 4 * 1024 * 1024
"""Of compressed files in one part."""


@dataclass(frozen=True, slots=True)
class Files:
    """Some files of the exported log."""

    paths: tuple[str, ...]


def plan_files(options: ReadOptions, conditions: tuple[Condition, ...]) -> list[Files]:
    """Return the files that can hold what is wanted, in parts. No file is opened.

    Raises:
        BadOption: There is no such folder on the driver's machine.
    """
    folder = Path(options.event_log or "")
    if not folder.is_dir():
        raise BadOption(f"option eventLog: there is no folder {folder} on the driver's machine")
    since_ms, last_ms = span(conditions, "happened_at")
    least, most = span(conditions, "seq")
    found = []
    for path in files_of(folder, since_ms, None if last_ms is None else last_ms + 1):
        first, last = range_of(path.name) or (0, 0)
        if (least is None or last >= least) and (most is None or first <= most):
            found.append((str(path), path.stat().st_size))
    if not found:
        return [Files(())]
    size = sum(length for _, length in found)
    most_parts = len(found)
    count = part_count(options.num_partitions, options.limit, size, _WORTHWHILE_BYTES)
    return [Files(tuple(group)) for group in groups(found, min(count, most_parts))]


def read_files(
    part: Files, columns: tuple[str, ...], conditions: Iterable[Condition]
) -> Iterator[Any]:
    """Yield the rows wanted as record batches of the columns named.

    Raises:
        FormatTooNew: A file was written by a newer version in a way that could be misunderstood.
    """
    if not part.paths:
        return
    dataset = ds.dataset(list(part.paths), schema=SCHEMA, format="parquet")
    for fragment in dataset.get_fragments():
        check_format(fragment.path, fragment.metadata)
    # One thread: Spark runs as many tasks as there are processors for it.
    scanner = dataset.scanner(columns=list(columns), filter=together(conditions), use_threads=False)
    yield from scanner.to_batches()


# --- event pages -------------------------------------------------------------------------------
#
# The server's own event log, by ranges of its numbers.


PAGE: Final = 10_000
"""Events of one request; a page ends with a whole batch of changes."""
_LEAST_PAGE: Final = 1_000
_WORTHWHILE: Final = 2_000
"""Batches of changes in one part."""
_PATIENCE_S: Final = 60.0
_SLACK_MS: Final = 600_000
"""The log is in the order of its numbers, and its times follow that but for a clock that was set
back between two runs of the server. Up to so much of that no event is missed."""


@dataclass(frozen=True, slots=True)
class Pages:
    """A range of numbers of the log."""

    after: int
    """Begins with the batch of changes behind this one."""
    upto: int
    """The last number; included."""


def plan_pages(options: ReadOptions, conditions: tuple[Condition, ...]) -> list[Pages]:
    """Return ranges that hold what is wanted, up to the newest event there is now.

    Raises:
        LeaseholdClientError: The server refuses, or cannot be reached.
    """
    least, most = span(conditions, "seq")
    after = max(0, (least or 0) - 1)
    with connect(options.place, patient(_PATIENCE_S)) as client:
        first, page = _next(client, after)
        upto = page.last_seq or 0
        if most is not None:
            upto = min(upto, most)
        if first is None or first.seq > upto:
            return [Pages(0, 0)]
        low, high = _within(client, conditions, first.seq, upto + 1)
    if low >= high:
        return [Pages(0, 0)]
    count = part_count(options.num_partitions, options.limit, high - low, _WORTHWHILE)
    return [Pages(begin - 1, end - 1) for begin, end in ranges(low, high, count)]


def _within(
    client: Client, conditions: tuple[Condition, ...], low: int, high: int
) -> tuple[int, int]:
    """Return the part of a range of numbers whose times are wanted; its end is not included."""
    since_ms, last_ms = span(conditions, "happened_at")

    def is_later(than_ms: int) -> Any:
        def holds(seq: int) -> bool:
            event, _ = _next(client, seq - 1)
            return event is None or event.at_ms >= than_ms

        return holds

    if since_ms is not None:
        low = first_where(is_later(since_ms - _SLACK_MS), low, high)
    if last_ms is not None:
        high = first_where(is_later(last_ms + 1 + _SLACK_MS), low, high)
    return low, high


def _next(client: Client, after: int) -> tuple[Event | None, EventPage]:
    """Return the first event behind a number, and the page that it is on."""
    while True:
        page = client.event_page(after=after, limit=1)
        if page.events or page.finished:
            return (page.events[0] if page.events else None), page
        after = page.next_after


def read_pages(
    part: Pages, place: Place, columns: Sequence[str], conditions: Iterable[Condition]
) -> Iterator[Any]:
    """Yield the rows wanted as record batches with the columns named, and perhaps others.

    Raises:
        LeaseholdClientError: The server refuses, or cannot be reached.
    """
    conditions = [*conditions]
    needed = [*dict.fromkeys([*columns, *(each.column for each in conditions)])]
    expression = together(conditions)
    after = part.after
    with connect(place, patient(_PATIENCE_S)) as client:
        while after < part.upto:
            # A batch has one event at least: do not ask for much that is behind the range.
            limit = min(PAGE, max(_LEAST_PAGE, part.upto - after))
            page = client.event_page(after=after, limit=limit)
            after = page.next_after
            events = page.events
            if events and events[-1].seq > part.upto:
                events = tuple(each for each in events if each.seq <= part.upto)
            if events:
                batch = batch_of(events, client.account, needed)
                yield batch if expression is None else batch.filter(expression)
            if page.finished:
                return


def batch_of(events: Sequence[Event], account: str, columns: Sequence[str]) -> pa.RecordBatch:
    """Return events as rows with the columns named, in the types of the exported log."""
    arrays = []
    for name in columns:
        kind = SCHEMA.field(name).type
        if name == "account":
            arrays.append(pa.repeat(pa.scalar(account, kind), len(events)))
        else:
            member = FIELDS[name]
            arrays.append(pa.array([getattr(each, member) for each in events], kind))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
