"""Addresses, credentials and connection strings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection
from msgspec import UNSET

from leasehold.brokers import dramatiq, taskiq
from leasehold.brokers.kombu.transport import client_for
from leasehold.client import AsyncClient, Client
from leasehold.client._connection import DEVELOPMENT_KEY, connection_parts
from leasehold.client.errors import InvalidConnectionString
from leasehold.spark.pipeline.queries import StreamSettings
from leasehold.spark.pipeline.settings import RunSettings
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.specs import QueueSpec
from tests.unit.client.support import QUEUE, Driver, Script, answer

KEY = "c2VjcmV0IGtleSBvZiB0aGUgYWNjb3VudA=="
SAS = "sv=2026-10-06&ss=q&srt=sco&sp=raup&se=2030-01-01T00%3A00%3A00Z&sig=c2lnbmF0dXJl%2Bx%3D"
ADDRESSED = f"AccountName=acme;AccountKey={KEY};QueueEndpoint="


@pytest.mark.parametrize(
    ("text", "url", "account"),
    [
        ("UseDevelopmentStorage=true", "http://127.0.0.1:10001", "devstoreaccount1"),
        ("usedevelopmentstorage = True;", "http://127.0.0.1:10001", "devstoreaccount1"),
        (f"{ADDRESSED}http://q.test:8080/acme", "http://q.test:8080", "acme"),
        (f"{ADDRESSED}http://q.test:8080/acme/;", "http://q.test:8080", "acme"),
        (f"{ADDRESSED}https://acme.q.test", "https://acme.q.test", "acme"),
        (f"{ADDRESSED}https://acme.q.test/", "https://acme.q.test", "acme"),
        (f"{ADDRESSED}http://[::1]:10001/acme", "http://[::1]:10001", "acme"),
        (
            f"BlobEndpoint=https://b.test;{ADDRESSED}https://acme.q.test;TableEndpoint=x",
            "https://acme.q.test",
            "acme",
        ),
        (
            f"QueueEndpoint=http://q.test:1/acme;SharedAccessSignature={SAS}",
            "http://q.test:1",
            "acme",
        ),
        (
            f"QueueEndpoint=https://acme.queue.q.test/;SharedAccessSignature=?{SAS}",
            "https://acme.queue.q.test",
            "acme",
        ),
        (
            f"DefaultEndpointsProtocol=http;AccountName=acme;AccountKey={KEY};EndpointSuffix=q.test",
            "http://acme.queue.q.test",
            "acme",
        ),
        (
            f"AccountName=acme;AccountKey={KEY};EndpointSuffix=q.test",
            "https://acme.queue.q.test",
            "acme",
        ),
    ],
)
def test_a_connection_string_names_server_and_account(
    driver: Driver, text: str, url: str, account: str
) -> None:
    """Endpoints in path style and in host style lead to the same native API."""
    script = Script(answer(QUEUE))
    kind = type(driver.client(script))
    client = driver.keep(kind.from_connection_string(text, transport=client_transport(script)))
    assert (client.url, client.account) == (url, account)
    driver.do(client.queue("jobs").info())
    sent = script.last.url
    assert f"{sent.scheme}://{sent.netloc.decode()}" == url
    assert sent.path == f"/v1/accounts/{account}/queues/jobs"


def client_transport(script: Script) -> Any:
    """Return a transport that either client takes."""
    import httpx  # noqa: PLC0415 - for this helper alone

    return httpx.MockTransport(script)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        (";;", "empty"),
        ("AccountName", "part 1 of the connection string has no '='"),
        (f"AccountName=a;{KEY.rstrip('=')}", "part 2 of the connection string has no '='"),
        (f"AccountKey={KEY};accountkey={KEY}", "accountkey is repeated"),
        (f"AccountName=acme;AccountKey={KEY}", "QueueEndpoint is missing"),
        ("AccountName=acme;QueueEndpoint=http://q.test", "AccountKey or SharedAccessSignature"),
        (f"AccountKey={KEY};QueueEndpoint=http://127.0.0.1:1", "account's name is missing"),
        (f"AccountKey={KEY};QueueEndpoint=http://[::1", "QueueEndpoint"),
        (f"{ADDRESSED}http://q.test/other", "QueueEndpoint: the url's path"),
        (f"{ADDRESSED}http://q.test/acme/v1", "QueueEndpoint: the url's path"),
        (f"{ADDRESSED}q.test:10001", "QueueEndpoint: the url must begin with http"),
        (f"{ADDRESSED}http://q.test:99999", "QueueEndpoint: the url is malformed"),
        (f"{ADDRESSED}http://me:{KEY}@q.test", "QueueEndpoint: the url must have no user"),
        (f"{ADDRESSED}http://q.test/?{SAS}", "QueueEndpoint: the url must have no user"),
        (f"{ADDRESSED}http://q .test", "malformed"),
        ("AccountName=acme;AccountKey=not*base64;QueueEndpoint=http://q.test", "not base64"),
        (
            "QueueEndpoint=http://q.test/acme;SharedAccessSignature=sv=1&se=c2VjcmV0",
            "no 'sig' part",
        ),
        ("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://p", "QueueEndpoint"),
        ("UseDevelopmentStorage=true;QueueEndpoint=http://q.test/devstoreaccount1", "AccountKey"),
    ],
)
def test_a_wrong_connection_string_is_explained_without_its_secrets(
    driver: Driver, text: str, named: str
) -> None:
    """The error names the part and shows neither key nor signature."""
    kind = type(driver.client(Script()))
    with pytest.raises(InvalidConnectionString) as caught:
        kind.from_connection_string(text)
    shown = f"{caught.value} {caught.value!r}"
    assert named in shown
    for secret in (KEY, KEY.rstrip("="), "not*base64", "sig=", "c2VjcmV0"):
        assert secret not in shown
    assert isinstance(caught.value, ValueError)


def test_the_environment_is_asked_when_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a string it is the variable of the Azure tools, else the development server."""
    variable = "AZURE_STORAGE_CONNECTION_STRING"
    monkeypatch.delenv(variable, raising=False)
    assert connection_parts(UNSET).url == "http://127.0.0.1:10001"
    monkeypatch.setenv(variable, f"{ADDRESSED}http://q.test")
    assert connection_parts(UNSET).url == "http://q.test"
    assert connection_parts("UseDevelopmentStorage=true").url == "http://127.0.0.1:10001"
    monkeypatch.setenv(variable, "")
    assert connection_parts(UNSET).url == "http://127.0.0.1:10001"


@pytest.mark.parametrize(
    "make",
    [
        Client.from_connection_string,
        AsyncClient.from_connection_string,
        lambda given: NativeQueue.from_connection_string(given, "orders"),
        lambda given: QueueSpec("leasehold", "orders", given),
        lambda given: RunSettings(connection=given),
        lambda given: StreamSettings(checkpoint="/c", connection=given),
        dramatiq.LeaseholdBroker,
        lambda given: client_for(
            Connection("leasehold://", transport_options={"connection_string": given})
        ),
    ],
)
def test_none_is_no_connection_string(
    make: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that is missing leads to no server, neither of the environment nor another."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    with pytest.raises(ValueError, match="is None"):
        make(None)


def test_taskiq_takes_no_none_either() -> None:
    """Its client is made when it starts."""
    broker = taskiq.LeaseholdBroker(None)  # type: ignore[arg-type]  # a setting that is missing
    with pytest.raises(InvalidConnectionString, match="is None"):
        asyncio.run(broker.startup())


def test_a_signature_is_preferred_to_a_key() -> None:
    """With both in the string, the one that gives away less is used."""
    parts = connection_parts(f"{ADDRESSED}http://q.test;SharedAccessSignature={SAS}")
    assert (parts.key, parts.sas) == (None, SAS)


def test_the_development_account_needs_no_credential(driver: Driver) -> None:
    """Its key is public; any other account must bring one."""
    script = Script(answer(QUEUE))
    driver.do(driver.client(script).queue("jobs").info())
    assert script.last.headers["authorization"].startswith("SharedKey devstoreaccount1:")
    with pytest.raises(ValueError, match="exactly one of key, sas and token_provider"):
        driver.client(script, account="acme")


@pytest.mark.parametrize(
    "options",
    [
        {"key": KEY, "sas": SAS},
        {"key": KEY, "token_provider": lambda: "t"},
        {"sas": SAS, "token_provider": lambda: "t"},
    ],
)
def test_two_credentials_are_one_too_many(driver: Driver, options: dict[str, Any]) -> None:
    """Nobody could say which one is meant."""
    with pytest.raises(ValueError, match="exactly one of key, sas and token_provider"):
        driver.client(Script(), **options)


@pytest.mark.parametrize("url", ["http://q.test:10001", "http://10.0.0.7:10001"])
def test_a_key_or_token_never_travels_in_the_clear(driver: Driver, url: str) -> None:
    """Over plain http to another machine only signatures are sent."""
    for options in (
        {"key": KEY, "send_key": True},
        {"token_provider": driver.token_provider(["t"])},
    ):
        with pytest.raises(ValueError, match="over https or to this machine only"):
            driver.client(Script(), url=url, account="acme", **options)


@pytest.mark.parametrize(
    "url", ["https://q.test", "http://localhost:1", "http://127.0.0.9:1", "http://[::1]:1"]
)
def test_a_key_can_be_sent_as_it_is(driver: Driver, url: str) -> None:
    """An inspector key, or any key, is sent as a bearer token where that is private."""
    script = Script(answer(QUEUE))
    client = driver.client(script, url=url, account="acme", key=KEY, send_key=True)
    driver.do(client.queue("jobs").info())
    assert script.last.headers["authorization"] == f"Bearer {KEY}"
    assert "x-ms-version" in script.last.headers


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_timeout_must_be_above_zero(driver: Driver, timeout_s: float) -> None:
    """Zero would fail every call."""
    with pytest.raises(ValueError, match="timeout_s"):
        driver.client(Script(), timeout_s=timeout_s)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://q.test",
        "q.test",
        "http://",
        "http://q.test/x",
        "",
        "http://\u2603.test",
        " http://a",
        "http://a..b",
        f"http://{'a' * 64}.test",
        "http://a\x01b",
    ],
)
def test_an_address_that_cannot_be_one_is_refused(driver: Driver, url: str) -> None:
    """Before the first request, not by it."""
    with pytest.raises(ValueError, match="the url"):
        driver.client(Script(), url=url)


def test_the_account_may_stand_in_the_address(driver: Driver) -> None:
    """The queue endpoint of a connection string can be used as the url."""
    client = driver.client(Script(), url="http://127.0.0.1:10001/devstoreaccount1/")
    assert client.url == "http://127.0.0.1:10001"


def test_the_development_key_is_the_published_one() -> None:
    """It is the one that the server takes for the development account."""
    from leasehold.server.settings import values  # noqa: PLC0415 - the client itself may not import it

    assert DEVELOPMENT_KEY in vars(values).values()
