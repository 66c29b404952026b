"""Tables that fit the terminal: they cut one column, or leave some out, before they wrap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

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
        shown, widths, gap = self._fitted(options.max_width)
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
            return 0
        foot = self._foot[place].cell_len if self._foot is not None else 0
        return max(foot, len(self._columns[place].title), *cells)

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
