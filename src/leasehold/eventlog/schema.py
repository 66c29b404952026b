"""The columns of an exported event, and how they are made from events and read back.

The names are those of the native API without ``_ms``, because a moment is a timestamp here; and
``at_ms`` is ``happened_at``, because ``AT`` is a word of SQL. New columns
come at the end, and readers ask for columns by name, so that neither adding one nor reading an
older file needs a new number of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from leasehold.domain.events import EVENT_FORMAT, Event, EventType
from leasehold.domain.types import NEVER_MS, Phase
from leasehold.eventlog.names import FORMAT_KEY, PHASE_NAMES, TYPE_NAMES

MOMENT: Final = pa.timestamp("ms", tz="UTC")

_FIELDS: Final = (
    ("seq", pa.int64()),
    ("place", pa.int32()),
    ("happened_at", MOMENT),
    ("type", pa.string()),
    ("account", pa.string()),
    ("queue", pa.string()),
    ("message_id", pa.string()),
    ("inserted_at", MOMENT),
    ("expires_at", MOMENT),
    ("visible_at", MOMENT),
    ("dequeue_count", pa.int32()),
    ("fence", pa.int64()),
    ("phase", pa.string()),
    ("since", MOMENT),
    ("visible_since", MOMENT),
    ("renewals", pa.int32()),
    ("holder", pa.string()),
    ("priority", pa.int8()),
    ("session", pa.string()),
    ("reason", pa.string()),
    ("target", pa.string()),
    ("message_type", pa.string()),
    ("error_type", pa.string()),
    ("error_fingerprint", pa.string()),
    ("error", pa.string()),
)
SCHEMA: Final = pa.schema(_FIELDS)
"""In the order of the fields of :class:`leasehold.domain.events.Event`."""
METADATA: Final = {FORMAT_KEY: str(EVENT_FORMAT).encode()}

_NEVER: Final = {NEVER_MS: None}
_NOT_YET: Final = {0: None}
_TYPES: Final = {name: EventType(number) for number, name in TYPE_NAMES.items()}
_PHASES: Final = {name: Phase(number) for number, name in PHASE_NAMES.items()}


def _renamed(names: Mapping[int, str]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    return lambda column: list(map(names.get, column))


def _without(absent: Mapping[int, None]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    return lambda column: [absent.get(value, value) for value in column]


_SHOWN: Final[Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]]] = {
    "type": _renamed(TYPE_NAMES),
    "phase": _renamed(PHASE_NAMES),
    "expires_at": _without(_NEVER),
    "visible_since": _without(_NOT_YET),
}


def batch_of(events: Sequence[Event]) -> pa.RecordBatch:
    """Return one row for each event; there is at least one."""
    arrays = []
    for field, column in zip(SCHEMA, zip(*events, strict=True), strict=True):
        show = _SHOWN.get(field.name)
        arrays.append(pa.array(show(column) if show else column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def events_of(table: pa.Table) -> Iterator[Event]:
    """Return the events that rows were made from, exactly as the store gave them out.

    Args:
        table: With the columns of :data:`SCHEMA`, in any order.

    Raises:
        KeyError: A row has a type that this version does not know.
    """
    table = table.select(SCHEMA.names)
    columns = [
        column.cast(pa.int64()) if field.type == MOMENT else column
        for field, column in zip(SCHEMA, table.columns, strict=True)
    ]
    for row in zip(*(column.to_pylist() for column in columns), strict=True):
        event = Event(*row)
        event = event._replace(type=_TYPES[row[3]])
        if event.message_id is not None:
            event = event._replace(
                expires_at_ms=NEVER_MS if event.expires_at_ms is None else event.expires_at_ms,
                visible_since_ms=event.visible_since_ms or 0,
                phase=int(_PHASES[row[12]]),
            )
        yield event
