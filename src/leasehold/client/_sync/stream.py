# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""The handle on a stream of claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from leasehold.client import _answers as answers
from leasehold.client import _arrow as arrow
from leasehold.client import _calls as calls
from leasehold.client import _streams as streams
from leasehold.client._sync.transport import Transport
from leasehold.client.models import (
    ClaimInfo,
    Exemption,
    MessageView,
    Outgoing,
    Settled,
    StreamInfo,
)


class Stream:
    """A consumer of one queue that works in numbered claims.

    It is made by :meth:`QueueHandle.stream`.

    ::

        stream = queue.stream("totals")
        info = stream.attach()
        claim = stream.open(info.last_settled + 1, limit=1_000, lease_s=60)
        if claim is not None:
            for message in stream.read(claim.number): ...
            stream.settle(claim.number)

    A claim is a set of messages leased together. It can be read as often as wanted, also after a
    crash and by somebody else, until it is settled. All calls can be repeated, so the client does
    so when an answer got lost. Every one raises
    :class:`~leasehold.client.errors.LeaseholdClientError` or a subclass; QueueNotFound and
    StreamNotFound can come from any of them.
    """

    def __init__(self, transport: Transport, queue: str, name: str, token: int | None) -> None:
        self._transport = transport
        queue_path = calls.queue_path(transport.endpoint.account, queue)
        self._path = streams.stream_path(queue_path, name)
        self.queue = queue
        """Name of the queue."""
        self.name = name
        """The stream's name."""
        self.token = token
        """What proves that nobody has attached since; None before an attach."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of queue {self.queue!r}>"

    def attach(self) -> StreamInfo:
        """Take the stream over, and create it if need be; calls with older tokens are refused.

        The handle keeps the token.

        Raises:
            QueueNotFound: There is no such queue.
        """
        found = streams.stream(self._transport.call(streams.attach(self._path)))
        self.token = found.token
        return found

    def get(self) -> StreamInfo:
        """Look at the stream and its claims. Needs no token."""
        return streams.stream(self._transport.call(calls.get(self._path)))

    def get_claim(self, number: int) -> ClaimInfo:
        """Look at a claim. Needs no token.

        Raises:
            ClaimNotFound: It is not open.
            ClaimSettled: It was settled.
        """
        return streams.claim(self._transport.call(calls.get(self._claim(number))))

    def open(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
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
            StaleToken: Somebody else has attached since: stop.
            ClaimSettled: It was settled.
            ClaimOutOfTurn: Another number is next.
            ClaimBroken: It lapsed, and others have taken members.
            RuntimeError: The handle has no token: attach first.
        """
        members = {
            "token": self._token,
            "limit": limit,
            "lease_s": lease_s,
            "max_bytes": max_bytes,
            "holder": holder,
            "accept_loss": accept_loss or None,
        }
        call = streams.open_claim(self._claim(number), wait_s, members)
        return streams.opened(self._transport.call(call))

    def read(
        self, number: int, part: int = 0, parts: int = 1, *, page_size: int = 1_000
    ) -> Iterator[MessageView]:
        """Yield the members of a claim in their order. Needs no token, and changes nothing.

        Args:
            number: Of the claim.
            part: Which part of them, 0 to *parts* - 1.
            parts: In how many equal parts the claim is read.
            page_size: How many are fetched at once, 1 to 1,000.

        Raises:
            ClaimNotFound: It is not open.
            ClaimSettled: It was settled.
            ClaimLapsed: Nobody extended it in time: open it again first.
            ClaimBroken: Others have taken members.
        """
        path, after = self._claim(number), None
        while True:
            call = streams.read(path, (part, parts), after, page_size, arrow=False)
            found, after = answers.views(self._transport.call(call))
            yield from found
            if after is None:
                return

    def read_arrow(
        self, number: int, part: int = 0, parts: int = 1, *, page_size: int = 20_000
    ) -> Iterator[Any]:
        """Yield the members of a claim as ``pyarrow.RecordBatch``; for the rest see :meth:`read`.

        The columns are those of the native API's reference.

        Raises:
            ImportError: pyarrow is not installed; it comes with the extra ``arrow``.
        """
        arrow.pyarrow()
        path, after = self._claim(number), None
        while True:
            call = streams.read(path, (part, parts), after, page_size, arrow=True)
            answer = self._transport.call(call)
            yield from arrow.batches_in(answer.content)
            after = answer.next_after
            if after is None:
                return

    def extend(self, number: int, lease_s: int) -> ClaimInfo:
        """Move the end of a claim's lease, that of all its members at once.

        One that has lapsed and lost nobody is open again.

        Args:
            number: Of the claim.
            lease_s: Seconds from now, 1 to 604,800.

        Raises:
            StaleToken: Somebody else has attached since: stop.
            ClaimNotFound: It is not open.
            ClaimBroken: Others have taken members.
            RuntimeError: The handle has no token: attach first.
        """
        call = streams.extend(self._claim(number), self._token, lease_s, park=False)
        return streams.claim(self._transport.call(call))

    def park(self, number: int, window_s: int) -> ClaimInfo:
        """Keep a claim for a replay although nobody extends it; to open it goes on with it.

        Args:
            number: Of the claim.
            window_s: Seconds from now until it lapses, 1 to 604,800. For the errors see
                :meth:`extend`.
        """
        call = streams.extend(self._claim(number), self._token, window_s, park=True)
        return streams.claim(self._transport.call(call))

    def give_back(self, number: int) -> None:
        """Dissolve a claim that was not worked on: its members are visible again at once.

        Its number can be opened anew.

        Args:
            number: Of the claim.

        Raises:
            StaleToken: Somebody else has attached since.
            ClaimNotFound: It is not open.
            ClaimSettled: It was settled.
            RuntimeError: The handle has no token: attach first.
        """
        self._transport.call(streams.give_back(self._claim(number), self._token))

    def exempt(self, number: int, exemptions: Iterable[Exemption]) -> ClaimInfo:
        """Note what becomes of members when their claim is settled, and not completed with it.

        Until then nothing is changed, and nobody else need know: whoever reads a part of a claim
        can note what it could not work on. The last note on a member counts. Notes are forgotten
        with their claim, such as when it is given back.

        Args:
            number: Of the claim.
            exemptions: One or more, all of this claim; up to 10,000 members of it are noted. They
                are sent 1,000 at a time: if one is refused, those before it may be noted.

        Raises:
            StaleToken: Somebody else has attached since: stop.
            MemberNotFound: One is of no member, or of one that others have taken.
            ClaimNotFound: The claim is not open.
            ClaimSettled: It was settled.
            ClaimLapsed: Nobody extended it in time: open it again first.
            ClaimBroken: Others have taken members.
            OutOfRange: More than 10,000 members would be noted.
            ValueError: There is no exemption, or one is of another claim.
            RuntimeError: The handle has no token: attach first.
        """
        for call in streams.exempt(self._claim(number), self._token, number, exemptions):
            answer = self._transport.call(call)
        return streams.claim(answer)

    def bind(self, number: int, transaction: str) -> ClaimInfo:
        """Have the publishing of a transaction settle the stream up to a claim.

        Both happen in one, noted exemptions included, or neither does: if somebody else attaches
        to the stream before, or the claim loses members or is given back, the publishing is
        refused whole. It makes no difference how the transaction is published, and whether
        anything was staged under its name.

        Args:
            number: Of the claim. It is bound to one transaction, the last one named.
            transaction: The name; claims of several streams can be bound to one. It vanishes a day
                after the last binding unless it is published.

        Raises:
            StaleToken: Somebody else has attached since: stop.
            ClaimSettled: The claim was settled; look at ``settled_with``.
            ClaimNotFound: It is not open.
            ClaimLapsed: Nobody extended it in time: open it again first.
            ClaimBroken: Others have taken members.
            AlreadyPublished: The transaction has been published, without this claim.
            RuntimeError: The handle has no token: attach first.
        """
        call = streams.bind(self._claim(number), self._token, transaction)
        return streams.claim(self._transport.call(call))

    def settle(
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
            StaleToken: Somebody else has attached since: stop.
            ClaimOutOfTurn: There is no such claim yet.
            MemberNotFound: An exemption names no member. Nothing was done.
            StagedNotFound: A transaction is unknown. Nothing was done.
            RuntimeError: The handle has no token: attach first.
        """
        members = {"token": self._token, "upto": upto, "publish": list(publish) or None}
        call = streams.settle(self._path, members, exemptions, sends)
        return streams.settled(self._transport.call(call))

    def delete(self) -> None:
        """Forget the stream; its claims are given back. Needs no token."""
        self._transport.call(streams.delete_stream(self._path))

    def _claim(self, number: int) -> str:
        return streams.claim_path(self._path, number)

    @property
    def _token(self) -> int:
        if self.token is None:
            raise RuntimeError("the stream has no token: call attach() first")
        return self.token
