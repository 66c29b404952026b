"""Messages in memory: what workers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseholdError, NamedTwice, NotDone
from leasehold.domain.failures import (
    POISONED_AT_ONCE,
    backoff_ms,
    close_attempt,
    exhausted_on_receive,
    exhausted_on_release,
)
from leasehold.domain.ids import make_message_id
from leasehold.domain.queue_settings import FailurePolicy
from leasehold.domain.throttle import allowance, spend
from leasehold.domain.types import Lease, Message, Outcome, Phase
from leasehold.domain.visibility import (
    after_lapse,
    after_poison,
    after_receive,
    after_release,
    after_renew,
    expiry_of,
    is_receivable,
    put_refusal,
    receive_order,
    release_refusal,
    renew_refusal,
)
from leasehold.stores.memory.shelves import Shelf, Shelves

_NO_POLICY = FailurePolicy()


class MessageVerbs:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    def put(self, command: c.Put) -> c.Result:
        """Put a message, unless its key is known."""
        shelves = self._shelves
        shelf = shelves.get(command.account, command.queue)
        key, now_ms = command.detail.dedup_key, shelves.now_ms
        if key is not None and key in shelf.keys and now_ms < shelf.keys[key][1]:
            return shelf.keys[key][0]
        expires_at_ms = expiry_of(now_ms, command.time_to_live_s)
        refusal = put_refusal(now_ms, command.delay_s, expires_at_ms)
        if refusal:
            raise refusal
        shelves.last_row_key += 1
        message = Message(
            message_id=make_message_id(shelves.last_row_key, command.entropy),
            body=command.body,
            inserted_at_ms=now_ms,
            expires_at_ms=expires_at_ms,
            visible_at_ms=now_ms + command.delay_s * 1000,
            phase=Phase.DELAYED if command.delay_s else Phase.WAITING,
            since_ms=now_ms,
            priority=command.priority,
            detail=command.detail,
        )
        lease = shelves.keep(shelf, shelves.last_row_key, message)
        window_s = shelf.queue.settings.dedup_window_s
        if key is not None and window_s:
            first = c.Duplicate(
                message.message_id,
                lease.receipt,
                message.inserted_at_ms,
                message.expires_at_ms,
                message.visible_at_ms,
            )
            shelf.keys[key] = first, now_ms + window_s * 1000
        return lease

    def receive(self, command: c.Receive) -> c.Result:
        """Lease the next messages; what may not be delivered again goes to the poison queue."""
        shelves = self._shelves
        now_ms = shelves.now_ms
        shelf = shelves.get(command.account, command.queue)
        settings = shelf.queue.settings
        limit = command.limit
        if settings.is_paused(now_ms):
            return ()
        rate_per_s = settings.max_receives_per_s
        if rate_per_s is not None:
            allowed, shelf.bucket = allowance(shelf.bucket, rate_per_s, now_ms)
            limit = min(limit, allowed)
        lease_s = command.visibility_timeout_s
        lease_s = settings.lease_s() if lease_s is None else lease_s
        taken: list[Lease] = []
        left = POISONED_AT_ONCE
        for row_key, message, reason in list(self._in_order(shelf)):
            if len(taken) == limit:
                break
            if reason is not None:
                if not left:
                    break
                self._poison(shelf, row_key, message, reason)
                left -= 1
                continue
            leased = after_receive(message, now_ms, lease_s, command.holder)
            taken.append(shelves.keep(shelf, row_key, leased))
        if rate_per_s is not None and shelf.bucket is not None:
            shelf.bucket = spend(shelf.bucket, len(taken))
        return tuple(taken)

    def peek(self, command: c.Peek) -> c.Result:
        """Look at the next messages."""
        shelf = self._shelves.get(command.account, command.queue)
        found = [
            shelf.rows[row_key] for row_key, _, reason in self._in_order(shelf) if reason is None
        ]
        return tuple(found[: command.limit])

    def _in_order(self, shelf: Shelf) -> Iterator[tuple[int, Message, str | None]]:
        """Go over what can be received: row key, message with its lapse noted, reason against."""
        now_ms = self._shelves.now_ms
        settings = shelf.queue.settings
        policy = settings.failure_policy
        ageing_s = settings.priority_ageing_s
        for row_key in sorted(
            (key for key, message in shelf.rows.items() if is_receivable(message, now_ms)),
            key=lambda key: receive_order(shelf.rows[key], key, ageing_s),
        ):
            message = after_lapse(shelf.rows[row_key], now_ms)
            yield row_key, message, exhausted_on_receive(message, policy) if policy else None

    def _poison(self, shelf: Shelf, row_key: int, message: Message, reason: str) -> Message:
        poison = self._shelves.make_poison_of(shelf)
        queue = shelf.queue
        policy = queue.settings.failure_policy or _NO_POLICY
        poisoned = after_poison(message, self._shelves.now_ms, policy, queue.name, reason)
        del shelf.rows[row_key]
        poison.rows[row_key] = poisoned
        return poisoned

    def renew(self, command: c.Renew) -> c.Result:
        """Move the end of a lease."""
        now_ms, timeout_s = self._shelves.now_ms, command.visibility_timeout_s
        shelf, row_key, message = self._shelves.acting(command)
        refusal = renew_refusal(message, now_ms, timeout_s)
        if refusal:
            raise refusal
        renewed = after_renew(message, now_ms, timeout_s, command.body, command.progress)
        return self._shelves.keep(shelf, row_key, renewed)

    def complete(self, command: c.Complete) -> c.Result:
        """Remove a message whose work is done."""
        shelf, row_key, _ = self._shelves.acting(command)
        del shelf.rows[row_key]
        return c.DONE

    def release(self, command: c.Release) -> c.Result:
        """Give a message back, or move it to the poison queue."""
        now_ms = self._shelves.now_ms
        shelf, row_key, message = self._shelves.acting(command)
        refusal = release_refusal(message, now_ms, command.delay_s)
        if refusal:
            raise refusal
        policy = shelf.queue.settings.failure_policy or _NO_POLICY
        closed = close_attempt(message, command.outcome, now_ms, command.error)
        reason = exhausted_on_release(closed, policy, command.outcome)
        if reason is not None:
            poisoned = self._poison(shelf, row_key, closed, reason)
            return c.Released(message.message_id, poisoned.visible_at_ms, reason)
        delay_ms = (command.delay_s or 0) * 1000
        if command.delay_s is None and command.outcome is Outcome.FAILED and policy.backoff:
            delay_ms = backoff_ms(policy.backoff, closed.detail.failures, command.dice)
        released = after_release(closed, now_ms, delay_ms)
        shelf.rows[row_key] = released
        return c.Released(message.message_id, released.visible_at_ms)

    # --- several at once ---------------------------------------------------------------------

    def batch(self, command: c.Batch) -> c.Result:
        """Carry out several commands, all or nothing if so asked."""
        if command.atomic:
            refusals = self._refusals(command.commands)
            if any(refusals):
                return tuple(refusal or NotDone() for refusal in refusals)
        return tuple(self._perform(each) for each in command.commands)

    def _perform(self, command: c.Put | c.Renew | c.Complete | c.Release) -> c.Result:
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

    def _refusals(
        self, commands: tuple[c.Put | c.Renew | c.Complete | c.Release, ...]
    ) -> list[LeaseholdError | None]:
        """Say of each command why it would be refused, None if it would not."""
        refusals: list[LeaseholdError | None] = []
        named = set()
        for command in commands:
            try:
                self._check(command)
            except LeaseholdError as error:
                refusals.append(error)
                continue
            if isinstance(command, c.Put):
                refusals.append(None)
                continue
            refusals.append(NamedTwice() if command.message_id in named else None)
            named.add(command.message_id)
        return refusals

    def _check(self, command: c.Put | c.Renew | c.Complete | c.Release) -> None:
        now_ms = self._shelves.now_ms
        refusal = None
        if isinstance(command, c.Put):
            self._shelves.get(command.account, command.queue)
            expires_at_ms = expiry_of(now_ms, command.time_to_live_s)
            refusal = put_refusal(now_ms, command.delay_s, expires_at_ms)
        else:
            _, _, message = self._shelves.acting(command)
            if isinstance(command, c.Renew):
                refusal = renew_refusal(message, now_ms, command.visibility_timeout_s)
            elif isinstance(command, c.Release):
                refusal = release_refusal(message, now_ms, command.delay_s)
        if refusal:
            raise refusal
