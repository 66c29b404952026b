"""Dissolving claims in a database, in steps: what was given back, and what has lapsed too long ago.

A claim that was given back is out of its stream at once, and marked. Until their step comes its
members stay as they were; each step is a transaction of its own, and a restart goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from leasehold.domain import claim_rules as rules
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.events import EventType
from leasehold.domain.types import Phase
from leasehold.stores.plain_json import detail_to_json
from leasehold.stores.sql.annexes import Held
from leasehold.stores.sql.catalog import Entry, Lane, lane_of, lanes_of, priority_of
from leasehold.stores.sql.rows import Row, message_of
from leasehold.stores.sql.state import State

_BEGIN_MS: Final = -1


class Dissolving:
    """Gives the members of claims back to their queues.

    Args:
        state: The store's.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def begin(self, chosen: Iterable[Held], now_ms: int) -> c.Result:
        """Take claims out of their stream, and begin to dissolve them."""
        state = self._state
        room, left = cl.FOLD_STEP, 0
        for held in chosen:
            held.dissolving, held.recorded, held.bytes_taken = True, None, None
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

    def _step(self, held: Held, limit: int, now_ms: int) -> int:
        """Have up to *limit* members leave a claim that was given back; return how many."""
        move = self._fold if held.lapsed else self._return
        moved = move(held, limit, now_ms) if limit else 0
        if not held.claim.remaining:
            self._state.forget_claim(held)
        return moved

    def _leave(self, held: Held, count: int) -> None:
        held.claim = rules.after_loss(held.claim, count)
        held.recorded = None
        self._state.touched_claims.add(held)

    def _lanes(self, held: Held, limit: int) -> Iterable[tuple[Lane, list[Row]]]:
        """Go over the first members, lane by lane, with the lane of the queue they go to."""
        state, left = self._state, limit
        for number in lanes_of(held.partition, held.lanes_used):
            if not left:
                return
            rows = state.fetch("members_without_bodies", (number, _BEGIN_MS, left, 0))
            if rows:
                left -= len(rows)
                yield state.open_lane(held.entry, priority_of(number)), rows

    # --- claims that have lapsed -------------------------------------------------------------

    def _fold(self, held: Held, limit: int, now_ms: int) -> int:
        """Move members of a lapsed claim to their queue, where they are as they were."""
        state, entry = self._state, held.entry
        until_ms = held.claim.until_ms
        moved = 0
        for own, rows in self._lanes(held, limit):
            keys = state.keys_of([row[0] for row in rows])
            state.cursor.execute(state.sql["unclaim_many"], (entry.partition, until_ms, keys))
            own.live_from_ms = min(own.live_from_ms, until_ms)
            if until_ms > now_ms:  # the clock was set back: they are invisible once more
                own.leased_since(min(row[9] for row in rows))
            if entry.timeline is not None:
                entry.timeline.add(until_ms, Phase.LEASED, len(rows))
            cores = [(*row[1:4], until_ms, *row[5:7], *row[8:12], row[14], row[13]) for row in rows]
            log, holder = state.log, held.claim.holder
            log.add_many(EventType.UNCLAIMED, entry, cores, held.under(), holder)
            moved += len(rows)
        if moved:
            self._leave(held, moved)
        return moved

    # --- claims that hide their members ------------------------------------------------------

    def _return(self, held: Held, limit: int, now_ms: int) -> int:
        """Make members visible; those never received before are alike, and go at once."""
        state, entry = self._state, held.entry
        moved = 0
        for own, rows in self._lanes(held, limit):
            alike: dict[tuple[int, int], list[Row]] = {}
            others = []
            for row in rows:
                if row[5] == 1 and row[13] is None:
                    alike.setdefault((row[6], row[9]), []).append(row)
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
            first_ms = min(row[3] for row in rows)
            if first_ms < state.retired_until_ms:
                state.set_retired_until(first_ms)
            moved += len(rows)
        if moved:
            self._leave(held, moved)
        return moved

    def _return_many(self, held: Held, rows: Sequence[Row], now_ms: int) -> None:
        """Return members of which the detail will be the same."""
        state, entry = self._state, held.entry
        one = rules.after_return(message_of(rows[0]), now_ms)
        keys = state.keys_of([row[0] for row in rows])
        bounds = (entry.partition, now_ms, detail_to_json(one.detail), keys)
        state.cursor.execute(state.sql["return_many"], bounds)
        alike = (int(one.phase), now_ms)
        cores = [
            (*row[1:4], now_ms, row[5], row[6] + 1, *alike, *row[10:12], row[14], None)
            for row in rows
        ]
        log, holder = state.log, held.claim.holder
        log.add_many(EventType.UNCLAIMED, entry, cores, held.under(), holder)

    def _return_each(self, held: Held, rows: Sequence[Row], now_ms: int) -> None:
        state, entry = self._state, held.entry
        bounds = []
        for row in rows:
            after = rules.after_return(message_of(row), now_ms)
            bounds.append(
                (
                    after.visible_at_ms,
                    after.fence,
                    row[0],
                    after.phase,
                    after.since_ms,
                    after.renewals,
                    detail_to_json(after.detail),
                    lane_of(entry.partition, after.priority),
                    after.expires_at_ms,
                    after.dequeue_count,
                    after.visible_since_ms,
                    after.holder,
                    after.session,
                )
            )
            state.log.add(EventType.UNCLAIMED, entry, after, None, held.under())
        state.cursor.executemany(state.sql["rewrite"], bounds)
