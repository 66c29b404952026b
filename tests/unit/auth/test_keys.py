"""Keys that are sent themselves: accounts' and inspectors'."""

from __future__ import annotations

from base64 import b64encode

import pytest

from leasehold.auth.authenticator import Authenticator, CredentialKind, Grant
from leasehold.auth.types import (
    Account,
    AuthError,
    BadSignature,
    MalformedCredentials,
    Operation,
    PermissionMissing,
    ProtocolMismatch,
    Target,
)
from tests.unit.auth.support import ACCOUNTS, KEY, KEY_TEXT, NAME, SECOND_KEY, no_policies

_INSPECTORS = {NAME: (b"i" * 32, b"j" * 32), "gone": (b"g" * 32,), "other": (b"",)}


def _check(
    key: bytes | str,
    operation: Operation = Operation.PEEK_MESSAGES,
    *,
    account: str = NAME,
    safe: bool = True,
) -> Grant:
    authenticator = Authenticator(ACCOUNTS, no_policies, inspectors=_INSPECTORS)
    text = key if isinstance(key, str) else b64encode(key).decode("ascii")
    return authenticator.check_key(text, Target(account=account, operation=operation), safe=safe)


@pytest.mark.parametrize(("key", "number"), [(KEY, 1), (SECOND_KEY, 2), (KEY_TEXT, 1)])
def test_account_keys(key: bytes | str, number: int) -> None:
    """Either key of an account may do everything."""
    grant = Grant(kind=CredentialKind.ACCOUNT_KEY, account=NAME, key_number=number)
    assert {_check(key, operation) for operation in Operation} == {grant}


def test_inspector_keys() -> None:
    """An inspector's key reads queues and messages and does nothing else."""
    reading = {Operation.LIST_QUEUES, Operation.GET_QUEUE_METADATA, Operation.PEEK_MESSAGES}
    grant = Grant(kind=CredentialKind.INSPECTOR_KEY, account=NAME, key_number=2)
    assert {_check(b"j" * 32, operation) for operation in reading} == {grant}
    for operation in set(Operation) - reading:
        with pytest.raises(PermissionMissing):
            _check(b"j" * 32, operation)


@pytest.mark.parametrize(
    ("key", "account", "error"),
    [
        (b"another key", NAME, BadSignature),
        (KEY, "other", BadSignature),
        (KEY, "nobody", BadSignature),
        (bytes(64), "nobody", BadSignature),
        (b"i" * 32, "other", BadSignature),
        (b"g" * 32, "gone", BadSignature),
        (b"", NAME, BadSignature),
        (b"", "other", BadSignature),
        (KEY[:-1], NAME, BadSignature),
        ("%%%%", NAME, MalformedCredentials),
        ("abc", NAME, MalformedCredentials),
        ("é", NAME, MalformedCredentials),
        (f" {KEY_TEXT}", NAME, MalformedCredentials),
    ],
)
def test_wrong_keys(key: bytes | str, account: str, error: type[AuthError]) -> None:
    """Only a key of the account itself opens it; an empty one opens nothing."""
    with pytest.raises(error):
        _check(key, account=account)


def test_unsafe_way() -> None:
    """A key that somebody can have read on the way is refused, right or wrong."""
    for key in (KEY, b"wrong" * 8):
        with pytest.raises(ProtocolMismatch):
            _check(key, safe=False)


def test_refusals_show_no_key() -> None:
    """What is wrong with a key is told without it."""
    for key in ("secret-%", b64encode(b"secret" * 6).decode("ascii")):
        with pytest.raises(AuthError) as refusal:
            _check(key)
        assert key not in str(refusal.value)


def test_key_taken_away_is_dead() -> None:
    """Accounts and inspectors are read at each request."""
    accounts = {NAME: Account(name=NAME, keys=(KEY,))}
    inspectors = {NAME: (b"i" * 32,)}
    authenticator = Authenticator(accounts, no_policies, inspectors=inspectors)
    target = Target(account=NAME, operation=Operation.PEEK_MESSAGES)
    texts = [KEY_TEXT, b64encode(b"i" * 32).decode("ascii")]
    for text in texts:
        authenticator.check_key(text, target, safe=True)
    accounts[NAME] = Account(name=NAME, keys=(SECOND_KEY,))
    inspectors.clear()
    for text in texts:
        with pytest.raises(BadSignature):
            authenticator.check_key(text, target, safe=True)
