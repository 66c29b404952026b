"""The official Python SDK, synchronous and asynchronous, behind one awaitable shape.

A test is written once, as a coroutine, in the manner of the asynchronous SDK. For the synchronous
one the same calls run in threads, so that ``asyncio.gather`` makes both do several things at once.
Nothing of the SDK is replaced or patched: the classes here only pass calls on and note which.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.core.exceptions import ResourceNotFoundError
from azure.core.paging import ItemPaged, PageIterator
from azure.storage import queue as sync_sdk
from azure.storage.queue import aio as async_sdk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.e2e.server import Endpoint

Flavour = Literal["sync", "async"]
FLAVOURS: Final[tuple[Flavour, ...]] = ("sync", "async")
SYNC_CLASSES: Final[dict[str, type[Any]]] = {
    "QueueClient": sync_sdk.QueueClient,
    "QueueServiceClient": sync_sdk.QueueServiceClient,
}
ASYNC_CLASSES: Final[dict[str, type[Any]]] = {
    "QueueClient": async_sdk.QueueClient,
    "QueueServiceClient": async_sdk.QueueServiceClient,
}
_END: Final = object()
_FAR_FUTURE_S: Final = 4_102_444_800  # 2100-01-01


class Sdk:
    """One flavour of the SDK, aimed at one endpoint; closes its clients at the end of a test."""

    def __init__(self, flavour: Flavour, endpoint: Endpoint) -> None:
        self.flavour = flavour
        self.endpoint = endpoint
        self.used: set[str] = set()
        """Members of the client classes that the test has used; ``Class.method:argument`` too."""
        self.QueueClient = ClientClass(self, "QueueClient")
        self.QueueServiceClient = ClientClass(self, "QueueServiceClient")
        self.options: dict[str, Any] = {"retry_total": 0}  # a test must see every answer
        if endpoint.ca_file:
            self.options["connection_verify"] = endpoint.ca_file
        self._clients: list[Client] = []
        self._queues: list[Client] = []

    @property
    def key(self) -> AzureNamedKeyCredential:
        """The account's name and key."""
        return AzureNamedKeyCredential(self.endpoint.account, self.endpoint.key)

    def service(self, credential: Any = None, **options: Any) -> Client:
        """Return a service client of the endpoint, with the account's key unless told otherwise."""
        return self.QueueServiceClient(self.endpoint.url, credential or self.key, **options)

    def queue(self, name: str, credential: Any = None, **options: Any) -> Client:
        """Return a client of a queue of the endpoint."""
        return self.QueueClient(self.endpoint.url, name, credential or self.key, **options)

    def new_name(self) -> str:
        """Return a queue name that nobody else uses."""
        return f"e2e-{uuid.uuid4().hex}"

    async def new_queue(self, **options: Any) -> Client:
        """Return a client of a new queue; *options* are the client's."""
        made = self.queue(self.new_name(), **options)
        await made.create_queue()
        return made

    def token_credential(self, *tokens: str) -> TokenCredential | AsyncTokenCredential:
        """Return a credential that hands out *tokens* in turn, then the last one for ever."""
        kind = TokenCredential if self.flavour == "sync" else AsyncTokenCredential
        return kind(tokens)

    def wrap(self, client: Any, class_name: str) -> Client:
        """Return the client behind the common shape."""
        wrapped = Client(self, client, class_name)
        self._clients.append(wrapped)
        if class_name == "QueueClient":
            self._queues.append(wrapped)
        return wrapped

    async def aclose(self) -> None:
        """Delete what the test has created and close what it has opened."""
        names = {queue.inner.queue_name for queue in self._queues if queue.created}
        service = self.service()
        for name in names:
            with contextlib.suppress(ResourceNotFoundError):
                await service.delete_queue(name)
        for client in reversed(self._clients):
            await client.close()


class ClientClass:
    """A client class of the SDK: call it, or call its class methods."""

    def __init__(self, sdk: Sdk, name: str) -> None:
        self._sdk = sdk
        self._name = name
        self._class = (SYNC_CLASSES if sdk.flavour == "sync" else ASYNC_CLASSES)[name]

    def __call__(self, *args: Any, **options: Any) -> Client:
        _note(self._sdk, f"{self._name}.__init__", self._class, args, options)
        return self._sdk.wrap(self._class(*args, **self._sdk.options | options), self._name)

    def __getattr__(self, method: str) -> Callable[..., Client]:
        def make(*args: Any, **options: Any) -> Client:
            function = getattr(self._class, method)
            _note(self._sdk, f"{self._name}.{method}", function, args, options)
            return self._sdk.wrap(function(*args, **self._sdk.options | options), self._name)

        return make


class Client:
    """A client object: its methods are awaitable where the asynchronous SDK's are."""

    def __init__(self, sdk: Sdk, inner: Any, class_name: str) -> None:
        self.__dict__.update(_sdk=sdk, inner=inner, _class_name=class_name, created=False)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not inspect.ismethod(value):
            self._sdk.used.add(f"{self._class_name}.{name}")
            return value
        if inspect.iscoroutinefunction(getattr(ASYNC_CLASSES[self._class_name], name)):
            return partial(self._call, name, value)
        return partial(self._call_at_once, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        self._sdk.used.add(f"{self._class_name}.{name}")
        setattr(self.inner, name, value)

    async def __aenter__(self) -> Self:
        if self._sdk.flavour == "sync":
            self.inner.__enter__()
        else:
            await self.inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._sdk.flavour == "sync":
            self.inner.__exit__(*error)
        else:
            await self.inner.__aexit__(*error)

    async def _call(self, name: str, method: Any, *args: Any, **options: Any) -> Any:
        _note(self._sdk, f"{self._class_name}.{name}", method, args, options)
        if self._sdk.flavour == "sync":
            result = await asyncio.to_thread(method, *args, **options)
        else:
            result = await method(*args, **options)
        if name == "create_queue" and self._class_name == "QueueClient":
            self.__dict__["created"] = True
        return self._wrapped(result)

    def _call_at_once(self, name: str, method: Any, *args: Any, **options: Any) -> Any:
        _note(self._sdk, f"{self._class_name}.{name}", method, args, options)
        return self._wrapped(method(*args, **options))

    def _wrapped(self, result: Any) -> Any:
        class_name = type(result).__name__
        if class_name in SYNC_CLASSES:  # a service's queue client shares its connections
            client = self._sdk.wrap(result, class_name)
            client.__dict__["created"] = True
            return client
        if hasattr(result, "by_page"):
            return Items(result)
        return result


class Items:
    """What a paging method returns: ``async for`` over its items or its pages."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __aiter__(self) -> AsyncIterator[Any]:
        return _iterate(self._inner)

    def by_page(self, *args: Any, **options: Any) -> Pages:
        """Return the pages, each a list of items."""
        return Pages(self._inner.by_page(*args, **options))

    async def all(self) -> list[Any]:
        """Return all items."""
        return [item async for item in self]


class Pages:
    """Pages of items; other attributes are those of the SDK's own page iterator."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        async for page in _iterate(self._inner):
            yield [item async for item in _iterate(page)]

    async def first(self) -> list[Any]:
        """Return the next page and ask for no more."""
        return await anext(aiter(self))


async def _iterate(inner: Any) -> AsyncIterator[Any]:
    if hasattr(inner, "__aiter__"):
        async for item in inner:
            yield item
    elif isinstance(inner, ItemPaged | PageIterator):
        iterator = iter(inner)
        while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
            yield item
    else:
        for item in inner:
            yield item


def _note(sdk: Sdk, member: str, method: Any, args: tuple[Any, ...], options: Any) -> None:
    """Remember that a method was called, and which of its own arguments it was given."""
    sdk.used.add(member)
    given = inspect.signature(method).bind_partial(*args, **options).arguments
    sdk.used.update(f"{member}:{argument}" for argument in given)


class TokenCredential:
    """A credential of the synchronous SDK; remembers what it was asked for."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._tokens = list(tokens)
        self.requests: list[tuple[tuple[str, ...], str | None]] = []
        """Scopes and tenant of each request."""

    def get_token(self, *scopes: str, tenant_id: str | None = None, **_: Any) -> AccessToken:
        """Return the next token."""
        self.requests.append((scopes, tenant_id))
        token = self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]
        return AccessToken(token, _FAR_FUTURE_S)


class AsyncTokenCredential:
    """A credential of the asynchronous SDK."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._inner = TokenCredential(tokens)
        self.requests = self._inner.requests

    async def get_token(self, *scopes: str, tenant_id: str | None = None, **_: Any) -> AccessToken:
        """Return the next token."""
        return self._inner.get_token(*scopes, tenant_id=tenant_id)

    async def close(self) -> None:
        """Do nothing; the protocol has it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None
