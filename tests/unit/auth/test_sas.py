"""Shared access signatures: what they sign, and when they are good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from leasehold.auth.authenticator import Authenticator, CredentialKind, Grant
from leasehold.auth.sas import (
    SasKind,
    SasTerms,
    make_account_sas,
    make_service_sas,
    string_to_sign,
)
from leasehold.auth.times import format_iso_time
from leasehold.auth.types import (
    Account,
    AuthError,
    BadSignature,
    MalformedCredentials,
    NoCredentials,
    NotAllowed,
    Operation,
    ProtocolMismatch,
    ServiceMismatch,
    SignedRequest,
    SourceAddressMismatch,
    UnknownAccount,
)
from leasehold.domain.types import AccessPolicy
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

LATER = "2030-01-01T00:00:00Z"
TERMS = SasTerms(permission="raup", expiry=LATER)


def check(
    token: str,
    *,
    operation: Operation = Operation.PEEK_MESSAGES,
    queue: str | None = "q1",
    now_ms: int = NOON_MS,
    asked: SignedRequest | None = None,
) -> Grant:
    """Check a request that carries *token* with a new authenticator."""
    arrived = replace(asked or request(), query=query_of(token))
    authenticator = Authenticator(ACCOUNTS, no_policies)
    return authenticator.check(arrived, target(operation, queue), now_ms=now_ms)


def account_sas(**changes: str) -> str:
    """Return an account signature with some of the usual terms changed."""
    return make_account_sas(NAME, KEY, replace(TERMS, **changes))


def service_sas(**changes: str) -> str:
    """Return a service signature on q1 with some of the usual terms changed."""
    return make_service_sas(NAME, KEY, "q1", replace(TERMS, **changes))


MAKERS = pytest.mark.parametrize("make", [account_sas, service_sas])
Maker = Callable[..., str]


def test_published_service_vector() -> None:
    """A service signature made by the Python SDK is made the same way here."""
    terms = replace(TERMS, start="2026-01-01T00:00:00Z")
    pairs = dict(query_of(make_service_sas(NAME, KEY, "q1", terms)))
    assert pairs["sig"] == "psjAKWpysM2ScELsSPxjpsfOVCppIml84/PsqT/svUw="


def test_published_account_vector() -> None:
    """An account signature made by the Python SDK is made the same way here."""
    terms = replace(TERMS, permission="rwdlacup")
    pairs = dict(query_of(make_account_sas(NAME, KEY, terms)))
    assert pairs["sig"] == "HpTBJ+k5UG/iQ7zLOSKWHP9xeh6FybUIQwUbFtQsKjg="


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("2012-02-12", "r\nst\nse\n/acc/q1\nsi\n2012-02-12"),
        ("2014-02-14", "r\nst\nse\n/acc/q1\nsi\n2014-02-14"),
        ("2015-02-21", "r\nst\nse\n/queue/acc/q1\nsi\n2015-02-21"),
        ("2015-04-05", "r\nst\nse\n/queue/acc/q1\nsi\nip\npr\n2015-04-05"),
        ("2026-10-06", "r\nst\nse\n/queue/acc/q1\nsi\nip\npr\n2026-10-06"),
    ],
)
def test_service_string_by_version(version: str, text: str) -> None:
    """The resource gained a prefix in 2015-02-21; address and protocol came in 2015-04-05."""
    names = ("sp", "st", "se", "si", "sip", "spr")
    values = dict(zip(names, ("r", "st", "se", "si", "ip", "pr"), strict=True))
    assert string_to_sign(SasKind.SERVICE, {**values, "sv": version}, "acc", "q1") == text


@pytest.mark.parametrize(
    ("version", "end"), [("2015-04-05", ""), ("2020-10-02", ""), ("2020-12-06", "scope\n")]
)
def test_account_string_by_version(version: str, end: str) -> None:
    """The encryption scope is signed since 2020-12-06."""
    values = {"sp": "r", "ss": "q", "srt": "s", "se": "se", "ses": "scope", "sv": version}
    text = f"acc\nr\nq\ns\n\nse\n\n\n{version}\n{end}"
    assert string_to_sign(SasKind.ACCOUNT, values, "acc", None) == text


@pytest.mark.parametrize("version", ["2012-02-12", "2014-02-14", "2015-02-21", "2015-04-05"])
def test_old_service_signatures_are_taken(version: str) -> None:
    """Signatures of old versions are checked by the rules of their time."""
    assert check(service_sas(version=version)).kind is CredentialKind.SERVICE_SAS


@pytest.mark.parametrize("version", ["2015-04-05", "2018-11-09", "2020-12-06", "2099-01-01"])
def test_old_and_future_account_signatures_are_taken(version: str) -> None:
    """So are account signatures, and those of versions to come."""
    assert check(account_sas(version=version)).kind is CredentialKind.ACCOUNT_SAS


@pytest.mark.parametrize(
    ("make", "version"),
    [
        (account_sas, "2015-02-21"),
        (service_sas, "2011-08-18"),
        *(
            (service_sas, version)
            for version in ("", "2026", "2026-13-01", "2026-10-06Z", "latest")
        ),
        (service_sas, "2026-10-06T00:00Z"),
    ],
)
def test_versions_that_cannot_be(make: Maker, version: str) -> None:
    """A version must be there, well-formed, and know the kind of signature."""
    with pytest.raises(BadSignature, match="'sv'"):
        check(make(version=version))


def test_grant_names_the_signer() -> None:
    """The grant says by which kind of signature and with which key."""
    assert check(service_sas()) == Grant(
        kind=CredentialKind.SERVICE_SAS, account=NAME, key_number=1
    )
    second = make_account_sas(NAME, SECOND_KEY, TERMS)
    assert check(second) == Grant(kind=CredentialKind.ACCOUNT_SAS, account=NAME, key_number=2)


@MAKERS
def test_window(make: Maker) -> None:
    """A signature is good from its start on, and no longer at its expiry."""
    start, expiry = format_iso_time(NOON_MS), format_iso_time(NOON_MS + HOUR_MS)
    token = make(start=start, expiry=expiry)
    assert check(token, now_ms=NOON_MS)
    assert check(token, now_ms=NOON_MS + HOUR_MS - 1)
    with pytest.raises(BadSignature, match="not valid yet"):
        check(token, now_ms=NOON_MS - 1)
    with pytest.raises(BadSignature, match="expired"):
        check(token, now_ms=NOON_MS + HOUR_MS)


@MAKERS
@pytest.mark.parametrize(
    ("start", "expiry"),
    [
        ("2026-11-21", "2026-11-22"),
        ("2026-11-21T12:00Z", "2026-11-21T12:01Z"),
        ("2026-11-21T14:00:00+02:00", "2026-11-21T07:00:01-05:00"),
        ("2026-11-21T12:00:00.0000000Z", "2026-11-21T12:00:00.0010000Z"),
    ],
)
def test_times_in_all_forms(make: Maker, start: str, expiry: str) -> None:
    """Start and expiry may be written in each of the documented forms."""
    assert check(make(start=start, expiry=expiry))
    with pytest.raises(BadSignature, match="not valid yet"):
        check(make(start=start, expiry=expiry), now_ms=NOON_MS - 24 * HOUR_MS)
    with pytest.raises(BadSignature, match="expired"):
        check(make(start=start, expiry=expiry), now_ms=NOON_MS + 12 * HOUR_MS)


@MAKERS
@pytest.mark.parametrize("name", ["start", "expiry"])
@pytest.mark.parametrize("text", ["soon", "2026-11-21T12:00:00", "1795262400"])
def test_times_in_no_form(make: Maker, name: str, text: str) -> None:
    """A time in another form is refused, though it is signed."""
    with pytest.raises(BadSignature, match="not well-formed"):
        check(make(**{name: text}))


@MAKERS
def test_protocol(make: Maker) -> None:
    """A signature for https only is not good on http; by default both will do."""
    plain = request(https=False)
    for protocol in ("", "https,http"):
        assert check(make(protocol=protocol), asked=plain)
    assert check(make(protocol="https"))
    with pytest.raises(ProtocolMismatch):
        check(make(protocol="https"), asked=plain)


@MAKERS
@pytest.mark.parametrize("protocol", ["http", "http,https", "HTTPS", "https,", "ftp"])
def test_protocols_that_cannot_be(make: Maker, protocol: str) -> None:
    """Only the two documented values are known."""
    with pytest.raises(BadSignature, match="'spr'"):
        check(make(protocol=protocol))


@MAKERS
@pytest.mark.parametrize(
    ("addresses", "client_ip", "good"),
    [
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("10.0.0.1-10.0.0.7", "10.0.0.7", True),
        ("10.0.0.1-10.0.0.7", "10.0.0.8", False),
        ("2001:db8::1-2001:db8::9", "2001:db8::5", True),
        ("2001:db8::1-2001:db8::9", "2001:db8::a", False),
        ("10.0.0.7", "", False),
    ],
)
def test_addresses(make: Maker, addresses: str, client_ip: str, good: bool) -> None:
    """A signature may be limited to client addresses, of either IP version."""
    asked = request(client_ip=client_ip)
    if good:
        assert check(make(addresses=addresses), asked=asked)
    else:
        with pytest.raises(SourceAddressMismatch):
            check(make(addresses=addresses), asked=asked)


@MAKERS
def test_addresses_that_cannot_be(make: Maker) -> None:
    """What is no range of addresses is refused, not read as any address."""
    with pytest.raises(BadSignature, match="'sip'"):
        check(make(addresses="10.0.0.0/8"))


@pytest.mark.parametrize("letters", ["x", "raupw", "R", "r a", "?"])
def test_letters_that_cannot_be_on_a_queue(letters: str) -> None:
    """A queue knows four letters."""
    with pytest.raises(BadSignature, match="'sp'"):
        check(service_sas(permission=letters))


@pytest.mark.parametrize("letters", ["r1", "r,w", "ré"])
def test_letters_that_cannot_be_on_an_account(letters: str) -> None:
    """An account's permissions are letters; those of other services are passed over."""
    with pytest.raises(BadSignature, match="'sp'"):
        check(account_sas(permission=letters))
    assert check(account_sas(permission="zyr"))


@pytest.mark.parametrize(("name", "value"), [("services", "x"), ("resource_types", "sq")])
def test_account_scopes_that_cannot_be(name: str, value: str) -> None:
    """Unknown services and resource types are refused."""
    scopes = {"services": "q", "resource_types": "sco", name: value}
    with pytest.raises(BadSignature, match="not well-formed"):
        check(make_account_sas(NAME, KEY, TERMS, **scopes))


def test_account_signature_for_other_services() -> None:
    """An account signature must be for queues, perhaps among others."""
    assert check(make_account_sas(NAME, KEY, TERMS, services="bqtf"))
    with pytest.raises(ServiceMismatch):
        check(make_account_sas(NAME, KEY, TERMS, services="btf"))


@pytest.mark.parametrize("name", ["sv", "sp", "se", "ss", "srt"])
def test_mandatory_account_fields(name: str) -> None:
    """A signature without one of the fields it must have is refused, and told which."""
    pairs = [pair for pair in query_of(account_sas()) if pair[0] != name]
    with pytest.raises(BadSignature, match=f"'{name}'"):
        check("&".join(f"{key}={value.replace('+', '%2B')}" for key, value in pairs))


@pytest.mark.parametrize("terms", [SasTerms(permission="r"), SasTerms(expiry=LATER)])
def test_mandatory_service_fields(terms: SasTerms) -> None:
    """Without a stored policy a service signature must say what and how long."""
    with pytest.raises(BadSignature, match="missing"):
        check(make_service_sas(NAME, KEY, "q1", terms))


@pytest.mark.parametrize(
    ("make", "added"),
    [
        (account_sas, "si=policy"),
        (account_sas, "skoid=a"),
        (account_sas, "sduoid=a"),
        (service_sas, "ses=scope"),
        (service_sas, "srt=o"),
        (service_sas, "ss=q"),
        (service_sas, "skv=2026-10-06"),
        (service_sas, "sduoid=a"),
    ],
)
def test_contradictory_fields(make: Maker, added: str) -> None:
    """Fields of two kinds of signature do not go together."""
    with pytest.raises((MalformedCredentials, BadSignature)):
        check(f"{make()}&{added}")


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (service_sas(version="2014-02-14", protocol="https"), "spr"),
        (service_sas(version="2014-02-14", addresses="10.0.0.7"), "sip"),
        (account_sas(version="2020-10-02") + "&ses=scope", "ses"),
        (account_sas() + "&si=policy", "si"),
    ],
)
def test_fields_the_version_or_kind_does_not_sign(token: str, name: str) -> None:
    """A field that would stand there unsigned is malformed."""
    with pytest.raises(MalformedCredentials, match=f"'{name}'"):
        check(token)


@MAKERS
def test_repeated_fields(make: Maker) -> None:
    """A field that stands there twice is malformed, even with the same value."""
    token = make(start=NOON)
    for name, value in query_of(token):
        with pytest.raises(MalformedCredentials, match="repeated"):
            check(f"{token}&{name}={value}")
        with pytest.raises(MalformedCredentials, match="repeated"):
            check(f"{name}=&{token}")


def test_line_breaks_are_refused() -> None:
    """A value with a line break could be signed as two fields, so not even a genuine one does."""
    token = make_service_sas(NAME, KEY, "q1", TERMS, policy_id="a\nb")
    with pytest.raises(BadSignature, match="'si' is not well-formed"):
        check(token)


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
    with pytest.raises(MalformedCredentials, match="and in its policy"):
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
