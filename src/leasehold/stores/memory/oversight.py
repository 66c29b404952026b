"""Looking at messages in memory, and moving them without a receipt."""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain.cursors import Place, read_place
from leasehold.domain.errors import (
    MessageLeased,
    MessageNotFound,
    MessageNotLeased,
    VisibilityPastExpiry,
)
from leasehold.domain.event_log import OPERATOR
from leasehold.domain.events import EventType
from leasehold.domain.failures import newest_error
from leasehold.domain.ids import row_key_of
from leasehold.domain.matching import matches
from leasehold.domain.throttle import next_token_ms
from leasehold.domain.types import Message, MessageState, Phase
from leasehold.domain.visibility import (
    after_amend,
    after_ended_lease,
    is_expired,
    state_of,
)
from leasehold.stores.memory.shelves import Shelf, Shelves
from leasehold.stores.memory.staging import StagingVerbs

_LISTED_STATES = (
    MessageState.VISIBLE,
    MessageState.LEASED,
    MessageState.DELAYED,
    MessageState.DEFERRED,
)


class OversightVerbs:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, shelves: Shelves, staging: StagingVerbs) -> None:
        self._shelves = shelves
        self._staging = staging

    # --- looking -----------------------------------------------------------------------------

    def inspect(self, command: o.Inspect) -> c.Result:
        """List messages, oldest first."""
        shelf = self._shelves.get(command.account, command.queue)
        found: list[o.Seen] = []
        last = ""
        for place, seen in self.walk(shelf, read_place(command.after), command.filter):
            if len(found) == command.limit:
                return o.MessagePage(tuple(found), last)
            if matches(seen.message, seen.state, command.filter, self._shelves.now_ms):
                found.append(seen)
                last = str(place)
        return o.MessagePage(tuple(found), None)

    def walk(
        self, shelf: Shelf, after: Place, wanted: o.MessageFilter, *, apart: bool = True
    ) -> Iterator[tuple[Place, o.Seen]]:
        """Go over a queue's messages and, if they are asked for, those in its poison queue.

        Args:
            shelf: The queue.
            after: Where to go on.
            wanted: Which messages; some that it does not mean come as well.
            apart: Whether to go over what is retired or staged as well.
        """
        now_ms = self._shelves.now_ms
        if not after.poison:
            own = {row_key: shelf.seen(row_key, now_ms) for row_key in shelf.rows}
            if apart:
                own |= self._apart(shelf, wanted)
            for row_key, seen in sorted(own.items(), key=lambda each: each[0]):
                if row_key > after.row_key:
                    yield Place(poison=False, row_key=row_key), seen
            after = Place(poison=True, row_key=0)
        poison = self._shelves.poison_of(shelf)
        if poison is None or not (wanted.states is None or MessageState.POISONED in wanted.states):
            return
        for row_key, message in sorted(poison.rows.items()):
            if row_key > after.row_key and self._is_from(shelf, message):
                seen = poison.seen(row_key, now_ms)._replace(state=MessageState.POISONED)
                yield Place(poison=True, row_key=row_key), seen

    def _apart(self, shelf: Shelf, wanted: o.MessageFilter) -> dict[int, o.Seen]:
        """Return what is retired and, if it is asked for, what is staged."""
        found = {
            row_key: o.Seen(message, MessageState.EXPIRED, shelf.queue.name)
            for row_key, message in shelf.retired.items()
        }
        if wanted.states is None or MessageState.STAGED in wanted.states:
            found |= dict(self._staging.staged_for(shelf))
        return found

    def _is_from(self, shelf: Shelf, message: Message) -> bool:
        """Tell whether a poisoned message is one of this queue, and can still be had."""
        poisoning = message.detail.poisoning
        mine = poisoning is None or poisoning.queue == shelf.queue.name
        return mine and not is_expired(message, self._shelves.now_ms)

    def find(self, command: o.FindMessage) -> c.Result:
        """Look for one message by id."""
        shelf = self._shelves.get(command.account, command.queue)
        row_key = row_key_of(command.message_id)
        if row_key is None:
            raise MessageNotFound
        now_ms = self._shelves.now_ms
        own = self._apart(shelf, o.EVERYTHING)
        if row_key in shelf.rows:
            own[row_key] = shelf.seen(row_key, now_ms)
        if row_key in own and own[row_key].message.message_id == command.message_id:
            return own[row_key]
        poison = self._shelves.poison_of(shelf)
        message = poison.rows.get(row_key) if poison else None
        if (
            poison is None
            or message is None
            or message.message_id != command.message_id
            or not self._is_from(shelf, message)
        ):
            raise MessageNotFound
        return poison.seen(row_key, now_ms)._replace(state=MessageState.POISONED)

    def count(self, command: o.CountMessages) -> c.Result:
        """Count by state."""
        return self.counts_of(self._shelves.get(command.account, command.queue))

    def counts_of(self, shelf: Shelf) -> o.Counts:
        """Count the messages of a queue by state."""
        now_ms = self._shelves.now_ms
        numbers = dict.fromkeys((*_LISTED_STATES, MessageState.EXPIRED), 0)
        since: dict[MessageState, int] = {}
        for row_key, message in shelf.rows.items():
            state = shelf.state_of(row_key, now_ms)
            numbers[state] += 1
            if state is MessageState.EXPIRED:
                continue
            if state is MessageState.DELAYED and message.phase is Phase.WAITING:
                continue  # put without a delay, and the clock was set back
            begun_ms = message.visible_at_ms if state is MessageState.VISIBLE else message.since_ms
            since[state] = min(since.get(state, begun_ms), begun_ms)
        poison = self._shelves.poison_of(shelf)
        poisoned = poison.rows.values() if poison else ()
        return o.Counts(
            visible=numbers[MessageState.VISIBLE],
            leased=numbers[MessageState.LEASED],
            delayed=numbers[MessageState.DELAYED],
            deferred=numbers[MessageState.DEFERRED],
            poisoned=sum(not is_expired(message, now_ms) for message in poisoned),
            since=since,
            staged=len(list(self._staging.staged_for(shelf))),
            expired=numbers[MessageState.EXPIRED] + len(shelf.retired),
            claimed=sum(map(shelf.hides, shelf.held)),
        )

    def next_due(self, command: o.NextDue) -> c.Result:
        """Say when a receive may next get something."""
        shelf = self._shelves.get(command.account, command.queue)
        now_ms = self._shelves.now_ms
        due = [
            max(message.visible_at_ms, now_ms)
            for row_key, message in shelf.rows.items()
            # A claim says when it lapses, and nothing of when its members expire.
            if max(message.visible_at_ms, now_ms) < message.expires_at_ms or row_key in shelf.held
        ]
        if not due:
            return o.Due(None)
        settings = shelf.queue.settings
        at_ms = min(due)
        if settings.max_receives_per_s is not None:
            at_ms = max(at_ms, next_token_ms(shelf.bucket, settings.max_receives_per_s, now_ms))
        if settings.paused_until_ms is not None:
            at_ms = max(at_ms, settings.paused_until_ms)
        return o.Due(at_ms)

    # --- moving ------------------------------------------------------------------------------

    def amend(self, command: o.Amend) -> c.Result:
        """Change a message."""
        shelf, row_key, message = self._waiting(command, force=command.force)
        now_ms = self._shelves.now_ms
        amended = after_amend(
            message,
            now_ms,
            delay_s=command.delay_s,
            time_to_live_s=command.time_to_live_s,
            body=command.body,
            priority=command.priority,
            properties=command.properties,
        )
        if max(amended.visible_at_ms, now_ms) >= amended.expires_at_ms:
            raise VisibilityPastExpiry("put", command.delay_s or 0)
        self._shelves.keep(shelf, row_key, amended)
        self._shelves.note(EventType.AMENDED, shelf, amended)
        return o.Seen(amended, state_of(amended, now_ms), shelf.queue.name)

    def remove(self, command: o.Remove) -> c.Result:
        """Remove a message."""
        shelf, row_key, message = self._waiting(command, force=command.force)
        self._shelves.take(shelf, row_key)
        self._shelves.note(EventType.REMOVED, shelf, message, OPERATOR)
        return c.DONE

    def end_lease(self, command: o.EndLease) -> c.Result:
        """End a lease."""
        shelf, row_key, message = self._live(command)
        now_ms = self._shelves.now_ms
        if shelf.state_of(row_key, now_ms) is not MessageState.LEASED:
            raise MessageNotLeased
        ended = after_ended_lease(message, now_ms, command.delay_s, command.reason)
        if ended.visible_at_ms >= ended.expires_at_ms:
            raise VisibilityPastExpiry("release", command.delay_s)
        self._shelves.keep(shelf, row_key, ended)
        error = newest_error(ended)
        self._shelves.note(EventType.LEASE_ENDED, shelf, ended, OPERATOR, error=error)
        return o.Seen(ended, state_of(ended, now_ms), shelf.queue.name)

    def _live(self, command: o.Amend | o.Remove | o.EndLease) -> tuple[Shelf, int, Message]:
        shelf = self._shelves.get(command.account, command.queue)
        row_key, message = self._shelves.live(shelf, command.message_id)
        return shelf, row_key, message

    def _waiting(self, command: o.Amend | o.Remove, *, force: bool) -> tuple[Shelf, int, Message]:
        shelf, row_key, message = self._live(command)
        if not force and shelf.state_of(row_key, self._shelves.now_ms) is MessageState.LEASED:
            raise MessageLeased(message.holder, message.visible_at_ms)
        return shelf, row_key, message
