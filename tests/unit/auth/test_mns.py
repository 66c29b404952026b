"""Signatures of MNS, with the vectors of its SDKs."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import quote

import hypothesis.strategies as st
import pytest
from hypothesis import given
from mns.mns_client import MNSClient

from leasehold.auth.mns import (
    AccessKey,
    BadDate,
    DateProblem,
    MnsAuthenticator,
    MnsHeader,
    MnsRequest,
    canonical_request,
    date_of,
    keys_of_accounts,
    parse_authorization,
    sign_v2,
    sign_v4,
    string_to_sign_v2,
    string_to_sign_v4,
)
from leasehold.auth.sharedkey import format_http_date, parse_http_date
from leasehold.auth.types import (
    Account,
    BadSignature,
    MalformedCredentials,
    NoCredentials,
    UnknownAccount,
)

DATE = "Tue, 03 Jun 2025 11:23:48 GMT"
V4_DATE = "Tue, 03 Jun 2025 10:52:35 GMT"
NOW_MS = parse_http_date(DATE) or 0
KEYS = {"id": AccessKey("orders", (b"first", b"second"))}
V4 = "MNS4-HMAC-SHA256"


def v4_header(region: str, day: str = "20250603", algorithm: str = V4) -> MnsHeader:
    """Return the header of a request that is not signed yet."""
    return MnsHeader("id", "", algorithm, day, region)


def signed(
    request: MnsRequest, secret: bytes = b"first", text: str | None = None, key_id: str = "id"
) -> MnsRequest:
    """Return a request with a signature of version 2."""
    signature = sign_v2(secret, string_to_sign_v2(request) if text is None else text).decode()
    headers = {**request.headers, "authorization": f"MNS {key_id}:{signature}"}
    return request._replace(headers=headers)


def signed_v4(request: MnsRequest, header: MnsHeader, date_ms: int = NOW_MS) -> MnsRequest:
    """Return a request with a signature of version 4."""
    signature = sign_v4(b"first", header, string_to_sign_v4(request, header, date_ms))
    terminator = "aliyun_v4_request" if header.algorithm == V4 else "apsara_v4_request"
    scope = f"{header.key_id}/{header.day}/{header.region}/mns/{terminator}"
    text = f"{header.algorithm} Credential={scope},Signature={signature}"
    return request._replace(headers={**request.headers, "authorization": text})


def check(request: MnsRequest, now_ms: int = NOW_MS) -> str:
    """Check a request against KEYS."""
    return MnsAuthenticator(KEYS).check(request, now_ms=now_ms)


REQUEST = MnsRequest("GET", "/queues/q/messages", "waitseconds=5", {"date": DATE})


# --- version 2 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "method", "headers", "signature"),
    [
        (b"sk1", "POST", {"x-mns-abcdef": "abcDEF"}, "cAThPWnbphg3hDe3ZHDADTgkgyE="),
        (b"testSk", "GET", {}, "uDJQXbk2xOhH95MDXmgbAGdtyE4="),
    ],
)
def test_vectors_of_version_2(
    secret: bytes, method: str, headers: dict[str, str], signature: str
) -> None:
    """Those of the Java SDK."""
    request = MnsRequest(method, "/queues/TestQueue", "", {"date": DATE, **headers})
    assert sign_v2(secret, string_to_sign_v2(request)).decode() == signature


def test_what_version_2_signs() -> None:
    """Digest, type and date by their places, our headers by name, the target as sent."""
    headers = {
        "date": DATE,
        "content-type": "text/xml",
        "content-md5": "MD5",
        "x-mns-version": "2015-06-06",
        "x-mns-a": "1",
        "security-token": "never signed",
    }
    request = MnsRequest("PUT", "/queues/q", "metaoverride=true", headers)
    assert string_to_sign_v2(request) == (
        f"PUT\nMD5\ntext/xml\n{DATE}\nx-mns-a:1\nx-mns-version:2015-06-06\n"
        "/queues/q?metaoverride=true"
    )


def test_a_date_of_its_own_stands_in_for_the_date() -> None:
    """It fills the line of the date, and is signed once more among its like."""
    headers = {"date": "something else", "x-mns-date": DATE}
    assert date_of(headers) == DATE
    text = string_to_sign_v2(MnsRequest("GET", "/", "", headers))
    assert text == f"GET\n\n\n{DATE}\nx-mns-date:{DATE}\n/"


def test_the_sdk_signs_the_same() -> None:
    """The official Python SDK's own function agrees."""
    client = MNSClient("http://127.0.0.1", "id", "first")
    headers = {
        "date": DATE,
        "content-type": "text/xml;charset=UTF-8",
        "content-md5": b64encode(b"0" * 32).decode(),
        "x-mns-version": "2015-06-06",
    }
    target = "/queues/q/messages?ReceiptHandle=a-b_c&VisibilityTimeout=5"
    credential = client.credentials_provider.get_credentials()
    theirs = client.get_signature("PUT", headers, target, credential)
    path, _, query = target.partition("?")
    ours = signed(MnsRequest("PUT", path, query, headers))
    assert ours.headers["authorization"] == theirs
    assert check(ours) == "orders"
    client.close_connection()


@pytest.mark.parametrize("secret", [b"first", b"second"])
def test_either_secret_signs(secret: bytes) -> None:
    """So that they can be rotated."""
    assert check(signed(REQUEST, secret)) == "orders"


def test_the_spelling_of_the_net_sdk() -> None:
    """It signs what it has before it is encoded, sorted by name, and folds blanks."""
    query = "VisibilityTimeout=5&ReceiptHandle=a%2Bb%3D"
    headers = {"date": DATE, "x-mns-user-request-id": "a  b"}
    request = MnsRequest("PUT", "/queues/q/messages", query, headers)
    target = "/queues/q/messages?ReceiptHandle=a+b=&VisibilityTimeout=5"
    for value in ("a  b", "a b"):
        text = f"PUT\n\n\n{DATE}\nx-mns-user-request-id:{value}\n{target}"
        assert check(signed(request, text=text)) == "orders"
    plain = MnsRequest("GET", "/queues/q", "", headers)
    text = f"GET\n\n\n{DATE}\nx-mns-user-request-id:a b\n/queues/q"
    assert check(signed(plain, text=text)) == "orders"


def test_a_value_cannot_pass_for_two() -> None:
    """What is signed decoded must mean one thing only."""
    harmless = MnsRequest("GET", "/queues/q", "a=1&b=2", {"date": DATE})
    for path, query in (("/queues/q", "a=1%26b%3D2"), ("/queues/q%3Fa=1", "b=2")):
        forged = harmless._replace(path=path, query=query)
        text = string_to_sign_v2(harmless)
        with pytest.raises(BadSignature):
            check(signed(forged, text=text))


def test_a_value_cannot_pass_for_a_name() -> None:
    """A value that ends with the sign between both, as base64 does, stays a value."""
    text = string_to_sign_v2(MnsRequest("DELETE", "/queues/q", "handle=x=", {"date": DATE}))
    forged = MnsRequest("DELETE", "/queues/q", "handle%3Dx=", {"date": DATE})
    with pytest.raises(BadSignature):
        check(signed(forged, text=text))


# --- version 4 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "region", "request_", "signature"),
    [
        (
            b"sk1",
            "region1",
            MnsRequest(
                "POST",
                "/queues/TestQueue/",
                f"param1=abc&PARAM2={quote('d  ef')}&PARAM3={quote('[def]#bbb')}"
                f"&PARAM4={quote('中文参数')}",
                {},
            ),
            "1fc6013f158d4c3aba09570895a2a93c8445c2c5213d82a1463baf602cf0d945",
        ),
        (
            b"testSk",
            "testRegion",
            MnsRequest("GET", "/", "", {}),
            "63f78964dcd1132bab91b9c38ceebdfb59509149b34874c5b2c9dfc2b12e7291",
        ),
    ],
)
def test_vectors_of_version_4(
    secret: bytes, region: str, request_: MnsRequest, signature: str
) -> None:
    """Those of the Java SDK."""
    header = v4_header(region)
    text = string_to_sign_v4(request_, header, parse_http_date(V4_DATE) or 0)
    assert sign_v4(secret, header, text) == signature


def test_the_canonical_form_of_version_4() -> None:
    """Names in lower case, sorted and encoded; an empty value without its sign."""
    headers = {"x-mns-b": " 2 ", "content-type": "text/xml", "date": DATE, "host": "h"}
    request = MnsRequest("GET", "/queues/a%7Eb~/c d", "Z=1&a=&B=+", headers)
    assert canonical_request(request) == (
        "GET\n/queues/a~b~/c%20d\na&b=%2B&z=1\ncontent-type:text/xml\nx-mns-b:2\n\n"
    )


@pytest.mark.parametrize("algorithm", [V4, "APSARA-MNS4-HMAC-SHA256"])
def test_version_4_opens_the_account(algorithm: str) -> None:
    """In any region, and in the flavour of private clouds."""
    request = signed_v4(REQUEST, v4_header("moon", algorithm=algorithm))
    assert check(request) == "orders"
    with pytest.raises(BadSignature):
        check(request._replace(query="waitseconds=6"))


def test_the_day_of_version_4_is_that_of_the_date() -> None:
    """A key of yesterday signs nothing today."""
    with pytest.raises(BadSignature, match="Credential"):
        check(signed_v4(REQUEST, v4_header("moon", day="20250602")))


# --- who may pass --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"path": "/queues/r/messages"},
        {"query": "waitseconds=6"},
        {"query": ""},
    ],
)
def test_what_is_signed_cannot_be_changed(change: dict[str, str]) -> None:
    """Method, path and query."""
    with pytest.raises(BadSignature, match="string to sign"):
        check(signed(REQUEST)._replace(**change))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["content-md5", "content-type", "x-mns-version"])
def test_headers_that_are_signed_cannot_be_added(name: str) -> None:
    """Nor changed."""
    request = signed(REQUEST)
    with pytest.raises(BadSignature):
        check(request._replace(headers={**request.headers, name: "x"}))


def test_there_must_be_a_signature() -> None:
    """Without one there is nothing to check."""
    with pytest.raises(NoCredentials):
        check(REQUEST)


@pytest.mark.parametrize(
    "text",
    [
        "MNS",
        "MNS id",
        "MNS :x",
        "MNS id:",
        "SharedKey id:x",
        "Bearer x",
        V4,
        f"{V4} Credential=id,Signature=x",
        f"{V4} Credential=id/20250603/r/mns/aliyun_v4_request",
        f"{V4} Credential=id/20250603/r/oss/aliyun_v4_request,Signature=x",
        f"{V4} Credential=id/20250603/r/mns/apsara_v4_request,Signature=x",
        f"{V4} Credential=/20250603/r/mns/aliyun_v4_request,Signature=x",
    ],
)
def test_headers_of_another_form(text: str) -> None:
    """They are told apart from signatures that are wrong."""
    with pytest.raises(MalformedCredentials):
        parse_authorization(text)


def test_an_id_with_slashes() -> None:
    """Only the last four parts of a credential are the scope."""
    found = parse_authorization(f"{V4} Credential=a/b/20250603/r/mns/aliyun_v4_request,Signature=x")
    assert (found.key_id, found.day, found.region) == ("a/b", "20250603", "r")


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({}, DateProblem.MISSING),
        ({"date": ""}, DateProblem.MISSING),
        ({"date": "yesterday"}, DateProblem.INVALID),
        ({"date": "2025-06-03T11:23:48Z"}, DateProblem.INVALID),
        ({"date": format_http_date(NOW_MS - 901_000)}, DateProblem.SKEWED),
        ({"date": format_http_date(NOW_MS + 901_000)}, DateProblem.SKEWED),
        ({"date": DATE, "x-mns-date": "never"}, DateProblem.INVALID),
    ],
)
def test_dates_that_are_wrong(headers: dict[str, str], problem: DateProblem) -> None:
    """Missing, unreadable, or too far off either way."""
    with pytest.raises(BadDate) as caught:
        check(signed(REQUEST._replace(headers=headers)))
    assert caught.value.problem is problem


@pytest.mark.parametrize("off_ms", [-900_000, 900_000])
def test_dates_at_the_edge(off_ms: int) -> None:
    """A quarter of an hour is allowed."""
    headers = {"date": format_http_date(NOW_MS + off_ms)}
    assert check(signed(REQUEST._replace(headers=headers))) == "orders"


def test_a_key_that_does_not_exist() -> None:
    """The service says so, whatever the signature is."""
    with pytest.raises(UnknownAccount):
        check(signed(REQUEST, key_id="nobody"))


def test_an_empty_secret_signs_nothing() -> None:
    """Or everybody could."""
    authenticator = MnsAuthenticator({"id": AccessKey("orders", (b"",))})
    with pytest.raises(BadSignature):
        authenticator.check(signed(REQUEST, b""), now_ms=NOW_MS)


def test_accounts_have_keys_by_themselves() -> None:
    """The name, and as secrets the keys in base64, as in a connection string."""
    account = Account(name="orders", keys=(b"\x00\x01", b""))
    assert keys_of_accounts([account]) == {"orders": AccessKey("orders", (b"AAE=",))}


@given(
    text=st.text(max_size=60),
    header=st.dictionaries(st.sampled_from(["date", "x-mns-a", "content-md5"]), st.text()),
    query=st.text(max_size=60),
)
def test_nothing_makes_it_fail(text: str, header: dict[str, str], query: str) -> None:
    """Whatever is sent, the answer is a refusal of a known kind."""
    for prefix in ("", "MNS ", "MNS id:", f"{V4} Credential=id/20250603/r/mns/aliyun_v4_request,"):
        headers = {"date": DATE, **header, "authorization": prefix + text}
        request = MnsRequest("GET", f"/{query}", query, headers)
        with pytest.raises((NoCredentials, MalformedCredentials, BadSignature, UnknownAccount)):
            check(request)
