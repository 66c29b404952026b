"""From options to a queue of the official SDK, with a manager that keeps its leases."""

from __future__ import annotations

import os
from typing import Final

from leasehold.spark.azure.batches import Batches
from leasehold.spark.connecting import connection_string, is_signature
from leasehold.spark.options import BadOption, Place, ReadOptions
from leasehold.worker.leases import LeaseManager, LeaseSettings, UnsafeSettings
from leasehold.worker.timing import SystemTime

_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
_FOREVER_S: Final = 7 * 86_400.0
"""A batch may take as long as it likes; the driver's process ends with its query."""


def open_batches(options: ReadOptions) -> Batches:
    """Open the queue that the options name. No request is made.

    Raises:
        BadOption: The connection is not properly given, or the lease is too short to be kept.
        ImportError: The SDK is not installed; it comes with the extra ``azure``.
    """
    from leasehold.worker.queues.azure import AzureQueue  # noqa: PLC0415 - needs the SDK

    try:
        queue = AzureQueue.from_connection_string(
            _connection(options.place), options.queue, encoding=options.message_encoding
        )
        settings = LeaseSettings.of(options.visibility_timeout, _FOREVER_S)
        settings.check(queue.capabilities)
    except UnsafeSettings as error:
        raise BadOption(f"option visibilityTimeout: {error}") from None
    except ValueError as error:
        raise BadOption(f"the connection is not properly given: {error}") from None
    time = SystemTime()
    return Batches(
        queue,
        LeaseManager(settings, time=time),
        time,
        lease_s=options.visibility_timeout,
        patience_s=options.retry_patience,
    )


def _connection(place: Place) -> str:
    if place.endpoint is not None:
        if not place.account or not place.credential:
            raise BadOption("option endpoint needs the options account and credential")
        kind = "SharedAccessSignature" if is_signature(place.credential) else "AccountKey"
        return (
            f"QueueEndpoint={place.endpoint};AccountName={place.account};{kind}={place.credential}"
        )
    return connection_string(place) or os.environ.get(_VARIABLE) or "UseDevelopmentStorage=true"
