"""Addresses of queues."""

from __future__ import annotations

import pickle

import pytest

from leasehold.worker.adapters.protocol import NotSupported
from leasehold.worker.adapters.specs import QueueSpec

KEY = "c2VjcmV0/3Nl+3JldA=="
QUOTED = "c2VjcmV0%2F3Nl%2B3JldA%3D%3D"
DEVELOPMENT = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"


def test_the_environment_says_where_leasehold_is() -> None:
    """Without a host the connection string of the environment is used."""
    known = {
        "AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=k;QueueEndpoint=http://h/a"
    }
    spec = QueueSpec.parse("leasehold:///orders", known)
    assert (spec.service, spec.queue) == ("leasehold", "orders")
    assert spec.connection == known["AZURE_STORAGE_CONNECTION_STRING"]


def test_without_an_environment_it_is_the_development_server() -> None:
    """On a machine where nothing is set the server of the quick start is meant."""
    assert QueueSpec.parse("leasehold:///orders", {}).connection == "UseDevelopmentStorage=true"


@pytest.mark.parametrize("service", ["leasehold", "azure"])
def test_a_host_with_an_account_and_a_key(service: str) -> None:
    """Account, key, scheme and port are taken from the address; the key is decoded."""
    spec = QueueSpec.parse(f"{service}+https://coho:{QUOTED}@queues.example:8443/orders", {})
    assert spec.connection == (
        "DefaultEndpointsProtocol=https;AccountName=coho;"
        f"QueueEndpoint=https://queues.example:8443/coho;AccountKey={KEY};"
    )


def test_a_host_alone_is_the_development_account() -> None:
    """That account has a key that everybody knows, and needs no variables."""
    spec = QueueSpec.parse("azure+http://127.0.0.1:10001/orders", {"AZURE_STORAGE_KEY": KEY})
    assert "AccountName=devstoreaccount1;" in spec.connection
    assert DEVELOPMENT in spec.connection


def test_an_account_of_azure_has_its_key_in_the_environment() -> None:
    """The host of an account is that of Azure, and the key goes before the signature."""
    known = {"AZURE_STORAGE_KEY": KEY, "AZURE_STORAGE_SAS_TOKEN": "?sv=1&sig=s"}
    spec = QueueSpec.parse("azure://coho/orders", known)
    assert "QueueEndpoint=https://coho.queue.core.windows.net;" in spec.connection
    assert f"AccountKey={KEY};" in spec.connection
    del known["AZURE_STORAGE_KEY"]
    spec = QueueSpec.parse("azure://coho/orders", known)
    assert spec.connection.endswith("SharedAccessSignature=sv=1&sig=s;")


def test_an_mns_queue_has_its_keys_in_the_environment() -> None:
    """The host is the endpoint, https unless said otherwise."""
    known = {
        "ALIBABA_CLOUD_ACCESS_KEY_ID": "id",
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "secret",
        "ALIBABA_CLOUD_SECURITY_TOKEN": "token",
    }
    spec = QueueSpec.parse("mns://1234.mns.cn-hangzhou.aliyuncs.com/orders?encoding=none", known)
    assert spec.connection == (
        "Endpoint=https://1234.mns.cn-hangzhou.aliyuncs.com;AccessKeyId=id;AccessKeySecret=secret;"
        "SecurityToken=token;"
    )
    assert spec.options == {"encoding": "none"}


def test_an_mns_queue_with_its_keys_in_the_address() -> None:
    """What the address says goes before the environment."""
    spec = QueueSpec.parse("mns+http://me:se%2Fcret@127.0.0.1:8080/orders", {})
    assert spec.connection == (
        "Endpoint=http://127.0.0.1:8080;AccessKeyId=me;AccessKeySecret=se/cret;"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("orders", "begins with"),
        ("sqs:///orders", "begins with"),
        ("leasehold+ftp://h/orders", "begins with"),
        ("leasehold://h/orders", r"leasehold\+http"),
        ("leasehold:///", "ends with"),
        (f"leasehold+http://a:{KEY}@h/orders", "%2F"),
        ("azure:///orders", "AZURE_STORAGE_CONNECTION_STRING"),
        ("azure://coho/orders", "AZURE_STORAGE_KEY"),
        ("mns:///orders", "host"),
        ("mns+https://h/orders", "ALIBABA_CLOUD_ACCESS_KEY_ID"),
        ("memory://h/orders", "no host"),
        ("leasehold+http://h:port/orders", "malformed"),
        ("azure:///orders?colour=red", "no option"),
        ("memory:///orders?encoding=auto", "no option"),
        ("azure:///orders?encoding=utf8", "encoding is"),
        ("leasehold:///orders?timeout_s=soon", "timeout_s"),
        ("leasehold:///orders?timeout_s=0", "timeout_s"),
    ],
)
def test_a_bad_address_is_refused_without_its_secrets(text: str, complaint: str) -> None:
    """The text says what is wrong, and shows no key."""
    with pytest.raises(ValueError, match=complaint) as caught:
        QueueSpec.parse(text, {})
    assert "c2VjcmV0" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    """A spec shows no connection string when it is printed."""
    spec = QueueSpec.parse(f"leasehold+http://coho:{QUOTED}@h/orders", {})
    assert "orders" in repr(spec)
    assert KEY not in repr(spec)
    assert "AccountKey" not in repr(spec)


def test_a_spec_goes_to_another_process() -> None:
    """What was pickled opens the same queue."""
    spec = QueueSpec.parse("leasehold+http://127.0.0.1:1/orders?timeout_s=2.5", {})
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    client = again.open()
    assert client.name == "orders"
    assert client.spec == spec
    client.close()


def test_memory_belongs_to_one_process() -> None:
    """A queue in memory cannot be opened by another, and that is said."""
    with pytest.raises(NotSupported, match="memory of one process"):
        QueueSpec.parse("memory:///orders", {}).open()


@pytest.mark.parametrize(
    "connection",
    ["", "Endpoint=http://h;AccessKeyId=i", "Endpoint=h;AccessKeyId=i;AccessKeySecret=s"],
)
def test_a_bad_connection_string_of_mns_is_refused(connection: str) -> None:
    """The part that is missing is named."""
    with pytest.raises(ValueError, match=r"Endpoint|AccessKeySecret"):
        QueueSpec("mns", "orders", connection).open()


@pytest.mark.parametrize("connection", ["", "AccountName=a;secret-part", "AccountName=a"])
def test_a_bad_connection_string_of_azure_is_refused(connection: str) -> None:
    """What cannot be used is said without showing it."""
    with pytest.raises(ValueError, match="connection string") as caught:
        QueueSpec("azure", "orders", connection).open()
    assert "secret-part" not in str(caught.value)
