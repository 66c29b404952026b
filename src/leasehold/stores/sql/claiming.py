"""Taking messages into a claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from leasehold.domain import claim_rules as rules
from leasehold.domain import claims as cl
from leasehold.domain.events import EventType, core_of
from leasehold.domain.types import Phase
from leasehold.domain.visibility import after_lapse
from leasehold.stores.plain_json import detail_to_json
from leasehold.stores.sql.annexes import Held, StreamBox
from leasehold.stores.sql.catalog import PARTITION_MASK, Entry, lanes_of, priority_of
from leasehold.stores.sql.recorder import ID_BYTES, Columns, columns_of
from leasehold.stores.sql.rows import Row, message_of, uncount
from leasehold.stores.sql.searching import WITH_SIZES, WITHOUT_BODIES, Search
from leasehold.stores.sql.state import State

REMEMBERED: Final = 200_000
"""Most members of claims, all together, whose columns for the log are kept in memory until they are
settled, some 40 bytes each: to read them again would take as long as to claim them."""
FULL_STEP: Final = 500
"""Messages of one step while the disk is full: what it writes, and what is written until they are
settled and reaped, must fit in the reserve."""
_SIZE: Final = 17
"""Where a row of ``next_visible_with_sizes`` has the length of the body."""


class Claiming:
    """Opens claims, step by step."""

    def __init__(self, state: State, search: Search) -> None:
        self._state = state
        self._search = search

    def step(
        self, stream: StreamBox, held: Held | None, command: cl.OpenClaim, now_ms: int
    ) -> Held | None:
        """Take the next messages into a claim; None if there is nothing, and no claim."""
        state, entry = self._state, stream.entry
        claim = rules.begin(command, now_ms) if held is None else held.claim
        had_bytes = self._bytes_of(held) if claim.max_bytes is not None else 0
        step = rules.Step(claim, had_bytes, FULL_STEP if state.is_full else None)
        rows = self._rows(entry, claim, step, now_ms)
        if held is None:
            if not rows:
                return None
            held = self._begin(stream, claim)
        event = rules.extension_event(claim)
        # While the disk is full a claim is as small as a step, so that it can soon be settled.
        ends = step.is_full(len(rows)) and not state.is_full, step.reaches_bytes
        held.claim = rules.after_step(claim, len(rows), *ends, now_ms, command.lease_s)
        if claim.size:
            state.log.add_claim(event, entry, held.claim)
        self._take(held, rows, now_ms)
        held.bytes_taken = step.taken_bytes if held.is_opening else None
        state.keep_claim(held)
        return held

    def _rows(self, entry: Entry, claim: cl.Claim, step: rules.Step, now_ms: int) -> Sequence[Row]:
        sized = claim.max_bytes is not None
        query = WITH_SIZES if sized else WITHOUT_BODIES

        def takes(row: Row) -> bool:
            return step.takes(row[5], cast("Any", row)[_SIZE] if sized else 0)

        wanted = step.begin, takes
        return self._search.next_for_claim(entry, now_ms, step.room, query, wanted)

    def _bytes_of(self, held: Held | None) -> int:
        """Return the bytes that a claim has taken; counted again after a restart."""
        if held is None:
            return 0
        if held.bytes_taken is not None:
            return held.bytes_taken
        lanes = lanes_of(held.partition, held.lanes_used)
        return sum(self._state.fetch("bytes_of_lane", (lane,))[0][0] for lane in lanes)

    def _begin(self, stream: StreamBox, claim: cl.Claim) -> Held:
        partition = self._state.new_partition()
        held = Held(stream, partition, claim)
        held.recorded = []
        stream.claims[claim.number] = held
        stream.entry.claims.append(held)
        self._state.catalog.claims[partition] = held
        return held

    def _remembered(self) -> int:
        """Return how many members are kept in memory by now."""
        claims = self._state.catalog.claims.values()
        return sum(len(each.ids) for held in claims for each in held.recorded or ()) // ID_BYTES

    def _take(self, held: Held, rows: Sequence[Row], now_ms: int) -> None:
        """Move messages into the claim: those never received before at once."""
        fresh = [row for row in rows if not row[5]]
        if fresh:
            self._take_fresh(held, fresh, now_ms)
        if len(fresh) < len(rows):
            self._take_again(held, [row for row in rows if row[5]], now_ms)
        for lane in {row[14] for row in rows}:
            held.lanes_used |= 1 << priority_of(lane)

    def _take_fresh(self, held: Held, fresh: Sequence[Row], now_ms: int) -> None:
        """Move messages into the claim that were never received before."""
        state, entry = self._state, held.entry
        keys = state.keys_of([row[0] for row in fresh])
        bounds = (held.partition, now_ms, held.claim.holder, keys)
        state.cursor.execute(state.sql["claim_many"], bounds)
        timeline = entry.timeline
        if timeline is not None:
            for row in fresh:
                timeline.add(row[4], row[8], -1)
        if entry.logged:
            _, ids, inserted, expires, visible, _, fences, *rest = zip(*fresh, strict=True)
            fence = fences[0] + 1 if fences.count(fences[0]) == len(fences) else None
            risen = fence if fence is not None else [each + 1 for each in fences]
            until_ms = held.claim.until_ms
            leased = (now_ms, visible, 0)
            core = (inserted, expires, until_ms, 1, risen, int(Phase.LEASED), *leased)
            self._record(held, columns_of(ids, core, rest[7], rest[6]))
        else:  # it may be before the claim is settled
            held.recorded = None

    def _record(self, held: Held, columns: Columns) -> None:
        """Record new members, and remember what was said of them."""
        log, claim = self._state.log, held.claim
        log.add_columns(EventType.CLAIMED, held.entry, columns, held.under(), claim.holder)
        if held.recorded is not None:
            held.recorded.append(columns)
            if self._remembered() > REMEMBERED:
                held.recorded = None

    def _take_again(self, held: Held, rows: Sequence[Row], now_ms: int) -> None:
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
            detail = row[13]
            if member.detail is not before.detail:
                detail = detail_to_json(member.detail)
            # When it was visible before is its place in the claim.
            place_ms = member.visible_since_ms
            bounds.append((row[0], held.partition, place_ms, detail, now_ms, claim.holder))
            cores.append((row[1], *core_of(member)[:-1], row[14], row[13]))
            source = state.catalog.claims.get(row[14] & PARTITION_MASK)
            if source is not None:
                uncount(state, entry, 0, 0, source)
                entry.message_count += 1
            elif entry.timeline is not None:
                entry.timeline.add(row[4], row[8], -1)
        state.cursor.executemany(state.sql["claim_again"], bounds)
        if entry.logged:
            ids, *core, lanes, details = zip(*cores, strict=True)
            self._record(held, columns_of(ids, core, lanes, details))
        else:
            held.recorded = None
