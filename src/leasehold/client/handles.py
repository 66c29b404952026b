"""The classes of what a client hands out, for annotations: each of them in both kinds."""

from leasehold.client._async.queue import AsyncQueueHandle
from leasehold.client._async.rig import AsyncRig
from leasehold.client._async.session import AsyncSession
from leasehold.client._async.stream import AsyncStream
from leasehold.client._async.transaction import AsyncTransaction
from leasehold.client._sync.queue import QueueHandle
from leasehold.client._sync.rig import Rig
from leasehold.client._sync.session import Session
from leasehold.client._sync.stream import Stream
from leasehold.client._sync.transaction import Transaction

__all__ = [
    "AsyncQueueHandle",
    "AsyncRig",
    "AsyncSession",
    "AsyncStream",
    "AsyncTransaction",
    "QueueHandle",
    "Rig",
    "Session",
    "Stream",
    "Transaction",
]
