"""Options that every call takes: time limits, headers, hooks, logging, retries."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Any, Self

import pytest
from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.storage.queue import ExponentialRetry, LinearRetry

from tests.e2e.azure_python.covers import covers
from tests.e2e.azure_python.refusals import refused
from tests.e2e.azure_python.sdk import Flavour, Sdk

if TYPE_CHECKING:
    from tests.e2e.server import Endpoint

_QUEUE_METHODS = [
    *("create_queue", "get_queue_properties", "set_queue_metadata", "set_queue_access_policy"),
    *("get_queue_access_policy", "send_message", "receive_message", "receive_messages"),
    *("update_message", "peek_messages", "delete_message", "clear_messages", "delete_queue"),
]
_SERVICE_METHODS = ["create_queue", "list_queues", "get_service_properties", "delete_queue"]


@covers(*[f"QueueClient.{method}:timeout" for method in _QUEUE_METHODS])
@covers(*[f"QueueServiceClient.{method}:timeout" for method in _SERVICE_METHODS])
@pytest.mark.parametrize("seconds", [1, 30, 3600])
async def test_every_call_takes_a_time_limit(sdk: Sdk, seconds: int) -> None:
    """In seconds; more than the service allows counts as that much."""
    queue, service = sdk.queue(sdk.new_name()), sdk.service()
    limit = {"timeout": seconds}
    await queue.create_queue(**limit)
    await queue.get_queue_properties(**limit)
    await queue.set_queue_metadata({"a": "1"}, **limit)
    await queue.set_queue_access_policy({}, **limit)
    await queue.get_queue_access_policy(**limit)
    sent = await queue.send_message("x", **limit)
    sent = await queue.update_message(sent, visibility_timeout=60, **limit)
    await queue.peek_messages(**limit)
    await queue.receive_message(**limit)
    await queue.receive_messages(**limit).all()
    await queue.delete_message(sent, **limit)
    await queue.clear_messages(**limit)
    await queue.delete_queue(**limit)
    name = sdk.new_name()
    await service.create_queue(name, **limit)
    await service.list_queues(results_per_page=1, **limit).by_page().first()
    await service.delete_queue(name, **limit)
    await service.get_service_properties(**limit)


async def test_answers_can_be_looked_at(sdk: Sdk) -> None:
    """Ids, version, date: what one needs to report a problem."""
    seen: list[Any] = []
    request_id = str(uuid.uuid4())
    await sdk.service().get_service_properties(
        raw_response_hook=seen.append, client_request_id=request_id
    )
    [answer] = seen
    headers = answer.http_response.headers
    assert headers["x-ms-client-request-id"] == request_id
    assert uuid.UUID(headers["x-ms-request-id"])
    assert headers["x-ms-version"]
    assert headers["Date"].endswith(" GMT")
    assert headers["Content-Type"].startswith("application/xml")


async def test_requests_can_be_looked_at_and_changed(sdk: Sdk) -> None:
    """Headers added by the caller are signed with the rest."""
    seen: list[Any] = []
    queue = sdk.queue(sdk.new_name(), user_agent="my-application/1.0")
    headers = {"x-ms-test": "with   spaces", "X-Other": "ä".encode().decode("latin-1")}
    await queue.create_queue(headers=headers, raw_request_hook=seen.append)
    request = seen[0].http_request
    assert request.headers["x-ms-test"] == headers["x-ms-test"]
    assert "my-application/1.0" in request.headers["User-Agent"]
    assert request.headers["Authorization"].startswith("SharedKey ")


@pytest.mark.parametrize("text", ["x", "ä" * 30_000])
async def test_content_can_be_validated(sdk: Sdk, text: str) -> None:
    """The client sends the body's MD5, and the server checks it."""
    queue = await sdk.new_queue()
    seen: list[Any] = []
    await queue.send_message(text, validate_content=True, raw_request_hook=seen.append)
    assert seen[0].http_request.headers["Content-MD5"]
    received = await queue.receive_message(validate_content=True)
    assert received.content == text


@pytest.mark.differs_on_azurite("does not look at Content-MD5")
async def test_a_body_that_does_not_match_its_md5_is_refused(sdk: Sdk) -> None:
    """Nothing is stored."""
    queue = await sdk.new_queue()
    with refused(400, "Md5Mismatch"):
        await queue.send_message("x", headers={"Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg=="})
    assert await queue.peek_messages() == []


async def test_calls_can_be_logged(sdk: Sdk, caplog: pytest.LogCaptureFixture) -> None:
    """With bodies, if wanted, and never with the signature."""
    queue = await sdk.new_queue()
    with caplog.at_level(logging.DEBUG, logger="azure.storage.queue"):
        await queue.send_message("to be logged", logging_enable=True, logging_body=True)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "to be logged" in text
    assert "Response status: 201" in text
    assert "SharedKey" not in text


async def test_a_slow_answer_is_no_error(sdk: Sdk) -> None:
    """Limits of the connection leave time enough."""
    queue = await sdk.new_queue()
    await queue.send_message("x", connection_timeout=5, read_timeout=5)
    assert (await queue.receive_message(read_timeout=5)).content == "x"


class _UnreliableFront:
    """Stands in front of the server, drops the first requests, and passes the others on."""

    def __init__(self, endpoint: Endpoint, failures: int) -> None:
        self._endpoint = endpoint
        self._failures = failures
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = 0
        """Connections on which a request has arrived."""
        self.url = ""
        """Address of the account behind it."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._endpoint.url.replace(str(self._endpoint.port), str(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.read(65_536)
            self.requests += 1
            if self.requests > self._failures:
                there = await asyncio.open_connection("127.0.0.1", self._endpoint.port)
                there[1].write(first)
                await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        finally:
            writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            target.write(data)
    finally:
        target.close()


@covers("ExponentialRetry", "LinearRetry")
async def test_the_client_repeats_what_got_no_answer(flavour: Flavour, endpoint: Endpoint) -> None:
    """A request whose connection breaks is signed and sent again."""
    sdk = Sdk(flavour, endpoint)
    options: list[dict[str, Any]] = [
        {"retry_total": 3, "initial_backoff": 0, "increment_base": 0, "random_jitter_range": 0}
    ]
    if flavour == "sync":  # the asynchronous policies are not public
        quick: dict[str, Any] = {"retry_total": 3, "random_jitter_range": 0}
        options.append({"retry_policy": LinearRetry(backoff=0, **quick)})
        exponential = ExponentialRetry(initial_backoff=0, increment_base=0, **quick)
        options.append({"retry_policy": exponential})
    try:
        for option in options:
            async with _UnreliableFront(endpoint, failures=2) as front:
                queue = sdk.QueueClient(front.url, sdk.new_name(), sdk.key, **option)
                hooked: list[int] = []
                await queue.create_queue(
                    retry_hook=lambda hooked=hooked, **k: hooked.append(k["retry_count"])
                )
                await queue.close()
            assert front.requests == 3
            # The transport of the asynchronous SDK repeats once by itself before it reports.
            assert hooked == ([0, 1] if flavour == "sync" else [0])
            assert (await sdk.queue(queue.queue_name).get_queue_properties()).metadata == {}
    finally:
        await sdk.aclose()


async def test_the_client_gives_up_after_the_retries_it_was_allowed(sdk: Sdk) -> None:
    """The error then is that of the connection."""
    async with _UnreliableFront(sdk.endpoint, failures=99) as front:
        options = {"initial_backoff": 0, "increment_base": 0, "random_jitter_range": 0}
        queue = sdk.QueueClient(front.url, sdk.new_name(), sdk.key, retry_total=1, **options)
        with pytest.raises((ServiceRequestError, ServiceResponseError)):
            await queue.create_queue()
        await queue.close()
    assert front.requests == (2 if sdk.flavour == "sync" else 4)
