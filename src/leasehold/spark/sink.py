"""Writing to queues: tasks stage rows, the driver publishes what won, once, all together.

Spark makes a stream's writer anew for each batch, and pickles both kinds: they hold options only.
``write`` runs on executors, perhaps several times at once for the same rows; ``commit`` and
``abort`` run on the driver's machine. When ``commit`` fails, ``abort`` is called with the same
messages, although the publishing may have succeeded; so dropping never touches what is published.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
)

from leasehold import spans
from leasehold.client.errors import (
    AlreadyPublished,
    ConnectionFailed,
    LeaseholdClientError,
    StagedNotFound,
)
from leasehold.domain.limits import MAX_GROUP_ID, MAX_PUBLISHED_PARTS
from leasehold.domain.wording import count_of
from leasehold.spark.claimed_rows import (
    CLAIMED,
    BadColumns,
    ClaimedRows,
    Members,
    check_claimed,
    joined,
    note_members,
)
from leasehold.spark.connection import (
    connect,
    current_task,
    missing_queue_named,
    patient,
    show_sentences,
    spare_worker,
    transaction_name,
)
from leasehold.spark.options import BadOption, WriteOptions, log, nearest

if TYPE_CHECKING:
    from leasehold.client import Client
    from leasehold.client.models import Published


Messages = Sequence[WriterCommitMessage | None]
"""One for each task that finished; None for those that did not."""

_TASK_SHARE: Final = 0.2
"""Of the patience: a task that fails is tried again by Spark, a commit is not."""
_GIVE_UP_S: Final = 10.0
"""Patience of what only tidies up."""
_NAME: Final = re.compile(r"[A-Za-z0-9._:~-]{1,256}")
_APP_NAME: Final = re.compile(r"[A-Za-z0-9._:~-]{1,200}")
"""Shorter, as the number of the batch is put behind it."""


def batch_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> BatchWriter:
    """Return what sends the rows of a table.

    Raises:
        BadOption: An option does not fit a batch, or *overwrite* is asked for.
        BadColumns: The table's columns are not those of messages.
    """
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


def stream_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> StreamWriter:
    """Return what sends the rows of each micro-batch.

    Raises:
        BadOption: An option does not fit a stream, or the output mode is ``complete``.
        BadColumns: The table's columns are not those of messages.
    """
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


class StagedRowsGone(RuntimeError):
    """Rows that were staged are not there any more, so nothing of the batch was published."""


class _Writer:
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._names = tuple(field.name.lower() for field in schema.fields)
        self._names_queues = "queue" in (name.lower() for name in schema.names)
        self._stager = Stager(
            rows=Rows.of(options, schema),
            queue=options.place.queue,
            chunk_rows=options.stage_rows,
            timeout_s=options.staging_timeout,
        )

    def _stage(self, name: str, part: str, batches: Iterator[pa.RecordBatch]) -> TaskDone:
        policy = patient(self._options.retry_patience * _TASK_SHARE)
        claimed = ClaimedRows(self._names)
        try:
            with connect(self._options.place, policy) as client, self._missing_queue_named(client):
                spare_worker(os.getpid())
                rows = map(claimed.taken_from, batches)
                done = self._stager.stage(client.transaction(name), part, rows)
                return replace(done, claims=claimed.claims)
        finally:
            self._send_spans()

    def _exempt(self, name: str, done: Sequence[TaskDone]) -> None:
        """Note with the claims which of their messages are not to be completed.

        What an earlier run of the same rows has noted is forgotten: what counts is what these rows
        say, with which it is published.
        """
        found = joined(each.claims for each in done if not each.already)
        if not found:
            return
        with connect(self._options.place, patient(self._options.retry_patience)) as client:
            for claim, members in found.items():
                note_members(client, claim, members, name)

    def _send_spans(self) -> None:
        """Send the spans that there are: Spark may end this process at any time from now on."""
        if self._options.place.tracing:
            spans.flush()

    def _missing_queue_named(self, client: Client) -> AbstractContextManager[None]:
        """Say which queue is missing, if rows name none of their own."""
        return missing_queue_named(
            None if self._names_queues else self._options.place.queue, client
        )

    def _publish(self, name: str, parts: list[str], patience_s: float | None = None) -> Published:
        if len(parts) > MAX_PUBLISHED_PARTS:
            raise RuntimeError(
                f"{len(parts):,} tasks have staged rows, and {MAX_PUBLISHED_PARTS:,} can be "
                "published together: use fewer partitions (coalesce)"
            )
        policy = patient(self._options.retry_patience if patience_s is None else patience_s)
        with connect(self._options.place, policy) as client:
            try:
                return client.transaction(name).publish(parts)
            except StagedNotFound as refusal:
                raise StagedRowsGone(
                    f"{refusal} Rows that are not published vanish after the option stagingTimeout "
                    f"({self._options.staging_timeout} s), or they were discarded. Nothing "
                    "was published."
                ) from refusal
            finally:
                self._send_spans()

    def _discard(self, name: str, parts: list[str] | None) -> None:
        """Drop what is staged, if that can be done now; otherwise it vanishes in time."""
        with (
            connect(self._options.place, patient(_GIVE_UP_S)) as client,
            contextlib.suppress(LeaseholdClientError),
        ):
            client.transaction(name).discard(parts)


@show_sentences
class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Sends the rows of each micro-batch, once however often the batch is run."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Stage the rows of one task, on an executor."""
        task = current_task()
        if task.query_id is None or task.batch_id is None:
            raise RuntimeError("this is no task of a streaming query")
        query = self._options.txn_app_id or task.query_id
        return self._stage(transaction_name(query, task.batch_id), task.part, iterator)

    def commit(self, messages: Messages, batch_id: int) -> None:
        """Publish what the tasks have staged; a batch that is published already stays as it is.

        That is told of: Spark runs a batch again only right after a crash, so at any other time
        the name was somebody else's. A batch without rows is published too: claims may be bound
        to its name, and are settled by that.
        """
        done = _finished(messages)
        if not done:
            return
        self._exempt(done[0].transaction, done)
        found = self._publish(done[0].transaction, _parts(done))
        if any(each.already for each in done):
            log.warning(
                "micro-batch %d was published before, as %s with %s, so its rows are dropped. "
                "That is right after a crash. At any other time the checkpoint is an old one, or "
                "txnAppId is that of another query or checkpoint",
                batch_id,
                done[0].transaction,
                count_of(found.rows, "row"),
            )

    def abort(self, messages: Messages, _batch_id: int) -> None:
        """Drop what finished tasks have staged, unless it is published.

        Others have dropped theirs, or died. What those leave is dropped when the batch is
        published by its next run.
        """
        done = _finished(messages)
        parts = _parts(done)
        if parts:
            self._discard(done[0].transaction, parts)


@show_sentences
class BatchWriter(_Writer, DataSourceArrowWriter):
    """Sends the rows of a table, all together or not at all."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._run = uuid4().hex
        self._name = options.txn_id or f"spark.batch.{self._run}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Stage the rows of one task, on an executor."""
        # Tasks are numbered from 0 in every application, and two may write under one name.
        part = replace(current_task(), run_id=self._run).part
        return self._stage(self._name, part, iterator)

    def commit(self, messages: Messages) -> None:
        """Publish what the tasks have staged."""
        done = _finished(messages)
        parts = _parts(done)
        self._exempt(self._name, done)
        if not parts and not self._options.txn_id:
            return
        found = self._publish(self._name, parts)
        if any(each.already for each in done):
            log.warning(
                "nothing is sent: published before under txnId %s: %s",
                self._name,
                count_of(found.rows, "row"),
            )

    def abort(self, messages: Messages) -> None:
        """Drop what was staged, unless it is published."""
        if self._options.txn_id:
            # Another job may be writing under the same name.
            parts = _parts(_finished(messages))
            if parts:
                self._discard(self._name, parts)
            return
        # To publish nothing drops it all and closes the name to tasks that are still running.
        with contextlib.suppress(LeaseholdClientError):
            self._publish(self._name, [], _GIVE_UP_S)


def _finished(messages: Messages) -> list[TaskDone]:
    return [each for each in messages if isinstance(each, TaskDone)]


def _parts(done: list[TaskDone]) -> list[str]:
    return [each.part for each in done if each.rows]


# --- columns -----------------------------------------------------------------------------------
#
# From the rows of a table to the messages that they are: which columns, of which types.


_TEXT: Final = (StringType,)
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)

COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "queue": _TEXT,
    "delay_s": _WHOLE,
    "time_to_live_s": _WHOLE,
    "priority": _WHOLE,
    "message_type": _TEXT,
    "traceparent": _TEXT,
    "properties": (MapType,),
    "dedup_key": _TEXT,
    "group_id": _TEXT,
    "visibility_timeout_s": _WHOLE,
    CLAIMED: (StructType,),
}
"""What a row may say of its message, and in which types of Spark."""

_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
_WORDS: Final = {
    BinaryType: "binary",
    StringType: "string",
    ByteType: "a whole number",
    MapType: "map<string,string>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How the rows of one table become messages. It can be pickled."""

    names: tuple[str, ...]
    """Names of the columns, in the order of the table."""
    defaults: tuple[tuple[str, int], ...]
    """For rows that do not say it themselves."""

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType) -> Rows:
        """Return how to send a table with these columns.

        Raises:
            BadColumns: It has one that is unknown or of a wrong type, or one is missing.
        """
        names = tuple(field.name.lower() for field in schema.fields)
        for column, name in zip(schema.fields, names, strict=True):
            _check(column.name, name, column.dataType)
        if len(set(names)) < len(names):
            raise BadColumns("two columns have the same name, but for upper and lower case")
        names = tuple(name for name in names if name != CLAIMED)
        if "body" not in names:
            raise BadColumns(
                "the column body is missing: it is the message; "
                "for JSON of whole rows select to_json(struct(*)) AS body"
            )
        if "queue" not in names and options.place.queue is None:
            raise BadColumns("name the queue: by the option queueName, or in a column queue")
        given = {
            "delay_s": options.delay or None,
            "time_to_live_s": options.time_to_live,
            "priority": options.priority,
        }
        defaults = tuple((name, value) for name, value in given.items() if value is not None)
        return cls(names=names, defaults=defaults)

    def messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch as the server takes it.

        Raises:
            BadColumns: A row has no body, or a name of a group that is no name.
        """
        columns = dict(zip(self.names, batch.columns, strict=True))
        if columns["body"].null_count:
            raise BadColumns("a row has null for its body; filter such rows out first")
        for name, value in self.defaults:
            found = columns.get(name)
            columns[name] = (
                pa.repeat(pa.scalar(value, pa.int64()), batch.num_rows)
                if found is None or pa.types.is_null(found.type)
                else pc.fill_null(found.cast(pa.int64()), value)
            )
        given = {
            name: _plain(name, column)
            for name, column in columns.items()
            if not pa.types.is_null(column.type)
        }
        if "group_id" in given:
            _check_groups(given["group_id"])
        return pa.RecordBatch.from_arrays(list(given.values()), names=list(given))


def _plain(name: str, column: Any) -> Any:
    """Return a column in a type that the server takes."""
    # Spark names the members of a map's entries as it likes.
    return column.cast(_PROPERTIES) if name == "properties" else column


def _check_groups(names: Any) -> None:
    """Refuse names of groups that the server would refuse.

    Raises:
        BadColumns: One is empty or too long.
    """
    lengths = pc.utf8_length(names)
    bad = pc.index(pc.or_(pc.equal(lengths, 0), pc.greater(lengths, MAX_GROUP_ID)), value=True)
    place = bad.as_py()
    if place >= 0:
        name, length = names[place].as_py(), lengths[place].as_py()
        raise BadColumns(
            f"a row has a group_id of {length:,} characters, {name[:32]!r}, and it has to have "
            f"1 to {MAX_GROUP_ID}: null for no group; of a longer name take a hash, sha2(name, 256)"
        )


def _check(shown: str, name: str, kind: DataType) -> None:
    kinds = COLUMNS.get(name)
    if kinds is None:
        raise BadColumns(
            f"a message has no {shown}.{nearest(name, [*COLUMNS])} Its columns are "
            f"{', '.join(COLUMNS)}; to send whole rows select to_json(struct(*)) AS body"
        )
    fits = isinstance(kind, kinds) or (isinstance(kind, NullType) and name != "body")
    if isinstance(kind, StructType) and name == CLAIMED:
        check_claimed(kind)
    if isinstance(kind, MapType):
        fits = fits and isinstance(kind.keyType, StringType)
        fits = fits and isinstance(kind.valueType, StringType)
    if not fits:
        wanted = " or ".join(_WORDS[each] for each in kinds if each in _WORDS)
        raise BadColumns(f"the column {shown} is {kind.simpleString()}, and has to be {wanted}")


# --- staging -----------------------------------------------------------------------------------
#
# What one task does: stage its rows in few requests, and clean up after itself if it fails.


CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Of one request, about; the client splits what is more."""


@dataclass(frozen=True, slots=True)
class TaskDone(WriterCommitMessage):
    """What a task tells the driver."""

    transaction: str
    part: str
    """What it staged its rows as."""
    rows: int
    """0 if it staged nothing: then there is no such part."""
    already: bool = False
    """The transaction had been published before; the rows were dropped."""
    claims: Members = field(default_factory=dict)
    """The claims that its rows came from, and which of their messages are not to be completed."""


class Staging(Protocol):
    """What is needed of a transaction."""

    @property
    def name(self) -> str:
        """The transaction's name."""

    def stage_arrow(
        self, batch: Any, *, queue: str | None, part: str, timeout_s: int | None
    ) -> Any:
        """Stage rows; see :meth:`leasehold.client.handles.Transaction.stage_arrow`."""

    def discard(self, parts: Iterable[str] | None = None) -> Any:
        """Drop what is staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stager:
    """How the rows of a task are staged. It can be pickled."""

    rows: Rows
    queue: str | None
    """Of rows that name none."""
    chunk_rows: int
    """Most rows of one request."""
    timeout_s: int
    """When staged rows vanish that are not published, seconds."""

    def stage(self, transaction: Staging, part: str, batches: Iterable[pa.RecordBatch]) -> TaskDone:
        """Stage all rows as one part.

        If the transaction has been published already, by an earlier run of the same batch or by
        another attempt at this task, the rows are dropped: they are there. Whatever else goes
        wrong, what was staged is dropped as far as the server can be reached.

        Raises:
            BadColumns: A row cannot be a message.
            LeaseholdClientError: The server refuses a row, or cannot be reached.
        """
        count = 0
        try:
            for chunk in in_chunks(map(self.rows.messages, batches), self.chunk_rows):
                transaction.stage_arrow(
                    chunk, queue=self.queue, part=part, timeout_s=self.timeout_s
                )
                count += chunk.num_rows
        except AlreadyPublished:
            return TaskDone(transaction.name, part, 0, already=True)
        except BaseException as error:
            # Whoever cannot be reached has been waited for long enough.
            if count and not isinstance(error, ConnectionFailed):
                with contextlib.suppress(LeaseholdClientError):
                    transaction.discard([part])
            raise
        return TaskDone(transaction.name, part, count)


def in_chunks(batches: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of a size that is worth a request.

    Args:
        batches: In any sizes.
        most_rows: Of a chunk, 1 or more. It may also end at about CHUNK_BYTES.
    """
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        rest = whole
        while rest.num_rows:
            piece = rest.slice(0, most_rows - rows)
            rest = rest.slice(piece.num_rows)
            gathered.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= most_rows or size >= CHUNK_BYTES:
                yield _joined(gathered)
                gathered, rows, size = [], 0, 0
    if gathered:
        yield _joined(gathered)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
