"""``leasehold transaction``: messages staged under a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.text import Text

from leasehold.cli.claims import settled_sentence
from leasehold.cli.lazy import OrderedGroup
from leasehold.cli.listing import Cell, Column, Listing
from leasehold.cli.remote import WATCH, YES, remote
from leasehold.cli.rendering import facts, sections, state
from leasehold.cli.session import Session
from leasehold.cli.texts import age, clean, counted, moment, number, rough
from leasehold.cli.values import how_many
from leasehold.client.models import BoundClaim, TransactionInfo

_NAME: Final = click.argument("name", metavar="NAME")
_PARTS: Final = click.Option(
    ["--part", "parts"],
    metavar="PART",
    multiple=True,
    help="Only this part; may be given more than once.",
)
_MS: Final = 1000


@click.group("transaction", cls=OrderedGroup)
def transaction() -> None:
    """Look at staged messages; publish and discard them."""


@remote("list", WATCH, add_to=transaction)
@click.option(
    "--state",
    "wanted",
    type=click.Choice(["staged", "published"]),
    help="Only transactions that are so.",
)
@how_many
def list_transactions(session: Session, wanted: Any, limit: int, every_s: float | None) -> None:
    """List transactions by name. Published ones are remembered for a week.

    Example: leasehold transaction list --state staged
    """
    session.present(
        lambda: session.client.transactions(wanted, limit=limit),
        lambda found: _transaction_table(found, session.now_ms),
        lambda found: found,
        every_s,
    )


@remote("show", WATCH, add_to=transaction)
@_NAME
def show(session: Session, name: str, every_s: float | None) -> None:
    """Show a transaction and its parts.

    Example: leasehold transaction show import-2026-11-21
    """
    session.present(
        session.client.transaction(name).get,
        lambda found: _whole_transaction(found, session.now_ms),
        every_s=every_s,
    )


@remote("publish", _PARTS, YES, add_to=transaction)
@_NAME
def publish(session: Session, name: str, parts: tuple[str, ...], yes: bool) -> None:
    """Make staged messages visible, all at once, after asking.

    With --part the other parts are dropped. So is a message whose deduplication key had been used.
    Claims that are bound to the transaction are settled.

    Example: leasehold transaction publish import-2026-11-21
    """
    handle = session.client.transaction(name)
    if not yes:
        found = handle.get()
        settled = ", ".join(_claim(each) for each in found.claims)
        also = f", and settle up to {settled}" if settled else ""
        session.confirm(f"Publish {_meant(found, parts)} of transaction {name}{also}?", yes=yes)
    done = handle.publish(parts or None)
    if session.screen.as_json:
        session.screen.document(done)
    else:
        verb = "were published before" if done.already else "are published"
        sentences = [f"{_messages(done.rows)} {verb}."]
        if done.duplicates:
            why = "was dropped: its key" if done.duplicates == 1 else "were dropped: their keys"
            sentences.append(f"{_messages(done.duplicates)} {why} had been used.")
        sentences += map(settled_sentence, done.settled)
        session.screen.say(" ".join(sentences))


@remote("discard", _PARTS, YES, add_to=transaction)
@_NAME
def discard(session: Session, name: str, parts: tuple[str, ...], yes: bool) -> None:
    """Drop staged messages, after asking. What was published stays.

    Example: leasehold transaction discard import-2026-11-21
    """
    handle = session.client.transaction(name)
    if not yes:
        meant = _meant(handle.get(), parts, others="keep")
        session.confirm(f"Drop {meant} of transaction {name}?", yes=yes)
    done = handle.discard(parts or None)
    if session.screen.as_json:
        session.screen.document(done)
    elif done.published:
        session.screen.say("It had been published: nothing was dropped.")
    elif done.rows:
        session.screen.say(f"{_messages(done.rows)} dropped.")
    else:
        session.screen.say("Nothing is staged there: nothing was dropped.")


def _transaction_table(found: Iterable[TransactionInfo], now_ms: int) -> RenderableType:
    columns = (
        Column("TRANSACTION", cut=True, least=24),
        Column("STATE"),
        Column("MESSAGES", right=True),
        Column("PARTS", right=True, drop=1),
        Column("AGE", right=True, drop=3),
        Column("LEFT", right=True, drop=2),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            clean(each.name),
            state(each.state),
            number(each.rows),
            number(len(each.parts)) if each.parts else "",
            age(each.created_at_ms, now_ms),
            rough(max(0, each.until_ms - now_ms) // _MS),
        )
        for each in found
    ]
    return Listing(columns, rows) if rows else Text("There are no transactions.")


def _whole_transaction(found: TransactionInfo, now_ms: int) -> RenderableType:
    end = "forgotten" if found.state == "published" else "vanishes"
    rows: list[tuple[str, Cell]] = [
        ("state", state(found.state)),
        ("messages", number(found.rows)),
        *([("duplicates", f"{number(found.duplicates)} dropped")] if found.duplicates else []),
        ("begun", moment(found.created_at_ms, now_ms)),
        (end, moment(found.until_ms, now_ms)),
    ]
    parts: list[tuple[str, RenderableType]] = [(clean(found.name), facts(rows))]
    if found.parts:
        columns = (
            Column("PART", cut=True),
            Column("MESSAGES", right=True),
            Column("CHUNKS", right=True),
        )
        lines = [
            (clean(each.part) or "(no name)", number(each.rows), number(each.chunks))
            for each in found.parts
        ]
        parts.append(("Parts", Listing(columns, lines)))
    if found.claims:
        parts.append(("Claims", Text("\n").join(Text(_claim(each)) for each in found.claims)))
    return sections(*parts)


def _claim(bound: BoundClaim) -> str:
    return f"claim {bound.number} of {clean(bound.stream)} in {clean(bound.queue)}"


def _meant(found: TransactionInfo, parts: Iterable[str], others: str = "drop") -> str:
    """Return what is to be published or dropped, and what becomes of the other parts."""
    if not (wanted := set(parts)):
        return f"the {_messages(found.rows)}"
    many = sum(each.rows for each in found.parts if each.part in wanted)
    rest = sum(each.rows for each in found.parts if each.part not in wanted)
    named = ", ".join(clean(each) or "(no name)" for each in sorted(wanted))
    meant = f"the {_messages(many)} of part {named}"
    return f"{meant}, and {others} the {number(rest)} of other parts," if rest else meant


def _messages(many: int) -> str:
    return counted(many, "message")
