"""Large event logs of a busy queue, made without a server: ``python -m proof.log.synthetic``.

The files have the names, columns, order and row groups of the exporter's. The log is that of
messages that are put, received, renewed, lapsed, given back and completed by the rules, so a
checker must find nothing in it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leasehold.domain.model import id_from_blob, make_id_blob
from leasehold.events.check_input import files_in
from leasehold.events.names import file_of, folder_of
from leasehold.events.parquet import MAX_ROWS, METADATA, ROW_GROUP_ROWS, SCHEMA

START_MS: Final = 1_767_225_600_000
PER_MESSAGE: Final = 3.65
"""Events, on average."""
_BLOCK: Final = 100_000
"""Messages made at once."""
_PER_MS: Final = 5
_LEASE_MS: Final = 30_000
_TTL_MS: Final = 604_800_000
_ACCOUNT, _QUEUES = "shop", ("orders", "mails", "videos", "thumbs")

# Steps of a life: type, milliseconds after the step before, lease or delay, and what it does to
# dequeue count, fence and renewals. Leases and delays are in milliseconds from the event on.


class _Step(NamedTuple):
    type: str
    after_ms: int
    hidden_ms: int
    phase: str
    reason: str | None = None


_PUT: Final = _Step("put", 0, 0, "waiting")
_LATE: Final = _Step("put", 0, 5_000, "delayed")
_TAKE: Final = _Step("received", 400, _LEASE_MS, "leased")
_TAKE_LATE: Final = _Step("received", 5_500, _LEASE_MS, "leased")
_RENEW: Final = _Step("renewed", 9_000, _LEASE_MS, "leased")
_DONE: Final = _Step("completed", 2_500, 0, "leased")
_FAIL: Final = _Step("released", 1_500, 3_000, "deferred", "failed")
_LAPSE: Final = _Step("lapsed", _LEASE_MS + 700, 0, "leased")
_AGAIN: Final = _Step("received", 0, _LEASE_MS, "leased")
_TAKE_BACK: Final = _Step("received", 3_200, _LEASE_MS, "leased")

LIVES: Final = (
    (0.60, (_PUT, _TAKE, _DONE)),
    (0.25, (_PUT, _TAKE, _RENEW, _RENEW, _DONE)),
    (0.10, (_PUT, _TAKE, _LAPSE, _AGAIN, _DONE)),
    (0.05, (_LATE, _TAKE_LATE, _FAIL, _TAKE_BACK, _DONE)),
)
"""Shares of lives, and what happens in them."""


def write(folder: Path, events: int, seed: int = 1) -> int:
    """Write an export with about so many events; return how many it is.

    Args:
        folder: Made if need be.
        events: How many.
        seed: Of all that is drawn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    left: dict[str, np.ndarray[Any, Any]] | None = None
    seq = 1
    for made, until_ms in _blocks(round(events / PER_MESSAGE), np.random.default_rng(seed)):
        columns = made if left is None else {k: np.concatenate([left[k], made[k]]) for k in made}
        ready = columns["at"] < until_ms
        left = {name: values[~ready] for name, values in columns.items()}
        now = {name: values[ready] for name, values in columns.items()}
        if not now["at"].size:
            continue
        seq = _write_block(folder, now, seq)
        written += now["at"].size
    return written


def spoil(folder: Path, out: Path) -> None:
    """Copy exported files, and count one delivery too many in one event in the middle.

    Args:
        folder: With the files that the exporter writes.
        out: Where to put the copy; not there.

    Raises:
        ValueError: Nothing was received in the middle file.
    """
    shutil.copytree(folder, out)
    files = files_in(out)
    path = files[len(files) // 2]
    table = pq.read_table(path, schema=SCHEMA, partitioning=None)
    chosen = table["type"].to_pylist().index("received")
    counts = table["dequeue_count"].to_pylist()
    counts[chosen] += 1
    at = SCHEMA.get_field_index("dequeue_count")
    spoilt = table.set_column(at, SCHEMA.field(at), pa.array(counts, SCHEMA.field(at).type))
    pq.write_table(spoilt.replace_schema_metadata(METADATA), path, compression="zstd")


def _blocks(
    messages: int, rng: np.random.Generator
) -> Iterator[tuple[dict[str, np.ndarray[Any, Any]], int]]:
    """Yield events of messages, and the moment before which there will be no more."""
    per_block_ms = int(_BLOCK * PER_MESSAGE / _PER_MS)
    for first in range(0, messages, _BLOCK):
        many = min(_BLOCK, messages - first)
        start_ms = START_MS + first // _BLOCK * per_block_ms
        put_ms = np.sort(rng.integers(start_ms, start_ms + per_block_ms, many))
        keys = np.arange(first + 1, first + many + 1)
        entropy = rng.bytes(10 * many)
        ids = np.array(
            [
                id_from_blob(make_id_blob(int(key), entropy[10 * at : 10 * at + 10]))
                for at, key in enumerate(keys)
            ],
            dtype=object,
        )
        life = rng.choice(len(LIVES), many, p=[share for share, _ in LIVES])
        is_last = first + many >= messages
        parts = [
            _live(steps, put_ms[life == number], keys[life == number], ids[life == number], rng)
            for number, (_, steps) in enumerate(LIVES)
        ]
        made = {
            name: np.concatenate([part[name] for part in parts])
            for part in [parts[0]]
            for name in part
        }
        yield made, (2**62 if is_last else start_ms + per_block_ms)


def _live(
    steps: tuple[_Step, ...],
    put_ms: np.ndarray[Any, Any],
    keys: np.ndarray[Any, Any],
    ids: np.ndarray[Any, Any],
    rng: np.random.Generator,
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the events of messages that all live alike."""
    many = len(put_ms)
    at, visible, since = put_ms.copy(), put_ms, put_ms
    visible_since = np.zeros(many, np.int64)
    count = fence = renewals = 0
    found: dict[str, list[Any]] = {name: [] for name in _NAMES}
    for order, step in enumerate(steps):
        jitter = rng.integers(0, 200, many) if step.after_ms else 0
        at = at + step.after_ms + jitter
        if step.type == "received":
            visible_since, since = visible, at
            count, fence, renewals = count + 1, fence + 1, 0
        elif step.type == "renewed":
            fence, renewals = fence + 1, renewals + 1
        elif step.type == "released":
            fence, since = fence + 1, at
        if step.type not in {"completed", "lapsed"}:
            visible = at + step.hidden_ms
        full = {
            "at": at, "order": order, "key": keys, "id": ids, "type": step.type,
            "phase": step.phase, "reason": step.reason or "", "inserted": put_ms,
            "visible": visible, "since": since, "visible_since": visible_since,
            "count": count, "fence": fence, "renewals": renewals,
        }  # fmt: skip
        for name in _NAMES:
            value = full[name]
            found[name].append(value if isinstance(value, np.ndarray) else np.full(many, value))
    return {name: np.concatenate(values) for name, values in found.items()}


_NAMES: Final = (
    "at", "order", "key", "id", "type", "phase", "reason", "inserted", "visible", "since",
    "visible_since", "count", "fence", "renewals",
)  # fmt: skip


def _write_block(folder: Path, columns: dict[str, np.ndarray[Any, Any]], seq: int) -> int:
    """Write events to files, whole batches each and all of one hour; return the next number."""
    order = np.lexsort((columns["order"], columns["key"], columns["at"]))
    columns = {name: values[order] for name, values in columns.items()}
    at = columns["at"]
    begins = np.concatenate([[True], at[1:] != at[:-1]])
    batch = np.cumsum(begins) - 1
    first_of = np.flatnonzero(begins)
    place = np.arange(len(at)) - first_of[batch]
    table = _table(columns, seq + batch, place)
    hours = at // 3_600_000
    start = 0
    while start < len(at):
        stop = min(start + MAX_ROWS, int(np.searchsorted(hours, hours[start], "right")))
        if stop < len(at) and batch[stop] == batch[stop - 1]:
            stop = int(first_of[batch[stop]])
        _write_file(folder, table.slice(start, stop - start), int(hours[start]))
        start = stop
    return int(seq + batch[-1] + 1)


def _table(columns: dict[str, np.ndarray[Any, Any]], seq: Any, place: Any) -> pa.Table:
    many = len(seq)
    queues = np.array(_QUEUES, dtype=object)[columns["key"] % len(_QUEUES)]
    never = columns["visible_since"] == 0
    given = {
        "seq": seq,
        "place": place.astype(np.int32),
        "happened_at": columns["at"],
        "type": columns["type"],
        "account": np.full(many, _ACCOUNT, dtype=object),
        "queue": queues,
        "message_id": columns["id"],
        "inserted_at": columns["inserted"],
        "expires_at": columns["inserted"] + _TTL_MS,
        "visible_at": columns["visible"],
        "dequeue_count": columns["count"].astype(np.int32),
        "fence": columns["fence"],
        "phase": columns["phase"],
        "since": columns["since"],
        "visible_since": pa.array(columns["visible_since"], pa.int64(), mask=never),
        "renewals": columns["renewals"].astype(np.int32),
        "priority": np.full(many, 8, np.int8),
        "reason": pa.array(columns["reason"], pa.string(), mask=columns["reason"] == ""),
    }
    arrays = []
    for field in SCHEMA:
        values = given.get(field.name)
        if values is None:
            arrays.append(pa.nulls(many, field.type))
            continue
        array = values if isinstance(values, pa.Array) else pa.array(values)
        arrays.append(array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _write_file(folder: Path, table: pa.Table, hour: int) -> None:
    seqs = table["seq"]
    path = folder / folder_of(hour) / file_of(seqs[0].as_py(), seqs[-1].as_py())
    path.parent.mkdir(parents=True, exist_ok=True)
    order = [("message_id", "ascending"), ("seq", "ascending"), ("place", "ascending")]
    pq.write_table(
        table.sort_by(order).replace_schema_metadata(METADATA),
        path,
        compression="zstd",
        row_group_size=ROW_GROUP_ROWS,
        write_page_index=True,
    )


def main() -> None:
    """Write a log: ``python -m proof.log.synthetic FOLDER EVENTS [--seed N]``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("events", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    written = write(given.folder, given.events, given.seed)
    sys.stdout.write(f"{written} events, seed {given.seed}\n")


if __name__ == "__main__":
    main()
