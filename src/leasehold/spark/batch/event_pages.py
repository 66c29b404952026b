"""The server's own event log, by ranges of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from leasehold.client import Client
from leasehold.client.models import Event, EventPage
from leasehold.eventlog.schema import SCHEMA
from leasehold.spark.batch.conditions import Condition, span, together
from leasehold.spark.batch.splitting import first_where, part_count, ranges
from leasehold.spark.connecting import connect, patient
from leasehold.spark.options import Place, ReadOptions

PAGE: Final = 10_000
"""Events of one request; a page ends with a whole batch of changes."""
_LEAST_PAGE: Final = 1_000
_WORTHWHILE: Final = 2_000
"""Batches of changes in one part."""
_PATIENCE_S: Final = 60.0
_SLACK_MS: Final = 600_000
"""The log is in the order of its numbers, and its times follow that but for a clock that was set
back between two runs of the server. Up to so much of that no event is missed."""

_MEMBERS: Final = {
    "happened_at": "at_ms",
    **{
        name: f"{name}_ms"
        for name in ("inserted_at", "expires_at", "visible_at", "since", "visible_since")
    },
}
"""Members of the native API that have another name than the column."""


@dataclass(frozen=True, slots=True)
class Pages:
    """A range of numbers of the log."""

    after: int
    """Begins with the batch of changes behind this one."""
    upto: int
    """The last number; included."""


def plan(options: ReadOptions, conditions: tuple[Condition, ...]) -> list[Pages]:
    """Return ranges that hold what is wanted, up to the newest event there is now.

    Raises:
        LeaseholdClientError: The server refuses, or cannot be reached.
    """
    least, most = span(conditions, "seq")
    after = max(0, (least or 0) - 1)
    with connect(options.place, patient(_PATIENCE_S)) as client:
        first, page = _next(client, after)
        upto = page.last_seq or 0
        if most is not None:
            upto = min(upto, most)
        if first is None or first.seq > upto:
            return [Pages(0, 0)]
        low, high = _within(client, conditions, first.seq, upto + 1)
    if low >= high:
        return [Pages(0, 0)]
    count = part_count(options.num_partitions, options.limit, high - low, _WORTHWHILE)
    return [Pages(begin - 1, end - 1) for begin, end in ranges(low, high, count)]


def _within(
    client: Client, conditions: tuple[Condition, ...], low: int, high: int
) -> tuple[int, int]:
    """Return the part of a range of numbers whose times are wanted; its end is not included."""
    since_ms, last_ms = span(conditions, "happened_at")

    def is_later(than_ms: int) -> Any:
        def holds(seq: int) -> bool:
            event, _ = _next(client, seq - 1)
            return event is None or event.at_ms >= than_ms

        return holds

    if since_ms is not None:
        low = first_where(is_later(since_ms - _SLACK_MS), low, high)
    if last_ms is not None:
        high = first_where(is_later(last_ms + 1 + _SLACK_MS), low, high)
    return low, high


def _next(client: Client, after: int) -> tuple[Event | None, EventPage]:
    """Return the first event behind a number, and the page that it is on."""
    while True:
        page = client.event_page(after=after, limit=1)
        if page.events or page.finished:
            return (page.events[0] if page.events else None), page
        after = page.next_after


def read(
    part: Pages, place: Place, columns: Sequence[str], conditions: Iterable[Condition]
) -> Iterator[Any]:
    """Yield the rows wanted as record batches with the columns named, and perhaps others.

    Raises:
        LeaseholdClientError: The server refuses, or cannot be reached.
    """
    conditions = [*conditions]
    needed = [*dict.fromkeys([*columns, *(each.column for each in conditions)])]
    expression = together(conditions)
    after = part.after
    with connect(place, patient(_PATIENCE_S)) as client:
        while after < part.upto:
            # A batch has one event at least: do not ask for much that is behind the range.
            limit = min(PAGE, max(_LEAST_PAGE, part.upto - after))
            page = client.event_page(after=after, limit=limit)
            after = page.next_after
            events = page.events
            if events and events[-1].seq > part.upto:
                events = tuple(each for each in events if each.seq <= part.upto)
            if events:
                batch = batch_of(events, client.account, needed)
                yield batch if expression is None else batch.filter(expression)
            if page.finished:
                return


def batch_of(events: Sequence[Event], account: str, columns: Sequence[str]) -> pa.RecordBatch:
    """Return events as rows with the columns named, in the types of the exported log."""
    arrays = []
    for name in columns:
        kind = SCHEMA.field(name).type
        if name == "account":
            arrays.append(pa.repeat(pa.scalar(account, kind), len(events)))
        else:
            member = _MEMBERS.get(name, name)
            arrays.append(pa.array([getattr(each, member) for each in events], kind))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
