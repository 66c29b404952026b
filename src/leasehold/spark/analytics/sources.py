"""Where events come from, piece by piece: exported files, or the numbers of a server's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from leasehold.domain.events import EVENT_FORMAT
from leasehold.eventlog.names import FORMAT_KEY, FormatTooNew, range_of
from leasehold.eventlog.reading import files_of
from leasehold.spark.batch.schemas import EVENTS
from leasehold.spark.naming import FORMAT_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_PER_RUN: Final = 512
"""Of 131,072 events at most: some 64 million."""
SCHEMA: Final = EVENTS
"""The columns of the log; what a file of before a column came lacks is null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What has been used so far."""

    upto_seq: int = 0
    """The highest number; 0 for nothing."""
    names: frozenset[str] = frozenset()
    """Of the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Events that are used together."""

    events: DataFrame
    rows: int | None
    """How many, if that is known."""
    names: Sequence[str] = ()
    late: bool = False
    """Whether some may be older than what has been used; all of the log is needed then."""
    distinct: bool = False
    """Whether it is known that no event is there twice, which makes most of the work less."""


class Source(Protocol):
    """A log."""

    def pieces(self, spark: SparkSession, known: Known) -> Sequence[Piece]:
        """Return what there is now and has not been used, in the order in which to use it."""

    def everything(self, spark: SparkSession, known: Known) -> DataFrame:
        """Return all events that have been used, as far as they are still there."""

    @property
    def name(self) -> str:
        """Where this is, for people and for telling one log from another."""


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """The folder of Parquet files that a server exports to.

    A file is used once, by its name. One whose numbers are not all higher than those used before
    came late, or repeats others.

    Args:
        folder: On a path that all executors reach.
        files_per_run: How many to use at a time, 1 or more; it bounds the work of a run.
    """

    folder: Path
    files_per_run: int = FILES_PER_RUN

    @property
    def name(self) -> str:
        """The path of the folder."""
        return str(self.folder.resolve())

    def pieces(self, spark: SparkSession, known: Known) -> Sequence[Piece]:
        """Return the new files, the lowest numbers first.

        Raises:
            FormatTooNew: A file was written by a newer version in a way that could be
                misunderstood.
        """
        new = sorted(
            (_range(path), path)
            for path in files_of(self.folder, None, None)
            if path.name not in known.names
        )
        late = [path for (first, _), path in new if first <= known.upto_seq]
        fresh = [path for (first, _), path in new if first > known.upto_seq]
        pieces = []
        for paths, is_late in ((late, True), (fresh, False)):
            for begin in range(0, len(paths), self.files_per_run):
                chosen = paths[begin : begin + self.files_per_run]
                rows = sum(_rows(path) for path in chosen)
                names = [path.name for path in chosen]
                pieces.append(
                    Piece(
                        events=_read(spark, chosen),
                        rows=rows,
                        names=names,
                        late=is_late,
                        distinct=_are_apart(chosen),
                    )
                )
        return pieces

    def everything(self, spark: SparkSession, known: Known) -> DataFrame:
        """Return the events of all files used, as far as they are still there."""
        found = files_of(self.folder, None, None)
        return _read(spark, [path for path in found if path.name in known.names])


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The log that a server keeps, read through the data source ``leasehold``.

    Args:
        options: Those of the data source that say where the server is.
    """

    options: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """Nothing of the options, which may hold a key."""
        return "server"

    def pieces(self, spark: SparkSession, known: Known) -> Sequence[Piece]:
        """Return what is behind the numbers used; it is read anew by each action."""
        reader = spark.read.format(FORMAT_NAME).options(**self.options)
        reader = reader.option("read", "events").option("startingSeq", str(known.upto_seq))
        events = reader.load().where(F.col("seq") > known.upto_seq)
        return [Piece(events=events, rows=None, distinct=True)]

    def everything(self, spark: SparkSession, known: Known) -> DataFrame:
        """Return nothing: numbers rise, so nothing comes late."""
        _ = known
        return empty(spark, SCHEMA)


@dataclass(frozen=True, slots=True)
class Given:
    """Events that are there as a table; all of them are used at once, under a name.

    Args:
        events: With the columns of the event log.
        label: What it is called; used once.
        rows: How many events there are.
        distinct: Whether none of them is there twice; else that is seen to.
    """

    events: DataFrame = field(repr=False)
    label: str
    rows: int
    distinct: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.label

    def pieces(self, spark: SparkSession, known: Known) -> Sequence[Piece]:
        """Return all of it, if it was not used before."""
        _ = spark
        if self.label in known.names:
            return []
        names = (self.label,)
        return [Piece(events=self.events, rows=self.rows, names=names, distinct=self.distinct)]

    def everything(self, spark: SparkSession, known: Known) -> DataFrame:
        """Return all of it."""
        _ = spark, known
        return self.events


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return no rows, made without starting Python on an executor."""
    return spark.range(0).select(
        *(F.lit(None).cast(each.dataType).alias(each.name) for each in schema)
    )


def _read(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    if not paths:
        return empty(spark, SCHEMA)
    return spark.read.schema(SCHEMA).parquet(*map(str, paths))


def _range(path: Path) -> tuple[int, int]:
    return range_of(path.name) or (0, 0)


def _are_apart(paths: Sequence[Path]) -> bool:
    """Tell whether each file has higher numbers than the one before."""
    return all(_range(one)[1] < _range(other)[0] for one, other in pairwise(paths))


def _rows(path: Path) -> int:
    metadata = pq.read_metadata(path)
    number = int((metadata.metadata or {}).get(FORMAT_KEY, b"1"))
    if number > EVENT_FORMAT:
        raise FormatTooNew(str(path), number)
    return int(metadata.num_rows)
