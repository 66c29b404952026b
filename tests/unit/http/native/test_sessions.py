"""Sessions, heartbeats, and the wish that work be stopped."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.limits import DEFAULT_SESSION_TIMEOUT_S, MAX_PROGRESS
from leasehold.domain.sessions import LoseSessions
from leasehold.http.native.account import MAX_HEARTBEAT_BYTES
from tests.unit.http.native.support import BASE, MESSAGES, Native

SESSIONS = f"{BASE}/sessions"


def _open(native: Native, **members: Any) -> dict[str, Any]:
    answer = native.send("POST", SESSIONS, {"holder": "worker-1", **members})
    assert answer.status == 201, answer.json
    assert answer.headers["location"] == f"{SESSIONS}/{answer.json['session_id']}"
    found: dict[str, Any] = answer.json
    return found


def _beat(native: Native, session: dict[str, Any], progress: Any = None) -> Any:
    return native.post(f"{SESSIONS}/{session['session_id']}/heartbeat", {"progress": progress})


def test_open_and_look(native: Native) -> None:
    """A session is there from its first moment, with the timeout of the server if none is named."""
    session = _open(native)
    now_ms = native.clock.now_ms()
    assert session == {
        "session_id": session["session_id"],
        "holder": "worker-1",
        "state": "live",
        "timeout_s": DEFAULT_SESSION_TIMEOUT_S,
        "progress_timeout_s": None,
        "started_at_ms": now_ms,
        "last_heartbeat_ms": now_ms,
        "ended_at_ms": None,
        "reason": None,
        "leases": 0,
    }
    assert native.get(f"{SESSIONS}/{session['session_id']}") == session
    native.clock.advance(s=1)
    second = _open(native, timeout_s=2, progress_timeout_s=5)
    listed = native.get(SESSIONS)["sessions"]
    assert listed == [second, session]
    assert native.get(SESSIONS, "limit=1")["sessions"] == [second]


def test_messages_of_a_session(native: Native) -> None:
    """Who receives with a session holds the messages in its name, and can be seen to."""
    native.put_bodies("x")
    session = _open(native)
    message = native.receive_one(session=session["session_id"], holder="somebody else")
    assert message["session"] == session["session_id"]
    view = native.get(f"{MESSAGES}/{message['id']}")
    assert (view["session"], view["lease"]["holder"]) == (session["session_id"], "worker-1")
    assert native.get(f"{SESSIONS}/{session['session_id']}")["leases"] == 1


def test_messages_without_a_session_name_none(native: Native) -> None:
    """The members of a session are not there, or null, where there is none."""
    native.put_bodies("x")
    message = native.receive_one()
    assert "session" not in message
    assert native.get(f"{MESSAGES}/{message['id']}")["session"] is None


def test_heartbeat(native: Native) -> None:
    """A heartbeat moves the end, saves progress, and says which messages are not held."""
    native.put_bodies("x")
    session = _open(native, timeout_s=20)
    message = native.receive_one(session=session["session_id"])
    native.clock.advance(s=5)
    told = {message["id"]: {"fraction": 0.5, "note": "n" * 2_000}, "nobody": None}
    beat = _beat(native, session, told)
    assert beat == {
        "until_ms": native.clock.now_ms() + 20_000,
        "cancels": [],
        "lost": ["nobody"],
    }
    view = native.get(f"{MESSAGES}/{message['id']}")
    assert view["lease"]["progress"] == {
        "fraction": 0.5,
        "note": "n" * 1_024,
        "at_ms": native.clock.now_ms(),
    }
    assert view["fence"] == message["fence"]


def test_a_heartbeat_needs_no_body(native: Native) -> None:
    """Nothing has to be said besides that the worker lives."""
    session = _open(native)
    answer = native.send("POST", f"{SESSIONS}/{session['session_id']}/heartbeat")
    assert answer.json["lost"] == []


def test_cancel(native: Native) -> None:
    """A wish to stop reaches the holder by heartbeat and by renewal, and is shown."""
    native.put_bodies("x")
    session = _open(native)
    message = native.receive_one(session=session["session_id"])
    path = f"{MESSAGES}/{message['id']}"
    view = native.post(f"{path}/cancel", {"reason": "withdrawn"})
    asked = {"at_ms": native.clock.now_ms(), "reason": "withdrawn"}
    assert view["cancel"] == asked
    assert native.get(path)["cancel"] == asked
    assert _beat(native, session)["cancels"] == [{"id": message["id"], "queue": "orders", **asked}]
    item = {"id": message["id"], "receipt": message["receipt"], "visibility_timeout_s": 9}
    [renewed] = native.post(f"{MESSAGES}/renew", {"items": [item]})["results"]
    assert renewed["cancel"] == asked


def test_cancel_without_a_reason(native: Native) -> None:
    """A reason is not needed; a lease is."""
    [sent] = native.put_bodies("x")
    path = f"{MESSAGES}/{sent['id']}/cancel"
    assert native.send("POST", path).code == "message-not-leased"
    message = native.receive_one()
    native.send("POST", path)
    item = {"id": message["id"], "receipt": message["receipt"], "visibility_timeout_s": 9}
    [renewed] = native.post(f"{MESSAGES}/renew", {"items": [item]})["results"]
    assert renewed["cancel"] == {"at_ms": native.clock.now_ms()}
    assert native.send("POST", f"{MESSAGES}/x/cancel").code == "message-not-found"


def test_end(native: Native) -> None:
    """A session that ends says why, and takes its leases with it."""
    native.put_bodies("x")
    session = _open(native)
    message = native.receive_one(session=session["session_id"])
    path = f"{SESSIONS}/{session['session_id']}"
    ended = native.post(f"{path}/end", {"reason": "deploy"})
    assert (ended["state"], ended["reason"], ended["leases"]) == ("ended", "deploy", 0)
    assert ended["ended_at_ms"] == native.clock.now_ms()
    view = native.get(f"{MESSAGES}/{message['id']}")
    assert view["lease"] is None
    assert view["attempts"][0]["outcome"] == "interrupted"
    answer = native.send("POST", f"{path}/heartbeat")
    assert (answer.code, answer.json["state"]) == ("session-over", "ended")
    assert "deploy" in answer.json["detail"]
    answer = native.send("POST", f"{MESSAGES}/receive", {"session": session["session_id"]})
    assert answer.code == "session-over"


def test_a_silent_session_is_lost(native: Native) -> None:
    """A session without heartbeats is over, and whoever comes late is told how."""
    session = _open(native, timeout_s=2)
    native.clock.advance(s=3)
    native.runner.run(native.perform(LoseSessions()))
    answer = native.send("POST", f"{SESSIONS}/{session['session_id']}/heartbeat")
    assert (answer.code, answer.json["state"]) == ("session-over", "lost")
    assert native.get(SESSIONS)["sessions"][0]["state"] == "lost"


def test_unknown_sessions(native: Native) -> None:
    """A session that there is not is a 404 wherever it is named."""
    for method, rest in (("GET", ""), ("POST", "/heartbeat"), ("POST", "/end")):
        assert native.send(method, f"{SESSIONS}/none{rest}").code == "session-not-found"
    answer = native.send("POST", f"{MESSAGES}/receive", {"session": "none"})
    assert answer.code == "session-not-found"


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"holder": ""}, "$.holder"),
        ({"holder": "x" * 1_025}, "$.holder"),
        ({"timeout_s": 1}, "$.timeout_s"),
        ({"timeout_s": 3_601}, "$.timeout_s"),
        ({"progress_timeout_s": 4}, "$.progress_timeout_s"),
        ({"progress_timeout_s": 604_801}, "$.progress_timeout_s"),
    ],
)
def test_limits_of_a_session(native: Native, members: dict[str, Any], field: str) -> None:
    """What is outside its limits is refused with its place."""
    answer = native.send("POST", SESSIONS, {"holder": "h", **members})
    assert (answer.code, answer.json["field"]) == ("out-of-range", field)


def test_a_session_needs_a_holder(native: Native) -> None:
    """Who opens a session says what it is called."""
    assert native.send("POST", SESSIONS, {}).json["field"] == "$.holder"


def test_limits_of_a_heartbeat(native: Native) -> None:
    """A heartbeat tells of so many messages, in so many bytes, and of shares."""
    path = f"{SESSIONS}/{_open(native)['session_id']}/heartbeat"
    progress: dict[str, Any] = {str(number): None for number in range(MAX_PROGRESS + 1)}
    answer = native.send("POST", path, {"progress": progress})
    assert (answer.code, answer.json["field"]) == ("out-of-range", "$.progress")
    del progress["0"]
    assert native.send("POST", path, {"progress": progress}).status == 200
    answer = native.send("POST", path, b" " * (MAX_HEARTBEAT_BYTES + 1))
    assert (answer.code, answer.json["limit"]) == ("request-too-large", MAX_HEARTBEAT_BYTES)
    answer = native.send("POST", path, {"progress": {"a": {"fraction": 2}}})
    assert (answer.code, answer.json["field"]) == ("out-of-range", "$.progress.a.fraction")
