"""What a connection of kombu has to the server: a client, a session, and threads.

A connection of AMQP is a session here: when its process dies, all it had unacknowledged comes back
within seconds. The session is opened for the first consumer, so that those who only publish have
none.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from leasehold.client import Client, LeaseholdClientError, NewMessage, QueueHandle
from leasehold.client.errors import QueueExists, QueueNotFound, ServerProblem
from leasehold.client.handles import Session
from leasehold.client.models import QueueInfo
from leasehold.clock import Clock, SystemClock
from leasehold.kombu.leases import Inbox, LeaseKeeper, Prefetch, Receiver
from leasehold.kombu.messages import Declared, queue_name

MAX_BODY_BYTES: Final = 1_048_576
"""Largest body in queues that are created here, unless said otherwise."""
_CLOSE_S: Final = 5.0
_JOIN_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Transport options that are about the link; see ``docs/reference/celery.md``."""

    visibility_timeout: float | Mapping[str, float] = 60
    """Seconds, for all queues, or by queue with ``"*"`` for the others."""
    session_timeout: int | None = None
    """Seconds; None: what the server has as its default, 16."""
    wait_time_seconds: float = 20
    queue_name_prefix: str = ""
    queue_settings: Mapping[str, Any] = field(default_factory=dict)

    def lease_s(self, queue: str) -> int:
        """Return the length of leases of a queue, in seconds."""
        given = self.visibility_timeout
        if isinstance(given, Mapping):
            given = given.get(queue, given.get("*", 60))
        return max(1, int(given))


class Link:
    """See above. It belongs to the process that has made it."""

    def __init__(self, client: Client, options: Options, clock: Clock | None = None) -> None:
        self.client = client
        self.options = options
        self.clock = clock or SystemClock()
        self.pid = os.getpid()
        self.keeper = LeaseKeeper(client, self.clock)
        self.inbox = Inbox()
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._receivers: list[Receiver] = []
        self._known: dict[str, QueueInfo] = {}
        """Queues that were declared here."""
        self._listed: dict[str, Declared] = {}
        self._listed_at_s: float | None = None

    # --- queues ---

    def queue(self, name: str) -> QueueHandle:
        """Return the queue that has this name in kombu."""
        return self.client.queue(queue_name(name, self.options.queue_name_prefix))

    def declare(self, name: str, *, message_ttl_s: int | None, goes_with_session: bool) -> None:
        """Create a queue, or find it there, and write down what it is to kombu."""
        session = self.session.id if goes_with_session else None
        handle = self.queue(name)
        found = _find_or_create(handle, self._settings(temporary=goes_with_session))
        before = Declared.read(found.metadata) or Declared(name)
        said = replace(before, session=session, message_ttl_s=message_ttl_s or before.message_ttl_s)
        self._write(handle, found, said)

    def bind(self, name: str, exchange: str, routing_key: str) -> None:
        """Bind a queue that was declared here."""
        handle = self.queue(name)
        found = self._known.get(name) or handle.info()
        said = Declared.read(found.metadata) or Declared(name)
        bound = said.bindings | {(exchange, routing_key)}
        self._write(handle, found, replace(said, bindings=bound))

    def unbind(self, name: str, exchange: str, routing_key: str) -> None:
        """Remove a binding."""
        handle = self.queue(name)
        with contextlib.suppress(QueueNotFound):
            found = handle.info()
            said = Declared.read(found.metadata) or Declared(name)
            rest = said.bindings - {(exchange, routing_key)}
            self._write(handle, found, replace(said, bindings=rest))

    def delete(self, name: str) -> None:
        """Delete a queue, if it is there."""
        self._known.pop(name, None)
        self._listed_at_s = None
        with contextlib.suppress(QueueNotFound):
            self.queue(name).delete()

    def declared(self, max_age_s: float) -> Iterable[Declared]:
        """Return the queues of the account that were declared through kombu, by anyone.

        Args:
            max_age_s: Seconds since they were listed, at most; 0: they are listed now.
        """
        now_s = self.clock.monotonic_s()
        if self._listed_at_s is None or now_s - self._listed_at_s >= max_age_s:
            prefix = self.options.queue_name_prefix
            self._listed = {}
            for each in self.client.list_queues():
                said = Declared.read(each.metadata)
                # Not those that another prefix makes of the same name.
                if said is not None and queue_name(said.name, prefix) == each.name:
                    self._listed[said.name] = said
            self._listed_at_s = now_s
        return list(self._listed.values())

    def message_ttl_s(self, name: str) -> int | None:
        """Return how long messages of a queue live, if that is known and not for ever."""
        declared = self._listed.get(name)
        return None if declared is None else declared.message_ttl_s

    def put(self, name: str, message: NewMessage) -> None:
        """Put a message; a queue that was declared here and is gone is created again.

        Raises:
            QueueNotFound: There is none, and it was not declared here.
        """
        handle = self.queue(name)
        try:
            _put(handle, message)
        except QueueNotFound:
            known = self._known.get(name)
            if known is None:
                raise
            _find_or_create(handle, self._settings(temporary=False))
            handle.update(metadata=known.metadata)
            _put(handle, message)

    def _settings(self, *, temporary: bool) -> Mapping[str, Any]:
        if temporary:
            return {"max_body_bytes": MAX_BODY_BYTES, "event_log": False}
        return {"max_body_bytes": MAX_BODY_BYTES, **self.options.queue_settings}

    def _write(self, handle: QueueHandle, found: QueueInfo, said: Declared) -> None:
        wanted = said.write(found.metadata)
        if wanted != found.metadata:
            found = handle.update(metadata=wanted)
            self._listed_at_s = None
        self._known[said.name] = found
        self._listed[said.name] = said

    # --- consuming ---

    @property
    def session(self) -> Session:
        """The session, opened when it is first asked for."""
        with self._lock:
            if self._session is None:
                holder = f"{socket.gethostname()}:{self.pid}"
                session = self.client.session(
                    holder, timeout_s=self.options.session_timeout, on_lost=self.inbox.fail
                )
                self._session = session.open()
                self._sweep()
            return self._session

    def receiver(self, name: str, prefetch: Prefetch, *, no_ack: bool) -> Receiver:
        """Begin to receive from a queue."""
        made = Receiver(
            name=name,
            queue=self.queue(name),
            session=self.session,
            keeper=self.keeper,
            inbox=self.inbox,
            prefetch=prefetch,
            no_ack=no_ack,
            lease_s=self.options.lease_s(name),
            wait_s=self.options.wait_time_seconds,
        )
        self._receivers.append(made)
        return made

    def close(self) -> None:
        """Tell the server the last, delete queues of the session, and end it."""
        self.keeper.close(_CLOSE_S)
        session = self._session
        if session is not None:
            for name, found in self._known.items():
                said = Declared.read(found.metadata)
                if said is not None and said.session == session.id:
                    with contextlib.suppress(LeaseholdClientError):
                        self.queue(name).delete()
            session.close()
        for receiver in self._receivers:
            receiver.join(_JOIN_S)
        self.client.close()
        self.inbox.close()

    def _sweep(self) -> None:
        """Delete queues of sessions that are over, such as those that waited for replies."""
        theirs = [each for each in self.declared(0) if each.session is not None]
        if not theirs:
            return
        # Sessions after queues: a queue's session is older than the queue.
        alive = {each.session_id for each in self.client.list_sessions() if each.state == "live"}
        for each in theirs:
            if each.session not in alive:
                self.delete(each.name)


def _find_or_create(handle: QueueHandle, settings: Mapping[str, Any]) -> QueueInfo:
    try:
        return handle.info()
    except QueueNotFound:
        pass
    try:
        return handle.create(settings=settings)
    except QueueExists:  # by another process meanwhile, with other settings
        return handle.info()


def _put(handle: QueueHandle, message: NewMessage) -> None:
    (answer,) = handle.put_many([message])
    if isinstance(answer, ServerProblem):
        raise answer
