"""What the event log tells the pages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold.domain import events as e
from leasehold.domain.commands import SetAdapted
from leasehold.domain.queue_settings import Adapted
from leasehold.http.console.history import Covered, percentiles, rates_of
from tests.unit.http.console.support import ACCOUNT, QUEUE, Console

EVENTS = "/console/api/events"
FIGURES = "/console/api/queues/orders/figures"
MESSAGES = f"{QUEUE}/messages"


def _put(console: Console, who: dict[str, str], *bodies: str) -> list[str]:
    content = {"messages": [{"body": body, "group_id": f"g-{body}"} for body in bodies]}
    answer = console.ask("POST", MESSAGES, content, who)
    return [each["id"] for each in answer.json["results"]]


def _work(console: Console, who: dict[str, str], takes_s: float, outcome: str = "") -> None:
    receive = {"visibility_timeout_s": 60, "holder": "w"}
    [message] = console.ask("POST", f"{MESSAGES}/receive", receive, who).json["messages"]
    console.clock.advance(s=takes_s)
    item = {"id": message["id"], "receipt": message["receipt"]}
    verb = "release" if outcome else "complete"
    item |= {"outcome": outcome} if outcome else {}
    answer = console.ask("POST", f"{MESSAGES}/{verb}", {"items": [item]}, who)
    assert answer.json["failed"] == 0


def _told(answer: Any) -> list[tuple[str, str | None]]:
    return [(each["type"], each.get("actor")) for each in answer.json["events"]]


# --- events ------------------------------------------------------------------------------------


def test_newest_first_and_who_did_it(console: Console) -> None:
    """What is done from the console names who has signed in."""
    who = console.enter()
    _put(console, who, "a")
    _work(console, who, 1)
    answer = console.ask("GET", EVENTS, None, who)
    me = "console:key 1"
    assert _told(answer) == [
        ("completed", me),
        ("received", None),
        ("put", me),
        ("queue-created", me),
    ]
    assert answer.json["finished"] is True
    assert answer.json["next_before"] is None


def test_every_action_says_who_did_it(console: Console) -> None:
    """One after the other, each as the pages send it: its newest event has the actor."""
    who = console.enter()
    account = f"/v1/accounts/{ACCOUNT}"

    def act(method: str, path: str, content: object = None, *, event: str) -> Any:
        answer = console.ask(method, path, content, who)
        assert answer.status < 300, answer.json
        newest = console.ask("GET", EVENTS + "?limit=1", None, who).json["events"][0]
        assert (newest["type"], newest.get("actor")) == (event, "console:key 1"), (method, path)
        return answer.json

    def lease(**more: object) -> str:
        return _received(console, who, **more)

    act("PUT", f"{QUEUE}2", {"settings": {}}, event="queue-created")
    act("DELETE", f"{QUEUE}2", event="queue-deleted")
    settings = {"failure_policy": {"max_failures": 1}, "groups": {"order": "fifo"}}
    act("PATCH", QUEUE, {"settings": settings}, event="queue-updated")
    act("POST", f"{QUEUE}/pause", {"reason": "x"}, event="queue-paused")
    act("POST", f"{QUEUE}/resume", event="queue-resumed")
    messages = [{"body": str(number), "group_id": "g"} for number in range(9)]
    sent = act("POST", MESSAGES, {"messages": messages}, event="put")["results"]
    one = f"{MESSAGES}/{sent[8]['id']}"
    for name, value in (("delay_s", 60), ("delay_s", 0), ("priority", 2), ("body", "new")):
        act("PATCH", one, {name: value}, event="amended")
    act("DELETE", one, event="removed")
    held = f"{MESSAGES}/{lease()}"
    act("POST", f"{held}/extend-lease", {"visibility_timeout_s": 70}, event="renewed")
    act("POST", f"{held}/cancel", {"reason": "x"}, event="cancel-asked")
    act("POST", f"{held}/end-lease", {"reason": "x"}, event="lease-ended")
    lease()
    longer = {"action": "extend-lease", "visibility_timeout_s": 70, "wait_s": 5}
    act("POST", f"{QUEUE}/change", longer, event="renewed")
    act("POST", f"{QUEUE}/change", {"action": "end-lease", "wait_s": 5}, event="lease-ended")
    first = {"action": "amend", "priority": 3, "wait_s": 5}
    act("POST", f"{QUEUE}/change", first, event="amended")
    _work(console, who, 1, "failed")
    act("POST", f"{QUEUE}/redrive", {"wait_s": 5}, event="redriven")
    act("POST", f"{QUEUE}/groups/g/halt", {"reason": "x"}, event="group-halted")
    act("POST", f"{QUEUE}/groups/g/resume", event="group-resumed")
    session = console.ask("POST", f"{account}/sessions", {"holder": "w"}, who).json["session_id"]
    act("POST", f"{account}/sessions/{session}/end", {"reason": "x"}, event="session-ended")
    stream = f"{QUEUE}/streams/reader"
    token = console.ask("PUT", stream, {}, who).json["token"]
    claim = {"token": token, "limit": 1, "lease_s": 60}
    assert console.ask("PUT", f"{stream}/claims/1", claim, who).status < 300
    act("POST", f"{stream}/claims/1/give-back", {"token": token}, event="unclaimed")
    act("DELETE", stream, event="queue-updated")
    for end, event in (("publish", "published"), ("discard", "discarded")):
        staged = {"part": "p", "chunk": 0, "messages": [{"queue": "orders", "body": "x"}]}
        place = f"{account}/transactions/{end}"
        assert console.ask("POST", f"{place}/stage", staged, who).status < 300
        act("POST", f"{place}/{end}", event=event)
    job = console.ask("POST", f"{QUEUE}/purge", {"rate_per_s": 0.001}, who).json
    act("POST", f"{account}/jobs/{job['job_id']}/stop", event="queue-updated")
    act("POST", f"{QUEUE}/purge", {"wait_s": 5}, event="removed")


def _received(console: Console, who: dict[str, str], **more: object) -> str:
    receive = {"visibility_timeout_s": 60, "holder": "w", **more}
    [message] = console.ask("POST", f"{MESSAGES}/receive", receive, who).json["messages"]
    return str(message["id"])


def test_pages_of_events(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages go on where the one before ended, within a batch too, and never twice."""
    who = console.enter()
    _put(console, who, *"abcdefg")
    whole = console.ask("GET", EVENTS, None, who).json["events"]
    assert len(whole) == 8
    monkeypatch.setattr(e, "TAIL_BATCHES", 2)
    for limit in (1, 3, 8):
        found: list[Any] = []
        before = ""
        while True:
            path = f"{EVENTS}?limit={limit}" + (f"&before={before}" if before else "")
            page = console.ask("GET", path, None, who).json
            found += page["events"]
            before = page["next_before"]
            if page["finished"]:
                break
        assert found == whole


def test_following(console: Console) -> None:
    """Only what is newer than the newest that is known is told."""
    who = console.enter()
    newest = console.ask("GET", EVENTS, None, who).json["newest"]
    page = console.ask("GET", f"{EVENTS}?after={newest}", None, who).json
    assert (page["events"], page["newest"], page["finished"]) == ([], None, True)
    _put(console, who, "a", "b")
    page = console.ask("GET", f"{EVENTS}?after={newest}", None, who).json
    assert [each["type"] for each in page["events"]] == ["put", "put"]
    assert page["finished"] is True


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("type=put", 2),
        ("type=put,received", 3),
        ("queue=orders", 5),
        ("queue=nothing", 0),
        ("group=g-a", 3),
        ("holder=w", 2),
        ("actor=console:key%201", 4),
        ("actor=*", 4),
        ("actor=console:key%202", 0),
        ("type=completed&group=g-a", 1),
        ("message=MESSAGE", 3),
    ],
)
def test_filters(console: Console, query: str, number: int) -> None:
    """Each condition counts, and all must hold."""
    who = console.enter()
    first, _ = _put(console, who, "a", "b")
    _work(console, who, 1)
    path = f"{EVENTS}?{query.replace('MESSAGE', first)}"
    assert len(console.ask("GET", path, None, who).json["events"]) == number


@pytest.mark.parametrize("query", ["type=gone", "before=7", "after=x.y", "limit=0", "color=red"])
def test_queries_that_make_no_sense(console: Console, query: str) -> None:
    """They are refused."""
    answer = console.ask("GET", f"{EVENTS}?{query}", None, console.enter())
    assert answer.status == 400


def test_nobody_looks_without_a_session(console: Console) -> None:
    """A viewer may look, and whoever has not signed in may not."""
    for path in (EVENTS, FIGURES):
        assert console.ask("GET", path).status == 401
        assert console.ask("GET", path, None, console.enter("viewer")).status == 200


# --- figures -----------------------------------------------------------------------------------


def test_figures(console: Console) -> None:
    """Rates by the bucket, and how long messages waited and took."""
    who = console.enter()
    console.clock.advance(s=60 - console.clock.now_ms() // 1000 % 60)
    _put(console, who, "a", "b", "c")
    console.clock.advance(s=2)
    _work(console, who, 3)
    _work(console, who, 1, "failed")
    console.clock.advance(s=60)
    answer = console.ask("GET", f"{FIGURES}?bucket_s=60&buckets=3", None, who).json
    assert (answer["logged"], answer["complete"], answer["bucket_s"]) == (True, True, 60)
    before, full, now = answer["buckets"]
    assert [before[name] for name in ("put", "received", "completed", "failed")] == [0, 0, 0, 0]
    assert [full[name] for name in ("put", "received", "completed", "failed")] == [
        pytest.approx(count / 60, abs=1e-3) for count in (3, 2, 1, 1)
    ]
    assert now["at_ms"] - full["at_ms"] == 60_000
    assert answer["handling_s"] == {"count": 1, "p50": 3, "p90": 3, "p99": 3, "max": 3}
    assert answer["dwell_s"] == {"count": 2, "p50": 2, "p90": 5, "p99": 5, "max": 5}


def test_what_was_not_looked_at_is_not_told() -> None:
    """A bucket that the events do not reach back to as a whole is unknown, and not nothing."""
    event = e.Event(9, 0, 125_000, e.EventType.PUT, ACCOUNT)
    short = Covered([event], 65_000, complete=False, next_seq=5)
    told = [each["put"] for each in rates_of(short, 0, 60, 3, 180_000)]
    assert told == [None, None, pytest.approx(1 / 60, abs=1e-3)]
    whole = short._replace(complete=True, next_seq=0)
    told = [each["put"] for each in rates_of(whole, 0, 60, 3, 130_000)]
    assert told == [0, 0, 0.1]


def test_figures_of_nothing(console: Console) -> None:
    """A queue that is not there is an error; one without events has no lengths."""
    who = console.enter()
    assert console.ask("GET", "/console/api/queues/none/figures", None, who).status == 404
    assert console.ask("GET", "/console/api/queues/-a/figures", None, who).status == 400
    answer = console.ask("GET", FIGURES, None, who).json
    assert (answer["dwell_s"], answer["handling_s"]) == (None, None)


def test_the_adaptive_timeout_as_it_moves(console: Console) -> None:
    """Each change by the server, the oldest first, with its reason."""
    who = console.enter()
    console.ask("PATCH", QUEUE, {"settings": {"adaptive": {}}}, who)
    reasons = ["it; was {slow}", 'and "slower"', "quick -> again"]
    for number, because in enumerate(reasons, 1):
        console.clock.advance(s=60)
        adapted = Adapted(
            visibility_timeout_s=30 * number, because=because, at_ms=console.clock.now_ms()
        )
        console.runner.run(console.engine.perform(SetAdapted(ACCOUNT, "orders", adapted)))
    answer = console.ask("GET", FIGURES, None, who).json["adaptive"]
    assert (answer["enabled"], answer["timeout_s"]) == (True, 90)
    assert answer["because"] == reasons[-1]
    assert [(each["timeout_s"], each["because"]) for each in answer["history"]] == [
        (30 * number, because) for number, because in enumerate(reasons, 1)
    ]


@pytest.mark.parametrize(
    ("lengths_ms", "expected"),
    [
        ([], None),
        ([5], (0.005, 0.005, 0.005)),
        ([*range(1_000, 101_000, 1_000)], (50, 90, 99)),
        ([2_000, 1_000], (1, 2, 2)),
    ],
)
def test_percentiles(lengths_ms: list[int], expected: tuple[float, ...] | None) -> None:
    """By nearest rank: a length that there was."""
    found = percentiles(lengths_ms)
    told = None if found is None else tuple(found[f"p{share}"] for share in (50, 90, 99))
    assert told == expected


# --- advice ------------------------------------------------------------------------------------

ADVICE = "/console/api/queues/orders/advice"


def test_advice(console: Console) -> None:
    """What the statistics say is told with how to set it; it is made anew when settings change."""
    who = console.enter()
    pytest.importorskip("scipy")
    console.ask("PATCH", QUEUE, {"settings": {"visibility_timeout_s": 600}}, who)
    for _ in range(40):
        _put(console, who, "a")
        _work(console, who, 2)
    answer = console.ask("GET", ADVICE, None, who)
    assert answer.status == 200, answer.json
    found = answer.json
    assert (found["available"], found["is_enough"]) == (True, True)
    assert found["finished"] == 40
    assert found["apply"] == {"settings": {"visibility_timeout_s": found["advised_s"]}}
    assert console.ask("GET", ADVICE, None, who).json == found
    previous = console.ask("PATCH", QUEUE, found["apply"], who).json["previous"]
    assert previous == {"settings": {"visibility_timeout_s": found["today_s"]}}
    assert console.ask("GET", ADVICE, None, who).json["today_s"] == found["advised_s"]


def test_advice_is_of_the_newest_events(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many at most, as the statistics take their time; and it says how far back it goes."""
    pytest.importorskip("scipy")
    monkeypatch.setattr("leasehold.http.console.history.ADVISED_FROM", 30)
    who = console.enter()
    for _ in range(40):
        _put(console, who, "a")
        _work(console, who, 2)
    found = console.ask("GET", ADVICE, None, who).json
    assert (found["events"], found["finished"], found["complete"]) == (30, 10, False)
    assert found["reached_ms"] == console.clock.now_ms() - 20_000


def test_advice_is_made_once_for_all(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all that ask meanwhile, also if the first has left the page; failures are not kept."""
    made: list[int] = []

    def advise(_: object, today_s: int, __: object) -> dict[str, Any]:
        made.append(today_s)
        if len(made) == 2:
            raise RuntimeError("the second one fails")
        return {"today_s": today_s, "advised_s": today_s}

    monkeypatch.setattr("leasehold.http.console.history._advice_from", advise)
    who = console.enter()

    async def ask(*, again: bool) -> list[int]:
        leaves = asyncio.create_task(console.asked("GET", ADVICE, None, who))
        await asyncio.sleep(0)
        stays = [console.asked("GET", ADVICE, None, who) for _ in range(3)]
        gathered = asyncio.gather(*stays)
        await asyncio.sleep(0)
        if not again:
            leaves.cancel()
        return [answer.status for answer in await gathered]

    assert console.runner.run(ask(again=False)) == [200, 200, 200]
    assert len(made) == 1
    console.clock.advance(s=61)
    assert set(console.runner.run(ask(again=True))) == {500}
    assert console.ask("GET", ADVICE, None, who).status == 200
    assert len(made) == 3


def test_without_the_libraries(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which extra to install."""

    def missing(*_: Any) -> None:
        raise ImportError("No module named 'numpy'")

    monkeypatch.setattr("leasehold.http.console.history._advice_from", missing)
    found = console.ask("GET", ADVICE, None, console.enter("viewer")).json
    assert (found["available"], found["extra"]) == (False, "tuning")
