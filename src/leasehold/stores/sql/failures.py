"""Giving back and moving to the poison queue, in a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from leasehold.domain import commands as c
from leasehold.domain.admin import Counts
from leasehold.domain.claims import Exemption
from leasehold.domain.errors import LeaseholdError, NamedTwice, NotDone, QueueExists, SettingsDiffer
from leasehold.domain.events import EventType
from leasehold.domain.failures import (
    backoff_ms,
    close_attempt,
    exhausted_on_release,
    newest_error,
)
from leasehold.domain.model import (
    Message,
    Outcome,
    Queue,
    expiry_of,
    put_refusal,
    same_metadata,
    same_where_given,
    with_settings,
)
from leasehold.domain.queue_settings import FailurePolicy, poison_queue_of
from leasehold.domain.visibility import after_poison, after_release, release_refusal, renew_refusal
from leasehold.stores.sql.catalog import DEFAULT_LANES, Entry, metadata_to_json, policies_to_json
from leasehold.stores.sql.plain_json import settings_to_json
from leasehold.stores.sql.rows import Judge, Kept, rewrite
from leasehold.stores.sql.state import State

if TYPE_CHECKING:
    from leasehold.stores.sql.claims import ClaimHandlers


_NO_POLICY = FailurePolicy()


def poison(state: State, kept: Kept, closed: Message, reason: str, now_ms: int) -> Message:
    """Move a message to the poison queue, which is made if need be.

    Args:
        state: The store's.
        kept: The message as it is in its row.
        closed: The same with its attempt closed.
        reason: Which budget was used up, or ``buried``.
        now_ms: The time.
    """
    queue = kept.entry.queue
    target = state.catalog.poison_of(kept.entry)
    if target is None:
        name = poison_queue_of(queue.name, queue.settings)
        made = Queue(account=queue.account, name=name, created_at_ms=now_ms)
        target = add_queue(state, made)
    policy = queue.settings.failure_policy or _NO_POLICY
    poisoned = after_poison(closed, now_ms, policy, queue.name, reason)
    rewrite(state, kept, poisoned, target)
    told = reason, target.queue.name, newest_error(poisoned)
    state.log.add(EventType.POISONED, kept.entry, poisoned, *told)
    return poisoned


class FailureHandlers:
    """The verbs of giving back, and batches that are all or nothing."""

    judge: Judge
    """Decides on receipts; set once there are the verbs that have it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def release(self, command: c.Release, now_ms: int) -> c.Result:
        """Give a message back, or move it to the poison queue."""
        return self.give_back(self.judge(command, now_ms), command, now_ms)

    def check_give_back(self, kept: Kept, command: c.Release | Exemption, now_ms: int) -> None:
        """Raise what giving back would be refused with."""
        refusal = release_refusal(kept.message, now_ms, command.delay_s)
        if refusal:
            raise refusal

    def give_back(self, kept: Kept, command: c.Release | Exemption, now_ms: int) -> c.Released:
        """Give a message back, for a holder that may."""
        entry, _, message, _ = kept
        self.check_give_back(kept, command, now_ms)
        policy = entry.queue.settings.failure_policy or _NO_POLICY
        closed = close_attempt(message, command.outcome, now_ms, command.error)
        reason = exhausted_on_release(closed, policy, command.outcome)
        if reason is not None:
            poisoned = poison(self._state, kept, closed, reason, now_ms)
            return c.Released(message.message_id, poisoned.visible_at_ms, reason)
        delay_ms = (command.delay_s or 0) * 1000
        if command.delay_s is None and command.outcome is Outcome.FAILED and policy.backoff:
            delay_ms = backoff_ms(policy.backoff, closed.detail.failures, command.jitter)
        released = after_release(closed, now_ms, delay_ms)
        rewrite(self._state, kept, released)
        error = None if closed is message else command.error
        self._state.log.add(EventType.RELEASED, entry, released, command.outcome, None, error)
        return c.Released(message.message_id, released.visible_at_ms)

    def refusals(self, batch: c.Batch, now_ms: int) -> tuple[c.Result, ...] | None:
        """Say of each command of a batch why it is not done; None if all of them can be."""
        refusals: list[LeaseholdError | None] = []
        named = set()
        for command in batch.commands:
            try:
                self.check(command, now_ms)
            except LeaseholdError as error:
                refusals.append(error)
                continue
            if isinstance(command, c.Put):
                refusals.append(None)
                continue
            refusals.append(NamedTwice() if command.message_id in named else None)
            named.add(command.message_id)
        if not any(refusals):
            return None
        return tuple(refusal or NotDone() for refusal in refusals)

    def check(self, command: c.Put | c.Renew | c.Complete | c.Release, now_ms: int) -> None:
        """Raise what a command would be refused with."""
        refusal = None
        if isinstance(command, c.Put):
            self._state.catalog.get(command.account, command.queue)
            expires_at_ms = expiry_of(now_ms, command.time_to_live_s)
            refusal = put_refusal(now_ms, command.delay_s, expires_at_ms)
        else:
            message = self.judge(command, now_ms).message
            if isinstance(command, c.Renew):
                refusal = renew_refusal(message, now_ms, command)
            elif isinstance(command, c.Release):
                refusal = release_refusal(message, now_ms, command.delay_s)
        if refusal:
            raise refusal


# --- queues ------------------------------------------------------------------------------------
#
# Queues and account documents in a database.


class QueueHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(
        self, state: State, counts_of: Callable[[Entry, int], Counts], claims: ClaimHandlers
    ) -> None:
        self._state = state
        self._claims = claims
        self._counts_of = counts_of

    def create(self, command: c.CreateQueue, now_ms: int) -> c.Result:
        """Create a queue."""
        state = self._state
        entry = state.catalog.find(command.account, command.queue)
        if entry is not None:
            if not same_where_given(entry.queue.settings, command.settings, command.given):
                raise SettingsDiffer
            if same_metadata(entry.queue.metadata, command.metadata):
                return c.QueueCreated(created=False)
            raise QueueExists
        state.refuse_moved(command.account)
        queue = Queue(
            account=command.account,
            name=command.queue,
            metadata=dict(command.metadata),
            settings=command.settings,
            created_at_ms=now_ms,
        )
        add_queue(state, queue)
        return c.QueueCreated(created=True)

    def delete(self, command: c.DeleteQueue, _now_ms: int) -> c.Result:
        """Delete a queue; its messages are out of reach at once."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        self._claims.forget_streams(entry)
        state.drop_partition(entry)
        state.log.add_queue(EventType.QUEUE_DELETED, entry)
        state.cursor.execute(state.sql["delete_queue"], (command.account, command.queue))
        state.catalog.remove(entry)
        return c.DONE

    def clear(self, command: c.Clear, _now_ms: int) -> c.Result:
        """Empty a queue by giving it a new partition."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        self._claims.lose_members(entry)
        state.drop_partition(entry)
        state.log.add_queue(EventType.QUEUE_CLEARED, entry)
        partition = state.new_partition()
        bounds = (partition, DEFAULT_LANES, command.account, command.queue)
        state.cursor.execute(state.sql["move_queue"], bounds)
        state.catalog.move(entry, partition)
        return c.DONE

    def get(self, command: c.GetQueue, now_ms: int) -> c.Result:
        """Return a queue and its count, which the open batch has kept up to date."""
        entry = self._state.catalog.get(command.account, command.queue)
        counts = self._counts_of(entry, now_ms) if command.with_counts else None
        return c.QueueInfo(queue=entry.queue, message_count=entry.message_count, counts=counts)

    def set_metadata(self, command: c.SetQueueMetadata, _now_ms: int) -> c.Result:
        """Replace the metadata."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        state.cursor.execute(
            state.sql["set_metadata"],
            (metadata_to_json(command.metadata), command.account, command.queue),
        )
        entry.take(replace(entry.queue, metadata=dict(command.metadata)))
        return c.DONE

    def set_settings(self, command: c.SetQueueSettings, _now_ms: int) -> c.Result:
        """Replace the settings."""
        entry = self._state.catalog.get(command.account, command.queue)
        self._keep_settings(entry, with_settings(entry.queue, command.settings))
        return c.DONE

    def set_adapted(self, command: c.SetAdapted, _now_ms: int) -> c.Result:
        """Set the visibility timeout that the server has chosen."""
        entry = self._state.catalog.get(command.account, command.queue)
        settings = replace(entry.queue.settings, adapted=command.adapted)
        self._keep_settings(entry, replace(entry.queue, settings=settings))
        return c.DONE

    def _keep_settings(self, entry: Entry, queue: Queue) -> None:
        state = self._state
        bounds = (settings_to_json(queue.settings), queue.account, queue.name)
        state.cursor.execute(state.sql["set_settings"], bounds)
        entry.take(queue)

    def set_policies(self, command: c.SetQueuePolicies, _now_ms: int) -> c.Result:
        """Replace the stored access policies."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        state.cursor.execute(
            state.sql["set_policies"],
            (policies_to_json(command.policies), command.account, command.queue),
        )
        entry.take(replace(entry.queue, policies=command.policies))
        return c.DONE

    def list(self, command: c.ListQueues, _now_ms: int) -> c.Result:
        """List queues by name."""
        state = self._state
        names = [
            name
            for (name,) in state.cursor.execute(
                state.sql["list_queues"],
                (command.account, command.prefix, command.start, command.limit + 1),
            )
        ]
        queues = tuple(
            state.catalog.get(command.account, name).queue for name in names[: command.limit]
        )
        return c.QueuePage(
            queues=queues,
            next_start=names[command.limit] if len(names) > command.limit else None,
        )

    def get_document(self, command: c.GetAccountDocument, _now_ms: int) -> c.Result:
        """Read a document."""
        content = self._state.value("get_document", (command.account, command.kind))
        return c.AccountDocument(content)

    def set_document(self, command: c.SetAccountDocument, _now_ms: int) -> c.Result:
        """Write a document."""
        self._state.refuse_moved(command.account)
        self._state.cursor.execute(
            self._state.sql["set_document"], (command.account, command.kind, command.content)
        )
        return c.DONE


def add_queue(state: State, queue: Queue) -> Entry:
    """Add a queue that is not there."""
    partition = state.new_partition()
    state.cursor.execute(
        state.sql["insert_queue"],
        (
            queue.account,
            queue.name,
            partition,
            metadata_to_json(queue.metadata),
            settings_to_json(queue.settings),
            queue.created_at_ms,
            DEFAULT_LANES,
            partition,
        ),
    )
    entry = state.catalog.entry_type(queue, partition, 0, scope=partition)
    state.catalog.add(entry)
    for slot in state.catalog.slots.values():
        if (slot.account, slot.queue) == (queue.account, queue.name):
            entry.staged += slot.rows
    state.log.add_queue(EventType.QUEUE_CREATED, entry)
    return entry
