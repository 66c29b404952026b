"""The results of messages as a table: a view of the events that end them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct

from leasehold.events.parquet import SCHEMA
from leasehold.spark.schemas import RESULTS, arrow_schema
from leasehold.worker.message import FORWARDED

CANCELLED: Final = "Cancelled"
"""Type of the error with which a worker sets a message aside that an operator wants stopped."""
OUTCOMES: Final = {
    "completed": "done",
    "settled": "done",
    "poisoned": "poisoned",
    "expired": "expired",
    "removed": "removed",
}
"""By the events that end a message."""
_SAME: Final = {"ended_at": "happened_at", "leased_at": "since"}
"""Columns that have another name in the event log."""
_MADE: Final = {
    "outcome": ("type", "error_type"),
    "leased_at": ("since", "phase"),
    "stages": ("result",),
    "output": ("result",),
    "output_bytes": ("result",),
    "origin_id": ("result",),
}
"""Columns that are made of others, and of which."""
_FORWARDED: Final = f'{{"{FORWARDED}":'
_OF_RESULT: Final = {name for name, of in _MADE.items() if of == ("result",)}


class _Stage(Struct):
    stage: str
    began_at_ms: int
    seconds: float
    attempts: int
    outcome: str


class _Result(Struct, forbid_unknown_fields=True):
    """What workers and pipelines give as a result; others may give anything."""

    output: Raw = Raw(b"null")
    stages: list[_Stage] | None = None
    output_bytes: int | None = None
    origin_id: str | None = None


_DECODER: Final = msgspec.json.Decoder(_Result)


def columns_read(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the event log that columns of results are made of."""
    found: list[str] = []
    for name in columns:
        found += _MADE.get(name, (_SAME.get(name, name),))
    return tuple(dict.fromkeys([*found, "result"]))


def results_of(batches: Iterable[Any], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield results in place of the events that end messages, with the columns named.

    Args:
        batches: Have at least the columns that :func:`columns_read` says, in the types of the
            exported log, and no other events.
        columns: Of :data:`leasehold.spark.schemas.RESULTS`.
    """
    for every in batches:
        # A message that a stage has sent on to another queue has its end there.
        is_forwarded = pc.starts_with(every.column("result"), _FORWARDED)
        batch = every.filter(pc.invert(pc.fill_null(is_forwarded, False)))
        arrays = {}
        if not _OF_RESULT.isdisjoint(columns):
            arrays = _parts_of(batch.column("result").to_pylist())
        for name in columns:
            if name not in arrays:
                arrays[name] = _column(batch, name)
        yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], names=list(columns))


def _column(batch: Any, name: str) -> Any:
    if name == "outcome":
        words = [OUTCOMES[each] for each in batch.column("type").to_pylist()]
        was_stopped = pc.and_kleene(
            pc.equal(batch.column("type"), "poisoned"),
            pc.equal(batch.column("error_type"), CANCELLED),
        )
        return pc.if_else(
            pc.fill_null(was_stopped, False), "cancelled", pa.array(words, pa.string())
        )
    found = batch.column(_SAME.get(name, name))
    if name == "leased_at":
        leased = pc.fill_null(pc.equal(batch.column("phase"), "leased"), False)
        return pc.if_else(leased, found, pa.scalar(None, SCHEMA.field("since").type))
    return found


def _parts_of(results: Sequence[str | None]) -> dict[str, Any]:
    """Return the columns that results in JSON are taken apart into."""
    rows = list(map(_taken_apart, results))
    schema = arrow_schema(RESULTS)
    return {
        name: pa.array([row[place] for row in rows], schema.field(name).type)
        for place, name in enumerate(("stages", "output", "output_bytes", "origin_id"))
    }


def _taken_apart(text: str | None) -> tuple[Any, str | None, int | None, str | None]:
    """Return the stages, the output as JSON, its size, and the id of the first message.

    What is of no such form is an output.
    """
    if text is None:
        return None, None, None, None
    try:
        found = _DECODER.decode(text)
    except msgspec.ValidationError:
        return None, text, len(text.encode()), None
    stages = None
    if found.stages is not None:
        stages = [
            {
                "stage": each.stage,
                "began_at": each.began_at_ms * 1000,
                "seconds": each.seconds,
                "attempts": each.attempts,
                "outcome": each.outcome,
            }
            for each in found.stages
        ]
    output = bytes(found.output)
    if output == b"null":
        return stages, None, found.output_bytes, found.origin_id
    return stages, output.decode(), len(output), found.origin_id
