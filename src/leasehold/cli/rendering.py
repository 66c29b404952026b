"""What all commands share of their output: tables and facts for people, JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any, Final

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.style import Style
from rich.table import Table
from rich.text import Text

from leasehold.cli.listing import Cell
from leasehold.cli.texts import Body, recognise
from leasehold.client.models import PeekedMessage

STATE_STYLES: Final = {
    "visible": "green",
    "leased": "cyan",
    "delayed": "blue",
    "deferred": "yellow",
    "poisoned": "red",
    "staged": "magenta",
    "expired": "bright_black",
    "running": "cyan",
    "canary": "yellow",
    "done": "green",
    "stopped": "red",
    "live": "green",
    "lost": "red",
    "opening": "blue",
    "open": "cyan",
    "parked": "yellow",
    "lapsed": "yellow",
    "broken": "red",
    "published": "green",
}
"""One colour for each state, the same in every table; a word always stands beside it."""

_PIPE_WIDTH: Final = 1_000
"""Columns where nobody looks on: nothing is cut for want of room."""
_SHOWN_IN_PIPE: Final = 100
_DIM: Final = Style(dim=True)


class Screen:
    """Where a command writes: the results to standard output, all else to standard error."""

    def __init__(self, *, as_json: bool, no_color: bool) -> None:
        self.as_json = as_json
        chosen = True if no_color else None
        # Made when a command runs, so that it writes to what standard output is by then.
        self.out = _console(sys.stdout, chosen)
        self.err = _console(sys.stderr, chosen)

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at the results."""
        return self.out.is_terminal

    def show(self, what: RenderableType) -> None:
        """Print a result for people."""
        if self.is_terminal:
            self.out.print(what)
            return
        with self.out.capture() as written:
            self.out.print(what)
        # Tables fill their lines with blanks, which a pipe or a file does not need.
        click.echo("\n".join(line.rstrip() for line in written.get().splitlines()))

    def say(self, text: str) -> None:
        """Print a sentence for people; nothing in JSON mode."""
        if not self.as_json:
            self.out.print(Text(text), soft_wrap=not self.is_terminal)

    def row(self, text: Text) -> None:
        """Print one of many lines, never cut: there are ids in it that people copy."""
        if self.is_terminal:
            self.out.print(text, soft_wrap=True)
        else:
            click.echo(text.plain.rstrip())

    def hint(self, text: str) -> None:
        """Print what helps a person and is no result, to standard error."""
        if not self.as_json:
            self.err.print(Text(text, style=_DIM), soft_wrap=not self.err.is_terminal)

    def plan(self, title: str, rows: RenderableType) -> None:
        """Print what a command is about to do, to standard error."""
        if self.err.is_terminal:
            self.err.print(Text(title, "bold"))
            self.err.print(rows)
            return
        with self.err.capture() as written:
            self.err.print(rows)
        lines = [title, *(line.rstrip() for line in written.get().splitlines())]
        click.echo("\n".join(lines), err=True)

    def error(self, text: Text) -> None:
        """Print a line about what went wrong, to standard error."""
        self.err.print(text, soft_wrap=not self.err.is_terminal)

    def error_line(self, value: object) -> None:
        """Print what went wrong as one line of JSON, to standard error."""
        click.echo(_compact(value), err=True)

    def document(self, value: object) -> None:
        """Print one JSON document."""
        click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))

    def line(self, value: object) -> None:
        """Print one line of newline-delimited JSON."""
        click.echo(_compact(value))

    def progress(self, *, total_known: bool = True) -> Progress:
        """Return a progress bar on standard error, shown only where a person sees it."""
        columns: list[str | ProgressColumn] = [TextColumn("{task.description}")]
        if total_known:
            columns += [BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[note]}")]
            columns += [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
        else:
            columns += [BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")]
            columns += [TimeElapsedColumn()]
        hidden = self.as_json or not self.err.is_terminal
        return Progress(*columns, console=self.err, transient=True, disable=hidden)


def _console(file: IO[str], no_color: bool | None) -> Console:
    console = Console(
        file=file, no_color=no_color, highlight=False, markup=False, emoji=False, soft_wrap=False
    )
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _compact(value: object) -> str:
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def plain(value: object) -> Any:
    """Return a model as JSON has it on the wire: bodies as text, or base64 if they are not."""
    if isinstance(value, PeekedMessage):
        members: dict[str, Any] = msgspec.to_builtins(value)
        shown = _plain_body(value.body, members.pop("body"))
        if value.body_problem is None:
            del members["body_problem"]
        else:
            # Nobody should take it for an empty one.
            shown = {"body_problem": members.pop("body_problem")}
        return {"id": members.pop("id"), **shown, **members}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return msgspec.to_builtins(value)


def _plain_body(body: bytes, encoded: str) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": encoded}


def facts(rows: Iterable[tuple[str, Cell]], *, indent: int = 0) -> RenderableType:
    """Return names with what they stand for, one a line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, cell in rows:
        # Never a plain str: rich would take what stands in square brackets as its markup.
        grid.add_row(Text(name, style=_DIM), Text(cell) if isinstance(cell, str) else cell)
    return Padding(grid, (0, 0, 0, indent)) if indent else grid


def sections(*parts: tuple[str, RenderableType]) -> RenderableType:
    """Return parts under headings, a blank line between them."""
    lines: list[RenderableType] = []
    for place, (heading, part) in enumerate(parts):
        if place:
            lines.append(Text())
        lines += [Text(heading, style="bold"), Padding(part, (0, 0, 0, 2))]
    return Group(*lines)


def state(name: str) -> Text:
    """Return a state in its colour."""
    return Text(name, style=STATE_STYLES.get(name, ""))


def body_cell(body: bytes, *, full_width: bool) -> Text:
    """Return a body on one line; that it was base64 is said in front of it."""
    found: Body = recognise(body)
    shown = found.line()
    if not full_width and len(shown) > _SHOWN_IN_PIPE:
        shown = shown[: _SHOWN_IN_PIPE - 1] + "…"
    if found.is_base64 or found.kind in {"binary", "empty"}:
        kind = "base64" if found.is_base64 else found.kind
        return Text.assemble((f"[{kind}] " if shown else f"[{kind}]", _DIM), shown)
    return Text(shown)
