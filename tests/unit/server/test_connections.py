"""Ordinary life of a connection: several requests, bodies of all forms, ends."""

from __future__ import annotations

import socket
from functools import partial

import pytest

from tests.patience import PATIENCE_S
from tests.unit.server.support import GET, MAX_BODY_BYTES, Harness

HELD = b"GET /held HTTP/1.1\r\nHost: test\r\n\r\n"


def post(body: bytes, *fields: bytes) -> bytes:
    """Return a POST with a length."""
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((b"POST /a HTTP/1.1", b"Host: test", length, *fields, b"", body))


def test_connection_is_kept(server: Harness) -> None:
    """Many requests share a connection."""
    with server.connect() as client:
        for _ in range(3):
            assert client.ask(GET) == (200, b"GET /a 0")


def test_date_is_of_the_second_of_the_answer() -> None:
    """An answer's date is that of its own second, whatever the loop did since the one before."""
    with Harness() as server, server.connect() as client:
        dates = []
        for step_ms in (0, 999, 1, 60_000):
            server.call(partial(server.clock.advance, ms=step_ms))
            client.send(GET)
            dates.append(client.answer()[1]["date"])
    assert dates == [
        "Thu, 01 Jan 2026 00:00:00 GMT",
        "Thu, 01 Jan 2026 00:00:00 GMT",
        "Thu, 01 Jan 2026 00:00:01 GMT",
        "Thu, 01 Jan 2026 00:01:01 GMT",
    ]


def test_date_is_of_the_answer_and_not_of_the_request() -> None:
    """Who waited for an answer is told when it was given."""
    with Harness() as server, server.connect() as client:
        client.send(HELD)
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        server.call(lambda: server.clock.advance(s=30))
        server.call(server.dialect.release.set)
        assert client.answer()[1]["date"] == "Thu, 01 Jan 2026 00:00:30 GMT"


def test_pipelined_requests_are_answered_in_order(server: Harness) -> None:
    """Requests sent without waiting are answered one by one, bodies and all."""
    with server.connect() as client:
        client.send(post(b"a") + post(b"b" * 70_000) + GET + post(b"") + post(b"abc"))
        answers = [client.answer()[2] for _ in range(5)]
    assert answers == [b"POST /a 1", b"POST /a 70000", b"GET /a 0", b"POST /a 0", b"POST /a 3"]


def test_one_request_at_a_time(server: Harness) -> None:
    """The next request of a connection begins when the one before it is answered."""
    server.dialect.requests.clear()
    with server.connect() as client:
        client.send(HELD + GET)
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        server.wait_for(lambda: len(client.peer.queued) == 1)
        assert server.call(lambda: client.peer.read_paused), "what comes stays in the kernel"
        assert [request.raw_path for request in server.dialect.requests] == ["/held"]
        server.call(server.dialect.release.set)
        assert client.answer()[2] == b"GET /held 0"
        assert client.answer()[2] == b"GET /a 0"


def test_malformed_request_is_refused_after_the_answers_owed() -> None:
    """The answer to a good request is not lost, nor taken for that of a bad one behind it."""
    with Harness() as server, server.connect() as client:
        client.send(HELD + GET + b"nonsense\r\n\r\n")
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        server.wait_for(lambda: client.peer._refusal is not None)
        server.call(server.dialect.release.set)
        assert client.answer()[2] == b"GET /held 0"
        assert client.answer()[2] == b"GET /a 0"
        assert client.rest().startswith(b"HTTP/1.1 400 ")


def test_queued_request_with_a_bad_body_is_not_begun() -> None:
    """A request that waits its turn and proves malformed meanwhile never reaches the dialect."""
    bad = b"POST /bad HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    with Harness() as server, server.connect() as client:
        client.send(HELD + bad)
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        server.wait_for(lambda: client.peer._refusal is not None)
        server.call(server.dialect.release.set)
        assert client.answer()[2] == b"GET /held 0"
        assert client.rest().startswith(b"HTTP/1.1 400 ")
        assert [request.raw_path for request in server.dialect.requests] == ["/held"]


def test_pipeline_is_bounded() -> None:
    """A flood of requests sent without waiting is cut, and the ones taken are answered."""
    with Harness() as server, server.connect() as client:
        client.send(HELD + GET * 200)
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        server.wait_for(lambda: client.peer._refusal is not None)
        server.call(server.dialect.release.set)
        answers = client.rest()
        assert 1 < answers.count(b"HTTP/1.1 200 ") < 50
        assert b"HTTP/1.1 503 " in answers


def test_client_that_asks_to_be_told_to_go_on(server: Harness) -> None:
    """ "Expect: 100-continue" is answered before the body is read."""
    with server.connect() as client:
        request = post(b"abc", b"Expect: 100-continue")
        client.send(request[:-3])
        assert client.sock.recv(1_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.ask(b"abc") == (200, b"POST /a 3")


def test_client_is_not_told_to_go_on_with_too_large_a_body(server: Harness) -> None:
    """The final answer comes at once, and the body is spared."""
    with server.connect() as client:
        size = MAX_BODY_BYTES + 1
        client.send(post(b"x" * size, b"Expect: 100-continue")[:-size])
        status, header, _ = client.answer()
        assert (status, header["connection"]) == (413, "close")
        assert client.rest() == b""


def test_chunks_are_put_together(server: Harness) -> None:
    """A body in chunks arrives whole, also in many small packets."""
    with server.connect() as client:
        client.send(b"POST /a HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(50):
            client.send(b"3\r\nabc\r\n")
        assert client.ask(b"0\r\n\r\n") == (200, b"POST /a 150")


@pytest.mark.parametrize("size", [MAX_BODY_BYTES, 1])
def test_body_within_the_limit_is_read(server: Harness, size: int) -> None:
    """The limit itself is allowed."""
    with server.connect() as client:
        assert client.ask(post(b"x" * size)) == (200, b"POST /a %d" % size)


def test_body_above_the_limit_is_answered_before_it_is_read(server: Harness) -> None:
    """The client gets the answer, although it sends everything before it looks."""
    with server.connect() as client:
        client.send(post(b"x" * (MAX_BODY_BYTES * 60)))
        status, header, body = client.answer()
        assert (status, header["connection"], body) == (413, "close", b"too large")
        assert client.rest() == b""


def test_chunks_above_the_limit_are_refused(server: Harness) -> None:
    """A body that does not say its length is cut when it has grown too large."""
    with server.connect() as client:
        client.send(b"POST /a HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"1000\r\n%b\r\n" % (b"x" * 4_096) * 40)
        status, header, _ = client.answer()
        assert (status, header["connection"]) == (413, "close")


def test_answer_before_the_body_ends_the_connection(server: Harness) -> None:
    """What was not read cannot be told from a next request, so there is none."""
    with server.connect() as client:
        client.send(b"POST /hasty HTTP/1.1\r\nHost: test\r\nContent-Length: 50\r\n\r\nabc")
        status, header, _ = client.answer()
        assert (status, header["connection"]) == (200, "close")
        client.send(GET * 2)
        assert client.rest() == b""


def test_half_a_request_is_not_begun(server: Harness) -> None:
    """A client that goes away in the middle of a body has asked for nothing."""
    server.dialect.requests.clear()
    with server.connect() as client:
        client.send(post(b"abcdef")[:-3])
        server.wait_for(lambda: client.peer.active is not None)
        peer = client.peer
    server.wait_for(lambda: peer not in server.guard.connections and not server.state.tasks)
    assert server.dialect.requests == []


def test_client_that_closes_its_side_is_answered() -> None:
    """Half-closing after a request is no disconnect."""
    with Harness() as server, server.connect() as client:
        client.send(HELD)
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        client.sock.shutdown(socket.SHUT_WR)
        server.wait_for(lambda: client.peer.newest is None or not client.peer.newest.keep_alive)
        server.call(server.dialect.release.set)
        assert client.rest().endswith(b"GET /held 0")


def test_close_is_honoured(server: Harness) -> None:
    """A client that asks for it gets its connection closed, and is told so."""
    with server.connect() as client:
        client.send(b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n" + GET)
        answer = client.rest()
    assert answer.count(b"HTTP/1.1 200 ") == 1
    assert b"\r\nconnection: close\r\n" in answer


def test_connection_that_comes_while_the_server_stops() -> None:
    """It was accepted before, so what it asks is answered, once; and it is not waited for."""
    with Harness() as server:
        server.call(lambda: setattr(server.state, "is_draining", True))
        with server.connect() as client, server.connect() as silent:
            client.send(GET)
            status, header, _ = client.answer()
            assert (status, header["connection"]) == (200, "close")
            assert client.rest() == silent.rest() == b""


def test_version_1_0_is_closed(server: Harness) -> None:
    """A client of HTTP/1.0 is answered and its connection closed."""
    with server.connect() as client:
        client.send(b"GET /a HTTP/1.0\r\n\r\n")
        assert client.rest().endswith(b"GET /a 0")


def test_answer_to_head_has_no_body(server: Harness) -> None:
    """The length of the body is told, the body is not sent."""
    with server.connect() as client:
        client.send(b"HEAD /a HTTP/1.1\r\nHost: test\r\n\r\n")
        status, header, body = client.answer("HEAD")
        assert (status, header["content-length"], body) == (200, "9", b"")
        assert client.ask(GET)[0] == 200


def test_answer_without_content_has_no_length(server: Harness) -> None:
    """204 has neither body nor length (RFC 9110, section 8.6)."""
    with server.connect() as client:
        client.send(b"GET /empty HTTP/1.1\r\nHost: test\r\n\r\n")
        status, header, _ = client.answer()
        assert status == 204
        assert "content-length" not in header
        assert client.ask(GET)[0] == 200


def test_case_of_metadata_names_is_kept_both_ways(server: Harness) -> None:
    """Clients take the names of metadata from header names and mind their case."""
    with server.connect() as client:
        client.send(
            b"PUT /a HTTP/1.1\r\nHost: test\r\nX-MS-Meta-OneTwo: 3\r\nx-ms-meta-low: 4\r\n"
            b"Content-Length: 0\r\n\r\n"
        )
        _, header, _ = client.answer()
    request = server.dialect.requests[-1]
    assert request.headers["x-ms-meta-onetwo"] == "3"
    assert request.raw_header_names == {"x-ms-meta-onetwo": "X-MS-Meta-OneTwo"}
    assert "x-ms-meta-CamelCase" in header


def test_line_break_in_a_header_of_the_answer_is_not_sent(server: Harness) -> None:
    """A value that would split the answer becomes an error of the server."""
    with server.connect() as client:
        client.send(b"GET /splits HTTP/1.1\r\nHost: test\r\n\r\n")
        answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"smuggled" not in answer


def test_failure_of_the_dialect_is_answered(server: Harness) -> None:
    """An error that nobody has caught is 500, without a word of what it was."""
    with server.connect() as client:
        client.send(b"GET /fails HTTP/1.1\r\nHost: test\r\n\r\n")
        answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"as the test wants" not in answer


def test_connection_too_many_is_told_so() -> None:
    """One more than allowed gets 503 and is closed; those with credentials go on."""
    with Harness(max_connections=2) as server, server.connect() as first, server.connect() as other:
        assert first.ask(GET)[0] == other.ask(GET)[0] == 200
        with server.connect() as third:
            third.send(GET)
            assert third.rest().startswith(b"HTTP/1.1 503 ")
            peer = third.peer
        server.wait_for(lambda: peer not in server.guard.connections)
        assert first.ask(GET)[0] == 200
        assert server.call(lambda: server.guard.refused["too_many_connections"]) == 1


def test_strangers_make_room_for_a_connection() -> None:
    """Where there are too many, the oldest without credentials goes, and nobody else does."""
    refused = b"GET /a HTTP/1.1\r\nHost: test\r\nAuthorization: no\r\n\r\n"
    with Harness(max_connections=3) as server, server.connect() as known:
        assert known.ask(GET)[0] == 200
        with server.connect() as silent, server.connect() as wrong, server.connect() as newcomer:
            assert silent.rest() == b""
            assert wrong.ask(refused) == (403, b"no")
            assert newcomer.ask(GET)[0] == 200
            with server.connect() as last:
                assert wrong.rest() == b""
                assert last.ask(GET)[0] == known.ask(GET)[0] == newcomer.ask(GET)[0] == 200
                assert server.call(lambda: server.guard.refused["crowded_out"]) == 2
                assert server.call(lambda: server.guard.refused["too_many_connections"]) == 0
                assert not server.call(lambda: server.guard.is_crowded)


def test_there_is_room_again_when_a_connection_ends() -> None:
    """The limit is on open connections, not on all there ever were."""
    with Harness(max_connections=1) as server:
        for _ in range(3):
            with server.connect() as client:
                assert client.ask(GET)[0] == 200
                peer = client.peer
            server.wait_for(lambda gone=peer: gone not in server.guard.connections)  # type: ignore[misc]
