"""The handle on a transaction: messages staged under a name and published together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leasehold.client import _arrow as arrow
from leasehold.client import _calls as calls
from leasehold.client import _transactions as transactions
from leasehold.client._async.transport import AsyncTransport
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import (
    Discarded,
    NewMessage,
    Outgoing,
    Published,
    Staged,
    TransactionInfo,
)


class AsyncTransaction:
    """Messages that nobody sees until all of them are published.

    It is made by :meth:`AsyncClient.transaction`.

    ::

        transaction = client.transaction("import-2026-11-21")
        await transaction.stage(["one", "two"], queue="orders")
        await transaction.publish()

    Messages are staged in parts, one for each task that stages, and each part in chunks, one for
    each request. A handle counts the chunks of a part from 0. Whoever stages the same messages
    again, with a new handle or from the same *chunk* on, stages only what is not there yet: so a
    task can begin anew after a crash. One part is staged by one thread or task at a time.
    """

    def __init__(self, transport: AsyncTransport, name: str) -> None:
        self._transport = transport
        self._path = transactions.transaction_path(transport.endpoint.account, name)
        self._chunks = transactions.Chunks()
        self.name = name
        """The transaction's name."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    async def stage(
        self,
        messages: Iterable[Outgoing | NewMessage | str | bytes],
        *,
        queue: str | None = None,
        part: str = "",
        chunk: int | None = None,
        timeout_s: int | None = None,
    ) -> Staged:
        """Put messages that nobody sees yet, 10,000 or 8 MiB at a time.

        Delays and times to live begin when they are published, and only then deduplication keys
        are looked at.

        Args:
            messages: Any number.
            queue: The queue of those that name none.
            part: Name of the part, up to 256 characters.
            chunk: Number of the first chunk; None: after those that this handle has staged. To
                add to a part that another handle has staged, give its ``chunks``.
            timeout_s: Seconds from now after which the transaction vanishes unless it is published,
                up to 604,800; None: a day.

        Returns:
            How much the part has now. Look at ``duplicate``: these chunks were there already, and
            what you gave was not staged.

        Raises:
            TypeError: A message does not say for which queue, or is no message.
            QueueNotFound: A queue is not there. Nothing of the chunk was staged.
            AlreadyPublished: The transaction has been published.
            ChunkOutOfTurn: Chunks are missing before this one.
            RuntimeError: The call before failed: say from which chunk on to repeat it.
        """
        first = number = self._chunks.first(part, chunk)
        duplicate = True
        try:
            for make in transactions.stage_calls(self._path, messages, queue, part, timeout_s):
                done = transactions.staged(await self._transport.call(make(number)))
                duplicate = duplicate and done.duplicate
                number += 1
        except BaseException as error:
            self._note_failure(part, first, number, error)
            raise
        self._chunks.is_done(part, number)
        return Staged(done.rows, done.chunks, duplicate)

    async def stage_arrow(
        self,
        batch: Any,
        *,
        queue: str | None = None,
        part: str = "",
        chunk: int | None = None,
        timeout_s: int | None = None,
    ) -> Staged:
        """Stage the rows of a ``pyarrow.RecordBatch``; for the rest see :meth:`stage`.

        Args:
            batch: Has a column ``body`` (binary or string), and may have ``queue``, ``delay_s``,
                ``time_to_live_s``, ``priority``, ``message_type``, ``traceparent``,
                ``properties`` and ``dedup_key``.
            queue: The queue of rows that name none.
            part: See :meth:`stage`, like those that follow.
            chunk: See there.
            timeout_s: See there.

        Raises:
            ImportError: pyarrow is not installed; it comes with the extra ``arrow``.
        """
        first = number = self._chunks.first(part, chunk)
        duplicate = True
        try:
            for rows in arrow.slices_of(batch):
                call = transactions.stage_arrow(
                    self._path,
                    arrow.stream_of(rows),
                    {"part": part, "chunk": number, "timeout_s": timeout_s, "queue": queue},
                )
                done = transactions.staged(await self._transport.call(call))
                duplicate = duplicate and done.duplicate
                number += 1
        except BaseException as error:
            self._note_failure(part, first, number, error)
            raise
        self._chunks.is_done(part, number)
        return Staged(done.rows, done.chunks, duplicate)

    async def publish(self, parts: Iterable[str] | None = None) -> Published:
        """Make the messages visible, all at once. A second time does nothing.

        A message whose deduplication key was used within its queue's window, or by a message
        before it, is dropped and counted in ``duplicates``. They come in the order of parts by
        name, chunks, and messages in the chunk.

        Streams are settled with it up to the claims that are bound to the transaction; if one
        cannot be, nothing is done, and the error is that of the stream: StreamNotFound, StaleToken,
        ClaimNotFound, ClaimSettled, ClaimOutOfTurn or ClaimBroken.

        Args:
            parts: Names of those to publish; all others are dropped. None: all there are. An empty
                list publishes nothing, and drops all.

        Raises:
            StagedNotFound: Nothing is staged under the name, or there is no such part. Nothing was
                done.
            QueueNotFound: A queue is gone. Nothing was done.
        """
        call = transactions.finish(self._path, "publish", parts)
        return transactions.published(await self._transport.call(call))

    async def discard(self, parts: Iterable[str] | None = None) -> Discarded:
        """Drop what is staged; what was published stays. A second time does nothing.

        Args:
            parts: Names of those to drop; None: all.
        """
        call = transactions.finish(self._path, "discard", parts)
        return transactions.discarded(await self._transport.call(call))

    async def get(self) -> TransactionInfo:
        """Look at the transaction and its parts.

        Raises:
            StagedNotFound: Nothing is staged under the name, and nothing was published of late.
        """
        return transactions.transaction(await self._transport.call(calls.get(self._path)))

    def _note_failure(self, part: str, first: int, number: int, error: BaseException) -> None:
        refused = isinstance(error, LeaseholdClientError) and not error.outcome_unknown
        if number > first or not refused:
            self._chunks.is_broken_off(part, first)
