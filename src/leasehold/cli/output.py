"""What all commands share of their output: tables and facts for people, JSON for scripts."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple, TypeAlias

import click
import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
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

from leasehold.client.models import Explanation, PeekedMessage
from leasehold.domain.model import NEVER_MS
from leasehold.domain.wording import form_of, future, length_of, past, time_of, times_of

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
"""Columns where no person looks on: nothing is cut for want of room."""
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

    def result(self, document: object, sentence: str) -> None:
        """Print what was done: as JSON, or in a sentence for people."""
        if self.as_json:
            self.document(document)
        self.say(sentence)

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
            # It must not be taken for an empty one.
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


# --- listing -----------------------------------------------------------------------------------
#
# Tables that fit the terminal: they cut one column, or leave some out, before they wrap.


Cell: TypeAlias = str | Text

_RULE: Final = "─"


class Column(NamedTuple):
    """A column of a listing."""

    title: str
    right: bool = False
    """Aligned at its right end, as numbers are."""
    cut: bool = False
    """Shown as far as there is room; all others are shown in full or not at all."""
    drop: int = 0
    """Left out if room is short, the lowest first; 0: never."""
    least: int = 16
    """Columns of the terminal that it keeps at least when it is cut."""
    width: int = 0
    """Columns of the terminal that it has at least, also when it is empty: what is drawn again and
    again is not to move sideways."""


class Listing:
    """Rows under heads; columns that are empty are not shown.

    Args:
        columns: What the cells of each row stand under.
        rows: The cells.
        foot: Sums, under a line of their own.
        under: A sentence of any length for each row, shown below it.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Cell]],
        *,
        foot: Sequence[Cell] | None = None,
        under: Sequence[str] | None = None,
    ) -> None:
        self._columns = columns
        # Never a plain str: rich would take what stands in square brackets as its markup.
        self._rows = [[_text(cell) for cell in row] for row in rows]
        self._foot = None if foot is None else [_text(cell) for cell in foot]
        self._under = under

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, for the width that there is."""
        del console
        return self.lines(options.max_width)

    def lines(self, room: int) -> Iterator[RenderableType]:
        """Yield the lines: heads, a rule, the rows, what stands below them."""
        shown, widths, gap = self._fitted(room)
        heads = [Text(column.title, style="bold") for column in self._columns]
        rule = Text(_RULE * (sum(widths) + gap * (len(shown) - 1)), style="dim")
        yield self._line(heads, shown, widths, gap)
        yield rule
        for place, row in enumerate(self._rows):
            yield self._line(row, shown, widths, gap)
            if self._under is not None:
                yield Padding(Text(self._under[place], style="dim"), (0, 0, 0, 4))
        if self._foot is not None:
            yield rule
            yield self._line(self._foot, shown, widths, gap)

    def _fitted(self, room: int) -> tuple[list[int], list[int], int]:
        """Choose the columns, their widths, and the blanks between them."""
        natural = [self._width(place) for place in range(len(self._columns))]
        shown = [place for place, width in enumerate(natural) if width]
        needed = {place: self._least(place, natural[place]) for place in shown}
        for gap, chosen in self._attempts(shown):
            total = sum(needed[place] for place in chosen) + gap * (len(chosen) - 1)
            if total <= room:
                break
        spare = max(0, room - total)
        widths = []
        for place in chosen:
            more = min(spare, natural[place] - needed[place])
            widths.append(needed[place] + more)
            spare -= more
        return chosen, widths, gap

    def _attempts(self, shown: list[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield ever narrower choices: first less space between columns, then fewer of them."""
        yield 2, shown
        yield 1, shown
        for place in sorted(shown, key=lambda place: self._columns[place].drop):
            if self._columns[place].drop:
                shown = [each for each in shown if each != place]
                yield 2, shown
                yield 1, shown

    def _least(self, place: int, natural: int) -> int:
        column = self._columns[place]
        return min(natural, column.least) if column.cut else natural

    def _width(self, place: int) -> int:
        """Return how wide a column would like to be, 0 if nothing stands in it."""
        cells = [row[place].cell_len for row in self._rows]
        if not any(cells):
            return self._columns[place].width
        foot = self._foot[place].cell_len if self._foot is not None else 0
        return max(foot, len(self._columns[place].title), self._columns[place].width, *cells)

    def _line(self, cells: Sequence[Text], shown: list[int], widths: list[int], gap: int) -> Text:
        line = Text(no_wrap=True, overflow="crop")
        for place, width in zip(shown, widths, strict=True):
            cell = cells[place].copy()
            cell.truncate(width, overflow="ellipsis")
            pad = " " * (width - cell.cell_len)
            if line:
                line.append(" " * gap)
            right = self._columns[place].right
            line.append_text(Text.assemble(*((pad, cell) if right else (cell, pad))))
        line.rstrip()
        return line


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


# --- texts -------------------------------------------------------------------------------------
#
# Numbers, times and bodies as people read them in a terminal. Pure functions.


_MS: Final = 1000
_SHORT_S: Final = 10
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_KIB: Final = 1024
_MIN_BASE64: Final = 8
_QUAD: Final = 4
_CUT: Final = 300
"""Characters of a body that a line can show at most; terminals cut the rest."""


def clean(text: str) -> str:
    r"""Return the text of a client on one line, safe to print.

    White space becomes single blanks. What is not printable, such as the codes that move a
    terminal's cursor or turn the direction of writing, is shown as ``\x1b``.
    """
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(map(_visible, line))


def clean_lines(text: str) -> str:
    """Return the text of a client safe to print, with its line breaks."""
    lines = text.expandtabs(4).splitlines()
    return "\n".join("".join(map(_visible, line)) for line in lines)


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else char.encode("unicode_escape").decode("ascii")


def number(value: float) -> str:
    """Return a number with its thousands parted: ``12,345``."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}"


def counted(many: float, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun in the right form: ``1 message``, ``12,345 messages``."""
    return f"{number(many)} {form_of(many, noun, plural)}"


def length(length_s: float) -> str:
    """Return a length of time: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 d 4 h``."""
    if 0 < length_s < _SHORT_S and length_s != int(length_s):
        return f"{length_s:.1f} s" if length_s >= 0.1 else "<0.1 s"  # noqa: PLR2004 - as shown
    return "0 s" if length_s < 1 else length_of(int(length_s) * _MS)


def rough(length_s: float) -> str:
    """Return a length of time in one unit, for tables: ``0.4 s``, ``95 s``, ``12 min``, ``3 d``."""
    if length_s < _SHORT_S:
        return length(max(length_s, 0))
    for unit_s, name in _UNITS:
        if length_s >= 2 * unit_s:
            return f"{int(length_s / unit_s):,} {name}"
    return f"{int(length_s)} s"


def age(since_ms: int, now_ms: int) -> str:
    """Return roughly how long ago it was; clocks that differ make it no less than nothing."""
    return rough(max(0, now_ms - since_ms) // _MS)


def moment(at_ms: int | None, now_ms: int) -> str:
    """Return a moment and how far it is from now: ``2026-11-21T10:59:11Z (3 h 12 min ago)``."""
    if at_ms is None or at_ms >= NEVER_MS:
        return "never"
    if at_ms > now_ms:
        return future(at_ms, now_ms)
    return time_of(at_ms) if now_ms - at_ms < _MS else past(at_ms, now_ms)


def size(size_bytes: int) -> str:
    """Return a size: ``812 bytes``, ``3.4 KiB``, ``16 MiB``."""
    if size_bytes < _KIB:
        return counted(size_bytes, "byte")
    unit_bytes, name = (_KIB, "KiB") if size_bytes < _KIB * _KIB else (_KIB * _KIB, "MiB")
    return f"{size_bytes / unit_bytes:,.1f}".removesuffix(".0") + f" {name}"


def per_second(rate: float) -> str:
    """Return a rate with as many digits as say something: ``0.25``, ``3.1``, ``1,240``."""
    if rate == 0:
        return "0"
    for least, digits in ((100, 0), (10, 1), (0.01, 2)):
        if rate >= least:
            return f"{rate:,.{digits}f}"
    return "<0.01"


def times(many: int) -> str:
    """Return how often something happened: ``never``, ``once``, ``1,200 times``."""
    if many > 2:  # noqa: PLR2004 - for which there are words
        return f"{number(many)} times"
    return times_of(many) if many else "never"


def repeated(many: int, verb: str) -> str:
    """Return how often something was done: ``not renewed``, ``renewed twice``."""
    return f"{verb} {times(many)}" if many else f"not {verb}"


def pairs(values: Mapping[str, str]) -> str:
    """Return names with values: ``team=shipping, tier=2``."""
    return clean(", ".join(f"{name}={value}" for name, value in values.items()))


class Body(NamedTuple):
    """A body, recognised."""

    kind: str
    """``text``, ``JSON``, ``base64 of text``, ``base64 of JSON``, ``binary`` or ``empty``."""
    text: str
    """What it says, decoded; of a binary one its first bytes."""

    @property
    def is_base64(self) -> bool:
        """Whether the text stands in the body as base64."""
        return self.kind.startswith("base64")

    def line(self) -> str:
        """Return it on one line, cut."""
        return clean(self.text[:_CUT]) + ("…" if len(self.text) > _CUT else "")

    def pretty(self) -> str:
        """Return it on as many lines as it has, JSON indented."""
        if self.kind.endswith("JSON"):
            return clean_lines(json.dumps(json.loads(self.text), indent=2, ensure_ascii=False))
        return clean_lines(self.text)


def recognise(body: bytes) -> Body:
    """Tell what a body is.

    Senders differ in whether they encode bodies in base64 (the SDKs for Azure have it as an
    option), so a body that is base64 of readable text is shown as that text.
    """
    if not body:
        return Body("empty", "")
    text = _readable(body)
    if text is None:
        shown = body[:32].hex(" ")
        return Body("binary", f"{shown} …" if len(body) > 32 else shown)  # noqa: PLR2004 - as above
    decoded = _from_base64(body)
    if decoded is not None:
        return Body("base64 of JSON" if _is_json(decoded) else "base64 of text", decoded)
    return Body("JSON" if _is_json(text) else "text", text)


def _readable(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _from_base64(body: bytes) -> str | None:
    stripped = body.strip()
    if len(stripped) < _MIN_BASE64 or len(stripped) % _QUAD:
        return None
    try:
        text = _readable(base64.b64decode(stripped, validate=True))
    except binascii.Error:
        return None
    if text is None or not all(char.isprintable() or char.isspace() for char in text):
        return None
    return text


def _is_json(text: str) -> bool:
    """Tell whether it is an object or a list: numbers and words are text to people."""
    if text.lstrip()[:1] not in {"{", "["}:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# --- explanations ------------------------------------------------------------------------------
#
# Why something is as it is: a sentence, and the facts behind it.


_FACT_UNITS: Final[Mapping[str, Callable[[float, int], str]]] = {
    "_ms": lambda value, now_ms: moment(int(value), now_ms),
    "_per_s": lambda value, _now_ms: f"{number(value)}/s",
    "_s": lambda value, _now_ms: length(value),
}
"""By the end of a fact's name: what its number means."""


def explanation_text(found: Explanation, now_ms: int) -> RenderableType:
    """Return an explanation as people read it."""
    rows = [_fact(name, each, now_ms) for name, each in found.evidence.items()]
    sentence = Text(clean(found.sentence), style="bold")
    return Group(sentence, Text(), facts(rows, indent=2)) if rows else sentence


def _fact(name: str, value: object, now_ms: int) -> tuple[str, str]:
    unit = next((end for end in _FACT_UNITS if name.endswith(end)), "")
    label = clean(name.removesuffix(unit).replace("_", " "))
    if isinstance(value, bool) or value is None:
        return label, {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return label, _FACT_UNITS[unit](value, now_ms) if unit else number(value)
    if isinstance(value, Mapping):
        inner = (_fact(str(each), value[each], now_ms) for each in value)
        return label, ", ".join(f"{part} {shown}" for part, shown in inner)
    return label, clean(str(value))
