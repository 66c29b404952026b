"""What is told of a run: how it goes, to listeners; what became of each message, in tables.

Rows of messages are kept on the driver's disk until then.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_log: Final = logging.getLogger("leasehold.spark.pipeline")
_TIME: Final = pa.timestamp("us", tz="UTC")
_STAGE: Final = pa.struct(
    [
        ("stage", pa.string()),
        ("began_at", _TIME),
        ("seconds", pa.float64()),
        ("attempts", pa.int32()),
        ("outcome", pa.string()),
    ]
)
DELIVERIES: Final = pa.schema(
    [
        ("message_id", pa.string()),
        ("queue", pa.string()),
        ("delivery", pa.int32()),
        ("fence", pa.int64()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("resumed_at", pa.string()),
        ("began_at", _TIME),
        ("ended_at", _TIME),
        ("stages", pa.list_(_STAGE)),
        ("executor", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("task", pa.int32()),
        ("task_attempt", pa.int32()),
    ]
)
"""Columns of :meth:`Report.deliveries`."""
MESSAGES: Final = pa.schema(
    [
        ("message_id", pa.string()),
        ("queue", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("attempts", pa.int32()),
        ("began_at", _TIME),
        ("ended_at", _TIME),
        ("stages", pa.list_(_STAGE)),
        ("executor", pa.string()),
        ("executors", pa.list_(pa.string())),
    ]
)
"""Columns of :meth:`Report.messages`."""
EXPIRED: Final = pa.schema(
    [
        ("message_id", pa.string()),
        ("text", pa.string()),
        ("inserted_at", _TIME),
        ("expired_at", _TIME),
        ("attempts", pa.int32()),
    ]
)
"""Columns of :meth:`Report.expired`."""
EACH: Final = ("message", "delivery", "expired")
"""What a row can be of."""
_AT_ONCE: Final = 10_000


class _Kept(Struct):
    who: Who
    rows: list[Row]


class Spool:
    """Rows in a file of the driver, so that a long run does not fill its memory.

    The file is removed with the spool.
    """

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="leasehold-pipeline-")  # noqa: SIM115 - see close
        # A run that failed gives out no report that people could close.
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self.rows = 0
        """How many there are."""

    def add(self, who: Who, rows: Sequence[Any]) -> None:
        """Keep rows of one task."""
        line = msgspec.json.encode(_Kept(who, list(rows))) + b"\n"
        with self._lock:
            self._file.write(line)
            self.rows += len(rows)

    def read(self) -> Iterator[tuple[Who, Row]]:
        """Yield what was kept so far, in its order."""
        with self._lock:
            self._file.flush()
            end = self._file.tell()
        with Path(self._file.name).open("rb") as file:
            while file.tell() < end:
                kept = msgspec.json.decode(file.readline(), type=_Kept)
                for row in kept.rows:
                    yield kept.who, row

    def close(self) -> None:
        """Forget all."""
        self._file.close()


class Expired(NamedTuple):
    """A message whose time to live ended before it was completed."""

    message_id: str
    text: str
    """The first 200 characters of its body, as UTF-8."""
    inserted_at_ms: int
    expired_at_ms: int
    attempts: int
    """How often it was received, in this run or before."""


class Report:
    """What a run has done; made by the run, when it is over.

    Args:
        spool: The rows.
        totals: The last figures of the run, as JSON can say them.
        expired: What expired in the queue during the run.
    """

    def __init__(
        self, spool: Spool, totals: Mapping[str, Any], expired: Sequence[Expired] = ()
    ) -> None:
        self._spool = spool
        self._expired = expired
        self.totals = dict(totals)
        """Counts of the whole run: ``done``, ``failed``, ``poisoned``, ``stages`` and so on.

        ``expired`` is how many messages of the queue reached the end of their time to live during
        the run, whoever had them; None where the service does not tell.
        """

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self.totals.get(name)}" for name in _SHOWN)
        return f"<Report {shown}>"

    def deliveries(self) -> pa.Table:
        """Return a row for each delivery that was begun, in the order in which they ended."""
        return _table(map(_delivery, self._spool.read()), DELIVERIES)

    def messages(self) -> pa.Table:
        """Return a row for each message: how its last delivery ended, and the stages of all.

        ``attempts`` is the number of deliveries so far, those of earlier runs included.
        """
        return _table(map(_message, _by_message(self._spool.read()).values()), MESSAGES)

    def expired(self) -> pa.Table:
        """Return a row for each message that expired in the queue during the run.

        ``text`` is how its body begins, ``attempts`` how often it was received. At most 10,000 are
        listed, those put first; ``totals["expired"]`` counts all. What expired more than a day
        before the run ended may be removed by then (``expiry_grace_s``), and is not told.
        """
        return _table(map(_expiry, self._expired), EXPIRED)

    def dataframe(self, spark: SparkSession, *, each: str = "message") -> DataFrame:
        """Return the rows as a DataFrame.

        Args:
            spark: The session.
            each: ``message``, ``delivery`` or ``expired``.
        """
        made: DataFrame = spark.createDataFrame(self._chosen(each))
        return made

    def write(self, path: str | Path, *, each: str = "message") -> None:
        """Write the rows to a file of the driver.

        Args:
            path: Its suffix says the form: ``.parquet``, or ``.json``, ``.jsonl`` and ``.ndjson``
                for one JSON object a line, with times as texts.
            each: ``message``, ``delivery`` or ``expired``.

        Raises:
            ValueError: The suffix is none of these.
        """
        target = Path(path)
        writer = _WRITERS.get(target.suffix.lower())
        if writer is None:
            raise ValueError(
                f"{target.name}: the report is written as {', '.join(sorted(_WRITERS))}"
            )
        writer(self._chosen(each), target)

    def close(self) -> None:
        """Forget the rows; only ``totals`` stays."""
        self._spool.close()

    def _chosen(self, each: str) -> pa.Table:
        if each not in EACH:
            raise ValueError(f"each is {each!r}; it must be 'message', 'delivery' or 'expired'")
        tables = (self.messages, self.deliveries, self.expired)
        return tables[EACH.index(each)]()


def check_path(path: str | Path) -> None:
    """Raise ValueError unless a report can be written there, before anything is done."""
    if Path(path).suffix.lower() not in _WRITERS:
        raise ValueError(f"{path}: a report is written as {', '.join(sorted(_WRITERS))}")


# --- inside --------------------------------------------------------------------------------------


def _by_message(found: Iterable[tuple[Who, Row]]) -> dict[str, list[tuple[Who, Row]]]:
    grouped: dict[str, list[tuple[Who, Row]]] = {}
    for who, row in found:
        grouped.setdefault(row.message_id, []).append((who, row))
    for each in grouped.values():
        each.sort(key=lambda one: (one[1].delivery, one[1].ended_at_ms))
    return grouped


def _expiry(found: Expired) -> dict[str, Any]:
    return {
        "message_id": found.message_id,
        "text": found.text,
        "inserted_at": found.inserted_at_ms * 1000,
        "expired_at": found.expired_at_ms * 1000,
        "attempts": found.attempts,
    }


def _delivery(found: tuple[Who, Row]) -> dict[str, Any]:
    who, row = found
    return {
        "message_id": row.message_id,
        "queue": row.queue,
        "delivery": row.delivery,
        "fence": row.fence,
        "outcome": row.outcome,
        "reason": row.reason,
        "resumed_at": row.resumed_at,
        "began_at": row.began_at_ms * 1000,
        "ended_at": row.ended_at_ms * 1000,
        "stages": _stages(row),
        "executor": who.executor,
        "host": who.host,
        "pid": who.pid,
        "task": who.task,
        "task_attempt": who.attempt,
    }


def _message(found: Sequence[tuple[Who, Row]]) -> dict[str, Any]:
    who, last = found[-1]
    return {
        "message_id": last.message_id,
        "queue": last.queue,
        "outcome": last.outcome,
        "reason": last.reason,
        "attempts": last.delivery,
        "began_at": found[0][1].began_at_ms * 1000,
        "ended_at": last.ended_at_ms * 1000,
        "stages": [stage for _, row in found for stage in _stages(row)],
        "executor": who.executor,
        "executors": list(dict.fromkeys(each.executor for each, _ in found)),
    }


def _stages(row: Row) -> list[dict[str, Any]]:
    return [
        {
            "stage": run.stage,
            "began_at": run.began_at_ms * 1000,
            "seconds": run.seconds,
            "attempts": run.attempts,
            "outcome": run.outcome,
        }
        for run in row.stages
    ]


def _table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return a table, made in parts so that not all rows are objects at the same time."""
    parts: list[pa.RecordBatch] = []
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) >= _AT_ONCE:
            parts.append(pa.RecordBatch.from_pylist(chunk, schema))
            chunk = []
    if chunk:
        parts.append(pa.RecordBatch.from_pylist(chunk, schema))
    return pa.Table.from_batches(parts, schema)


def _write_parquet(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only who asks for it waits for it

    pq.write_table(table, path)


def _write_json(table: pa.Table, path: Path) -> None:
    with path.open("wb") as file:
        for batch in table.to_batches(max_chunksize=_AT_ONCE):
            for row in batch.to_pylist():
                file.write(msgspec.json.encode(row) + b"\n")


_WRITERS: Final[dict[str, Callable[[pa.Table, Path], None]]] = {
    ".parquet": _write_parquet,
    ".json": _write_json,
    ".jsonl": _write_json,
    ".ndjson": _write_json,
}
_SHOWN: Final = ("done", "poisoned", "failed", "lost", "given_back", "expired", "seconds")


# --- rows --------------------------------------------------------------------------------------
#
# What executors tell of their work: one row for each delivery of a message, and figures.


UNFINISHED: Final = "unfinished"
"""Outcome of a stage that was at work when its message was given up."""


class StageRun(Struct):
    """One stage of one delivery. Outcomes: done, failed, skipped, unfinished."""

    stage: str
    began_at_ms: int
    seconds: float = 0.0
    """Until its end, with all attempts."""
    attempts: int = 1
    outcome: str = UNFINISHED


class Row(Struct):
    """One delivery of a message, from when its work began until it was settled or lost."""

    message_id: str
    queue: str
    delivery: int
    """How often the message had been delivered by then, this time included."""
    fence: int
    outcome: str
    """A :class:`leasehold.worker.outcomes.Kind`."""
    reason: str | None
    resumed_at: str | None
    """The stage that an earlier holder had saved, with which this one began; None: it began anew.
    """
    began_at_ms: int
    ended_at_ms: int
    stages: list[StageRun]


class StageFigures(Struct):
    """One stage in one executor."""

    working: int = 0
    """Messages that are in it now."""
    done: int = 0
    failed: int = 0
    """Attempts that failed, those that were tried again at once included."""
    skipped: int = 0
    overdue: int = 0
    seconds: float = 0.0
    """All attempts that were done, together."""


class Figures(Struct):
    """One executor's task so far."""

    stages: dict[str, StageFigures] = msgspec.field(default_factory=dict)
    outcomes: dict[str, int] = msgspec.field(default_factory=dict)
    """Deliveries by how they ended."""
    in_work: int = 0
    waiting: int = 0
    """Received, and not begun yet."""
    resumed: int = 0
    """Deliveries that began with a stage that another had saved."""
    dropped: int = 0
    """Rows that were not taken, and that are not kept any more."""


class Who(Struct, frozen=True):
    """Which task tells it."""

    link: str
    """New for each attempt at a task."""
    executor: str
    """Machine, and the process that executors start their Python workers from."""
    host: str
    pid: int
    task: int
    attempt: int
    job: int = 0
    """Of the run, from 1."""
    stage: int = -1
    """Spark's number of the stage; -1: unknown."""
    spark_task: int = -1
    """Spark's number of this attempt at the task; -1: unknown."""


# --- figures -----------------------------------------------------------------------------------
#
# How a run is doing, put together from what its tasks tell. Pure.


_OVER_S: Final = 5.0
"""The rate is that of the last so many seconds."""
_ENDS: Final = ("done", "poisoned", "cancelled")
"""Outcomes after which a message does not come again."""


@dataclass(slots=True)
class CrewFigures:
    """How one executor is doing."""

    tasks: int = 0
    """That are at work."""
    in_work: int = 0
    """Messages that these work on."""
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run at one moment. Messages are counted by deliveries: one that came twice counts twice."""

    at_ms: int
    seconds: float
    """Since the start of the run."""
    tasks: int
    """That are at work, as far as the driver knows."""
    executors: int
    """That these tasks are on."""
    stages: Mapping[str, StageFigures]
    """In their order."""
    outcomes: Mapping[str, int]
    in_work: int
    waiting: int
    """Received by a task, and not begun yet."""
    resumed: int
    dropped: int
    """Rows that are missing in the report."""
    backlog: int | None
    """Messages in the queue that no worker has; None: that is not known."""
    per_s: float
    """Messages done in each of the last few seconds."""
    crew: Mapping[str, CrewFigures] = field(default_factory=dict)
    """What each executor does, by its name; those without tasks now have worked before."""

    @property
    def done(self) -> int:
        """Messages completed."""
        return self.outcomes.get("done", 0)

    @property
    def failed(self) -> int:
        """Deliveries that failed, and whose message comes again."""
        return self.outcomes.get("failed", 0)

    @property
    def poisoned(self) -> int:
        """Messages set aside, those included whose work an operator has cancelled."""
        return self.outcomes.get("poisoned", 0) + self.outcomes.get("cancelled", 0)

    @property
    def lost(self) -> int:
        """Deliveries whose lease was lost."""
        return self.outcomes.get("lost", 0)

    @property
    def expected(self) -> int:
        """How many messages there are in all, as far as is known: those that are over too."""
        ended = sum(self.outcomes.get(name, 0) for name in _ENDS)
        return ended + self.in_work + self.waiting + (self.backlog or 0)

    @property
    def left_s(self) -> float | None:
        """Seconds until all is done if it goes on like this; None: that cannot be said."""
        left = self.expected - self.done - self.poisoned
        if self.backlog is None or self.per_s <= 0:
            return None
        return left / self.per_s

    def members(self) -> dict[str, Any]:
        """Return all of it as JSON can say it."""
        return {
            "at_ms": self.at_ms,
            "seconds": round(self.seconds, 3),
            "tasks": self.tasks,
            "executors": self.executors,
            "done": self.done,
            "failed": self.failed,
            "poisoned": self.poisoned,
            "lost": self.lost,
            "given_back": self.outcomes.get("returned", 0) + self.outcomes.get("interrupted", 0),
            "in_work": self.in_work,
            "waiting": self.waiting,
            "resumed": self.resumed,
            "backlog": self.backlog,
            "done_per_second": round(self.per_s, 1),
            "stages": {
                name: {
                    "working": each.working,
                    "done": each.done,
                    "failed": each.failed,
                    "skipped": each.skipped,
                    "overdue": each.overdue,
                    "mean_s": round(each.seconds / each.done, 6) if each.done else None,
                }
                for name, each in self.stages.items()
            },
        }


@dataclass(slots=True)
class _Task:
    who: Who
    figures: Figures = field(default_factory=Figures)
    is_there: bool = True


class Board:
    """The last figures of each task. For one thread at a time.

    Args:
        stages: Their names, in order.
        began_s: When the run began, monotonic.
    """

    def __init__(self, stages: Sequence[str], began_s: float) -> None:
        self._stages = tuple(stages)
        self._began_s = began_s
        self._tasks: dict[str, _Task] = {}
        self._history: deque[tuple[float, int]] = deque([(began_s, 0)])

    def came(self, who: Who) -> None:
        """Take note that a task is there, or there again."""
        self._tasks.setdefault(who.link, _Task(who)).is_there = True

    def went(self, link: str) -> None:
        """Take note that a task has ended, or is not heard of any more."""
        self._tasks[link].is_there = False

    def told(self, link: str, figures: Figures) -> None:
        """Take note of the figures of a task."""
        self._tasks[link].figures = figures

    def stages(self) -> dict[str, StageFigures]:
        """Return the figures of each stage of the pipeline, in their order."""
        return {name: self._stage(name) for name in self._stages}

    def is_idle(self, link: str) -> bool:
        """Return whether a task has nothing in hand."""
        figures = self._tasks[link].figures
        return not figures.in_work and not figures.waiting

    def add(self, link: str, outcome: str) -> None:
        """Count one more delivery of a task."""
        outcomes = self._tasks[link].figures.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def progress(self, *, now_ms: int, now_s: float, backlog: int | None) -> Progress:
        """Return how the run is doing."""
        every = list(self._tasks.values())
        here = [each for each in every if each.is_there]
        outcomes = _summed(each.figures.outcomes for each in every)
        return Progress(
            at_ms=now_ms,
            seconds=now_s - self._began_s,
            tasks=len(here),
            executors=len({each.who.executor for each in here}),
            stages=self.stages(),
            outcomes=outcomes,
            in_work=sum(each.figures.in_work for each in here),
            waiting=sum(each.figures.waiting for each in here),
            resumed=sum(each.figures.resumed for each in every),
            dropped=sum(each.figures.dropped for each in every),
            backlog=backlog,
            per_s=self._rate(now_s, outcomes.get("done", 0)),
            crew=_crew_of(every),
        )

    def _stage(self, name: str) -> StageFigures:
        made = StageFigures()
        for task in self._tasks.values():
            found = task.figures.stages.get(name)
            if found is None:
                continue
            made.working += found.working if task.is_there else 0
            made.done += found.done
            made.failed += found.failed
            made.skipped += found.skipped
            made.overdue += found.overdue
            made.seconds += found.seconds
        return made

    def _rate(self, now_s: float, done: int) -> float:
        history = self._history
        history.append((now_s, done))
        while len(history) > 2 and history[1][0] <= now_s - _OVER_S:  # noqa: PLR2004 - one before
            history.popleft()
        before_s, before = history[0]
        return max(0.0, (done - before) / (now_s - before_s)) if now_s > before_s else 0.0


def _crew_of(tasks: Iterable[_Task]) -> dict[str, CrewFigures]:
    crew: dict[str, CrewFigures] = {}
    for each in tasks:
        figures = crew.setdefault(each.who.executor, CrewFigures())
        figures.tasks += each.is_there
        figures.in_work += each.figures.in_work if each.is_there else 0
        figures.done += each.figures.outcomes.get("done", 0)
    return crew


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total


# --- listeners ---------------------------------------------------------------------------------
#
# In the manner of Spark's StreamingQueryListener.


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStartedEvent:
    """A run has begun."""

    id: str
    """Of the run; also the job group of its Spark jobs."""
    name: str
    """Of the pipeline."""
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgressEvent:
    """How a run is doing."""

    id: str
    name: str
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTerminatedEvent:
    """A run is over."""

    id: str
    name: str
    progress: Progress
    """The last one."""
    exception: str | None
    """Why it could not go on; None: it came to its end, or was stopped."""


class PipelineListener:
    """Does nothing; override what is of interest, and give it to a run with ``listeners=[...]``.

    The methods are called in threads of the driver, one at a time for each run. An exception is
    logged and otherwise ignored. Whoever takes long delays the next call, and the last method
    delays the end of the run; it must not wait for that end.
    """

    def onPipelineStarted(self, event: PipelineStartedEvent) -> None:  # noqa: N802 - in Spark's spelling
        """Run when a run has begun."""

    def onPipelineProgress(self, event: PipelineProgressEvent) -> None:  # noqa: N802
        """Run every two seconds, unless ``progress_s`` says otherwise."""

    def onPipelineTerminated(self, event: PipelineTerminatedEvent) -> None:  # noqa: N802
        """Run once, when a run is over."""


class Listeners:
    """All listeners of a run as one.

    Args:
        listeners: In the order in which they are told.
        run_id: Of the run.
        name: Of the pipeline.
    """

    def __init__(self, listeners: Sequence[PipelineListener], *, run_id: str, name: str) -> None:
        self._listeners = listeners
        self._id = run_id
        self._name = name

    def started(self, queue: str) -> None:
        """Tell that the run has begun."""
        event = PipelineStartedEvent(id=self._id, name=self._name, queue=queue)
        self._tell("onPipelineStarted", event)

    def progress(self, now: Progress) -> None:
        """Tell how it is doing."""
        event = PipelineProgressEvent(id=self._id, name=self._name, progress=now)
        self._tell("onPipelineProgress", event)

    def terminated(self, last: Progress, exception: str | None) -> None:
        """Tell that it is over."""
        event = PipelineTerminatedEvent(
            id=self._id, name=self._name, progress=last, exception=exception
        )
        self._tell("onPipelineTerminated", event)

    def _tell(self, method: str, event: Any) -> None:
        for each in self._listeners:
            try:
                getattr(each, method)(event)
            except Exception:  # noqa: BLE001 - whoever watches must not stop the work
                _log.exception("%s of %s", method, type(each).__name__)
