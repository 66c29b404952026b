"""The timeline of every message as SVG: a lane for the server's view, a lane for the stages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from examples.video_pipeline.ledger import Attempt, Record
from examples.video_pipeline.timeline import Span

WIDTH: Final = 1120
_LEFT: Final = 150
_RIGHT: Final = 110
_TOP: Final = 28
_ROW: Final = 56
_LANE: Final = 18
_STAGE: Final = 14
_TICKS: Final = 12
_LEAST: Final = 1.5
"""So wide is at least what happened, however short."""
_HOLDERS: Final = 6
"""Colours for those who hold leases; then they begin again."""
_STATES: Final = {"delayed": "delayed by the producer", "visible": "visible", "waiting": "released"}
_MARKS: Final = {"killed": "☠ killed", "failed": "✗"}
_STOOD_STILL: Final = "stood still, and lost the lease"
_ROOM: Final = 190
"""So wide must be a bar for that text."""


def chart(
    records: Sequence[Record],
    lives: dict[str, list[Span]],
    crew: Sequence[str],
    ended_s: float,
) -> str:
    """Return the picture.

    Args:
        records: One per message, from the journals.
        lives: The stretches of each message's life, by message id, from the server's event log.
        crew: Everybody who held a message; their place says the colour.
        ended_s: Where the axis ends, seconds.
    """
    scale = (WIDTH - _LEFT - _RIGHT) / max(ended_s, 1)
    height = _TOP + _ROW * len(records) + 8
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Timeline of every message">',
        *_axis(ended_s, scale, height),
    ]
    for number, record in enumerate(records):
        top = _TOP + _ROW * number
        parts.append(f'<text class="name" x="0" y="{top + 16}">{escape(record.video)}</text>')
        parts.append(f'<text class="dim" x="0" y="{top + 32}">{escape(_notes(record))}</text>')
        for span in lives.get(record.message_id, []):
            parts += _lease(span, top, scale, crew)
        for attempt in record.attempts:
            parts += _attempt(attempt, top + _LANE + 3, scale, ended_s)
        if record.ended_s is not None:
            x = _LEFT + record.ended_s * scale + 6
            kinds = {"completed": "good", "cancelled": "dim"}
            kind = kinds.get(record.result, "bad")
            parts.append(
                f'<text class="{kind}" x="{x:.1f}" y="{top + 14}">{escape(record.result)}</text>'
            )
    parts.append("</svg>")
    return "\n".join(parts)


def legend(crew: Sequence[str]) -> str:
    """Return what the colours mean."""
    shown = [(f"held h{place % _HOLDERS}", name) for place, name in enumerate(crew)]
    shown += list(_STATES.items())
    shown += [(f"stage {name}", name) for name in ("scan", "encode", "compress")]
    return "\n".join(
        f'<span class="key"><i class="{kind}"></i>{escape(text)}</span>' for kind, text in shown
    )


def _notes(record: Record) -> str:
    said = [f"{len(record.deliveries)} deliveries"] if len(record.deliveries) > 1 else []
    if record.delay_s:
        said.append(f"delay {record.delay_s} s")
    return ", ".join(said)


def _axis(ended_s: float, scale: float, height: int) -> Iterable[str]:
    step = _step(ended_s)
    for number in range(int(ended_s / step) + 1):
        x = _LEFT + number * step * scale
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="12">{number * step:g} s</text>'


def _step(ended_s: float) -> float:
    """Return a round number of seconds that gives about as many ticks as there is room for."""
    rough = max(ended_s / _TICKS, 0.1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next((power * each for each in (1, 2, 5) if power * each >= rough), power * 10)


def _lease(span: Span, top: float, scale: float, crew: Sequence[str]) -> Iterable[str]:
    x, width = _LEFT + span.begin_s * scale, max((span.end_s - span.begin_s) * scale, _LEAST)
    if span.kind == "leased":
        place = crew.index(span.holder) % _HOLDERS if span.holder in crew else 0
        kind = f"held h{place}"
        text = (
            f"delivery {span.delivery}, fence {span.fence}: leased by {span.holder} from "
            f"{span.begin_s:.1f} s to {span.end_s:.1f} s; {len(span.renewals)} renewals; {span.how}"
        )
    else:
        kind = span.kind
        text = f"{_STATES[span.kind]} from {span.begin_s:.1f} s to {span.end_s:.1f} s"
    yield (
        f'<rect class="{kind}" x="{x:.1f}" y="{top + 2}" width="{width:.1f}" height="{_LANE}" '
        f'rx="2"><title>{escape(text)}</title></rect>'
    )
    for moment_s in span.renewals:
        at = _LEFT + moment_s * scale
        yield f'<line class="renewal" x1="{at:.1f}" x2="{at:.1f}" y1="{top + 3}" y2="{top + 9}"/>'


def _attempt(attempt: Attempt, top: float, scale: float, ended_s: float) -> Iterable[str]:
    end_s = ended_s if attempt.ended_s is None else attempt.ended_s
    x, width = _LEFT + attempt.began_s * scale, max((end_s - attempt.began_s) * scale, _LEAST)
    bad = "" if attempt.outcome == "done" else " unfinished"
    text = (
        f"{attempt.stage} by {attempt.worker}: {attempt.outcome}, {end_s - attempt.began_s:.1f} s"
    )
    yield (
        f'<rect class="stage {attempt.stage}{bad}" x="{x:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{_STAGE}" rx="2"><title>{escape(text)}</title></rect>'
    )
    if mark := _MARKS.get(attempt.outcome):
        yield f'<text class="mark" x="{x + width + 2:.1f}" y="{top + 11}">{mark}</text>'
    elif attempt.outcome == "lease lost" and width > _ROOM:
        yield f'<text class="on" x="{x + 6:.1f}" y="{top + 11}">{_STOOD_STILL}</text>'
