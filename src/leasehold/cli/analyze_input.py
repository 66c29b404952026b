"""Reads an event log with Spark, for ``leasehold analyze``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import pyarrow as pa
import pyarrow.dataset as ds
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.advisor.summaries import LogSummary, queue_in
from leasehold.advisor.tables.derive import are_details, with_details
from leasehold.advisor.tables.incremental import Folder, TablesError, read_tables
from leasehold.advisor.tables.schemas import DETAILS, Ending, Fate
from leasehold.advisor.tables.sources import SCHEMA
from leasehold.advisor.tables.summarize import summarize, summarize_tables
from leasehold.cli.output import Screen
from leasehold.events.names import FormatTooNew
from leasehold.events.parquet import check_formats, files_of
from leasehold.spark.session import ATTEMPTS, LOCAL, QUICK_JAVA, NoJava, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_T = TypeVar("_T")
_LOOK_S: Final = 0.2
_NOT_HANDED_ON: Final = ("send_key", "ca_file")
_FIRST_LINE: Final = 300
_DAMAGED: Final = re.compile(r"\[(?:FAILED_READ_FILE|CANNOT_READ_FILE)[^\n]*")
"""Where Spark's story of Java exceptions names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What to read."""

    log: Path | None
    """A folder of exported events."""
    tables: Path | None
    """A folder of lifecycle tables; with neither it is the server's own log."""
    details: Path | None
    """Parquet with what a log does not tell of messages."""
    account: str | None
    """Only events of this account; None: of all."""
    queues: tuple[str, ...]
    """None of them named: all."""
    since_ms: int
    until_ms: int
    cores: int | None
    memory: str
    is_past: bool = False
    """Whether it ends before now, so that lifecycle tables can know what came of it later."""

    @property
    def told(self) -> str:
        """Where it is, for people."""
        return "the server's log" if self.is_server else str(self.log or self.tables)

    @property
    def is_server(self) -> bool:
        """Whether the server itself is asked."""
        return self.log is None and self.tables is None


def read(screen: Screen, given: Mapping[str, Any], source: Source) -> LogSummary:
    """Start Spark, summarize a log, stop Spark.

    Args:
        screen: Where progress is shown.
        given: The connection options that all commands share.
        source: What to read.

    Raises:
        click.ClickException: Spark cannot run here, or the log cannot be read.
    """
    options = _options(given) if source.is_server else {}
    check(source)
    try:
        with screen.progress() as progress:
            bar = progress.add_task("Starting Spark", total=None, note="")
            with _spark(source) as spark:

                def show(done: int, total: int) -> None:
                    progress.update(
                        bar, description="Reading the log", completed=done, total=total or None
                    )

                return _watched(spark, lambda: summarized(spark, options, source), show)
    except NoJava as error:
        raise click.ClickException(f"{error}.") from None
    except (PySparkException, Py4JJavaError, OSError) as error:
        raise click.ClickException(f"The log cannot be read: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """Return what people can use of an error of Spark's: one line, with the file if it names one.

    What comes after the first line is Java's, and the file stands somewhere among it.
    """
    told = str(error).strip()
    named = _DAMAGED.search(told)
    return (told.partition("\n")[0] if named is None else named[0])[:_FIRST_LINE]


def check(source: Source) -> None:
    """Look at what is there to be read, before Spark takes its time to begin.

    Raises:
        click.ClickException: The files are of a newer version, damaged, or not what they should be.
    """
    try:
        if source.details is not None:
            _check_details(source.details)
        if source.tables is not None:
            _check_tables(source.tables)
        check_formats(_files(source))
    except (FormatTooNew, TablesError, OSError, pa.ArrowInvalid) as error:
        raise click.ClickException(f"The log cannot be read: {reason_of(error)}") from None


def _check_details(path: Path) -> None:
    if not are_details(ds.dataset(str(path), format="parquet").schema.names):
        key, *others = DETAILS.names
        raise click.ClickException(
            f"{path} must have the column {key}, and one or more of {', '.join(others)}."
        )


def _check_tables(path: Path) -> None:
    if not Folder(path).state().run:
        raise click.ClickException(f"There are no lifecycle tables in {path}.")


def summarized(spark: SparkSession, options: Mapping[str, str], source: Source) -> LogSummary:
    """Summarize a log, or tables.

    Args:
        spark: The session.
        options: Of the data source, if the server is asked.
        source: What to read.
    """
    # Two queues of one name are told apart when the summary is there.
    queues = {queue_in(name) for name in source.queues} or None
    details = None if source.details is None else spark.read.parquet(str(source.details))
    if source.tables is not None:
        tables = read_tables(spark, source.tables)
        attempts, messages = cut(
            _of_account(tables.attempts, source),
            _of_account(tables.messages, source),
            source.since_ms,
            source.until_ms,
            is_past=source.is_past,
        )
        return summarize_tables(
            with_details(attempts, details),
            with_details(messages, details),
            since_ms=source.since_ms,
            until_ms=source.until_ms,
            queues=queues,
            source=source.told,
        )
    return summarize(
        _of_account(_events(spark, options, source), source),
        since_ms=source.since_ms,
        until_ms=source.until_ms,
        queues=queues,
        source=source.told,
        details=details,
    )


def _of_account(rows: DataFrame, source: Source) -> DataFrame:
    return rows if source.account is None else rows.where(rows.account == source.account)


def _options(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the connection as options of the data source.

    Raises:
        click.UsageError: Something of it cannot be handed on to Spark.
    """
    for name in _NOT_HANDED_ON:
        if given[name]:
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} cannot be handed on to Spark: read with --log.")
    found: dict[str, str | None] = {
        "connectionString": given["connection_string"],
        "endpoint": given["url"],
        "account": given["account"],
    }
    if given["key_file"] is not None:
        found["credential"] = Path(given["key_file"]).read_text("utf-8").strip()
    if given["url"] is None and (given["account"] or given["key_file"]):
        found["endpoint"] = "http://127.0.0.1:10001"
    return {name: value for name, value in found.items() if value is not None}


def _events(spark: SparkSession, options: Mapping[str, str], source: Source) -> DataFrame:
    if source.log is None:
        reader = spark.read.format("leasehold").option("read", "events").options(**options)
        begin, end = _moment(source.since_ms), _moment(source.until_ms)
        events = reader.option("startingTime", begin).option("endingTime", end).load()
        # The server is asked once, however often Spark looks at them.
        return events.persist(StorageLevel.DISK_ONLY)
    # Spark's own reader: the log may be of any size, and no row of it has to pass through Python.
    paths = _files(source)
    if not paths:
        raise click.ClickException(f"There is no event of that time in {source.log}.")
    events = spark.read.schema(SCHEMA).parquet(*paths)
    return events.where(
        f"happened_at >= timestamp_millis({source.since_ms})"
        f" AND happened_at < timestamp_millis({source.until_ms})"
    )


def _files(source: Source) -> list[str]:
    if source.log is None:
        return []
    return [str(each) for each in files_of(source.log, source.since_ms, source.until_ms)]


@contextmanager
def _spark(source: Source) -> Iterator[SparkSession]:
    cores = source.cores or os.cpu_count() or 1
    conf = {
        **LOCAL,
        "spark.driver.memory": source.memory,
        # A file has 131,072 events at most, and so many parts need little memory.
        "spark.sql.shuffle.partitions": max(cores, len(_files(source)) // 2),
        "spark.default.parallelism": cores,
    }
    if source.is_server:
        # Little to read, so starting is what takes time.
        conf["spark.driver.extraJavaOptions"] = QUICK_JAVA
    spark = open_session(f"local[{cores},{ATTEMPTS}]", "leasehold-analyze", conf)
    try:
        spark.sparkContext.setLogLevel("OFF")
        yield spark
    finally:
        spark.stop()


def _watched(spark: SparkSession, work: Callable[[], _T], show: Callable[[int, int], object]) -> _T:
    """Do work in a thread, and show how many of Spark's tasks are done, until it is."""
    with ThreadPoolExecutor(1, "summary") as pool:
        future = pool.submit(work)
        seen: dict[int, tuple[int, int]] = {}
        while not _is_done(future):
            status = spark.sparkContext.statusTracker()
            for stage in status.getActiveStageIds():
                info = status.getStageInfo(stage)
                if info is not None:
                    seen[stage] = (info.numCompletedTasks, info.numTasks)
            active = set(status.getActiveStageIds())
            done = sum(
                tasks if stage not in active else finished
                for stage, (finished, tasks) in seen.items()
            )
            show(done, sum(tasks for _, tasks in seen.values()))
        return future.result()


def _is_done(future: Future[_T]) -> bool:
    try:
        future.exception(timeout=_LOOK_S)
    except TimeoutError:
        return False
    return True


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat()


# --- analyze cutting ---------------------------------------------------------------------------
#
# Lifecycle tables as they would have been at the end of a stretch of time.


_STAY = ("account", "queue", "message_id")


def cut(
    attempts: DataFrame, messages: DataFrame, since_ms: int, until_ms: int, *, is_past: bool
) -> tuple[DataFrame, DataFrame]:
    """Return the attempts and messages that were there in a stretch of time, as they were then.

    What ended before it is left out, and what began after it. What ended after it goes on; when it
    was renewed meanwhile is not in the tables, so its renewals and its lease stay.

    Args:
        attempts: The table of attempts.
        messages: The table of messages.
        since_ms: Where the stretch begins, Unix milliseconds; included.
        until_ms: Where it ends; not included.
        is_past: Whether the tables can know more than what was then.
    """
    inside = f"ended_at_ms IS NULL OR ended_at_ms >= {since_ms}"
    then = attempts.where(f"leased_at_ms < {until_ms}")
    stays = messages.where(f"inserted_at_ms < {until_ms}").where(inside)
    if not is_past:
        return then.where(inside), stays
    return (
        _going_on(then.where(inside), str(Ending.OPEN), until_ms, ("seconds",)),
        _counted(stays, then, until_ms),
    )


def _counted(stays: DataFrame, attempts: DataFrame, until_ms: int) -> DataFrame:
    """Return messages with the deliveries that they had had by then."""
    names = stays.columns
    going_on = stays.where(f"ended_at_ms IS NULL OR ended_at_ms >= {until_ms}")
    # A message that went to another queue and came back has had two stays: hence the least.
    known = attempts.groupBy(*_STAY).agg(F.count("*").alias("had"))
    had = "least(deliveries, coalesce(had, 0))"
    was = going_on.join(known, list(_STAY), "left").withColumns(
        {
            "deliveries": F.expr(f"cast({had} AS int)"),
            "redeliveries": F.expr(f"cast(greatest(0, least(redeliveries, {had} - 1)) AS int)"),
            "wait_s": F.expr(f"IF(first_leased_at_ms < {until_ms}, wait_s, NULL)"),
            "first_leased_at_ms": F.expr(
                f"IF(first_leased_at_ms < {until_ms}, first_leased_at_ms, NULL)"
            ),
        }
    )
    gone = stays.where(f"ended_at_ms < {until_ms}")
    open_ = _going_on(was.select(*names), str(Fate.OPEN), until_ms, ("handling_s", "total_s"))
    return gone.unionByName(open_)


def _going_on(rows: DataFrame, outcome: str, until_ms: int, lengths: tuple[str, ...]) -> DataFrame:
    """Return rows of which those that ended later have not ended yet."""
    later = f"ended_at_ms >= {until_ms}"
    unknown = ("reason", "error_type", "error_fingerprint", *lengths)
    columns = {name: F.expr(f"IF({later}, NULL, {name})") for name in unknown}
    columns["outcome"] = F.expr(f"IF({later}, '{outcome}', outcome)")
    if "finished" in rows.columns:
        columns["finished"] = F.expr(f"IF({later}, FALSE, finished)")
    columns["ended_at_ms"] = F.expr(f"IF({later}, NULL, ended_at_ms)")
    return rows.withColumns(columns)
