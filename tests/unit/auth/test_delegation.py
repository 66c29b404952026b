"""User delegation keys and the signatures made with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leasehold.auth.authenticator import Authenticator, CredentialKind, Grant
from leasehold.auth.delegation import (
    MAX_VALIDITY_MS,
    DelegationRequest,
    UserDelegationKey,
    derive_value,
    issue_user_delegation_key,
)
from leasehold.auth.sas import SasKind, SasTerms, make_user_delegation_sas, string_to_sign
from leasehold.auth.types import (
    Account,
    BadSignature,
    MalformedCredentials,
    NotAllowed,
    Operation,
    PermissionMissing,
    ServiceMismatch,
    format_iso_time,
)
from leasehold.domain.errors import OutOfRange
from tests.unit.auth.support import (
    ACCOUNT,
    HOUR_MS,
    KEY,
    NAME,
    NOON_MS,
    SECOND_KEY,
    no_policies,
    query_of,
    request,
    target,
)

_WISH = DelegationRequest(
    object_id="user",
    tenant_id="directory",
    version="2026-10-06",
    expires_at_ms=NOON_MS + 24 * HOUR_MS,
)
_TERMS = SasTerms(permission="raup", expiry="2030-01-01")


def _issue(account: Account = ACCOUNT, **changes: Any) -> UserDelegationKey:
    return issue_user_delegation_key(account, replace(_WISH, **changes), now_ms=NOON_MS)


def _check(token: str, *, now_ms: int = NOON_MS, to: Operation = Operation.PEEK_MESSAGES) -> Grant:
    authenticator = Authenticator({NAME: ACCOUNT}, no_policies)
    return authenticator.check(request(query=token), target(to), now_ms=now_ms)


def test_signature_is_accepted() -> None:
    """A signature made with an issued key opens the queue, and the grant names the user."""
    assert _check(make_user_delegation_sas(NAME, _issue(), "q1", _TERMS)) == Grant(
        kind=CredentialKind.USER_DELEGATION_SAS,
        account=NAME,
        key_number=1,
        object_id="user",
        tenant_id="directory",
    )


def test_string_to_sign_in_full() -> None:
    """The fields of the key stand between the resource and the address."""
    key = _issue(delegated_tenant_id="elsewhere")
    token = make_user_delegation_sas(
        NAME,
        key,
        "q1",
        replace(_TERMS, start="2026-01-01", addresses="10.0.0.7", protocol="https"),
        presenter_id="somebody",
    )
    text = string_to_sign(SasKind.USER_DELEGATION, dict(query_of(token)), NAME, "q1")
    assert text == (
        "raup\n2026-01-01\n2030-01-01\n/queue/devstoreaccount1/q1\nuser\ndirectory\n"
        "2026-11-21T12:00:00Z\n2026-11-22T12:00:00Z\nq\n2026-10-06\nelsewhere\nsomebody\n"
        "10.0.0.7\nhttps\n2026-10-06"
    )


def test_key_is_derived_from_all_it_says() -> None:
    """Whatever is different about a key makes its value different."""
    scope = _issue().scope
    sealing_key = ACCOUNT.sealing_key()
    values = {
        derive_value(NAME, KEY, sealing_key, scope),
        derive_value("other", KEY, sealing_key, scope),
        derive_value(NAME, SECOND_KEY, sealing_key, scope),
        derive_value(NAME, KEY, b"another server's", scope),
    }
    for name in scope.__slots__:
        values.add(derive_value(NAME, KEY, sealing_key, replace(scope, **{name: "x"})))
    joined = replace(scope, object_id="user\ndirectory", tenant_id="")
    values.add(derive_value(NAME, KEY, sealing_key, joined))
    assert len(values) == 4 + len(scope.__slots__) + 1
    assert derive_value(NAME, KEY, sealing_key, scope) == _issue().value
    assert {len(value) for value in values} == {32}


@pytest.mark.parametrize("secret", [b"", KEY, b"another server's"])
def test_holder_of_an_account_key_makes_none(secret: bytes) -> None:
    """Only the server can say on whose behalf a signature is made: the event log believes it."""
    scope = replace(_issue().scope, object_id="somebody else")
    key = UserDelegationKey(scope=scope, value=derive_value(NAME, KEY, secret, scope))
    with pytest.raises(BadSignature):
        _check(make_user_delegation_sas(NAME, key, "q1", _TERMS))


def test_restored_store_revokes() -> None:
    """With the server's secret all delegation keys end, also those that were used before."""
    secrets = [b"before"]
    account = Account(name=NAME, keys=(KEY,), sealing_key=lambda: secrets[-1])
    key = issue_user_delegation_key(account, _WISH, now_ms=NOON_MS)
    authenticator = Authenticator({NAME: account}, no_policies)
    arrived = request(query=make_user_delegation_sas(NAME, key, "q1", _TERMS))
    to = target(Operation.PEEK_MESSAGES)
    assert authenticator.check(arrived, to, now_ms=NOON_MS).object_id == "user"
    secrets.append(b"after")
    with pytest.raises(BadSignature):
        authenticator.check(arrived, to, now_ms=NOON_MS)


def test_rotating_the_account_key_revokes() -> None:
    """A delegation key dies with the account key it was made from, and not before."""
    token = make_user_delegation_sas(NAME, _issue(), "q1", _TERMS)
    accounts = {NAME: ACCOUNT}
    authenticator = Authenticator(accounts, no_policies)
    arrived, to = request(query=token), target(Operation.PEEK_MESSAGES)
    assert authenticator.check(arrived, to, now_ms=NOON_MS).key_number == 1
    accounts[NAME] = Account(name=NAME, keys=(b"new", KEY))
    assert authenticator.check(arrived, to, now_ms=NOON_MS)
    accounts[NAME] = Account(name=NAME, keys=(b"new", SECOND_KEY))
    with pytest.raises(BadSignature):
        authenticator.check(arrived, to, now_ms=NOON_MS)


def test_window_of_the_key() -> None:
    """A signature is good only while its key is, however long it is for itself."""
    key = _issue(starts_at_ms=NOON_MS + HOUR_MS, expires_at_ms=NOON_MS + 2 * HOUR_MS)
    token = make_user_delegation_sas(NAME, key, "q1", _TERMS)
    assert _check(token, now_ms=NOON_MS + HOUR_MS)
    assert _check(token, now_ms=NOON_MS + 2 * HOUR_MS - 1)
    for now_ms in (NOON_MS + HOUR_MS - 1, NOON_MS + 2 * HOUR_MS):
        with pytest.raises(BadSignature, match="delegation key"):
            _check(token, now_ms=now_ms)


@pytest.mark.parametrize(
    ("starts_ms", "expires_ms"),
    [
        (None, MAX_VALIDITY_MS),
        (None, 1),
        (-HOUR_MS, MAX_VALIDITY_MS),
        (HOUR_MS, HOUR_MS + MAX_VALIDITY_MS),
        (MAX_VALIDITY_MS, 2 * MAX_VALIDITY_MS),
    ],
)
def test_at_most_seven_days(starts_ms: int | None, expires_ms: int) -> None:
    """A key may be for seven days, from now or from a start within seven days."""
    starts_at_ms = None if starts_ms is None else NOON_MS + starts_ms
    scope = _issue(starts_at_ms=starts_at_ms, expires_at_ms=NOON_MS + expires_ms).scope
    assert scope.start == format_iso_time(NOON_MS + (starts_ms or 0))
    assert scope.expiry == format_iso_time(NOON_MS + expires_ms)


@pytest.mark.parametrize(
    ("starts_ms", "expires_ms", "field"),
    [
        (None, MAX_VALIDITY_MS + 1, "expiry"),
        (-HOUR_MS, MAX_VALIDITY_MS + 1, "expiry"),
        (HOUR_MS, HOUR_MS + MAX_VALIDITY_MS + 1, "expiry"),
        (None, 0, "expiry"),
        (-HOUR_MS, -1, "expiry"),
        (HOUR_MS, HOUR_MS, "expiry"),
        (MAX_VALIDITY_MS + 1, MAX_VALIDITY_MS + 2, "start"),
        (-NOON_MS - 1, HOUR_MS, "start"),
    ],
)
def test_windows_that_cannot_be(starts_ms: int | None, expires_ms: int, field: str) -> None:
    """Too long, over already, or too far ahead is refused with the field that is wrong."""
    starts_at_ms = None if starts_ms is None else NOON_MS + starts_ms
    with pytest.raises(OutOfRange) as caught:
        _issue(starts_at_ms=starts_at_ms, expires_at_ms=NOON_MS + expires_ms)
    assert caught.value.field == field
    assert not caught.value.minimum <= caught.value.value <= caught.value.maximum


def test_version_that_does_not_know_it() -> None:
    """Queues have user delegation signatures since 2026-02-06."""
    terms = replace(_TERMS, version="2025-11-05")
    with pytest.raises(BadSignature, match="2026-02-06"):
        _check(make_user_delegation_sas(NAME, _issue(), "q1", terms))
    assert _check(
        make_user_delegation_sas(NAME, _issue(), "q1", replace(terms, version="2026-02-06"))
    )


def test_delegated_directory_since_2026_04_06() -> None:
    """The field for another directory is unknown to older versions."""
    key = _issue(delegated_tenant_id="elsewhere")
    assert _check(make_user_delegation_sas(NAME, key, "q1", replace(_TERMS, version="2026-04-06")))
    with pytest.raises(MalformedCredentials, match="skdutid"):
        _check(make_user_delegation_sas(NAME, key, "q1", replace(_TERMS, version="2026-02-06")))


@pytest.mark.parametrize("name", ["sp", "se", "skoid", "sktid", "skt", "ske", "sks", "skv"])
def test_mandatory_fields(name: str) -> None:
    """Each field of the key must be there."""
    token = make_user_delegation_sas(NAME, _issue(), "q1", _TERMS)
    rest = [part for part in token.split("&") if not part.startswith(f"{name}=")]
    with pytest.raises(BadSignature, match=f"'{name}'"):
        _check("&".join(rest))


def test_key_for_another_service() -> None:
    """A key that says it is for blobs does not open queues, even when genuine."""
    scope = replace(_issue().scope, service="b")
    value = derive_value(NAME, KEY, ACCOUNT.sealing_key(), scope)
    key = UserDelegationKey(scope=scope, value=value)
    with pytest.raises(ServiceMismatch):
        _check(make_user_delegation_sas(NAME, key, "q1", _TERMS))


@pytest.mark.parametrize("name", ["start", "expiry"])
def test_key_with_times_in_no_form(name: str) -> None:
    """A key whose times cannot be read is refused."""
    scope = replace(_issue().scope, **{name: "soon"})
    value = derive_value(NAME, KEY, ACCOUNT.sealing_key(), scope)
    key = UserDelegationKey(scope=scope, value=value)
    with pytest.raises(BadSignature, match="not well-formed"):
        _check(make_user_delegation_sas(NAME, key, "q1", _TERMS))


def test_rights_are_those_of_a_queue() -> None:
    """The four letters open what they open in a service signature."""
    token = make_user_delegation_sas(NAME, _issue(), "q1", replace(_TERMS, permission="r"))
    assert _check(token)
    with pytest.raises(PermissionMissing):
        _check(token, to=Operation.PUT_MESSAGE)
    with pytest.raises(NotAllowed):
        _check(token, to=Operation.CLEAR_MESSAGES)


def test_signature_for_one_user_needs_that_user() -> None:
    """A signature for one presenter is refused without that user's bearer token."""
    token = make_user_delegation_sas(NAME, _issue(), "q1", _TERMS, presenter_id="somebody")
    with pytest.raises(BadSignature, match="bearer token"):
        _check(token)
