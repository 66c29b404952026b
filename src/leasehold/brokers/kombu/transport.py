"""The transport: from the address to a link, and from the threads that receive to callbacks."""

# ruff: noqa: ARG002 - kombu calls these methods, and chooses their arguments

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from kombu.transport import virtual

from leasehold import __version__
from leasehold.brokers.kombu.channel import Channel
from leasehold.brokers.kombu.link import Link, Options
from leasehold.brokers.kombu.messages import from_received
from leasehold.brokers.leases import MAX_BATCH, Held, Receiver
from leasehold.client import Client, ConnectionFailed, Unavailable
from leasehold.client.errors import (
    QueueNotFound,
    ServerProblem,
    SessionNotFound,
    SessionOver,
    UnexpectedAnswer,
)

_OPTIONS: Final = tuple(Options.__dataclass_fields__)
_PORT: Final = 10_001


class Transport(virtual.Transport):  # type: ignore[misc]  # kombu has no types
    """A connection to a Leasehold server."""

    Channel = Channel
    default_port = _PORT
    driver_type = "leasehold"
    driver_name = "leasehold"
    connection_errors = (
        *virtual.Transport.connection_errors,
        ConnectionFailed,
        Unavailable,
        UnexpectedAnswer,
        # The worker connects anew then, which declares its queues again.
        SessionOver,
        SessionNotFound,
        QueueNotFound,
    )
    channel_errors = (*virtual.Transport.channel_errors, ServerProblem)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._link: Link | None = None
        self._loop: Any = None

    @property
    def link(self) -> Link:
        """The link of this process. That of a parent is left to it."""
        if self._link is None or not self.is_of_this_process:
            given = self.client.transport_options
            options = Options(**{name: given[name] for name in _OPTIONS if name in given})
            self._link = Link(client_for(self.client), options)
        return self._link

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was not made before a fork."""
        return self._link is None or self._link.pid == os.getpid()

    def driver_version(self) -> str:
        """Return the version of Leasehold."""
        return __version__

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What an address leaves out."""
        return {"port": _PORT, "virtual_host": "/"}

    def establish_connection(self) -> Transport:
        """Connect, and see whether the server answers and takes the credentials."""
        self.link.declared(0)
        super().establish_connection()
        return self

    def close_connection(self, connection: Any) -> None:
        """Give back what is not acknowledged, and end the session."""
        link, self._link = self._link, None
        if link is None:
            return
        if link.pid != os.getpid():
            self.channels.clear()
            self._avail_channels.clear()
            return
        self._link = link
        if self._loop is not None:
            with contextlib.suppress(Exception):  # a loop that is closed
                self._loop.remove_reader(link.inbox.fileno())
            self._loop = None
        try:
            super().close_connection(connection)
        finally:
            self._link = None
            link.close()

    _collect = close_connection

    # --- deliveries ---

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver all that has been received, and wait for a first message if there is none.

        Args:
            connection: This.
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: None has come.
        """
        inbox = self.link.inbox
        found = inbox.get(timeout)
        if found is None:
            raise socket.timeout  # noqa: UP041 - kombu's name for it
        self._hand_over(*found)
        for _ in range(len(inbox)):
            more = inbox.get(0)
            if more is None:
                return
            self._hand_over(*more)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have *loop* deliver what is received."""
        self._loop = loop
        loop.add_reader(self.link.inbox.fileno(), self._on_inbox)

    def _on_inbox(self) -> None:
        inbox = self.link.inbox
        for _ in range(MAX_BATCH):
            found = inbox.get(0)
            if found is None:
                return
            self._hand_over(*found)

    def _hand_over(self, receiver: Receiver, held: Held) -> None:
        callback = self._callbacks.get(receiver.name)
        keeper = self.link.keeper
        if callback is None:
            keeper.settle(held.tag, "returned")
            return
        if receiver.no_ack:
            keeper.settle(held.tag, "complete")
        callback(from_received(held.message, held.tag))


def client_for(conninfo: Any) -> Client:
    """Return a client for what a connection of kombu says.

    ``leasehold://`` is what the environment says, or the development server; ``leasehold://`` and
    ``leasehold+http://`` with a host are a server over http, ``leasehold+https://`` over https.

    Raises:
        ValueError: It is malformed. The text shows no secret.
    """
    if "connection_string" in conninfo.transport_options:
        return Client.from_connection_string(conninfo.transport_options["connection_string"])
    hostname, port = conninfo.hostname, conninfo.port
    account, key = conninfo.userid, conninfo.password
    scheme = "https" if conninfo.ssl else "http"
    if hostname and "://" in hostname:
        parts = urlsplit(hostname)
        scheme, hostname, port = parts.scheme, parts.hostname, parts.port
        account, key = unquote(parts.username or ""), unquote(parts.password or "")
    if not hostname:
        return Client.from_connection_string()
    url = f"{scheme}://{hostname}:{port or _PORT}"
    if not account:
        return Client(url)
    return Client(url, account, key=key or None)
