"""``leasehold events`` and ``leasehold trace``: what has happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from leasehold.cli.output import clean, counted, number
from leasehold.cli.remote import ExitCode, RemoteCommand, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import QUEUE
from leasehold.client import Client
from leasehold.client.models import Event, QueueInfo
from leasehold.domain.events import EventType
from leasehold.domain.wording import near_names
from leasehold.events import trace as story
from leasehold.events.check import Checker, Report, Row, Rule, Violation
from leasehold.events.check_book import Place
from leasehold.events.check_input import (
    check_all,
    compare,
    files_in,
    found_in_queue,
    rows_of,
    rows_of_file,
    rows_of_lines,
    settings_at_start,
)
from leasehold.events.names import TYPE_NAMES

_PAGE: Final = 1_000
_AT_ONCE: Final = 1_000_000
_CHECK_EPILOG: Final = """\b
Exit codes:
  0    no violation found
  1    violations found
  2    the log cannot be checked: no events, or types of a later version
  3    no Leasehold server answers at the address
  130  Ctrl+C
"""
FOUND: Final = ExitCode.REFUSED
"""There are violations."""
NOT_JUDGED: Final = ExitCode.USAGE
"""There is nothing to judge, or not all of it can be."""
_CHECK_PAGE: Final = 5_000
_LINES_AT_ONCE: Final = 10_000
_EXPIRED: Final = "expired"
_STATES: Final = ("visible", "leased", "delayed", "deferred", _EXPIRED)
_LAST: Final = 20
_WIDER: Final = 8
_LOOK_AGAIN_S: Final = 1.0
_TYPE_WIDTH: Final = 15
_TIME_WIDTH: Final = len("2026-11-21 10:02:03.120")
_QUEUE_WIDTH: Final = 8
_ANY: Final = "*"
_TYPES_BY_NAME: Final = {
    "problems": {
        *("released", "lapsed", "poisoned", "lease-ended", "refused", "expired", "discarded"),
        *("session-lost", "claim-lapsed", "group-halted"),
    },
    "queue-changes": {
        *("queue-created", "queue-updated", "queue-paused", "queue-resumed", "queue-cleared"),
        *("queue-deleted", "group-halted", "group-resumed"),
    },
    "sessions": {"session-started", "session-lost", "session-ended"},
}
"""Types that are looked for together, as on the console's page of events."""
_Function = TypeVar("_Function", bound=Callable[..., Any])
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


class _Types(click.ParamType[frozenset[str]]):
    """Types of events, or a name for several of them."""

    name = "type"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[str]:
        """See :class:`click.ParamType`."""
        types: set[str] = set()
        for word in str(value).split(","):
            if word not in _TYPES_BY_NAME and word not in TYPE_NAMES.values():
                names = ", ".join([*_TYPES_BY_NAME, *TYPE_NAMES.values()])
                near = near_names(word, [*_TYPES_BY_NAME, *TYPE_NAMES.values()])
                hint = f"Type: {near[0]}" if near else f"It must be one of {names}"
                self.fail(f"{word!r} is no type of event. {hint}", param, ctx)
            types |= _TYPES_BY_NAME.get(word, {word})
        return frozenset(types)


_FILTERS: Final = (
    click.option("--queue", metavar="QUEUE", help="Show only events of this queue."),
    click.option(
        "--type",
        "types",
        type=_Types(),
        multiple=True,
        metavar="TYPE",
        help="Show only events of this type, such as put or lapsed, or of several: problems, "
        "queue-changes, sessions. Can be repeated.",
    ),
    click.option("--message", "message_id", metavar="ID", help="Show only events of this message."),
    click.option(
        "--group", "group_id", metavar="GROUP", help="Show only events of this message group."
    ),
    click.option("--holder", metavar="NAME", help="Show only events of this holder of leases."),
    click.option(
        "--session", "session_id", metavar="SESSION", help="Show only events of this session."
    ),
    click.option(
        "--actor",
        metavar="NAME",
        help="Show only what this operator did, such as console:alice; '*' means any operator.",
    ),
)


def _filters(function: _Function) -> _Function:
    for option in reversed(_FILTERS):
        function = option(function)
    return function


@remote("tail", add_to=events)
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Show all events after the batch with this number; 0 begins with the oldest.",
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    metavar="N",
    default=_LAST,
    show_default=True,
    help="Show the newest N events first. Not with --after.",
)
@click.option("--follow", is_flag=True, help="Show new events as they happen, until Ctrl+C.")
@_filters
def tail(session: Session, after: int | None, last: int, follow: bool, **given: Any) -> None:
    """Show the newest events of all queues, one per line.

    Each line has the number of its batch; --after continues from there. Filters show the events
    that match all of them.

    Example: leasehold events tail --follow

    Example: leasehold events tail --queue orders --type problems
    """
    client, tape, is_meant = session.client, _Tape(session), _filter_of(given)
    first = after
    if after is None:
        # What happens from now on is not among the last: it comes with the pages after them.
        after = client.event_page(0, limit=1).last_seq or 0
        for event in _last_of(client, after, last, is_meant):
            tape.show(event)
    while True:
        page = client.event_page(after, limit=_PAGE)
        for event in filter(is_meant, page.events):
            tape.show(event)
        after = page.next_after
        if page.finished:
            if not follow:
                break
            session.sleep(_LOOK_AGAIN_S)
    if not tape.shown and last:
        if any(given.values()):
            session.screen.hint("No event matches the filter.")
        else:
            session.screen.hint(_nothing(first, page.last_seq or 0))


def _filter_of(given: Mapping[str, Any]) -> Callable[[Event], bool]:
    """Return what tells whether an event is to be shown."""
    types = frozenset().union(*given["types"])
    texts = {"session": given["session_id"]} | {
        name: given[name] for name in ("queue", "message_id", "group_id", "holder", "actor")
    }
    texts = {name: text for name, text in texts.items() if text is not None}

    def is_meant(event: Event) -> bool:
        if types and event.type not in types:
            return False
        values = ((getattr(event, name), text) for name, text in texts.items())
        return all(value is not None and text in {value, _ANY} for value, text in values)

    return is_meant


@events.command("check", cls=RemoteCommand, epilog=_CHECK_EPILOG)
@click.option(
    "--from",
    "paths",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Folder of exported events, a Parquet file, or a file with the output of leasehold "
    "events tail --after 0 --json. Can be repeated, in order. Default: the events in the "
    "server's database.",
)
@click.option(
    "--of-account",
    "of_account",
    metavar="NAME",
    help="With --from: check events of this account. Default: all accounts.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Show violations in this queue. Can be repeated.",
)
@click.option(
    "--definitions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --from: file that leasehold definitions export wrote at the log's end, to check "
    "budgets, order and limits of groups.",
)
@click.option(
    "--partial",
    is_flag=True,
    help="Accept a log that begins with batch 1 and lacks events of some messages.",
)
@click.option(
    "--gap",
    "gaps",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="SEQ",
    help="Accept missing events after the batch with this number. The server's log names the "
    "batch when it drops events. Can be repeated.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Without --from: also compare the log with the messages in the queues.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    metavar="N",
    default=_AT_ONCE,
    show_default=True,
    help="Maximum number of messages in memory, about 600 bytes each. A log with more live "
    "messages is read several times.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=_LAST,
    show_default=True,
    help="Maximum number of violations shown.",
)
def check(session: Session, **options: Any) -> None:
    """Check the log against the rules: no two leases, nothing lost, nothing early, exact counts.

    A log may begin in the middle. The output says how much could not be checked.

    Example: leasehold events check --live

    Example: leasehold events check --from /data/events
    """
    if options["paths"] and options["live"]:
        raise click.UsageError("--live and --from exclude each other. Type one of them.")
    if not options["paths"] and (options["of_account"] or options["definitions"]):
        raise click.UsageError("--of-account and --definitions need --from.")
    _run_check(session, **options)


@remote("trace")
@QUEUE
@click.argument("message_id", metavar="ID")
def trace(session: Session, queue: str, message_id: str) -> None:
    """Show the history of a message.

    It works for removed messages, too, as far back as the event log goes.

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


def _last_of(
    client: Client, newest: int, many: int, is_meant: Callable[[Event], bool]
) -> list[Event]:
    """Return the last events up to the batch *newest*, of those that are meant."""
    span = many
    while many:
        start = max(0, newest - span)
        shown = [event for event in _between(client, start, newest) if is_meant(event)]
        if len(shown) >= many or not start:
            return shown[-many:]
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


# --- checking -----------------------------------------------------------------------------------


class CheckedLog:
    """A log that can be read again, and what its queues were set to at its beginning."""

    def __init__(self, session: Session, paths: Sequence[Path], account: str | None) -> None:
        self._client = session.client
        self._account = account
        self._files = [
            file
            for path in paths
            for file in (files_in(path) if path.is_dir() or path.suffix == ".parquet" else [path])
        ]
        self.is_server = not paths
        self.all_accounts = not self.is_server and account is None
        self.size = len(self._files) or None
        self.reached = 0
        """Files read; of a server, the number of the last batch."""

    def read(self) -> Iterator[list[Row]]:
        """Read it from the beginning."""
        self.reached = 0
        if self.is_server:
            yield from self._pages()
            return
        for path in self._files:
            if path.suffix == ".parquet":
                yield rows_of_file(path, self._account)
            else:
                with path.open("rb") as lines:
                    rows = rows_of_lines(lines, self._account or self._client.account)
                    while piece := list(islice(rows, _LINES_AT_ONCE)):
                        yield piece
            self.reached += 1

    def _pages(self) -> Iterator[list[Row]]:
        after = 0
        while True:
            page = self._client.event_page(after, limit=_CHECK_PAGE)
            self.size, self.reached = page.last_seq or 0, page.next_after
            yield list(rows_of(page.events, self._client.account))
            after = page.next_after
            if page.finished:
                return

    def settings(self, definitions: Path | None) -> dict[Place, dict[str, Any]]:
        """Return what queues were set to when the log began, as far as that can be known."""
        if definitions is not None:
            told = msgspec.json.decode(definitions.read_bytes(), type=_Definitions).queues
            account = self._account or self._client.account
            now = {(account, each.name): sections(each.settings) for each in told}
        elif self.is_server:
            queues = self._client.list_queues()
            now = {(self._client.account, each.name): _settings_of(each) for each in queues}
        else:
            return {}
        updates = (row for rows in self.read() for row in rows if row.type in _OF_QUEUES)
        return settings_at_start(now, updates)


class _Definition(msgspec.Struct):
    name: str
    settings: dict[str, Any] = {}


class _Definitions(msgspec.Struct):
    """What ``leasehold definitions export`` writes."""

    queues: list[_Definition]


_OF_QUEUES: Final = frozenset({EventType.QUEUE_UPDATED, EventType.QUEUE_DELETED})


def sections(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the sections that a check looks at, also where they are by default."""
    return {"groups": None, "failure_policy": None, "lapsed_receipts": "until-retaken", **settings}


def _settings_of(queue: QueueInfo) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(queue.settings)
    return sections(plain)


def _run_check(  # noqa: PLR0913 - each is an option
    session: Session,
    *,
    paths: Sequence[Path],
    of_account: str | None,
    queues: Sequence[str],
    definitions: Path | None,
    partial: bool,
    gaps: Sequence[int],
    live: bool,
    at_once: int,
    limit: int,
) -> None:
    """Check a log, print what was found, and end with an exit code.

    Raises:
        click.ClickException: It cannot be read.
        click.exceptions.Exit: There is something to tell.
    """
    screen = session.screen
    try:
        source = CheckedLog(session, paths, of_account)
        with screen.progress() as progress:
            bar = progress.add_task("Checking the log", total=None, note="")

            def read() -> Iterator[list[Row]]:
                done = 0
                for rows in source.read():
                    yield rows
                    done += len(rows)
                    note = counted(done, "event")
                    progress.update(bar, completed=source.reached, total=source.size, note=note)

            how: dict[str, Any] = {
                "settings": source.settings(definitions),
                "whole": False if partial else None,
                "all_accounts": source.all_accounts,
                "gaps": gaps,
            }
            if live:
                report = _check_live(session.client, how)
            else:
                report = check_all(read, at_once=at_once, **how)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"The log cannot be read: {clean(str(error))}") from None
    code = _code_of(report)
    shown = [each for each in report.violations if not queues or each.queue in queues]
    if screen.as_json:
        screen.document(_plain_report(report, shown[:limit]))
    else:
        _tell(session, report, shown, limit)
    if code:
        raise click.exceptions.Exit(code)


def _code_of(report: Report) -> int:
    if report.total:
        return FOUND
    return NOT_JUDGED if not report.events or report.consumed < report.events else ExitCode.DONE


# --- live queues --------------------------------------------------------------------------------


def _check_live(client: Client, how: dict[str, Any]) -> Report:
    """Check the log of a server, and whether its queues have what the log says.

    Its workers may go on meanwhile: what something happens to is left out of the comparison.
    """
    checker = Checker(**how)
    after = _read_on(client, checker, 0)
    for name in [each.name for each in client.list_queues()]:
        place = client.account, name
        queue = client.queue(name)
        known = checker.live_ids(place)
        live: set[str] = set()
        expired: set[str] = set()
        for view in queue.inspect(states=_STATES, body=False, page_size=1_000):
            (expired if view.state == _EXPIRED else live).add(view.id)
        # What has happened since may be in the list, or not.
        seen: set[str] = set()
        after = _read_on(client, checker, after, seen)
        now = checker.live_ids(place)
        found_in_queue(checker, place, compare((known & now) - seen, live - seen, expired | seen))
    return checker.end()


def _read_on(client: Client, checker: Checker, after: int, seen: set[str] | None = None) -> int:
    """Read a log to its end; return where that is."""
    while True:
        page = client.event_page(after, limit=_CHECK_PAGE)
        checker.feed(rows_of(page.events, client.account))
        if seen is not None:
            seen.update(each.message_id for each in page.events if each.message_id)
        after = page.next_after
        if page.finished:
            return after


# --- telling ------------------------------------------------------------------------------------


def _plain_report(report: Report, shown: Sequence[Violation]) -> dict[str, Any]:
    """Return a report for programs."""
    return {
        "events": report.events,
        "consumed": report.consumed,
        "first_seq": report.first_seq,
        "last_seq": report.last_seq,
        "first_at_ms": report.first_at_ms,
        "last_at_ms": report.last_at_ms,
        "whole": report.whole,
        "messages": report.messages,
        "known_from": report.known_from,
        "live": report.live,
        "found": {str(rule): many for rule, many in report.found.items()},
        "violations": [each._asdict() | {"rule": str(each.rule)} for each in shown],
        "not_judged": dict(report.not_judged),
        "counts": [
            {"account": account, "queue": queue, "messages": many}
            for (account, queue), many in sorted(report.counts.items())
        ],
    }


def _tell(session: Session, report: Report, shown: Sequence[Violation], limit: int) -> None:
    screen = session.screen
    if not report.events:
        screen.show(Text("There are no events."))
        return
    for each in shown[:limit]:
        screen.show(_violation(each))
    hidden = report.total - min(len(shown), limit)
    if hidden:
        screen.hint(
            f"{counted(hidden, 'violation')} more. --limit shows more, --json their number."
        )
    facts = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _facts(report):
        facts.add_row(Text(name, style="dim"), value)
    screen.show(facts)


def _facts(report: Report) -> Iterator[tuple[str, Text]]:
    yield "events", Text(f"{number(report.events)}, {number(report.consumed)} of them consumed")
    since, until = _time_of(report.first_at_ms or 0), _time_of(report.last_at_ms or 0)
    yield "log", Text(f"{report.first_seq} to {report.last_seq}, {since} to {until}")
    told = f"{number(report.messages)} put, {number(report.live)} there at the end"
    yield "messages", Text(told)
    if report.known_from:
        many = counted(report.known_from, "message")
        yield "known from", Text(f"{many} only from the first event here on")
    for what, times in report.not_judged.items():
        yield "not judged", Text(f"{what}: {number(times)}")
    if not report.total:
        yield "found", Text("nothing wrong", style="green")
    for rule, times in sorted(report.found.items()):
        yield "found", Text(f"{rule}: {number(times)}", style="bold red")


def _violation(each: Violation) -> Text:
    subject = " ".join(clean(word) for word in (each.queue, each.message_id) if word)
    return Text.assemble(
        (f"{_time_of(each.at_ms)}  {each.seq}.{each.place}  ", "dim"),
        (f"{Rule(each.rule)}", "bold red"),
        f"  {subject}  {clean(each.sentence)}",
    )
