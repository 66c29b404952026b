"""Signing in to the console, and what sessions allow."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest
from proof.forged import Forged, forged_sessions, key_of_sessions, sealed_session

from leasehold.auth.console import (
    MAX_SESSION_MS,
    SECURE_COOKIE,
    ConsoleSession,
    Role,
    SignInKind,
)
from leasehold.auth.sas import SasTerms, make_account_sas, make_service_sas
from leasehold.http.console.sign_in import FAILURE_S, FAILURES
from leasehold.http.native.call import Route
from leasehold.http.native.dialect import routes_for
from leasehold.testing import ManualClock
from tests.unit.http.console.support import (
    ACCOUNT,
    CSRF,
    INSPECTOR_KEY,
    KEY,
    QUEUE,
    SECOND_KEY,
    SESSION,
    Console,
)

BY_KEY = {"kind": "key", "account": ACCOUNT, "key": KEY}
OVERVIEW = "/console/api/overview"
_SOON_MS = ManualClock().now_ms() + MAX_SESSION_MS // 2
_KNOWN = {
    "an inspector's key": b64decode(INSPECTOR_KEY),
    "an account's key": b64decode(KEY),
    "an account's second key": b64decode(SECOND_KEY),
    "another account's key": b"o" * 32,
    "nothing": b"",
}


def test_session_is_shown_with_its_limits(console: Console) -> None:
    """A page learns who has signed in, as what, until when, and its token; and no secret."""
    assert console.ask("GET", SESSION).json["signed_in"] is False
    cookie = {"cookie": console.enter()["cookie"]}
    shown = console.ask("GET", SESSION, headers=cookie).json
    assert (shown["account"], shown["role"], shown["who"]) == (ACCOUNT, "operator", "key 1")
    assert shown["expires_at_ms"] == console.clock.now_ms() + MAX_SESSION_MS
    assert shown["choices"] == ["development", "key", "sas"]
    assert KEY not in str(shown)
    assert KEY not in cookie["cookie"]


def test_cookie_is_kept_from_scripts_and_other_sites(console: Console) -> None:
    """Over https it belongs to this host alone, and is sent over https alone."""
    plain = console.ask("POST", SESSION, BY_KEY).headers["set-cookie"].split("; ")
    assert plain[1:] == ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"]
    safe = console.ask("POST", SESSION, BY_KEY, https=True).headers["set-cookie"].split("; ")
    assert safe[0].startswith(SECURE_COOKIE + "=")
    assert safe[1:] == ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict", "Secure"]


def test_session_changes_things_with_its_token_only(console: Console) -> None:
    """A request that another page could make a browser send is refused."""
    fields = console.enter()
    cookie = {"cookie": fields["cookie"]}
    assert console.ask("GET", QUEUE, headers=cookie).status == 200
    for more in ({}, {CSRF: ""}, {CSRF: "x" * 43}, {CSRF: "é"}):
        refused = console.ask("POST", f"{QUEUE}/pause", {}, {**cookie, **more})
        assert (refused.status, refused.code) == (403, "csrf-token")
    assert console.ask("POST", f"{QUEUE}/pause", {}, fields).status == 200
    other = console.enter()
    refused = console.ask("POST", f"{QUEUE}/resume", None, {**other, "cookie": fields["cookie"]})
    assert refused.code == "csrf-token"


@pytest.mark.parametrize(
    "foreign",
    [
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "null"},
    ],
)
def test_pages_of_other_origins_are_refused(console: Console, foreign: dict[str, str]) -> None:
    """Also where they have the token, and also those of this host at other ports."""
    fields = {**console.enter(), **foreign}
    assert console.ask("POST", f"{QUEUE}/pause", {}, fields).code == "forbidden"
    assert console.ask("GET", QUEUE, headers=fields).code == "forbidden"
    assert console.ask("GET", OVERVIEW, headers=fields).code == "forbidden"
    assert console.ask("POST", SESSION, BY_KEY, foreign).code == "forbidden"
    own = {**console.enter(), "origin": "http://queues.example.net"}
    assert console.ask("POST", f"{QUEUE}/pause", {}, own).status == 200


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("PUT", f"{QUEUE}2", None),
        ("DELETE", QUEUE, None),
        ("PATCH", QUEUE, {"metadata": {}}),
        ("POST", f"{QUEUE}/pause", {}),
        ("POST", f"{QUEUE}/purge", {}),
        ("POST", f"{QUEUE}/redrive", {}),
        ("POST", f"{QUEUE}/messages", {"messages": []}),
        ("POST", f"{QUEUE}/messages/receive", {}),
        ("DELETE", f"{QUEUE}/messages/x", None),
        ("POST", f"{QUEUE}/messages/x/end-lease", {}),
        ("POST", f"/v1/accounts/{ACCOUNT}/sessions", {}),
    ],
)
def test_viewer_changes_nothing(console: Console, method: str, path: str, content: object) -> None:
    """The API itself refuses: it does not matter what a page shows."""
    assert console.ask(method, path, content, console.enter("viewer")).code == "forbidden"


_CHANGING = [
    route
    for route in routes_for(test_mode=False)
    if route.method != "GET" and route.name not in {"peek", "openapi", "problem"}
]


@pytest.mark.parametrize("route", _CHANGING, ids=[route.name for route in _CHANGING])
def test_no_route_changes_anything_for_a_viewer(console: Console, route: Route) -> None:
    """Not one of the native API's, so that of one to come the rights cannot be forgotten."""
    named = {"account": ACCOUNT, "queue": "orders", "number": "1"}
    path = re.sub(r"\{(\w+)\}", lambda found: named.get(found[1], "x"), route.path)
    answer = console.ask(route.method, path, {}, console.enter("viewer"))
    assert (answer.status, answer.code) == (403, "forbidden")


def test_viewer_looks_at_everything(console: Console) -> None:
    """Queues, messages, sessions, events and figures can be looked at."""
    fields = console.enter("viewer")
    account = f"/v1/accounts/{ACCOUNT}"
    for path in (
        *(QUEUE, f"{QUEUE}/messages", f"{QUEUE}/explain", f"{QUEUE}/streams"),
        *(f"{account}/sessions", f"{account}/events", f"{account}/jobs", OVERVIEW),
    ):
        assert console.ask("GET", path, headers=fields).status == 200, path
    assert console.ask("POST", f"{QUEUE}/messages/peek", {}, fields).status == 200


def test_inspectors_key_makes_a_viewer(console: Console) -> None:
    """Whatever role is asked for."""
    asked = {**BY_KEY, "key": INSPECTOR_KEY, "role": "operator"}
    answer = console.ask("POST", SESSION, asked)
    assert (answer.json["role"], answer.json["kind"]) == ("viewer", "inspector")
    fields = {"cookie": answer.cookie, CSRF: answer.json["csrf"]}
    assert console.ask("POST", f"{QUEUE}/pause", {}, fields).code == "forbidden"


def _sas(console: Console, permission: str, **more: Any) -> str:
    expiry = more.pop("expiry", "2199-01-01T00:00:00Z")
    terms = SasTerms(permission=permission, expiry=expiry, **more)
    return make_account_sas(ACCOUNT, b64decode(KEY), terms)


def test_limits_of_a_signature_are_those_of_its_session(console: Console) -> None:
    """What it does not allow its session does not either; the cookie does not hold it."""
    sas = _sas(console, "rla")
    asked = {"kind": "sas", "account": ACCOUNT, "sas": "?" + sas}
    answer = console.ask("POST", SESSION, asked)
    assert (answer.json["role"], answer.json["kind"]) == ("operator", "sas")
    assert sas.partition("sig=")[2] not in answer.cookie
    fields = {"cookie": answer.cookie, CSRF: answer.json["csrf"]}
    put = {"messages": [{"body": "eA=="}]}
    assert console.ask("POST", f"{QUEUE}/messages", put, fields).status in {200, 201, 400}
    assert console.ask("GET", OVERVIEW, headers=fields).status == 200
    assert console.ask("DELETE", QUEUE, None, fields).code == "forbidden"
    assert console.ask("POST", f"{QUEUE}/purge", {}, fields).code == "forbidden"


def test_signature_that_reads_makes_a_viewer_until_it_ends(console: Console) -> None:
    """The session ends with the signature, if that is earlier."""
    until = "2199-01-01T00:00:00Z"
    asked = {"kind": "sas", "account": ACCOUNT, "sas": _sas(console, "rl", expiry=until)}
    assert console.ask("POST", SESSION, asked).json["role"] == "viewer"
    over = {**asked, "sas": _sas(console, "rl", expiry="2001-01-01")}
    assert console.ask("POST", SESSION, over).code == "unauthenticated"
    false = {**asked, "sas": _sas(console, "rl")[:-6] + "AAA%3D"}
    assert console.ask("POST", SESSION, false).code == "unauthenticated"
    here = {**asked, "sas": _sas(console, "rl", addresses="10.0.0.1")}
    assert console.ask("POST", SESSION, here).code == "forbidden"


def test_signature_on_one_queue_opens_no_other(console: Console) -> None:
    """Neither other queues nor the account."""
    terms = SasTerms(permission="raup", expiry="2199-01-01T00:00:00Z")
    sas = make_service_sas(ACCOUNT, b64decode(KEY), "orders", terms)
    asked = {"kind": "sas", "account": ACCOUNT, "sas": sas, "queue": "orders"}
    answer = console.ask("POST", SESSION, asked)
    assert answer.json["queue"] == "orders"
    fields = {"cookie": answer.cookie, CSRF: answer.json["csrf"]}
    assert console.ask("GET", QUEUE + "/messages", headers=fields).status == 200
    assert console.ask("GET", QUEUE + "2/messages", headers=fields).code == "forbidden"
    assert console.ask("GET", OVERVIEW, headers=fields).code == "forbidden"
    other = {**asked, "queue": "orders2"}
    assert console.ask("POST", SESSION, other).code == "unauthenticated"


def test_session_is_of_one_account(console: Console) -> None:
    """The cookie opens no other account."""
    fields = console.enter()
    assert console.ask("GET", "/v1/accounts/other/queues", headers=fields).code == "forbidden"


def test_session_ends_with_its_time_and_with_its_key(console: Console) -> None:
    """At the latest after twelve hours; and when the key it leans on is replaced, not another."""
    fields = console.enter()
    kept = console.accounts[ACCOUNT]
    console.accounts[ACCOUNT] = replace(kept, keys=(kept.keys[0], b"n" * 32))
    assert console.ask("GET", QUEUE, headers=fields).status == 200
    console.accounts[ACCOUNT] = replace(kept, keys=(b"n" * 32, kept.keys[1]))
    assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"
    console.accounts[ACCOUNT] = kept
    console.clock.advance(ms=MAX_SESSION_MS)
    assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"
    assert console.ask("GET", SESSION, headers=fields).json["signed_in"] is False


@pytest.mark.parametrize("value", ["", "x", "x.y", ".", "W10.W10", "é", "a" * 5_000, "bnVsbA.x"])
def test_cookie_that_was_not_made_here_opens_nothing(console: Console, value: str) -> None:
    """Whatever it holds."""
    fields = {"cookie": f"leasehold-console={value}"}
    assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"
    assert console.ask("GET", SESSION, headers=fields).json["signed_in"] is False


def test_cookie_that_was_changed_opens_nothing(console: Console) -> None:
    """A viewer cannot write another role into it."""
    cookie = console.enter("viewer")["cookie"]
    content, _, code = cookie.partition("=")[2].partition(".")
    text = b64decode(content + "=" * (-len(content) % 4), altchars=b"-_")
    forged = console.sessions.seal(
        console.sessions.by_key(ACCOUNT, SECOND_KEY, "operator", safe=True)  # type: ignore[arg-type]
    ).partition(".")[0]
    assert b"viewer" in text
    fields = {"cookie": f"leasehold-console={forged}.{code}"}
    assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"


@pytest.mark.parametrize(
    "forged", forged_sessions(ACCOUNT, _KNOWN, _SOON_MS), ids=lambda forged: forged.name
)
def test_session_cannot_be_made_of_what_users_know(console: Console, forged: Forged) -> None:
    """Neither by the holder of any key nor in any name, role or kind; it opens nothing."""
    fields = {"cookie": forged.cookie, CSRF: forged.csrf}
    assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"
    assert console.ask("POST", f"{QUEUE}/pause", {}, fields).code == "unauthenticated"
    assert console.ask("GET", OVERVIEW, headers=fields).code == "unauthenticated"
    assert console.ask("GET", SESSION, headers=fields).json["signed_in"] is False


def test_session_can_be_made_with_the_servers_secret(console: Console) -> None:
    """Control: what the tests forge has the right form, and lacks the secret alone."""
    key = key_of_sessions(ACCOUNT, SignInKind.KEY, b64decode(KEY), console.sealing_key)
    value, csrf = sealed_session(key, ACCOUNT, SignInKind.KEY, "operator", _SOON_MS)
    fields = {"cookie": f"leasehold-console={value}", CSRF: csrf}
    assert console.ask("POST", f"{QUEUE}/pause", {}, fields).status == 200


def _enter_by(console: Console, session: ConsoleSession) -> dict[str, str]:
    """Return the fields of a session that the server has sealed."""
    cookie = f"leasehold-console={console.sessions.seal(session)}"
    return {"cookie": cookie, CSRF: console.sessions.csrf_token(session)}


def _by_inspector(console: Console) -> ConsoleSession:
    return console.sessions.by_key(ACCOUNT, INSPECTOR_KEY, Role.OPERATOR, safe=True)


@pytest.mark.parametrize(
    "more",
    [
        {"role": Role.OPERATOR},
        {"who": "inspector's key 2"},
        {"who": "alice"},
        {"expires_at_ms": 2**45},
        {"kind": SignInKind.DEVELOPMENT},
        {"kind": SignInKind.SAS, "sas": (("sp", "r"),)},
    ],
    ids=str,
)
def test_seal_alone_is_not_believed(console: Console, more: dict[str, Any]) -> None:
    """At each use the session must say no more than its credential allows."""
    session = _by_inspector(console)
    assert console.ask("GET", QUEUE, headers=_enter_by(console, session)).status == 200
    fields = _enter_by(console, replace(session, **more))
    assert console.ask("GET", QUEUE, headers=fields).code in {"unauthenticated", "forbidden"}


def test_looking_signature_makes_no_operator(console: Console) -> None:
    """Not even under the server's own seal."""
    asked = {"kind": "sas", "account": ACCOUNT, "sas": _sas(console, "rl")}
    cookie = console.ask("POST", SESSION, asked).cookie
    session = console.sessions.open({"cookie": cookie}, https=False)
    assert session is not None
    fields = _enter_by(console, replace(session, role=Role.OPERATOR))
    assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"


def test_restored_store_ends_all_sessions(console: Console) -> None:
    """They hang on a secret of the store, of which a restore makes another one."""
    fields = console.enter()
    assert console.ask("GET", QUEUE, headers=fields).status == 200
    console.sealing_key = b"restored"
    assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"


def test_clock_set_back_ends_no_session(console: Console) -> None:
    """By some minutes, as a correction does."""
    fields = console.enter()
    console.clock.advance(ms=-10 * 60 * 1000)
    assert console.ask("GET", QUEUE, headers=fields).status == 200
    console.clock.advance(ms=-60 * 60 * 1000)
    assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"


def test_session_by_an_issuer_ends_with_the_issuer(console: Console) -> None:
    """Where its users do not sign in to the account any more, or another one is set."""
    session = console.sessions.by_right(ACCOUNT, SignInKind.OIDC, Role.OPERATOR, "alice")
    fields = _enter_by(console, session)
    assert console.ask("GET", QUEUE, headers=fields).status == 200
    for issuers in ({}, {ACCOUNT: "another issuer"}):
        console.issuers.clear()
        console.issuers.update(issuers)
        assert console.ask("GET", QUEUE, headers=fields).code == "unauthenticated"


def test_signing_out_forgets_the_cookie(console: Console) -> None:
    """With the token, as everything that changes something."""
    fields = console.enter()
    assert console.ask("DELETE", SESSION, None, {"cookie": fields["cookie"]}).code == "csrf-token"
    answer = console.ask("DELETE", SESSION, None, fields)
    assert answer.json["signed_in"] is False
    assert "leasehold-console=; Path=/; Max-Age=0;" in answer.headers["set-cookie"]


def test_development_account_is_one_click_on_this_machine(console: Console) -> None:
    """And on no other."""
    asked = {"kind": "development"}
    assert console.ask("POST", SESSION, asked).json["account"] == ACCOUNT
    assert console.ask("POST", SESSION, asked, client_ip="10.0.0.9").code == "forbidden"
    assert console.ask("GET", SESSION, client_ip="10.0.0.9").json["choices"] == ["key", "sas"]


def test_key_is_taken_over_https_or_on_this_machine(console: Console) -> None:
    """As everywhere in the native API."""
    assert console.ask("POST", SESSION, BY_KEY, client_ip="10.0.0.9").code == "forbidden"
    assert console.ask("POST", SESSION, BY_KEY, client_ip="10.0.0.9", https=True).status == 200


def test_form_of_another_site_signs_nobody_in(console: Console) -> None:
    """What a form can send without having asked is not taken."""
    fields = {"content-type": "text/plain"}
    assert console.ask("POST", SESSION, BY_KEY, fields).code == "invalid-request"


def test_wrong_keys_can_be_tried_seldom_only(console: Console) -> None:
    """After some failures an address has to wait, others do not; a right key counts for nothing."""
    wrong = {**BY_KEY, "key": "eA=="}
    for _ in range(FAILURES):
        assert console.ask("POST", SESSION, wrong).code == "unauthenticated"
    refused = console.ask("POST", SESSION, BY_KEY)
    assert (refused.status, refused.code) == (429, "too-many-sign-ins")
    assert 1 <= int(refused.headers["retry-after"]) <= FAILURE_S
    assert console.ask("POST", SESSION, BY_KEY, client_ip="127.0.0.2").status == 200
    console.clock.advance(s=FAILURE_S + 1)
    assert console.ask("POST", SESSION, BY_KEY).status == 200


def test_header_counts_before_a_cookie(console: Console) -> None:
    """Who sends a key needs no token, and a wrong key is not mended by a cookie."""
    key = {"authorization": f"Bearer {KEY}"}
    assert console.ask("POST", f"{QUEUE}/pause", {}, key).status == 200
    wrong = {**console.enter(), "authorization": "Bearer eA=="}
    assert console.ask("GET", QUEUE, headers=wrong).code == "unauthenticated"
