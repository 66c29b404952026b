"""``leasehold stats``: every queue at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from leasehold.cli.output import STATE_STYLES, Cell, Column, Listing, number, per_second, rough
from leasehold.cli.queues import paused_text
from leasehold.cli.remote import WATCH, Session, remote
from leasehold.client.errors import QueueNotFound
from leasehold.client.models import Activity, Counts, QueueInfo

STATES: Final = ("visible", "leased", "delayed", "deferred", "poisoned")
RATES: Final = ("sent", "received", "completed")
_MS: Final = 1000
_BAR_CELLS: Final = 20


class Row(NamedTuple):
    """A queue as it is now."""

    queue: QueueInfo
    rates: dict[str, float] | None
    """Messages per second since the last look; None at the first."""


@remote("stats", WATCH)
@click.option(
    "--prefix", default="", metavar="TEXT", help="Select queues whose names begin with this text."
)
@click.option(
    "--sample",
    "sample_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Seconds between the two samples for the rates; 0 takes one sample and shows no rates.",
)
def stats(session: Session, prefix: str, sample_s: float, every_s: float | None) -> None:
    """Show counts, ages and rates of all queues.

    The age is that of the message that has been visible longest. The rates are messages put,
    received and completed per second. A poison queue has its own line.

    Example: leasehold stats --watch
    """
    sampler = _Sampler(session, prefix)
    if sample_s:
        sampler.look()
        session.sleep(sample_s)
    session.present(
        sampler.look,
        lambda rows: stats_table(rows, session),
        lambda rows: map(_as_line, rows),
        every_s,
    )


class Rates:
    """Compares what has happened in queues with what had at the look before."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, Activity]] = {}

    def of(self, found: QueueInfo, now_ms: int) -> dict[str, float] | None:
        """Return messages put, received and completed each second since the look before.

        Args:
            found: The queue as it is now.
            now_ms: When it was looked at, Unix milliseconds.

        Returns:
            None at the first look, and at the first one after the server was started anew.
        """
        now = found.activity
        if now is None:
            return None
        before_ms, before = self._before.get(found.name, (now_ms, now))
        self._before[found.name] = (now_ms, now)
        if now_ms <= before_ms or now.since_ms != before.since_ms:
            return None
        passed_s = (now_ms - before_ms) / _MS
        return {
            name: max(0, getattr(now, name) - getattr(before, name)) / passed_s for name in RATES
        }


class _Sampler:
    """Looks at the queues, one by one."""

    def __init__(self, session: Session, prefix: str) -> None:
        self._session = session
        self._prefix = prefix
        self._rates = Rates()

    def look(self) -> list[Row]:
        """Return the queues as they are now."""
        client = self._session.client
        rows = []
        for listed in client.list_queues(self._prefix):
            try:
                found = client.queue(listed.name).info()
            except QueueNotFound:  # it was deleted meanwhile
                continue
            rows.append(Row(found, self._rates.of(found, self._session.now_ms)))
        return rows


def stats_table(rows: Sequence[Row], session: Session) -> RenderableType:
    """Return a table of queues, with sums if there are several."""
    if not rows:
        return Text("There are no queues.")
    screen = session.screen
    bars = screen.is_terminal
    columns = [Column("QUEUE"), *(Column(name.upper(), right=True) for name in STATES)]
    columns += [Column("OLDEST", right=True)]
    columns += [Column("IN/S", right=True, drop=4), Column("OUT/S", right=True, drop=3)]
    columns += [Column("DONE/S", right=True, drop=2)]
    columns += [Column("SHARE", drop=1)] if bars else []
    columns += [Column("NOTE", cut=True, least=6)]
    most = max((_size(each) for each in rows), default=0)
    lines = [
        [
            each.queue.name,
            *_counts(each.queue.counts),
            *_rates(each.rates),
            *([_bar(each, most)] if bars else []),
            note_of(each.queue, session.now_ms),
        ]
        for each in rows
    ]
    foot = _foot(rows, bars=bars) if len(rows) > 1 else None
    return Listing(columns, lines, foot=foot)


def _counts(counts: Counts | None) -> list[Cell]:
    if counts is None:
        return [""] * (len(STATES) + 1)
    about = "" if counts.exact else "~"
    cells: list[Cell] = []
    for name in STATES:
        many: int = getattr(counts, name)
        cells.append(Text(about + number(many), style=STATE_STYLES[name] if many else "dim"))
    oldest_s = counts.oldest_age_s.get("visible")
    return [*cells, "" if oldest_s is None else rough(oldest_s)]


def _rates(rates: dict[str, float] | None) -> list[Cell]:
    if rates is None:
        return [""] * len(RATES)
    return [Text(per_second(rate), style="" if rate else "dim") for rate in rates.values()]


def _size(row: Row) -> int:
    counts = row.queue.counts
    return counts.total + counts.poisoned if counts is not None else 0


def _bar(row: Row, most: int) -> Text:
    """Return a bar as long as the queue is large, in the colours of the states."""
    counts, bar = row.queue.counts, Text()
    if counts is None or not most:
        return bar
    reached = drawn = 0
    for name in STATES:
        reached += getattr(counts, name)
        # Rounded up, so that a single message among thousands is seen.
        cells = -(-reached * _BAR_CELLS // most) - drawn
        bar.append("█" * cells, style=STATE_STYLES[name])
        drawn += cells
    return bar


def note_of(queue: QueueInfo, now_ms: int) -> str:
    """Return what else there is to say about a queue: that it is paused, has staged messages."""
    paused = paused_text(queue.settings, now_ms)
    notes = [f"paused {paused}"] if paused else []
    for name in ("staged", "expired"):
        many = getattr(queue.counts, name, 0)
        notes += [f"{number(many)} {name}"] if many else []
    return ", ".join(notes)


def _foot(rows: Sequence[Row], *, bars: bool) -> list[Cell]:
    counted = [each.queue.counts for each in rows if each.queue.counts is not None]
    sums: list[Cell] = [number(sum(getattr(counts, name) for counts in counted)) for name in STATES]
    known = [each.rates for each in rows if each.rates is not None]
    rates: list[Cell] = [
        per_second(sum(each[name] for each in known)) if known else "" for name in RATES
    ]
    return [f"{len(rows)} queues", *sums, "", *rates, *([""] if bars else []), ""]


def _as_line(row: Row) -> dict[str, Any]:
    return {**msgspec.to_builtins(row.queue), "rates_per_s": row.rates}
