"""``leasehold events`` and ``leasehold trace``: what has happened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.lazy import OrderedGroup
from leasehold.cli.queues import QUEUE
from leasehold.cli.remote import remote
from leasehold.cli.session import Session
from leasehold.cli.texts import clean
from leasehold.client import Client
from leasehold.client.models import Event
from leasehold.eventlog import story

_PAGE: Final = 1_000
_LAST: Final = 20
_WIDER: Final = 8
_LOOK_AGAIN_S: Final = 1.0
_TYPE_WIDTH: Final = 15
_MS: Final = 1000
_STYLES: Final = {
    story.Tone.PLAIN: "",
    story.Tone.GOOD: "green",
    story.Tone.WARNING: "yellow",
    story.Tone.BAD: "red",
}


@click.group("events", cls=OrderedGroup)
def events() -> None:
    """Read the event log."""


@remote("tail", add_to=events)
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Show all after the batch with this number; 0: from the oldest that is kept.",
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    metavar="N",
    default=_LAST,
    show_default=True,
    help="Without --after: how many of the newest to show first.",
)
@click.option("--follow", is_flag=True, help="Go on with what happens from now, until Ctrl+C.")
def tail(session: Session, after: int | None, last: int, follow: bool) -> None:
    """Show the newest events of all queues, one a line.

    Each has the number of its batch, from which --after goes on.

    Example: leasehold events tail --follow
    """
    client = session.client
    if after is None:
        newest = _newest(client)
        for each in _last_of(client, newest, last):
            _show(session, each)
        after = newest
    try:
        while True:
            page = client.event_page(after, limit=_PAGE)
            for each in page.events:
                _show(session, each)
            after = page.next_after
            if page.finished:
                if not follow:
                    return
                session.sleep(_LOOK_AGAIN_S)
    except KeyboardInterrupt:
        if not follow:
            raise
        # It was to go on until then.


@remote("trace")
@QUEUE
@click.argument("message_id", metavar="ID")
def trace(session: Session, queue: str, message_id: str) -> None:
    """Tell what has happened to a message.

    It may be long gone: what counts is how far back the event log goes.

    Example: leasehold trace orders 00000000-0001-8abc-9def-0123456789ab
    """
    handle = session.queue(queue)
    session.present(
        lambda: list(handle.trace(message_id)),
        lambda found: _story(found, queue, message_id),
        lambda found: found,
    )


def _newest(client: Client) -> int:
    """Return the number of the newest batch, 0 if there is none; found by halving."""
    page = client.event_page(0, limit=1)
    known, beyond = page.next_after, None
    while not page.finished:
        # Up to *known* there are batches.
        further = max(1, 2 * known)
        page = client.event_page(further, limit=1)
        if page.finished and not page.events:
            beyond = further
        else:
            known = page.next_after
    while beyond is not None and known < beyond:
        middle = (known + beyond) // 2
        page = client.event_page(middle, limit=1)
        if page.finished and not page.events:
            beyond = middle
        else:
            known = page.next_after
    return known


def _last_of(client: Client, newest: int, many: int) -> list[Event]:
    """Return the last events up to the batch *newest*."""
    span = many
    while many:
        start = max(0, newest - span)
        found = list(_between(client, start, newest))
        if len(found) >= many or not start:
            return found[-many:]
        # Batches of other accounts, and numbers left out, are in between.
        span *= _WIDER
    return []


def _between(client: Client, after: int, upto: int) -> Iterator[Event]:
    for each in client.events(after, page_size=_PAGE):
        if each.seq > upto:
            return
        yield each


def _show(session: Session, event: Event) -> None:
    if session.screen.as_json:
        session.screen.line(event)
    else:
        session.screen.row(_line(event))


def _line(event: Event) -> Text:
    subject = event.message_id or event.session or event.target or ""
    told = {
        "holder": event.holder,
        "session": event.session,
        "target": event.target,
        "reason": event.reason,
    }
    rest = [f"{name}={clean(value)}" for name, value in told.items() if value and value != subject]
    number = f"{event.seq}.{event.place}"
    words = [event.queue or "", clean(subject), *rest]
    return Text.assemble(
        (f"{_time_of(event.at_ms)}  {number:<10}  ", "dim"),
        (f"{clean(event.type):<{_TYPE_WIDTH}}", "bold"),
        f"  {'  '.join(word for word in words if word)}",
    )


def _time_of(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms // _MS, tz=UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ms % _MS:03d}"


def _story(found: list[Event], queue: str, message_id: str) -> RenderableType:
    if not found:
        return Text(
            f"The event log knows nothing of message {clean(message_id)} in queue {clean(queue)}."
        )
    told: list[RenderableType] = []
    day = ""
    for line in story.lines(msgspec.to_builtins(each) for each in found):
        today, _, time = line.at.partition(" ")
        shown = today if today != day else " " * len(today)
        day = today
        told.append(
            Text.assemble((f"{shown} {time}  ", "dim"), (clean(line.text), _STYLES[line.tone]))
        )
    return Group(*told)
