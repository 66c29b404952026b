"""Logs as exported files, cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from leasehold.domain.events import Event
from leasehold.events.names import file_of, folder_of, hour_of
from leasehold.events.parquet import METADATA, SCHEMA
from tests.spark.analytics.logs import table_of


def export(folder: Path, events: Sequence[Event]) -> Path:
    """Write whole batches into one file, under the hour of the first."""
    home = folder / folder_of(hour_of(events[0].at_ms))
    home.mkdir(parents=True, exist_ok=True)
    path = home / file_of(events[0].seq, events[-1].seq)
    table = table_of(events).cast(SCHEMA.with_metadata(METADATA))
    order = [("message_id", "ascending"), ("seq", "ascending"), ("place", "ascending")]
    pq.write_table(table.sort_by(order), path)
    return path


def cut(events: Sequence[Event], seqs: Sequence[int]) -> list[list[Event]]:
    """Return the log in pieces that begin with these numbers; the first with the first."""
    bounds = [0, *sorted(seqs), events[-1].seq + 1]
    pieces = [[each for each in events if low <= each.seq < high] for low, high in pairwise(bounds)]
    return [piece for piece in pieces if piece]
