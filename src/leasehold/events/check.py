"""Checking an event log against the rules of the queue: a pure state machine, event by event.

It reads events in their order and knows from each what the message must be like next, as
:mod:`leasehold.domain.visibility` says. What a rule forbids is a :class:`Violation`. What cannot
be judged, because the log begins in the middle or does not tell, is left out and counted: there is
no false alarm. It knows nothing of files, servers and Spark.

An event is a :class:`Row`, a tuple, because there can be 100 million of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from leasehold.domain.claims import AGAIN_STEP
from leasehold.domain.events import OPERATOR, REMOVING, EventType
from leasehold.domain.model import NEVER_MS, Outcome, Phase
from leasehold.domain.queue_settings import POISON_SUFFIX, LapsedReceipts
from leasehold.domain.sessions import NO_PROGRESS, SESSION_ENDED, SESSION_LOST
from leasehold.domain.wording import times_of
from leasehold.events.check_book import (
    FIELDS,
    Book,
    ClaimState,
    MessageState,
    Place,
    QueueState,
    Report,
    Row,
    Rule,
    Violation,
)

__all__ = ["FIELDS", "Checker", "Report", "Row", "Rule", "Violation"]

SESSION_GRACE_MS: Final = 60_000
"""How long the leases of a session that is over may go on: they end in steps."""
_STILL_MS: Final = 5_000
"""Of a time without events so much counts at most: the server may not have run."""
_SPLIT_SEQS: Final = 1_000
"""A transaction is judged as a whole when the log is so many batches further: it may be several."""
_FULL_STEP: Final = 500
"""From so many messages on a step of opening a claim may be followed by another."""
assert _FULL_STEP <= AGAIN_STEP

_EVENTS: Final = frozenset(int(each) for each in EventType)
_LEASED: Final = int(Phase.LEASED)
_DEFERRED: Final = int(Phase.DEFERRED)
_LENIENT: Final = str(LapsedReceipts.UNTIL_RETAKEN)
_LAPSE_REASONS: Final = frozenset({SESSION_LOST, NO_PROGRESS})
_BUDGETS: Final = ("max_deliveries", "max_failures", "max_interruptions", "max_lapses")


class Checker(Book):
    """Checks events, given in their order.

    Args:
        settings: By account and queue, the settings that queues have at the beginning of the log,
            as their JSON has them. Without them order, limits and budgets are judged from the
            first event on that tells them.
        whole: Whether the log begins with the store; None: it does if its first number is 1.
        all_accounts: Whether nothing was left out of the batches.
        session_grace_ms: How long leases may go on after their session, milliseconds.
        gaps: Numbers of batches behind which events are left out, as is known from elsewhere.
        shard: How many parts the messages are judged in, and which of them this is, from 0. Events
            without a message are taken into account by all parts, and judged by the first.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each says something else of the log
        self,
        *,
        settings: Mapping[Place, Mapping[str, Any]] | None = None,
        whole: bool | None = None,
        all_accounts: bool = True,
        session_grace_ms: int = SESSION_GRACE_MS,
        gaps: Collection[int] = (),
        shard: tuple[int, int] = (1, 0),
    ) -> None:
        super().__init__(
            settings=settings,
            whole=whole,
            all_accounts=all_accounts,
            session_grace_ms=session_grace_ms,
            shard=shard,
        )
        self._gaps = sorted(gaps)
        self._verbs: dict[int, Callable[[Row, MessageState], None]] = {
            EventType.RECEIVED: self._received,
            EventType.COMPLETED: self._completed,
            EventType.RENEWED: self._renewed,
            EventType.RELEASED: self._released,
            EventType.LAPSED: self._lapsed,
            EventType.POISONED: self._moved,
            EventType.REDRIVEN: self._moved,
            EventType.AMENDED: self._amended,
            EventType.REMOVED: self._removed,
            EventType.LEASE_ENDED: self._lease_ended,
            EventType.EXPIRED: self._expired,
            EventType.CANCEL_ASKED: self._unchanged,
            EventType.PUBLISHED: self._publish,
            EventType.DISCARDED: self._discarded,
            EventType.CLAIMED: self._claimed,
            EventType.SETTLED: self._settle,
            EventType.UNCLAIMED: self._unclaimed,
        }
        self._others: dict[int, Callable[[Row], None]] = {
            EventType.QUEUE_CREATED: self._queue_created,
            EventType.QUEUE_DELETED: self._queue_emptied,
            EventType.QUEUE_CLEARED: self._queue_emptied,
            EventType.QUEUE_UPDATED: self._queue_updated,
            EventType.QUEUE_PAUSED: self._queue_paused,
            EventType.QUEUE_RESUMED: self._queue_paused,
            EventType.GROUP_HALTED: self._group_event,
            EventType.GROUP_RESUMED: self._group_event,
            EventType.GROUP_HELD: self._group_event,
            EventType.GROUP_RELEASED: self._group_event,
            EventType.CLAIM_EXTENDED: self._claim_event,
            EventType.CLAIM_LAPSED: self._claim_event,
            EventType.CLAIM_REOPENED: self._claim_event,
            EventType.SESSION_STARTED: self._session_event,
            EventType.SESSION_LOST: self._session_event,
            EventType.SESSION_ENDED: self._session_event,
        }

    # --- reading -----------------------------------------------------------------------------

    def feed(self, rows: Iterable[Row]) -> None:
        """Take the next events into account, each a tuple of :data:`FIELDS`."""
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take the next event into account."""
        seq, place, at_ms, kind, account, queue, message_id = row[:7]
        report, self._row = self.report, row
        self._number += 1
        if seq != self._seq or place <= self._place_in or at_ms != self._at_ms:
            self._go_on(seq, place, at_ms)
        elif self._all_accounts and place != self._place_in + 1:
            self._out_of_order("events of its batch are missing before it")
        self._place_in = place
        if self._shards > 1 and not self._is_mine(message_id, row.group_id):
            if kind in self._others:
                self._others[kind](row)
            return
        report.events += 1
        if kind not in _EVENTS:
            report.not_judged["events of types that this version does not know"] += 1
            return
        report.consumed += 1
        self._judge(row, kind, (account, queue), message_id)

    def _judge(self, row: Row, kind: int, place: Place, message_id: str | None) -> None:
        """Judge an event of a type that is known."""
        if message_id is None:
            self._others[kind](row)
        elif kind in _NEW:
            self._put(row, kind, place, message_id)
        elif kind != EventType.REFUSED:
            message = self._messages.get(message_id)
            if message is None or self._is_emptied(message):
                self._meet(row, place, message_id, message)
                return
            if place != message.queue:
                self._violate(Rule.MESSAGE_STATE, f"before that it was in {message.queue[1]}")
            if self._over:
                self._check_session(message)
            self._verbs[kind](row, message)

    def end(self) -> Report:
        """Return what was found, when there are no more events."""
        report = self.report
        self._judge_settled(None)
        for message_id, message in self._messages.items():
            if message.staged is not None:
                self._check_published(message_id, message)
            elif self._over:
                self._check_session(message, message_id)
        report.live = sum(
            message.staged is None and not self._is_emptied(message)
            for message in self._messages.values()
        )
        report.counts = {
            place: queue.count for place, queue in self._queues.items() if queue.count is not None
        }
        report.whole = bool(self._whole)
        return report

    def _go_on(self, seq: int, place: int, at_ms: int) -> None:
        """Begin another batch."""
        report = self.report
        while self._gaps and seq > self._gaps[0]:
            del self._gaps[0]
            self.forget()
        if self._seq < 0:
            report.first_seq, report.first_at_ms = seq, at_ms
            if self._whole is None:
                self._whole = seq == 1
            self._at_ms = at_ms
        elif (seq, place) <= (self._seq, self._place_in):
            self._out_of_order(f"it comes after {self._seq}.{self._place_in}")
        elif seq == self._seq:
            self._out_of_order("its time is another than that of its batch")
        if seq != self._seq and place and self._all_accounts:
            self._out_of_order("the beginning of its batch is missing")
        self._active_ms += min(max(at_ms - self._at_ms, 0), _STILL_MS)
        self._seq, self._at_ms = seq, at_ms
        report.last_seq, report.last_at_ms = seq, at_ms
        if self._settled:
            self._judge_settled(seq)

    def _out_of_order(self, sentence: str) -> None:
        if not self._shard:
            self._violate(Rule.LOG_ORDER, sentence)

    def _meet(self, row: Row, place: Place, message_id: str, old: MessageState | None) -> None:
        """Deal with an event of a message that is not known."""
        ended = self._end_of(message_id)
        if old is not None and not self._find(old.queue).is_blind:
            self._violate(Rule.KNOWN_MESSAGE, "its queue had been emptied")
        elif ended is not None:
            self._violate(Rule.KNOWN_MESSAGE, f"it was gone with event {ended[0]}.{ended[1]}")
        elif self._must_be_known(place, self._find(place)):
            self._violate(Rule.KNOWN_MESSAGE, "it was never put, or is gone")
        elif row.type not in _UNCLEAR:
            self.report.known_from += 1
        self._messages.pop(message_id, None)
        self._adopt(row, place, message_id)

    def _must_be_known(self, place: Place, queue: QueueState) -> bool:
        """Tell whether the log has told of every message that can be in a queue."""
        if not self._whole or self._any_blind or not queue.created:
            return False
        name = place[1]
        if not name.endswith(POISON_SUFFIX):
            return True
        source = self._queues.get((place[0], name.removesuffix(POISON_SUFFIX)))
        return source is not None and source.created

    def _adopt(self, row: Row, place: Place, message_id: str) -> None:
        """Know a message from now on, as its event says."""
        kind, target = row.type, row.target
        if kind in _GONE:
            self._remember_end(message_id)
        if kind in _GONE or kind in _UNCLEAR:
            return
        moved = kind in _MOVES
        message = MessageState((place[0], target) if moved else place, row)
        message.base = row.dequeue_count if moved else None
        message.acts = not moved
        message.number = self._number
        self._messages[message_id] = message
        if kind == EventType.CLAIMED:
            claim = self._claim_for(row)
            claim.is_lossy = True
            message.claim, claim.members = claim, claim.members + 1
        queue = self._find(message.queue)
        queue.count = None  # how many were there before is not known
        queue.known += 1

    def _check_session(self, message: MessageState, message_id: str | None = None) -> None:
        """Judge a lease that goes on after its session."""
        over = self._over.get(message.session or "")
        if over is None or message.phase != _LEASED or message.claim is not None:
            return
        active_ms, at_ms, seq = over
        if seq == self._seq and message_id is None:
            return  # they end within the same transaction
        if message.visible <= at_ms:
            return  # it had run out by then
        late_ms = min(self._active_ms - active_ms, message.visible - at_ms)
        if late_ms > self._grace_ms and not self._find(message.queue).is_blind:
            self._violate(
                Rule.SESSION_OVER,
                f"its lease went on for {late_ms / 1000:g} s after the end of {message.session}",
                message_id,
            )
            message.session = None

    # --- coming and going --------------------------------------------------------------------

    def _put(self, row: Row, kind: int, place: Place, message_id: str) -> None:
        _, _, at_ms, _, _, _, _, expires, visible, count, fence, phase, *_ = row
        known = self._messages.get(message_id)
        if known is not None and not self._is_emptied(known):
            self._violate(Rule.KNOWN_MESSAGE, "it is put, and was there already")
        waiting = Phase.DELAYED if visible > at_ms else Phase.WAITING
        if count or fence or phase != waiting or visible < at_ms:
            self._violate(Rule.MESSAGE_STATE, "it does not begin as a new message does")
        if expires is not None and expires <= visible:
            self._violate(Rule.EXPIRED_ACTION, "it is put, and expires before it can be received")
        message = self._messages[message_id] = MessageState(place, row)
        message.number = self._number
        self.report.messages += 1
        if kind == EventType.STAGED:
            message.staged = row.target
            name = place[0], row.target
            self._staged[name] = self._staged.get(name, 0) + 1
        else:
            self._enter(place, message_id, message)

    # --- what a receipt does -----------------------------------------------------------------

    def _may_act(self, row: Row, message: MessageState) -> None:
        """Judge an action with a receipt."""
        at_ms = row.at_ms
        if message.staged is not None:
            self._violate(Rule.STAGED_HIDDEN, f"it is staged in {message.staged}")
        elif not message.acts:
            told = EventType(message.type).name.lower().replace("_", "-")
            self._violate(Rule.STALE_ACTION, f"no receipt acts since it was {told}")
        if message.claim is not None:
            return
        if at_ms >= message.expires:
            self._violate(Rule.EXPIRED_ACTION, f"it had expired at {message.expires}")
        settings = self._find(message.queue).settings
        if message.visible <= at_ms and settings.get("lapsed_receipts", _LENIENT) != _LENIENT:
            self._violate(Rule.STALE_ACTION, f"its lease had lapsed at {message.visible}")

    def _check_rise(self, row: Row, message: MessageState) -> None:
        """Judge fence and count after what raises the fence, and nothing else."""
        fence, count = row.fence, row.dequeue_count
        if fence != message.fence + 1:
            self._violate(Rule.FENCE_ORDER, f"its fence is {fence} after {message.fence}")
        if count != message.count:
            self._violate(Rule.EXACT_COUNT, f"its count is {count} and was {message.count}")

    def _check_same(self, row: Row, message: MessageState) -> None:
        """Judge an event that leaves the message as it was."""
        _, _, _, _, _, _, _, expires, visible, count, fence, phase, since, _, renewals = row[:15]
        if fence != message.fence:
            rule = Rule.STALE_ACTION if fence < message.fence else Rule.FENCE_ORDER
            self._violate(rule, f"it is done with fence {fence}, and the newest is {message.fence}")
        if count != message.count:
            self._violate(Rule.EXACT_COUNT, f"its count is {count} and was {message.count}")
        was = message.visible if message.claim is None else message.claim.until
        if (
            phase != message.phase
            or since != message.since
            or visible != was
            or renewals != message.renewals
            or (expires or NEVER_MS) != message.expires
        ):
            self._violate(Rule.MESSAGE_STATE, "it is not as it was after its last event")

    def _completed(self, row: Row, message: MessageState) -> None:
        self._may_act(row, message)
        self._check_same(row, message)
        self._gone(row, message)

    def _renewed(self, row: Row, message: MessageState) -> None:
        _, _, at_ms, _, _, _, _, _, visible, count, fence, phase, since, _, renewals, *_ = row
        if row.reason == OPERATOR:
            if fence != message.fence or renewals != message.renewals:
                self._violate(Rule.FENCE_ORDER, "an operator has raised its fence by extending it")
            if phase != _LEASED or message.phase != _LEASED:
                self._violate(Rule.MESSAGE_STATE, "it is extended, and is on no lease")
            self._keep(row, message, acts=message.acts)
            return
        self._may_act(row, message)
        was_leased = message.phase == _LEASED
        is_repeat = fence == message.fence and renewals == message.renewals > 0
        if was_leased and is_repeat and visible >= message.visible and count == message.count:
            self._keep(row, message, acts=True)
            return
        self._check_rise(row, message)
        if was_leased:
            fits = phase == _LEASED and since == message.since and renewals == message.renewals + 1
        elif message.phase == _DEFERRED:
            # Given back for no time, and taken up again by the same holder; or once more.
            fits = since == at_ms and phase == (_LEASED if visible > at_ms else _DEFERRED)
        else:
            fits = phase == (Phase.DELAYED if visible > at_ms else Phase.WAITING)
        if not fits or visible < at_ms:
            self._violate(Rule.MESSAGE_STATE, "a renewal does not leave a message like this")
        self._keep(row, message, acts=True)
        if message.session in self._over:
            message.session = None  # it had run out, and is ended anew: when, nobody can say

    def _released(self, row: Row, message: MessageState) -> None:
        at_ms, reason = row.at_ms, row.reason
        self._may_act(row, message)
        self._check_back(row, message, at_ms)
        if message.phase == _LEASED:
            message.failures += reason == Outcome.FAILED
            message.interruptions += reason == Outcome.INTERRUPTED
        self._keep(row, message, acts=reason == Outcome.RETURNED)

    def _check_back(self, row: Row, message: MessageState, at_ms: int) -> None:
        """Judge a message that is given back."""
        visible, phase, since = row.visible_at_ms, row.phase, row.since_ms
        self._check_rise(row, message)
        if phase != _DEFERRED or since != at_ms or visible < at_ms:
            self._violate(Rule.MESSAGE_STATE, "it is given back, and does not look so")

    # --- deliveries --------------------------------------------------------------------------

    def _check_invisible(self, at_ms: int, message: MessageState) -> int:
        """Judge whether a message that is delivered was visible; return since when it is."""
        claim = message.claim
        was = message.visible if claim is None else claim.until
        if message.staged is not None:
            self._violate(Rule.STAGED_HIDDEN, f"it is staged in {message.staged}")
        if message.phase == _LEASED and message.type != EventType.LAPSED:
            if was > at_ms or (claim is not None and claim.hides):
                self._violate(Rule.TWO_LEASES, f"it is on a lease until {was}")
            else:
                self._violate(Rule.TWO_LEASES, "the end of its lease before is not told")
        elif was > at_ms:
            self._violate(Rule.TOO_EARLY, f"it is to be invisible until {was}")
        return was

    def _deliver(self, row: Row, message: MessageState) -> None:
        """Judge a delivery, alone or with a claim."""
        (
            _, _, at_ms, _, _, _, _, expires, visible, count, fence, phase, since, visible_since,
            renewals, _, _, _, _,
        ) = row  # fmt: skip
        was = self._check_invisible(at_ms, message)
        if at_ms >= message.expires:
            self._violate(Rule.EXPIRED_ACTION, f"it had expired at {message.expires}")
        if fence != message.fence + 1:
            self._violate(Rule.FENCE_ORDER, f"its fence is {fence} after {message.fence}")
        if count != message.count + 1:
            self._violate(Rule.EXACT_COUNT, f"its count is {count} after {message.count}")
        if (
            phase != _LEASED
            or since != at_ms
            or renewals
            or visible < at_ms
            or (visible_since or 0) != was
            or (expires or NEVER_MS) != message.expires
        ):
            self._violate(Rule.MESSAGE_STATE, "a delivery does not leave a message like this")
        self._check_terms(row, message)

    def _check_terms(self, row: Row, message: MessageState) -> None:
        """Judge a delivery by what its queue, session and group allow."""
        at_ms, session, group = row.at_ms, row.session, row.group_id
        queue = self._find(message.queue)
        if queue.paused_until > at_ms:
            self._violate(Rule.TOO_EARLY, f"its queue is paused until {queue.paused_until}")
        if session is not None and session in self._over:
            self._violate(Rule.SESSION_OVER, f"session {session} was over")
        policy = queue.settings.get("failure_policy")
        if policy is not None and message.base is not None:
            self._check_budgets(policy, message)
        if group is not None:
            self._groups.delivered(queue, row, message)

    def _check_budgets(self, policy: Mapping[str, Any], message: MessageState) -> None:
        """Judge a delivery by the budgets of its queue."""
        assert message.base is not None
        used = (
            message.count - message.base - message.interruptions,
            message.failures,
            message.interruptions,
            message.lapses,
        )
        for name, many in zip(_BUDGETS, used, strict=True):
            budget = policy.get(name)
            if budget is not None and many >= budget:
                self._violate(Rule.POISON_BUDGET, f"{name} is {budget}, and that is used up")

    def _received(self, row: Row, message: MessageState) -> None:
        self._deliver(row, message)
        self._keep(row, message, acts=True)

    def _lapsed(self, row: Row, message: MessageState) -> None:
        at_ms = row.at_ms
        was = message.visible if message.claim is None else message.claim.until
        if message.phase != _LEASED:
            self._violate(Rule.MESSAGE_STATE, "its lease lapses, and it is on none")
        if was > at_ms:
            self._violate(Rule.TOO_EARLY, f"its lease lapses, and goes on until {was}")
        self._check_same(row, message)
        message.lapses += 1
        claim = message.claim
        message.take(row)
        message.claim = claim
        message.number = self._number

    def _moved(self, row: Row, message: MessageState) -> None:
        at_ms, kind, account, target = row.at_ms, row.type, row.account, row.target
        visible, count, fence, phase, since = row[8:13]
        if message.staged is not None:
            self._violate(Rule.STAGED_HIDDEN, f"it is staged in {message.staged}")
        if fence != message.fence + 1:
            self._violate(Rule.FENCE_ORDER, f"its fence is {fence} after {message.fence}")
        if count != (message.count if kind == EventType.POISONED else 0):
            self._violate(Rule.EXACT_COUNT, f"its count is {count} and was {message.count}")
        # Redriven in a group it counts as visible since it first was, its place in the group.
        has_place = kind == EventType.REDRIVEN and message.group is not None and visible < at_ms
        if phase != Phase.WAITING or since != at_ms or (visible != at_ms and not has_place):
            self._violate(Rule.MESSAGE_STATE, "it is moved, and does not begin anew")
        if kind == EventType.POISONED:
            self._check_poisoned(row.reason, message)
        message_id = row.message_id
        self._leave(message_id, message)
        self._keep(row, message, acts=False)
        message.queue = account, target
        message.base, message.failures, message.interruptions, message.lapses = count, 0, 0, 0
        self._enter(message.queue, message_id, message, is_new=False)

    def _check_poisoned(self, reason: str | None, message: MessageState) -> None:
        """Judge whether a message was given up too early."""
        policy = self._find(message.queue).settings.get("failure_policy")
        if reason != "max_deliveries" or policy is None or message.base is None:
            return
        budget = policy.get(reason)
        deliveries = message.count - message.base - message.interruptions
        if budget is None or deliveries < budget:
            self._violate(
                Rule.POISON_BUDGET, f"it was delivered {times_of(deliveries)} of {budget}"
            )

    def _amended(self, row: Row, message: MessageState) -> None:
        at_ms, count, fence, phase = row.at_ms, row.dequeue_count, row.fence, row.phase
        if fence <= message.fence:
            self._violate(Rule.FENCE_ORDER, f"its fence is {fence} after {message.fence}")
        if count != message.count:
            self._violate(Rule.EXACT_COUNT, f"its count is {count} and was {message.count}")
        if at_ms >= message.expires and message.claim is None:
            self._violate(Rule.EXPIRED_ACTION, f"it had expired at {message.expires}")
        if message.phase == _LEASED and message.visible <= at_ms and phase != _LEASED:
            message.lapses += 1
        self._keep(row, message, acts=False)

    def _removed(self, row: Row, message: MessageState) -> None:
        if row.fence != message.fence:
            self._violate(Rule.FENCE_ORDER, f"its fence is {row.fence} after {message.fence}")
        self._gone(row, message)

    def _lease_ended(self, row: Row, message: MessageState) -> None:
        at_ms, reason = row.at_ms, row.reason
        was = message.visible if message.claim is None else message.claim.until
        if message.phase != _LEASED or was <= at_ms:
            self._violate(Rule.MESSAGE_STATE, "its lease is ended, and it is on none")
        self._check_back(row, message, at_ms)
        message.lapses += reason in _LAPSE_REASONS
        message.interruptions += reason == SESSION_ENDED
        self._keep(row, message, acts=False)

    def _expired(self, row: Row, message: MessageState) -> None:
        at_ms = row.at_ms
        if at_ms < message.expires:
            self._violate(Rule.EXPIRED_ACTION, f"it was to live until {message.expires}")
        if message.claim is not None and message.claim.hides:
            self._violate(Rule.CLAIM_MEMBERS, "it expires, and a claim has it")
        if message.staged is not None:
            self._violate(Rule.STAGED_HIDDEN, f"it expires, and is staged in {message.staged}")
        self._gone(row, message)

    def _unchanged(self, _row: Row, message: MessageState) -> None:
        message.number = self._number

    # --- transactions ------------------------------------------------------------------------

    def _publish(self, row: Row, message: MessageState) -> None:
        at_ms, account, visible = row.at_ms, row.account, row.visible_at_ms
        count, fence, target = row.dequeue_count, row.fence, row.target
        if message.staged != target and message.base is not None:
            self._violate(
                Rule.STAGED_HIDDEN, f"it is published with {target}, and not staged in it"
            )
        if count or fence or visible < at_ms:
            self._violate(Rule.MESSAGE_STATE, "it does not begin as a new message does")
        if message.staged is not None:
            self._published[account, message.staged] = self._number
            self._unstage(account, message)
            message.staged = None
            self._enter(message.queue, row.message_id, message)
        self._keep(row, message, acts=True)

    def _discarded(self, row: Row, message: MessageState) -> None:
        if message.staged != row.target and message.base is not None:
            self._violate(
                Rule.STAGED_HIDDEN, f"it is discarded with {row.target}, and not staged in it"
            )
        self._gone(row, message)

    def _check_published(self, message_id: str, message: MessageState) -> None:
        """Judge what is still staged at the end."""
        account = message.queue[0]
        published = self._published.get((account, message.staged or ""))
        if published is not None and published > message.number and not self._any_blind:
            self._violate(
                Rule.NOTHING_LOST,
                f"it is staged in {message.staged}, which was published without it",
                message_id,
            )

    # --- claims ------------------------------------------------------------------------------

    def _claimed(self, row: Row, message: MessageState) -> None:
        self._deliver(row, message)
        claim = self._claim_for(row)
        self._keep(row, message, acts=True)
        message.claim, claim.members = claim, claim.members + 1

    def _claim_for(self, row: Row) -> ClaimState:
        """Return the claim that an event adds a member to: one that goes on, or another one."""
        seq, at_ms, visible, target = row.seq, row.at_ms, row.visible_at_ms, row.target
        key = (row.account, row.queue), target
        claim = self._claims.get(key)
        if claim is not None and seq - claim.step_seq <= 1 and at_ms == claim.step_ms:
            pass  # of the same step
        elif claim is not None and seq - claim.extended_seq <= 1:
            if claim.step < _FULL_STEP and not claim.is_lossy:
                self._violate(Rule.CLAIM_MEMBERS, f"{target} was open, and gets more members")
            claim.step = 0
        else:
            given_back = self._given_back.get(_stream_of(row), -1)
            is_there = claim is not None and claim.members and not claim.is_lossy
            if claim is not None and is_there and given_back < claim.born:
                self._violate(Rule.CLAIM_MEMBERS, f"{target} is opened, and has members")
            claim = self._claims[key] = ClaimState(target, visible)
            claim.born = self._number
        claim.step_seq, claim.step_ms, claim.step = seq, at_ms, claim.step + 1
        claim.until, claim.hides = visible, True
        return claim

    def _settle(self, row: Row, message: MessageState) -> None:
        seq, target = row.seq, row.target
        claim = message.claim
        if claim is None:
            if message.base is not None:
                self._violate(Rule.CLAIM_MEMBERS, f"it is settled with {target}, and not in it")
        elif claim.name != target:
            self._violate(Rule.CLAIM_MEMBERS, f"it is settled with {target}, and in {claim.name}")
        else:
            self._check_same(row, message)
            claim.settled_seq = seq
            self._settled[id(claim)] = message.queue, claim
            self._unclaim(message, is_loss=False)
        self._gone(row, message)

    def _judge_settled(self, seq: int | None) -> None:
        """Judge whether claims were settled with all their members, when that is over."""
        for key, (place, claim) in tuple(self._settled.items()):
            assert claim.settled_seq is not None
            if seq is not None and seq - claim.settled_seq < _SPLIT_SEQS:
                continue
            if claim.members > 0 and not (claim.is_lossy or self._find(place).is_blind):
                self._violate(
                    Rule.CLAIM_MEMBERS,
                    f"{claim.name} was settled without {claim.members} of its members",
                )
            del self._settled[key]
            if self._claims.get((place, claim.name)) is claim:
                del self._claims[place, claim.name]

    def _unclaimed(self, row: Row, message: MessageState) -> None:
        fence, target = row.fence, row.target
        claim = message.claim
        if claim is None and message.base is not None:
            self._violate(Rule.CLAIM_MEMBERS, f"it leaves {target}, and is not in it")
        self._given_back[_stream_of(row)] = self._number
        if fence == message.fence:
            self._check_same(row, message)
        else:
            self._check_back(row, message, row.at_ms)
        self._keep(row, message, acts=True)

    def _claim_event(self, row: Row) -> None:
        at_ms, kind, account, queue, target = *row[2:6], row.target
        until, key = row.visible_at_ms or 0, ((account, queue), target)
        claim = self._claims.get(key)
        if claim is None:
            claim = self._claims[key] = ClaimState(target, until)
            claim.is_lossy = True
        is_early = kind == EventType.CLAIM_LAPSED and max(until, claim.until) > at_ms
        if is_early and not self._shard:
            self._violate(Rule.TOO_EARLY, f"{target} lapses, and its lease goes on until {until}")
        claim.until, claim.hides = until, kind != EventType.CLAIM_LAPSED
        claim.extended_seq = row.seq if claim.hides else claim.extended_seq


def _stream_of(row: Row) -> tuple[Place, str]:
    """Return the stream of the claim that an event of a message names."""
    return (row.account, row.queue), row.target.rpartition("/")[0]


_NEW: Final = frozenset({int(EventType.PUT), int(EventType.STAGED)})
_GONE: Final = frozenset(map(int, REMOVING))
_MOVES: Final = frozenset({int(EventType.POISONED), int(EventType.REDRIVEN)})
_UNCLEAR: Final = frozenset({int(EventType.LAPSED), int(EventType.CANCEL_ASKED)})
"""After these it is not known whether the message is in a claim."""
