"""A queue in the memory of the process, for tests of handlers and for work that may be lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Final

from leasehold.clock import Clock, SystemClock
from leasehold.worker.queues._memory_parts import MemorySession, MovedClock, Stored, depth_of
from leasehold.worker.queues._one_by_one import check_lengths
from leasehold.worker.queues.errors import (
    BodyTooLarge,
    LeaseGone,
    NotSupported,
    PastExpiry,
    QueueError,
    QueueMissing,
)
from leasehold.worker.queues.memory_faults import Faults
from leasehold.worker.queues.protocol import (
    Capabilities,
    Delivery,
    Depth,
    Fault,
    Lease,
    Outgoing,
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
