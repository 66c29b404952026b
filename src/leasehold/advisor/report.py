"""The report of an analysis: one page that works offline, and all of it as JSON and CSV.

It needs the extra ``analysis``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from leasehold.advisor import plots
from leasehold.advisor.findings import Findings, QueueFindings
from leasehold.advisor.recommendation import Recommendation, WhatIf
from leasehold.domain.wording import time_of

__all__ = ["render", "write_report"]


# --- page --------------------------------------------------------------------------------------
#
# The report as one page of HTML: no script is needed, and nothing is fetched.


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
    page = _environment().get_template("report.html.j2")
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
        "bar": bar,
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


def bar(between: tuple[float, float]) -> str:
    """Return an error bar for people, to be put behind a figure."""
    low, high = map(count, between)
    return f" ({low} to {high})"


def _share(value: float) -> str:
    return f"{value:.1%}" if value else ""


def _percent(value: float) -> str:
    return f"{value:.0%}".replace("%", " %")


def _called(choice: WhatIf) -> str:
    """Return the name of a choice; what could be taken for seen is called modelled."""
    return "today's timeout, as modelled" if choice.name == "today" else choice.name


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


# --- files -------------------------------------------------------------------------------------
#
# A report as files: the page, and all that is in it as JSON and CSV.


PAGE: Final = "report.html"
JSON: Final = "findings.json"

Row: TypeAlias = Mapping[str, Any]
_INSIDE: Final = ("seen", "curve", "survival", "choices", "renewal", "as_good_s")
"""Parts of a recommendation that have tables or columns of their own."""


def write_report(findings: Findings, folder: Path, made_at_ms: int) -> list[Path]:
    """Write ``report.html``, ``findings.json`` and one CSV file for each table.

    Args:
        findings: What to write.
        folder: Made if it is not there. Files of the same names are replaced, others are left.
        made_at_ms: The time of day, Unix milliseconds.

    Returns: The files, the page first.

    Raises:
        OSError: They cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page, document = folder / PAGE, folder / JSON
    page.write_text(render(findings, made_at_ms), encoding="utf-8")
    document.write_bytes(msgspec.json.format(msgspec.json.encode(findings)))
    written = [page, document]
    for name, rows_of in _TABLES.items():
        rows = list(rows_of(findings))
        if rows:
            written.append(_write_csv(folder / f"{name}.csv", rows))
    return written


def _write_csv(path: Path, rows: list[Row]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return path


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = " ".join(str(each) for each in value)
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        # A spreadsheet would take it for a formula, and types and errors come from senders.
        return f"'{value}"
    return value


def _recommendations(findings: Findings) -> Iterator[Recommendation]:
    for queue in findings.queues:
        yield queue.whole
        yield from queue.types


def _named(found: Recommendation) -> dict[str, Any]:
    return {
        "queue": found.queue,
        "message_type": found.message_type,
        "of_queue": found.of_queue,
    }


def _recommended(findings: Findings) -> Iterator[Row]:
    for each in _recommendations(findings):
        row = {
            name: getattr(each, name)
            for name in Recommendation.__dataclass_fields__
            if name not in _INSIDE
        }
        low, high = each.as_good_s or (None, None)
        row |= {"as_good_from_s": low, "as_good_to_s": high}
        if each.renewal is not None:
            row |= {f"renewal_{name}": value for name, value in asdict(each.renewal).items()}
        yield row | {f"seen_{name}": value for name, value in asdict(each.seen).items()}


def _parts(name: str) -> Callable[[Findings], Iterator[Row]]:
    """Return what makes a row of each part of the recommendations with this name."""

    def rows(findings: Findings) -> Iterator[Row]:
        for each in _recommendations(findings):
            for part in getattr(each, name):
                yield _named(each) | _members(part)

    return rows


def _members(part: Any) -> dict[str, Any]:
    return dict(part._asdict()) if hasattr(part, "_asdict") else asdict(part)


def _splits(findings: Findings) -> Iterator[Row]:
    for queue in findings.queues:
        if queue.split is not None:
            parts = [("now", queue.split.now), *(("part", each) for each in queue.split.parts)]
            for kind, part in parts:
                worth = queue.split.is_worth_it
                yield {"queue": queue.queue, "kind": kind, "is_worth_it": worth} | asdict(part)


def _forecasts(findings: Findings) -> Iterator[Row]:
    for queue in findings.queues:
        for each in queue.forecast.points:
            yield {"queue": queue.queue} | each._asdict()


def _drains(findings: Findings) -> Iterator[Row]:
    for queue in findings.queues:
        for each in queue.forecast.drains:
            yield {"queue": queue.queue} | each._asdict()


def _of_queues(name: str) -> Callable[[Findings], Iterator[Row]]:
    """Return what makes a row of each part of the queues with this name."""

    def rows(findings: Findings) -> Iterator[Row]:
        for queue in findings.queues:
            for each in getattr(queue, name):
                yield {"queue": queue.queue} | asdict(each)

    return rows


def _workers(findings: Findings) -> Iterator[Row]:
    for queue in findings.queues:
        for each in queue.workers:
            told = {"per_h": each.per_h, "bad_share": each.bad_share, "strikes": each.strikes}
            yield {"queue": queue.queue} | asdict(each.worker) | told


def _groups(findings: Findings) -> Iterator[Row]:
    for queue in findings.queues:
        if queue.groups is not None:
            for each in queue.groups.largest:
                yield {"queue": queue.queue} | asdict(each) | {"fairness": queue.groups.fairness}


def _timelines(findings: Findings) -> Iterator[Row]:
    for queue in findings.queues:
        for line in queue.timelines:
            message = asdict(line)
            attempts: Iterable[Row] = message.pop("attempts")
            for attempt in attempts:
                # Both have an outcome.
                told = {"attempt_outcome": attempt["outcome"]}
                rest = {name: value for name, value in attempt.items() if name != "outcome"}
                yield {"queue": queue.queue} | message | rest | told


_TABLES: Final[Mapping[str, Callable[[Findings], Iterator[Row]]]] = {
    "findings": _of_queues("findings"),
    "recommendations": _recommended,
    "choices": _parts("choices"),
    "cost_curve": _parts("curve"),
    "survival": _parts("survival"),
    "splits": _splits,
    "hours": _of_queues("hours"),
    "forecast": _forecasts,
    "drains": _drains,
    "poison": _of_queues("poison"),
    "workers": _workers,
    "groups": _groups,
    "timelines": _timelines,
}
