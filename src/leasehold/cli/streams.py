"""``leasehold stream``: consumers that work in numbered claims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click
from rich.console import RenderableType
from rich.text import Text

from leasehold.cli.claims import NUMBER, STREAM, claim_table, settled_sentence
from leasehold.cli.lazy import OrderedGroup
from leasehold.cli.listing import Cell, Column, Listing
from leasehold.cli.queues import QUEUE
from leasehold.cli.remote import WATCH, YES, remote
from leasehold.cli.rendering import facts, sections
from leasehold.cli.session import Session
from leasehold.cli.texts import age, clean, counted, moment, number
from leasehold.cli.values import LENGTH
from leasehold.client.handles import Stream
from leasehold.client.models import Settled, StreamInfo

_TOKEN: Final = click.Option(
    ["--token"],
    type=click.IntRange(min=1),
    metavar="N",
    help="The token of the consumer to act for. Unless told, the current one; the consumer goes "
    "on undisturbed.",
)


@click.group("stream", cls=OrderedGroup)
def stream() -> None:
    """Look at streams of claims; settle, park and give back claims."""


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
    """Show a stream: up to where it is settled, and the claims after that.

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
    help="Publish this transaction with it; may be given more than once.",
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
    """Complete all messages of all claims up to a number, after asking.

    It is what the consumer does itself; use it for one that is gone for good and whose results
    are safe.

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
    if session.screen.as_json:
        session.screen.document(done)
    else:
        session.screen.say(_told(done))


@remote("park", _TOKEN, add_to=stream)
@click.option(
    "--for",
    "for_s",
    type=LENGTH,
    required=True,
    help="How long it is kept: seconds, or 90s, 5m, 2h, 7d.",
)
@QUEUE
@STREAM
@NUMBER
def park(  # noqa: PLR0913 - click passes each option by its name
    session: Session, queue: str, stream: str, number: int, *, for_s: int, token: int | None
) -> None:
    """Keep a claim for a replay although nobody extends it.

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
    """Dissolve a claim, after asking: its messages can be received again at once.

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
    if session.screen.as_json:
        session.screen.document({"given_back": number})
    else:
        session.screen.say(f"Claim {number} of stream {stream} is dissolved.")


@remote("delete", YES, add_to=stream)
@QUEUE
@STREAM
def delete(session: Session, queue: str, stream: str, yes: bool) -> None:
    """Forget a stream, after asking; its claims are given back to the queue.

    Example: leasehold stream delete orders totals
    """
    handle = session.queue(queue).stream(stream)
    if not yes:
        many = sum(each.remaining for each in handle.get().claims)
        session.confirm(
            f"Forget stream {stream} of queue {queue}, and give {_messages(many)} back?", yes=yes
        )
    handle.delete()
    if session.screen.as_json:
        session.screen.document({"deleted": stream})
    else:
        session.screen.say(f"Stream {stream} is forgotten.")


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
