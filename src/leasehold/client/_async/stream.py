"""The handle on a stream of claims."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from leasehold.client import _answers as answers
from leasehold.client import _calls as calls
from leasehold.client import _streams as streams
from leasehold.client import _streams as transactions
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import (
    ClaimInfo,
    Discarded,
    Exemption,
    MessageView,
    NewMessage,
    Outgoing,
    Published,
    Settled,
    Staged,
    StreamInfo,
    TransactionInfo,
)
from leasehold.wire.flows import OpenClaimRequest, SettleRequest

if TYPE_CHECKING:
    from leasehold.client._async.transport import AsyncTransport


class AsyncStream:
    """A consumer of one queue that works in numbered claims.

    It is made by :meth:`AsyncQueueHandle.stream`.

    ::

        stream = queue.stream("totals")
        info = await stream.attach()
        claim = await stream.open(info.last_settled + 1, limit=1_000, lease_s=60)
        if claim is not None:
            async for message in stream.read(claim.number): ...
            await stream.settle(claim.number)

    A claim is a set of messages leased together. It can be read as often as wanted, also after a
    crash and by another consumer, until it is settled. All calls can be repeated, so the client
    does so when an answer got lost. Every one raises
    :class:`~leasehold.client.errors.LeaseholdClientError` or a subclass; QueueNotFound and
    StreamNotFound can come from any of them.
    """

    def __init__(self, transport: AsyncTransport, queue: str, name: str, token: int | None) -> None:
        self._transport = transport
        queue_path = calls.queue_path(transport.endpoint.account, queue)
        self._path = streams.stream_path(queue_path, name)
        self.queue = queue
        """Name of the queue."""
        self.name = name
        """The stream's name."""
        self.token = token
        """What proves that no other consumer has attached since; None before an attach."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of queue {self.queue!r}>"

    async def attach(self) -> StreamInfo:
        """Take the stream over, and create it if need be; calls with older tokens are refused.

        The handle keeps the token.

        Raises:
            QueueNotFound: There is no such queue.
        """
        found = streams.stream(await self._transport.call(streams.attach(self._path)))
        self.token = found.token
        return found

    async def get(self) -> StreamInfo:
        """Look at the stream and its claims. Needs no token."""
        return streams.stream(await self._transport.call(calls.get(self._path)))

    async def get_claim(self, number: int) -> ClaimInfo:
        """Look at a claim. Needs no token.

        Raises:
            ClaimNotFound: It is not open.
            ClaimSettled: It was settled.
        """
        return streams.claim(await self._transport.call(calls.get(self._claim(number))))

    async def open(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        number: int,
        *,
        limit: int,
        lease_s: int,
        wait_s: float = 0,
        max_bytes: int | None = None,
        holder: str | None = None,
        accept_loss: bool = False,
    ) -> ClaimInfo | None:
        """Lease messages as claim *number*, or find that claim again with the same members.

        Args:
            number: One more than the last one opened or settled, or one that is open already.
            limit: Most members, 1 to 1,000,000. For one that is open, what it was opened with
                counts.
            lease_s: Seconds from now until it lapses unless it is extended, 1 to 604,800.
            wait_s: Seconds to wait for a first message if there is none, 0 to 60.
            max_bytes: Bytes of bodies after which no further member is taken.
            holder: Who you are, for those who look at the messages meanwhile.
            accept_loss: Take a claim that lapsed and lost members with those that remain.

        Returns:
            The claim; None if there was nothing to claim, and the number is still free.

        Raises:
            StaleToken: Another consumer has attached since: stop.
            ClaimSettled: It was settled.
            ClaimOutOfTurn: Another number is next.
            ClaimBroken: It lapsed, and others have taken members.
            RuntimeError: The handle has no token: attach first.
        """
        request = OpenClaimRequest(
            token=self._token,
            limit=limit,
            lease_s=lease_s,
            max_bytes=max_bytes,
            holder=holder,
            accept_loss=accept_loss or None,
            wait_s=wait_s or None,
        )
        call = streams.open_claim(self._claim(number), request)
        return streams.opened(await self._transport.call(call))

    async def read(
        self,
        number: int,
        part: int = 0,
        parts: int = 1,
        *,
        page_size: int = 1_000,
        whole_groups: bool = False,
    ) -> AsyncIterator[MessageView]:
        """Yield the members of a claim in their order. Needs no token, and changes nothing.

        Args:
            number: Of the claim.
            part: Which part of them, 0 to *parts* - 1.
            parts: In how many equal parts the claim is read.
            page_size: How many are fetched at once, 1 to 1,000.
            whole_groups: Whether a part has all members of some groups, in place of an equal share:
                those whose names have a CRC-32 of which *part* is left after division by *parts*.
                Messages without a group go by their ids.

        Raises:
            ClaimNotFound: It is not open.
            ClaimSettled: It was settled.
            ClaimLapsed: It was not extended in time: open it again first.
            ClaimBroken: Others have taken members.
        """
        path, after, which = self._claim(number), None, streams.Part(part, parts, whole_groups)
        while True:
            call = streams.read(path, which, after, page_size, arrow=False)
            found, after = answers.views(await self._transport.call(call))
            for message in found:
                yield message
            if after is None:
                return

    async def read_arrow(
        self,
        number: int,
        part: int = 0,
        parts: int = 1,
        *,
        page_size: int = 20_000,
        whole_groups: bool = False,
    ) -> AsyncIterator[Any]:
        """Yield the members of a claim as ``pyarrow.RecordBatch``; for the rest see :meth:`read`.

        The columns are those of the native API's reference.

        Raises:
            ImportError: pyarrow is not installed; it comes with the extra ``arrow``.
        """
        streams.pyarrow()
        path, after, which = self._claim(number), None, streams.Part(part, parts, whole_groups)
        while True:
            call = streams.read(path, which, after, page_size, arrow=True)
            answer = await self._transport.call(call)
            for batch in streams.batches_in(answer.content):
                yield batch
            after = answer.next_after
            if after is None:
                return

    async def extend(self, number: int, lease_s: int) -> ClaimInfo:
        """Move the end of a claim's lease, that of all its members at once.

        One that has lapsed and lost no member is open again.

        Args:
            number: Of the claim.
            lease_s: Seconds from now, 1 to 604,800.

        Raises:
            StaleToken: Another consumer has attached since: stop.
            ClaimNotFound: It is not open.
            ClaimBroken: Others have taken members.
            RuntimeError: The handle has no token: attach first.
        """
        call = streams.extend(self._claim(number), self._token, lease_s, park=False)
        return streams.claim(await self._transport.call(call))

    async def park(self, number: int, window_s: int) -> ClaimInfo:
        """Keep a claim for a replay although it is not extended; to open it goes on with it.

        Args:
            number: Of the claim.
            window_s: Seconds from now until it lapses, 1 to 604,800. For the errors see
                :meth:`extend`.
        """
        call = streams.extend(self._claim(number), self._token, window_s, park=True)
        return streams.claim(await self._transport.call(call))

    async def give_back(self, number: int) -> None:
        """Dissolve a claim that was not worked on: its members are visible again at once.

        Its number can be opened anew.

        Args:
            number: Of the claim.

        Raises:
            StaleToken: Another consumer has attached since.
            ClaimNotFound: It is not open.
            ClaimSettled: It was settled.
            RuntimeError: The handle has no token: attach first.
        """
        await self._transport.call(streams.give_back(self._claim(number), self._token))

    async def exempt(
        self, number: int, exemptions: Iterable[Exemption], *, replace: bool = False
    ) -> ClaimInfo:
        """Note what becomes of members when their claim is settled, and not completed with it.

        Until then nothing is changed, and no other consumer need know: whoever reads a part of a
        claim can note what it could not work on. The last note on a member counts. Notes are
        forgotten with their claim, such as when it is given back.

        Args:
            number: Of the claim.
            exemptions: One or more, all of this claim; up to 10,000 members of it are noted. They
                are sent 1,000 at a time: if one is refused, those before it may be noted.
            replace: Forget whatever was noted of the claim before: for a consumer that has done
                the whole claim anew. There need be no exemption then.

        Raises:
            StaleToken: Another consumer has attached since: stop.
            MemberNotFound: One is of no member, or of one that others have taken.
            ClaimNotFound: The claim is not open.
            ClaimSettled: It was settled.
            ClaimLapsed: It was not extended in time: open it again first.
            ClaimBroken: Others have taken members.
            OutOfRange: More than 10,000 members would be noted.
            ValueError: There is no exemption, or one is of another claim.
            RuntimeError: The handle has no token: attach first.
        """
        path, token = self._claim(number), self._token
        for call in streams.exempt(path, token, number, exemptions, replace=replace):
            answer = await self._transport.call(call)
        return streams.claim(answer)

    async def bind(self, number: int, transaction: str) -> ClaimInfo:
        """Have the publishing of a transaction settle the stream up to a claim.

        Both happen in one, noted exemptions included, or neither does: if another consumer attaches
        to the stream before, or the claim loses members or is given back, the publishing is
        refused whole. It makes no difference how the transaction is published, and whether
        anything was staged under its name.

        Args:
            number: Of the claim. It is bound to one transaction, the last one named.
            transaction: The name; claims of several streams can be bound to one. It vanishes a day
                after the last binding unless it is published.

        Raises:
            StaleToken: Another consumer has attached since: stop.
            ClaimSettled: The claim was settled; look at ``settled_with``.
            ClaimNotFound: It is not open.
            ClaimLapsed: It was not extended in time: open it again first.
            ClaimBroken: Others have taken members.
            AlreadyPublished: The transaction has been published, without this claim.
            RuntimeError: The handle has no token: attach first.
        """
        call = streams.bind(self._claim(number), self._token, transaction)
        return streams.claim(await self._transport.call(call))

    async def settle(
        self,
        upto: int,
        *,
        exemptions: Iterable[Exemption] = (),
        publish: Iterable[str] = (),
        sends: Iterable[Outgoing] = (),
    ) -> Settled:
        """Complete all members of all claims up to a number, in one transaction.

        Settling what is settled does nothing, so nothing is published or sent twice.

        Args:
            upto: Number of the last claim to settle.
            exemptions: Members that are given back or buried in place of being completed; they
                count in place of what is noted of the same members.
            publish: Names of transactions to publish, whole.
            sends: Messages to put, each with its queue.

        Raises:
            StaleToken: Another consumer has attached since: stop.
            ClaimOutOfTurn: There is no such claim yet.
            MemberNotFound: An exemption names no member. Nothing was done.
            StagedNotFound: A transaction is unknown. Nothing was done.
            RuntimeError: The handle has no token: attach first.
        """
        request = SettleRequest(token=self._token, upto=upto, publish=streams.names(publish))
        call = streams.settle(self._path, request, exemptions, sends)
        return streams.settled(await self._transport.call(call))

    async def delete(self) -> None:
        """Forget the stream; its claims are given back. Needs no token."""
        await self._transport.call(streams.delete_stream(self._path))

    def _claim(self, number: int) -> str:
        return streams.claim_path(self._path, number)

    @property
    def _token(self) -> int:
        if self.token is None:
            raise RuntimeError("the stream has no token: call attach() first")
        return self.token


# --- transaction -------------------------------------------------------------------------------
#
# The handle on a transaction: messages staged under a name and published together.


class AsyncTransaction:
    """Messages that no consumer sees until all of them are published.

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
        """Put messages that no consumer sees yet, 10,000 or 8 MiB at a time.

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
                ``properties``, ``dedup_key``, ``group_id`` and ``visibility_timeout_s``.
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
            for rows in transactions.slices_of(batch):
                call = transactions.stage_arrow(
                    self._path,
                    transactions.stream_of(rows),
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
