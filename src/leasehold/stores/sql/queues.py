"""Queues and account documents in a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from leasehold.domain import commands as c
from leasehold.domain.errors import QueueExists, SettingsDiffer
from leasehold.domain.events import EventType
from leasehold.domain.oversight import Counts
from leasehold.domain.queues import same_metadata, same_where_given, with_settings
from leasehold.domain.types import Queue
from leasehold.stores.plain_json import settings_to_json
from leasehold.stores.sql.catalog import DEFAULT_LANES, Entry, metadata_to_json, policies_to_json
from leasehold.stores.sql.state import State

if TYPE_CHECKING:  # claims give back to queues, which are made over here
    from leasehold.stores.sql.claims import ClaimVerbs


class QueueVerbs:
    """Each method carries out one command; refusals are raised."""

    def __init__(
        self, state: State, counts_of: Callable[[Entry, int], Counts], claims: ClaimVerbs
    ) -> None:
        self._state = state
        self._claims = claims
        self._counts_of = counts_of

    def create(self, command: c.CreateQueue, now_ms: int) -> c.Result:
        """Create a queue."""
        state = self._state
        entry = state.catalog.find(command.account, command.queue)
        if entry is not None:
            if not same_where_given(entry.queue.settings, command.settings, command.given):
                raise SettingsDiffer
            if same_metadata(entry.queue.metadata, command.metadata):
                return c.QueueCreated(created=False)
            raise QueueExists
        state.refuse_moved(command.account)
        queue = Queue(
            account=command.account,
            name=command.queue,
            metadata=dict(command.metadata),
            settings=command.settings,
            created_at_ms=now_ms,
        )
        add_queue(state, queue)
        return c.QueueCreated(created=True)

    def delete(self, command: c.DeleteQueue, _now_ms: int) -> c.Result:
        """Delete a queue; its messages are out of reach at once."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        self._claims.forget_streams(entry)
        state.drop_partition(entry)
        state.log.add_queue(EventType.QUEUE_DELETED, entry)
        state.cursor.execute(state.sql["delete_queue"], (command.account, command.queue))
        state.catalog.remove(entry)
        return c.DONE

    def clear(self, command: c.Clear, _now_ms: int) -> c.Result:
        """Empty a queue by giving it a new partition."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        self._claims.lose_members(entry)
        state.drop_partition(entry)
        state.log.add_queue(EventType.QUEUE_CLEARED, entry)
        partition = state.new_partition()
        bounds = (partition, DEFAULT_LANES, command.account, command.queue)
        state.cursor.execute(state.sql["move_queue"], bounds)
        state.catalog.move(entry, partition)
        return c.DONE

    def get(self, command: c.GetQueue, now_ms: int) -> c.Result:
        """Return a queue and its count, which the open batch has kept up to date."""
        entry = self._state.catalog.get(command.account, command.queue)
        counts = self._counts_of(entry, now_ms) if command.with_counts else None
        return c.QueueInfo(queue=entry.queue, message_count=entry.message_count, counts=counts)

    def set_metadata(self, command: c.SetQueueMetadata, _now_ms: int) -> c.Result:
        """Replace the metadata."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        state.cursor.execute(
            state.sql["set_metadata"],
            (metadata_to_json(command.metadata), command.account, command.queue),
        )
        entry.take(replace(entry.queue, metadata=dict(command.metadata)))
        return c.DONE

    def set_settings(self, command: c.SetQueueSettings, _now_ms: int) -> c.Result:
        """Replace the settings."""
        entry = self._state.catalog.get(command.account, command.queue)
        self._keep_settings(entry, with_settings(entry.queue, command.settings))
        return c.DONE

    def set_adapted(self, command: c.SetAdapted, _now_ms: int) -> c.Result:
        """Set the visibility timeout that the server has chosen."""
        entry = self._state.catalog.get(command.account, command.queue)
        settings = replace(entry.queue.settings, adapted=command.adapted)
        self._keep_settings(entry, replace(entry.queue, settings=settings))
        return c.DONE

    def _keep_settings(self, entry: Entry, queue: Queue) -> None:
        state = self._state
        bounds = (settings_to_json(queue.settings), queue.account, queue.name)
        state.cursor.execute(state.sql["set_settings"], bounds)
        entry.take(queue)

    def set_policies(self, command: c.SetQueuePolicies, _now_ms: int) -> c.Result:
        """Replace the stored access policies."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        state.cursor.execute(
            state.sql["set_policies"],
            (policies_to_json(command.policies), command.account, command.queue),
        )
        entry.take(replace(entry.queue, policies=command.policies))
        return c.DONE

    def list(self, command: c.ListQueues, _now_ms: int) -> c.Result:
        """List queues by name."""
        state = self._state
        names = [
            name
            for (name,) in state.cursor.execute(
                state.sql["list_queues"],
                (command.account, command.prefix, command.start, command.limit + 1),
            )
        ]
        queues = tuple(
            state.catalog.get(command.account, name).queue for name in names[: command.limit]
        )
        return c.QueuePage(
            queues=queues,
            next_start=names[command.limit] if len(names) > command.limit else None,
        )

    def get_document(self, command: c.GetAccountDocument, _now_ms: int) -> c.Result:
        """Read a document."""
        rows = self._state.fetch("get_document", (command.account, command.kind))
        return c.AccountDocument(rows[0][0] if rows else None)

    def set_document(self, command: c.SetAccountDocument, _now_ms: int) -> c.Result:
        """Write a document."""
        self._state.refuse_moved(command.account)
        self._state.cursor.execute(
            self._state.sql["set_document"], (command.account, command.kind, command.content)
        )
        return c.DONE


def add_queue(state: State, queue: Queue) -> Entry:
    """Add a queue that is not there."""
    partition = state.new_partition()
    state.cursor.execute(
        state.sql["insert_queue"],
        (
            queue.account,
            queue.name,
            partition,
            metadata_to_json(queue.metadata),
            settings_to_json(queue.settings),
            queue.created_at_ms,
            DEFAULT_LANES,
            partition,
        ),
    )
    entry = state.catalog.entry_type(queue, partition, 0, scope=partition)
    state.catalog.add(entry)
    for slot in state.catalog.slots.values():
        if (slot.account, slot.queue) == (queue.account, queue.name):
            entry.staged += slot.rows
    state.log.add_queue(EventType.QUEUE_CREATED, entry)
    return entry
