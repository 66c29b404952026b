"""Making the rows of what is staged, as lean as can be: a job may stage a hundred thousand."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.domain import staging as st
from leasehold.domain import staging_rules as rules
from leasehold.domain.ids import make_id_blob
from leasehold.domain.types import NO_DETAIL, Phase
from leasehold.domain.visibility import expiry_of
from leasehold.stores.plain_json import detail_to_json
from leasehold.stores.sql.annexes import Slot
from leasehold.stores.sql.catalog import Entry, lane_of
from leasehold.stores.sql.rows import APART, HERE, INLINE_BYTES, OUTSIDE
from leasehold.stores.sql.state import State

_MS = 1000


class Share:
    """What of a chunk is for one queue."""

    __slots__ = ("cores", "entry", "keyed", "lanes_used", "slot")

    def __init__(self, entry: Entry, slot: Slot) -> None:
        self.entry = entry
        self.slot = slot
        self.cores: list[tuple[object, ...]] = []
        """For the event log; see ``Recorder.add_many``."""
        self.lanes_used = 0
        self.keyed = 0

    def count_in(self) -> None:
        """Note that the rows are there."""
        self.slot.rows += len(self.cores)
        self.slot.keyed += self.keyed
        self.slot.lanes_used |= self.lanes_used
        self.entry.staged += len(self.cores)


class StagedRows:
    """What a chunk puts into the tables.

    Args:
        state: The store's.
        command: The chunk, which is the next one of its part.
        slots: What the part has staged so far, by queue.
        now_ms: The time.

    Raises:
        QueueNotFound: A message is for a queue that is not there.
        VisibilityPastExpiry: A message would expire before it can be received.
    """

    def __init__(
        self, state: State, command: st.Stage, slots: Mapping[str, Slot], now_ms: int
    ) -> None:
        self.rows: list[tuple[object, ...]] = []
        """For ``message``."""
        self.bodies: list[tuple[int, bytes]] = []
        """For ``message_body``."""
        self.shares: dict[str, Share] = {}
        """By queue."""
        self._state = state
        self._command = command
        self._slots = slots
        self._fill(now_ms)

    def _fill(self, now_ms: int) -> None:
        command, rows, bodies = self._command, self.rows, self.bodies
        row_key = self._state.take_row_keys(len(command.puts))
        checked: dict[tuple[int, int | None], tuple[int, int, Phase]] = {}
        share, of = None, None
        for put in command.puts:
            _, queue, body, delay_s, time_to_live_s, entropy, detail, priority = put
            if share is None or queue != of:
                share, of = self._share(queue), queue
            times = checked.get((delay_s, time_to_live_s))
            if times is None:
                rules.check_put(put, now_ms)
                phase = Phase.DELAYED if delay_s else Phase.WAITING
                times = now_ms + delay_s * _MS, expiry_of(now_ms, time_to_live_s), phase
                checked[delay_s, time_to_live_s] = times
            visible_at_ms, expires_at_ms, phase = times
            blob = make_id_blob(row_key, entropy)
            lane = lane_of(share.slot.partition, priority)
            share.lanes_used |= 1 << priority
            kept, place, more = body, HERE, None
            if detail is not NO_DETAIL:
                more = detail_to_json(detail)
                share.keyed += detail.dedup_key is not None
            if detail.body_ref is not None:
                kept, place = detail.body_ref.key.encode(), OUTSIDE
            elif len(body) > INLINE_BYTES:
                kept, place = b"", APART
                bodies.append((row_key, body))
            rows.append(
                (
                    row_key,
                    lane,
                    blob,
                    now_ms,
                    expires_at_ms,
                    visible_at_ms,
                    kept,
                    phase,
                    now_ms,
                    more,
                    place,
                )
            )
            share.cores.append(
                (blob, now_ms, expires_at_ms, visible_at_ms, 0, 0, phase, now_ms, 0, 0, lane, more)
            )
            row_key += 1

    def _share(self, queue: str) -> Share:
        share = self.shares.get(queue)
        if share is None:
            command, state = self._command, self._state
            entry = state.catalog.get(command.account, queue)
            slot = self._slots.get(queue)
            if slot is None:
                named = command.account, command.name, command.part, queue
                slot = Slot(state.new_partition(), *named)
            share = self.shares[queue] = Share(entry, slot)
        return share
