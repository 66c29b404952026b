"""What the application makes of a scope, and of an answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
import structlog

from leasehold.http.app import Application, RequestStats
from leasehold.http.request_cycle import PROVE
from leasehold.http.requests import Request, Response
from leasehold.testing import ManualClock


class Recorder:
    """A dialect that keeps what it was asked."""

    def __init__(self, stats: RequestStats, clock: ManualClock, longest: int = 10) -> None:
        self.requests: list[Request] = []
        self.longest = longest
        self._stats = stats
        self._clock = clock

    def begin(self, request: Request) -> Request:
        """See ``BaseDialect``."""
        assert not request.body
        return request

    async def enter(self, request: Request) -> Response | None:
        """See ``BaseDialect``."""
        return Response(401, []) if request.headers.get("authorization") == "no" else None

    def longest_body(self, request: Request) -> int:
        """See ``BaseDialect``."""
        return int(request.headers.get("x-longest", self.longest))

    async def answer(self, request: Request) -> Response:
        """See ``BaseDialect``."""
        self.requests.append(request)
        self._clock.advance(ms=20)
        self._stats.answered("get-messages", 200)
        return Response(200, [(b"x-a", b"b")], b"body")


class Pages:
    """Two pages."""

    paths = frozenset({"/healthz", "/metrics"})

    async def answer(self, path: str) -> Response:
        """See ``Pages``."""
        return Response(200, [], path.encode())


class World:
    """An application with recording doubles around it."""

    def __init__(self, **options: Any) -> None:
        self.stats = RequestStats()
        self.clock = ManualClock()
        self.dialect = Recorder(self.stats, self.clock)
        self.native = Recorder(self.stats, self.clock, longest=20)
        self.given: list[Response] = []
        self.app = self.make(**options)

    def make(self, **options: Any) -> Application:
        """Return an application with other options."""
        return Application(
            dialect=self.dialect,
            pages=Pages(),
            clock=self.clock,
            timings=self.stats,
            **options,
        )

    def ask(self, method: str = "GET", path: str = "/a", query: str = "", **more: Any) -> bytes:
        """Send one request through, in two parts if it has a body; return that of the answer."""
        parts = more.pop("parts", [])
        scope = {
            "method": method,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [],
            "server": None,
            "client": ("192.0.2.1", 1234),
            "scheme": "http",
        } | more

        async def receive() -> dict[str, Any]:
            assert parts, "nothing announces a body, or it was received"
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        response = asyncio.run(self.app(scope, receive))
        assert response is not None
        self.given.append(response)
        return bytes(response.body)


def of_length(*parts: bytes) -> dict[str, Any]:
    """Return what a request with a body in some parts has more than others."""
    length = str(sum(map(len, parts))).encode()
    return {"parts": list(parts), "headers": [(b"content-length", length)]}


@pytest.fixture
def world() -> World:
    """An application with the defaults."""
    return World()


def test_request_is_taken_apart(world: World) -> None:
    """The dialect sees path and query as sent, and where the request came from."""
    world.ask("PUT", "/a%2Fb", "c=%20d", headers=[(b"x-a", b"\xe9")])
    (request,) = world.dialect.requests
    assert (request.method, request.raw_path, request.raw_query) == ("PUT", "/a%2Fb", "c=%20d")
    assert (request.headers, request.body, request.client_ip) == ({"x-a": "é"}, b"", "192.0.2.1")
    assert not request.body_too_large
    assert not request.https
    assert request.raw_header_names is None


def test_repeated_headers_are_joined(world: World) -> None:
    """The values of a repeated header come with a comma between, in the order sent."""
    world.ask(headers=[(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")])
    assert world.dialect.requests[0].headers == {"x-a": "1,3", "x-b": "2"}


def test_answer_gets_its_length(world: World) -> None:
    """The headers of the dialect are kept, and Content-Length is added."""
    assert world.ask() == b"body"
    assert world.given[0].headers == [(b"x-a", b"b"), (b"content-length", b"4")]


def test_tls_counts_however_it_ended(world: World) -> None:
    """A request is safe if it came over TLS, or if a proxy in front ends TLS."""
    world.ask(scheme="https")
    assert world.dialect.requests[0].https
    behind_proxy = World(https=True)
    behind_proxy.ask()
    assert behind_proxy.dialect.requests[0].https


def test_unix_socket_has_no_address(world: World) -> None:
    """A client without an address is nobody in particular."""
    world.ask(client=None)
    assert world.dialect.requests[0].client_ip == ""


def test_pages_are_the_servers_own(world: World) -> None:
    """GET of a page goes to the pages, and is not counted as a request."""
    assert world.ask(path="/healthz") == b"/healthz"
    assert world.dialect.requests == []
    assert world.stats.verbs == {}


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("PUT", "/metrics", ""),
        ("GET", "/metrics", "comp=metadata"),
        ("GET", "/metrics/messages", ""),
    ],
)
def test_queue_named_like_a_page_is_reachable(
    world: World, method: str, path: str, query: str
) -> None:
    """Where the host names the account, a queue may be called metrics."""
    assert world.ask(method, path, query) == b"body"


@pytest.mark.parametrize("path", ["/v1/", "/v1/accounts/a/queues"])
def test_paths_of_the_native_dialect(path: str) -> None:
    """What begins with its prefix goes to the native dialect, and nothing else does."""
    world = World()
    world.app = world.make(native=world.native)
    world.ask(path=path)
    for other in ("/v1", "/v10/a", "/a/v1/", "/V1/"):
        world.ask(path=other)
    assert [request.raw_path for request in world.native.requests] == [path]
    assert len(world.dialect.requests) == 4


def test_without_a_native_dialect_there_is_one_dialect(world: World) -> None:
    """Then its prefix means nothing."""
    world.ask("PUT", "/v1/a", **of_length(b"12345", b"67890"))
    world.ask("PUT", "/v1/a", **of_length(b"12345678901"))
    assert [request.body for request in world.dialect.requests] == [b"1234567890", b""]
    assert world.dialect.requests[1].body_too_large


def test_each_dialect_has_its_own_limit_of_bodies() -> None:
    """What is too large for one is read for the other."""
    world = World()
    world.app = world.make(native=world.native)
    for path in ("/a", "/v1/a"):
        world.ask("PUT", path, **of_length(b"x" * 11))
        world.ask("PUT", path, **of_length(b"x" * 10, b"y" * 11))
    assert [each.body_too_large for each in world.dialect.requests] == [True, True]
    assert [each.body_too_large for each in world.native.requests] == [False, True]
    assert world.native.requests[0].body == b"x" * 11


@pytest.mark.parametrize("path", ["/a", "/v1/a"])
@pytest.mark.parametrize("kind", [b"content-length", b"transfer-encoding"])
def test_a_body_is_read_only_for_those_who_may_send_it(path: str, kind: bytes) -> None:
    """Whoever is refused by the head of the request cannot make the server hold the rest."""
    world = World()
    world.app = world.make(native=world.native)
    headers = [(kind, b"11" if kind == b"content-length" else b"chunked")]
    world.ask("PUT", path, headers=[*headers, (b"authorization", b"no")])
    assert world.given[0].status == 401
    assert not world.native.requests
    assert not world.dialect.requests


def test_the_connection_is_told_when_credentials_are_good(world: World) -> None:
    """It is before the body is read, and it is not where they are not."""
    told: list[bytes] = []
    for says in (b"yes", b"no"):
        more: dict[str, Any] = {PROVE: partial(told.append, says)}
        world.ask(headers=[(b"authorization", says)], **more)
    assert told == [b"yes"]


def test_a_request_can_be_watched() -> None:
    """A dialect that takes long can wait for the client to go; without a client it waits on."""
    world = World()
    world.ask()
    (request,) = world.dialect.requests

    async def scenario() -> None:
        events = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

        async def receive() -> dict[str, Any]:
            return next(events)

        request.receive = receive
        await request.gone()
        request.receive = None
        waiting = asyncio.ensure_future(request.gone())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(scenario())


def test_duration_is_counted_under_the_operation(world: World) -> None:
    """The time from header to answer is counted for what the dialect said it was."""
    world.ask()
    verb = world.stats.verbs["get-messages"]
    assert verb.statuses == {200: 1}
    assert sum(verb.seconds.counts) == 1
    assert verb.seconds.sum_s == pytest.approx(0.02)


def test_request_log_leaves_the_query_out() -> None:
    """A query can hold a signature, so it is not logged."""
    world = World(log_requests=True)
    with structlog.testing.capture_logs() as events:
        world.ask(query="sig=secret")
    assert [event["event"] for event in events] == ["http.request"]
    assert events[0]["path"] == "/a"
    assert "secret" not in str(events)


def test_a_dialect_may_say_that_a_longer_body_is_read(world: World) -> None:
    """It is asked for each request by its head."""
    for size in (10, 11, 20, 21):
        body = of_length(b"x" * size)
        body["headers"] = [*body["headers"], (b"x-longest", b"20")]
        world.ask("PUT", "/a", **body)
    assert [len(each.body) for each in world.dialect.requests] == [10, 11, 20, 0]
    assert [each.body_too_large for each in world.dialect.requests] == [False, False, False, True]
