"""Queues: list, create, look, change, pause, delete, count."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.commands import SetAdapted
from leasehold.domain.model import NEVER_MS
from leasehold.domain.queue_settings import Adapted
from leasehold.http.native.call import MAX_SINGLE_BYTES
from tests.unit.http.native.support import ACCOUNT, BASE, QUEUE, Native

_MEMBERS = {"name", "metadata", "settings", "visibility_timeout_s", "created_at_ms"}


def test_create(native: Native) -> None:
    """A new queue is 201, one that is there 200, and both are shown."""
    path = f"{BASE}/queues/parcels"
    settings = {"visibility_timeout_s": 60, "failure_policy": {"max_failures": 3}}
    answer = native.send("PUT", path, {"metadata": {"Team": "x"}, "settings": settings})
    assert answer.status == 201
    assert set(answer.json) == _MEMBERS
    assert answer.json["metadata"] == {"Team": "x"}
    assert answer.json["visibility_timeout_s"] == 60
    assert answer.json["settings"]["failure_policy"]["max_failures"] == 3
    assert answer.json["created_at_ms"] == native.clock.now_ms()
    again = native.send("PUT", path, {"metadata": {"team": "x"}})
    assert (again.status, again.json) == (200, answer.json)


def test_create_over_other_metadata(native: Native) -> None:
    """Metadata that differ are a conflict; metadata that are not sent are not."""
    path = f"{BASE}/queues/parcels"
    native.send("PUT", path, {"metadata": {"a": "b"}})
    assert native.send("PUT", path, {"metadata": {"a": "c"}}).code == "queue-exists"
    assert native.send("PUT", path, {"metadata": {}}).code == "queue-exists"
    answer = native.send("PUT", path, {"metadata": None})
    assert (answer.status, answer.json["metadata"]) == (200, {"a": "b"})
    assert native.send("PUT", path).status == 200


def test_create_over_other_settings(native: Native) -> None:
    """What is asked for must stand, with metadata left out too; what is not asked for is free."""
    path = f"{BASE}/queues/deep"
    policy = {"max_failures": 3, "max_lapses": 5}
    native.send("PUT", path, {"settings": {"failure_policy": policy}, "metadata": {"a": "b"}})
    for settings, status in (
        ({"failure_policy": {"max_failures": 3}}, 200),
        ({"failure_policy": policy, "adapted": None}, 200),
        ({"failure_policy": {"max_failures": 4}}, 409),
        ({"failure_policy": None}, 409),
        ({"dedup_window_s": 7}, 409),
    ):
        answer = native.send("PUT", path, {"settings": settings})
        assert answer.status == status, settings
        assert status == 200 or answer.code == "settings-differ"
    wanted = {"failure_policy": {"max_failures": 4}, "dedup_window_s": 7, "paused_until_ms": None}
    assert native.send("PUT", path, {"settings": wanted}).json["detail"] == (
        "A queue of this name already exists with different settings: failure_policy.max_failures "
        "is "
        "3, not 4; dedup_window_s is 300, not 7."
    )


@pytest.mark.parametrize("name", ["x" * 257, "-ab", "a_b", "a.b", "a%2Fb", "caf%C3%A9"])
def test_names(native: Native, name: str) -> None:
    """A name that no queue can have is refused, whatever is asked for."""
    for method, path in (("PUT", ""), ("GET", ""), ("GET", "/messages"), ("POST", "/purge")):
        answer = native.send(method, f"{BASE}/queues/{name}{path}")
        assert answer.code == "invalid-queue-name"


def test_get(native: Native) -> None:
    """A look at a queue tells its counts and what has happened in it."""
    native.put_bodies("one", "two")
    native.clock.advance(s=2)
    native.receive_one(holder="me")
    answer = native.get(QUEUE)
    assert set(answer) == {*_MEMBERS, "counts", "activity"}
    assert (answer["counts"]["visible"], answer["counts"]["leased"]) == (1, 1)
    assert answer["counts"]["oldest_age_s"] == {"visible": 2.0, "leased": 0.0}
    activity = answer["activity"]
    now_ms = native.clock.now_ms()
    assert (activity["last_receive_ms"], activity["last_receiver"]) == (now_ms, "me")
    assert (activity["since_ms"], activity["last_send_ms"]) == (now_ms - 2_000, now_ms - 2_000)
    assert (activity["sent"], activity["received"], activity["completed"]) == (2, 1, 0)


def test_counts(native: Native) -> None:
    """The counts have all states, and the total of the queue itself."""
    native.put_bodies("one")
    native.put_bodies("two", delay_s=5)
    answer = native.get(f"{QUEUE}/counts")
    assert answer == {
        "at_ms": native.clock.now_ms(),
        "visible": 1,
        "leased": 0,
        "delayed": 1,
        "deferred": 0,
        "poisoned": 0,
        "staged": 0,
        "claimed": 0,
        "expired": 0,
        "total": 2,
        "exact": True,
        "oldest_age_s": {"visible": 0.0, "delayed": 0.0},
    }


def test_desired_workers(native: Native) -> None:
    """What waits and what is in work call for workers, and for more after a long wait."""
    asked = f"{QUEUE}/desired-workers"
    assert native.get(asked)["workers"] == 0
    native.put_bodies(*[str(number) for number in range(21)])
    native.clock.advance(s=30)
    assert native.get(asked) == {
        "at_ms": native.clock.now_ms(),
        "workers": 3,
        "visible": 21,
        "leased": 0,
        "waiting_s": 30.0,
    }
    assert native.get(asked, "messages_per_worker=21")["workers"] == 1
    assert native.get(asked, "max_wait_s=10")["workers"] == 7
    for _ in range(5):
        native.receive_one()
    assert native.get(asked)["workers"] == 5
    assert native.get(asked, "leases_per_worker=4")["workers"] == 3
    refused = native.send("GET", asked, query="messages_per_worker=0")
    assert (refused.status, refused.code) == (400, "out-of-range")


def test_no_workers_for_what_cannot_be_received(native: Native) -> None:
    """A paused queue keeps only those that are at work; messages in claims are for others."""
    native.put_bodies(*[str(number) for number in range(40)])
    native.receive_one()
    stream = f"{QUEUE}/streams/nightly"
    token = native.send("PUT", stream).json["token"]
    native.send("PUT", f"{stream}/claims/1", {"token": token, "limit": 9, "lease_s": 60})
    told = native.get(f"{QUEUE}/desired-workers")
    assert (told["visible"], told["leased"], told["workers"]) == (30, 1, 4)
    native.send("POST", f"{QUEUE}/pause", {})
    told = native.get(f"{QUEUE}/desired-workers")
    assert (told["visible"], told["leased"], told["workers"], told["waiting_s"]) == (0, 1, 1, 0.0)


def test_missing_queue(native: Native) -> None:
    """A queue that is not there is a 404 for every operation on it."""
    path = f"{BASE}/queues/nowhere"
    for method, rest in (
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("GET", "/counts"),
        ("GET", "/desired-workers"),
        ("GET", "/explain"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/purge"),
        ("POST", "/redrive"),
        ("GET", "/messages"),
        ("POST", "/messages/peek"),
        ("GET", "/messages/x"),
        ("GET", "/messages/x/explain"),
        ("PATCH", "/messages/x"),
        ("DELETE", "/messages/x"),
        ("POST", "/messages/x/end-lease"),
    ):
        assert native.send(method, path + rest).code == "queue-not-found", (method, rest)


def test_delete(native: Native) -> None:
    """A deleted queue is gone."""
    answer = native.send("DELETE", QUEUE)
    assert (answer.status, answer.json) == (204, None)
    assert native.send("GET", QUEUE).code == "queue-not-found"


def test_list(native: Native) -> None:
    """Pages follow each other without a gap, whatever the names."""
    names = ["aaa", "aaa-b", "aaab", "orders", "zzz"]
    for name in names:
        native.send("PUT", f"{BASE}/queues/{name}")
    seen: list[str] = []
    query = "limit=1"
    while True:
        page = native.get(f"{BASE}/queues", query)
        seen += [queue["name"] for queue in page["queues"]]
        if page["next_after"] is None:
            break
        query = f"limit=1&after={page['next_after']}"
    assert seen == names
    assert len(native.get(f"{BASE}/queues")["queues"]) == 5
    page = native.get(f"{BASE}/queues", "prefix=aaa&after=aaa")
    assert [queue["name"] for queue in page["queues"]] == ["aaa-b", "aaab"]


def test_policies(native: Native) -> None:
    """They are replaced as a whole, are kept as they were sent, and go with their queue."""
    path = f"{BASE}/queues/deep"
    native.send("PUT", path)
    assert native.get(f"{path}/policies") == {"policies": []}
    wanted = [
        {"id": "readers", "start": "2026-01-01", "expiry": "2027-01-01T00:00Z", "permission": "rp"},
        {"id": "empty"},
    ]
    for _ in range(2):
        answer = native.send("PUT", f"{path}/policies", {"policies": wanted})
        assert (answer.status, answer.json) == (200, {"policies": wanted})
    assert native.get(f"{path}/policies") == {"policies": wanted}
    native.send("PUT", f"{path}/policies", {"policies": []})
    assert native.get(f"{path}/policies") == {"policies": []}
    assert native.send("GET", f"{BASE}/queues/none/policies").code == "queue-not-found"


@pytest.mark.parametrize(
    ("policies", "code", "field"),
    [
        ([{"id": f"p{number}"} for number in range(6)], "out-of-range", "$.policies"),
        ([{"id": "a"}, {"id": "a"}], "invalid-request", "$.policies"),
        ([{"id": ""}], "out-of-range", "$.policies[0].id"),
        ([{"id": "x" * 65}], "out-of-range", "$.policies[0].id"),
        ([{"id": "a"}, {"id": "b", "expiry": "soon"}], "invalid-request", "$.policies[1].expiry"),
        ([{"id": "a", "permission": "rw"}], "invalid-request", "$.policies[0].permission"),
        ([{"id": "a", "permission": ""}], "invalid-request", "$.policies[0].permission"),
        ([{"id": "a", "key": "k"}], "invalid-request", "$.policies[0].key"),
        ([{}], "invalid-request", "$.policies[0].id"),
    ],
)
def test_policies_that_are_none(native: Native, policies: Any, code: str, field: str) -> None:
    """Nothing is changed."""
    path = f"{BASE}/queues/deep"
    native.send("PUT", path)
    answer = native.send("PUT", f"{path}/policies", {"policies": policies})
    assert (answer.code, answer.json["field"]) == (code, field)
    assert native.get(f"{path}/policies") == {"policies": []}


def test_list_with_counts(native: Native) -> None:
    """Counts are there when asked for, and what has happened in each queue."""
    native.put_bodies("x")
    [queue] = native.get(f"{BASE}/queues", "counts=true")["queues"]
    assert (queue["counts"]["visible"], queue["activity"]["sent"]) == (1, 1)
    [queue] = native.get(f"{BASE}/queues", "counts=false")["queues"]
    assert not queue.keys() & {"counts", "activity"}


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("limit=0", "out-of-range", "limit"),
        ("limit=1001", "out-of-range", "limit"),
        ("limit=1.5", "invalid-request", "limit"),
        ("limit=1_0", "invalid-request", "limit"),
        ("limit=" + "1" * 30, "invalid-request", "limit"),
        ("counts=yes", "invalid-request", "counts"),
        ("limt=5", "invalid-request", "limt"),
        ("limit=5&limit=6", "invalid-request", "limit"),
        ("after=" + "x" * 257, "invalid-marker", None),
        ("prefix=%zz", "invalid-request", None),
        ("prefix=%ff", "invalid-request", None),
    ],
)
def test_queries(native: Native, query: str, code: str, field: str | None) -> None:
    """A query is read strictly."""
    answer = native.send("GET", f"{BASE}/queues", query=query)
    assert (answer.code, answer.json.get("field")) == (code, field)


# --- changes -------------------------------------------------------------------------------------


def test_patch(native: Native) -> None:
    """What is left out stays; null brings the default back."""
    native.send("PATCH", QUEUE, {"metadata": {"a": "b"}, "settings": {"dedup_window_s": 5}})
    answer = native.send("PATCH", QUEUE, {"settings": {"visibility_timeout_s": 9}})
    assert answer.json["settings"]["dedup_window_s"] == 5
    assert answer.json["metadata"] == {"a": "b"}
    answer = native.send("PATCH", QUEUE, {"metadata": {}, "settings": {"dedup_window_s": None}})
    assert answer.json["settings"]["dedup_window_s"] == 300
    assert answer.json["settings"]["visibility_timeout_s"] == 9
    assert answer.json["metadata"] == {}
    undo = answer.json.pop("previous")
    assert undo == {"settings": {"dedup_window_s": 5}, "metadata": {"a": "b"}}
    assert native.send("PATCH", QUEUE).json == answer.json
    undone = native.send("PATCH", QUEUE, undo).json
    assert (undone["settings"]["dedup_window_s"], undone["metadata"]) == (5, {"a": "b"})


def test_patch_reaches_into_objects(native: Native) -> None:
    """A patch changes members of the failure policy, and null takes it away."""

    def patch(policy: object) -> Any:
        answer = native.send("PATCH", QUEUE, {"settings": {"failure_policy": policy}})
        return answer.json["settings"]["failure_policy"]

    patch({"max_failures": 3, "backoff": {"cap_s": 9}})
    policy = patch({"max_failures": None, "max_lapses": 2})
    assert (policy["max_failures"], policy["max_lapses"]) == (None, 2)
    assert (policy["backoff"]["cap_s"], policy["backoff"]["kind"]) == (9, "exponential")
    assert patch(None) is None


def test_settings_come_back_as_they_were_shown(native: Native) -> None:
    """What is shown can be sent back, with what is read-only in it."""
    native.send("PATCH", QUEUE, {"settings": {"adaptive": {}, "max_receives_per_s": 0.5}})
    adapted = Adapted(visibility_timeout_s=7, because="so", at_ms=1)
    native.runner.run(native.perform(SetAdapted(ACCOUNT, "orders", adapted)))
    shown = native.get(QUEUE)
    assert shown["settings"]["adapted"]["visibility_timeout_s"] == 7
    assert shown["visibility_timeout_s"] == 7
    shown["settings"]["adapted"]["visibility_timeout_s"] = 8
    answer = native.send("PATCH", QUEUE, {"settings": shown["settings"]})
    assert answer.json["settings"]["adapted"]["visibility_timeout_s"] == 7


_LONG = "x" * 57


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"visibility_timeout_s": 0}, "out-of-range", "visibility_timeout_s"),
        ({"visibility_timeout_s": "9"}, "invalid-request", "visibility_timeout_s"),
        ({"dedup_window_s": 604_801}, "out-of-range", "dedup_window_s"),
        ({"priority_ageing_s": 0}, "out-of-range", "priority_ageing_s"),
        ({"max_receives_per_s": 0}, "out-of-range", "max_receives_per_s"),
        ({"paused_until_ms": NEVER_MS + 1}, "out-of-range", "paused_until_ms"),
        ({"pause_reason": "x" * 1_025}, "out-of-range", "pause_reason"),
        ({"lapsed_receipts": "never"}, "invalid-request", "lapsed_receipts"),
        ({"timeout": 1}, "invalid-request", "timeout"),
        ({"failure_policy": 1}, "invalid-request", "failure_policy"),
        ({"failure_policy": {"max": 1}}, "invalid-request", "failure_policy.max"),
        ({"failure_policy": {"max_lapses": 0}}, "out-of-range", "failure_policy.max_lapses"),
        (
            {"failure_policy": {"poison_queue": "orders"}},
            "invalid-request",
            "failure_policy.poison_queue",
        ),
        (
            {"failure_policy": {"poison_queue": "A_"}},
            "invalid-queue-name",
            "failure_policy.poison_queue",
        ),
        (
            {"failure_policy": {"backoff": {"kind": "none"}}},
            "invalid-request",
            "failure_policy.backoff.kind",
        ),
        (
            {"failure_policy": {"backoff": {"jitter": 1.1}}},
            "out-of-range",
            "failure_policy.backoff.jitter",
        ),
        ({"adaptive": {"floor_s": 0}}, "out-of-range", "adaptive.floor_s"),
        ({"adaptive": {"floor_s": 9, "cap_s": 8}}, "out-of-range", "adaptive.floor_s"),
        ({"mns": {"delay_s": 60, "time_to_live_s": 60}}, "out-of-range", "mns.delay_s"),
    ],
)
def test_refused_settings(native: Native, change: dict[str, Any], code: str, field: str) -> None:
    """A setting that will not do is refused with its place, and nothing changes."""
    before = native.get(QUEUE)
    answer = native.send("PATCH", QUEUE, {"metadata": {"a": "b"}, "settings": change})
    assert (answer.code, answer.json["field"]) == (code, f"$.settings.{field}")
    assert native.get(QUEUE) == before
    assert native.send("PUT", QUEUE, {"settings": change}).code == code


def test_name_too_long_for_a_poison_queue(native: Native) -> None:
    """A long name needs a poison queue of another name."""
    path = f"{BASE}/queues/{_LONG}"
    answer = native.send("PUT", path, {"settings": {"failure_policy": {}}})
    assert answer.code == "invalid-queue-name"
    assert "`poison_queue`" in answer.json["remedy"]
    settings = {"failure_policy": {"poison_queue": "failed"}}
    assert native.send("PUT", path, {"settings": settings}).status == 201


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"a-b": "x"}, "invalid-request"),
        ({"": "x"}, "invalid-request"),
        ({"a": "€"}, "invalid-request"),
        ({"a": "x\ny"}, "invalid-request"),
        ({"a": "x", "A": "x"}, "invalid-request"),
        ({"a": "x" * 8_192}, "out-of-range"),
    ],
)
def test_refused_metadata(native: Native, metadata: dict[str, str], code: str) -> None:
    """Metadata must fit headers, for the other dialect."""
    assert native.send("PATCH", QUEUE, {"metadata": metadata}).code == code
    assert native.send("PUT", QUEUE, {"metadata": metadata}).code == code


def test_pause_and_resume(native: Native) -> None:
    """A pause lasts as long as asked, or until it is ended."""
    now_ms = native.clock.now_ms()
    settings = native.post(f"{QUEUE}/pause", {"for_s": 1.5, "reason": "why"})["settings"]
    assert (settings["paused_until_ms"], settings["pause_reason"]) == (now_ms + 1_500, "why")
    settings = native.post(f"{QUEUE}/pause")["settings"]
    assert (settings["paused_until_ms"], settings["pause_reason"]) == (NEVER_MS, None)
    settings = native.post(f"{QUEUE}/resume")["settings"]
    assert (settings["paused_until_ms"], settings["pause_reason"]) == (None, None)
    assert native.send("POST", f"{QUEUE}/pause", {"for_s": -1}).code == "out-of-range"
    assert native.send("POST", f"{QUEUE}/resume", {"for_s": 1}).code == "invalid-request"


@pytest.mark.parametrize(
    "settings",
    [{"nonsense": None}, {"failure_policy": {"nonsense": None}}, {"adaptive": {"": None}}],
)
def test_a_member_that_is_not_known_is_refused_even_if_null(native: Native, settings: Any) -> None:
    """In a merge patch null removes, but there is nothing of that name to remove."""
    assert native.send("PATCH", QUEUE, {"settings": settings}).code == "invalid-request"
    assert native.send("PUT", QUEUE, {"settings": settings}).code == "invalid-request"


@pytest.mark.parametrize("name", ["leasehold_x", "Leasehold_visibility_timeout_s"])
def test_the_names_of_the_server_are_not_for_metadata(native: Native, name: str) -> None:
    """The Azure dialect adds metadata under such names, and a name can be there once only."""
    assert native.send("PATCH", QUEUE, {"metadata": {name: "a"}}).code == "invalid-request"


def test_a_request_that_is_no_batch_is_small(native: Native) -> None:
    """What takes one message or one queue never needs a megabyte."""
    body = b'{"reason":"' + b"x" * MAX_SINGLE_BYTES + b'"}'
    answer = native.send("POST", f"{QUEUE}/pause", body)
    assert (answer.code, answer.json["limit"]) == ("request-too-large", MAX_SINGLE_BYTES)
