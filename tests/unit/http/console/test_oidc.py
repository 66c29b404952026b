"""Signing in to the console by an issuer, which is played by the test."""

from __future__ import annotations

import asyncio
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from proof.forged import digest, key_of_sessions

from leasehold.auth.types import BadToken
from leasehold.http.console import ConsoleDialect
from leasehold.http.console.history import History
from leasehold.http.console.oidc import Issuer, OidcSignIn, challenge_of
from leasehold.http.console.pages import StaticFiles
from leasehold.http.console.workers import Workers
from tests.patience import PATIENCE_S
from tests.unit.http.console.support import (
    ACCOUNT,
    KEY,
    SECOND_KEY,
    SESSION,
    Answer,
    Console,
)

ISSUER = "https://login.example.net"
START = f"/console/api/oidc/start?account={ACCOUNT}"
CALLBACK = "/console/api/oidc/callback"


class Token(NamedTuple):
    """What a token says."""

    object_id: str
    roles: frozenset[str]


class FakeIssuer:
    """An issuer with one code; its tokens are texts that it knows."""

    def __init__(self) -> None:
        self.roles = frozenset({"Storage Queue Data Contributor"})
        self.nonce: str | None = None
        self.challenge = ""
        self.is_there = True

    def fetch(self, url: str, form: bytes | None) -> Mapping[str, Any]:
        """Answer as an issuer does."""
        if not self.is_there:
            raise OSError("away")
        if form is None:
            assert url == f"{ISSUER}/.well-known/openid-configuration"
            return {
                "issuer": ISSUER,
                "authorization_endpoint": f"{ISSUER}/authorize",
                "token_endpoint": f"{ISSUER}/token",
            }
        sent = dict(parse_qsl(form.decode()))
        if challenge_of(sent["code_verifier"]) != self.challenge or sent["code"] != "right":
            raise ValueError("invalid_grant")
        assert sent["redirect_uri"] == f"http://queues.example.net{CALLBACK}"
        return {"id_token": "token"}

    async def verify(self, text: str, *, account: str, now_ms: int) -> Token:
        """Check a token."""
        if text != "token":
            raise BadToken
        return Token("alice", self.roles)

    def may_use(self, account: str) -> bool:
        """Tell whether an account may be used."""
        return account == ACCOUNT

    def nonce_of(self, text: str) -> object:
        """Return the nonce of a token."""
        return self.nonce


class World:
    """A console and its issuer."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.issuer = FakeIssuer()
        made = Issuer(ISSUER, "console", self.issuer, self.issuer.nonce_of)
        oidc = OidcSignIn(made, console.sessions, console.sign_in, console.clock, self.issuer.fetch)
        console.console = ConsoleDialect(
            services=console.services,
            clock=console.clock,
            files=StaticFiles(),
            sign_in=console.sign_in,
            live=console.live,
            history=History(console.sessions, console.clock),
            workers=Workers(console.sessions, console.clock),
            oidc=oidc,
        )

    def begin(self, role: str = "") -> tuple[str, str]:
        """Go to the issuer; return the state and the cookie."""
        answer = self.console.ask("GET", START + (f"&role={role}" if role else ""))
        assert answer.status == 302
        place = urlsplit(answer.headers["location"])
        asked = {name: value for name, [value] in parse_qs(place.query).items()}
        assert asked["code_challenge_method"] == "S256"
        assert (asked["response_type"], asked["client_id"]) == ("code", "console")
        self.issuer.nonce, self.issuer.challenge = asked["nonce"], asked["code_challenge"]
        set_cookie = answer.headers["set-cookie"]
        assert "HttpOnly; SameSite=Lax" in set_cookie
        return asked["state"], answer.cookie

    def back(self, state: str, cookie: str, code: str = "right") -> Answer:
        """Come back from the issuer, as a browser does that another site leads here."""
        path = f"{CALLBACK}?code={code}&state={state}"
        fields = {"cookie": cookie, "sec-fetch-site": "cross-site"}

        async def asked() -> Answer:
            # Answers have two fields of one name here.
            return await self.console.asked("GET", path, headers=fields)

        return self.console.runner.run(asyncio.wait_for(asked(), PATIENCE_S))


@pytest.fixture
def world(console: Console) -> World:
    """Give a console with an issuer."""
    return World(console)


def test_user_of_the_issuer_signs_in(world: World) -> None:
    """The role follows from the token, and the session says who it is."""
    answer = world.back(*world.begin())
    assert (answer.status, answer.headers["location"]) == (302, "/console/")
    shown = world.console.ask("GET", SESSION, headers={"cookie": answer.all_cookies()}).json
    assert (shown["who"], shown["role"], shown["kind"]) == ("alice", "operator", "oidc")


@pytest.mark.parametrize(
    ("roles", "asked", "expected"),
    [
        ({"Storage Queue Data Reader"}, "", "viewer"),
        ({"Storage Queue Data Contributor"}, "viewer", "viewer"),
    ],
)
def test_roles_limit_the_session(world: World, roles: set[str], asked: str, expected: str) -> None:
    """Who may only look is a viewer, and so is who asks for it."""
    world.issuer.roles = frozenset(roles)
    answer = world.back(*world.begin(asked))
    shown = world.console.ask("GET", SESSION, headers={"cookie": answer.all_cookies()}).json
    assert shown["role"] == expected


def test_failures_are_told_by_a_code(world: World) -> None:
    """Nobody is signed in by another's answer, an old one, a wrong code, or without a role."""

    def failure(answer: Answer) -> str:
        assert "leasehold-console=" not in answer.all_cookies()
        return answer.headers["location"].removeprefix("/console/#sign-in-failed=")

    state, cookie = world.begin()
    assert failure(world.back("other", cookie)) == "state"
    assert failure(world.back(state, "")) == "state"
    assert failure(world.back(state, cookie[:-2] + "xx")) == "state"
    assert failure(world.back(state, cookie, "wrong")) == "unreachable"
    world.issuer.nonce = "another"
    assert failure(world.back(state, cookie)) == "token"
    state, cookie = world.begin()
    world.issuer.roles = frozenset()
    assert failure(world.back(state, cookie)) == "no-role"
    world.console.clock.advance(s=600)
    assert failure(world.back(state, cookie)) == "state"


@pytest.mark.parametrize("secret", [b64decode(KEY), b64decode(SECOND_KEY), b""])
def test_state_cannot_be_made_of_what_users_know(world: World, secret: bytes) -> None:
    """Or a page could have a browser finish a sign-in that its user has never begun."""
    state, cookie = world.begin()
    content = cookie.partition("=")[2].partition(".")[0]
    purpose = f"leasehold console session\0key\0{ACCOUNT}"
    for key in (secret, digest(secret, purpose), key_of_sessions(ACCOUNT, "key", secret, secret)):
        code = urlsafe_b64encode(digest(key, content)).decode().rstrip("=")
        answer = world.back(state, f"leasehold-console-oidc={content}.{code}")
        assert answer.headers["location"] == "/console/#sign-in-failed=state"
    assert world.back(state, cookie).headers["location"] == "/console/"


def test_state_is_no_session(world: World) -> None:
    """What is sealed for one purpose opens nothing as another."""
    value = world.begin()[1].partition("=")[2]
    fields = {"cookie": f"leasehold-console={value}"}
    assert world.console.ask("GET", SESSION, headers=fields).json["signed_in"] is False


def test_sign_in_begins_only_where_it_can_end(world: World) -> None:
    """Unknown accounts, those without an issuer, and an issuer that is away are told at once."""
    ask = world.console.ask
    assert ask("GET", "/console/api/oidc/start?account=other").code == "forbidden"
    assert ask("GET", "/console/api/oidc/start").code == "forbidden"
    world.issuer.is_there = False
    assert ask("GET", START).code == "overloaded"
