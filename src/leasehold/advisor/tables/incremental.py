"""Lifecycle tables that grow with the log: each event is used once, whatever is cut where.

A run uses what is new together with the events of the messages that had not ended, which the run
before has kept. What has ended goes into the tables for good; the events of the rest are kept
again. So a run's work goes with what is new and what is open, not with how long the log is.

A file that comes late, with lower numbers than those used before, may belong to messages that were
thought to have ended. Their rows are made anew from all their events. The other rows of the folders
that they are in are written once more, by this run, and those folders count no more.

A run counts when the file ``_leasehold_tables.json`` says so, which is its last act. What counted
before is not touched until then. So one that was interrupted is done again by the next.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import IntegerType, StructField, StructType

from leasehold.advisor.tables import derive as derived
from leasehold.advisor.tables.derive import Lifecycle, at_once, split, well_compiled, with_details
from leasehold.advisor.tables.lifecycle import KEPT, LEASED, MARKS, OVER, T, codes, normal, staged
from leasehold.advisor.tables.schemas import (
    ATTEMPTS,
    FORMAT,
    HOLDER_TALLIES,
    HOUR_TALLIES,
    MESSAGES,
    OPEN,
    QUEUES,
    WORKERS,
    Ending,
    Fate,
)
from leasehold.advisor.tables.sources import SERVER, Gap, Known, Piece, ServerLog, Source, empty
from leasehold.disk import sync
from leasehold.domain.events import EventType
from leasehold.events.names import PHASE_NAMES, TEMPORARY, TYPE_NAMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ROWS_PER_PARTITION: Final = 250_000
"""Events that one task sorts: some 100 MB."""
_VARIED: Final = frozenset(
    {
        "message_id",
        *("leased_at_ms", "ended_at_ms", "inserted_at_ms", "first_leased_at_ms", "expires_at_ms"),
        *("seconds", "wait_s", "handling_s", "total_s"),
        *("seq", "at", "inserted", "expires", "visible", "since", "visible_since"),
        *("a_leased", "a_lease_end"),
        *("m_inserted", "m_ended", "m_expires", "m_first_at", "m_wait_ms"),
    }
)
"""Columns of which most values are there once. To look for them in a dictionary is a third of what
it takes to write a table."""
_GROWING: Final = {"attempts": ATTEMPTS, "messages": MESSAGES}
_NOTHING: Final = StructType([])
_RUN: Final = StructType([StructField("run", IntegerType())])
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
    gap: Gap | None = None
    """Numbers of a server's log that were behind those used, and that it keeps no more: their
    events, if they had any of this account, are in no table. None: there are none such."""


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
        details: What the log does not tell of messages, or should have told: ``message_id`` and
            any other columns of :data:`~leasehold.advisor.tables.schemas.DETAILS`, one row for a
            message at most.
        partitions: Of the shuffle; by default one for each 250,000 events.
        on_run: Called after each run.

    Raises:
        BadDetails: The details lack the key, or everything else.
        OtherLog: The folder has tables of another log.
        TablesBusy: Another process is updating the folder.
        TablesTooNew: A newer version has written the folder.
        UnreadableTables: What says which files of the folder count is damaged.
        FormatTooNew: A newer version has written the log.
    """
    tables = Folder(folder)
    with tables.exclusively():
        return _update(spark, source, tables, details, partitions, on_run)


def _update(  # noqa: PLR0913, PLR0917 - those of update
    spark: SparkSession,
    source: Source,
    tables: Folder,
    details: DataFrame | None,
    partitions: int | None,
    on_run: Callable[[State], None] | None,
) -> Updated:
    state = begun = tables.state()
    name = source.name
    if not _goes_on(state.source, source):
        raise OtherLog(f"{tables.path} has the tables of {state.source}, not of {name}")
    tables.tidy(state)
    known = Known(upto_seq=state.upto_seq, names=frozenset(state.names))
    pieces = source.pieces(spark, known)
    late = 0
    for number, piece in enumerate(pieces, start=1):
        run = _Run(spark, tables, replace(state, source=name), partitions, details)
        with well_compiled(spark):
            after = run.use(piece, source, derive=number == len(pieces))
        late += piece.late and after.run > state.run
        state = after
        if on_run is not None:
            on_run(state)
    return Updated(
        runs=state.run - begun.run,
        events=state.events - begun.events,
        late=late,
        state=state,
        gap=next((each.gap for each in pieces if each.gap is not None), None),
    )


def _goes_on(told: str, source: Source) -> bool:
    """Tell whether tables of one log, by its name, may grow with another."""
    # Tables of before servers were told from each other take the first one for theirs.
    return told in {"", source.name} or (told == SERVER and isinstance(source, ServerLog))


def read_tables(spark: SparkSession, folder: Path) -> Tables:
    """Return the tables of a folder.

    Raises:
        FileNotFoundError: There are none.
        TablesTooNew: A newer version has written the folder.
        UnreadableTables: What says which files of the folder count is damaged.
    """
    tables = Folder(folder)
    state = tables.state()
    run = state.run
    if not run:
        raise FileNotFoundError(f"there are no lifecycle tables in {folder}")
    attempts = _table(spark, tables.of_runs("attempts", state.runs), ATTEMPTS)
    messages = _table(spark, tables.of_runs("messages", state.runs), MESSAGES)
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
        self._runs = state.runs
        """Those before this one whose folders count when it has come in."""
        self._left: dict[str, DataFrame] = {}
        """Rows that this run takes over from folders that count no more."""

    def use(self, piece: Piece, source: Source, *, derive: bool) -> State:
        """Use events, and return the state after that; the same one if there were none."""
        given = piece.events if piece.rows is not None else self._kept("new", piece.events)
        known = self._kept_from_before("open", OPEN)
        newest, notes, were_open = at_once(
            given.agg(F.max("seq"), F.unix_millis(F.max("happened_at")), F.count("*")).first,
            lambda: self._kept("notes", normal(given, MARKS)),
            known.count,
        )
        if not newest[0] and not piece.names:
            return self._state
        rows, events = newest[2], normal(given)
        noted = self._kept_from_before("marks", OPEN)
        together = rows + (self._state.events if piece.late else were_open)
        if piece.late:
            events, known, notes = self._again(events, known, notes, source)
        noted = self._kept("noted", _of_sessions(noted.unionByName(notes)).distinct())
        width = self._partitions or self._width(together)
        if piece.distinct and not piece.late:
            stages, alone = staged(others(given, known, width)), plain_stages(given)
        else:
            stages, alone = staged(known.unionByName(events), width), None
        still = noted.where(f"at >= {(newest[1] or 0) - _SESSIONS_KEPT_MS}")
        # Most stages are of messages that have ended, and some tables are made of the others alone.
        kept, _ = at_once(
            lambda: self._kept("stages", stages, by=["is_open"]),
            partial(_write, still.coalesce(1), self._folder.temporary("marks"), by=()),
        )
        lifecycle = split(kept, noted.unionByName(_cleared(notes)), alone)
        self._write(lifecycle)
        self._folder.place((*ADDED, "open", "marks", "open_attempts", "open_messages"), self._run)
        self._tally(anew=piece.late)
        if derive:
            self._derive()
        after = replace(
            self._state,
            format=FORMAT,
            run=self._run,
            runs=(*self._runs, self._run),
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
        and all marks; and see to it that the rows of those messages are not kept.
        """
        used = Known(names=frozenset(self._state.names))
        log = source.everything(self._spark, used)
        history = normal(log)
        lost = _of_sessions(notes).select("session").distinct()
        ended = _table(self._spark, self._paths("attempts"), ATTEMPTS)
        touched = ended.join(lost, ended.session_id == lost.session, "left_semi")
        ids = events.select("message_id").union(touched.select("message_id"))
        ids = self._kept("ids", ids.where("message_id IS NOT NULL").distinct())
        self._take_over(ids)
        own = history.join(ids, "message_id", "left_semi").select(*OPEN.names)
        others = known.join(ids, "message_id", "left_anti").select(*OPEN.names)
        all_notes = self._kept("all-notes", notes.unionByName(normal(log, MARKS)))
        return own.unionByName(events), others, all_notes

    def _take_over(self, ids: DataFrame) -> None:
        """Take over all rows but those of some messages from each folder that has any of those.

        The folders stay as they are, for this run may not come in.
        """
        touched: set[int] = set()
        for table, schema in _GROWING.items():
            rows = _table(self._spark, self._paths(table), schema, _RUN)
            of_theirs = rows.join(ids, "message_id", "left_semi").select("run").distinct()
            touched.update(int(row["run"]) for row in of_theirs.collect())
        for table, schema in _GROWING.items():
            rows = _table(self._spark, self._folder.of_runs(table, [*touched]), schema)
            rest = rows.join(ids, "message_id", "left_anti")
            self._left[table] = rest.select(*schema.names)
        self._runs = tuple(run for run in self._runs if run not in touched)

    # --- writing -----------------------------------------------------------------------------

    def _write(self, lifecycle: Lifecycle) -> None:
        def table(name: str) -> Callable[[], None]:
            rows = with_details(getattr(lifecycle, name), self._details)
            if name in self._left:
                rows = rows.unionByName(self._left[name])
            return partial(_write, rows, self._folder.temporary(name))

        events = partial(_write, lifecycle.open_events, self._folder.temporary("open"), by=())
        names = ("attempts", "messages", "open_attempts", "open_messages")
        at_once(*map(table, names), events)

    def _tally(self, *, anew: bool) -> None:
        """Count what has ended in this run, together with what had ended before.

        Args:
            anew: Whether rows of earlier runs may be gone, so that all has to be counted.
        """
        kept = [self._folder.newest(table, self._state.run).exists() for table in TALLIES]
        own = {self._folder.newest(table, self._run) for table in ADDED}
        everything = anew or not all(kept)
        attempts, messages = (
            _table(
                self._spark,
                [path for path in self._paths(table) if everything or path in own],
                schema,
            )
            for table, schema in _GROWING.items()
        )
        holders = derived.holder_tallies(attempts)
        hours = derived.hour_tallies(attempts, messages)
        if not everything:
            before = self._kept_from_before("holder_tallies", HOLDER_TALLIES)
            holders = derived.added_holders(holders.unionByName(before))
            before = self._kept_from_before("hour_tallies", HOUR_TALLIES)
            hours = derived.added_hours(hours.unionByName(before))
        at_once(
            partial(_write, holders, self._folder.temporary("holder_tallies"), by=()),
            partial(_write, hours, self._folder.temporary("hour_tallies"), by=()),
        )
        self._folder.place(TALLIES, self._run)

    def _derive(self) -> None:
        """Make workers and queues anew."""
        attempts = _table(self._spark, self._paths("open_attempts"), ATTEMPTS)
        messages = _table(self._spark, self._paths("open_messages"), MESSAGES)
        holders = _table(self._spark, self._paths("holder_tallies"), HOLDER_TALLIES)
        holders = holders.unionByName(derived.holder_tallies(attempts))
        hours = _table(self._spark, self._paths("hour_tallies"), HOUR_TALLIES)
        hours = hours.unionByName(derived.hour_tallies(attempts, messages))
        workers, queues = derived.workers_of(holders), derived.queues_of(hours)
        at_once(
            partial(_write, workers, self._folder.temporary("workers"), by=()),
            partial(_write, queues, self._folder.temporary("queues"), by=()),
        )
        self._folder.place(("workers", "queues"), self._run)

    # --- parts -------------------------------------------------------------------------------

    def _width(self, rows: int) -> int:
        least = int(self._spark.conf.get("spark.sql.shuffle.partitions") or 2)
        return max(least, -(-rows // ROWS_PER_PARTITION))

    def _paths(self, table: str) -> list[Path]:
        runs = (*self._runs, self._run) if table in ADDED else (self._run,)
        return self._folder.of_runs(table, runs)

    def _kept(self, name: str, rows: DataFrame, by: Sequence[str] = ()) -> DataFrame:
        """Write rows down, so that they are made once, and return them.

        Args:
            name: Of the folder.
            rows: What to write.
            by: Columns of which each value has its own files, so that they can be read apart.
        """
        path = self._folder.temporary(name)
        _write(rows, path, by)
        return self._spark.read.schema(rows.schema).parquet(str(path))

    def _kept_from_before(self, table: str, schema: StructType) -> DataFrame:
        path = self._folder.newest(table, self._state.run)
        return _table(self._spark, [path] if path.exists() else [], schema)


def _table(
    spark: SparkSession, paths: Sequence[Path], schema: StructType, more: StructType = _NOTHING
) -> DataFrame:
    """Return rows of folders of one table, with columns more that are names of folders."""
    columns = StructType([*schema, *more])
    if not paths:
        return empty(spark, columns)
    reader = spark.read.schema(columns).option("basePath", str(paths[0].parent))
    return reader.parquet(*map(str, paths)).select(*columns.names)


def _write(rows: DataFrame, path: Path, by: Sequence[str] = ("day",)) -> None:
    plain = {
        f"parquet.enable.dictionary#{name}": "false" for name in rows.columns if name in _VARIED
    }
    rows.write.partitionBy(*by).options(**plain).parquet(str(path))


def _of_sessions(noted: DataFrame) -> DataFrame:
    return noted.where(f"t IN ({codes(OVER)})")


def _cleared(notes: DataFrame) -> DataFrame:
    return notes.where(f"t NOT IN ({codes(OVER)})")


# --- keeping -----------------------------------------------------------------------------------
#
# The folder of tables: where they are, what has been used, and how a run comes in whole.


STATE: Final = "_leasehold_tables.json"
LOCK: Final = "_leasehold_tables.lock"
ADDED: Final = ("attempts", "messages")
"""Tables to which each run adds a folder of its own."""
TALLIES: Final = ("holder_tallies", "hour_tallies")
"""What workers and queues are made of, counted of all that has ended."""
REPLACED: Final = (
    "open",
    "marks",
    "open_attempts",
    "open_messages",
    *TALLIES,
    "workers",
    "queues",
)
"""Tables of which only the folder of the newest run counts."""
_RUNS_SINCE: Final = 2
"""Format from which on the state says whose folders count; before, those of all runs did."""


class TablesError(ValueError):
    """A folder of tables cannot be used."""


class TablesTooNew(TablesError):
    """A folder of tables has a format that this version does not know."""


class OtherLog(TablesError):
    """A folder has tables of another log."""


class TablesBusy(TablesError):
    """A folder of tables is being updated by another process."""


class UnreadableTables(TablesError):
    """The file that says what counts in a folder of tables is damaged, or something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a folder of tables was made of."""

    format: int = FORMAT
    run: int = 0
    """Number of the last run that came in whole; 0 before the first."""
    runs: tuple[int, ...] = ()
    """Those whose folders of :data:`ADDED` count. A run with files that came late takes over what
    is left of others, and those count no more."""
    source: str = ""
    upto_seq: int = 0
    """The highest number used."""
    events: int = 0
    """How many were used, those that came twice not counted twice by number but by file."""
    names: tuple[str, ...] = ()
    """Files used."""


class Folder:
    """A folder of tables.

    What a run writes is beside what counts, never in its place, until the state says that it
    counts. So whatever ends a run leaves the tables as they were.

    Args:
        path: Of the folder; it is made if need be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep others from updating the folder meanwhile. It is let go if the process ends.

        Raises:
            TablesBusy: Another process is updating it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TablesBusy(f"{self.path} is being updated by another process") from None
            yield

    def state(self) -> State:
        """Return what was used so far.

        Raises:
            TablesTooNew: A newer version has written it.
            UnreadableTables: It is damaged, or of something else.
        """
        path = self.path / STATE
        try:
            raw = json.loads(path.read_text("utf-8"))
            number = int(raw["format"])
            if number <= FORMAT:
                return self._told(raw, number)
        except FileNotFoundError:
            return State()
        except (LookupError, TypeError, ValueError) as error:
            raise UnreadableTables(
                f"{path} is damaged, or not a state file of lifecycle tables ({error!r})"
            ) from None
        raise TablesTooNew(f"{self.path} has format {number}, and this version reads {FORMAT}")

    def _told(self, raw: dict[str, Any], number: int) -> State:
        run = int(raw["run"])
        if number < _RUNS_SINCE:
            found = {each for table in ADDED for _, each in self.runs(table)}
            runs = [each for each in sorted(found) if each <= run]
        else:
            runs = raw["runs"]
        return State(
            run=run,
            runs=tuple(map(int, runs)),
            source=str(raw.get("source", "")),
            upto_seq=int(raw.get("upto_seq", 0)),
            events=int(raw.get("events", 0)),
            names=tuple(map(str, raw["names"])),
        )

    def tidy(self, state: State) -> None:
        """Remove what does not count: left behind by a run that did not come in, or taken over."""
        shutil.rmtree(self.path / TEMPORARY, ignore_errors=True)
        for table in (*ADDED, *REPLACED):
            counting = state.runs if table in ADDED else (state.run,)
            for folder, number in self.runs(table):
                if number not in counting:
                    shutil.rmtree(folder)
        (self.path / TEMPORARY).mkdir(parents=True)

    def runs(self, table: str) -> list[tuple[Path, int]]:
        """Return the folders of a table and the numbers of their runs, in their order."""
        found = (self.path / table).glob("run=*")
        return sorted((each, int(each.name.removeprefix("run="))) for each in found)

    def of_runs(self, table: str, runs: Sequence[int]) -> list[Path]:
        """Return the folders of a table that some runs have made, as far as they are there."""
        return [path for path, run in self.runs(table) if run in runs]

    def newest(self, table: str, run: int) -> Path:
        """Return the folder of a table that the run has made."""
        return self.path / table / f"run={run:06d}"

    def temporary(self, name: str) -> Path:
        """Return where something can be written before it is put in its place."""
        return self.path / TEMPORARY / name

    def place(self, tables: Iterable[str], run: int) -> None:
        """Put what was written for a run into its place, on the disk."""
        for table in tables:
            target = self.newest(table, run)
            target.parent.mkdir(parents=True, exist_ok=True)
            written = self.temporary(table)
            _sync_all(written)
            written.rename(target)
            sync(target.parent)
        sync(self.path)

    def commit(self, state: State) -> None:
        """Have a run count: from now on it is there, whatever happens."""
        written = self.temporary(STATE)
        written.write_text(json.dumps(asdict(state)), encoding="utf-8")
        sync(written)
        written.replace(self.path / STATE)
        sync(self.path)
        self.tidy(state)


def _sync_all(folder: Path) -> None:
    """Wait until a folder and all that is in it are on the disk."""
    for at, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(at, name))
        sync(Path(at))


# --- plain -------------------------------------------------------------------------------------
#
# Messages that were done at their first delivery: their last event tells everything.
#
# Most messages are put, received and completed. The event of completing carries the lease that it
# ends, when the message came and since when it could be received. Its fence says that there was no
# other lease, renewal or move: each of them would have raised it. So these messages need no
# window, no sort, and of their other events nothing but to be left out.


_IS_PLAIN: Final = (
    f"type = '{TYPE_NAMES[EventType.COMPLETED]}' AND phase = '{PHASE_NAMES[LEASED]}'"
    " AND dequeue_count = 1 AND fence = 1"
)


def plain(events: DataFrame) -> DataFrame:
    """Return the last events of messages that were done at their first delivery.

    Args:
        events: With the columns of ``docs/reference/event-log.md``; none may be there twice.
    """
    return events.where(_IS_PLAIN)


def others(events: DataFrame, known: DataFrame, partitions: int) -> DataFrame:
    """Return the events of all other messages, in the form of ``OPEN`` and put together by message.

    Args:
        events: As for :func:`plain`.
        known: Events in that form already.
        partitions: Of the shuffle.
    """
    rest = normal(events.where(f"NOT coalesce({_IS_PLAIN}, FALSE)"))
    done = plain(events).select("message_id").repartition(partitions, "message_id")
    together = known.unionByName(rest).repartition(partitions, "message_id")
    # Spark would sort both sides.
    return together.join(done.hint("shuffle_hash"), "message_id", "left_anti").select(*rest.columns)


def plain_stages(events: DataFrame) -> DataFrame:
    """Return stages, as :func:`~leasehold.advisor.tables.lifecycle.staged` does for the others."""
    told = {
        "is_open": "FALSE",
        "stay": "cast(NULL AS string)",
        "entry_seq": "cast(NULL AS long)",
        "entry_place": "cast(NULL AS int)",
        "a_outcome": f"IF(visible <= at, '{Ending.COMPLETED_LATE}', '{Ending.COMPLETED}')",
        "a_leased": "since",
        "a_lease_end": "visible",
        "a_count": "count",
        "a_holder": "holder",
        "a_session": "session",
        "a_renewals": "renewals",
        "a_first_ms": "visible - since",
        "a_claim": "cast(NULL AS string)",
        "a_refused": "cast(NULL AS long)",
        "a_why": "cast(NULL AS string)",
        "m_outcome": f"'{Fate.COMPLETED}'",
        "m_inserted": "inserted",
        "m_ended": "at",
        "m_deliveries": "1",
        "m_expires": "expires",
        "m_first_at": "since",
        "m_wait_ms": "since - visible_since",
    }
    rows = normal(plain(events), [EventType.COMPLETED]).withColumn("t", F.lit(T["COMPLETED"]))
    return rows.select(
        *(F.expr(told[name]).alias(name) if name in told else F.col(name) for name in KEPT)
    )
