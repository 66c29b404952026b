"""Streaming queries that work a queue off with the stages of a pipeline, and settle what they read.

One query does all stages, or each stage has one of its own, with a queue before it. Either way the
sink publishes what is sent in the transaction that settles the claim, and messages that failed are
exempted from that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import UNSET, UnsetType

from leasehold.client.errors import QueueExists
from leasehold.domain.limits import MAX_NOTED
from leasehold.spark.claimed_rows import CLAIMED, MEMBER
from leasehold.spark.connection import FORMAT_NAME, connect
from leasehold.spark.options import read_options
from leasehold.spark.pipeline.dataframe import (
    MESSAGE,
    OUTCOMES,
    DeclaredStage,
    Rules,
    transformed,
)
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.retry_policy import PoisonRule, RetryRule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_PLACE: Final = (
    "connectionString",
    "connectionStringVariable",
    "connectionStringFile",
    "endpoint",
    "account",
    "credential",
    "retryPatience",
    "tracing",
)
"""Options that source and sink share."""
_OWN: Final = (
    "queueName",
    "streamId",
    "maxMessagesPerTrigger",
    "visibilityTimeout",
    "onBadRecord",
    "settleWithSink",
    "columns",
    "format",
)
"""Options that the pipeline sets."""
_ENVELOPE: Final = "id string, body string, state string"
"""What messages between stages are, as JSON; the body is in Base64."""
_CARRIED: Final = ("message_type", "traceparent", "properties", "group_id")
"""What a message that is sent has of the one that it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How a pipeline is run as streaming queries. Its representation shows no secret."""

    checkpoint: str
    """Folder for Spark's checkpoints, which must stay from run to run."""
    queue: str | None = None
    """Name of the queue, or an address of one of Leasehold; None: that of the pipeline."""
    connection: str | UnsetType = field(default=UNSET, repr=False)
    """A connection string as the Azure SDKs take it. Without it: as ``options`` say; else that of
    AZURE_STORAGE_CONNECTION_STRING, or the development server on this machine."""
    stream: str | None = None
    """The ``streamId`` of the source; None: ``pipeline-`` and the name of the pipeline."""
    to: str | None = None
    """Queue to which the last state of each message that is done is sent, as JSON; None: nowhere.
    """
    foreach_batch: Callable[[DataFrame, int], None] | None = None
    """Called with the outcomes of each micro-batch and its number, to write them elsewhere. It must
    bear a repetition, as functions of ``foreachBatch`` do."""
    between: Literal["queues"] | None = None
    """None: one query does all stages. "queues": each has a query and a queue of its own, so that
    what it returns is saved before the next one begins, and stages scale and fail by themselves."""
    trigger: Mapping[str, Any] = field(default_factory=dict)
    """As ``DataStreamWriter.trigger`` takes it: ``{"availableNow": True}`` ends when the queue is
    empty, ``{"processingTime": "1 second"}``."""
    max_messages: int = MAX_NOTED
    """Messages of one micro-batch at most, 1 to 10,000: all of them may fail."""
    lease_s: int = 60
    """Whole seconds; the source extends the lease of a claim as long as it takes."""
    retries: RetryRule = field(default_factory=RetryRule)
    """How long a message waits after it has failed."""
    poison: PoisonRule = field(default_factory=PoisonRule)
    """When it is set aside. All its deliveries are counted."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More options of the source, such as ``numPartitions`` or ``connectionStringFile``."""

    def __post_init__(self) -> None:
        own = {name.lower() for name in _OWN}
        set_here = [name for name in self.options if name.lower() in own]
        checks = (
            (not self.checkpoint, "checkpoint is empty; name a folder"),
            (
                not 1 <= self.max_messages <= MAX_NOTED,
                f"max_messages is {self.max_messages}; 1 to {MAX_NOTED:,}",
            ),
            (
                self.between not in {None, "queues"},
                f'between is {self.between!r}; None or "queues"',
            ),
            (
                self.between is not None and bool(self.trigger.get("availableNow")),
                "between: availableNow ends each query when its own queue is empty; use another",
            ),
            (
                self.foreach_batch is not None and (self.to or self.between) is not None,
                "foreach_batch excludes to and between",
            ),
            (bool(set_here), f"options: {', '.join(set_here)} are set by the pipeline"),
            (
                self.connection is None,
                "connection is None; give a str, or leave it out for the environment's",
            ),
        )
        wrong = [text for is_wrong, text in checks if is_wrong]
        wrong += [*self.retries.problems(), *self.poison.problems()]
        if wrong:
            raise ValueError("; ".join(wrong))

    def place(self, own: str | None) -> tuple[str, dict[str, str]]:
        """Return the queue, and the options that say where it is; *own* is what the pipeline says.

        Raises:
            ValueError: There is none, or it is at another service.
        """
        queue, connection = self.queue or own, self.connection
        if queue is None:
            raise ValueError("which queue? Say Pipeline('orders'), or queue='orders'")
        if "://" in queue:
            spec = QueueSpec.parse(queue)
            if spec.service != "leasehold":
                raise ValueError(
                    f"a queue of {spec.service} has no claims, which a streaming query settles; "
                    "use run(), the form of workers"
                )
            queue = spec.queue
            connection = spec.given_connection if connection is UNSET else connection
        known = {name.lower(): name for name in _PLACE}
        given = {
            known[name.lower()]: value
            for name, value in self.options.items()
            if name.lower() in known
        }
        return queue, given | ({} if connection is UNSET else {"connectionString": connection})


class StageQueries:
    """The queries of a pipeline that has a queue before each stage; used like one of them.

    Args:
        queries: By the name of their stage, in order.
    """

    def __init__(self, queries: Mapping[str, StreamingQuery]) -> None:
        self.queries = dict(queries)
        """By the name of their stage."""

    def __repr__(self) -> str:
        return f"<StageQueries {', '.join(self.queries)}>"

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name, as all that follow
        """Whether all of them run."""
        return all(query.isActive for query in self.queries.values())

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until what is in the queue now has gone through all stages. For tests."""
        for query in self.queries.values():
            query.processAllAvailable()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait until one of them ends, *timeout* seconds at most, and stop the others.

        Returns:
            Whether one has ended.

        Raises:
            StreamingQueryException: It has failed.
        """
        left = timeout
        while left is None or left > 0:
            for query in self.queries.values():
                try:
                    is_over = query.awaitTermination(_LOOK_S)
                except BaseException:
                    self.stop()
                    raise
                if is_over:
                    self.stop()
                    return True
                left = None if left is None else left - _LOOK_S
        return False

    def stop(self) -> None:
        """Stop all of them."""
        for query in self.queries.values():
            query.stop()


_LOOK_S: Final = 1


def start_queries(
    name: str,
    own_queue: str | None,
    stages: Sequence[DeclaredStage],
    spark: SparkSession,
    settings: StreamSettings,
) -> StreamingQuery | StageQueries:
    """Begin to work a queue off.

    Args:
        name: Of the pipeline.
        own_queue: What the pipeline says.
        stages: In their order.
        spark: The session.
        settings: How.

    Raises:
        ValueError: A setting is wrong, or there is no stage.
    """
    queue, place = settings.place(own_queue)
    stream = settings.stream or "pipeline-" + re.sub(r"[^A-Za-z0-9._:~-]", "-", name)
    made = _Queries(spark, settings, place, stream, list(stages))
    if settings.between is None:
        return made.whole(queue, name)
    return made.each(queue, name)


@dataclass(frozen=True, slots=True)
class _Queries:
    spark: SparkSession
    settings: StreamSettings
    place: Mapping[str, str]
    stream: str
    stages: list[DeclaredStage]

    @property
    def _rules(self) -> Rules:
        return Rules(retries=self.settings.retries, poison=self.settings.poison)

    # --- one query -----------------------------------------------------------------------------

    def whole(self, queue: str, name: str) -> StreamingQuery:
        """Begin one query for all stages."""
        outcomes = transformed(self._messages(queue), self.stages, self._rules)
        if self.settings.foreach_batch is not None:
            writer: DataStreamWriter = outcomes.writeStream.foreachBatch(
                self._written(self.settings.foreach_batch, queue)
            )
        else:
            rows = self._rows(outcomes, queue, {})
            writer = self._sink(rows, self.settings.to or queue)
        return self._started(writer, name, self.settings.checkpoint)

    def _written(
        self, write: Callable[[DataFrame, int], None], queue: str
    ) -> Callable[[DataFrame, int], None]:
        """Return what writes the outcomes of a micro-batch, and has those that failed exempted."""

        def work(batch: DataFrame, batch_id: int) -> None:
            # What is written and what is settled have to be of one evaluation.
            batch.persist()
            try:
                write(batch.drop("claimed_id", "claim_token"), batch_id)
                options = {**self.place, "queueName": queue}
                rows = self._rows(batch, queue, {}).select("body", CLAIMED)
                rows.write.format(FORMAT_NAME).options(**options).mode("append").save()
            finally:
                batch.unpersist()

        return work

    # --- queues between ------------------------------------------------------------------------

    def each(self, queue: str, name: str) -> StageQueries:
        """Begin a query for each stage, with its queue."""
        queues = {stage.name: _stage_queue(queue, stage.name) for stage in self.stages}
        queues[self.stages[0].name] = queue
        if len(set(queues.values())) < len(queues):
            raise ValueError(
                f"two stages would have one queue: {', '.join(queues.values())}; rename one"
            )
        options = read_options({**self.place, "queueName": queue})
        with connect(options.place) as client:
            for each in queues.values():
                with suppress(QueueExists):
                    client.queue(each).create()
        begun: dict[str, StreamingQuery] = {}
        try:
            for place, stage in enumerate(self.stages):
                begun[stage.name] = self._stage(place, queues, name)
        except BaseException:
            StageQueries(begun).stop()
            raise
        return StageQueries(begun)

    def _stage(self, place: int, queues: Mapping[str, str], name: str) -> StreamingQuery:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it

        stage = self.stages[place]
        queue = queues[stage.name]
        messages = self._messages(queue)
        if place == 0:
            messages = messages.withColumn("state", F.lit("null"))
        else:
            sent = F.from_json(F.col("body").cast("string"), _ENVELOPE)
            messages = messages.withColumns(
                {
                    "claimed_id": F.col("message_id"),
                    "message_id": F.coalesce(sent["id"], F.col("message_id")),
                    "body": F.unbase64(sent["body"]),
                    "state": F.coalesce(sent["state"], F.lit("null")),
                }
            )
        outcomes = transformed(messages, self.stages, self._rules, only=place)
        rows = self._rows(outcomes, queue, queues)
        folder = f"{self.settings.checkpoint.rstrip('/')}/{stage.name}"
        return self._started(self._sink(rows, queue), f"{name}: {stage.name}", folder)

    # --- parts ---------------------------------------------------------------------------------

    def _messages(self, queue: str) -> DataFrame:
        settings = self.settings
        columns = [name for name in MESSAGE if name != "claimed_id"]
        options = {
            **settings.options,
            **self.place,
            "queueName": queue,
            "streamId": self.stream,
            "maxMessagesPerTrigger": str(settings.max_messages),
            "visibilityTimeout": str(settings.lease_s),
            "onBadRecord": "keep",
            "settleWithSink": str(settings.foreach_batch is None).lower(),
            "columns": ",".join(columns),
        }
        return self.spark.readStream.format(FORMAT_NAME).options(**options).load()

    def _rows(self, outcomes: DataFrame, queue: str, queues: Mapping[str, str]) -> DataFrame:
        """Return what the sink takes: what is sent on, and what becomes of each message.

        Args:
            outcomes: What the stages have made.
            queue: From which the messages were claimed.
            queues: By the name of the stage that follows; empty: none has one.
        """
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        outcome, to = F.col("outcome"), self.settings.to
        body: Column = F.when(outcome == "done", F.col("state") if to else F.lit(None))
        target: Column = F.lit(to or queue)
        if queues:
            goes_on = outcome.isNull()
            envelope = F.struct(
                F.col("message_id").alias("id"), F.base64("body").alias("body"), "state"
            )
            names = [F.lit(text) for pair in queues.items() for text in pair]
            following = F.element_at(F.create_map(*names), F.col("stage"))
            body = F.when(goes_on, F.to_json(envelope)).otherwise(body)
            target = F.when(goes_on, following).otherwise(target)
        names_of = {name: F.lit(settled) for name, settled in OUTCOMES.items()}
        released = F.lit(None).cast("string")
        for name, settled in names_of.items():
            released = F.when(outcome == name, settled).otherwise(released)
        members = {
            "queue": F.lit(queue),
            "stream": F.lit(self.stream),
            "message_id": F.coalesce("claimed_id", "message_id"),
            "outcome": released,
        }
        claimed = F.struct(
            *(
                members.get(name, F.col(name)).cast(kind).alias(name)
                for name, kind in MEMBER.items()
            )
        )
        return outcomes.select(
            body.cast("string").alias("body"),
            target.alias("queue"),
            *_CARRIED,
            claimed.alias(CLAIMED),
        )

    def _sink(self, rows: DataFrame, queue: str) -> DataStreamWriter:
        options = {**self.place, "queueName": queue}
        return rows.writeStream.format(FORMAT_NAME).options(**options)

    def _started(self, writer: DataStreamWriter, name: str, folder: str) -> StreamingQuery:
        if self.settings.trigger:
            writer = writer.trigger(**self.settings.trigger)
        return writer.queryName(name).option("checkpointLocation", folder).start()


def _stage_queue(queue: str, stage: str) -> str:
    return f"{queue}-{re.sub(r'[^a-z0-9]+', '-', stage.lower()).strip('-')}"
