"""Streams and claims, as JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from leasehold.domain.claims import ClaimState, ReadClaim
from leasehold.domain.errors import Overloaded
from leasehold.http.native import streams
from tests.unit.http.native.support import BASE, MESSAGES, QUEUE, Answer, Native

STREAM = f"{QUEUE}/streams/daily"


def attach(native: Native) -> int:
    """Attach to the stream and return the token."""
    answer = native.send("PUT", STREAM)
    assert answer.status == 200
    token: int = answer.json["token"]
    return token


def claim(native: Native, token: int, number: int = 1, **members: Any) -> Answer:
    """Open a claim."""
    body = {"token": token, "limit": 100, "lease_s": 60, **members}
    return native.send("PUT", f"{STREAM}/claims/{number}", body)


def bodies(native: Native, number: int = 1, query: str = "") -> list[str]:
    """Return the bodies of the members of a claim."""
    page = native.get(f"{STREAM}/claims/{number}/messages", query)
    return [message["body"] for message in page["messages"]]


def test_attach(native: Native) -> None:
    """Attaching creates a stream; each attach gives a higher token, and the old one is fenced."""
    native.put_bodies("x")
    first = attach(native)
    stream = native.get(STREAM)
    assert stream == {
        "stream": "daily",
        "token": first,
        "last_settled": 0,
        "attached_at_ms": native.clock.now_ms(),
        "settled_with": None,
        "claims": [],
    }
    second = attach(native)
    assert second > first
    answer = claim(native, first)
    assert (answer.code, answer.json["token"]) == ("stale-token", second)
    assert native.get(f"{QUEUE}/streams")["streams"] == [{**stream, "token": second}]


def test_claim(native: Native) -> None:
    """A claim leases messages; the same call finds it again, and its members are hidden."""
    native.put_bodies("one", "two", "three")
    token = attach(native)
    opened = claim(native, token, limit=2, holder="driver", max_bytes=9_999).json
    now_ms = native.clock.now_ms()
    assert opened == {
        "claim": {
            "number": 1,
            "state": "open",
            "size": 2,
            "lost": 0,
            "remaining": 2,
            "limit": 2,
            "max_bytes": 9_999,
            "opened_at_ms": now_ms,
            "until_ms": now_ms + 60_000,
            "holder": "driver",
            "extensions": 0,
            "noted": 0,
            "transaction": None,
        },
        "replayed": False,
    }
    again = claim(native, token, limit=50).json
    assert again["replayed"]
    assert again["claim"]["size"] == 2
    assert native.get(f"{STREAM}/claims/1") == again["claim"]
    assert native.receive_one()["body"] == "three"
    counts = native.get(f"{QUEUE}/counts")
    assert (counts["leased"], counts["claimed"]) == (3, 2)


def test_nothing_to_claim(native: Native) -> None:
    """With nothing there the claim is null, and the wait is the one asked for, none at first."""
    token = attach(native)
    began_ms = native.clock.now_ms()
    assert claim(native, token).json == {"claim": None, "replayed": False}
    assert native.clock.now_ms() == began_ms
    assert claim(native, token, wait_s=2.5).json == {"claim": None, "replayed": False}
    assert native.clock.now_ms() == began_ms + 2_500
    assert native.send("GET", f"{STREAM}/claims/1").code == "claim-not-found"


def test_claims_of_any_size_without_a_server_that_waits(native: Native) -> None:
    """Where nothing waits for messages, a claim is opened step by step all the same."""
    native.put_bodies("x")
    token = attach(native)
    perform, states = native.perform, [ClaimState.OPENING, ClaimState.OPENING, ClaimState.OPEN]

    async def in_steps(command: Any) -> Any:
        opened: Any = await perform(command)
        return opened._replace(claim=replace(opened.claim, state=states.pop(0)))

    native.change_services(open_claim=None, perform=in_steps)
    assert claim(native, token).json["claim"]["state"] == "open"
    assert states == []


def test_read(native: Native) -> None:
    """Members come in their order, in pages and in parts, as often as wanted."""
    native.put_bodies(*"abcdefg")
    claim(native, attach(native))
    path = f"{STREAM}/claims/1/messages"
    page = native.get(path, "limit=3")
    assert [message["body"] for message in page["messages"]] == list("abc")
    page = native.get(path, f"limit=9&after={page['next_after']}")
    assert [message["body"] for message in page["messages"]] == list("defg")
    assert page["next_after"] is None
    assert bodies(native) == bodies(native) == list("abcdefg")
    parts = [bodies(native, query=f"part={part}&parts=3") for part in range(3)]
    assert [body for part in parts for body in part] == list("abcdefg")
    [message, *_] = native.get(path)["messages"]
    assert (message["state"], message["under"], message["queue"]) == ("leased", "daily/1", "orders")
    assert native.get(f"{MESSAGES}/{message['id']}")["under"] == "daily/1"


def test_whole_groups(native: Native) -> None:
    """Each part has all messages of some groups, in their order, and the others by their ids."""
    for number in range(24):
        group = {"group_id": f"g{number % 4}"} if number % 4 else {}
        native.put_bodies(f"{number:02}", **group)
    claim(native, attach(native))
    path = f"{STREAM}/claims/1/messages"
    whole = native.get(path)["messages"]
    for part in range(3):
        wanted = [
            message["body"]
            for message in whole
            if crc32((message.get("group_id") or message["id"]).encode()) % 3 == part
        ]
        assert bodies(native, query=f"part={part}&parts=3&whole_groups=true") == wanted
        found, after = list[str](), ""
        while after is not None:
            page = native.get(path, f"part={part}&parts=3&whole_groups=true&limit=2{after}")
            found += [message["body"] for message in page["messages"]]
            after = page["next_after"] and f"&after={page['next_after']}"
        assert found == wanted


def test_an_answer_in_json_is_short(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for, JSON holds so many, and says where to go on."""
    assert streams.MAX_JSON_MEMBERS == 1_000
    monkeypatch.setattr(streams, "MAX_JSON_MEMBERS", 5)
    native.put_bodies(*"abcdefg")
    claim(native, attach(native))
    page = native.get(f"{STREAM}/claims/1/messages", "limit=20000")
    assert len(page["messages"]) == 5
    assert bodies(native, query=f"limit=20000&after={page['next_after']}") == ["f", "g"]


def test_an_answer_has_a_size(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends where the bodies come to the limit, but has one message in any case."""
    native.put_bodies("a" * 10, "b" * 10, "c" * 30, "d" * 10)
    claim(native, attach(native))
    monkeypatch.setattr(streams, "ANSWER_BYTES", 25)
    monkeypatch.setattr(streams, "_FIRST_STEP", 3)
    path, after, pages = f"{STREAM}/claims/1/messages", "", []
    while after is not None:
        page = native.get(path, f"after={after}")
        pages.append("".join(message["body"][0] for message in page["messages"]))
        after = page["next_after"]
    assert pages == ["ab", "c", "d"]


def test_steps_follow_the_size_of_bodies(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first step the next ones are as long as bodies like those before have room."""
    native.put_bodies(*["x" * 10] * 30)
    claim(native, attach(native))
    monkeypatch.setattr(streams, "ANSWER_BYTES", 200)
    monkeypatch.setattr(streams, "_FIRST_STEP", 5)
    monkeypatch.setattr(streams, "_LONGEST_STEP", 12)
    assert len(bodies(native)) == 20
    limits = [each.limit for each in native.commands if isinstance(each, ReadClaim)]
    assert limits == [5, 12, 3]


def test_a_page_is_given_though_there_is_no_room_for_more(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been read is told, when the server then has no memory for the rest."""
    native.put_bodies(*"abcd")
    claim(native, attach(native))
    monkeypatch.setattr(streams, "_FIRST_STEP", 2)
    perform = native.perform

    async def busy_later(command: Any) -> Any:
        if isinstance(command, ReadClaim) and command.after:
            raise Overloaded
        return await perform(command)

    native.change_services(perform=busy_later)
    page = native.get(f"{STREAM}/claims/1/messages")
    assert [message["body"] for message in page["messages"]] == ["a", "b"]
    path = f"{STREAM}/claims/1/messages"
    answer = native.send("GET", path, query=f"after={page['next_after']}")
    assert answer.code == "overloaded"


def test_extend_and_park(native: Native) -> None:
    """A claim can be kept for longer, or parked for a replay."""
    native.put_bodies("x")
    token = attach(native)
    claim(native, token)
    path = f"{STREAM}/claims/1/extend"
    extended = native.post(path, {"token": token, "lease_s": 300})
    assert extended["until_ms"] == native.clock.now_ms() + 300_000
    assert (extended["state"], extended["extensions"]) == ("open", 1)
    assert native.post(path, {"token": token, "lease_s": 3_600, "park": True})["state"] == "parked"
    assert native.send("POST", path, {"token": token + 1, "lease_s": 1}).code == "stale-token"


def test_give_back(native: Native) -> None:
    """A claim given back is gone, and its members can be received."""
    native.put_bodies("x")
    token = attach(native)
    claim(native, token)
    answer = native.send("POST", f"{STREAM}/claims/1/give-back", {"token": token})
    assert answer.status == 204
    assert native.send("GET", f"{STREAM}/claims/1").code == "claim-not-found"
    assert native.receive_one()["body"] == "x"


def test_settle(native: Native) -> None:
    """Settling completes members but for the exemptions, and is harmless when repeated."""
    native.put_bodies("one", "two", "three")
    token = attach(native)
    claim(native, token)
    two = native.get(f"{STREAM}/claims/1/messages")["messages"][1]
    native.send("PUT", f"{BASE}/queues/reports")
    exempt = {"number": 1, "id": two["id"], "outcome": "failed", "error": {"text": "boom"}}
    request = {
        "token": token,
        "upto": 1,
        "exemptions": [{**exempt, "delay_s": 0}],
        "sends": [{"queue": "reports", "body": "done", "dedup_key": "k"}],
    }
    settled = native.post(f"{STREAM}/settle", request)
    assert settled == {
        "last_settled": 1,
        "completed": 2,
        "exempted": 1,
        "lost": 0,
        "published": 0,
        "duplicates": 0,
        "already": False,
        "beside": [],
    }
    again = native.post(f"{STREAM}/settle", request)
    assert (again["already"], again["completed"]) == (True, 0)
    left = native.receive_one()
    assert left["body"] == "two"
    assert native.get(f"{MESSAGES}/{left['id']}")["last_error"]["text"] == "boom"
    assert native.get(f"{BASE}/queues/reports/counts")["visible"] == 1
    answer = native.send("GET", f"{STREAM}/claims/1")
    assert (answer.code, answer.json["last_settled"]) == ("claim-settled", 1)


def test_settle_publishes(native: Native) -> None:
    """Staged messages become visible in the commit that settles."""
    native.put_bodies("x")
    token = attach(native)
    claim(native, token)
    made = {"queue": "orders", "body": "made", "dedup_key": "k"}
    staged = {"part": "", "chunk": 0, "messages": [made, made]}
    native.post(f"{BASE}/transactions/batch-1/stage", staged)
    settled = native.post(f"{STREAM}/settle", {"token": token, "upto": 1, "publish": ["batch-1"]})
    assert (settled["published"], settled["duplicates"]) == (1, 1)
    assert native.receive_one()["body"] == "made"


def test_what_settling_refuses(native: Native) -> None:
    """A settling that cannot be done as a whole is not done at all."""
    native.put_bodies("x")
    token = attach(native)
    claim(native, token)
    path = f"{STREAM}/settle"
    exempt = {"number": 1, "id": "x" * 200, "outcome": "returned"}
    for members, code in (
        ({"upto": 9}, "claim-out-of-turn"),
        ({"token": token + 1}, "stale-token"),
        ({"exemptions": [exempt]}, "member-not-found"),
        ({"publish": ["nothing"]}, "staged-not-found"),
        ({"sends": [{"queue": "nowhere", "body": "x"}]}, "queue-not-found"),
    ):
        answer = native.send("POST", path, {"token": token, "upto": 1, **members})
        assert answer.code == code, members
        assert "`orders`" not in answer.json["detail"]  # it is no other queue that is missing
    assert native.get(STREAM)["last_settled"] == 0
    assert bodies(native) == ["x"]


@pytest.mark.parametrize(
    ("members", "code", "field"),
    [
        ({"token": 0}, "out-of-range", "$.token"),
        ({"upto": 2**53 + 1}, "out-of-range", "$.upto"),
        ({"sends": [{"queue": "orders"}]}, "invalid-request", "$.sends[0]"),
        ({"sends": [{"queue": "a_b", "body": ""}]}, "invalid-queue-name", "$.sends[0].queue"),
        (
            {"sends": [{"queue": "orders", "body": "x", "delay_s": -1}]},
            "out-of-range",
            "$.sends[0].delay_s",
        ),
        (
            {"sends": [{"queue": "orders", "body": "x" * 65_537}]},
            "body-too-large",
            "$.sends[0].body",
        ),
        (
            {"exemptions": [{"number": 0, "id": "x", "outcome": "failed"}]},
            "out-of-range",
            "$.exemptions[0].number",
        ),
        (
            {"exemptions": [{"number": 1, "id": "x", "outcome": "failed", "delay_s": -1}]},
            "out-of-range",
            "$.exemptions[0].delay_s",
        ),
        (
            {"exemptions": [{"number": 1, "id": "x", "outcome": "lapsed"}]},
            "invalid-request",
            "$.exemptions[0].outcome",
        ),
        ({"exemptions": [{"number": 1, "id": "x"}]}, "invalid-request", "$.exemptions[0].outcome"),
        ({"publish": [""]}, "invalid-request", "$.publish[0]"),
        ({"publish": ["a b"]}, "invalid-request", "$.publish[0]"),
        ({"publish": [1]}, "invalid-request", "$.publish[0]"),
        ({"publish": "x"}, "invalid-request", "$.publish"),
        ({"publish": ["n"] * 1_001}, "out-of-range", "$.publish"),
        ({"publish": ["n"] * 300_000}, "out-of-range", "$.publish"),
        ({"sends": [{"queue": "orders", "body": ""}] * 10_001}, "out-of-range", "$.sends"),
        (
            {"exemptions": [{"number": 1, "id": "", "outcome": "failed"}] * 10_001},
            "out-of-range",
            "$.exemptions",
        ),
    ],
)
def test_limits_of_settling(native: Native, members: dict[str, Any], code: str, field: str) -> None:
    """What is wrong with a request to settle is told with its place."""
    answer = native.send("POST", f"{STREAM}/settle", {"token": 1, "upto": 1, **members})
    assert (answer.code, answer.json["field"]) == (code, field)


def test_too_many_items_of_a_large_request(native: Native) -> None:
    """Where a request is large, it is refused before all its items are made."""
    exempt = {"number": 1, "id": "x" * 40, "outcome": "failed"}
    send = {"queue": "orders", "body": "x" * 60}
    body = {"token": 1, "upto": 1, "exemptions": [exempt] * 9_000, "sends": [send] * 9_000}
    answer = native.send("POST", f"{STREAM}/settle", body)
    assert (answer.code, answer.json["field"]) == ("out-of-range", "$")
    body = {"token": 1, "upto": 1, "sends": [{**send, "body": "x" * 200}] * 9_000}
    answer = native.send("POST", f"{STREAM}/settle", body)
    assert answer.code == "stream-not-found"


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"token": 0}, "$.token"),
        ({"limit": 0}, "$.limit"),
        ({"limit": 1_000_001}, "$.limit"),
        ({"lease_s": 0}, "$.lease_s"),
        ({"lease_s": 604_801}, "$.lease_s"),
        ({"max_bytes": 0}, "$.max_bytes"),
        ({"wait_s": 61}, "$.wait_s"),
        ({"holder": ""}, "$.holder"),
    ],
)
def test_limits_of_a_claim(native: Native, members: dict[str, Any], field: str) -> None:
    """What is outside its limits is refused with its place."""
    answer = claim(native, **{"token": 1, **members})
    assert (answer.code, answer.json["field"]) == ("out-of-range", field)


@pytest.mark.parametrize(
    ("path", "query", "code", "field"),
    [
        ("/claims/0", "", "out-of-range", "number"),
        (f"/claims/{2**53 + 1}", "", "out-of-range", "number"),
        ("/claims/x", "", "invalid-request", "number"),
        ("/claims/-1", "", "invalid-request", "number"),
        ("/claims/%d9%a1", "", "invalid-request", "number"),
        ("/claims/1/messages", "part=1", "out-of-range", "part"),
        ("/claims/1/messages", "part=3&parts=3", "out-of-range", "part"),
        ("/claims/1/messages", "parts=0", "out-of-range", "parts"),
        ("/claims/1/messages", "whole_groups=1", "invalid-request", "whole_groups"),
        ("/claims/1/messages", "limit=20001", "out-of-range", "limit"),
    ],
)
def test_limits_of_reading(native: Native, path: str, query: str, code: str, field: str) -> None:
    """Numbers in the path and in the query have limits."""
    attach(native)
    answer = native.send("GET", STREAM + path, query=query)
    assert (answer.code, answer.json["field"]) == (code, field)


@pytest.mark.parametrize(
    "name", ["a%20b", "..", ".", "%2e%2e", "a%2Fb", "x" * 257, "%c3%a9", "a%0a"]
)
def test_names_of_streams(native: Native, name: str) -> None:
    """A name that addresses cannot hold, or would be shortened to something else, is refused."""
    answer = native.send("PUT", f"{QUEUE}/streams/{name}")
    assert (answer.code, answer.json["field"]) == ("invalid-request", "stream")


@pytest.mark.parametrize("name", ["A.b_c:d~e-9", "...", "x" * 256])
def test_good_names_of_streams(native: Native, name: str) -> None:
    """All characters that need no encoding can be in a name."""
    assert native.send("PUT", f"{QUEUE}/streams/{name}").json["stream"] == name


def test_a_lapsed_claim(native: Native) -> None:
    """A claim that nobody extended must be opened again; if others took from it, with leave."""
    native.put_bodies("one", "two")
    token = attach(native)
    claim(native, token)
    native.clock.advance(s=61)
    answer = native.send("GET", f"{STREAM}/claims/1/messages")
    assert (answer.code, answer.json["until_ms"]) == ("claim-lapsed", native.clock.now_ms() - 1_000)
    assert claim(native, token).json["claim"]["state"] == "open"
    native.clock.advance(s=61)
    native.receive_one(visibility_timeout_s=600)
    answer = claim(native, token)
    assert (answer.code, answer.json["size"], answer.json["lost"]) == ("claim-broken", 2, 1)
    assert claim(native, token, accept_loss=True).json["claim"]["remaining"] == 1
    assert bodies(native) == ["two"]


def test_delete(native: Native) -> None:
    """A stream that is deleted gives its claims back and is not there any more."""
    native.put_bodies("x")
    claim(native, attach(native))
    assert native.send("DELETE", STREAM).status == 204
    assert native.receive_one()["body"] == "x"
    for method, path in (("GET", STREAM), ("DELETE", STREAM), ("GET", f"{STREAM}/claims/1")):
        assert native.send(method, path).code == "stream-not-found"
    assert native.get(f"{QUEUE}/streams") == {"streams": []}
