"""Taking messages into a claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasehold.domain import claim_rules as rules
from leasehold.domain import claims as cl
from leasehold.domain.events import EventType
from leasehold.domain.types import Phase
from leasehold.domain.visibility import after_lapse
from leasehold.stores.plain_json import detail_to_json
from leasehold.stores.sqlite import setwise
from leasehold.stores.sqlite.annexes import Held, StreamBox
from leasehold.stores.sqlite.catalog import PARTITION_MASK, Entry, lane_of, priority_of
from leasehold.stores.sqlite.messages import MessageVerbs
from leasehold.stores.sqlite.recorder import columns_of
from leasehold.stores.sqlite.rows import Row, message_of, uncount
from leasehold.stores.sqlite.state import State

REMEMBERED: Final = 200_000
"""Most members of claims, all together, whose columns for the log are kept in memory until they are
settled, some 40 bytes each: to read them again would take as long as to claim them."""


class Claiming:
    """Opens claims, step by step."""

    def __init__(self, state: State, messages: MessageVerbs) -> None:
        self._state = state
        self._messages = messages
        self._bytes: dict[Held, int] = {}
        """Bytes of bodies in claims that are opening."""

    def step(
        self, stream: StreamBox, held: Held | None, command: cl.OpenClaim, now_ms: int
    ) -> Held | None:
        """Take the next messages into a claim; None if there is nothing, and no claim."""
        state, entry = self._state, stream.entry
        claim = rules.begin(command, now_ms) if held is None else held.claim
        had_bytes = self._bytes_of(held) if claim.max_bytes is not None else 0
        room = rules.room_of(claim)
        rows = self._rows(entry, claim, room, now_ms)
        full = rules.is_full_step(len(rows))
        reached = False
        if claim.max_bytes is not None:
            sizes = [rules.size_of(message_of(row)) for row in rows]
            count = rules.fits(sizes, claim, had_bytes)
            had_bytes += sum(sizes[:count])
            reached = count < len(rows) or rules.reaches_bytes(claim, had_bytes)
            self._give_up(entry, len(rows) - count)
            rows = rows[:count]
        if held is None:
            if not rows:
                return None
            held = self._begin(stream, claim)
        event = rules.extension_event(claim)
        held.claim = rules.after_step(claim, len(rows), full, reached, now_ms, command.lease_s)
        if claim.size:
            state.log.add_claim(event, entry, held.claim)
        self._take(held, rows, now_ms)
        if held.is_opening:
            self._bytes[held] = had_bytes
        else:
            self._bytes.pop(held, None)
        state.keep_claim(held)
        return held

    def _rows(self, entry: Entry, claim: cl.Claim, room: int, now_ms: int) -> Sequence[Row]:
        query = "next_visible" if claim.max_bytes is not None else "next_visible_without_bodies"
        if entry.plain:
            return self._messages.next_visible(entry, now_ms, room, query)
        return self._messages.allowed(entry, now_ms, room, query)

    def _give_up(self, entry: Entry, count: int) -> None:
        """Give tokens back to the bucket of a queue with a rate limit."""
        bucket = entry.bucket
        if bucket is not None and count:
            entry.bucket = bucket._replace(tokens=bucket.tokens + count)

    def _bytes_of(self, held: Held | None) -> int:
        """Return the bytes that a claim has taken; read again after a restart."""
        if held is None:
            return 0
        known = self._bytes.get(held)
        if known is not None:
            return known
        total = 0
        for priority in range(1, 17):
            lane = lane_of(held.partition, priority)
            rows = self._state.fetch("members", (lane, -1, -1, -1, 0))
            total += sum(rules.size_of(message_of(row)) for row in rows)
        return total

    def _begin(self, stream: StreamBox, claim: cl.Claim) -> Held:
        partition = self._state.new_partition()
        held = Held(stream, partition, claim)
        if claim.limit + self._remembered() <= REMEMBERED:
            held.recorded = []
        stream.claims[claim.number] = held
        stream.entry.claims.append(held)
        self._state.catalog.claims[partition] = held
        return held

    def _remembered(self) -> int:
        """Return how many members may be kept in memory by now, those to come included."""
        claims = self._state.catalog.claims.values()
        return sum(
            held.claim.limit if held.is_opening else held.claim.size
            for held in claims
            if held.recorded is not None
        )

    def _take(self, held: Held, rows: Sequence[Row], now_ms: int) -> None:
        """Move messages into the claim: those never received before at once."""
        state, entry, claim = self._state, held.entry, held.claim
        fresh = [row for row in rows if not row[5] and row[13] is None and row[15] is None]
        if len(fresh) < len(rows):
            fresh = []
            for row in rows:
                if row[5]:
                    self._take_again(held, row, now_ms)
                else:
                    fresh.append(row)
        if not fresh:
            return
        keys = setwise.keys_of([row[0] for row in fresh])
        bounds = (held.partition, now_ms, claim.holder, keys)
        state.cursor.execute(state.sql["claim_many"], bounds)
        for lane in {row[14] for row in fresh}:
            held.lanes_used |= 1 << priority_of(lane)
        timeline = entry.timeline
        if timeline is not None:
            for row in fresh:
                timeline.add(row[4], row[8], -1)
        if entry.logged:
            self._record(held, fresh, now_ms)
        else:  # it may be before the claim is settled
            held.recorded = None

    def _record(self, held: Held, fresh: Sequence[Row], now_ms: int) -> None:
        """Record members that were never received before."""
        claim = held.claim
        _, ids, inserted, expires, visible, _, fences, *rest = zip(*fresh, strict=True)
        lanes = rest[7]
        fence = fences[0] + 1 if fences.count(fences[0]) == len(fences) else None
        risen = fence if fence is not None else [each + 1 for each in fences]
        core = (inserted, expires, claim.until_ms, 1, risen, int(Phase.LEASED), now_ms, visible, 0)
        columns = columns_of(ids, core, lanes)
        log = self._state.log
        log.add_columns(EventType.CLAIMED, held.entry, columns, held.under(), claim.holder)
        if held.recorded is not None:
            held.recorded.append(columns)

    def _take_again(self, held: Held, row: Row, now_ms: int) -> None:
        """Move a message into the claim that was received before: its last lease has lapsed."""
        state, entry = self._state, held.entry
        before = message_of(row)
        lapsed = after_lapse(before, now_ms)
        if lapsed is not before:
            state.log.add(EventType.LAPSED, entry, lapsed)
        member = rules.after_claim(lapsed, held.claim, now_ms)
        source = state.catalog.claims.get(row[14] & PARTITION_MASK)
        bounds = (
            member.visible_since_ms,  # its place in the claim
            member.fence,
            row[0],
            member.phase,
            member.since_ms,
            member.renewals,
            detail_to_json(member.detail),
            lane_of(held.partition, member.priority),
            member.expires_at_ms,
            member.dequeue_count,
            member.visible_since_ms,
            member.holder,
            member.session,
        )
        state.cursor.execute(state.sql["rewrite"], bounds)
        held.lanes_used |= 1 << member.priority
        held.recorded = None
        if source is not None:
            uncount(state, entry, 0, 0, source)
            entry.message_count += 1
        elif entry.timeline is not None:
            entry.timeline.add(row[4], row[8], -1)
        state.log.add(EventType.CLAIMED, entry, member, None, held.under())
