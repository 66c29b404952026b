"""Where events come from, piece by piece: exported files, or the numbers of a server's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from leasehold.events.names import range_of
from leasehold.events.parquet import check_format, files_of
from leasehold.spark.connection import FORMAT_NAME, connect, patient
from leasehold.spark.options import Place, read_options
from leasehold.spark.schemas import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_PER_RUN: Final = 512
"""Of 131,072 events at most: some 64 million."""
SERVER: Final = "server"
"""What servers' logs were called before they were told from each other."""
_PATIENCE_S: Final = 60.0
SCHEMA: Final = EVENTS
"""The columns of the log; what a file of before a column came lacks is null."""


class Gap(NamedTuple):
    """Numbers of a log of which the events are there no more."""

    first_seq: int
    last_seq: int


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
    gap: Gap | None = None
    """What may be missing before them."""


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
        late = [each for each in new if each[0][0] <= known.upto_seq]
        fresh = [each for each in new if each[0][0] > known.upto_seq]
        upto_seq, pieces = known.upto_seq, []
        for files in (late, fresh):
            for begin in range(0, len(files), self.files_per_run):
                chosen = files[begin : begin + self.files_per_run]
                paths = [path for _, path in chosen]
                pieces.append(
                    Piece(
                        events=_read(spark, paths),
                        rows=sum(map(_rows, paths)),
                        names=[path.name for path in paths],
                        # Pieces before this one are used by then.
                        late=chosen[0][0][0] <= upto_seq,
                        distinct=_are_apart(paths),
                    )
                )
                upto_seq = max(upto_seq, *(last for (_, last), _ in chosen))
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
        """Address, account and queue; nothing else of the options, which may hold a key.

        Raises:
            BadOption: The options are malformed.
        """
        with connect(self._place) as client:
            parts = (client.url, client.account, self._place.queue)
        return "/".join(part for part in parts if part)

    def pieces(self, spark: SparkSession, known: Known) -> Sequence[Piece]:
        """Return what is behind the numbers used; it is read anew by each action.

        Raises:
            LeaseholdClientError: The server refuses, or cannot be reached.
        """
        gap = self.gap(known)
        reader = spark.read.format(FORMAT_NAME).options(**self.options)
        reader = reader.option("read", "events").option("startingSeq", str(known.upto_seq))
        events = reader.load().where(F.col("seq") > known.upto_seq)
        return [Piece(events=events, rows=None, distinct=True, gap=gap)]

    def gap(self, known: Known) -> Gap | None:
        """Return which numbers behind those used the server may have forgotten already.

        Raises:
            LeaseholdClientError: The server refuses, or cannot be reached.
        """
        if not known.upto_seq:
            return None
        after = 0
        with connect(self._place, patient(_PATIENCE_S)) as client:
            while True:
                page = client.event_page(after=after, limit=1)
                if page.events or page.finished:
                    break
                after = page.next_after
        # The oldest are forgotten first, so from the first one on nothing is missing.
        first = page.events[0].seq if page.events else (page.last_seq or 0) + 1
        return Gap(known.upto_seq + 1, first - 1) if first > known.upto_seq + 1 else None

    @property
    def _place(self) -> Place:
        return read_options(self.options).place

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
    check_format(str(path), metadata)
    return int(metadata.num_rows)
