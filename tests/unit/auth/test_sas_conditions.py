"""Conditions and policies of shared access signatures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.auth.authenticator import Authenticator, Grant
from leasehold.auth.sas import (
    SasTerms,
    make_service_sas,
)
from leasehold.auth.types import (
    Account,
    AuthError,
    BadSignature,
    MalformedCredentials,
    NoCredentials,
    NotAllowed,
    Operation,
    UnknownAccount,
)
from leasehold.domain.model import AccessPolicy
from tests.unit.auth.support import (
    ACCOUNT,
    ACCOUNTS,
    HOUR_MS,
    KEY,
    NAME,
    NOON,
    NOON_MS,
    SECOND_KEY,
    no_policies,
    query_of,
    request,
    target,
)

from .sas_support import (
    LATER,
    MAKERS,
    TERMS,
    Maker,
    account_sas,
    check,
    service_sas,
)


def test_empty_fields_count_as_left_out() -> None:
    """An empty field is signed like one that is left out, and means the same."""
    assert check(service_sas() + "&st=&sip=&spr=&si=")


def test_other_parameters_do_not_matter() -> None:
    """Parameters of the operation, and api-version, are not signed."""
    assert check(service_sas() + "&numofmessages=5&api-version=2020-12-06&numofmessages=6")


def test_signature_in_another_order_of_fields() -> None:
    """The order of the parameters does not matter."""
    assert check("&".join(reversed(service_sas().split("&"))))


def test_service_signature_is_of_one_queue() -> None:
    """A signature on one queue is not good on another one, nor on the account."""
    with pytest.raises(BadSignature):
        check(service_sas(), queue="q2")
    with pytest.raises(NotAllowed):
        check(service_sas(), queue=None, operation=Operation.LIST_QUEUES)


def test_account_signature_is_of_one_account() -> None:
    """A signature is not good on another account."""
    arrived = request(query=account_sas())
    authenticator = Authenticator(ACCOUNTS, no_policies)
    with pytest.raises(BadSignature):
        authenticator.check(arrived, target(account="other"), now_ms=NOON_MS)


@MAKERS
def test_accounts_that_share_a_key(make: Maker) -> None:
    """A signature names its account, so a shared key does not open the other account."""
    accounts = {name: Account(name=name, keys=(KEY,)) for name in (NAME, "twin")}
    authenticator = Authenticator(accounts, no_policies)
    arrived = request(query=make())
    to = target(Operation.PEEK_MESSAGES)
    assert authenticator.check(arrived, to, now_ms=NOON_MS)
    with pytest.raises(BadSignature):
        authenticator.check(arrived, replace(to, account="twin"), now_ms=NOON_MS)


@MAKERS
def test_unknown_account(make: Maker) -> None:
    """An account that does not exist is reported as such."""
    authenticator = Authenticator({}, no_policies)
    to = target(Operation.PEEK_MESSAGES)
    with pytest.raises(UnknownAccount):
        authenticator.check(request(query=make()), to, now_ms=NOON_MS)


@pytest.mark.parametrize("query", ["", "sv=2026-10-06&sp=r&se=2030-01-01", "timeout=30"])
def test_no_signature_at_all(query: str) -> None:
    """Without a header and without sig there are no credentials."""
    with pytest.raises(NoCredentials):
        check(query)


@pytest.mark.parametrize("given", ["", "x", "é", "\ud800", "A" * 10_000])
def test_signatures_of_any_shape(given: str) -> None:
    """A signature that is empty, too long or not even text is merely wrong."""
    pairs = [pair for pair in query_of(service_sas()) if pair[0] != "sig"]
    arrived = replace(request(), query=(*pairs, ("sig", given)))
    authenticator = Authenticator(ACCOUNTS, no_policies)
    with pytest.raises(BadSignature):
        authenticator.check(arrived, target(Operation.PEEK_MESSAGES), now_ms=NOON_MS)


def test_empty_keys_do_not_sign() -> None:
    """An account whose key is empty by mistake is closed, not open."""
    authenticator = Authenticator({NAME: Account(name=NAME, keys=(b"",))}, no_policies)
    arrived = request(query=make_service_sas(NAME, b"", "q1", TERMS))
    with pytest.raises(BadSignature):
        authenticator.check(arrived, target(Operation.PEEK_MESSAGES), now_ms=NOON_MS)


def test_detail_shows_the_string_to_sign() -> None:
    """Who gets a signature wrong is shown what should have been signed."""
    with pytest.raises(BadSignature, match=f"raup\n\n{LATER}\n/queue/{NAME}/q2\n"):
        check(service_sas(), queue="q2")


class Policies:
    """Stored policies that can be changed, and which were asked for."""

    def __init__(self, *, permission: str = "", start: str = "", expiry: str = "") -> None:
        self.policy: AccessPolicy | None = AccessPolicy(
            policy_id="pol",
            permission=permission or None,
            start=start or None,
            expiry=expiry or None,
        )
        self.asked: list[tuple[str, str, str]] = []

    def find(self, account: str, queue: str, policy_id: str) -> AccessPolicy | None:
        """Look a policy up, as the server does."""
        self.asked.append((account, queue, policy_id))
        return self.policy


def _with_policy(
    policies: Policies,
    terms: SasTerms,
    *,
    operation: Operation = Operation.PEEK_MESSAGES,
    authenticator: Authenticator | None = None,
) -> Grant:
    token = make_service_sas(NAME, KEY, "q1", terms, policy_id="pol")
    authenticator = authenticator or Authenticator(ACCOUNTS, policies.find)
    return authenticator.check(request(query=token), target(operation), now_ms=NOON_MS)


@pytest.mark.parametrize(
    ("policy", "terms"),
    [
        ({"permission": "r", "expiry": LATER, "start": "2026-11-21"}, SasTerms()),
        ({"permission": "r", "expiry": LATER}, SasTerms(start=NOON)),
        ({"permission": "r"}, SasTerms(start=NOON, expiry=LATER)),
        ({"expiry": LATER}, SasTerms(permission="r")),
        ({"start": "2026-11-21T12:00:00.0000000Z"}, SasTerms(permission="r", expiry=LATER)),
        ({}, SasTerms(permission="r", expiry=LATER)),
    ],
)
def test_policy_and_token_complete_each_other(policy: dict[str, str], terms: SasTerms) -> None:
    """Each of permission, start and expiry comes from the one or from the other."""
    policies = Policies(**policy)
    grant = _with_policy(policies, terms)
    assert grant.policy_id == "pol"
    assert policies.asked == [(NAME, "q1", "pol")]


@pytest.mark.parametrize(
    ("policy", "terms"),
    [
        ({"permission": "r"}, SasTerms(permission="r", expiry=LATER)),
        ({"expiry": LATER}, SasTerms(permission="r", expiry=LATER)),
        ({"start": NOON}, SasTerms(permission="r", expiry=LATER, start=NOON)),
    ],
)
def test_a_field_in_both_is_malformed(policy: dict[str, str], terms: SasTerms) -> None:
    """A field may not stand both in the token and in its policy, even with the same value."""
    with pytest.raises(MalformedCredentials, match="and its policy"):
        _with_policy(Policies(**policy), terms)


@pytest.mark.parametrize(
    ("policy", "terms", "message"),
    [
        ({"permission": "r"}, SasTerms(), "missing"),
        ({"expiry": LATER}, SasTerms(), "missing"),
        ({"permission": "r", "expiry": "2026-11-21T12:00:00Z"}, SasTerms(), "expired"),
        ({"permission": "r", "expiry": LATER, "start": "2027-01-01"}, SasTerms(), "not valid yet"),
        ({"permission": "r", "expiry": "soon"}, SasTerms(), "stored policy is not well-formed"),
    ],
)
def test_policies_that_do_not_open(policy: dict[str, str], terms: SasTerms, message: str) -> None:
    """What a policy leaves open must be in the token, and its window counts."""
    with pytest.raises(BadSignature, match=message):
        _with_policy(Policies(**policy), terms)


def test_empty_fields_of_a_policy_count_as_left_out() -> None:
    """A policy whose fields were sent empty leaves them to the token."""
    policies = Policies()
    policies.policy = AccessPolicy(policy_id="pol", permission="", start="", expiry="")
    assert _with_policy(policies, TERMS)


def test_unknown_policy() -> None:
    """A token that names a policy the queue does not have is refused."""
    policies = Policies()
    policies.policy = None
    with pytest.raises(BadSignature, match="no stored policy"):
        _with_policy(policies, TERMS)


def test_policies_are_looked_up_for_genuine_tokens_only() -> None:
    """Nobody without a genuine token can find out which policies exist."""
    policies = Policies()
    authenticator = Authenticator(ACCOUNTS, policies.find)
    token = make_service_sas(NAME, b"wrong", "q1", TERMS, policy_id="pol")
    with pytest.raises(BadSignature):
        authenticator.check(request(query=token), target(), now_ms=NOON_MS)
    assert policies.asked == []


def test_a_changed_policy_takes_effect_at_once() -> None:
    """A token known to be genuine follows its policy: narrowed, ended, removed, given back."""
    policies = Policies(permission="rp", expiry=LATER)
    authenticator = Authenticator(ACCOUNTS, policies.find)

    def use() -> Grant:
        return _with_policy(policies, SasTerms(), authenticator=authenticator)

    full = policies.policy
    assert full is not None
    for changed in (
        replace(full, permission="p"),
        replace(full, expiry=NOON),
        replace(full, start="2027-01-01"),
        None,
    ):
        assert use()
        policies.policy = changed
        with pytest.raises(AuthError):
            use()
        policies.policy = full
    assert use()


@MAKERS
def test_what_is_remembered_is_checked_each_time(make: Maker) -> None:
    """Knowing a token to be genuine does not excuse from time, place, protocol or permission."""
    token = make(start=NOON, addresses="10.0.0.7", protocol="https", permission="r")
    authenticator = Authenticator(ACCOUNTS, no_policies)
    good = request(query=token)
    peek = target(Operation.PEEK_MESSAGES)
    for _ in range(3):
        assert authenticator.check(good, peek, now_ms=NOON_MS)
        for arrived, to, now_ms in (
            (good, peek, NOON_MS - 1),
            (good, peek, NOON_MS + 8 * 365 * 24 * HOUR_MS),
            (replace(good, client_ip="10.0.0.8"), peek, NOON_MS),
            (replace(good, https=False), peek, NOON_MS),
            (good, target(Operation.PUT_MESSAGE), NOON_MS),
            (good, replace(peek, account="other"), NOON_MS),
        ):
            with pytest.raises(AuthError):
                authenticator.check(arrived, to, now_ms=now_ms)


def test_remembered_service_signature_stays_on_its_queue() -> None:
    """A token known to be genuine on one queue is not taken on another."""
    authenticator = Authenticator(ACCOUNTS, no_policies)
    arrived = request(query=service_sas())
    assert authenticator.check(arrived, target(Operation.PEEK_MESSAGES), now_ms=NOON_MS)
    with pytest.raises(BadSignature):
        authenticator.check(arrived, target(Operation.PEEK_MESSAGES, "q2"), now_ms=NOON_MS)


@MAKERS
def test_rotating_the_key_ends_remembered_signatures(make: Maker) -> None:
    """A token dies with the key that signed it, though it was known to be genuine."""
    accounts = {NAME: ACCOUNT}
    authenticator = Authenticator(accounts, no_policies)
    arrived = request(query=make())
    to = target(Operation.PEEK_MESSAGES)
    assert authenticator.check(arrived, to, now_ms=NOON_MS)
    accounts[NAME] = Account(name=NAME, keys=(SECOND_KEY, b"new"))
    with pytest.raises(BadSignature):
        authenticator.check(arrived, to, now_ms=NOON_MS)
    del accounts[NAME]
    with pytest.raises(UnknownAccount):
        authenticator.check(arrived, to, now_ms=NOON_MS)
