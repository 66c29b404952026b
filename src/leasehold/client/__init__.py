"""Clients of Leasehold's native API: one for asyncio, one for threads, with the same methods.

More names are in :mod:`leasehold.client.models` (what goes in and out),
:mod:`leasehold.client.handles` (what clients hand out),
:mod:`leasehold.client.errors` and :mod:`leasehold.client.retries`.
"""

from leasehold.client._async.client import AsyncClient
from leasehold.client._async.queue import AsyncQueueHandle
from leasehold.client._sync.client import Client
from leasehold.client._sync.queue import QueueHandle
from leasehold.client.errors import (
    ConnectionFailed,
    LeaseholdClientError,
    LeaseLost,
    QueueNotFound,
    ServerProblem,
    Unavailable,
)
from leasehold.client.models import Filter, NewMessage, Outgoing, ReceivedMessage
from leasehold.client.retries import RetryPolicy

__all__ = [
    "AsyncClient",
    "AsyncQueueHandle",
    "Client",
    "ConnectionFailed",
    "Filter",
    "LeaseLost",
    "LeaseholdClientError",
    "NewMessage",
    "Outgoing",
    "QueueHandle",
    "QueueNotFound",
    "ReceivedMessage",
    "RetryPolicy",
    "ServerProblem",
    "Unavailable",
]
