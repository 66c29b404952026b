"""What the holder of a credential can make of it in the hope that the server believes it.

Each sealed or signed thing that the server takes back is made here with the secrets that its
users know: in the form of today, and in that of 0.1.0, whose sessions were sealed with a key that
was derived from the user's own. None may open anything that the holder's credential does not open.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from leasehold.auth.console import COOKIE, CSRF_HEADER, SECURE_COOKIE, SignInKind
from leasehold.auth.delegation import (
    DelegationRequest,
    UserDelegationKey,
    issue_user_delegation_key,
)
from leasehold.auth.sas import SasTerms, make_account_sas, make_service_sas
from leasehold.auth.types import Account
from proof.rights import (
    ACCOUNT_LETTERS,
    QUEUE,
    QUEUE_LETTERS,
    VERSION,
    Credential,
    Holder,
    by_user,
    in_query,
    nothing,
    with_headers,
)

_SESSION_MS: Final = 6 * 3600 * 1000
_NONCE: Final = "n" * 16
_NAMES: Final = {
    SignInKind.DEVELOPMENT: "development",
    SignInKind.KEY: "key 1",
    SignInKind.INSPECTOR: "inspector's key 1",
    SignInKind.SAS: "account with key 1",
    SignInKind.OIDC: "alice",
}
"""What the server itself calls them, by kind."""


class Forged(NamedTuple):
    """A session of the console that no server has begun."""

    name: str
    cookie: str
    csrf: str


def forged_sessions(
    account: str,
    known: Mapping[str, bytes],
    expires_at_ms: int,
    *,
    https: bool = False,
) -> list[Forged]:
    """Return sessions made with what users know, in every kind and role.

    Args:
        account: Name of the account that they are for.
        known: Secrets, by the name of their holder.
        expires_at_ms: Their end, Unix milliseconds.
        https: Whether they are for a server behind https.
    """
    cookie = SECURE_COOKIE if https else COOKIE
    sessions = []
    for (holder, secret), kind in itertools.product(known.items(), SignInKind):
        for form, key in _sealing_keys(account, kind, secret):
            for role in ("viewer", "operator"):
                name = f"{kind} as {role} by {holder}, {form}"
                value, csrf = sealed_session(key, account, kind, role, expires_at_ms)
                sessions.append(Forged(name, f"{cookie}={value}", csrf))
    return sessions


def _sealing_keys(account: str, kind: str, secret: bytes) -> Iterator[tuple[str, bytes]]:
    yield "as 0.1.0 did", digest(secret, f"leasehold console session\0{kind}\0{account}")
    yield "with the secret itself", secret
    yield "without the server's secret", key_of_sessions(account, kind, secret, b"")
    yield "with it in place of the server's", key_of_sessions(account, kind, secret, secret)


def key_of_sessions(account: str, kind: str, credential: bytes, sealing_key: bytes) -> bytes:
    """Return the key that seals sessions of a credential, given the server's secret."""
    secret = hmac.digest(sealing_key, credential, hashlib.sha256)
    return digest(secret, f"leasehold console session\0{kind}\0{account}")


def sealed_session(
    key: bytes, account: str, kind: SignInKind, role: str, expires_at_ms: int
) -> tuple[str, str]:
    """Return the value of a session's cookie, and its CSRF token, sealed with a key."""
    who = _NAMES[kind]
    sas = [["sv", "2026-10-06"], ["ss", "q"], ["srt", "sco"], ["sp", "rwdlacup"]]
    fields = sas if kind is SignInKind.SAS else []
    session = [account, kind, role, who, 1, expires_at_ms, fields, None, _NONCE]
    content = _base64(json.dumps(session, separators=(",", ":")).encode())
    code = _base64(digest(key, content))
    return f"{content}.{code}", _base64(digest(key, f"csrf\0{_NONCE}\0{who}\0{expires_at_ms}"))


def digest(key: bytes, text: str) -> bytes:
    """Return the code of a text under a key, as sessions have it (HMAC with SHA-256)."""
    return hmac.digest(key, text.encode(), hashlib.sha256)


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).decode("ascii").rstrip("=")


# --- as credentials of the table of rights ------------------------------------------------------


def forged_credentials(holder: Holder, receipt: str, now_ms: int) -> list[Credential]:
    """Return what holders of lesser credentials make themselves; none of it opens anything.

    Args:
        holder: The account.
        receipt: One that a worker was given.
        now_ms: The time, Unix milliseconds.
    """
    name = holder.name
    first, inspector = b64decode(holder.keys[0]), b64decode(holder.inspector)
    terms = SasTerms(permission=QUEUE_LETTERS, expiry="2099-01-01T00:00:00Z")
    signature = make_account_sas(name, first, terms).rpartition("sig=")[2]
    known = {
        "a stranger": b"",
        "the holder of an inspector key": inspector,
        "the holder of an account key": first,
        "the holder of an account key, in base64": holder.keys[0].encode(),
        "the holder of a signature": unquote(signature).encode(),
        "the holder of another account's key": b64decode(holder.other[1]),
        "the holder of an access key": holder.access_key[1].encode(),
        "a worker with a receipt": receipt.encode(),
    }
    sessions = forged_sessions(name, known, now_ms + _SESSION_MS, https=True)
    shown = [
        Credential(
            f"forged console-session, {session.name}",
            with_headers(**{"cookie": session.cookie, CSRF_HEADER: session.csrf}),
            nothing,
            ("native",),
        )
        for session in sessions
    ]
    everything = SasTerms(permission=ACCOUNT_LETTERS, expiry="2099-01-01T00:00:00Z")
    for maker, secret in known.items():
        if secret != first:
            shown.append(
                Credential(
                    f"forged account-signature, {maker}",
                    in_query(make_account_sas(name, secret, everything)),
                    nothing,
                )
            )
            shown.append(
                Credential(
                    f"forged queue-signature, {maker}",
                    in_query(make_service_sas(name, secret, QUEUE, terms)),
                    nothing,
                )
            )
        own_key = _own_delegation_key(name, secret, now_ms)
        shown.append(
            Credential(
                f"forged delegation-key, {maker}",
                in_query(by_user(name, own_key)(QUEUE, terms)),
                nothing,
            )
        )
    return shown


def _own_delegation_key(name: str, secret: bytes, now_ms: int) -> UserDelegationKey:
    """Make a delegation key for any user, as only the server can."""
    account = Account(name=name, keys=(secret,), sealing_key=lambda: secret)
    request = DelegationRequest(
        object_id="user",
        tenant_id="directory",
        version=VERSION,
        expires_at_ms=now_ms + 2 * _SESSION_MS,
    )
    return issue_user_delegation_key(account, request, now_ms=now_ms)
