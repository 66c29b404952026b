"""Ways to name a server and to show credentials for it."""

from __future__ import annotations

import base64
import socket
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.storage.queue import (
    LocationMode,
    ResourceTypes,
    StorageErrorCode,
    TextBase64DecodePolicy,
    TextBase64EncodePolicy,
    generate_account_sas,
)
from azure.storage.queue._serialize import _SUPPORTED_API_VERSIONS

from tests.e2e.azure_python.covers import covers
from tests.e2e.azure_python.refusals import refused
from tests.e2e.azure_python.sdk import Client, Flavour, Sdk

if TYPE_CHECKING:
    from tests.e2e.server import Endpoint

BASE64 = {
    "message_encode_policy": TextBase64EncodePolicy(),
    "message_decode_policy": TextBase64DecodePolicy(),
}


async def _assert_works(queue: Client) -> None:
    """Create the queue, then send, receive and delete a message."""
    await queue.create_queue()
    await queue.send_message("hello")
    received = await queue.receive_message()
    assert received.content == "hello"
    await queue.delete_message(received)
    await queue.delete_queue()
    queue.__dict__["created"] = False


def _account_sas(endpoint: Endpoint) -> str:
    return generate_account_sas(
        endpoint.account,
        endpoint.key,
        ResourceTypes(service=True, container=True, object=True),
        "rwdlacup",
        "2099-01-01",
    )


@covers(
    "QueueClient.__init__:account_url,queue_name,credential",
    "QueueServiceClient.__init__:account_url,credential",
)
@pytest.mark.parametrize("kind", ["named key", "dictionary", "key", "sas", "?sas", "sas object"])
async def test_credentials(sdk: Sdk, kind: str) -> None:
    """Every kind of credential that the SDK knows, tokens apart."""
    account, key, sas = sdk.endpoint.account, sdk.endpoint.key, _account_sas(sdk.endpoint)
    credential: Any = {
        "named key": AzureNamedKeyCredential(account, key),
        "dictionary": {"account_name": account, "account_key": key},
        "key": key,
        "sas": sas,
        "?sas": f"?{sas}",
        "sas object": AzureSasCredential(sas),
    }[kind]
    await _assert_works(sdk.QueueClient(sdk.endpoint.url, sdk.new_name(), credential=credential))
    service = sdk.QueueServiceClient(sdk.endpoint.url, credential=credential)
    await _assert_works(service.get_queue_client(sdk.new_name()))


async def test_a_signature_in_the_address(sdk: Sdk) -> None:
    """The address of the account, or of the queue, may bring the signature along."""
    address = f"{sdk.endpoint.url}?{_account_sas(sdk.endpoint)}"
    await _assert_works(sdk.QueueClient(address, sdk.new_name()))
    await _assert_works(sdk.QueueServiceClient(address).get_queue_client(sdk.new_name()))
    name = sdk.new_name()
    address = f"{sdk.endpoint.url}/{name}?{_account_sas(sdk.endpoint)}"
    await _assert_works(sdk.QueueClient.from_queue_url(address))


@covers(
    "QueueClient.from_connection_string:conn_str,queue_name,credential,api_version,"
    "secondary_hostname,message_encode_policy,message_decode_policy,audience",
    "QueueServiceClient.from_connection_string:conn_str,credential,api_version,"
    "secondary_hostname,audience",
    "QueueClient.api_version",
    "QueueServiceClient.api_version",
)
async def test_connection_strings(sdk: Sdk) -> None:
    """With a key, with a signature, or with a credential beside it; names in any case."""
    endpoint, key = sdk.endpoint, sdk.key
    full = endpoint.connection_string
    signed = f"QueueEndpoint={endpoint.url}/;SharedAccessSignature={_account_sas(endpoint)}"
    bare = f"QueueEndpoint={endpoint.url}/"
    for text in (full, full.replace("AccountKey", "accountkey"), signed):
        queue = sdk.QueueClient.from_connection_string(conn_str=text, queue_name=sdk.new_name())
        await _assert_works(queue)
        service = sdk.QueueServiceClient.from_connection_string(conn_str=text)
        await _assert_works(service.get_queue_client(sdk.new_name()))

    other = endpoint.secondary_url.split("//")[1]
    options = {"api_version": "2021-12-02", "secondary_hostname": other, "audience": "x"}
    name = sdk.new_name()
    queue = sdk.QueueClient.from_connection_string(bare, name, credential=key, **options, **BASE64)
    await _assert_works(queue)
    service = sdk.QueueServiceClient.from_connection_string(bare, credential=key, **options)
    await _assert_works(service.get_queue_client(sdk.new_name()))
    assert queue.api_version == service.api_version == "2021-12-02"


@covers(
    "QueueClient.from_queue_url:queue_url,credential,api_version,secondary_hostname,"
    "message_encode_policy,message_decode_policy,audience"
)
async def test_the_address_of_a_queue(sdk: Sdk) -> None:
    """A client made from a queue's address talks to that queue."""
    name = sdk.new_name()
    queue = sdk.QueueClient.from_queue_url(
        f"{sdk.endpoint.url}/{name}",
        credential=sdk.key,
        api_version="2023-11-03",
        secondary_hostname=sdk.endpoint.secondary_url.split("//")[1],
        audience="https://storage.azure.com",
        **BASE64,
    )
    assert queue.queue_name == name
    await _assert_works(queue)


async def test_a_slash_at_the_end_does_no_harm(sdk: Sdk) -> None:
    """Addresses with and without it mean the same."""
    url = f"{sdk.endpoint.url}/"
    await _assert_works(sdk.QueueClient(url, sdk.new_name(), sdk.key))
    service = sdk.QueueServiceClient(url, sdk.key)
    await _assert_works(service.get_queue_client(sdk.new_name()))
    await service.list_queues(results_per_page=1).by_page().first()
    name = sdk.new_name()
    await _assert_works(sdk.QueueClient.from_queue_url(f"{url}{name}/", credential=sdk.key))


async def test_localhost_by_name(sdk: Sdk) -> None:
    """The SDK takes ``localhost`` for path style too."""
    if not sdk.endpoint.url.startswith("http://127.0.0.1:"):
        pytest.skip("the server is not on this machine")
    url = sdk.endpoint.url.replace("127.0.0.1", "localhost")
    await _assert_works(sdk.QueueClient(url, sdk.new_name(), sdk.endpoint.key))


async def test_development_storage(flavour: Flavour, development_endpoint: Endpoint) -> None:
    """``UseDevelopmentStorage=true`` finds a server with default settings."""
    sdk = Sdk(flavour, development_endpoint)
    text = "UseDevelopmentStorage=true"
    try:
        await _assert_works(sdk.QueueClient.from_connection_string(text, sdk.new_name()))
        service = sdk.QueueServiceClient.from_connection_string(text)
        await _assert_works(service.get_queue_client(sdk.new_name()))
    finally:
        await sdk.aclose()


@covers("StorageErrorCode")
async def test_a_wrong_key_is_refused(sdk: Sdk) -> None:
    """Whatever is asked."""
    wrong = AzureNamedKeyCredential(sdk.endpoint.account, base64.b64encode(b"x" * 64).decode())
    for call in (
        sdk.service(wrong).get_service_properties,
        sdk.queue(sdk.new_name(), wrong).create_queue,
    ):
        with refused(403, StorageErrorCode.AUTHENTICATION_FAILED, ClientAuthenticationError):
            await call()


@pytest.mark.differs_on_azurite("gives no details")
async def test_a_refusal_shows_what_should_have_been_signed(sdk: Sdk) -> None:
    """So that one can compare; for keys and for signatures."""
    wrong = AzureNamedKeyCredential(sdk.endpoint.account, base64.b64encode(b"x" * 64).decode())
    with refused(403, "AuthenticationFailed", ClientAuthenticationError) as refusal:
        await sdk.queue("some-queue", wrong).get_queue_properties()
    assert "some-queue" in refusal.details["authenticationerrordetail"]
    signature = generate_account_sas(
        sdk.endpoint.account, base64.b64encode(b"x" * 64).decode(), "s", "rl", "2099-01-01"
    )
    with refused(403, "AuthenticationFailed", ClientAuthenticationError) as refusal:
        await sdk.service(AzureSasCredential(signature)).list_queues().all()
    assert "2099-01-01" in refusal.details["authenticationerrordetail"]


async def test_an_unknown_account_is_refused(sdk: Sdk) -> None:
    """Nobody learns more than that it does not work."""
    url = sdk.endpoint.url.replace(sdk.endpoint.account, "nosuchaccount")
    key = AzureNamedKeyCredential("nosuchaccount", sdk.endpoint.key)
    with refused({403, 404}):
        await sdk.QueueServiceClient(url, key).get_service_properties()


async def test_the_client_wants_credentials(sdk: Sdk) -> None:
    """Before asking the server."""
    with pytest.raises(ValueError, match="SAS token or an account shared key"):
        sdk.QueueClient(sdk.endpoint.url, "name")
    with pytest.raises(ValueError, match="queue name"):
        sdk.QueueClient(sdk.endpoint.url, "", sdk.key)
    with pytest.raises(ValueError, match="malformed"):
        sdk.QueueServiceClient.from_connection_string("not a connection string")


@covers(
    "QueueClient.url",
    "QueueClient.primary_endpoint",
    "QueueClient.primary_hostname",
    "QueueServiceClient.url",
    "QueueServiceClient.primary_endpoint",
    "QueueServiceClient.primary_hostname",
)
async def test_addresses_lead_back_to_the_server(sdk: Sdk) -> None:
    """What a client tells as its address is good for another client."""
    service, queue = sdk.service(), await sdk.new_queue()
    assert service.url.rstrip("/") == service.primary_endpoint.rstrip("/") == sdk.endpoint.url
    assert queue.url == queue.primary_endpoint == f"{sdk.endpoint.url}/{queue.queue_name}"
    expected = sdk.endpoint.url.split("//")[1]
    assert service.primary_hostname == queue.primary_hostname == expected
    again = sdk.QueueClient.from_queue_url(queue.url, credential=sdk.key)
    await again.send_message("found")
    assert (await queue.receive_message()).content == "found"


@covers("LocationMode", "QueueClient.location_mode", "QueueServiceClient.location_mode")
@covers("QueueClient.secondary_endpoint", "QueueServiceClient.secondary_endpoint")
@covers("QueueClient.secondary_hostname", "QueueServiceClient.secondary_hostname")
@covers("QueueClient.__init__:secondary_hostname")
@covers("QueueServiceClient.__init__:secondary_hostname")
async def test_the_secondary_address_can_be_read(sdk: Sdk) -> None:
    """A client in secondary mode sees the queues and the messages."""
    host = sdk.endpoint.secondary_url.split("//")[1]
    queue = sdk.queue(sdk.new_name(), secondary_hostname=host)
    service = sdk.service(secondary_hostname=host)
    await queue.create_queue(metadata={"a": "1"})
    await queue.send_message("x")
    assert queue.secondary_hostname == service.secondary_hostname == host
    assert service.secondary_endpoint.rstrip("/") == sdk.endpoint.secondary_url
    assert queue.secondary_endpoint == f"{sdk.endpoint.secondary_url}/{queue.queue_name}"
    for client in (queue, service):
        assert client.location_mode == LocationMode.PRIMARY
        client.location_mode = LocationMode.SECONDARY
        assert client.location_mode == LocationMode.SECONDARY
    assert (await queue.get_queue_properties()).metadata == {"a": "1"}
    assert [m.content for m in await queue.peek_messages()] == ["x"]
    listed = await service.list_queues(name_starts_with=queue.queue_name).all()
    assert [q.name for q in listed] == [queue.queue_name]
    await service.get_service_properties()


@pytest.mark.differs_on_azurite("writes at the secondary address too")
async def test_the_secondary_address_cannot_be_written(sdk: Sdk) -> None:
    """Receiving is writing, too."""
    host = sdk.endpoint.secondary_url.split("//")[1]
    queue = sdk.queue(sdk.new_name(), secondary_hostname=host)
    await queue.create_queue()
    await queue.send_message("x")
    queue.location_mode = LocationMode.SECONDARY
    for call, arguments in (
        (queue.send_message, ["y"]),
        (queue.receive_message, []),
        (queue.clear_messages, []),
        (queue.set_queue_metadata, [{"a": "1"}]),
        (queue.delete_queue, []),
    ):
        with refused(403, "InsufficientAccountPermissions"):
            await call(*arguments)
    assert [m.content for m in await queue.peek_messages()] == ["x"]


@pytest.fixture
def _names_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name below ``localhost`` mean this machine, whatever the machine's resolver."""
    resolve = socket.getaddrinfo

    def resolve_here(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return resolve("127.0.0.1" if str(name).endswith(".localhost") else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)


@pytest.mark.usefixtures("_names_resolve")
@covers("QueueServiceClient.get_service_stats:timeout")
async def test_the_account_in_the_name_of_the_host(sdk: Sdk) -> None:
    """As in the cloud: keys and signatures work, and the secondary host is found by itself."""
    suffix = f"queue.core.localhost:{sdk.endpoint.port}"
    url = f"http://{sdk.endpoint.account}.{suffix}"
    await _assert_works(sdk.QueueClient(url, sdk.new_name(), sdk.endpoint.key))
    await _assert_works(sdk.QueueClient(url, sdk.new_name(), _account_sas(sdk.endpoint)))
    text = (
        f"DefaultEndpointsProtocol=http;EndpointSuffix=core.localhost:{sdk.endpoint.port};"
        f"AccountName={sdk.endpoint.account};AccountKey={sdk.endpoint.key}"
    )
    service = sdk.QueueServiceClient.from_connection_string(text)
    await _assert_works(service.get_queue_client(sdk.new_name()))
    assert service.secondary_hostname == f"{sdk.endpoint.account}-secondary.{suffix}"
    stats = await service.get_service_stats(timeout=30)
    assert stats["geo_replication"]["status"] in {"live", "bootstrap", "unavailable"}
    assert "last_sync_time" in stats["geo_replication"]


@pytest.mark.usefixtures("_names_resolve")
async def test_a_client_falls_back_to_the_secondary_host(sdk: Sdk) -> None:
    """Reads go there when nobody listens at the primary address."""
    queue = await sdk.new_queue()
    await queue.send_message("x")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = nobody.getsockname()[1]
        host = f"{sdk.endpoint.account}-secondary.queue.core.localhost:{sdk.endpoint.port}"
        reader = sdk.QueueClient(
            f"http://{sdk.endpoint.account}.queue.core.localhost:{port}",
            queue.queue_name,
            sdk.key,
            secondary_hostname=host,
            retry_to_secondary=True,
            retry_total=1,
            initial_backoff=0,
            increment_base=0,
            random_jitter_range=0,
        )
        assert [m.content for m in await reader.peek_messages()] == ["x"]


async def test_the_client_knows_no_secondary_host_of_an_ip_address(sdk: Sdk) -> None:
    """It must be told; without, it says so itself."""
    with pytest.raises(ValueError, match="No secondary host"):
        _ = sdk.service().secondary_endpoint
    with pytest.raises(ValueError, match="No host URL"):
        sdk.service().location_mode = LocationMode.SECONDARY


@covers("QueueClient.__init__:api_version", "QueueServiceClient.__init__:api_version")
@covers("QueueClient.api_version", "QueueServiceClient.api_version")
async def test_every_version_that_the_client_can_speak(sdk: Sdk, on_azurite: bool) -> None:
    """The answer is under the version of the request."""
    for version in _SUPPORTED_API_VERSIONS:
        queue = sdk.queue(sdk.new_name(), api_version=version)
        service = sdk.service(api_version=version)
        assert queue.api_version == service.api_version == version
        answered: list[Any] = []
        await queue.create_queue(raw_response_hook=answered.append)
        echoed = answered[0].http_response.headers["x-ms-version"]
        assert on_azurite or echoed == version
        await queue.send_message("x")
        received = await queue.receive_message()
        await queue.delete_message(received)
        assert await service.list_queues(name_starts_with=queue.queue_name).all()


@covers("QueueClient.close", "QueueServiceClient.close")
async def test_clients_can_be_closed(sdk: Sdk) -> None:
    """By hand or as contexts; a queue client of a service client shares its connections."""
    async with sdk.service() as service:
        queue = service.get_queue_client(sdk.new_name())
        async with queue:
            await _assert_works(queue)
        await _assert_works(service.get_queue_client(sdk.new_name()))
    alone = sdk.queue(sdk.new_name())
    await _assert_works(alone)
    await alone.close()
    await sdk.service().close()
