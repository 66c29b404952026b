"""Messages as people read them: lists, and one with all there is to know about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.listing import Cell, Column, Listing
from leasehold.cli.rendering import Screen, body_cell, facts, sections, state
from leasehold.cli.texts import (
    age,
    clean,
    counted,
    moment,
    number,
    pairs,
    recognise,
    repeated,
    rough,
    size,
    times,
)
from leasehold.client.models import Attempt, ErrorReport, LeaseInfo, MessageView, PeekedMessage

_PRIORITY = 8
_MS = 1000
_PROBLEMS = {
    "missing": "It is not where large bodies are kept. The server's log names its key.",
    "corrupt": "What is kept is not what was sent. The server's log names its key.",
    "unreachable": "The place where large bodies are kept does not answer now.",
    "left-out": "The answer could not hold it.",
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
    named = (("type", found.type), ("dedup key", found.dedup_key), ("trace", found.traceparent))
    yield from ((name, clean(value)) for name, value in named if value)
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
