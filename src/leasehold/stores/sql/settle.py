"""Settling claims in a database, by themselves or with a transaction that they are bound to.

And the members of claims in their order, which are read until then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from leasehold.domain import claims as cl
from leasehold.domain import claims as rules
from leasehold.domain import commands as c
from leasehold.domain.claims import Exemption
from leasehold.domain.errors import InvalidMarker, MemberNotFound, StreamNotFound
from leasehold.domain.events import EventType
from leasehold.domain.groups import is_of_part
from leasehold.domain.limits import LOOK_BYTES
from leasehold.domain.model import (
    ErrorReport,
    Outcome,
    fitting,
    id_from_blob,
    id_to_blob,
    row_key_in,
    row_key_of,
)
from leasehold.domain.transactions import Bound, StreamSettled
from leasehold.stores.sql.catalog import (
    OpenClaimState,
    StreamBox,
    is_grouped,
    lanes_of,
    priority_of,
)
from leasehold.stores.sql.failures import FailureHandlers
from leasehold.stores.sql.groups import call_lanes
from leasehold.stores.sql.plain_json import along_in_json, from_plain, to_plain
from leasehold.stores.sql.recorder import ID_BYTES
from leasehold.stores.sql.rows import Cell, Kept, Row, kept_in, message_of
from leasehold.stores.sql.state import StagedBook, State

_RECORDED_AT_ONCE: Final = 5_000
_ROWS_AT_ONCE: Final = 2_000
"""Members exempted whose rows are in memory at once."""


class Exempted(NamedTuple):
    """A member that is not completed, and what becomes of it."""

    kept: Kept
    exemption: Exemption


@dataclass(slots=True)
class Plan:
    """A stream that is to be settled."""

    stream: StreamBox
    upto: int
    name: str | None = None
    """Of the transaction whose publishing settles it so far."""
    published: Collection[str] = ()
    """All transactions that are published along with it."""

    @property
    def chosen(self) -> list[OpenClaimState]:
        """The claims that are settled, by number."""
        claims = self.stream.claims
        return [claims[number] for number in sorted(claims) if number <= self.upto]


class Settling:
    """Settles streams, once it is clear that nothing is in the way."""

    def __init__(self, state: State, failures: FailureHandlers, book: StagedBook) -> None:
        self._state = state
        self._failures = failures
        self._book = book

    # --- binding -----------------------------------------------------------------------------

    def bind(self, held: OpenClaimState, name: str) -> None:
        """Bind a claim to a transaction that is there; what is so already is not written again."""
        claim = held.claim
        bound = Bound(claim.queue, claim.stream, claim.number, held.stream.token)
        if claim.transaction != name:
            self._unbind(held)
            held.claim = replace(claim, transaction=name)
            self._state.keep_claim(held)
        if bound not in self._book.bound(claim.account, name):
            self._book.bind(claim.account, name, bound)

    def _unbind(self, held: OpenClaimState, published: Collection[str] = ()) -> None:
        """Undo the binding of a claim; one of an earlier token stays, and refuses to publish.

        A transaction that has nothing else is forgotten, but for those just being published.
        """
        claim, book = held.claim, self._book
        if claim.transaction is None:
            return
        account, name = claim.account, claim.transaction
        bound = Bound(claim.queue, claim.stream, claim.number, held.stream.token)
        if bound in book.bound(account, name):
            book.unbind(account, name, bound)
            if name not in published:
                book.forget_if_empty(account, name)

    def release(self, account: str, name: str) -> None:
        """Forget what a transaction that is given up has bound."""
        for bound in self._book.bound(account, name):
            entry = self._state.catalog.find(account, bound.queue)
            stream = None if entry is None else entry.streams.get(bound.stream)
            held = None if stream is None else stream.claims.get(bound.number)
            if held is not None and held.claim.transaction == name:
                held.claim = replace(held.claim, transaction=None)
                self._state.keep_claim(held)
            self._book.unbind(account, name, bound)

    # --- exempting ---------------------------------------------------------------------------

    def note(
        self, held: OpenClaimState, exemptions: Sequence[Exemption], now_ms: int, *, anew: bool
    ) -> None:
        """Note what becomes of members of a claim.

        Args:
            held: The claim.
            exemptions: What becomes of which member.
            now_ms: The time.
            anew: Whether what was noted before is forgotten.

        Raises:
            LeaseholdError: As for :meth:`exempted`, or OutOfRange; nothing is changed then.
        """
        state = self._state
        last = {each.message_id: each for each in exemptions}
        self.exempted([held], last.values(), now_ms)
        noted = {row_key_of(message_id): each for message_id, each in last.items()}
        if anew and held.claim.noted:
            rules.check_noted(replace(held.claim, noted=0), len(noted))
            state.cursor.execute(state.sql["forget_exemptions"], (held.partition,))
            held.claim = replace(held.claim, noted=0)
            state.keep_claim(held)
        if not noted:
            return
        keys = [key for key in noted if key is not None]
        known = state.fetch("known_exemptions", (held.partition, state.keys_of(keys)))
        more = len(noted) - len(known)
        rules.check_noted(held.claim, more)
        rows = [(held.partition, key, _to_json(each)) for key, each in noted.items()]
        state.cursor.executemany(state.sql["keep_exemption"], rows)
        if more:
            held.claim = replace(held.claim, noted=held.claim.noted + more)
            state.keep_claim(held)

    def exempted(
        self, chosen: Sequence[OpenClaimState], exemptions: Iterable[Exemption], now_ms: int
    ) -> list[Exempted]:
        """Return the members that are exempted.

        Raises:
            MemberNotFound: One of them is none, or is named twice.
            VisibilityPastExpiry: It cannot be put off for so long.
        """
        exemptions = tuple(exemptions)
        by_number = {held.claim.number: held for held in chosen}
        wanted = [row_key_of(each.message_id) for each in exemptions]
        rows = self._rows([key for key in wanted if key is not None])
        found: list[Exempted] = []
        for row_key, exemption in zip(wanted, exemptions, strict=True):
            held = by_number.get(exemption.number)
            row = None if row_key is None else rows.pop(row_key, None)  # whoever is named again
            kept = None if held is None or row is None else kept_in(self._state, held.entry, row)
            if (
                kept is None
                or kept.held is not held
                or kept.message.message_id != exemption.message_id
            ):
                raise MemberNotFound(exemption.message_id)
            self._failures.check_give_back(kept, exemption, now_ms)
            found.append(Exempted(kept, exemption))
        return found

    def _rows(self, keys: Sequence[int]) -> dict[int, Row]:
        if not keys:
            return {}
        there = self._state.fetch("rows_without_bodies", (self._state.keys_of(keys),))
        return dict(zip(map(Cell.row_key, there), there, strict=True))

    # --- planning ----------------------------------------------------------------------------

    def plan(self, account: str, names: Collection[str], own: Plan | None = None) -> list[Plan]:
        """Return which streams are settled when these transactions are published.

        Args:
            account: Whose they are.
            names: Of the transactions, known or not.
            own: A stream that is settled in any case; it comes first.

        Raises:
            LeaseholdError: One of them cannot be.
        """
        plans: dict[StreamBox, Plan] = {}
        if own is not None:
            stream = own.stream
            rules.to_settle(own.upto, stream.last_settled, stream.as_stream().claims)
            plans[stream] = own
            own.published = names
        for name in names:
            for bound in self._book.bound(account, name):
                stream = self._stream(account, bound)
                rules.check_bound(name, bound, stream.as_stream())
                plan = plans.setdefault(stream, Plan(stream, 0, published=names))
                if bound.number >= plan.upto:
                    plan.upto, plan.name = bound.number, name
        return list(plans.values())

    def _stream(self, account: str, bound: Bound) -> StreamBox:
        stream = self._state.catalog.get(account, bound.queue).streams.get(bound.stream)
        if stream is None:
            raise StreamNotFound
        return stream

    # --- carrying out ------------------------------------------------------------------------

    def carry_out(self, plan: Plan, given: Sequence[Exempted], now_ms: int) -> StreamSettled:
        """Complete the members of claims, but for the exemptions.

        Args:
            plan: Which claims.
            given: Exemptions that count in place of those noted.
            now_ms: The time.
        """
        chosen, stream = plan.chosen, plan.stream
        lost = sum(held.claim.lost for held in chosen)
        exempted = 0
        for held in chosen:
            own = [each for each in given if each.kept.held is held]
            exempted += self._exempt(held, own, now_ms)
        completed = sum(held.claim.remaining for held in chosen)
        for held in chosen:
            self._unbind(held, plan.published)
            self._complete(held)
        stream.last_settled, stream.settled_with = plan.upto, plan.name
        self._state.keep_stream(stream)
        self._state.find_next_lapse()
        queue = stream.entry.queue.name
        return StreamSettled(queue, stream.name, plan.upto, completed, exempted, lost)

    def _exempt(self, held: OpenClaimState, given: Sequence[Exempted], now_ms: int) -> int:
        """Give back the members of a claim that are exempted; return how many."""
        gone = [each.kept for each in given]
        recorded = self._state.recorded.get(held)
        for kept, exemption in given:
            self._failures.give_back(kept, exemption, now_ms)
        if held.claim.noted:
            gone += self._exempt_noted(held, {kept.row_key for kept in gone}, now_ms)
        if gone and recorded is not None:  # those that are left are as they were
            blobs = {id_to_blob(kept.message.message_id) for kept in gone}
            left = [each.without(blobs) for each in recorded]
            self._state.recorded[held] = [columns for columns in left if columns]
        return len(gone)

    def _exempt_noted(
        self, held: OpenClaimState, given: Collection[int], now_ms: int
    ) -> list[Kept]:
        """Give back the members that notes are on, but for those *given*; return them."""
        state = self._state
        gone = []
        notes = iter(state.fetch("get_exemptions", (held.partition,)))
        while slice_ := dict(islice(notes, _ROWS_AT_ONCE)):
            rows = self._rows([key for key in slice_ if key not in given])
            for row_key, row in rows.items():
                kept = kept_in(state, held.entry, row)
                if kept is None or kept.held is not held:
                    continue  # it was lost
                noted = _from_json(slice_[row_key], held.claim.number, row)
                exemption = rules.as_applied(noted, kept.message, now_ms)
                self._failures.give_back(kept, exemption, now_ms)
                gone.append(kept)
        return gone

    def _complete(self, held: OpenClaimState) -> None:
        """Complete what is left of a claim."""
        state = self._state
        entry = held.entry
        if entry.logged and held.claim.remaining:
            self._record(EventType.SETTLED, held)
        entry.message_count -= held.claim.remaining
        state.touched.add(entry)
        lanes = lanes_of(held.partition, held.lanes_used)
        if entry.turns is not None:
            call_lanes(state, entry.turns, lanes)
        dropped = [(lane,) for lane in lanes]
        state.cursor.executemany(state.sql["drop_partition"], dropped)
        state.forget_claim(held)

    def _record(self, kind: EventType, held: OpenClaimState) -> None:
        """Record what happens to all members, in slices so that no event row is very long."""
        state, claim = self._state, held.claim
        log = state.log
        recorded = state.recorded.get(held)
        if recorded is not None:
            for columns in recorded:
                core = (*columns.core[:2], claim.until_ms, *columns.core[3:])
                settled = columns._replace(core=core)
                log.add_columns(kind, held.entry, settled, held.under(), claim.holder)
            return
        for lane in lanes_of(held.partition, held.lanes_used):
            rows = state.cursor.execute(state.sql["member_cores"], (lane, claim.until_ms))
            while slice_ := list(islice(rows, _RECORDED_AT_ONCE)):
                log.add_many(kind, held.entry, slice_, held.under(), claim.holder)


def _to_json(exemption: Exemption) -> str:
    """Return what is kept of an exemption; whose it is says the row."""
    plain = {
        "outcome": exemption.outcome,
        "delay_s": exemption.delay_s,
        "error": None if exemption.error is None else to_plain(exemption.error),
        "dice": exemption.jitter,  # the name that databases have it under
    }
    return json.dumps({name: value for name, value in plain.items() if value is not None})


def _from_json(text: str, number: int, row: Row) -> Exemption:
    """Reverse :func:`_to_json`."""
    plain = json.loads(text)
    error = plain.get("error")
    return Exemption(
        number,
        id_from_blob(Cell.message_id(row)),
        Outcome(plain["outcome"]),
        plain.get("delay_s"),
        None if error is None else from_plain(ErrorReport, error),
        plain["dice"],
    )


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
_SIZES: Final = msgspec.json.Decoder(list[int])
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
    messages = tuple(rules.as_member(message_of(row), held.claim) for row in rows)
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
    start, stop = rules.part_bounds(held.claim.remaining, command)
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
    return _Run(ids, _SIZES.decode(f"[{sizes}]"), (bodies,), columns)


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
        [*chain.from_iterable([run.sizes for run in runs])],
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
