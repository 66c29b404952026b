"""Giving back and moving to the poison queue, in a database."""

from __future__ import annotations

from leasehold.domain import commands as c
from leasehold.domain.claims import Exemption
from leasehold.domain.errors import LeaseholdError, NamedTwice, NotDone
from leasehold.domain.events import EventType
from leasehold.domain.failures import (
    backoff_ms,
    close_attempt,
    exhausted_on_release,
    newest_error,
)
from leasehold.domain.model import (
    GroupHalt,
    Message,
    Outcome,
    Queue,
    expiry_of,
    own_timeout_refusal,
    put_refusal,
)
from leasehold.domain.queue_settings import FailurePolicy, poison_queue_of
from leasehold.domain.visibility import after_poison, after_release, release_refusal, renew_refusal
from leasehold.stores.sql.catalog import DEFAULT_LANES, Entry, metadata_to_json
from leasehold.stores.sql.plain_json import settings_to_json
from leasehold.stores.sql.rows import Judge, Kept, rewrite
from leasehold.stores.sql.state import State

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
    group, groups = closed.detail.group_id, queue.settings.groups
    if group is not None and groups is not None and groups.halts(group):
        keep_halt(state, kept.entry, group, GroupHalt(now_ms, closed.message_id, reason))
    return poisoned


def keep_halt(state: State, entry: Entry, group: str, halt: GroupHalt) -> None:
    """Have a group stand still, unless it does already."""
    if group not in entry.halts:
        bounds = (entry.scope, group, halt.since_ms, halt.message_id, halt.reason)
        state.cursor.execute(state.sql["keep_halt"], bounds)
        entry.halts[group] = halt
        state.log.add_group(EventType.GROUP_HALTED, entry, group, halt)


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
            settings = self._state.catalog.get(command.account, command.queue).queue.settings
            expires_at_ms = expiry_of(now_ms, command.time_to_live_s)
            refusal = put_refusal(now_ms, command.delay_s, expires_at_ms)
            own_s = command.detail.visibility_timeout_s
            refusal = refusal or own_timeout_refusal(own_s, settings)
        else:
            entry, _, message, _ = self.judge(command, now_ms)
            if isinstance(command, c.Renew):
                groups = entry.queue.settings.groups
                refusal = renew_refusal(message, now_ms, command, groups)
            elif isinstance(command, c.Release):
                refusal = release_refusal(message, now_ms, command.delay_s)
        if refusal:
            raise refusal


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
