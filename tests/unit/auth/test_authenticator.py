"""The authenticator: SharedKey requests, contradictions, accounts, secrets."""

from __future__ import annotations

import gc
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from leasehold.auth.authenticator import Authenticator, CredentialKind, Grant
from leasehold.auth.delegation import DelegationRequest, issue_user_delegation_key
from leasehold.auth.sas import SasTerms, make_account_sas, make_user_delegation_sas, parse_sas
from leasehold.auth.sharedkey import compute_signature, sign, string_to_sign
from leasehold.auth.types import (
    Account,
    AuthError,
    BadSignature,
    MalformedCredentials,
    NotAllowed,
    Operation,
    SignedRequest,
    UnknownAccount,
)
from tests.unit.auth.support import (
    ACCOUNT,
    ACCOUNTS,
    HOUR_MS,
    KEY,
    KEY_TEXT,
    NAME,
    NOON_MS,
    SECOND_KEY,
    dated,
    no_policies,
    query_of,
    request,
    signed,
    target,
)

_TERMS = SasTerms(permission="rwdlacup", expiry="2030-01-01")


def _check(
    arrived: SignedRequest, operation: Operation = Operation.PUT_MESSAGE, account: str = NAME
) -> Grant:
    authenticator = Authenticator(ACCOUNTS, no_policies)
    return authenticator.check(arrived, target(operation, account=account), now_ms=NOON_MS)


@pytest.mark.parametrize(
    ("lite", "kind"),
    [(False, CredentialKind.SHARED_KEY), (True, CredentialKind.SHARED_KEY_LITE)],
)
def test_grant_names_the_key(lite: bool, kind: CredentialKind) -> None:
    """The grant says in which form and with which key a request is signed."""
    authenticator = Authenticator(ACCOUNTS, no_policies)
    for number, key in ((1, KEY), (2, SECOND_KEY), (1, KEY)):
        arrived = signed(request(headers=dated()), key=key, lite=lite)
        grant = authenticator.check(arrived, target(), now_ms=NOON_MS)
        assert grant == Grant(kind=kind, account=NAME, key_number=number)


@pytest.mark.parametrize("operation", list(Operation))
def test_account_keys_open_everything_but_delegation(operation: Operation) -> None:
    """An account key may do everything, except ask for a user's key."""
    arrived = signed(request(headers=dated()))
    if operation is Operation.GET_USER_DELEGATION_KEY:
        with pytest.raises(NotAllowed):
            _check(arrived, operation)
    else:
        assert _check(arrived, operation)


def test_rotating_the_key() -> None:
    """A key taken away is refused from the next request on."""
    accounts = {NAME: ACCOUNT}
    authenticator = Authenticator(accounts, no_policies)
    arrived = signed(request(headers=dated()))
    assert authenticator.check(arrived, target(), now_ms=NOON_MS)
    accounts[NAME] = Account(name=NAME, keys=(SECOND_KEY,))
    with pytest.raises(BadSignature):
        authenticator.check(arrived, target(), now_ms=NOON_MS)


def test_header_and_signature_together() -> None:
    """A request signed in both ways is malformed, though each alone is genuine."""
    token = make_account_sas(NAME, KEY, _TERMS)
    arrived = signed(request(query=token, headers=dated()))
    with pytest.raises(MalformedCredentials):
        _check(arrived)


def test_unknown_account() -> None:
    """A request to an account that does not exist is refused as such, whoever signed it."""
    for key in (KEY, b"\0" * 64):
        arrived = signed(request(headers=dated()), account="nowhere", key=key)
        with pytest.raises(UnknownAccount):
            _check(arrived, account="nowhere")


def test_unknown_account_costs_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that does not exist is signed for as often as one that does."""
    signed_for: list[int] = []

    def counting(key: bytes, text: str) -> bytes:
        signed_for[-1] += 1
        return compute_signature(key, text)

    token = make_account_sas(NAME, b"wrong", _TERMS)
    monkeypatch.setattr("leasehold.auth.sharedkey.compute_signature", counting)
    monkeypatch.setattr("leasehold.auth.sas.compute_signature", counting)
    authenticator = Authenticator({"other": ACCOUNTS["other"]}, no_policies)
    header = {**dated(), "authorization": "SharedKey %s:AAAA"}
    for name in ("other", "nowhere"):
        in_header = {key: value.replace("%s", name) for key, value in header.items()}
        for arrived in (request(headers=in_header), request(query=token)):
            signed_for.append(0)
            with pytest.raises(AuthError):
                authenticator.check(arrived, target(account=name), now_ms=NOON_MS)
    assert signed_for == [1, 1, 1, 1]


def test_standard_library_is_enough() -> None:
    """Without bearer tokens nothing but the standard library is needed."""
    code = (
        "import sys; sys.modules['jwt'] = None; sys.modules['cryptography'] = None\n"
        "import leasehold.auth.authenticator, leasehold.auth.sas, leasehold.auth.delegation"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Secrets.


def _secrets() -> list[str]:
    """Return account keys in every spelling in which one could leak."""
    return [
        spelling
        for key in (KEY, SECOND_KEY)
        for spelling in (
            key.hex(),
            b64encode(key).decode(),
            repr(key)[2:-1][:40],
            str(list(key))[1:40],
        )
    ]


def _shown(value: object) -> str:
    return f"{value!r} {value!s} {value}"


def _wrongly_signed() -> Iterator[tuple[SignedRequest, str]]:
    """Yield requests with a wrong signature, and the signature that would be right."""
    asked = request(headers=dated())
    right = compute_signature(KEY, string_to_sign(asked, NAME)).decode()
    yield signed(asked, key=b"wrong"), right
    for make in (make_account_sas, _delegated):
        genuine = dict(query_of(make(NAME, KEY, _TERMS)))
        forged = tuple({**genuine, "sig": "AAAA"}.items())
        yield replace(request(), query=forged), genuine["sig"]


def _delegated(name: str, key: bytes, terms: SasTerms) -> str:
    wish = DelegationRequest(
        object_id="user", tenant_id="dir", version="2026-10-06", expires_at_ms=NOON_MS + HOUR_MS
    )
    issued = issue_user_delegation_key(Account(name=name, keys=(key,)), wish, now_ms=NOON_MS)
    return make_user_delegation_sas(name, issued, "q1", replace(terms, permission="raup"))


def test_refusals_show_no_secret() -> None:
    """Neither a key nor the signature that would have been right stands in a refusal."""
    for arrived, right in _wrongly_signed():
        with pytest.raises(BadSignature) as caught:
            _check(arrived)
        text = f"{_shown(caught.value)} {caught.value.detail}"
        assert right not in text
        assert [secret for secret in _secrets() if secret in text] == []
        assert caught.value.__cause__ is None


def _objects() -> dict[str, Callable[[], object]]:
    wish = DelegationRequest(
        object_id="user", tenant_id="dir", version="2026-10-06", expires_at_ms=NOON_MS + HOUR_MS
    )
    token = make_account_sas(NAME, KEY, _TERMS)
    authenticator = Authenticator(ACCOUNTS, no_policies)
    arrived = request(query=token)
    grant = authenticator.check(arrived, target(Operation.PEEK_MESSAGES), now_ms=NOON_MS)
    # What it remembers of the signature, with the key, is among what its module has made.
    kept = [each for each in gc.get_objects() if type(each).__module__ == Grant.__module__]
    assert any(getattr(each, "key", None) == KEY for each in kept)
    return {
        "account": lambda: ACCOUNT,
        "accounts": lambda: ACCOUNTS,
        "authenticator": lambda: authenticator,
        "grant": lambda: grant,
        "delegation key": lambda: issue_user_delegation_key(ACCOUNT, wish, now_ms=NOON_MS),
        "signature": lambda: parse_sas(query_of(token)),
        "what is remembered": lambda: kept,
    }


@pytest.mark.parametrize("what", list(_objects()))
def test_no_object_shows_a_secret(what: str) -> None:
    """Printing or logging any object of the package shows neither keys nor signatures."""
    text = _shown(_objects()[what]())
    genuine = dict(query_of(make_account_sas(NAME, KEY, _TERMS)))["sig"]
    wish = DelegationRequest(
        object_id="user", tenant_id="dir", version="2026-10-06", expires_at_ms=NOON_MS + HOUR_MS
    )
    value = issue_user_delegation_key(ACCOUNT, wish, now_ms=NOON_MS).value
    spellings = [genuine, KEY_TEXT, repr(value)[2:-1][:40], value.hex(), b64encode(value).decode()]
    assert [secret for secret in (*_secrets(), *spellings) if secret in text] == []


def test_signing_shows_only_the_signature() -> None:
    """The header made for a request holds the account's name and the signature alone."""
    header = sign(request(headers=dated()), NAME, KEY)
    assert header.startswith(f"SharedKey {NAME}:")
    assert len(header) == len(f"SharedKey {NAME}:") + 44
