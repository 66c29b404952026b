"""``leasehold send``: one message from the command line, or many from a file."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Final, TypeVar

import click
import msgspec
from rich.text import Text

from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.failures import error_members, print_problem
from leasehold.cli.listing import Cell
from leasehold.cli.remote import remote
from leasehold.cli.rendering import facts
from leasehold.cli.session import Session
from leasehold.cli.texts import counted, moment, number
from leasehold.cli.values import LENGTH, TIME_TO_LIVE, Pair
from leasehold.client.errors import ServerProblem
from leasehold.client.models import MessageView, NewMessage, Sent

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
        help="Encode the body in base64 first, for receivers that expect that.",
    )
    body = click.option("--body", metavar="TEXT|-", help="The new body; - is standard input.")
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
    help="Put one message for each line of this file; - is standard input. Empty lines are passed "
    "over.",
)
@click.option(
    "--items",
    is_flag=True,
    help="With --file: each line is a JSON object with body, body_base64 or json, and any of "
    "delay_s, time_to_live_s, priority, dedup_key, type, properties and traceparent. What message "
    "list --json prints will do.",
)
@click.option("--base64", "encode", is_flag=True, help="Encode bodies in base64 first.")
@click.option(
    "--delay", "delay_s", type=LENGTH, help="Hide it so long: seconds, or 90s, 5m, 2h, 7d."
)
@click.option(
    "--time-to-live",
    "time_to_live_s",
    type=TIME_TO_LIVE,
    help="It expires after so long; 7 days unless told.",
)
@click.option(
    "--priority",
    type=click.IntRange(1, 16),
    metavar="N",
    help="1 is received first, 16 last; 8 unless told.",
)
@click.option(
    "--dedup-key", metavar="KEY", help="A second message with this key is not put for a while."
)
@click.option("--type", metavar="TYPE", help="What kind of work it is.")
@click.option(
    "--property",
    "properties",
    type=Pair(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Travels with the body; may be given more than once.",
)
@click.option("--traceparent", metavar="TEXT", help="W3C trace context, 00-...")
@click.option(
    "--allow-empty",
    is_flag=True,
    help="Put a message with an empty body where standard input has nothing.",
)
@click.argument("queue", metavar="QUEUE")
@click.argument("body", metavar="[BODY|-]", required=False)
def send(
    session: Session, queue: str, body: str | None, file: IO[bytes] | None, **given: Any
) -> None:
    """Put one message, or many from a file. When this ends they are on the server's disk.

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
            raise click.UsageError("Give a BODY or a --file, not both.")
        if "dedup_key" in common:
            raise click.UsageError("With one --dedup-key, all but the first would be duplicates.")
        reader = _Lines(file, common, items=items, encode=encode)
        _send_many(session, queue, file, reader)
        return
    if items:
        raise click.UsageError("--items says what the lines of a --file are.")
    if body is None and sys.stdin.isatty():
        raise click.UsageError("Give a BODY, or - to read it from standard input.")
    raw = given_body("-" if body is None else body, encode=encode)
    assert raw is not None
    if not raw and body in {None, "-"} and not allow_empty:
        raise click.UsageError(
            "Standard input has nothing, so nothing is put: the command before may have failed. "
            "For a message with an empty body add --allow-empty."
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
        sentence += f", {number(duplicates)} of them there before"
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
        rows.append(("duplicate", "yes: the message put before with this key"))
    if put.visible_at_ms > session.now_ms:
        rows.append(("visible", moment(put.visible_at_ms, session.now_ms)))
    rows += [("expires", moment(put.expires_at_ms, session.now_ms)), ("receipt", put.receipt)]
    session.screen.show(facts(rows))
