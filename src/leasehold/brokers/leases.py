"""Leases of a connection: received in advance, kept while the work runs, and settled.

Threads do that, so that it goes on whatever the application does meanwhile: one for each queue
that is consumed, which waits at the server, and one that acknowledges, gives back and renews in
batches. Nothing here knows the frameworks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from leasehold.client import Client, ConnectionFailed, LeaseholdClientError, Unavailable
from leasehold.client.errors import LeaseLost, MessageNotFound, QueueNotFound, ServerProblem
from leasehold.client.handles import QueueHandle, Session
from leasehold.client.models import ReceivedMessage
from leasehold.clock import Clock, SystemClock
from leasehold.domain.wording import count_of

Ending = Literal["complete", "failed", "returned", "buried"]

MAX_BATCH: Final = 100
"""Messages that one request receives at most."""
NO_LIMIT: Final = 10_000
"""Messages that a consumer without a limit has unacknowledged at most."""
RENEWALS_PER_LEASE: Final = 3
"""A lease outlives two renewals that fail."""
RECEIVE_LINGER_S: Final = 0.005
SETTLE_LINGER_S: Final = 0.02
"""How long a request waits for more that it can do at once. A request costs the server as much as
ten messages; a process that is killed meanwhile has what it did not tell done again."""
_CLOSE_S: Final = 5.0
_JOIN_S: Final = 0.5
_PAUSE_S: Final = 1.0
"""After a failure, before the next try."""
_log: Final = logging.getLogger("leasehold.brokers")


class Prefetch:
    """How many messages a channel may have unacknowledged. Threads share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._limit = 0
        self._used = 0

    @property
    def limit(self) -> int:
        """The most; 0 for no limit."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        with self._changed:
            self._limit = value
            self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether no more may be received."""
        return self._used >= (self._limit or NO_LIMIT)

    @property
    def _is_half_free(self) -> bool:
        return 2 * self._used <= (self._limit or NO_LIMIT)

    def take(self, most: int, until: Callable[[], bool]) -> int:
        """Take up to *most* places, once there is one; 0 if *until* says so before."""
        with self._changed:
            self._changed.wait_for(lambda: until() or not self.is_full)
            # Half of them are still busy: fewer requests, each for more.
            self._changed.wait_for(lambda: until() or self._is_half_free, RECEIVE_LINGER_S)
            if until():
                return 0
            taken = min(most, (self._limit or NO_LIMIT) - self._used)
            self._used += taken
            return taken

    def take_one(self) -> bool:
        """Take a place if there is one."""
        with self._changed:
            if self.is_full:
                return False
            self._used += 1
            return True

    def add_one(self) -> None:
        """Take a place, whether there is one or not."""
        with self._changed:
            self._used += 1

    def free(self, places: int) -> None:
        """Give places back."""
        if places:
            with self._changed:
                was_full = self.is_full
                self._used -= places
                # Waking a thread for each message costs more than the message.
                if was_full or self._is_half_free:
                    self._changed.notify_all()

    def wake(self) -> None:
        """Have those that wait look at their *until*."""
        with self._changed:
            self._changed.notify_all()


@dataclass(slots=True, eq=False)
class Held:
    """A message on a lease of this connection."""

    tag: str
    queue: str
    """Name on the server."""
    message: ReceivedMessage
    prefetch: Prefetch | None
    """Whose place it has; None where acknowledgements are not asked for."""
    visibility_timeout_s: int
    renew_at_s: float
    is_lost: bool = False
    """A renewal was refused, so somebody else has the message, or nobody any more."""


class LeaseKeeper:
    """Renews leases, and tells the server how they end."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[str, Held] = {}
        self._by_id: dict[tuple[str, str], Held] = {}
        """By queue and id, until the server knows how it ended."""
        self._ended: list[tuple[Held, Ending]] = []
        self._is_busy = False
        self._is_urgent = False
        """Whether the thread is waited for."""
        self._stopping = False
        self._thread: threading.Thread | None = None

    def hold(
        self,
        queue: str,
        messages: Iterable[ReceivedMessage],
        prefetch: Prefetch | None,
        lease_s: int,
    ) -> list[Held]:
        """Keep the leases of messages from now on, and return those that are new here.

        A message may come again to the connection that has it, when its lease ran out while the
        server was away. Its work goes on then, and is acknowledged with the new receipt.
        """
        renew_at_s = self._clock.monotonic_s() + lease_s / RENEWALS_PER_LEASE
        made: list[Held] = []
        with self._changed:
            for each in messages:
                known = self._by_id.get((queue, each.id))
                if known is None:
                    tag = f"{each.id}.{each.fence}"
                    held = Held(tag, queue, each, prefetch, lease_s, renew_at_s)
                    self._held[tag] = self._by_id[queue, each.id] = held
                    made.append(held)
                else:
                    known.message, known.is_lost, known.renew_at_s = each, False, renew_at_s
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="leasehold-leases", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        return made

    def settle(self, tag: str, ending: Ending) -> None:
        """End a lease soon; one that has been settled before is left alone."""
        with self._changed:
            held = self._held.pop(tag, None)
            if held is None:
                return
            self._ended.append((held, ending))
            if ending != "complete":  # what is given back comes again, as another delivery
                self._by_id.pop((held.queue, held.message.id), None)
            if len(self._ended) == 1:
                self._changed.notify_all()
        if held.prefetch is not None:
            held.prefetch.free(1)

    def settle_all(self, prefetch: Prefetch, ending: Ending) -> int:
        """End the leases of a channel; return how many there were."""
        with self._changed:
            tags = [tag for tag, held in self._held.items() if held.prefetch is prefetch]
        for tag in tags:
            self.settle(tag, ending)
        return len(tags)

    def flush(self, patience_s: float) -> bool:
        """Wait until the server knows of all that has been settled; tell whether it does."""
        with self._changed:
            if self._thread is None or not (self._ended or self._is_busy):
                return True
            self._is_urgent = True
            self._changed.notify_all()
            try:
                return self._changed.wait_for(
                    lambda: not self._ended and not self._is_busy, patience_s
                )
            finally:
                self._is_urgent = False

    def close(self, patience_s: float) -> None:
        """Tell the server the last, and stop."""
        if not self.flush(patience_s):
            _log.warning("messages that could not be settled at the server: %d", len(self._ended))
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    # In the thread.

    def _run(self) -> None:
        while not self._stopping:
            with self._changed:
                if not self._stopping and not self._ended:
                    self._changed.wait(self._idle_s())
                if self._ended:
                    self._changed.wait_for(
                        lambda: self._is_urgent or self._stopping, SETTLE_LINGER_S
                    )
                ended, self._ended = self._ended, []
                now_s = self._clock.monotonic_s()
                due = [
                    each
                    for each in self._held.values()
                    if each.renew_at_s <= now_s and not each.is_lost
                ]
                self._is_busy = bool(ended)
            failed = self._settle(ended)
            self._renew(due)
            with self._changed:
                again = {id(held) for held, _ in failed}
                for held, ending in ended:
                    if ending == "complete" and id(held) not in again:
                        self._by_id.pop((held.queue, held.message.id), None)
                self._ended = failed + self._ended
                self._is_busy = False
                self._changed.notify_all()
                if failed:
                    self._changed.wait_for(lambda: self._stopping, _PAUSE_S)

    def _idle_s(self) -> float | None:
        moments = [each.renew_at_s for each in self._held.values() if not each.is_lost]
        return max(0.0, min(moments) - self._clock.monotonic_s()) if moments else None

    def _settle(self, ended: list[tuple[Held, Ending]]) -> list[tuple[Held, Ending]]:
        """Return what has to be tried again."""
        failed = []
        groups: dict[tuple[str, Ending], list[Held]] = {}
        for held, ending in ended:
            if held.is_lost:  # whoever has it now settles it
                _log.warning("Message %s of %s is lost: not told", held.message.id, held.queue)
            else:
                groups.setdefault((held.queue, ending), []).append(held)
        for (queue, ending), group in groups.items():
            sent = [held.message for held in group]
            try:
                answers = _settled(self._client.queue(queue), ending, sent)
            except QueueNotFound:
                continue
            except LeaseholdClientError as error:
                told = count_of(len(group), "message")
                _log.warning("settling is retried later: %s of %s: %s", told, queue, error)
                failed += [(held, ending) for held in group]
                continue
            for held, message, answer in zip(group, sent, answers, strict=True):
                if not isinstance(answer, ServerProblem):
                    continue
                if held.message is not message:  # it has come again meanwhile
                    failed.append((held, ending))
                else:
                    _log.warning("Message %s of %s: %s", message.id, queue, answer)
        return failed

    def _renew(self, due: list[Held]) -> None:
        groups: dict[tuple[str, int], list[Held]] = {}
        for held in due:
            groups.setdefault((held.queue, held.visibility_timeout_s), []).append(held)
        for (queue, lease_s), group in groups.items():
            every_s = lease_s / RENEWALS_PER_LEASE
            began_s = self._clock.monotonic_s()
            sent = [held.message for held in group]
            try:
                answers = self._client.queue(queue).renew_many(sent, lease_s)
            except LeaseholdClientError as error:
                told = count_of(len(group), "lease")
                _log.warning("could not renew %s of %s: %s", told, queue, error)
                for held in group:
                    held.renew_at_s = began_s + min(_PAUSE_S, every_s)
                continue
            for held, message, answer in zip(group, sent, answers, strict=True):
                if held.message is not message:  # it has come again meanwhile
                    continue
                if isinstance(answer, ServerProblem):
                    held.is_lost = isinstance(answer, LeaseLost | MessageNotFound)
                    held.renew_at_s = began_s + min(_PAUSE_S, every_s)
                    _log.warning("Lease of message %s of %s: %s", held.message.id, queue, answer)
                else:
                    held.message = answer
                    held.renew_at_s = began_s + every_s


def _settled(queue: QueueHandle, ending: Ending, messages: list[ReceivedMessage]) -> list[object]:
    if ending == "complete":
        return list(queue.complete_many(messages))
    return list(queue.release_many(messages, outcome=ending))


# --- receiving -----------------------------------------------------------------------------------


class Inbox:
    """Deliveries on their way from the threads that receive to the one that works.

    ``fileno`` can be read while there is something in it, for event loops.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Receiver, Held]] = deque()
        self._error: Exception | None = None
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def fileno(self) -> int:
        """See above."""
        return self._reader

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, deliveries: Iterable[tuple[Receiver, Held]]) -> None:
        """Add deliveries at the end."""
        with self._changed:
            self._waiting.extend(deliveries)
            self._ring()

    def fail(self, error: Exception) -> None:
        """Have whoever takes a delivery get *error* from now on."""
        with self._changed:
            self._error = self._error or error
            self._ring()

    def get(self, timeout_s: float | None) -> tuple[Receiver, Held] | None:
        """Take the first; wait up to *timeout_s* for it, None for as long as it takes.

        Raises:
            Exception: What was given to ``fail``.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error, timeout_s)
            if self._error is not None:
                raise self._error
            found = self._waiting.popleft() if self._waiting else None
            if not self._waiting:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._reader, 4_096)
            return found

    def remove(self, receiver: Receiver) -> list[Held]:
        """Take out all that a receiver has put in."""
        with self._changed:
            removed = [held for by, held in self._waiting if by is receiver]
            self._waiting = deque(each for each in self._waiting if each[0] is not receiver)
            return removed

    def close(self) -> None:
        """Close the pipe."""
        with self._changed:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1

    def _ring(self) -> None:
        self._changed.notify_all()
        if self._writer >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._writer, b"1")


class Receiver:
    """Receives the messages of one queue in a thread, while there are places for them."""

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        *,
        name: str,
        queue: QueueHandle,
        session: Session,
        keeper: LeaseKeeper,
        inbox: Inbox,
        prefetch: Prefetch,
        no_ack: bool,
        lease_s: int,
        wait_s: float,
    ) -> None:
        self.name = name
        """Name of the queue in kombu."""
        self.no_ack = no_ack
        self._queue = queue
        self._session = session
        self._keeper = keeper
        self._inbox = inbox
        self._prefetch = prefetch
        self._lease_s = lease_s
        self._wait_s = wait_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"leasehold-{queue.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Receive no more, and give back what nobody has been handed yet.

        A request that waits at the server is left alone: what it still gets is given back.
        """
        self._stopping.set()
        self._prefetch.wake()
        for held in self._inbox.remove(self):
            self._keeper.settle(held.tag, "returned")

    def join(self, patience_s: float) -> None:
        """Wait for the thread, which ends soon once the session is over."""
        self._thread.join(patience_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._receive():
                    self._wait()
            except Exception as error:  # noqa: BLE001 - the connection raises it
                if self._stopping.is_set():
                    return
                if not isinstance(error, ConnectionFailed | Unavailable):
                    self._inbox.fail(error)
                    return
                _log.warning("Queue %s: %s", self._queue.name, error)
                self._stopping.wait(_PAUSE_S)

    def _receive(self) -> bool:
        """Fill the free places, without waiting at the server; tell whether there was anything."""
        places = self._prefetch.take(MAX_BATCH, self._stopping.is_set)
        found: list[ReceivedMessage] = []
        try:
            if places:
                found = self._ask(places, 0)
        finally:
            self._prefetch.free(places - len(found))
        self._deliver(found)
        return bool(found) or self._stopping.is_set()

    def _wait(self) -> None:
        """Wait at the server for a first message, which has no place yet.

        Were a place taken for it, queues without messages would keep places from the others.
        """
        for message in self._ask(1, self._wait_s):
            if self._prefetch.take_one():
                self._deliver([message])
            else:
                self._queue.release(message)

    def _ask(self, most: int, wait_s: float) -> list[ReceivedMessage]:
        return self._queue.receive(
            most, visibility_timeout_s=self._lease_s, wait_s=wait_s, session=self._session
        )

    def _deliver(self, messages: list[ReceivedMessage]) -> None:
        if not messages:
            return
        held = self._keeper.hold(self._queue.name, messages, self._prefetch, self._lease_s)
        self._prefetch.free(len(messages) - len(held))
        self._inbox.put((self, each) for each in held)
        if self._stopping.is_set():
            self.stop()


class LeaseConnection:
    """A client, a session and the threads: what one connection of a framework has.

    It belongs to the process that has made it. The session is opened when it is first needed, so
    that those who only publish have none. When the process dies, all that it had unacknowledged
    comes back within seconds.

    Args:
        client: Is closed with it.
        session_timeout_s: Seconds without a heartbeat after which others get its messages, 2 to
            3,600; None: what the server has as its default, 16.
    """

    def __init__(
        self, client: Client, *, session_timeout_s: int | None = None, clock: Clock | None = None
    ) -> None:
        self.client = client
        self.clock = clock or SystemClock()
        self.pid = os.getpid()
        self.keeper = LeaseKeeper(client, self.clock)
        self.inbox = Inbox()
        self._session_timeout_s = session_timeout_s
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._receivers: list[Receiver] = []

    @property
    def session(self) -> Session:
        """The session."""
        with self._lock:
            if self._session is None:
                holder = f"{socket.gethostname()}:{self.pid}"
                session = self.client.session(
                    holder, timeout_s=self._session_timeout_s, on_lost=self.inbox.fail
                )
                self._session = session.open()
                self.on_session()
            return self._session

    def on_session(self) -> None:
        """Be called when the session has begun."""

    def receive_from(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        queue: QueueHandle,
        *,
        name: str,
        prefetch: Prefetch,
        no_ack: bool = False,
        lease_s: int,
        wait_s: float,
    ) -> Receiver:
        """Begin to receive from a queue.

        Args:
            queue: Which.
            name: What the framework calls it.
            prefetch: How many messages it may have unacknowledged.
            no_ack: Whether they are not to be acknowledged; told with each delivery.
            lease_s: Length of leases in seconds, 1 to 604,800.
            wait_s: How long a request waits at the server, 0 to 60 seconds.
        """
        made = Receiver(
            name=name,
            queue=queue,
            session=self.session,
            keeper=self.keeper,
            inbox=self.inbox,
            prefetch=prefetch,
            no_ack=no_ack,
            lease_s=lease_s,
            wait_s=wait_s,
        )
        self._receivers.append(made)
        return made

    def close(self) -> None:
        """Tell the server the last, and end the session: what it still has is given back."""
        for receiver in self._receivers:
            receiver.stop()
        self.keeper.close(_CLOSE_S)
        if self._session is not None:
            self._session.close()
        for receiver in self._receivers:
            receiver.join(_JOIN_S)
        self.client.close()
        self.inbox.close()
