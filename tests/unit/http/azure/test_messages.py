"""The operations on messages: from a request to a command, from its result to an answer."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from leasehold.domain.commands import Clear, Complete, Peek, Put, Receive, Renew
from leasehold.domain.model import NEVER_MS
from leasehold.http.azure import MAX_REQUEST_BODY_BYTES
from tests.unit.http.azure.support import (
    ACCOUNT,
    ACTOR,
    BOM,
    MESSAGE,
    MESSAGE_ID,
    MESSAGES,
    RECEIPT,
    Harness,
    error_of,
    header,
    message_xml,
    root_of,
)

_HI = message_xml("hi")
_WEEK_S = 604_800
_MIDNIGHT = "Thu, 01 Jan 2026 00:00:00 GMT"
_RECEIPT = f"popreceipt={RECEIPT}"


def _fields(node: ET.Element) -> dict[str, str | None]:
    return {child.tag: child.text for child in node}


@pytest.mark.parametrize(
    ("query", "delay_s", "life_s"),
    [
        ("", 0, _WEEK_S),
        ("timeout=30", 0, _WEEK_S),
        ("visibilitytimeout=&messagettl=", 0, _WEEK_S),
        ("visibilitytimeout=5", 5, _WEEK_S),
        ("visibilitytimeout=604799", 604_799, _WEEK_S),
        ("visibilitytimeout=604800&messagettl=604801", _WEEK_S, 604_801),
        ("visibilitytimeout=604800&messagettl=-1", _WEEK_S, None),
        ("messagettl=1", 0, 1),
        ("messagettl=2147483648", 0, 2**31),
        ("messagettl=9223372036854775807", 0, 2**63 - 1),
        ("messagettl=-1", 0, None),
        ("visibilitytimeout=29&messagettl=30", 29, 30),
    ],
)
def test_put_command(azure: Harness, query: str, delay_s: int, life_s: int | None) -> None:
    """Put Message becomes a put with delay and time to live."""
    assert azure.send("POST", MESSAGES, query, body=_HI).status == 201
    command = azure.command
    assert isinstance(command, Put)
    assert len(command.entropy) == 10
    expected = Put(ACCOUNT, "orders", b"hi", delay_s, life_s, command.entropy)
    assert command == expected


def test_every_put_draws_its_own_entropy(azure: Harness) -> None:
    """Two messages never get the same random part of their ids."""
    for _ in range(2):
        azure.send("POST", MESSAGES, body=_HI)
    first, second = azure.commands
    assert isinstance(first, Put)
    assert isinstance(second, Put)
    assert first.entropy != second.entropy


def test_put_answer(azure: Harness) -> None:
    """The answer has id, times and receipt, in the service's order, behind a byte order mark."""
    azure.results[Put] = azure.lease(expires_at_ms=NEVER_MS, dequeue_count=0)
    response = azure.send("POST", MESSAGES, body=_HI)
    assert response.status == 201
    assert (
        response.body
        == BOM
        + (
            '<?xml version="1.0" encoding="utf-8"?><QueueMessagesList><QueueMessage>'
            f"<MessageId>{MESSAGE_ID}</MessageId><InsertionTime>{_MIDNIGHT}</InsertionTime>"
            "<ExpirationTime>Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime>"
            f"<PopReceipt>{RECEIPT}</PopReceipt>"
            "<TimeNextVisible>Thu, 01 Jan 2026 00:00:30 GMT</TimeNextVisible>"
            "</QueueMessage></QueueMessagesList>"
        ).encode()
    )
    assert header(response, "cache-control") is None


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("visibilitytimeout=30&messagettl=30", "30"),
        ("visibilitytimeout=31&messagettl=30", "31"),
        ("visibilitytimeout=604800", "604800"),
        ("visibilitytimeout=604800&messagettl=604800", "604800"),
    ],
)
def test_put_must_become_visible_before_it_expires(azure: Harness, query: str, value: str) -> None:
    """A delay must be less than the time to live, the default one included."""
    reason = "messagettl must be greater than visibilitytimeout"
    assert error_of(azure.send("POST", MESSAGES, query, body=_HI)) == (
        400,
        "InvalidQueryParameterValue",
        {"QueryParameterName": "visibilitytimeout", "QueryParameterValue": value, "Reason": reason},
    )
    assert azure.commands == []


@pytest.mark.parametrize(
    ("method", "path", "query", "name", "value", "low", "high"),
    [
        ("POST", MESSAGES, "visibilitytimeout={}", "visibilitytimeout", -1, 0, _WEEK_S),
        ("POST", MESSAGES, "visibilitytimeout={}", "visibilitytimeout", 604_801, 0, _WEEK_S),
        ("POST", MESSAGES, "messagettl={}", "messagettl", 0, 1, 2**63 - 1),
        ("POST", MESSAGES, "messagettl={}", "messagettl", -2, 1, 2**63 - 1),
        ("POST", MESSAGES, "messagettl={}", "messagettl", 2**63, 1, 2**63 - 1),
        ("GET", MESSAGES, "numofmessages={}", "numofmessages", 0, 1, 32),
        ("GET", MESSAGES, "numofmessages={}", "numofmessages", 33, 1, 32),
        ("GET", MESSAGES, "visibilitytimeout={}", "visibilitytimeout", 0, 1, _WEEK_S),
        ("GET", MESSAGES, "visibilitytimeout={}", "visibilitytimeout", 604_801, 1, _WEEK_S),
        ("GET", MESSAGES, "peekonly=true&numofmessages={}", "numofmessages", 33, 1, 32),
        ("PUT", MESSAGE, _RECEIPT + "&visibilitytimeout={}", "visibilitytimeout", -1, 0, _WEEK_S),
        (
            "PUT", MESSAGE, _RECEIPT + "&visibilitytimeout={}",
            "visibilitytimeout", 604_801, 0, _WEEK_S,
        ),
    ],
)  # fmt: skip
def test_numbers_out_of_range(
    azure: Harness,
    *,
    method: str,
    path: str,
    query: str,
    name: str,
    value: int,
    low: int,
    high: int,
) -> None:
    """A number outside its limits is named, with the limits."""
    response = azure.send(method, path, query.format(value), body=_HI if method == "POST" else b"")
    details = {
        "QueryParameterName": name,
        "QueryParameterValue": str(value),
        "MinimumAllowed": str(low),
        "MaximumAllowed": str(high),
    }
    assert error_of(response) == (400, "OutOfRangeQueryParameterValue", details)
    assert azure.commands == []


@pytest.mark.parametrize(
    ("version", "query", "low", "high"),
    [
        ("2017-07-28", "messagettl=-1", 1, _WEEK_S),
        ("2017-07-28", "messagettl=604801", 1, _WEEK_S),
        ("2011-08-17", "messagettl=604801", 1, _WEEK_S),
    ],
)
def test_time_to_live_was_limited_once(
    azure: Harness, version: str, query: str, low: int, high: int
) -> None:
    """Before 2017-07-29 a message lived for seven days at most."""
    response = azure.send("POST", MESSAGES, query, body=_HI, version=version)
    _, code, details = error_of(response)
    assert code == "OutOfRangeQueryParameterValue"
    assert (details["MinimumAllowed"], details["MaximumAllowed"]) == (str(low), str(high))


def test_lease_was_limited_once(azure: Harness) -> None:
    """Before 2011-08-18 a lease lasted for two hours at most."""
    azure.send("GET", MESSAGES, "visibilitytimeout=7200", version="2011-08-17")
    response = azure.send("GET", MESSAGES, "visibilitytimeout=7201", version="2011-08-17")
    assert error_of(response)[2]["MaximumAllowed"] == "7200"
    assert len(azure.commands) == 1


@pytest.mark.parametrize(
    ("method", "path", "query", "name"),
    [
        ("POST", MESSAGES, "visibilitytimeout=soon", "visibilitytimeout"),
        ("POST", MESSAGES, "messagettl=1.5", "messagettl"),
        ("GET", MESSAGES, "numofmessages=%2B1", "numofmessages"),
        ("GET", MESSAGES, "numofmessages=1&numofmessages=2", "numofmessages"),
        ("GET", MESSAGES, "visibilitytimeout=0x10", "visibilitytimeout"),
        ("GET", MESSAGES, "peekonly=true&numofmessages=one", "numofmessages"),
        ("GET", MESSAGES, "peekonly=maybe", "peekonly"),
        ("GET", MESSAGES, "timeout=never", "timeout"),
        ("PUT", MESSAGE, _RECEIPT + "&visibilitytimeout=1_0", "visibilitytimeout"),
    ],
)
def test_numbers_that_are_none(
    azure: Harness, method: str, path: str, query: str, name: str
) -> None:
    """What cannot be read as a number is an invalid value."""
    response = azure.send(method, path, query, body=_HI if method == "POST" else b"")
    status, code, details = error_of(response)
    assert (status, code) == (400, "InvalidQueryParameterValue")
    assert details["QueryParameterName"] == name
    assert details["Reason"]
    assert azure.commands == []


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_text_limit_is_in_decoded_bytes(azure: Harness, method: str) -> None:
    """65,536 bytes of text pass however they are written; one more does not."""
    path, query = (
        (MESSAGE, _RECEIPT + "&visibilitytimeout=1") if method == "PUT" else (MESSAGES, "")
    )
    for text, size in (
        ("x" * 65_536, 65_536),
        ("é" * 32_768, 65_536),
        ("x" * 60_000 + "&amp;&#xD;" * 2_768, 65_536),
    ):
        assert azure.send(method, path, query, body=message_xml(text)).status < 300
        command = azure.commands[-1]
        assert isinstance(command, Put | Renew)
        assert isinstance(command.body, bytes)
        assert len(command.body) == size
    azure.commands.clear()
    for text in ("x" * 65_537, "é" * 32_768 + "x", "&amp;" * 10_000 + "x" * 55_537):
        response = azure.send(method, path, query, body=message_xml(text))
        assert error_of(response) == (413, "RequestBodyTooLarge", {"MaxLimit": "65536"})
    assert azure.commands == []


def test_text_limit_was_lower_once(azure: Harness) -> None:
    """Before 2011-08-18 a message held 8 KiB."""
    assert azure.send("POST", MESSAGES, body=message_xml("x" * 8192), version="2011-08-17").status
    response = azure.send("POST", MESSAGES, body=message_xml("x" * 8193), version="2011-08-17")
    assert error_of(response) == (413, "RequestBodyTooLarge", {"MaxLimit": "8192"})


@pytest.mark.parametrize("too_large", [True, False])
@pytest.mark.parametrize(
    ("method", "path", "query"),
    [("POST", MESSAGES, ""), ("PUT", MESSAGE, _RECEIPT + "&visibilitytimeout=1")],
)
def test_whole_body_is_limited(
    azure: Harness, method: str, path: str, query: str, too_large: bool
) -> None:
    """A body of more than 131,584 bytes is refused, whether the server has read it or not."""
    body = b"" if too_large else b" " * (MAX_REQUEST_BODY_BYTES + 1)
    response = azure.send(method, path, query, body=body, too_large=too_large)
    assert error_of(response) == (413, "RequestBodyTooLarge", {"MaxLimit": "131584"})


def test_largest_body_is_read(azure: Harness) -> None:
    """A body of 131,584 bytes is looked into."""
    body = _HI + b"\n" * (MAX_REQUEST_BODY_BYTES - len(_HI))
    assert azure.send("POST", MESSAGES, body=body).status == 201


def test_put_needs_a_document(azure: Harness) -> None:
    """An empty body is no message."""
    assert error_of(azure.send("POST", MESSAGES))[1] == "InvalidXmlDocument"


@pytest.mark.parametrize(
    ("query", "limit", "lease_s"),
    [
        ("", 1, None),
        ("numofmessages=32&visibilitytimeout=604800", 32, _WEEK_S),
        ("visibilitytimeout=1&numofmessages=2&unheard=of&timeout=90", 2, 1),
        ("peekonly=false", 1, None),
    ],
)
def test_get_command(azure: Harness, query: str, limit: int, lease_s: int | None) -> None:
    """Get Messages becomes a receive; the queue knows how long a lease is that is not named."""
    assert azure.send("GET", MESSAGES, query).status == 200
    command = azure.command
    assert isinstance(command, Receive)
    assert command[:4] == (ACCOUNT, "orders", limit, lease_s)
    assert command.holder == "127.0.0.1"


def test_get_answer(azure: Harness) -> None:
    """Each message comes with everything, its text as sent."""
    text = " <b>&amp;</b>\r\n\t\"é'\ufffd "
    second = azure.lease(b"", expires_at_ms=NEVER_MS, dequeue_count=7)
    azure.results[Receive] = (azure.lease(text.encode()), second)
    response = azure.send("GET", MESSAGES)
    root = root_of(response)
    assert root.tag == "QueueMessagesList"
    first_node, second_node = root
    assert _fields(first_node) == {
        "MessageId": MESSAGE_ID,
        "InsertionTime": _MIDNIGHT,
        "ExpirationTime": "Thu, 01 Jan 2026 01:00:00 GMT",
        "PopReceipt": RECEIPT,
        "TimeNextVisible": "Thu, 01 Jan 2026 00:00:30 GMT",
        "DequeueCount": "1",
        "MessageText": text,
    }
    assert list(_fields(first_node)) == [child.tag for child in second_node]
    assert _fields(second_node)["DequeueCount"] == "7"
    assert b"<MessageText />" in response.body
    assert header(response, "cache-control") == "no-cache"


@pytest.mark.parametrize(("query", "command"), [("", Receive), ("peekonly=true", Peek)])
def test_nothing_to_get(azure: Harness, query: str, command: type) -> None:
    """An empty queue is an empty list, at once."""
    azure.results[command] = ()
    response = azure.send("GET", MESSAGES, query)
    assert response.status == 200
    assert response.body.endswith(b"?><QueueMessagesList />")


def test_peek(azure: Harness) -> None:
    """Peek Messages shows neither receipt nor next-visible time."""
    azure.results[Peek] = (azure.message(b"a&b", dequeue_count=0), azure.message(b""))
    response = azure.send("GET", MESSAGES, "numofmessages=32&peekonly=true")
    assert azure.command == Peek(ACCOUNT, "orders", 32)
    first, second = root_of(response)
    assert _fields(first) == {
        "MessageId": MESSAGE_ID,
        "InsertionTime": _MIDNIGHT,
        "ExpirationTime": "Thu, 01 Jan 2026 01:00:00 GMT",
        "DequeueCount": "0",
        "MessageText": "a&b",
    }
    assert list(_fields(first)) == [child.tag for child in second]


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"", None), (_HI, b"hi"), (message_xml(""), b"")],
)
def test_update(azure: Harness, body: bytes, expected: bytes | None) -> None:
    """Without a body the text is kept; an empty text is a new text."""
    headers = {"content-type": "application/xml"}
    query = f"visibilitytimeout=0&{_RECEIPT}"
    response = azure.send("PUT", MESSAGE, query, body=body, headers=headers)
    assert azure.command == Renew(ACCOUNT, "orders", MESSAGE_ID, RECEIPT, 0, expected)
    assert (response.status, response.body) == (204, b"")
    assert header(response, "x-ms-popreceipt") == RECEIPT
    assert header(response, "x-ms-time-next-visible") == "Thu, 01 Jan 2026 00:00:30 GMT"


@pytest.mark.parametrize(
    ("version", "may"), [("2011-08-18", True), ("2012-02-11", True), ("2012-02-12", False)]
)
def test_an_update_beyond_the_expiry(azure: Harness, version: str, may: bool) -> None:
    """The version that brought Update Message allowed it; the expiry takes precedence."""
    azure.send("PUT", MESSAGE, f"visibilitytimeout=60&{_RECEIPT}", version=version)
    assert azure.command == Renew(ACCOUNT, "orders", MESSAGE_ID, RECEIPT, 60, None, past_expiry=may)


@pytest.mark.parametrize("version", ["2012-02-12", "2026-10-06"])
def test_an_update_beyond_the_expiry_where_that_is_set(version: str) -> None:
    """Every version allows it then."""
    azure = Harness(accepts_late=True)
    azure.send("PUT", MESSAGE, f"visibilitytimeout=60&{_RECEIPT}", version=version)
    assert azure.command == Renew(ACCOUNT, "orders", MESSAGE_ID, RECEIPT, 60, past_expiry=True)


def test_delete(azure: Harness) -> None:
    """Delete Message completes; the receipt is decoded once, a raw plus is a space."""
    response = azure.send("DELETE", MESSAGE, "popreceipt=AgAAAA%2BBAw%3D%3D/+")
    assert azure.command == Complete(ACCOUNT, "orders", MESSAGE_ID, "AgAAAA+BAw==/ ")
    assert (response.status, response.body) == (204, b"")
    assert header(response, "content-type") is None


def test_clear(azure: Harness) -> None:
    """Clear Messages clears."""
    assert azure.send("DELETE", MESSAGES).status == 204
    assert azure.command == Clear(ACCOUNT, "orders", actor=ACTOR)


@pytest.mark.parametrize(
    ("method", "query", "name"),
    [
        ("DELETE", "", "popreceipt"),
        ("DELETE", "popreceipt=", "popreceipt"),
        ("PUT", "visibilitytimeout=1", "popreceipt"),
        ("PUT", _RECEIPT, "visibilitytimeout"),
        ("PUT", _RECEIPT + "&visibilitytimeout=", "visibilitytimeout"),
    ],
)
def test_required_parameters(azure: Harness, method: str, query: str, name: str) -> None:
    """A missing receipt or visibility timeout is named."""
    response = azure.send(method, MESSAGE, query)
    details = {"QueryParameterName": name}
    assert error_of(response) == (400, "MissingRequiredQueryParameter", details)


def test_any_message_id_is_passed_on(azure: Harness) -> None:
    """Whether an id exists, or could, is for the store to say."""
    azure.send("DELETE", f"{MESSAGES}/not%20an%2Fid", _RECEIPT)
    command = azure.command
    assert isinstance(command, Complete)
    assert command._replace(message_id="x").receipt == RECEIPT
    assert command.message_id == "not an/id"


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("POST", "messages", ""),
        ("GET", "messages", ""),
        ("GET", "messages", "peekonly=true"),
        ("DELETE", "messages", ""),
        ("PUT", f"messages/{MESSAGE_ID}", _RECEIPT + "&visibilitytimeout=1"),
        ("DELETE", f"messages/{MESSAGE_ID}", _RECEIPT),
    ],
)
@pytest.mark.parametrize(
    ("queue", "code"),
    [("ab", "OutOfRangeInput"), ("a" * 64, "OutOfRangeInput"), ("Orders", "InvalidResourceName")],
)
def test_queue_name_is_checked(
    azure: Harness, *, method: str, path: str, query: str, queue: str, code: str
) -> None:
    """A queue that cannot exist is told apart from one that does not."""
    body = _HI if method == "POST" else b""
    response = azure.send(method, f"/{ACCOUNT}/{queue}/{path}", query, body=body)
    assert error_of(response)[:2] == (400, code)


def test_every_command_carries_the_account_addressed(azure: Harness) -> None:
    """Host style and path style lead to the same command."""
    hosts: list[tuple[dict[str, Any], str]] = [
        ({"host": "other.queue.example.net"}, "/orders/messages"),
        ({}, "/other/orders/messages"),
    ]
    for headers, path in hosts:
        azure.send("DELETE", path, headers=headers)
    assert azure.commands == [Clear("other", "orders", ACTOR)] * 2
