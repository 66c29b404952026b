"""What a handler raises to say what shall become of its message, and what it is told.

::

    WorkerError
    ├── Retry           give it back and try again later; counts as a failure
    ├── Poison          it can never succeed: set it aside at once
    ├── GiveBack        another worker shall have it; counts as no attempt
    ├── Stopped         stop working on it
    │   ├── LeaseLost   another worker may have it by now: it must not be settled or written for
    │   │   └── MessageExpired  its time to live has ended: no worker gets it any more
    │   └── Cancelled   an operator, or the end of the worker, wants the work to stop
    └── UnsafeWorker    a worker was asked for that could not keep its leases

The first three are raised by handlers, the next two by the methods of a message and of a lease. A
handler may raise them as well, such as a LeaseLost when a fenced write was refused. Any other
exception of a handler is a failure: the message is tried again with back-off, and set aside when it
has failed too often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

LossKind: TypeAlias = Literal[
    "lapsed", "expired", "gone", "timed out", "denied", "session", "renewer", "let go", "cancelled"
]
"""How a lease can be lost; see :class:`leasehold.worker.leases.Loss`."""


class WorkerError(Exception):
    """What a handler and the worker say to each other."""


class Retry(WorkerError):
    """Try again later. Counts as a failure.

    Args:
        delay_s: Seconds until the message can be received again, 0 or more; None: as the worker's
            rule for retries says.
        reason: For people.
    """

    def __init__(self, delay_s: float | None = None, reason: str | None = None) -> None:
        if delay_s is not None and not delay_s >= 0:
            raise ValueError(f"delay_s is {delay_s}; it must be 0 or more")
        super().__init__(reason or "the handler requested a retry")
        self.delay_s = delay_s
        self.reason = reason

    def __reduce__(self) -> tuple[type[Retry], tuple[float | None, str | None]]:
        return type(self), (self.delay_s, self.reason)


class Poison(WorkerError):
    """The message can never succeed: set it aside without another try.

    Args:
        reason: For the people who look through what was set aside.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class GiveBack(WorkerError):
    """Another worker shall have the message, now; nothing went wrong and no attempt is counted.

    A service whose dequeue count cannot be taken back counts it all the same; see
    :attr:`leasehold.worker.adapters.Capabilities.counts_returns`.
    """


class Stopped(WorkerError):
    """The handler is to stop. Not to be caught, except to clean up."""


class LeaseLost(Stopped):
    """Another worker has the message, or may have it soon.

    Nothing more may be written in its name without a fence. The worker does not settle it.

    Args:
        why: What became of the lease.
        kind: Which kind of loss that is; None: whoever raises it does not say.
        message_id: Of the message; None: that of the handler.
    """

    def __init__(
        self, why: str, *, kind: LossKind | None = None, message_id: str | None = None
    ) -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind
        self.message_id = message_id


class MessageExpired(LeaseLost):
    """The message's time to live ended while it was worked on, so the service has removed it.

    No lease can be longer than that, and the message does not come again.
    """


class Cancelled(Stopped):
    """An operator, or the end of the worker, wants the work to stop; the lease is still held.

    Args:
        why: What they said.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class UnsafeWorker(WorkerError, ValueError):
    """A worker cannot be made as it was asked for, or could not keep its leases.

    Args:
        problems: All that is wrong, each with the setting and the bound.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(["the worker's options are invalid:", *problems]))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[UnsafeWorker], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)
