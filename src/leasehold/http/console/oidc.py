"""Signing in to the console by an issuer: OpenID Connect's code flow, with PKCE.

What has to be known when the browser comes back is in a cookie of ten minutes, sealed like a
session. It is one that a browser sends along when another site leads to us (``SameSite=Lax``),
since that is what the issuer does; the session's own is not.

Sources: OpenID Connect Core 1.0, section 3.1; RFC 7636 (PKCE); RFC 9700 (best practice).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode

import structlog

from leasehold.auth.console import (
    ConsoleSession,
    ConsoleSessions,
    Role,
    SignInKind,
    cookie_of,
    is_sealed_with,
    seal,
    unsealed,
)
from leasehold.auth.roles import INSPECTOR_OPERATIONS, operations_of
from leasehold.auth.types import AuthError, BadToken, NotAllowed, Operation
from leasehold.clock import Clock
from leasehold.http.console.sign_in import SignIn, set_cookie
from leasehold.http.native.call import Call
from leasehold.http.native.errors import Refused, invalid, problem
from leasehold.http.requests import Response

_COOKIE: Final = "leasehold-console-oidc"
_SECURE_COOKIE: Final = "__Host-" + _COOKIE
_LIFE_S: Final = 600
_TIMEOUT_S: Final = 10.0
_MAX_ANSWER_BYTES: Final = 1_048_576
_KNOWN_MS: Final = 3_600_000
"""For so long the issuer's own description is not fetched again."""
_HOME: Final = b"/console/"
_CALLBACK: Final = "/console/api/oidc/callback"
_OPERATES: Final = frozenset(
    {
        *(Operation.PUT_MESSAGE, Operation.UPDATE_MESSAGE, Operation.CLEAR_MESSAGES),
        *(Operation.SET_QUEUE_METADATA, Operation.DELETE_MESSAGE),
    }
)
"""Whoever may do all this is an operator."""

_log = structlog.get_logger(__name__)

Fetch = Callable[[str, bytes | None], Mapping[str, Any]]
"""Fetches JSON from an address, by POST of a form if there is one. Runs on a thread.

Raises OSError or ValueError.
"""


class Token(Protocol):
    """What a verified token says; see :class:`leasehold.auth.bearer.BearerToken`."""

    @property
    def object_id(self) -> str:
        """Whose it is."""
        ...

    @property
    def roles(self) -> frozenset[str]:
        """See :mod:`leasehold.auth.roles`."""
        ...


class Verifier(Protocol):
    """Checks tokens that the issuer has made for the console; see ``BearerVerifier``."""

    async def verify(self, text: str, *, account: str, now_ms: int) -> Token:
        """Check a token."""
        ...

    def may_use(self, account: str) -> bool:
        """Tell whether an account may be signed in to by tokens."""
        ...


class Issuer(NamedTuple):
    """Who is signed in by."""

    name: str
    """As in ``iss``; its description is at ``/.well-known/openid-configuration`` below it."""
    client_id: str
    verifier: Verifier
    nonce_of: Callable[[str], object]
    """Returns the nonce of a token that was verified."""


class _Begun(NamedTuple):
    """What is kept in the browser until it comes back."""

    account: str
    role: str
    state: str
    nonce: str
    verifier: str
    expires_at_ms: int


class _FailedError(Exception):
    """Nobody is signed in; the page says why, by a code."""


class OidcSignIn:
    """Sends browsers to the issuer, and takes them when they come back.

    Args:
        issuer: Who is signed in by.
        sessions: Makes sessions.
        sign_in: Makes their cookies.
        clock: The system's.
        fetch: Fetches from the issuer.
    """

    START: Final = frozenset({"account", "role"})
    CALLBACK: Final = frozenset(
        {
            *("code", "state", "error", "error_description", "error_uri", "iss"),
            *("scope", "session_state", "authuser", "prompt", "hd"),
        }
    )

    def __init__(
        self,
        issuer: Issuer,
        sessions: ConsoleSessions,
        sign_in: SignIn,
        clock: Clock,
        fetch: Fetch | None = None,
    ) -> None:
        self._issuer = issuer
        self._sessions = sessions
        self._sign_in = sign_in
        self._clock = clock
        self._fetch = fetch or fetch_json
        self._about: Mapping[str, Any] = {}
        self._about_until_ms = 0

    async def start(self, call: Call) -> Response:
        """Send a browser to the issuer."""
        account = call.params.get("account", "")
        key = self._sessions.key_of_sign_in(account)
        if key is None or not self._issuer.verifier.may_use(account):
            raise NotAllowed(
                "The account does not exist, or its users cannot sign in through an issuer."
            )
        try:
            role = Role(call.params.get("role") or Role.OPERATOR)
        except ValueError:
            raise invalid("role", "`role` is viewer or operator.") from None
        try:
            about = await self._description()
        except (OSError, ValueError) as error:
            _log.warning("console.issuer_unreachable", issuer=self._issuer.name, reason=str(error))
            raise Refused(
                problem("overloaded", "The issuer cannot be reached.", retry_after_s=5)
            ) from None
        begun = _Begun(
            account,
            role,
            *(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48)),
            self._clock.now_ms() + _LIFE_S * 1000,
        )
        asked = {
            "response_type": "code",
            "client_id": self._issuer.client_id,
            "redirect_uri": _callback_of(call),
            "scope": "openid profile",
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": challenge_of(begun.verifier),
            "code_challenge_method": "S256",
        }
        place = str(about["authorization_endpoint"])
        to = f"{place}{'&' if '?' in place else '?'}{urlencode(asked)}"
        cookie = set_cookie(_name(call), seal(json.dumps(begun), key), "/", _LIFE_S, call, "Lax")
        return Response(
            302, [(b"location", to.encode("ascii")), (b"cache-control", b"no-store"), cookie]
        )

    async def callback(self, call: Call) -> Response:
        """Sign in who comes back from the issuer; or say in the page's address why not."""
        forget = set_cookie(_name(call), "", "/", 0, call, "Lax")
        headers = [(b"cache-control", b"no-store"), forget]
        try:
            session = await self._session(call)
        except _FailedError as failure:
            code = str(failure)
            _log.info("console.sign_in_failed", issuer=self._issuer.name, reason=code)
            place = _HOME + b"#sign-in-failed=" + code.encode("ascii")
            return Response(302, [(b"location", place), *headers])
        return Response(302, [(b"location", _HOME), self._sign_in.cookie(call, session), *headers])

    async def _session(self, call: Call) -> ConsoleSession:
        begun = self._begun(call)
        params = call.params
        state = params.get("state", "").encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(begun.state.encode(), state):
            raise _FailedError("state")
        if params.get("iss", self._issuer.name) != self._issuer.name:
            raise _FailedError("issuer")
        if "error" in params or "code" not in params:
            raise _FailedError("refused")
        try:
            text = await self._token(call, begun, params["code"])
        except (OSError, ValueError, KeyError):
            raise _FailedError("unreachable") from None
        verifier, now_ms = self._issuer.verifier, self._clock.now_ms()
        try:
            token = await verifier.verify(text, account=begun.account, now_ms=now_ms)
        except AuthError:
            raise _FailedError("token") from None
        nonce = self._issuer.nonce_of(text)
        if not isinstance(nonce, str) or not hmac.compare_digest(
            nonce.encode(), begun.nonce.encode()
        ):
            raise _FailedError("token")
        allowed = operations_of(token.roles)
        if not allowed >= INSPECTOR_OPERATIONS:
            raise _FailedError("no-role")
        role = Role(begun.role) if allowed >= _OPERATES else Role.VIEWER
        return self._sessions.by_right(begun.account, SignInKind.OIDC, role, token.object_id)

    def _begun(self, call: Call) -> _Begun:
        value = cookie_of(call.request.headers, _name(call))
        try:
            begun = _Begun(*json.loads(unsealed(value or "")))
            key = self._sessions.key_of_sign_in(str(begun.account))
            # Nothing it says counts before that.
            if key is None or value is None or not is_sealed_with(value, key):
                raise _FailedError("state")
        except (BadToken, ValueError, TypeError, RecursionError):
            raise _FailedError("state") from None
        if self._clock.now_ms() >= begun.expires_at_ms:
            raise _FailedError("state")
        return begun

    async def _token(self, call: Call, begun: _Begun, code: str) -> str:
        about = await self._description()
        form = urlencode(
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": _callback_of(call),
                "client_id": self._issuer.client_id,
                "code_verifier": begun.verifier,
            }
        ).encode("ascii")
        answer = await asyncio.to_thread(self._fetch, str(about["token_endpoint"]), form)
        return str(answer["id_token"])

    async def _description(self) -> Mapping[str, Any]:
        now_ms = self._clock.now_ms()
        if now_ms >= self._about_until_ms:
            place = self._issuer.name.rstrip("/") + "/.well-known/openid-configuration"
            about = await asyncio.to_thread(self._fetch, place, None)
            if about.get("issuer") != self._issuer.name:
                raise ValueError("the metadata are from another issuer")
            for name in ("authorization_endpoint", "token_endpoint"):
                if not str(about.get(name, "")).startswith(("https://", "http://")):
                    raise ValueError(f"the metadata have no {name}")
            self._about, self._about_until_ms = about, now_ms + _KNOWN_MS
        return self._about


def challenge_of(verifier: str) -> str:
    """Return what is sent first of a verifier that is sent later (RFC 7636, section 4.2)."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return urlsafe_b64encode(digest).decode("ascii").rstrip("=")


def fetch_json(url: str, form: bytes | None) -> Mapping[str, Any]:
    """Fetch JSON from an issuer; see ``Fetch``.

    Raises:
        OSError: It cannot be reached, or refuses.
        ValueError: What it says is no JSON object, or very long.
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError("the issuer's URL must begin with https://")
    request = urllib.request.Request(url, form, {"accept": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        content = answer.read(_MAX_ANSWER_BYTES + 1)
    if len(content) > _MAX_ANSWER_BYTES:
        raise ValueError("the response is too long")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("the response is not a JSON object")  # noqa: TRY004 - of JSON, as any other
    return found


def _name(call: Call) -> str:
    return _SECURE_COOKIE if call.request.https else _COOKIE


def _callback_of(call: Call) -> str:
    request = call.request
    return f"http{'s' if request.https else ''}://{request.headers.get('host', '')}{_CALLBACK}"
