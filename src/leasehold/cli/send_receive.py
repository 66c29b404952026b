"""Commands that work with receipts: receive, complete, renew, release, bury."""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Final, TypeVar

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.output import (
    Cell,
    clean,
    counted,
    facts,
    moment,
    number,
    pairs,
    recognise,
    sections,
    size,
    times,
)
from leasehold.cli.remote import ExitCode, Session, error_members, print_problem, remote
from leasehold.cli.values import FRACTIONAL, LENGTH, QUEUE, TIME_TO_LIVE, Pair
from leasehold.client.errors import Forbidden, ServerProblem
from leasehold.client.models import (
    LeaseRef,
    MessageView,
    NewMessage,
    Progress,
    ReceivedMessage,
    Released,
    Sent,
)

_MESSAGE: Final = click.argument("message_id", metavar="ID")
_RECEIPT: Final = click.argument("receipt", metavar="RECEIPT")
_ERROR: Final = click.Option(["--error"], metavar="TEXT", help="Error text, kept with the message.")


@remote("receive")
@click.option(
    "--max",
    "max_messages",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=1,
    show_default=True,
    help="Maximum number of messages.",
)
@click.option(
    "--visibility-timeout",
    type=LENGTH,
    help="Length of the lease: seconds, or 90s, 5m, 2h. Default: the queue's setting.",
)
@click.option(
    "--wait", "wait_s", type=FRACTIONAL, default=0, help="Wait this long for a message, up to 60 s."
)
@click.option(
    "--holder", metavar="NAME", help="Name of the holder of the lease, shown with the message."
)
@click.option(
    "--session",
    "in_session",
    metavar="SESSION",
    help="Id of a live session. The leases end with it and have its holder.",
)
@click.option("--complete", is_flag=True, help="Complete the messages at once.")
@QUEUE
def receive(
    session: Session, queue: str, complete: bool, in_session: str | None, **given: Any
) -> None:
    """Receive messages, and print them with their receipts.

    They are leased: no other consumer receives them until the lease ends. Complete them when the
    work is done.

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
    help="Complete the messages in this file: lines of JSON with id and receipt, as message "
    "receive --json prints them. - means standard input.",
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
    """Complete a message: remove it when its work is done. Needs the receipt of its lease.

    Example: leasehold message receive orders --max 10 --json | leasehold message complete orders
    --file -
    """
    if (file is None) == (message_id is None) or (message_id is None) != (receipt is None):
        raise click.UsageError("There is no message. Type: an ID and its RECEIPT, or --file FILE")
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
    help="Progress of the work, 0 to 1.",
)
@click.option("--note", metavar="TEXT", help="Note about the work, shown with the message.")
@QUEUE
@_MESSAGE
@_RECEIPT
def renew(session: Session, queue: str, message_id: str, receipt: str, **given: Any) -> None:
    """Renew a lease, and print the new receipt. The old receipt becomes invalid.

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
    help="Reason. failed counts towards the queue's --max-failures.",
)
@click.option(
    "--delay",
    "delay_s",
    type=LENGTH,
    help="Time until the message is visible again. Default: the queue's back-off after a "
    "failure, otherwise 0.",
)
@QUEUE
@_MESSAGE
@_RECEIPT
def release(session: Session, queue: str, message_id: str, receipt: str, **given: Any) -> None:
    """Release a message, so that another worker can receive it.

    Example: leasehold message release orders ID RECEIPT --outcome failed --error "no such file"
    """
    _told(session, session.queue(queue).release(LeaseRef(message_id, receipt), **given))


@remote("bury", _ERROR)
@QUEUE
@_MESSAGE
@_RECEIPT
def bury(session: Session, queue: str, message_id: str, receipt: str, error: str | None) -> None:
    """Move a message to the poison queue at once, whatever its limits.

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
    session.screen.result(value, sentence)


# --- sending -----------------------------------------------------------------------------------
#
# ``leasehold send``: one message from the command line, or many from a file.


_Function = TypeVar("_Function", bound=Callable[..., Any])

_CHUNK: Final = 1_000
"""Messages of a file in one request."""
_SHOWN_REFUSALS: Final = 10
_ENCODED_BYTES: Final = 65_536
"""Larger bodies travel as they are: base64 would make them a third longer than a request may be."""
_NOT_BESIDE_RAW: Final = frozenset({"properties", "traceparent"})
"""What can be said only of a body in JSON."""
_MEMBERS: Final = frozenset(NewMessage.__struct_fields__) - {"body"}
_BODIES: Final = ("body", "body_base64", "json")
_SHOWN_BY_US: Final = frozenset(MessageView.__struct_fields__) | {"receipt"}
"""Members that ``message list --json`` has and that a new message begins without."""


def body_options(function: _Function) -> _Function:
    """Give a command the options that say what a body is; see :func:`given_body`."""
    encode = click.option(
        "--base64",
        "encode",
        is_flag=True,
        help="Encode the body in base64, for receivers that expect it.",
    )
    body = click.option("--body", metavar="TEXT|-", help="New body. - means standard input.")
    return body(encode(function))


def given_body(body: str | None, *, encode: bool) -> bytes | None:
    """Return the body that was given; - is standard input, less one line break at its end."""
    if body is None:
        return None
    raw = body.encode(errors="surrogateescape")
    if body == "-":
        raw = sys.stdin.buffer.read()
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    return base64.b64encode(raw) if encode else raw


@remote("send")
@click.option(
    "--file",
    type=click.File("rb"),
    metavar="FILE",
    help="Send one message per line of this file. - means standard input. Empty lines are skipped.",
)
@click.option(
    "--items",
    is_flag=True,
    help="With --file: read each line as a JSON object with body, body_base64 or json, and any "
    "of delay_s, time_to_live_s, priority, dedup_key, type, properties, traceparent, "
    "group_id and visibility_timeout_s. The output of message list --json has this form.",
)
@click.option("--base64", "encode", is_flag=True, help="Encode bodies in base64.")
@click.option(
    "--delay",
    "delay_s",
    type=LENGTH,
    help="Hide the message for this time: seconds, or 90s, 5m, 2h, 7d.",
)
@click.option(
    "--time-to-live",
    "time_to_live_s",
    type=TIME_TO_LIVE,
    help="Time until the message expires, or never. Default: 7d.",
)
@click.option(
    "--priority",
    type=click.IntRange(1, 16),
    metavar="N",
    help="Priority: 1 is received first, 16 last. Default: 8.",
)
@click.option(
    "--dedup-key",
    metavar="KEY",
    help="Deduplication key: a second message with this key is "
    "dropped within the queue's --dedup-window.",
)
@click.option(
    "--group",
    "group_id",
    metavar="GROUP",
    help="Message group, such as a tenant, an order or a device.",
)
@click.option("--type", metavar="TYPE", help="Type of the message, for filters and statistics.")
@click.option(
    "--visibility-timeout",
    "visibility_timeout_s",
    type=LENGTH,
    help="Length of its leases for receives that set none: seconds, or 90s, 5m, 2h. Default: "
    "that of its type or of the queue.",
)
@click.option(
    "--property",
    "properties",
    type=Pair(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a property of the message. Can be repeated.",
)
@click.option("--traceparent", metavar="TEXT", help="W3C trace context, such as 00-...")
@click.option(
    "--allow-empty",
    is_flag=True,
    help="Send a message with an empty body if standard input is empty.",
)
@click.argument("queue", metavar="QUEUE")
@click.argument("body", metavar="[BODY|-]", required=False)
def send(
    session: Session, queue: str, body: str | None, file: IO[bytes] | None, **given: Any
) -> None:
    """Send one message, or many from a file. The command returns when the server has stored them.

    Example: leasehold send orders '{"order": 17}' --delay 5m

    Example: leasehold send orders --file orders.ndjson
    """
    items, encode = given.pop("items"), given.pop("encode")
    allow_empty = given.pop("allow_empty")
    common = {name: value for name, value in given.items() if value not in {None, ()}}
    if "properties" in common:
        common["properties"] = dict(common["properties"])
    if file is not None:
        if body is not None:
            raise click.UsageError("BODY and --file exclude each other. Type one of them.")
        if "dedup_key" in common:
            raise click.UsageError(
                "--dedup-key and --file exclude each other: all messages but "
                "the first would be duplicates."
            )
        reader = _Lines(file, common, items=items, encode=encode)
        _send_many(session, queue, file, reader)
        return
    if items:
        raise click.UsageError("--items needs --file. Type: --file FILE")
    if body is None and sys.stdin.isatty():
        raise click.UsageError(f"There is no body. Type: leasehold send {shlex.quote(queue)} BODY")
    raw = given_body("-" if body is None else body, encode=encode)
    assert raw is not None
    if not raw and body in {None, "-"} and not allow_empty:
        raise click.UsageError(
            "There is no body: standard input is empty, so no message is sent. "
            f"Type: leasehold send {shlex.quote(queue)} BODY, with the queue first and then the "
            "body; or add --allow-empty to send an empty message"
        )
    handle = session.queue(queue)
    if len(raw) > _ENCODED_BYTES and not common.keys() & _NOT_BESIDE_RAW:
        _tell(session, queue, handle.put_body(raw, **common))
    else:
        _tell(session, queue, handle.put(raw, **common))


@dataclass(frozen=True, slots=True)
class _Lines:
    """Makes a message of each line of a file."""

    file: IO[bytes]
    common: Mapping[str, Any]
    items: bool
    encode: bool

    def __iter__(self) -> Iterator[tuple[int, int, NewMessage]]:
        """Yield the number of each line, how many bytes it has, and the message."""
        for place, line in enumerate(self.file, start=1):
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if text.strip():
                yield place, len(line), self._message(place, text)

    def _message(self, place: int, text: bytes) -> NewMessage:
        members = dict(self.common)
        body: str | bytes = text
        if self.items:
            body, own = _item(place, text)
            members |= own
        if self.encode:
            body = base64.b64encode(body.encode() if isinstance(body, str) else body)
        return NewMessage(body, **members)


def _item(place: int, text: bytes) -> tuple[bytes | str, dict[str, Any]]:
    """Read a line that is a JSON object; what is null is as if left out."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise click.UsageError(f"Line {place} is not a JSON object: {error}.") from None
    given = {name: value for name, value in given.items() if value is not None}
    unknown = given.keys() - _MEMBERS - _SHOWN_BY_US - set(_BODIES)
    if unknown:
        raise click.UsageError(f"Line {place}: a message has no member {min(unknown)!r}.")
    bodies = [name for name in _BODIES if name in given]
    if len(bodies) != 1:
        raise click.UsageError(f"Line {place}: give exactly one of {', '.join(_BODIES)}.")
    members = {name: given[name] for name in given.keys() & _MEMBERS}
    value = given[bodies[0]]
    if bodies[0] == "json":
        return msgspec.json.encode(value), members
    if not isinstance(value, str):
        raise click.UsageError(f"Line {place}: {bodies[0]} must be a text.")
    if bodies[0] == "body":
        return value, members
    try:
        return base64.b64decode(value, validate=True), members
    except ValueError:
        raise click.UsageError(f"Line {place}: body_base64 is not base64.") from None


def _send_many(session: Session, queue: str, file: IO[bytes], lines: _Lines) -> None:
    handle, screen = session.queue(queue), session.screen
    size = _size_of(file)
    done, duplicates = 0, 0
    refusals: list[tuple[int, ServerProblem]] = []
    with screen.progress(total_known=size is not None) as bar:
        task = bar.add_task(f"Sending to {queue}", total=size, note="")
        for chunk in _chunks(lines):
            try:
                results = handle.put_many([message for _, _, message in chunk])
            except Exception:
                screen.hint(
                    f"{counted(done, 'message')} {'was' if done == 1 else 'were'} put; "
                    f"line {chunk[0][0]} is the next."
                )
                raise
            for (place, _, _), result in zip(chunk, results, strict=True):
                if isinstance(result, ServerProblem):
                    refusals.append((place, result))
                else:
                    done += 1
                    duplicates += result.duplicate
                if screen.as_json:
                    screen.line(_as_line(place, result))
            steps = sum(bytes_of for _, bytes_of, _ in chunk) if size is not None else len(chunk)
            bar.update(task, advance=steps, note=f"{number(done)} put")
    _sum_up(session, done, duplicates, refusals)


def _chunks(
    lines: Iterable[tuple[int, int, NewMessage]],
) -> Iterator[list[tuple[int, int, NewMessage]]]:
    waiting = iter(lines)
    while chunk := list(islice(waiting, _CHUNK)):
        yield chunk


def _size_of(file: IO[bytes]) -> int | None:
    """Return how many bytes a file has, None for what has no end known beforehand."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def _sum_up(
    session: Session, done: int, duplicates: int, refusals: list[tuple[int, ServerProblem]]
) -> None:
    screen = session.screen
    sentence = f"{counted(done, 'message')} put"
    if duplicates:
        sentence += f", {number(duplicates)} of them sent before"
    screen.say(f"{sentence}, {number(len(refusals))} refused." if refusals else f"{sentence}.")
    if not refusals:
        return
    if not screen.as_json:
        for place, problem in refusals[:_SHOWN_REFUSALS]:
            screen.error(Text(f"Line {place}:"))
            print_problem(problem, screen)
        if len(refusals) > _SHOWN_REFUSALS:
            screen.hint(f"... and {number(len(refusals) - _SHOWN_REFUSALS)} more.")
    raise click.exceptions.Exit(ExitCode.REFUSED)


def _as_line(place: int, result: Sent | ServerProblem) -> dict[str, Any]:
    if isinstance(result, ServerProblem):
        return {"line": place, "error": error_members(result)}
    return {"line": place, **msgspec.to_builtins(result)}


def _tell(session: Session, queue: str, put: Sent) -> None:
    if session.screen.as_json:
        session.screen.document(put)
        return
    rows: list[tuple[str, Cell]] = [("id", put.id), ("queue", queue)]
    if put.duplicate:
        rows.append(("duplicate", "yes: this key was sent before"))
    if put.visible_at_ms > session.now_ms:
        rows.append(("visible", moment(put.visible_at_ms, session.now_ms)))
    rows += [("expires", moment(put.expires_at_ms, session.now_ms)), ("receipt", put.receipt)]
    session.screen.show(facts(rows))
