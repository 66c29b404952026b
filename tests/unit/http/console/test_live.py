"""What the console shows, once and live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from leasehold.auth.console import MAX_SESSION_MS
from leasehold.domain.admin import CountMessages
from leasehold.domain.command import AnyCommand
from leasehold.http.console import live
from tests.patience import PATIENCE_S
from tests.unit.http.console.support import ACCOUNT, INSPECTOR_KEY, QUEUE, SESSION, Console

OVERVIEW = "/console/api/overview"
LIVE = "/console/api/live"
ONE = {"messages": [{"body": "one"}]}


class Stream:
    """A console that reads its events."""

    def __init__(self, console: Console, fields: dict[str, str]) -> None:
        self.console = console
        answer = console.ask("GET", LIVE, headers={"cookie": fields["cookie"]})
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.stream is not None
        self.parts = answer.stream
        assert self.raw() == b"retry: 2000\n\n"

    def raw(self) -> bytes:
        """Return the next part."""
        return self.console.runner.run(asyncio.wait_for(anext(self.parts), PATIENCE_S))

    def next(self) -> tuple[str, Any]:
        """Return name and content of the next event."""
        number, name, data, *rest = self.raw().decode().split("\n")
        assert number.startswith("id: ")
        assert rest == ["", ""]
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    def close(self) -> None:
        """Go."""
        self.console.runner.run(self.parts.aclose())


def put(console: Console, fields: dict[str, str], queue: str = QUEUE) -> None:
    """Put a message."""
    answer = console.ask("POST", f"{queue}/messages", ONE, fields)
    assert answer.status in {200, 201}, answer.json


def look(console: Console) -> None:
    """Let the sampler look once."""
    console.clock.advance(s=2)
    console.runner.run(console.live.sampler(ACCOUNT).look())


def test_overview_shows_counts_and_sums(console: Console) -> None:
    """Counts by state, what the engine has counted, and sums over all queues."""
    fields = console.enter()
    put(console, fields)
    shown = console.ask("GET", OVERVIEW, headers=fields).json
    [row] = shown["queues"]
    assert (row["name"], row["messages"], row["visible"], row["sent"]) == ("orders", 1, 1, 1)
    assert row["oldest_since_ms"] == console.clock.now_ms()
    assert (shown["totals"]["queues"], shown["totals"]["visible"]) == (1, 1)
    assert (shown["matched"], shown["next"]) == (1, None)


def test_first_event_is_whole_and_later_ones_tell_changes(console: Console) -> None:
    """A queue in which nothing has happened is not told again; a deleted one once."""
    fields = console.enter()
    console.ask("PUT", QUEUE + "2", headers=fields)
    stream = Stream(console, fields)
    name, whole = stream.next()
    assert (name, whole["full"]) == ("overview", True)
    assert [row["name"] for row in whole["queues"]] == ["orders", "orders2"]
    assert stream.next()[0] == "server"
    assert stream.next()[0] == "spark"
    put(console, fields)
    look(console)
    _, change = stream.next()
    assert change["full"] is False
    assert [(row["name"], row["visible"], row["in_per_s"]) for row in change["queues"]] == [
        ("orders", 1, 0.5)
    ]
    assert change["totals"]["in_per_s"] == 0.5
    assert stream.next()[0] == "server"
    console.ask("DELETE", QUEUE + "2", headers=fields)
    look(console)
    _, change = stream.next()
    assert change["removed"] == ["orders2"]
    assert [(row["name"], row["in_per_s"]) for row in change["queues"]] == [("orders", 0.0)]
    sampler = console.live.sampler(ACCOUNT)
    look(console)
    look(console)
    assert stream.next()[0] == "server"
    assert all(not reader.unread for reader in sampler.readers)
    stream.close()


def test_failures_are_a_rate_of_their_own(console: Console) -> None:
    """What is released without a failure is not one."""
    fields = console.enter()
    stream = Stream(console, fields)
    put(console, fields)
    put(console, fields)
    look(console)
    messages = f"{QUEUE}/messages"
    asked = {"max_messages": 2}
    taken = console.ask("POST", f"{messages}/receive", asked, fields).json["messages"]
    outcomes = ("failed", "returned")
    items = [
        {"id": message["id"], "receipt": message["receipt"], "outcome": outcome}
        for message, outcome in zip(taken, outcomes, strict=True)
    ]
    assert console.ask("POST", f"{messages}/release", {"items": items}, fields).json["failed"] == 0
    look(console)
    [row] = console.ask("GET", OVERVIEW, headers=fields).json["queues"]
    assert (row["released"], row["failed_per_s"]) == (2, 0.5)
    stream.close()


def test_sampler_is_shared_and_sleeps_when_nobody_looks(console: Console) -> None:
    """One looks for all consoles of an account, and none without consoles."""
    fields = console.enter()
    first, second = Stream(console, fields), Stream(console, fields)
    assert first.next()[1] == second.next()[1]
    sampler = console.live.sampler(ACCOUNT)
    assert (sampler.is_awake, len(sampler.readers)) == (True, 2)
    first.close()
    assert sampler.is_awake
    second.close()
    assert (sampler.is_awake, len(sampler.readers)) == (False, 0)


def test_reader_that_falls_behind_is_let_go(console: Console) -> None:
    """What waits for it is bounded; it connects again and gets everything anew."""
    fields = console.enter()
    stream = Stream(console, fields)
    stream.next()
    for _ in range(live.MAX_UNREAD):
        put(console, fields)
        look(console)
    assert stream.next() == ("end", {"reason": "too-slow"})
    with pytest.raises(StopAsyncIteration):
        stream.raw()
    assert not console.live.sampler(ACCOUNT).is_awake


def test_stream_ends_with_its_session_and_with_the_server(console: Console) -> None:
    """Both are told, so that a page does not connect again in vain."""
    fields = console.enter()
    stream = Stream(console, fields)
    stream.next()
    console.clock.advance(ms=MAX_SESSION_MS)
    assert stream.next() == ("end", {"reason": "session-over"})
    stream = Stream(console, console.enter())
    stream.next()
    console.live.drain()
    assert stream.next() == ("end", {"reason": "stopping"})
    stream.close()


def test_new_console_takes_the_place_of_the_most_silent(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the credential with the most it is the one that has read nothing for longest."""
    monkeypatch.setattr(live, "MAX_CONSOLES", 3)
    fields = console.enter()
    silent, reading, third = (Stream(console, fields) for _ in range(3))
    for _ in range(2):
        console.clock.advance(s=60)
        for stream in (reading, third):
            stream.next()
    newest = Stream(console, fields)
    newest.next()
    assert silent.next() == ("end", {"reason": "displaced"})
    with pytest.raises(StopAsyncIteration):
        silent.raw()
    for stream in (reading, third, newest):
        assert stream.next()[0] == "spark" if stream is not newest else "server"
        stream.close()
    assert not console.live.sampler(ACCOUNT).is_awake


def test_operator_finds_a_place_beside_silent_consoles_of_an_inspector(console: Console) -> None:
    """All places are taken by streams that never read; each operator is let in and stays."""
    asked = {"kind": "key", "account": ACCOUNT, "key": INSPECTOR_KEY}
    inspector = {"cookie": console.ask("POST", SESSION, asked).cookie}
    silent = [Stream(console, inspector) for _ in range(live.MAX_CONSOLES)]
    operators = [Stream(console, console.enter()) for _ in range(3)]
    more = [Stream(console, inspector) for _ in range(10)]
    for stream in operators:
        assert [stream.next()[0] for _ in range(3)] == ["overview", "server", "spark"]
    shown = console.ask("GET", "/console/api/server", headers=inspector).json
    assert shown["consoles"] == {"open": live.MAX_CONSOLES, "max": live.MAX_CONSOLES}
    assert [stream.next()[0] for stream in silent[:13]] == ["end"] * 13
    for stream in (*silent[13:], *operators, *more):
        stream.close()


@pytest.mark.parametrize("path", [OVERVIEW, LIVE, "/console/api/server"])
def test_figures_are_for_those_who_have_signed_in(console: Console, path: str) -> None:
    """Nothing is told to others."""
    assert console.ask("GET", path).code == "unauthenticated"


def test_queues_are_searched_sorted_and_paged(console: Console) -> None:
    """Pages follow one another without gaps and doubles."""
    fields = console.enter()
    for number in range(5):
        queue = f"{QUEUE}-{number}"
        console.ask("PUT", queue, headers=fields)
        for _ in range(number % 3):
            put(console, fields, queue)
    names: list[str] = []
    after = ""
    while True:
        path = f"{OVERVIEW}?search=ORDERS-&sort=messages&limit=2{after}"
        page = console.ask("GET", path, headers=fields).json
        assert page["matched"] == 5
        names += [row["name"] for row in page["queues"]]
        if page["next"] is None:
            break
        after = "&after=" + page["next"].replace(" ", "%20")
    assert names == ["orders-2", "orders-1", "orders-4", "orders-0", "orders-3"]
    for query in ("sort=x", "limit=0", "after=x", "nothing=1"):
        refused = console.ask("GET", f"{OVERVIEW}?{query}", headers=fields)
        assert refused.status == 400, query


def test_idle_queues_are_not_counted_again(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look costs by what has happened, not by how many queues there are."""
    fields = console.enter()
    for number in range(40):
        console.ask("PUT", f"{QUEUE}-{number}", headers=fields)
    stream = Stream(console, fields)
    stream.next()
    counted: list[str] = []
    execute = console.store.execute

    def watched(batch: Sequence[AnyCommand], *, now_ms: int) -> list[Any]:
        counted.extend(each.queue for each in batch if type(each) is CountMessages)
        return execute(batch, now_ms=now_ms)

    put(console, fields)
    monkeypatch.setattr(console.store, "execute", watched)
    look(console)
    assert counted == ["orders"]
    stream.close()


# --- sparklines --------------------------------------------------------------------------------


def _later(console: Console, s: float) -> None:
    console.clock.advance(s=s)
    console.runner.run(console.live.sampler(ACCOUNT).look())


def test_sparklines(console: Console) -> None:
    """What came and went in each ten seconds is told once for all, and with a page of queues."""
    fields = console.enter()
    console.ask("PUT", QUEUE + "2", headers=fields)
    stream = Stream(console, fields)
    first = [stream.next() for _ in range(3)]
    assert first[2] == ("spark", {"full": True, "every_s": 10, "at_ms": None, "queues": {}})
    told = []
    [reader] = console.live.sampler(ACCOUNT).readers
    for _ in range(10):
        put(console, fields)
        _later(console, 2)
        while reader.unread:
            name, content = stream.next()
            told += [content] if name == "spark" else []
    assert [each["full"] for each in told] == [False, False]
    assert [each["queues"] for each in told] == [{"orders": [0.5, 0.0]}] * 2
    rows = console.ask("GET", "/console/api/overview", headers=fields).json["queues"]
    assert {row["name"]: row["spark"] for row in rows} == {
        "orders": [[0.5, 0.0], [0.5, 0.0]],
        "orders2": [],
    }
    again = Stream(console, fields)
    whole = [again.next() for _ in range(3)][2][1]
    assert (whole["full"], whole["queues"]) == (True, {"orders": [[0.5, 0.0], [0.5, 0.0]]})
    stream.close()
    again.close()


def test_a_hole_in_the_sparklines_is_not_filled(console: Console) -> None:
    """While no console was open nobody has looked, so what was before does not join on."""
    stream = Stream(console, console.enter())
    assert stream.next()[0] == "overview"
    put(console, console.enter())
    _later(console, 10)
    assert len(console.live.sampler(ACCOUNT).overview.moves) == 1
    _later(console, 600)
    assert len(console.live.sampler(ACCOUNT).overview.moves) == 0
    stream.close()


def test_health(console: Console) -> None:
    """How long commits take, since the start too, and what the process may use."""
    found = console.ask("GET", "/console/api/server", headers=console.enter()).json
    assert found["commits"]["since_start"]["count"] >= 0
    assert found["process"]["open_files"] > 0
    assert found["process"]["max_open_files"] >= found["process"]["open_files"]
    assert found["disk"]["data_bytes"] is None
