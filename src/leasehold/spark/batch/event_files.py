"""The exported event log: which files and row groups can hold what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds

from leasehold.eventlog.names import range_of
from leasehold.eventlog.reading import check_format, files_of
from leasehold.eventlog.schema import SCHEMA
from leasehold.spark.batch.conditions import Condition, span, together
from leasehold.spark.batch.splitting import groups, part_count
from leasehold.spark.options import BadOption, ReadOptions

_WORTHWHILE_BYTES: Final = 4 * 1024 * 1024
"""Of compressed files in one part."""


@dataclass(frozen=True, slots=True)
class Files:
    """Some files of the exported log."""

    paths: tuple[str, ...]


def plan(options: ReadOptions, conditions: tuple[Condition, ...]) -> list[Files]:
    """Return the files that can hold what is wanted, in parts. No file is opened.

    Raises:
        BadOption: There is no such folder on the driver's machine.
    """
    folder = Path(options.event_log or "")
    if not folder.is_dir():
        raise BadOption(f"option eventLog: there is no folder {folder} on the driver's machine")
    since_ms, last_ms = span(conditions, "happened_at")
    least, most = span(conditions, "seq")
    found = []
    for path in files_of(folder, since_ms, None if last_ms is None else last_ms + 1):
        first, last = range_of(path.name) or (0, 0)
        if (least is None or last >= least) and (most is None or first <= most):
            found.append((str(path), path.stat().st_size))
    if not found:
        return [Files(())]
    size = sum(length for _, length in found)
    most_parts = len(found)
    count = part_count(options.num_partitions, options.limit, size, _WORTHWHILE_BYTES)
    return [Files(tuple(group)) for group in groups(found, min(count, most_parts))]


def read(part: Files, columns: tuple[str, ...], conditions: Iterable[Condition]) -> Iterator[Any]:
    """Yield the rows wanted as record batches of the columns named.

    Raises:
        FormatTooNew: A file was written by a newer version in a way that could be misunderstood.
    """
    if not part.paths:
        return
    dataset = ds.dataset(list(part.paths), schema=SCHEMA, format="parquet")
    for fragment in dataset.get_fragments():
        check_format(fragment.path, fragment.metadata)
    # One thread: Spark runs as many tasks as there are processors for it.
    scanner = dataset.scanner(columns=list(columns), filter=together(conditions), use_threads=False)
    yield from scanner.to_batches()
