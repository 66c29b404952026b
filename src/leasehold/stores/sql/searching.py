"""Finding what can be received in a database, in the order in which it is received.

What may not be delivered again is moved to the poison queue on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Final, TypeAlias

from leasehold.domain import claims as cl
from leasehold.domain.events import EventType
from leasehold.domain.failures import POISONED_AT_ONCE, exhausted_on_receive
from leasehold.domain.throttle import allowance, spend
from leasehold.domain.visibility import after_lapse, order_of
from leasehold.stores.sql.catalog import PARTITION_MASK, Entry, Lane, lanes_of, priority_of
from leasehold.stores.sql.failures import poison
from leasehold.stores.sql.rows import Kept, Row, message_of
from leasehold.stores.sql.state import State

WITHOUT_BODIES: Final = "next_visible_without_bodies"
WITH_SIZES: Final = "next_visible_with_sizes"
"""Queries that can find messages as well."""
Step: TypeAlias = tuple[Callable[[], None], Callable[[Row], bool]]
"""Begins to take; is told of each message that is taken, and tells whether one more is wanted."""


def _first_of(rows: list[Row], step: Step) -> list[Row]:
    """Return rows up to the first one after which none is wanted."""
    begin, takes = step
    begin()
    for place, row in enumerate(rows):
        if not takes(row):
            return rows[: place + 1]
    return rows


def _order(
    row: Row, ageing_s: int | None, place_ms: int | None = None
) -> tuple[int, int, int, int]:
    """Return the sort key of a message to receive.

    Of those that are due at the same moment, what was visible first comes first.
    """
    priority, visible_at_ms = priority_of(row[14]), row[4]
    urgency, due_ms, row_key = order_of(priority, visible_at_ms, row[0], ageing_s)
    return urgency, due_ms, visible_at_ms if place_ms is None else place_ms, row_key


class Search:
    """Finds messages.

    Args:
        state: The store's.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def next_visible(
        self, entry: Entry, now_ms: int, limit: int, query: str = "next_visible"
    ) -> list[Row]:
        """Return what is visible, in the order in which it is received."""
        if entry.lapsed:
            return self._with_lapsed(entry, now_ms, limit, query)
        if len(entry.lanes) == 1:
            return self._visible_in(entry.lanes[0], now_ms, limit, query)
        ageing_s = entry.queue.settings.priority_ageing_s
        rows: list[Row] = []
        for lane in entry.lanes:
            if ageing_s is None and len(rows) == limit:
                break
            missing = limit if ageing_s is not None else limit - len(rows)
            rows += self._visible_in(lane, now_ms, missing, query)
        rows.sort(key=lambda row: _order(row, ageing_s))
        return rows[:limit]

    def _with_lapsed(self, entry: Entry, now_ms: int, limit: int, query: str) -> list[Row]:
        """Return what is visible in a queue and in its claims that have lapsed."""
        ageing_s = entry.queue.settings.priority_ageing_s
        found: list[tuple[tuple[int, int, int, int], Row]] = []
        for lane in entry.lanes:
            rows = self._visible_in(lane, now_ms, limit, query)
            found += [(_order(row, ageing_s), row) for row in rows]
        for held in entry.lapsed:
            until_ms = held.claim.until_ms
            if until_ms <= now_ms and held.claim.remaining:
                for number in lanes_of(held.partition, held.lanes_used):
                    for row in self._state.fetch(query, (number, now_ms, limit, 0)):
                        as_claimed = (*row[:4], until_ms, *row[5:])
                        # They all became visible at once: their place in the claim decides.
                        found.append((_order(as_claimed, ageing_s, row[4]), as_claimed))
        found.sort(key=itemgetter(0))
        return [row for _, row in found[:limit]]

    def _visible_in(self, lane: Lane, now_ms: int, limit: int, query: str) -> list[Row]:
        if now_ms < lane.scanned_at_ms:
            lane.forget_scan()
        bounds = (lane.partition, now_ms, limit, lane.live_from_ms)
        rows = self._state.fetch(query, bounds)
        found_all = len(rows) < limit
        if found_all and lane.live_from_ms and not lane.is_sure:
            lane.forget_scan()
            rows = self._state.fetch(query, (*bounds[:3], 0))
        lane.scanned(now_ms, rows[0][4] if rows else None, found_all=found_all)
        return rows

    def next_for_claim(
        self, entry: Entry, now_ms: int, wanted: int, query: str, step: Step
    ) -> list[Row]:
        """Return what a claim may take next; no more than *step* wants."""
        if not entry.plain:
            return self.allowed(entry, now_ms, wanted, query, step)
        rows = self._next(entry, now_ms, wanted, query, step)
        if query == WITHOUT_BODIES and not any(row[5] for row in rows):
            return rows  # nothing that *step* counts
        return _first_of(rows, step)

    def _next(
        self, entry: Entry, now_ms: int, wanted: int, query: str, step: Step | None
    ) -> list[Row]:
        """Return what is visible; no more than can be wanted if all was received before."""
        again = cl.AGAIN_STEP
        if step is not None and wanted > again:
            first = self.next_visible(entry, now_ms, 1, query)
            if first and first[0][5]:
                rows = self.next_visible(entry, now_ms, again, query)
                if len(rows) == again and all(row[5] for row in rows):
                    return rows
        return self.next_visible(entry, now_ms, wanted, query)

    def allowed(
        self,
        entry: Entry,
        now_ms: int,
        wanted: int,
        query: str = "next_visible",
        step: Step | None = None,
    ) -> list[Row]:
        """Return what may be received from a queue that is limited; poison goes its way.

        Args:
            entry: The queue.
            now_ms: The time.
            wanted: Most messages.
            query: Finds them.
            step: Begins, and is told of each message in turn; tells whether one more is wanted.
        """
        settings = entry.queue.settings
        if settings.is_paused(now_ms):
            return []
        rate_per_s = self._state.catalog.rate_of(entry)
        if rate_per_s is not None:
            allowed, bucket = allowance(entry.bucket, rate_per_s, now_ms)
            self._state.set_bucket(entry, bucket)
            wanted = min(wanted, allowed)
        rows = self._next(entry, now_ms, wanted, query, step) if wanted else []
        if settings.failure_policy is not None:
            rows = self._without_poison(entry, rows, now_ms, wanted, query, step)
        elif step is not None:
            rows = _first_of(rows, step)
        if rate_per_s is not None and entry.bucket is not None:
            self._state.set_bucket(entry, spend(entry.bucket, len(rows)))
        return rows

    def _without_poison(  # noqa: PLR0913, PLR0917 - positional: what the search was for
        self,
        entry: Entry,
        rows: list[Row],
        now_ms: int,
        wanted: int,
        query: str,
        step: Step | None,
    ) -> list[Row]:
        """Move what may not be delivered again, and see what comes in its place."""
        policy = entry.queue.settings.failure_policy
        assert policy is not None
        left = POISONED_AT_ONCE
        while True:
            good = []
            if step is not None:
                step[0]()
            for row in rows:
                # What was never received before has used up nothing.
                message = message_of(row) if row[5] else None
                lapsed = message and after_lapse(message, now_ms)
                reason = lapsed and exhausted_on_receive(lapsed, policy)
                if message is None or lapsed is None or reason is None:
                    good.append(row)
                    if step is not None and not step[1](row):
                        return good
                    continue
                if not left:
                    return good
                if lapsed is not message:
                    self._state.log.add(EventType.LAPSED, entry, lapsed)
                held = self._state.catalog.claims.get(row[14] & PARTITION_MASK)
                poison(self._state, Kept(entry, row[0], message, held), lapsed, reason, now_ms)
                left -= 1
            if len(good) == len(rows):
                return rows
            rows = self._next(entry, now_ms, wanted, query, step)
