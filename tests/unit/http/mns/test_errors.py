"""The table of errors, and which of several mistakes is told first."""

from __future__ import annotations

import inspect
from base64 import b64encode
from collections.abc import Callable
from hashlib import md5

import pytest

from leasehold.auth import mns as mns_keys
from leasehold.auth import types as auth
from leasehold.domain import errors as domain
from leasehold.domain.commands import Put
from leasehold.http.mns.errors import CODES, TABLE, Fault, fault_of
from leasehold.http.requests import Response
from tests.unit.http.mns.support import MESSAGES, Whole, error_of, header, message_xml, root_of, run

_DIGEST = b64encode(md5(message_xml(), usedforsecurity=False).digest()).decode()
DEAD = f"{'0' * 32}-{'A' * 36}"


def test_every_error_has_its_row() -> None:
    """No error of the domain falls through to its parent unnoticed."""
    kinds = {
        each
        for _, each in inspect.getmembers(domain, inspect.isclass)
        if issubclass(each, domain.LeaseholdError)
    }
    assert kinds <= set(TABLE)
    assert mns_keys.BadDate in TABLE


def test_a_kind_without_a_row_is_its_parent() -> None:
    """What says more precisely that somebody may not pass is told as that."""
    assert fault_of(auth.PermissionMissing()).code == "AccessDenied"


@pytest.mark.parametrize("code", CODES)
def test_every_code_can_be_told(code: str) -> None:
    """Each has a status of the documented kind and a text."""
    fault = Fault(code)
    assert 400 <= fault.status < 600
    assert fault.message.endswith(".")


@pytest.mark.parametrize(
    ("method", "target", "code"),
    [
        ("GET", "/topics/t", "InvalidRequestURL"),
        ("GET", "/", "InvalidRequestURL"),
        ("GET", "/queues/q/messages/1", "InvalidRequestURL"),
        ("GET", "/queues/q/Messages", "InvalidRequestURL"),
        ("GET", "//queues", "InvalidRequestURL"),
        ("POST", "/queues/q", "InvalidRequestURL"),
        ("PATCH", MESSAGES, "InvalidRequestURL"),
        ("DELETE", "/queues", "InvalidRequestURL"),
        ("POST", "/?accountmeta=true", "InvalidRequestURL"),
        ("GET", "/queues/%zz", "InvalidRequestURL"),
        ("GET", "/queues/%ff", "InvalidRequestURL"),
        ("GET", "/queues/q?a=%zz", "InvalidQueryString"),
        ("GET", "/queues//messages", "QueueNameLengthError"),
        ("GET", "/queues/a%2Fb", "InvalidQueueName"),
        ("DELETE", MESSAGES, "MissingReceiptHandle"),
        ("DELETE", f"{MESSAGES}?ReceiptHandle=", "MissingReceiptHandle"),
        ("PUT", f"{MESSAGES}?VisibilityTimeout=5", "MissingReceiptHandle"),
        ("PUT", f"{MESSAGES}?ReceiptHandle={DEAD}", "MissingVisibilityTimeout"),
        ("PUT", f"{MESSAGES}?ReceiptHandle=x&VisibilityTimeout=5", "ReceiptHandleError"),
        ("PUT", f"{MESSAGES}?ReceiptHandle={DEAD}&VisibilityTimeout=5", "MessageNotExist"),
        ("PUT", f"{MESSAGES}?ReceiptHandle={DEAD}&VisibilityTimeout=0", "InvalidArgument"),
        ("PUT", f"{MESSAGES}?ReceiptHandle={DEAD}&VisibilityTimeout=43201", "InvalidArgument"),
        ("PUT", f"{MESSAGES}?ReceiptHandle={DEAD}&VisibilityTimeout=-1", "InvalidArgument"),
        ("PUT", f"{MESSAGES}?ReceiptHandle={DEAD}&VisibilityTimeout=5.0", "InvalidArgument"),
        ("DELETE", f"{MESSAGES}?ReceiptHandle={'a' * 32}-{'A' * 36}", "ReceiptHandleError"),
        ("DELETE", f"{MESSAGES}?receipthandle={DEAD}&ReceiptHandle=x", "ReceiptHandleError"),
        ("GET", f"{MESSAGES}?waitseconds=", "InvalidArgument"),
        ("GET", f"{MESSAGES}?waitseconds=31", "InvalidArgument"),
        ("GET", f"{MESSAGES}?numOfMessages=x", "InvalidArgument"),
        ("GET", f"{MESSAGES}?numOfMessages={'9' * 400}", "InvalidArgument"),
        ("GET", f"{MESSAGES}?numOfMessages=%D9%A3", "InvalidArgument"),
        ("GET", MESSAGES, "MessageNotExist"),
        ("GET", "/queues/r/messages", "QueueNotExist"),
    ],
)
def test_requests_that_are_refused(mns: Whole, method: str, target: str, code: str) -> None:
    """Each mistake has its code."""
    assert error_of(mns.ask(method, target)) == (CODES[code].status, code)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"authorization": None}, "MissingAuthorizationHeader"),
        ({"authorization": "Basic x"}, "InvalidAuthorizationHeader"),
        ({"authorization": "MNS nobody:x"}, "InvalidAccessKeyId"),
        ({"authorization": "MNS orders:x"}, "SignatureDoesNotMatch"),
        ({"date": None}, "MissingDateHeader"),
        ({"date": "today"}, "InvalidDateHeader"),
        ({"date": "Tue, 03 Jun 2025 11:23:48 GMT"}, "TimeExpired"),
        ({"x-mns-version": None}, "MissingVersionHeader"),
        ({"x-mns-version": "2016-01-01"}, "InvalidVersionHeader"),
        ({"host": "other.mns.localhost"}, "AccessDenied"),
        ({"content-md5": "x"}, "InvalidDegist"),
        ({"content-md5": b64encode(b"0" * 32).decode()}, "InvalidDegist"),
        ({"content-md5": b64encode(b"0" * 16).decode()}, "InvalidDegist"),
        ({"content-md5": f"!{_DIGEST}"}, "InvalidDegist"),
    ],
)
def test_headers_that_are_refused(mns: Whole, headers: dict[str, str | None], code: str) -> None:
    """Each mistake has its code, and the message is not sent."""
    response = mns.ask("POST", MESSAGES, message_xml(), headers)
    assert error_of(response) == (CODES[code].status, code)
    assert error_of(mns.ask("GET", MESSAGES))[1] == "MessageNotExist"


@pytest.mark.parametrize("host", ["orders.mns.localhost", "third.mns.x", "other.localhost", "é"])
def test_hosts_that_say_nothing_else(mns: Whole, host: str) -> None:
    """The signer's own account, no account, or no host of this protocol."""
    assert mns.ask("GET", "/queues/q", headers={"host": host}).status == 200


def test_nobody_learns_which_queues_exist(mns: Whole) -> None:
    """Without credentials every queue looks the same."""
    for target in ("/queues/q/messages", "/queues/r/messages", "/queues/-/messages"):
        response = mns.ask("GET", target, headers={"authorization": None})
        assert error_of(response)[1] == "MissingAuthorizationHeader"


@pytest.mark.parametrize("upper", [False, True])
def test_digests_of_all_clients(mns: Whole, upper: bool) -> None:
    """In base64 either the digest itself, or its hexadecimal digits."""
    body = message_xml()
    digest = md5(body, usedforsecurity=False)
    digits = digest.hexdigest().upper() if upper else digest.hexdigest()
    for given in (digest.digest(), digits.encode()):
        headers: dict[str, str | None] = {"content-md5": b64encode(given).decode()}
        assert mns.ask("POST", MESSAGES, body, headers).status == 201
    empty = b64encode(md5(b"", usedforsecurity=False).hexdigest().encode()).decode()
    assert mns.ask("GET", "/queues/q", headers={"content-md5": empty}).status == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (domain.Overloaded(), 503, "ServerBusy"),
        (domain.StoreFull(), 503, "ServerBusy"),
        (domain.Stopping(), 503, "ServerBusy"),
        (domain.AccountMoved("shop"), 503, "ServerBusy"),
        (domain.StoreFailed(), 500, "InternalServerError"),
        (domain.BodyUnreadable("id", "missing"), 500, "InternalError"),
        (RuntimeError("secret"), 500, "InternalError"),
    ],
)
def test_what_is_not_the_clients_fault(
    mns: Whole, error: Exception, status: int, code: str
) -> None:
    """Overload says when to come back; nothing of an error inside is shown."""
    mns.refusal = error
    asks: tuple[Callable[[], Response], ...] = (
        lambda: mns.ask("GET", MESSAGES),
        mns.send,
        lambda: mns.ask("POST", MESSAGES, b"<Messages>" + message_xml() * 2 + b"</Messages>"),
    )
    for ask in asks:
        response = ask()
        assert error_of(response) == (status, code)
        assert header(response, "Retry-After") == ("1" if status == 503 else None)
        assert b"secret" not in response.body


def test_the_server_is_full_for_a_batch(mns: Whole) -> None:
    """What concerns all entries is told as a plain error, so that it is tried again whole."""
    batch = b"<Messages>" + message_xml() * 2 + b"</Messages>"
    assert mns.ask("POST", MESSAGES, batch).status == 201
    mns.refusal, mns.refused = domain.StoreFull(), Put
    assert mns.send().status == 503
    assert root_of(mns.send()).tag.endswith("Error")


def test_a_body_that_was_not_read(mns: Whole) -> None:
    """The connection ends, and the client is told why."""
    request = mns.request("POST", MESSAGES, message_xml())
    request.body, request.body_too_large = b"", True
    assert error_of(run(mns.dialect.handle(request))) == (400, "InvalidArgument")


def test_requests_are_counted_by_operation(mns: Whole) -> None:
    """Also a batch, whatever shows that it is one, and what names no operation."""
    mns.observed.clear()
    mns.send()
    mns.ask("POST", MESSAGES, b"<Messages>" + message_xml() + b"</Messages>")
    for query in ("", "?numOfMessages=1"):
        mns.ask("GET", f"{MESSAGES}{query}")
    for query in (f"?ReceiptHandle={DEAD}", ""):
        mns.ask("DELETE", f"{MESSAGES}{query}", b"<ReceiptHandles/>")
    mns.ask("GET", "/nowhere")
    assert mns.observed == [
        ("mns-send-message", 201),
        ("mns-batch-send-message", 201),
        ("mns-receive-message", 200),
        ("mns-batch-receive-message", 200),
        ("mns-delete-message", 404),
        ("mns-batch-delete-message", 400),
        ("mns-unknown", 400),
    ]


@pytest.mark.parametrize("host", ["orders", "other", "nobody"])
def test_hosts_do_not_tell_strangers_whose_a_key_is(mns: Whole, host: str) -> None:
    """Who has not signed gets the same answer whichever account the host names."""
    for key_id, code in (("orders", "SignatureDoesNotMatch"), ("nobody", "InvalidAccessKeyId")):
        headers: dict[str, str | None] = {
            "host": f"{host}.mns.localhost",
            "authorization": f"MNS {key_id}:d3Jvbmc=",
        }
        assert error_of(mns.ask("GET", MESSAGES, b"", headers)) == (403, code)
