"""A broker for Taskiq.

::

    from leasehold.brokers.taskiq import LeaseholdBroker

    broker = LeaseholdBroker(queue="mails")

Leases are renewed while a task runs, delays are held by the server, and what a worker had when it
died comes back within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from math import ceil
from typing import Any

from msgspec import UNSET, UnsetType
from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from leasehold.brokers.leases import Inbox, LeaseConnection, Prefetch
from leasehold.client import AsyncClient, Client
from leasehold.client.errors import QueueExists
from leasehold.client.models import NEVER


class LeaseholdBroker(AsyncBroker):  # type: ignore[misc]  # checked without Taskiq's types
    """Keeps the tasks of Taskiq in a queue of a Leasehold server.

    The labels ``delay`` (seconds), ``priority`` (1, first, to 16, last) and ``group_id`` of a task
    are those of its message.

    Args:
        connection_string: Where the server is, as for
            :meth:`leasehold.client.Client.from_connection_string`; without it: what the environment
            says, or the development server on this machine.
        queue: Name of the queue; it is created if it is not there.
        visibility_timeout_s: Length of leases, which are renewed; 1 to 604,800 seconds.
        session_timeout_s: Seconds without a heartbeat after which the tasks of a worker are
            others', 2 to 3,600; None: what the server has as its default, 16.
        wait_s: How long a request waits at the server for a first task, 0 to 60 seconds.
        max_unacknowledged: Tasks that a worker process has at most, running or waiting; 0 for no
            limit. To have it do as many at once as ``--max-async-tasks`` says, no less than that.
        settings: Settings of the queue, if it is created.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        connection_string: str | UnsetType = UNSET,
        *,
        queue: str = "taskiq",
        visibility_timeout_s: int = 60,
        session_timeout_s: int | None = None,
        wait_s: float = 20,
        max_unacknowledged: int = 100,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._connection_string = connection_string
        self._queue = queue
        self._visibility_timeout_s = visibility_timeout_s
        self._session_timeout_s = session_timeout_s
        self._wait_s = wait_s
        self._settings = settings
        self._places = Prefetch()
        self._places.limit = max_unacknowledged
        self._client: AsyncClient | None = None
        self._leases: LeaseConnection | None = None

    async def startup(self) -> None:
        """Connect, and create the queue if it is not there.

        Raises:
            LeaseholdClientError: The server cannot be reached, or refuses it.
        """
        if self._client is None:  # a worker starts its broker twice
            self._client = AsyncClient.from_connection_string(self._connection_string)
        with contextlib.suppress(QueueExists):  # with other settings, which it keeps
            await self._client.queue(self._queue).create(settings=self._settings)
        await super().startup()

    async def shutdown(self) -> None:
        """Give back what is not acknowledged, and close the connections."""
        await super().shutdown()
        if self._leases is not None:
            await asyncio.to_thread(self._leases.close)
            self._leases = None
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def kick(self, message: BrokerMessage) -> None:
        """Put a task.

        Raises:
            LeaseholdClientError: The server cannot be reached, or refuses it.
            RuntimeError: The broker was not started.
        """
        if self._client is None:
            raise RuntimeError("the broker is not started: await broker.startup()")
        labels = message.labels
        along: dict[str, Any] = {}
        if labels.get("priority") is not None:
            along["priority"] = int(labels["priority"])
        if labels.get("group_id") is not None:
            along["group_id"] = str(labels["group_id"])
        await self._client.queue(self._queue).put(
            message.message,
            delay_s=max(0, ceil(float(labels.get("delay") or 0))),
            time_to_live_s=NEVER,
            type=message.task_name,
            **along,
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks as they come.

        Raises:
            LeaseholdClientError: The session is over, or the queue is gone.
        """
        client = Client.from_connection_string(self._connection_string)
        leases = LeaseConnection(client, session_timeout_s=self._session_timeout_s)
        self._leases = leases
        receiver = await asyncio.to_thread(
            leases.receive_from,
            client.queue(self._queue),
            name=self._queue,
            prefetch=self._places,
            lease_s=self._visibility_timeout_s,
            wait_s=self._wait_s,
        )
        try:
            while True:
                found = leases.inbox.get(0)
                if found is None:
                    await _readable(leases.inbox)
                    continue
                held = found[1]
                ack = partial(leases.keeper.settle, held.tag, "complete")
                yield AckableMessage(data=held.message.body, ack=ack)
        finally:
            # Tasks that run are acknowledged until the broker is shut down.
            receiver.stop()


async def _readable(inbox: Inbox) -> None:
    """Wait until there is something in it."""
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(inbox.fileno(), rung.set)
    try:
        await rung.wait()
    finally:
        loop.remove_reader(inbox.fileno())
