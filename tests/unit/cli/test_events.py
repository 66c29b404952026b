"""``leasehold events tail`` and ``leasehold trace``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from leasehold.cli.events import _TYPES_BY_NAME
from leasehold.testing.time import START_MS
from tests.unit.cli.support import ACCOUNT, ID, Shell
from tests.unit.client.support import answer

ROOT = Path(__file__).resolve().parents[3]
OTHER = "00000000-0002-8abc-9def-0123456789ab"
TRACE = f"/queues/orders/messages/{ID}/trace"


def event(seq: int, kind: str = "put", **members: Any) -> dict[str, Any]:
    """Return an event."""
    base = {"seq": seq, "place": 0, "at_ms": START_MS + seq, "type": kind}
    return base | {"queue": "orders", "message_id": ID} | members


class Log:
    """A server that has events, in batches with these numbers."""

    def __init__(self, *seqs: int) -> None:
        self.events = [event(seq) for seq in seqs]
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        assert request.url.path == f"{ACCOUNT}/events"
        self.asked += 1
        after, limit = int(request.url.params["after"]), int(request.url.params["limit"])
        found = [each for each in self.events if each["seq"] > after]
        page = found[:limit]
        return answer(
            {
                "events": page,
                "next_after": page[-1]["seq"] if page else after,
                "finished": len(page) == len(found),
                "last_seq": self.events[-1]["seq"] if self.events else 0,
            }
        )


def tailed(shell: Shell, log: Log, *words: str) -> list[str]:
    """Return the numbers of the events that are shown."""
    shell.server = log  # type: ignore[assignment]  # it is called like a server
    result = shell("events", "tail", *words)
    assert result.exit_code == (130 if "--follow" in words else 0), result.output
    return [line.split()[2] for line in result.output.splitlines()]


def test_tail_shows_the_newest(shell: Shell) -> None:
    """Twenty unless told, also where numbers are left out."""
    seqs = range(1, 5_000, 50)
    expected = [f"{seq}.0" for seq in seqs]
    assert tailed(shell, Log(*seqs)) == expected[-20:]
    assert tailed(shell, Log(*seqs), "--last", "3") == expected[-3:]
    assert tailed(shell, Log(*seqs), "--last", "500") == expected
    assert tailed(shell, Log(*seqs), "--last", "0") == []
    far = (1_000_000, 1_000_003)
    log = Log(*far)
    assert tailed(shell, log) == [f"{seq}.0" for seq in far]
    assert log.asked < 12


def test_tail_says_that_there_is_nothing(shell: Shell) -> None:
    """People are told, on standard error; scripts get no line."""
    for seqs, words, said in (
        ((), (), "There are no events.\n"),
        ((), ("--after", "3"), "There are no events.\n"),
        ((1, 7), ("--after", "7"), "There is nothing after batch 7: the newest is 7.\n"),
    ):
        shell.server = Log(*seqs)  # type: ignore[assignment]  # it is called like a server
        result = shell("events", "tail", *words)
        assert (result.stdout, result.stderr) == ("", said)
        assert shell("events", "tail", *words, "--json").output == ""


def test_queues_stand_under_each_other(shell: Shell) -> None:
    """What follows the name of a queue is aligned; a longer name moves what comes after it."""
    names = ("bakery", "orders-of-the-week", "tea")
    events = [event(seq, queue=name) for seq, name in enumerate(names, start=1)]
    page = {"events": events, "next_after": 3, "finished": True, "last_seq": 3}
    shell.server.on("GET", "/events", page)
    lines = shell("events", "tail", "--after", "0").output.splitlines()
    first, second, third = (line.index(ID) for line in lines)
    assert first < second == third


def test_tail_goes_on_from_a_number(shell: Shell) -> None:
    """All after it, page after page."""
    assert tailed(shell, Log(*range(1, 2_500)), "--after", "100")[:2] == ["101.0", "102.0"]
    assert len(tailed(shell, Log(*range(1, 2_500)), "--after", "0")) == 2_499


def test_tail_follows_until_interrupted(shell: Shell) -> None:
    """What happens meanwhile is shown, until Ctrl+C."""
    log = Log(1, 2)
    slept: list[float] = []

    def sleep(length_s: float) -> None:
        slept.append(length_s)
        if len(slept) == 2:
            raise KeyboardInterrupt
        log.events.append(event(9, "completed"))

    shell.on_sleep = sleep
    assert tailed(shell, log, "--last", "1", "--follow") == ["2.0", "9.0"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--queue", "mails"), ["4.0"]),
        (("--type", "lapsed"), ["2.0", "4.0"]),
        (("--type", "put,lapsed", "--queue", "orders"), ["1.0", "2.0"]),
        (("--type", "problems"), ["2.0", "3.0", "4.0"]),
        (("--type", "sessions", "--type", "put"), ["1.0", "3.0"]),
        (("--message", OTHER), ["4.0"]),
        (("--group", "acme"), ["1.0"]),
        (("--holder", "worker-7"), ["2.0"]),
        (("--session", "s1"), ["3.0"]),
        (("--actor", "*"), ["5.0"]),
        (("--actor", "console:alice"), ["5.0"]),
        (("--actor", "console:bob"), []),
        (("--holder", "*", "--type", "lapsed"), ["2.0"]),
        (("--type", "lapsed", "--last", "1"), ["4.0"]),
        (("--type", "lapsed", "--after", "2"), ["4.0"]),
    ],
)
def test_tail_filters(shell: Shell, words: tuple[str, ...], shown: list[str]) -> None:
    """The filters are those of the console; an event must match all of them."""
    log = Log()
    log.events = [
        event(1, "put") | {"group_id": "acme"},
        event(2, "lapsed") | {"holder": "worker-7"},
        event(3, "session-lost") | {"session": "s1"},
        event(4, "lapsed") | {"queue": "mails", "message_id": OTHER},
        event(5, "queue-paused") | {"actor": "console:alice"},
    ]
    shell.server = log  # type: ignore[assignment]  # it is called like a server
    result = shell("events", "tail", *words)
    assert result.exit_code == 0, result.output
    assert [line.split()[2] for line in result.stdout.splitlines()] == shown
    assert ("No event matches the filter." in result.stderr) == (not shown)


def test_tail_knows_the_console_s_kinds() -> None:
    """Types that the console looks for together are so here, too."""
    page = ROOT / "src/leasehold/http/console/static/pages/events.js"
    kinds = re.findall(r'\["[A-Z][a-z ]+", "([a-z,-]+)"\]', page.read_text(encoding="utf-8"))
    assert [set(kind.split(",")) for kind in kinds] == [*_TYPES_BY_NAME.values()]


def test_tail_knows_no_such_type(shell: Shell) -> None:
    """The nearest one is named."""
    result = shell("events", "tail", "--type", "laped")
    assert result.output.startswith("Error: --type: 'laped' is no type of event. Type: lapsed")


def test_a_line_tells_what_happened(shell: Shell) -> None:
    """When, what, where, to which message, and the facts that there are."""
    shell.server.on(
        "GET",
        "/events",
        {
            "events": [
                event(7, "lease-ended", holder="w\x1b7", reason="operator", session="s1"),
                event(8, "session-lost", queue=None, message_id=None, session="s1"),
            ],
            "next_after": 8,
            "finished": True,
        },
    )
    first, second = shell("events", "tail", "--after", "0").output.splitlines()
    assert first.split() == [
        *("2026-01-01", "00:00:00.007", "7.0", "lease-ended", "orders", ID),
        *(r"holder=w\x1b7", "session=s1", "reason=operator"),
    ]
    assert second.split() == ["2026-01-01", "00:00:00.008", "8.0", "session-lost", "s1"]
    lines = shell("events", "tail", "--after", "0", "--json").output.splitlines()
    assert json.loads(lines[1]) == {
        "seq": 8,
        "place": 0,
        "at_ms": START_MS + 8,
        "type": "session-lost",
        "session": "s1",
    }


def test_trace_tells_the_story(shell: Shell) -> None:
    """A sentence for each event, the day where it begins."""
    events = [
        event(1, "put"),
        event(5, "received", holder="w1", dequeue_count=1, visible_at_ms=START_MS + 30_005),
        event(9, "completed", since_ms=START_MS + 5),
    ]
    shell.server.on("GET", TRACE, {"events": events, "next_after": 9, "finished": True})
    gone = {"sentence": "It is not there.", "code": "not-found"}
    shell.server.on("GET", f"/queues/orders/messages/{ID}/explain", gone)
    lines = shell("trace", "orders", ID).output.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("2026-01-01 00:00:00.001  put into orders")
    assert lines[1].startswith("           00:00:00.005  ")
    assert "w1" in lines[1]
    assert lines[2].startswith("           00:00:00.009  completed")
    lines = shell("trace", "orders", ID, "--json").output.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["put", "received", "completed"]
    assert json.loads(lines[0]) == events[0]


def test_trace_ends_with_the_present(shell: Shell) -> None:
    """Of a message that is still there it says how it is now; scripts get the events alone."""
    shell.server.on("GET", TRACE, {"events": [event(1)], "next_after": 1, "finished": True})
    now = {"sentence": "It is on\x1b a lease.", "code": "leased"}
    shell.server.on("GET", f"/queues/orders/messages/{ID}/explain", now)
    lines = shell("trace", "orders", ID).output.splitlines()
    assert lines[1] == f"{'now':>23}  It is on\\x1b a lease."
    assert len(shell("trace", "orders", ID, "--json").output.splitlines()) == 1
    assert shell.server.asked[-1].endswith("/trace")


def test_trace_of_what_nobody_knows(shell: Shell) -> None:
    """A sentence for people, nothing for scripts."""
    shell.server.on("GET", TRACE, {"events": [], "next_after": 0, "finished": True})
    assert shell("trace", "orders", ID).output == (
        f"The event log knows nothing of message {ID} in queue orders.\n"
        "It forgets old events (the server's setting events_retention_s), and queues may have it "
        "turned off.\n"
    )
    assert shell("trace", "orders", ID, "--json").output == ""
