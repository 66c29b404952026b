"""Reading exported events: hours by their folders, row groups by what they can hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from leasehold.domain.events import EVENT_FORMAT
from leasehold.eventlog.names import (
    FORMAT_KEY,
    HOUR_MS,
    FormatTooNew,
    date_in,
    hour_in,
    hour_of,
    range_of,
)
from leasehold.eventlog.schema import MOMENT, SCHEMA


def read_table(  # noqa: PLR0913 - keyword-only, and each is a condition of its own
    folder: Path,
    *,
    message_id: str | None,
    account: str | None,
    queue: str | None,
    since_ms: int | None,
    until_ms: int | None,
) -> pa.Table:
    """See :func:`leasehold.eventlog.read`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    conditions = [
        pc.field(name) == value
        for name, value in (("message_id", message_id), ("account", account), ("queue", queue))
        if value is not None
    ]
    if since_ms is not None:
        conditions.append(pc.field("happened_at") >= pa.scalar(since_ms, MOMENT))
    if until_ms is not None:
        conditions.append(pc.field("happened_at") < pa.scalar(until_ms, MOMENT))
    paths = [str(path) for path in files_of(folder, since_ms, until_ms)]
    if not paths:
        return SCHEMA.empty_table()
    dataset = ds.dataset(paths, schema=SCHEMA, format="parquet")
    for fragment in dataset.get_fragments():
        check_format(fragment.path, fragment.metadata)
    condition: Any = None
    for each in conditions:
        condition = each if condition is None else condition & each
    table = dataset.to_table(filter=condition)
    return table.sort_by([("seq", "ascending"), ("place", "ascending")])


def files_of(folder: Path, since_ms: int | None, until_ms: int | None) -> Iterator[Path]:
    """Yield the files whose hours touch a span of time, in the order of time."""
    for day, hour, path in sorted(_hours(folder)):
        first = hour_of(int(datetime(day[0], day[1], day[2], hour, tzinfo=UTC).timestamp() * 1000))
        if since_ms is not None and (first + 1) * HOUR_MS <= since_ms:
            continue
        if until_ms is not None and first * HOUR_MS >= until_ms:
            continue
        yield from sorted(file for file in path.iterdir() if range_of(file.name))


def _hours(folder: Path) -> Iterator[tuple[tuple[int, int, int], int, Path]]:
    for of_day in folder.iterdir():
        day = date_in(of_day.name)
        if day is not None:
            for of_hour in of_day.iterdir():
                hour = hour_in(of_hour.name)
                if hour is not None:
                    yield (day.year, day.month, day.day), hour, of_hour


def check_formats(paths: Iterable[str]) -> None:
    """Check that this version can read files of events, by what stands at their ends.

    Raises:
        FormatTooNew: A newer version has written one of them.
        OSError: One cannot be read.
        pyarrow.ArrowInvalid: One is no Parquet.
    """
    for path in paths:
        try:
            footer = pq.read_metadata(path)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"{path}: {error}") from None
        check_format(path, footer)


def check_format(path: str, footer: pq.FileMetaData) -> None:
    """Check that this version can read a file of events, by what stands at its end.

    Raises:
        FormatTooNew: It was written by a newer version in a way that could be misunderstood.
    """
    number = int((footer.metadata or {}).get(FORMAT_KEY, b"1"))
    if number > EVENT_FORMAT:
        raise FormatTooNew(path, number)
