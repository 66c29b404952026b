"""``leasehold events`` and ``leasehold trace``: what has happened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from leasehold.cli.output import clean
from leasehold.cli.remote import RemoteCommand, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import QUEUE
from leasehold.client import Client
from leasehold.client.models import Event
from leasehold.events import trace as story

_PAGE: Final = 1_000
_AT_ONCE: Final = 1_000_000
_CHECK_EPILOG: Final = """\b
Exit codes:
  0    nothing is wrong
  1    something is: see what is printed
  2    it cannot be judged: no events, or of types that this version does not know
  3    no Leasehold server answers at the address
  130  Ctrl+C
"""
_LAST: Final = 20
_WIDER: Final = 8
_LOOK_AGAIN_S: Final = 1.0
_TYPE_WIDTH: Final = 15
_TIME_WIDTH: Final = len("2026-11-21 10:02:03.120")
_QUEUE_WIDTH: Final = 8
_UNKNOWN: Final = frozenset({"not-found", "not-an-id"})
"""Codes of explanations of messages that are not there."""
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
    client, tape = session.client, _Tape(session)
    wanted = after
    if after is None:
        # What happens from now on is not among the last: it comes with the pages after them.
        after = client.event_page(0, limit=1).last_seq or 0
        for each in _last_of(client, after, last):
            tape.show(each)
    try:
        while True:
            page = client.event_page(after, limit=_PAGE)
            for each in page.events:
                tape.show(each)
            after = page.next_after
            if page.finished:
                if not follow:
                    break
                session.sleep(_LOOK_AGAIN_S)
    except KeyboardInterrupt:
        if follow:  # it was to go on until then
            return
        raise
    if not tape.shown and last:
        session.screen.hint(_nothing(wanted, page.last_seq or 0))


@events.command("check", cls=RemoteCommand, epilog=_CHECK_EPILOG)
@click.option(
    "--from",
    "paths",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    metavar="PATH",
    help="A folder of exported events, a Parquet file, or a file of what leasehold events tail "
    "--after 0 --json prints. May be given several times, in their order. Default: what the "
    "server's database still has.",
)
@click.option(
    "--of-account",
    "of_account",
    metavar="NAME",
    help="With --from: only events of this account. Default: of all.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Show only what is found in this queue. May be given several times.",
)
@click.option(
    "--definitions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --from: what leasehold definitions export has written at the log's end. Budgets, "
    "order and limits of groups are judged by it.",
)
@click.option(
    "--partial",
    is_flag=True,
    help="The log does not tell of all messages, although it begins with batch 1.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Without --from: also compare the log with what is in the queues now.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    metavar="N",
    default=_AT_ONCE,
    show_default=True,
    help="Keep so many messages in memory, some 600 bytes each. A log with more of them at a time "
    "is read several times.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=_LAST,
    show_default=True,
    help="How many violations to show.",
)
def check(session: Session, **options: Any) -> None:
    """Check the log against the rules: no two leases, nothing lost, nothing early, exact counts.

    A log may begin in the middle. What it does not tell is left out, and how much that is.

    Example: leasehold events check --live

    Example: leasehold events check --from /data/events
    """
    if options["paths"] and options["live"]:
        raise click.UsageError("--live compares a server's own log: leave --from out.")
    if not options["paths"] and (options["of_account"] or options["definitions"]):
        raise click.UsageError("--of-account and --definitions go with --from.")
    # Late: the other commands need none of it.
    from leasehold.cli.events_check import check as run  # noqa: PLC0415

    run(session, **options)


@remote("trace")
@QUEUE
@click.argument("message_id", metavar="ID")
def trace(session: Session, queue: str, message_id: str) -> None:
    """Tell what has happened to a message.

    It may be long gone: what counts is how far back the event log goes.

    Example: leasehold trace orders 00000000-0001-8abc-9def-0123456789ab
    """
    handle, screen = session.queue(queue), session.screen

    def fetch() -> _Life:
        events = list(handle.trace(message_id))
        if screen.as_json or not events:
            return _Life(events)
        present = handle.explain_message(message_id)
        return _Life(events, None if present.code in _UNKNOWN else present.sentence)

    def render(life: _Life) -> RenderableType:
        if life.events:
            return _story(life)
        return Text(
            f"The event log knows nothing of message {clean(message_id)} in queue {clean(queue)}.\n"
            "It forgets old events (the server's setting events_retention_s), and queues may have "
            "it turned off."
        )

    session.present(fetch, render, lambda life: life.events)


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


def _nothing(after: int | None, newest: int) -> str:
    if after is None or not newest:
        return "There are no events."
    if after >= newest:
        return f"There is nothing after batch {after}: the newest is {newest}."
    return f"There is nothing of this account after batch {after}."


class _Tape:
    """Shows events as they come, under each other."""

    def __init__(self, session: Session) -> None:
        self.shown = 0
        self._screen = session.screen
        self._queue_width = _QUEUE_WIDTH

    def show(self, event: Event) -> None:
        """Show one."""
        self.shown += 1
        if self._screen.as_json:
            self._screen.line(event)
            return
        # How long names are is known when they come.
        self._queue_width = max(self._queue_width, len(event.queue or ""))
        self._screen.row(_line(event, self._queue_width))


def _line(event: Event, queue_width: int) -> Text:
    subject = event.message_id or event.session or event.target or ""
    told = {
        "holder": event.holder,
        "session": event.session,
        "target": event.target,
        "reason": event.reason,
    }
    rest = [f"{name}={clean(value)}" for name, value in told.items() if value and value != subject]
    number = f"{event.seq}.{event.place}"
    words = [f"{event.queue or '':<{queue_width}}", clean(subject), *rest]
    return Text.assemble(
        (f"{_time_of(event.at_ms)}  {number:<10}  ", "dim"),
        (f"{clean(event.type):<{_TYPE_WIDTH}}", "bold"),
        f"  {'  '.join(word for word in words if word)}",
    )


def _time_of(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms // _MS, tz=UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ms % _MS:03d}"


class _Life(NamedTuple):
    """What has happened to a message."""

    events: list[Event]
    now: str | None = None
    """How it is now, in a sentence; None if it is gone."""


def _story(life: _Life) -> RenderableType:
    told = Table.grid(padding=(0, 2, 0, 0))
    told.add_column(no_wrap=True)
    told.add_column(overflow="fold")
    day = ""
    for line in story.lines(msgspec.to_builtins(each) for each in life.events):
        today, _, time = line.at.partition(" ")
        shown = today if today != day else " " * len(today)
        day = today
        told.add_row(
            Text(f"{shown} {time}", style="dim"), Text(clean(line.text), _STYLES[line.tone])
        )
    if life.now is not None:
        told.add_row(Text(f"{'now':>{_TIME_WIDTH}}", style="dim"), Text(clean(life.now)))
    return told
