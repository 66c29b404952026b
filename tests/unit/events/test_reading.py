"""Reading exported events: which of them, from which files, of which versions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leasehold import events as eventlog
from leasehold.domain.events import EVENT_FORMAT, Event
from leasehold.events.names import FORMAT_KEY, TEMPORARY
from leasehold.events.parquet import METADATA, SCHEMA, FileBuilder, events_of, files_of
from tests.unit.events.make_sample import (
    SAMPLES,
    events,
    events_with_errors,
    events_with_traces,
)
from tests.unit.events.support import HOUR_MS, TEN_MS, FakeLog, id_of, put

LOG = FakeLog()
for hour in range(3):
    for minute in range(3):
        at_ms = TEN_MS + hour * HOUR_MS + minute * 60_000
        LOG.add([put(number, at_ms, queue=f"queue-{number % 2}") for number in range(4)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with nine batches in three files, one for each hour, and things of no concern."""
    rest = LOG.events()
    while rest:
        builder = FileBuilder()
        builder.add(rest)
        builder.write(tmp_path)
        rest = [event for event in rest if event.seq > builder.last_seq]
    (tmp_path / TEMPORARY / "events.partial").write_bytes(b"half")
    (tmp_path / "notes.txt").touch()
    return tmp_path


def test_everything_in_order(folder: Path) -> None:
    """Without conditions, each event once, in the order of the log."""
    assert list(events_of(eventlog.read(folder))) == LOG.events()
    assert list(events_of(eventlog.read(str(folder)))) == LOG.events()


CONDITIONS: dict[str, tuple[dict[str, Any], Callable[[Event], bool]]] = {
    "message": ({"message_id": id_of(2)}, lambda e: e.message_id == id_of(2)),
    "queue": ({"queue": "queue-1"}, lambda e: e.queue == "queue-1"),
    "account": ({"account": "shop"}, lambda e: True),
    "other account": ({"account": "other"}, lambda e: False),
    "since": ({"since_ms": TEN_MS + 60_000}, lambda e: e.at_ms >= TEN_MS + 60_000),
    "until": ({"until_ms": TEN_MS + HOUR_MS}, lambda e: e.at_ms < TEN_MS + HOUR_MS),
    "nothing": ({"until_ms": TEN_MS}, lambda e: False),
    "all": (
        {"message_id": id_of(1), "queue": "queue-1", "since_ms": TEN_MS + 1},
        lambda e: e.message_id == id_of(1) and e.at_ms > TEN_MS,
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions(folder: Path, name: str) -> None:
    """Exactly the events that fit, at both ends of a span as documented."""
    asked, fits = CONDITIONS[name]
    table = eventlog.read(folder, **asked)
    assert table.schema.names == SCHEMA.names
    assert list(events_of(table)) == [event for event in LOG.events() if fits(event)]


@pytest.mark.parametrize(
    ("since_ms", "until_ms", "hours"),
    [
        (None, None, [10, 11, 12]),
        (TEN_MS + HOUR_MS, None, [11, 12]),
        (TEN_MS + HOUR_MS - 1, None, [10, 11, 12]),
        (None, TEN_MS + HOUR_MS, [10]),
        (None, TEN_MS + HOUR_MS + 1, [10, 11]),
        (TEN_MS + HOUR_MS, TEN_MS + 2 * HOUR_MS, [11]),
    ],
)
def test_only_folders_of_the_span_are_opened(
    folder: Path, since_ms: int | None, until_ms: int | None, hours: list[int]
) -> None:
    """An hour is left alone if no moment of it was asked for."""
    found = [path.parent.name for path in files_of(folder, since_ms, until_ms)]
    assert found == [f"hour={hour}" for hour in hours]


def test_an_empty_folder(tmp_path: Path) -> None:
    """No events, but all columns; a folder that is not there is an error."""
    assert eventlog.read(tmp_path).schema == SCHEMA
    with pytest.raises(FileNotFoundError, match="nowhere"):
        eventlog.read(tmp_path / "nowhere")


# --- versions --------------------------------------------------------------------------------


def in_folder(root: Path, table: Any) -> Path:
    """Put a file with *table* where an exporter would."""
    builder = FileBuilder()
    builder.add([put(seq=99, at_ms=TEN_MS)])
    builder.write(root)
    pq.write_table(table, root / builder.path)
    return root


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ("format1", events()),
        ("format1_errors", events_with_errors()),
        ("format1_traces", events_with_traces()),
    ],
)
def test_older_files_are_read(tmp_path: Path, sample: str, expected: list[Event]) -> None:
    """The committed files give the events that they were made from; what came later is null."""
    place = tmp_path / "date=2026-11-21" / "hour=10"
    place.mkdir(parents=True)
    name = "events-0000000000000001-0000000000000004.parquet"
    shutil.copy(SAMPLES / f"{sample}.parquet", place / name)
    assert list(events_of(eventlog.read(tmp_path))) == expected


def test_a_file_with_fewer_columns_is_read(folder: Path) -> None:
    """Columns that came later are null for the events of an older file."""
    older = eventlog.read(folder).drop_columns(["target", "session"])
    in_folder(folder, older.replace_schema_metadata(METADATA))
    table = eventlog.read(folder, until_ms=TEN_MS + 1)
    assert table.schema.names == SCHEMA.names
    assert set(table["session"].to_pylist()) == {None}


def test_columns_of_a_newer_file_are_passed_over(tmp_path: Path) -> None:
    """More columns, and in another order, do no harm."""
    table = pa.table({"news": ["x"], "type": ["put"], "seq": [7], "place": [0]})
    found = eventlog.read(in_folder(tmp_path, table.replace_schema_metadata(METADATA)))
    assert found.schema.names == SCHEMA.names
    assert found["seq"].to_pylist() == [7]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """What could be misunderstood is not read."""
    newer = SCHEMA.empty_table().replace_schema_metadata(
        {FORMAT_KEY: str(EVENT_FORMAT + 1).encode()}
    )
    with pytest.raises(eventlog.FormatTooNew, match=f"has format {EVENT_FORMAT + 1}"):
        eventlog.read(in_folder(tmp_path, newer))
