"""The report as one page of HTML: no script is needed, and nothing is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from leasehold.analysis.advising import Recommendation
from leasehold.analysis.findings import Findings, QueueFindings
from leasehold.analysis.report import plots
from leasehold.analysis.whatif import WhatIf
from leasehold.domain.wording import time_of

MOST_TYPES: Final = 12
"""Types that have plots of their own; the others are in the tables."""
_TEMPLATES: Final = Path(__file__).parent
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_NOTHING: Final = 1e-3
_WHOLE_FROM: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """The plots of one recommendation, as markup."""

    survival: Markup
    cost: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """One queue with its plots."""

    found: QueueFindings
    whole: _Drawn | None
    types: tuple[tuple[Recommendation, _Drawn | None], ...]
    timelines: Markup | None
    backlog: Markup | None


def render(findings: Findings, made_at_ms: int) -> str:
    """Return the page.

    Args:
        findings: What to show.
        made_at_ms: The time of day, for its foot, Unix milliseconds.
    """
    page = _environment().get_template("page.html.j2")
    shown = [_shown(place, each) for place, each in enumerate(findings.queues)]
    return page.render(findings=findings, shown=shown, made_at_ms=made_at_ms)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "seconds": seconds,
        "count": count,
        "moment": time_of,
        "share": _share,
        "percent": _percent,
        "named": _called,
        "sentence": _sentence,
    }
    made.filters.update(filters)
    return made


def seconds(value: float | None) -> str:
    """Return a length for people: ``0.42 s``, ``95 s``, ``12 min``, ``3.5 h``, ``2.1 d``."""
    if value is None:
        return ""
    if 0 < value < _NOTHING:
        return "0 s"
    if value < 2 * _MINUTE_S:
        return f"{value:.3g} s"
    for unit, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if value >= 2 * unit:
            return f"{value / unit:,.3g} {name}"
    return f"{value:.3g} s"


def count(value: float | None) -> str:
    """Return a number for people, with a digit behind the point where it is small.

    What is next to nothing is nothing: an expected number of 2e-38 messages is none.
    """
    if value is None:
        return ""
    if 0 < value < _NOTHING:
        return "0"
    if value >= _WHOLE_FROM or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2g}"


def _share(value: float) -> str:
    return f"{value:.1%}" if value else ""


def _percent(value: float) -> str:
    return f"{value:.0%}".replace("%", " %")


def _called(choice: WhatIf) -> str:
    """Return the name of a choice; what could be taken for seen is called calculated."""
    return "today's timeout, as calculated" if choice.name == "today" else choice.name


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _shown(place: int, found: QueueFindings) -> _Shown:
    types = tuple(
        (each, _drawn(f"q{place}t{number}", each) if number < MOST_TYPES else None)
        for number, each in enumerate(found.types)
    )
    timelines = found.timelines
    backlog = None
    if plots.has_backlog(found.hours, found.forecast):
        backlog = Markup(plots.backlog_plot(f"q{place}b", found.hours, found.forecast))  # noqa: S704 - our SVG
    return _Shown(
        found=found,
        whole=_drawn(f"q{place}", found.whole),
        types=types,
        timelines=Markup(plots.timelines_plot(f"q{place}l", timelines)) if timelines else None,  # noqa: S704 - our SVG
        backlog=backlog,
    )


def _drawn(name: str, found: Recommendation) -> _Drawn | None:
    if not found.is_enough:
        return None
    # matplotlib escapes what it writes.
    return _Drawn(
        survival=Markup(plots.survival_plot(f"{name}s", found)),  # noqa: S704 - our SVG
        cost=Markup(plots.cost_plot(f"{name}c", found)),  # noqa: S704 - our SVG
    )
