"""Clients of Leasehold's native API: one for asyncio, one for threads, with the same methods.

More names are in :mod:`leasehold.client.models` (what goes in and out),
:mod:`leasehold.client.handles` (what clients hand out),
:mod:`leasehold.client.errors` and :mod:`leasehold.client.retries`.
"""

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from leasehold.client._async.client import AsyncClient
    from leasehold.client._async.queue import AsyncQueueHandle

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


def __getattr__(name: str) -> object:
    """Load the client for asyncio when it is asked for: it takes a tenth of the import."""
    if name == "AsyncClient":
        from leasehold.client._async.client import AsyncClient  # noqa: PLC0415 - as said above

        return AsyncClient
    if name == "AsyncQueueHandle":
        from leasehold.client._async.queue import AsyncQueueHandle  # noqa: PLC0415 - as said above

        return AsyncQueueHandle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List what is there, and what is there when it is asked for."""
    return sorted({*globals(), *__all__})
