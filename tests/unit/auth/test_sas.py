"""Shared access signatures: what they sign, and when they are good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.auth.authenticator import CredentialKind, Grant
from leasehold.auth.sas import (
    SasKind,
    SasTerms,
    make_account_sas,
    make_service_sas,
    string_to_sign,
)
from leasehold.auth.types import (
    BadSignature,
    MalformedCredentials,
    ProtocolMismatch,
    ServiceMismatch,
    SourceAddressMismatch,
    format_iso_time,
)
from tests.unit.auth.support import (
    HOUR_MS,
    KEY,
    NAME,
    NOON,
    NOON_MS,
    SECOND_KEY,
    query_of,
    request,
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
