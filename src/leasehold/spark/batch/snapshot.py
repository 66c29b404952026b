"""A queue as it is, all states, nothing leased: the inspector as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition
from pyspark.sql.types import StructType

from leasehold.client.handles import QueueHandle
from leasehold.client.models import Filter as Wanted
from leasehold.client.models import MessageView
from leasehold.domain.model import MessageState, row_key_of
from leasehold.domain.model import Place as Cursor
from leasehold.spark.connection import connect, missing_queue_named, patient, show_sentences
from leasehold.spark.options import BadOption, ReadOptions, nearest
from leasehold.spark.schemas import (
    SNAPSHOT,
    arrow_schema,
    checked,
    first_where,
    part_count,
    ranges,
    shaped,
)

PAGE: Final = 1_000
_WORTHWHILE: Final = 20_000
"""Messages in one part."""
_PATIENCE_S: Final = 60.0
_LAST_KEY: Final = (1 << 47) - 1
STATES: Final = tuple(str(each) for each in MessageState)
_NEED_BODIES: Final = frozenset({"body", "saved"})


@dataclass(frozen=True, slots=True)
class SnapshotPart(InputPartition):
    """A range of a queue's messages, in the order in which they were put."""

    value: tuple[str | None, int | None]
    """Where the listing begins, and the row that is not part of it any more; None: at the
    beginning, up to the end, poison queue included."""


@show_sentences
class SnapshotReader(DataSourceReader):
    """Looks at all messages of a queue once.

    Each message is seen once, in the state that it has at that moment; what moves between states
    meanwhile is seen all the same. The poison queue is read last, so one that is buried meanwhile
    may be seen twice, and one that is redriven not at all. Messages put meanwhile may be seen or
    not.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._queue = options.queue
        self._schema = checked(schema, SNAPSHOT)
        self._states = _states_of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the queue into ranges of its rows, if there are enough to be worth it."""
        with (
            connect(self._options.place, patient(_PATIENCE_S)) as client,
            missing_queue_named(self._queue, client),
        ):
            queue = client.queue(self._queue)
            counts = queue.counts()
            size = counts.total + counts.staged
            parts = part_count(self._options.num_partitions, self._options.limit, size, _WORTHWHILE)
            found = _bounds(queue, size) if parts > 1 else None
        if found is None:
            return [SnapshotPart((None, None))]
        starts = [begin for begin, _ in ranges(*found, parts)]
        ends: list[int | None] = [*starts[1:], None]
        # The first begins at the very beginning, and the last ends with the poison queue.
        return [
            SnapshotPart((_cursor(start) if number else None, end))
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a part, on an executor."""
        names = self._schema.names
        target = arrow_schema(self._schema)
        pages = self._pages(*partition.value, with_bodies=not _NEED_BODIES.isdisjoint(names))
        batches = (batch_of(page, target) for page in pages if page)
        return shaped(batches, target, self._options.limit)

    def _pages(
        self, after: str | None, end: int | None, *, with_bodies: bool
    ) -> Iterator[list[MessageView]]:
        limit = PAGE if self._options.limit is None else min(PAGE, self._options.limit)
        wanted = Wanted(states=self._states)
        with (
            connect(self._options.place, patient(_PATIENCE_S)) as client,
            missing_queue_named(self._queue, client),
        ):
            queue = client.queue(self._queue)
            while True:
                page, after = queue.inspect_page(after, limit, filter=wanted, body=with_bodies)
                if end is not None and (page or after):
                    inside = [each for each in page if _is_before(each, self._queue, end)]
                    if len(inside) < len(page) or _is_past(after, end):
                        after = None
                    page = inside
                yield page
                if after is None:
                    return


@show_sentences
class FilteringSnapshotReader(SnapshotReader):
    """The same, taking filters by state from Spark, which refuses it unless it is told to."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Take filters by state, and return the others."""
        left: list[Filter] = []
        for each in filters:
            if not isinstance(each, EqualTo | In) or each.attribute != ("state",):
                left.append(each)
                continue
            asked = set(each.value) if isinstance(each, In) else {each.value}
            kept = tuple(state for state in self._states or STATES if state in asked)
            if kept:
                self._states = kept
            else:
                left.append(each)  # nothing can be in such a state: Spark finds none of it
        return left


def snapshot_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return what looks at a queue.

    Raises:
        BadOption: No queue is named, a state is unknown, or the schema has columns that are not
            there.
    """
    return (FilteringSnapshotReader if options.pushdown else SnapshotReader)(options, schema)


def _states_of(options: ReadOptions) -> tuple[str, ...] | None:
    if options.state is None:
        return None
    chosen = tuple(each.lower() for each in options.state)
    for each in chosen:
        if each not in STATES:
            raise BadOption(
                f"option state: there is no state {each}.{nearest(each, [*STATES])} "
                f"The states are {', '.join(STATES)}"
            )
    return chosen


# --- ranges ------------------------------------------------------------------------------------


def _cursor(row_key: int) -> str:
    """Return where a listing goes on that begins with a row."""
    return str(Cursor(poison=False, row_key=row_key - 1))


def _is_before(message: MessageView, queue: str, end: int) -> bool:
    """Tell whether a message is one of the queue's own, and before a row."""
    key = row_key_of(message.id)
    return message.queue == queue and key is not None and key < end


def _is_past(after: str | None, end: int) -> bool:
    """Tell whether a listing that goes on there has nothing more before a row."""
    if after is None:
        return True
    return after.startswith("p") or int(after[1:], 16) >= end - 1


def _bounds(queue: QueueHandle, size: int) -> tuple[int, int] | None:
    """Return the first row of the queue and about the end of its rows, None if there is none."""
    first = _row_after(queue, 0)
    if first is None:
        return None
    length = max(size, 1)
    while first + length < _LAST_KEY and _row_after(queue, first + length) is not None:
        length *= 2
    # Half of the range may be empty: find its end within a sixteenth.
    step = max(1, length // 16)
    sixteenths = first_where(lambda n: _row_after(queue, first + n * step) is None, 1, 16)
    return first, first + sixteenths * step


def _row_after(queue: QueueHandle, row_key: int) -> int | None:
    """Return the row of the queue's first own message behind a row."""
    after: str | None = str(Cursor(poison=False, row_key=row_key))
    while after is not None and not after.startswith("p"):
        page, after = queue.inspect_page(after, 1, body=False)
        if page:
            return row_key_of(page[0].id) if page[0].queue == queue.name else None
    return None


# --- rows --------------------------------------------------------------------------------------

_SAME: Final = {
    name: name
    for name in (
        "queue",
        "state",
        "why",
        "body",
        "body_bytes",
        "dequeue_count",
        "fence",
        "priority",
        "traceparent",
        "dedup_key",
        "group_id",
        "under",
        "session",
        "failures",
        "interruptions",
        "lapses",
        "redriven",
    )
}
_OTHERWISE: Final = {"message_id": "id", "message_type": "type"} | {
    name: f"{name}_ms"
    for name in ("inserted_at", "expires_at", "visible_at", "first_visible_at", "last_visible_at")
}
_MADE: Final[dict[str, Callable[[MessageView], Any]]] = {
    "properties": lambda m: [*m.properties.items()],
    "holder": lambda m: m.lease and m.lease.holder,
    "leased_at": lambda m: m.lease and m.lease.since_ms,
    "leased_until": lambda m: m.lease and m.lease.until_ms,
    "renewals": lambda m: m.lease and m.lease.renewals,
    "progress": lambda m: m.lease and m.lease.progress and m.lease.progress.fraction,
    "progress_note": lambda m: m.lease and m.lease.progress and m.lease.progress.note,
    "error": lambda m: m.last_error and m.last_error.text,
    "error_type": lambda m: m.last_error and m.last_error.type,
    "error_fingerprint": lambda m: m.last_error and m.last_error.fingerprint,
    "attempts": lambda m: [_attempt(each) for each in m.attempts],
    "failed_in": lambda m: m.poisoned and m.poisoned.queue,
    "poison_reason": lambda m: m.poisoned and m.poisoned.reason,
    "poisoned_at": lambda m: m.poisoned and m.poisoned.at_ms,
    "saved": lambda m: None if m.saved is None else json.dumps(m.saved, ensure_ascii=False),
}
_MS: Final = pa.timestamp("ms", "UTC")


def batch_of(messages: Sequence[MessageView], target: pa.Schema) -> pa.RecordBatch:
    """Return messages as rows with the columns of *target*."""
    arrays = []
    members = _SAME | _OTHERWISE
    for field in target:
        member = members.get(field.name)
        if member is not None:
            values = [getattr(each, member) for each in messages]
        else:
            values = list(map(_MADE[field.name], messages))
        if pa.types.is_timestamp(field.type):
            arrays.append(pa.array(values, _MS).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _attempt(attempt: Any) -> dict[str, Any]:
    error = attempt.error
    return {
        "number": attempt.number,
        "leased_at": attempt.leased_at_ms * 1000,
        "ended_at": attempt.ended_at_ms * 1000,
        "outcome": attempt.outcome,
        "holder": attempt.holder,
        "renewals": attempt.renewals,
        "error": error and error.text,
        "error_type": error and error.type,
    }
