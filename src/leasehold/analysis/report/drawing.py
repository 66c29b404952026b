"""What all plots share: a figure of the right size, axes of time, and SVG that follows the page.

matplotlib draws, since what it makes is plain SVG: some kilobytes for each plot, no script, and it
prints. (A bundle of plotly would be 4.5 MB of script in each page, one of vega 0.8 MB.) Colours are
not written into the plots but named: the page says what they are in light and in dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator


class Ink(StrEnum):
    """Colours by what they mean; each is a value that no plot has by chance."""

    INK = "#010203"
    MUTED = "#010204"
    GRID = "#010205"
    ADVICE = "#010206"
    TODAY = "#010207"
    NAIVE = "#010208"
    BAND = "#010209"
    GOOD = "#01020a"
    LATE = "#01020b"
    BAD = "#01020c"
    PAPER = "#01020d"

    @property
    def variable(self) -> str:
        """Return the name of the variable of the page that has this colour."""
        return f"--{self.name.lower()}"


_TICKS_S: Final = (
    (0.001, "1 ms"),
    (0.01, "10 ms"),
    (0.1, "0.1 s"),
    (1.0, "1 s"),
    (3.0, "3 s"),
    (10.0, "10 s"),
    (30.0, "30 s"),
    (60.0, "1 min"),
    (300.0, "5 min"),
    (1_800.0, "30 min"),
    (7_200.0, "2 h"),
    (43_200.0, "12 h"),
    (86_400.0, "1 d"),
    (604_800.0, "7 d"),
)
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    # Names of types come from senders: a dollar sign in one begins no formula.
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": Ink.INK.value,
    "axes.edgecolor": Ink.GRID.value,
    "axes.labelcolor": Ink.MUTED.value,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": Ink.MUTED.value,
    "ytick.color": Ink.MUTED.value,
    "grid.color": Ink.GRID.value,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_IDS: Final = re.compile(r'<g id="[\w.]+_\d+">')
_SIZE: Final = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>')


def drawn(
    name: str, label: str, draw: Callable[[Axes], None], *, height: float = 3.2, width: float = 6.4
) -> str:
    """Return a plot as SVG to stand in a page.

    Args:
        name: Different for each plot of a page, so that names inside it do not meet.
        label: What it shows, for those who do not see it.
        draw: Draws on the axes.
        height: Inches.
        width: Inches.
    """
    written = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(written.getvalue(), label)


def _for_page(svg: str, label: str) -> str:
    svg = svg[svg.index("<svg") :]
    # A rule of the whole page otherwise; and metadata that say who drew it.
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Each plot has a figure_1, and a page may have an id once.
    svg = _IDS.sub("<g>", svg)
    said = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    head = rf'<svg viewBox="\1" role="img" aria-label="{said}" class="plot">'
    svg = _SIZE.sub(lambda found: found.expand(head), svg, count=1)
    for ink in Ink:
        svg = svg.replace(ink.value, f"var({ink.variable})")
    return re.sub(r">\s+<", "><", svg).strip()


def time_axis(axes: Axes, low_s: float, high_s: float) -> None:
    """Make the horizontal axis one of lengths of time, logarithmic, with marks people know."""
    axes.set_xscale("log")
    axes.set_xlim(low_s, high_s)
    marks = [(at, text) for at, text in _TICKS_S if low_s <= at <= high_s]
    axes.xaxis.set_major_locator(FixedLocator([at for at, _ in marks]))
    axes.xaxis.set_major_formatter(FixedFormatter([text for _, text in marks]))
    axes.xaxis.set_minor_locator(NullLocator())


def mark(  # noqa: PLR0913 - what a mark is
    axes: Axes, at: Any, text: str, ink: Ink, *, row: int = 0, dashed: bool = False
) -> None:
    """Draw a vertical line with its name at the top; *row* lower where names would meet."""
    axes.axvline(at, color=ink.value, linewidth=1.4, linestyle=(0, (4, 3)) if dashed else "-")
    axes.annotate(
        text,
        xy=(at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -10 - 11 * row),
        textcoords="offset points",
        color=ink.value,
        fontsize=8,
    )


def rows_for(places: Sequence[float], widths: Sequence[float]) -> list[int]:
    """Return a row for each of several marks, so that names of near ones stand below each other.

    Args:
        places: Where they are, on the scale of the axis, in rising order.
        widths: How much of the axis the name of each takes up, to the right of its place.
    """
    ends: list[float] = []
    rows = []
    for place, width in zip(places, widths, strict=True):
        row = next((at for at, end in enumerate(ends) if place >= end), len(ends))
        if row == len(ends):
            ends.append(0.0)
        ends[row] = place + width
        rows.append(row)
    return rows
