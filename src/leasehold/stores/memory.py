"""The memory store: the pure rules and a dictionary.

It is the oracle that the other stores are compared with, so it does everything in the plainest
way, and it is good enough for people's own tests. Nothing survives the process.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from leasehold.domain import commands as c
from leasehold.domain.errors import (
    LeaseholdError,
    MessageNotFound,
    QueueExists,
    QueueNotFound,
)
from leasehold.domain.ids import make_message_id, row_key_of
from leasehold.domain.queues import same_metadata
from leasehold.domain.receipts import issue_receipt, read_receipt
from leasehold.domain.types import Lease, Message, Queue
from leasehold.domain.visibility import (
    after_receive,
    after_renew,
    expiry_of,
    is_expired,
    is_receivable,
    put_refusal,
    receipt_refusal,
    receive_order,
    renew_refusal,
)
from leasehold.stores.base import StoreHealth

_Rows: TypeAlias = dict[int, Message]


@dataclass(slots=True)
class _Held:
    """A queue and what is in it."""

    queue: Queue
    rows: _Rows = field(default_factory=dict)
    retired: _Rows = field(default_factory=dict)


class MemoryStore:
    """See :class:`leasehold.stores.base.Store`."""

    def __init__(self, *, receipt_key: bytes = b"memory") -> None:
        self._receipt_key = receipt_key
        self._queues: dict[tuple[str, str], _Held] = {}
        self._documents: dict[tuple[str, str], str] = {}
        self._last_row_key = 0
        self._dropped_rows = 0
        self._now_ms = 0
        self._verbs: dict[type, Callable[[Any], c.Result]] = {
            c.CreateQueue: self._create_queue,
            c.DeleteQueue: self._delete_queue,
            c.GetQueue: self._get_queue,
            c.SetQueueMetadata: self._set_metadata,
            c.SetQueuePolicies: self._set_policies,
            c.ListQueues: self._list_queues,
            c.GetAccountDocument: self._get_document,
            c.SetAccountDocument: self._set_document,
            c.Put: self._put,
            c.Receive: self._receive,
            c.Peek: self._peek,
            c.Renew: self._renew,
            c.Complete: self._complete,
            c.Clear: self._clear,
            c.RetireExpired: self._retire_expired,
            c.RemoveRetired: self._remove_retired,
            c.ReapDropped: self._reap_dropped,
            c.NoteTime: lambda _: c.DONE,
        }

    # --- the interface -----------------------------------------------------------------------

    def execute(self, batch: Sequence[c.Command], *, now_ms: int) -> list[c.Result]:
        """See :meth:`Store.execute`."""
        self._now_ms = now_ms
        return [self._perform(command) for command in batch]

    def commit(self) -> bool:
        """Do nothing: there is no disk."""
        return True

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Store.find_queue`."""
        held = self._queues.get((account, queue))
        return held.queue if held else None

    def message_counts(self) -> list[tuple[str, str, int]]:
        """See :meth:`Store.message_counts`."""
        return [(*key, len(held.rows)) for key, held in self._queues.items()]

    def health(self) -> StoreHealth:
        """See :meth:`Store.health`."""
        return StoreHealth(kind="memory", durable=False, writable=True, details={})

    def last_seen_ms(self) -> int:
        """See :meth:`Store.last_seen_ms`: a new store has seen nothing."""
        return 0

    def relieve(self) -> bool:
        """See :meth:`Store.relieve`."""
        return True

    def close(self) -> None:
        """See :meth:`Store.close`."""

    # --- queues ------------------------------------------------------------------------------

    def _perform(self, command: c.Command) -> c.Result:
        try:
            return self._verbs[type(command)](command)
        except LeaseholdError as error:
            return error

    def _held(self, account: str, queue: str) -> _Held:
        try:
            return self._queues[account, queue]
        except KeyError:
            raise QueueNotFound from None

    def _create_queue(self, command: c.CreateQueue) -> c.Result:
        key = command.account, command.queue
        held = self._queues.get(key)
        if held is not None:
            if same_metadata(held.queue.metadata, command.metadata):
                return c.QueueCreated(created=False)
            raise QueueExists
        self._queues[key] = _Held(
            Queue(
                account=command.account,
                name=command.queue,
                metadata=dict(command.metadata),
                lapsed_receipts=command.lapsed_receipts,
                created_at_ms=self._now_ms,
            )
        )
        return c.QueueCreated(created=True)

    def _delete_queue(self, command: c.DeleteQueue) -> c.Result:
        self._drop(self._held(command.account, command.queue))
        del self._queues[command.account, command.queue]
        return c.DONE

    def _drop(self, held: _Held) -> None:
        self._dropped_rows += len(held.rows) + len(held.retired)

    def _get_queue(self, command: c.GetQueue) -> c.Result:
        held = self._held(command.account, command.queue)
        return c.QueueInfo(queue=held.queue, message_count=len(held.rows))

    def _set_metadata(self, command: c.SetQueueMetadata) -> c.Result:
        held = self._held(command.account, command.queue)
        held.queue = replace(held.queue, metadata=dict(command.metadata))
        return c.DONE

    def _set_policies(self, command: c.SetQueuePolicies) -> c.Result:
        held = self._held(command.account, command.queue)
        held.queue = replace(held.queue, policies=command.policies)
        return c.DONE

    def _list_queues(self, command: c.ListQueues) -> c.Result:
        found = sorted(
            name
            for account, name in self._queues
            if account == command.account
            and name >= command.start
            and name.startswith(command.prefix)
        )
        page = found[: command.limit]
        return c.QueuePage(
            queues=tuple(self._queues[command.account, name].queue for name in page),
            next_start=found[command.limit] if len(found) > command.limit else None,
        )

    def _get_document(self, command: c.GetAccountDocument) -> c.Result:
        return c.AccountDocument(self._documents.get((command.account, command.kind)))

    def _set_document(self, command: c.SetAccountDocument) -> c.Result:
        self._documents[command.account, command.kind] = command.content
        return c.DONE

    # --- messages ----------------------------------------------------------------------------

    def _put(self, command: c.Put) -> c.Result:
        held = self._held(command.account, command.queue)
        expires_at_ms = expiry_of(self._now_ms, command.time_to_live_s)
        refusal = put_refusal(self._now_ms, command.delay_s, expires_at_ms)
        if refusal:
            raise refusal
        self._last_row_key += 1
        message = Message(
            message_id=make_message_id(self._last_row_key, command.entropy),
            body=command.body,
            inserted_at_ms=self._now_ms,
            expires_at_ms=expires_at_ms,
            visible_at_ms=self._now_ms + command.delay_s * 1000,
        )
        return self._keep(held, self._last_row_key, message)

    def _keep(self, held: _Held, row_key: int, message: Message) -> Lease:
        held.rows[row_key] = message
        return Lease(
            message=message, receipt=issue_receipt(self._receipt_key, row_key, message.fence)
        )

    def _next_visible(self, held: _Held, limit: int) -> list[int]:
        return heapq.nsmallest(
            limit,
            (key for key, message in held.rows.items() if is_receivable(message, self._now_ms)),
            key=lambda key: receive_order(held.rows[key], key),
        )

    def _receive(self, command: c.Receive) -> c.Result:
        held = self._held(command.account, command.queue)
        return tuple(
            self._keep(
                held,
                key,
                after_receive(held.rows[key], self._now_ms, command.visibility_timeout_s),
            )
            for key in self._next_visible(held, command.limit)
        )

    def _peek(self, command: c.Peek) -> c.Result:
        held = self._held(command.account, command.queue)
        return tuple(held.rows[key] for key in self._next_visible(held, command.limit))

    def _acting(self, command: c.Renew | c.Complete) -> tuple[_Held, int, Message]:
        """Return the message a receipt acts on, or raise why it may not."""
        held = self._held(command.account, command.queue)
        row_key = row_key_of(command.message_id)
        message = held.rows.get(row_key) if row_key is not None else None
        if (
            row_key is None
            or message is None
            or message.message_id != command.message_id
            or is_expired(message, self._now_ms)
        ):
            raise MessageNotFound
        receipt = read_receipt(self._receipt_key, command.receipt)
        rule = held.queue.lapsed_receipts
        refusal = receipt_refusal(message, row_key, receipt, self._now_ms, rule)
        if refusal:
            raise refusal
        return held, row_key, message

    def _renew(self, command: c.Renew) -> c.Result:
        held, row_key, message = self._acting(command)
        refusal = renew_refusal(message, self._now_ms, command.visibility_timeout_s)
        if refusal:
            raise refusal
        renewed = after_renew(message, self._now_ms, command.visibility_timeout_s, command.body)
        return self._keep(held, row_key, renewed)

    def _complete(self, command: c.Complete) -> c.Result:
        held, row_key, _ = self._acting(command)
        del held.rows[row_key]
        return c.DONE

    def _clear(self, command: c.Clear) -> c.Result:
        held = self._held(command.account, command.queue)
        self._drop(held)
        held.rows, held.retired = {}, {}
        return c.DONE

    # --- maintenance -------------------------------------------------------------------------

    def _retire_expired(self, command: c.RetireExpired) -> c.Result:
        expired: Iterable[tuple[int, int, _Held]] = (
            (message.expires_at_ms, key, held)
            for held in self._queues.values()
            for key, message in held.rows.items()
            if is_expired(message, self._now_ms)
        )
        due = heapq.nsmallest(command.limit, expired, key=lambda row: row[:2])
        for _, key, held in due:
            held.retired[key] = held.rows.pop(key)
        return c.Swept(len(due))

    def _remove_retired(self, command: c.RemoveRetired) -> c.Result:
        old = [
            (key, held)
            for held in self._queues.values()
            for key, message in held.retired.items()
            if message.expires_at_ms < command.expired_before_ms
        ]
        for key, held in old[: command.limit]:
            del held.retired[key]
        return c.Swept(min(len(old), command.limit))

    def _reap_dropped(self, command: c.ReapDropped) -> c.Result:
        count = min(self._dropped_rows, command.limit)
        self._dropped_rows -= count
        return c.Swept(count)
