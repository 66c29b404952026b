"""Effects that happen once: a history of what was done, and writes that a late worker cannot undo.

- :class:`Once` skips the body of a handler when a message is delivered again.
- :meth:`Once.in_transaction` ties the effect to its record: both happen, or neither.
- :class:`FencedTable` and :class:`FenceLedger` refuse the writes of a worker whose lease has ended;
  :func:`fence_headers` and :func:`check_fence` do so across HTTP.
- :mod:`leasehold.testing.fencing_proof` plays a late worker against a handler and says what it did.

The histories in PostgreSQL and Redis need the extras ``postgres`` and ``redis``; they are imported
when they are first asked for.
"""

from typing import TYPE_CHECKING, Any

from leasehold.worker.idempotency.errors import (
    Busy,
    Fenced,
    HeaderProblem,
    NotRecorded,
    UncheckedRun,
    UnstorableResult,
)
from leasehold.worker.idempotency.fencing import (
    FencedTable,
    FenceLedger,
    FenceStore,
    MemoryFences,
    SqliteFences,
    Written,
)
from leasehold.worker.idempotency.headers import (
    FencedRequest,
    check_fence,
    fence_headers,
    read_headers,
)
from leasehold.worker.idempotency.history import (
    Delivered,
    Entry,
    Holder,
    MemoryProcessed,
    Processed,
    Run,
)
from leasehold.worker.idempotency.once import Once
from leasehold.worker.idempotency.sqlite import SqliteProcessed
from leasehold.worker.idempotency.transactions import History

if TYPE_CHECKING:
    from leasehold.worker.idempotency.postgres import PostgresProcessed
    from leasehold.worker.idempotency.redis import RedisProcessed

__all__ = [
    "Busy",
    "Delivered",
    "Entry",
    "FenceLedger",
    "FenceStore",
    "Fenced",
    "FencedRequest",
    "FencedTable",
    "HeaderProblem",
    "History",
    "Holder",
    "MemoryFences",
    "MemoryProcessed",
    "NotRecorded",
    "Once",
    "PostgresProcessed",
    "Processed",
    "RedisProcessed",
    "Run",
    "SqliteFences",
    "SqliteProcessed",
    "UncheckedRun",
    "UnstorableResult",
    "Written",
    "check_fence",
    "fence_headers",
    "read_headers",
]


def __getattr__(name: str) -> Any:
    if name == "PostgresProcessed":
        from leasehold.worker.idempotency.postgres import PostgresProcessed  # noqa: PLC0415 - see above

        return PostgresProcessed
    if name == "RedisProcessed":
        from leasehold.worker.idempotency.redis import RedisProcessed  # noqa: PLC0415 - see above

        return RedisProcessed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
