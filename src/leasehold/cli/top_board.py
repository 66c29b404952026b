"""What ``leasehold top`` shows: three tables, sorted and filtered, drawn for a size of screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from leasehold.cli.output import (
    STATE_STYLES,
    Cell,
    Column,
    Listing,
    age,
    clean,
    counted,
    length,
    number,
    per_second,
    rough,
    state,
)
from leasehold.cli.stats import RATES, STATES, Row, note_of
from leasehold.client.models import MessageView, SessionInfo
from leasehold.domain.wording import time_of

VIEWS: Final = ("queues", "workers", "leases")
SHORTEST_S: Final = 0.5
"""The least time between two looks."""
LONGEST_S: Final = 60.0
_MS: Final = 1000


# --- what there is to see ----------------------------------------------------------------------


class Snapshot(NamedTuple):
    """What the server has said at one look."""

    at_ms: int
    """By the server's clock, or this machine's where there is no queue, Unix milliseconds."""
    queues: Sequence[Row]
    workers: Sequence[SessionInfo] = ()
    """Sessions."""
    leases: Sequence[MessageView] | None = None
    """Leased messages, bodies left out; None: they were not asked for."""
    denied: frozenset[str] = frozenset()
    """Views that this credential may not see."""

    def rows(self, view: str) -> Sequence[Any]:
        """Return what a view is about."""
        by_view = {"queues": self.queues, "workers": self.workers, "leases": self.leases}
        return by_view[view] or ()

    def total(self, name: str) -> int:
        """Return how many messages of all queues are in a state."""
        return sum(_count(each, name) for each in self.queues)

    def rate(self, name: str) -> float | None:
        """Return how many messages of all queues were put, received or completed each second."""
        known = [each.rates[name] for each in self.queues if each.rates is not None]
        return sum(known) if known else None


class Field(NamedTuple):
    """A column that rows can be sorted by."""

    name: str
    """What ``--sort`` takes."""
    column: Column
    cell: Callable[[Any, int], Cell]
    """Of a row and the time now."""
    key: Callable[[Any], Any]
    descends: bool = True
    """Whether the largest comes first, unless told otherwise."""


def _count(row: Row, name: str) -> int:
    counts = row.queue.counts
    return 0 if counts is None else int(getattr(counts, name))


def _count_cell(name: str) -> Callable[[Row, int], Cell]:
    def cell(row: Row, _now_ms: int) -> Cell:
        many, counts = _count(row, name), row.queue.counts
        about = "" if counts is None or counts.exact else "~"
        return Text(about + number(many), style=STATE_STYLES[name] if many else "dim")

    return cell


def _oldest_s(row: Row) -> float:
    counts = row.queue.counts
    return -1.0 if counts is None else counts.oldest_age_s.get("visible", -1.0)


def _rate(row: Row, name: str) -> float:
    return -1.0 if row.rates is None else row.rates[name]


def _rate_cell(name: str) -> Callable[[Row, int], Cell]:
    def cell(row: Row, _now_ms: int) -> Cell:
        rate = _rate(row, name)
        return "" if rate < 0 else Text(per_second(rate), style="" if rate else "dim")

    return cell


def _progress(view: MessageView) -> str:
    progress = None if view.lease is None else view.lease.progress
    if progress is None:
        return ""
    share = "" if progress.fraction is None else f"{progress.fraction:.0%} "
    return f"{share}{clean(progress.note or '')}".strip()


def _left_cell(view: MessageView, now_ms: int) -> Cell:
    left_s = (view.visible_at_ms - now_ms) / _MS
    return rough(left_s) if left_s > 0 else Text("over", style="yellow")


def _since_ms(view: MessageView) -> int:
    return view.visible_at_ms if view.lease is None else view.lease.since_ms


_QUEUE_FIELDS: Final = (
    Field(
        "name",
        Column("QUEUE", cut=True, least=20, width=20),
        lambda row, _: row.queue.name,
        lambda row: row.queue.name,
        descends=False,
    ),
    *(
        Field(
            name,
            Column(name.upper(), right=True, width=7, drop=drop),
            _count_cell(name),
            partial(_count, name=name),
        )
        for name, drop in zip(STATES, (0, 0, 3, 4, 8), strict=True)
    ),
    Field(
        "oldest",
        Column("OLDEST", right=True, width=7, drop=5),
        lambda row, _: "" if _oldest_s(row) < 0 else rough(_oldest_s(row)),
        _oldest_s,
    ),
    *(
        Field(
            name,
            Column(title, right=True, width=7, drop=drop),
            _rate_cell(name),
            partial(_rate, name=name),
        )
        for name, title, drop in zip(RATES, ("IN/S", "OUT/S", "DONE/S"), (6, 2, 7), strict=True)
    ),
    Field(
        "note",
        Column("NOTE", cut=True, least=6, drop=1),
        lambda row, now_ms: note_of(row.queue, now_ms),
        lambda row: note_of(row.queue, 0),
    ),
)
_WORKER_FIELDS: Final = (
    Field(
        "name",
        Column("WORKER", cut=True, least=12, width=16),
        lambda each, _: clean(each.holder),
        lambda each: each.holder,
        descends=False,
    ),
    Field(
        "state",
        Column("STATE", width=5),
        lambda each, _: state(each.state),
        lambda each: ("live", "lost", "ended").index(each.state),
        descends=False,
    ),
    Field(
        "leases",
        Column("LEASES", right=True, width=6),
        lambda each, _: number(each.leases),
        lambda each: each.leases,
    ),
    Field(
        "heard",
        Column("HEARD", right=True, width=10, drop=4),
        lambda each, now_ms: f"{age(each.last_heartbeat_ms, now_ms)} ago",
        lambda each: each.last_heartbeat_ms,
        descends=False,
    ),
    Field(
        "age",
        Column("AGE", right=True, width=6, drop=3),
        lambda each, now_ms: age(each.started_at_ms, now_ms),
        lambda each: each.started_at_ms,
        descends=False,
    ),
    Field(
        "timeout",
        Column("TIMEOUT", right=True, width=7, drop=2),
        lambda each, _: length(each.timeout_s),
        lambda each: each.timeout_s,
    ),
    Field(
        "session",
        Column("SESSION", drop=1),
        lambda each, _: each.session_id,
        lambda each: each.session_id,
        descends=False,
    ),
    Field(
        "reason",
        Column("REASON", cut=True, least=8, drop=5),
        lambda each, _: clean(each.reason or ""),
        lambda each: each.reason or "",
    ),
)
_LEASE_FIELDS: Final = (
    Field(
        "queue",
        Column("QUEUE", cut=True, least=12),
        lambda each, _: each.queue,
        lambda each: each.queue,
        descends=False,
    ),
    Field(
        "left",
        Column("LEFT", right=True, width=6),
        _left_cell,
        lambda each: each.visible_at_ms,
        descends=False,
    ),
    Field(
        "held",
        Column("HELD", right=True, width=6),
        lambda each, now_ms: age(_since_ms(each), now_ms),
        _since_ms,
        descends=False,
    ),
    Field(
        "times",
        Column("TIMES", right=True, width=5, drop=5),
        lambda each, _: number(each.dequeue_count),
        lambda each: each.dequeue_count,
    ),
    Field(
        "renewed",
        Column("RENEWED", right=True, width=7, drop=3),
        lambda each, _: number(0 if each.lease is None else each.lease.renewals),
        lambda each: 0 if each.lease is None else each.lease.renewals,
    ),
    Field(
        "holder",
        Column("HOLDER", cut=True, least=10),
        lambda each, _: clean((each.lease and each.lease.holder) or "unnamed"),
        lambda each: (each.lease and each.lease.holder) or "",
        descends=False,
    ),
    Field(
        "claim",
        Column("CLAIM", drop=4),
        lambda each, _: clean(each.under or ""),
        lambda each: each.under or "",
    ),
    Field(
        "id",
        Column("ID", drop=2),
        lambda each, _: each.id,
        lambda each: each.id,
        descends=False,
    ),
    Field(
        "progress",
        Column("PROGRESS", cut=True, least=8, drop=1),
        lambda each, _: _progress(each),
        _progress,
    ),
)
FIELDS: Final[Mapping[str, tuple[Field, ...]]] = {
    "queues": _QUEUE_FIELDS,
    "workers": _WORKER_FIELDS,
    "leases": _LEASE_FIELDS,
}
_FIRST_SORT: Final = {"queues": "visible", "workers": "state", "leases": "left"}
_TEXT_OF: Final[Mapping[str, Callable[[Any], str]]] = {
    "queues": lambda row: str(row.queue.name),
    "workers": lambda each: f"{each.holder} {each.session_id} {each.state}",
    "leases": lambda each: f"{each.queue} {each.id} {(each.lease and each.lease.holder) or ''}",
}
"""By view: what a filter looks into."""


# --- what is shown of it -----------------------------------------------------------------------


@dataclass(slots=True)
class Board:
    """What is shown, and how: changed by keys, drawn by :meth:`draw`."""

    title: str
    every_s: float
    view: str = "queues"
    sort: dict[str, str] = field(default_factory=lambda: dict(_FIRST_SORT))
    reversed: set[str] = field(default_factory=set)
    """Views that are sorted the other way."""
    filter: str = ""
    typed: str | None = None
    """A filter that is being typed."""
    busy_only: bool = False
    """Leave out queues without messages and rates, and sessions that are over."""
    focus: str | None = None
    """The queue whose leases are shown; None: of all."""
    selected: int = 0
    first: int = 0
    """Of the rows, the one that is drawn first."""
    page: int = 1
    """Rows that were drawn last."""
    is_paused: bool = False
    shows_help: bool = False
    failure: str = ""
    """Why the server has not answered; empty if it has."""

    # --- rows ---

    def rows(self, found: Snapshot) -> list[Any]:
        """Return the rows of the view, chosen and sorted."""
        text_of = _TEXT_OF[self.view]
        wanted = (self.filter if self.typed is None else self.typed).casefold()
        rows = [each for each in found.rows(self.view) if wanted in text_of(each).casefold()]
        if self.busy_only:
            rows = [each for each in rows if _is_busy(each)]
        chosen = self.field()
        rows.sort(key=text_of)  # those that are equal stay where they are
        rows.sort(key=chosen.key, reverse=chosen.descends != (self.view in self.reversed))
        return rows

    def field(self) -> Field:
        """Return the column by which the view is sorted."""
        name = self.sort[self.view]
        return next(each for each in FIELDS[self.view] if each.name == name)

    # --- keys ---

    def press(self, key: str, rows: Sequence[Any]) -> bool:
        """Do what a key says; return whether the server is to be asked at once."""
        if self.typed is not None:
            self._type(key)
            return False
        if self.shows_help:
            self.shows_help = False
            return False
        before = (self.view, self.focus)
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -self.page}
        moves |= {"page-down": self.page, "home": -len(rows), "end": len(rows)}
        if key in moves:
            self.selected = max(0, min(self.selected + moves[key], len(rows) - 1))
        elif key == "enter" and self.view == "queues" and rows:
            self._show("leases", rows[min(self.selected, len(rows) - 1)].queue.name)
        elif key == "escape":
            self._back()
        elif key in {"1", "2", "3"}:
            self._show(VIEWS[int(key) - 1])
        elif key in {"tab", "back-tab"}:
            step = 1 if key == "tab" else -1
            self._show(VIEWS[(VIEWS.index(self.view) + step) % len(VIEWS)])
        else:
            return self._set(key)
        return (self.view, self.focus) != before

    def _set(self, key: str) -> bool:
        names = [each.name for each in FIELDS[self.view]]
        place = names.index(self.sort[self.view])
        if key in {"<", ">", "left", "right"}:
            step = -1 if key in {"<", "left"} else 1
            self.sort[self.view] = names[(place + step) % len(names)]
            self.reversed.discard(self.view)
        elif key == "r":
            self.reversed ^= {self.view}
        elif key == "/":
            self.typed = self.filter
        elif key == "b":
            self.busy_only = not self.busy_only
        elif key == " ":
            self.is_paused = not self.is_paused
            return not self.is_paused
        elif key in {"+", "-"}:
            factor = 2 if key == "+" else 0.5
            self.every_s = max(SHORTEST_S, min(self.every_s * factor, LONGEST_S))
        elif key in {"h", "?"}:
            self.shows_help = True
        return False

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key == "enter":
            self.filter, self.typed, self.selected = self.typed, None, 0
        elif key == "escape":
            self.typed = None
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1:
            self.typed += key

    def _show(self, view: str, focus: str | None = None) -> None:
        self.view, self.focus = view, focus
        self.selected = self.first = 0

    def _back(self) -> None:
        if self.filter:
            self.filter = ""
        elif self.focus is not None:
            self._show("queues")

    # --- drawing ---

    def draw(self, found: Snapshot, width: int, height: int | None) -> list[RenderableType]:
        """Return the lines of a screen of this size; without a *height* as many as there are."""
        if self.shows_help and height is not None:
            return [*_HELP[:height]]
        rows = self.rows(found)
        head = self._head(found, rows, width)
        keys = [] if height is None else [self._foot()]
        if height is not None:
            # Heads and rule of the table, and at least one row, whatever it costs.
            head = head[: max(1, height - len(keys) - 3)]
            self.page = max(1, height - len(head) - len(keys) - 2)
            self.selected = max(0, min(self.selected, len(rows) - 1))
            self.first = max(0, min(self.first, self.selected, len(rows) - self.page))
            self.first = max(self.first, self.selected - self.page + 1)
        shown = rows if height is None else rows[self.first : self.first + self.page]
        lines = [*head, *self._table(shown, found, width, marks=height is not None)]
        if height is not None:
            lines = lines[: height - len(keys)]
            lines += [Text()] * (height - len(keys) - len(lines))
        return [*lines, *keys]

    def _head(self, found: Snapshot, rows: Sequence[Any], width: int) -> list[RenderableType]:
        when = time_of(found.at_ms)[11:19]
        first = Text.assemble(("leasehold top", "bold"), f"  {when} UTC  {self.title}")
        if self.is_paused:
            first.append("  paused", style="yellow")
        lines = [first]
        if self.failure:
            lines.append(Text(clean(self.failure), style="bold red"))
        waiting = [each.queue.activity.waiting for each in found.queues if each.queue.activity]
        sums = Text(f"{counted(len(found.queues), 'queue')}: ")
        for name in STATES:
            many = found.total(name)
            sums.append(f"{number(many)} {name}  ", style=STATE_STYLES[name] if many else "dim")
        lines.append(sums)
        rates = {name: found.rate(name) for name in RATES}
        flow = [f"{per_second(rate)} {name}/s" for name, rate in rates.items() if rate is not None]
        live = live_workers(found)
        flow.append("" if live is None else f"{counted(live, 'worker')} live")
        flow.append(f"{counted(sum(waiting), 'receive')} waiting")
        lines.append(Text("  ".join(filter(None, flow))))
        lines.append(self._choice(found, rows))
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return [*lines]

    def _choice(self, found: Snapshot, rows: Sequence[Any]) -> Text:
        """Return which rows are shown, and in which order."""
        text = Text()
        for name in VIEWS:
            text.append(f" {name} ", style="reverse" if name == self.view else "dim")
        missing = found.rows(self.view) or self.view == "queues"
        of_what = f" of {number(len(found.rows(self.view)))}" if missing else ""
        text.append(f"  {number(len(rows))}{of_what}")
        if self.view == "leases":
            leased = _leased(found, self.focus)
            if found.leases is not None and len(found.leases) < leased:
                text.append(f" ({number(leased)} are leased)")
        order = "▲" if self.field().descends == (self.view in self.reversed) else "▼"
        text.append(f"  by {self.field().column.title} {order}")
        if self.focus is not None:
            text.append(f"  of queue {self.focus}")
        if self.filter and self.typed is None:
            text.append(f"  with {clean(self.filter)!r}", style="yellow")
        if self.busy_only:
            text.append("  busy only", style="yellow")
        return text

    def _table(
        self, rows: Sequence[Any], found: Snapshot, width: int, *, marks: bool
    ) -> Iterator[RenderableType]:
        if not rows:
            yield Text(_why_empty(self, found), style="dim", no_wrap=True, overflow="ellipsis")
            return
        fields = FIELDS[self.view]
        cells = [[each.cell(row, found.at_ms) for each in fields] for row in rows]
        table = Listing([each.column for each in fields], cells)
        for place, line in enumerate(table.lines(width), start=-2):
            assert isinstance(line, Text)
            line.truncate(width)  # where even the narrowest choice of columns is too wide
            if place == -2:  # noqa: PLR2004 - the heads
                line.highlight_words([self.field().column.title], "reverse")
            elif marks and place == self.selected - self.first:
                line.pad_right(width - line.cell_len)
                line.stylize("reverse")
            yield line

    def _foot(self) -> Text:
        if self.typed is not None:
            text = Text.assemble(("Filter: ", "bold"), clean(self.typed), ("█", "dim"))
            text.append("  Enter: keep  Esc: leave", style="dim")
        else:
            keys = "q quit  Tab view  < > sort  r reverse  / filter  b busy  Enter leases  ? help"
            text = Text(keys, style="dim")
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def _leased(found: Snapshot, focus: str | None) -> int:
    chosen = [each for each in found.queues if focus in {None, each.queue.name}]
    return sum(_count(each, "leased") for each in chosen)


def live_workers(found: Snapshot) -> int | None:
    """Return how many sessions are live; None if this credential may not see them."""
    if "workers" in found.denied:
        return None
    return sum(each.state == "live" for each in found.workers)


def _is_busy(row: Any) -> bool:
    if isinstance(row, SessionInfo):
        return row.state == "live"
    if isinstance(row, MessageView):
        return True
    counts = row.queue.counts
    rates = row.rates or {}
    return any(rates.values()) or (counts is not None and counts.total + counts.poisoned > 0)


def _why_empty(board: Board, found: Snapshot) -> str:
    if board.view in found.denied:
        return f"The credential may not see {board.view}."
    if board.view == "leases" and found.leases is None:
        return "Loading leases ..."
    if found.rows(board.view):
        return "No row matches the filter."
    return {
        "queues": "There are no queues.",
        "workers": "There are no sessions of workers.",
        "leases": "Nothing is leased.",
    }[board.view]


_HELP: Final = tuple(
    Text.assemble(
        (f"  {keys:<22}" if keys else "", "bold"), what, no_wrap=True, overflow="ellipsis"
    )
    for keys, what in (
        ("", "Keys of leasehold top (any key goes back)"),
        ("q, Ctrl+C", "quit"),
        ("1, 2, 3, Tab", "queues, workers, leases"),
        ("Enter", "the leases of the selected queue; Esc goes back"),
        ("<, >, Left, Right", "sort by the previous or next column"),
        ("r", "reverse the order"),
        ("/", "show rows with this text; Esc clears it"),
        ("b", "show queues with messages or traffic, and live workers"),
        ("Up, Down, PgUp, PgDn", "move; also Home and End"),
        ("Space", "pause and continue"),
        ("+, -", "update half or twice as often"),
    )
)
