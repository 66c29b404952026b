"""``leasehold top``: tables for a size of screen, keys, and the program in a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from rich.console import Console, Group

from leasehold.cli.stats import Row
from leasehold.cli.top import keys_in
from leasehold.cli.top_board import FIELDS, Board, Snapshot
from leasehold.client.models import MessageView, QueueInfo, SessionInfo
from leasehold.testing import InProcessServer
from leasehold.testing.time import START_MS
from tests.unit.cli.support import COUNTS, ID, QUEUE, VIEW, Shell
from tests.unit.cli.terminal import Terminal
from tests.unit.client.support import problem

SESSION = {
    "session_id": ID,
    "holder": "worker-7",
    "state": "live",
    "timeout_s": 16,
    "started_at_ms": START_MS - 7_200_000,
    "last_heartbeat_ms": START_MS - 3_000,
    "leases": 12,
}


def queue(name: str, rates: dict[str, float] | None = None, **counts: int) -> Row:
    """Return a queue with so many messages."""
    document = QUEUE | {"name": name, "counts": COUNTS | dict.fromkeys(COUNTED, 0) | counts}
    return Row(msgspec.convert(document, QueueInfo), rates)


def lease(queue: str, left_s: int, holder: str = "worker-7") -> MessageView:
    """Return a leased message."""
    held = {"holder": holder, "since_ms": START_MS - 5_000, "until_ms": START_MS, "renewals": 3}
    held["progress"] = {"fraction": 0.4, "note": "frame\x1b[2J 12"}
    members = {name: value for name, value in VIEW.items() if name != "body"}
    shown = members | {"queue": queue, "visible_at_ms": START_MS + left_s * 1_000, "lease": held}
    return msgspec.convert(shown, MessageView)


COUNTED = ("visible", "leased", "total", "poisoned")
FLOW = {"sent": 3.0, "received": 2.0, "completed": 1.0}
MANY = Snapshot(
    START_MS,
    [
        queue("orders", FLOW, visible=5, total=5),
        queue("mail", {**FLOW, "sent": 9.0}, visible=70, leased=2, total=72),
        queue("idle", dict.fromkeys(FLOW, 0.0)),
    ],
    [
        msgspec.convert(SESSION | {"state": "lost", "holder": "worker-8"}, SessionInfo),
        msgspec.convert(SESSION, SessionInfo),
    ],
    [lease("mail", 90), lease("mail", 20, "worker-8")],
)


def board(**members: Any) -> Board:
    """Return what is shown at first, or otherwise."""
    return Board(title="http://127.0.0.1:10001 shop", every_s=2.0, **members)


def drawn(shown: Board, found: Snapshot, width: int = 100, height: int | None = 20) -> list[str]:
    """Return the lines of a screen; each fits it."""
    lines = shown.draw(found, width, height)
    assert height is None or len(lines) <= height
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as written:
        console.print(Group(*lines))
    text = written.get().splitlines()
    assert len(text) == len(lines), "no line is wrapped"
    return [line.rstrip() for line in text]


def first_cells(lines: Sequence[str]) -> list[str]:
    """Return what stands first in each row of a table."""
    (rule,) = (place for place, line in enumerate(lines) if line.startswith("──"))
    return [line.split()[0] for line in lines[rule + 1 : -1] if line]


# --- what is drawn -------------------------------------------------------------------------------


def test_queues_with_their_sums() -> None:
    """The fullest first; sums and rates of all above."""
    lines = drawn(board(), MANY)
    assert lines[0] == "leasehold top  00:00:00 UTC  http://127.0.0.1:10001 shop"
    assert lines[1] == "3 queues: 75 visible  2 leased  0 delayed  0 deferred  0 poisoned"
    assert lines[2] == (
        "12.0 sent/s  4.00 received/s  2.00 completed/s  1 worker live  0 receives waiting"
    )
    assert lines[3].strip() == "queues  workers  leases   3 of 3  by VISIBLE ▼"
    assert first_cells(lines) == ["mail", "orders", "idle"]
    assert lines[-1].startswith("q quit")


@pytest.mark.parametrize("view", FIELDS)
@pytest.mark.parametrize(("width", "height"), [(300, 50), (80, 24), (40, 10), (20, 6), (5, 3)])
def test_every_size_of_screen(view: str, width: int, height: int) -> None:
    """Nothing is wider or higher than the screen, and what others wrote moves no cursor."""
    lines = drawn(board(view=view), MANY, width, height)
    assert all(len(line) <= width for line in lines)
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("view", "name"), [(view, each.name) for view in FIELDS for each in FIELDS[view]]
)
def test_every_column_can_be_sorted_by(view: str, name: str) -> None:
    """Both ways, and the ways differ where the values do."""
    shown = board(view=view)
    shown.sort[view] = name
    key = shown.field().key
    descends = shown.field().descends
    keys = [key(each) for each in shown.rows(MANY)]
    assert keys == sorted(keys, reverse=descends)
    shown.press("r", [])
    assert [key(each) for each in shown.rows(MANY)] == sorted(keys, reverse=not descends)


def test_thousands_of_queues() -> None:
    """Only those on the screen are drawn; the selected one always is."""
    found = Snapshot(START_MS, [queue(f"q{at:04}", FLOW, visible=at) for at in range(5_000)])
    shown = board()
    assert first_cells(drawn(shown, found))[0] == "q4999"
    shown.press("end", shown.rows(found))
    lines = drawn(shown, found)
    assert first_cells(lines)[-1] == "q0000"
    assert len(first_cells(lines)) == shown.page
    shown.press("page-up", shown.rows(found))
    shown.press("up", shown.rows(found))
    assert first_cells(drawn(shown, found))[0] == f"q{shown.page + 1:04}"


def test_where_nothing_is() -> None:
    """It says why."""
    nothing = Snapshot(START_MS, [], leases=[])
    for view, said in (
        ("queues", "There are no queues."),
        ("workers", "There are no sessions of workers."),
        ("leases", "Nothing is leased."),
    ):
        assert said in drawn(board(view=view), nothing)
    assert "No row matches the filter." in drawn(board(filter="zzz"), MANY)
    denied = MANY._replace(workers=(), denied=frozenset({"workers"}))
    assert "The credential may not see workers." in drawn(board(view="workers"), denied)
    assert "live" not in drawn(board(), denied)[2]


def test_that_a_server_does_not_answer_stands_above_what_was_known() -> None:
    """The figures stay."""
    lines = drawn(board(failure="No answer: refused"), MANY)
    assert lines[1] == "No answer: refused"
    assert first_cells(lines) == ["mail", "orders", "idle"]


def test_more_leases_than_are_shown() -> None:
    """How many there are is said."""
    found = MANY._replace(queues=[queue("mail", leased=4_000)])
    assert "2 of 2 (4,000 are leased)" in drawn(board(view="leases"), found)[3]


# --- keys ----------------------------------------------------------------------------------------


def test_keys_choose_the_view() -> None:
    """By number or in turn; the server is asked anew only then."""
    shown = board()
    for key, view in (("3", "leases"), ("tab", "queues"), ("back-tab", "leases"), ("2", "workers")):
        assert shown.press(key, [])
        assert shown.view == view
    assert not shown.press("2", [])


def test_enter_shows_the_leases_of_a_queue() -> None:
    """Escape goes back."""
    shown = board()
    shown.press("down", shown.rows(MANY))
    assert shown.press("enter", shown.rows(MANY))
    assert (shown.view, shown.focus) == ("leases", "orders")
    assert "of queue orders" in drawn(shown, MANY)[3]
    assert shown.press("escape", [])
    assert (shown.view, shown.focus) == ("queues", None)


def test_a_filter_is_typed() -> None:
    """It works while it is typed; letters are no commands then."""
    shown = board()
    for key in ("/", "m", "q", "backspace", "a"):
        assert not shown.press(key, [])
    assert drawn(shown, MANY)[-1].startswith("Filter: ma█")
    assert first_cells(drawn(shown, MANY)) == ["mail"]
    shown.press("enter", [])
    assert "with 'ma'" in drawn(shown, MANY)[3]
    for key in ("/", "x", "escape"):
        shown.press(key, [])
    assert shown.filter == "ma"
    shown.press("escape", [])
    assert len(first_cells(drawn(shown, MANY))) == 3


def test_keys_change_order_pace_and_what_is_shown() -> None:
    """Each of the keys that help names."""
    shown = board()
    shown.press(">", [])
    assert shown.field().name == "leased"
    shown.press("left", [])
    shown.press("<", [])
    assert (shown.field().name, first_cells(drawn(shown, MANY))[0]) == ("name", "idle")
    shown.press("b", [])
    assert first_cells(drawn(shown, MANY)) == ["mail", "orders"]
    shown.press("+", [])
    assert shown.every_s == 4
    for _ in range(9):
        shown.press("-", [])
    assert shown.every_s == 0.5
    assert not shown.press(" ", [])
    assert "paused" in drawn(shown, MANY)[0]
    assert shown.press(" ", [])
    shown.press("?", [])
    assert "Keys of leasehold top" in drawn(shown, MANY)[0]
    shown.press("x", [])
    assert drawn(shown, MANY)[0].startswith("leasehold top")


def test_what_terminals_send() -> None:
    """Both ways of writing arrows, text, and sequences that mean nothing here."""
    typed = b"q\x1b[A\x1bOB\x1b[5~\x1b[1;5C\r\x7f\x1b[Z\xc3\xa9/"
    assert list(keys_in(typed)) == [
        *("q", "up", "down", "page-up", "enter", "backspace", "back-tab", "é", "/")
    ]
    assert list(keys_in(b"\x1b")) == ["escape"]
    assert list(keys_in(b"\x1b[")) == []


# --- in a pipe -----------------------------------------------------------------------------------


@pytest.fixture
def served(shell: Shell) -> Shell:
    """A server with two queues, a worker and a lease."""
    activity = {"since_ms": START_MS, "sent": 10, "received": 4, "completed": 2, "waiting": 1}

    def page(sent: int, at_s: int) -> dict[str, Any]:
        counts = COUNTS | {"at_ms": START_MS + at_s * 1_000}
        full = QUEUE | {"counts": counts, "activity": activity | {"sent": sent}}
        empty = full | {"name": "mail", "counts": counts | dict.fromkeys(COUNTED, 0)}
        return {"queues": [empty, full], "next_after": None}

    shell.server.on("GET", "/queues", page(10, 0), page(30, 2))
    shell.server.on("GET", "/sessions", {"sessions": [SESSION]})
    shell.server.on("GET", "/queues/orders/messages", {"messages": [VIEW], "next_after": None})
    return shell


def test_once(served: Shell) -> None:
    """Two looks, for the rates; nothing is cut and no terminal is needed."""
    result = served("top", "--once", "--sort", "-queue")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[2].startswith("20.0 sent/s  0 received/s  0 completed/s  1 worker live")
    assert [line.split()[0] for line in lines[6:]] == ["orders", "mail"]
    assert served.server.requests[0].url.query == b"limit=1000&counts=true"


def test_once_as_json(served: Shell) -> None:
    """Sums, and the rows of the view with the names of the native API."""
    found = json.loads(served("top", "--once", "--json", "--filter", "ord").output)
    assert (found["queues"], found["visible"], found["workers"]) == (2, 1_234, 1)
    assert found["rates_per_s"] == {"sent": 20.0, "received": 0.0, "completed": 0.0}
    (row,) = found["rows"]
    assert (row["name"], row["counts"]["leased"]) == ("orders", 2)
    assert row["rates_per_s"]["sent"] == 10.0
    leases = json.loads(served("top", "--once", "--json", "--view", "leases").output)
    assert (leases["rows"][0]["lease"]["holder"], "body" in leases["rows"][0]) == (
        "worker-7",
        False,
    )
    assert b"state=leased" in served.server.requests[-1].url.query
    workers = json.loads(served("top", "--once", "--json", "--view", "workers").output)
    assert workers["rows"][0]["session_id"] == ID


def test_a_pipe_gets_one_look_below_the_other(served: Shell) -> None:
    """Until Ctrl+C; as JSON a line for each look."""
    looks = 0

    def wait(length_s: float) -> None:
        nonlocal looks
        looks += 1
        served.clock.advance(s=length_s)
        if looks == 3:
            raise KeyboardInterrupt

    served.on_sleep = wait
    result = served("top", "--every", "5")
    assert (result.exit_code, result.output.count("leasehold top")) == (130, 2)
    looks = 0
    result = served("top", "--json")
    assert [json.loads(line)["queues"] for line in result.output.splitlines()] == [2, 2]


def test_what_may_not_be_seen_is_left_out(served: Shell) -> None:
    """A key that may list queues sees them."""
    served.server.on("GET", "/sessions", problem("forbidden", 403))
    served.server.on("GET", "/queues/orders/messages", problem("forbidden", 403))
    result = served("top", "--once", "--view", "leases")
    assert "The credential may not see leases." in result.output
    found = json.loads(served("top", "--once", "--json").output)
    assert (found["workers"], found["queues"]) == (None, 2)


def test_a_column_that_is_not_there(served: Shell) -> None:
    """The names are told."""
    result = served("top", "--view", "workers", "--sort", "visible")
    assert result.exit_code == 2
    assert "no column 'visible', but worker, state, leases" in result.output


# --- in a terminal -------------------------------------------------------------------------------


@pytest.fixture
def busy() -> Iterator[InProcessServer]:
    """A server with queues, a worker and its leases."""
    with InProcessServer() as server, server.client() as client:
        for at in range(30):
            client.queue(f"tenant-{at:02}").create()
        orders = client.queue("orders")
        orders.create()
        orders.put_many(["x"] * 12)
        worker = client.session("worker-7", heartbeat=None).open()
        orders.receive(5, session=worker.id)
        yield server


def test_the_program_in_a_terminal(busy: InProcessServer) -> None:
    """Drawn over what was there and never wiped; it obeys keys, fits the screen, and tidies up."""
    terminal = Terminal("top", "--url", busy.url, "--every", "0.5", columns=90, lines=14)
    lines = terminal.until(lambda lines: lines[-1].startswith("q quit"))
    assert lines[1] == "31 queues: 7 visible  5 leased  0 delayed  0 deferred  0 poisoned"
    assert lines[6].split()[:3] == ["orders", "7", "5"]
    assert lines[-1].startswith("q quit")
    terminal.type("2")
    terminal.until(lambda lines: lines[6].startswith("worker-7  "))
    terminal.type("3")
    terminal.until(lambda lines: sum("worker-7" in line for line in lines) == 5)
    terminal.resize(40, 9)
    lines = terminal.until(lambda lines: lines[-1].startswith("q quit"))
    terminal.type("1/-2")
    terminal.until(lambda lines: "10 of 31" in lines[3] and lines[-1].startswith("Filter: -2"))
    terminal.type("\rq")
    assert terminal.ended() == 0
    assert terminal.sent.count(b"\x1b[2J") == 0
    assert terminal.sent.count(b"\x1b[?1049h") == terminal.sent.count(b"\x1b[?1049l") == 1
    assert terminal.sent.rstrip().endswith(b"\x1b[?1049l")


def test_a_server_that_goes_away_is_told_and_waited_for(busy: InProcessServer) -> None:
    """What was known stays on the screen, until Ctrl+C."""
    terminal = Terminal("top", "--url", busy.url, "--every", "0.5", columns=90, lines=14)
    terminal.until(lambda lines: lines[6].startswith("orders"))
    busy.stop()
    terminal.until(
        lambda lines: lines[1].startswith("No answer: ") and lines[7].startswith("orders")
    )
    terminal.type("\x03")
    assert terminal.ended() == 130


def test_without_a_server_it_does_not_begin(busy: InProcessServer) -> None:
    """One line, and the exit code of all commands."""
    terminal = Terminal("top", "--url", "http://127.0.0.1:9", columns=90, lines=14)
    assert terminal.ended() == 3
    assert b"\x1b[?1049h" not in terminal.sent
    assert "Error: " in terminal.screen.display[0]
