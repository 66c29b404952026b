"""Requests whose header is too large are refused with the status that says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.server.support import Harness

LINE, HEADER, FIELDS = 1_000, 4_000, 20


@pytest.fixture(scope="module")
def small() -> Iterator[Harness]:
    """A server with small limits."""
    with Harness(
        max_request_line_bytes=LINE, max_header_bytes=HEADER, max_header_fields=FIELDS
    ) as harness:
        yield harness


def get(path: bytes = b"/a", *fields: bytes) -> bytes:
    """Return a GET."""
    return b"\r\n".join((b"GET " + path + b" HTTP/1.1", b"Host: test", *fields, b"", b""))


def test_longest_address_is_served(small: Harness) -> None:
    """The limit itself is allowed."""
    with small.connect() as client:
        status, body = client.ask(get(b"/" + b"a" * (LINE - 1)))
    assert (status, len(body)) == (200, LINE + len("GET  0"))


@pytest.mark.parametrize("packet", [1_000_000, 100])
def test_longer_address_is_refused(small: Harness, packet: int) -> None:
    """One byte more is 414, in one packet or in many."""
    request = get(b"/" + b"a" * LINE)
    with small.connect() as client:
        for start in range(0, len(request), packet):
            client.send(request[start : start + packet])
        assert client.rest().startswith(b"HTTP/1.1 414 ")


def test_most_fields_are_served(small: Harness) -> None:
    """As many fields as allowed are served."""
    with small.connect() as client:
        fields = [b"X-%d: a" % number for number in range(FIELDS - 1)]
        assert client.ask(get(b"/a", *fields))[0] == 200


def test_more_fields_are_refused(small: Harness) -> None:
    """One field more is 431."""
    with small.connect() as client:
        client.send(get(b"/a", *[b"X-%d: a" % number for number in range(FIELDS)]))
        assert client.rest().startswith(b"HTTP/1.1 431 ")


def header_of(size: int) -> list[bytes]:
    """Return fields that take *size* bytes beside ``Host: test``."""
    rest = size - len("Host:test\r\n") - len("X-A:\r\n") - len("X-B:\r\n")
    return [b"X-A:" + b"a" * (rest // 2), b"X-B:" + b"b" * (rest - rest // 2)]


def test_largest_header_is_served(small: Harness) -> None:
    """A header of exactly the limit is served."""
    with small.connect() as client:
        assert client.ask(get(b"/a", *header_of(HEADER)))[0] == 200


def test_larger_header_is_refused(small: Harness) -> None:
    """One byte more is 431."""
    with small.connect() as client:
        client.send(get(b"/a", *header_of(HEADER + 1)))
        assert client.rest().startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("start", [b"X-A: ", b"X-", b"X-A: " + b"a" * 17_000])
def test_field_without_end_is_refused(small: Harness, start: bytes) -> None:
    """A field that never ends is refused once it has outgrown the limit, not kept."""
    with small.connect() as client:
        client.send(b"GET /a HTTP/1.1\r\nHost: test\r\n" + start)
        small.wait_for(lambda: client.peer._phase != 0)
        client.send(b"a" * 70_000)
        assert client.rest().startswith(b"HTTP/1.1 431 ")


def test_header_size_counts_anew_for_each_request(small: Harness) -> None:
    """Requests on one connection do not use up each other's limit."""
    with small.connect() as client:
        for _ in range(5):
            assert client.ask(get(b"/a", *header_of(HEADER - 10)))[0] == 200


def test_refusals_are_counted(small: Harness) -> None:
    """Each refusal is counted under its reason."""
    before = small.call(lambda: small.guard.refused["header_too_large"])
    with small.connect() as client:
        client.send(get(b"/a", *header_of(HEADER + 1)))
        client.rest()
    assert small.call(lambda: small.guard.refused["header_too_large"]) == before + 1


def test_bodies_of_all_connections_are_bounded() -> None:
    """A body that would go beyond is refused, and what is answered or gone makes room again."""
    half = b"POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n" + b"x" * 600
    with Harness(max_buffered_bytes=1_000) as server:
        with server.connect() as first, server.connect() as second:
            first.send(half)
            server.wait_for(lambda: server.guard.buffered == 600)
            second.send(half)
            assert second.rest().startswith(b"HTTP/1.1 503 ")
            assert server.call(lambda: server.guard.buffered) == 600
            assert first.ask(b"x" * 400) == (200, b"POST /a 1000")
            assert server.call(lambda: server.guard.buffered) == 0
            first.send(half)
            server.wait_for(lambda: server.guard.buffered == 600)
        server.wait_for(lambda: server.guard.buffered == 0)


def test_answers_that_nobody_takes_are_bounded_too() -> None:
    """A large answer counts like the body of a request until its reader has it, or is gone."""
    post = b"POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nabcde"
    with Harness(max_buffered_bytes=1_000_000) as server:
        with server.connect(receive_buffer=4_096) as slow, server.connect() as other:
            slow.send(get(b"/large"))
            server.wait_for(lambda: server.guard.buffered > 1_000_000)
            other.send(post)
            assert other.rest().startswith(b"HTTP/1.1 503 ")
            assert len(slow.answer()[2]) == 4 * 1024 * 1024
            server.wait_for(lambda: slow.peer.transport.get_write_buffer_size() == 0)
            server.call(server.guard.sweep)
            assert server.call(lambda: server.guard.buffered) == 0
            slow.send(get(b"/large"))
            server.wait_for(lambda: server.guard.buffered > 1_000_000)
        server.wait_for(lambda: server.guard.buffered == 0)


def test_answers_that_nobody_takes_make_room() -> None:
    """Who has taken nothing of small answers for seconds goes, so that a body can come."""
    post = b"POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nabcde"
    with Harness(max_buffered_bytes=1_000, write_timeout_s=3_600) as server:
        with server.connect(receive_buffer=4_096) as slow, server.connect() as other:
            slow.send(get(b"/portion") * 32)
            server.wait_for(lambda: slow.peer._unsent > 1_000)
            other.send(post)
            assert other.rest().startswith(b"HTTP/1.1 503 ")
            server.let_pass(1)
            server.let_pass(4)
            with server.connect() as again:
                assert again.ask(post) == (200, b"POST /a 5")
            server.wait_for(lambda: server.guard.buffered == 0)
        assert server.call(lambda: server.guard.refused["slow_reader"]) == 1
