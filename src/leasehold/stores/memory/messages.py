"""Messages in memory: what workers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from leasehold.domain import commands as c
from leasehold.domain.claims import Exemption
from leasehold.domain.errors import LeaseholdError, NamedTwice, NotDone
from leasehold.domain.event_recorder import event_of_renewal
from leasehold.domain.events import EventType
from leasehold.domain.failures import backoff_ms, close_attempt, exhausted_on_release
from leasehold.domain.groups import check_hold
from leasehold.domain.limits import LOOK_BYTES
from leasehold.domain.model import (
    Lease,
    Message,
    Outcome,
    Phase,
    expiry_of,
    fitting,
    make_message_id,
    own_timeout_refusal,
    put_refusal,
    read_receipt,
)
from leasehold.domain.visibility import (
    after_lapse,
    after_receive,
    after_release,
    after_renew,
    after_repeat,
    is_repeat,
    release_refusal,
    renew_refusal,
)
from leasehold.stores.memory.sessions import Sessions
from leasehold.stores.memory.tables import NO_POLICY, QueueTable, Tables, Taking

_BatchCommand: TypeAlias = c.Put | c.Renew | c.Complete | c.Release


class MessageHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, tables: Tables, taking: Taking, sessions: Sessions) -> None:
        self._tables = tables
        self._taking = taking
        self._sessions = sessions

    def put(self, command: c.Put) -> c.Result:
        """Put a message, unless its key is known."""
        tables = self._tables
        table = tables.get(command.account, command.queue)
        now_ms = tables.now_ms
        first = table.first_with(command.detail.dedup_key, now_ms)
        if first is not None:
            return first
        expires_at_ms = expiry_of(now_ms, command.time_to_live_s)
        refusal = put_refusal(now_ms, command.delay_s, expires_at_ms)
        own_s = command.detail.visibility_timeout_s
        refusal = refusal or own_timeout_refusal(own_s, table.queue.settings)
        if refusal:
            raise refusal
        row_key, message = self.make(command)
        lease = tables.keep(table, row_key, message)
        tables.note(EventType.PUT, table, message)
        table.keep_key(message, lease.receipt)
        return lease

    def make(self, command: c.Put) -> tuple[int, Message]:
        """Return a new message and its row key."""
        tables = self._tables
        tables.last_row_key += 1
        return tables.last_row_key, Message(
            message_id=make_message_id(tables.last_row_key, command.entropy),
            body=command.body,
            inserted_at_ms=tables.now_ms,
            expires_at_ms=expiry_of(tables.now_ms, command.time_to_live_s),
            visible_at_ms=tables.now_ms + command.delay_s * 1000,
            phase=Phase.DELAYED if command.delay_s else Phase.WAITING,
            since_ms=tables.now_ms,
            priority=command.priority,
            detail=command.detail,
        )

    def receive(self, command: c.Receive) -> c.Result:
        """Lease the next messages; what may not be delivered again goes to the poison queue."""
        tables = self._tables
        now_ms = tables.now_ms
        table = tables.get(command.account, command.queue)
        holder = command.holder
        if command.session is not None:
            holder = self._sessions.receive(command.account, command.session)
        if command.group is not None:
            check_hold(table.holds.get(command.group), command.session)
        settings = table.queue.settings
        taken: list[Lease] = []
        for row_key, message in self._taking.take(table, command.limit, group=command.group):
            lease_s = command.visibility_timeout_s
            if lease_s is None:
                sent = message.detail
                lease_s = settings.lease_of(sent.message_type, sent.visibility_timeout_s)
            leased = after_receive(message, now_ms, lease_s, holder, command.session)
            taken.append(tables.keep(table, row_key, leased))
            tables.note(EventType.RECEIVED, table, leased)
        return tuple(taken)

    def peek(self, command: c.Peek) -> c.Result:
        """Look at the next messages."""
        table = self._tables.get(command.account, command.queue)
        in_order = map(table.rows.__getitem__, self._taking.in_order(table))
        found = [message for message in in_order if self._can_be_had(table, message)]
        found = found[: command.limit]
        return tuple(found[: fitting([len(m.body) for m in found], LOOK_BYTES, at_least=True)])

    def _can_be_had(self, table: QueueTable, message: Message) -> bool:
        lapsed = after_lapse(message, self._tables.now_ms)
        return self._taking.reason_against(table, lapsed) is None

    def renew(self, command: c.Renew) -> c.Result:
        """Move the end of a lease."""
        now_ms, timeout_s = self._tables.now_ms, command.visibility_timeout_s
        table, row_key, message = self._tables.acting(command)
        groups = table.queue.settings.groups
        refusal = renew_refusal(message, now_ms, command, groups)
        if refusal:
            raise refusal
        if is_repeat(message, read_receipt(self._tables.receipt_key, command.receipt), command):
            renewed = after_repeat(message, now_ms, command)
        else:
            said = command.body, command.progress, command.saved
            renewed = after_renew(message, now_ms, timeout_s, *said)
        lease = self._tables.keep(table, row_key, renewed)
        self._sessions.hear_of(renewed)
        kind, reason = event_of_renewal(message, timeout_s)
        self._tables.note(kind, table, renewed, reason)
        return lease

    def complete(self, command: c.Complete) -> c.Result:
        """Remove a message whose work is done."""
        table, row_key, message = self._tables.acting(command)
        self._tables.take(table, row_key)
        self._tables.note(EventType.COMPLETED, table, message)
        return c.DONE

    def release(self, command: c.Release) -> c.Result:
        """Give a message back, or move it to the poison queue."""
        table, row_key, message = self._tables.acting(command)
        refusal = release_refusal(message, self._tables.now_ms, command.delay_s)
        if refusal:
            raise refusal
        return self.give_back(table, row_key, command)

    def give_back(self, table: QueueTable, row_key: int, how: c.Release | Exemption) -> c.Released:
        """Give a message back for a holder that may."""
        now_ms, message = self._tables.now_ms, table.rows[row_key]
        policy = table.queue.settings.failure_policy or NO_POLICY
        closed = close_attempt(message, how.outcome, now_ms, how.error)
        reason = exhausted_on_release(closed, policy, how.outcome)
        if reason is not None:
            poisoned = self._taking.poison(table, row_key, closed, reason)
            return c.Released(message.message_id, poisoned.visible_at_ms, reason)
        delay_ms = (how.delay_s or 0) * 1000
        if how.delay_s is None and how.outcome is Outcome.FAILED and policy.backoff:
            delay_ms = backoff_ms(policy.backoff, closed.detail.failures, how.jitter)
        released = after_release(closed, now_ms, delay_ms)
        self._tables.keep(table, row_key, released)
        error = None if closed is message else how.error
        self._tables.note(EventType.RELEASED, table, released, str(how.outcome), error=error)
        return c.Released(message.message_id, released.visible_at_ms)

    # --- several at once ---------------------------------------------------------------------

    def batch(self, command: c.Batch) -> c.Result:
        """Carry out several commands, all or nothing if so asked."""
        refused = self.refused(command.commands) if command.atomic else None
        if refused is not None:
            return refused
        return self.perform(command.commands)

    def perform(self, commands: tuple[_BatchCommand, ...]) -> tuple[c.Result, ...]:
        """Carry out several commands one after the other."""
        return tuple(self._perform(each) for each in commands)

    def refused(self, commands: tuple[_BatchCommand, ...]) -> tuple[c.Result, ...] | None:
        """Say of each command why it is not done, if any of them cannot be; None if all can."""
        refusals = self._refusals(commands)
        if not any(refusals):
            return None
        return tuple(refusal or NotDone() for refusal in refusals)

    def _perform(self, command: _BatchCommand) -> c.Result:
        verbs: dict[type, Callable[[Any], c.Result]] = {
            c.Put: self.put,
            c.Renew: self.renew,
            c.Complete: self.complete,
            c.Release: self.release,
        }
        try:
            return verbs[type(command)](command)
        except LeaseholdError as error:
            return error

    def _refusals(self, commands: tuple[_BatchCommand, ...]) -> list[LeaseholdError | None]:
        """Say of each command why it would be refused, None if it would not."""
        refusals: list[LeaseholdError | None] = []
        named = set()
        for command in commands:
            try:
                self.check(command)
            except LeaseholdError as error:
                refusals.append(error)
                continue
            if isinstance(command, c.Put):
                refusals.append(None)
                continue
            refusals.append(NamedTwice() if command.message_id in named else None)
            named.add(command.message_id)
        return refusals

    def check(self, command: _BatchCommand) -> None:
        """Raise what a command would be refused with."""
        now_ms = self._tables.now_ms
        refusal = None
        if isinstance(command, c.Put):
            settings = self._tables.get(command.account, command.queue).queue.settings
            expires_at_ms = expiry_of(now_ms, command.time_to_live_s)
            refusal = put_refusal(now_ms, command.delay_s, expires_at_ms)
            own_s = command.detail.visibility_timeout_s
            refusal = refusal or own_timeout_refusal(own_s, settings)
        else:
            table, _, message = self._tables.acting(command)
            if isinstance(command, c.Renew):
                groups = table.queue.settings.groups
                refusal = renew_refusal(message, now_ms, command, groups)
            elif isinstance(command, c.Release):
                refusal = release_refusal(message, now_ms, command.delay_s)
        if refusal:
            raise refusal
