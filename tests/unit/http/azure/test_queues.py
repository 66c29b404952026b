"""The operations on queues, and their metadata."""

from __future__ import annotations

import pytest

from leasehold.domain.commands import (
    CreateQueue,
    DeleteQueue,
    GetQueue,
    QueueCreated,
    QueueInfo,
    SetQueueMetadata,
)
from leasehold.domain.model import Queue
from tests.unit.http.azure.support import ACCOUNT, ACTOR, Harness, error_of, header, make_request

_QUEUE = f"/{ACCOUNT}/orders"


@pytest.mark.parametrize(("created", "status"), [(True, 201), (False, 204)])
def test_create(azure: Harness, created: bool, status: int) -> None:
    """A new queue is 201, the same one again 204."""
    azure.results[CreateQueue] = QueueCreated(created=created)
    response = azure.send("PUT", _QUEUE, headers={"x-ms-meta-team": "blue", "x-ms-date": "today"})
    assert azure.command == CreateQueue(ACCOUNT, "orders", {"team": "blue"}, actor=ACTOR)
    assert (response.status, response.body) == (status, b"")


def test_stray_metadata_header_is_ignored(azure: Harness) -> None:
    """A client library sends its whole dictionary under x-ms-meta as well."""
    azure.send("PUT", _QUEUE, headers={"x-ms-meta": "{'Foo': 'Bar'}", "x-ms-meta-foo": "Bar"})
    assert azure.command == CreateQueue(ACCOUNT, "orders", {"foo": "Bar"}, actor=ACTOR)


def test_names_keep_their_case(azure: Harness) -> None:
    """Where the server knows how a name was spelt, it is kept so."""
    request = make_request("PUT", _QUEUE, headers={"x-ms-meta-foobar": "1", "x-ms-meta-b": "2"})
    request.raw_header_names = {"x-ms-meta-foobar": "X-Ms-Meta-fooBar"}
    assert azure.handle(request).status == 201
    assert azure.command == CreateQueue(ACCOUNT, "orders", {"fooBar": "1", "b": "2"}, actor=ACTOR)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-ms-meta-": "x"}, "EmptyMetadataKey"),
        ({"x-ms-meta-1st": "x"}, "InvalidMetadata"),
        ({"x-ms-meta-a-b": "x"}, "InvalidMetadata"),
        ({"x-ms-meta-a.b": "x"}, "InvalidMetadata"),
        ({"x-ms-meta-é": "x"}, "InvalidMetadata"),
        ({"x-ms-meta-a": "x\x00"}, "InvalidMetadata"),
        ({"x-ms-meta-a": "x\ny"}, "InvalidMetadata"),
        ({"x-ms-meta-a": "€"}, "InvalidMetadata"),
        ({"x-ms-meta-a": "x" * 8192}, "MetadataTooLarge"),
        ({"x-ms-meta-a": "x" * 5000, "x-ms-meta-b": "x" * 5000}, "MetadataTooLarge"),
    ],
)
@pytest.mark.parametrize("query", ["", "comp=metadata"])
def test_bad_metadata(azure: Harness, headers: dict[str, str], code: str, query: str) -> None:
    """A name must be an identifier, a value header text, all of them together 8 KiB."""
    assert error_of(azure.send("PUT", _QUEUE, query, headers=headers)) == (400, code, {})
    assert azure.commands == []


@pytest.mark.parametrize(
    "metadata",
    [{"_": ""}, {"a1": "caf\u00e9, tab\t~"}, {"a": "x" * 8191}, {"a": "1", "b": "2"}],
)
def test_good_metadata(azure: Harness, metadata: dict[str, str]) -> None:
    """What is allowed arrives as sent."""
    headers = {f"x-ms-meta-{name}": value for name, value in metadata.items()}
    assert azure.send("PUT", _QUEUE, headers=headers).status == 201
    assert azure.command == CreateQueue(ACCOUNT, "orders", metadata, actor=ACTOR)


@pytest.mark.parametrize("metadata", [{}, {"a": "1"}])
def test_set_metadata_replaces_all(azure: Harness, metadata: dict[str, str]) -> None:
    """No metadata at all clears what there is."""
    headers = {f"x-ms-meta-{name}": value for name, value in metadata.items()}
    assert azure.send("PUT", _QUEUE, "comp=metadata", headers=headers).status == 204
    assert azure.command == SetQueueMetadata(ACCOUNT, "orders", metadata, actor=ACTOR)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_get_metadata(azure: Harness, method: str) -> None:
    """Metadata and the count of messages come as headers, with no body."""
    queue = Queue(account=ACCOUNT, name="orders", metadata={"team": "blue", "Caf": "caf\u00e9"})
    azure.results[GetQueue] = QueueInfo(queue=queue, message_count=12)
    response = azure.send(method, _QUEUE, "comp=metadata")
    assert azure.command == GetQueue(ACCOUNT, "orders", with_counts=True)
    assert (response.status, response.body) == (200, b"")
    assert header(response, "x-ms-approximate-messages-count") == "12"
    assert header(response, "x-ms-meta-team") == "blue"
    assert header(response, "x-ms-meta-Caf") == "caf\u00e9"


def test_delete(azure: Harness) -> None:
    """Delete Queue deletes."""
    assert azure.send("DELETE", _QUEUE).status == 204
    assert azure.command == DeleteQueue(ACCOUNT, "orders", actor=ACTOR)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ab", "OutOfRangeInput"),
        ("a" * 64, "OutOfRangeInput"),
        ("-orders", "InvalidResourceName"),
        ("orders-", "InvalidResourceName"),
        ("or--ders", "InvalidResourceName"),
        ("Orders", "InvalidResourceName"),
        ("or_ders", "InvalidResourceName"),
        ("or%2Fders", "InvalidResourceName"),
        ("or%00ders", "InvalidResourceName"),
        ("%6Frders%0A", "InvalidResourceName"),
        ("%EF%BD%8Frders", "InvalidResourceName"),
    ],
)
def test_bad_names(azure: Harness, name: str, code: str) -> None:
    """A wrong length and wrong characters have codes of their own."""
    assert error_of(azure.send("PUT", f"/{ACCOUNT}/{name}")) == (400, code, {})
    assert azure.commands == []


@pytest.mark.parametrize("name", ["abc", "a" * 63, "1-2-3", "%6Frders"])
def test_good_names(azure: Harness, name: str) -> None:
    """Names are decoded before they are looked at."""
    assert azure.send("PUT", f"/{ACCOUNT}/{name}").status == 201
    command = azure.command
    assert isinstance(command, CreateQueue)
    assert command.queue == name.replace("%6F", "o")
