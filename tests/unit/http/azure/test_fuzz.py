"""Whatever arrives is answered, and never as a failure of ours."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.unit.http.azure.support import ACCOUNT, RECEIPT, Harness, error_of, message_xml

_METHODS = st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "brew", ""])
_PATHS = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(
            [ACCOUNT, f"{ACCOUNT}-secondary", "orders", "messages", "id", "", "%41", "%", "é"]
        ),
        max_size=6,
    ).map(lambda parts: "/" + "/".join(parts)),
)
_NAMES = [
    "comp", "restype", "peekonly", "numofmessages", "visibilitytimeout", "messagettl", "popreceipt",
    "maxresults", "marker", "prefix", "include", "timeout", "sig", "sv", "api-version", "x",
]  # fmt: skip
_VALUES = [
    "", "list", "metadata", "acl", "properties", "stats", "service", "userdelegationkey", "true",
    "false", "1", "0", "-1", "30", "604800", "99999999999999999999", "1.5", "%D9%A3", RECEIPT,
    "2026-10-06", "%00", "%zz", "%f0%9f%98%80", "+",
]  # fmt: skip
_QUERIES = st.one_of(
    st.text(max_size=20),
    st.lists(
        st.tuples(st.sampled_from(_NAMES), st.sampled_from(_VALUES)).map("=".join), max_size=4
    ).map("&".join),
)
_HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "x-ms-version", "host", "origin", "content-md5", "x-ms-client-request-id",
            "x-ms-meta-a", "x-ms-meta-", "x-ms-meta", "if-match", "access-control-request-method",
            "authorization", "content-length", "access-control-request-headers",
        ]
    ),
    st.sampled_from(["", "2026-10-06", "2009-09-19", "a", "GET", "*", "Bearer x", "é\ufffe", "\0"])
    | st.text(max_size=10),
    max_size=4,
)  # fmt: skip
_BODIES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"", message_xml("hi"), b"<SignedIdentifiers/>", b"<KeyInfo/>",
            b"<StorageServiceProperties/>",
            b"<SignedIdentifiers><SignedIdentifier/></SignedIdentifiers>",
            b"<StorageServiceProperties><Cors/></StorageServiceProperties>",
        ]
    ),
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=_METHODS,
    path=_PATHS,
    query=_QUERIES,
    headers=_HEADERS,
    body=_BODIES,
    too_large=st.booleans(),
)
def test_no_request_breaks_the_dialect(
    *, method: str, path: str, query: str, headers: dict[str, str], body: bytes, too_large: bool
) -> None:
    """Whatever arrives is answered, in the form of the protocol, and never as our own failure."""
    azure = Harness()
    with capture_logs() as logs:
        response = azure.send(method, path, query, headers=headers, body=body, too_large=too_large)
    assert logs == []
    assert 200 <= response.status < 500
    assert all(b"\r" not in value and b"\n" not in value for _, value in response.headers)
    assert len(azure.observed) == 1
    if response.status >= 400 and method != "HEAD":
        assert error_of(response)[0] == response.status
