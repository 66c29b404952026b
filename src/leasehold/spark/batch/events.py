"""The event log as a table: what the readers of both places have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from leasehold.spark.batch import conditions as wanted
from leasehold.spark.batch import event_files, event_pages
from leasehold.spark.batch.conditions import Condition
from leasehold.spark.batch.schemas import EVENTS, checked
from leasehold.spark.batch.tables import shaped
from leasehold.spark.options import ReadOptions
from leasehold.spark.schemas import arrow_schema


@dataclass(frozen=True, slots=True)
class EventPart(InputPartition):
    """What one task reads."""

    value: event_files.Files | event_pages.Pages


class EventsReader(DataSourceReader):
    """Reads the event log once, up to what there is when the read is planned.

    It is made and asked for its parts at each planning, also of ``explain``; that takes a few
    requests, or a listing of the folder.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked(schema, EVENTS)
        self._conditions: tuple[Condition, ...] = wanted.of_options(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the log into parts."""
        if self._options.event_log is not None:
            return [EventPart(each) for each in event_files.plan(self._options, self._conditions)]
        return [EventPart(each) for each in event_pages.plan(self._options, self._conditions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a part, on an executor; every time the same, but for what is gone."""
        part = partition.value
        columns = tuple(self._schema.names)
        found: Iterable[Any]
        if isinstance(part, event_files.Files):
            found = event_files.read(part, columns, self._conditions)
        else:
            found = event_pages.read(part, self._options.place, columns, self._conditions)
        return shaped(found, arrow_schema(self._schema), self._options.limit)


class FilteringEventsReader(EventsReader):
    """The same, taking filters from Spark. Spark refuses such a reader unless it is told to."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that can be evaluated here, and return the others."""
        taken, left = wanted.of_filters(filters)
        self._conditions += taken
        return left


def events_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return what reads the event log.

    Raises:
        BadOption: The schema has columns that events do not have, or a time is not one.
    """
    return (FilteringEventsReader if options.pushdown else EventsReader)(options, schema)
