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
from leasehold.client.models import GroupInfo, Groups, GroupView


@click.group("group", cls=OrderedGroup)
def group() -> None:
    """Look at the message groups of a queue."""


_GROUP = click.argument("group_id", metavar="GROUP")


@remote("list", WATCH, add_to=group)
@click.option(
    "--order",
    type=click.Choice(["backlog", "oldest", "in-flight"]),
    default="backlog",
    help="Which come first: with most messages that wait, with the one that waits longest, or "
    "with most in flight.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=20, metavar="N", help="Most groups; 20."
)
@click.option("--noisy", is_flag=True, help="Only groups that are noisy.")
@QUEUE
def list_groups(  # noqa: PLR0913, PLR0917 - an option each
    session: Session, queue: str, order: str, limit: int, noisy: bool, every_s: float | None
) -> None:
    """List the groups of a queue, and how many messages they have.

    Example: leasehold group list orders --order oldest
    """
    handle = session.queue(queue)
    session.present(
        lambda: handle.groups(order=order.replace("-", "_"), limit=limit, noisy=noisy),
        _group_table,
        every_s=every_s,
    )


@remote("show", WATCH, add_to=group)
@QUEUE
@_GROUP
def show_group(session: Session, queue: str, group_id: str, every_s: float | None) -> None:
    """Show a group: how many messages it has, and which of them hold it up.

    Example: leasehold group show orders "order 1"
    """
    session.present(
        lambda: session.queue(queue).group(group_id),
        lambda found: _whole_group(found, session.now_ms),
        every_s=every_s,
    )


def _group_table(found: Groups) -> RenderableType:
    columns = (
        Column("GROUP", cut=True),
        Column("WAITING", right=True),
        Column("IN FLIGHT", right=True),
        Column("DELAYED", right=True, drop=1),
        Column("DEFERRED", right=True, drop=2),
        Column("OLDEST", right=True),
        Column("NOISY", drop=3),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            clean(each.group_id),
            number(each.waiting),
            number(each.in_flight),
            number(each.delayed),
            number(each.deferred),
            _oldest_of(each, found.at_ms),
            Text("noisy", style="yellow") if each.noisy else "",
        )
        for each in found.groups
    ]
    told = (
        f"{counted(found.total, 'group')} with messages: {number(found.waiting)} with some that "
        f"wait, {number(found.in_flight)} with some in flight, {number(found.noisy)} noisy."
    )
    return Group(Listing(columns, rows), Text(), Text(told)) if rows else Text(told)


def _whole_group(found: GroupView, now_ms: int) -> RenderableType:
    each = found.group
    rows: list[tuple[str, Cell]] = [
        ("waiting", number(each.waiting)),
        ("in flight", number(each.in_flight)),
        ("delayed", number(each.delayed)),
        ("deferred", number(each.deferred)),
        ("oldest", _oldest_of(each, found.at_ms)),
        ("noisy", "yes" if each.noisy else "no"),
    ]
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


def _oldest_of(each: GroupInfo, now_ms: int) -> str:
    return "" if each.oldest_ms is None else age(each.oldest_ms, now_ms)
