"""Completing messages in a database: one by one, or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseholdError, ReceiptMalformed
from leasehold.domain.events import Core, EventType
from leasehold.domain.ids import id_from_blob, id_to_blob
from leasehold.domain.receipts import read_receipt
from leasehold.stores.sql.catalog import PARTITION_MASK, Entry, priority_of
from leasehold.stores.sql.rows import Judge, uncount
from leasehold.stores.sql.state import State

Completion: TypeAlias = tuple[int, int, int, str, bool]
"""Row key, partition, fence, message id, whether the queue is strict about lapsed receipts."""

Removed: TypeAlias = tuple[int, int, Core, int, str | None, str | None]
"""When it became visible, its phase, and what the log says of it: core, priority, session, and what
its detail has of it."""


def removed_of(row: tuple[Any, ...], fence: int) -> Removed:
    """Return what was removed, of a row that the statement ``complete`` returns."""
    return (
        row[1],
        row[2],
        (row[3], row[4], row[1], row[5], fence, row[2], *row[6:10]),
        priority_of(row[10]),
        row[11],
        row[12],
    )


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
        for command, plan, entry in zip(run, plans, entries, strict=True):
            gone = removed.get(plan[0]) if plan is not None else None
            if gone is None or entry is None:
                results.append(self._complete_slowly(command, now_ms))
                continue
            entry.message_count -= 1
            state.touched.add(entry)
            if entry.timeline is not None:
                entry.timeline.add(gone[0], gone[1], -1)
            if entry.logged:
                log.add_one(EventType.COMPLETED, entry, command.message_id, *gone[2:])
            results.append(c.DONE)
        return results

    def _completions(
        self, run: Sequence[c.Complete]
    ) -> tuple[list[Completion | None], list[Entry | None]]:
        """Return what each wants removed, None if it is sure to be refused."""
        state = self._state
        receipt_key = state.receipt_key
        plans: list[Completion | None] = []
        entries: list[Entry | None] = []
        entry, of = None, ("", "")
        for account, queue, message_id, receipt in run:
            if (account, queue) != of:
                entry, of = state.catalog.find(account, queue), (account, queue)
            entries.append(entry)
            plan = None
            if entry is not None:
                try:
                    row_key, fence, genuine = read_receipt(receipt_key, receipt)
                except ReceiptMalformed:
                    pass
                else:
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
        rows = self._state.cursor.executemany(self._state.sql["complete"], bounds)
        return {row[0]: removed_of(row, fences[row[0]]) for row in rows}

    def _remove_all(self, plans: Sequence[Completion], now_ms: int) -> dict[int, Removed]:
        """Remove many messages with two statements: one looks, the other removes.

        Nothing can come between them: there is one connection that writes, and it is in the middle
        of a transaction. It costs 1.1 us a message and not 2.9.
        """
        state = self._state
        keys = [plan[0] for plan in plans]
        there = {row[0]: row for row in state.fetch("to_complete", (state.keys_of(keys),))}
        removed = {}
        for row_key, partition, fence, message_id, strict in plans:
            row = there.get(row_key)
            if row is None:
                continue
            _, lane, its_fence, blob, expires_at_ms, visible_at_ms, phase = row[:7]
            if (
                its_fence == fence
                and lane & PARTITION_MASK == partition
                and expires_at_ms > now_ms
                and visible_at_ms > (now_ms if strict else -1)
                and id_from_blob(blob) == message_id
            ):
                inserted_at_ms, count = row[7:9]
                core = (inserted_at_ms, expires_at_ms, visible_at_ms, count, fence, phase)
                removed[row_key] = (
                    visible_at_ms,
                    phase,
                    (*core, *row[9:13]),
                    priority_of(lane),
                    row[13],
                    row[14],
                )
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
        self._state.log.add(EventType.COMPLETED, entry, message)
        return c.DONE
