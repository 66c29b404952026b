"""A queue in the memory of the process, for tests of handlers and for work that may be lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Final

from leasehold.clock import Clock, SystemClock
from leasehold.worker.adapters.fallbacks import check_lengths
from leasehold.worker.adapters.memory_faults import Faults
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
    WorkerSession,
)
from leasehold.worker.timing import SystemTime, Time

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
    counts_returns=False,
    counts_failures=True,
)
"""What a queue in memory can do."""

_DEDUP_WINDOW_S: Final = 600.0


class MemoryQueue:
    """A queue in memory, with all rules of a real one.

    ::

        queue = MemoryQueue("orders")
        queue.put([Outgoing(body="one")])
        [delivery] = queue.receive(10, visibility_timeout_s=30)

    Ids and receipts are counted, so that a test that moves time by hand sees the same in each run.

    Args:
        name: Of the queue. What is buried is in :attr:`poison`, ``<name>-poison``.
        time: What leases, delays and lives go by; None: the machine's.
        clock: What insert times are read from; None: the machine's, or if *time* is given one that
            is at the start of 2026 and goes with it.
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
    ) -> None:
        self._name = name
        self._time = SystemTime() if time is None else time
        self._clock = clock or (SystemClock() if time is None else MovedClock(time))
        self._strict = strict
        self._capabilities = capabilities
        self._changed = threading.Condition()
        self._numbers = count(1)
        self._wakes = 0
        self._is_there = True
        self._messages: dict[str, Stored] = {}
        self._ready: list[tuple[int, int, Stored]] = []
        """Heap of (number, version, message); one whose version has changed is no longer true."""
        self._hidden: list[tuple[float, int, int, Stored]] = []
        """Heap of (when it becomes visible, number, version, message)."""
        self._keys: dict[str, float] = {}
        self._poison: MemoryQueue | None = None
        self._sessions: list[MemorySession] = []
        self.calls: Counter[str] = Counter()
        """How often each method was called."""
        self.faults = Faults(self._time)
        """What is to fail."""
        self.buried: list[tuple[str, Fault]] = []
        """Ids of messages that were buried, in their order, and why."""

    @property
    def name(self) -> str:
        """See :class:`QueueClient`."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """See :class:`QueueClient`."""
        return self._capabilities

    @property
    def poison(self) -> MemoryQueue:
        """The queue for messages that were buried."""
        with self._changed:
            if self._poison is None:
                self._poison = MemoryQueue(
                    f"{self._name}-poison",
                    time=self._time,
                    clock=self._clock,
                    strict=self._strict,
                    capabilities=self._capabilities,
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
        del holder
        if max_messages < 1:
            raise ValueError(f"max_messages is {max_messages}; it must be 1 or more")
        self._check_lease(visibility_timeout_s)
        with self._call("receive"):
            end_s = self._time.monotonic_s() + min(wait_s, self._capabilities.max_wait_s)
            with self._changed:
                wakes = self._wakes
                while True:
                    self._check_there()
                    own = self._session(session)
                    found = self._take(max_messages, visibility_timeout_s, own)
                    now_s = self._time.monotonic_s()
                    if found or now_s >= end_s or self._wakes != wakes:
                        return found
                    until_s = min(end_s, self._hidden[0][0]) if self._hidden else end_s
                    self._time.wait(self._changed, max(0.0, until_s - now_s))

    def _take(
        self, max_messages: int, visibility_timeout_s: int, session: MemorySession | None
    ) -> list[Delivery]:
        now_s = self._time.monotonic_s()
        self._surface(now_s)
        found: list[Delivery] = []
        limit = min(max_messages, self._capabilities.max_receive)
        while self._ready and len(found) < limit:
            _, version, message = heappop(self._ready)
            if version != message.version or self._is_expired(message, now_s):
                continue
            message.lease(session)
            self._hide(message, now_s + visibility_timeout_s)
            life_s = None if message.ends_s is None else message.ends_s - now_s
            found.append(replace(self._delivery(message), expires_in_s=life_s))
        return found

    def _surface(self, now_s: float) -> None:
        """Make ready what has become visible."""
        hidden = self._hidden
        while hidden and hidden[0][0] <= now_s:
            _, number, version, message = heappop(hidden)
            if version == message.version:
                heappush(self._ready, (number, version, message))

    def _delivery(self, message: Stored) -> Delivery:
        counted = message.fence if self._capabilities.fences else message.dequeue_count
        return replace(
            message.delivery,
            receipt=message.receipt,
            dequeue_count=message.dequeue_count,
            fence=counted,
            saved=message.read_saved(),
        )

    # --- settling ----------------------------------------------------------------------------

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """See :class:`QueueClient`. *timeout_s* is not looked at."""
        del timeout_s
        self._check_lease(visibility_timeout_s)
        with self._call("renew"), self._changed:
            self._check_there()
            repeat = self._capabilities.fences and not self._strict
            return [self._renewed(each, visibility_timeout_s, repeat=repeat) for each in leases]

    def _renewed(self, lease: Lease, lease_s: int, *, repeat: bool = False) -> Renewed | QueueError:
        message = self._messages.get(lease.message_id)
        newest = message.newest(lease) if repeat and message is not None else None
        found = self._held(newest or lease)
        if isinstance(found, QueueError):
            return found
        now_s = self._time.monotonic_s()
        if not found.lives(now_s, lease_s):
            return PastExpiry("the lease would end after the message expires")
        ends_s = now_s + lease_s
        found.renewals += newest is None
        self._hide(found, ends_s if newest is None else max(ends_s, found.visible_at_s))
        return Renewed(found.receipt, found.cancel)

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`. *timeout_s* is not looked at."""
        del timeout_s
        with self._call("complete"), self._changed:
            self._check_there()
            return [self._completed(lease) for lease in leases]

    def _completed(self, lease: Lease) -> QueueError | None:
        found = self._held(lease)
        if isinstance(found, QueueError):
            return found
        self._drop(found)
        return None

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`. *timeout_s* is not looked at."""
        del timeout_s
        with self._call("release"), self._changed:
            self._check_there()
            results = [self._released(each) for each in releases]
            self._changed.notify_all()
            return results

    def _released(self, release: Release) -> QueueError | None:
        found = self._held(release.lease)
        if isinstance(found, QueueError):
            return found
        if release.outcome != "failed" and not self._capabilities.counts_returns:
            found.dequeue_count -= 1
        found.end(release)
        self._hide(found, self._time.monotonic_s() + (release.delay_s or 0))
        return None

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """See :class:`QueueClient`. The state is kept as JSON text, as other services do.

        Raises:
            TypeError: The state is not what JSON can say.
        """
        self._check_lease(visibility_timeout_s)
        try:
            state = json.dumps(saved.state, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"a state must be what JSON can say: {error}") from None
        if self._capabilities.saves == "no":
            raise NotSupported(f"{self._capabilities.service} keeps no progress")
        with self._call("save"), self._changed:
            self._check_there()
            renewed = self._renewed(Lease(delivery.message_id, receipt), visibility_timeout_s)
            if isinstance(renewed, QueueError):
                raise renewed
            self._messages[delivery.message_id].saved = replace(saved, state=state)
            return renewed

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """See :class:`QueueClient`. The message keeps its id; *timeout_s* is not looked at."""
        del timeout_s
        poison = self.poison
        with self._call("bury"), self._changed:
            self._check_there()
            found = self._held(Lease(delivery.message_id, receipt))
            if isinstance(found, QueueError):
                raise found
            self._drop(found)
            self.buried.append((delivery.message_id, fault))
            poison._adopt(found, fault)  # noqa: SLF001 - another object of this class

    def _held(self, lease: Lease) -> Stored | QueueError:
        """Return the message, if the lease is its own."""
        planned = self.faults.refusal_of(lease.message_id)
        if planned is not None:
            return planned
        message = self._messages.get(lease.message_id)
        now_s = self._time.monotonic_s()
        if message is None or self._is_expired(message, now_s):
            return LeaseGone("the message is completed, removed or expired")
        if message.renewals < 0 or lease.receipt != message.receipt:
            return LeaseGone("the receipt is not the newest one")
        if self._strict and now_s >= message.visible_at_s:
            return LeaseGone("the lease has ended")
        return message

    def tried(self, delivery: Delivery) -> Tried:
        """See :class:`CountsFailures`."""
        with self._call("tried"), self._changed:
            message = self._messages.get(delivery.message_id)
            if message is None:
                raise LeaseGone("the message is completed, removed or expired")
            return Tried(message.failures, message.lapses)

    # --- putting -----------------------------------------------------------------------------

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """See :class:`QueueClient`. A key is remembered for ten minutes."""
        with self._call("put"), self._changed:
            self._check_there()
            results = [self._added(each) for each in messages]
            self._changed.notify_all()
            return results

    def _added(self, outgoing: Outgoing) -> QueueError | None:
        body = outgoing.body.encode() if isinstance(outgoing.body, str) else bytes(outgoing.body)
        limit = self._capabilities.max_body_bytes
        if limit is not None and len(body) > limit:
            return BodyTooLarge(f"the body has {len(body)} bytes; at most {limit} are taken")
        now_s = self._time.monotonic_s()
        if outgoing.dedup_key is not None:
            if self._keys.get(outgoing.dedup_key, now_s) > now_s:
                return None
            self._keys[outgoing.dedup_key] = now_s + _DEDUP_WINDOW_S
        number = next(self._numbers)
        life_s = 604_800 if outgoing.time_to_live_s is None else outgoing.time_to_live_s
        ends_s = None if life_s == -1 else now_s + life_s
        now_ms = self._clock.now_ms()
        delivery = Delivery(
            queue=self._name,
            message_id=f"{self._name}-{number}",
            receipt="",
            body=body,
            dequeue_count=0,
            inserted_at_ms=now_ms,
            expires_at_ms=None if ends_s is None else now_ms + life_s * 1000,
            type=outgoing.type,
            properties=dict(outgoing.properties),
            traceparent=outgoing.traceparent,
        )
        message = Stored(number, delivery, ends_s)
        self._messages[delivery.message_id] = message
        self._hide(message, now_s + outgoing.delay_s)
        return None

    def _adopt(self, message: Stored, fault: Fault) -> None:
        """Take in a message that another queue has buried."""
        with self._changed:
            number = next(self._numbers)
            taken = Stored(number, replace(message.delivery, queue=self._name), None)
            taken.fence, taken.faults = message.fence, [*message.faults, fault]
            taken.saved = message.saved
            taken.delivery = replace(taken.delivery, expires_at_ms=None)
            self._messages[taken.delivery.message_id] = taken
            self._hide(taken, self._time.monotonic_s())
            self._changed.notify_all()

    # --- the queue ---------------------------------------------------------------------------

    def depth(self) -> Depth:
        """See :class:`QueueClient`."""
        with self._call("depth"), self._changed:
            self._check_there()
            return depth_of(self._messages.values(), self._time.monotonic_s())

    def create(self) -> None:
        """See :class:`QueueClient`. A queue in memory is there from the start."""
        with self._call("create"), self._changed:
            self._is_there = True

    def delete(self) -> None:
        """Remove the queue and all that is in it; calls then raise QueueMissing until create."""
        with self._changed:
            self._is_there = False
            self._messages.clear()
            self._ready.clear()
            self._hidden.clear()
            self._changed.notify_all()

    def open_session(self, holder: str, timeout_s: float) -> WorkerSession:
        """See :class:`QueueClient`. It lives until it is closed, or :meth:`lose_sessions`."""
        del timeout_s
        if not self._capabilities.sessions:
            raise NotSupported(f"{self._capabilities.service} has no sessions")
        with self._call("open_session"), self._changed:
            session = MemorySession(f"{holder}-{len(self._sessions) + 1}")
            session.queues.add(self)
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
        """Want the work on a message to stop, as an operator may."""
        with self._changed:
            self._messages[message_id].cancel = reason

    def left(self) -> list[Delivery]:
        """Return all messages that are in the queue, visible or not, in the order of their put."""
        with self._changed:
            now_s = self._time.monotonic_s()
            return [self._delivery(each) for each in self._messages.values() if each.lives(now_s)]

    def faults_of(self, message_id: str) -> list[Fault]:
        """Return what went wrong with a message of this queue so far."""
        with self._changed:
            return list(self._messages[message_id].faults)

    def cancelled(self, message_id: str, session: MemorySession) -> str | None:
        """Return why an operator wants the work on a message to stop; see WorkerSession."""
        with self._changed:
            message = self._messages.get(message_id)
            return None if message is None or message.session is not session else message.cancel

    def end_leases(self, session: MemorySession) -> None:
        """Make everything visible that is leased under a session."""
        with self._changed:
            for message in list(self._messages.values()):
                if message.session is session:
                    message.lapse()
                    self._hide(message, self._time.monotonic_s())
            self._changed.notify_all()

    # --- inside ------------------------------------------------------------------------------

    def _call(self, method: str) -> AbstractContextManager[None]:
        self.calls[method] += 1
        return self.faults.around(method)

    def _hide(self, message: Stored, until_s: float) -> None:
        message.version += 1
        message.visible_at_s = until_s
        heappush(self._hidden, (until_s, message.number, message.version, message))

    def _drop(self, message: Stored) -> None:
        message.version += 1
        del self._messages[message.delivery.message_id]

    def _is_expired(self, message: Stored, now_s: float) -> bool:
        if message.lives(now_s):
            return False
        if message.delivery.message_id in self._messages:
            self._drop(message)
        return True

    def _session(self, session: WorkerSession | None) -> MemorySession | None:
        if session is None:
            return None
        if not isinstance(session, MemorySession):
            raise TypeError("the session is of another service")
        if session.is_lost:
            raise LeaseGone("the session is over")
        session.queues.add(self)
        return session

    def _check_there(self) -> None:
        if not self._is_there:
            raise QueueMissing(f"there is no queue {self._name}")

    def _check_lease(self, visibility_timeout_s: int) -> None:
        able = self._capabilities
        check_lengths(visibility_timeout_s, able.min_lease_s, able.max_lease_s)


# --- memory parts ------------------------------------------------------------------------------
#
# What a queue in memory consists of.


_START_MS: Final = 1_767_225_600_000
"""Midnight of 2026-01-01, UTC."""


class MovedClock:
    """A clock for time that is moved by hand: it begins with the year 2026."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._began_s = time.monotonic_s()

    def now_ms(self) -> int:
        """Return Unix milliseconds."""
        return _START_MS + round((self._time.monotonic_s() - self._began_s) * 1000)

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        return self._time.monotonic_s()

    def wall_drift_s(self) -> float:
        """Return 0: nobody moves the two apart."""
        return 0.0


@dataclass(slots=True, eq=False)
class Stored:
    """A message of a queue in memory."""

    number: int
    delivery: Delivery
    """What does not change."""
    ends_s: float | None
    """When it expires; None: never."""
    dequeue_count: int = 0
    fence: int = 0
    renewals: int = -1
    """Of the lease; -1: there is none."""
    visible_at_s: float = 0.0
    version: int = 0
    """Counts the changes, so that what was planned before one is known to be over."""
    session: MemorySession | None = None
    saved: Saved | None = None
    """The state in it is JSON text."""
    cancel: str | None = None
    faults: list[Fault] = field(default_factory=list)
    failures: int = 0
    lapses: int = 0

    def lives(self, now_s: float, longer_s: float = 0) -> bool:
        """Return whether it has not expired, nor will have after *longer_s*."""
        if self.ends_s is None:
            return True
        return now_s + longer_s <= self.ends_s if longer_s else now_s < self.ends_s

    def lease(self, session: MemorySession | None) -> None:
        """Begin a lease; one that was not ended has lapsed."""
        if self.renewals >= 0:
            self.lapse()
        self.dequeue_count += 1
        self.fence += 1
        self.renewals = 0
        self.session = session

    def end(self, release: Release) -> None:
        """End a lease as its holder says."""
        self.renewals = -1
        self.session = None
        self.failures += release.outcome == "failed"
        self.faults += [] if release.fault is None else [release.fault]

    def lapse(self) -> None:
        """End a lease without a word of its holder."""
        self.renewals = -1
        self.session = None
        self.lapses += 1

    @property
    def receipt(self) -> str:
        """The newest receipt; nobody has it while nobody has a lease."""
        return f"{self.delivery.message_id}.{self.fence}.{self.renewals}"

    def newest(self, lease: Lease) -> Lease | None:
        """Return the newest receipt of a lease for the one before that, if it is such a one."""
        before = f"{self.delivery.message_id}.{self.fence}.{self.renewals - 1}"
        if self.renewals < 1 or lease.receipt != before:
            return None
        return Lease(lease.message_id, self.receipt)

    def read_saved(self) -> Saved | None:
        """Return what was saved, as a value of its own."""
        return (
            None if self.saved is None else replace(self.saved, state=json.loads(self.saved.state))
        )

    def state(self, now_s: float) -> str:
        """Return ``visible``, ``leased`` or ``delayed``."""
        if now_s >= self.visible_at_s:
            return "visible"
        return "delayed" if self.renewals < 0 else "leased"


class MemorySession:
    """A session of a queue in memory; see :class:`WorkerSession`. It sends no heartbeats."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._is_lost = False
        self.queues: set[MemoryQueue] = set()
        """Those that it has leases of."""
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

    def cancelled(self, message_id: str) -> str | None:
        """See :class:`WorkerSession`."""
        for queue in self.queues:
            if (reason := queue.cancelled(message_id, self)) is not None:
                return reason
        return None

    def progressed(self, message_id: str) -> None:
        """See :class:`WorkerSession`."""
        self.progress.append(message_id)

    def lose(self) -> None:
        """End it as if its worker had died: its leases end at once."""
        self._is_lost = True
        for queue in self.queues:
            queue.end_leases(self)

    def close(self) -> None:
        """See :class:`WorkerSession`."""
        self.lose()


def depth_of(messages: Iterable[Stored], now_s: float) -> Depth:
    """Count messages by their state; those that have expired are none."""
    counts: Counter[str] = Counter(
        each.state(now_s) for each in messages if each.ends_s is None or now_s < each.ends_s
    )
    return Depth(
        visible=counts["visible"],
        leased=counts["leased"],
        delayed=counts["delayed"],
        total=counts.total(),
    )
