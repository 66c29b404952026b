"""Where a request ends, seen by two parsers: ours and h11, which was written independently."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

import h11
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold.http.connection import HttpConnection, ServerState
from leasehold.http.guard import ConnectionLimits, Guard
from leasehold.http.request_cycle import RequestCycle
from leasehold.http.requests import Response
from leasehold.testing import ManualClock
from tests.unit.server.test_smuggling import AMBIGUOUS, CHUNKED, CLEAR, END, HIDDEN, post

PIECES = (
    *(b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b";", b",", b"0", b"1", b"a", b"+", b"-", b"\x00"),
    *(b"\x0b", b"chunked", b"GET / HTTP/1.1\r\n", b"Host: test\r\n", b"0\r\n\r\n"),
    *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    *(b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n"),
)
SEEDS = (
    HIDDEN,
    post(b"Content-Length: 4", body=b"abcd"),
    post(CHUNKED, body=b"4\r\nabcd\r\n3;a=b\r\nefg\r\n" + END),
    *AMBIGUOUS.values(),
    *(request for request, _ in CLEAR.values()),
)


class Seen(NamedTuple):
    """What a parser made of a stream of bytes."""

    requests: list[tuple[bytes, bytes, bytes]]
    """Method, target and body of the requests that are complete."""
    ended: bool
    """Whether it refused something, or was told that nothing more would come."""


class _Task:
    def add_done_callback(self, callback: Any) -> None:
        """Never done."""


class _Loop:
    """An event loop in which no task ever runs, so that all requests stay where they are."""

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> _Task:
        """Forget the task."""
        coroutine.close()
        return _Task()


class _Transport(asyncio.Transport):
    def write(self, data: Any) -> None:
        """Throw away what is said."""

    def is_closing(self) -> bool:
        """Say no."""
        return False

    def can_write_eof(self) -> bool:
        """Say no."""
        return False

    def close(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


CLOCK = ManualClock()
GUARD = Guard(ConnectionLimits(), CLOCK)


async def _app(scope: Any, receive: Any) -> Response | None:
    raise AssertionError


def ours(data: bytes) -> Seen:
    """Let our protocol read."""
    started: list[RequestCycle] = []

    class Recording(HttpConnection):
        def _begin(self, cycle: RequestCycle) -> None:
            started.append(cycle)
            super()._begin(cycle)

    connection = Recording(_app, ServerState(GUARD, CLOCK), _Loop())  # type: ignore[arg-type]
    connection.connection_made(_Transport())
    connection.data_received(data)
    requests = [
        (
            each.scope["method"].encode(),
            each.scope["raw_path"]
            + b"?" * bool(each.scope["query_string"])
            + each.scope["query_string"],
            bytes(each.body),
        )
        for each in started
        if not each.more_body and not each.disconnected
    ]
    last = started[-1] if started else None
    return Seen(requests, connection._phase >= 3 or (last is not None and not last.keep_alive))


def theirs(data: bytes) -> Seen:
    """Let h11 read."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    requests: list[tuple[bytes, bytes, bytes]] = []
    method = target = body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, target, body = event.method, event.target, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                requests.append((method, target, body))
                connection.send(h11.Response(status_code=400, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    return Seen(requests, ended=True)
                connection.start_next_cycle()
            else:
                return Seen(requests, ended=event is h11.PAUSED)
    except h11.RemoteProtocolError:
        return Seen(requests, ended=True)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Some requests, one after the other, with a few edits."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        removed = draw(st.integers(0, 3))
        data[start : start + removed] = draw(st.sampled_from(PIECES))
    return bytes(data + HIDDEN)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams())
def test_requests_end_where_another_parser_sees_the_end(data: bytes) -> None:
    """Up to the first refusal by either, both see the same requests with the same bodies."""
    mine, other = ours(data), theirs(data)
    both = min(len(mine.requests), len(other.requests))
    assert [simple(request) for request in mine.requests[:both]] == [
        simple(request) for request in other.requests[:both]
    ]
    if len(mine.requests) > both:
        assert other.ended, "h11 waits for more of what we took for complete"
    if len(other.requests) > both:
        assert mine.ended, "we wait for more of what h11 took for complete"


def simple(request: tuple[bytes, bytes, bytes]) -> tuple[bytes, bytes, bytes]:
    """Bring an absolute address into the form in which the application sees it."""
    method, target, body = request
    if b"://" in target.partition(b"?")[0]:
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    return method, target.removesuffix(b"?"), body
