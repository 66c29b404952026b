"""Queues of ``leasehold worker run``: names, addresses, weights, connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold.cli.worker_setup import QueueOpener, read_weight
from leasehold.server.settings.values import DEV_KEY
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters import QueueClient
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.specs import QueueSpec

KEY = "c2VjcmV0a2V5"
NOTHING: dict[str, Any] = {
    "connection_string": None,
    "url": None,
    "account": None,
    "key_file": None,
    "send_key": False,
    "ca_file": None,
    "as_json": False,
    "no_color": False,
}
Opening = Callable[..., tuple[QueueSpec, str]]


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    """Open a queue; return what it would be opened with, and where it is said to be."""
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_KEY"):
        monkeypatch.delenv(name, raising=False)

    def opening(
        text: str, *, azure: bool = False, mns: str | None = None, **given: Any
    ) -> tuple[QueueSpec, str]:
        specs: list[QueueSpec] = []

        def open_spec(spec: QueueSpec) -> QueueClient:
            specs.append(spec)
            return MemoryQueue(spec.queue)

        opener = QueueOpener({**NOTHING, **given}, azure=azure, mns=mns, open_spec=open_spec)
        opened = opener.open(text)
        return specs[0], opened.where

    return opening


@pytest.mark.parametrize(
    ("text", "name", "weight"),
    [
        ("orders", "orders", 1),
        ("orders=3", "orders", 3),
        ("orders=0.5", "orders", 0.5),
        ("orders=0", "orders", 0),
        ("orders=x", "orders=x", 1),
        ("azure:///orders=2", "azure:///orders", 2),
        ("azure:///orders?timeout_s=5", "azure:///orders?timeout_s=5", 1),
        ("azure:///orders?timeout_s=5=2", "azure:///orders?timeout_s=5", 2),
        (
            "azure:///orders?encoding=none&timeout_s=5=2",
            "azure:///orders?encoding=none&timeout_s=5",
            2,
        ),
    ],
)
def test_weights(text: str, name: str, weight: float) -> None:
    """A number behind the name is its weight, unless it is the value of an address's option."""
    assert read_weight(text) == (name, weight)


def test_names_are_of_the_development_server(opening: Opening) -> None:
    """Unless told otherwise."""
    spec, where = opening("orders")
    assert (spec.service, spec.queue) == ("leasehold", "orders")
    assert spec.connection == "UseDevelopmentStorage=true"
    assert where == "leasehold at http://127.0.0.1:10001"


def test_connection_strings(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the command line goes before that of the environment; keys are not shown."""
    text = f"AccountName=a;AccountKey={KEY};QueueEndpoint=https://queues.contoso.com/a;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert opening("orders")[0].connection == text
    spec, where = opening("orders", azure=True)
    assert (spec.service, where) == ("azure", "azure at https://queues.contoso.com")
    other = f"DefaultEndpointsProtocol=https;AccountName=b;AccountKey={KEY}"
    spec, where = opening("orders", azure=True, connection_string=other)
    assert (spec.connection, where) == (other, "azure, account b")


def test_parts_of_a_connection(opening: Opening, tmp_path: Path) -> None:
    """Address, account and key file amount to a connection string."""
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    given = {"url": "https://queues.contoso.com/a/", "account": "a", "key_file": str(file)}
    assert opening("orders", **given)[0].connection == (
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY};"
        "QueueEndpoint=https://queues.contoso.com/a;"
    )
    assert opening("orders", url="http://10.0.0.1:7")[0].connection == (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={DEV_KEY};"
        "QueueEndpoint=http://10.0.0.1:7/devstoreaccount1;"
    )


@pytest.mark.parametrize("endpoint", ["1234.mns.cn-hangzhou.aliyuncs.com", "https://1234.mns.x/"])
def test_names_at_mns(opening: Opening, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """The endpoint is that of the option, the keys are those of the environment."""
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", KEY)
    spec, where = opening("orders=2", mns=endpoint)
    assert (spec.service, spec.queue) == ("mns", "orders")
    assert where == f"mns at https://{endpoint.removeprefix('https://').rstrip('/')}"


def test_addresses_go_anywhere(opening: Opening) -> None:
    """Whatever the options say of names."""
    address = f"leasehold+http://a:{KEY}@10.0.0.1:7/orders"
    spec, where = opening(address, azure=True)
    assert (spec.service, spec.queue) == ("leasehold", "orders")
    assert where == "leasehold at http://10.0.0.1:7"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"leasehold+ftp://a:{KEY}@10.0.0.1:7/orders?x=1", r"^queue leasehold\+ftp://10.0.0.1:7/"),
        ("azure://contoso/orders", "^queue azure://contoso/orders: no key for account contoso"),
    ],
)
def test_what_cannot_be_opened(opening: Opening, text: str, complaint: str) -> None:
    """Is named without its key."""
    with pytest.raises(ValueError, match=complaint) as caught:
        opening(text)
    assert KEY not in str(caught.value)


def test_azure_needs_to_be_told_where(opening: Opening) -> None:
    """There is no development server of Azure to fall back on."""
    with pytest.raises(ValueError, match="set AZURE_STORAGE_CONNECTION_STRING, or give"):
        opening("orders", azure=True)


def test_a_missing_sdk_is_named() -> None:
    """With the extra that brings it."""

    def open_spec(spec: QueueSpec) -> QueueClient:
        raise ModuleNotFoundError("No module named 'mns'", name="mns.account")

    opener = QueueOpener(NOTHING, azure=False, mns=None, open_spec=open_spec)
    with pytest.raises(ValueError, match=r"queue q: the library mns is missing: .*\.\[mns\]"):
        opener.open("q")


def test_what_a_connection_string_cannot_say(tmp_path: Path) -> None:
    """A key that is sent as it is: then the queue has no spec, and cannot be opened elsewhere."""
    opener = QueueOpener({**NOTHING, "send_key": True}, azure=False, mns=None)
    one, other = opener.open("orders"), opener.open("returns=2")
    assert isinstance(one.client, NativeQueue)
    assert (one.client.spec, one.where) == (None, "leasehold at http://127.0.0.1:10001")
    assert (other.client.name, other.weight) == ("returns", 2)
    opener.close()
