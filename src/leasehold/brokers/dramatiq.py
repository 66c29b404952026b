"""A broker for Dramatiq.

::

    import dramatiq
    from leasehold.brokers.dramatiq import LeaseholdBroker

    dramatiq.set_broker(LeaseholdBroker())

Leases are renewed while an actor runs, delays are held by the server, messages that have failed too
often are in the poison queue, and those of a worker that died come back within seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from math import ceil
from typing import Any, Final

from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import current_millis
from dramatiq.errors import BrokerConnectionError, QueueJoinTimeout
from dramatiq.errors import QueueNotFound as NotDeclared
from dramatiq.message import Message
from msgspec import UNSET, UnsetType

from leasehold.brokers.leases import Held, LeaseConnection, Prefetch
from leasehold.client import Client, LeaseholdClientError
from leasehold.client.errors import QueueExists
from leasehold.client.models import NEVER

_LOOK_S: Final = 0.1
_PURGE_S: Final = 60.0


class LeaseholdBroker(Broker):  # type: ignore[misc]  # checked without Dramatiq's types
    """Keeps the messages of Dramatiq on a Leasehold server.

    Args:
        connection_string: Where the server is, as for
            :meth:`leasehold.client.Client.from_connection_string`; without it: what the environment
            says, or the development server on this machine.
        middleware: As for all brokers of Dramatiq.
        visibility_timeout_s: Length of leases, which are renewed; 1 to 604,800 seconds.
        session_timeout_s: Seconds without a heartbeat after which the messages of a worker are
            others', 2 to 3,600; None: what the server has as its default, 16.
        wait_s: How long a request waits at the server for a first message, 0 to 60 seconds.
        settings: Settings of queues that it creates.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        connection_string: str | UnsetType = UNSET,
        *,
        middleware: list[Any] | None = None,
        visibility_timeout_s: int = 60,
        session_timeout_s: int | None = None,
        wait_s: float = 20,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(middleware=middleware)
        self.connection_string = connection_string
        self.visibility_timeout_s = visibility_timeout_s
        self.session_timeout_s = session_timeout_s
        self.wait_s = wait_s
        self._settings = settings
        self._client = Client.from_connection_string(connection_string)
        self._created: set[str] = set()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def declare_queue(self, queue_name: str) -> None:
        """Make a queue known; it is created when it is first used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message, *, delay: int | None = None) -> Message:
        """Put a message; the server holds it for *delay* milliseconds.

        The option ``priority`` is 1 (first) to 16 (last), ``group_id`` the message group.

        Raises:
            dramatiq.errors.QueueNotFound: It was not declared.
            dramatiq.errors.BrokerConnectionError: The server cannot be reached, or refuses it.
        """
        if message.queue_name not in self.queues:
            raise NotDeclared(message.queue_name)
        self.emit_before("enqueue", message, delay)
        along = {
            name: message.options[name]
            for name in ("priority", "group_id")
            if message.options.get(name) is not None
        }
        try:
            self._create(message.queue_name)
            self._client.queue(message.queue_name).put(
                message.encode(),
                delay_s=ceil((delay or 0) / 1_000),
                time_to_live_s=NEVER,
                type=message.actor_name,
                **along,
            )
        except LeaseholdClientError as error:
            raise BrokerConnectionError(str(error)) from error
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """Return a consumer of a queue, which waits for *timeout* milliseconds at most.

        Raises:
            dramatiq.errors.BrokerConnectionError: The server cannot be reached.
        """
        try:
            self._create(queue_name)
            return _LeaseConsumer(self, queue_name, prefetch, timeout / 1_000)
        except LeaseholdClientError as error:
            raise BrokerConnectionError(str(error)) from error

    def flush(self, queue_name: str) -> None:
        """Remove all messages from a queue."""
        self._create(queue_name)
        self._client.queue(queue_name).purge(wait_s=_PURGE_S)

    def flush_all(self) -> None:
        """Remove all messages from all queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue is empty.

        Raises:
            dramatiq.errors.QueueJoinTimeout: It is not, after *timeout* milliseconds.
        """
        deadline_ms = None if timeout is None else current_millis() + timeout
        self._create(queue_name)
        while self._client.queue(queue_name).counts().total:
            if deadline_ms is not None and current_millis() > deadline_ms:
                raise QueueJoinTimeout(queue_name)
            time.sleep(_LOOK_S)

    def _create(self, queue_name: str) -> None:
        if queue_name not in self._created:
            with contextlib.suppress(QueueExists):  # with other settings, which it keeps
                self._client.queue(queue_name).create(settings=self._settings)
            self._created.add(queue_name)


class _LeaseConsumer(Consumer):  # type: ignore[misc]  # as above
    """Takes the messages of one queue."""

    def __init__(
        self, broker: LeaseholdBroker, queue_name: str, prefetch: int, timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        places = Prefetch()
        places.limit = prefetch
        client = Client.from_connection_string(broker.connection_string)
        self._leases = LeaseConnection(client, session_timeout_s=broker.session_timeout_s)
        self._leases.receive_from(
            client.queue(queue_name),
            name=queue_name,
            prefetch=places,
            lease_s=broker.visibility_timeout_s,
            wait_s=broker.wait_s,
        )

    def __next__(self) -> MessageProxy | None:
        try:
            found = self._leases.inbox.get(self._timeout_s)
        except LeaseholdClientError as error:
            raise BrokerConnectionError(str(error)) from error
        return None if found is None else _LeasedMessage(found[1])

    def ack(self, message: _LeasedMessage) -> None:
        self._leases.keeper.settle(message.tag, "complete")

    def nack(self, message: _LeasedMessage) -> None:
        self._leases.keeper.settle(message.tag, "buried")

    def requeue(self, messages: Iterable[_LeasedMessage]) -> None:
        for message in messages:
            self._leases.keeper.settle(message.tag, "returned")

    def close(self) -> None:
        self._leases.close()


class _LeasedMessage(MessageProxy):  # type: ignore[misc]  # as above
    def __init__(self, held: Held) -> None:
        super().__init__(Message.decode(held.message.body))
        self.tag = held.tag
