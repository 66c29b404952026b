"""Messages of any service in the columns that Leasehold's own server sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from leasehold.worker.queues.protocol import Delivery

_MS: Final = pa.timestamp("ms", "UTC")
_DEFAULT_PRIORITY: Final = 8
_SCHEMA: Final = pa.schema(
    [
        ("message_id", pa.string()),
        ("body", pa.binary()),
        ("inserted_at", _MS),
        ("expires_at", _MS),
        ("visible_since", _MS),
        ("dequeue_count", pa.int32()),
        ("fence", pa.int64()),
        ("priority", pa.int8()),
        ("message_type", pa.string()),
        ("traceparent", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)


def page_of(deliveries: Sequence[Delivery]) -> pa.RecordBatch:
    """Return messages as a page.

    The service does not say since when a message is visible, so that is when it was put; its fence
    is the dequeue count, and all have the priority in the middle.
    """
    inserted = [each.inserted_at_ms or 0 for each in deliveries]
    columns = [
        [each.message_id for each in deliveries],
        [each.body for each in deliveries],
        inserted,
        [each.expires_at_ms for each in deliveries],
        inserted,
        [each.dequeue_count for each in deliveries],
        [each.fence for each in deliveries],
        [_DEFAULT_PRIORITY] * len(deliveries),
        [each.type for each in deliveries],
        [each.traceparent for each in deliveries],
        [[*each.properties.items()] for each in deliveries],
    ]
    arrays = [pa.array(each, kind.type) for each, kind in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
