"""``leasehold queue``: create, look at, set, pause and purge queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.text import Text

from leasehold.cli import queue_settings
from leasehold.cli.explanations import explanation_text
from leasehold.cli.jobs import purge, redrive
from leasehold.cli.lazy import OrderedGroup
from leasehold.cli.listing import Cell, Column, Listing
from leasehold.cli.queue_settings import METADATA, RESET, paused_text, settings_options
from leasehold.cli.remote import WATCH, YES, remote
from leasehold.cli.rendering import facts, sections, state
from leasehold.cli.session import Session
from leasehold.cli.texts import clean, counted, length, moment, number, pairs, rough
from leasehold.cli.values import FRACTIONAL
from leasehold.client.models import Activity, Counts, QueueInfo
from leasehold.domain.wording import form_of

OWN_STATES: Final = ("visible", "leased", "delayed", "deferred")
"""States of messages that are in the queue itself."""
_LISTED: Final = (*OWN_STATES, "poisoned", "expired")
QUEUE: Final = click.argument("queue", metavar="QUEUE")


@click.group("queue", cls=OrderedGroup)
def queue() -> None:
    """Create, look at, set, pause and purge queues."""


@remote("list", WATCH, add_to=queue)
@click.option("--prefix", default="", metavar="TEXT", help="Only queues whose names begin so.")
@click.option("--counts", is_flag=True, help="Count the messages of each, which takes longer.")
def list_queues(session: Session, prefix: str, counts: bool, every_s: float | None) -> None:
    """List the account's queues by name.

    Example: leasehold queue list --counts
    """
    session.present(
        lambda: list(session.client.list_queues(prefix, counts=counts)),
        lambda found: _queue_table(found, session.now_ms, counts=counts),
        lambda found: found,
        every_s,
    )


@remote("create", METADATA, add_to=queue)
@settings_options
@QUEUE
def create(
    session: Session, queue: str, metadata: tuple[tuple[str, str], ...], **given: Any
) -> None:
    """Create a queue, or find it there. One that is there must have the settings given.

    Example: leasehold queue create orders --visibility-timeout 2m --max-deliveries 5
    """
    settings = queue_settings.patch_of(given)
    made = session.queue(queue).create(metadata=dict(metadata) or None, settings=settings or None)
    if session.screen.as_json:
        session.screen.document(made)
    else:
        session.screen.say(f"Queue {made.name} is there.")


@remote("delete", YES, add_to=queue)
@QUEUE
def delete(session: Session, queue: str, yes: bool) -> None:
    """Delete a queue with all its messages, after asking. Its poison queue stays.

    Example: leasehold queue delete orders
    """
    handle = session.queue(queue)
    if not yes:
        total = handle.counts().total
        session.confirm(f"Delete queue {queue} and its {_messages(total)} for good?", yes=yes)
    handle.delete()
    if session.screen.as_json:
        session.screen.document({"deleted": queue})
    else:
        session.screen.say(f"Queue {queue} is deleted.")


@remote("show", WATCH, add_to=queue)
@QUEUE
def show(session: Session, queue: str, every_s: float | None) -> None:
    """Show a queue: its messages by state, its settings, what has happened in it.

    Example: leasehold queue show orders
    """
    session.present(
        session.queue(queue).info,
        lambda found: _whole_queue(found, session.now_ms),
        every_s=every_s,
    )


@remote("set", METADATA, RESET, add_to=queue)
@settings_options
@QUEUE
def set_queue(
    session: Session,
    queue: str,
    metadata: tuple[tuple[str, str], ...],
    reset: tuple[str, ...],
    **given: Any,
) -> None:
    """Change settings of a queue. What is not named stays as it is.

    Example: leasehold queue set orders --max-failures 5 --backoff exponential --backoff-cap 10m
    """
    patch = queue_settings.patch_of(given, reset)
    if not patch and not metadata:
        raise click.UsageError("Say what to change: leasehold queue set --help lists the settings.")
    changed = session.queue(queue).update(dict(metadata) or None, patch or None)
    _reply_queue(session, changed)


@remote("counts", WATCH, add_to=queue)
@QUEUE
def counts(session: Session, queue: str, every_s: float | None) -> None:
    """Count the messages of a queue by state, all at one instant.

    Example: leasehold queue counts orders --watch
    """
    session.present(session.queue(queue).counts, counts_table, every_s=every_s)


@remote("pause", add_to=queue)
@click.option(
    "--for",
    "for_s",
    type=FRACTIONAL,
    help="How long: seconds, or 90s, 5m, 2h. Unless told, until resumed.",
)
@click.option("--reason", metavar="TEXT", help="For those who wonder.")
@QUEUE
def pause(session: Session, queue: str, for_s: float | None, reason: str | None) -> None:
    """Give out no messages for a while. What is on a lease can be completed and renewed.

    Example: leasehold queue pause orders --for 30m --reason "database upgrade"
    """
    changed = session.queue(queue).pause(for_s, reason)
    if session.screen.as_json:
        session.screen.document(changed)
        return
    until = paused_text(changed.settings, session.now_ms) or "no longer"
    session.screen.say(f"Queue {changed.name} is paused {until}.")


@remote("resume", add_to=queue)
@QUEUE
def resume(session: Session, queue: str) -> None:
    """Give out messages again.

    Example: leasehold queue resume orders
    """
    changed = session.queue(queue).resume()
    if session.screen.as_json:
        session.screen.document(changed)
    else:
        session.screen.say(f"Queue {changed.name} gives out messages.")


@remote("explain", WATCH, add_to=queue)
@QUEUE
def explain_queue(session: Session, queue: str, every_s: float | None) -> None:
    """Say in a sentence why a queue gives messages, or none.

    Example: leasehold queue explain orders
    """
    session.present(
        session.queue(queue).explain,
        lambda found: explanation_text(found, session.now_ms),
        every_s=every_s,
    )


queue.add_command(purge)
queue.add_command(redrive)


def counts_table(found: Counts) -> RenderableType:
    """Return counts, one state a line."""
    columns = (Column("STATE"), Column("MESSAGES", right=True), Column("OLDEST", right=True))
    rows: list[tuple[Cell, ...]] = [
        (state(name), _count(found, name), _oldest(found, name)) for name in OWN_STATES
    ]
    rows += [(state("poisoned"), _count(found, "poisoned"), _oldest(found, "poisoned"))]
    if found.expired:
        rows.append((state("expired"), _count(found, "expired"), ""))
    if found.staged:
        rows.append((state("staged"), _count(found, "staged"), _oldest(found, "staged")))
    if found.claimed:
        rows.append(("leased in claims", _count(found, "claimed"), ""))
    return Listing(columns, rows, foot=("in the queue", _about(found.total, found), ""))


def _queue_table(found: Iterable[QueueInfo], now_ms: int, *, counts: bool) -> RenderableType:
    columns = [Column("QUEUE")]
    if counts:
        columns += [Column(name.upper(), right=True) for name in _LISTED]
    columns += [Column("LEASE", right=True, drop=1), Column("PAUSED"), Column("METADATA", cut=True)]
    rows = []
    for each in found:
        row: list[Cell] = [each.name]
        if counts and each.counts is not None:
            row += [_count(each.counts, name) for name in _LISTED]
        elif counts:
            row += ["" for _ in _LISTED]
        paused = "yes" if paused_text(each.settings, now_ms) else ""
        rows.append([*row, length(each.visibility_timeout_s), paused, pairs(each.metadata)])
    return Listing(columns, rows) if rows else Text("There are no queues.")


def _whole_queue(found: QueueInfo, now_ms: int) -> RenderableType:
    about: list[tuple[str, Cell]] = [("created", moment(found.created_at_ms, now_ms))]
    if found.metadata:
        about.append(("metadata", pairs(found.metadata)))
    parts: list[tuple[str, RenderableType]] = [(found.name, facts(about))]
    if found.counts is not None:
        parts.append(("Messages", counts_table(found.counts)))
    parts.append(("Settings", facts(queue_settings.settings_lines(found, now_ms))))
    if found.activity is not None:
        parts.append(
            ("Activity since the server was started", facts(_activity(found.activity, now_ms)))
        )
    return sections(*parts)


def _activity(found: Activity, now_ms: int) -> Iterable[tuple[str, str]]:
    yield "since", moment(found.since_ms, now_ms)
    yield "last put", moment(found.last_send_ms, now_ms)
    receiver = f" by {clean(found.last_receiver)}" if found.last_receiver else ""
    yield "last received", moment(found.last_receive_ms, now_ms) + receiver
    yield "last completed", moment(found.last_complete_ms, now_ms)
    counted = (
        (found.sent, "put"),
        (found.received, "received"),
        (found.redelivered, "received again"),
        (found.completed, "completed"),
        (found.released, "given back"),
        (found.poisoned, "poisoned"),
        (found.rejected_receipts, f"{form_of(found.rejected_receipts, 'receipt')} refused"),
    )
    told = ", ".join(f"{number(many)} {what}" for many, what in counted if many)
    yield "so far", told or "nothing"


def _reply_queue(session: Session, changed: QueueInfo) -> None:
    if session.screen.as_json:
        session.screen.document(changed)
        return
    lines = facts(queue_settings.settings_lines(changed, session.now_ms))
    session.screen.show(sections((changed.name, lines)))


def _count(found: Counts, name: str) -> Text:
    many: int = getattr(found, name)
    return Text(_about(many, found), style="" if many else "dim")


def _about(many: int, found: Counts) -> str:
    return number(many) if found.exact else f"~{number(many)}"


def _oldest(found: Counts, name: str) -> str:
    age_s = found.oldest_age_s.get(name)
    return "" if age_s is None else rough(age_s)


def _messages(many: int) -> str:
    return counted(many, "message")
