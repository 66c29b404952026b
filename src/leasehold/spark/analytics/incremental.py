"""Lifecycle tables that grow with the log: each event is used once, whatever is cut where.

A run uses what is new together with the events of the messages that had not ended, which the run
before has kept. What has ended goes into the tables for good; the events of the rest are kept
again. So a run's work goes with what is new and what is open, not with how long the log is.

A file that comes late, with lower numbers than those used before, may belong to messages that were
thought to have ended. Their rows are taken out of the tables, and made anew from all their events.

A run counts when the file ``_leasehold_tables.json`` says so, which is its last act. One that was
interrupted is done again by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.spark.analytics import derived
from leasehold.spark.analytics.deriving import Lifecycle, split, with_details
from leasehold.spark.analytics.keeping import ADDED, Folder, OtherLog, State
from leasehold.spark.analytics.lifecycle import staged
from leasehold.spark.analytics.normal import MARKS, OVER, codes, normal
from leasehold.spark.analytics.schemas import ATTEMPTS, MESSAGES, OPEN, QUEUES, WORKERS
from leasehold.spark.analytics.sources import Known, Piece, Source, empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS_PER_PARTITION: Final = 250_000
"""Events that one task sorts: some 100 MB."""
_SESSIONS_KEPT_MS: Final = 7 * 86_400_000
"""For so long after it was lost, leases of a session may still be ended."""


class Tables(NamedTuple):
    """The tables of a folder; lazily. What has not ended is among them, with outcome ``open``."""

    attempts: DataFrame
    messages: DataFrame
    workers: DataFrame
    queues: DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What an update has done."""

    runs: int
    """How often the tables grew; 0 if there was nothing new."""
    events: int
    """How many were used."""
    late: int
    """How many of the runs used files that came late."""
    state: State


def update(  # noqa: PLR0913 - keyword-only but for what it is about
    spark: SparkSession,
    source: Source,
    folder: Path,
    *,
    details: DataFrame | None = None,
    partitions: int | None = None,
    on_run: Callable[[State], None] | None = None,
) -> Updated:
    """Use all that is new in a log, and return; for a first time, that is all of it.

    Args:
        spark: The session.
        source: The log.
        folder: Of the tables; on a path that all executors reach.
        details: What the log does not tell of messages, with columns of
            :data:`~leasehold.spark.analytics.schemas.DETAILS`; one row for a message at most.
        partitions: Of the shuffle; by default one for each 250,000 events.
        on_run: Called after each run.

    Raises:
        OtherLog: The folder has tables of another log.
        TablesTooNew: A newer version has written the folder.
        FormatTooNew: A newer version has written the log.
    """
    tables = Folder(folder)
    state = tables.state()
    if state.source not in {"", source.name}:
        raise OtherLog(f"{folder} has the tables of {state.source}, not of {source.name}")
    tables.tidy(state.run)
    begun = state
    known = Known(upto_seq=state.upto_seq, names=frozenset(state.names))
    pieces = source.pieces(spark, known)
    late = 0
    for number, piece in enumerate(pieces, start=1):
        run = _Run(spark, tables, replace(state, source=source.name), partitions, details)
        after = run.use(piece, source, derive=number == len(pieces))
        late += piece.late and after.run > state.run
        state = after
        if on_run is not None:
            on_run(state)
    return Updated(
        runs=state.run - begun.run, events=state.events - begun.events, late=late, state=state
    )


def read_tables(spark: SparkSession, folder: Path) -> Tables:
    """Return the tables of a folder.

    Raises:
        FileNotFoundError: There are none.
        TablesTooNew: A newer version has written the folder.
    """
    tables = Folder(folder)
    run = tables.state().run
    if not run:
        raise FileNotFoundError(f"there are no lifecycle tables in {folder}")
    attempts = _table(spark, [each for each, _ in tables.runs("attempts")], ATTEMPTS)
    messages = _table(spark, [each for each, _ in tables.runs("messages")], MESSAGES)
    going_on = _table(spark, [tables.newest("open_attempts", run)], ATTEMPTS)
    staying = _table(spark, [tables.newest("open_messages", run)], MESSAGES)
    attempts, messages = attempts.unionByName(going_on), messages.unionByName(staying)
    if not tables.newest("queues", run).exists():  # an update was cut short
        return Tables(
            attempts, messages, derived.workers(attempts), derived.queues(attempts, messages)
        )
    return Tables(
        attempts,
        messages,
        _table(spark, [tables.newest("workers", run)], WORKERS),
        _table(spark, [tables.newest("queues", run)], QUEUES),
    )


class _Run:
    """One growth of the tables."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        state: State,
        partitions: int | None,
        details: DataFrame | None,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._state = state
        self._partitions = partitions
        self._details = details
        self._run = state.run + 1

    def use(self, piece: Piece, source: Source, *, derive: bool) -> State:
        """Use events, and return the state after that; the same one if there were none."""
        given = piece.events if piece.rows is not None else self._kept("new", piece.events)
        newest = given.agg(F.max("seq"), F.unix_millis(F.max("happened_at")), F.count("*")).first()
        assert newest is not None
        if not newest[0] and not piece.names:
            return self._state
        rows = newest[2]
        events, notes = normal(given), self._kept("notes", normal(given, MARKS))
        known = self._kept_from_before("open", OPEN)
        noted = self._kept_from_before("marks", OPEN)
        if piece.late:
            events, known, notes = self._again(events, known, notes, source)
        noted = self._kept("noted", _of_sessions(noted.unionByName(notes)).distinct())
        stages = staged(known.unionByName(events), self._partitions or self._width(rows))
        lifecycle = split(self._kept("stages", stages), noted.unionByName(_cleared(notes)))
        still = noted.where(f"at >= {(newest[1] or 0) - _SESSIONS_KEPT_MS}")
        still.coalesce(1).write.parquet(str(self._folder.temporary("marks")))
        self._write(lifecycle)
        self._folder.place((*ADDED, "open", "marks", "open_attempts", "open_messages"), self._run)
        self._derive(derive=derive)
        after = replace(
            self._state,
            run=self._run,
            upto_seq=max(self._state.upto_seq, newest[0] or 0),
            events=self._state.events + rows,
            names=tuple(sorted({*self._state.names, *piece.names})),
        )
        self._folder.commit(after)
        return after

    # --- late files --------------------------------------------------------------------------

    def _again(
        self, events: DataFrame, known: DataFrame, notes: DataFrame, source: Source
    ) -> tuple[DataFrame, DataFrame, DataFrame]:
        """Return all events of the messages that late ones are about, the others' that are open,
        and all marks; and take the rows of those messages out of the tables.
        """
        used = Known(names=frozenset(self._state.names))
        log = source.everything(self._spark, used)
        history = normal(log)
        lost = _of_sessions(notes).select("session").distinct()
        ended = _table(self._spark, self._paths("attempts"), ATTEMPTS)
        touched = ended.join(lost, ended.session_id == lost.session, "left_semi")
        ids = events.select("message_id").union(touched.select("message_id"))
        ids = self._kept("ids", ids.where("message_id IS NOT NULL").distinct())
        for table, schema in (("attempts", ATTEMPTS), ("messages", MESSAGES)):
            self._take_out(table, schema, ids)
        own = history.join(ids, "message_id", "left_semi").select(*OPEN.names)
        others = known.join(ids, "message_id", "left_anti").select(*OPEN.names)
        all_notes = self._kept("all-notes", notes.unionByName(normal(log, MARKS)))
        return own.unionByName(events), others, all_notes

    def _take_out(self, table: str, schema: StructType, ids: DataFrame) -> None:
        for path in self._paths(table):
            rows = _table(self._spark, [path], schema)
            if rows.join(ids, "message_id", "left_semi").isEmpty():
                continue
            written = self._folder.temporary(f"{table}-{path.name}")
            _write(rows.join(ids, "message_id", "left_anti").select(*schema.names), written)
            self._folder.replace(table, path, written)

    # --- writing -----------------------------------------------------------------------------

    def _write(self, lifecycle: Lifecycle) -> None:
        for name, table in zip(
            ("attempts", "messages", "open_attempts", "open_messages"), lifecycle[:4], strict=True
        ):
            _write(with_details(table, self._details), self._folder.temporary(name))
        lifecycle.open_events.write.parquet(str(self._folder.temporary("open")))

    def _derive(self, *, derive: bool) -> None:
        """Make workers and queues anew, if this is the last run for now."""
        if not derive:
            return
        attempts = _table(self._spark, self._paths("attempts", "open_attempts"), ATTEMPTS)
        messages = _table(self._spark, self._paths("messages", "open_messages"), MESSAGES)
        derived.workers(attempts).write.parquet(str(self._folder.temporary("workers")))
        derived.queues(attempts, messages).write.parquet(str(self._folder.temporary("queues")))
        self._folder.place(("workers", "queues"), self._run)

    # --- parts -------------------------------------------------------------------------------

    def _width(self, rows: int) -> int:
        least = int(self._spark.conf.get("spark.sql.shuffle.partitions") or 2)
        return max(least, -(-rows // ROWS_PER_PARTITION))

    def _paths(self, *tables: str) -> list[Path]:
        return [
            path
            for table in tables
            for path, run in self._folder.runs(table)
            if table in ADDED or run == self._run
        ]

    def _kept(self, name: str, rows: DataFrame) -> DataFrame:
        """Write rows down, so that they are made once, and return them."""
        path = str(self._folder.temporary(name))
        rows.write.parquet(path)
        return self._spark.read.schema(rows.schema).parquet(path)

    def _kept_from_before(self, table: str, schema: StructType) -> DataFrame:
        path = self._folder.newest(table, self._state.run)
        return _table(self._spark, [path] if path.exists() else [], schema)


def _table(spark: SparkSession, paths: Sequence[Path], schema: StructType) -> DataFrame:
    if not paths:
        return empty(spark, schema)
    if len({path.parent for path in paths}) > 1:
        one = _table(spark, [path for path in paths if path.parent == paths[0].parent], schema)
        others = [path for path in paths if path.parent != paths[0].parent]
        return one.unionByName(_table(spark, others, schema))
    reader = spark.read.schema(schema).option("basePath", str(paths[0].parent))
    return reader.parquet(*map(str, paths)).select(*schema.names)


def _write(rows: DataFrame, path: Path) -> None:
    rows.write.partitionBy("day").parquet(str(path))


def _of_sessions(noted: DataFrame) -> DataFrame:
    return noted.where(f"t IN ({codes(OVER)})")


def _cleared(notes: DataFrame) -> DataFrame:
    return notes.where(f"t NOT IN ({codes(OVER)})")
