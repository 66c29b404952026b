"""``leasehold claim``: one claim, and what is in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from leasehold.cli.lazy import OrderedGroup
from leasehold.cli.listing import Cell, Column, Listing
from leasehold.cli.message_views import message_table
from leasehold.cli.queues import QUEUE
from leasehold.cli.remote import WATCH, remote
from leasehold.cli.rendering import facts, sections, state
from leasehold.cli.session import Session
from leasehold.cli.texts import age, clean, counted, moment, number, repeated, rough, size, times
from leasehold.client.models import ClaimInfo, StreamSettled

STREAM: Final = click.argument("stream", metavar="STREAM")
NUMBER: Final = click.argument("number", metavar="NUMBER", type=click.IntRange(min=1))
_SHOWN: Final = 100
_MS: Final = 1000
_HIDING: Final = frozenset({"opening", "open", "parked"})
_MEANINGS: Final = {
    "opening": "it is still taking messages",
    "open": "a consumer works on it",
    "parked": "it is kept for a replay, although nobody extends it",
    "lapsed": "nobody extended it in time, and everybody can receive its messages. Until somebody "
    "does, its consumer can open it again",
    "broken": "others have some of its messages. Its consumer can open it with the rest "
    "(accept_loss), or give it back",
}


@click.group("claim", cls=OrderedGroup)
def claim() -> None:
    """Look at a claim, and read its messages."""


@remote("show", WATCH, add_to=claim)
@QUEUE
@STREAM
@NUMBER
def show(session: Session, queue: str, stream: str, number: int, every_s: float | None) -> None:
    """Show a claim: its state, how much it holds, until when.

    Example: leasehold claim show orders totals 17
    """
    handle = session.queue(queue).stream(stream)
    session.present(
        lambda: handle.get_claim(number),
        lambda found: _whole_claim(found, f"{stream}/{number}", session.now_ms),
        every_s=every_s,
    )


@remote("read", add_to=claim)
@click.option(
    "--part",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Which part, counted from 0.",
)
@click.option(
    "--parts",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="In how many equal parts it is read.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"How many at most, 0 for all. Unless told, {_SHOWN}, and all with --json.",
)
@QUEUE
@STREAM
@NUMBER
def read(  # noqa: PLR0913 - click passes each option by its name
    session: Session,
    queue: str,
    stream: str,
    number: int,
    *,
    part: int,
    parts: int,
    limit: int | None,
) -> None:
    """Read the messages of a claim in their order. Nothing is changed.

    Example: leasehold claim read orders totals 17 --part 0 --parts 8
    """
    if part >= parts:
        raise click.UsageError(f"--part is 0 to {parts - 1} with --parts {parts}.")
    screen = session.screen
    if limit is None:
        limit = 0 if screen.as_json else _SHOWN
    found = itertools.islice(
        session.queue(queue).stream(stream).read(number, part, parts), limit or None
    )
    if screen.as_json:
        # As they come: there may be a million.
        for each in found:
            screen.line(each)
        return
    # All of them are in this claim.
    rows = [msgspec.structs.replace(each, under=None) for each in found]
    screen.show(message_table(rows, session.now_ms, screen, why=False))
    if limit and len(rows) == limit:
        screen.hint("There may be more: --limit 0 shows all.")


def claim_table(found: Iterable[ClaimInfo], now_ms: int) -> RenderableType:
    """Return claims, one a line; notes and transactions as far as one of them has any."""
    found = list(found)
    noted, bound = any(each.noted for each in found), any(each.transaction for each in found)
    columns = [
        Column("CLAIM", right=True),
        Column("STATE"),
        Column("MESSAGES", right=True),
        Column("LOST", right=True),
        Column("AGE", right=True, drop=2),
        Column("LEFT", right=True),
        Column("EXTENDED", right=True, drop=1),
        *([Column("EXEMPTED", right=True, drop=3)] if noted else ()),
        *([Column("SETTLED WITH", cut=True)] if bound else ()),
        Column("HOLDER", cut=True),
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            str(each.number),
            state(each.state),
            number(each.remaining),
            number(each.lost) if each.lost else "",
            age(each.opened_at_ms, now_ms),
            rough(max(0, each.until_ms - now_ms) // _MS) if each.state in _HIDING else "",
            times(each.extensions),
            *([number(each.noted) if each.noted else ""] if noted else ()),
            *([clean(each.transaction or "")] if bound else ()),
            clean(each.holder or ""),
        )
        for each in found
    ]
    return Listing(columns, rows)


def settled_sentence(done: StreamSettled) -> str:
    """Say what publishing did to a stream."""
    many = f"{counted(done.completed, 'message')}"
    which = f"Stream {clean(done.stream)} of queue {clean(done.queue)}"
    sentence = f"{which} is settled up to {done.last_settled}: {many} completed"
    return f"{sentence}, {number(done.exempted)} exempted." if done.exempted else f"{sentence}."


def _whole_claim(found: ClaimInfo, name: str, now_ms: int) -> RenderableType:
    holds = f"{number(found.remaining)} of at most {counted(found.limit, 'message')}"
    if found.max_bytes is not None:
        holds += f" or {size(found.max_bytes)}"
    meaning = _MEANINGS.get(found.state)
    shown = Text.assemble(state(found.state), f": {meaning}") if meaning else state(found.state)
    rows: list[tuple[str, Cell]] = [("state", shown), ("holds", holds)]
    if found.lost:
        rows.append(("lost", f"{number(found.lost)} of {number(found.size)}, to others"))
    rows += [
        ("opened", moment(found.opened_at_ms, now_ms)),
        ("until", f"{moment(found.until_ms, now_ms)}, {repeated(found.extensions, 'extended')}"),
    ]
    if found.noted:
        rows.append(("exempted", f"{number(found.noted)} are not completed when it is settled"))
    if found.transaction:
        rows.append(("settled with", f"transaction {clean(found.transaction)}"))
    if found.holder:
        rows.append(("holder", clean(found.holder)))
    return sections((clean(name), facts(rows)))
