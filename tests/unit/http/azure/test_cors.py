"""Cross-origin resource sharing: preflight requests, and headers of actual answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from leasehold.auth.types import Account
from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import Clear, GetAccountDocument, Receive
from leasehold.domain.errors import Overloaded, QueueNotFound
from leasehold.http.azure import AzureDialect, service
from tests.unit.http.azure.support import (
    ACCOUNT,
    MESSAGES,
    Harness,
    error_of,
    header,
    make_request,
    run,
)

_HERE = "https://here.example"
_ELSEWHERE = "https://elsewhere.example"


def _rule(origins: list[str], methods: list[str], **fields: object) -> dict[str, object]:
    rule = {
        "origins": origins,
        "methods": methods,
        "allowed_headers": [],
        "exposed_headers": ["*"],
        "max_age_s": 60,
    }
    return rule | fields


def _keep(azure: Harness, *rules: dict[str, object], account: str = ACCOUNT) -> None:
    document = service.load(None) | {"cors": list(rules)}
    azure.documents[account] = json.dumps(document)


_EXACT = _rule([_HERE], ["GET", "HEAD", "PUT", "POST", "DELETE"])
_ANY = _rule(["*"], ["GET", "HEAD", "PUT", "POST", "DELETE"])


@pytest.mark.parametrize(
    ("rules", "origin", "vary", "allowed"),
    [
        ([], None, None, None),
        ([], _HERE, None, None),
        ([_EXACT], None, "Origin", None),
        ([_ANY], None, None, "*"),
        ([_EXACT], _HERE, "Origin", _HERE),
        ([_EXACT], _ELSEWHERE, "Origin", None),
        ([_EXACT], _HERE.upper(), "Origin", None),
        ([_EXACT], "*", "Origin", None),
        ([_ANY], _ELSEWHERE, None, "*"),
        ([_EXACT, _ANY], _HERE, "Origin", _HERE),
        ([_EXACT, _ANY], _ELSEWHERE, None, "*"),
        ([_ANY, _EXACT], _HERE, None, "*"),
        ([_rule(["*"], ["PUT"])], _HERE, "Origin", None),
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD"])
def test_actual_requests(
    azure: Harness,
    *,
    rules: list[dict[str, object]],
    origin: str | None,
    vary: str | None,
    allowed: str | None,
    method: str,
) -> None:
    """The first rule for origin and method adds headers; Vary is for GET and HEAD only."""
    _keep(azure, *rules)
    headers = {} if origin is None else {"origin": origin}
    path, query = (f"/{ACCOUNT}/orders", "comp=acl") if method == "HEAD" else (MESSAGES, "")
    response = azure.send(method, path, query, headers=headers)
    assert response.status < 300
    assert header(response, "vary") == (None if method == "DELETE" else vary)
    assert header(response, "access-control-allow-origin") == allowed
    assert (header(response, "access-control-expose-headers") is not None) == (allowed is not None)
    credentials = "true" if allowed == _HERE else None
    assert header(response, "access-control-allow-credentials") == credentials


@pytest.mark.parametrize(
    ("exposed", "expected"),
    [
        ([], None),
        (["X-Custom"], {"X-Custom"}),
        (["x-ms-v*"], {"x-ms-version"}),
        (["X-MS-V*", "x-ms-version"], {"x-ms-version"}),
        (
            ["*"],
            {
                "content-type", "cache-control", "x-ms-request-id", "x-ms-version",
                "Content-Length", "Date", "Server",
            },
        ),
    ],
)  # fmt: skip
def test_exposed_headers(azure: Harness, exposed: list[str], expected: set[str] | None) -> None:
    """A prefix stands for the headers really present, a name for itself."""
    _keep(azure, _rule([_HERE], ["GET"], exposed_headers=exposed))
    response = azure.send("GET", MESSAGES, headers={"origin": _HERE})
    value = header(response, "access-control-expose-headers")
    assert (None if value is None else set(value.split(","))) == expected


def test_errors_carry_the_headers_too(azure: Harness) -> None:
    """A page in a browser can read why a request was refused."""
    _keep(azure, _EXACT)
    azure.results[Receive] = QueueNotFound()
    response = azure.send("GET", MESSAGES, headers={"origin": _HERE})
    assert response.status == 404
    assert header(response, "access-control-allow-origin") == _HERE


_PREFLIGHT = _rule(
    [_HERE, "https://also.example"],
    ["GET", "PUT"],
    allowed_headers=["X-MS-Meta-*", "content-type"],
)


def _asked(
    method: str | None, origin: str | None = _HERE, names: str | None = None
) -> dict[str, str]:
    asked = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": names,
    }
    return {name: value for name, value in asked.items() if value is not None}


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("GET", None),
        ("PUT", "content-type"),
        ("PUT", "Content-Type, x-ms-meta-a,X-Ms-Meta-"),
        ("GET", ""),
    ],
)
def test_preflight(azure: Harness, method: str, names: str | None) -> None:
    """A preflight is answered with what was asked for, without credentials or a queue."""
    _keep(azure, _PREFLIGHT)
    response = azure.send(
        "OPTIONS",
        f"/{ACCOUNT}/No_Such_Queue/x/y/z",
        headers=_asked(method, names=names),
        version=None,
    )
    assert (response.status, response.body) == (200, b"")
    assert header(response, "access-control-allow-origin") == _HERE
    assert header(response, "access-control-allow-methods") == method
    assert header(response, "access-control-allow-headers") == (names or None)
    assert header(response, "access-control-max-age") == "60"
    assert header(response, "access-control-allow-credentials") == "true"
    assert header(response, "vary") == "Origin"
    assert azure.commands == []
    assert azure.authenticator.seen == []
    assert azure.observed == [("preflight", 200)]


def test_preflight_for_any_origin(azure: Harness) -> None:
    """A rule for all origins answers with a star, whoever asks."""
    _keep(azure, _ANY)
    response = azure.send("OPTIONS", f"/{ACCOUNT}", headers=_asked("GET"))
    assert header(response, "access-control-allow-origin") == "*"
    assert header(response, "vary") is None


@pytest.mark.parametrize(
    ("rules", "asked"),
    [
        ([], _asked("GET")),
        ([_PREFLIGHT], _asked("GET", origin=_ELSEWHERE)),
        ([_PREFLIGHT], _asked("GET", origin=_HERE.upper())),
        ([_PREFLIGHT], _asked("DELETE")),
        ([_PREFLIGHT], _asked("PUT", names="content-type,authorization")),
        ([_PREFLIGHT], _asked("PUT", names="x-ms-version")),
        # The first rule for origin and method decides, even if a later one allows more.
        ([_PREFLIGHT, _rule(["*"], ["PUT"], allowed_headers=["*"])], _asked("PUT", names="x")),
    ],
)
def test_preflight_that_no_rule_allows(
    azure: Harness, rules: list[dict[str, object]], asked: dict[str, str]
) -> None:
    """Without a matching rule the browser is told no."""
    _keep(azure, *rules)
    response = azure.send("OPTIONS", MESSAGES, headers=asked)
    assert error_of(response) == (403, "CorsPreflightFailure", {})
    assert azure.observed == [("preflight", 403)]


@pytest.mark.parametrize(
    ("asked", "name", "value"),
    [
        ({}, "Origin", ""),
        (_asked("GET", origin=None), "Origin", ""),
        (_asked(None), "Access-Control-Request-Method", ""),
        (_asked("BREW"), "Access-Control-Request-Method", "BREW"),
    ],
)
def test_incomplete_preflight(azure: Harness, asked: dict[str, str], name: str, value: str) -> None:
    """A preflight needs an origin and a method."""
    response = azure.send("OPTIONS", MESSAGES, headers=asked)
    details = {"HeaderName": name, "HeaderValue": value}
    assert error_of(response) == (400, "InvalidHeaderValue", details)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (_asked("GET", origin=_ELSEWHERE), "CorsPreflightFailure"),
        (_asked("BREW"), "InvalidHeaderValue"),
    ],
)
def test_refused_preflight_has_the_code_in_its_header(
    azure: Harness, asked: dict[str, str], code: str
) -> None:
    """Browsers send no version with a preflight; the code is in the header all the same."""
    _keep(azure, _PREFLIGHT)
    response = azure.send("OPTIONS", MESSAGES, headers=asked, version=None)
    assert header(response, "x-ms-error-code") == code == error_of(response)[1]
    assert header(response, "x-ms-version") is None
    old = azure.send("OPTIONS", MESSAGES, headers=asked, version="2017-04-17")
    assert header(old, "x-ms-error-code") is None


def test_preflight_for_unknown_account(azure: Harness) -> None:
    """Nothing is fetched for accounts that do not exist."""
    response = azure.send("OPTIONS", "/nobody/orders", headers=_asked("GET"))
    assert error_of(response)[1] == "CorsPreflightFailure"
    assert azure.document_reads == 0


def test_rules_are_remembered_for_half_a_minute(azure: Harness) -> None:
    """The store is asked once, and again when another server may have changed the rules."""
    for _ in range(3):
        azure.send("GET", MESSAGES)
    assert azure.document_reads == 1
    _keep(azure, _ANY)
    azure.clock.advance(s=29.9)
    assert header(azure.send("GET", MESSAGES), "access-control-allow-origin") is None
    azure.clock.advance(s=0.1)
    assert header(azure.send("GET", MESSAGES), "access-control-allow-origin") == "*"
    assert azure.document_reads == 2


def test_one_of_many_requests_fetches_the_rules(azure: Harness) -> None:
    """Requests that come while the rules are being fetched go on with what is known."""
    asked = 0

    async def perform(command: AnyCommand) -> Any:
        nonlocal asked
        asked += isinstance(command, GetAccountDocument)
        await asyncio.sleep(0)
        return await azure.perform(command)

    dialect = AzureDialect(
        perform=perform,
        authenticator=azure.authenticator,
        clock=azure.clock,
        accounts={ACCOUNT: Account(name=ACCOUNT, keys=(b"key",))},
    )

    async def scenario() -> None:
        request = make_request("DELETE", MESSAGES)
        await asyncio.gather(*[dialect.handle(request) for _ in range(20)])

    asyncio.run(scenario())
    assert asked == 1


def test_setting_properties_takes_effect_at_once(azure: Harness) -> None:
    """Rules set through this server need not be fetched, and apply to that very answer."""
    body = (
        b"<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>*</AllowedOrigins>"
        b"<AllowedMethods>PUT,GET</AllowedMethods><MaxAgeInSeconds>1</MaxAgeInSeconds>"
        b"<ExposedHeaders/><AllowedHeaders/></CorsRule></Cors></StorageServiceProperties>"
    )
    query = "restype=service&comp=properties"
    response = azure.send("PUT", f"/{ACCOUNT}", query, body=body)
    assert header(response, "access-control-allow-origin") == "*"
    assert header(azure.send("GET", MESSAGES), "access-control-allow-origin") == "*"
    assert azure.document_reads == 1


def test_rules_that_cannot_be_fetched(azure: Harness) -> None:
    """The last known rules are used, and the answer itself does not suffer."""
    _keep(azure, _ANY)
    azure.send("GET", MESSAGES)
    azure.results[GetAccountDocument] = Overloaded()
    azure.clock.advance(s=31)
    response = azure.send("GET", MESSAGES)
    assert (response.status, header(response, "access-control-allow-origin")) == (200, "*")


def test_broken_rules_do_not_hide_what_was_done(azure: Harness) -> None:
    """If the rules cannot even be read, the answer goes out without them."""
    azure.documents[ACCOUNT] = "not json"
    response = azure.send("DELETE", MESSAGES)
    assert response.status == 204
    assert azure.observed == [("clear-messages", 204)]


def test_accounts_have_their_own_rules(azure: Harness) -> None:
    """The rules of one account say nothing about another."""
    _keep(azure, _ANY, account="other")
    assert header(azure.send("GET", MESSAGES), "access-control-allow-origin") is None
    path = MESSAGES.replace(ACCOUNT, "other")
    assert header(azure.send("GET", path), "access-control-allow-origin") == "*"


def test_preflight_is_never_a_request_for_the_store(azure: Harness) -> None:
    """Not even one with credentials is authenticated."""
    _keep(azure, _ANY)
    request = make_request("OPTIONS", MESSAGES, headers=_asked("PUT") | {"authorization": "x"})
    assert run(azure.dialect.handle(request)).status == 200
    assert azure.authenticator.seen == []


@pytest.mark.parametrize(
    ("rules", "origin", "method", "passes"),
    [
        ([], _HERE, "DELETE", False),
        ([], None, "GET", False),
        ([_EXACT], _HERE, "DELETE", True),
        ([_EXACT], _HERE, "GET", True),
        ([_EXACT], _ELSEWHERE, "DELETE", False),
        ([_EXACT], None, "GET", False),
        ([_rule([_HERE], ["GET"])], _HERE, "DELETE", False),
        ([_ANY], _ELSEWHERE, "DELETE", True),
        ([_ANY], None, "GET", True),
    ],
)
def test_pages_of_others_need_a_rule(
    azure: Harness, *, rules: list[dict[str, object]], origin: str | None, method: str, passes: bool
) -> None:
    """Where anybody can sign, a page of another origin may do what the rules let it do."""
    _keep(azure, *rules)
    azure.send("PUT", f"/{ACCOUNT}/orders")
    request = make_request(method, MESSAGES, headers={"origin": origin} if origin else {})
    request.is_foreign = True
    commands = len(azure.commands)
    response = run(azure.dialect.handle(request))
    if passes:
        assert response.status in {200, 204}
    else:
        assert error_of(response)[:2] == (403, "AuthorizationFailure")
        assert not any(isinstance(each, Clear | Receive) for each in azure.commands[commands:])
