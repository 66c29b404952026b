"""Messages in SQLite: the hot path.

Runs of puts, receives and completes share statements. What the rules of
:mod:`leasehold.domain.visibility` say is written once more here as SQL; the contract suite and the
comparison with the memory store hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from leasehold.domain import commands as c
from leasehold.domain.errors import (
    LeaseholdError,
    MessageNotFound,
    QueueNotFound,
    ReceiptMalformed,
)
from leasehold.domain.ids import make_message_id, row_key_of
from leasehold.domain.receipts import issue_receipt, read_receipt
from leasehold.domain.types import Lease, Message
from leasehold.domain.visibility import (
    after_renew,
    expiry_of,
    is_expired,
    put_refusal,
    receipt_refusal,
    renew_refusal,
)
from leasehold.stores.sqlite.catalog import Entry
from leasehold.stores.sqlite.state import State

_Row: TypeAlias = tuple[int, bytes, int, int, int, int, int, bytes]
"""Row key, message id, inserted, expires, visible, dequeue count, fence, body."""
_Completion: TypeAlias = tuple[int, int, int, bytes, int, int]
"""The bounds of the statement ``complete``."""


class MessageVerbs:
    """The verbs on messages."""

    def __init__(self, state: State) -> None:
        self._state = state

    # --- put ---------------------------------------------------------------------------------

    def put(self, run: Sequence[c.Put], now_ms: int) -> Sequence[c.Result]:
        """Put a run of messages with one statement."""
        state = self._state
        find = state.catalog.find
        row_key = state.take_row_keys(len(run))
        rows = []
        results: list[c.Result] = []
        for command in run:
            entry = find(command.account, command.queue)
            if entry is None:
                results.append(QueueNotFound())
                continue
            expires_at_ms = expiry_of(now_ms, command.time_to_live_s)
            refusal = put_refusal(now_ms, command.delay_s, expires_at_ms)
            if refusal is not None:
                results.append(refusal)
                continue
            if expires_at_ms < state.retired_until_ms:  # the clock was set back
                state.set_retired_until(expires_at_ms)
            message = Message(
                message_id=make_message_id(row_key, command.entropy),
                body=command.body,
                inserted_at_ms=now_ms,
                expires_at_ms=expires_at_ms,
                visible_at_ms=now_ms + command.delay_s * 1000,
            )
            rows.append(
                (
                    row_key,
                    entry.partition,
                    _id_to_blob(message.message_id),
                    now_ms,
                    expires_at_ms,
                    message.visible_at_ms,
                    command.body,
                )
            )
            results.append(
                Lease(message=message, receipt=issue_receipt(state.receipt_key, row_key, 0))
            )
            entry.message_count += 1
            entry.written(message.visible_at_ms)
            state.touched.add(entry)
            row_key += 1
        state.cursor.executemany(state.sql["put"], rows)
        return results

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
        rows = self._next_visible(entry, now_ms, sum([command.limit for command in run]))
        if not rows:
            return [()] * len(run)
        results: list[c.Result] = []
        updates = []
        start = 0
        for command in run:
            visible_at_ms = now_ms + command.visibility_timeout_s * 1000
            leases = []
            for row in rows[start : start + command.limit]:
                row_key, blob, inserted_at_ms, expires_at_ms, _, count, fence, body = row
                updates.append((visible_at_ms, count + 1, fence + 1, row_key))
                message = Message(
                    message_id=_id_from_blob(blob),
                    body=body,
                    inserted_at_ms=inserted_at_ms,
                    expires_at_ms=expires_at_ms,
                    visible_at_ms=visible_at_ms,
                    dequeue_count=count + 1,
                    fence=fence + 1,
                )
                receipt = issue_receipt(state.receipt_key, row_key, fence + 1)
                leases.append(Lease(message=message, receipt=receipt))
            start += command.limit
            results.append(tuple(leases))
        state.cursor.executemany(state.sql["lease"], updates)
        return results

    def _next_visible(self, entry: Entry, now_ms: int, limit: int) -> list[_Row]:
        if now_ms < entry.scanned_at_ms:
            entry.forget_scan()
        bounds = (entry.partition, now_ms, limit, entry.live_from_ms)
        rows = self._state.fetch("next_visible", bounds)
        entry.scanned(now_ms, rows[0][4] if rows else None)
        return rows

    def peek(self, command: c.Peek, now_ms: int) -> c.Result:
        """Look at the next visible messages."""
        entry = self._state.catalog.get(command.account, command.queue)
        return tuple(_message(row) for row in self._next_visible(entry, now_ms, command.limit))

    # --- what a receipt allows ---------------------------------------------------------------

    def _judge(self, command: c.Renew | c.Complete, now_ms: int) -> tuple[int, Message]:
        """Return the message that the receipt acts on, or raise why it may not act."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        row_key = row_key_of(command.message_id)
        if row_key is None:
            raise MessageNotFound
        rows = state.fetch("get_message", (row_key, entry.partition))
        if not rows:
            raise MessageNotFound
        message = _message(rows[0])
        if message.message_id != command.message_id or is_expired(message, now_ms):
            raise MessageNotFound
        receipt = read_receipt(state.receipt_key, command.receipt)
        rule = entry.queue.lapsed_receipts
        refusal = receipt_refusal(message, row_key, receipt, now_ms, rule)
        if refusal is not None:
            raise refusal
        return row_key, message

    def renew(self, command: c.Renew, now_ms: int) -> c.Result:
        """Move the end of a lease."""
        state = self._state
        row_key, message = self._judge(command, now_ms)
        refusal = renew_refusal(message, now_ms, command.visibility_timeout_s)
        if refusal is not None:
            raise refusal
        renewed = after_renew(message, now_ms, command.visibility_timeout_s, command.body)
        if command.body is None:
            bounds: tuple[object, ...] = (renewed.visible_at_ms, renewed.fence, row_key)
            state.cursor.execute(state.sql["renew"], bounds)
        else:
            bounds = (renewed.visible_at_ms, renewed.fence, row_key, command.body)
            state.cursor.execute(state.sql["renew_with_body"], bounds)
        state.catalog.get(command.account, command.queue).written(renewed.visible_at_ms)
        receipt = issue_receipt(state.receipt_key, row_key, renewed.fence)
        return Lease(message=renewed, receipt=receipt)

    def complete(self, run: Sequence[c.Complete], now_ms: int) -> Sequence[c.Result]:
        """Remove a run of messages; the statement that deletes also checks the receipt."""
        state = self._state
        plans = [self._completion(command, now_ms) for command in run]
        likely = [plan for plan in plans if plan is not None]
        removed = set()
        # Of two that name one message, what the first does decides on the second.
        if len({command.message_id for command in run}) == len(run):
            removed = {
                row_key for (row_key,) in state.cursor.executemany(state.sql["complete"], likely)
            }
        results: list[c.Result] = []
        for command, plan in zip(run, plans, strict=True):
            if plan is not None and plan[0] in removed:
                self._uncount(command)
                results.append(c.DONE)
            else:
                results.append(self._complete_slowly(command, now_ms))
        return results

    def _completion(self, command: c.Complete, now_ms: int) -> _Completion | None:
        """Return the bounds of the statement for *command*, None if it is sure to be refused."""
        entry = self._state.catalog.find(command.account, command.queue)
        if entry is None:
            return None
        try:
            receipt = read_receipt(self._state.receipt_key, command.receipt)
            blob = _id_to_blob(command.message_id)
        except (ReceiptMalformed, ValueError):
            return None
        if not receipt.genuine or row_key_of(command.message_id) != receipt.row_key:
            return None
        lease_must_last_past_ms = now_ms if entry.strict else -1
        return (
            receipt.row_key,
            entry.partition,
            receipt.fence,
            blob,
            now_ms,
            lease_must_last_past_ms,
        )

    def _complete_slowly(self, command: c.Complete, now_ms: int) -> c.Result:
        """Complete one message by the rules, and if that may not be, say why."""
        try:
            row_key, _ = self._judge(command, now_ms)
        except LeaseholdError as refusal:
            return refusal
        self._state.cursor.execute(self._state.sql["remove"], (row_key,))
        self._uncount(command)
        return c.DONE

    def _uncount(self, command: c.Complete) -> None:
        entry = self._state.catalog.get(command.account, command.queue)
        entry.message_count -= 1
        self._state.touched.add(entry)


def _id_to_blob(message_id: str) -> bytes:
    """Return a message id as stored; ValueError if it is no UUID at all."""
    return bytes.fromhex(message_id.replace("-", ""))


def _id_from_blob(blob: bytes) -> str:
    text = blob.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _message(row: _Row) -> Message:
    return Message(
        message_id=_id_from_blob(row[1]),
        body=row[7],
        inserted_at_ms=row[2],
        expires_at_ms=row[3],
        visible_at_ms=row[4],
        dequeue_count=row[5],
        fence=row[6],
    )
