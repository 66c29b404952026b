"""What a worker settles and renews while requests fail in a row, through each adapter.

The fault is made in the connection, so that the service's own client and the adapter read it.
"""

from __future__ import annotations

import http.client
import io
import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest
import requests
import urllib3
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.queue import QueueClient as AzureSdkQueue
from mns.account import Account
from mns.mns_http import ResponseInternal
from requests.adapters import HTTPAdapter

from leasehold.client import Client
from leasehold.testing import InProcessServer, ManualTime
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker import Message, Poison, RetryRule
from leasehold.worker.adapters import Outgoing, mns
from leasehold.worker.adapters.azure import AzureQueue
from leasehold.worker.adapters.mns import MnsQueue
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import Unreachable
from tests.unit.worker.worker.support import Heard, Held, running

LOST: Final = "lost"
"""The request is carried out, and its answer does not arrive."""
REFUSED: Final = "refused"
"""No connection can be made."""
BUSY: Final = "503"
"""The service says that it has no time, before it has done anything."""
SEQUENCES: Final = (
    (LOST,),
    (REFUSED,),
    (BUSY,),
    (LOST, LOST),
    (LOST, REFUSED),
    (REFUSED, LOST),
    (LOST, BUSY, LOST),
)


class Faults:
    """The faults to come; None is a request that goes through."""

    def __init__(self) -> None:
        self._planned: deque[str] = deque()
        self.method = ""
        """For the queue in memory: which calls fail."""

    def plan(self, sequence: tuple[str, ...]) -> None:
        """Have the next requests that change something fail so."""
        self._planned.extend(sequence)

    def next(self, method: str, path: str) -> str | None:
        """Return what happens to a request."""
        if method == "GET" or path.partition("?")[0].endswith("/receive"):
            return None
        return self._planned.popleft() if self._planned else None

    @property
    def over(self) -> bool:
        """Whether all that was planned has happened."""
        return not self._planned


class NativeTransport(httpx.HTTPTransport):
    """Connections of the native client."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, or fail."""
        fault = self._faults.next(request.method, request.url.path)
        if fault == REFUSED:
            raise httpx.ConnectError("refused", request=request)
        if fault == BUSY:
            kind = {"content-type": "application/problem+json"}
            members = {"code": "unavailable", "title": "x", "status": 503, "detail": "x"}
            return httpx.Response(503, headers=kind, content=json.dumps(members))
        answer = super().handle_request(request)
        if fault == LOST:
            answer.read()
            raise httpx.ReadError("reset", request=request)
        return answer


class AzureAdapter(HTTPAdapter):
    """Connections of the Azure SDK."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def send(self, request: requests.PreparedRequest, *rest: Any, **options: Any) -> Any:
        """Send a request, or fail."""
        fault = self._faults.next(str(request.method), str(request.path_url))
        if fault == REFUSED:
            pool: Any = None
            error = urllib3.exceptions.NewConnectionError(pool, "refused")
            raise requests.ConnectionError(error, request=request)
        if fault == BUSY:
            made = requests.Response()
            made.status_code = 503
            made.headers.update(
                {"x-ms-error-code": "ServerBusy", "content-type": "application/xml"}
            )
            made.raw = urllib3.HTTPResponse(io.BytesIO(), preload_content=False)
            return made
        answer = super().send(request, *rest, **options)
        if fault == LOST:
            answer.close()
            raise requests.ConnectionError("reset", request=request)
        return answer


def patch_mns(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    """Have the connections of MNS's SDK fail."""
    real = mns._Connection.send_request

    def send(self: Any, request: Any) -> Any:
        fault = faults.next(request.method, request.uri)
        if fault is None:
            return real(self, request)
        if fault == BUSY:
            text = "<Error><Code>ServerBusy</Code><Message>x</Message></Error>"
            return ResponseInternal(status=503, header={}, data=text)
        self.conn.close()
        with monkeypatch.context() as patched:
            if fault == REFUSED:
                patched.setattr(self.conn, "connect", fails(ConnectionRefusedError("refused")))
            else:
                answer = self.conn.getresponse
                error = http.client.RemoteDisconnected("reset")
                patched.setattr(self.conn, "getresponse", lambda: (answer().read(), fails(error)()))
            return real(self, request)

    monkeypatch.setattr(mns._Connection, "send_request", send)


def fails(error: Exception) -> Callable[[], Any]:
    """Return what raises an error."""

    def fail() -> Any:
        raise error

    return fail


class World:
    """A queue with one message ``x``, and where that is by now."""

    def __init__(self, adapter: Any, faults: Any, left: Any, poison: Any) -> None:
        self.adapter, self.faults = adapter, faults
        self.left: Callable[[], int] = left
        """How many messages are in the queue."""
        self.poison: Callable[[], list[str]] = poison
        """What is in its poison queue."""


class MemoryFaults(Faults):
    """The same for the queue in memory, which has no connections."""

    def __init__(self, queue: MemoryQueue) -> None:
        super().__init__()
        self._queue = queue

    def plan(self, sequence: tuple[str, ...]) -> None:
        """See :class:`Faults`."""
        for each in sequence:
            error = Unreachable(each, outcome_unknown=each == LOST)
            self._queue.faults.fail(method=self.method, carried_out=each == LOST, error=error)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A server in this process, whose clock stands still."""
    with InProcessServer() as running_:
        yield running_


@pytest.fixture
def make(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the world of an adapter."""
    with ExitStack() as stack:

        def made(kind: str, time: ManualTime) -> World:
            if kind == "memory":
                memory = MemoryQueue("orders", time=time)
                memory.put([Outgoing(body="x")])
                return World(
                    memory,
                    MemoryFaults(memory),
                    lambda: len(memory.left()),
                    lambda: [message_id for message_id, _ in memory.buried],
                )
            plain = stack.enter_context(server.client())
            handle = plain.queue(f"q-{uuid4().hex}")
            handle.create()
            plain.queue(f"{handle.name}-poison").create()
            faults, name = Faults(), handle.name
            adapter: Any
            if kind == "native":
                transport = stack.enter_context(NativeTransport(faults))
                client = Client.from_connection_string(
                    server.connection_string, transport=transport
                )
                stack.enter_context(client)
                adapter = NativeQueue(client.queue(name))
            elif kind == "azure":
                session = requests.Session()
                session.mount("http://", AzureAdapter(faults))
                sdk = AzureSdkQueue.from_connection_string(
                    server.connection_string,
                    name,
                    transport=RequestsTransport(session=session, session_owner=False),
                )
                adapter = stack.enter_context(closing(AzureQueue(sdk)))
                stack.callback(session.close)
            else:
                patch_mns(monkeypatch, faults)
                account = Account(server.mns_url, server.account, server.key)
                stack.callback(account.get_client().close_connection)
                adapter = stack.enter_context(closing(MnsQueue(account.get_queue(name))))
            adapter.put([Outgoing(body="x")])
            poison = plain.queue(f"{name}-poison")
            return World(
                adapter,
                faults,
                lambda: handle.counts().total,
                lambda: [each.body.decode() for each in poison.peek(32)],
            )

        yield made


def settle(world: World, time: ManualTime, handler: Any, method: str, sequence: Any) -> Heard:
    """Have a worker handle the message while what settles it fails; return what it told."""
    heard = Heard()
    world.faults.method = method

    def handle(message: Message) -> None:
        world.faults.plan(sequence)
        handler(message)

    # What failed does not come again here: a second settlement that fails would wait, while the
    # worker stops, for time that nobody moves.
    retries = RetryRule(kind="fixed", initial_s=3_600, cap_s=3_600, jitter=0)
    with running(
        handle,
        world.adapter,
        time=time,
        lease=60,
        hooks=[heard],
        session=False,
        concurrency=1,
        retries=retries,
    ):
        time.advance_until(lambda: bool(heard.settlements or heard.losses), step_s=0.5, limit_s=300)
    return heard


def fail_with(error: Exception) -> Callable[[Message], None]:
    """Return a handler that fails."""

    def handle(_: Message) -> None:
        raise error

    return handle


each_adapter = pytest.mark.parametrize("kind", ["memory", "native", "azure", "mns"])
each_sequence = pytest.mark.parametrize("sequence", SEQUENCES, ids="-".join)


@each_adapter
@each_sequence
def test_a_completion(make: Any, kind: str, sequence: tuple[str, ...]) -> None:
    """It is done, once, and told as done, whatever happened on the way."""
    time = ManualTime()
    world = make(kind, time)
    heard = settle(world, time, lambda _: None, "complete", sequence)
    assert (heard.settlements, heard.losses) == ([("x", "done")], [])
    assert (world.left(), world.poison()) == (0, [])
    assert world.faults.over


@each_adapter
@each_sequence
def test_giving_back(make: Any, kind: str, sequence: tuple[str, ...]) -> None:
    """The message stays, once, and is not set aside."""
    time = ManualTime()
    world = make(kind, time)
    heard = settle(world, time, fail_with(RuntimeError("no")), "release", sequence)
    assert (heard.settlements, heard.losses) == ([("x", "failed")], [])
    assert (world.left(), world.poison()) == (1, [])


@each_adapter
@each_sequence
def test_setting_aside(make: Any, kind: str, sequence: tuple[str, ...]) -> None:
    """It is in the poison queue when that is told, and never in neither queue."""
    time = ManualTime()
    world = make(kind, time)
    heard = settle(world, time, fail_with(Poison("no")), "bury", sequence)
    copies = world.poison()
    if heard.losses:
        assert (heard.settlements, world.adapter.capabilities.server_poison) == ([], False)
        assert world.left() or copies
    else:
        assert heard.settlements == [("x", "poisoned")]
        assert world.left() == 0
        assert copies
    # Where it takes a copy, one whose answer was lost may be made again; readers know by its id.
    assert len(copies) <= (1 if world.adapter.capabilities.server_poison else 4)


@each_adapter
@each_sequence
def test_renewals(make: Any, kind: str, sequence: tuple[str, ...]) -> None:
    """The work goes on, and its completion counts, unless an answer was lost in a service that
    tells nobody the receipt that has replaced the old one: then it is told, and comes again."""
    time, heard = ManualTime(), Heard()
    world, handler = make(kind, time), Held(time)
    world.faults.method = "renew"
    with running(
        handler, world.adapter, time=time, lease=60, hooks=[heard], session=False, concurrency=1
    ):
        handler.wait_until_begun()
        world.faults.plan(sequence)
        for _ in range(60):
            time.advance(2)
        handler.go_on()
        time.advance_until(lambda: bool(heard.settlements or heard.losses), step_s=0.5, limit_s=300)
    if LOST in sequence and kind in {"azure", "mns"}:
        assert (heard.settlements, [body for body, _ in heard.losses]) == ([], ["x"])
        assert (world.left(), world.poison()) == (1, [])
    else:
        assert (heard.settlements, heard.losses) == ([("x", "done")], [])
        assert (world.left(), world.poison()) == (0, [])
        assert world.faults.over
