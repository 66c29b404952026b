"""What ends a query that reads claims, in words for whoever runs the query."""

from __future__ import annotations

import logging
from typing import Final

from leasehold.spark.options import ReadOptions

log: Final = logging.getLogger("leasehold.spark")


class StreamTaken(RuntimeError):
    """Another query has attached to the stream: this one must stop."""


class DataLost(RuntimeError):
    """A micro-batch cannot be read as it was, or not at all."""


class BadRecord(ValueError):
    """A message cannot be decoded, and the options say that the query is to fail then."""


def taken(options: ReadOptions) -> StreamTaken:
    """Return the error of a query that was overtaken."""
    return StreamTaken(
        f"another query with streamId={options.stream_id} has attached to queue {options.queue}, "
        "so this one ends. A streamId belongs to one query that runs; give each its own"
    )


def is_strict(options: ReadOptions) -> bool:
    """Tell whether a micro-batch that has lost messages ends the query."""
    return options.fail_on_data_loss and options.delivery == "exactlyOnce"


def report_loss(options: ReadOptions, what: str) -> None:
    """Tell of a loss: as an error, or in the log if the options accept losses.

    Raises:
        DataLost: Losses are not accepted.
    """
    text = f"stream {options.stream_id} of queue {options.queue}: {what}"
    if is_strict(options):
        raise DataLost(f"{text}. Option failOnDataLoss=false goes on without them")
    log.warning("%s; going on", text)
