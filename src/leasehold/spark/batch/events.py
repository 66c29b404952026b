"""The event log as a table: what the readers of both places have in common."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
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
from leasehold.events.check import Checker, Report
from leasehold.events.check_input import columns_read, rows_in
from leasehold.events.names import FIELDS, range_of
from leasehold.events.parquet import MOMENT, SCHEMA, check_format, files_of
from leasehold.spark.batch.results import OUTCOMES, results_of
from leasehold.spark.batch.results import columns_read as columns_read_for_results
from leasehold.spark.connection import connect, patient, show_sentences
from leasehold.spark.options import BadOption, Place, ReadOptions
from leasehold.spark.schemas import (
    EVENTS,
    RESULTS,
    arrow_schema,
    checked,
    first_where,
    groups,
    part_count,
    ranges,
    shaped,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class View:
    """What of the event log a read shows: the events, or the results of messages.

    Args:
        options: Of the read.
        schema: What Spark expects.

    Raises:
        BadOption: The schema has columns that the view does not have, or a time is not one.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._is_results = options.read == "results"
        self._schema = checked(schema, RESULTS if self._is_results else EVENTS)
        self.columns = tuple(self._schema.names)
        """Those of the log that are needed."""
        self.conditions: tuple[Condition, ...] = of_options(options)
        """Which events are."""
        if self._is_results:
            self.columns = columns_read_for_results(self.columns)
            self.conditions += (Condition("type", "in", tuple(OUTCOMES)),)

    def rows(self, events: Iterable[Any], limit: int | None) -> Iterator[Any]:
        """Yield what Spark expects for the events that the conditions let pass."""
        if self._is_results:
            events = results_of(events, self._schema.names)
        return shaped(events, arrow_schema(self._schema), limit)


@dataclass(frozen=True, slots=True)
class EventPart(InputPartition):
    """What one task reads."""

    value: Files | Pages


@show_sentences
class EventsReader(DataSourceReader):
    """Reads the event log once, up to what there is when the read is planned.

    It is made and asked for its parts at each planning, also of ``explain``; that takes a few
    requests, or a listing of the folder.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._view = View(options, schema)
        self._conditions = self._view.conditions

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the log into parts."""
        if self._options.event_log is not None:
            return [EventPart(each) for each in plan_files(self._options, self._conditions)]
        return [EventPart(each) for each in plan_pages(self._options, self._conditions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a part, on an executor; every time the same, but for what is gone."""
        part, columns = partition.value, self._view.columns
        found: Iterable[Any]
        if isinstance(part, Files):
            found = read_files(part, columns, self._conditions)
        else:
            found = read_pages(part, self._options.place, columns, self._conditions)
        return self._view.rows(found, self._options.limit)


@show_sentences
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
    if options.starting_offsets == "latest":
        raise BadOption("option startingOffsets=latest is for streams: it would read nothing")
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
    after = options.starting_seq
    if isinstance(options.starting_offsets, int):
        after = options.starting_offsets
    if after is not None:
        conditions.append(Condition("seq", ">", after))
    if options.starting_time is not None:
        moment_ms = _moment_ms("startingTime", options.starting_time)
        conditions.append(Condition("happened_at", ">=", moment_ms))
    if options.ending_time is not None:
        moment_ms = _moment_ms("endingTime", options.ending_time)
        conditions.append(Condition("happened_at", "<", moment_ms))
    return tuple(conditions)


def _moment_ms(name: str, text: str) -> int:
    if text.isdecimal():  # as Kafka's options have it
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"option {name}: {text!r} is not a time such as 2026-11-21T09:00:00Z, nor milliseconds "
            "since 1970"
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
WORTHWHILE: Final = 2_000
"""Batches of changes in one part."""
PATIENCE_S: Final = 60.0
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
    with connect(options.place, patient(PATIENCE_S)) as client:
        first, page = _next(client, after)
        upto = page.last_seq or 0
        if most is not None:
            upto = min(upto, most)
        if first is None or first.seq > upto:
            return [Pages(0, 0)]
        low, high = within(client, conditions, first.seq, upto + 1)
    if low >= high:
        return [Pages(0, 0)]
    count = part_count(options.num_partitions, options.limit, high - low, WORTHWHILE)
    return [Pages(begin - 1, end - 1) for begin, end in ranges(low, high, count)]


def within(
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
    part: Pages,
    place: Place,
    columns: Sequence[str],
    conditions: Iterable[Condition],
    check: Callable[[EventPage, int], object] | None = None,
) -> Iterator[Any]:
    """Yield the rows wanted as record batches with the columns named, and perhaps others.

    Args:
        part: Which part of the log.
        place: Where the server is.
        columns: Of the rows.
        conditions: That they must meet.
        check: Called with each page, and with the number that it begins after; None: nothing is.

    Raises:
        LeaseholdClientError: The server refuses, or cannot be reached.
    """
    conditions = [*conditions]
    needed = [*dict.fromkeys([*columns, *(each.column for each in conditions)])]
    expression = together(conditions)
    after = part.after
    with connect(place, patient(PATIENCE_S)) as client:
        while after < part.upto:
            # A batch has one event at least: do not ask for much that is behind the range.
            limit = min(PAGE, max(_LEAST_PAGE, part.upto - after))
            page = client.event_page(after=after, limit=limit)
            if check is not None:
                check(page, after)
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


# --- checking ------------------------------------------------------------------------------------
#
# The check of an event log: the rules of `leasehold events check`, each part of the messages by
# itself.


_PART: Final = "_part"
_CHECKED_COLUMNS: Final = (
    "part int, rule string, seq long, place int, at_ms long, account string, queue string, "
    "message_id string, sentence string, events long, consumed long, known_from long"
)
_CHECKED: Final = pa.schema(
    [
        ("part", pa.int32()),
        ("rule", pa.string()),
        ("seq", pa.int64()),
        ("place", pa.int32()),
        ("at_ms", pa.int64()),
        ("account", pa.string()),
        ("queue", pa.string()),
        ("message_id", pa.string()),
        ("sentence", pa.string()),
        ("events", pa.int64()),
        ("consumed", pa.int64()),
        ("known_from", pa.int64()),
    ]
)


def check_events(
    events: DataFrame,
    *,
    parts: int = 16,
    settings: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    whole: bool | None = None,
) -> DataFrame:
    """Check an event log against the rules of the queue.

    ::

        events = spark.read.parquet("/data/events")
        check_events(events).where("rule is not null").show(truncate=False)

    The rules are those of ``leasehold events check``. Messages are judged in parts, those of a
    message group together; a part is sorted and read through once, by one task, which keeps in
    memory those of its messages that are there at a time, some 600 bytes each.

    Args:
        events: With the columns of exported files, of the whole log or of a span of it. Those of
            an account may be left out, those of a queue may not: messages move between queues.
        parts: In how many parts messages are judged, 1 to 10,000.
        settings: What queues were set to when the log began, by account and name, as JSON has it:
            order, limits and budgets are judged by it.
        whole: Whether the log begins with the store; None: it does if its first number is 1.

    Returns:
        A row for each violation, at most 100 of a rule and part: ``rule``, ``seq``, ``place``,
        ``at_ms``, ``account``, ``queue``, ``message_id``, ``sentence``. And one without a rule for
        each part that has events: ``events`` read, ``consumed``, and ``known_from``, messages that
        are known from their first event on only.

    Added in 0.2.
    """
    wanted = [name for name in columns_read() if name in events.columns]
    events = events.select(*wanted)
    if whole is None:
        first = events.agg(F.min("seq")).first()
        whole = first is not None and first[0] == 1
    key = F.coalesce(F.col("group_id"), F.col("message_id"))
    own = F.array(F.pmod(F.crc32(F.encode(key, "UTF-8")), F.lit(parts)).cast("int"))
    everywhere = F.sequence(F.lit(0), F.lit(parts - 1))
    part = F.explode(F.when(F.col("message_id").isNull(), everywhere).otherwise(own))
    sharded = events.select(part.alias(_PART), *wanted)
    ordered = sharded.repartition(parts, _PART).sortWithinPartitions(_PART, "seq", "place")
    return ordered.mapInArrow(_CheckTask(parts, dict(settings or {}), whole), _CHECKED_COLUMNS)


class _CheckTask:
    """Checks the parts that one task has."""

    def __init__(
        self, parts: int, settings: Mapping[tuple[str, str], Mapping[str, Any]], whole: bool
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._whole = whole

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read sorted events; yield what was found."""
        for part, pieces in groupby(_pieces(batches), key=itemgetter(0)):
            checker = Checker(
                settings=self._settings,
                whole=self._whole,
                all_accounts=False,
                shard=(self._parts, part),
            )
            for _, table in pieces:
                checker.feed(rows_in(table, is_sorted=True))
            yield _result(part, checker.end())


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the events of one part at a time."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        parts = table[_PART].to_pylist()
        start = 0
        for part, run in groupby(parts):
            length = len(list(run))
            yield part, table.slice(start, length)
            start += length


def _result(part: int, report: Report) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"part": part, **each._asdict(), "rule": str(each.rule)} for each in report.violations
    ]
    totals = {name: getattr(report, name) for name in ("events", "consumed", "known_from")}
    rows.append({"part": part, **totals})
    return pa.RecordBatch.from_pylist(rows, schema=_CHECKED)
