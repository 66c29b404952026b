"""Long polling: receives and claims that wait until there is something for them.

Each queue that is waited for has its :class:`QueueWaiters`, of whom those who came first are served
first. No timer polls: the store is looked at when there is a reason to, and when the next message
is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias, cast

from leasehold.clock import Clock, LoopTimers, Timer, Timers
from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import transactions as t
from leasehold.domain.claims import ClaimState, OpenClaim, Opened
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, QueueNotFound, StoreFailed
from leasehold.domain.model import Lease, Outcome, Queue, QueueKey
from leasehold.engine.listeners import HandIn, Pending, QueueListeners, ReceiveOrClaim
from leasehold.engine.peers import Peers

Gone: TypeAlias = Callable[[], Awaitable[object]]
"""Waits until the client does not want the answer any more."""


class LongPolls(QueueListeners):
    """All that wait, by queue. It lives in one event loop and begins with :meth:`open`.

    Args:
        clock: Says what is due.
        find_queue: The store's, to learn where messages that fail too often go.
        timers: What ends waits, and tells when something is due; None for the loop's.
        peers: The link to other servers, which learn from it what is waited for here; None if
            there can be none.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        clock: Clock,
        find_queue: Callable[[str, str], Queue | None],
        timers: Timers | None = None,
        peers: Peers | None = None,
    ) -> None:
        super().__init__(clock, find_queue)
        self._peers = peers
        self.timers = timers or LoopTimers()
        self.by_queue: dict[QueueKey, QueueWaiters] = {}
        """Those of queues with a consumer that waits; while there are none, nothing here costs
        anything."""
        self.changed: dict[QueueWaiters, None] = {}
        """Those that have something to do."""
        self.onlookers: dict[QueueKey, set[asyncio.Future[None]]] = {}
        """Those who want to know when anything has happened in a queue; see :meth:`news`."""
        self.is_draining = False
        self._hand_in: HandIn

    def open(self, hand_in: HandIn) -> None:
        """Begin, in the loop that runs now; *hand_in* takes a command to the store."""
        self.loop = asyncio.get_running_loop()
        self._hand_in = hand_in

    @property
    def count(self) -> int:
        """How many wait."""
        return sum(waiters.count for waiters in self.by_queue.values())

    def enter(self, command: ReceiveOrClaim, wait_s: float, gone: Gone | None = None) -> Waiter:
        """Begin a receive or a claim that waits up to *wait_s* seconds if there is nothing.

        Whoever calls awaits its ``future`` and must call ``leave`` in any case. A claim is begun
        before this returns, a receive as well unless others were here before.
        """
        key = command.account, command.queue
        waiters = self.by_queue.get(key)
        if waiters is None:
            waiters = self.by_queue[key] = QueueWaiters(self, key)
            if self._peers is not None:
                self._peers.begin_waiting(key)
        waiter = waiter_for(waiters, command, self.clock.monotonic_s() + wait_s, gone)
        waiters.enter(waiter)
        self.settle()
        if not waiter.is_trying and not waiter.future.done():
            waiter.settle_down()
        return waiter

    def close(self, waiters: QueueWaiters) -> None:
        """Forget a queue that no consumer waits for."""
        if self.by_queue.get(waiters.key) is waiters:
            del self.by_queue[waiters.key]
            if self._peers is not None:
                self._peers.end_waiting(waiters.key)

    def give_back(self, command: c.Receive, leases: tuple[Lease, ...]) -> None:
        """Release messages that were leased for a client that has gone meanwhile."""
        for message, receipt in leases:
            named = (command.account, command.queue, message.message_id, receipt)
            release = c.Release(*named, Outcome.INTERRUPTED)
            # Not at once: a batch is being told of, and this belongs to the next.
            self.loop.call_soon(self._hand_in, (release, self.loop.create_future()))

    def settle(self) -> None:
        """Let all those act to whose queue something has happened."""
        while self.changed:
            waiters, _ = self.changed.popitem()
            waiters.settle(self._hand_in)

    # --- onlookers ---------------------------------------------------------------------------

    async def news(
        self, key: QueueKey, longest_s: float, gone: asyncio.Future[object] | None
    ) -> None:
        """Wait until anything may have happened in a queue, or for some time, or until *gone*."""
        told: asyncio.Future[None] = self.loop.create_future()
        self.onlookers.setdefault(key, set()).add(told)
        timer = self.timers.call_later(longest_s, partial(_tell, told))
        awaited: list[asyncio.Future[Any]] = [told] if gone is None else [told, gone]
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            onlookers = self.onlookers[key]
            onlookers.discard(told)
            if not onlookers:
                del self.onlookers[key]

    def note(self, command: AnyCommand, result: c.Result) -> None:
        """Hear of the result of a command."""
        super().note(command, result)
        if self.onlookers and type(command).traits.wakes:
            account, queue = getattr(command, "account", None), getattr(command, "queue", None)
            self._tell_onlookers(None if queue is None else (account or "", queue))

    def _tell_onlookers(self, key: QueueKey | None = None) -> None:
        """Tell those of a queue, or of all queues."""
        for each in list(self.onlookers) if key is None else [key]:
            for told in self.onlookers.get(each, ()):
                _tell(told)

    # --- news from elsewhere -------------------------------------------------------------------

    def wake(self, account: str, queue: str) -> None:
        """Have a queue looked at; for news that do not come by way of this engine."""
        self._tell_onlookers((account, queue))
        waiters = self.by_queue.get((account, queue))
        if waiters is not None:
            waiters.wake()
            self.settle()

    def wake_all(self) -> None:
        """Have all queues looked at that a consumer waits for."""
        self._tell_onlookers()
        for waiters in self.by_queue.values():
            waiters.wake()
        self.settle()

    def check(self) -> None:
        """Look at the clock; for those who have moved it."""
        for waiters in list(self.by_queue.values()):
            waiters.check()

    def drain(self) -> None:
        """End all waits with nothing, and begin no more."""
        self.is_draining = True
        self._tell_onlookers()
        for waiters in list(self.by_queue.values()):
            waiters.answer_idle()
        self.settle()

    def fail(self) -> None:
        """End all waits: the store has failed."""
        self.is_draining = True
        self._tell_onlookers()
        for waiters in list(self.by_queue.values()):
            waiters.answer_idle(StoreFailed)
        self.settle()

    # --- what the batcher tells --------------------------------------------------------------

    def anticipate(self, batch: list[Pending]) -> None:
        """Add receives for the messages that *batch* puts, so that one commit does for both."""
        expected: dict[QueueWaiters, int] = {}
        for command, _ in batch:
            if type(command) is c.Put:
                self._expect(command, expected)
            elif isinstance(command, c.Batch | t.CommitTogether):
                self._expect_all(command.commands, expected)
            elif isinstance(command, k.SettleClaims):
                self._expect_all(command.sends, expected)
        for waiters, count in expected.items():
            waiters.serve(batch.append, count)

    def _expect_all(self, parts: Iterable[AnyCommand], expected: dict[QueueWaiters, int]) -> None:
        for part in parts:
            if type(part) is c.Put:
                self._expect(part, expected)

    def _expect(self, put: c.Put, expected: dict[QueueWaiters, int]) -> None:
        if not put.delay_s:
            waiters = self.by_queue.get((put.account, put.queue))
            if waiters is not None:
                expected[waiters] = expected.get(waiters, 0) + 1


def _tell(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


# --- one consumer -----------------------------------------------------------------------------


class Waiter:
    """One receive that may wait."""

    __slots__ = (
        "_deadline",
        "_deadline_s",
        "_gone",
        "_watch",
        "command",
        "future",
        "is_gone",
        "is_late",
        "is_trying",
        "waiters",
    )

    command: Any
    """What is to be carried out: a Receive."""
    nothing: c.Result = ()
    """The answer that there is nothing."""

    def __init__(
        self,
        waiters: QueueWaiters,
        command: ReceiveOrClaim,
        deadline_s: float,
        gone: Gone | None = None,
    ) -> None:
        self.waiters = waiters
        self.command = command
        self.future: asyncio.Future[c.Result] = waiters.loop.create_future()
        """What whoever waits gets: what was taken, nothing, or an error."""
        self.is_trying = False
        """Whether its command is under way."""
        self.is_gone = False
        """Whether the client does not want the answer any more."""
        self.is_late = False
        """Whether its time was up while its command was under way."""
        self._deadline_s = deadline_s
        self._deadline: Timer | None = None
        self._gone = gone
        self._watch: asyncio.Future[object] | None = None

    # --- what its answers mean ---------------------------------------------------------------

    def is_given(self, result: Any) -> bool:
        """Tell whether an answer brings something, so that the wait is over."""
        return bool(result)

    def is_rest(self, result: Any) -> bool:
        """Tell whether an answer proves that nothing visible is left."""
        return bool(len(result) < self.command.limit)

    def give_back(self, result: Any) -> None:
        """Undo what was taken for a client that has gone meanwhile."""
        self.waiters.polls.give_back(self.command, result)

    # --- waiting -----------------------------------------------------------------------------

    def done(self) -> bool:
        """See :class:`Answer`: the queue's waiters want to know in any case."""
        return False

    def set_result(self, result: c.Result, /) -> None:
        """See :class:`Answer`."""
        self.waiters.tried(self, result)

    def settle_down(self) -> None:
        """Wait, for as long as there is time and a client that wants to know."""
        if self._deadline is not None:
            return
        polls = self.waiters.polls
        left_s = self._deadline_s - polls.clock.monotonic_s()
        self._deadline = polls.timers.call_later(left_s, self._give_up)
        if self._gone is not None:
            self._watch = asyncio.ensure_future(self._gone())
            self._watch.add_done_callback(self._abandoned)

    def _abandoned(self, watch: asyncio.Future[object]) -> None:
        if not watch.cancelled():
            watch.exception()  # or it would be logged as never looked at
            self.is_gone = True
            self._give_up()

    def _give_up(self) -> None:
        if self.is_trying:
            self.is_late = True
        else:
            self.waiters.answer(self, self.nothing)
            self.waiters.polls.settle()

    def end(self) -> None:
        """Let go of the timer and the watch."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def leave(self) -> None:
        """Wait no longer: nothing that was not begun yet is begun for it. Harmless at any time."""
        if self.waiters.forget(self):
            self.waiters.polls.settle()


class Claimer(Waiter):
    """One claim that is to be opened once there is something to claim."""

    __slots__ = ()

    nothing = Opened(None)

    def is_given(self, result: Any) -> bool:
        """See :class:`Waiter`."""
        return cast("Opened", result).claim is not None

    def is_rest(self, result: Any) -> bool:
        """See :class:`Waiter`. A claim that was there already says nothing of the queue."""
        claim = cast("Opened", result).claim
        if claim is None:
            return True
        is_whole = claim.size >= claim.limit or claim.max_bytes is not None
        return not (result.replayed or is_whole or claim.state is ClaimState.OPENING)

    def give_back(self, result: Any) -> None:
        """Leave it open: it can be found by its number, and perhaps a client has by now."""


def waiter_for(
    waiters: QueueWaiters, command: ReceiveOrClaim, deadline_s: float, gone: Gone | None = None
) -> Waiter:
    """Return who waits for *command* to bring something."""
    kind = Claimer if isinstance(command, OpenClaim) else Waiter
    return kind(waiters, command, deadline_s, gone)


# --- one queue ---------------------------------------------------------------------------------
#
# One queue that a consumer waits for: who waits, and what is known of it.
#
# How no message is left lying while a consumer waits for it: every change to the queue is heard of
# in the order in which the store made them, and the answers to own receives come in that same
# order. So a receive that comes back with less than it asked for proves that all that was heard of
# before is gone. For what has no place in that order (time that passes, another server) the store
# is asked when the next message is due, and asked again if anything of the kind happens meanwhile.


_MAX_BURST: Final = 256
"""Receives tried at once while it is not known how many messages there are."""
_MAX_SLEEP_MS: Final = 60_000
"""The clock is looked at this often: the timers of the loop stand still in a suspended host."""
_RETRY_MS: Final = 1_000
"""Until the store is asked again after it could not say what is due."""
_FREE_LOOKS: Final = 2
_MAX_PENALTY_MS: Final = 100
"""Fruitless looks are spaced out up to this, should a store call due what it never gives."""


class _Question:
    """Takes the answer to NextDue."""

    __slots__ = ("_trust", "_waiters")

    def __init__(self, waiters: QueueWaiters, trust: int) -> None:
        self._waiters = waiters
        self._trust = trust

    def done(self) -> bool:
        return False

    def set_result(self, result: c.Result, /) -> None:
        self._waiters.told(result, self._trust)


class QueueWaiters:
    """Those who wait for one queue, and what is known of it."""

    __slots__ = (
        "_asking",
        "_burst",
        "_called",
        "_covered",
        "_due_at_ms",
        "_due_is_known",
        "_fruitless",
        "_idle",
        "_is_exact",
        "_timer",
        "_trust",
        "_trying",
        "_waiters",
        "_wanted",
        "key",
        "loop",
        "polls",
    )

    def __init__(self, polls: LongPolls, key: QueueKey) -> None:
        self.polls = polls
        self.key = key
        self.loop = polls.loop
        self._waiters: dict[Waiter, None] = {}
        self._idle = 0
        """Of those, how many have nothing under way."""
        self._called: dict[Waiter, None] = {}
        """Of those, the ones whose turn it is now, whatever is known of the queue."""
        self._trying = 0
        """Commands under way, also those of waiters that have left."""
        self._covered = 0
        """Messages that these may take."""
        self._wanted = 0
        """Messages that appeared since the queue was last empty, less those received."""
        self._is_exact = False
        """Whether there are no more visible messages than that, as far as can be known here."""
        self._burst = _MAX_BURST
        """Commands that may be under way at once while it is not: the first ones all have a try,
        as they would without waiting; once there was nothing it begins with one, and doubles."""
        self._due_at_ms: int | None = None
        self._due_is_known = False
        self._trust = 0
        """How often what was known was thrown away."""
        self._fruitless = 0
        """Looks, one after the other, that found nothing."""
        self._asking = False
        self._timer: Timer | None = None

    # --- who waits ---------------------------------------------------------------------------

    def enter(self, waiter: Waiter) -> None:
        """Let one more wait, behind the others."""
        self._waiters[waiter] = None
        self._idle += 1
        if isinstance(waiter, Claimer):
            # Its claim may be there already, which no look made for another consumer can show.
            self._called[waiter] = None
            self.polls.changed[self] = None
        else:
            self.doubt()

    def answer(self, waiter: Waiter, result: c.Result) -> None:
        """End a wait, if it has not ended yet."""
        if self.forget(waiter) and not waiter.future.done():
            waiter.future.set_result(result)

    def forget(self, waiter: Waiter) -> bool:
        """Take a waiter out; False if it was out already."""
        if waiter not in self._waiters:
            return False
        del self._waiters[waiter]
        self._called.pop(waiter, None)
        waiter.end()
        self._idle -= not waiter.is_trying
        self.polls.changed[self] = None
        return True

    def answer_idle(self, error: Callable[[], c.Result] | None = None) -> None:
        """End the wait of all that have nothing under way: with nothing, or each with an error."""
        for waiter in [each for each in self._waiters if not each.is_trying]:
            self.answer(waiter, waiter.nothing if error is None else error())

    def call(self, stream: str) -> None:
        """Have those try at once who are to open a claim of a stream that something happened to.

        Their claim may be there by now, or another consumer may have attached.
        """
        for waiter in self._waiters:
            if (
                isinstance(waiter, Claimer)
                and not waiter.is_trying
                and waiter.command.stream == stream
            ):
                self._called[waiter] = None
                self.polls.changed[self] = None

    @property
    def count(self) -> int:
        """How many wait here."""
        return len(self._waiters)

    # --- what happens in the queue -----------------------------------------------------------

    def doubt(self) -> None:
        """Have the store looked at: there may be more than was heard of."""
        self._is_exact = False
        self.polls.changed[self] = None

    def distrust(self) -> None:
        """Forget what is known, the next due moment included."""
        self._due_is_known = False
        self._trust += 1
        self.doubt()

    def wake(self) -> None:
        """Look, and have all try that are to open a claim: news came that say no more."""
        for waiter in self._waiters:
            if isinstance(waiter, Claimer) and not waiter.is_trying:
                self._called[waiter] = None
        self.distrust()

    def appears(self, at_ms: int, count: int = 1) -> None:
        """Note that *count* messages are visible from a moment on."""
        if at_ms <= self.polls.clock.now_ms():
            self._wanted += count
            self.polls.changed[self] = None
        elif self._due_is_known and (self._due_at_ms is None or at_ms < self._due_at_ms):
            self._due_at_ms = at_ms
            self._sleep()

    def taken(self, leases: tuple[Lease, ...]) -> None:
        """Note that messages were received, by whomever."""
        self._wanted = max(0, self._wanted - len(leases))
        self._fruitless = 0
        self.appears(leases[0].message.visible_at_ms, len(leases))  # they end at the same moment

    def claimed(self, opened: Opened) -> None:
        """Note that a claim was opened, by whomever, or found again."""
        claim = opened.claim
        assert claim is not None
        self._fruitless = 0
        if not opened.replayed:
            # How many of them this step took is not said, so this may be too much.
            self._wanted = max(0, self._wanted - claim.size)
            self.distrust()
        self.appears(claim.until_ms, claim.remaining)

    def tried(self, waiter: Waiter, result: c.Result) -> None:
        """Take the answer for *waiter*; :meth:`taken` or :meth:`claimed` has seen it already."""
        waiter.is_trying = False
        self._trying -= 1
        self._covered -= waiter.command.limit
        self._idle += waiter in self._waiters
        self.polls.changed[self] = None
        if isinstance(result, LeaseholdError):
            self.answer(waiter, result)
            if type(result) is QueueNotFound:
                self.answer_idle(QueueNotFound)
            return
        if waiter.is_rest(result):
            if self._wanted:
                # It was removed meanwhile, or the queue gives less than it has.
                self._due_is_known = False
            self._wanted = 0
            self._is_exact = True
            self._burst = 1
        else:
            self._burst = min(self._burst * 2, _MAX_BURST)
        given = waiter.is_given(result)
        if given and (waiter.is_gone or waiter not in self._waiters):
            waiter.give_back(result)
            self.answer(waiter, waiter.nothing)
        elif given or waiter.is_late or self.polls.is_draining:
            self.answer(waiter, result)
        elif waiter in self._waiters:
            waiter.settle_down()

    # --- when something is due ---------------------------------------------------------------

    def told(self, result: c.Result, trust: int) -> None:
        """Take the answer to the question for what is due next."""
        self._asking = False
        self.polls.changed[self] = None
        if trust != self._trust:
            return  # the store may have been asked before that; it is asked once more
        self._due_is_known = True
        now_ms = self.polls.clock.now_ms()
        if type(result) is QueueNotFound:
            self.answer_idle(QueueNotFound)
        elif type(result) is not o.Due:
            self._due_at_ms = now_ms + _RETRY_MS
        elif result.at_ms is None:
            self._due_at_ms = None
        else:
            if result.at_ms - now_ms > _RETRY_MS:
                self._fruitless = 0
            self._due_at_ms = max(result.at_ms, now_ms + self._penalty_ms())
        self._sleep()

    def _penalty_ms(self) -> int:
        """Return how long to wait before the next look because the last ones found nothing."""
        excess = min(self._fruitless - _FREE_LOOKS, _MAX_PENALTY_MS)
        return 0 if excess <= 0 else min(2**excess, _MAX_PENALTY_MS)

    def _sleep(self) -> None:
        """Set the timer for what is due next."""
        self._stop_timer()
        if self._due_at_ms is None:
            return
        left_ms = self._due_at_ms - self.polls.clock.now_ms()
        if left_ms <= 0:
            self._look()
        else:
            sleep_s = min(left_ms, _MAX_SLEEP_MS) / 1000
            self._timer = self.polls.timers.call_later(sleep_s, self.check)

    def check(self) -> None:
        """Look at the queue if something is due, else sleep on."""
        if self._due_at_ms is not None:
            self._sleep()
            self.polls.settle()

    def _look(self) -> None:
        self._due_at_ms = None
        self._fruitless += 1
        self.distrust()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what is done about it ---------------------------------------------------------------

    def serve(self, hand_in: HandIn, expected: int = 0) -> None:
        """Begin for those who came first, as many as there is reason to.

        Args:
            hand_in: What takes a command to the store.
            expected: Messages that will have appeared before these commands are carried out. With
                any, those who claim are left for later: one takes thousands, and the batch that is
                about to begin has its measure already.
        """
        if not self._idle:
            return
        wanted, covered, trying = self._wanted + expected, self._covered, self._trying
        chosen = []
        if self._called and not expected:
            chosen = [waiter for waiter in self._called if not waiter.future.done()]
            self._called.clear()
            covered += sum(waiter.command.limit for waiter in chosen)
            trying += len(chosen)
            for waiter in chosen:
                waiter.is_trying = True
        for waiter in self._waiters:
            if wanted <= covered and (self._is_exact or trying >= self._burst):
                break
            if expected and isinstance(waiter, Claimer):
                break
            # One whose client has gone may not have had the time to leave.
            if not waiter.is_trying and not waiter.future.done():
                waiter.is_trying = True
                chosen.append(waiter)
                covered += waiter.command.limit
                trying += 1
        self._covered, self._trying = covered, trying
        self._idle -= len(chosen)
        for waiter in chosen:
            hand_in((waiter.command, waiter))

    def settle(self, hand_in: HandIn) -> None:
        """Do what the last changes ask for."""
        self.serve(hand_in)
        if not self._waiters and not self._trying and not self._asking:
            self._stop_timer()
            self.polls.close(self)
        elif self._idle and self._is_exact and not self._due_is_known and not self._asking:
            self._asking = True
            hand_in((o.NextDue(*self.key), _Question(self, self._trust)))
