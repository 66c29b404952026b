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


class NewCheckpoint(RuntimeError):
    """A query without a checkpoint reads a stream that another checkpoint has read."""


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


def report_new_checkpoint(options: ReadOptions, settled: int) -> None:
    """Tell that a query begins anew with a stream that is not new.

    Spark numbers the micro-batches of a new checkpoint from 0. A sink that skips the numbers it
    knows, as files and Delta with ``txnVersion`` do, would write none of the first ones, and the
    source would complete their messages all the same.

    Args:
        options: Of the read.
        settled: Number of the last claim that the earlier checkpoint has settled.

    Raises:
        NewCheckpoint: The options do not accept it.
    """
    text = (
        f"stream {options.stream_id} of queue {options.queue} has settled claims up to {settled}, "
        "and this query has no checkpoint: it was deleted, or is at another location"
    )
    if options.allow_new_checkpoint or options.delivery == "atMostOnce":
        log.warning("%s; going on with claim %d", text, settled + 1)
        return
    raise NewCheckpoint(
        f"{text}. Its micro-batches would be numbered from 0 again, and a sink that skips the "
        "numbers it has written (files, Delta with txnVersion) would drop their rows. Start it "
        "with its own checkpoint; or with a new streamId; or, if the sink's output is new too or "
        "does not go by numbers of batches, with the option allowNewCheckpoint=true"
    )
