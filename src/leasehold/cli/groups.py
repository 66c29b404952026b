"""``leasehold group``: the message groups of a queue."""

from __future__ import annotations

import click
from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.output import (
    Cell,
    Column,
    Listing,
    age,
    clean,
    counted,
    facts,
    moment,
    number,
    sections,
    state,
)
from leasehold.cli.remote import WATCH, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import QUEUE
from leasehold.client.models import GroupHalt, GroupInfo, Groups, GroupView


@click.group("group", cls=OrderedGroup)
def group() -> None:
    """List, show, halt and resume message groups."""


_GROUP = click.argument("group_id", metavar="GROUP")


@remote("list", WATCH, add_to=group)
@click.option(
    "--order",
    type=click.Choice(["backlog", "oldest", "in-flight"]),
    default="backlog",
    help="Order of the list: most waiting messages first, longest wait first, or most messages "
    "in flight first.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=20,
    metavar="N",
    help="Maximum number of groups. Default: 20.",
)
@click.option("--noisy", is_flag=True, help="Select noisy groups.")
@click.option("--halted", is_flag=True, help="Select halted groups.")
@QUEUE
def list_groups(  # noqa: PLR0913, PLR0917 - an option each
    session: Session,
    queue: str,
    order: str,
    limit: int,
    noisy: bool,
    halted: bool,
    every_s: float | None,
) -> None:
    """List the message groups of a queue with their counts.

    Example: leasehold group list orders --order oldest
    """
    handle = session.queue(queue)
    session.present(
        lambda: handle.groups(
            order=order.replace("-", "_"), limit=limit, noisy=noisy, halted=halted
        ),
        _group_table,
        every_s=every_s,
    )


@remote("show", WATCH, add_to=group)
@QUEUE
@_GROUP
def show_group(session: Session, queue: str, group_id: str, every_s: float | None) -> None:
    """Show a message group: its counts, and the messages that block it.

    Example: leasehold group show orders "order 1"
    """
    session.present(
        lambda: session.queue(queue).group(group_id),
        lambda found: _whole_group(found, session.now_ms),
        every_s=every_s,
    )


@remote("halt", add_to=group)
@click.option("--reason", metavar="TEXT", help="Reason, shown to operators.")
@QUEUE
@_GROUP
def halt_group(session: Session, queue: str, group_id: str, reason: str | None) -> None:
    """Halt a message group: it delivers no messages. Leased messages can be completed.

    Example: leasehold group halt orders "order 1" --reason "the customer asked"
    """
    found = session.queue(queue).halt_group(group_id, reason)
    session.screen.result(found, f"Group {clean(group_id)} is halted.")


@remote("resume", add_to=group)
@QUEUE
@_GROUP
def resume_group(session: Session, queue: str, group_id: str) -> None:
    """Resume a halted message group, whatever halted it.

    Example: leasehold group resume orders "order 1"
    """
    found = session.queue(queue).resume_group(group_id)
    session.screen.result(found, f"Group {clean(group_id)} is resumed.")


@remote("release", add_to=group)
@QUEUE
@_GROUP
def release_group(session: Session, queue: str, group_id: str) -> None:
    """End the hold of a session on a message group. Its leased messages stay leased.

    Example: leasehold group release orders "order 1"
    """
    session.queue(queue).end_hold(group_id)
    session.screen.result(None, f"No session holds group {clean(group_id)}.")


def _group_table(found: Groups) -> RenderableType:
    columns = (
        Column("GROUP", cut=True),
        Column("WAITING", right=True),
        Column("IN FLIGHT", right=True),
        Column("DELAYED", right=True, drop=1),
        Column("DEFERRED", right=True, drop=2),
        Column("OLDEST", right=True),
        Column("TIME", right=True, drop=4),
        Column("", drop=3),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            clean(each.group_id),
            number(each.waiting),
            number(each.in_flight),
            number(each.delayed),
            number(each.deferred),
            _oldest_of(each, found.at_ms),
            f"{each.time_share:.0%}",
            _mark_of(each),
        )
        for each in found.groups
    ]
    told = (
        f"{counted(found.total, 'group')} with messages: {number(found.waiting)} with some that "
        f"wait, {number(found.in_flight)} with some in flight, {number(found.noisy)} noisy, "
        f"{number(found.halted)} halted."
    )
    return Group(Listing(columns, rows), Text(), Text(told)) if rows else Text(told)


def _mark_of(each: GroupInfo) -> Cell:
    if each.halt is not None:
        return Text("halted", style="red")
    return Text("noisy", style="yellow") if each.noisy else ""


def _halt_of(halt: GroupHalt, now_ms: int) -> str:
    """Return since when a group stands still, and why."""
    why = clean(halt.reason or "no reason was given")
    if halt.message_id is not None:
        why = f"message {halt.message_id} was poisoned: {why}"
    return f"since {moment(halt.since_ms, now_ms)}, {why}"


def _whole_group(found: GroupView, now_ms: int) -> RenderableType:
    each = found.group
    rows: list[tuple[str, Cell]] = [
        ("waiting", number(each.waiting)),
        ("in flight", number(each.in_flight)),
        ("delayed", number(each.delayed)),
        ("deferred", number(each.deferred)),
        ("oldest", _oldest_of(each, found.at_ms)),
        ("time worked", f"{each.time_share:.0%} of the last minute's"),
        ("noisy", _noisy(found)),
    ]
    if each.halt is not None:
        rows.append(("halted", _halt_of(each.halt, now_ms)))
    if found.hold is not None:
        since = moment(found.hold.since_ms, now_ms)
        by = clean(found.hold.holder or "a worker without a name")
        rows.append(("held by", f"{by} since {since}, session {found.hold.session}"))
    if found.rate_again_ms is not None:
        rows.append(("next by its rate", moment(found.rate_again_ms, now_ms)))
    columns = (
        Column("MESSAGE"),
        Column("STATE"),
        Column("UNTIL"),
        Column("DELIVERY", right=True, drop=1),
        Column("HOLDER", cut=True),
    )
    held: list[tuple[Cell, ...]] = [
        (
            message.id,
            state(message.state),
            moment(message.until_ms, now_ms),
            number(message.dequeue_count),
            clean(message.under or message.holder or ""),
        )
        for message in found.held
    ]
    parts: list[tuple[str, RenderableType]] = [(f"group {clean(each.group_id)}", facts(rows))]
    if held:
        parts.append(("received and not visible", Listing(columns, held)))
    return sections(*parts)


def _noisy(found: GroupView) -> str:
    """Return whether a group is noisy, and what of it may be in flight then."""
    limit = "" if found.noisy_limit is None else f"{number(found.noisy_limit)} in flight at most"
    return ", ".join(filter(None, ("yes" if found.group.noisy else "no", limit)))


def _oldest_of(each: GroupInfo, now_ms: int) -> str:
    return "" if each.oldest_ms is None else age(each.oldest_ms, now_ms)
