"""``leasehold events check``: the event log against the rules of the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.table import Table
from rich.text import Text

from leasehold.cli.output import clean, counted, number
from leasehold.cli.remote import ExitCode, Session
from leasehold.client import Client
from leasehold.client.models import QueueInfo, Settings
from leasehold.domain.events import EventType
from leasehold.events.check import Checker, Report, Row, Rule, Violation
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
from leasehold.events.check_state import Place

FOUND: Final = ExitCode.REFUSED
"""There are violations."""
NOT_JUDGED: Final = ExitCode.USAGE
"""There is nothing to judge, or not all of it can be."""
_PAGE: Final = 5_000
_LINES_AT_ONCE: Final = 10_000
_MS: Final = 1000
_EXPIRED: Final = "expired"
_STATES: Final = ("visible", "leased", "delayed", "deferred", _EXPIRED)


class Source:
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
            page = self._client.event_page(after, limit=_PAGE)
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
        updates = (row for rows in self.read() for row in rows if row[3] in _OF_QUEUES)
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
    plain = msgspec.to_builtins(queue.settings)
    assert isinstance(queue.settings, Settings)
    return sections(plain)


def check(  # noqa: PLR0913 - each is an option
    session: Session,
    *,
    paths: Sequence[Path],
    of_account: str | None,
    queues: Sequence[str],
    definitions: Path | None,
    partial: bool,
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
        source = Source(session, paths, of_account)
        with screen.progress() as progress:
            bar = progress.add_task("Checking the log", total=None, note="")

            def read() -> Iterator[list[Row]]:
                done = 0
                for rows in source.read():
                    yield rows
                    done += len(rows)
                    note = f"{number(done)} events"
                    progress.update(bar, completed=source.reached, total=source.size, note=note)

            how: dict[str, Any] = {
                "settings": source.settings(definitions),
                "whole": False if partial else None,
                "all_accounts": source.all_accounts,
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
        screen.document(plain(report, shown[:limit]))
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
        page = client.event_page(after, limit=_PAGE)
        checker.feed(rows_of(page.events, client.account))
        if seen is not None:
            seen.update(each.message_id for each in page.events if each.message_id)
        after = page.next_after
        if page.finished:
            return after


# --- telling ------------------------------------------------------------------------------------


def plain(report: Report, shown: Sequence[Violation]) -> dict[str, Any]:
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
        screen.show(_line(each))
    hidden = report.total - min(len(shown), limit)
    if hidden:
        screen.hint(f"{counted(hidden, 'violation')} more; --limit shows more, --json how many.")
    facts = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _facts(report):
        facts.add_row(Text(name, style="dim"), value)
    screen.show(facts)


def _facts(report: Report) -> Iterator[tuple[str, Text]]:
    yield "events", Text(f"{number(report.events)}, {number(report.consumed)} of them consumed")
    since, until = _moment(report.first_at_ms), _moment(report.last_at_ms)
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


def _line(each: Violation) -> Text:
    subject = " ".join(clean(word) for word in (each.queue, each.message_id) if word)
    return Text.assemble(
        (f"{_moment(each.at_ms)}  {each.seq}.{each.place}  ", "dim"),
        (f"{Rule(each.rule)}", "bold red"),
        f"  {subject}  {clean(each.sentence)}",
    )


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return ""
    moment = datetime.fromtimestamp(at_ms // _MS, tz=UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ms % _MS:03d}"
