"""The classes of what a client hands out, for annotations: each of them in both kinds."""

from leasehold.client._async.account import AsyncSession, AsyncTestControl
from leasehold.client._async.queue import AsyncQueueHandle
from leasehold.client._async.stream import AsyncStream, AsyncTransaction
from leasehold.client._sync.account import Session, TestControl
from leasehold.client._sync.queue import QueueHandle
from leasehold.client._sync.stream import Stream, Transaction

__all__ = [
    "AsyncQueueHandle",
    "AsyncSession",
    "AsyncStream",
    "AsyncTestControl",
    "AsyncTransaction",
    "QueueHandle",
    "Session",
    "Stream",
    "TestControl",
    "Transaction",
]
