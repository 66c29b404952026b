"""Tables that grow are those that are made at once, wherever the log is cut."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leasehold.advisor.summaries import Worker
from leasehold.advisor.tables.incremental import (
    STATE,
    OtherLog,
    Tables,
    Updated,
    read_tables,
    update,
)
from leasehold.advisor.tables.schemas import QUEUES, WORKERS
from leasehold.advisor.tables.sources import ExportedFiles
from leasehold.advisor.tables.summarize import Made, summarize_tables
from leasehold.domain.events import Event
from tests.spark.analytics.comparing import ATTEMPT, MESSAGE, differing, expected, found
from tests.spark.analytics.exported import cut, export
from tests.spark.analytics.logs import made
from tests.spark.analytics.oracle import Oracle, Row


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Return a log with all that can happen."""
    return made(5, 300, first=100)[0]


@pytest.fixture(scope="module")
def oracle(events: list[Event]) -> tuple[list[Row], list[Row]]:
    """Return attempts and messages, those that have ended and those that have not."""
    told = Oracle().run(events)
    told.open()
    return told.attempts, told.messages


@pytest.fixture(scope="module")
def updated(
    spark: SparkSession, events: list[Event], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Updated]:
    """Return a folder with the whole log and its tables, made in one run, and what was told."""
    folder = tmp_path_factory.mktemp("at-once")
    export(folder / "log", events)
    return folder, update(spark, ExportedFiles(folder / "log"), folder / "tables")


@pytest.fixture(scope="module")
def at_once(spark: SparkSession, updated: tuple[Path, Updated]) -> Tables:
    """Return the tables of the whole log, made in one run."""
    folder, told = updated
    assert told.runs == 1
    return read_tables(spark, folder / "tables")


def check(tables: Tables, oracle: tuple[list[Row], list[Row]]) -> None:
    """Compare with the oracle."""
    for rows, table, columns in (
        (oracle[0], tables.attempts, ATTEMPT),
        (oracle[1], tables.messages, MESSAGE),
    ):
        one, other = expected(rows, columns), found(table, columns)
        assert one == other, differing(one, other)


@pytest.mark.long
def test_tables_made_at_once_are_those_of_the_oracle(
    at_once: Tables, oracle: tuple[list[Row], list[Row]]
) -> None:
    """Through files, a folder of tables and back, nothing changes."""
    check(at_once, oracle)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_a_log_may_be_cut_anywhere(
    spark: SparkSession,
    events: list[Event],
    at_once: Tables,
    oracle: tuple[list[Row], list[Row]],
    tmp_path: Path,
    number: int,
) -> None:
    """Used in several runs, the log gives the same tables, and so are those made of them."""
    dice = random.Random(number)
    cuts = [dice.choice(events).seq for _ in range(2)]
    for piece in cut(events, cuts):
        export(tmp_path / "log", piece)
        update(spark, ExportedFiles(tmp_path / "log"), tmp_path / "tables")
    tables = read_tables(spark, tmp_path / "tables")
    check(tables, oracle)
    for one, other, schema in (
        (at_once.workers, tables.workers, WORKERS),
        (at_once.queues, tables.queues, QUEUES),
    ):
        names = tuple(name for name in schema.names if not name.startswith(("p50", "work")))
        assert found(one, names) == found(other, names)


@pytest.mark.long
def test_a_summary_may_use_the_tables_that_are_made_of_others(
    at_once: Tables, events: list[Event]
) -> None:
    """Workers and hours are the same, read from their tables or made anew of the attempts."""
    told = partial(
        summarize_tables,
        at_once.attempts,
        at_once.messages,
        since_ms=events[0].at_ms,
        until_ms=events[-1].at_ms + 1,
    )
    one, other = told(), told(made=Made(at_once.workers, at_once.queues))
    assert sum(len(each.workers) for each in one.queues) > 10
    assert sum(len(each.hours) for each in one.queues) > 10
    for first, second in zip(one.queues, other.queues, strict=True):
        assert first.hours == second.hours
        assert [_rounded(each) for each in first.workers] == [
            _rounded(each) for each in second.workers
        ]
        assert replace(first, workers=()) == replace(second, workers=())


def _rounded(worker: Worker) -> Worker:
    # Sums of lengths come out a little different in another order.
    return replace(worker, work_s=round(worker.work_s, 6))


@pytest.mark.slow
def test_files_that_come_late_or_twice_change_nothing(
    spark: SparkSession, events: list[Event], oracle: tuple[list[Row], list[Row]], tmp_path: Path
) -> None:
    """The order in which files come does not matter, nor that some events are in two of them."""
    dice = random.Random(3)
    pieces = cut(events, [dice.choice(events).seq for _ in range(3)])
    log, source = tmp_path / "log", ExportedFiles(tmp_path / "log")
    for chosen in (pieces[1::2], pieces[0::2]):
        for piece in chosen:
            export(log, piece)
        update(spark, source, tmp_path / "tables")
    export(log, [*pieces[0], *pieces[1]])
    again = update(spark, source, tmp_path / "tables")
    assert again.late == 1
    check(read_tables(spark, tmp_path / "tables"), oracle)


@pytest.mark.long
def test_nothing_new_is_no_run(spark: SparkSession, updated: tuple[Path, Updated]) -> None:
    """Asked again, an update leaves the tables as they are."""
    folder, first = updated
    again = update(spark, ExportedFiles(folder / "log"), folder / "tables")
    assert (first.runs, again.runs) == (1, 0)
    assert again.state == first.state


class _Torn(Exception):
    pass


@pytest.mark.long
def test_a_run_that_was_interrupted_is_done_again(
    spark: SparkSession,
    events: list[Event],
    oracle: tuple[list[Row], list[Row]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables that are in their place, but were not committed, do not count."""
    log, source = tmp_path / "log", ExportedFiles(tmp_path / "log")
    before, after = cut(events, [events[len(events) // 2].seq])
    export(log, before)
    update(spark, source, tmp_path / "tables")

    def torn(*_: object) -> None:
        raise _Torn

    export(log, after)
    with monkeypatch.context() as patch:
        patch.setattr("leasehold.advisor.tables.incremental.Folder.commit", torn)
        with pytest.raises(_Torn):
            update(spark, source, tmp_path / "tables")
    update(spark, source, tmp_path / "tables")
    check(read_tables(spark, tmp_path / "tables"), oracle)


def test_another_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Tables of one log do not go on with another."""
    (tmp_path / STATE).write_text('{"format": 1, "run": 1, "source": "/other", "names": []}')
    (tmp_path / "log").mkdir()
    with pytest.raises(OtherLog):
        update(spark, ExportedFiles(tmp_path / "log"), tmp_path)
