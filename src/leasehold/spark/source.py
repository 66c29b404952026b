"""``format("leasehold")``: which part serves which read or write.

Spark makes this object, and what it returns, more often than one thinks, and pickles both: nothing
here has side effects or holds more than options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from leasehold.spark.connection import FORMAT_NAME, show_sentences
from leasehold.spark.options import (
    NO_TABLES,
    OF_LOG,
    BadOption,
    ReadOptions,
    read_options,
    refuse_for_streams,
    refuse_tables,
    write_options,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
    )

    from leasehold.spark.azure import AzureReader
    from leasehold.spark.event_stream import EventStreamReader
    from leasehold.spark.stream.reader import ClaimReader


@show_sentences
class LeaseholdDataSource(DataSource):
    """Queues of Leasehold, and of Azure Queue Storage, as tables and streams.

    ::

        messages = spark.readStream.format("leasehold").options(
            queueName="orders", streamId="totals"
        ).load()

    See :mod:`leasehold.spark.options` for the options.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the columns of what is read, where the user gives none."""
        from leasehold.spark import schemas  # noqa: PLC0415 - only what is needed

        options = self._read_options()
        if options.read == "events":
            columns = schemas.EVENTS
        elif options.read == "results":
            columns = schemas.RESULTS
        elif options.read == "snapshot":
            columns = schemas.SNAPSHOT
        elif options.format == "json":
            raise BadOption(
                "option format=json needs the columns of the bodies: say .schema(...) before .load"
            )
        else:
            columns = schemas.message_schema(options)
        return schemas.chosen(columns, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads once: a snapshot of a queue, or the event log."""
        options = self._read_options()
        _check_columns(options, schema)
        if options.read in OF_LOG:
            from leasehold.spark.batch.events import events_reader  # noqa: PLC0415

            return events_reader(options, schema)
        if options.read != "snapshot":
            # Which columns there are is asked for before Spark says whether it is a stream.
            raise BadOption(
                "a batch read needs option read=snapshot, events or results; messages are taken by "
                "spark.readStream, with .trigger(availableNow=True) to take what is there and end"
            )
        from leasehold.spark.batch.snapshot import snapshot_reader  # noqa: PLC0415

        return snapshot_reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return what takes messages, or reads on in the event log, in micro-batches."""
        from leasehold.spark.stream.releases import TELLS_START, WithoutStart  # noqa: PLC0415

        try:
            reader = _stream_reader(self._read_options(), schema)
        except ValueError as error:
            return _RefusedStream(error)
        return reader if TELLS_START else WithoutStart(reader)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what sends the rows of a table, all together."""
        from leasehold.spark import sink  # noqa: PLC0415

        refuse_tables(self.options)
        if not self.options and "queue" not in schema.names:
            raise BadOption(f"no option is given: name the queue, queueName=... {NO_TABLES}")
        return sink.batch_writer(write_options(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return what sends the rows of each micro-batch, once and all together."""
        from leasehold.spark import sink  # noqa: PLC0415

        return sink.stream_writer(write_options(self.options), schema, overwrite)

    def _read_options(self) -> ReadOptions:
        refuse_tables(self.options)
        if not self.options:
            raise BadOption(
                "no option is given: a stream needs queueName and streamId, a batch read needs "
                f"read=snapshot, events or results. {NO_TABLES}"
            )
        return read_options(self.options)


@show_sentences
class _RefusedStream(DataSourceStreamReader):
    """Raises what is wrong with the options of a stream when Spark asks for its first offset.

    PySpark stops a reader also where none was returned, and shows the error of that in place of
    the one that was raised.
    """

    def __init__(self, error: ValueError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise it; a query without a checkpoint begins here."""
        raise self._error

    def latestOffset(self, *_: object) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise it; PySpark 4.1 begins here."""
        raise self._error

    def partitions(self, *_: object) -> Sequence[InputPartition]:
        """Raise it; a query with a checkpoint begins here."""
        raise self._error

    def read(self, _partition: InputPartition) -> Iterator[Any]:
        """Raise it; Spark does not come that far."""
        raise self._error


def _stream_reader(
    options: ReadOptions, schema: StructType
) -> AzureReader | ClaimReader | EventStreamReader:
    """Return the reader of a stream.

    Raises:
        ValueError: The options do not fit a stream, each other or the columns.
    """
    if options.read == "snapshot":
        raise BadOption("option read=snapshot: a stream reads messages, events or results")
    refuse_for_streams(options)
    _check_columns(options, schema)
    if options.read in OF_LOG:
        from leasehold.spark.event_stream import EventStreamReader  # noqa: PLC0415

        return EventStreamReader(options, schema)
    if options.service == "azure":
        from leasehold.spark.azure import AzureReader  # noqa: PLC0415 - needs the SDK

        return AzureReader(options, schema)
    from leasehold.spark.stream.reader import ClaimReader  # noqa: PLC0415

    return ClaimReader(options, schema)


def _check_columns(options: ReadOptions, schema: StructType) -> None:
    """Refuse two lists of columns that do not agree: one of them would be passed over.

    Raises:
        BadOption: The option ``columns`` and ``.schema(...)`` name different ones.
    """
    if options.columns is None:
        return
    if [name.lower() for name in schema.names] != [name.lower() for name in options.columns]:
        raise BadOption("option columns and .schema(...) name different columns: give one of them")
