"""Staged sends in a database: rows in partitions that no queue has, until they are published.

What a part of a transaction has staged for one queue is a partition of its own, a *slot*. So it is
published with one statement for each lane, and dropped by leaving the partition to the reaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, islice
from typing import Any, Final, TypeAlias

from leasehold.domain import commands as c
from leasehold.domain import transactions as rules
from leasehold.domain import transactions as st
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import (
    AlreadyPublished,
    LeaseholdError,
    StagedNotFound,
)
from leasehold.domain.events import EventType
from leasehold.domain.model import (
    NEVER_MS,
    NO_DETAIL,
    Phase,
    Queue,
    expiry_of,
    make_id_blob,
    make_id_blobs,
)
from leasehold.stores.sql.catalog import Entry, Slot, lane_number, lane_of, lanes_of, number_of
from leasehold.stores.sql.failures import FailureHandlers
from leasehold.stores.sql.groups import call_lanes
from leasehold.stores.sql.messages import CompleteVerb, MessageHandlers
from leasehold.stores.sql.plain_json import detail_to_json
from leasehold.stores.sql.recorder import ID_BYTES, Columns, Recorder, columns_of
from leasehold.stores.sql.rows import (
    APART,
    HERE,
    INLINE_BYTES,
    OUTSIDE,
    SEGMENT_BODIES,
    SEGMENT_BODY_BYTES,
    claim_keys,
)
from leasehold.stores.sql.settle import Plan, Settling
from leasehold.stores.sql.state import StagedBook, State, TransactionRow, rows_in

_MS: Final = 1000
_RECORDED_AT_ONCE: Final = 5_000
_Run: TypeAlias = Callable[[Sequence[Any], int], Sequence[c.Result]]


class TransactionHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is a collaborator of its own
        self,
        state: State,
        messages: MessageHandlers,
        failures: FailureHandlers,
        completing: CompleteVerb,
        book: StagedBook,
        settling: Settling,
    ) -> None:
        self._state = state
        self._messages = messages
        self._failures = failures
        self._runs: dict[type, _Run] = {
            c.Put: messages.put,
            c.Renew: _one_by_one(messages.renew),
            c.Complete: completing.complete,
            c.Release: _one_by_one(failures.release),
        }
        self._book = book
        self._settling = settling

    # --- staging -----------------------------------------------------------------------------

    def stage(self, command: st.Stage, now_ms: int) -> c.Result:
        """Put messages that no consumer sees yet."""
        account, name, part = command.account, command.name, command.part
        self._state.refuse_moved(account)
        found = self._book.find(account, name)
        if found is not None and found.is_published:
            raise AlreadyPublished
        chunks = self._book.chunks(account, name, part)
        slots = [slot for slot in self._book.slots(account, name) if slot.part == part]
        if rules.check_chunk(chunks, command.chunk):
            return st.Staged(rows_in(slots), chunks, duplicate=True)
        staged = StagedRows(self._state, command, {slot.queue: slot for slot in slots}, now_ms)
        if not staged.alike:
            self._messages.insert(staged.rows, staged.bodies)
        for share in staged.shares.values():
            if share.slot not in slots:
                self._book.add(share.slot)
                slots.append(share.slot)
            share.count_in()
            self._book.keep_slot(share.slot)
            share.record(self._state.log, name)
        created_at_ms, until_ms = (now_ms, 0) if found is None else found[1:3]
        until_ms = rules.until_after_stage(until_ms, now_ms, command.timeout_s)
        self._book.keep(
            account, name, TransactionRow(st.TransactionState.STAGED, created_at_ms, until_ms, 0)
        )
        self._book.keep_part(account, name, part, chunks + 1)
        return st.Staged(rows_in(slots), chunks + 1)

    def begin_binding(self, account: str, name: str, now_ms: int) -> None:
        """Have a transaction that a claim can be bound to, or raise why there cannot be one."""
        found = self._book.find(account, name)
        if found is None:
            found = TransactionRow(st.TransactionState.STAGED, now_ms, 0, 0)
        if found.is_published:
            raise AlreadyPublished
        until_ms = rules.until_after_bind(found.until_ms, now_ms)
        if until_ms != found.until_ms:
            self._book.keep(account, name, found._replace(until_ms=until_ms))

    # --- publishing --------------------------------------------------------------------------

    def publish(self, command: st.Publish, now_ms: int) -> c.Result:
        """Make the staged messages of some parts visible and drop the others."""
        account, name = command.account, command.name
        found = self._book.find(account, name)
        if found is not None and found.is_published:
            return st.Published(found.rows, already=True, duplicates=found.duplicates)
        plans = self._settling.plan(account, (name,))
        staged = None if found is None else [part for part, _ in self._book.parts(account, name)]
        chosen = rules.chosen_parts(name, staged, command.parts)
        self._check_queues(account, name, chosen)
        settled = self._settle(plans, now_ms)
        moved = self._publish(account, name, chosen, now_ms)
        return st.Published(
            moved.rows, by_queue=moved.by_queue, settled=settled, duplicates=moved.duplicates
        )

    def _settle(self, plans: Iterable[Plan], now_ms: int) -> tuple[st.StreamSettled, ...]:
        return tuple(self._settling.carry_out(plan, (), now_ms) for plan in plans)

    def check_publish(self, account: str, name: str) -> None:
        """Raise what publishing a whole transaction would be refused with."""
        if self._book.find(account, name) is None:
            raise StagedNotFound(name)
        self._check_queues(account, name, None)

    def publish_all(self, account: str, names: Iterable[str], now_ms: int) -> rules.Moved:
        """Publish whole transactions, those that were not before; return what that was."""
        moved = rules.NOTHING_MOVED
        for name in names:
            found = self._book.find(account, name)
            if found is None or not found.is_published:
                moved = moved.plus(self._publish(account, name, None, now_ms))
        return moved

    def _check_queues(self, account: str, name: str, chosen: Collection[str] | None) -> None:
        for slot in self._book.slots(account, name):
            if chosen is None or slot.part in chosen:
                self._state.catalog.get(account, slot.queue)

    def _publish(
        self,
        account: str,
        name: str,
        chosen: Collection[str] | None,
        now_ms: int,
        beside: rules.Moved = rules.NOTHING_MOVED,
    ) -> rules.Moved:
        """Publish these parts (None: all), drop the others.

        The name is remembered with what was published, and with what went *beside*.
        """
        found = self._book.find(account, name)
        moved, duplicates = [], 0
        for slot in self._book.slots(account, name):
            if chosen is None or slot.part in chosen:
                if slot.keyed:
                    duplicates += self._drop_duplicates(slot, now_ms)
                self._move(slot, now_ms)
                moved.append((slot.queue, slot.rows))
            else:
                self._drop(slot)
        self._book.forget_parts(account, name)
        created_at_ms = now_ms if found is None else found.created_at_ms
        until_ms = now_ms + st.REMEMBER_S * _MS
        done = rules.Moved(rules.rows_by_queue(moved), duplicates)
        figures = beside.rows + done.rows, beside.duplicates + duplicates
        row = TransactionRow(st.TransactionState.PUBLISHED, created_at_ms, until_ms, *figures)
        self._book.keep(account, name, row)
        return done

    def _drop_duplicates(self, slot: Slot, now_ms: int) -> int:
        """Remember the keys of a slot, and drop the rows whose key was used; return how many."""
        state = self._state
        entry = state.catalog.get(slot.account, slot.queue)
        lanes = lanes_of(slot.partition, slot.lanes_used)
        found = claim_keys(state, entry, lanes, now_ms)
        for start in range(0, len(found), _RECORDED_AT_ONCE):
            keys = found[start : start + _RECORDED_AT_ONCE]
            if entry.logged:
                cores = state.fetch("cores_of_keys", (state.keys_of(keys),))
                state.log.add_many(
                    EventType.DISCARDED, entry, cores, slot.name, None, rules.DUPLICATE
                )
            state.cursor.execute(state.sql["remove_many"], (state.keys_of(keys),))
        slot.rows -= len(found)
        entry.staged -= len(found)
        return len(found)

    def _move(self, slot: Slot, now_ms: int) -> None:
        """Make a slot's rows those of its queue: one statement for each lane."""
        state = self._state
        entry = state.catalog.get(slot.account, slot.queue)
        lanes = lanes_of(slot.partition, slot.lanes_used)
        if entry.logged and not self._record_runs(entry, slot, now_ms):
            self._record(EventType.PUBLISHED, entry, slot, "cores_to_publish", now_ms)
        if entry.turns is not None:
            call_lanes(state, entry.turns, lanes)
        for lane in lanes:
            own = state.open_lane(entry, number_of(lane))
            if entry.timeline is not None:
                for second, phase, number in state.fetch("soon_to_publish", (lane, now_ms)):
                    entry.timeline.add(second * _MS, phase, number)
            state.cursor.execute(state.sql["publish_lane"], (lane, now_ms, entry.partition))
            own.live_from_ms = min(own.live_from_ms, now_ms)
            for phase in (Phase.WAITING, Phase.DELAYED):
                own.oldest_from_ms[phase] = min(own.oldest_from_ms[phase], now_ms)
        if now_ms < state.retired_until_ms:  # the clock was set back
            state.set_retired_until(now_ms)
        entry.message_count += slot.rows
        state.touched.add(entry)
        entry.staged -= slot.rows
        self._book.remove(slot)

    # --- dropping ----------------------------------------------------------------------------

    def discard(self, command: st.Discard, _now_ms: int) -> c.Result:
        """Drop what is staged; a transaction without parts is forgotten."""
        account, name = command.account, command.name
        found = self._book.find(account, name)
        if found is None:
            return st.Discarded(0)
        if found.is_published:
            return st.Discarded(0, published=True)
        return st.Discarded(self._discard(account, name, command.parts))

    def _discard(self, account: str, name: str, parts: Collection[str] | None = None) -> int:
        """Drop these parts, None for all, and then the transaction if none is left."""
        slots = [
            slot for slot in self._book.slots(account, name) if parts is None or slot.part in parts
        ]
        for slot in slots:
            self._drop(slot)
        for part in () if parts is None else sorted(set(parts)):
            self._book.forget_part(account, name, part)
        if parts is None:
            self._settling.release(account, name)
            self._book.forget_parts(account, name)
            self._book.forget(account, name)
        else:
            self._book.forget_if_empty(account, name)
        return rows_in(slots)

    def expire(self, command: st.ExpireStaged, now_ms: int) -> c.Result:
        """Drop transactions whose time is over."""
        due = self._state.fetch("due_transactions", (now_ms, command.limit))
        for account, name in due:
            self._discard(account, name)
        return c.Swept(len(due))

    def _drop(self, slot: Slot) -> None:
        """Leave a slot to the reaper."""
        state = self._state
        entry = state.catalog.find(slot.account, slot.queue)
        if entry is None:  # whoever follows the log has heard of them, and is told of their end
            entry = Entry(Queue(account=slot.account, name=slot.queue), 0, 0, scope=0)
        entry.staged -= slot.rows
        if entry.logged:
            self._record(EventType.DISCARDED, entry, slot, "cores_of_lane")
        dropped = [(lane,) for lane in lanes_of(slot.partition, slot.lanes_used)]
        state.cursor.executemany(state.sql["drop_partition"], dropped)
        self._book.remove(slot)

    def _record(self, kind: EventType, entry: Entry, slot: Slot, query: str, *moments: int) -> None:
        """Record what happens to a slot's rows, the oldest first: the ids begin with their keys.

        In slices, each sorted by itself, so that a million rows do not fill the memory.
        """
        cores = self._cores(slot, query, moments)
        while slice_ := sorted(islice(cores, _RECORDED_AT_ONCE)):
            self._state.log.add_many(kind, entry, slice_, slot.name, None)

    def _record_runs(self, entry: Entry, slot: Slot, now_ms: int) -> bool:
        """Record that a slot is published, if its rows are alike but for ids; tell whether."""
        lanes = lanes_of(slot.partition, slot.lanes_used)
        if len(lanes) > 1 or "runs_to_publish" not in self._state.sql:
            return False
        runs = self._state.fetch("runs_to_publish", tuple(lanes))
        if any(run[2] or run[3::2] != run[4::2] for run in runs):
            return False
        slice_bytes = _RECORDED_AT_ONCE * ID_BYTES
        for visible_at_ms, ids, _, inserted_at_ms, _, expires_at_ms, _, phase, _ in runs:
            passed_ms = now_ms - inserted_at_ms
            if expires_at_ms < NEVER_MS:
                expires_at_ms = min(expires_at_ms + passed_ms, NEVER_MS)  # noqa: PLW2901
            times = now_ms, expires_at_ms, visible_at_ms + passed_ms
            core = (*times, 0, 0, phase, now_ms, 0, 0)
            for start in range(0, len(ids), slice_bytes):
                told = columns_of((ids[start : start + slice_bytes],), core, lanes, (None,))
                self._state.log.add_columns(EventType.PUBLISHED, entry, told, slot.name, None)
        return True

    def _cores(self, slot: Slot, query: str, moments: tuple[int, ...]) -> Iterator[Any]:
        for lane in lanes_of(slot.partition, slot.lanes_used):
            yield from self._state.cursor.execute(self._state.sql[query], (lane, *moments))

    # --- looking -----------------------------------------------------------------------------

    def get(self, command: st.GetTransaction, _now_ms: int) -> c.Result:
        """Look at a transaction."""
        found = self._book.find(command.account, command.name)
        if found is None:
            raise StagedNotFound(command.name)
        return self._view(command.account, command.name, found)

    def list(self, command: st.ListTransactions, _now_ms: int) -> c.Result:
        """List transactions by name."""
        bounds = (command.account, command.state, command.limit)
        rows = self._state.fetch("list_transactions", bounds)
        return tuple(self._view(command.account, name, TransactionRow(*row)) for name, *row in rows)

    def _view(self, account: str, name: str, row: TransactionRow) -> st.Transaction:
        slots = self._book.slots(account, name)
        parts = tuple(
            st.StagedPart(
                part=part,
                rows=rows_in(slot for slot in slots if slot.part == part),
                chunks=chunks,
            )
            for part, chunks in self._book.parts(account, name)
        )
        return st.Transaction(
            account=account,
            name=name,
            state=st.TransactionState(row.state),
            created_at_ms=row.created_at_ms,
            until_ms=row.until_ms,
            rows=row.rows if row.is_published else rows_in(slots),
            duplicates=row.duplicates,
            parts=parts,
            claims=tuple(st.BoundClaim(*each[:3]) for each in self._book.bound(account, name)),
        )

    # --- all together ------------------------------------------------------------------------

    def commit_together(self, command: st.CommitTogether, now_ms: int) -> c.Result:
        """Carry out commands and publish staged transactions as one."""
        account, name = command.account, command.name
        found = None if name is None else self._book.find(account, name)
        if found is not None and found.is_published:
            return st.Committed((), already=True)
        names = command.publish if name is None else (*command.publish, name)
        plans = self._settling.plan(account, names)
        for each in command.publish:
            self.check_publish(account, each)
        refusals = self._failures.refusals(c.Batch(command.commands, atomic=True), now_ms)
        if refusals is not None:
            return st.Committed(refusals)
        results = self._perform(command.commands, now_ms)
        settled = self._settle(plans, now_ms)
        moved = self.publish_all(account, command.publish, now_ms)
        if name is not None and name not in command.publish:
            self._publish(account, name, (), now_ms, moved)
        return st.Committed(
            results,
            moved.rows,
            by_queue=moved.by_queue,
            settled=settled,
            duplicates=moved.duplicates,
        )

    def _perform(self, commands: Sequence[AnyCommand], now_ms: int) -> tuple[c.Result, ...]:
        """Carry out commands, those of one kind that follow each other together."""
        results: list[c.Result] = []
        for kind, each in groupby(commands, type):
            results += self._runs[kind](tuple(each), now_ms)
        return tuple(results)


def _one_by_one(verb: Callable[[Any, int], c.Result]) -> _Run:
    def run(commands: Sequence[Any], now_ms: int) -> list[c.Result]:
        results: list[c.Result] = []
        for command in commands:
            try:
                results.append(verb(command, now_ms))
            except LeaseholdError as refusal:
                results.append(refusal)
        return results

    return run


# --- staged rows -------------------------------------------------------------------------------
#
# Making the rows of what is staged, as lean as can be: a job may stage a hundred thousand.


_SHIFT_MS = 1000


class Share:
    """What of a chunk is for one queue."""

    __slots__ = ("alike", "cores", "entry", "keyed", "lanes_used", "slot")

    def __init__(self, entry: Entry, slot: Slot) -> None:
        self.entry = entry
        self.slot = slot
        self.cores: list[tuple[object, ...]] = []
        """For the event log; see ``Recorder.add_many``."""
        self.alike: Columns | None = None
        """The same, of messages that are alike."""
        self.lanes_used = 0
        self.keyed = 0

    def count_in(self) -> None:
        """Note that the rows are there."""
        count = len(self.cores) if self.alike is None else len(self.alike.ids) // ID_BYTES
        self.slot.rows += count
        self.slot.keyed += self.keyed
        self.slot.lanes_used |= self.lanes_used
        self.entry.staged += count

    def record(self, log: Recorder, name: str) -> None:
        """Record that the rows are there."""
        if self.alike is None:
            log.add_many(EventType.STAGED, self.entry, self.cores, name, None)
        else:
            log.add_columns(EventType.STAGED, self.entry, self.alike, name, None)


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
        puts = command.puts
        self.alike = isinstance(puts, st.AlikePuts) and "put_alike" in state.sql
        """Whether the rows are in their tables already."""
        if self.alike:
            assert isinstance(puts, st.AlikePuts)
            self._insert(puts, now_ms)
        else:
            self._fill(now_ms)

    def _insert(self, puts: st.AlikePuts, now_ms: int) -> None:
        """Insert messages that are alike with one statement for each table."""
        state, count = self._state, len(puts)
        share, detail, delay_s = self._share(puts.queue), puts.detail, puts.delay_s
        rules.check_put(puts[0], share.entry.queue.settings, now_ms)
        number = lane_number(puts.priority, detail.group_id)
        lane = lane_of(share.slot.partition, number)
        share.lanes_used |= 1 << number
        row_key = state.take_row_keys(count)
        ids = make_id_blobs(row_key, puts.entropy)
        visible_at_ms, expires_at_ms = (
            now_ms + delay_s * _SHIFT_MS,
            expiry_of(now_ms, puts.time_to_live_s),
        )
        phase = int(Phase.DELAYED if delay_s else Phase.WAITING)
        more = None if detail is NO_DETAIL else detail_to_json(detail)
        bounds = (row_key, lane, ids, now_ms, expires_at_ms, visible_at_ms, phase, more)
        sizes = list(map(len, puts.bodies))
        if min(sizes) > INLINE_BYTES and max(sizes) <= SEGMENT_BODY_BYTES:
            self._insert_segments(row_key, puts.bodies, sizes, bounds)
        else:
            bodies = state.bodies_of(puts.bodies)
            state.cursor.execute(state.sql["put_alike"], (*bounds, INLINE_BYTES, bodies))
            state.cursor.execute(state.sql["put_bodies"], (row_key, INLINE_BYTES, bodies))
        core = (now_ms, expires_at_ms, visible_at_ms, 0, 0, phase, now_ms, 0, 0)
        share.alike = columns_of((ids,), core, (lane,), (more,))

    def _insert_segments(
        self, row_key: int, bodies: Sequence[bytes], sizes: list[int], bounds: tuple[Any, ...]
    ) -> None:
        """Insert messages whose bodies stand in segments; see the migration."""
        state, segments, places = self._state, [], []
        for first in range(0, len(sizes), SEGMENT_BODIES):
            own = sizes[first : first + SEGMENT_BODIES]
            key, content = row_key + first, b"".join(bodies[first : first + SEGMENT_BODIES])
            segments.append((key, key + len(own) - 1, content))
            ends = accumulate(own, initial=0)
            places += [
                end << 28 | at << 20 | size
                for at, (end, size) in enumerate(zip(ends, own, strict=False))
            ]
        state.cursor.executemany(state.sql["put_segment"], segments)
        state.cursor.execute(state.sql["put_in_segments"], (*bounds, state.keys_of(places)))

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
            if times is None or detail.visibility_timeout_s is not None:
                rules.check_put(put, share.entry.queue.settings, now_ms)
                phase = Phase.DELAYED if delay_s else Phase.WAITING
                times = now_ms + delay_s * _SHIFT_MS, expiry_of(now_ms, time_to_live_s), phase
                checked[delay_s, time_to_live_s] = times
            visible_at_ms, expires_at_ms, phase = times
            blob = make_id_blob(row_key, entropy)
            number = lane_number(priority, detail.group_id)
            lane = lane_of(share.slot.partition, number)
            share.lanes_used |= 1 << number
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
                    detail.group_id,
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
