"""What the methods of sessions, streams, transactions and events send, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import httpx
import pytest
from msgspec import structs

from leasehold.client.models import (
    CancelRequest,
    ClaimInfo,
    Committed,
    Discarded,
    ErrorReport,
    Event,
    EventPage,
    Exemption,
    Faults,
    GiveBack,
    LeaseRef,
    NewMessage,
    Outgoing,
    Progress,
    Published,
    ReceivedMessage,
    Released,
    Renewal,
    Sent,
    SessionInfo,
    Settled,
    Staged,
    StagedPart,
    StreamInfo,
    StreamSettled,
    TransactionInfo,
)
from tests.unit.client.support import (
    CLAIM,
    ID,
    PUT_RESULT,
    RECEIVED,
    SESSION,
    STREAM,
    TRANSACTION,
    VIEW,
    Driver,
    Script,
    answer,
)

A = "/v1/accounts/devstoreaccount1"
Q = f"{A}/queues/jobs"
S = f"{Q}/streams/totals"
T = f"{A}/transactions/import%3A1"
HELD = LeaseRef(ID, "r1", queue="jobs")
LEASE = {"queue": "jobs", "id": ID, "receipt": "r1"}
STAGED = {"rows": 2, "chunks": 1, "duplicate": False}
SETTLED = {
    "last_settled": 4,
    "completed": 7,
    "exempted": 1,
    "lost": 2,
    "published": 3,
    "already": False,
}
SETTLED_WITH_IT = {
    "queue": "jobs",
    "stream": "totals",
    "last_settled": 4,
    "completed": 7,
    "exempted": 1,
    "lost": 2,
}
SETTLED_WITH_IT_MODEL = StreamSettled(
    queue="jobs", stream="totals", last_settled=4, completed=7, exempted=1, lost=2
)
SETTLED_MODEL = Settled(last_settled=4, completed=7, exempted=1, lost=2, published=3)
EVENT = {"seq": 5, "place": 0, "at_ms": 9, "type": "lease-ended", "reason": "operator"}
EVENTS = {"events": [EVENT], "next_after": 5, "finished": True, "last_seq": 9}
EVENT_MODEL = Event(seq=5, place=0, at_ms=9, type="lease-ended", reason="operator")
CLAIM_MODEL = ClaimInfo(
    number=4, state="open", size=9, remaining=9, limit=10, opened_at_ms=1, until_ms=60_000
)
STREAM_MODEL = StreamInfo(
    stream="totals", token=7, last_settled=3, attached_at_ms=1, claims=(CLAIM_MODEL,)
)
SESSION_MODEL = SessionInfo(
    session_id="s1",
    holder="me",
    state="live",
    timeout_s=16,
    started_at_ms=1,
    last_heartbeat_ms=1,
    leases=2,
)
TRANSACTION_MODEL = TransactionInfo(
    name="import:1",
    state="staged",
    created_at_ms=1,
    until_ms=2,
    rows=5,
    parts=(StagedPart("p", 5, 1),),
)

Case: TypeAlias = tuple[Callable[[Any], Any], object, str, str, object, object]


def stream(client: Any) -> Any:
    """Return a handle that has been attached."""
    return client.queue("jobs").stream("totals", token=7)


def transaction(client: Any) -> Any:
    """Return a handle on a transaction."""
    return client.transaction("import:1")


# What to call; answer; method, target and JSON that must be sent; what comes back.
CASES: dict[str, Case] = {
    "list_sessions": (
        lambda client: client.list_sessions(),
        *({"sessions": [SESSION]}, "GET", f"{A}/sessions", None, [SESSION_MODEL]),
    ),
    "get_session": (
        lambda client: client.get_session("s1"),
        *(SESSION, "GET", f"{A}/sessions/s1", None, SESSION_MODEL),
    ),
    "end_session": (
        lambda client: client.end_session("s1", "upgrade"),
        *(SESSION, "POST", f"{A}/sessions/s1/end", {"reason": "upgrade"}, SESSION_MODEL),
    ),
    "streams": (
        lambda client: client.queue("jobs").streams(),
        *({"streams": [STREAM]}, "GET", f"{Q}/streams", None, [STREAM_MODEL]),
    ),
    "attach": (lambda client: stream(client).attach(), STREAM, "PUT", S, {}, STREAM_MODEL),
    "get a stream": (lambda client: stream(client).get(), STREAM, "GET", S, None, STREAM_MODEL),
    "delete a stream": (lambda client: stream(client).delete(), None, "DELETE", S, None, None),
    "open": (
        lambda client: stream(client).open(4, limit=10, lease_s=60),
        *({"claim": CLAIM, "replayed": False}, "PUT", f"{S}/claims/4"),
        {"token": 7, "limit": 10, "lease_s": 60},
        CLAIM_MODEL,
    ),
    "open with everything": (
        lambda client: stream(client).open(
            4, limit=10, lease_s=60, wait_s=2.5, max_bytes=99, holder="me", accept_loss=True
        ),
        *({"claim": None, "replayed": False}, "PUT", f"{S}/claims/4"),
        {
            "token": 7,
            "limit": 10,
            "lease_s": 60,
            "wait_s": 2.5,
            "max_bytes": 99,
            "holder": "me",
            "accept_loss": True,
        },
        None,
    ),
    "get_claim": (
        lambda client: stream(client).get_claim(4),
        *(CLAIM, "GET", f"{S}/claims/4", None, CLAIM_MODEL),
    ),
    "read": (
        lambda client: stream(client).read(4, 1, 2, page_size=5),
        *({"messages": [], "next_after": None}, "GET"),
        *(f"{S}/claims/4/messages?part=1&parts=2&limit=5", None, []),
    ),
    "extend": (
        lambda client: stream(client).extend(4, 30),
        *(CLAIM, "POST", f"{S}/claims/4/extend", {"token": 7, "lease_s": 30}, CLAIM_MODEL),
    ),
    "park": (
        lambda client: stream(client).park(4, 30),
        *(CLAIM, "POST", f"{S}/claims/4/extend", {"token": 7, "lease_s": 30, "park": True}),
        CLAIM_MODEL,
    ),
    "exempt": (
        lambda client: stream(client).exempt(
            4, [Exemption(4, ID, "buried", error=ErrorReport("boom")), Exemption(4, "x", delay_s=5)]
        ),
        *({**CLAIM, "noted": 2}, "POST", f"{S}/claims/4/exemptions"),
        {
            "token": 7,
            "exemptions": [
                {"id": ID, "outcome": "buried", "error": {"text": "boom"}},
                {"id": "x", "outcome": "failed", "delay_s": 5},
            ],
        },
        structs.replace(CLAIM_MODEL, noted=2),
    ),
    "bind": (
        lambda client: stream(client).bind(4, "import:1"),
        *({**CLAIM, "transaction": "import:1"}, "POST", f"{S}/claims/4/bind"),
        {"token": 7, "transaction": "import:1"},
        structs.replace(CLAIM_MODEL, transaction="import:1"),
    ),
    "give_back": (
        lambda client: stream(client).give_back(4),
        *(None, "POST", f"{S}/claims/4/give-back", {"token": 7}, None),
    ),
    "settle": (
        lambda client: stream(client).settle(4),
        *(SETTLED, "POST", f"{S}/settle", {"token": 7, "upto": 4}, SETTLED_MODEL),
    ),
    "settle with everything": (
        lambda client: stream(client).settle(
            4,
            exemptions=[
                Exemption(3, ID, error=ErrorReport("boom", "E", "f", 99)),
                Exemption(4, "x", "buried"),
            ],
            publish=["import:1"],
            sends=[Outgoing("hé", queue="out", priority=1), Outgoing(b"\xff", queue="out")],
        ),
        *(SETTLED, "POST", f"{S}/settle"),
        {
            "token": 7,
            "upto": 4,
            "exemptions": [
                {
                    "number": 3,
                    "id": ID,
                    "outcome": "failed",
                    "error": {"text": "boom", "type": "E", "fingerprint": "f"},
                },
                {"number": 4, "id": "x", "outcome": "buried"},
            ],
            "publish": ["import:1"],
            "sends": [
                {"queue": "out", "body": "hé", "priority": 1},
                {"queue": "out", "body_base64": "/w=="},
            ],
        },
        SETTLED_MODEL,
    ),
    "stage": (
        lambda client: transaction(client).stage(
            ["a", NewMessage(b"b", delay_s=5), Outgoing("c", queue="other")],
            queue="jobs",
            part="p",
            timeout_s=60,
        ),
        *(STAGED, "POST", f"{T}/stage"),
        {
            "part": "p",
            "chunk": 0,
            "timeout_s": 60,
            "messages": [
                {"queue": "jobs", "body": "a"},
                {"queue": "jobs", "body": "b", "delay_s": 5},
                {"queue": "other", "body": "c"},
            ],
        },
        Staged(2, 1),
    ),
    "stage nothing": (
        lambda client: transaction(client).stage([], chunk=3),
        *(STAGED, "POST", f"{T}/stage", {"part": "", "chunk": 3, "messages": []}, Staged(2, 1)),
    ),
    "publish": (
        lambda client: transaction(client).publish(),
        *({"rows": 5, "already": False}, "POST", f"{T}/publish", {}, Published(5)),
    ),
    "publish what has keys": (
        lambda client: transaction(client).publish(),
        *({"rows": 5, "duplicates": 2, "already": True}, "POST", f"{T}/publish", {}),
        Published(5, already=True, duplicates=2),
    ),
    "publish with claims": (
        lambda client: client.transaction("import:1").publish(),
        *({"rows": 5, "already": False, "settled": [SETTLED_WITH_IT]}, "POST"),
        *(f"{T}/publish", {}),
        Published(5, settled=(SETTLED_WITH_IT_MODEL,)),
    ),
    "publish nothing": (
        lambda client: transaction(client).publish([]),
        *({"rows": 0, "already": True}, "POST", f"{T}/publish", {"parts": []}),
        Published(0, already=True),
    ),
    "discard": (
        lambda client: transaction(client).discard(["p"]),
        *({"rows": 5, "published": False}, "POST", f"{T}/discard", {"parts": ["p"]}),
        Discarded(5),
    ),
    "get a transaction": (
        lambda client: transaction(client).get(),
        *(TRANSACTION, "GET", T, None, TRANSACTION_MODEL),
    ),
    "transactions": (
        lambda client: client.transactions("staged", limit=5),
        *({"transactions": [TRANSACTION]}, "GET", f"{A}/transactions?limit=5&state=staged"),
        *(None, [TRANSACTION_MODEL]),
    ),
    "commit": (
        lambda client: client.commit(complete=[HELD], name="c1"),
        *({"already": False, "published": 0, "complete": [{"id": ID}]}, "POST", f"{A}/commit"),
        {"name": "c1", "complete": [LEASE]},
        Committed(),
    ),
    "commit with everything": (
        lambda client: client.commit(
            send=[Outgoing("x", queue="out")],
            complete=[ReceivedMessage(id=ID, receipt="r1", queue="jobs")],
            release=[GiveBack(HELD, "failed", 5, ErrorReport("boom", at_ms=9))],
            renew=[Renewal(HELD, 60, "new", Progress(0.5, at_ms=9), saved=[3])],
            publish=["import:1"],
        ),
        {
            "already": False,
            "published": 3,
            "duplicates": 1,
            "send": [PUT_RESULT],
            "complete": [{"id": ID}],
            "release": [{"id": ID, "visible_at_ms": 9}],
            "renew": [{"id": ID, "receipt": "r2", "visible_at_ms": 8}],
        },
        *("POST", f"{A}/commit"),
        {
            "send": [{"queue": "out", "body": "x"}],
            "complete": [LEASE],
            "release": [LEASE | {"outcome": "failed", "delay_s": 5, "error": {"text": "boom"}}],
            "renew": [
                LEASE
                | {"visibility_timeout_s": 60, "body": "new", "progress": {"fraction": 0.5}}
                | {"saved": [3]}
            ],
            "publish": ["import:1"],
        },
        Committed(
            published=3,
            duplicates=1,
            sent=(Sent(ID, 1, None, 1, "r0"),),
            released=(Released(ID, 9),),
            renewed=(LeaseRef(ID, "r2", 8, "jobs"),),
        ),
    ),
    "a commit that removes what was saved": (
        lambda client: client.commit(renew=[Renewal(HELD, 60, saved=None), Renewal(HELD, 60)]),
        {"already": False, "published": 0, "renew": [{"id": ID}, {"id": ID}]},
        *("POST", f"{A}/commit"),
        {
            "renew": [
                LEASE | {"visibility_timeout_s": 60, "saved": None},
                LEASE | {"visibility_timeout_s": 60},
            ]
        },
        Committed(renewed=(LeaseRef(ID, "", 0, "jobs"),) * 2),
    ),
    "a commit that was done before": (
        lambda client: client.commit(send=[Outgoing("x", queue="out")], name="c1"),
        *({"already": True, "published": 0}, "POST", f"{A}/commit"),
        {"name": "c1", "send": [{"queue": "out", "body": "x"}]},
        Committed(already=True),
    ),
    "events": (
        lambda client: client.events(3, page_size=10),
        *(EVENTS, "GET", f"{A}/events?after=3&limit=10", None, [EVENT_MODEL]),
    ),
    "event_page": (
        lambda client: client.event_page(),
        *(EVENTS, "GET", f"{A}/events?after=0&limit=1000", None),
        EventPage((EVENT_MODEL,), 5, finished=True, last_seq=9),
    ),
    "trace": (
        lambda client: client.queue("jobs").trace(ID),
        *(EVENTS, "GET", f"{Q}/messages/{ID}/trace?after=0&limit=1000", None, [EVENT_MODEL]),
    ),
    "now_ms": (
        lambda client: client.test.now_ms(),
        {"now_ms": 5},
        "GET",
        "/v1/test/clock",
        None,
        5,
    ),
    "advance": (
        lambda client: client.test.advance(1.5),
        *({"now_ms": 5, "virtual": True}, "POST", "/v1/test/advance", {"seconds": 1.5}, 5),
    ),
    "faults": (
        lambda client: client.test.faults(fail_commits=2),
        *({"fail_commits": 2, "delay_answers_s": 0, "drop_answers": 0}, "PUT", "/v1/test/faults"),
        {"fail_commits": 2, "delay_answers_s": 0, "drop_answers": 0},
        Faults(2),
    ),
    "get_faults": (
        lambda client: client.test.get_faults(),
        *({"drop_answers": 1}, "GET", "/v1/test/faults", None, Faults(drop_answers=1)),
    ),
    "clear_faults": (
        lambda client: client.test.clear_faults(),
        *(None, "DELETE", "/v1/test/faults", None, None),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_method_sends_what_the_api_takes(driver: Driver, name: str) -> None:
    """Path, query and JSON are those of the native API, and the answer becomes a model."""
    call, content, method, target, sent, expected = CASES[name]
    script = Script(answer({}, 204) if content is None else answer(content))
    found = driver.do(call(driver.client(script)))
    assert len(script.requests) == 1
    assert script.last.method == method
    assert script.last.url.raw_path.decode() == target
    if sent is None:
        assert script.last.content == b""
    else:
        assert script.sent == sent
    assert found == expected


def test_cancel(driver: Driver) -> None:
    """The message comes back with the wish upon it."""
    view = VIEW | {"cancel": {"at_ms": 9, "reason": "wrong"}, "session": "s1", "under": "totals/4"}
    script = Script(answer(view))
    found = driver.do(driver.client(script).queue("jobs").cancel(ID, "wrong"))
    assert script.last.url.path == f"{Q}/messages/{ID}/cancel"
    assert script.sent == {"reason": "wrong"}
    assert found.cancel == CancelRequest(9, "wrong")
    assert (found.session, found.under) == ("s1", "totals/4")


def test_a_renewal_tells_of_the_wish_to_stop(driver: Driver) -> None:
    """It stands on the renewed message, and is gone when a later renewal does not say so."""
    told = {"results": [{"id": ID, "receipt": "r2", "cancel": {"at_ms": 9}}]}
    script = Script(answer(told), answer({"results": [{"id": ID, "receipt": "r3"}]}))
    queue = driver.client(script).queue("jobs")
    renewed = driver.do(queue.renew(ReceivedMessage(id=ID, receipt="r1"), 30))
    assert renewed.cancel == CancelRequest(9)
    assert driver.do(queue.renew(renewed, 30)).cancel is None


def test_a_received_message_knows_its_queue(driver: Driver) -> None:
    """So it can be completed together with messages of other queues."""
    script = Script(answer({"messages": [RECEIVED | {"session": "s1"}]}))
    client = driver.client(script)
    (message,) = driver.do(client.queue("jobs").receive(session="s1"))
    assert script.sent == {"max_messages": 1, "session": "s1"}
    assert (message.queue, message.session) == ("jobs", "s1")


def test_a_large_body_travels_as_it_is(driver: Driver) -> None:
    """Bytes in, bytes out; what goes along stands in the query."""
    script = Script(answer(PUT_RESULT, 201))
    queue = driver.client(script).queue("jobs")
    sent = driver.do(queue.put_body(b"\x00\xff", delay_s=5, type="t", dedup_key="k/1"))
    assert sent.id == ID
    assert script.last.content == b"\x00\xff"
    assert script.last.headers["content-type"] == "application/octet-stream"
    target = f"{Q}/messages/raw?delay_s=5&type=t&dedup_key=k%2F1"
    assert script.last.url.raw_path.decode() == target
    with pytest.raises(TypeError, match="see put"):
        driver.do(queue.put_body("text"))
    octets = {"content-type": "application/octet-stream"}
    script = Script(httpx.Response(200, content=b"\x00\xff", headers=octets))
    assert driver.do(driver.client(script).queue("jobs").get_body(ID)) == b"\x00\xff"
    assert script.last.headers["accept"] == "application/octet-stream"
    assert script.last.url.path == f"{Q}/messages/{ID}/body"
