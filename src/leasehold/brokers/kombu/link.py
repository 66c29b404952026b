"""What a connection of kombu has to the server: leases, and queues as AMQP declares them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from leasehold.brokers.kombu.messages import Declared, queue_name
from leasehold.brokers.leases import LeaseConnection, Prefetch, Receiver
from leasehold.client import Client, LeaseholdClientError, NewMessage, QueueHandle
from leasehold.client.errors import QueueExists, QueueNotFound, ServerProblem
from leasehold.client.models import QueueInfo
from leasehold.clock import Clock

MAX_BODY_BYTES: Final = 1_048_576
"""Largest body in queues that are created here, unless said otherwise."""


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


class Link(LeaseConnection):
    """See above."""

    def __init__(self, client: Client, options: Options, clock: Clock | None = None) -> None:
        super().__init__(client, session_timeout_s=options.session_timeout, clock=clock)
        self.options = options
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

    def receiver(self, name: str, prefetch: Prefetch, *, no_ack: bool) -> Receiver:
        """Begin to receive from a queue."""
        return self.receive_from(
            self.queue(name),
            name=name,
            prefetch=prefetch,
            no_ack=no_ack,
            lease_s=self.options.lease_s(name),
            wait_s=self.options.wait_time_seconds,
        )

    def close(self) -> None:
        """Delete queues of the session too."""
        for name, known in self._known.items():
            ours = Declared.read(known.metadata)
            if ours is None or ours.session is None:
                continue
            with contextlib.suppress(LeaseholdClientError):
                # Another connection may have declared it since.
                now = Declared.read(self.queue(name).info().metadata)
                if now is not None and now.session == ours.session:
                    self.queue(name).delete()
        super().close()

    def on_session(self) -> None:
        """See :meth:`_sweep`."""
        self._sweep()

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
