"""Messages in a database: the hot path.

Runs of puts, receives and completes share statements. What the rules of
:mod:`leasehold.domain.visibility` say is written once more here as SQL; the contract suite and the
comparison with the memory store hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from leasehold.domain import commands as c
from leasehold.domain.errors import (
    LeaseholdError,
    LeaseLost,
    MessageNotFound,
    QueueNotFound,
    ReceiptMalformed,
)
from leasehold.domain.event_log import is_recorded, late, late_elsewhere
from leasehold.domain.events import EventType
from leasehold.domain.failures import exhausted_on_receive
from leasehold.domain.ids import id_from_blob, make_id_blob, row_key_of
from leasehold.domain.limits import AZURE, LOOK_BYTES
from leasehold.domain.pages import fitting
from leasehold.domain.receipts import ReceiptParts, issue_receipt, read_receipt
from leasehold.domain.types import Lease, Message, Outcome, Phase
from leasehold.domain.visibility import (
    after_lapse,
    after_receive,
    after_renew,
    after_repeat,
    expiry_of,
    is_expired,
    is_repeat,
    put_refusal,
    receipt_refusal,
    renew_refusal,
)
from leasehold.stores.plain_json import detail_to_json
from leasehold.stores.sql import setwise
from leasehold.stores.sql.catalog import PARTITION_MASK, Entry
from leasehold.stores.sql.dedup import first_with, keep_key
from leasehold.stores.sql.rows import (
    Kept,
    Row,
    kept_in,
    message_of,
    rewrite,
    row_of,
)
from leasehold.stores.sql.searching import WITH_SIZES, Search
from leasehold.stores.sql.sessions_book import SessionBook
from leasehold.stores.sql.state import State
from leasehold.stores.sql_files import many_rows

_PEEKED_AT_ONCE: Final = 1_000
"""A peek looks at so many messages, or twice as many, for some that are not due for poison."""


_SIZE: Final = 17
"""Where a row of WITH_SIZES has the size of the body."""


class _Terms(NamedTuple):
    """What is the same for all leases of one receive."""

    now_ms: int
    lease_s: int
    holder: str | None
    session: str | None


class MessageVerbs:
    """The verbs on messages."""

    def __init__(self, state: State, sessions: SessionBook) -> None:
        self.search = Search(state)
        self._state = state
        self._sessions = sessions
        self._put_at_once = many_rows(state.sql["put"], setwise.ROWS_AT_ONCE)

    # --- put ---------------------------------------------------------------------------------

    def put(self, run: Sequence[c.Put], now_ms: int) -> Sequence[c.Result]:
        """Put a run of messages with one statement."""
        state = self._state
        receipt_key = state.receipt_key
        row_key = state.take_row_keys(len(run))
        rows: list[tuple[object, ...]] = []
        bodies: list[tuple[int, bytes]] = []
        results: list[c.Result] = []
        log = state.log
        entry, of = None, ("", "")
        for command in run:
            account, queue, body, delay_s, time_to_live_s, entropy, detail, priority = command
            if (account, queue) != of:
                entry, of = state.catalog.find(account, queue), (account, queue)
            if entry is None:
                results.append(QueueNotFound())
                continue
            key = detail.dedup_key
            if key is not None:
                first = first_with(state, entry, key, now_ms)
                if first is not None:
                    results.append(first)
                    continue
            expires_at_ms = expiry_of(now_ms, time_to_live_s)
            refusal = put_refusal(now_ms, delay_s, expires_at_ms)
            if refusal is not None:
                results.append(refusal)
                continue
            if expires_at_ms < state.retired_until_ms:  # the clock was set back
                state.set_retired_until(expires_at_ms)
            blob = make_id_blob(row_key, entropy)
            visible_at_ms = now_ms + delay_s * 1000
            phase = Phase.DELAYED if delay_s else Phase.WAITING
            message = Message(
                id_from_blob(blob),
                body,
                now_ms,
                expires_at_ms,
                visible_at_ms,
                0,
                0,
                phase,
                now_ms,
                0,
                0,
                None,
                priority,
                detail,
            )
            rows.append(row_of(row_key, self._count_in(entry, message), blob, message, bodies))
            log.add(EventType.PUT, entry, message)
            if key is not None:
                keep_key(state, entry, key, message)
            results.append(Lease(message, issue_receipt(receipt_key, row_key, 0)))
            row_key += 1
        self.insert(rows, bodies)
        return results

    def insert(self, rows: list[tuple[object, ...]], bodies: list[tuple[int, bytes]]) -> None:
        """Insert new messages; many rows in one statement cost 0.9 us each and not 1.5."""
        sql, cursor = self._state.sql["put"], self._state.cursor
        whole = len(rows) // setwise.ROWS_AT_ONCE * setwise.ROWS_AT_ONCE
        for start in range(0, whole, setwise.ROWS_AT_ONCE):
            part = rows[start : start + setwise.ROWS_AT_ONCE]
            cursor.execute(self._put_at_once, tuple(chain.from_iterable(part)))
        cursor.executemany(sql, rows[whole:])
        if bodies:
            cursor.executemany(self._state.sql["put_body"], bodies)

    def _count_in(self, entry: Entry, message: Message) -> int:
        """Count a new message and return the lane it goes to."""
        lane = entry.lanes[0]
        if message.priority != lane.priority or len(entry.lanes) > 1:
            lane = self._state.open_lane(entry, message.priority)
        entry.message_count += 1
        self._state.touched.add(entry)
        if message.phase or message.visible_at_ms < lane.live_from_ms:
            lane.written(message)
        if entry.timeline is not None:
            entry.timeline.add(message.visible_at_ms, message.phase, 1)
        return lane.partition

    # --- receive and peek --------------------------------------------------------------------

    def receive(self, run: Sequence[c.Receive], now_ms: int) -> Sequence[c.Result]:
        """Serve a run of receives, those of one queue with one search."""
        if len(run) == 1:
            return self._receive_from_one_queue(run, now_ms)
        by_queue: dict[tuple[str, str], list[int]] = {}
        for index, command in enumerate(run):
            by_queue.setdefault((command.account, command.queue), []).append(index)
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
        holders = [self._holder(command, now_ms) for command in run]
        wanted = sum(
            [
                command.limit
                for command, holder in zip(run, holders, strict=True)
                if not isinstance(holder, LeaseholdError)
            ]
        )
        rows: list[Row] = []
        if wanted:  # a search for nothing would find out that there is nothing
            search = self.search.next_visible if entry.plain else self.search.allowed
            rows = search(entry, now_ms, wanted)
        results: list[c.Result] = []
        updates: list[tuple[object, ...]] = []
        start = 0
        for command, holder in zip(run, holders, strict=True):
            if isinstance(holder, LeaseholdError):
                results.append(holder)
                continue
            lease_s = command.visibility_timeout_s
            if lease_s is None:
                lease_s = entry.queue.settings.lease_s()
            taken = rows[start : start + command.limit]
            lease = _Terms(now_ms, lease_s, holder, command.session)
            results.append(self._lease(entry, taken, lease, updates))
            start += command.limit
        state.cursor.executemany(state.sql["lease"], updates)
        return results

    def _holder(self, command: c.Receive, now_ms: int) -> str | LeaseholdError | None:
        """Return who receives, or why nobody does."""
        if command.session is None:
            return command.holder
        try:
            return self._sessions.receives(command, now_ms)
        except LeaseholdError as refusal:
            return refusal

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
        state = self._state
        now_ms, lease_s, holder, session = terms
        visible_at_ms = now_ms + lease_s * 1000
        leases = []
        first: list[tuple[object, ...]] = []
        timeline = entry.timeline
        log = state.log
        for row in rows:
            row_key, blob, inserted_at_ms, expires_at_ms, was_visible_ms, count, fence, body = row[
                :8
            ]
            if count or session is not None:
                message = self._lease_again(entry, row, terms)
                if row[14] & PARTITION_MASK != entry.partition:
                    leases.append(
                        Lease(message, issue_receipt(state.receipt_key, row_key, fence + 1))
                    )
                    continue  # counted with its claim
            else:
                first.append((visible_at_ms, count + 1, fence + 1, now_ms, holder, row_key))
                message = Message(
                    id_from_blob(blob),
                    body,
                    inserted_at_ms,
                    expires_at_ms,
                    visible_at_ms,
                    count + 1,
                    fence + 1,
                    Phase.LEASED,
                    now_ms,
                    was_visible_ms,
                    0,
                    holder,
                )
                if row[13] is not None or row[14] != entry.partition or row[16] is not None:
                    kept = message_of(row)
                    message = message._replace(priority=kept.priority, detail=kept.detail)
                log.add(EventType.RECEIVED, entry, message)
            if timeline is not None:
                timeline.add(was_visible_ms, row[8], -1)
                timeline.add(visible_at_ms, Phase.LEASED, 1)
            leases.append(Lease(message, issue_receipt(state.receipt_key, row_key, fence + 1)))
        if len(first) >= setwise.SET_WISE:
            keys = state.keys_of([bounds[5] for bounds in first])  # type: ignore[misc]
            state.cursor.execute(state.sql["lease_many"], (visible_at_ms, now_ms, holder, keys))
        else:
            updates += first
        for lane in entry.lanes:
            lane.leased_since(now_ms)
        return tuple(leases)

    def _lease_again(self, entry: Entry, row: Row, terms: _Terms) -> Message:
        """Lease a message that was received before, or is received by a session."""
        state, log = self._state, self._state.log
        now_ms, lease_s, holder, session = terms
        before = message_of(row)
        message = after_lapse(before, now_ms)
        if message is not before:
            log.add(EventType.LAPSED, entry, message)
        message = after_receive(message, now_ms, lease_s, holder, session)
        held = state.catalog.claims.get(row[14] & PARTITION_MASK)
        if held is not None:
            rewrite(state, Kept(entry, row[0], before, held), message)
        else:
            bounds = (
                message.visible_at_ms,
                message.dequeue_count,
                message.fence,
                now_ms,
                holder,
                row[0],
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
            sizes.append(row[_SIZE] if counts else 0)  # type: ignore[misc]  # a column more
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
        place = state.catalog.of_partition(rows[0][14]) if rows else None
        if type(command) is not c.Complete or place is None:
            return MessageNotFound()
        message, row_key = message_of(rows[0]), rows[0][0]
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
        refusal = renew_refusal(message, now_ms, command)
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
        else:
            rewrite(state, kept, renewed)
        if message.session is not None:
            self._sessions.renewed(message, now_ms)
        given_back = timeout_s == 0 and message.phase is Phase.LEASED
        kind = EventType.RELEASED if given_back else EventType.RENEWED
        state.log.add(kind, entry, renewed, Outcome.RETURNED if given_back else None)
        return Lease(renewed, issue_receipt(state.receipt_key, row_key, renewed.fence))


def _can_be_had(entry: Entry, message: Message, now_ms: int) -> bool:
    """Tell whether a visible message would be received, and not moved to the poison queue."""
    policy = entry.queue.settings.failure_policy
    return policy is None or exhausted_on_receive(after_lapse(message, now_ms), policy) is None
