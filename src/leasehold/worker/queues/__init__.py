"""Queue services as a worker sees them: one protocol, and an adapter for each service."""

from leasehold.worker.queues.errors import (
    BodyTooLarge,
    Denied,
    LeaseGone,
    NotSupported,
    QueueError,
    QueueMissing,
    Unreachable,
)
from leasehold.worker.queues.protocol import (
    Capabilities,
    Delivery,
    Depth,
    Fault,
    GivenBack,
    Lease,
    Outgoing,
    QueueClient,
    Release,
    Renewed,
    Saved,
    WorkerSession,
)

__all__ = [
    "BodyTooLarge",
    "Capabilities",
    "Delivery",
    "Denied",
    "Depth",
    "Fault",
    "GivenBack",
    "Lease",
    "LeaseGone",
    "NotSupported",
    "Outgoing",
    "QueueClient",
    "QueueError",
    "QueueMissing",
    "Release",
    "Renewed",
    "Saved",
    "Unreachable",
    "WorkerSession",
]
