"""What the service answers, row by row: codes and statuses, with a store and signatures."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from tests.unit.http.azure.support import ACCOUNT, MESSAGES, error_of, message_xml, root_of
from tests.unit.http.azure.test_whole import Whole

_QUEUE: Final = f"/{ACCOUNT}/orders"
_ROOT: Final = f"/{ACCOUNT}"
_NOWHERE: Final = f"/{ACCOUNT}/missing"
_ID: Final = "00000000-0000-4000-8000-000000000000"
_TEXT: Final = message_xml("x")
_POLICY: Final = (
    "<SignedIdentifier><Id>{}</Id><AccessPolicy><Permission>r</Permission></AccessPolicy>"
    "</SignedIdentifier>"
)


def _acl(*policies: str) -> bytes:
    return f"<SignedIdentifiers>{''.join(policies)}</SignedIdentifiers>".encode()


class Row(NamedTuple):
    """A request, and what the service answers."""

    method: str
    path: str
    query: str
    body: bytes
    status: int
    code: str


_REFUSED: Final = (
    # Nothing there.
    Row("GET", _NOWHERE, "comp=metadata", b"", 404, "QueueNotFound"),
    Row("PUT", _NOWHERE, "comp=metadata", b"", 404, "QueueNotFound"),
    Row("GET", _NOWHERE, "comp=acl", b"", 404, "QueueNotFound"),
    Row("PUT", _NOWHERE, "comp=acl", b"", 404, "QueueNotFound"),
    Row("DELETE", _NOWHERE, "", b"", 404, "QueueNotFound"),
    Row("GET", f"{_NOWHERE}/messages", "", b"", 404, "QueueNotFound"),
    Row("GET", f"{_NOWHERE}/messages", "peekonly=true", b"", 404, "QueueNotFound"),
    Row("POST", f"{_NOWHERE}/messages", "", _TEXT, 404, "QueueNotFound"),
    Row("DELETE", f"{_NOWHERE}/messages", "", b"", 404, "QueueNotFound"),
    Row("DELETE", f"{MESSAGES}/{_ID}", "popreceipt=x", b"", 404, "MessageNotFound"),
    Row("PUT", f"{MESSAGES}/{_ID}", "popreceipt=x&visibilitytimeout=1", b"", 404,
        "MessageNotFound"),
    Row("DELETE", f"{MESSAGES}/no-id", "popreceipt=x", b"", 404, "MessageNotFound"),
    # What is left out.
    Row("DELETE", f"{MESSAGES}/{_ID}", "", b"", 400, "MissingRequiredQueryParameter"),
    Row("PUT", f"{MESSAGES}/{_ID}", "visibilitytimeout=1", b"", 400,
        "MissingRequiredQueryParameter"),
    Row("PUT", f"{MESSAGES}/{_ID}", "popreceipt=x", b"", 400, "MissingRequiredQueryParameter"),
    # Names.
    Row("PUT", f"/{ACCOUNT}/ab", "", b"", 400, "OutOfRangeInput"),
    Row("PUT", f"/{ACCOUNT}/{'a' * 64}", "", b"", 400, "OutOfRangeInput"),
    Row("PUT", f"/{ACCOUNT}/Upper", "", b"", 400, "InvalidResourceName"),
    Row("PUT", f"/{ACCOUNT}/two--dashes", "", b"", 400, "InvalidResourceName"),
    Row("PUT", f"/{ACCOUNT}/-dash", "", b"", 400, "InvalidResourceName"),
    Row("PUT", f"/{ACCOUNT}/dash-", "", b"", 400, "InvalidResourceName"),
    # Numbers.
    Row("GET", MESSAGES, "numofmessages=0", b"", 400, "OutOfRangeQueryParameterValue"),
    Row("GET", MESSAGES, "numofmessages=33", b"", 400, "OutOfRangeQueryParameterValue"),
    Row("GET", MESSAGES, "numofmessages=x", b"", 400, "InvalidQueryParameterValue"),
    Row("GET", MESSAGES, "visibilitytimeout=0", b"", 400, "OutOfRangeQueryParameterValue"),
    Row("GET", MESSAGES, "visibilitytimeout=604801", b"", 400, "OutOfRangeQueryParameterValue"),
    Row("POST", MESSAGES, "messagettl=0", _TEXT, 400, "OutOfRangeQueryParameterValue"),
    Row("POST", MESSAGES, "messagettl=-2", _TEXT, 400, "OutOfRangeQueryParameterValue"),
    Row("POST", MESSAGES, "visibilitytimeout=604801", _TEXT, 400,
        "OutOfRangeQueryParameterValue"),
    Row("POST", MESSAGES, "visibilitytimeout=30&messagettl=30", _TEXT, 400,
        "InvalidQueryParameterValue"),
    Row("GET", _ROOT, "comp=list&maxresults=0", b"", 400, "OutOfRangeQueryParameterValue"),
    Row("GET", _ROOT, "comp=list&marker=garbage", b"", 400, "OutOfRangeInput"),
    # Bodies.
    Row("POST", MESSAGES, "", b"<QueueMessage>", 400, "InvalidXmlDocument"),
    Row("POST", MESSAGES, "", message_xml("&#xFFFE;"), 400, "InvalidXmlDocument"),
    Row("POST", MESSAGES, "", message_xml("x" * 65_537), 413, "RequestBodyTooLarge"),
    Row("POST", MESSAGES, "", message_xml("x" * 131_584), 413, "RequestBodyTooLarge"),
    Row("PUT", _QUEUE, "comp=acl", _acl(*map(_POLICY.format, "abcdef")), 400,
        "InvalidXmlDocument"),
    Row("PUT", _QUEUE, "comp=acl", _acl(_POLICY.format("a" * 65)), 400, "InvalidXmlNodeValue"),
    Row("PUT", _QUEUE, "comp=acl", _acl(_POLICY.format("a").replace(">r<", ">rx<")), 400,
        "InvalidXmlDocument"),
    # Methods.
    Row("POST", _QUEUE, "", b"", 405, "UnsupportedHttpVerb"),
    Row("PATCH", MESSAGES, "", b"", 405, "UnsupportedHttpVerb"),
)  # fmt: skip


@pytest.fixture(name="whole")
def _whole() -> Whole:
    whole = Whole()
    assert whole.signed("PUT", _QUEUE).status == 201
    return whole


@pytest.mark.parametrize(
    "row", _REFUSED, ids=lambda row: f"{row.method} {row.path[17:]} {row.code}"
)
def test_refused_as_by_the_service(whole: Whole, row: Row) -> None:
    """Each mistake has the status and the code that the service has for it."""
    answer = whole.signed(row.method, row.path, row.query, row.body)
    assert error_of(answer)[:2] == (row.status, row.code)


@pytest.mark.parametrize(
    "row",
    [
        Row("PUT", _QUEUE, "", b"", 204, ""),
        Row("PUT", f"/{ACCOUNT}/{'a' * 63}", "", b"", 201, ""),
        Row("PUT", f"/{ACCOUNT}/abc", "", b"", 201, ""),
        Row("GET", _QUEUE, "comp=metadata", b"", 200, ""),
        Row("HEAD", _QUEUE, "comp=metadata", b"", 200, ""),
        Row("HEAD", _QUEUE, "comp=acl", b"", 200, ""),
        Row("PUT", _QUEUE, "comp=metadata", b"", 204, ""),
        Row("PUT", _QUEUE, "comp=acl", b"", 204, ""),
        Row("PUT", _QUEUE, "comp=acl", _acl(*map(_POLICY.format, "abcde")), 204, ""),
        Row("POST", MESSAGES, "", message_xml("é" * 32_768), 201, ""),
        Row("POST", MESSAGES, "", message_xml("&amp;" * 26_000), 201, ""),
        Row("POST", MESSAGES, "visibilitytimeout=604799", _TEXT, 201, ""),
        Row("POST", MESSAGES, "messagettl=-1&visibilitytimeout=604800", _TEXT, 201, ""),
        Row("GET", MESSAGES, "timeout=31&unknown=1&include=", b"", 200, ""),
        Row("DELETE", MESSAGES, "", b"", 204, ""),
        Row("GET", f"{_ROOT}/", "comp=list", b"", 200, ""),
        Row("GET", _ROOT, "comp=list&maxresults=5001", b"", 200, ""),
        Row("DELETE", _QUEUE, "", b"", 204, ""),
    ],
    ids=lambda row: f"{row.method} {row.path[17:60]} {row.query} {row.status}",
)
def test_served_as_by_the_service(whole: Whole, row: Row) -> None:
    """What is at the edge of a limit is served, with the status of the service."""
    assert whole.signed(row.method, row.path, row.query, row.body).status == row.status


def test_an_empty_queue(whole: Whole) -> None:
    """Get and Peek answer with an empty list, and at once."""
    for query in ("", "peekonly=true"):
        answer = whole.signed("GET", MESSAGES, query)
        assert (answer.status, len(root_of(answer))) == (200, 0)
