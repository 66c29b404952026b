"""A queue in the memory of the process, for tests of handlers and for work that may be lost.

It is a :class:`~leasehold.stores.memory.MemoryStore` behind the interface that workers have, so the
rules are those of a server: what a worker does to it becomes a command, and it tells the store what
time it is.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, cast

from leasehold.clock import Clock, SystemClock
from leasehold.domain import commands as c
from leasehold.domain import errors as e
from leasehold.domain.admin import CountMessages, FindMessage, Inspect, NextDue
from leasehold.domain.command import Command
from leasehold.domain.filters import MessageFilter
from leasehold.domain.model import (
    ENTROPY_BYTES,
    MAX_ROW_KEY,
    NEVER_MS,
    Detail,
    ErrorReport,
    Message,
    MessageState,
    Outcome,
    make_message_id,
    row_key_of,
)
from leasehold.domain.queue_settings import LapsedReceipts, QueueSettings
from leasehold.domain.sessions import EndSession, LoseSessions, OpenSession, RequestCancel, id_of
from leasehold.stores.memory import MemoryStore
from leasehold.testing.time import START_MS, Gate
from leasehold.worker.adapters.envelope import read_saved, saved_members
from leasehold.worker.adapters.fallbacks import Adapter, life_s, poison_name
from leasehold.worker.adapters.protocol import (
    BodyTooLarge,
    Capabilities,
    Delivery,
    Depth,
    Fault,
    Lease,
    LeaseGone,
    NotSupported,
    Outgoing,
    PastExpiry,
    QueueError,
    QueueMissing,
    Release,
    Renewed,
    Saved,
    Tried,
    Unreachable,
    WorkerSession,
)
from leasehold.worker.timing import SystemTime, Time

_T = TypeVar("_T")
_R = TypeVar("_R")

MEMORY: Final = Capabilities(
    service="memory",
    max_receive=1000,
    max_settle=1000,
    min_lease_s=1,
    max_lease_s=604_800,
    max_wait_s=60,
    max_body_bytes=None,
    fences=True,
    sessions=True,
    claims=False,
    server_poison=True,
    saves="beside",
    counts_returns=True,
    counts_failures=True,
    tells_order=True,
)
"""What a queue in memory can do."""

_ACCOUNT: Final = "memory"
_DEDUP_WINDOW_S: Final = 600
_TIME_TO_LIVE_S: Final = 604_800
_SWEEP_EVERY: Final = 1000
"""Messages put from one sweep of what has expired to the next."""
_SILENT: Final = -1
"""Timeout of a session that sends no heartbeats: it is lost once the store is told to look."""
_HERE: Final = MessageFilter(
    states=frozenset(MessageState) - {MessageState.POISONED, MessageState.EXPIRED}
)
_TOLD: Final = frozenset({Outcome.FAILED, Outcome.INTERRUPTED, Outcome.RETURNED, Outcome.BURIED})
"""How attempts end whose worker says how."""
_MEANINGS: Final[dict[type[e.LeaseholdError], type[QueueError]]] = {
    e.QueueNotFound: QueueMissing,
    e.MessageNotFound: LeaseGone,
    e.MessageNotLeased: LeaseGone,
    e.LeaseLost: LeaseGone,
    e.ReceiptMalformed: LeaseGone,
    e.SessionNotFound: LeaseGone,
    e.SessionOver: LeaseGone,
    e.VisibilityPastExpiry: PastExpiry,
}


class MemoryQueue(Adapter):
    """A queue in memory, with all rules of a real one.

    ::

        queue = MemoryQueue("orders")
        queue.put([Outgoing(body="one")])
        [delivery] = queue.receive(10, visibility_timeout_s=30)

    Ids and receipts are counted, so that a test that moves time by hand sees the same in each run.
    A receive looks at all that waits: it is for thousands of messages, not for hundreds of
    thousands.

    Args:
        name: Of the queue. What is buried is in :attr:`poison`, ``<name>-poison``.
        time: What leases, delays and lives go by; None: the machine's.
        clock: What the time of day is read from at the start; None: the machine's, or if *time* is
            given the start of 2026.
        strict: Whether a receipt dies when its lease ends, as with MNS, and not only when somebody
            else has received the message; and whether no renewal can be sent once more.
        capabilities: Less than :data:`MEMORY`, to test how a worker does without.
    """

    def __init__(
        self,
        name: str = "queue",
        *,
        time: Time | None = None,
        clock: Clock | None = None,
        strict: bool = False,
        capabilities: Capabilities = MEMORY,
        _place: _Place | None = None,
    ) -> None:
        super().__init__(name, capabilities)
        if clock is None and time is None:
            clock = SystemClock()
        self._time = SystemTime() if time is None else time
        self._strict = strict
        start_ms = START_MS if clock is None else clock.now_ms()
        self._place = _place or _Place(self._time, start_ms)
        self._changed = self._place.changed
        self._wakes = 0
        self._poison: MemoryQueue | None = None
        self._sessions: list[MemorySession] = []
        self.calls: Counter[str] = Counter()
        """How often each method was called."""
        self.faults = Faults(self._time)
        """What is to fail."""
        self.buried: list[tuple[str, Fault]] = []
        """Ids of messages that were buried, in their order, and why."""
        self._create()

    def _create(self) -> None:
        rule = LapsedReceipts.STRICT if self._strict else LapsedReceipts.UNTIL_RETAKEN
        settings = QueueSettings(
            lapsed_receipts=rule, dedup_window_s=_DEDUP_WINDOW_S, event_log=False
        )
        self._place.do(c.CreateQueue(_ACCOUNT, self.name, {}, settings))

    @property
    def poison(self) -> MemoryQueue:
        """The queue for messages that were buried."""
        with self._changed:
            if self._poison is None:
                self._poison = MemoryQueue(
                    poison_name(self.name),
                    time=self._time,
                    strict=self._strict,
                    capabilities=self.capabilities,
                    _place=self._place,
                )
            return self._poison

    # --- receiving ---------------------------------------------------------------------------

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """See :class:`QueueClient`. A wait ends early when the client is closed."""
        if max_messages < 1:
            raise ValueError(f"max_messages is {max_messages}; it must be 1 or more")
        self._check_lease(visibility_timeout_s)
        limit = min(max_messages, self.capabilities.max_receive)
        with self._call("receive"):
            end_s = self._time.monotonic_s() + min(wait_s, self.capabilities.max_wait_s)
            with self._changed:
                wakes = self._wakes
                while True:
                    self._check_there()
                    under = self._session(session)
                    taken = self._place.do(
                        c.Receive(_ACCOUNT, self.name, limit, visibility_timeout_s, holder, under)
                    )
                    now_s = self._time.monotonic_s()
                    if taken or now_s >= end_s or self._wakes != wakes:
                        return [self._delivery(*lease) for lease in taken]
                    self._time.wait(self._changed, self._pause_s(end_s - now_s))

    def _pause_s(self, longest_s: float) -> float:
        """Return in how many seconds the next message becomes visible, at most *longest_s*."""
        due_ms = self._place.do(NextDue(_ACCOUNT, self.name)).at_ms
        if due_ms is None:
            return longest_s
        return min(longest_s, max(0, due_ms - self._place.now_ms()) / 1000)

    def _delivery(self, message: Message, receipt: str = "") -> Delivery:
        detail = message.detail
        expires_at_ms = None if message.expires_at_ms == NEVER_MS else message.expires_at_ms
        return Delivery(
            queue=self.name,
            message_id=self._id_of(message),
            receipt=receipt,
            body=message.body,
            dequeue_count=message.dequeue_count,
            fence=message.fence if self.capabilities.fences else message.dequeue_count,
            inserted_at_ms=message.inserted_at_ms,
            expires_at_ms=expires_at_ms,
            expires_in_s=life_s(self._place.now_ms(), expires_at_ms, 0),
            type=detail.message_type,
            properties=detail.properties,
            traceparent=detail.traceparent,
            group_id=detail.group_id,
            saved=None if detail.saved is None else read_saved(json.loads(detail.saved)),
        )

    def _id_of(self, message: Message) -> str:
        """Return the name of the queue that the message was put into, and its number."""
        poisoning = message.detail.poisoning
        put_into = self.name if poisoning is None else poisoning.queue
        return f"{put_into}-{row_key_of(message.message_id)}"

    # --- settling ----------------------------------------------------------------------------

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """See :class:`QueueClient`. *timeout_s* is not looked at."""
        del timeout_s
        self._check_lease(visibility_timeout_s)
        repeats = self.capabilities.fences and not self._strict
        return self._each(
            "renew",
            leases,
            lambda lease: self._renewed(lease, visibility_timeout_s, may_repeat=repeats),
        )

    def _renewed(
        self, lease: Lease, lease_s: int, *, saved: str | None = None, may_repeat: bool = False
    ) -> Renewed:
        renewed, receipt = self._settled(
            lease,
            partial(c.Renew, visibility_timeout_s=lease_s, saved=saved, may_repeat=may_repeat),
        )
        cancel = renewed.detail.cancel
        return Renewed(receipt, None if cancel is None else cancel.reason)

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`. *timeout_s* is not looked at."""
        del timeout_s
        return self._each("complete", leases, self._completed)

    def _completed(self, lease: Lease) -> None:
        self._settled(lease, c.Complete)

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`. *timeout_s* is not looked at.

        Those that would expire before their delay is over are given back without one.
        """
        del timeout_s
        return self._each("release", releases, self._released)

    def _released(self, release: Release) -> None:
        make = partial(c.Release, outcome=Outcome(release.outcome), error=_report(release.fault))
        try:
            self._settled(release.lease, partial(make, delay_s=release.delay_s))
        except PastExpiry:
            self._settled(release.lease, make)

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """See :class:`QueueClient`. The state is kept as JSON text, as other services do.

        Raises:
            TypeError: The state is not what JSON can say.
            ValueError: The fraction is not within 0 to 1.
        """
        self._check_lease(visibility_timeout_s)
        text = json.dumps(saved_members(saved))
        if self.capabilities.saves == "no":
            raise NotSupported(f"{self.capabilities.service} keeps no progress")
        lease = Lease(delivery.message_id, receipt)
        with self._call("save"), self._changed:
            self._check_there()
            return self._renewed(lease, visibility_timeout_s, saved=text)

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """See :class:`QueueClient`. The message keeps its id; *timeout_s* is not looked at."""
        del timeout_s
        assert self.poison is not None  # or the store would make one with other settings
        lease = Lease(delivery.message_id, receipt)
        with self._call("bury"), self._changed:
            self._check_there()
            make = partial(c.Release, outcome=Outcome.BURIED, error=_report(fault))
            self._settled(lease, make)
            self.buried.append((delivery.message_id, fault))
            self._changed.notify_all()

    def _each(
        self, method: str, items: Sequence[_T], work: Callable[[_T], _R]
    ) -> list[_R | QueueError]:
        """Do *work* for each item; return its result, or the error that it raised."""
        results: list[_R | QueueError] = []
        with self._call(method), self._changed:
            self._check_there()
            for item in items:
                try:
                    results.append(work(item))
                except QueueError as error:
                    results.append(error)
            self._changed.notify_all()
        return results

    def _settled(self, lease: Lease, make: Callable[..., Command[_R]]) -> _R:
        """Carry out the command that *make* returns for a lease, unless that is to be refused."""
        planned = self.faults.refusal_of(lease.message_id)
        if planned is not None:
            raise planned
        return self._place.do(make(_ACCOUNT, self.name, _store_id(lease.message_id), lease.receipt))

    def tried(self, delivery: Delivery) -> Tried:
        """See :class:`CountsFailures`. In a poison queue only what came after that counts."""
        with self._call("tried"):
            detail = self._find(delivery.message_id).detail
        before = detail.poisoning
        if before is None:
            return Tried(detail.failures, detail.lapses)
        return Tried(detail.failures - before.failures, detail.lapses - before.lapses)

    def _find(self, message_id: str) -> Message:
        """Return a message that is in this queue.

        Raises:
            LeaseGone: It is not.
        """
        with self._changed:
            seen = self._place.do(FindMessage(_ACCOUNT, self.name, _store_id(message_id)))
        if seen.queue != self.name or seen.state is MessageState.EXPIRED:
            raise LeaseGone("the message is completed, removed or expired")
        return seen.message

    def group_order(self) -> str:
        """See :class:`TellsOrder`."""
        with self._changed:
            groups = self._place.do(c.GetQueue(_ACCOUNT, self.name)).queue.settings.groups
        return "none" if groups is None else groups.order.value

    # --- putting -----------------------------------------------------------------------------

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """See :class:`QueueClient`. A key is remembered for ten minutes."""
        return self._each("put", messages, self._put)

    def _put(self, outgoing: Outgoing) -> None:
        body = outgoing.body.encode() if isinstance(outgoing.body, str) else bytes(outgoing.body)
        limit = self.capabilities.max_body_bytes
        if limit is not None and len(body) > limit:
            raise BodyTooLarge(f"the body has {len(body)} bytes; at most {limit} are taken")
        life_s = _TIME_TO_LIVE_S if outgoing.time_to_live_s is None else outgoing.time_to_live_s
        detail = Detail(
            properties=dict(outgoing.properties),
            message_type=outgoing.type,
            traceparent=outgoing.traceparent,
            dedup_key=outgoing.dedup_key,
            group_id=outgoing.group_id,
        )
        self._place.do(
            c.Put(
                _ACCOUNT,
                self.name,
                body,
                outgoing.delay_s,
                None if life_s == -1 else life_s,
                _entropy_of(self.name),
                detail,
            )
        )
        self._place.note_put()

    # --- the queue ---------------------------------------------------------------------------

    def depth(self) -> Depth:
        """See :class:`QueueClient`. What was given back with a delay counts as delayed."""
        with self._call("depth"), self._changed:
            counts = self._place.do(CountMessages(_ACCOUNT, self.name))
        return Depth(
            visible=counts.visible,
            leased=counts.leased,
            delayed=counts.delayed + counts.deferred,
            total=counts.total,
        )

    def create(self) -> None:
        """See :class:`QueueClient`. A queue in memory is there from the start."""
        with self._call("create"), self._changed:
            self._create()

    def delete(self) -> None:
        """Remove the queue and all that is in it; calls then raise QueueMissing until create."""
        with self._changed:
            with suppress(QueueMissing):
                self._place.do(c.DeleteQueue(_ACCOUNT, self.name))
            self._changed.notify_all()

    def open_session(self, holder: str, timeout_s: float) -> WorkerSession:
        """See :class:`QueueClient`. It lives until it is closed, or :meth:`lose_sessions`."""
        if not self.capabilities.sessions:
            return super().open_session(holder, timeout_s)
        with self._call("open_session"), self._changed:
            session = MemorySession(f"{holder}-{len(self._sessions) + 1}")
            self._sessions.append(session)
            return session

    def close(self) -> None:
        """End the waits of receives. The messages stay, and the queue can be used further."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    # --- for tests ---------------------------------------------------------------------------

    def lose_sessions(self) -> None:
        """End all sessions that were opened here, as if their workers had died."""
        for session in list(self._sessions):
            session.lose()

    def cancel(self, message_id: str, reason: str) -> None:
        """Want the work on a message to stop, as an operator may.

        Raises:
            LeaseGone: Nobody works on it.
        """
        with self._changed:
            command = RequestCancel(_ACCOUNT, self.name, _store_id(message_id), reason)
            self._place.do(command)

    def left(self) -> list[Delivery]:
        """Return all messages that are in the queue, visible or not, in the order of their put."""
        with self._changed:
            page = self._place.do(Inspect(_ACCOUNT, self.name, _HERE, "", MAX_ROW_KEY))
            return [self._delivery(seen.message) for seen in page.messages]

    def faults_of(self, message_id: str) -> list[Fault]:
        """Return what went wrong with a message of this queue so far, as its workers said.

        A long text is cut once there is a later attempt, and of many attempts not all are kept.

        Raises:
            LeaseGone: It is not in this queue.
        """
        return [
            Fault(text=error.text, type=error.type, fingerprint=error.fingerprint)
            for attempt in self._find(message_id).detail.attempts
            if (error := attempt.error) is not None and attempt.outcome in _TOLD
        ]

    # --- inside ------------------------------------------------------------------------------

    def _call(self, method: str) -> AbstractContextManager[None]:
        self.calls[method] += 1
        return self.faults.around(method)

    def _session(self, session: WorkerSession | None) -> str | None:
        """Return the id of a session in the store."""
        if session is None:
            return None
        if not isinstance(session, MemorySession):
            raise TypeError("the session is of another service")
        if session.is_lost:
            raise LeaseGone("the session is over")
        return session.join(self._place)

    def _check_there(self) -> None:
        if self._place.store.find_queue(_ACCOUNT, self.name) is None:
            raise QueueMissing(f"there is no queue {self.name}")


class _Place:
    """A store with a queue and its poison queue in it. All but :meth:`now_ms` needs the lock.

    Args:
        time: That it goes by.
        start_ms: The time of day at its start, Unix milliseconds.
    """

    def __init__(self, time: Time, start_ms: int) -> None:
        self.store = MemoryStore(receipt_key=b"memory")  # the same receipts in each run
        self.changed = threading.Condition()
        """The lock; notified when there may be something to receive, or no queue any more."""
        self._time = time
        self._start_ms = start_ms
        self._started_s = time.monotonic_s()
        self._put = 0

    def now_ms(self) -> int:
        """Return the time of day, Unix milliseconds."""
        return self._start_ms + round((self._time.monotonic_s() - self._started_s) * 1000)

    def do(self, command: Command[_R]) -> _R:
        """Carry a command out.

        Raises:
            QueueError: The store refuses it.
        """
        (result,) = self.store.execute([command], now_ms=self.now_ms())
        if isinstance(result, e.LeaseholdError):
            raise _MEANINGS[type(result)](str(result))
        return cast("_R", result)

    def note_put(self) -> None:
        """Free now and then what has expired."""
        self._put += 1
        if self._put % _SWEEP_EVERY == 0:
            self.do(c.RetireExpired(_SWEEP_EVERY))
            self.do(c.RemoveRetired(self.now_ms(), _SWEEP_EVERY))
            self.do(c.ForgetKeys(_SWEEP_EVERY))


class MemorySession:
    """A session of a queue in memory; see :class:`WorkerSession`. It sends no heartbeats."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._entropy = secrets.token_bytes(ENTROPY_BYTES)
        self._is_lost = False
        self._joined: list[_Place] = []
        """Those that it has leases in."""
        self.progress: list[str] = []
        """Ids of messages whose work went on, in the order in which that was said."""

    @property
    def session_id(self) -> str:
        """See :class:`WorkerSession`."""
        return self._session_id

    @property
    def is_lost(self) -> bool:
        """See :class:`WorkerSession`."""
        return self._is_lost

    def join(self, place: _Place) -> str:
        """Have leases in a store belong to it; return its id there."""
        if place not in self._joined:
            place.do(OpenSession(_ACCOUNT, self._session_id, self._entropy, _SILENT))
            self._joined.append(place)
        return id_of(self._entropy)

    def cancelled(self, message_id: str) -> str | None:
        """See :class:`WorkerSession`."""
        queue, _, _ = message_id.rpartition("-")
        for place in self._joined:
            with place.changed:
                try:
                    found = place.do(FindMessage(_ACCOUNT, queue, _store_id(message_id))).message
                except QueueError:
                    continue
            cancel = found.detail.cancel
            if cancel is not None and found.session == id_of(self._entropy):
                return cancel.reason
        return None

    def progressed(self, message_id: str) -> None:
        """See :class:`WorkerSession`."""
        self.progress.append(message_id)

    def lose(self) -> None:
        """End it as if its worker had died, and what else is open at the same queues."""
        self._end(LoseSessions(MAX_ROW_KEY))

    def close(self) -> None:
        """See :class:`WorkerSession`. Of many hundreds of leases some stay until they run out."""
        self._end(EndSession(_ACCOUNT, id_of(self._entropy)))

    def _end(self, command: LoseSessions | EndSession) -> None:
        self._is_lost = True
        for place in self._joined:
            with place.changed:
                place.do(command)
                place.changed.notify_all()


def _report(fault: Fault | None) -> ErrorReport | None:
    if fault is None:
        return None
    return ErrorReport(text=fault.text, type=fault.type, fingerprint=fault.fingerprint)


def _entropy_of(queue: str) -> bytes:
    return hashlib.blake2b(queue.encode(), digest_size=ENTROPY_BYTES).digest()


def _store_id(message_id: str) -> str:
    """Return the id that a message has in the store."""
    queue, _, number = message_id.rpartition("-")
    if not number.isdecimal() or int(number) > MAX_ROW_KEY:
        return message_id
    return make_message_id(int(number), _entropy_of(queue))


# --- faults ------------------------------------------------------------------------------------
#
# What a queue in memory is to fail at.


@dataclass(slots=True)
class _Planned:
    """A fault that waits for its calls."""

    method: str | None
    calls: int
    error: QueueError | None = None
    carried_out: bool = False
    delay_s: float = 0.0
    gate: Gate | None = None


class Faults:
    """Faults of the calls to come. All methods may be used from any thread.

    What is planned first comes first; a call meets one fault of each kind: a failure, a delay, a
    gate. ``method`` is the name of a method of the client, such as ``"renew"``; None is any.
    """

    def __init__(self, time: Time) -> None:
        self._time = time
        self._lock = threading.Lock()
        self._planned: deque[_Planned] = deque()
        self._refused: dict[str, deque[QueueError]] = {}

    def fail(
        self,
        calls: int = 1,
        *,
        method: str | None = None,
        carried_out: bool = False,
        error: QueueError | None = None,
    ) -> None:
        """Have the next *calls* fail as a whole.

        Args:
            calls: How many.
            method: Of which method.
            carried_out: Whether they do their work all the same, as when the answer gets lost.
            error: What they raise; None: Unreachable with an unknown outcome.
        """
        if error is None:
            error = Unreachable("a planned fault", outcome_unknown=True)
        self._plan(_Planned(method, calls, error=error, carried_out=carried_out))

    def refuse(self, message_id: str, error: QueueError, calls: int = 1) -> None:
        """Have the next *calls* answer *error* for this one message; nothing is done to it."""
        with self._lock:
            self._refused.setdefault(message_id, deque()).extend([error] * calls)

    def slow(self, delay_s: float, calls: int = 1, *, method: str | None = None) -> None:
        """Have the next *calls* take *delay_s* seconds of the queue's time; then they are done."""
        self._plan(_Planned(method, calls, delay_s=delay_s))

    def hold(self, calls: int = 1, *, method: str | None = None, after: bool = False) -> Gate:
        """Hold the next *calls* back until the gate that this returns is opened.

        Args:
            calls: How many.
            method: Of which method.
            after: Whether they do their work before they stand at the gate, so that only their
                answers are late.
        """
        gate = Gate(self._time)
        self._plan(_Planned(method, calls, gate=gate, carried_out=after))
        return gate

    def clear(self) -> None:
        """Plan nothing any more. Gates that hold a call stay as they are."""
        with self._lock:
            self._planned.clear()
            self._refused.clear()

    @contextmanager
    def around(self, method: str) -> Iterator[None]:
        """Do to one call what is planned for it."""
        failure, delay, gate = self._take(method)
        if delay is not None:
            self._pass_time(delay.delay_s)
        if gate is not None and gate.gate is not None and not gate.carried_out:
            gate.gate.wait()
        if failure is not None and failure.error is not None and not failure.carried_out:
            raise failure.error
        yield
        if gate is not None and gate.gate is not None and gate.carried_out:
            gate.gate.wait()
        if failure is not None and failure.error is not None and failure.carried_out:
            raise failure.error

    def refusal_of(self, message_id: str) -> QueueError | None:
        """Return what is planned for a message, once."""
        if not self._refused:
            return None
        with self._lock:
            planned = self._refused.get(message_id)
            return planned.popleft() if planned else None

    def _plan(self, planned: _Planned) -> None:
        with self._lock:
            self._planned.append(planned)

    def _take(self, method: str) -> tuple[_Planned | None, _Planned | None, _Planned | None]:
        found: list[_Planned | None] = [None, None, None]
        if not self._planned:
            return None, None, None
        with self._lock:
            for planned in list(self._planned):
                if planned.method not in {None, method}:
                    continue
                kind = 0 if planned.error is not None else 1 if planned.gate is None else 2
                if found[kind] is not None:
                    continue
                found[kind] = planned
                planned.calls -= 1
                if planned.calls <= 0:
                    self._planned.remove(planned)
        return found[0], found[1], found[2]

    def _pass_time(self, length_s: float) -> None:
        condition = threading.Condition()
        end_s = self._time.monotonic_s() + length_s
        with condition:
            while (left_s := end_s - self._time.monotonic_s()) > 0:
                self._time.wait(condition, left_s)
