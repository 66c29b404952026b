"""What the server wrote down about the messages of the story: its event log.

Executors tell what they do in journals; when a message was visible and who leased it until when is
known to the server alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from examples.video_pipeline.journal import Event
from examples.video_pipeline.ledger import Ledger

from leasehold.client import Client
from leasehold.client.models import Event as Change

_TOLD: Final = {"completed", "poisoned", "renewed"}


class ServerLog:
    """Follows the event log of a server, beginning with what happens from now on.

    Args:
        client: Of the server.
        queue: The working queue; events of other queues are left out.
    """

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self.queue = client.queue(queue)
        """The same queue by Leasehold's own API."""
        self._after = client.event_page(limit=1).last_seq or 0
        self.changes: list[Change] = []
        """All events so far, in their order."""

    def news(self) -> list[Change]:
        """Return the events since the last call."""
        found: list[Change] = []
        while True:
            page = self._client.event_page(self._after)
            self._after = page.next_after
            found += (
                each
                for each in page.events
                if each.queue == self._queue and each.message_id is not None
            )
            if page.finished:
                self.changes += found
                return found


def holders(ledger: Ledger) -> dict[tuple[str, int], str]:
    """Return who held a message, by its id and dequeue count."""
    return {
        (record.message_id, delivery.dequeue_count): delivery.worker
        for record in ledger.records.values()
        for delivery in record.deliveries
    }


def as_events(changes: Iterable[Change], ledger: Ledger, began_ms: int) -> list[Event]:
    """Return what a ledger wants to know of events of the server.

    Args:
        changes: The events.
        ledger: Knows the messages, and who held them.
        began_ms: When the story began, Unix milliseconds.
    """
    videos = {record.message_id: record.video for record in ledger.records.values()}
    # A message that was moved to the poison queue counts anew there.
    latest = {
        record.message_id: record.deliveries[-1].worker
        for record in ledger.records.values()
        if record.deliveries
    }
    names = holders(ledger)
    return [
        {
            "at_s": (change.at_ms - began_ms) / 1000,
            "who": names.get((change.message_id, change.dequeue_count or 0))
            or latest.get(change.message_id, ""),
            "event": change.type,
            "video": videos[change.message_id],
            "reason": change.reason or "",
        }
        for change in changes
        if change.type in _TOLD and change.message_id in videos
    ]
