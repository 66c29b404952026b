"""Signatures are those that the server takes, and secrets stay where they are."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import httpx
import pytest

from leasehold.auth.authenticator import Authenticator, CredentialKind
from leasehold.auth.sas import SasTerms, make_account_sas, make_service_sas
from leasehold.auth.sharedkey import parse_http_date
from leasehold.auth.types import AuthError, Operation, SignedRequest, Target, parse_iso_time
from leasehold.client import Filter, LeaseholdClientError
from tests.unit.auth.support import ACCOUNTS, KEY, KEY_TEXT, NAME, no_policies, query_of
from tests.unit.client.support import (
    ID,
    JOB,
    PUT_RESULT,
    QUEUE,
    VIEW,
    Driver,
    Script,
    answer,
    problem,
)

TOKEN = "secret-token"
NOW_MS = parse_iso_time("2026-11-21T12:00:00Z") or 0


def arrived(request: httpx.Request) -> SignedRequest:
    """Return a request as the server reads it."""
    path, _, query = request.url.raw_path.decode().partition("?")
    return SignedRequest(
        method=request.method,
        path=path,
        query=query_of(query),
        headers={name.lower(): value for name, value in request.headers.items()},
        version=request.headers.get("x-ms-version", "2026-10-06"),
        client_ip="127.0.0.1",
        https=False,
    )


def check(request: SignedRequest, *, now_ms: int | None = None) -> CredentialKind:
    """Let the server's own rules judge a request."""
    if now_ms is None:
        now_ms = parse_http_date(request.headers["x-ms-date"])
    assert now_ms is not None
    target = Target(account=NAME, operation=Operation.PUT_MESSAGE, queue="jobs")
    return Authenticator(ACCOUNTS, no_policies).check(request, target, now_ms=now_ms).kind


CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], object]] = {
    "without body": ("info", (), {}, QUEUE),
    "with body": ("put", ("hé",), {}, {"results": [PUT_RESULT]}),
    "with an empty object": ("resume", (), {}, QUEUE),
    "with query": ("remove", (ID,), {"force": True}, {}),
    "with escapes": ("get", ("a/b ü+%",), {}, VIEW),
    "with a hard query": (
        "inspect",
        (),
        {"filter": Filter(text="a b+c&d=e:ü%", json_path="Ab[0]", holder="")},
        {"messages": []},
    ),
    "that waits": ("purge", (), {"wait_s": 5}, JOB),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_server_takes_the_signature(driver: Driver, name: str) -> None:
    """Whatever the path and query hold, client and server sign the same string."""
    method, arguments, named, content = CALLS[name]
    script = Script(answer(content))
    queue = driver.client(script, key=KEY_TEXT).queue("jobs")
    driver.do(getattr(queue, method)(*arguments, **named))
    request = arrived(script.last)
    assert check(request) is CredentialKind.SHARED_KEY
    changed = SignedRequest(**{**_fields(request), "path": request.path + "x"})
    with pytest.raises(AuthError):
        check(changed)


def _fields(request: SignedRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in SignedRequest.__slots__}


def test_a_signature_of_another_key_is_refused(driver: Driver) -> None:
    """The check above can fail."""
    script = Script(answer(QUEUE))
    driver.do(driver.client(script, key="b3RoZXI=").queue("jobs").info())
    with pytest.raises(AuthError):
        check(arrived(script.last))


def test_what_cannot_be_signed_is_refused_before_sending(driver: Driver) -> None:
    """A line break in a query would let one parameter pass for two."""
    script = Script(answer({"messages": []}))
    queue = driver.client(script).queue("jobs")
    with pytest.raises(ValueError, match="line break"):
        driver.do(queue.inspect(filter=Filter(text="a\nb")))
    assert not script.requests


TERMS = SasTerms(permission="raup", expiry="2030-01-01T00:00:00Z")


@pytest.mark.parametrize("mark", ["", "?"])
@pytest.mark.parametrize(
    ("sas", "kind"),
    [
        (make_account_sas(NAME, KEY, TERMS), CredentialKind.ACCOUNT_SAS),
        (make_service_sas(NAME, KEY, "jobs", TERMS), CredentialKind.SERVICE_SAS),
    ],
)
def test_a_shared_access_signature_is_sent_along(
    driver: Driver, sas: str, kind: CredentialKind, mark: str
) -> None:
    """It arrives as it was made, next to the query of the call."""
    script = Script(answer({"messages": []}))
    client = driver.client(script, sas=mark + sas)
    driver.do(client.queue("jobs").inspect(states="leased"))
    request = arrived(script.last)
    assert "authorization" not in request.headers
    assert check(request, now_ms=NOW_MS) is kind
    assert ("state", "leased") in request.query


@pytest.mark.parametrize("kind", ["key", "sent key", "sas", "token"])
def test_no_secret_is_shown(driver: Driver, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither repr nor str nor logs nor tracebacks show key, signature or token."""
    chosen: dict[str, tuple[str, dict[str, Any]]] = {
        "key": (KEY_TEXT, {"key": KEY_TEXT}),
        "sent key": (KEY_TEXT, {"key": KEY_TEXT, "send_key": True}),
        "sas": ("c2lnbmF0dXJl", {"sas": "sv=1&sig=c2lnbmF0dXJl"}),
        "token": (TOKEN, {"token_provider": driver.token_provider([TOKEN] * 99)}),
    }
    secret, options = chosen[kind]
    caplog.set_level(logging.DEBUG)
    replies = (
        httpx.ConnectError("refused"),
        problem("overloaded", 503, retry_after_s=0),
        problem("unauthenticated", 401),
    )
    for reply in (*replies, httpx.ReadTimeout(""), httpx.Response(502), answer([])):
        client = driver.client(Script(reply), **options)
        queue = client.queue("jobs")
        with pytest.raises(LeaseholdClientError) as caught:
            driver.do(queue.info())
        error = caught.value
        texts = [repr(client), str(client), repr(queue), str(error), repr(error), caplog.text]
        texts += traceback.format_exception(error)
        texts += [repr(value) for value in vars(client).values()]
        texts += [repr(value) for value in vars(vars(client)["_transport"]).values()]
        assert secret not in "\n".join(texts)
    assert "retry in" in caplog.text


def test_the_network_library_logs_no_address(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """An address with a signature in its query is not logged on success either."""
    caplog.set_level(logging.DEBUG)
    script = Script(answer(QUEUE))
    driver.do(driver.client(script, sas="sv=1&sig=c2lnbmF0dXJl").queue("jobs").info())
    assert script.last.url.params["sig"] == "c2lnbmF0dXJl"
    assert "c2lnbmF0dXJl" not in caplog.text


def test_a_token_may_end_in_a_line_break(driver: Driver) -> None:
    """As one that was read from a file does."""
    script = Script(answer(QUEUE))
    client = driver.client(script, token_provider=driver.token_provider([f"{TOKEN}\n"]))
    driver.do(client.queue("jobs").info())
    assert script.last.headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("token", [f"{TOKEN} x", f"{TOKEN}\r\nx: y", f"{TOKEN}\u00e9"])
def test_a_token_that_no_header_can_hold_is_refused(driver: Driver, token: str) -> None:
    """Before anything is sent, and without being shown."""
    script = Script(answer(QUEUE))
    client = driver.client(script, token_provider=driver.token_provider([token]))
    with pytest.raises(ValueError, match="the token is malformed") as caught:
        driver.do(client.queue("jobs").info())
    assert TOKEN not in str(caught.value)
    assert not script.requests
