"""Writing to queues: rows are staged by the tasks and published by the driver, all together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from leasehold.spark.options import BadOption, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

__all__ = ["batch_writer", "stream_writer"]

_NAME: Final = re.compile(r"[A-Za-z0-9._:~-]{1,256}")
_APP_NAME: Final = re.compile(r"[A-Za-z0-9._:~-]{1,200}")
"""Shorter, as the number of the batch is put behind it."""


def batch_writer(
    options: WriteOptions, schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return what sends the rows of a table.

    Raises:
        BadOption: An option does not fit a batch, or *overwrite* is asked for.
        BadColumns: The table's columns are not those of messages.
    """
    from leasehold.spark.sink.writers import BatchWriter  # noqa: PLC0415 - options need no Spark

    if overwrite:
        raise BadOption(
            'a queue is not overwritten: say .mode("append"). What is in it can be in work; '
            "remove it on purpose, with leasehold queue purge"
        )
    if options.txn_app_id is not None:
        raise BadOption("option txnAppId is for streams; a batch has txnId")
    if options.txn_id is not None and not _NAME.fullmatch(options.txn_id):
        raise BadOption(
            f"option txnId: {options.txn_id!r} is not 1 to 256 of A-Z a-z 0-9 . _ : ~ -"
        )
    return BatchWriter(options, schema)


def stream_writer(
    options: WriteOptions, schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return what sends the rows of each micro-batch.

    Raises:
        BadOption: An option does not fit a stream, or the output mode is ``complete``.
        BadColumns: The table's columns are not those of messages.
    """
    from leasehold.spark.sink.writers import StreamWriter  # noqa: PLC0415 - see above

    if overwrite:
        raise BadOption(
            'a queue is not overwritten with each result: say .outputMode("append") or "update"'
        )
    if options.txn_id is not None:
        raise BadOption("option txnId is for batches; a stream has txnAppId")
    if options.txn_app_id is not None and not _APP_NAME.fullmatch(options.txn_app_id):
        # Put into another form it could be the name of another query.
        raise BadOption(
            f"option txnAppId: {options.txn_app_id!r} is not 1 to 200 of A-Z a-z 0-9 . _ : ~ -"
        )
    return StreamWriter(options, schema)
