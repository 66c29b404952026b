"""Staged sends in memory: rows that are in no table until they are published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from leasehold.domain import commands as c
from leasehold.domain import transactions as rules
from leasehold.domain import transactions as st
from leasehold.domain.admin import Seen
from leasehold.domain.errors import AlreadyPublished, StagedNotFound
from leasehold.domain.events import EventType
from leasehold.domain.model import Message, MessageState, issue_receipt
from leasehold.stores.memory.messages import MessageHandlers
from leasehold.stores.memory.settle import Plans, Settling
from leasehold.stores.memory.tables import Box, Boxes, Part, QueueTable, Row, Tables

_MS = 1000


class TransactionHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(
        self, tables: Tables, messages: MessageHandlers, boxes: Boxes, settling: Settling
    ) -> None:
        self._tables = tables
        self._messages = messages
        self._boxes = boxes
        self._settling = settling

    # --- staging -----------------------------------------------------------------------------

    def stage(self, command: st.Stage) -> c.Result:
        """Put messages that no consumer sees yet."""
        tables, now_ms = self._tables, self._tables.now_ms
        key = command.account, command.name
        box = self._boxes.get(key) or Box(now_ms)
        if box.published is not None:
            raise AlreadyPublished
        part = box.parts.get(command.part) or Part()
        if rules.check_chunk(part.chunks, command.chunk):
            return st.Staged(len(part.rows), part.chunks, duplicate=True)
        for put in command.puts:
            table = tables.get(command.account, put.queue)
            rules.check_put(put, table.queue.settings, now_ms)
        for put in command.puts:
            row_key, message = self._messages.make(put)
            part.rows[row_key] = Row(put.queue, message)
            tables.note_body(message)
            self._note(EventType.STAGED, key, part.rows[row_key])
        part.chunks += 1
        box.until_ms = rules.until_after_stage(box.until_ms, now_ms, command.timeout_s)
        box.parts[command.part] = part
        self._boxes[key] = box
        return st.Staged(len(part.rows), part.chunks)

    def begin_binding(self, account: str, name: str) -> None:
        """Have a transaction that a claim can be bound to, or raise why there cannot be one."""
        now_ms = self._tables.now_ms
        box = self._boxes.get((account, name)) or Box(now_ms)
        if box.published is not None:
            raise AlreadyPublished
        box.until_ms = rules.until_after_bind(box.until_ms, now_ms)
        self._boxes[account, name] = box

    # --- publishing --------------------------------------------------------------------------

    def publish(self, command: st.Publish) -> c.Result:
        """Make the staged messages of some parts visible and drop the others."""
        key = command.account, command.name
        box = self._boxes.get(key)
        if box is not None and box.published is not None:
            return st.Published(box.published, already=True, duplicates=box.duplicates)
        plans = self._settling.plan(command.account, [command.name])
        chosen = rules.chosen_parts(command.name, None if box is None else box.parts, command.parts)
        self._check_queues(key, chosen)
        settled = self._settle(plans)
        moved = self._publish(key, chosen)
        return st.Published(
            moved.rows, by_queue=moved.by_queue, settled=settled, duplicates=moved.duplicates
        )

    def _settle(self, plans: Plans) -> tuple[st.StreamSettled, ...]:
        return tuple(self._settling.carry_out(plan) for plan in plans.values())

    def check_publish(self, account: str, name: str) -> None:
        """Raise what publishing a whole transaction would be refused with."""
        box = self._boxes.get((account, name))
        if box is None:
            raise StagedNotFound(name)
        self._check_queues((account, name), frozenset(box.parts))

    def publish_all(self, account: str, names: Iterable[str]) -> rules.Moved:
        """Publish whole transactions, those that were not before; return what that was."""
        moved = rules.NOTHING_MOVED
        for name in names:
            box = self._boxes[account, name]
            if box.published is None:
                moved = moved.plus(self._publish((account, name), frozenset(box.parts)))
        return moved

    def _check_queues(self, key: tuple[str, str], chosen: frozenset[str]) -> None:
        for name in chosen:
            for row in self._boxes[key].parts[name].rows.values():
                self._tables.get(key[0], row.queue)

    def _publish(
        self,
        key: tuple[str, str],
        chosen: frozenset[str],
        beside: rules.Moved = rules.NOTHING_MOVED,
    ) -> rules.Moved:
        """Publish these parts, drop the others, and remember the name with what went *beside*."""
        now_ms = self._tables.now_ms
        moved, duplicates = [], 0
        box = self._boxes.setdefault(key, Box(now_ms))
        for name, part in sorted(box.parts.items()):
            if name not in chosen:
                self._drop(key, part)
                continue
            for row_key, row in part.rows.items():
                table = self._tables.get(key[0], row.queue)
                if table.first_with(row.message.detail.dedup_key, now_ms) is not None:
                    self._note(EventType.DISCARDED, key, row, rules.DUPLICATE)
                    duplicates += 1
                    continue
                message = rules.shifted(row.message, now_ms)
                table.rows[row_key] = message
                self._tables.stir(table, message)
                table.keep_key(message, issue_receipt(self._tables.receipt_key, row_key, 0))
                self._note(EventType.PUBLISHED, key, Row(row.queue, message))
                moved.append((row.queue, 1))
        done = rules.Moved(rules.rows_by_queue(moved), duplicates)
        box.published, box.duplicates = beside.rows + done.rows, beside.duplicates + duplicates
        box.parts, box.bound = {}, {}
        box.until_ms = now_ms + st.REMEMBER_S * _MS
        return done

    def _drop(self, key: tuple[str, str], part: Part) -> None:
        for row in part.rows.values():
            self._tables.dropped.append(row.message)
            self._note(EventType.DISCARDED, key, row)

    def _note(
        self, kind: EventType, key: tuple[str, str], row: Row, reason: str | None = None
    ) -> None:
        """Record what happened to a staged message; its queue may be gone."""
        table = self._tables.queues.get((key[0], row.queue))
        if table is None:
            self._tables.log.add(kind, key[0], row.queue, row.message, target=key[1])
        else:
            self._tables.note(kind, table, row.message, reason, key[1])

    # --- dropping ----------------------------------------------------------------------------

    def discard(self, command: st.Discard) -> c.Result:
        """Drop what is staged; a transaction without parts is forgotten."""
        key = command.account, command.name
        box = self._boxes.get(key)
        if box is None:
            return st.Discarded(0)
        if box.published is not None:
            return st.Discarded(0, published=True)
        dropped = 0
        for name in box.parts.keys() if command.parts is None else set(command.parts):
            part = box.parts.get(name)
            if part is not None:
                dropped += len(part.rows)
                self._drop(key, part)
        if command.parts is not None:
            box.parts = {k: part for k, part in box.parts.items() if k not in command.parts}
        if command.parts is None:
            self._settling.release(*key)
            del self._boxes[key]
        elif box.is_empty:
            del self._boxes[key]
        return st.Discarded(dropped)

    def expire(self, command: st.ExpireStaged) -> c.Result:
        """Drop transactions whose time is over."""
        due = [
            (box.until_ms, key)
            for key, box in self._boxes.items()
            if box.until_ms <= self._tables.now_ms
        ]
        for _, key in sorted(due)[: command.limit]:
            self._settling.release(*key)
            for _, part in sorted(self._boxes.pop(key).parts.items()):
                self._drop(key, part)
        return c.Swept(min(len(due), command.limit))

    # --- looking -----------------------------------------------------------------------------

    def get(self, command: st.GetTransaction) -> c.Result:
        """Look at a transaction."""
        box = self._boxes.get((command.account, command.name))
        if box is None:
            raise StagedNotFound(command.name)
        return _view(command.account, command.name, box)

    def list(self, command: st.ListTransactions) -> c.Result:
        """List transactions by name."""
        found = [
            _view(account, name, box)
            for (account, name), box in sorted(self._boxes.items(), key=lambda each: each[0])
            if account == command.account
        ]
        wanted = [each for each in found if command.state in {None, each.state}]
        return tuple(wanted[: command.limit])

    def staged_for(self, table: QueueTable) -> Iterator[tuple[int, Seen]]:
        """Go over what is staged for a queue: row key, and the message as an inspector sees it."""
        queue = table.queue
        for (account, name), box in self._boxes.items():
            for part in box.parts.values():
                for row_key, row in part.rows.items():
                    if (account, row.queue) == (queue.account, queue.name):
                        yield row_key, Seen(row.message, MessageState.STAGED, queue.name, name)

    def messages(self) -> Iterator[Message]:
        """Go over all that is staged."""
        for box in self._boxes.values():
            for part in box.parts.values():
                for row in part.rows.values():
                    yield row.message

    # --- all together ------------------------------------------------------------------------

    def commit_together(self, command: st.CommitTogether) -> c.Result:
        """Carry out commands and publish staged transactions as one."""
        account, name = command.account, command.name
        box = None if name is None else self._boxes.get((account, name))
        if box is not None and box.published is not None:
            return st.Committed((), already=True)
        names = command.publish if name is None else (*command.publish, name)
        plans = self._settling.plan(account, names)
        for each in command.publish:
            self.check_publish(account, each)
        refused = self._messages.refused(command.commands)
        if refused is not None:
            return st.Committed(refused)
        results = self._messages.perform(command.commands)
        settled = self._settle(plans)
        moved = self.publish_all(account, command.publish)
        if name is not None and name not in command.publish:
            self._publish((account, name), frozenset(), moved)
        return st.Committed(
            results,
            moved.rows,
            by_queue=moved.by_queue,
            settled=settled,
            duplicates=moved.duplicates,
        )


def _view(account: str, name: str, box: Box) -> st.Transaction:
    parts = tuple(
        st.StagedPart(part=part, rows=len(each.rows), chunks=each.chunks)
        for part, each in sorted(box.parts.items())
    )
    staged = sum(part.rows for part in parts)
    is_staged = box.published is None
    return st.Transaction(
        account=account,
        name=name,
        state=st.TransactionState.STAGED if is_staged else st.TransactionState.PUBLISHED,
        created_at_ms=box.created_at_ms,
        until_ms=box.until_ms,
        rows=staged if box.published is None else box.published,
        duplicates=box.duplicates,
        parts=parts,
        claims=tuple(st.BoundClaim(*each) for each in sorted(box.bound)),
    )
