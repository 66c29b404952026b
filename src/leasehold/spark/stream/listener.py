"""Settling as soon as Spark has a micro-batch in its log, in place of at the next trigger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from leasehold.client import Client, LeaseholdClientError
from leasehold.spark.connection import connect
from leasehold.spark.options import BadOption, read_options
from leasehold.spark.stream.consumer import claim_in, stream_address
from leasehold.spark.stream.problems import log


class SettleListener(StreamingQueryListener):
    """Settles each micro-batch of one stream within milliseconds of its end.

    Without it a micro-batch is settled at the next trigger: with long intervals between triggers
    its messages stay leased that long, and those of the last one before a stop until the restart.

    ::

        spark.streams.addListener(SettleListener(options))
        spark.readStream.format("leasehold").options(**options).load()...

    It lives in the process of the user's driver, and may stay when the query ends.

    Args:
        options: Those of the read, with queueName and streamId.

    Raises:
        BadOption: One is unknown, malformed or missing.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = read_options(options)
        if self._options.stream_id is None:
            raise BadOption("option streamId is missing")
        self._queue = self._options.queue
        self._client: Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Settle what has just come into the commit log. Failures are logged only."""
        for source in event.progress.sources:
            self.settle_after(source.endOffset, source.latestOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def settle_after(self, end_offset: str | None, report: str | None) -> None:
        """Settle up to an offset, if it is of this stream.

        Args:
            end_offset: Where a micro-batch ends that is in the commit log, as JSON.
            report: What the source has reported of itself, as JSON.
        """
        told = _object(report)
        end = _object(end_offset)
        if "claim" not in end or "stream" not in told:
            return
        if self._client is None:
            self._client = connect(self._options.place)
        if told["stream"] != stream_address(self._client, self._options):
            return
        stream = self._client.queue(self._queue).stream(self._options.stream_id or "")
        stream.token = told.get("token")
        try:
            stream.settle(claim_in(end))
        except (LeaseholdClientError, RuntimeError) as error:
            # The reader settles it at the next trigger.
            log.warning("claim %s was not settled at once: %s", end["claim"], error)

    def close(self) -> None:
        """Close the connection. A later event opens it again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
