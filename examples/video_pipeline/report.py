"""The end of the story: the table of all messages, the checks, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from examples.video_pipeline.checks import Check, Evidence
from examples.video_pipeline.ledger import Attempt, Ledger, Record
from examples.video_pipeline.loop import LoopOutcome
from examples.video_pipeline.results import results_table
from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

_CAPTION: Final = "Seconds: from the first delivery to the end. e0 is executor-0."
_STYLE: Final = {
    "done": "green",
    "completed": "green",
    "failed": "red",
    "killed": "bold red",
    "lease lost": "yellow",
    "poisoned": "magenta",
    "cancelled": "yellow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything that is told at the end."""

    endpoint: str
    seconds: float
    evidence: Evidence
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)


def print_summary(console: Console, summary: Summary) -> None:
    """Print the table and the checks."""
    ledger = summary.evidence.ledger
    console.print()
    console.print(_table(ledger, wide=console.width >= _WIDE))
    console.print()
    if summary.evidence.results is not None:
        console.print(results_table(summary.evidence.results))
        console.print()
    notes = Table.grid(padding=(0, 2, 0, 1))
    for record in ledger.records.values():
        if record.events:
            notes.add_row(Text(record.video, "bold"), "\n".join(record.events))
    console.print(notes)
    console.print()
    if summary.evidence.loop is not None:
        console.print(_loop_table(summary.evidence.loop))
        console.print()
    outcomes = Table.grid(padding=(0, 2, 0, 1))
    for check in summary.checks:
        mark = Text("✓", "green") if check.ok else Text("✗", "bold red")
        outcomes.add_row(mark, check.name, Text(check.detail, "dim" if check.ok else "red"))
    console.print(outcomes)
    console.print()
    failed = sum(not check.ok for check in summary.checks)
    verdict = f"{failed} checks failed" if failed else f"all {len(summary.checks)} checks hold"
    verdict += f"; {summary.seconds:.1f} s against {summary.endpoint}"
    console.print(Text(verdict, "bold red" if failed else "bold green"), soft_wrap=True)


def write_json(path: Path, summary: Summary) -> None:
    """Write what the table and the checks say, for programs."""
    facts = {
        "ok": summary.ok,
        "on": summary.evidence.on,
        "endpoint": summary.endpoint,
        "seconds": round(summary.seconds, 3),
        "videos": [_facts(record) for record in summary.evidence.ledger.records.values()],
        "poison": summary.evidence.poison,
        "results": summary.evidence.results and asdict(summary.evidence.results),
        "loop": None if summary.evidence.loop is None else asdict(summary.evidence.loop),
        "checks": [asdict(check) for check in summary.checks],
    }
    path.write_text(json.dumps(facts, indent=2, default=str) + "\n")


def _facts(record: Record) -> dict[str, Any]:
    return {**asdict(record), "workers": record.workers, "seconds": round(record.seconds, 3)}


def _table(ledger: Ledger, *, wide: bool) -> Table:
    """Return the table; a narrow terminal gets fewer columns."""
    table = Table(
        title="What happened to each message",
        title_style="bold",
        title_justify="left",
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
        caption=_CAPTION if wide else None,
        caption_justify="left",
    )
    columns = [each for each in _COLUMNS if wide or not each.wide_only]
    for column in columns:
        table.add_column(
            column.heading,
            justify=column.justify,
            no_wrap=True,
        )
    for record in ledger.records.values():
        table.add_row(*(column.cell(record) for column in columns))
    return table


LOOP_HEADINGS: Final = ("Type", "Timeout", "Deletes", "Late", "New timeout", "Deletes", "Late")


def loop_rows(loop: LoopOutcome) -> list[tuple[str, ...]]:
    """Return the deletes of each type before and after the new timeout, as text."""
    new = "none" if loop.new_s is None else f"{loop.new_s} s"
    return [
        (
            *(
                each.kind,
                f"{loop.old_s} s",
                str(each.before),
                _percent(each.late_before, each.before),
            ),
            *(new, str(each.after), _percent(each.late_after, each.after)),
        )
        for each in loop.deletes
    ]


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def _loop_table(loop: LoopOutcome) -> Table:
    table = Table(
        title=f"What the feedback loop has changed in {loop.queue}",
        title_style="bold",
        title_justify="left",
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
    )
    for place, heading in enumerate(LOOP_HEADINGS):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in loop_rows(loop):
        table.add_row(*row)
    return table


def _short(worker: str) -> str:
    """Return the name as a table has room for it."""
    return worker.replace("executor-", "e")


def _tries(attempts: list[Attempt]) -> Text:
    """Return one line per try: who, how long, and how it ended unless it went well."""
    lines = []
    for number, each in enumerate(attempts):
        what = "" if each.outcome == "done" else f" {each.outcome}"
        if number and not what:
            what = " resumed"
        took = "" if each.ended_s is None else f" {each.ended_s - each.began_s:.1f} s"
        lines.append(Text(f"{_short(each.worker)}{what}{took}", _STYLE.get(each.outcome, "")))
    return Text("\n").join(lines)


def _hidden(record: Record) -> str:
    return f"{record.delay_s} s" if record.delay_s else ""


def _result(record: Record) -> Text:
    result = record.result or "open"
    return Text(result, _STYLE.get(result, "bold red"))


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[Record], str | Text]
    justify: JustifyMethod = "left"
    wide_only: bool = False


_COLUMNS: Final = (
    _Column("Video", lambda record: record.video),
    _Column("Hidden", _hidden, "right", wide_only=True),
    _Column("Tries", lambda record: str(len(record.deliveries)), "right"),
    _Column("Held by", lambda record: " ".join(map(_short, record.workers)), wide_only=True),
    _Column("Scan", lambda record: _tries(record.tries("scan"))),
    _Column("Encode", lambda record: _tries(record.tries("encode"))),
    _Column("Compress", lambda record: _tries(record.tries("compress")), wide_only=True),
    _Column("Renewed", lambda record: str(record.renewals or ""), "right", wide_only=True),
    _Column("Result", _result),
    _Column("Seconds", lambda record: f"{record.seconds:.1f}", "right", wide_only=True),
)
_WIDE: Final = 100
"""Columns of a terminal on which the whole table is readable."""
