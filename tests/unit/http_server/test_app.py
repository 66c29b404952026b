"""What the application makes of an ASGI scope, and of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from leasehold.http.app import Application
from leasehold.http.messages import Request, Response
from leasehold.http.metrics import RequestStats
from leasehold.testing import ManualClock


class Recorder:
    """A dialect that keeps what it was asked."""

    def __init__(self, stats: RequestStats, clock: ManualClock) -> None:
        self.requests: list[Request] = []
        self._stats = stats
        self._clock = clock

    async def handle(self, request: Request) -> Response:
        """See ``Dialect``."""
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
        clock = ManualClock()
        self.dialect = Recorder(self.stats, clock)
        self.sent: list[dict[str, Any]] = []
        self.app = Application(
            dialect=self.dialect,
            pages=Pages(),
            clock=clock,
            timings=self.stats,
            max_body_bytes=10,
            **options,
        )

    def ask(self, method: str = "GET", path: str = "/a", query: str = "", **more: Any) -> bytes:
        """Send one request through; return the body of the answer."""
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [],
            "client": ("192.0.2.1", 1234),
            "scheme": "http",
        } | more

        async def receive() -> dict[str, Any]:
            raise AssertionError("nothing announces a body")

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        body = self.sent[-1]["body"]
        assert isinstance(body, bytes)
        return body


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
    assert world.sent[0]["headers"] == [(b"x-a", b"b"), (b"content-length", b"4")]


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
