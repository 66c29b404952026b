"""Which version a request is under, and what each one can do."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from leasehold.http.azure import call as versions
from leasehold.http.azure.call import choose_version, read_version
from leasehold.http.azure.errors import Fault
from tests.unit.http.azure.support import (
    ACCOUNT,
    MESSAGE,
    MESSAGES,
    Harness,
    error_of,
    header,
    message_xml,
    root_of,
)


def _before(version: str) -> str:
    return (date.fromisoformat(version) - timedelta(days=1)).isoformat()


@pytest.mark.parametrize(
    ("field", "since"),
    [
        ("delayed_put", "2011-08-18"),
        ("cors", "2013-08-15"),
        ("sas_forbidden", "2015-04-05"),
        ("put_answers", "2016-05-31"),
        ("error_code_header", "2017-07-29"),
        ("echoes_client_request_id", "2019-02-02"),
        ("challenges", "2019-12-12"),
    ],
)
def test_feature_begins_with_its_version(field: str, since: str) -> None:
    """A feature is there on the day of its version and not on the day before."""
    assert getattr(read_version(since), field) is True
    assert getattr(read_version(_before(since)), field) is False


@pytest.mark.parametrize(
    ("version", "body", "lease", "delay", "life", "unlimited"),
    [
        ("2009-09-19", 8192, (1, 7200), (0, 0), (1, 604_800), False),
        ("2011-08-17", 8192, (1, 7200), (0, 0), (1, 604_800), False),
        ("2011-08-18", 65_536, (1, 604_800), (0, 604_800), (1, 604_800), False),
        ("2017-07-28", 65_536, (1, 604_800), (0, 604_800), (1, 604_800), False),
        ("2017-07-29", 65_536, (1, 604_800), (0, 604_800), (1, 2**63 - 1), True),
    ],
)
def test_limits_follow_the_version(
    *, version: str, body: int, lease: Any, delay: Any, life: Any, unlimited: bool
) -> None:
    """Each range of versions has its own limits."""
    limits = read_version(version).limits
    assert (limits.body_bytes, limits.lease_s, limits.delay_s) == (body, lease, delay)
    assert (limits.time_to_live_s, limits.unlimited_time_to_live) == (life, unlimited)


@pytest.mark.parametrize("version", ["2027-01-01", "2099-12-31", "2018-03-28", "2009-09-19"])
def test_any_date_from_the_oldest_on_is_echoed(azure: Harness, version: str) -> None:
    """Versions that this server has never heard of work, and are told back."""
    response = azure.send("GET", MESSAGES, version=version)
    assert response.status == 200
    assert header(response, "x-ms-version") == version


@pytest.mark.parametrize(
    "version",
    [
        "", "latest", "2026-1-01", "2026-13-01", "2026-02-30", "20260101", "2009-09-18",
        "2026-10-06 ", "٢٠٢٦-01-01",
    ],
)  # fmt: skip
def test_malformed_version_is_refused(azure: Harness, version: str) -> None:
    """What is no date, or too old, is an invalid header; nothing is performed."""
    response = azure.send("GET", MESSAGES, version=version)
    details = {"HeaderName": "x-ms-version", "HeaderValue": version}
    assert error_of(response) == (400, "InvalidHeaderValue", details)
    assert header(response, "x-ms-version") is None
    assert azure.authenticator.seen == []


@pytest.mark.parametrize(
    ("headers", "params", "expected"),
    [
        ({"x-ms-version": "2019-02-02"}, {"sig": "s", "sv": "2020-02-10"}, "2019-02-02"),
        ({}, {"sig": "s", "api-version": "2019-07-07", "sv": "2020-02-10"}, "2019-07-07"),
        ({}, {"sig": "s", "api-version": "", "sv": "2020-02-10"}, "2020-02-10"),
        ({}, {"api-version": "2019-07-07"}, "2009-09-19"),
        ({}, {}, "2009-09-19"),
    ],
)
def test_version_comes_from_header_then_signature(
    headers: dict[str, str], params: dict[str, str], expected: str
) -> None:
    """The header wins; api-version and sv count with a signature only."""
    assert choose_version(headers, params).text == expected


@pytest.mark.parametrize("name", ["api-version", "sv"])
def test_malformed_version_in_the_query_names_the_parameter(name: str) -> None:
    """A bad version in a query is an invalid parameter, not an invalid header."""
    with pytest.raises(Fault) as caught:
        choose_version({}, {"sig": "s", name: "soon"})
    assert caught.value.code == "InvalidQueryParameterValue"
    assert caught.value.details[0] == ("QueryParameterName", name)


def test_signed_request_must_name_a_version(azure: Harness) -> None:
    """Without a version it is not known what was signed."""
    response = azure.send("GET", MESSAGES, version=None, headers={"authorization": "SharedKey a:b"})
    code = "MissingRequiredHeader"
    assert error_of(response) == (400, code, {"HeaderName": "x-ms-version"})


def test_put_before_2016_05_31_has_an_empty_answer(azure: Harness) -> None:
    """Early clients get no body from Put Message."""
    body = message_xml("x")
    early = azure.send("POST", MESSAGES, body=body, version="2016-05-30")
    assert (early.status, early.body, header(early, "content-type")) == (201, b"", None)
    late = azure.send("POST", MESSAGES, body=body, version="2016-05-31")
    assert root_of(late).tag == "QueueMessagesList"


def test_error_code_header_begins_with_2017_07_29(azure: Harness) -> None:
    """Earlier errors have the code in the body only."""
    early = azure.send("GET", MESSAGES, "numofmessages=0", version="2017-07-28")
    assert header(early, "x-ms-error-code") is None
    assert error_of(early)[1] == "OutOfRangeQueryParameterValue"
    late = azure.send("GET", MESSAGES, "numofmessages=0", version="2017-07-29")
    assert header(late, "x-ms-error-code") == "OutOfRangeQueryParameterValue"


@pytest.mark.parametrize(
    ("client_id", "version", "echoed"),
    [
        ("8a2b", "2019-02-02", True),
        ("8a2b", "2019-02-01", False),
        ("x" * 1024, "2019-02-02", True),
        ("x" * 1025, "2019-02-02", False),
        ("with space", "2019-02-02", False),
        ("tab\t", "2019-02-02", False),
        ("caf\u00e9", "2019-02-02", False),
        ("", "2019-02-02", False),
    ],
)
def test_client_request_id_is_echoed(
    azure: Harness, client_id: str, version: str, echoed: bool
) -> None:
    """Visible ASCII of up to 1,024 characters comes back since 2019-02-02."""
    response = azure.send(
        "GET", MESSAGES, version=version, headers={"x-ms-client-request-id": client_id}
    )
    assert header(response, "x-ms-client-request-id") == (client_id if echoed else None)


@pytest.mark.parametrize(
    ("method", "path", "query", "since"),
    [
        ("PUT", MESSAGE, f"popreceipt={'A' * 36}&visibilitytimeout=0", "2011-08-18"),
        ("GET", f"/{ACCOUNT}/orders", "comp=acl", "2012-02-12"),
        ("PUT", f"/{ACCOUNT}/orders", "comp=acl", "2012-02-12"),
        ("GET", f"/{ACCOUNT}-secondary/", "restype=service&comp=stats", "2013-08-15"),
    ],
)
def test_operation_begins_with_its_version(
    azure: Harness, method: str, path: str, query: str, since: str
) -> None:
    """Before its version an operation is a feature mismatch."""
    early = azure.send(method, path, query, version=_before(since))
    assert error_of(early) == (409, "FeatureVersionMismatch", {})
    assert azure.send(method, path, query, version=since).status < 300


def test_put_took_no_delay_before_2011_08_18(azure: Harness) -> None:
    """A parameter from the future is not silently ignored."""
    response = azure.send(
        "POST", MESSAGES, "visibilitytimeout=0", body=message_xml("x"), version="2011-08-17"
    )
    details = {"QueryParameterName": "visibilitytimeout"}
    assert error_of(response) == (400, "UnsupportedQueryParameter", details)


def test_versions_are_remembered_within_bounds() -> None:
    """Somebody who sends every date there is fills no memory."""
    for day in range(1000):
        read_version((date(2030, 1, 1) + timedelta(days=day)).isoformat())
    info = read_version.cache_info()
    assert info.currsize == info.maxsize == 256


def test_newest_version_has_every_feature() -> None:
    """The version for unreadable requests is one that clients of today understand."""
    assert versions.UNREADABLE.error_code_header
    assert versions.UNREADABLE.header is None
