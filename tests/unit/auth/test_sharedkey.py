"""SharedKey and SharedKeyLite: what is signed, and which signatures are taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.auth.sharedkey import (
    MAX_SKEW_MS,
    check_shared_key,
    compute_signature,
    format_http_date,
    parse_authorization,
    parse_http_date,
    sign,
    string_to_sign,
)
from leasehold.auth.types import Account, BadSignature, MalformedCredentials, SignedRequest, Target
from tests.unit.auth.support import (
    ACCOUNT,
    KEY,
    NAME,
    NOON_MS,
    SECOND_KEY,
    dated,
    request,
    signed,
    target,
)

# Recorded from the JavaScript SDK against the emulator's public key.
_VECTOR = request(
    "PUT",
    "/devstoreaccount1/q1",
    "timeout=30",
    {
        "content-length": "0",
        "x-ms-client-request-id": "791898e2-0fcd-456b-a110-4aaf1215a8e4",
        "x-ms-date": "Sat, 21 Nov 2026 00:17:51 GMT",
        "x-ms-meta-foo": "Bar",
        "x-ms-version": "2026-04-06",
    },
    version="2026-04-06",
)
_VECTOR_HEADER = "SharedKey devstoreaccount1:6SX+gQuCZoAsFzgf/w2/D8qOws6v9x0Boktp7FNyzac="


def check(
    request: SignedRequest,
    *,
    to: Target | None = None,
    account: Account = ACCOUNT,
    now_ms: int = NOON_MS,
) -> int:
    """Check a signed request as the authenticator does."""
    header = parse_authorization(request.headers["authorization"])
    return check_shared_key(request, to or target(), account, header, now_ms=now_ms)


def test_published_vector() -> None:
    """A request recorded from an SDK is signed the same way and is accepted."""
    assert sign(_VECTOR, NAME, KEY) == _VECTOR_HEADER
    arrived = replace(_VECTOR, headers={**_VECTOR.headers, "authorization": _VECTOR_HEADER})
    now_ms = parse_http_date(_VECTOR.headers["x-ms-date"])
    assert now_ms is not None
    assert check(arrived, now_ms=now_ms) == 0


def test_string_to_sign_in_full() -> None:
    """All twelve lines, the canonical headers and the resource stand in their places."""
    asked = request(
        "PUT",
        "/devstoreaccount1/q%20x",
        "b=2&A=%25&b=1&comp=list",
        {
            "content-encoding": "enc",
            "content-language": "lang",
            "content-length": "11",
            "content-md5": "md5",
            "content-type": "type",
            "date": "Sat, 21 Nov 2026 00:17:51 GMT",
            "if-modified-since": "ims",
            "if-match": "im",
            "if-none-match": "inm",
            "if-unmodified-since": "ius",
            "range": "bytes=0-",
            "x-ms-version": " 2026-04-06\t",
            "x-ms-empty": "",
            "accept": "not signed",
        },
    )
    assert string_to_sign(asked, NAME) == (
        "PUT\nenc\nlang\n11\nmd5\ntype\nSat, 21 Nov 2026 00:17:51 GMT\n"
        "ims\nim\ninm\nius\nbytes=0-\n"
        "x-ms-empty:\nx-ms-version:2026-04-06\n"
        "/devstoreaccount1/devstoreaccount1/q%20x\na:%\nb:1,2\ncomp:list"
    )


def test_lite_string_to_sign_in_full() -> None:
    """The short form has four lines and, of the query, only comp."""
    asked = request(
        "PUT",
        query="timeout=30&Comp=acl",
        headers={"content-md5": "md5", "content-type": "type", "content-length": "1", **dated()},
    )
    assert string_to_sign(asked, NAME, lite=True) == (
        f"PUT\nmd5\ntype\n\nx-ms-date:{format_http_date(NOON_MS)}\nx-ms-version:2026-10-06\n"
        "/devstoreaccount1/devstoreaccount1/q1?comp=acl"
    )


def test_date_line_is_empty_beside_x_ms_date() -> None:
    """When both dates are there only x-ms-date counts, and only it is looked at."""
    headers = dated(date="Sat, 21 Nov 2020 00:17:51 GMT")
    assert "2020" not in string_to_sign(request(headers=headers), NAME)
    assert check(signed(request(headers=headers))) == 0


@pytest.mark.parametrize(
    ("version", "line"), [("2014-02-14", "0"), ("2015-02-21", ""), ("2026-10-06", "")]
)
def test_zero_length_by_version(version: str, line: str) -> None:
    """A length of zero is signed as such by old versions, as nothing since 2015-02-21."""
    asked = request(headers=dated(content_length="0"), version=version)
    assert string_to_sign(asked, NAME).split("\n")[3] == line


@pytest.mark.parametrize(("version", "there"), [("2015-12-11", False), ("2016-05-31", True)])
def test_empty_headers_by_version(version: str, there: bool) -> None:
    """Headers without a value are signed since 2016-05-31."""
    asked = request(headers=dated(x_ms_meta_none=" "), version=version)
    assert ("x-ms-meta-none:\n" in string_to_sign(asked, NAME)) is there


def test_stray_metadata_header_is_signed() -> None:
    """The Python SDK sends and signs a header "x-ms-meta", which is no metadata."""
    asked = request("PUT", headers=dated(x_ms_meta="{'Foo': 'Bar'}", x_ms_meta_foo="Bar"))
    assert "\nx-ms-meta:{'Foo': 'Bar'}\nx-ms-meta-foo:Bar\n" in string_to_sign(asked, NAME)


@pytest.mark.parametrize("lite", [False, True])
def test_both_keys_sign(lite: bool) -> None:
    """Either key of an account signs; the answer says which one did."""
    assert check(signed(request(headers=dated()), lite=lite)) == 0
    assert check(signed(request(headers=dated()), key=SECOND_KEY, lite=lite)) == 1


@pytest.mark.parametrize("keys", [(b"",), (), (b"third key",), (b"third key", b"")])
def test_no_other_key_signs(keys: tuple[bytes, ...]) -> None:
    """A key that is empty, gone or another's does not sign."""
    account = Account(name=NAME, keys=keys)
    for key in (KEY, b""):
        with pytest.raises(BadSignature):
            check(signed(request(headers=dated()), key=key), account=account)


def test_another_account_does_not_sign() -> None:
    """The name in the header must be that of the account addressed, even with the same key."""
    with pytest.raises(BadSignature, match="different account"):
        check(signed(request(headers=dated()), account="other"))


@pytest.mark.parametrize("skew_ms", [-MAX_SKEW_MS, 0, MAX_SKEW_MS])
@pytest.mark.parametrize("name", ["x-ms-date", "date"])
def test_date_within_a_quarter_of_an_hour(name: str, skew_ms: int) -> None:
    """A request may be fifteen minutes old, or dated as much ahead."""
    arrived = signed(request(headers={name: format_http_date(NOON_MS)}))
    assert check(arrived, now_ms=NOON_MS + skew_ms) == 0
    beyond = 1 if skew_ms >= 0 else -1
    with pytest.raises(BadSignature, match="15 minutes"):
        check(arrived, now_ms=NOON_MS + beyond * (MAX_SKEW_MS + 1))


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-ms-date": ""}, {"x-ms-date": "2026-11-21T12:00:00Z"}, {"date": "noon"}],
)
def test_date_must_be_there(headers: dict[str, str]) -> None:
    """A request without a readable date is refused, however well it is signed."""
    with pytest.raises(BadSignature, match="no date"):
        check(signed(request(headers=headers)))


@pytest.mark.parametrize(
    "header",
    [
        *(
            "",
            "SharedKey",
            "SharedKey ",
            "SharedKey a",
            "SharedKey a:",
            "SharedKey :b",
            "Basic YTpi",
        ),
        *(
            "sharedkey a:b",
            "SharedKeyLite",
            "SharedKeyLite a",
            "SharedKeyLiteX a:b",
            " SharedKey a:b",
        ),
    ],
)
def test_malformed_headers(header: str) -> None:
    """A header of another form is malformed, not wrong."""
    with pytest.raises(MalformedCredentials):
        parse_authorization(header)


def test_headers_are_taken_apart_at_the_first_colon() -> None:
    """The form, the account and the signature come out."""
    assert parse_authorization("SharedKey a:b:c=") == (False, "a", "b:c=")
    assert parse_authorization("SharedKeyLite a:b=") == (True, "a", "b=")


# Names whose order differs: bytes put "-" before letters, the culture order ignores it at first.
_UNUSUAL = dated(x_ms_meta_ab="1", x_ms_meta_a_c="2", x_ms_meta_a="3")


def _signed_in_culture_order(asked: SignedRequest) -> SignedRequest:
    lines = string_to_sign(asked, NAME).split("\n")
    headers = sorted(
        (line for line in lines if line.startswith("x-ms-")),
        key=lambda line: line.partition(":")[0].replace("-", ""),
    )
    others = [line for line in lines if not line.startswith("x-ms-")]
    text = "\n".join([*others[:12], *headers, *others[12:]])
    assert text != string_to_sign(asked, NAME)
    signature = compute_signature(KEY, text).decode()
    return replace(
        asked, headers={**asked.headers, "authorization": f"SharedKey {NAME}:{signature}"}
    )


def test_both_orders_of_headers() -> None:
    """A signature over the headers in byte order counts, and one in the SDKs' order as well."""
    assert check(signed(request(headers=_UNUSUAL))) == 0
    assert check(_signed_in_culture_order(request(headers=_UNUSUAL))) == 0


@pytest.mark.parametrize("signed_path", ["/devstoreaccount1-secondary/q1", "/devstoreaccount1/q1"])
@pytest.mark.parametrize("order", [signed, _signed_in_culture_order])
def test_secondary_path_with_and_without_suffix(signed_path: str, order: object) -> None:
    """At the secondary address clients sign either the path as sent or the primary's."""
    assert callable(order)
    arrived = replace(
        order(request(path=signed_path, headers=_UNUSUAL)), path="/devstoreaccount1-secondary/q1"
    )
    assert check(arrived, to=target(secondary=True)) == 0


def test_suffix_is_dropped_at_the_secondary_only() -> None:
    """A queue or an account whose name merely looks alike is not the secondary."""
    arrived = signed(request(path="/devstoreaccount1/q1", headers=dated()))
    with pytest.raises(BadSignature):
        check(replace(arrived, path="/devstoreaccount1-secondary/q1"))
    lookalike = signed(request(path="/devstoreaccount1x/q1", headers=dated()))
    lookalike = replace(lookalike, path="/devstoreaccount1-secondaryx/q1")
    with pytest.raises(BadSignature):
        check(lookalike, to=target(secondary=True))
    forged = replace(signed(request(headers=dated()), key=b"wrong"), path=f"/{NAME}-secondary/q1")
    with pytest.raises(BadSignature):
        check(forged, to=target(secondary=True))
    root = signed(request(path="/devstoreaccount1", headers=dated()))
    root = replace(root, path="/devstoreaccount1-secondary")
    assert check(root, to=target(secondary=True)) == 0


@pytest.mark.parametrize("query", ["a%0Ab:1=2", "a=1%0Ab:2", "a:b=1", "x=1&a=%0A"])
def test_parameters_that_pass_for_others_are_refused(query: str) -> None:
    """A line break, or a colon in a name, could be taken for the border between parameters."""
    with pytest.raises(BadSignature, match=r"colon|line break"):
        string_to_sign(request(query=query, headers=dated()), NAME)


def test_lite_refuses_two_comps() -> None:
    """The short form signs one comp, so a second one would be unsigned."""
    with pytest.raises(BadSignature, match="repeated"):
        string_to_sign(request(query="comp=list&Comp=acl", headers=dated()), NAME, lite=True)


def test_undecodable_text_is_refused_without_an_accident() -> None:
    """Lone surrogates, which lenient decoders leave behind, merely fail to match."""
    arrived = signed(request(headers=dated()))
    forged = replace(arrived, query=(("a", "\udcff"),))
    with pytest.raises(BadSignature):
        check(forged)
    headers = {**arrived.headers, "authorization": f"SharedKey {NAME}:\ud800é"}
    with pytest.raises(BadSignature):
        check(replace(arrived, headers=headers))


def test_detail_shows_the_string_to_sign() -> None:
    """Who gets a signature wrong is shown what should have been signed."""
    arrived = signed(request(headers=dated()), key=b"wrong")
    with pytest.raises(BadSignature) as caught:
        check(arrived)
    assert string_to_sign(arrived, NAME) in caught.value.detail
