"""Rows of the table ``message`` and the messages they stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.claims import after_loss, as_member
from leasehold.domain.errors import InvalidMarker
from leasehold.domain.groups import is_of_part
from leasehold.domain.limits import LOOK_BYTES
from leasehold.domain.model import (
    NO_DETAIL,
    Detail,
    Message,
    Phase,
    fitting,
    id_from_blob,
    id_to_blob,
    issue_receipt,
    row_key_in,
    row_key_of,
)
from leasehold.stores.sql.catalog import (
    PARTITION_MASK,
    Entry,
    Lane,
    OpenClaimState,
    is_grouped,
    lane_number,
    lanes_of,
    priority_of,
)
from leasehold.stores.sql.plain_json import along_in_json, detail_from_json, detail_to_json
from leasehold.stores.sql.recorder import ID_BYTES
from leasehold.stores.sql.state import State

Row: TypeAlias = tuple[Any, ...]
"""A row as the statements that read messages give it, its columns in the order of :class:`Cell`.

Some add one, so no length is told. Rows stay plain tuples: to make a NamedTuple of each takes 0.4
us, and a claim has 1.5 us for each message. Unpacking is the fastest way to many columns.
"""
CellOf: TypeAlias = Callable[[Row], Any]
_VISIBLE_AT: Final = 4


class Cell:
    """The columns of a row by name: each is a function of the row."""

    row_key: Final[CellOf] = itemgetter(0)
    message_id: Final[CellOf] = itemgetter(1)
    """Its 16 bytes."""
    inserted_at_ms: Final[CellOf] = itemgetter(2)
    expires_at_ms: Final[CellOf] = itemgetter(3)
    visible_at_ms: Final[CellOf] = itemgetter(_VISIBLE_AT)
    dequeue_count: Final[CellOf] = itemgetter(5)
    fence: Final[CellOf] = itemgetter(6)
    body: Final[CellOf] = itemgetter(7)
    phase: Final[CellOf] = itemgetter(8)
    since_ms: Final[CellOf] = itemgetter(9)
    visible_since_ms: Final[CellOf] = itemgetter(10)
    renewals: Final[CellOf] = itemgetter(11)
    holder: Final[CellOf] = itemgetter(12)
    detail: Final[CellOf] = itemgetter(13)
    """JSON, or None."""
    lane: Final[CellOf] = itemgetter(14)
    session: Final[CellOf] = itemgetter(15)
    saved: Final[CellOf] = itemgetter(16)
    retired: Final[CellOf] = itemgetter(17)
    """Of ``find_message`` and ``rows_of_keys``: whether it has expired and is set aside."""
    body_bytes: Final[CellOf] = itemgetter(17)
    """Of ``next_visible_with_sizes``, which does not read the bodies themselves."""


_WIDTH: Final = 17
"""Columns of all statements."""
PHASES: Final = tuple(Phase)


def message_of(row: Row) -> Message:
    """Return the message in a row."""
    if len(row) > _WIDTH:
        row = row[:_WIDTH]
    (
        _, blob, inserted_at_ms, expires_at_ms, visible_at_ms, count, fence, body, phase, since_ms,
        visible_since_ms, renewals, holder, text, lane, session, saved,
    ) = row  # fmt: skip
    return Message(
        id_from_blob(blob),
        body,
        inserted_at_ms,
        expires_at_ms,
        visible_at_ms,
        count,
        fence,
        PHASES[phase],
        since_ms,
        visible_since_ms,
        renewals,
        holder,
        priority_of(lane),
        NO_DETAIL if text is None and saved is None else detail_of(text, saved),
        session,
    )


def detail_of(text: str | None, saved: str | None) -> Detail:
    """Return the detail of a message, with what was saved."""
    detail = detail_from_json(text)
    return detail if saved is None else replace(detail, saved=saved)


def visible_from(row: Row, moment_ms: int) -> Row:
    """Return a row as that of a message that is visible from another moment on."""
    return (*row[:_VISIBLE_AT], moment_ms, *row[_VISIBLE_AT + 1 :])


class Kept(NamedTuple):
    """A message, and where it is."""

    entry: Entry
    row_key: int
    message: Message
    held: OpenClaimState | None = None
    """The claim that it is a member of."""


Judge: TypeAlias = Callable[[c.Renew | c.Complete | c.Release, int], Kept]
"""Returns the message that a receipt acts on, or raises why it may not act."""


class SessionBook(Protocol):
    """Knows the sessions of a store, for the verbs on messages."""

    def receives(self, command: c.Receive, now_ms: int) -> str:
        """Return the holder of the session that receives, which is alive from now on.

        Raises:
            SessionNotFound: There is no such session.
            SessionOver: It is over.
        """
        ...

    def renewed(self, message: Message, now_ms: int) -> None:
        """Note that a lease of a session was renewed."""
        ...


def rewrite(state: State, kept: Kept, after: Message, target: Entry | None = None) -> None:
    """Write a message whose lease, lane or queue has changed, and keep the counts right.

    A message that is moved from one queue to another is so in this one statement.
    """
    source, row_key, before, held = kept
    target = target or source
    lane = state.open_lane(target, lane_number(after.priority, after.detail.group_id))
    bounds: tuple[object, ...] = (
        after.visible_at_ms,
        after.fence,
        row_key,
        after.phase,
        after.since_ms,
        after.renewals,
        detail_to_json(after.detail),
        lane.partition,
        after.expires_at_ms,
        after.dequeue_count,
        after.visible_since_ms,
        after.holder,
        after.session,
    )
    state.cursor.execute(state.sql["rewrite"], bounds)
    if after.body is not before.body or after.detail.body_ref != before.detail.body_ref:
        replace_body(state, row_key, before, after)
    if after.detail.saved != before.detail.saved:
        _replace_saved(state, row_key, before.detail.saved, after.detail.saved)
    if after.expires_at_ms < state.retired_until_ms:
        state.set_retired_until(after.expires_at_ms)
    uncount(state, source, before.visible_at_ms, before.phase, held)
    count(state, target, lane, after)
    if target is not source:
        free_group(source, before)


def count(state: State, entry: Entry, lane: Lane, message: Message) -> None:
    """Count a message in."""
    entry.message_count += 1
    state.touched.add(entry)
    lane.written(message)
    if entry.timeline is not None:
        entry.timeline.add(message.visible_at_ms, message.phase, 1)
    if entry.turns is not None:
        entry.turns.changed(message)


def free_group(entry: Entry, message: Message) -> None:
    """Have the group of a message looked at that is in its queue no more."""
    if entry.turns is not None:
        entry.turns.free(message.detail.group_id)


def uncount(
    state: State, entry: Entry, visible_at_ms: int, phase: int, held: OpenClaimState | None = None
) -> None:
    """Count a message out, of its claim too."""
    entry.message_count -= 1
    state.touched.add(entry)
    if held is not None:
        held.claim = after_loss(held.claim, 1)
        state.recorded.pop(held, None)
        state.touched_claims.add(held)
    elif entry.timeline is not None:
        entry.timeline.add(visible_at_ms, phase, -1)


# --- bodies ------------------------------------------------------------------------------------

INLINE_BYTES: Final = 256
"""Bodies up to this size stay in the row: a row of its own costs more than it saves.

With larger ones in the row, each lease wrote them again: a claim of 100,000 messages of 1 KiB took
1.6 s instead of 0.15."""
HERE, APART, OUTSIDE = range(3)
"""Where a body is; see the migration."""


def placed(message: Message) -> tuple[bytes, int, bytes | None]:
    """Return what to write as body and place, and what goes to the table of bodies."""
    ref = message.detail.body_ref
    if ref is not None:
        return ref.key.encode(), OUTSIDE, None
    if len(message.body) <= INLINE_BYTES:
        return message.body, HERE, None
    return b"", APART, message.body


def replace_body(state: State, row_key: int, before: Message, after: Message) -> None:
    """Give a row that is there another body; the key of an old one outside is garbage then."""
    body, place, apart = placed(after)
    if apart is not None:
        state.cursor.execute(state.sql["replace_body"], (row_key, apart))
    else:
        state.cursor.execute(state.sql["remove_body"], (row_key,))
    ref = before.detail.body_ref
    if ref is not None and ref != after.detail.body_ref:
        state.cursor.execute(state.sql["keep_garbage"], (ref.key,))
    state.cursor.execute(state.sql["set_body"], (row_key, body, place))


def _replace_saved(state: State, row_key: int, before: str | None, after: str | None) -> None:
    if after is None:
        state.cursor.execute(state.sql["remove_saved"], (row_key,))
    else:
        state.cursor.execute(state.sql["keep_saved"], (row_key, after))
    if before is None or after is None:
        state.cursor.execute(state.sql["mark_saved"], (row_key, after is not None))


# --- members of claims ---------------------------------------------------------------------------


def kept_in(state: State, entry: Entry, row: Row) -> Kept | None:
    """Return the message of a row that is in a queue or in one of its claims; None if in neither.

    A member of a claim is visible when the claim says so, and not when its row does.
    """
    message, row_key = message_of(row), Cell.row_key(row)
    partition = Cell.lane(row) & PARTITION_MASK
    if partition == entry.partition:
        return Kept(entry, row_key, message)
    held = state.catalog.claims.get(partition)
    if held is None or held.entry is not entry:
        return None
    return Kept(entry, row_key, as_member(message, held.claim), held)


# --- dedup -------------------------------------------------------------------------------------
#
# Deduplication keys in a database.


def first_with(state: State, entry: Entry, key: str, now_ms: int) -> c.Duplicate | None:
    """Return the message that has used a deduplication key, if its window is open."""
    rows = state.fetch("find_key", (entry.scope, key, now_ms))
    if not rows:
        return None
    blob, inserted_at_ms, expires_at_ms, visible_at_ms = rows[0]
    message_id = id_from_blob(blob)
    row_key = row_key_of(message_id)
    assert row_key is not None
    receipt = issue_receipt(state.receipt_key, row_key, 0)
    return c.Duplicate(message_id, receipt, inserted_at_ms, expires_at_ms, visible_at_ms)


def claim_keys(state: State, entry: Entry, lanes: Iterable[int], now_ms: int) -> list[int]:
    """Remember the keys of staged rows that are about to be published to a queue.

    Returns:
        Row keys of those that are not to be published, as a message has used their key before.
    """
    lanes = tuple(lanes)
    window_s = entry.queue.settings.dedup_window_s
    if window_s:
        until_ms = now_ms + window_s * 1000
        bounds = state.keys_of(lanes), now_ms, entry.scope, until_ms
        state.cursor.execute(state.sql["keep_staged_keys"], bounds)
    found = state.fetch("staged_duplicates", (state.keys_of(lanes), now_ms, entry.scope))
    return [row_key for (row_key,) in found]


def keep_key(state: State, entry: Entry, key: str, message: Message) -> None:
    """Remember the key of a message that was put, for as long as the queue's window."""
    window_s = entry.queue.settings.dedup_window_s
    if window_s:
        bounds = (
            entry.scope,
            key,
            id_to_blob(message.message_id),
            message.inserted_at_ms,
            message.expires_at_ms,
            message.visible_at_ms,
            message.inserted_at_ms + window_s * 1000,
        )
        state.cursor.execute(state.sql["keep_key"], bounds)


# --- reading members -----------------------------------------------------------------------------
#
# The members of claims in their order, page by page. They are in the lanes of their claim, each
# sorted by place and row key. Where the claim is in order, the lanes of groups are read as one,
# merged; all others one after the other.


_Place: TypeAlias = tuple[int, int]
"""By what the members of a lane are sorted: a time, and the row key."""
_BEGINNING: Final = (-1, -1)
PAGE_BYTES: Final = LOOK_BYTES
"""Bytes of bodies after which a page of members ends."""
_detail_in: Final = itemgetter(8)
"""The detail in a row of ``member_columns``; up to the body it is as the others are."""
MOST_LOOKED_AT: Final = 5_000
"""Members that are looked at for a page, at most."""
MOST_IN_COLUMNS: Final = 20_000
"""The same where they are read as columns."""
_READ_FIRST: Final = 32
"""Members read while it is not known how large they are: each body can have 64 KiB."""
_READ_AT_ONCE: Final = 250
"""Most members read with one statement."""
_CURSOR: Final = re.compile(
    r"([0-9]{1,2})\.(-1|[0-9]{1,18})\.(-1|[0-9]{1,18})\.([0-9]{1,18})", re.ASCII
)
"""What :func:`read_members` gives out. Others are refused: a negative limit is none at all, and
what is no 64-bit integer would undo the whole batch."""


def read_members(state: State, held: OpenClaimState, command: cl.ReadClaim) -> c.Result:
    """Return a page of the members of a claim, in their order."""
    if command.columns and not command.whole_groups:  # with groups there is a detail
        columns = _column_page(state, held, command)
        if columns is not None:
            return columns
    rows, after = _row_page(state, held, command)
    messages = tuple(as_member(message_of(row), held.claim) for row in rows)
    return cl.MemberPage(messages, after)


def first_members(
    state: State, held: OpenClaimState, limit: int
) -> Iterator[tuple[int, list[Row]]]:
    """Go over the first members of a claim, without their bodies, by lane."""
    for track in _tracks_of(held):
        if limit <= 0:
            return
        by_lane: dict[int, list[Row]] = {}
        for row in _after(state, "members_without_bodies", track, _BEGINNING, limit, step=limit):
            by_lane.setdefault(Cell.lane(row), []).append(row)
        for lane, rows in by_lane.items():
            limit -= len(rows)
            yield lane, rows


def _tracks_of(held: OpenClaimState) -> list[list[int]]:
    """Return the lanes of a claim in their order; those that are read as one stand together."""
    lanes = lanes_of(held.partition, held.lanes_used)
    if not held.claim.in_order:
        return [[lane] for lane in lanes]
    grouped = list(filter(is_grouped, lanes))
    tracks = [[lane] for lane in lanes if not is_grouped(lane)]
    return [*tracks, grouped] if grouped else tracks


_Column: TypeAlias = int | Sequence[int]
"""The same number for all, or one for each."""


class _Rows(NamedTuple):
    """Members as rows."""

    rows: Sequence[Row]

    @property
    def sizes(self) -> list[int]:
        return list(map(len, map(Cell.body, self.rows)))

    def place(self, count: int) -> _Place:
        """Return the place of the last of the first so many."""
        return _place_of(self.rows[count - 1])

    def first(self, count: int, command: cl.ReadClaim, limit: int) -> tuple[_Rows, int]:
        """Return what of the first so many is asked for; and how many were looked at."""
        taken, looked = _taken(command, self.rows[:count], limit)
        return _Rows(taken), looked


class _Run(NamedTuple):
    """Members as columns."""

    ids: bytes
    sizes: Sequence[int]
    bodies: tuple[bytes, ...]
    columns: tuple[_Column, ...]
    """Inserted, expires, visible, dequeue count, fence, and priority."""

    def place(self, count: int) -> _Place:
        """Return the place of the last of the first so many."""
        visible, end = self.columns[2], count * ID_BYTES
        time_ms = visible if isinstance(visible, int) else visible[count - 1]
        return time_ms, row_key_in(self.ids[end - ID_BYTES : end])

    def first(self, count: int, _command: cl.ReadClaim, _limit: int) -> tuple[_Run, int]:
        """Return the first so many; and how many that is."""
        if count == len(self.sizes):
            return self, count
        sizes = self.sizes[:count]
        columns = tuple([e if isinstance(e, int) else e[:count] for e in self.columns])
        bodies = b"".join(self.bodies)[: sum(sizes)]
        return _Run(self.ids[: count * ID_BYTES], sizes, (bodies,), columns), count


_NO_RUN: Final = _Run(b"", (), (), (0,) * 6)
_Look: TypeAlias = Callable[[Sequence[int], _Place, int, int], "_Rows | _Run | None"]
"""Returns members of some lanes behind a place, at most so many, or the rest behind so many."""


def _page(
    state: State, held: OpenClaimState, command: cl.ReadClaim, look: _Look, looks: int
) -> tuple[list[Any], str | None] | None:
    """Return members as *look* does, and where the part goes on; None if it cannot."""
    start, stop = cl.part_bounds(held.claim.remaining, command)
    at, time_ms, row_key, left = _read_cursor(command.after, stop - start)
    place, skip = (time_ms, row_key), 0 if command.after else start
    found: list[Any] = []
    tracks = _tracks_of(held)
    room, step = PAGE_BYTES, _READ_FIRST
    looked, wished = 0, command.limit
    while at < len(tracks) and left and wished > 0 and looks > 0 and room > 0:
        wanted = min(left, looks, step)
        if not command.whole_groups:
            wanted = min(wanted, wished)
        if skip and len(tracks) > 1:
            in_track = sum(state.value("count_lane", (lane,)) for lane in tracks[at])
            if skip >= in_track:
                skip, at = skip - in_track, at + 1
                continue
        seen = look(tracks[at], place, wanted, skip)
        if seen is None:
            return None
        skip, sizes = 0, seen.sizes
        fits = fitting(sizes, room, at_least=not looked)
        taken, fits = seen.first(fits, command, wished)
        found.append(taken)
        wished -= len(taken.sizes)
        looked, left, looks = looked + fits, left - fits, looks - fits
        room -= sum(sizes[:fits])
        step = min(_READ_AT_ONCE, max(1, room * looked // max(1, PAGE_BYTES - room)))
        if fits < len(sizes):
            place = seen.place(fits) if fits else place
            break
        if len(sizes) < wanted:
            at, place = at + 1, _BEGINNING
        else:
            place = seen.place(fits)
    more = left and at < len(tracks)
    return found, f"{at}.{place[0]}.{place[1]}.{left}" if more else None


def _row_page(
    state: State, held: OpenClaimState, command: cl.ReadClaim
) -> tuple[Sequence[Row], str | None]:
    """Return a page of members as rows."""

    def look(track: Sequence[int], place: _Place, wanted: int, skip: int) -> _Rows:
        return _Rows(_after(state, "members", track, place, wanted, skip=skip))

    page = _page(state, held, command, look, MOST_LOOKED_AT)
    assert page is not None
    return [row for each in page[0] for row in each.rows], page[1]


def _column_page(
    state: State, held: OpenClaimState, command: cl.ReadClaim
) -> cl.MemberColumns | None:
    """Return a page of members as columns; None if some of them have a detail."""
    by_run = "member_run" in state.sql

    def look(track: Sequence[int], place: _Place, wanted: int, skip: int) -> _Run | None:
        nonlocal by_run
        if len(track) > 1:
            return None  # they are of groups, which is a detail
        if by_run:
            run = _run_behind(state, track[0], place, wanted, skip)
            if run is not None:
                return run
            by_run = False
        rows = _after(state, "member_columns", track, place, wanted, skip=skip)
        return None if any(map(_detail_in, rows)) else _run_of(rows)

    page = _page(state, held, command, look, MOST_IN_COLUMNS)
    if page is None:
        return None
    ids, sizes, bodies, columns = _joined(page[0])
    return cl.MemberColumns._make((ids, sizes, bodies, *columns, page[1]))


def _run_behind(state: State, lane: int, place: _Place, wanted: int, skip: int) -> _Run | None:
    """Return members of a lane; None unless, but for ids and bodies, they are all the same."""
    time_ms, row_key = place
    if place == _BEGINNING:
        return _run_in(state, "member_run", (lane, time_ms, wanted, skip))
    run = _run_in(state, "member_run_of_moment", (lane, time_ms, row_key, wanted))
    if run is None or len(run.sizes) == wanted:
        return run
    later = (lane, time_ms + 1, wanted - len(run.sizes), 0)
    rest = _run_in(state, "member_run", later)
    return None if rest is None else _joined([run, rest])


def _run_in(state: State, query: str, bounds: tuple[int, ...]) -> _Run | None:
    ((count, detailed, ids, sizes, bodies, *ends),) = state.fetch(query, bounds)
    if not count:
        return _NO_RUN
    least, most = ends[::2], ends[1::2]
    if detailed or least != most:
        return None
    columns = (*least, priority_of(bounds[0]))
    return _Run(ids, json.loads(f"[{sizes}]"), (bodies,), columns)


def _run_of(rows: Sequence[Any]) -> _Run:
    if not rows:
        return _NO_RUN
    _, ids, inserted, expires, visible, counts, fences, bodies, _, lanes = zip(*rows, strict=True)
    first = lanes[0]
    alike = lanes.count(first) == len(lanes)
    priorities = priority_of(first) if alike else [priority_of(lane) for lane in lanes]
    columns = inserted, expires, visible, counts, fences, priorities
    return _Run(b"".join(ids), list(map(len, bodies)), (b"".join(bodies),), columns)


def _joined(runs: Sequence[_Run]) -> _Run:
    """Return members as one run."""
    runs = [run for run in runs if run.sizes]
    if len(runs) <= 1:
        return runs[0] if runs else _NO_RUN
    columns: list[_Column] = []
    for each in zip(*[run.columns for run in runs], strict=True):
        if isinstance(each[0], int) and each.count(each[0]) == len(each):
            columns.append(each[0])
            continue
        values: list[int] = []
        for column, run in zip(each, runs, strict=True):
            values += [column] * len(run.sizes) if isinstance(column, int) else column
        columns.append(values)
    return _Run(
        b"".join([run.ids for run in runs]),
        [size for run in runs for size in run.sizes],
        tuple([piece for run in runs for piece in run.bodies]),
        tuple(columns),
    )


def _taken(command: cl.ReadClaim, rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], int]:
    """Return which of some rows are of the part, at most so many; and how many were looked at."""
    if not command.whole_groups:
        return rows, len(rows)
    taken: list[Row] = []
    for looked, row in enumerate(rows):
        if len(taken) == limit:
            return taken, looked
        detail = Cell.detail(row)
        group = None if detail is None else along_in_json(detail).group_id
        name = id_from_blob(Cell.message_id(row)) if group is None else group
        if is_of_part(name, command.part, command.parts):
            taken.append(row)
    return taken, len(rows)


def _after(  # noqa: PLR0913 - what is read, where, and how much of it
    state: State,
    query: str,
    track: Sequence[int],
    place: _Place,
    wanted: int,
    *,
    skip: int = 0,
    step: int = 0,
) -> list[Any]:
    """Return members of a track behind a place, or behind so many.

    Args:
        state: The store's.
        query: Its name.
        track: Lanes.
        place: Behind which to begin.
        wanted: How many, if there are.
        skip: How many to leave out at the beginning of the track.
        step: How many to read of each lane at once; 0 for its share of those wanted.
    """
    if len(track) == 1:
        return _of_lane(state, query, track[0], place, wanted, skip)
    if skip:
        ((time_ms, row_key),) = state.fetch("member_place", (state.keys_of(track), skip - 1))
        place = time_ms, row_key
    step = step or max(1, wanted // len(track))
    lanes = [_walk(state, query, lane, place, step) for lane in track]
    return list(islice(merge(*lanes, key=_place_of), wanted))


def _walk(state: State, query: str, lane: int, place: _Place, step: int) -> Iterator[Any]:
    """Go over the members of a lane behind a place."""
    while True:
        rows = _of_lane(state, query, lane, place, step)
        yield from rows
        if len(rows) < step:
            return
        place = _place_of(rows[-1])


def _of_lane(  # noqa: PLR0913, PLR0917 - what is read, where, and how much of it
    state: State, query: str, lane: int, place: _Place, wanted: int, skip: int = 0
) -> list[Any]:
    """Return members of a lane behind a place: the rest of its moment, then later ones."""
    time_ms, row_key = place
    if place == _BEGINNING:
        return state.fetch(query, (lane, time_ms, wanted, skip))
    rows = state.fetch(f"{query}_of_moment", (lane, time_ms, row_key, wanted))
    if len(rows) < wanted:
        later = (lane, time_ms + 1, wanted - len(rows), 0)
        rows = [*rows, *state.fetch(query, later)]
    return rows


def _place_of(row: Row) -> _Place:
    return Cell.visible_at_ms(row), Cell.row_key(row)


def _read_cursor(after: str, length: int) -> tuple[int, int, int, int]:
    """Return track, time and row key behind which to go on, and how many members are left."""
    if not after:
        return 0, *_BEGINNING, length
    found = _CURSOR.fullmatch(after)
    if found is None:
        raise InvalidMarker
    at, time_ms, row_key, left = map(int, found.groups())
    return at, time_ms, row_key, min(left, length)
