"""Claims in a database: a claim is a partition, so it is settled by dropping one.

In place of when it is visible, a member's row has its place in the claim; until when it is hidden
stands in the claim's own row, so that an extension writes one row however many members there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

from leasehold.domain import claims as cl
from leasehold.domain import claims as rules
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    ClaimNotFound,
    ClaimSettled,
    StreamNotFound,
)
from leasehold.domain.events import EventType, core_of
from leasehold.domain.groups import NOW
from leasehold.domain.model import Phase, row_keys_in
from leasehold.domain.transactions import Moved
from leasehold.domain.visibility import after_lapse
from leasehold.stores.sql.catalog import (
    OF_CLAIM,
    PARTITION_MASK,
    Entry,
    Lane,
    OpenClaimState,
    StreamBox,
    lane_number,
    lane_of,
    lanes_of,
    number_of,
)
from leasehold.stores.sql.failures import FailureHandlers
from leasehold.stores.sql.groups import call_lanes
from leasehold.stores.sql.messages import MessageHandlers
from leasehold.stores.sql.plain_json import along_in_json, detail_to_json
from leasehold.stores.sql.recorder import ID_BYTES, Columns, columns_of
from leasehold.stores.sql.rows import (
    Cell,
    CellOf,
    Row,
    message_of,
    uncount,
)
from leasehold.stores.sql.scanning import WITH_SIZES, WITHOUT_BODIES, FreshRun, Search
from leasehold.stores.sql.settle import Plan, Settling, first_members, read_members
from leasehold.stores.sql.state import State

_OfStream: TypeAlias = (
    cl.OpenClaim | cl.ReadClaim | cl.ExtendClaim | cl.ExemptMembers | cl.BindClaim | cl.SettleClaims
) | (cl.GiveBackClaim | cl.GetStream | cl.DeleteStream)
"""A command about one stream that is there."""


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


class ClaimHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(
        self,
        state: State,
        messages: MessageHandlers,
        failures: FailureHandlers,
        publisher: Publisher,
        settling: Settling,
    ) -> None:
        self._state = state
        self._messages = messages
        self._failures = failures
        self._publisher = publisher
        self._settling = settling
        self._claiming = Claiming(state, messages.search)
        self._dissolving = ClaimRelease(state)

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
        if command.actor is not None:
            reason = f"stream {stream.name} deleted"
            self._state.log.add_queue(EventType.QUEUE_UPDATED, stream.entry, reason)
        claims = [stream.claims[number] for number in sorted(stream.claims)]
        return self._dissolving.begin(claims, now_ms)

    def _stream(self, command: _OfStream) -> StreamBox:
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

    def _reopen(self, held: OpenClaimState, command: cl.OpenClaim, now_ms: int) -> cl.Claim:
        claim = rules.after_reopening(held.claim, now_ms, command.lease_s, command.accept_loss)
        held.accepted = held.accepted or command.accept_loss
        self._extend(held, claim)
        return claim

    def read(self, command: cl.ReadClaim, _now_ms: int) -> c.Result:
        """Read members in their order."""
        stream = self._stream(command)
        return read_members(self._state, self._readable(stream, command.number), command)

    def _readable(self, stream: StreamBox, number: int) -> OpenClaimState:
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

    def _extend(self, held: OpenClaimState, claim: cl.Claim) -> None:
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
        self._settling.note(held, command.exemptions, now_ms, anew=command.replace)
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
        done = cl.Settled(
            last_settled=settled.last_settled,
            completed=settled.completed,
            exempted=settled.exempted,
            lost=settled.lost,
            beside=tuple(beside),
        )
        if command.publish:
            moved = self._publisher.publish_all(command.account, command.publish, now_ms)
            done = replace(
                done,
                published=moved.rows,
                published_by_queue=moved.by_queue,
                duplicates=moved.duplicates,
            )
        if command.sends:
            self._messages.put(command.sends, now_ms)
        return done

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
            if held.entry.turns is not None:
                lanes = lanes_of(held.partition, held.lanes_used)
                call_lanes(state, held.entry.turns, lanes)
            state.keep_claim(held)
            state.log.add_claim(EventType.CLAIM_LAPSED, held.entry, held.claim)
            self._let_expire(held)
        state.find_next_lapse()

    def _let_expire(self, held: OpenClaimState) -> None:
        """Have the sweep look at members again that could not expire until now."""
        state = self._state
        for lane in lanes_of(held.partition, held.lanes_used):
            first_ms = state.value("first_expiry", (lane,))
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
            state.recorded.pop(held, None)
            held.bytes_taken = None
            held.claim = rules.after_clear(held.claim)
            held.partition, held.lanes_used = state.new_partition(OF_CLAIM), 0
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


def _held(stream: StreamBox, number: int) -> OpenClaimState:
    held = stream.claims.get(number)
    if held is None:
        if number <= stream.last_settled:
            raise ClaimSettled(stream.last_settled, stream.settled_with)
        raise ClaimNotFound
    return held


# --- claiming ----------------------------------------------------------------------------------
#
# Taking messages into a claim.


REMEMBERED: Final = 200_000
"""Most members of claims, all together, whose columns for the log are kept in memory until they are
settled, some 40 bytes each: to read them again would take as long as to claim them."""
FULL_STEP: Final = 500
"""Messages of one step while the disk is full: what it writes, and what is written until they are
settled and reaped, must fit in the reserve."""
_CORE: Final[tuple[CellOf, ...]] = (
    *(Cell.inserted_at_ms, Cell.expires_at_ms, Cell.visible_at_ms, Cell.dequeue_count, Cell.fence),
    *(Cell.phase, Cell.since_ms, Cell.visible_since_ms, Cell.renewals),
)
"""In the order of :attr:`Columns.core`."""
_Changed: TypeAlias = Mapping[CellOf, int | Sequence[int]]


def _told_of(rows: Sequence[Row], changed: _Changed) -> Columns:
    """Return what the log says of messages whose rows are as they were.

    Args:
        rows: Theirs; there is at least one.
        changed: What is not as it was, by its cell.
    """
    core = [changed[cell] if cell in changed else tuple(map(cell, rows)) for cell in _CORE]
    lanes, details = tuple(map(Cell.lane, rows)), tuple(map(Cell.detail, rows))
    return columns_of(tuple(map(Cell.message_id, rows)), core, lanes, details)


def _earlier_places(claim: cl.Claim, fresh: Sequence[Row]) -> list[tuple[int, int]]:
    """Return row key and place of members that were visible before, in another queue."""
    found = []
    for row in fresh:
        detail = Cell.detail(row)
        if detail is not None and "first_visible_at_ms" in detail:
            member = rules.after_claim(message_of(row), claim, 0)
            found.append((Cell.row_key(row), rules.place_ms(member, claim)))
    return found


class Claiming:
    """Opens claims, step by step."""

    def __init__(self, state: State, search: Search) -> None:
        self._state = state
        self._search = search

    def step(
        self, stream: StreamBox, held: OpenClaimState | None, command: cl.OpenClaim, now_ms: int
    ) -> OpenClaimState | None:
        """Take the next messages into a claim; None if there is nothing, and no claim."""
        state, entry = self._state, stream.entry
        groups = entry.queue.settings.groups
        claim = rules.begin(command, now_ms, groups) if held is None else held.claim
        had_bytes = self._bytes_of(held) if claim.max_bytes is not None else 0
        step = rules.Step(claim, had_bytes, FULL_STEP if state.is_full else None)
        sized = claim.max_bytes is not None
        found = self._search.next_run(entry, now_ms, step.room, sized=sized)
        # Which of them are too many bytes is for whoever looks at each.
        run = found if found is not None and step.takes(0, found[1].size_bytes) else None
        rows = self._rows(entry, claim, step, now_ms) if run is None else ()
        taken = len(rows) if run is None else run[1].size
        if held is None:
            if not taken:
                return None
            held = self._begin(stream, claim)
        event = rules.extension_event(claim)
        # While the disk is full a claim is as small as a step, so that it can soon be settled.
        ends = step.is_full(taken) and not state.is_full, step.reaches_bytes
        held.claim = rules.after_step(claim, taken, *ends, now_ms, command.lease_s)
        if claim.size:
            state.log.add_claim(event, entry, held.claim)
        if run is None:
            self._take(held, rows, now_ms)
        else:
            self._take_run(held, *run, now_ms)
        held.bytes_taken = step.taken_bytes if held.is_opening else None
        state.keep_claim(held)
        return held

    def _take_run(self, held: OpenClaimState, lane: Lane, run: FreshRun, now_ms: int) -> None:
        """Move messages into the claim that are the same, and were never received before."""
        state, entry = self._state, held.entry
        bounds = held.partition, now_ms, held.claim.holder
        if run.is_dense:
            state.cursor.execute(state.sql["claim_run"], (*bounds, *run.ends))
        else:
            keys = state.keys_of(row_keys_in(run.ids))
            state.cursor.execute(state.sql["claim_many"], (*bounds, keys))
        held.lanes_used |= 1 << number_of(lane.partition)
        if entry.timeline is not None:
            entry.timeline.add(run.visible_at_ms, run.phase, -run.size)
        if entry.logged:
            core = (
                *(run.inserted_at_ms, run.expires_at_ms, held.claim.until_ms, 1, run.fence + 1),
                *(int(Phase.LEASED), now_ms, run.visible_at_ms, 0),
            )
            self._record(held, columns_of((run.ids,), core, (lane.partition,), (None,)))
        else:
            state.recorded.pop(held, None)

    def _rows(self, entry: Entry, claim: cl.Claim, step: rules.Step, now_ms: int) -> Sequence[Row]:
        sized = claim.max_bytes is not None
        query = WITH_SIZES if sized else WITHOUT_BODIES

        def takes(row: Row) -> bool:
            return step.takes(Cell.dequeue_count(row), Cell.body_bytes(row) if sized else 0)

        wanted = step.begin, takes
        return self._search.next_for_claim(entry, now_ms, step.room, query, wanted)

    def _bytes_of(self, held: OpenClaimState | None) -> int:
        """Return the bytes that a claim has taken; counted again after a restart."""
        if held is None:
            return 0
        if held.bytes_taken is not None:
            return held.bytes_taken
        lanes = lanes_of(held.partition, held.lanes_used)
        return sum(self._state.value("bytes_of_lane", (lane,)) for lane in lanes)

    def _begin(self, stream: StreamBox, claim: cl.Claim) -> OpenClaimState:
        partition = self._state.new_partition(OF_CLAIM)
        held = OpenClaimState(stream, partition, claim)
        self._state.recorded[held] = []
        stream.claims[claim.number] = held
        stream.entry.claims.append(held)
        self._state.catalog.claims[partition] = held
        return held

    def _remembered(self) -> int:
        """Return how many members are kept in memory by now."""
        recorded = self._state.recorded.values()
        return sum(len(each.ids) for columns in recorded for each in columns) // ID_BYTES

    def _take(self, held: OpenClaimState, rows: Sequence[Row], now_ms: int) -> None:
        """Move messages into the claim: those never received before at once."""
        fresh = list(filterfalse(Cell.dequeue_count, rows))
        if fresh:
            self._take_fresh(held, fresh, now_ms)
        if len(fresh) < len(rows):
            self._take_again(held, list(filter(Cell.dequeue_count, rows)), now_ms)
        for lane in set(map(Cell.lane, rows)):
            held.lanes_used |= 1 << number_of(lane)
        _call_groups(held.entry, rows, held.claim.until_ms)

    def _take_fresh(self, held: OpenClaimState, fresh: Sequence[Row], now_ms: int) -> None:
        """Move messages into the claim that were never received before."""
        state, entry = self._state, held.entry
        keys = state.keys_of(map(Cell.row_key, fresh))
        bounds = (held.partition, now_ms, held.claim.holder, keys)
        state.cursor.execute(state.sql["claim_many"], bounds)
        if held.claim.in_order:
            state.cursor.executemany(state.sql["set_place"], _earlier_places(held.claim, fresh))
        timeline = entry.timeline
        if timeline is not None:
            for visible_at_ms, phase in zip(
                map(Cell.visible_at_ms, fresh), map(Cell.phase, fresh), strict=True
            ):
                timeline.add(visible_at_ms, phase, -1)
        if entry.logged:
            changed: _Changed = {
                Cell.visible_at_ms: held.claim.until_ms,
                Cell.dequeue_count: 1,
                Cell.fence: [fence + 1 for fence in map(Cell.fence, fresh)],
                Cell.phase: int(Phase.LEASED),
                Cell.since_ms: now_ms,
                Cell.visible_since_ms: tuple(map(Cell.visible_at_ms, fresh)),
                Cell.renewals: 0,
            }
            self._record(held, _told_of(fresh, changed))
        else:  # it may be before the claim is settled
            state.recorded.pop(held, None)

    def _record(self, held: OpenClaimState, columns: Columns) -> None:
        """Record new members, and remember what was said of them."""
        log, claim = self._state.log, held.claim
        log.add_columns(EventType.CLAIMED, held.entry, columns, held.under(), claim.holder)
        recorded = self._state.recorded.get(held)
        if recorded is not None:
            recorded.append(columns)
            if self._remembered() > REMEMBERED:
                del self._state.recorded[held]

    def _take_again(self, held: OpenClaimState, rows: Sequence[Row], now_ms: int) -> None:
        """Move messages into the claim that were received before: their last leases are over."""
        state, entry, claim = self._state, held.entry, held.claim
        bounds = []
        cores = []
        for row in rows:
            before = message_of(row)
            lapsed = after_lapse(before, now_ms)
            if lapsed is not before:
                state.log.add(EventType.LAPSED, entry, lapsed)
            member = rules.after_claim(lapsed, claim, now_ms)
            row_key, lane, told = Cell.row_key(row), Cell.lane(row), Cell.detail(row)
            detail = told
            if member.detail is not before.detail:
                detail = detail_to_json(member.detail)
            times = rules.place_ms(member, claim), member.visible_since_ms
            bounds.append((row_key, held.partition, *times, detail, now_ms, claim.holder))
            cores.append((Cell.message_id(row), *core_of(member)[:-1], lane, told))
            source = state.catalog.claims.get(lane & PARTITION_MASK)
            if source is not None:
                uncount(state, entry, 0, 0, source)
                entry.message_count += 1
            elif entry.timeline is not None:
                entry.timeline.add(before.visible_at_ms, before.phase, -1)
        state.cursor.executemany(state.sql["claim_again"], bounds)
        if entry.logged:
            ids, *core, lanes, details = zip(*cores, strict=True)
            self._record(held, columns_of(ids, core, lanes, details))
        else:
            state.recorded.pop(held, None)


# --- dissolving --------------------------------------------------------------------------------
#
# Dissolving claims in a database, in steps: what was given back, and what has lapsed too long ago.
#
# A claim that was given back is out of its stream at once, and marked. Until their step comes its
# members stay as they were; each step is a transaction of its own, and a restart goes on with it.


def _call_groups(entry: Entry, rows: Sequence[Row], at_ms: int) -> None:
    """Have the groups of some messages looked at, from a moment on."""
    if entry.turns is not None:
        for detail in dict.fromkeys(map(Cell.detail, rows)):
            entry.turns.call(None if detail is None else along_in_json(detail).group_id, at_ms)


class ClaimRelease:
    """Gives the members of claims back to their queues.

    Args:
        state: The store's.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def begin(self, chosen: Iterable[OpenClaimState], now_ms: int) -> c.Result:
        """Take claims out of their stream, and begin to dissolve them."""
        state = self._state
        room, left = cl.FOLD_STEP, 0
        for held in chosen:
            held.dissolving, held.bytes_taken = True, None
            state.recorded.pop(held, None)
            del held.stream.claims[held.claim.number]
            state.catalog.dissolving.append(held)
            state.touched_claims.add(held)
            room -= self._step(held, room, now_ms)
            left += held.claim.remaining
        state.catalog.dissolving.sort(key=attrgetter("partition"))
        state.find_next_lapse()
        return cl.Dissolving(left) if left else c.DONE

    def go_on(self, command: cl.LapseClaims, now_ms: int) -> int:
        """Dissolve up to so many members, and return how many it was."""
        left = command.limit
        for held in tuple(self._state.catalog.dissolving):
            left -= self._step(held, left, now_ms)
        if command.fold:
            for entry in self._state.catalog.entries():
                if len(entry.lapsed) > cl.MAX_LAPSED:
                    left -= self._fold_excess(entry, left, now_ms)
        return command.limit - left

    def _fold_excess(self, entry: Entry, limit: int, now_ms: int) -> int:
        lapsed = [held for held in entry.lapsed if not held.dissolving]
        by_claim = {rules.name_of(held.claim): held for held in lapsed}
        left = limit
        for claim in rules.to_dissolve([held.claim for held in lapsed]):
            if left:
                left -= self._fold(by_claim[rules.name_of(claim)], left, now_ms)
        return limit - left

    def _step(self, held: OpenClaimState, limit: int, now_ms: int) -> int:
        """Have up to *limit* members leave a claim that was given back; return how many."""
        move = self._fold if held.lapsed else self._return
        moved = move(held, limit, now_ms) if limit else 0
        if not held.claim.remaining:
            self._state.forget_claim(held)
        return moved

    def _leave(self, held: OpenClaimState, count: int) -> None:
        held.claim = rules.after_loss(held.claim, count)
        self._state.recorded.pop(held, None)
        self._state.touched_claims.add(held)

    def _lanes(self, held: OpenClaimState, limit: int) -> Iterable[tuple[Lane, list[Row]]]:
        """Go over the first members by lane, with the lane of the queue they go to."""
        for lane, rows in first_members(self._state, held, limit):
            yield self._state.open_lane(held.entry, number_of(lane)), rows

    # --- claims that have lapsed -------------------------------------------------------------

    def _fold(self, held: OpenClaimState, limit: int, now_ms: int) -> int:
        """Move members of a lapsed claim to their queue, where they are as they were."""
        state, entry = self._state, held.entry
        until_ms = held.claim.until_ms
        moved = 0
        for own, rows in self._lanes(held, limit):
            keys = state.keys_of(map(Cell.row_key, rows))
            state.cursor.execute(state.sql["unclaim_many"], (entry.partition, until_ms, keys))
            own.live_from_ms = min(own.live_from_ms, until_ms)
            if until_ms > now_ms:  # the clock was set back: they are invisible once more
                own.leased_since(min(map(Cell.since_ms, rows)))
            if entry.timeline is not None:
                entry.timeline.add(until_ms, Phase.LEASED, len(rows))
            self._record(held, rows, {Cell.visible_at_ms: until_ms})
            moved += len(rows)
            _call_groups(entry, rows, NOW)
        if moved:
            self._leave(held, moved)
        return moved

    # --- claims that hide their members ------------------------------------------------------

    def _return(self, held: OpenClaimState, limit: int, now_ms: int) -> int:
        """Make members visible; those never received before are alike, and go at once."""
        state, entry = self._state, held.entry
        moved = 0
        for own, rows in self._lanes(held, limit):
            alike: dict[tuple[int, int], list[Row]] = {}
            others = []
            counts, details = map(Cell.dequeue_count, rows), map(Cell.detail, rows)
            claimed = zip(map(Cell.fence, rows), map(Cell.since_ms, rows), strict=True)
            for row, count, detail, fence_and_time in zip(
                rows, counts, details, claimed, strict=True
            ):
                if count == 1 and detail is None:
                    alike.setdefault(fence_and_time, []).append(row)
                else:
                    others.append(row)
            for same in alike.values():
                self._return_many(held, same, now_ms)
            if others:
                self._return_each(held, others, now_ms)
            own.live_from_ms = min(own.live_from_ms, now_ms)
            own.oldest_from_ms[Phase.DEFERRED] = min(own.oldest_from_ms[Phase.DEFERRED], now_ms)
            if entry.timeline is not None:
                entry.timeline.add(now_ms, Phase.DEFERRED, len(rows))
            first_ms = min(map(Cell.expires_at_ms, rows))
            if first_ms < state.retired_until_ms:
                state.set_retired_until(first_ms)
            moved += len(rows)
            _call_groups(entry, rows, NOW)
        if moved:
            self._leave(held, moved)
        return moved

    def _return_many(self, held: OpenClaimState, rows: Sequence[Row], now_ms: int) -> None:
        """Return members of which the detail will be the same."""
        state, entry = self._state, held.entry
        one = rules.after_return(message_of(rows[0]), now_ms)
        keys = state.keys_of(map(Cell.row_key, rows))
        bounds = (entry.partition, now_ms, detail_to_json(one.detail), keys)
        state.cursor.execute(state.sql["return_many"], bounds)
        phase, times = int(one.phase), {Cell.visible_at_ms: now_ms, Cell.since_ms: now_ms}
        self._record(held, rows, {**times, Cell.fence: one.fence, Cell.phase: phase})

    def _record(
        self,
        held: OpenClaimState,
        rows: Sequence[Row],
        changed: _Changed,
    ) -> None:
        """Record that members have left their claim."""
        if held.entry.logged:
            columns, holder = _told_of(rows, changed), held.claim.holder
            self._state.log.add_columns(
                EventType.UNCLAIMED, held.entry, columns, held.under(), holder
            )

    def _return_each(self, held: OpenClaimState, rows: Sequence[Row], now_ms: int) -> None:
        state, entry = self._state, held.entry
        bounds = []
        for row in rows:
            after = rules.after_return(message_of(row), now_ms)
            bounds.append(
                (
                    after.visible_at_ms,
                    after.fence,
                    Cell.row_key(row),
                    after.phase,
                    after.since_ms,
                    after.renewals,
                    detail_to_json(after.detail),
                    lane_of(entry.partition, lane_number(after.priority, after.detail.group_id)),
                    after.expires_at_ms,
                    after.dequeue_count,
                    after.visible_since_ms,
                    after.holder,
                    after.session,
                )
            )
            state.log.add(EventType.UNCLAIMED, entry, after, None, held.under())
        state.cursor.executemany(state.sql["rewrite"], bounds)
