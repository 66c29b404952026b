"""The plots of a report, each as SVG."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from leasehold.advisor.advice import EXTRAPOLATED
from leasehold.advisor.forecast import Forecast
from leasehold.advisor.recommendation import Recommendation
from leasehold.advisor.summaries import Hour, Span, Timeline

# --- drawing -----------------------------------------------------------------------------------
#
# What all plots share: a figure of the right size, axes of time, and SVG that follows the page.
#
# matplotlib draws, since what it makes is plain SVG: some kilobytes for each plot, no script, and
# it prints. (A bundle of plotly would be 4.5 MB of script in each page, one of vega 0.8 MB.)
# Colours are not written into the plots but named: the page says what they are in light and in
# dark.


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


# --- plots -------------------------------------------------------------------------------------


MOST_ROWS: Final = 12
"""Messages whose timelines are drawn; the others are in the tables."""
_LEAST_SHARE: Final = 1e-4
_LETTER: Final = 0.0155
"""Share of the axis that a letter of a mark's name takes up."""
_OUTCOME_INK: Final = {
    "completed": Ink.GOOD,
    "completed_late": Ink.LATE,
    "lapsed": Ink.BAD,
    "session_lost": Ink.BAD,
    "failed": Ink.BAD,
    "buried": Ink.BAD,
}
_HOUR_MS: Final = 3_600_000
_MOST_SECONDS: Final = 300
_LEAST_BACKLOG: Final = 5
"""So high is the plot of a queue in which nothing waits."""


def survival_plot(name: str, found: Recommendation) -> str:
    """Draw how likely work is to take longer, with its band and the glue point."""
    points = found.survival
    glue = found.glue_s or 0.0
    body = [each for each in points if each.seconds <= glue]
    low, high = _reach(found)
    tail = [each for each in points if glue <= each.seconds <= high]

    def draw(axes: Axes) -> None:
        if body:
            seconds = [each.seconds for each in body]
            axes.fill_between(
                seconds,
                [max(each.low, _LEAST_SHARE) for each in body],
                [max(each.high, _LEAST_SHARE) for each in body],
                step="post",
                color=Ink.BAND.value,
                linewidth=0,
                label="band of 95 %",
            )
            axes.step(
                seconds,
                [max(each.share, _LEAST_SHARE) for each in body],
                where="post",
                color=Ink.INK.value,
                linewidth=1.6,
                label="seen",
            )
        if tail:
            joined = body[-1:] + tail
            axes.plot(
                [each.seconds for each in joined],
                [each.share for each in joined],
                color=Ink.MUTED.value,
                linewidth=1.4,
                linestyle=(0, (2, 2)),
                label="tail, fitted",
            )
        if found.longest_s is not None and found.longest_s < high:
            axes.axvspan(
                found.longest_s,
                high,
                color=Ink.GRID.value,
                alpha=0.35,
                linewidth=0,
                label="longer than any attempt seen",
            )
        time_axis(axes, low, high)
        axes.set_yscale("log")
        axes.set_ylim(_LEAST_SHARE, 1.3)
        axes.set_yticks([1, 0.1, 0.01, 0.001, 0.0001], ["100 %", "10 %", "1 %", "0.1 %", "0.01 %"])
        axes.minorticks_off()
        if found.glue_s:
            share = body[-1].share if body else 1.0
            axes.plot([glue], [max(share, _LEAST_SHARE)], "o", color=Ink.INK.value, markersize=5)
            axes.annotate(
                "glue point",
                xy=(glue, max(share, _LEAST_SHARE)),
                xytext=(6, 6),
                textcoords="offset points",
                fontsize=8,
            )
        _marks(axes, found, low, high)
        axes.set_ylabel("takes longer")
        axes.legend(loc="lower left", fontsize=8)

    return drawn(name, f"Share of the work of {_named(found)} that takes longer", draw)


def cost_plot(name: str, found: Recommendation) -> str:
    """Draw what timeouts cost, with today's, the advised and the naive ones marked."""

    def draw(axes: Axes) -> None:
        low, high = _reach(found)
        inside = [each for each in found.curve if low <= each.timeout_s <= high]
        axes.plot(
            [each.timeout_s for each in inside],
            [each.cost for each in inside],
            color=Ink.INK.value,
            linewidth=1.8,
        )
        time_axis(axes, low, high)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axes.minorticks_off()
        if found.as_good_s is not None:
            axes.axvspan(*found.as_good_s, color=Ink.BAND.value, linewidth=0)
        for each in found.choices:
            ink = _ink_of(each.name)
            if each.name != "renewal" and low <= each.timeout_s <= high and each.cost > 0:
                axes.plot([each.timeout_s], [each.cost], "o", color=ink.value, markersize=5)
        plan = found.renewal
        if plan is not None and plan.cost > 0:
            axes.axhline(plan.cost, color=Ink.GOOD.value, linewidth=1.2, linestyle=(0, (1, 2)))
            axes.annotate(
                "with lazy renewal",
                xy=(0.01, plan.cost),
                xycoords=("axes fraction", "data"),
                xytext=(0, 3),
                textcoords="offset points",
                color=Ink.GOOD.value,
                fontsize=8,
            )
        _marks(axes, found, low, high, naive=True)
        axes.set_ylabel("waiting per message, s")
        axes.set_xlabel("visibility timeout")

    return drawn(name, f"Cost of visibility timeouts for {_named(found)}", draw, height=3.6)


def timelines_plot(name: str, timelines: Sequence[Timeline]) -> str:
    """Draw messages that were received more than once: leases, and the work in them."""
    shown = timelines[:MOST_ROWS]
    unit_s, unit = _unit_of(shown)

    def draw(axes: Axes) -> None:
        for row, line in enumerate(shown):
            start = line.attempts[0].leased_at_ms
            step = 0.8 / len(line.attempts)
            for place, span in enumerate(line.attempts):
                y = row - 0.4 + (place + 0.5) * step
                at = (span.leased_at_ms - start) / 1000 / unit_s
                axes.barh(
                    y, span.lease_s / unit_s, height=step * 0.9, left=at, color=Ink.GRID.value
                )
                axes.barh(
                    y,
                    _worked_s(span) / unit_s,
                    height=step * 0.45,
                    left=at,
                    color=_OUTCOME_INK.get(span.outcome, Ink.MUTED).value,
                )
        axes.set_yticks(
            range(len(shown)),
            [f"…{each.message_id[-6:]} {each.message_type or ''}".strip() for each in shown],
        )
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{unit} since the first receive")

    height = 1.0 + 0.34 * max(2, len(shown))
    return drawn(name, "Timelines of messages received more than once", draw, height=height)


def _unit_of(timelines: Sequence[Timeline]) -> tuple[float, str]:
    """Return in what to count, so that people need not divide."""
    longest_s = max(
        (span.leased_at_ms - line.attempts[0].leased_at_ms) / 1000 + span.lease_s
        for line in timelines
        for span in line.attempts
    )
    if longest_s < _MOST_SECONDS:
        return 1.0, "seconds"
    return (60.0, "minutes") if longest_s < 60 * _MOST_SECONDS else (3_600.0, "hours")


def has_backlog(hours: Sequence[Hour], ahead: Forecast) -> bool:
    """Tell whether there is anything to draw: a forecast, and messages that wait at some time."""
    waiting = any(each.backlog_end for each in hours)
    return bool(ahead.points) and (waiting or any(each.high >= 1 for each in ahead.points))


def backlog_plot(name: str, hours: Sequence[Hour], ahead: Forecast) -> str:
    """Draw the backlog as it was, and as it is expected to go on, with its band."""

    def draw(axes: Axes) -> None:
        past = hours[-96:]
        now = _date(past[-1].start_ms + _HOUR_MS) if past else None
        axes.plot(
            [_date(each.start_ms + _HOUR_MS) for each in past],  # type: ignore[arg-type]  # dates
            [each.backlog_end for each in past],
            color=Ink.INK.value,
            linewidth=1.6,
        )
        if ahead.points:
            when = [_date(each.at_ms) for each in ahead.points]
            axes.fill_between(
                when,  # type: ignore[arg-type]  # dates
                [each.low for each in ahead.points],
                [each.high for each in ahead.points],
                color=Ink.BAND.value,
                linewidth=0,
            )
            axes.plot(
                when,  # type: ignore[arg-type]  # dates
                [each.median for each in ahead.points],
                color=Ink.ADVICE.value,
                linewidth=1.6,
            )
        if now is not None:
            mark(axes, now, "now", Ink.MUTED, dashed=True)
        if ahead.expires_from_ms is not None:
            at = _date(ahead.expires_from_ms)
            mark(axes, at, "messages expire", Ink.BAD, row=1)
        locator = AutoDateLocator(tz=UTC, maxticks=7)  # type: ignore[no-untyped-call]  # theirs
        axes.xaxis.set_major_locator(locator)
        concise = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]  # theirs
        axes.xaxis.set_major_formatter(concise)
        axes.set_ylim(0, max(axes.get_ylim()[1], _LEAST_BACKLOG))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_ylabel("messages waiting")

    return drawn(name, f"Backlog of {ahead.queue}, with a forecast of two days", draw)


def _date(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC)


def _worked_s(span: Span) -> float:
    if span.ended_at_ms is None:
        return span.lease_s
    return max(0.0, (span.ended_at_ms - span.leased_at_ms) / 1000)


def _reach(found: Recommendation) -> tuple[float, float]:
    """Return from where to where a plot goes: what was seen, and all that is marked."""
    marked = [each.timeout_s for each in found.choices]
    seen = [each.seconds for each in found.survival if each.share >= _LEAST_SHARE]
    low = min([*marked, *(seen[:1] or [1.0]), found.median_s or 1.0])
    far = EXTRAPOLATED * found.longest_s if found.longest_s else math.inf
    # Beyond that nothing is drawn but what is marked: it would be the fitted tail alone.
    high = max([*marked, min(seen[-1] if seen else 60.0, far)])
    return max(low / 1.5, 0.001), min(high * 2, 1_209_600.0)


def _ink_of(name: str) -> Ink:
    if name in {"advice", "best, if set at once", "best without renewal"}:
        return Ink.ADVICE
    return Ink.TODAY if name in {"today", "today's lease, never renewed"} else Ink.NAIVE


def _marks(
    axes: Axes, found: Recommendation, low: float, high: float, *, naive: bool = False
) -> None:
    """Mark timeouts by vertical lines, names of near ones below each other."""
    wanted = [
        each
        for each in found.choices
        if each.name != "renewal" and (naive or _ink_of(each.name) is not Ink.NAIVE)
    ]
    merged: dict[float, list[str]] = {}
    for each in wanted:
        merged.setdefault(each.timeout_s, []).append(_SHORT.get(each.name, each.name))
    places = sorted(merged)
    width = math.log(high / low)
    names = [" = ".join(merged[each]) for each in places]
    rows = rows_for(
        [math.log(each / low) / width for each in places],
        [_LETTER * (len(each) + 2) for each in names],
    )
    first = {each.timeout_s: each.name for each in reversed(wanted)}
    for at, name, row in zip(places, names, rows, strict=True):
        ink = _ink_of(first[at])
        mark(axes, at, name, ink, row=row, dashed=ink is Ink.NAIVE)


_SHORT: Final = {
    "best, if set at once": "best",
    "mean of completed, doubled": "2 x mean",
    "99th percentile of completed": "p99",
    "99th percentile, doubled": "2 x p99",
    "longest seen": "longest",
    "best without renewal": "best",
    "today's lease, never renewed": "today",
}


def _named(found: Recommendation) -> str:
    return f"{found.queue}, {found.message_type}" if found.message_type else found.queue
