"""``leasehold stream``: consumers that work in numbered claims."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from leasehold.cli.messages import message_table
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
    repeated,
    rough,
    sections,
    size,
    state,
    times,
)
from leasehold.cli.remote import WATCH, YES, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import LENGTH, QUEUE, how_many
from leasehold.client.handles import Stream
from leasehold.client.models import (
    BoundClaim,
    ClaimInfo,
    Settled,
    StreamInfo,
    StreamSettled,
    TransactionInfo,
)

# --- claims ------------------------------------------------------------------------------------
#
# ``leasehold claim``: one claim, and what is in it.


STREAM: Final = click.argument("stream", metavar="STREAM")
NUMBER: Final = click.argument("number", metavar="NUMBER", type=click.IntRange(min=1))
_SHOWN: Final = 100
_MS: Final = 1000
_HIDING: Final = frozenset({"opening", "open", "parked"})
_MEANINGS: Final = {
    "opening": "it is still taking messages",
    "open": "a consumer works on it",
    "parked": "it is kept for a replay, although it is not extended",
    "lapsed": "it was not extended in time, and all consumers can receive its messages. Until "
    "one does, its own consumer can open it again",
    "broken": "other consumers have received some of its messages. Its own consumer can open it "
    "with the rest (accept_loss), or give it back",
}


@click.group("claim", cls=OrderedGroup)
def claim() -> None:
    """Show a claim, and read its messages."""


@remote("show", WATCH, add_to=claim)
@QUEUE
@STREAM
@NUMBER
def show_claim(
    session: Session, queue: str, stream: str, number: int, every_s: float | None
) -> None:
    """Show a claim: its state, its size, its end.

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
    help="Number of the part to read, from 0.",
)
@click.option(
    "--parts",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of equal parts.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Maximum number of messages; 0 shows all. Default: {_SHOWN}, or all with --json.",
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
    """Read the messages of a claim in order, without changing them.

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
        screen.hint("There may be more. Show all: --limit 0")


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


# --- streams -----------------------------------------------------------------------------------


_TOKEN: Final = click.Option(
    ["--token"],
    type=click.IntRange(min=1),
    metavar="N",
    help="Token of the consumer to act for. Default: the current one. The consumer is not "
    "interrupted.",
)


@click.group("stream", cls=OrderedGroup)
def stream() -> None:
    """Show streams of claims; settle, park and release claims."""


@remote("list", WATCH, add_to=stream)
@QUEUE
def list_streams(session: Session, queue: str, every_s: float | None) -> None:
    """List the streams of a queue by name.

    Example: leasehold stream list orders
    """
    session.present(
        session.queue(queue).streams,
        lambda found: _stream_table(found, session.now_ms),
        lambda found: found,
        every_s,
    )


@remote("show", WATCH, add_to=stream)
@QUEUE
@STREAM
def show(session: Session, queue: str, stream: str, every_s: float | None) -> None:
    """Show a stream: the last settled claim, and the claims after it.

    Example: leasehold stream show orders totals
    """
    session.present(
        session.queue(queue).stream(stream).get,
        lambda found: _whole_stream(found, session.now_ms),
        every_s=every_s,
    )


@remote("settle", _TOKEN, YES, add_to=stream)
@click.option(
    "--publish",
    metavar="NAME",
    multiple=True,
    help="Publish this transaction in the same step. Can be repeated.",
)
@QUEUE
@STREAM
@NUMBER
def settle(  # noqa: PLR0913 - click passes each option by its name
    session: Session,
    queue: str,
    stream: str,
    number: int,
    *,
    publish: tuple[str, ...],
    token: int | None,
    yes: bool,
) -> None:
    """Settle claims: complete the messages of all claims up to a number, after confirmation.

    The consumer does this itself. Use it for a consumer that is gone for good and whose results are
    safe.

    Example: leasehold stream settle orders totals 17
    """
    handle = session.queue(queue).stream(stream, token=token)
    found = _take_token(handle)
    meant = [each for each in found.claims if each.number <= number]
    many = sum(each.remaining for each in meant)
    session.confirm(
        f"Complete the {_messages(many)} of the claims up to {number} of stream {stream} for good?",
        yes=yes,
    )
    done = handle.settle(number, publish=publish)
    session.screen.result(done, _told(done))


@remote("park", _TOKEN, add_to=stream)
@click.option(
    "--for",
    "for_s",
    type=LENGTH,
    required=True,
    help="Time to keep the claim: seconds, or 90s, 5m, 2h, 7d.",
)
@QUEUE
@STREAM
@NUMBER
def park(  # noqa: PLR0913 - click passes each option by its name
    session: Session, queue: str, stream: str, number: int, *, for_s: int, token: int | None
) -> None:
    """Keep a claim for a replay, even if it is not extended.

    Example: leasehold stream park orders totals 17 --for 2d
    """
    handle = session.queue(queue).stream(stream, token=token)
    _take_token(handle)
    parked = handle.park(number, for_s)
    if session.screen.as_json:
        session.screen.document(parked)
    else:
        until = moment(parked.until_ms, session.now_ms)
        session.screen.say(f"Claim {number} of stream {stream} is kept until {until}.")


@remote("give-back", _TOKEN, YES, add_to=stream)
@QUEUE
@STREAM
@NUMBER
def give_back(  # noqa: PLR0913 - click passes each option by its name
    session: Session, queue: str, stream: str, number: int, *, token: int | None, yes: bool
) -> None:
    """Dissolve a claim, after confirmation. Its messages can be received again at once.

    Example: leasehold stream give-back orders totals 17
    """
    handle = session.queue(queue).stream(stream, token=token)
    _take_token(handle)
    many = handle.get_claim(number).remaining
    session.confirm(
        f"Give the {_messages(many)} of claim {number} of stream {stream} back to the queue?",
        yes=yes,
    )
    handle.give_back(number)
    session.screen.result(
        {"given_back": number}, f"Claim {number} of stream {stream} is dissolved."
    )


@remote("delete", YES, add_to=stream)
@QUEUE
@STREAM
def delete(session: Session, queue: str, stream: str, yes: bool) -> None:
    """Delete a stream, after confirmation. The messages of its claims go back to the queue.

    Example: leasehold stream delete orders totals
    """
    handle = session.queue(queue).stream(stream)
    if not yes:
        many = sum(each.remaining for each in handle.get().claims)
        session.confirm(
            f"Delete stream {stream} of queue {queue}, and give {_messages(many)} back?", yes=yes
        )
    handle.delete()
    session.screen.result({"deleted": stream}, f"Stream {stream} is deleted.")


def _take_token(handle: Stream) -> StreamInfo:
    """Let the handle act for the current consumer, unless it has been told for whom."""
    found = handle.get()
    if handle.token is None:
        handle.token = found.token
    return found


def _told(done: Settled) -> str:
    if done.already:
        return f"It was settled before, up to {done.last_settled}."
    sentence = f"Settled up to {done.last_settled}: {_messages(done.completed)} completed"
    if done.exempted:
        sentence += f", {number(done.exempted)} exempted"
    if done.lost:
        sentence += f", {number(done.lost)} had been lost to others"
    if done.published:
        sentence += f", {number(done.published)} published"
    beside = (settled_sentence(each) for each in done.beside)
    return " ".join((f"{sentence}.", *beside))


def _stream_table(found: Iterable[StreamInfo], now_ms: int) -> RenderableType:
    columns = (
        Column("STREAM"),
        Column("SETTLED", right=True),
        Column("CLAIMS", right=True),
        Column("MESSAGES", right=True),
        Column("STATES", cut=True),
        Column("ATTACHED", right=True, drop=1),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            clean(each.stream),
            str(each.last_settled),
            number(len(each.claims)),
            number(sum(claim.remaining for claim in each.claims)),
            ", ".join(dict.fromkeys(claim.state for claim in each.claims)),
            f"{age(each.attached_at_ms, now_ms)} ago",
        )
        for each in found
    ]
    return Listing(columns, rows) if rows else Text("The queue has no streams.")


def _whole_stream(found: StreamInfo, now_ms: int) -> RenderableType:
    settled = str(found.last_settled)
    if found.settled_with:
        settled += f", with transaction {clean(found.settled_with)}"
    rows: list[tuple[str, Cell]] = [
        ("settled up to", settled),
        ("attached", moment(found.attached_at_ms, now_ms)),
        ("token", str(found.token)),
    ]
    claims = claim_table(found.claims, now_ms) if found.claims else Text("none")
    return sections((clean(found.stream), facts(rows)), ("Claims", claims))


def _messages(many: int) -> str:
    return counted(many, "message")


# --- transactions ------------------------------------------------------------------------------
#
# ``leasehold transaction``: messages staged under a name.


_NAME: Final = click.argument("name", metavar="NAME")
_PARTS: Final = click.Option(
    ["--part", "parts"],
    metavar="PART",
    multiple=True,
    help="Publish this part only. Can be repeated.",
)


@click.group("transaction", cls=OrderedGroup)
def transaction() -> None:
    """Show, publish and discard staged messages."""


@remote("list", WATCH, add_to=transaction)
@click.option(
    "--state",
    "wanted",
    type=click.Choice(["staged", "published"]),
    help="Select transactions in this state.",
)
@how_many
def list_transactions(session: Session, wanted: Any, limit: int, every_s: float | None) -> None:
    """List transactions by name. Published ones are listed for a week.

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
def show_transaction(session: Session, name: str, every_s: float | None) -> None:
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
    """Publish staged messages, all at once, after confirmation.

    With --part the other parts are discarded. Duplicates of a deduplication key are discarded, too.
    Claims bound to the transaction are settled.

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
            why = "was discarded: its key" if done.duplicates == 1 else "were discarded: their keys"
            sentences.append(f"{_messages(done.duplicates)} {why} had been used.")
        sentences += map(settled_sentence, done.settled)
        session.screen.say(" ".join(sentences))


@remote("discard", _PARTS, YES, add_to=transaction)
@_NAME
def discard(session: Session, name: str, parts: tuple[str, ...], yes: bool) -> None:
    """Discard staged messages, after confirmation. Published messages stay.

    Example: leasehold transaction discard import-2026-11-21
    """
    handle = session.client.transaction(name)
    if not yes:
        meant = _meant(handle.get(), parts, others="keep")
        session.confirm(f"Discard {meant} of transaction {name}?", yes=yes)
    done = handle.discard(parts or None)
    if session.screen.as_json:
        session.screen.document(done)
    elif done.published:
        session.screen.say("The transaction is published: nothing was discarded.")
    elif done.rows:
        session.screen.say(f"{_messages(done.rows)} discarded.")
    else:
        session.screen.say("Nothing is staged under this name: nothing was discarded.")


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
        *([("duplicates", f"{number(found.duplicates)} discarded")] if found.duplicates else []),
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
    """Return what is to be published or discarded, and what becomes of the other parts."""
    if not (wanted := set(parts)):
        return f"the {_messages(found.rows)}"
    many = sum(each.rows for each in found.parts if each.part in wanted)
    rest = sum(each.rows for each in found.parts if each.part not in wanted)
    named = ", ".join(clean(each) or "(no name)" for each in sorted(wanted))
    meant = f"the {_messages(many)} of part {named}"
    return f"{meant}, and {others} the {number(rest)} of other parts," if rest else meant
