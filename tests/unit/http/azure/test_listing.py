"""List Queues."""

from __future__ import annotations

import pytest

from leasehold.domain.commands import ListQueues, QueuePage
from leasehold.domain.model import Queue
from tests.unit.http.azure.support import ACCOUNT, BOM, Harness, error_of, root_of

_ROOT = f"/{ACCOUNT}"
_PAGE = QueuePage(
    queues=(
        Queue(account=ACCOUNT, name="first", metadata={"team": "blue & <red>", "not-xml!": "x"}),
        Queue(account=ACCOUNT, name="second"),
    ),
    next_start="third",
)


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ("comp=list", ListQueues(ACCOUNT, "", "", 5000)),
        ("comp=list&include=&prefix=&marker=&maxresults=", ListQueues(ACCOUNT, "", "", 5000)),
        ("comp=list&prefix=a%26b", ListQueues(ACCOUNT, "a&b", "", 5000)),
        ("comp=list&maxresults=1&include=metadata", ListQueues(ACCOUNT, "", "", 1)),
        (
            f"maxresults=5000&marker=%2F{ACCOUNT}%2Fthird&comp=list",
            ListQueues(ACCOUNT, "", "third", 5000),
        ),
    ],
)
@pytest.mark.parametrize("slash", ["", "/"])
def test_command(azure: Harness, query: str, command: ListQueues, slash: str) -> None:
    """Prefix, marker and page size become one command, with either form of the address."""
    assert azure.send("GET", _ROOT + slash, query).status == 200
    assert azure.command == command


def test_whole_answer(azure: Harness) -> None:
    """The elements come in the service's order, those of the request only if it had them."""
    azure.results[ListQueues] = _PAGE
    query = f"comp=list&prefix=f&maxresults=2&marker=/{ACCOUNT}/first&include=metadata"
    response = azure.send("GET", _ROOT + "/", query)
    assert (
        response.body
        == BOM
        + (
            '<?xml version="1.0" encoding="utf-8"?>'
            f'<EnumerationResults ServiceEndpoint="http://127.0.0.1:10001/{ACCOUNT}/">'
            f"<Prefix>f</Prefix><Marker>/{ACCOUNT}/first</Marker><MaxResults>2</MaxResults><Queues>"
            "<Queue><Name>first</Name><Metadata><team>blue &amp; &lt;red&gt;</team>"
            "<x-ms-invalid-name>not-xml!</x-ms-invalid-name></Metadata></Queue>"
            "<Queue><Name>second</Name><Metadata /></Queue>"
            f"</Queues><NextMarker>/{ACCOUNT}/third</NextMarker></EnumerationResults>"
        ).encode()
    )


def test_marker_of_an_answer_leads_to_the_next_page(azure: Harness) -> None:
    """A client gives the marker back as it got it."""
    azure.results[ListQueues] = _PAGE
    marker = root_of(azure.send("GET", _ROOT, "comp=list")).findtext("NextMarker")
    azure.send("GET", _ROOT, f"comp=list&marker={marker}")
    assert azure.commands[-1] == ListQueues(ACCOUNT, "", "third", 5000)


def test_plain_answer(azure: Harness) -> None:
    """Without include there is no metadata; at the end the marker is empty."""
    azure.results[ListQueues] = QueuePage(queues=_PAGE.queues, next_start=None)
    root = root_of(azure.send("GET", _ROOT, "comp=list"))
    assert [child.tag for child in root] == ["Queues", "NextMarker"]
    assert [[node.tag for node in queue] for queue in root[0]] == [["Name"], ["Name"]]
    assert root[1].text is None


def test_no_queues(azure: Harness) -> None:
    """An account without queues has an empty list."""
    body = azure.send("GET", _ROOT, "comp=list").body
    assert body.endswith(b"<Queues /><NextMarker /></EnumerationResults>")


@pytest.mark.parametrize(
    ("headers", "path", "https", "expected"),
    [
        ({}, _ROOT, True, f"https://127.0.0.1:10001/{ACCOUNT}/"),
        ({}, f"{_ROOT}-secondary/", False, f"http://127.0.0.1:10001/{ACCOUNT}-secondary/"),
        ({"host": "other.queue.local"}, "/", False, "http://other.queue.local/"),
        ({"host": 'a"&<b'}, _ROOT, False, f'http://a"&<b/{ACCOUNT}/'),
    ],
)
def test_service_endpoint(
    azure: Harness, headers: dict[str, str], path: str, https: bool, expected: str
) -> None:
    """The address of the service is the one the client has used."""
    response = azure.send("GET", path, "comp=list", headers=headers, https=https)
    assert root_of(response).attrib == {"ServiceEndpoint": expected}


def test_older_form(azure: Harness) -> None:
    """Before 2013-08-15 the root named the account, and every queue its address."""
    azure.results[ListQueues] = _PAGE
    root = root_of(azure.send("GET", _ROOT, "comp=list", version="2013-08-14"))
    assert root.attrib == {"AccountName": f"http://127.0.0.1:10001/{ACCOUNT}/"}
    assert root.findtext("Queues/Queue/Url") == f"http://127.0.0.1:10001/{ACCOUNT}/first"
    newer = root_of(azure.send("GET", _ROOT, "comp=list", version="2013-08-15"))
    assert list(newer.attrib) == ["ServiceEndpoint"]
    assert newer.find("Queues/Queue/Url") is None


@pytest.mark.parametrize("value", ["5001", "2147483647"])
def test_more_than_a_page(azure: Harness, value: str) -> None:
    """Who asks for more than 5,000 queues gets a page of 5,000."""
    azure.results[ListQueues] = _PAGE
    assert azure.send("GET", _ROOT, f"comp=list&maxresults={value}").status == 200
    assert azure.commands == [ListQueues(ACCOUNT, "", "", 5000)]


@pytest.mark.parametrize("value", ["0", "-1", "2147483648"])
def test_page_size_out_of_range(azure: Harness, value: str) -> None:
    """No page is empty, and what no 32-bit number holds is refused."""
    status, code, details = error_of(azure.send("GET", _ROOT, f"comp=list&maxresults={value}"))
    assert (status, code) == (400, "OutOfRangeQueryParameterValue")
    assert details == {
        "QueryParameterName": "maxresults",
        "QueryParameterValue": value,
        "MinimumAllowed": "1",
        "MaximumAllowed": "2147483647",
    }


@pytest.mark.parametrize(
    "marker",
    ["garbage", "third", "/third", "/other/third", f"/{ACCOUNT}/", f"/{ACCOUNT}/No!", "%00", "/"],
)
def test_garbage_markers(azure: Harness, marker: str) -> None:
    """A marker that this server never gave out is refused."""
    response = azure.send("GET", _ROOT, f"comp=list&marker={marker}")
    assert error_of(response) == (400, "OutOfRangeInput", {})
    assert azure.commands == []


def test_unknown_include(azure: Harness) -> None:
    """Nothing but metadata can be included."""
    response = azure.send("GET", _ROOT, "comp=list&include=metadata,messages")
    assert error_of(response)[2]["QueryParameterName"] == "include"


@pytest.mark.parametrize("include", ["metadata", "Metadata", ",metadata,", "metadata%20"])
def test_spellings_of_include(azure: Harness, include: str) -> None:
    """The list may have empty parts, and its case does not matter."""
    azure.results[ListQueues] = _PAGE
    root = root_of(azure.send("GET", _ROOT, f"comp=list&include={include}"))
    assert root.find("Queues/Queue/Metadata") is not None
