"""The end of the story as one HTML page: no scripts, nothing from elsewhere, light and dark."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from examples.video_pipeline.chart import chart, legend
from examples.video_pipeline.ledger import Record
from examples.video_pipeline.loop import LoopOutcome
from examples.video_pipeline.report import LOOP_HEADINGS, Summary, loop_rows
from examples.video_pipeline.results import section
from examples.video_pipeline.server_log import holders
from examples.video_pipeline.timeline import Span, spans

_TEMPLATE: Final = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def page(summary: Summary) -> str:
    """Return the page."""
    evidence = summary.evidence
    records = list(evidence.ledger.records.values())
    lives = spans(
        evidence.changes,
        began_ms=evidence.began_ms,
        until_s=evidence.ended_s,
        holders=holders(evidence.ledger),
    )
    crew = sorted({name for record in records for name in record.workers})
    failed = sum(not check.ok for check in summary.checks)
    return _TEMPLATE.substitute(
        verdict=f"{failed} checks failed" if failed else f"all {len(summary.checks)} checks hold",
        verdict_class="bad" if failed else "good",
        subtitle=escape(_subtitle(summary, crew)),
        chart=chart(records, lives, crew, evidence.ended_s),
        legend=legend(crew),
        checks="\n".join(_check(each.name, each.detail, ok=each.ok) for each in summary.checks),
        deliveries=_deliveries(summary, lives),
        results=section(evidence.results, evidence.began_ms / 1000),
        outputs=_outputs(summary),
        loop=_loop(evidence.loop),
    )


def _subtitle(summary: Summary, crew: list[str]) -> str:
    evidence = summary.evidence
    who = "executors of a Spark cluster" if evidence.on == "spark" else "worker processes"
    return (
        f"{len(evidence.ledger.records)} messages, {len(crew)} {who}, leases of "
        f"{evidence.lease_s} s; the work took {evidence.ended_s:.1f} s, all of it "
        f"{summary.seconds:.1f} s, against {summary.endpoint}"
    )


def _check(name: str, detail: str, *, ok: bool) -> str:
    mark, kind = ("✓", "good") if ok else ("✗", "bad")
    return (
        f'<tr><td class="{kind}">{mark}</td><td>{escape(name)}</td>'
        f'<td class="dim">{escape(detail)}</td></tr>'
    )


def _deliveries(summary: Summary, lives: dict[str, list[Span]]) -> str:
    told = {(row["message_id"], row["delivery"]): row for row in summary.evidence.report}
    lines = []
    for record in summary.evidence.ledger.records.values():
        leased = [each for each in lives.get(record.message_id, []) if each.kind == "leased"]
        for span in leased:
            row = told.get((record.message_id, span.delivery))
            lines.append(_delivery(record, span, row, has_report=bool(told)))
    return "\n".join(lines)


def _delivery(record: Record, span: Span, row: dict[str, Any] | None, *, has_report: bool) -> str:
    state = next(
        (each.state for each in record.deliveries if each.dequeue_count == span.delivery), ""
    )
    if row is not None:
        done = ", ".join(f"{run['stage']} {run['seconds']:.1f} s" for run in row["stages"])
        said = f"{row['outcome']}: {done}" if done else str(row["outcome"])
    else:
        said = "no report: it was killed" if has_report else ""
    cells = (
        record.video,
        str(span.delivery),
        str(span.fence),
        span.holder,
        state,
        f"{span.begin_s:.1f}",
        f"{span.end_s:.1f}",
        str(len(span.renewals)),
        span.how,
        said,
    )
    return "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in cells) + "</tr>"


def _outputs(summary: Summary) -> str:
    lines = []
    for entry in summary.evidence.catalogue:
        complaint = summary.evidence.outputs.get(entry.name, "missing")
        cells = (entry.name, entry.worker, str(entry.fence), complaint or "plays to its end")
        lines.append("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in cells) + "</tr>")
    return "\n".join(lines)


def _loop(loop: LoopOutcome | None) -> str:
    """Return the section of the feedback loop; nothing where there was none."""
    if loop is None:
        return ""
    because = str((loop.notice or {}).get("because") or "")
    head = "".join(f"<th>{escape(each)}</th>" for each in LOOP_HEADINGS)
    rows = [
        "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>"
        for row in loop_rows(loop)
    ]
    told = "".join(('<p class="dim">', escape(because), "</p>")) if because else ""
    meaning = (
        "A delete is late when its lease is over. Leases are told apart by when they began: before "
        "or after the new timeout."
    )
    return "\n".join(
        (
            f"<h2>The feedback loop: deletes of {escape(loop.queue)}</h2>",
            f'<p class="dim">{meaning}</p>',
            "<table>",
            f"<tr>{head}</tr>",
            *rows,
            "</table>",
            told,
        )
    )
