"""What the dialect takes and tells beyond the protocol."""

from __future__ import annotations

import pytest

from leasehold.domain.admin import Counts, Inspect, MessagePage, Seen
from leasehold.domain.commands import (
    Duplicate,
    GetQueue,
    Peek,
    Put,
    QueueInfo,
    Receive,
    Renew,
    SetQueueMetadata,
)
from leasehold.domain.errors import LeaseholdError, OutOfRange, SessionNotFound, SessionOver
from leasehold.domain.model import (
    NO_DETAIL,
    CancelRequest,
    Detail,
    Lease,
    Message,
    MessageState,
    Queue,
)
from leasehold.domain.queue_settings import Adapted, Adaptive, Advised, QueueSettings

from .support import (
    ACCOUNT,
    ACTOR,
    MESSAGE,
    MESSAGE_ID,
    MESSAGES,
    RECEIPT,
    Harness,
    error_of,
    header,
    root_of,
)

QUEUE = f"/{ACCOUNT}/orders"
BODY = b"<QueueMessage><MessageText>work</MessageText></QueueMessage>"


def test_what_is_sent_along_is_kept(azure: Harness) -> None:
    """Type, properties, key, trace context and priority travel in headers."""
    headers = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-ms-leasehold-type": "clip",
        "x-ms-leasehold-properties": '{"tenant": "blue"}',
        "x-ms-leasehold-dedup-key": "order-7",
        "x-ms-leasehold-priority": "3",
        "x-ms-leasehold-group-id": "Gr%C3%B6%C3%9Fe%2F1",
        "x-ms-leasehold-visibility-timeout": "600",
    }
    assert azure.send("POST", MESSAGES, body=BODY, headers=headers).status == 201
    command = azure.command
    assert isinstance(command, Put)
    assert command.priority == 3
    detail = command.detail
    assert (detail.message_type, detail.dedup_key) == ("clip", "order-7")
    assert detail.properties == {"tenant": "blue"}
    assert detail.traceparent == headers["traceparent"]
    assert detail.group_id == "Größe/1"
    assert detail.visibility_timeout_s == 600


def test_a_timeout_beyond_what_the_queue_allows_is_refused(azure: Harness) -> None:
    """The refusal of the store names the header."""
    azure.results[Put] = OutOfRange(field="visibility_timeout_s", value=90, minimum=1, maximum=60)
    headers = {"x-ms-leasehold-visibility-timeout": "90"}
    response = azure.send("POST", MESSAGES, body=BODY, headers=headers)
    assert (response.status, error_of(response)[1]) == (400, "OutOfRangeQueryParameterValue")
    assert b"x-ms-leasehold-visibility-timeout" in response.body
    assert b"60" in response.body


def test_the_group_of_one_message_is_told(azure: Harness) -> None:
    """Percent-encoded as it was sent; an answer with several messages has no such header."""
    message = Message(MESSAGE_ID, b"work", 0, 9_000, 5_000, detail=Detail(group_id="Größe/1"))
    azure.results[Receive] = (Lease(message, RECEIPT),)
    response = azure.send("GET", MESSAGES)
    assert header(response, "x-ms-leasehold-group-id") == "Gr%C3%B6%C3%9Fe%2F1"
    azure.results[Receive] = (Lease(message, RECEIPT),) * 2
    assert header(azure.send("GET", MESSAGES), "x-ms-leasehold-group-id") is None


def test_a_plain_put_has_no_detail(azure: Harness) -> None:
    """Nothing is kept that was not sent."""
    azure.send("POST", MESSAGES, body=BODY)
    assert isinstance(azure.command, Put)
    assert azure.command.detail is NO_DETAIL


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("priority", "17", "OutOfRangeQueryParameterValue"),
        ("priority", "high", "InvalidQueryParameterValue"),
        ("visibility-timeout", "0", "OutOfRangeQueryParameterValue"),
        ("visibility-timeout", "604801", "OutOfRangeQueryParameterValue"),
        ("visibility-timeout", "long", "InvalidQueryParameterValue"),
        ("properties", "[1]", "InvalidHeaderValue"),
        ("properties", '{"a": 1}', "InvalidHeaderValue"),
        ("properties", '{"a": "\\ud800"}', "InvalidHeaderValue"),
        ("properties", "{", "InvalidHeaderValue"),
        ("dedup-key", "k" * 1025, "InvalidHeaderValue"),
        ("group-id", "g" * 129, "InvalidHeaderValue"),
        ("group-id", "%FF", "InvalidHeaderValue"),
    ],
)
def test_what_makes_no_sense_is_refused(azure: Harness, name: str, value: str, code: str) -> None:
    """A header that cannot be kept is an error of the client."""
    headers = {f"x-ms-leasehold-{name}": value}
    response = azure.send("POST", MESSAGES, body=BODY, headers=headers)
    assert (response.status, error_of(response)[1]) == (400, code)


def test_a_duplicate_is_answered_like_the_first_and_marked(azure: Harness) -> None:
    """The sender is told the id of the message that is there."""
    azure.results[Put] = Duplicate(MESSAGE_ID, RECEIPT, 0, 1000, 0)
    response = azure.send("POST", MESSAGES, body=BODY)
    assert response.status == 201
    assert header(response, "x-ms-leasehold-duplicate") == "true"
    assert root_of(response)[0].findtext("MessageId") == MESSAGE_ID


def test_the_receiver_can_give_a_name(azure: Harness) -> None:
    """Others then see who holds the message."""
    azure.send("GET", MESSAGES, headers={"x-ms-leasehold-holder": "w7"})
    assert isinstance(azure.command, Receive)
    assert azure.command.holder == "w7"


def test_a_name_of_the_receiver_that_is_too_long_is_refused(azure: Harness) -> None:
    """It has the length of other names; the native protocol takes no more either."""
    for length, status in ((1024, 200), (1025, 400)):
        headers = {"x-ms-leasehold-holder": "w" * length}
        assert azure.send("GET", MESSAGES, headers=headers).status == status


def test_a_receive_can_belong_to_a_session(azure: Harness) -> None:
    """Its leases then end with the session; without the header they belong to none."""
    azure.send("GET", MESSAGES, headers={"x-ms-leasehold-session": "5e55"})
    azure.send("GET", MESSAGES)
    sessions = [each.session for each in azure.commands if isinstance(each, Receive)]
    assert sessions == ["5e55", None]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SessionNotFound(), b"The session does not exist"),
        (SessionOver("lost", "no heartbeat for 16 s"), b"ended (lost: no heartbeat for 16 s)"),
        (SessionOver("ended", None), b"ended (ended)"),
    ],
)
def test_a_session_that_is_no_more_is_told(
    azure: Harness, error: LeaseholdError, text: bytes
) -> None:
    """The worker learns that it needs another, and why."""
    azure.results[Receive] = error
    response = azure.send("GET", MESSAGES, headers={"x-ms-leasehold-session": "5e55"})
    assert error_of(response)[:2] == (404, "ResourceNotFound")
    assert text in response.body


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (None, None),
        (CancelRequest(at_ms=1), "true"),
        (
            CancelRequest(at_ms=1, reason="wrong file: 100 %\n\u00fc"),
            "wrong%20file%3A%20100%20%25%0A%C3%BC",
        ),
    ],
)
def test_a_renewal_tells_when_the_work_is_not_wanted_any_more(
    azure: Harness, request_: CancelRequest | None, told: str | None
) -> None:
    """An operator has asked for it; the reason is text that a header can hold."""
    message = azure.message(b"work")._replace(detail=Detail(cancel=request_))
    azure.results[Renew] = Lease(message, RECEIPT)
    response = azure.send("PUT", MESSAGE, f"popreceipt={RECEIPT}&visibilitytimeout=1")
    assert response.status == 204
    assert header(response, "x-ms-leasehold-cancel") == told


def test_a_peek_can_include_the_invisible(azure: Harness) -> None:
    """The usual elements, and the state, the holder and the time of the next visibility."""
    message = azure.message(b"work", dequeue_count=1)._replace(holder="w7")
    page = MessagePage((Seen(message, MessageState.LEASED, "orders"),), "q1")
    azure.results[Inspect] = page
    response = azure.send("GET", MESSAGES, "peekonly=true&include=invisible&numofmessages=5")
    command = azure.command
    assert isinstance(command, Inspect)
    assert command.limit == 5
    assert command.filter.states is not None
    assert MessageState.DEFERRED in command.filter.states
    (entry,) = root_of(response)
    assert entry.findtext("State") == "leased"
    assert entry.findtext("Holder") == "w7"
    assert entry.findtext("MessageText") == "work"
    assert entry.findtext("PopReceipt") is None
    assert header(response, "x-ms-leasehold-next-marker") == "q1"


def test_only_the_invisible_can_be_included(azure: Harness) -> None:
    """Another value is an error, and not a silent peek."""
    response = azure.send("GET", MESSAGES, "peekonly=true&include=everything")
    assert error_of(response)[1] == "InvalidQueryParameterValue"


def test_text_that_xml_cannot_hold_comes_as_base64(azure: Harness) -> None:
    """Another dialect may have put any bytes; the document stays well-formed."""
    azure.results[Peek] = (azure.message(b"\x00\xff"), azure.message(b"a\x0cb"))
    first, second = root_of(azure.send("GET", MESSAGES, "peekonly=true"))
    assert first.findtext("MessageText") == "AP8="
    assert second.findtext("MessageText") == "YQxi"


def test_counts_and_timeout_are_told(azure: Harness) -> None:
    """Get Queue Metadata splits the count, and says what timeout is in force."""
    settings = QueueSettings(
        adaptive=Adaptive(), adapted=Adapted(visibility_timeout_s=94, because="slow", at_ms=1)
    )
    queue = Queue(account=ACCOUNT, name="orders", settings=settings)
    since = {MessageState.VISIBLE: azure.clock.now_ms() - 61_500}
    counts = Counts(3, 2, 1, 4, 5, since, staged=7, claimed=1, expired=6)
    azure.results[GetQueue] = QueueInfo(queue=queue, message_count=10, counts=counts)
    response = azure.send("GET", QUEUE, "comp=metadata")
    told = {
        state: header(response, f"x-leasehold-{state}-messages")
        for state in (
            "visible",
            "leased",
            "delayed",
            "deferred",
            "poisoned",
            "staged",
            "claimed",
            "expired",
        )
    }
    assert list(told.values()) == ["3", "2", "1", "4", "5", "7", "1", "6"]
    assert header(response, "x-leasehold-oldest-visible-age") == "61"
    assert header(response, "x-leasehold-visibility-timeout") == "94"
    assert header(response, "x-ms-meta-leasehold_visibility_timeout_s") == "94"


def test_advice_is_told_as_metadata(azure: Harness) -> None:
    """Get Queue Metadata says what was advised, for SDKs that know metadata only."""
    settings = QueueSettings(
        visibility_timeout_s=94, advised=Advised(first_lease_s=20, renew_every_s=33)
    )
    queue = Queue(account=ACCOUNT, name="orders", settings=settings)
    azure.results[GetQueue] = QueueInfo(queue=queue, message_count=10)
    response = azure.send("GET", QUEUE, "comp=metadata")
    assert header(response, "x-ms-meta-leasehold_visibility_timeout_s") == "94"
    assert header(response, "x-ms-meta-leasehold_first_lease_s") == "20"
    assert header(response, "x-ms-meta-leasehold_renew_every_s") == "33"
    assert "x-ms-meta-leasehold_batch" not in {name.decode() for name, _ in response.headers}


def test_metadata_of_the_server_cannot_be_set(azure: Harness) -> None:
    """A client that writes back all that it has read changes nothing by it."""
    headers = {"x-ms-meta-leasehold_visibility_timeout_s": "1", "x-ms-meta-team": "blue"}
    assert azure.send("PUT", QUEUE, "comp=metadata", headers=headers).status == 204
    assert azure.command == SetQueueMetadata(ACCOUNT, "orders", {"team": "blue"}, actor=ACTOR)
