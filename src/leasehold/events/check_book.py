"""What the check of an event log knows by the events so far: its bookkeeping.

Part of :mod:`leasehold.events.check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

from leasehold.domain.events import EventType
from leasehold.domain.model import NEVER_MS
from leasehold.events.check_groups import GroupRules
from leasehold.events.check_state import (
    KEPT,
    ClaimState,
    MessageState,
    Place,
    QueueState,
    Report,
    Row,
    Rule,
    Violation,
    changes_in,
)

ENDED: Final = 500_000
"""Messages whose end is remembered, the latest ones, some 100 MB."""
SESSIONS: Final = 100_000
"""Sessions whose end is remembered, the latest ones."""


class Book:
    """What is known of the messages, queues, claims and sessions of a log.

    Args: see :class:`leasehold.events.check.Checker`.
    """

    def __init__(
        self,
        *,
        settings: Mapping[Place, Mapping[str, Any]] | None,
        whole: bool | None,
        all_accounts: bool,
        session_grace_ms: int,
        shard: tuple[int, int],
    ) -> None:
        self.report = Report()
        self._shards, self._shard = shard
        self._given = settings or {}
        self._whole = whole
        self._all_accounts = all_accounts
        self._grace_ms = session_grace_ms
        self._messages: dict[str, MessageState] = {}
        self._ended: dict[str, tuple[int, int]] = {}
        self._ended_before: dict[str, tuple[int, int]] = {}
        self._queues: dict[Place, QueueState] = {}
        self._claims: dict[tuple[Place, str], ClaimState] = {}
        self._settled: dict[int, tuple[Place, ClaimState]] = {}
        self._published: dict[tuple[str, str], int] = {}
        self._staged: dict[tuple[str, str], int] = {}
        """By account and transaction: how many messages are staged."""
        self._given_back: dict[tuple[Place, str], int] = {}
        """By stream: when members have left a claim last, which may have been given back."""
        self._over: dict[str, tuple[int, int, int]] = {}
        """Sessions that are over: since when on the clock of activity, on that of the log, and as
        of which batch."""
        self._groups = GroupRules(self._violate)
        self._row: Row = ()
        self._number = 0
        self._seq, self._place_in, self._at_ms = -1, -1, 0
        self._active_ms = 0
        self._any_blind = False

    @property
    def live(self) -> int:
        """How many messages are kept in memory."""
        return len(self._messages)

    def live_ids(self, place: tuple[str, str]) -> set[str]:
        """Return the messages that a queue has by now, without what is staged."""
        since = self._find(place).since
        return {
            message_id
            for message_id, message in self._messages.items()
            if message.queue == place and message.staged is None and message.number >= since
        }

    def forget(self) -> None:
        """Know nothing of the messages any more: events are left out here."""
        self._whole = False
        self._messages.clear()
        self._ended, self._ended_before = {}, {}
        self._claims.clear()
        for queue in self._queues.values():
            queue.count = None

    def _is_mine(self, message_id: str | None, group: str | None) -> bool:
        """Tell whether an event is judged here: those of a group are all in one part."""
        if message_id is None:
            return not self._shard
        return crc32((group or message_id).encode()) % self._shards == self._shard

    def _is_emptied(self, message: MessageState) -> bool:
        """Tell whether a message went with all others of its queue; what is staged stays."""
        return message.staged is None and message.number < self._find(message.queue).since

    def _find(self, place: Place) -> QueueState:
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = QueueState(self._given.get(place))
        return queue

    def _violate(self, rule: Rule | str, sentence: str, message_id: str | None = None) -> None:
        report, row = self.report, self._row
        report.found[rule] += 1
        if report.found[rule] <= KEPT:
            seq, place, at_ms, _, account, queue, own = row[:7]
            named = own if message_id is None else message_id
            report.violations.append(
                Violation(Rule(rule), seq, place, at_ms, account, queue, named, sentence)
            )

    def _enter(
        self, place: Place, message_id: str, message: MessageState, *, is_new: bool = True
    ) -> None:
        """Count a message into a queue."""
        queue = self._find(place)
        if queue.count is not None:
            queue.count += 1
        if message.group is not None:
            self._groups.arrived(queue, place, message_id, message, is_new=is_new)

    def _leave(self, message_id: str, message: MessageState) -> None:
        """Count a message out of its queue."""
        queue = self._find(message.queue)
        if queue.count is not None:
            queue.count -= 1
        if message.group is not None:
            self._groups.left(message.queue, message_id, message)

    def _gone(self, row: Row, message: MessageState) -> None:
        message_id = row[6]
        self._unclaim(message)
        if message.staged is None:
            self._leave(message_id, message)
        else:
            self._unstage(row[4], message)
        del self._messages[message_id]
        self._remember_end(message_id)

    def _remember_end(self, message_id: str) -> None:
        if len(self._ended) >= ENDED // 2:
            # To delete the oldest entries of a dictionary one by one is slow: it finds the gaps.
            self._ended_before, self._ended = self._ended, {}
        self._ended[message_id] = self._seq, self._place_in

    def _end_of(self, message_id: str) -> tuple[int, int] | None:
        """Return with which event a message was gone; None if that is not known."""
        return self._ended.get(message_id) or self._ended_before.get(message_id)

    def _unclaim(self, message: MessageState, *, is_loss: bool = True) -> None:
        """Take a message out of its claim."""
        claim = message.claim
        if claim is not None:
            claim.members -= 1
            claim.is_lossy = claim.is_lossy or is_loss
            message.claim = None

    def _keep(self, row: Row, message: MessageState, *, acts: bool) -> None:
        """Have a message be as its event says, out of its claim."""
        if message.claim is not None:
            self._unclaim(message)
        message.take(row)
        message.acts = acts
        message.number = self._number

    def _unstage(self, account: str, message: MessageState) -> None:
        name = account, message.staged or ""
        left = self._staged.get(name, 0) - 1
        if left > 0:
            self._staged[name] = left
        else:
            self._staged.pop(name, None)
            self._published.pop(name, None)

    # --- queues, sessions --------------------------------------------------------------------

    def _queue_created(self, row: Row) -> None:
        place = row[4], row[5]
        given = None if place in self._queues else self._given.get(place)
        queue = self._queues[place] = QueueState(given)
        queue.created, queue.count, queue.since = True, 0, self._number
        self._forget_queue(place)

    def _queue_emptied(self, row: Row) -> None:
        place = row[4], row[5]
        queue = self._find(place)
        queue.count, queue.since = 0, self._number
        queue.halted.clear()
        for message_id, message in tuple(self._messages.items()):
            if message.queue == place and message.staged is None:
                self._unclaim(message)
                del self._messages[message_id]
                self._remember_end(message_id)
            elif message.queue == place:
                message.number = self._number
        self._forget_queue(place, claims=row[3] == EventType.QUEUE_DELETED)

    def _forget_queue(self, place: Place, *, claims: bool = True) -> None:
        self._groups.forget(place)
        for key in [key for key in self._claims if key[0] == place] if claims else ():
            del self._claims[key]

    def _queue_updated(self, row: Row) -> None:
        place, reason = (row[4], row[5]), row[16] or ""
        queue = self._find(place)
        changes = changes_in(reason)
        if changes is None:
            queue.settings = {}
            self.report.not_judged["changes of settings that are too long to be told"] += 1
            return
        queue.update(changes)
        if "event_log" in changes:
            queue.is_blind = self._any_blind = True
            queue.count, queue.since = None, self._number
            self._groups.forget(place)

    def _queue_paused(self, row: Row) -> None:
        until = NEVER_MS if row[8] is None else row[8]
        paused = row[3] == EventType.QUEUE_PAUSED
        self._find((row[4], row[5])).paused_until = until if paused else 0

    def _group_event(self, row: Row) -> None:
        self._find((row[4], row[5])).note_group(row[3], row[18], row[15])

    def _session_event(self, row: Row) -> None:
        if row[3] != EventType.SESSION_STARTED:
            self._over[row[15]] = self._active_ms, row[2], row[0]
            if len(self._over) > SESSIONS:
                del self._over[next(iter(self._over))]
