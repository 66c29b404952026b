"""A report as files: the page, and all that is in it as JSON and CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from leasehold.analysis.advising import Recommendation
from leasehold.analysis.findings import Findings
from leasehold.analysis.report.page import render

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
    "timelines": _timelines,
}
