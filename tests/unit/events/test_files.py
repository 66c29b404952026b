"""One file of events: what goes into it, and that it is there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from leasehold.domain.events import EVENT_FORMAT, Event, EventType
from leasehold.events.names import FORMAT_KEY, TEMPORARY, date_in, hour_in, range_of
from leasehold.events.parquet import ROW_GROUP_ROWS, SCHEMA, FileBuilder, confirm, events_of
from tests.unit.events.support import HOUR_MS, TEN_MS, FakeLog, id_of, put, session_lost


def built(batches: Sequence[Sequence[Event]], **more: Any) -> tuple[FileBuilder, bool]:
    """Return a builder that was offered batches, and whether it took them all."""
    builder = FileBuilder(**more)
    return builder, builder.add([event for batch in batches for event in batch])


def log_of(*batches: Sequence[Event]) -> list[tuple[Event, ...]]:
    """Return batches with numbers and places."""
    log = FakeLog()
    return [log.add(batch) for batch in batches]


def read_file(path: Path) -> Any:
    """Return the table in one file."""
    return pq.ParquetFile(path).read()


def test_an_event_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every field of every event is in the file, exactly."""
    full = put(
        type=EventType.REFUSED,
        holder="w1",
        session="s1",
        reason="lapsed",
        target="t",
        dequeue_count=3,
        fence=7,
        renewals=2,
        visible_since_ms=TEN_MS + 1,
        expires_at_ms=TEN_MS + 5,
        phase=2,
        priority=16,
    )
    claim = Event(1, 0, TEN_MS, EventType.CLAIM_EXTENDED, "shop", "orders", visible_at_ms=TEN_MS)
    (batch,) = log_of([full, put(2), session_lost(), claim])
    builder, _ = built([batch])
    builder.write(tmp_path)
    table = read_file(tmp_path / builder.path)
    assert sorted(events_of(table)) == sorted(batch)


def test_columns_are_flat_and_moments_are_timestamps(tmp_path: Path) -> None:
    """Never and not yet are null, types and phases are words, the format is in the metadata."""
    builder, _ = built(log_of([put()]))
    builder.write(tmp_path)
    table = read_file(tmp_path / builder.path)
    assert table.schema.names == SCHEMA.names
    (row,) = table.to_pylist()
    assert row["type"] == "put"
    assert row["phase"] == "waiting"
    assert row["happened_at"].isoformat() == "2026-11-21T10:00:00+00:00"
    assert row["expires_at"] is None
    assert row["visible_since"] is None
    metadata = pq.ParquetFile(tmp_path / builder.path).metadata
    assert metadata.metadata[FORMAT_KEY] == b"%d" % EVENT_FORMAT
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_place_in_the_folder() -> None:
    """A file is named after its hour and its first and last batch."""
    batches = log_of([put(at_ms=TEN_MS - 1)], [put(at_ms=TEN_MS)], [put(at_ms=TEN_MS)])
    late, whole = built(batches)
    assert not whole
    assert late.path == "date=2026-11-21/hour=09/events-0000000000000001-0000000000000001.parquet"
    ten, whole = built(batches[1:])
    assert whole
    assert ten.path == "date=2026-11-21/hour=10/events-0000000000000002-0000000000000003.parquet"
    assert range_of(Path(ten.path).name) == (2, 3)


@pytest.mark.parametrize("name", ["events-1-2.parquet", "x.parquet", "events-1.parquet.partial"])
def test_names_of_others(name: str) -> None:
    """What is not named like a file or folder of ours is none."""
    assert range_of(name) is None
    assert date_in("date=2026-13-01") is None
    assert date_in("day=2026-12-01") is None
    assert hour_in("hour=7") is None


def test_a_file_ends_where_an_hour_ends_even_if_it_comes_again() -> None:
    """A clock that was set back between two starts makes no file of two hours."""
    moments = (TEN_MS, TEN_MS + HOUR_MS, TEN_MS)
    batches = log_of(*([put(at_ms=at_ms)] for at_ms in moments))
    builder, whole = built(batches)
    assert not whole
    assert (builder.first_seq, builder.last_seq, builder.rows) == (1, 1, 1)


def test_a_full_file_takes_no_part_of_a_batch() -> None:
    """It ends with the last batch that fits whole; only a first one may be too large."""
    batches = log_of([put()] * 3, [put()] * 3, [put()] * 3)
    for max_rows, rows in ((9, 9), (8, 6), (6, 6), (5, 3), (3, 3), (2, 3)):
        builder, whole = built(batches, max_rows=max_rows)
        assert builder.rows == rows, max_rows
        assert whole == (rows == 9)
    builder = FileBuilder(max_rows=4)
    assert builder.add(batches[0])
    assert not builder.add(batches[1])
    assert not builder.add(batches[2])
    assert builder.last_seq == 1


def test_a_planned_file_takes_exactly_its_batches() -> None:
    """Whatever the limit says now."""
    batches = log_of([put()] * 3, [put()] * 3, [put()] * 3)
    builder, whole = built(batches, max_rows=1, upto_seq=2)
    assert not whole
    assert (builder.rows, builder.first_seq, builder.last_seq) == (6, 1, 2)


def test_nothing_to_take() -> None:
    """An empty page is taken whole."""
    builder = FileBuilder()
    assert builder.add(())
    assert builder.rows == 0


def test_row_groups_are_sorted_by_message(tmp_path: Path) -> None:
    """Their smallest and largest id tell whether a message can be in them."""
    count = ROW_GROUP_ROWS + 100
    numbers = [number * 7919 % count for number in range(count)]
    (batch,) = log_of([put(number) for number in numbers])
    builder, _ = built([batch])
    builder.write(tmp_path)
    file = pq.ParquetFile(tmp_path / builder.path)
    column = file.schema_arrow.names.index("message_id")
    bounds = [
        (statistics.min, statistics.max)
        for group in range(file.num_row_groups)
        if (statistics := file.metadata.row_group(group).column(column).statistics)
    ]
    assert len(bounds) == 2
    assert bounds[0][1] < bounds[1][0]
    assert bounds == [
        (id_of(0), id_of(ROW_GROUP_ROWS - 1)),
        (id_of(ROW_GROUP_ROWS), id_of(count - 1)),
    ]


def test_same_batches_same_bytes(tmp_path: Path) -> None:
    """Writing a file again, in other pages, gives the same file."""
    batches = log_of([put(2), put(1)], [put(3)])
    contents = []
    for pages in ([batches], [batches[:1], batches[1:]]):
        builder = FileBuilder()
        for page in pages:
            builder.add([event for batch in page for event in batch])
        builder.write(tmp_path)
        contents.append((tmp_path / builder.path).read_bytes())
    assert contents[0] == contents[1]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file nor what was written of it."""
    builder, _ = built(log_of([put()]))

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space"):
            builder.write(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not confirm(tmp_path, builder.path)


def test_everything_is_synced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content before it gets its name, then every folder that has a new name in it."""
    seen: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        seen.append(f"sync {path.relative_to(tmp_path)}")
        real_sync(file)

    def replace(self: Path, target: Path) -> Path:
        seen.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    builder, _ = built(log_of([put()]))
    builder.write(tmp_path)
    day, hour, name = Path(builder.path).parts
    assert seen == [
        f"sync {TEMPORARY}/{name}.partial",
        "rename",
        f"sync {day}/{hour}",
        f"sync {day}",
        "sync .",
    ]
    seen.clear()
    assert confirm(tmp_path, builder.path)
    assert seen == [f"sync {day}/{hour}", f"sync {day}", "sync ."]
