"""Sessions of the console: what a browser holds once its user has signed in.

A session is a cookie and nothing else: the server remembers none. The cookie says who signed in,
as what, and until when, under a code that only the server can make: its key is derived from a
secret of the server, which no user has, and from the credential that was shown. So nobody can make
a session, and each ends at the latest when its credential is taken out of the settings. It holds
no secret that was shown: of a shared access signature it keeps the fields, whose limits are those
of the session, without the signature itself. At each use the session is compared again with what
its credential allows: the code alone is not believed.

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
from leasehold.auth.sas import FindPolicy, Sas, check_conditions, parse_sas
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
_CLOCK_STEP_MS: Final = 15 * 60 * 1000
"""A clock that is set back by no more than this ends no session."""

_MAX_CHARS: Final = 3_000
"""Browsers keep 4,096 bytes of one cookie, and a header has a limit, too."""
_LOOKING: Final = frozenset({"GET", "HEAD"})
_SIGNATURE: Final = "sig"
_LOOKS: Final = frozenset("rl")
"""Letters of signatures that change nothing."""
_OVER: Final = "The console session has ended. Sign in again."


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
        development: The account that is signed in to without a credential; None for none.
        issuers: By account, what identifies the issuer that its users sign in by.
    """

    def __init__(  # noqa: PLR0913 - each is a collaborator of its own
        self,
        authenticator: Authenticator,
        accounts: Mapping[str, Account],
        find_policy: FindPolicy,
        now_ms: Callable[[], int],
        inspectors: Mapping[str, tuple[bytes, ...]] | None = None,
        *,
        development: str | None = None,
        issuers: Mapping[str, str] | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._accounts = accounts
        self._find_policy = find_policy
        self._now_ms = now_ms
        self._inspectors = inspectors or {}
        self._development = development
        self._issuers = issuers or {}

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
            kind, role = SignInKind.INSPECTOR, Role.VIEWER
        else:
            kind = SignInKind.KEY
        who = _name_of_key(kind, grant.key_number)
        return self._new(account, kind, role, who, grant.key_number)

    def by_right(self, account: str, kind: SignInKind, role: Role, who: str) -> ConsoleSession:
        """Begin a session for a user whose right the caller has checked.

        It stands and falls with the first key of the account.

        Raises:
            NotAllowed: There is no such account.
        """
        if account not in self._accounts:
            raise NotAllowed("The account does not exist or may not be used.")
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
        if _only_looks(sas):
            role = Role.VIEWER
        who = _name_of_signature(sas, grant.key_number)
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
        key = self._key_of(session)
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
            BadToken: It is over, none of this server's, or says more than its credential allows.
        """
        value = cookie_of(headers, SECURE_COOKIE if https else COOKIE)
        if value is None:
            return None
        session = _read(unsealed(value))
        key = self._key_of(session)
        if key is None or not is_sealed_with(value, key) or not self._is_allowed(session):
            raise BadToken(_OVER)
        return session

    def _is_allowed(self, session: ConsoleSession) -> bool:
        """Tell whether a session says nothing that its credential does not allow now.

        The fields of a signature are checked by :meth:`check`, for each operation.
        """
        left_ms = session.expires_at_ms - self._now_ms()
        if not 0 < left_ms <= MAX_SESSION_MS + _CLOCK_STEP_MS:
            return False
        if session.kind is SignInKind.OIDC:
            return True  # the key is of the issuer, which decides on role and name when it signs in
        if session.kind is not SignInKind.SAS:
            may_have_role = session.kind is not SignInKind.INSPECTOR or session.role is Role.VIEWER
            return may_have_role and session.who == _name_of_key(session.kind, session.key_number)
        sas = _signature_of(session)
        return session.who == _name_of_signature(sas, session.key_number) and not (
            session.role is Role.OPERATOR and _only_looks(sas)
        )

    def csrf_token(self, session: ConsoleSession) -> str:
        """Return what a page must send along to change something; no other page can know it."""
        key = self._key_of(session)
        assert key is not None
        text = f"csrf\0{session.nonce}\0{session.who}\0{session.expires_at_ms}"
        return _base64(hmac.digest(key, text.encode(), hashlib.sha256))

    def key_of_sign_in(self, account: str) -> bytes | None:
        """Return the key for the state of a sign-in by an issuer; None if it cannot be had."""
        return self._key(account, "sign-in", self._credential(account, SignInKind.OIDC, 1))

    def _key_of(self, session: ConsoleSession) -> bytes | None:
        """Return the key that seals a session; None if its credential is not there any more."""
        credential = self._credential(session.account, session.kind, session.key_number)
        return self._key(session.account, f"session\0{session.kind}", credential)

    def _key(self, account: str, purpose: str, credential: bytes | None) -> bytes | None:
        if credential is None:
            return None
        secret = hmac.digest(self._accounts[account].sealing_key(), credential, hashlib.sha256)
        text = f"leasehold console {purpose}\0{account}".encode()
        return hmac.digest(secret, text, hashlib.sha256)

    def _credential(self, account: str, kind: SignInKind, number: int) -> bytes | None:
        """Return what a session stands and falls with; None if there is no such credential."""
        known = self._accounts.get(account)
        if known is None:
            return None
        keys = self._inspectors.get(account, ()) if kind is SignInKind.INSPECTOR else known.keys
        if not 1 <= number <= len(keys) or not keys[number - 1]:
            return None
        if kind is SignInKind.DEVELOPMENT and account != self._development:
            return None
        if kind is SignInKind.OIDC:
            issuer = self._issuers.get(account)
            return None if issuer is None else issuer.encode() + b"\0" + keys[0]
        return keys[number - 1]

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
            raise NotAllowed("The console session belongs to another account.")
        if session.role is Role.VIEWER and target.operation not in INSPECTOR_OPERATIONS:
            raise PermissionMissing("A viewer has read-only access.")
        if session.sas:
            if session.queue is not None and target.queue != session.queue:
                raise NotAllowed
            check_conditions(
                _signature_of(session), request, target, self._find_policy, now_ms=self._now_ms()
            )
        return Grant(
            kind=CredentialKind.CONSOLE_SESSION,
            account=session.account,
            key_number=session.key_number,
            object_id=session.who,
        )


def _signature_of(session: ConsoleSession) -> Sas:
    """Return the signature that a session was begun with, whose code is not kept."""
    return parse_sas((*session.sas, (_SIGNATURE, "-")))


def _only_looks(sas: Sas) -> bool:
    """Tell whether a signature changes nothing; one with a policy shows that at each use."""
    return sas.letters is not None and _LOOKS.issuperset(sas.letters)


def _name_of_key(kind: SignInKind, number: int | None) -> str:
    """Return the name of a key's holder, for the event log."""
    if kind is SignInKind.DEVELOPMENT:
        return "development"
    return f"inspector's key {number}" if kind is SignInKind.INSPECTOR else f"key {number}"


def _name_of_signature(sas: Sas, number: int | None) -> str:
    """Return the name of a signature's holder, for the event log."""
    if sas.delegation is not None:
        return sas.delegation.object_id
    policy = "" if sas.policy_id is None else f" (policy {sas.policy_id})"
    return f"{sas.kind} with key {number}{policy}"


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
