"""Commands that work with receipts: receive, complete, renew, release, bury."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.failures import error_members, print_problem
from leasehold.cli.listing import Cell
from leasehold.cli.remote import remote
from leasehold.cli.rendering import facts, sections
from leasehold.cli.session import Session
from leasehold.cli.texts import clean, counted, moment, pairs, recognise, size, times
from leasehold.cli.values import FRACTIONAL, LENGTH
from leasehold.client.errors import Forbidden, ServerProblem
from leasehold.client.models import LeaseRef, Progress, ReceivedMessage, Released

QUEUE: Final = click.argument("queue", metavar="QUEUE")
_MESSAGE: Final = click.argument("message_id", metavar="ID")
_RECEIPT: Final = click.argument("receipt", metavar="RECEIPT")
_ERROR: Final = click.Option(
    ["--error"], metavar="TEXT", help="What went wrong; kept with the message."
)


@remote("receive")
@click.option(
    "--max",
    "max_messages",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=1,
    show_default=True,
    help="How many at most.",
)
@click.option(
    "--visibility-timeout",
    type=LENGTH,
    help="Length of the lease: seconds, or 90s, 5m, 2h. Unless told, what is set for the queue.",
)
@click.option(
    "--wait", "wait_s", type=FRACTIONAL, default=0, help="Wait so long for a message, up to 60 s."
)
@click.option("--holder", metavar="NAME", help="Who you are, for those who look at the message.")
@click.option(
    "--session",
    "in_session",
    metavar="SESSION",
    help="Id of a live session, with which the leases end; its holder is theirs.",
)
@click.option("--complete", is_flag=True, help="Complete the messages at once.")
@QUEUE
def receive(
    session: Session, queue: str, complete: bool, in_session: str | None, **given: Any
) -> None:
    """Take messages on a lease, and print them with their receipts.

    Nobody else sees them until the lease ends. Complete them when the work is done.

    Example: leasehold message receive orders --max 5 --visibility-timeout 10m
    """
    handle, screen = session.queue(queue), session.screen
    timeout_s = given.pop("visibility_timeout")
    found = handle.receive(visibility_timeout_s=timeout_s, session=in_session, **given)
    if screen.as_json:
        # Before they are completed: if that fails, at least their bodies are not lost.
        for each in found:
            screen.line(each)
    elif not found:
        # First asked, then said: a wait that ends because the server stops finds nothing either.
        why = _why_nothing(session, queue)
        screen.say("There is nothing to receive.")
        if why is not None:
            screen.hint(why)
    else:
        screen.show(Group(*(_received(each, session.now_ms) for each in found)))
        if not complete:
            names = (found[0].id, found[0].receipt) if len(found) == 1 else ("ID", "RECEIPT")
            screen.hint(
                f"When the work is done: leasehold message complete {queue} {' '.join(names)}"
            )
    if complete and found:
        results = handle.complete_many(found)
        _finish(session, found, results, "completed")


@remote("complete")
@click.option(
    "--file",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Complete the messages in this file, one line of JSON each with id and receipt, as "
    "message receive --json prints them; - is standard input.",
)
@QUEUE
@click.argument("message_id", metavar="[ID]", required=False)
@click.argument("receipt", metavar="[RECEIPT]", required=False)
def complete(
    session: Session,
    queue: str,
    message_id: str | None,
    receipt: str | None,
    file: IO[str] | None,
) -> None:
    """Remove a message whose work is done, given the receipt of its lease.

    Example: leasehold message receive orders --max 10 --json | leasehold message complete orders
    --file -
    """
    if (file is None) == (message_id is None) or (message_id is None) != (receipt is None):
        raise click.UsageError("Give an ID and its RECEIPT, or a --file of them.")
    if file is not None:
        items = _read_leases(file)
        _finish(session, items, session.queue(queue).complete_many(items), "completed")
        return
    assert message_id is not None
    assert receipt is not None
    session.queue(queue).complete(LeaseRef(message_id, receipt))
    _say(session, {"id": message_id}, f"Message {message_id} is completed.")


@remote("renew")
@click.option(
    "--for",
    "for_s",
    type=LENGTH,
    required=True,
    help="Length of the lease from now on: seconds, or 90s, 5m, 2h.",
)
@click.option(
    "--progress",
    type=click.FloatRange(0, 1),
    metavar="NUMBER",
    help="How far the work has come, 0 to 1.",
)
@click.option("--note", metavar="TEXT", help="What is being done, for those who look.")
@QUEUE
@_MESSAGE
@_RECEIPT
def renew(session: Session, queue: str, message_id: str, receipt: str, **given: Any) -> None:
    """Move the end of a lease, and print the new receipt. The old one is dead.

    Example: leasehold message renew orders ID RECEIPT --for 10m --progress 0.4
    """
    progress = None
    if given["progress"] is not None or given["note"] is not None:
        progress = Progress(given["progress"], given["note"])
    lease = session.queue(queue).renew(
        LeaseRef(message_id, receipt), given["for_s"], progress=progress
    )
    if session.screen.as_json:
        session.screen.document(lease)
        return
    rows: list[tuple[str, Cell]] = [
        ("id", lease.id),
        ("receipt", lease.receipt),
        ("leased until", moment(lease.visible_at_ms, session.now_ms)),
    ]
    session.screen.show(facts(rows))


@remote("release", _ERROR)
@click.option(
    "--outcome",
    type=click.Choice(["returned", "failed", "interrupted"]),
    default="returned",
    show_default=True,
    help="Why: failed counts against the queue's budget of failures.",
)
@click.option(
    "--delay",
    "delay_s",
    type=LENGTH,
    help="Time until it can be received again. Unless told, the queue's back-off after a failure, "
    "and none otherwise.",
)
@QUEUE
@_MESSAGE
@_RECEIPT
def release(session: Session, queue: str, message_id: str, receipt: str, **given: Any) -> None:
    """Give a message back, so that somebody else can work on it.

    Example: leasehold message release orders ID RECEIPT --outcome failed --error "no such file"
    """
    _told(session, session.queue(queue).release(LeaseRef(message_id, receipt), **given))


@remote("bury", _ERROR)
@QUEUE
@_MESSAGE
@_RECEIPT
def bury(session: Session, queue: str, message_id: str, receipt: str, error: str | None) -> None:
    """Send a message to the poison queue at once, whatever its budgets say.

    Example: leasehold message bury orders ID RECEIPT --error "not an order"
    """
    _told(session, session.queue(queue).bury(LeaseRef(message_id, receipt), error))


def _received(found: ReceivedMessage, now_ms: int) -> RenderableType:
    body = recognise(found.body)
    rows: list[tuple[str, Cell]] = [
        ("receipt", found.receipt),
        ("leased", f"until {moment(found.visible_at_ms, now_ms)}"),
    ]
    if found.session is not None:
        rows.append(("session", clean(found.session)))
    rows += [("received", times(found.dequeue_count)), ("fence", str(found.fence))]
    if found.type:
        rows.append(("type", clean(found.type)))
    if found.properties:
        rows.append(("properties", pairs(found.properties)))
    rows.append(("body", f"{body.kind}, {size(len(found.body))}"))
    parts = sections((found.id, Group(facts(rows), Text(body.pretty()))))
    return Group(parts, Text())


def _why_nothing(session: Session, queue: str) -> str | None:
    """Return why nothing came; None if this caller may not ask."""
    try:
        return clean(session.queue(queue).explain().sentence)
    except Forbidden:
        return None


def _read_leases(file: IO[str]) -> list[LeaseRef]:
    found = []
    for place, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            members = json.loads(line)
            found.append(LeaseRef(members["id"], members["receipt"]))
        except (ValueError, KeyError, TypeError):
            raise click.UsageError(
                f"Line {place} is not a JSON object with id and receipt."
            ) from None
    return found


def _finish(
    session: Session,
    items: Sequence[LeaseRef | ReceivedMessage],
    results: Sequence[object],
    verb: str,
) -> None:
    """Say what became of many messages; exit code 1 if any was refused."""
    screen = session.screen
    refused = 0
    for item, result in zip(items, results, strict=True):
        if not isinstance(result, ServerProblem):
            continue
        refused += 1
        if screen.as_json:
            screen.error_line({"id": item.id, "error": error_members(result)})
        else:
            screen.error(Text(item.id))
            print_problem(result, screen)
    done = len(items) - refused
    screen.hint(f"{counted(done, 'message')} {verb}.")
    if refused:
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _told(session: Session, given_back: Released) -> None:
    when = moment(given_back.visible_at_ms, session.now_ms)
    sentence = f"Message {given_back.id} can be received from {when} on."
    if given_back.poisoned:
        sentence = (
            f"Message {given_back.id} went to the poison queue, because of "
            f"{clean(given_back.poisoned)}."
        )
    _say(session, given_back, sentence)


def _say(session: Session, value: object, sentence: str) -> None:
    if session.screen.as_json:
        session.screen.document(value)
    else:
        session.screen.say(sentence)
