"""What tasks have done that died before they could tell: the server's event log knows it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import Event
from leasehold.spark.pipeline.rows import Row, Who
from leasehold.worker.outcomes import Kind
from leasehold.worker.queues.specs import QueueSpec

_log: Final = logging.getLogger("leasehold.spark.pipeline")
_PAGE: Final = 10_000
WHY: Final = "its executor died before it could report; the event log has it"


def newest_event(spec: QueueSpec) -> int | None:
    """Return the number of the newest event of the account; None: nobody tells."""
    if spec.service != "leasehold":
        return None
    try:
        with Client.from_connection_string(spec.connection or None) as client:
            return client.event_page(limit=1).last_seq
    except LeaseholdClientError as error:
        _log.info("the event log cannot be read: %s", error)
        return None


def unreported(
    spec: QueueSpec, after: int, dead: Collection[Who], reported: Collection[str]
) -> list[tuple[Who, Row]]:
    """Return the deliveries that dead tasks have completed and not reported.

    Args:
        spec: The queue.
        after: The newest event from before the run.
        dead: The tasks.
        reported: Ids of messages that are known to be done.
    """
    try:
        with Client.from_connection_string(spec.connection or None) as client:
            return list(completed_by(client.events(after, page_size=_PAGE), spec, dead, reported))
    except LeaseholdClientError as error:
        _log.warning("what dead executors have done last is not in the report: %s", error)
        return []


def completed_by(
    events: Iterable[Event], spec: QueueSpec, dead: Collection[Who], reported: Collection[str]
) -> Iterator[tuple[Who, Row]]:
    """Yield a row for each completion by one of *dead* that is not among *reported*."""
    for event in events:
        message_id, holder = event.message_id, event.holder
        if event.type != "completed" or event.queue != spec.queue or holder is None:
            continue
        if message_id is None or message_id in reported:
            continue
        who = next((each for each in dead if each.link in holder), None)
        if who is None:
            continue
        yield (
            who,
            Row(
                message_id=message_id,
                queue=spec.queue,
                delivery=event.dequeue_count or 1,
                fence=event.fence or 0,
                outcome=Kind.DONE.value,
                reason=WHY,
                resumed_at=None,
                began_at_ms=event.since_ms or event.at_ms,
                ended_at_ms=event.at_ms,
                stages=[],
            ),
        )
