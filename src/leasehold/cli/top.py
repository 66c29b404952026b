"""``leasehold top``: queues, workers and leases as they are now, drawn again and again."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import click
import msgspec
from rich.console import Group
from rich.live import Live

from leasehold.cli.output import plain
from leasehold.cli.remote import Session, remote
from leasehold.cli.stats import RATES, STATES, Rates, Row
from leasehold.cli.top_board import (
    FIELDS,
    LONGEST_S,
    SHORTEST_S,
    VIEWS,
    Board,
    Snapshot,
    live_workers,
)
from leasehold.client.errors import Forbidden, LeaseholdClientError, QueueNotFound
from leasehold.client.models import MessageView, QueueInfo, SessionInfo

MOST_LEASES: Final = 2_000
"""Leases that are asked for at a look; of more, those of the queues that have most."""
_MOST_QUEUES: Final = 50
_PAGE: Final = 1_000
_TICK_S: Final = 0.25
"""How soon a terminal that has another size is drawn anew."""


# --- asking ---------------------------------------------------------------------------------------


class _Look:
    """Asks the server."""

    def __init__(self, session: Session, prefix: str) -> None:
        self._session = session
        self._prefix = prefix
        self._rates = Rates()

    def __call__(self, view: str, focus: str | None) -> Snapshot:
        """Return how things are now; leases only where they are shown, of one queue or of all."""
        client = self._session.client
        found = list(client.list_queues(self._prefix, counts=True))
        # By the server's clock, as are the ends of leases.
        moments = [each.counts.at_ms for each in found if each.counts is not None]
        now_ms = max(moments, default=self._session.now_ms)
        queues = [Row(each, self._rates.of(each, now_ms)) for each in found]
        workers: Sequence[SessionInfo] = ()
        leases: Sequence[MessageView] | None = None
        denied = set()
        try:
            workers = client.list_sessions()
        except Forbidden:
            denied.add("workers")
        if view == "leases":
            try:
                leases = self._leases(found, focus)
            except Forbidden:
                denied.add("leases")
        return Snapshot(now_ms, queues, workers, leases, frozenset(denied))

    def _leases(self, queues: Sequence[QueueInfo], focus: str | None) -> list[MessageView]:
        leased = {each.name: each.counts.leased for each in queues if each.counts is not None}
        names = [name for name, many in leased.items() if many and focus in {None, name}]
        names.sort(key=leased.__getitem__, reverse=True)
        found: list[MessageView] = []
        for name in names[:_MOST_QUEUES]:
            handle, after = self._session.queue(name), None
            while (room := MOST_LEASES - len(found)) > 0:
                try:
                    page, after = handle.inspect_page(
                        after, min(room, _PAGE), states=["leased"], body=False
                    )
                except QueueNotFound:  # it was deleted meanwhile
                    break
                found += page
                if after is None:
                    break
        return found


# --- the terminal ------------------------------------------------------------------------------


_KEYS: Final = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    b"\x1b[Z": "back-tab",
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
"""What terminals send; those that say ESC O in place of ESC [ mean the same."""


def keys_in(typed: bytes) -> Iterator[str]:
    """Yield the keys that a terminal has sent; sequences that are not known are passed over."""
    rest = typed.replace(b"\x1bO", b"\x1b[")
    while rest:
        for sequence, name in _KEYS.items():
            if rest.startswith(sequence):
                yield name
                rest = rest[len(sequence) :]
                break
        else:
            if rest.startswith(b"\x1b["):
                end = next((at for at, byte in enumerate(rest[2:], 2) if 0x40 <= byte < 0x7F), None)  # noqa: PLR2004 - as ECMA-48 ends a sequence
                rest = b"" if end is None else rest[end + 1 :]
            elif rest.startswith(b"\x1b"):
                yield "escape"
                rest = rest[1:]
            else:
                text = rest.split(b"\x1b")[0]
                yield from (each for each in text.decode(errors="ignore")[:1] if each.isprintable())
                rest = rest[max(1, len(text.decode(errors="ignore")[:1].encode())) :]


class _Poller(threading.Thread):
    """Asks the server in a thread of its own, so that keys are answered while it waits.

    Args:
        look: Asks the server what a view shows.
        board: Says which view that is, and how often to look.
        ring: Called after each look.
    """

    def __init__(self, look: _Look, board: Board, ring: Callable[[], object]) -> None:
        super().__init__(name="top-poller", daemon=True)
        self._look = look
        self._board = board
        self._ring = ring
        self._hurry = threading.Event()
        self._latest: tuple[Snapshot | None, str] = (None, "")
        self.is_over = False

    def run(self) -> None:
        """Look until :attr:`is_over`."""
        while not self.is_over:
            self._hurry.clear()
            if not self._board.is_paused:
                try:
                    self._latest = (self._look(self._board.view, self._board.focus), "")
                except LeaseholdClientError as error:
                    self._latest = (None, f"No answer: {error}")
                except Exception:
                    if not self.is_over:  # the client was closed under it
                        raise
                if not self.is_over:
                    self._ring()
            self._hurry.wait(self._board.every_s)

    def hurry(self) -> None:
        """Look at once."""
        self._hurry.set()

    def latest(self) -> tuple[Snapshot | None, str]:
        """Return what was seen last, None if nothing could be; and why not."""
        return self._latest


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """Yield the file of a keyboard that gives each key at once; None if there is no keyboard."""
    try:
        file = sys.stdin.fileno()
        before = termios.tcgetattr(file)
    except (OSError, ValueError, termios.error):
        yield None
        return
    try:
        tty.setcbreak(file)
        chosen = termios.tcgetattr(file)
        chosen[6][termios.VSUSP] = b"\0"  # Ctrl+Z would leave the shell with this screen
        termios.tcsetattr(file, termios.TCSANOW, chosen)
        yield file
    finally:
        termios.tcsetattr(file, termios.TCSAFLUSH, before)


def _run(session: Session, board: Board, look: _Look, found: Snapshot) -> None:
    """Draw and obey keys until one says quit."""
    screen = session.screen.out
    woken, wake = os.pipe()
    poller = _Poller(look, board, partial(os.write, wake, b"."))
    with (
        _keyboard() as keyboard,
        Live(
            console=screen, screen=True, auto_refresh=False, redirect_stdout=False,
            redirect_stderr=False,
        ) as live,
    ):  # fmt: skip
        poller.start()
        drawn = None
        while True:
            size = screen.size
            lines = board.draw(found, size.width, size.height)
            if drawn != (lines, size):
                drawn = (lines, size)
                live.update(Group(*lines), refresh=True)
            files = [woken] if keyboard is None else [woken, keyboard]
            ready, _, _ = select.select(files, (), (), _TICK_S)
            if woken in ready:
                os.read(woken, 64)
                latest, board.failure = poller.latest()
                found = latest or found
            if keyboard in ready:
                typed = os.read(keyboard or 0, 256)
                for key in keys_in(typed):
                    if (key == "q" and board.typed is None) or not typed:
                        poller.is_over = True
                        return
                    if board.press(key, board.rows(found)):
                        poller.hurry()


# --- the command -------------------------------------------------------------------------------


@remote("top")
@click.option(
    "--view", type=click.Choice(VIEWS), default="queues", show_default=True, help="View to show."
)
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort by the column with this title, in lower case. A - in front reverses the order.",
)
@click.option("--filter", "wanted", default="", metavar="TEXT", help="Show rows with this text.")
@click.option(
    "--prefix", default="", metavar="TEXT", help="Select queues whose names begin with this text."
)
@click.option(
    "--busy", is_flag=True, help="Show queues with messages or traffic, and live workers."
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(SHORTEST_S, LONGEST_S),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two updates.",
)
@click.option(
    "--once", is_flag=True, help="Print one sample and exit. It waits first, as rates need two."
)
def top(session: Session, view: str, sort: str | None, once: bool, **given: Any) -> None:
    """Watch queues, workers and leases live, busiest first.

    Press ? for the keys. If the output is no terminal, samples are printed one after another.

    Example: leasehold top --sort oldest

    Example: leasehold top --view leases --once --json
    """
    screen, every_s = session.screen, given["every_s"]
    board = Board(
        title=f"{session.client.url} {session.client.account}",
        every_s=every_s,
        view=view,
        filter=given["wanted"],
        busy_only=given["busy"],
    )
    if sort is not None:
        _sort_by(board, sort)
    look = _Look(session, given["prefix"])
    found = look(view, None)
    if screen.is_terminal and not (once or screen.as_json or screen.out.is_dumb_terminal):
        _run(session, board, look, found)
        return
    session.sleep(min(every_s, 1.0) if once else every_s)
    while True:
        _print(session, board, look(view, None), once=once)
        if once:
            return
        session.sleep(every_s)


def _sort_by(board: Board, text: str) -> None:
    name = text.removeprefix("-").lower()
    titles = {each.column.title.lower(): each.name for each in FIELDS[board.view]}
    titles |= {each.name: each.name for each in FIELDS[board.view]}
    if name not in titles:
        known = ", ".join(each.column.title.lower() for each in FIELDS[board.view])
        raise click.UsageError(f"The view {board.view} has no column {name!r}, but {known}.")
    board.sort[board.view] = titles[name]
    if text.startswith("-"):
        board.reversed.add(board.view)


def _print(session: Session, board: Board, found: Snapshot, *, once: bool) -> None:
    screen = session.screen
    if screen.as_json:
        document = _document(board, found)
        if once:
            screen.document(document)
        else:
            screen.line(document)
        return
    screen.show(Group(*board.draw(found, screen.out.width, None)))
    if not once:
        click.echo()


def _document(board: Board, found: Snapshot) -> dict[str, Any]:
    """Return a look as JSON, with the names of the native API."""
    rates = {name: found.rate(name) for name in RATES}
    return {
        "at_ms": found.at_ms,
        "queues": len(found.queues),
        **{name: found.total(name) for name in STATES},
        "rates_per_s": None if None in rates.values() else rates,
        "workers": live_workers(found),
        "view": board.view,
        "rows": [_members(each) for each in board.rows(found)],
    }


def _members(row: Any) -> dict[str, Any]:
    if not isinstance(row, Row):
        members: dict[str, Any] = plain(row)
        members.pop("body", None)
        return members
    return {
        "name": row.queue.name,
        "counts": msgspec.to_builtins(row.queue.counts),
        "activity": msgspec.to_builtins(row.queue.activity),
        "rates_per_s": row.rates,
    }
