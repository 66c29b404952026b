"""What expired in a queue while a run was at work on it: the queue itself knows it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import MessageView
from leasehold.worker.queues.specs import QueueSpec

_log: Final = logging.getLogger("leasehold.spark.pipeline")
MOST_LISTED: Final = 10_000
"""Expired messages that a report names; all are counted."""
_PAGE: Final = 1_000
_TEXT_CHARS: Final = 200


class Expired(NamedTuple):
    """A message whose time to live ended before it was completed."""

    message_id: str
    text: str
    """The first 200 characters of its body, as UTF-8."""
    inserted_at_ms: int
    expired_at_ms: int
    attempts: int
    """How often it was received, in this run or before."""


class Expiries(NamedTuple):
    """What expired during a run."""

    number: int | None = None
    """None: the service does not tell, or could not be asked."""
    listed: Sequence[Expired] = ()
    """The oldest messages of them, 10,000 at most."""


def server_time_ms(spec: QueueSpec) -> int | None:
    """Return the time by the queue's server, Unix milliseconds; None: nobody tells."""
    if spec.service != "leasehold":
        return None
    try:
        with Client.from_connection_string(spec.connection or None) as client:
            return client.queue(spec.queue).counts().at_ms
    except LeaseholdClientError as error:
        _log.info("the queue's messages cannot be counted: %s", error)
        return None


def expired_since(spec: QueueSpec, began_ms: int | None) -> Expiries:
    """Return what has expired since a moment and is not removed yet.

    Args:
        spec: The queue.
        began_ms: The moment by the server's time; None: it was not told.
    """
    if began_ms is None:
        return Expiries()
    listed: list[Expired] = []
    count = 0
    try:
        with Client.from_connection_string(spec.connection or None) as client:
            queue = client.queue(spec.queue)
            for each in queue.inspect(states=["expired"], page_size=_PAGE):
                if each.expires_at_ms is not None and each.expires_at_ms > began_ms:
                    count += 1
                    if count <= MOST_LISTED:
                        listed.append(_of(each, each.expires_at_ms))
    except LeaseholdClientError as error:
        _log.warning("what has expired is not in the report: %s", error)
        return Expiries()
    return Expiries(count, listed)


def _of(view: MessageView, expired_at_ms: int) -> Expired:
    text = view.body.decode(errors="replace") if view.body_problem is None else ""
    return Expired(
        view.id, text[:_TEXT_CHARS], view.inserted_at_ms, expired_at_ms, view.dequeue_count
    )
