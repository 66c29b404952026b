# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""What those need who look after a queue: look, count, pause, move, remove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from leasehold.client import _answers as answers
from leasehold.client import _calls as calls
from leasehold.client import _sessions as log
from leasehold.client.models import (
    Counts,
    Event,
    Explanation,
    Filter,
    Groups,
    GroupView,
    HaltState,
    Job,
    MessageView,
    Policy,
    QueueInfo,
)
from leasehold.client.retries import NO_RETRIES
from leasehold.wire.admin import (
    AmendRequest,
    CancelMessage,
    ChangeRequest,
    EndLeaseRequest,
    ExtendLeaseRequest,
    PurgeRequest,
    RedriveRequest,
)
from leasehold.wire.parts import NoRequest
from leasehold.wire.queues import PauseRequest, QueueRequest

if TYPE_CHECKING:
    from leasehold.client._sync.transport import Transport


class QueueAdmin:
    """The part of :class:`QueueHandle` that needs no receipt."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._account = transport.endpoint.account
        self._path = calls.queue_path(self._account, name)
        self.name = name
        """The queue's name."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._account!r}>"

    def create(
        self,
        *,
        metadata: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> QueueInfo:
        """Create the queue, or find it there.

        Args:
            metadata: Names and values of your own; None: none, and any will do that are there.
            settings: Members of :class:`~leasehold.client.models.Settings` by name. A queue that
                is there must have the same in these.

        Raises:
            QueueExists: It is there and has other metadata or settings.
            OutOfRange: A setting is outside its range.
        """
        return self._queue("PUT", "", QueueRequest(metadata, settings))

    def delete(self) -> None:
        """Delete the queue and all its messages."""
        self._transport.call(calls.delete(self._path, (), "queue-not-found"))

    def info(self) -> QueueInfo:
        """Return the queue with its settings, counts and activity."""
        return answers.queue(self._transport.call(calls.get(self._path)))

    def update(
        self,
        metadata: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> QueueInfo:
        """Change metadata or settings.

        Args:
            metadata: Replaces all there is; None: leave it.
            settings: Members of :class:`~leasehold.client.models.Settings` to change, by name; a
                member that is None goes back to its default, one left out stays (RFC 7396).

        Raises:
            OutOfRange: A setting is outside its range.
        """
        return self._queue("PATCH", "", QueueRequest(metadata, settings))

    def counts(self) -> Counts:
        """Count the messages by state, all at one instant."""
        return answers.counts(self._transport.call(calls.get(f"{self._path}/counts")))

    def explain(self) -> Explanation:
        """Say in a sentence why the queue gives messages or does not."""
        call = calls.get(f"{self._path}/explain")
        return answers.explanation(self._transport.call(call))

    def policies(self) -> list[Policy]:
        """Return the stored access policies; they name permissions and times, and hold no keys."""
        return answers.policies(self._transport.call(calls.policies(self._path)))

    def set_policies(self, policies: Iterable[Policy]) -> list[Policy]:
        """Replace all stored access policies.

        Signatures that name one which is gone grant nothing any more.

        Args:
            policies: Five at most, each with an ``id`` of its own.

        Raises:
            InvalidRequest: A time is not in ISO 8601 form, or an ``id`` is there twice.
            OutOfRange: There are too many.
        """
        return answers.policies(self._transport.call(calls.set_policies(self._path, policies)))

    def halt_group(self, group_id: str, reason: str | None = None) -> HaltState:
        """Have a group give nothing until it is resumed; what is on leases is worked on.

        Raises:
            NoGroups: The settings of the queue do not speak of groups.
        """
        call = calls.halt_group(self._path, group_id, reason)
        return answers.halt_state(self._transport.call(call))

    def resume_group(self, group_id: str) -> HaltState:
        """Have a group go on, whoever or whatever stopped it.

        Raises:
            NoGroups: The settings of the queue do not speak of groups.
        """
        call = calls.resume_group(self._path, group_id)
        return answers.halt_state(self._transport.call(call))

    def end_hold(self, group_id: str) -> None:
        """End the hold of whatever session has a group; without one nothing happens.

        Raises:
            NoGroups: The settings of the queue do not speak of groups.
        """
        self._transport.call(calls.end_hold(self._path, group_id))

    def groups(
        self,
        *,
        order: str = "backlog",
        limit: int = 20,
        noisy: bool = False,
        halted: bool = False,
    ) -> Groups:
        """Return which groups have most messages, wait longest, or have most in flight.

        All messages of groups are counted for it, in parts between which other work goes on: that
        takes some seconds for a million. What moves meanwhile may count twice, or not at all.

        Args:
            order: ``backlog``, ``oldest`` or ``in_flight``: which groups come first.
            limit: Groups at most, 1 to 1,000.
            noisy: Only those that are noisy.
            halted: Only those that give nothing until they are resumed.
        """
        return answers.groups(
            self._transport.call(calls.groups(self._path, order, limit, noisy=noisy, halted=halted))
        )

    def group(self, group_id: str) -> GroupView:
        """Return how many messages a group has, and which of them hold it up.

        As all groups are counted to say whether it is noisy, it takes as long as :meth:`groups`.
        One that has no messages is all zeros, and no error.
        """
        return answers.group(self._transport.call(calls.group(self._path, group_id)))

    def pause(self, for_s: float | None = None, reason: str | None = None) -> QueueInfo:
        """Give out no messages for a while. Those on a lease can be completed.

        Args:
            for_s: Seconds, above 0; None: until :meth:`resume`.
            reason: For those who wonder.
        """
        return self._queue("POST", "/pause", PauseRequest(for_s, reason))

    def resume(self) -> QueueInfo:
        """Give out messages again."""
        return self._queue("POST", "/resume", NoRequest())

    def inspect(
        self,
        *,
        states: Iterable[str] | None = None,
        filter: Filter | None = None,  # noqa: A002 - the name on the wire
        page_size: int = 100,
        body: bool = True,
    ) -> Iterator[MessageView]:
        """Yield messages in whatever state, the oldest first, without touching them.

        Args:
            states: Of ``visible``, ``leased``, ``delayed``, ``deferred``, ``expired``,
                ``poisoned`` and ``staged``; in place of those of the filter. None: as the filter
                says.
            filter: Which messages; None: all.
            page_size: How many are fetched at once, 1 to 1,000.
            body: Whether to fetch the bodies.

        Raises:
            ValueError: A text to look for holds a line break, which cannot be signed.
        """
        wanted = calls.filter_of(filter, states)
        after: str | None = None
        while True:
            found, after = self.inspect_page(after, page_size, filter=wanted, body=body)
            yield from found
            if after is None:
                return

    def inspect_page(
        self,
        after: str | None = None,
        limit: int = 100,
        *,
        states: Iterable[str] | None = None,
        filter: Filter | None = None,  # noqa: A002 - the name on the wire
        body: bool = True,
    ) -> tuple[list[MessageView], str | None]:
        """Return some messages, and where to go on: for those who do that later, or elsewhere.

        A page may be empty and still not be the last one.

        Args:
            after: What the page before said; None: from the beginning.
            limit: Most messages, 1 to 1,000.
            states: See :meth:`inspect`, like those that follow.
            filter: See there.
            body: See there.

        Returns:
            Messages, and what to say as *after* next; None at the end.
        """
        call = calls.inspect(self._path, calls.filter_of(filter, states), after, limit, body=body)
        return answers.views(self._transport.call(call))

    def get(self, message_id: str, *, timeout_s: float | None = None) -> MessageView:
        """Look at one message, in the queue or its poison queue.

        Args:
            message_id: Which one.
            timeout_s: Send the request once only, and give it up after so many seconds without a
                byte from the server. None: as the client was told.

        Raises:
            MessageNotFound: It was never there, or is completed, removed or expired.
        """
        call = calls.get(calls.message_path(self._path, message_id))
        once = calls.sent_once(call, timeout_s)
        retries = None if timeout_s is None else NO_RETRIES
        return answers.view(self._transport.call(once, retries))

    def explain_message(self, message_id: str) -> Explanation:
        """Say in a sentence why a message can or cannot be received.

        Of one that is not there, the code is ``not-found``; that is an answer and no error.
        """
        path = f"{calls.message_path(self._path, message_id)}/explain"
        return answers.explanation(self._transport.call(calls.get(path)))

    def amend(  # noqa: PLR0913 - each is a part of the message
        self,
        message_id: str,
        *,
        delay_s: int | None = None,
        time_to_live_s: int | None = None,
        body: str | bytes | None = None,
        priority: int | None = None,
        properties: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> MessageView:
        """Change a message without a receipt; what is None stays.

        Args:
            message_id: Which.
            delay_s: Seconds from now until it can be received, 0 to 315,360,000 (ten years).
            time_to_live_s: Seconds from now until it expires, or -1 for never.
            body: The new body.
            priority: 1 (received first) to 16 (received last).
            properties: Replace all there are.
            force: Also if a worker has it, whose lease ends then.

        Raises:
            MessageLeased: A worker has it, and *force* is not set.
            MessageNotFound: It was never there, or is completed, removed or expired.
            OutOfRange: A number is outside its range.
        """
        text, encoded = calls.body_members(body)
        request = AmendRequest(
            text,
            encoded,
            delay_s=delay_s,
            time_to_live_s=time_to_live_s,
            priority=priority,
            properties=properties,
            force=force or None,
        )
        path = calls.message_path(self._path, message_id)
        # With force a second time could end the lease of a worker that came in between.
        call = calls.send("PATCH", path, request, repeatable=not force)
        return answers.view(self._transport.call(call))

    def remove(self, message_id: str, force: bool = False) -> None:
        """Remove a message without a receipt.

        Args:
            message_id: Which.
            force: Also if a worker has it.

        Raises:
            MessageLeased: A worker has it, and *force* is not set.
            MessageNotFound: It was never there, or is completed, removed or expired.
        """
        path = calls.message_path(self._path, message_id)
        query = (("force", "true"),) if force else ()
        self._transport.call(calls.delete(path, query, "message-not-found"))

    def end_lease(
        self, message_id: str, delay_s: int = 0, reason: str | None = None
    ) -> MessageView:
        """End the lease of a worker: the receipt is dead, the message visible.

        Args:
            message_id: Which.
            delay_s: Seconds until it can be received again, 0 to 315,360,000.
            reason: For those who look at the message later.

        Raises:
            MessageNotLeased: No worker has it.
            MessageNotFound: It was never there, or is completed, removed or expired.
        """
        path = f"{calls.message_path(self._path, message_id)}/end-lease"
        request = EndLeaseRequest(delay_s, reason)
        # A second time could end the lease of a worker that came in between.
        call = calls.send("POST", path, request, repeatable=False)
        return answers.view(self._transport.call(call))

    def extend_lease(self, message_id: str, visibility_timeout_s: int) -> MessageView:
        """Give the holder of a message more time, or less; its receipt stays good.

        The holder is not told, and its next renewal moves the end again.

        Args:
            message_id: Which.
            visibility_timeout_s: Seconds from now, 1 to 604,800.

        Raises:
            MessageNotLeased: No worker has it, or it is a member of a claim.
            MessageNotFound: It was never there, or is completed, removed or expired.
            OutOfRange: The number is outside its range.
        """
        path = f"{calls.message_path(self._path, message_id)}/extend-lease"
        call = calls.send("POST", path, ExtendLeaseRequest(visibility_timeout_s), repeatable=True)
        return answers.view(self._transport.call(call))

    def cancel(self, message_id: str, reason: str | None = None) -> MessageView:
        """Ask the holder of a lease to stop its work. Its lease stays until it does.

        The answers to its renewals and to the heartbeats of its session say so.

        Args:
            message_id: Which.
            reason: For the worker.

        Raises:
            MessageNotLeased: No worker has it.
            MessageNotFound: It was never there, or is completed, removed or expired.
        """
        path = f"{calls.message_path(self._path, message_id)}/cancel"
        # A second time could mean a worker that came in between.
        call = calls.send("POST", path, CancelMessage(reason), repeatable=False)
        return answers.view(self._transport.call(call))

    def trace(self, message_id: str, *, page_size: int = 1_000) -> Iterator[Event]:
        """Yield what has happened to a message, the oldest first; it may be long gone.

        Args:
            message_id: Which.
            page_size: How many events are fetched at once, 1 to 10,000.
        """
        after = 0
        while True:
            page = log.page(
                self._transport.call(log.trace(self._path, message_id, after, page_size))
            )
            yield from page.events
            if page.finished:
                return
            after = page.next_after

    def purge(
        self,
        filter: Filter | None = None,  # noqa: A002 - the name on the wire
        *,
        dry_run: bool = False,
        wait_s: float = 0,
        rate_per_s: float | None = None,
    ) -> Job:
        """Start to remove messages for good.

        Args:
            filter: Which messages; None: all that are there now.
            dry_run: Only count them.
            wait_s: Seconds to wait for the end, 0 to 60; then :meth:`Client.wait_for_job`.
            rate_per_s: Messages a second, above 0; None: as fast as they go.
        """
        request = PurgeRequest(filter, dry_run or None, wait_s or None, rate_per_s)
        return self._job("purge", request, wait_s, repeatable=dry_run)

    def change(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        action: str,
        filter: Filter | None = None,  # noqa: A002 - the name on the wire
        *,
        delay_s: int | None = None,
        time_to_live_s: int | None = None,
        priority: int | None = None,
        force: bool = False,
        visibility_timeout_s: int | None = None,
        reason: str | None = None,
        rate_per_s: float | None = None,
        dry_run: bool = False,
        wait_s: float = 0,
    ) -> Job:
        """Start to change many messages.

        Args:
            action: ``amend`` what waits, ``end-lease`` of what is leased, or ``extend-lease``.
            filter: Which messages; None: all that are there now.
            delay_s: For ``amend`` and ``end-lease``: seconds until they can be received.
            time_to_live_s: For ``amend``: seconds from now until they expire, or -1 for never.
            priority: For ``amend``: 1 (received first) to 16 (received last).
            force: For ``amend``: also if a worker has it, whose lease ends then.
            visibility_timeout_s: For ``extend-lease``: seconds from now, 1 to 604,800.
            reason: For ``end-lease``: for those who look at the messages later.
            rate_per_s: Messages a second, above 0; None: as fast as they go.
            dry_run: Only count them.
            wait_s: Seconds to wait for the end, 0 to 60; then :meth:`Client.wait_for_job`.
        """
        request = ChangeRequest(
            action=action,
            filter=filter,
            dry_run=dry_run or None,
            rate_per_s=rate_per_s,
            delay_s=delay_s,
            time_to_live_s=time_to_live_s,
            priority=priority,
            force=force or None,
            visibility_timeout_s=visibility_timeout_s,
            reason=reason,
            wait_s=wait_s or None,
        )
        return self._job("change", request, wait_s, repeatable=dry_run)

    def redrive(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        filter: Filter | None = None,  # noqa: A002 - the name on the wire
        *,
        rate_per_s: float | None = None,
        canary: int = 0,
        dry_run: bool = False,
        target: str | None = None,
        wait_s: float = 0,
    ) -> Job:
        """Start to bring messages back from the queue's poison queue.

        Args:
            filter: Which messages; None: all that are there now.
            rate_per_s: Messages a second, above 0; None: as fast as they go.
            canary: Bring so many first, and go on only when all of them have been completed.
            dry_run: Only count them.
            target: Queue to bring them to; None: the one that each failed in.
            wait_s: Seconds to wait for the end, 0 to 60; then :meth:`Client.wait_for_job`.
        """
        request = RedriveRequest(
            filter, rate_per_s, dry_run or None, canary or None, target, wait_s or None
        )
        return self._job("redrive", request, wait_s, repeatable=dry_run)

    def _job(self, verb: str, request: Struct, wait_s: float, *, repeatable: bool) -> Job:
        path = f"{self._path}/{verb}"
        call = calls.send("POST", path, request, repeatable=repeatable, wait_s=wait_s)
        return answers.job(self._transport.call(call))

    def _queue(self, method: str, verb: str, request: Struct) -> QueueInfo:
        call = calls.send(method, f"{self._path}{verb}", request, repeatable=True)
        return answers.queue(self._transport.call(call))
