"""Who works, as the pages are told: sessions with what they hold, and pipelines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leasehold.domain.events import Event, EventType
from leasehold.domain.sessions import Session, SessionState
from leasehold.http.console.workers import lives_of, why_stuck
from tests.unit.http.console.support import ACCOUNT, QUEUE, Console

WORKERS = "/console/api/workers"
PIPELINES = "/console/api/pipelines"
SESSIONS = f"/v1/accounts/{ACCOUNT}/sessions"
REPORT = f"/v1/accounts/{ACCOUNT}/pipelines/videos"
SESSION = Session(
    session_id="s",
    account=ACCOUNT,
    holder="w",
    state=SessionState.LIVE,
    timeout_s=20,
    progress_timeout_s=None,
    started_at_ms=0,
    last_heartbeat_ms=0,
)


def _open(console: Console, who: dict[str, str], holder: str, **more: Any) -> str:
    answer = console.ask("POST", SESSIONS, {"holder": holder, "timeout_s": 3_600, **more}, who)
    return str(answer.json["session_id"])


def _receive(console: Console, who: dict[str, str], **more: Any) -> list[Any]:
    content = {"visibility_timeout_s": 5_000, **more}
    answer = console.ask("POST", f"{QUEUE}/messages/receive", content, who)
    messages: list[Any] = answer.json["messages"]
    return messages


# --- workers -----------------------------------------------------------------------------------


def test_workers_and_what_they_hold(console: Console) -> None:
    """Stuck ones come first, and of each the message that is quiet for longest."""
    who = console.enter()
    content = {"messages": [{"body": "x", "type": "clip"} for _ in range(3)]}
    console.ask("POST", f"{QUEUE}/messages", content, who)
    idle = _open(console, who, "idle")
    stuck = _open(console, who, "stuck")
    fine = _open(console, who, "fine")
    [first] = _receive(console, who, session=stuck)
    console.clock.advance(s=400)
    [second] = _receive(console, who, session=stuck)
    _receive(console, who, session=fine)
    answer = console.ask("GET", WORKERS, None, who).json
    assert answer["sessions"] == {"live": 3, "lost": 0, "ended": 0}
    assert (answer["stuck"], answer["more"]) == (1, 0)
    assert [each["session_id"] for each in answer["workers"]] == [stuck, fine, idle]
    worker = answer["workers"][0]
    assert (worker["holder"], worker["holds"], worker["quiet_s"]) == ("stuck", 2, 400)
    assert worker["stuck"] == "no progress reported for 400 s"
    assert [each["id"] for each in worker["messages"]] == [first["id"], second["id"]]
    held = worker["messages"][0]
    assert (held["queue"], held["type"], held["quiet_s"]) == ("orders", "clip", 400)
    assert held["until_ms"] - held["since_ms"] == 5_000_000
    short = console.ask("GET", f"{WORKERS}?limit=1&messages=1", None, who).json
    assert (len(short["workers"]), short["more"]) == (1, 2)
    assert len(short["workers"][0]["messages"]) == 1


def test_who_may_look_at_workers(console: Console) -> None:
    """A viewer may."""
    for path in (WORKERS, PIPELINES):
        assert console.ask("GET", path).status == 401
        assert console.ask("GET", path, None, console.enter("viewer")).status == 200


@pytest.mark.parametrize(
    ("watchdog_s", "silent_s", "quiet_s", "is_stuck"),
    [
        (None, 10, None, False),
        (None, 10.1, None, True),
        (None, 1, 300, False),
        (None, 1, 301, True),
        (60, 1, 30, False),
        (60, 1, 31, True),
        (None, None, 301, True),
        (None, None, None, False),
    ],
)
def test_stuck(
    watchdog_s: int | None, silent_s: float | None, quiet_s: float | None, is_stuck: bool
) -> None:
    """Half of the time after which something is done about it is worth a look."""
    session = replace(SESSION, progress_timeout_s=watchdog_s)
    assert (why_stuck(session, silent_s, quiet_s) is not None) == is_stuck


# --- pipelines ---------------------------------------------------------------------------------


def test_pipelines(console: Console) -> None:
    """What a driver reports is shown, with what the event log tells of its messages."""
    who = console.enter()
    began_ms = console.clock.now_ms()
    report = {
        "queue": "orders",
        "state": "running",
        "began_at_ms": began_ms,
        "stages": [{"name": "scan", "working": 1, "done": 2, "mean_s": 0.5}],
        "executors": [{"name": "e-0", "tasks": 1, "in_work": 1, "done": 2}],
        "done": 2,
        "per_s": 1.5,
    }
    assert console.ask("PUT", REPORT, report, who).status == 204
    console.ask("POST", f"{QUEUE}/messages", {"messages": [{"body": "x"}]}, who)
    [message] = _receive(console, who, holder="e-0")
    console.clock.advance(s=3)
    [shown] = console.ask("GET", PIPELINES, None, who).json["pipelines"]
    assert (shown["name"], shown["state"], shown["silent_s"]) == ("videos", "running", 3)
    assert (shown["stages"][0]["name"], shown["executors"][0]["tasks"]) == ("scan", 1)
    assert (shown["backlog"], shown["poisoned"], shown["stale"]) == (None, 0, False)
    whole = console.ask("GET", f"{PIPELINES}/videos", None, who).json
    [life] = whole["timeline"]
    assert (life["id"], life["state"]) == (message["id"], "leased")
    assert [(each["holder"], each["how"]) for each in life["leases"]] == [("e-0", None)]
    assert whole["timeline_complete"] is True
    console.clock.advance(s=60)
    assert console.ask("GET", PIPELINES, None, who).json["pipelines"][0]["stale"] is True
    console.ask("PUT", REPORT, {**report, "state": "done"}, who)
    [shown] = console.ask("GET", PIPELINES, None, who).json["pipelines"]
    assert (shown["state"], shown["stale"]) == ("done", False)
    assert console.ask("GET", f"{PIPELINES}/other", None, who).status == 404


def test_only_so_many_pipelines_are_kept(console: Console) -> None:
    """The one that was not heard of for longest goes."""
    who = console.enter()
    report = {"queue": "orders", "state": "done", "began_at_ms": 0}
    for number in range(21):
        console.clock.advance(s=1)
        path = f"/v1/accounts/{ACCOUNT}/pipelines/p{number}"
        assert console.ask("PUT", path, report, who).status == 204
    names = [each["name"] for each in console.ask("GET", PIPELINES, None, who).json["pipelines"]]
    assert names == [f"p{number}" for number in range(20, 0, -1)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"state": "lost"}, "invalid-request"),
        ({"queue": "-"}, "invalid-queue-name"),
        ({"more": 1}, "invalid-request"),
        ({"stages": [{"name": "s"}] * 101}, "out-of-range"),
        ({"stages": "all"}, "invalid-request"),
    ],
)
def test_reports_that_make_no_sense(console: Console, change: Any, code: str) -> None:
    """They are refused, and a viewer reports nothing."""
    report = {"queue": "orders", "state": "done", "began_at_ms": 0}
    answer = console.ask("PUT", REPORT, {**report, **change}, console.enter())
    assert answer.code == code
    assert console.ask("PUT", REPORT, report, console.enter("viewer")).status == 403


def test_lives() -> None:
    """Each lease of each message: by whom, from when until when, and how it ended."""

    def event(place: int, kind: EventType, message: str | None, at_ms: int, **more: Any) -> Event:
        return Event(1, place, at_ms, kind, ACCOUNT, "q", message, **more)

    events = [
        event(0, EventType.QUEUE_CREATED, None, 1),
        event(1, EventType.PUT, "a", 2, inserted_at_ms=2),
        event(2, EventType.RECEIVED, "a", 3, holder="x", dequeue_count=1),
        event(3, EventType.LAPSED, "a", 9, visible_at_ms=7),
        event(4, EventType.RECEIVED, "a", 9, holder="y", dequeue_count=2),
        event(5, EventType.COMPLETED, "a", 12),
        event(6, EventType.RECEIVED, "b", 12, holder="y", dequeue_count=1),
        event(7, EventType.RELEASED, "b", 13, error="broken"),
    ]
    first, second = lives_of(events)
    assert (first["id"], first["put_ms"], first["state"]) == ("a", 2, "completed")
    assert [(each["from_ms"], each["until_ms"], each["how"]) for each in first["leases"]] == [
        (3, 7, "lapsed"),
        (9, 12, "completed"),
    ]
    assert (second["state"], second["leases"][0]["error"]) == ("waiting", "broken")
