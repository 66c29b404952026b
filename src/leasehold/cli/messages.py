"""``leasehold message``: list, look at and mend messages; also ``inspect`` and ``explain``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.jobs import change
from leasehold.cli.output import (
    Cell,
    Column,
    Listing,
    Screen,
    age,
    body_cell,
    clean,
    counted,
    explanation_text,
    facts,
    length,
    moment,
    number,
    pairs,
    recognise,
    repeated,
    rough,
    sections,
    size,
    state,
    times,
)
from leasehold.cli.remote import WATCH, YES, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.cli.send_receive import (
    body_options,
    bury,
    complete,
    given_body,
    receive,
    release,
    renew,
    send,
)
from leasehold.cli.values import LENGTH, QUEUE, TIME_TO_LIVE, Pair, filter_of, filter_options
from leasehold.client.models import Attempt, ErrorReport, LeaseInfo, MessageView, PeekedMessage

MESSAGE: Final = click.argument("message_id", metavar="ID")
_FORCE: Final = click.Option(
    ["--force"], is_flag=True, help="Act on a leased message as well, and end its lease."
)
_SHOWN: Final = 100
_PAGE: Final = 500
_LIMIT: Final = click.Option(
    ["--limit"],
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Maximum number of messages; 0 shows all. Default: {_SHOWN}, or all with --json.",
)
_WHY: Final = click.Option(
    ["--why/--no-why"],
    default=None,
    help="Show below each message why it is in its state, instead of the body.",
)


@click.group("message", cls=OrderedGroup)
def message() -> None:
    """Send, receive, inspect and change messages."""


for _command in (send, receive):
    message.add_command(_command)


@remote("peek", add_to=message)
@click.option(
    "--max",
    "max_messages",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=32,
    show_default=True,
    help="Maximum number of messages.",
)
@QUEUE
def peek(session: Session, queue: str, max_messages: int) -> None:
    """Show the messages that are received next, without leasing them.

    Example: leasehold message peek orders --max 5
    """
    session.present(
        lambda: session.queue(queue).peek(max_messages),
        lambda found: peek_table(found, session.now_ms, session.screen),
        lambda found: found,
    )


@remote("list", _WHY, _LIMIT, WATCH, add_to=message)
@filter_options()
@QUEUE
def list_messages(session: Session, queue: str, why: bool | None, **given: Any) -> None:
    """List messages in any state, oldest first, without changing them.

    Example: leasehold message list orders --state leased --holder worker-7
    """
    _list(session, queue, why=bool(why), given=given)


@remote("inspect", _WHY, _LIMIT, WATCH)
@filter_options()
@QUEUE
def inspect(session: Session, queue: str, why: bool | None, **given: Any) -> None:
    """List messages in any state, and explain the state of each.

    The same as message list --why.

    Example: leasehold inspect orders --state leased --watch
    """
    _list(session, queue, why=why is not False, given=given)


@remote("show", add_to=message)
@QUEUE
@MESSAGE
def show(session: Session, queue: str, message_id: str) -> None:
    """Show everything about a message: body, lease, attempts, errors.

    Example: leasehold message show orders 00000000-0001-8abc-9def-0123456789ab
    """
    session.present(
        lambda: session.queue(queue).get(message_id),
        lambda found: whole_message(found, session.now_ms),
    )


@remote("body", add_to=message)
@click.option(
    "--output",
    type=click.File("wb", lazy=True),
    metavar="FILE",
    default="-",
    help="Write the body to this file. Default: standard output.",
)
@QUEUE
@MESSAGE
def body(session: Session, queue: str, message_id: str, output: IO[bytes]) -> None:
    """Write the body of a message unchanged, whatever its size. --json does not change it.

    Example: leasehold message body scans 00000000-0001-8abc-9def-0123456789ab --output scan.tiff
    """
    content = session.queue(queue).get_body(message_id)
    # Only now is the file made.
    output.write(content)


@remote("explain", WATCH, add_to=message)
@QUEUE
@MESSAGE
def explain_message(session: Session, queue: str, message_id: str, every_s: float | None) -> None:
    """Explain in a sentence why a message can or cannot be received.

    Example: leasehold message explain orders 00000000-0001-8abc-9def-0123456789ab
    """
    _explain(session, queue, message_id, every_s)


@remote("explain", WATCH)
@QUEUE
@click.argument("message_id", metavar="[ID]", required=False)
def explain(session: Session, queue: str, message_id: str | None, every_s: float | None) -> None:
    """Explain the state of a queue or a message in a sentence.

    Example: leasehold explain orders
    """
    _explain(session, queue, message_id, every_s)


for _command in (complete, renew, release, bury, change):
    message.add_command(_command)


@remote("amend", _FORCE, add_to=message)
@body_options
@click.option(
    "--delay",
    "delay_s",
    type=LENGTH,
    help="Time until the message is visible; 0 makes it visible now.",
)
@click.option(
    "--time-to-live",
    "time_to_live_s",
    type=TIME_TO_LIVE,
    help="Time from now until the message expires, or never.",
)
@click.option(
    "--priority",
    type=click.IntRange(1, 16),
    metavar="N",
    help="Priority: 1 is received first, 16 last.",
)
@click.option(
    "--property",
    "properties",
    type=Pair(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a property, and remove all other properties. Can be repeated.",
)
@QUEUE
@MESSAGE
def amend(session: Session, queue: str, message_id: str, **given: Any) -> None:
    """Change a waiting message: its body, delay, priority, time to live or properties.

    Example: leasehold message amend orders 00000000-0001-8abc-9def-0123456789ab --delay 0
    """
    body = given_body(given.pop("body"), encode=given.pop("encode"))
    changes = given | {"properties": dict(given["properties"]) or None, "body": body}
    if not any(value is not None for name, value in changes.items() if name != "force"):
        raise click.UsageError(
            "There is nothing to change. Type: leasehold message amend --help, for a list."
        )
    _reply(session, session.queue(queue).amend(message_id, **changes))


@remote("remove", _FORCE, YES, add_to=message)
@QUEUE
@MESSAGE
def remove(session: Session, queue: str, message_id: str, force: bool, yes: bool) -> None:
    """Remove a message for good, after confirmation. No receipt is needed.

    Example: leasehold message remove orders 00000000-0001-8abc-9def-0123456789ab
    """
    session.confirm(f"Remove message {message_id} of queue {queue} for good?", yes=yes)
    session.queue(queue).remove(message_id, force)
    session.screen.result({"removed": message_id}, f"Message {message_id} is removed.")


@remote("end-lease", add_to=message)
@click.option(
    "--delay",
    "delay_s",
    type=LENGTH,
    default=0,
    help="Time that the message stays hidden. Default: 0.",
)
@click.option("--reason", metavar="TEXT", help="Reason, shown with the message later.")
@QUEUE
@MESSAGE
def end_lease(
    session: Session, queue: str, message_id: str, delay_s: int, reason: str | None
) -> None:
    """End a lease: its receipt becomes invalid, and the message can be received again.

    Example: leasehold message end-lease orders 00000000-0001-8abc-9def-0123456789ab
    """
    _reply(session, session.queue(queue).end_lease(message_id, delay_s, reason))


@remote("extend", add_to=message)
@click.option(
    "--for",
    "for_s",
    type=LENGTH,
    required=True,
    help="Length of the lease from now on: seconds, or 90s, 5m, 2h.",
)
@QUEUE
@MESSAGE
def extend(session: Session, queue: str, message_id: str, for_s: int) -> None:
    """Change the end of a lease. Its receipt stays valid.

    No receipt is needed. The worker is not notified, and its next renewal changes the end again.

    Example: leasehold message extend orders 00000000-0001-8abc-9def-0123456789ab --for 1h
    """
    _reply(session, session.queue(queue).extend_lease(message_id, for_s))


@remote("cancel", add_to=message)
@click.option("--reason", metavar="TEXT", help="Reason, shown to the worker.")
@QUEUE
@MESSAGE
def cancel(session: Session, queue: str, message_id: str, reason: str | None) -> None:
    """Ask the worker of a message to stop. The lease stays until the worker stops or the lease
    ends.

    The worker gets the request with its next renewal or heartbeat. To end the lease at once:
    leasehold message end-lease.

    Example: leasehold message cancel orders 00000000-0001-8abc-9def-0123456789ab --reason wrong
    """
    found = session.queue(queue).cancel(message_id, reason)
    if session.screen.as_json:
        session.screen.document(found)
        return
    holder = clean(found.lease.holder or "Its holder") if found.lease else "Its holder"
    session.screen.say(f"{holder} is asked to stop work on message {found.id}.")


def _list(session: Session, queue: str, *, why: bool, given: dict[str, Any]) -> None:
    limit, every_s = given.pop("limit"), given.pop("every_s")
    screen, handle, wanted = session.screen, session.queue(queue), filter_of(given)
    if limit is None:
        limit = 0 if screen.as_json else _SHOWN
    found = handle.inspect(
        filter=wanted, page_size=min(limit or _PAGE, _PAGE), body=screen.as_json or not why
    )
    if screen.as_json and every_s is None:
        # As they come: there may be millions.
        for each in itertools.islice(found, limit or None):
            screen.line(each)
        return

    def fetch() -> list[MessageView]:
        pages = handle.inspect(
            filter=wanted, page_size=min(limit or _PAGE, _PAGE), body=screen.as_json or not why
        )
        return _gathered(session, queue, itertools.islice(pages, limit or None), limit)

    def render(rows: list[MessageView]) -> RenderableType:
        return message_table(rows, session.now_ms, screen, why=why)

    if every_s is not None:
        session.present(fetch, render, lambda rows: rows, every_s)
        return
    rows = fetch()
    screen.show(render(rows))
    if limit and len(rows) == limit:
        screen.hint("There may be more. Show all: --limit 0")


def _gathered(session: Session, queue: str, pages: Any, limit: int) -> list[MessageView]:
    rows: list[MessageView] = []
    with session.screen.progress() as bar:
        task = None
        for each in pages:
            rows.append(each)
            if len(rows) % _PAGE == 0 and not bar.disable:
                if task is None:
                    total = session.queue(queue).counts()
                    most = total.total + total.poisoned
                    task = bar.add_task(f"Reading {queue}", total=min(limit or most, most), note="")
                bar.update(task, completed=len(rows))
    return rows


def _explain(session: Session, queue: str, message_id: str | None, every_s: float | None) -> None:
    handle = session.queue(queue)
    session.present(
        lambda: handle.explain() if message_id is None else handle.explain_message(message_id),
        lambda found: explanation_text(found, session.now_ms),
        every_s=every_s,
    )


def _reply(session: Session, changed: MessageView) -> None:
    if session.screen.as_json:
        session.screen.document(changed)
        return
    until = moment(changed.visible_at_ms, session.now_ms)
    session.screen.say(changed.why or f"Message {changed.id} is {changed.state}, visible {until}.")


# --- message views -----------------------------------------------------------------------------
#
# Messages as people read them: lists, and one with all there is to know about it.


_PRIORITY = 8
_MS = 1000
_PROBLEMS = {
    "missing": "The store of large bodies does not have it. The server's log has its key.",
    "corrupt": "The stored body differs from what was sent. The server's log has its key.",
    "unreachable": "The store of large bodies does not answer.",
    "left-out": "It is too large for this answer. Read it with leasehold message body.",
}
"""What became of a large body that is not shown."""


def message_table(
    found: Sequence[MessageView], now_ms: int, screen: Screen, *, why: bool
) -> RenderableType:
    """Return messages, one a line; with *why*, a sentence under each in place of its body."""
    if not found:
        return Text("There are no such messages.")
    columns = [
        Column("ID"),
        Column("STATE"),
        Column("AGE", right=True, drop=4),
        Column("TIMES", right=True, drop=1),
        Column("LEFT", right=True, drop=3),
        Column("HOLDER", drop=2),
        Column("UNDER", drop=5),
    ]
    rows = [_row(each, now_ms) for each in found]
    if why:
        return Listing(columns, rows, under=[clean(each.why) for each in found])
    full = screen.is_terminal
    bodies = [_body_cell(each, full_width=full) for each in found]
    columns.append(Column("BODY", cut=True))
    return Listing(columns, [[*row, body] for row, body in zip(rows, bodies, strict=True)])


def _row(each: MessageView, now_ms: int) -> list[Cell]:
    left_ms = each.visible_at_ms - now_ms
    waits = each.state in {"leased", "delayed", "deferred"}
    return [
        each.id,
        state(each.state),
        age(each.inserted_at_ms, now_ms),
        number(each.dequeue_count),
        rough(max(0, left_ms) // _MS) if waits else "",
        clean(each.lease.holder or "unnamed") if each.lease else "",
        clean(each.under or ""),
    ]


def peek_table(found: Sequence[PeekedMessage], now_ms: int, screen: Screen) -> RenderableType:
    """Return messages that were peeked at."""
    if not found:
        return Text("No message is visible.")
    columns = (
        Column("ID"),
        Column("AGE", right=True),
        Column("TIMES", right=True, drop=1),
        Column("PRIORITY", right=True, drop=2),
        Column("TYPE"),
        Column("BODY", cut=True),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            each.id,
            age(each.inserted_at_ms, now_ms),
            number(each.dequeue_count),
            str(each.priority),
            clean(each.type or ""),
            _body_cell(each, full_width=screen.is_terminal),
        )
        for each in found
    ]
    return Listing(columns, rows)


def whole_message(found: MessageView, now_ms: int) -> RenderableType:
    """Return all there is to know about a message."""
    parts: list[tuple[str, RenderableType]] = [(found.id, facts(_facts(found, now_ms)))]
    if found.lease is not None:
        parts.append(("Lease", facts(_lease(found, found.lease, now_ms))))
    if found.last_error is not None:
        parts.append(("Last error", facts(_error(found.last_error, now_ms))))
    if found.attempts:
        parts.append(("Attempts", _attempts(found.attempts, now_ms)))
    problem = found.body_problem
    if problem is not None:
        kind, told = problem, _PROBLEMS.get(problem, "")
    else:
        body = recognise(found.body)
        kind, told = body.kind, body.pretty()
    # Nothing stands under the heading of an empty one, not even an empty line.
    shown = Text(told) if told else Group()
    return sections(*parts, (f"Body ({clean(kind)}, {_size(found)})", shown))


def _body_cell(found: PeekedMessage, *, full_width: bool) -> Text:
    if found.body_problem is not None:
        return Text(f"[{clean(found.body_problem)}, {_size(found)}]", style="dim")
    return body_cell(found.body, full_width=full_width)


def _size(found: PeekedMessage) -> str:
    return size(found.body_bytes)


def _facts(found: MessageView, now_ms: int) -> Iterable[tuple[str, Cell]]:
    yield "queue", found.queue
    yield "state", state(found.state)
    if found.why:
        yield "why", clean(found.why)
    yield "put", moment(found.inserted_at_ms, now_ms)
    yield "expires", moment(found.expires_at_ms, now_ms)
    if found.first_visible_at_ms is not None:
        yield "first visible", moment(found.first_visible_at_ms, now_ms)
    yield "received", f"{times(found.dequeue_count)}{_budgets(found)}"
    if found.poisoned is not None:
        reason = f"because of {clean(found.poisoned.reason)} in queue {found.poisoned.queue}"
        yield "poisoned", f"{moment(found.poisoned.at_ms, now_ms)}, {reason}"
    if found.under is not None:
        yield "transaction" if found.state == "staged" else "claim", clean(found.under)
    if found.redriven:
        yield "redriven", times(found.redriven)
    if found.priority != _PRIORITY:
        yield "priority", str(found.priority)
    named = (
        ("group", found.group_id),
        ("type", found.type),
        ("dedup key", found.dedup_key),
        ("trace", found.traceparent),
    )
    yield from ((name, clean(value)) for name, value in named if value)
    if found.visibility_timeout_s is not None:
        yield "own timeout", length(found.visibility_timeout_s)
    if found.properties:
        yield "properties", pairs(found.properties)


def _budgets(found: MessageView) -> str:
    budgets = (
        (found.failures, "failure"),
        (found.interruptions, "interruption"),
        (found.lapses, "lapse"),
    )
    return "".join(f", {counted(many, what)}" for many, what in budgets if many)


def _lease(found: MessageView, lease: LeaseInfo, now_ms: int) -> Iterable[tuple[str, Cell]]:
    yield "holder", clean(lease.holder or "unnamed")
    if found.session is not None:
        yield "session", clean(found.session)
    yield "since", moment(lease.since_ms, now_ms)
    yield "until", f"{moment(lease.until_ms, now_ms)}, {repeated(lease.renewals, 'renewed')}"
    progress = lease.progress
    if progress is not None:
        share = "" if progress.fraction is None else f"{progress.fraction:.0%} "
        yield "progress", f"{share}{clean(progress.note or '')}".strip()
    if found.cancel is not None:
        why = f": {clean(found.cancel.reason)}" if found.cancel.reason else ""
        yield "asked to stop", f"{moment(found.cancel.at_ms, now_ms)}{why}"


def _error(error: ErrorReport, now_ms: int) -> Iterable[tuple[str, Cell]]:
    if error.at_ms is not None:
        yield "at", moment(error.at_ms, now_ms)
    if error.type:
        yield "type", clean(error.type)
    yield "text", clean(error.text)
    if error.fingerprint:
        yield "fingerprint", clean(error.fingerprint)


def _attempts(found: Iterable[Attempt], now_ms: int) -> RenderableType:
    columns = (
        Column("#", right=True),
        Column("OUTCOME"),
        Column("ENDED", right=True),
        Column("LASTED", right=True),
        Column("RENEWED", right=True, drop=1),
        Column("HOLDER"),
        Column("ERROR", cut=True),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            str(each.number),
            each.outcome,
            f"{age(each.ended_at_ms, now_ms)} ago",
            rough((each.ended_at_ms - each.leased_at_ms) / _MS),
            number(each.renewals),
            clean(each.holder or ""),
            clean(each.error.text) if each.error else "",
        )
        for each in found
    ]
    return Listing(columns, rows)
