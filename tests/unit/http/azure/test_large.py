"""Queues that take larger messages than the service, or smaller ones."""

from __future__ import annotations

import pytest

from leasehold.auth.types import BadSignature
from leasehold.domain.admin import Inspect, MessagePage, Seen
from leasehold.domain.commands import Peek, Put, Renew
from leasehold.domain.model import BodyRef, Detail, MessageState, Queue
from leasehold.domain.queue_settings import MAX_BODY_BYTES, QueueSettings
from leasehold.http.azure import MAX_REQUEST_BODY_BYTES
from tests.unit.http.azure.support import (
    ACCOUNT,
    MESSAGE,
    MESSAGES,
    RECEIPT,
    Harness,
    error_of,
    make_request,
    message_xml,
    root_of,
    run,
)

UPDATE = f"visibilitytimeout=30&popreceipt={RECEIPT}"


def allow(azure: Harness, max_body_bytes: int | None) -> None:
    """Let there be a queue with this setting, and no other."""
    settings = QueueSettings(max_body_bytes=max_body_bytes)
    queue = Queue(account=ACCOUNT, name="orders", settings=settings)
    azure.dialect._find_queue = lambda account, name: (
        queue if (account, name) == (ACCOUNT, "orders") else None
    )


@pytest.mark.parametrize(("limit", "fits"), [(None, 65_536), (5, 5), (300_000, 300_000)])
@pytest.mark.parametrize(
    ("method", "path", "query"), [("POST", MESSAGES, ""), ("PUT", MESSAGE, UPDATE)]
)
def test_the_limit_is_that_of_the_queue(
    azure: Harness, limit: int | None, fits: int, method: str, path: str, query: str
) -> None:
    """A text as large as the queue allows is taken, one byte more is refused with the limit."""
    allow(azure, limit)
    assert azure.send(method, path, query, body=message_xml("x" * fits)).status in {201, 204}
    assert isinstance(azure.command, Put | Renew)
    assert azure.command.body == b"x" * fits
    refused = azure.send(method, path, query, body=message_xml("x" * (fits + 1)))
    assert error_of(refused) == (413, "RequestBodyTooLarge", {"MaxLimit": str(fits)})


def test_the_limit_of_the_queue_replaces_that_of_old_versions(azure: Harness) -> None:
    """A client of an early version may send as much as the queue allows, too."""
    allow(azure, 100_000)
    sent = azure.send("POST", MESSAGES, body=message_xml("x" * 100_000), version="2011-01-18")
    assert sent.status == 201


def longest(azure: Harness, method: str = "POST", path: str = MESSAGES, query: str = "") -> int:
    """Ask how long the body of a request may be, by its head."""
    call = azure.dialect.begin(make_request(method, path, query))
    run(azure.dialect.enter(call))
    return azure.dialect.longest_body(call)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, MAX_REQUEST_BODY_BYTES),
        (10, MAX_REQUEST_BODY_BYTES),
        (65_536, MAX_REQUEST_BODY_BYTES),
        (300_000, 600_512),
        (MAX_BODY_BYTES, 2 * MAX_BODY_BYTES + 512),
    ],
)
def test_as_much_is_read_as_the_text_may_take_in_xml(
    azure: Harness, limit: int | None, expected: int
) -> None:
    """The body of a request may be twice the text, as with the service."""
    allow(azure, limit)
    assert longest(azure) == expected
    assert longest(azure, "PUT", MESSAGE, UPDATE) == expected


def test_others_send_no_more_than_the_service_takes(azure: Harness) -> None:
    """Only a request that may put into such a queue gets to send more, and no other operation."""
    allow(azure, 300_000)
    assert longest(azure, path=f"/{ACCOUNT}/other/messages") == MAX_REQUEST_BODY_BYTES
    assert longest(azure, "PUT", f"/{ACCOUNT}/orders", "comp=acl") == MAX_REQUEST_BODY_BYTES
    assert longest(azure, path="/nobody/orders/messages") == MAX_REQUEST_BODY_BYTES
    assert longest(azure, path=f"/{ACCOUNT}/orders/messages/x/y") == MAX_REQUEST_BODY_BYTES
    azure.authenticator.refusal = BadSignature("")
    assert longest(azure) == MAX_REQUEST_BODY_BYTES
    assert azure.commands == []


def test_a_request_beyond_that_is_refused(azure: Harness) -> None:
    """What was not read to its end is refused with the size that would have been."""
    allow(azure, 300_000)
    refused = azure.send("POST", MESSAGES, too_large=True)
    assert error_of(refused) == (413, "RequestBodyTooLarge", {"MaxLimit": "600512"})


def _unread(problem: str) -> Detail:
    return Detail(body_ref=BodyRef(key="0" * 32, size_bytes=9, sha256="0" * 64, problem=problem))


def test_a_peek_leaves_out_what_cannot_be_read(azure: Harness) -> None:
    """A client of the service must not take a message without its body for an empty one."""
    azure.results[Peek] = (
        azure.message(b"", detail=_unread("missing")),
        azure.message(b"read"),
    )
    root = root_of(azure.send("GET", MESSAGES, "peekonly=true&numofmessages=5"))
    assert [node.findtext("MessageText") for node in root] == ["read"]


def test_a_list_of_invisible_messages_says_what_is_wrong(azure: Harness) -> None:
    """Where states are shown, the problem with a body is shown as well."""
    broken = azure.message(b"", detail=_unread("corrupt"))
    page = MessagePage((Seen(broken, MessageState.VISIBLE, "orders"),), None)
    azure.results[Inspect] = page
    root = root_of(azure.send("GET", MESSAGES, "peekonly=true&include=invisible"))
    assert root[0].findtext("BodyProblem") == "corrupt"
    assert root[0].find("MessageText") is None
