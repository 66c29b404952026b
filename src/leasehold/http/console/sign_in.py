"""Signing in to the console, and out of it again."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from leasehold import __version__
from leasehold.auth.authenticator import is_signed
from leasehold.auth.console import (
    COOKIE,
    SECURE_COOKIE,
    ConsoleSession,
    ConsoleSessions,
    Role,
    SignInKind,
)
from leasehold.auth.types import AuthError, NotAllowed, SignedRequest
from leasehold.clock import Clock
from leasehold.http.native.call import Call, read_body, read_query
from leasehold.http.native.dialect import cookie_request, is_loopback
from leasehold.http.native.errors import Refused, invalid, problem
from leasehold.http.requests import Header, Response

FAILURES: Final = 10
"""So many attempts to sign in may fail at once, from one address."""
FAILURE_S: Final = 6.0
"""Seconds after which one of them counts no more."""
_ADDRESSES: Final = 1_024
_JSON: Final = "application/json"
_VERSION: Final = "2026-10-06"
"""Rules by which a signature is read."""


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What is sent to sign in."""

    kind: SignInKind
    account: str | None = None
    key: str | None = None
    sas: str | None = None
    queue: str | None = None
    role: Role = Role.OPERATOR


_READ: Final = msgspec.json.Decoder(_Asked)


class Failures:
    """Counts attempts to sign in that have failed, by address, and bounds them.

    Args:
        clock: Its monotonic seconds make old failures count no more.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: dict[str, float] = {}
        """By address, when its last failure counts no more. Each adds to what is left."""

    def wait_s(self, address: str) -> int:
        """Return how long an address has to wait until it may try again, 0 for not at all."""
        left_s = self._until_s.get(address, 0.0) - self._clock.monotonic_s()
        over_s = left_s - (FAILURES - 1) * FAILURE_S
        return max(0, math.ceil(over_s))

    def note(self, address: str) -> None:
        """Note that an attempt has failed."""
        now_s = self._clock.monotonic_s()
        until_s = max(now_s, self._until_s.pop(address, now_s))
        if len(self._until_s) >= _ADDRESSES:
            del self._until_s[next(iter(self._until_s))]
        self._until_s[address] = until_s + FAILURE_S


class SignIn:
    """Begins and ends sessions.

    Args:
        sessions: Makes them.
        clock: The system's.
        development: The account whose key is public; None if it is off.
        exposed: Whether that may be used from other machines too.
        by_issuer: Whether an issuer is configured to sign in by.
    """

    def __init__(
        self,
        sessions: ConsoleSessions,
        clock: Clock,
        development: str | None = None,
        *,
        exposed: bool = False,
        by_issuer: bool = False,
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._development = development
        self._exposed = exposed
        self._by_issuer = by_issuer
        self._failures = Failures(clock)

    async def show(self, call: Call) -> Response:
        """Say who is signed in, and how one can."""
        request = call.request
        try:
            session = self._sessions.open(request.headers, https=request.https)
        except AuthError:
            session = None
        return self._show(call, session)

    async def begin(self, call: Call) -> Response:
        """Sign in."""
        request = call.request
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            # Another site's form cannot send it without having asked first.
            raise invalid(None, f"The content type must be {_JSON}.")
        asked = read_body(_READ, call)
        wait_s = self._failures.wait_s(request.client_ip)
        if wait_s:
            raise Refused(problem("too-many-sign-ins", retry_after_s=wait_s))
        try:
            session = self._session(call, asked)
        except AuthError:
            self._failures.note(request.client_ip)
            raise
        return self._show(call, session, self.cookie(call, session))

    async def end(self, call: Call) -> Response:
        """Sign out: the browser forgets the session."""
        request = call.request
        try:
            session = self._sessions.open(request.headers, https=request.https)
        except AuthError:
            session = None
        if session is not None:
            self._sessions.check_csrf(cookie_request(call), session)
        return self._show(call, None, set_cookie(self._name(call), "", "/", 0, call))

    def cookie(self, call: Call, session: ConsoleSession) -> Header:
        """Return the field that has a browser keep a session."""
        left_s = max(0, session.expires_at_ms - self._clock.now_ms()) // 1000
        return set_cookie(self._name(call), self._sessions.seal(session), "/", left_s, call)

    def _session(self, call: Call, asked: _Asked) -> ConsoleSession:
        request = call.request
        safe = request.https or is_loopback(request.client_ip)
        if asked.kind is SignInKind.DEVELOPMENT:
            account = self._development
            if account is None or not self._offers_development(call):
                raise NotAllowed("The development account is not available.")
            return self._sessions.by_right(account, asked.kind, asked.role, "development")
        if asked.account is None:
            raise invalid("$.account", "The member `account` of `$` is missing.")
        if asked.kind is SignInKind.KEY and asked.key is not None:
            return self._sessions.by_key(asked.account, asked.key, asked.role, safe=safe)
        if asked.kind is SignInKind.SAS and asked.sas is not None:
            query = read_query(asked.sas.strip().removeprefix("?"))
            if not is_signed(query):
                raise invalid(
                    "$.sas", "`sas` has no `sig`, so it is not a shared access signature."
                )
            signed = SignedRequest(
                method="GET",
                path=f"/{asked.account}",
                query=query,
                headers={},
                version=_VERSION,
                client_ip=request.client_ip,
                https=request.https,
            )
            return self._sessions.by_sas(asked.account, asked.queue, signed, asked.role)
        raise invalid("$.kind", "`kind` is `development`, `key` with `key`, or `sas` with `sas`.")

    def _offers_development(self, call: Call) -> bool:
        is_near = self._exposed or is_loopback(call.request.client_ip)
        return self._development is not None and is_near

    def _name(self, call: Call) -> str:
        return SECURE_COOKIE if call.request.https else COOKIE

    def _show(self, call: Call, session: ConsoleSession | None, *headers: Header) -> Response:
        local = self._offers_development(call)
        choices = [SignInKind.DEVELOPMENT] if local else []
        choices += [SignInKind.KEY, SignInKind.SAS]
        choices += [SignInKind.OIDC] if self._by_issuer else []
        shown: dict[str, object] = {
            "signed_in": session is not None,
            "version": __version__,
            "now_ms": self._clock.now_ms(),
            "choices": choices,
            "accounts": [self._development] if local else [],
        }
        if session is not None:
            shown |= {
                "account": session.account,
                "role": session.role,
                "who": session.who,
                "kind": session.kind,
                "expires_at_ms": session.expires_at_ms,
                "csrf": self._sessions.csrf_token(session),
                "queue": session.queue,
            }
        return call.reply(shown, 200, *headers)


def set_cookie(  # noqa: PLR0913, PLR0917 - what a cookie is made of
    name: str, value: str, path: str, life_s: int, call: Call, same_site: str = "Strict"
) -> Header:
    """Return the field that sets a cookie, which no script can read.

    Args:
        name: Of the cookie.
        value: Of the cookie.
        path: Below which a browser sends it.
        life_s: Seconds that it is kept, 0 to remove it.
        call: The request that is answered.
        same_site: ``Strict``, or ``Lax`` for what a page of another site may lead to.
    """
    secure = "; Secure" if call.request.https else ""
    text = f"{name}={value}; Path={path}; Max-Age={life_s}; HttpOnly; SameSite={same_site}{secure}"
    return (b"set-cookie", text.encode("ascii"))
