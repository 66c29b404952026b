"""Sweeps in a database, each in slices, so that no sweep holds up a client."""

from __future__ import annotations

import json
import secrets
from typing import Final

from leasehold.domain import commands as c
from leasehold.domain.events import EventType
from leasehold.domain.ids import id_from_blob
from leasehold.stores.sql.catalog import PARTITION_MASK, Entry, priority_of
from leasehold.stores.sql.rows import uncount
from leasehold.stores.sql.state import State

_NOTED_EVERY_MS: Final = 600_000
_PARTITIONS: Final = 1_000
"""Dropped partitions that one step looks at: most are empty and cost a look-up each."""


class MaintenanceVerbs:
    """Each method carries out one command."""

    def __init__(self, state: State) -> None:
        self._state = state

    def retire_expired(self, command: c.RetireExpired, now_ms: int) -> c.Result:
        """Take expired rows out of the way of receives, oldest first.

        The sweep remembers how far it came, so it never walks over retired rows again.
        """
        state = self._state
        reached_ms = min(state.retired_until_ms, now_ms)
        hidden = [each.partition for each in state.catalog.claims.values() if not each.lapsed]
        hidden += state.catalog.slots
        bounds = (reached_ms, now_ms, command.limit, json.dumps(hidden))
        rows = state.fetch("expired", bounds)
        retired = []
        for row in rows:
            _, lane, expires_at_ms, visible_at_ms, phase, blob, inserted_at_ms, count, *rest = row
            entry = state.catalog.of_partition(lane)
            assert entry is not None
            retired.append((row[0], entry.partition))
            held = state.catalog.claims.get(lane & PARTITION_MASK)
            if held is not None:
                visible_at_ms = held.claim.until_ms
            uncount(state, entry, visible_at_ms, phase, held)
            _count_retired(state, entry, 1)
            if entry.logged:
                fence, since_ms, visible_since_ms, renewals, holder, session, detail = rest
                times = (inserted_at_ms, expires_at_ms, visible_at_ms, count, fence, phase)
                core = (*times, since_ms, visible_since_ms, renewals, holder)
                message_id, priority = id_from_blob(blob), priority_of(lane)
                told = core, priority, session, detail
                state.log.add_one(EventType.EXPIRED, entry, message_id, *told)
        state.cursor.executemany(state.sql["retire"], retired)
        for entry in state.catalog.entries():
            # Also where nobody counts for a long time, what has passed must not pile up.
            if entry.timeline is not None and not entry.timeline.advance(now_ms):
                entry.timeline = None
        reached_ms = rows[-1][2] if len(rows) == command.limit else now_ms
        # An idle server need not write every second; after a restart the sweep looks once more
        # at a few minutes.
        if rows or abs(reached_ms - state.retired_until_ms) > _NOTED_EVERY_MS:
            state.set_retired_until(reached_ms)
        return c.Swept(len(rows))

    def remove_retired(self, command: c.RemoveRetired, _now_ms: int) -> c.Result:
        """Remove rows that have been expired for long enough."""
        state = self._state
        rows = state.fetch("remove_retired", (command.expired_before_ms, command.limit))
        for (lane,) in rows:
            entry = state.catalog.of_partition(lane)
            assert entry is not None
            _count_retired(state, entry, -1)
        return c.Swept(len(rows))

    def reap_dropped(self, command: c.ReapDropped, _now_ms: int) -> c.Result:
        """Remove rows of dropped partitions, and forget a partition once it is empty."""
        state = self._state
        removed = 0
        for (partition,) in state.fetch("dropped_partitions", (_PARTITIONS,)):
            if removed == command.limit:
                break
            wanted = command.limit - removed
            state.cursor.execute(state.sql["reap"], (partition, wanted))
            count = state.cursor.connection.changes()
            removed += count
            if count < wanted:
                state.cursor.execute(state.sql["forget_partition"], (partition,))
        return c.Swept(removed)

    def forget_keys(self, command: c.ForgetKeys, now_ms: int) -> c.Result:
        """Forget deduplication keys whose window is over."""
        self._state.cursor.execute(self._state.sql["forget_keys"], (now_ms, command.limit))
        return c.Swept(self._state.cursor.connection.changes())

    def note_time(self, command: c.NoteTime, now_ms: int) -> c.Result:
        """Keep the time for the next start, and mark the database anew."""
        if command.trusted:
            self._state.set_meta("last_seen_ms", now_ms)
        self._state.note_log()
        self._state.renew_mark(secrets.token_hex(16))
        return c.DONE


def _count_retired(state: State, entry: Entry, number: int) -> None:
    """Count rows of a queue that are retired now, or removed."""
    if entry.retired is not None:
        entry.retired += number
        state.touched.add(entry)
