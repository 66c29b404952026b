"""Tables that fit."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from leasehold.cli.output import Cell, Column, Listing

COLUMNS = (
    Column("ID"),
    Column("AGE", right=True, drop=2),
    Column("TIMES", right=True, drop=1),
    Column("BODY", cut=True),
)
ROWS = (("a" * 20, "3 min", "2", "x" * 30), ("b" * 20, "95 s", "14", "short"))


def lines(listing: Listing, width: int) -> list[str]:
    """Return what is printed on a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(listing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_enough_room() -> None:
    """All in full, numbers at their right end, a line under the heads."""
    assert lines(Listing(COLUMNS, ROWS), 100) == [
        "ID                      AGE  TIMES  BODY",
        "─" * 66,
        f"{'a' * 20}  3 min      2  {'x' * 30}",
        f"{'b' * 20}   95 s     14  short",
    ]


@pytest.mark.parametrize(
    ("width", "heads", "body"),
    [
        (56, "ID|AGE|TIMES|BODY", "x" * 19 + "…"),
        (52, "ID|AGE|TIMES|BODY", "x" * 15 + "…"),
        (45, "ID|AGE|BODY", "x" * 15 + "…"),
        (38, "ID|BODY", "x" * 15 + "…"),
    ],
)
def test_less_room(width: int, heads: str, body: str) -> None:
    """First one column is cut, then others go, in their order; what stays is whole."""
    shown = lines(Listing(COLUMNS, ROWS), width)
    assert "|".join(shown[0].split()) == heads
    assert shown[2].startswith("a" * 20)
    assert shown[2].endswith(" " + body)
    assert max(map(len, shown)) <= width


def test_foot_and_empty_columns() -> None:
    """Sums stand under a line; a column in which nothing stands is not shown."""
    rows: Sequence[Sequence[Cell]] = (("one", "", Text("1")), ("two", "", Text("22")))
    columns = (Column("QUEUE"), Column("PAUSED"), Column("N", right=True))
    assert lines(Listing(columns, rows, foot=("2 queues", "", "23")), 40) == [
        "QUEUE      N",
        "────────────",
        "one        1",
        "two       22",
        "────────────",
        "2 queues  23",
    ]


def test_sentences_under_rows() -> None:
    """They wrap, and the rows keep their alignment."""
    shown = lines(Listing(COLUMNS[:1], [("a",), ("bb",)], under=["word " * 6, "w"]), 24)
    assert [line.rstrip() for line in shown] == [
        *("ID", "──", "a", "    word word word word", "    word word", "bb", "    w"),
    ]


def test_wide_letters_and_brackets() -> None:
    """Letters of two columns count as two; square brackets are no markup."""
    shown = lines(Listing((Column("BODY", cut=True),), [("東京" * 20,), ("[bold]x[/bold]",)]), 20)
    assert cell_len(shown[2]) <= 20
    assert shown[3] == "[bold]x[/bold]"
