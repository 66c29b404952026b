"""What Spark calls: each method says in which process, when and how often."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.types import StructType

from leasehold import spans
from leasehold.client import Client, LeaseholdClientError
from leasehold.client.errors import (
    AlreadyPublished,
    ClaimBroken,
    ClaimLapsed,
    ClaimNotFound,
    ClaimSettled,
    OutOfRange,
    QueueNotFound,
    StaleToken,
    StreamNotFound,
)
from leasehold.client.handles import Stream, Transaction
from leasehold.client.models import ErrorReport, Exemption
from leasehold.domain.limits import MAX_CLAIM
from leasehold.domain.wording import count_of
from leasehold.spark.connection import (
    TaskIdentity,
    connect,
    current_task,
    patient,
    show_sentences,
    spare_worker,
)
from leasehold.spark.options import (
    BadOption,
    BadRecord,
    DataLost,
    Place,
    ReadOptions,
    log,
    read_options,
    report_loss,
    taken,
)
from leasehold.spark.stream.consumer import (
    Adopted,
    Consumer,
    Taking,
    claim_in,
    offset_of,
    stream_address,
)
from leasehold.spark.stream.decoding import Bad, Decoder
from leasehold.spark.stream.keeper import end_on_sigterm, outlast_sigterm
from leasehold.spark.stream.releases import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

DEFAULT_BYTES: Final = 256 << 20
"""Bytes of bodies that end a micro-batch where the options say nothing of bytes: 50,000 messages of
5 KiB, and few enough for a driver of 1 GiB that collects them."""


@show_sentences
class ClaimReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue claim by claim: the offset is the number of the last claim.

    Spark makes two of these. One lives in a process of its own on the driver as long as the query;
    the other is pickled at once and read with on executors. So nothing is begun before it is used.

    Args:
        options: Of the read.
        schema: What Spark expects.

    Raises:
        BadOption: The options do not fit each other or the columns.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.stream_id is None:
            raise BadOption(
                "option streamId is missing: a name for this query, which stays the same when it "
                "is started again, and which no other query has"
            )
        if options.min_messages_per_trigger > options.max_messages_per_trigger:
            raise BadOption("option minMessagesPerTrigger is above maxMessagesPerTrigger")
        self._options = options
        self._decoder = Decoder(options, schema)
        self._consumer: Consumer | None = None
        self._taking = self._most(self.getDefaultReadLimit())
        self.task: Callable[[], TaskIdentity] = current_task
        """Tells which task reads."""

    # --- on the driver, in the process of the query ----------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name, as all that follow
        """Return where a query without a checkpoint begins. Called twice; changes nothing.

        Not called where there is a checkpoint. See :meth:`Consumer.begin` for the errors.
        """
        return offset_of(self._driver.begin())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say. Called once, before all else."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how much there is to take in all. Called once, with Trigger.AvailableNow only."""
        self._driver.limit_to_now()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Settle what ends at *start*, and return the end of the next micro-batch.

        Called at every trigger; with the default trigger and no messages, again at once. It is
        *start* itself if there is nothing to take. See :meth:`Consumer.next` for the errors.
        """
        self._taking = self._most(limit)
        number = self._driver.next(claim_in(start), self._taking)
        return start if number is None else offset_of(number)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return numbers for the query's progress. Called at every trigger."""
        return self._driver.report()

    def partitions(  # noqa: N802, RUF100 - Spark's
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[InputPartition]:
        """Return the parts of a micro-batch; begin opening the next claim.

        Called once for each micro-batch; after a crash, for the one that was under way, before
        anything else. See :meth:`Consumer.adopt` for the errors.
        """
        if start == end:
            return []  # the first micro-batch of a query of which only another source has rows
        found = self._driver.adopt(claim_in(end))
        self._driver.prepare_next(self._taking)
        count = self._driver.parts(found.rows)
        token = self._driver.token
        return [Part(found, place, count, token) for place in range(count)]

    def offset_before(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return where the micro-batch begins that ends at *end*: it is one claim."""
        return offset_of(claim_in(end) - 1)

    def with_identity(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return an offset with what the progress report says of the stream in later releases."""
        return {**end, **self._driver.identity()}

    def commit(self, end: dict[str, Any]) -> None:
        """Settle what ends at *end*. Called a micro-batch late, and never when there is no next."""
        self._driver.settle(claim_in(end))

    def stop(self) -> None:
        """Let the claims go. Called when the process ends, also by SIGTERM."""
        if self._consumer is not None:
            outlast_sigterm()
            self._consumer.stop()
            if self._options.place.tracing:
                spans.flush()

    def _most(self, limit: ReadLimit) -> Taking:
        options = self._options
        return Taking(most_messages(limit, options), most_bytes(limit, options))

    @property
    def _driver(self) -> Consumer:
        if self._consumer is None:
            end_on_sigterm()
            self._consumer = Consumer(self._options)
        return self._consumer

    # --- on executors ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part. Called at each attempt, maybe twice at once.

        See :func:`read_part` for the errors.
        """
        assert isinstance(partition, Part)
        try:
            yield from read_part(self._options, self._decoder, partition, self.task())
        finally:
            if self._options.place.tracing:
                spans.flush()  # Spark may end this process at any time from now on


def most_messages(limit: ReadLimit, options: ReadOptions) -> int:
    """Return how many messages a micro-batch may have, given the limit that Spark names."""
    if isinstance(limit, ReadMaxRows):
        return max(1, min(limit.max_rows, MAX_CLAIM))
    if isinstance(limit, ReadMaxBytes):
        return options.max_messages_per_trigger
    # All that there is, whatever the options say: Spark's contract for Trigger.Once.
    return MAX_CLAIM


def most_bytes(limit: ReadLimit, options: ReadOptions) -> int | None:
    """Return after how many bytes of bodies a micro-batch ends; None: never."""
    if isinstance(limit, ReadMaxBytes):
        return limit.max_bytes
    if options.max_bytes_per_trigger is None and isinstance(limit, ReadMaxRows):
        return DEFAULT_BYTES
    return options.max_bytes_per_trigger


# --- parts -------------------------------------------------------------------------------------
#
# Parts of a micro-batch, and how an executor reads one.
#
# ``read`` of a part may be called again, twice at once, and after the query has moved on: it
# changes nothing but for notes that can be repeated.


PAGE_ROWS: Final = 10_000
"""Rows of one request and of one batch for Spark, which passes batches on as they are."""
BATCH_BYTES: Final = 16 << 20
"""Bytes of bodies of one batch for Spark, whose Java and Python each hold some batches of a task
whole: a page of 1 KiB bodies is one batch. One body may be larger."""
_LOOK_S: Final = 0.5
"""Between two tries to read a claim that its keeper has yet to bring back."""
_LEAST_LOOKING_S: Final = 30
"""How long to go on with that at least: the keeper may be in a call that gets no answer."""


@dataclass(frozen=True)
class Part(InputPartition):
    """What one task reads. It travels to executors, and holds no secret."""

    claim: Adopted
    part: int
    parts: int
    token: int
    """Proves that no other consumer has attached to the stream since."""

    @property
    def rows(self) -> int:
        """How many messages the part has."""
        rows = self.claim.rows
        return (self.part + 1) * rows // self.parts - self.part * rows // self.parts


def read_part(
    options: ReadOptions, decoder: Decoder, part: Part, task: TaskIdentity
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a part as Spark takes them.

    Raises:
        StreamTaken: Another query has attached.
        DataLost: The claim is not there any more, or has lost members.
        BadRecord: A message cannot be decoded, and the options want an error.
    """
    claim = part.claim
    if claim.is_gone:
        return
    if claim.settled_with is not None:
        _check_own(options, claim.number, claim.settled_with, task)
        return
    if options.delivery == "atMostOnce" and (task.attempt or not claim.is_fresh):
        told = count_of(part.rows, "message")
        log.warning("claim %d: not read a second time: %s", claim.number, told)
        return
    reading = _Reading(options, decoder, part, shared_stream(options, part.token))
    try:
        # A binding of an earlier run would have its publishing refused: it must be made anew.
        if (options.settle_with_sink or claim.is_bound) and task.transaction is not None:
            reading.bind(shared_client(options).transaction(task.transaction))
        yield from reading.batches()
    except ClaimSettled as error:
        _check_own(options, claim.number, error.settled_with, task)
    except StaleToken:
        raise taken(options) from None
    except (QueueNotFound, StreamNotFound) as error:
        raise DataLost(
            f"stream {options.stream_id} of queue {options.queue} was deleted while claim "
            f"{claim.number} was being read: {error.code}"
        ) from None
    except (ClaimBroken, ClaimNotFound) as error:
        # Even if losses are accepted: other parts may have been read as they were before, so only
        # the whole micro-batch can be read again, after a restart.
        raise DataLost(
            f"claim {claim.number} of stream {options.stream_id} has lost messages while it was "
            f"being read: {error.detail} Start the query again"
        ) from None


def _check_own(
    options: ReadOptions, number: int, settled_with: str | None, task: TaskIdentity
) -> None:
    """Accept that a claim is settled if it was by this very micro-batch, before a crash.

    Raises:
        DataLost: It was not, and the options do not accept that.
    """
    if settled_with is not None and settled_with == task.transaction:
        log.info("claim %d: this micro-batch was published before", number)
        return
    report_loss(options, f"claim {number} is settled, and not by this micro-batch")


class _Reading:
    """One pass over a part."""

    def __init__(self, options: ReadOptions, decoder: Decoder, part: Part, stream: Stream) -> None:
        self._options = options
        self._decoder = decoder
        self._part = part
        self._stream = stream
        self._number = part.claim.number
        self._looks = int(max(options.visibility_timeout, _LEAST_LOOKING_S) / _LOOK_S)

    def bind(self, transaction: Transaction) -> None:
        """Have the publishing of a transaction settle the claim. One part does it for all.

        All parts are read before anything is published.

        Raises:
            DataLost: The transaction was published before there was this claim.
        """
        if self._part.part:
            return
        try:
            self._when_kept(lambda: self._stream.bind(self._number, transaction.name))
        except AlreadyPublished:
            # By an earlier run of this micro-batch, without the claim: it is not published again.
            if transaction.get().created_at_ms < self._part.claim.opened_at_ms:
                raise DataLost(
                    f"claim {self._number} is newer than transaction {transaction.name}, which was "
                    "published by another micro-batch, so these rows would be dropped: the "
                    "checkpoint was restored to an earlier state, or is a copy. Start the query "
                    "with a new checkpoint"
                ) from None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield what can be decoded; see to what cannot be."""
        for page in self._pages():
            for piece in _pieces(page):
                decoded = self._decoder.decode(piece, self._number, self._part.token)
                if decoded.bad:
                    self._refuse(decoded.bad)
                if decoded.batch.num_rows:
                    yield decoded.batch

    def _pages(self) -> Iterator[Any]:
        """Yield pages; after an outage of the server it is the keeper that brings a claim back."""
        done, looks = 0, self._looks
        while True:
            to_skip = done  # the members and their order never change
            try:
                for page in self._read():
                    if to_skip >= page.num_rows:
                        to_skip -= page.num_rows
                        continue
                    rest = page.slice(to_skip)
                    to_skip = 0
                    done += rest.num_rows
                    yield rest
            except ClaimLapsed:
                if not looks:
                    raise
                looks -= 1
                threading.Event().wait(_LOOK_S)
            else:
                return

    def _read(self) -> Iterator[Any]:
        part, parts = self._part.part, self._part.parts
        whole = self._options.whole_groups and parts > 1
        return self._stream.read_arrow(
            self._number, part, parts, page_size=PAGE_ROWS, whole_groups=whole
        )

    def _refuse(self, bad: Sequence[Bad]) -> None:
        """Do with messages that cannot be decoded what the options say."""
        how, number = self._options.on_bad_record, self._number
        if how == "fail":
            raise BadRecord(
                f"message {bad[0].message_id} in claim {number}: {bad[0].error}. It is one of "
                f"{len(bad)} in this batch; option onBadRecord=poison sets such messages aside"
            )
        if how == "keep":
            return
        notes = [Exemption(number, each.message_id, "buried", error=_report(each)) for each in bad]
        try:
            self._when_kept(lambda: self._stream.exempt(number, notes))
        except OutOfRange as error:
            raise BadRecord(
                f"more messages of claim {number} cannot be decoded than can be set aside "
                f"({error.maximum}), for example {bad[0].message_id}: {bad[0].error}. "
                "Check that messageEncoding, format and the columns fit the bodies"
            ) from None
        log.warning("claim %d: to the poison queue: %s", number, count_of(len(bad), "message"))

    def _when_kept(self, call: Callable[[], object]) -> None:
        """Make a call; wait a lease's length for a claim that has lapsed to be extended."""
        for _ in range(self._looks):
            with contextlib.suppress(ClaimLapsed):
                call()
                return
            threading.Event().wait(_LOOK_S)
        call()


def _pieces(page: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a page in pieces of at most BATCH_BYTES of bodies, or of one row."""
    if page.nbytes <= BATCH_BYTES:
        yield page
        return
    first, size = 0, 0
    for row, length in enumerate(pc.binary_length(page.column("body")).to_pylist()):
        if row > first and size + length > BATCH_BYTES:
            yield page.slice(first, row - first)
            first, size = row, 0
        size += length
    yield page.slice(first)


def _report(bad: Bad) -> ErrorReport:
    return ErrorReport(bad.error, "BadRecord")


# --- clients -----------------------------------------------------------------------------------
#
# Clients of this process, one for each place, and handles on its streams. They are kept between
# tasks, as Python workers of executors live longer than these.


_clients: Final[dict[tuple[int, Place, float], Client]] = {}
_streams: Final[dict[tuple[int, Place, float, str | None], Stream]] = {}


def shared_client(options: ReadOptions) -> Client:
    """Return this process's client for where the options point to, made when first asked for."""
    # A process that was forked must not use the connections of the one before.
    key = (os.getpid(), options.place, options.retry_patience)
    found = _clients.get(key)
    if found is None:
        found = _clients[key] = connect(options.place, patient(options.retry_patience))
        spare_worker(os.getpid())
    return found


def shared_stream(options: ReadOptions, token: int) -> Stream:
    """Return this process's handle on the stream of the options, made when first asked for.

    Args:
        options: Of the read; a streamId must be among them.
        token: That of the handle. For another one there is a handle of its own, as a task that is
            late must not write in the name of a later consumer.
    """
    key = (os.getpid(), options.place, options.retry_patience, options.stream_id)
    found = _streams.get(key)
    if found is None or found.token != token:
        queue = shared_client(options).queue(options.queue)
        found = _streams[key] = queue.stream(options.stream_id or "", token=token)
    return found


def close_shared() -> None:
    """Close this process's clients. Tasks that come later make new ones."""
    _streams.clear()
    while _clients:
        (pid, _, _), client = _clients.popitem()
        if pid == os.getpid():
            client.close()


# --- listener -----------------------------------------------------------------------------------
#
# Settling as soon as Spark has a micro-batch in its log, in place of at the next trigger.


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
        end = _object(end_offset)
        # PySpark 4.1 asks for no report: there the offset says whose it is.
        told = _object(report) or end
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
