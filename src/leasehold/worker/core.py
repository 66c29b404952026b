"""What the threads of a worker share: its queues, what is buffered, what is in work."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.worker.adapters.protocol import (
    Delivery,
    Lease,
    QueueClient,
    TellsOrder,
    WorkerSession,
)
from leasehold.worker.buffer import Buffer, ConcurrencyLimiter, Pace, prefetch_limit
from leasehold.worker.errors import Poison, Retry
from leasehold.worker.handlers import Handler, Handlers, name_of
from leasehold.worker.hooks import HookCalls, StopMessage
from leasehold.worker.leases.held import Held, Loss
from leasehold.worker.message import Message
from leasehold.worker.outcomes import (
    DONE,
    INTERRUPTED,
    LOST,
    RETURNED,
    Asked,
    Condemned,
    Kind,
    Outcome,
    Settlement,
    outcome_of,
)
from leasehold.worker.reporting import Ended, Stats
from leasehold.worker.timing import SystemTime, Time

_log: Final = logging.getLogger("leasehold.worker")
_STOPS: Final = "the worker is stopping"
_GIVEN_UP: Final = "the handler gave the message up"
_WHILE_S: Final = 0.25
_REMEMBERED: Final = 8


class Source:
    """One queue of a worker."""

    def __init__(self, place: int, client: QueueClient, weight: float, handler: Handler) -> None:
        self.place = place
        """Which one of the worker's queues it is, from 0."""
        self.client = client
        self.name = client.name
        self.weight = weight
        self.handler = handler
        self.handler_name = name_of(handler)
        self.capabilities = client.capabilities
        self.session: WorkerSession | None = None
        self.settle: Callable[[Work], object]
        """Has a message settled whose outcome is known; never waits."""
        self.condemned = Condemned()
        """What could not be set aside for certain: it is if it comes again."""
        self.empty_at = -1
        """What :attr:`Core.activity` was when the last receive that found nothing was sent."""


def sources_of(
    clients: Sequence[QueueClient], weights: Sequence[float], handlers: Handlers
) -> list[Source]:
    """Return the queues of a worker, in their order."""
    return [
        Source(place, client, weight, handlers.of(client.name))
        for place, (client, weight) in enumerate(zip(clients, weights, strict=True))
    ]


class Core:
    """The state of a running worker, and the steps that each message takes through it.

    Args:
        sources: Its queues.
        hooks: To be called.
        time: That it goes by.
        concurrency: How many messages are worked on at once.
        prefetch: What the user wants in the buffer at most; None: what is useful.
        lease_s: Gives the length of the leases.
        decode: Reads bodies.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a part of the worker
        self,
        sources: Sequence[Source],
        *,
        hooks: HookCalls,
        time: Time,
        concurrency: int,
        prefetch: int | None,
        lease_s: Callable[[], float],
        decode: Callable[[bytes], Any] | None,
    ) -> None:
        self.sources = tuple(sources)
        self.hooks = hooks
        self.time = time
        self.now_s = time.monotonic_s
        self.patience = SystemTime()
        """For what does not go by the worker's time: how long threads take to end."""
        self.concurrency = concurrency
        self.decode = decode
        self.stats = Stats([source.name for source in sources])
        weights = [source.weight for source in sources]
        self.buffer: Buffer[Work] = Buffer(weights, time)
        self._prefetch = prefetch
        self._lease_s = lease_s
        self._pace = Pace()
        limit = prefetch_limit(
            prefetch, concurrency=concurrency, lease_s=lease_s(), handling_s=None
        )
        self.limiter = ConcurrencyLimiter(
            weights, concurrency=concurrency, prefetch=limit, time=time
        )
        self.gate: GroupGate | None = None
        """What lets messages of groups into the buffer; None: all of them at once."""
        self.in_work: dict[Work, None] = {}
        """In the order in which they began. Who removes one speaks for it: its handler's end, or
        the worker's."""
        self.outstanding = 0
        """Messages that were received, and neither settled nor lost so far."""
        self.activity = 0
        """Grows when messages come and when they end."""
        self._counting = threading.Lock()
        self.drained: Callable[[], None] | None = None
        """Called when nothing is outstanding any more."""
        self.just_ended: deque[Work] = deque(maxlen=_REMEMBERED)
        """The last ones that took a while, in case somebody asks who that was."""
        self.is_stopping = False
        self.changed = threading.Condition()
        """Notified when the worker becomes idle, stops, or something in work ends while it does."""

    def begin(self, work: Work) -> Message | None:
        """Give a message to the thread or task that calls its handler.

        Returns:
            None: There is nothing to be handled any more.
        """
        message = work.message = Message(
            work.delivery, work.held, self.time, self.decode, work.session
        )
        if work.loss is not None:
            self._lost(work)
            return None
        self.in_work[work] = None
        if self.is_stopping:
            # Whoever stops the worker may have looked before it was in there.
            self.finish(work, RETURNED)
            return None
        if self.hooks.before:
            try:
                self.hooks.call(self.hooks.before, message)
            except StopMessage as stop:
                outcome = outcome_of(stop.instead, is_lost=False, asked=None)
                self._after(message, outcome, 0.0)
                self.finish(work, outcome)
                return None
        work.began_s = self.now_s()
        return message

    def end(self, work: Work, error: BaseException | None) -> None:
        """Take note that a handler has come to its end.

        Args:
            work: What it had.
            error: What it raised; None: it returned.
        """
        if error is None and work.loss is None:
            self.over(work, DONE)
            return
        outcome = outcome_of(error, is_lost=work.loss is not None, asked=work.asked)
        self.over(work, outcome, error)

    def over(self, work: Work, outcome: Outcome, error: BaseException | None = None) -> None:
        """Take note of how the work on a message ended; *error* is for the log."""
        seconds = work.handling_s = self.now_s() - work.began_s
        if seconds > _WHILE_S:
            self.just_ended.append(work)
        if outcome.kind is Kind.FAILED:  # what is set aside is logged when that is done
            self._log_failure(work, outcome, error)
        if self.hooks.after and work.message is not None:
            self._after(work.message, outcome, seconds)
        self.finish(work, outcome)

    def _after(self, message: Message, outcome: Outcome, seconds: float) -> None:
        self.hooks.quietly(self.hooks.after, message, outcome, seconds)

    def finish(self, work: Work, outcome: Outcome) -> None:
        """Have a message settled, unless somebody else has spoken for it."""
        if self.in_work.pop(work, work) is work:
            return
        work.outcome = outcome
        if outcome.kind is Kind.LOST and work.loss is None:
            # The handler knows more than the service, such as that a fenced write was refused.
            work.held.let_go(_GIVEN_UP)
            # If the lease was lost before, whoever keeps it is about to say so with this text.
            work.loss = _GIVEN_UP if work.held.loss is None else work.held.loss.text
        if work.loss is not None:
            self._lost(work)
        else:
            work.source.settle(work)
        if self.is_stopping:
            with self.changed:
                self.changed.notify_all()

    def give_back(self, works: Iterable[Work]) -> None:
        """Give back messages that no handler began with."""
        for work in works:
            if work.loss is not None:
                self._lost(work)
            else:
                work.outcome = RETURNED
                work.source.settle(work)

    def stop_handlers(self) -> None:
        """Tell all handlers that the worker stops."""
        for work in list(self.in_work):
            work.ask("stopping", _STOPS)

    def abandon(self) -> list[Work]:
        """Give back what handlers do not let go of; what they say later is not heard."""
        left = list(self.in_work)
        for work in left:
            self.finish(work, INTERRUPTED)
        return left

    def ended(self, source: Source, works: Sequence[Work]) -> None:
        """Take note that messages were settled or lost: there is room for others."""
        if not works:
            return
        ended = [Ended((work.outcome or LOST).kind, work.handling_s) for work in works]
        self.stats.note_ended(source.place, ended)
        with self._counting:
            self.outstanding -= len(works)
            self.activity += 1
            for _, handling_s in ended:
                if handling_s is not None:
                    self._pace.note(handling_s)
            self._adapt()
            is_drained = not self.outstanding
        self.limiter.give_back(source.place, len(works))
        if self.gate is not None:
            following = self.gate.ended(works)
            if following.begin:
                self.buffer.put(source.place, following.begin)
            self.give_back(following.give_back)
        if is_drained and self.drained is not None:
            self.drained()

    def received(self, source: Source, count: int) -> None:
        """Take note that messages have come."""
        self.stats.note_received(source.place, count)
        self.limiter.received(source.place, count)
        with self._counting:
            self.outstanding += count
            self.activity += 1

    def found_nothing(self, source: Source, activity: int) -> None:
        """Take note that a receive found nothing; *activity* is that from before it was sent."""
        source.empty_at = activity
        if self.is_idle:
            with self.changed:
                self.changed.notify_all()

    @property
    def is_idle(self) -> bool:
        """Whether all queues were found empty after everything had been settled."""
        with self._counting:
            return not self.outstanding and all(
                source.empty_at == self.activity for source in self.sources
            )

    def _adapt(self) -> None:
        """Let the buffer have the size that suits the handlers."""
        limit = prefetch_limit(
            self._prefetch,
            concurrency=self.concurrency,
            lease_s=self._lease_s(),
            handling_s=self._pace.high_s,
        )
        if limit != self.limiter.prefetch:
            self.limiter.resize(limit)

    def works_of(self, source: Source) -> list[Work]:
        """Return the messages of a queue that wait or are in work."""
        waiting = self.buffer.waiting(source.place)
        if self.gate is not None:
            waiting += self.gate.waiting(source.place)
        return [*waiting, *(work for work in list(self.in_work) if work.source is source)]

    def _lost(self, work: Work) -> None:
        """Drop a message that is not ours any more."""
        work.outcome = LOST
        self.ended(work.source, [work])
        why = work.loss or "lost"
        _log.info("message %s of %s: %s", work.delivery.message_id, work.source.name, why)
        self.tell_lost(work.delivery, why, has_expired=has_expired(work.held))

    def tell_lost(self, delivery: Delivery, why: str, *, has_expired: bool = False) -> None:
        """Tell hooks that a message was not settled."""
        self.hooks.quietly(self.hooks.lost, delivery, why)
        if has_expired and self.hooks.expired:
            self.hooks.quietly(self.hooks.expired, delivery, why)

    def _log_failure(self, work: Work, outcome: Outcome, error: BaseException | None) -> None:
        delivery = work.delivery
        text = outcome.fault.text if outcome.fault is not None else outcome.kind
        _log.warning(
            "message %s of %s %s at delivery %d: %s",
            *(delivery.message_id, delivery.queue, outcome.kind.value),
            *(delivery.dequeue_count, text),
            # What a handler asks for by name is no fault to be looked for.
            exc_info=None if error is None or isinstance(error, Poison | Retry) else error,
        )


# --- work --------------------------------------------------------------------------------------
#
# One message on its way through a worker.


def has_expired(held: Held) -> bool:
    """Return whether a lease was lost because the message's time to live has ended."""
    return held.loss is not None and held.loss.kind == "expired"


class Work:
    """A message from its receive until it is settled or lost.

    It belongs to one thread after the other: that which receives, one that handles, one that
    settles. Only :meth:`lose` and :meth:`ask` come from elsewhere.
    """

    __slots__ = (
        "asked",
        "began_s",
        "delivery",
        "handling_s",
        "held",
        "lease",
        "loss",
        "message",
        "outcome",
        "session",
        "settlement",
        "source",
        "stop",
        "tries",
        "unsure",
    )

    def __init__(self, source: Source, delivery: Delivery) -> None:
        self.source = source
        self.delivery = delivery
        self.held: Held = None  # type: ignore[assignment]  # set before anybody else sees it
        self.message: Message | None = None
        """What the handler has; None before it begins."""
        self.began_s = 0.0
        self.handling_s: float | None = None
        self.loss: str | None = None
        """Why the lease is lost; None while it is not."""
        self.asked: Asked | None = None
        """Who wants the handler to stop, other than for a loss."""
        self.stop: Callable[[Work], None] | None = None
        """Stops the handler where that is possible: a task, a process."""
        self.session: WorkerSession | None = None
        """That it was received under."""
        self.outcome: Outcome | None = None
        self.settlement: Settlement = None
        self.lease: Lease | None = None
        """What it is settled with, from when renewals have ended."""
        self.tries = 0
        """How often it was tried to settle it."""
        self.unsure = False
        """Whether one of them may have been carried out."""

    def lose(self, loss: Loss) -> None:
        """Take note that the work has to stop, and tell the handler. From any thread."""
        if loss.kind == "cancelled":
            self.ask("cancelled", loss.text)
            return
        # The order matters: whoever sets the message looks for a loss afterwards.
        self.loss = loss.text
        self._tell(loss.text)

    def ask(self, who: Asked, why: str) -> None:
        """Ask the handler to stop while the lease is held. From any thread."""
        if self.asked is None:
            self.asked = who
            self._tell(why)

    def _tell(self, why: str) -> None:
        message, stop = self.message, self.stop
        if message is not None:
            message.cancel_token.set(why)
        if stop is not None:
            stop(self)

    def stop_with(self, stop: Callable[[Work], None]) -> None:
        """Say how the handler is stopped; it is done at once if it is to stop already."""
        self.stop = stop
        if self.loss is not None or self.asked is not None:
            stop(self)


# --- groups --------------------------------------------------------------------------------------
#
# Which messages of a message group may be in a handler at the same time.


_Key: TypeAlias = tuple[int, str]


class _Following(NamedTuple):
    """What becomes of messages that waited for others of their group."""

    begin: list[Work]
    """To the buffer."""
    give_back: list[Work]


_NOTHING: Final = _Following([], [])


class GroupGate:
    """Lets messages of a group into the buffer while there is room for it in the handlers.

    A message has its room from then until its settlement is acknowledged, or its lease is lost.
    Until then it may come again: were the next one begun before, and the complete of the first
    lost, the first would be worked on after the second. For the same reason, where order is asked
    for, whatever ends otherwise than done has the later messages of its group given back: the queue
    gives them again behind it, or keeps them if the group stands still.

    What waits here is on its lease, is renewed, and takes slots of the worker, so it blocks no
    other group and does not grow.

    Args:
        most: Messages of one group that may be in handlers.
        is_ordered: Whether they are to be worked on in their order; *most* is 1 then.
    """

    def __init__(self, most: int, *, is_ordered: bool) -> None:
        self._most = most
        self.is_ordered = is_ordered
        self._lock = threading.Lock()
        self._begun: dict[_Key, set[Work]] = {}
        self._waiting: dict[_Key, deque[Work]] = {}
        self._is_closed = False

    def admit(self, works: Iterable[Work]) -> list[Work]:
        """Return those of some messages, in their order, that may begin; the others wait."""
        admitted: list[Work] = []
        with self._lock:
            for work in works:
                key = _key_of(work)
                if key is None or self._is_closed:
                    admitted.append(work)
                elif key not in self._waiting and self._has_room(key):
                    self._begun.setdefault(key, set()).add(work)
                    admitted.append(work)
                else:
                    self._waiting.setdefault(key, deque()).append(work)
        return admitted

    def enter(self, work: Work) -> None:
        """Count a message that is settled without a handler: those behind it wait for that."""
        key = _key_of(work)
        if key is not None:
            with self._lock:
                self._begun.setdefault(key, set()).add(work)

    def ended(self, works: Sequence[Work]) -> _Following:
        """Take note that messages were settled or lost; return what becomes of others."""
        following = _Following([], [])
        with self._lock:
            for work in works:
                key = _key_of(work)
                begun = None if key is None else self._begun.get(key)
                if key is None or begun is None or work not in begun:
                    continue
                begun.remove(work)
                if not begun:
                    del self._begun[key]
                is_done = work.outcome is not None and work.outcome.kind is Kind.DONE
                if self.is_ordered and not is_done:
                    following.give_back.extend(self._waiting.pop(key, ()))
                else:
                    following.begin.extend(self._next_of(key))
        return following if following.begin or following.give_back else _NOTHING

    def waiting(self, place: int) -> list[Work]:
        """Return what waits here of a queue of the worker."""
        with self._lock:
            return [
                work for key, all_of in self._waiting.items() if key[0] == place for work in all_of
            ]

    def drain(self) -> list[Work]:
        """Take all that waits, and let everything pass from now on."""
        with self._lock:
            self._is_closed = True
            left = [work for each in self._waiting.values() for work in each]
            self._waiting.clear()
            return left

    def _next_of(self, key: _Key) -> list[Work]:
        """Take those that waited and may begin now."""
        waiting = self._waiting.get(key)
        found: list[Work] = []
        while waiting and self._has_room(key):
            work = waiting.popleft()
            self._begun.setdefault(key, set()).add(work)
            found.append(work)
        if waiting is not None and not waiting:
            del self._waiting[key]
        return found

    def _has_room(self, key: _Key) -> bool:
        return len(self._begun.get(key, ())) < self._most


def gate_of(most: int | None, *, is_ordered: bool) -> GroupGate | None:
    """Return the gate of a worker; None if it works on any number of a group in any order."""
    if is_ordered:
        return GroupGate(1, is_ordered=True)
    return None if most is None else GroupGate(most, is_ordered=False)


def doubt_of(client: QueueClient, *, is_ordered: bool) -> str | None:
    """Ask a service whether it hands groups out in order; return what to warn of, if it does not.

    Raises:
        QueueError: It does not say.
    """
    if not client.capabilities.tells_order:
        return None
    asked: TellsOrder = client  # type: ignore[assignment]  # the capabilities say so
    if asked.group_order() == "fifo":
        return None
    if is_ordered:
        return (
            "the server does not deliver its groups in order, so ordered keeps only the order in "
            "which this worker receives messages; set groups.order of the queue to fifo"
        )
    return (
        "the server does not deliver its groups in order, so other workers may process messages "
        "of the same groups; concurrency_per_group limits this worker only, groups.max_in_flight "
        "all"
    )


def _key_of(work: Work) -> _Key | None:
    group_id = work.delivery.group_id
    return None if group_id is None else (work.source.place, group_id)
