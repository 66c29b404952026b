"""Messages in a database: the hot path.

Runs of puts, receives and completes share statements. What the rules of
:mod:`leasehold.domain.visibility` say is written once more here as SQL; the contract suite and the
comparison with the memory store hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain import commands as c
from leasehold.domain.errors import (
    LeaseholdError,
    LeaseLost,
    MessageNotFound,
    QueueNotFound,
    ReceiptMalformed,
)
from leasehold.domain.event_recorder import is_recorded, late, late_elsewhere
from leasehold.domain.events import Core, EventType
from leasehold.domain.failures import exhausted_on_receive
from leasehold.domain.groups import check_hold
from leasehold.domain.limits import AZURE, LOOK_BYTES
from leasehold.domain.model import (
    DEFAULT_PRIORITY,
    NO_DETAIL,
    Detail,
    Lease,
    Message,
    Outcome,
    Phase,
    ReceiptParts,
    expiry_of,
    fitting,
    id_from_blob,
    id_to_blob,
    issue_receipt,
    issue_receipts,
    make_id_blob,
    own_timeout_refusal,
    put_refusal,
    read_receipt,
    read_receipts,
    row_key_of,
)
from leasehold.domain.queue_settings import QueueSettings
from leasehold.domain.visibility import (
    after_lapse,
    after_receive,
    after_renew,
    after_repeat,
    is_expired,
    is_repeat,
    receipt_refusal,
    renew_refusal,
)
from leasehold.stores.sql import recorder, statements
from leasehold.stores.sql.catalog import PARTITION_MASK, Entry, lane_number, priority_of
from leasehold.stores.sql.plain_json import along_in_json, detail_to_json
from leasehold.stores.sql.rows import (
    APART,
    HERE,
    INLINE_BYTES,
    Cell,
    Judge,
    Kept,
    Row,
    SessionBook,
    detail_of,
    first_with,
    free_group,
    keep_key,
    kept_in,
    message_of,
    placed,
    rewrite,
    uncount,
)
from leasehold.stores.sql.scanning import WITH_SIZES, Search
from leasehold.stores.sql.state import State
from leasehold.stores.sql.statements import many_rows

_PEEKED_AT_ONCE: Final = 1_000
"""A peek looks at so many messages, or twice as many, for some that are not due for poison."""


_Leased: TypeAlias = tuple[int, int, int, int, str | None, int]
"""What the statement ``lease`` writes: end of the lease, count, fence, now, holder, row key."""


class _Terms(NamedTuple):
    """What is the same for all leases of one receive."""

    now_ms: int
    lease_s: int
    """Of messages that have no own timeout, and of types without a rule."""
    holder: str | None
    session: str | None
    settings: QueueSettings | None
    """Those of the queue; None if the receive names the length of its leases."""

    def lease_of(self, detail: Detail) -> int:
        """Return the length of the lease of one message."""
        if self.settings is None or detail is NO_DETAIL:
            return self.lease_s
        return self.settings.lease_of(detail.message_type, detail.visibility_timeout_s)


_new: Final = tuple.__new__
"""Makes a NamedTuple of all its fields, without the function that knows names and defaults."""
_QUEUE_OF: Final = itemgetter(0, 1)
"""Account and queue of a put."""


class _New(NamedTuple):
    """What a run of puts adds."""

    keys: Iterator[tuple[int, str]]
    """Row keys with the first receipts."""
    rows: list[tuple[object, ...]]
    bodies: list[tuple[int, bytes]]


class MessageHandlers:
    """The verbs on messages."""

    def __init__(self, state: State, sessions: SessionBook) -> None:
        self.search = Search(state)
        self._state = state
        self._sessions = sessions
        self._many_rows = {
            name: many_rows(sql, statements.ROWS_AT_ONCE)
            for name, sql in state.sql.items()
            if name in {"put", "put_body"}
        }

    # --- put ---------------------------------------------------------------------------------

    def put(self, run: Sequence[c.Put], now_ms: int) -> Sequence[c.Result]:
        """Put a run of messages with one statement."""
        state = self._state
        row_key = state.take_row_keys(len(run))
        keys = range(row_key, row_key + len(run))
        receipts = issue_receipts(state.receipt_key, zip(keys, repeat(0)))
        new = _New(zip(keys, receipts, strict=True), [], [])
        results: list[c.Result] = []
        for of, some in groupby(run, _QUEUE_OF):
            entry = state.catalog.by_name.get(of)
            if entry is None:
                results += [QueueNotFound() for _ in some]
            else:
                results += self._put_to(entry, some, now_ms, new)
        self.insert(new.rows, new.bodies)
        return results

    def _put_to(self, entry: Entry, run: Iterable[c.Put], now_ms: int, new: _New) -> list[c.Result]:
        """Put messages to one queue, but leave the rows to the caller."""
        state = self._state
        results: list[c.Result] = []
        told: list[Message] = []
        asked: tuple[int, int | None] | None = None
        expires_at_ms, is_late = 0, False
        for _, _, body, delay_s, time_to_live_s, entropy, detail, priority in run:
            key = detail.dedup_key
            if key is not None:
                first = first_with(state, entry, key, now_ms)
                if first is not None:
                    results.append(first)
                    continue
            if (delay_s, time_to_live_s) != asked:  # most often all of a run are alike
                asked = delay_s, time_to_live_s
                expires_at_ms = expiry_of(now_ms, time_to_live_s)
                is_late = put_refusal(now_ms, delay_s, expires_at_ms) is not None
            refusal = put_refusal(now_ms, delay_s, expires_at_ms) if is_late else None
            if refusal is None and detail.visibility_timeout_s is not None:
                own_s = detail.visibility_timeout_s
                refusal = own_timeout_refusal(own_s, entry.queue.settings)
            if refusal is not None:
                results.append(refusal)
                continue
            if expires_at_ms < state.retired_until_ms:  # the clock was set back
                state.set_retired_until(expires_at_ms)
            row_key, receipt = next(new.keys)
            blob = make_id_blob(row_key, entropy)
            message = _new(
                Message,
                (
                    id_from_blob(blob),
                    body,
                    now_ms,
                    expires_at_ms,
                    now_ms + delay_s * 1000,
                    0,
                    0,
                    Phase.DELAYED if delay_s else Phase.WAITING,
                    now_ms,
                    0,
                    0,
                    None,
                    priority,
                    detail,
                    None,
                ),
            )
            lane = self._count_in(entry, message)
            new.rows.append(_row_of(row_key, lane, blob, message, new.bodies))
            told.append(message)
            if key is not None:
                keep_key(state, entry, key, message)
            results.append(_new(Lease, (message, receipt)))
        state.log.add_run(EventType.PUT, entry, told)
        return results

    def insert(self, rows: list[tuple[object, ...]], bodies: list[tuple[int, bytes]]) -> None:
        """Insert new messages; many rows in one statement cost 0.9 us each and not 1.5."""
        self._insert("put", rows)
        self._insert("put_body", bodies)

    def _insert(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        cursor, at_once = self._state.cursor, statements.ROWS_AT_ONCE
        whole = len(rows) // at_once * at_once
        for start in range(0, whole, at_once):
            part = rows[start : start + at_once]
            cursor.execute(self._many_rows[statement], tuple(chain.from_iterable(part)))
        if len(rows) > whole:
            cursor.executemany(self._state.sql[statement], rows[whole:])

    def _count_in(self, entry: Entry, message: Message) -> int:
        """Count a new message and return the lane it goes to."""
        lane = entry.lanes[0]
        group_id = message.detail.group_id
        if message.priority != lane.priority or group_id is not None or len(entry.lanes) > 1:
            lane = self._state.open_lane(entry, lane_number(message.priority, group_id))
        entry.message_count += 1
        self._state.touched.add(entry)
        if message.phase or message.visible_at_ms < lane.live_from_ms:
            lane.written(message)
        if entry.timeline is not None:
            entry.timeline.add(message.visible_at_ms, message.phase, 1)
        if entry.turns is not None:
            if message.phase:
                entry.turns.call(group_id, message.visible_at_ms, message.visible_at_ms)
            else:
                entry.turns.arrived(group_id, message.visible_at_ms)
        return lane.partition

    # --- receive and peek --------------------------------------------------------------------

    def receive(self, run: Sequence[c.Receive], now_ms: int) -> Sequence[c.Result]:
        """Serve a run of receives, those of one queue with one search."""
        if len(run) == 1:
            return self._receive_from_one_queue(run, now_ms)
        by_queue: dict[tuple[str, str, str | None], list[int]] = {}
        for index, command in enumerate(run):
            of = command.account, command.queue, command.group
            by_queue.setdefault(of, []).append(index)
        results: list[c.Result] = [()] * len(run)
        for indexes in by_queue.values():
            served = self._receive_from_one_queue([run[index] for index in indexes], now_ms)
            for index, result in zip(indexes, served, strict=True):
                results[index] = result
        return results

    def _receive_from_one_queue(self, run: Sequence[c.Receive], now_ms: int) -> Sequence[c.Result]:
        state = self._state
        entry = state.catalog.find(run[0].account, run[0].queue)
        if entry is None:
            return [QueueNotFound() for _ in run]
        holders = [self._holder(entry, command, now_ms) for command in run]
        limits = [
            command.limit
            for command, holder in zip(run, holders, strict=True)
            if not isinstance(holder, LeaseholdError)
        ]
        rows: list[Row] = []
        if limits:  # a search for nothing would find out that there is nothing
            if entry.plain:
                rows = self.search.next_visible(entry, now_ms, sum(limits))
            else:
                rows = self.search.allowed(entry, now_ms, limits, group=run[0].group)
        results: list[c.Result] = []
        updates: list[tuple[object, ...]] = []
        start = 0
        for command, holder in zip(run, holders, strict=True):
            if isinstance(holder, LeaseholdError):
                results.append(holder)
                continue
            lease_s, settings = command.visibility_timeout_s, None
            if lease_s is None:
                settings = entry.queue.settings
                lease_s = settings.lease_s()
            taken = rows[start : start + command.limit]
            lease = _Terms(now_ms, lease_s, holder, command.session, settings)
            results.append(self._lease(entry, taken, lease, updates))
            start += command.limit
        state.cursor.executemany(state.sql["lease"], updates)
        return results

    def _holder(self, entry: Entry, command: c.Receive, now_ms: int) -> str | LeaseholdError | None:
        """Return who receives, or why no message may be received."""
        if command.session is None and command.group is None:
            return command.holder
        try:
            holder = command.holder
            if command.session is not None:
                holder = self._sessions.receives(command, now_ms)
            if command.group is not None:
                check_hold(entry.holds.get(command.group), command.session)
        except LeaseholdError as refusal:
            return refusal
        return holder

    def _lease(
        self,
        entry: Entry,
        rows: Sequence[Row],
        terms: _Terms,
        updates: list[tuple[object, ...]],
    ) -> tuple[Lease, ...]:
        """Lease the messages of these rows; what is alike for all is left to *updates*."""
        if not rows:
            return ()
        state, timeline, turns = self._state, entry.timeline, entry.turns
        now_ms, lease_s, holder, session, _ = terms
        usual_ms, alike = now_ms + lease_s * 1000, True
        leases = []
        first: list[_Leased] = []
        told: list[Message] = []
        following = [(Cell.row_key(row), Cell.fence(row) + 1) for row in rows]
        receipts = issue_receipts(state.receipt_key, following)
        for row, receipt in zip(rows, receipts, strict=True):
            (
                row_key, blob, inserted_at_ms, expires_at_ms, was_visible_ms, count, fence, body,
                phase, _, _, _, _, detail, lane, _, saved,
            ) = row  # fmt: skip
            visible_at_ms = usual_ms
            if count or session is not None:
                state.log.add_run(EventType.RECEIVED, entry, told)
                told = []
                message = self._lease_again(entry, row, terms)
                visible_at_ms = message.visible_at_ms
                if lane & PARTITION_MASK != entry.partition:
                    leases.append(_new(Lease, (message, receipt)))
                    continue  # counted with its claim
            else:
                priority, along = DEFAULT_PRIORITY, NO_DETAIL
                if detail is not None or lane != entry.partition or saved is not None:
                    priority, along = priority_of(lane), detail_of(detail, saved)
                    visible_at_ms = now_ms + terms.lease_of(along) * 1000
                    alike = alike and visible_at_ms == usual_ms
                first.append((visible_at_ms, count + 1, fence + 1, now_ms, holder, row_key))
                message = _new(Message, (
                    id_from_blob(blob), body, inserted_at_ms, expires_at_ms, visible_at_ms,
                    count + 1, fence + 1, Phase.LEASED, now_ms, was_visible_ms, 0, holder, priority,
                    along, None,
                ))  # fmt: skip
                told.append(message)
            if timeline is not None:
                timeline.add(was_visible_ms, phase, -1)
                timeline.add(visible_at_ms, Phase.LEASED, 1)
            if turns is not None:
                turns.changed(message)
            leases.append(_new(Lease, (message, receipt)))
        state.log.add_run(EventType.RECEIVED, entry, told)
        if len(first) < statements.SET_WISE:
            updates += first
        else:
            self._lease_at_once(first, usual_ms if alike else None)
        for each in entry.lanes:
            each.leased_since(now_ms)
        return tuple(leases)

    def _lease_at_once(self, rows: Sequence[_Leased], end_ms: int | None) -> None:
        """Write the leases of one receive with one statement for each moment they end at.

        Args:
            rows: What to write.
            end_ms: That moment, if it is the same for all.
        """
        state = self._state
        _, _, _, now_ms, holder, _ = rows[0]
        if end_ms is not None:
            keys = state.keys_of([bounds[5] for bounds in rows])
            state.cursor.execute(state.sql["lease_many"], (end_ms, now_ms, holder, keys))
            return
        for moment_ms in {bounds[0] for bounds in rows}:
            keys = state.keys_of([bounds[5] for bounds in rows if bounds[0] == moment_ms])
            state.cursor.execute(state.sql["lease_many"], (moment_ms, now_ms, holder, keys))

    def _lease_again(self, entry: Entry, row: Row, terms: _Terms) -> Message:
        """Lease a message that was received before, or is received by a session."""
        state, log = self._state, self._state.log
        now_ms, _, holder, session, _ = terms
        row_key, before = Cell.row_key(row), message_of(row)
        message = after_lapse(before, now_ms)
        if message is not before:
            log.add(EventType.LAPSED, entry, message)
        lease_s = terms.lease_of(message.detail)
        message = after_receive(message, now_ms, lease_s, holder, session)
        held = state.catalog.claims.get(Cell.lane(row) & PARTITION_MASK)
        if held is not None:
            rewrite(state, Kept(entry, row_key, before, held), message)
        else:
            bounds = (
                message.visible_at_ms,
                message.dequeue_count,
                message.fence,
                now_ms,
                holder,
                row_key,
                detail_to_json(message.detail),
                session,
            )
            state.cursor.execute(state.sql["lease_again"], bounds)
        log.add(EventType.RECEIVED, entry, message)
        return message

    def peek(self, command: c.Peek, now_ms: int) -> c.Result:
        """Look at the next messages that can be received."""
        entry = self._state.catalog.get(command.account, command.queue)
        limit = command.limit
        while True:
            fitting = self._fitting(entry, now_ms, limit)
            rows = self.search.next_visible(entry, now_ms, fitting)
            found = tuple(
                message for message in map(message_of, rows) if _can_be_had(entry, message, now_ms)
            )
            enough = len(found) >= command.limit or limit >= _PEEKED_AT_ONCE
            if enough or len(rows) < limit:
                return found[: command.limit]
            limit *= 2

    def _fitting(self, entry: Entry, now_ms: int, limit: int) -> int:
        """Return how many messages may be read for one answer, as far as their bodies are here.

        What can be too much is looked at without its bodies first, so that they never are in
        memory. What is due for poison is not shown, and does not count.
        """
        largest = entry.queue.settings.max_body_bytes or AZURE.body_bytes
        if limit * largest <= LOOK_BYTES:
            return limit
        sizes = []
        for row in self.search.next_visible(entry, now_ms, limit, WITH_SIZES):
            message = message_of(row)
            counts = message.detail.body_ref is None and _can_be_had(entry, message, now_ms)
            sizes.append(Cell.body_bytes(row) if counts else 0)
        count = fitting(sizes, LOOK_BYTES, at_least=True)
        return limit if count == len(sizes) else count

    # --- what a receipt allows ---------------------------------------------------------------

    def judge(self, command: c.Renew | c.Complete | c.Release, now_ms: int) -> Kept:
        """Return the message that the receipt acts on, or raise why it may not act."""
        return self._judge(command, now_ms)[0]

    def _judge(
        self, command: c.Renew | c.Complete | c.Release, now_ms: int
    ) -> tuple[Kept, ReceiptParts]:
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        row_key = row_key_of(command.message_id)
        if row_key is None:
            raise MessageNotFound
        rows = state.fetch("get_message", (row_key,))
        kept = kept_in(state, entry, rows[0]) if rows else None
        if kept is None:
            raise self._not_found(command, entry, rows)
        message, held = kept.message, kept.held
        hidden = held is not None and not held.lapsed
        expired = is_expired(message, now_ms) and not hidden
        if message.message_id != command.message_id or expired:
            raise self._not_found(command, entry, rows)
        receipt = read_receipt(state.receipt_key, command.receipt)
        rule = entry.queue.settings.lapsed_receipts
        renew = command if type(command) is c.Renew else None
        refusal = receipt_refusal(message, row_key, receipt, now_ms, rule, renew)
        if refusal is not None:
            self._note_refusal(command, kept, receipt, refusal)
            raise refusal
        return kept, receipt

    def _not_found(
        self, command: c.Renew | c.Complete | c.Release, entry: Entry, rows: Sequence[Row]
    ) -> MessageNotFound:
        """Return the refusal; record a complete that came when its message had left the queue."""
        state = self._state
        row = rows[0] if rows else None
        place = state.catalog.of_partition(Cell.lane(row)) if row else None
        if type(command) is not c.Complete or row is None or place is None:
            return MessageNotFound()
        kept = kept_in(state, place, row)
        if kept is None:
            return MessageNotFound()
        message, row_key = kept.message, kept.row_key
        is_it = message.message_id == command.message_id
        if not is_it or place.queue.account != entry.queue.account:
            return MessageNotFound()
        try:
            receipt = read_receipt(state.receipt_key, command.receipt)
        except ReceiptMalformed:
            return MessageNotFound()
        name = entry.queue.name
        told = late_elsewhere(message, row_key, receipt, name, here=place is entry)
        if told is None:
            return MessageNotFound()
        state.log.add(EventType.REFUSED, entry, *told)
        return MessageNotFound(late=True)

    def _note_refusal(
        self,
        command: c.Renew | c.Complete | c.Release,
        kept: Kept,
        receipt: ReceiptParts,
        refusal: LeaseholdError,
    ) -> None:
        """Record a complete that came too late: it tells how long the work took."""
        if type(command) is c.Complete and isinstance(refusal, LeaseLost) and is_recorded(refusal):
            message = late(kept.message, receipt)
            self._state.log.add(EventType.REFUSED, kept.entry, message, refusal.reason)

    def renew(self, command: c.Renew, now_ms: int) -> c.Result:
        """Move the end of a lease."""
        state = self._state
        kept, receipt = self._judge(command, now_ms)
        entry, row_key, message, held = kept
        timeout_s = command.visibility_timeout_s
        refusal = renew_refusal(message, now_ms, command, entry.queue.settings.groups)
        if refusal is not None:
            raise refusal
        if is_repeat(message, receipt, command):
            renewed = after_repeat(message, now_ms, command)
        else:
            said = command.body, command.progress, command.saved
            renewed = after_renew(message, now_ms, timeout_s, *said)
        plain = renewed.body is message.body and renewed.detail is message.detail
        if plain and held is None:
            bounds = (
                renewed.visible_at_ms,
                renewed.fence,
                row_key,
                renewed.phase,
                renewed.since_ms,
                renewed.renewals,
            )
            state.cursor.execute(state.sql["renew"], bounds)
            entry.written(renewed)
            if entry.timeline is not None:
                entry.timeline.add(message.visible_at_ms, message.phase, -1)
                entry.timeline.add(renewed.visible_at_ms, renewed.phase, 1)
            if entry.turns is not None:
                entry.turns.changed(renewed)
        else:
            rewrite(state, kept, renewed)
        if message.session is not None:
            self._sessions.renewed(message, now_ms)
        given_back = timeout_s == 0 and message.phase is Phase.LEASED
        kind = EventType.RELEASED if given_back else EventType.RENEWED
        state.log.add(kind, entry, renewed, Outcome.RETURNED if given_back else None)
        return Lease(renewed, issue_receipt(state.receipt_key, row_key, renewed.fence))


def _row_of(
    row_key: int, lane: int, blob: bytes, message: Message, bodies: list[tuple[int, bytes]]
) -> tuple[object, ...]:
    """Return the row of a new message for the statement ``put``; its body may go to *bodies*."""
    body, place, detail = message.body, HERE, message.detail
    if detail.body_ref is not None:
        body, place, _ = placed(message)
    elif len(body) > INLINE_BYTES:
        bodies.append((row_key, body))
        body, place = b"", APART
    return (
        row_key,
        lane,
        blob,
        message.inserted_at_ms,
        message.expires_at_ms,
        message.visible_at_ms,
        body,
        message.phase,
        message.since_ms,
        None if detail is NO_DETAIL else detail_to_json(detail),
        place,
        detail.group_id,
    )


def _can_be_had(entry: Entry, message: Message, now_ms: int) -> bool:
    """Tell whether a visible message would be received, and not moved to the poison queue."""
    policy = entry.queue.settings.failure_policy
    return policy is None or exhausted_on_receive(after_lapse(message, now_ms), policy) is None


# --- completing --------------------------------------------------------------------------------
#
# Completing messages in a database: one by one, or many at once.


Completion: TypeAlias = tuple[int, int, int, str, bool]
"""Row key, partition, fence, message id, whether the queue is strict about lapsed receipts."""

Removed: TypeAlias = tuple[int, int, Core, int, str | None, str | None]
"""When it became visible, its phase, and what the log says of it: core, priority, session, and what
its detail has of it."""


def removed_in(rows: Iterable[Any], fences: Mapping[int, int]) -> dict[int, Removed]:
    """Return what was removed, by row key, of the rows that the statement ``complete`` returns."""
    removed: dict[int, Removed] = {}
    for (
        row_key, visible_at_ms, phase, inserted_at_ms, expires_at_ms, count, since_ms,
        visible_since_ms, renewals, holder, lane, session, detail,
    ) in rows:  # fmt: skip
        core = (
            inserted_at_ms,
            expires_at_ms,
            visible_at_ms,
            count,
            fences[row_key],
            phase,
            since_ms,
            visible_since_ms,
            renewals,
            holder,
        )
        removed[row_key] = (visible_at_ms, phase, core, priority_of(lane), session, detail)
    return removed


class CompleteVerb:
    """Removes messages whose work is done.

    Args:
        state: The store's.
        judge: Decides by the rules, one message at a time.
    """

    def __init__(self, state: State, judge: Judge) -> None:
        self._state = state
        self._judge = judge

    def complete(self, run: Sequence[c.Complete], now_ms: int) -> Sequence[c.Result]:
        """Remove a run of messages; what checks the receipt is what acts, or acts with it."""
        state = self._state
        plans, entries = self._completions(run)
        removed: dict[int, Removed] = {}
        log = state.log
        likely = [plan for plan in plans if plan is not None]
        # Of two that name one message, what the first does decides on the second.
        if len({plan[0] for plan in likely}) == len(likely):
            if len(likely) < state.removes_all_from:
                removed = self._remove_each(likely, now_ms)
            else:
                removed = self._remove_all(likely, now_ms)
        results: list[c.Result] = []
        told: list[recorder.Removed] = []
        last: Entry | None = None
        for command, plan, entry in zip(run, plans, entries, strict=True):
            gone = removed.get(plan[0]) if plan is not None else None
            if told and last is not None and (gone is None or entry is not last):
                log.add_removed(EventType.COMPLETED, last, told)
                told = []
            if gone is None or entry is None:
                results.append(self._complete_slowly(command, now_ms))
                continue
            last = entry
            entry.message_count -= 1
            state.touched.add(entry)
            if entry.timeline is not None:
                entry.timeline.add(gone[0], gone[1], -1)
            if entry.turns is not None:
                detail = gone[5]
                group_id = None if detail is None else along_in_json(detail).group_id
                entry.turns.free(group_id)
            told.append((command.message_id, *gone[2:], command.result))
            results.append(c.DONE)
        if last is not None:
            log.add_removed(EventType.COMPLETED, last, told)
        return results

    def _completions(
        self, run: Sequence[c.Complete]
    ) -> tuple[list[Completion | None], list[Entry | None]]:
        """Return what each wants removed, None if it is sure to be refused."""
        state = self._state
        plans: list[Completion | None] = []
        entries: list[Entry | None] = []
        entry, of = None, ("", "")
        receipts = read_receipts(state.receipt_key, [command.receipt for command in run])
        for (account, queue, message_id, _, _), parts in zip(run, receipts, strict=True):
            if (account, queue) != of:
                entry, of = state.catalog.find(account, queue), (account, queue)
            entries.append(entry)
            plan = None
            if entry is not None and parts is not None:
                row_key, fence, genuine = parts
                if genuine:
                    plan = row_key, entry.partition, fence, message_id, entry.strict
            plans.append(plan)
        return plans, entries

    def _remove_each(self, plans: Sequence[Completion], now_ms: int) -> dict[int, Removed]:
        """Remove messages one by one; the statement that deletes also checks the receipt.

        Returns:
            By row key.
        """
        bounds = []
        fences = {}
        for row_key, partition, fence, message_id, strict in plans:
            try:
                blob = id_to_blob(message_id)
            except ValueError:
                continue
            fences[row_key] = fence
            bounds.append((row_key, partition, fence, blob, now_ms, now_ms if strict else -1))
        return removed_in(
            self._state.cursor.executemany(self._state.sql["complete"], bounds), fences
        )

    def _remove_all(self, plans: Sequence[Completion], now_ms: int) -> dict[int, Removed]:
        """Remove many messages with two statements: one looks, the other removes.

        Nothing can come between them: there is one connection that writes, and it is in the middle
        of a transaction. It costs 1.1 us a message and not 2.9.
        """
        state = self._state
        wanted = {plan[0]: plan for plan in plans}
        removed: dict[int, Removed] = {}
        for (
            row_key, lane, its_fence, blob, expires_at_ms, visible_at_ms, phase, inserted_at_ms,
            count, since_ms, visible_since_ms, renewals, holder, session, detail,
        ) in state.fetch("to_complete", (state.keys_of(wanted),)):  # fmt: skip
            _, partition, fence, message_id, strict = wanted[row_key]
            if (
                its_fence == fence
                and lane & PARTITION_MASK == partition
                and expires_at_ms > now_ms
                and visible_at_ms > (now_ms if strict else -1)
                and id_from_blob(blob) == message_id
            ):
                core = (
                    inserted_at_ms,
                    expires_at_ms,
                    visible_at_ms,
                    count,
                    fence,
                    phase,
                    since_ms,
                    visible_since_ms,
                    renewals,
                    holder,
                )
                removed[row_key] = (visible_at_ms, phase, core, priority_of(lane), session, detail)
        if removed:
            state.cursor.execute(state.sql["remove_many"], (state.keys_of(removed),))
        return removed

    def _complete_slowly(self, command: c.Complete, now_ms: int) -> c.Result:
        """Complete one message by the rules, and if that may not be, say why."""
        try:
            entry, row_key, message, held = self._judge(command, now_ms)
        except LeaseholdError as refusal:
            return refusal
        self._state.cursor.execute(self._state.sql["remove"], (row_key,))
        uncount(self._state, entry, message.visible_at_ms, message.phase, held)
        free_group(entry, message)
        self._state.log.add(EventType.COMPLETED, entry, message, result=command.result)
        return c.DONE
