"""Claims in a database: a claim is a partition, so it is settled by dropping one.

A member's row keeps the time at which it was visible before, which is its place in the claim; until
when it is hidden stands in the claim's own row, so that an extension writes one row however many
members there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Protocol

from leasehold.domain import claim_rules as rules
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    ClaimNotFound,
    ClaimSettled,
    InvalidMarker,
    StreamNotFound,
)
from leasehold.domain.events import EventType
from leasehold.domain.limits import LOOK_BYTES
from leasehold.domain.pages import fitting
from leasehold.domain.staging_rules import Moved
from leasehold.stores.sql.annexes import Held, StreamBox
from leasehold.stores.sql.catalog import Entry, lanes_of, priority_of
from leasehold.stores.sql.claiming import Claiming
from leasehold.stores.sql.dissolving import Dissolving
from leasehold.stores.sql.failures import FailureVerbs
from leasehold.stores.sql.messages import MessageVerbs
from leasehold.stores.sql.rows import message_of
from leasehold.stores.sql.settling import Plan, Settling
from leasehold.stores.sql.state import State

_BEGIN: Final = (-1, -1)
PAGE_BYTES: Final = LOOK_BYTES
"""Bytes of bodies after which a page of members ends."""
_DETAIL: Final = 8
"""Where a row of ``member_columns`` has the detail."""
PAGE_MEMBERS: Final = {"members": 5_000, "member_columns": 20_000}
"""Most members of a page by the query, the same."""
_READ_FIRST: Final = 32
"""Members read while it is not known how large they are: each body can have 64 KiB."""
_READ_AT_ONCE: Final = 250
"""Most members read with one statement."""
_CONTENT: Final = 7
"""Where a row has the body."""
_CURSOR: Final = re.compile(
    r"([0-9]{1,2})\.(-1|[0-9]{1,18})\.(-1|[0-9]{1,18})\.([0-9]{1,18})", re.ASCII
)
"""What :meth:`ClaimVerbs.read` gives out. Others are refused: a negative limit is none at all, and
what is no 64-bit integer would undo the whole batch."""


class Publisher(Protocol):
    """Publishes staged transactions within the open batch."""

    def check_publish(self, account: str, name: str) -> None:
        """Raise what publishing would be refused with."""
        ...

    def publish_all(self, account: str, names: Iterable[str], now_ms: int) -> Moved:
        """Publish what was not published before, and return what that was."""
        ...

    def begin_binding(self, account: str, name: str, now_ms: int) -> None:
        """Have a transaction that a claim can be bound to, or raise why there cannot be one."""
        ...


class ClaimVerbs:
    """Each method carries out one command; refusals are raised."""

    def __init__(
        self,
        state: State,
        messages: MessageVerbs,
        failures: FailureVerbs,
        publisher: Publisher,
        settling: Settling,
    ) -> None:
        self._state = state
        self._messages = messages
        self._failures = failures
        self._publisher = publisher
        self._settling = settling
        self._claiming = Claiming(state, messages.search)
        self._dissolving = Dissolving(state)

    # --- streams -----------------------------------------------------------------------------

    def attach(self, command: cl.AttachStream, now_ms: int) -> c.Result:
        """Take a stream over."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        stream = entry.streams.get(command.stream)
        if stream is None:
            bounds = (command.account, command.queue, command.stream, 0, 0, now_ms)
            ((stream_id,),) = state.fetch("keep_stream", bounds)
            stream = entry.streams[command.stream] = StreamBox(entry, stream_id, command.stream)
        stream.token = state.next_token()
        stream.attached_at_ms = now_ms
        state.keep_stream(stream)
        return stream.as_stream()

    def get(self, command: cl.GetStream, _now_ms: int) -> c.Result:
        """Look at a stream."""
        return self._stream(command).as_stream()

    def list_all(self, command: cl.ListStreams, _now_ms: int) -> c.Result:
        """List the streams of a queue."""
        entry = self._state.catalog.get(command.account, command.queue)
        return tuple(entry.streams[name].as_stream() for name in sorted(entry.streams))

    def delete(self, command: cl.DeleteStream, now_ms: int) -> c.Result:
        """Forget a stream; its claims are given back."""
        stream = self._stream(command)
        self._state.cursor.execute(self._state.sql["drop_stream"], (stream.stream_id,))
        del stream.entry.streams[stream.name]
        claims = [stream.claims[number] for number in sorted(stream.claims)]
        return self._dissolving.begin(claims, now_ms)

    def _stream(self, command: cl.ClaimCommand) -> StreamBox:
        assert not isinstance(command, cl.LapseClaims | cl.ListStreams)
        entry = self._state.catalog.get(command.account, command.queue)
        stream = entry.streams.get(command.stream)
        if stream is None:
            raise StreamNotFound
        return stream

    # --- opening and reading -----------------------------------------------------------------

    def open(self, command: cl.OpenClaim, now_ms: int) -> c.Result:
        """Lease messages as a claim, or find the claim again."""
        stream = self._stream(command)
        rules.check_token(stream.token, command.token)
        settled = stream.last_settled, stream.settled_with
        rules.check_number(command.number, settled[0], stream.claims, settled[1])
        held = stream.claims.get(command.number)
        if held is not None and not held.is_opening:
            return cl.Opened(self._reopen(held, command, now_ms), replayed=True)
        opened = self._claiming.step(stream, held, command, now_ms)
        self._state.find_next_lapse()
        return cl.Opened(None if opened is None else opened.claim)

    def _reopen(self, held: Held, command: cl.OpenClaim, now_ms: int) -> cl.Claim:
        claim = rules.after_reopening(held.claim, now_ms, command.lease_s, command.accept_loss)
        held.accepted = held.accepted or command.accept_loss
        self._extend(held, claim)
        return claim

    def read(self, command: cl.ReadClaim, _now_ms: int) -> c.Result:
        """Read members in their order."""
        stream = self._stream(command)
        held = self._readable(stream, command.number)
        if command.columns:
            rows, after = self._members(held, command, "member_columns")
            if not (rows and rows[-1][_DETAIL]):
                return _columns(rows, after)
        rows, after = self._members(held, command, "members")
        messages = tuple(rules.as_member(message_of(row), held.claim) for row in rows)
        return cl.MemberPage(messages, after)

    def _members(
        self, held: Held, command: cl.ReadClaim, query: str
    ) -> tuple[list[Any], str | None]:
        """Return rows of members, and where the part goes on.

        As columns only one row, with its detail, is returned if any of them has one: such members
        cannot be shown so.
        """
        start, stop = rules.part_bounds(held.claim.remaining, command.part, command.parts)
        lane_at, visible_ms, row_key, left = _read_cursor(command.after, stop - start)
        skip = 0 if command.after else start
        found: list[Any] = []
        lanes = lanes_of(held.partition, held.lanes_used)
        room, limit, step = PAGE_BYTES, min(command.limit, PAGE_MEMBERS[query]), _READ_FIRST
        while lane_at < len(lanes) and left and len(found) < limit and room > 0:
            wanted = min(left, limit - len(found), step)
            if skip and len(lanes) > 1:
                ((in_lane,),) = self._state.fetch("count_lane", (lanes[lane_at],))
                if skip >= in_lane:
                    skip -= in_lane
                    lane_at += 1
                    continue
            rows = self._after(query, lanes[lane_at], (visible_ms, row_key), wanted, skip)
            skip = 0
            if query == "member_columns":
                detailed = [row for row in rows if row[_DETAIL]]
                if detailed:
                    return detailed[-1:], None
            sizes = [len(row[_CONTENT]) for row in rows]
            fits = fitting(sizes, room, at_least=not found)
            found += rows[:fits]
            left -= fits
            room -= sum(sizes[:fits])
            step = min(_READ_AT_ONCE, max(1, room * len(found) // max(1, PAGE_BYTES - room)))
            if fits < len(rows):
                if fits:
                    visible_ms, row_key = rows[fits - 1][4], rows[fits - 1][0]
                break
            if len(rows) < wanted:
                lane_at, (visible_ms, row_key) = lane_at + 1, _BEGIN
            else:
                visible_ms, row_key = rows[-1][4], rows[-1][0]
        more = left and lane_at < len(lanes)
        return found, f"{lane_at}.{visible_ms}.{row_key}.{left}" if more else None

    def _after(
        self, query: str, lane: int, place: tuple[int, int], wanted: int, skip: int
    ) -> list[Any]:
        """Return members of a lane behind a place: the rest of its moment, then later ones."""
        visible_ms, row_key = place
        if place == _BEGIN:
            return self._state.fetch(query, (lane, visible_ms, wanted, skip))
        rows = self._state.fetch(f"{query}_of_moment", (lane, visible_ms, row_key, wanted))
        if len(rows) < wanted:
            later = (lane, visible_ms + 1, wanted - len(rows), 0)
            rows = [*rows, *self._state.fetch(query, later)]
        return rows

    def _readable(self, stream: StreamBox, number: int) -> Held:
        held = _held(stream, number)
        rules.check_readable(held.claim, held.accepted)
        return held

    # --- extending ---------------------------------------------------------------------------

    def extend(self, command: cl.ExtendClaim, now_ms: int) -> c.Result:
        """Move the end of a claim's lease: one row, however many members."""
        held = _held(self._own_stream(command), command.number)
        claim = rules.after_extension(held.claim, now_ms, command.lease_s, command.park)
        self._extend(held, claim)
        return claim

    def _extend(self, held: Held, claim: cl.Claim) -> None:
        state = self._state
        event = rules.extension_event(held.claim)
        held.claim = claim
        if held.lapsed:
            held.lapsed = False
            held.entry.lapsed.remove(held)
        state.keep_claim(held)
        state.find_next_lapse()
        state.log.add_claim(event, held.entry, claim)

    def _own_stream(
        self, command: cl.ExtendClaim | cl.GiveBackClaim | cl.ExemptMembers | cl.BindClaim
    ) -> StreamBox:
        stream = self._stream(command)
        rules.check_token(stream.token, command.token)
        return stream

    # --- settling ----------------------------------------------------------------------------

    def exempt(self, command: cl.ExemptMembers, now_ms: int) -> c.Result:
        """Note what becomes of members when their claim is settled."""
        held = self._readable(self._own_stream(command), command.number)
        self._settling.note(held, command.exemptions, now_ms)
        return held.claim

    def bind(self, command: cl.BindClaim, now_ms: int) -> c.Result:
        """Have the publishing of a transaction settle the stream up to a claim."""
        held = self._readable(self._own_stream(command), command.number)
        self._publisher.begin_binding(command.account, command.transaction, now_ms)
        self._settling.bind(held, command.transaction)
        return held.claim

    def settle(self, command: cl.SettleClaims, now_ms: int) -> c.Result:
        """Complete claims, but for the exemptions; all is checked before anything is done."""
        stream, settling = self._stream(command), self._settling
        rules.check_token(stream.token, command.token)
        if command.upto <= stream.last_settled:
            return cl.Settled(last_settled=stream.last_settled, already=True)
        own, *others = settling.plan(command.account, command.publish, Plan(stream, command.upto))
        exempted = settling.exempted(own.chosen, command.exemptions, now_ms)
        for name in command.publish:
            self._publisher.check_publish(command.account, name)
        for put in command.sends:
            self._failures.check(put, now_ms)
        settled = settling.carry_out(own, exempted, now_ms)
        beside = [settling.carry_out(plan, (), now_ms) for plan in others]
        moved = self._publisher.publish_all(command.account, command.publish, now_ms)
        if command.sends:
            self._messages.put(command.sends, now_ms)
        return cl.Settled(
            last_settled=settled.last_settled,
            completed=settled.completed,
            exempted=settled.exempted,
            lost=settled.lost,
            published=moved.rows,
            published_by_queue=moved.by_queue,
            duplicates=moved.duplicates,
            beside=tuple(beside),
        )

    # --- giving back, lapsing, losing --------------------------------------------------------

    def give_back(self, command: cl.GiveBackClaim, now_ms: int) -> c.Result:
        """Dissolve a claim."""
        return self._dissolving.begin([_held(self._own_stream(command), command.number)], now_ms)

    def lapse_due(self, now_ms: int) -> None:
        """Let claims lapse whose time is over; called before the first command of a batch."""
        state = self._state
        due = [
            held
            for held in state.catalog.claims.values()
            if not (held.lapsed or held.dissolving) and held.claim.until_ms <= now_ms
        ]
        due.sort(key=lambda held: (held.claim.until_ms, held.partition))
        for held in due:
            held.lapsed = True
            held.claim = rules.after_lapse(held.claim)
            held.entry.lapsed.append(held)
            state.keep_claim(held)
            state.log.add_claim(EventType.CLAIM_LAPSED, held.entry, held.claim)
            self._let_expire(held)
        state.find_next_lapse()

    def _let_expire(self, held: Held) -> None:
        """Have the sweep look at members again that could not expire until now."""
        state = self._state
        for lane in lanes_of(held.partition, held.lanes_used):
            ((first_ms,),) = state.fetch("first_expiry", (lane,))
            if first_ms is not None and first_ms < state.retired_until_ms:
                state.set_retired_until(first_ms)

    def lapse(self, command: cl.LapseClaims, now_ms: int) -> c.Result:
        """Dissolve what is to be dissolved; claims that are due have lapsed by now."""
        return c.Swept(self._dissolving.go_on(command, now_ms))

    def lose_members(self, entry: Entry) -> None:
        """Drop the members of all claims of a queue, which is being cleared."""
        state = self._state
        for held in tuple(entry.claims):
            dropped = [(lane,) for lane in lanes_of(held.partition, held.lanes_used)]
            state.cursor.executemany(state.sql["drop_partition"], dropped)
            if held.dissolving:
                state.forget_claim(held)
                continue
            state.cursor.execute(state.sql["drop_claim"], (held.partition,))
            state.forget_notes(held)
            del state.catalog.claims[held.partition]
            held.recorded = held.bytes_taken = None
            held.claim = rules.after_clear(held.claim)
            held.partition, held.lanes_used = state.new_partition(), 0
            state.catalog.claims[held.partition] = held
            state.keep_claim(held)

    def forget_streams(self, entry: Entry) -> None:
        """Forget the streams and claims of a queue that is being deleted."""
        state = self._state
        for held in tuple(entry.claims):
            dropped = [(lane,) for lane in lanes_of(held.partition, held.lanes_used)]
            state.cursor.executemany(state.sql["drop_partition"], dropped)
            state.forget_claim(held)
        for stream in entry.streams.values():
            state.cursor.execute(state.sql["drop_stream"], (stream.stream_id,))
        entry.streams.clear()
        state.find_next_lapse()


def _held(stream: StreamBox, number: int) -> Held:
    held = stream.claims.get(number)
    if held is None:
        if number <= stream.last_settled:
            raise ClaimSettled(stream.last_settled, stream.settled_with)
        raise ClaimNotFound
    return held


def _columns(rows: list[Any], after: str | None) -> cl.MemberColumns:
    if not rows:
        return cl.MemberColumns((), (), (), (), (), (), (), (), after)
    _, ids, inserted, expires, visible, counts, fences, bodies, _, lanes = zip(*rows, strict=True)
    first = lanes[0]
    if lanes.count(first) == len(lanes):
        priorities = [priority_of(first)] * len(lanes)
    else:
        priorities = [priority_of(lane) for lane in lanes]
    return cl.MemberColumns(
        ids, bodies, inserted, expires, visible, counts, fences, priorities, after
    )


def _read_cursor(after: str, length: int) -> tuple[int, int, int, int]:
    """Return lane, time and row key behind which to go on, and how many members are left."""
    if not after:
        return 0, *_BEGIN, length
    found = _CURSOR.fullmatch(after)
    if found is None:
        raise InvalidMarker
    lane_at, visible_ms, row_key, left = map(int, found.groups())
    return lane_at, visible_ms, row_key, min(left, length)
