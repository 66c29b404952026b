"""Sessions of the console: what a browser holds once its user has signed in.

A session is a cookie and nothing else: the server remembers none. The cookie says who signed in,
as what, and until when, under a code that only the server can make: with a key that is derived
from the one that the user has shown. So a session ends at the latest when that key is taken out
of the settings. It holds no secret that was shown: of a shared access signature it keeps the
fields, whose limits are those of the session, without the signature itself.

Sources: RFC 2104 (HMAC), RFC 5869 (one key for each purpose), RFC 6265bis (cookies); OWASP,
"Cross-Site Request Forgery Prevention", on tokens made with HMAC.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from leasehold.auth.authenticator import Authenticator, CredentialKind, Grant
from leasehold.auth.roles import INSPECTOR_OPERATIONS
from leasehold.auth.sas import FindPolicy, check_conditions, parse_sas
from leasehold.auth.types import (
    Account,
    BadToken,
    CsrfTokenMissing,
    MalformedCredentials,
    NoCredentials,
    NotAllowed,
    Operation,
    Pairs,
    PermissionMissing,
    SignedRequest,
    Target,
)

COOKIE: Final = "leasehold-console"
SECURE_COOKIE: Final = "__Host-" + COOKIE
"""Over https: a browser takes it from no other host, not even from one under the same domain."""
CSRF_HEADER: Final = "x-leasehold-csrf"
MAX_SESSION_MS: Final = 12 * 3600 * 1000
"""Longest life of a session."""

_MAX_CHARS: Final = 3_000
"""Browsers keep 4,096 bytes of one cookie, and a header has a limit, too."""
_LOOKING: Final = frozenset({"GET", "HEAD"})
_SIGNATURE: Final = "sig"
_LOOKS: Final = frozenset("rl")
"""Letters of signatures that change nothing."""
_OVER: Final = "The session of the console is over. Sign in again."


class Role(StrEnum):
    """What somebody who signed in may do."""

    VIEWER = "viewer"
    """Look at everything, and change nothing."""
    OPERATOR = "operator"


class SignInKind(StrEnum):
    """What was shown to sign in."""

    DEVELOPMENT = "development"
    KEY = "key"
    INSPECTOR = "inspector"
    SAS = "sas"
    OIDC = "oidc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSession:
    """Who has signed in, as what, and until when. It holds no secrets."""

    account: str
    kind: SignInKind
    role: Role
    who: str
    """For people, and for the event log."""
    key_number: int
    """Which key the session stands and falls with, of the account's or of the inspector's."""
    expires_at_ms: int
    sas: Pairs = ()
    """Fields of a shared access signature, without the signature."""
    queue: str | None = None
    """The only queue that the signature is on; None for one on the account, and without one."""
    nonce: str = ""
    """Makes each session another one."""


class ConsoleSessions:
    """Begins sessions, and lets requests pass that come with one.

    Args:
        authenticator: Knows keys and signatures.
        accounts: Those that can be signed in to; read at each request.
        find_policy: Looks a stored policy up.
        now_ms: Tells the time that signatures go by, Unix milliseconds.
        inspectors: Keys by account that read and change nothing; read at each request, too.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        accounts: Mapping[str, Account],
        find_policy: FindPolicy,
        now_ms: Callable[[], int],
        inspectors: Mapping[str, tuple[bytes, ...]] | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._accounts = accounts
        self._find_policy = find_policy
        self._now_ms = now_ms
        self._inspectors = inspectors or {}

    # --- signing in --------------------------------------------------------------------------

    def by_key(self, account: str, key: str, role: Role, *, safe: bool) -> ConsoleSession:
        """Begin a session for who knows a key, an account's or an inspector's.

        Args:
            account: Name of the account.
            key: In base64.
            role: What is asked for; with an inspector's key it is to look.
            safe: See :meth:`~leasehold.auth.authenticator.Authenticator.check_key`.

        Raises:
            AuthError: As there.
        """
        target = Target(account=account, operation=Operation.LIST_QUEUES)
        grant = self._authenticator.check_key(key, target, safe=safe)
        assert grant.key_number is not None
        if grant.kind is CredentialKind.INSPECTOR_KEY:
            who = f"inspector's key {grant.key_number}"
            return self._new(account, SignInKind.INSPECTOR, Role.VIEWER, who, grant.key_number)
        return self._new(account, SignInKind.KEY, role, f"key {grant.key_number}", grant.key_number)

    def by_right(self, account: str, kind: SignInKind, role: Role, who: str) -> ConsoleSession:
        """Begin a session for whom the caller has found to have the right.

        It stands and falls with the first key of the account.

        Raises:
            NotAllowed: There is no such account.
        """
        if account not in self._accounts:
            raise NotAllowed("There is no such account, or it may not be used.")
        return self._new(account, kind, role, who, 1)

    def by_sas(
        self, account: str, queue: str | None, request: SignedRequest, role: Role
    ) -> ConsoleSession:
        """Begin a session for who has a shared access signature.

        Args:
            account: Name of the account.
            queue: Name of the queue that it is on; None for a signature on the account.
            request: A request whose query is the signature.
            role: What is asked for; what the signature allows is a limit in any case.

        Raises:
            AuthError: It is not genuine, not in force, or no good from here.
        """
        target = Target(account=account, operation=Operation.LIST_QUEUES, queue=queue)
        now_ms = self._now_ms()
        sas, grant = self._authenticator.check_sas_itself(request, target, now_ms=now_ms)
        assert grant.key_number is not None
        if sas.letters is not None and _LOOKS.issuperset(sas.letters):
            role = Role.VIEWER
        who = f"{sas.kind} with key {grant.key_number}"
        if sas.policy_id is not None:
            who += f" (policy {sas.policy_id})"
        if grant.object_id is not None:
            who = grant.object_id
        fields = tuple((name, value) for name, value in sas.values.items() if name != _SIGNATURE)
        if grant.kind is CredentialKind.ACCOUNT_SAS:
            queue = None
        return self._new(
            account,
            SignInKind.SAS,
            role,
            who,
            grant.key_number,
            fields,
            queue,
            sas.expires_at_ms or now_ms + MAX_SESSION_MS,
        )

    def _new(  # noqa: PLR0913, PLR0917 - each is a fact of its own
        self,
        account: str,
        kind: SignInKind,
        role: Role,
        who: str,
        key_number: int,
        sas: Pairs = (),
        queue: str | None = None,
        until_ms: int | None = None,
    ) -> ConsoleSession:
        longest_ms = self._now_ms() + MAX_SESSION_MS
        return ConsoleSession(
            account=account,
            kind=kind,
            role=role,
            who=who,
            key_number=key_number,
            expires_at_ms=longest_ms if until_ms is None else min(longest_ms, until_ms),
            sas=sas,
            queue=queue,
            nonce=secrets.token_urlsafe(12),
        )

    # --- cookies -----------------------------------------------------------------------------

    def seal(self, session: ConsoleSession) -> str:
        """Return the value of a session's cookie.

        Raises:
            MalformedCredentials: It would be longer than browsers keep.
        """
        key = self._key_of(session.account, session.kind, session.key_number)
        assert key is not None
        text = json.dumps(
            [
                *(session.account, session.kind, session.role, session.who, session.key_number),
                *(session.expires_at_ms, session.sas, session.queue, session.nonce),
            ],
            separators=(",", ":"),
        )
        value = seal(text, key)
        if len(value) > _MAX_CHARS:
            raise MalformedCredentials("The signature has more fields than a session can keep.")
        return value

    def open(self, headers: Mapping[str, str], *, https: bool) -> ConsoleSession | None:
        """Return the session of a request, whose limits are not looked at; None without a cookie.

        Raises:
            BadToken: It is over, or none of this server's.
        """
        value = cookie_of(headers, SECURE_COOKIE if https else COOKIE)
        if value is None:
            return None
        session = _read(unsealed(value))
        key = self._key_of(session.account, session.kind, session.key_number)
        if key is None or not is_sealed_with(value, key):
            raise BadToken(_OVER)
        if self._now_ms() >= session.expires_at_ms:
            raise BadToken(_OVER)
        return session

    def csrf_token(self, session: ConsoleSession) -> str:
        """Return what a page must send along to change something; no other page can know it."""
        key = self._key_of(session.account, session.kind, session.key_number)
        assert key is not None
        text = f"csrf\0{session.nonce}\0{session.who}\0{session.expires_at_ms}"
        return _base64(hmac.digest(key, text.encode(), hashlib.sha256))

    def key_of_account(self, account: str) -> bytes | None:
        """Return the key for what else is sealed for an account; None if there is no such one."""
        return self._key_of(account, SignInKind.KEY, 1)

    def _key_of(self, account: str, kind: SignInKind, number: int) -> bytes | None:
        found = self._accounts.get(account)
        keys: tuple[bytes, ...] = () if found is None else found.keys
        if kind is SignInKind.INSPECTOR:
            keys = self._inspectors.get(account, ()) if found is not None else ()
        if not 1 <= number <= len(keys) or not keys[number - 1]:
            return None
        text = f"leasehold console session\0{kind}\0{account}".encode()
        return hmac.digest(keys[number - 1], text, hashlib.sha256)

    # --- requests ----------------------------------------------------------------------------

    def check_csrf(self, request: SignedRequest, session: ConsoleSession) -> None:
        """Refuse a request that changes something and does not come from the console's page.

        Raises:
            CsrfTokenMissing: It is one.
        """
        if request.method in _LOOKING:
            return
        sent = request.headers.get(CSRF_HEADER, "").encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(self.csrf_token(session).encode("ascii"), sent):
            raise CsrfTokenMissing

    def check(self, request: SignedRequest, target: Target) -> Grant:
        """Let a request with a session's cookie pass.

        Args:
            request: As it arrived; the caller knows that no other site's page has sent it.
            target: What it wants.

        Raises:
            AuthError: It may not pass; each subclass says why.
        """
        session = self.open(request.headers, https=request.https)
        if session is None:
            raise NoCredentials
        self.check_csrf(request, session)
        if target.account != session.account:
            raise NotAllowed("The session of the console is one of another account.")
        if session.role is Role.VIEWER and target.operation not in INSPECTOR_OPERATIONS:
            raise PermissionMissing("A viewer looks, and changes nothing.")
        if session.sas:
            if session.queue is not None and target.queue != session.queue:
                raise NotAllowed
            sas = parse_sas((*session.sas, (_SIGNATURE, "-")))
            check_conditions(sas, request, target, self._find_policy, now_ms=self._now_ms())
        return Grant(
            kind=CredentialKind.CONSOLE_SESSION,
            account=session.account,
            key_number=session.key_number,
            object_id=session.who,
        )


def has_session(headers: Mapping[str, str]) -> bool:
    """Tell whether a request may carry a session of the console."""
    return COOKIE in headers.get("cookie", "")


def cookie_of(headers: Mapping[str, str], name: str) -> str | None:
    """Return the value of a cookie; None if the request has none of this name."""
    # A comma is where the values of a repeated field were joined.
    for part in headers.get("cookie", "").replace(",", ";").split(";"):
        found, _, value = part.strip().partition("=")
        if found == name:
            return value
    return None


# --- seals -------------------------------------------------------------------------------------
#
# A text that anybody can read and only the server can write.


def seal(text: str, key: bytes) -> str:
    """Return a text with the code that proves where it comes from, fit for a cookie."""
    content = _base64(text.encode())
    return f"{content}.{_base64(hmac.digest(key, content.encode('ascii'), hashlib.sha256))}"


def unsealed(value: str) -> str:
    """Return the text in *value*, which is not trusted yet.

    Raises:
        BadToken: It has not the form.
    """
    content, dot, _ = value.partition(".")
    if not dot or not value.isascii() or len(value) > _MAX_CHARS:
        raise BadToken(_OVER)
    try:
        return urlsafe_b64decode(content + "=" * (-len(content) % 4)).decode()
    except (binascii.Error, ValueError):
        raise BadToken(_OVER) from None


def is_sealed_with(value: str, key: bytes) -> bool:
    """Tell whether it was :func:`seal` that made *value*, with this key."""
    content, _, code = value.partition(".")
    expected = _base64(hmac.digest(key, content.encode("ascii"), hashlib.sha256))
    return hmac.compare_digest(expected.encode("ascii"), code.encode("ascii"))


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).decode("ascii").rstrip("=")


def _read(text: str) -> ConsoleSession:
    """Return what a cookie says; of one that was not sealed by the server it may be anything."""
    try:
        found: Any = json.loads(text)
        account, kind, role, who, key_number, expires_at_ms, sas, queue, nonce = found
        return ConsoleSession(
            account=str(account),
            kind=SignInKind(kind),
            role=Role(role),
            who=str(who),
            key_number=int(key_number),
            expires_at_ms=int(expires_at_ms),
            sas=tuple((str(name), str(value)) for name, value in sas),
            queue=None if queue is None else str(queue),
            nonce=str(nonce),
        )
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise BadToken(_OVER) from None
