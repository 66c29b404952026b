"""Any Azure Queue Storage as a stream, through the official SDK: at least once.

A service without claims cannot give the same messages again, so a micro-batch that Spark repeats
after a crash of the driver is empty, and its messages come in a later one, once their leases have
ended. Rows that a sink had written before the crash are written a second time then.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from leasehold.domain.model import DEFAULT_PRIORITY
from leasehold.domain.wording import count_of
from leasehold.spark.connection import (
    TaskIdentity,
    connection_string,
    current_task,
    is_signature,
    show_sentences,
)
from leasehold.spark.options import BadOption, BadRecord, Place, ReadOptions, log
from leasehold.spark.stream.consumer import part_count
from leasehold.spark.stream.decoding import Decoder
from leasehold.spark.stream.keeper import end_on_sigterm, outlast_sigterm
from leasehold.spark.stream.releases import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from leasehold.worker.adapters.protocol import (
    Delivery,
    Depth,
    Fault,
    Lease,
    LeaseGone,
    QueueClient,
    QueueError,
    Unreachable,
)
from leasehold.worker.errors import LeaseLost
from leasehold.worker.leases import Held, LeaseManager, LeaseSettings, UnsafeSettings
from leasehold.worker.timing import SystemTime, Time

# --- batches -----------------------------------------------------------------------------------
#
# Messages on leases, by the micro-batch that they are in; all of it on the driver.


T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 16
"""Requests under way at a time: each settles one message, or receives a few."""
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.25


class Manager(Protocol):
    """What keeps leases: the manager of the worker library."""

    def keep(
        self,
        client: QueueClient,
        delivery: Delivery,
        *,
        asked_at_s: float,
        lease_s: int | None = None,
    ) -> Held:
        """Keep a lease from now on."""
        ...

    def close(self) -> None:
        """Keep nothing any more."""
        ...


@dataclass(slots=True)
class _Tries:
    """The tries of one call."""

    maybe_done: bool = False
    """Whether one of them had no clear answer and may have been carried out."""


class Batches:
    """Receives messages, has their leases kept, and completes them when their batch is durable.

    Args:
        client: The queue.
        manager: Keeps the leases; closed with this.
        time: By which it goes.
        lease_s: Visibility timeout of each receive, in seconds.
        patience_s: How long to go on trying while the service does not answer.
    """

    def __init__(
        self,
        client: QueueClient,
        manager: Manager,
        time: Time,
        *,
        lease_s: int,
        patience_s: float,
    ) -> None:
        self._client = client
        self._manager = manager
        self._time = time
        self._lease_s = lease_s
        self._patience_s = patience_s
        self._held: dict[int, list[Held]] = {}
        self._bad: dict[int, dict[str, str]] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="leasehold-azure")
        self._waiting = threading.Condition()
        self._is_closed = False
        self.lost = 0
        """Messages whose lease was lost before their batch was durable: they come again."""

    @property
    def held(self) -> int:
        """How many messages are on lease."""
        return sum(map(len, self._held.values()))

    def has(self, number: int) -> bool:
        """Tell whether batch *number* is here."""
        return number in self._held

    def deliveries(self, number: int) -> list[Delivery]:
        """Return the messages of a batch in their order; none of one that is not here."""
        return [held.delivery for held in self._held.get(number, ())]

    def note_bad(self, number: int, bad: dict[str, str]) -> None:
        """Have messages of a batch, by id, set aside with a reason when it is settled."""
        self._bad[number] = bad

    def depth(self) -> Depth:
        """Return how many messages the service says there are."""
        return self._patiently(self._client.depth)

    def estimate(self) -> int | None:
        """Return how many messages the service says there are; None if it does not say now."""
        try:
            return self._client.depth().total
        except QueueError as error:
            log.debug("no numbers for the progress report: %s", error)
            return None

    def take(self, number: int, most: int, max_bytes: int, wait_s: float) -> int:
        """Receive messages as batch *number*, and return how many; 0: there were none.

        Args:
            number: Of the batch.
            most: Messages, 1 or more.
            max_bytes: Bytes of bodies after which no further receive is sent.
            wait_s: Seconds to look for a first message again and again.
        """
        until_s = self._time.monotonic_s() + wait_s
        taken: list[Held] = []
        while True:
            got = self._receive(most - len(taken))
            taken += got
            size = sum(len(held.delivery.body) for held in taken)
            if taken and (not got or len(taken) >= most or size >= max_bytes):
                break
            if not got and self._time.monotonic_s() >= until_s:
                return 0
            if not got:
                self._pause(_LOOK_EVERY_S)
        self._held[number] = taken
        return len(taken)

    def settle(self, upto: int) -> frozenset[str]:
        """Complete the messages of all batches up to a number; set the bad ones aside.

        Returns:
            Ids of those for which it was not done: they may come again.
        """
        left: set[str] = set()
        for number in sorted(each for each in self._held if each <= upto):
            bad = self._bad.pop(number, {})
            helds = self._held.pop(number)
            done = self._each(helds, partial(self._settle, bad=bad))
            missed = [held for held, is_done in zip(helds, done, strict=True) if not is_done]
            if missed:
                self.lost += len(missed)
                left |= {held.delivery.message_id for held in missed}
                log.warning(
                    "micro-batch %d: of %s %d not completed, which may come again",
                    number,
                    count_of(len(helds), "message"),
                    len(missed),
                )
        return frozenset(left)

    def close(self) -> None:
        """Keep nothing any more: what is not settled is visible again when its lease ends."""
        self._is_closed = True
        self._manager.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    # --- requests ------------------------------------------------------------------------------

    def _receive(self, most: int) -> list[Held]:
        """Send a few receives at once; stops short of none being left."""
        page = self._client.capabilities.max_receive
        sizes = [page] * min(AT_ONCE, most // page) or [most]

        def receive(size: int) -> list[Held]:
            return self._patiently(lambda: self._receive_once(size))

        return [held for helds in self._each(sizes, receive) for held in helds]

    def _receive_once(self, size: int) -> list[Held]:
        # Of each try by itself: those before it may have waited for long.
        asked_at_s = self._time.monotonic_s()
        taken = []
        for delivery in self._client.receive(size, visibility_timeout_s=self._lease_s):
            try:
                taken.append(self._manager.keep(self._client, delivery, asked_at_s=asked_at_s))
            except LeaseLost as error:
                log.warning("message %s comes again: %s", delivery.message_id, error)
        return taken

    def _settle(self, held: Held, bad: dict[str, str]) -> bool:
        """Complete or bury one message; tell whether that was done."""
        try:
            lease = held.begin_settling()
        except LeaseLost:
            return False
        reason = bad.get(held.delivery.message_id)
        tries = _Tries()
        result: QueueError | None = None
        try:
            if reason is not None:
                fault = Fault(text=reason, type="BadRecord")
                self._patiently(
                    lambda: self._client.bury(held.delivery, lease.receipt, fault), tries
                )
            else:
                result = self._patiently(lambda: self._completed(lease), tries)
        except QueueError as error:
            result = error
        if reason is None and isinstance(result, LeaseGone) and self._was_done(held, tries):
            result = None
        return held.settled(result, completing=reason is None)

    def _was_done(self, held: Held, tries: _Tries) -> bool:
        """Tell whether a message is gone because a completion without an answer was carried out.

        Not so if its lease is over, or a renewal without an answer has changed the receipt.
        """
        in_time = self._time.monotonic_s() < held.deadline_s
        return tries.maybe_done and in_time and not held.is_ambiguous

    def _completed(self, lease: Lease) -> QueueError | None:
        [result] = self._client.complete([lease])
        if isinstance(result, Unreachable):
            raise result
        return result

    def _patiently(self, call: Callable[[], R], tries: _Tries | None = None) -> R:
        """Make a call again while the service does not answer.

        Args:
            call: What to do.
            tries: Takes note of what its tries may have done.

        Raises:
            QueueError: It was refused, or there was no answer for too long. Its outcome is unknown
                if that of any try was.
        """
        tries = tries or _Tries()
        until_s = self._time.monotonic_s() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return call()
            except Unreachable as error:
                tries.maybe_done = error.outcome_unknown = tries.maybe_done or error.outcome_unknown
                if self._is_closed or self._time.monotonic_s() + pause_s > until_s:
                    raise
                log.warning("the queue does not answer, trying again: %s", error)
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _pause(self, length_s: float) -> None:
        with self._waiting:
            self._time.wait(self._waiting, length_s)

    def _each(self, items: Sequence[T], call: Callable[[T], R]) -> list[R]:
        return list(self._pool.map(call, items)) if len(items) > 1 else [call(x) for x in items]


# --- opening -----------------------------------------------------------------------------------
#
# From options to a queue of the official SDK, with a manager that keeps its leases.


_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
_FOREVER_S: Final = 7 * 86_400.0
"""A batch may take as long as it likes; the driver's process ends with its query."""


def open_batches(options: ReadOptions) -> Batches:
    """Open the queue that the options name. No request is made.

    Raises:
        BadOption: The connection is not properly given, or the lease is too short to be kept.
        ImportError: The SDK is not installed; it comes with the extra ``azure``.
    """
    from leasehold.worker.adapters.azure import AzureQueue  # noqa: PLC0415 - needs the SDK

    try:
        queue = AzureQueue.from_connection_string(
            _connection(options.place), options.queue, encoding=options.message_encoding
        )
        settings = LeaseSettings.of(options.visibility_timeout, _FOREVER_S)
        settings.check(queue.capabilities)
    except UnsafeSettings as error:
        raise BadOption(f"option visibilityTimeout: {error}") from None
    except ValueError as error:
        raise BadOption(f"the connection options are wrong: {error}") from None
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
    given = connection_string(place)
    if given is not None:
        return given
    return os.environ.get(_VARIABLE) or "UseDevelopmentStorage=true"


# --- reader ------------------------------------------------------------------------------------


MOST_MESSAGES: Final = 5_000
"""Of one micro-batch: each has a lease of its own, which a request of its own renews."""
MOST_BYTES: Final = 64 << 20
"""Of one micro-batch: bodies travel from the driver to the executors."""
_OFFSET: Final = "batch"


@dataclass(frozen=True)
class TaskRows(InputPartition):
    """What one task yields: the rows themselves, since an executor could not receive them again."""

    stream: bytes
    """An Arrow stream."""
    is_once: bool = False
    """A second attempt at the task is not to have them."""

    @property
    def count(self) -> int:
        """How many there are."""
        with pa.ipc.open_stream(self.stream) as stream:
            return sum(batch.num_rows for batch in stream)


@show_sentences
class AzureReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue in micro-batches that the driver holds on leases. The offset is their number.

    Args:
        options: Of the read.
        schema: What Spark expects.
        open_queue: Opens the queue with a manager of leases, when it is first used.

    Raises:
        BadOption: The options do not fit the columns, or ask for groups, which are unknown there.
    """

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        open_queue: Callable[[ReadOptions], Batches] = open_batches,
    ) -> None:
        if options.whole_groups:
            raise BadOption(
                "option wholeGroups needs message groups, which Azure Queue Storage does not have: "
                "leave it out, or read a queue of Leasehold, without service=azure"
            )
        # The SDK's adapter takes bodies out of their encoding.
        self._decoder = Decoder(dataclasses.replace(options, message_encoding="none"), schema)
        self._options = options
        self._open_queue = open_queue
        self._opened: Batches | None = None
        self._left: int | None = None
        """Messages that a query with Trigger.AvailableNow may still take; None: any number."""
        self.task: Callable[[], TaskIdentity] = current_task
        """Tells which task reads."""

    # --- on the driver, in the process of the query ----------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names, here and below
        """Return where a query without a checkpoint begins."""
        return {_OFFSET: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say, within what leases can be kept of."""
        return ReadMaxRows(min(self._options.max_messages_per_trigger, MOST_MESSAGES))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how much there is to take in all, as the service estimates it."""
        self._left = self._batches.depth().total or 0

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Complete what ends at *start*, and receive the next micro-batch.

        Raises:
            QueueError: The service refused, or did not answer for too long.
        """
        number = _batch_in(start)
        batches = self._batches
        batches.settle(number)
        if batches.has(number + 1):
            return {_OFFSET: number + 1}
        asked = limit.max_rows if isinstance(limit, ReadMaxRows) else MOST_MESSAGES
        most = min(asked, MOST_MESSAGES if self._left is None else self._left)
        if most < 1:
            return start
        wait_s = self._options.wait_seconds if self._left is None else 0
        most_bytes = min(self._options.max_bytes_per_trigger or MOST_BYTES, MOST_BYTES)
        taken = batches.take(number + 1, most, most_bytes, wait_s)
        if self._left is not None:
            self._left = self._left - taken if taken else 0
        return {_OFFSET: number + 1} if taken else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return numbers for the query's progress; the service's own are estimates."""
        batches = self._batches
        return {"messages": batches.estimate(), "held": batches.held, "lost": batches.lost}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the rows of a micro-batch in parts.

        Raises:
            BadRecord: A message cannot be decoded, and the options want an error.
        """
        number = _batch_in(end)
        if start == end:
            return []
        batches = self._batches
        if not batches.has(number):
            log.warning(
                "micro-batch %d was received by an earlier run and is empty now: its messages come "
                "again when their leases end",
                number,
            )
            return []
        is_once = self._options.delivery == "atMostOnce"
        rows = self._completed(number) if is_once else self._decoded(number)
        parts: list[InputPartition] = []
        count = part_count(rows.num_rows, self._options.num_partitions, os.cpu_count() or 1)
        for part in range(count):
            first, last = rows.num_rows * part // count, rows.num_rows * (part + 1) // count
            parts.append(TaskRows(_stream_of(rows.slice(first, last - first)), is_once))
        return parts

    def offset_before(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return where the micro-batch begins that ends at *end*."""
        return {_OFFSET: _batch_in(end) - 1}

    def with_identity(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return an offset as it is: no listener settles these."""
        return end

    def commit(self, end: dict[str, Any]) -> None:
        """Complete what ends at *end*; it is called a micro-batch late."""
        self._batches.settle(_batch_in(end))

    def stop(self) -> None:
        """Let the leases go; called when the process ends, also by SIGTERM."""
        if self._opened is not None:
            outlast_sigterm()
            self._opened.close()

    @property
    def _batches(self) -> Batches:
        if self._opened is None:
            end_on_sigterm()
            self._opened = self._open_queue(self._options)
            if self._options.delivery != "atMostOnce":
                log.warning(
                    "queue %s is read at least once: Azure Queue Storage cannot give the messages "
                    "of a micro-batch again after a crash, so some may be written twice",
                    self._options.queue,
                )
        return self._opened

    def _completed(self, number: int) -> pa.RecordBatch:
        """Return the rows of the messages that can be completed before they are written."""
        deliveries = self._batches.deliveries(number)
        rows = self._decoded(number)
        left = self._batches.settle(number)
        if not left:
            return rows
        readable = [each for each in deliveries if each.body_problem is None]
        page = page_of([each for each in readable if each.message_id not in left])
        return self._decoder.decode(page, number).batch

    def _decoded(self, number: int) -> pa.RecordBatch:
        deliveries = self._batches.deliveries(number)
        unread = {each.message_id: each.body_problem for each in deliveries if each.body_problem}
        page = page_of([each for each in deliveries if each.message_id not in unread])
        found = self._decoder.decode(page, number)
        bad = {**unread, **{each.message_id: each.error for each in found.bad}}
        how = self._options.on_bad_record
        if bad and how == "fail":
            message_id, error = next(iter(bad.items()))
            raise BadRecord(f"message {message_id}: {error}. It is one of {len(bad)}")
        # A message of which there is no body at all can only be set aside.
        self._batches.note_bad(number, bad if how == "poison" else unread)
        return found.batch

    # --- on executors ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        assert isinstance(partition, TaskRows)
        if partition.is_once and self.task().attempt:
            log.warning("not read a second time: %s", count_of(partition.count, "message"))
            return
        with pa.ipc.open_stream(partition.stream) as stream:
            yield from (batch for batch in stream if batch.num_rows)


def _batch_in(offset: Any) -> int:
    """Return the number of the micro-batch at which an offset ends.

    Raises:
        ValueError: It is not an offset of this source.
    """
    number = offset.get(_OFFSET) if isinstance(offset, dict) else None
    if not isinstance(number, int):
        raise ValueError(  # noqa: TRY004 - it is what a checkpoint says, not what a caller passes
            f"the checkpoint's offset {offset!r} was not written by service=azure: the checkpoint "
            "belongs to another source"
        )
    return number


def _stream_of(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


# --- pages -------------------------------------------------------------------------------------
#
# Messages of any service in the columns that Leasehold's own server sends.


_MS: Final = pa.timestamp("ms", "UTC")
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
        ("group_id", pa.string()),
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
        [DEFAULT_PRIORITY] * len(deliveries),
        [each.type for each in deliveries],
        [each.traceparent for each in deliveries],
        [[*each.properties.items()] for each in deliveries],
        [None] * len(deliveries),
    ]
    arrays = [pa.array(each, kind.type) for each, kind in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
