"""A channel of kombu: what a queue, an exchange, a delivery and an acknowledgement are here."""

# ruff: noqa: ARG002 - kombu calls these methods, and chooses their arguments

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, Final

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from leasehold.brokers.kombu.link import Link
from leasehold.brokers.kombu.messages import Raw, bound_to, from_received, to_put
from leasehold.brokers.leases import Prefetch, Receiver
from leasehold.client.errors import QueueNotFound
from leasehold.client.models import Filter

_READY: Final = ("visible", "delayed", "deferred")
_BINDINGS_S: Final = 5.0
"""For how long bindings are taken to be what they were, if that is enough to route a message."""
_PURGE_S: Final = 60.0
_PATIENCE_S: Final = 5.0
_log: Final = logging.getLogger("leasehold.brokers")


class QoS:
    """What a channel has unacknowledged; kombu's own would keep the messages a second time.

    Names and arguments of its methods are those that kombu calls.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.prefetch = Prefetch()

    @property
    def prefetch_count(self) -> int:
        """The most; 0 for no limit."""
        return self.prefetch.limit

    @prefetch_count.setter
    def prefetch_count(self, value: int) -> None:
        self.prefetch.limit = value or 0

    def can_consume(self) -> bool:
        """Tell whether another message may be received."""
        return not self.prefetch.is_full

    def append(self, message: object, delivery_tag: str) -> None:
        """Do nothing: what is received is held already."""

    def ack(self, delivery_tag: str) -> None:
        """Complete a message."""
        self.channel.link.keeper.settle(delivery_tag, "complete")

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or have it set aside."""
        # A failure: the budgets and the back-off of the queue's failure policy count it. Without
        # requeue it goes where those go that have used up theirs, as with a dead-letter exchange.
        self.channel.link.keeper.settle(delivery_tag, "failed" if requeue else "buried")

    def restore_unacked(self) -> list[object]:
        """Give everything back."""
        self.channel.link.keeper.settle_all(self.prefetch, "returned")
        return []

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Give everything back."""
        self.restore_unacked()


class Channel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """A channel. Its exchanges and bindings are known to all connections to the account."""

    QoS = QoS
    supports_fanout = True
    body_encoding = None  # a body travels as it is
    from_transport_options = ("body_encoding", "deadletter_queue", "max_priority")

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._receivers: dict[str, Receiver] = {}

    @property
    def link(self) -> Link:
        """What the connection has to the server."""
        found: Link = self.connection.link
        return found

    # --- queues ---

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, **kwargs: Any
    ) -> queue_declare_ok_t:
        """Create a queue, or with *passive* find it there."""
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            try:
                counts = self.link.queue(name).counts()
            except QueueNotFound:
                raise ChannelError(
                    f"NOT_FOUND - no queue {name!r}", (50, 10), "Channel.queue_declare", 404
                ) from None
            return queue_declare_ok_t(name, counts.visible, 0)
        self._new_queue(name, **kwargs)
        return queue_declare_ok_t(name, self._size(name), 0)

    def _new_queue(
        self,
        queue: str,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        ttl_ms = (arguments or {}).get("x-message-ttl")
        goes_with_session = exclusive or auto_delete
        self.link.declare(
            queue,
            message_ttl_s=None if ttl_ms is None else ceil(ttl_ms / 1_000),
            goes_with_session=goes_with_session,
        )

    def _has_queue(self, queue: str, **_: Any) -> bool:
        try:
            self.link.queue(queue).info()
        except QueueNotFound:
            return False
        return True

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        """Delete a queue and its messages."""
        if (if_unused and queue in self._active_queues) or (if_empty and self._size(queue)):
            return
        self.link.delete(queue)
        self.state.queue_bindings_delete(queue)

    def _size(self, queue: str) -> int:
        self.link.keeper.flush(_PATIENCE_S)
        try:
            return self.link.queue(queue).counts().visible
        except QueueNotFound:
            return 0

    def _purge(self, queue: str) -> int:
        self.link.keeper.flush(_PATIENCE_S)
        job = self.link.queue(queue).purge(Filter(states=_READY), wait_s=_PURGE_S)
        return job.moved

    # --- exchanges ---

    def _queue_bind(self, exchange: str, routing_key: str, pattern: object, queue: str) -> None:
        self.link.bind(queue, exchange, routing_key)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **_: Any,
    ) -> None:
        """Remove a binding."""
        self.state.binding_delete(queue, exchange, routing_key)
        self.link.unbind(queue, exchange or "amq.direct", routing_key)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Forget an exchange."""
        self.state.exchanges.pop(exchange, None)

    def get_table(self, exchange: str, max_age_s: float = 0) -> list[tuple[str, str | None, str]]:
        """Return routing key, pattern and queue of each binding of an exchange."""
        kind = self.typeof(exchange)
        return [
            kind.prepare_bind(queue.name, exchange, key, None)
            for key, queue in bound_to(exchange, self.link.declared(max_age_s))
        ]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        if not exchange:
            return [routing_key]
        kind = self.typeof(exchange)
        found: list[str] = []
        # Those who listen to all, such as control commands, are asked for each time. Nobody may
        # listen to a topic, but a message for one queue has one, which may be new.
        ages = {"fanout": [0.0], "topic": [_BINDINGS_S]}.get(kind.type, [_BINDINGS_S, 0.0])
        for max_age_s in ages:
            found = sorted(
                kind.lookup(self.get_table(exchange, max_age_s), exchange, routing_key, default)
            )
            if found:
                break
        if not found and (default or self.deadletter_queue):
            found = [default or self.deadletter_queue]
            self._new_queue(found[0])
        return found

    # --- publishing ---

    def _put(self, queue: str, message: Raw, **_: Any) -> None:
        made = to_put(
            message,
            now_ms=self.link.clock.now_ms(),
            max_priority=self.max_priority,
            time_to_live_s=self.link.message_ttl_s(queue),
        )
        try:
            self.link.put(queue, made)
        except QueueNotFound:
            # As in AMQP: whoever waited for a reply is gone.
            _log.info("A message is dropped because queue %s does not exist", queue)

    def _put_fanout(self, exchange: str, message: Raw, routing_key: str, **_: Any) -> None:
        for queue in self._lookup(exchange, routing_key):
            self._put(queue, message)

    # --- consuming ---

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[..., Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Begin to receive from a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if queue not in self._receivers:
            prefetch = Prefetch() if no_ack else self.qos.prefetch
            self._receivers[queue] = self.link.receiver(queue, prefetch, no_ack=no_ack)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop to receive; what is not acknowledged yet can still be."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            receiver = self._receivers.pop(queue, None)
            if receiver is not None:
                receiver.stop()

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> virtual.Message | None:
        """Receive one message, if there is one."""
        link = self.link
        # What this channel has given back before can be received again.
        link.keeper.flush(_PATIENCE_S)
        lease_s = link.options.lease_s(queue)
        received = link.queue(queue).receive(1, visibility_timeout_s=lease_s, session=link.session)
        for message in received:
            prefetch: Prefetch = self.qos.prefetch
            prefetch.add_one()
            made = link.keeper.hold(link.queue(queue).name, [message], prefetch, lease_s)
            if not made:
                prefetch.free(1)
                continue
            held = made[0]
            if no_ack:
                link.keeper.settle(held.tag, "complete")
            return self.Message(from_received(message, held.tag), channel=self)
        return None

    def close(self) -> None:
        """Cancel the consumers, and give back what is not acknowledged."""
        if self.connection is not None and not self.connection.is_of_this_process:
            self.closed = True  # of the parent: its locks and threads are not here
            return
        super().close()

    def _reset_cycle(self) -> None:
        """Do nothing: queues are not polled in turn."""

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Yield queue, exchange and routing key of each binding."""
        for queue in self.link.declared(0):
            for exchange, key in sorted(queue.bindings):
                yield queue.name, exchange, key
