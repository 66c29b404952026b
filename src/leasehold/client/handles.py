"""The classes of what a client hands out, for annotations: each of them in both kinds."""

from leasehold.client._async.account import AsyncSession, AsyncTestControl
from leasehold.client._async.queue import AsyncHeldGroup, AsyncQueueHandle
from leasehold.client._async.stream import AsyncStream, AsyncTransaction
from leasehold.client._sync.account import Session, TestControl
from leasehold.client._sync.queue import HeldGroup, QueueHandle
from leasehold.client._sync.stream import Stream, Transaction

__all__ = [
    "AsyncHeldGroup",
    "AsyncQueueHandle",
    "AsyncSession",
    "AsyncStream",
    "AsyncTestControl",
    "AsyncTransaction",
    "HeldGroup",
    "QueueHandle",
    "Session",
    "Stream",
    "TestControl",
    "Transaction",
]
