"""Requests that two programs could read differently are refused, and nothing after them is read.

Each case was tried against servers and proxies by others; see RFC 9112, section 11.2.
"""

from __future__ import annotations

import pytest

from tests.unit.server.support import Harness

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: test\r\n\r\n"


def post(*fields: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    """Return a POST with these header fields."""
    head = b"\r\n".join((b"POST /a HTTP/" + version, b"Host: test", *fields))
    return head + b"\r\n\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked"
END = b"0\r\n\r\n"
AMBIGUOUS = {
    "length and chunks": post(b"Content-Length: 4", CHUNKED, body=END),
    "chunks and length": post(CHUNKED, b"Content-Length: 4", body=END),
    "two lengths": post(b"Content-Length: 0", b"Content-Length: 36"),
    "two equal lengths": post(b"Content-Length: 0", b"Content-Length: 0"),
    "list of lengths": post(b"Content-Length: 0, 0"),
    "length with plus": post(b"Content-Length: +12", body=b"x" * 12),
    "hexadecimal length": post(b"Content-Length: 0x0c", body=b"x" * 12),
    "negative length": post(b"Content-Length: -1"),
    "length with underscore": post(b"Content-Length: 1_2", body=b"x" * 12),
    "length with space": post(b"Content-Length: 1 2", body=b"x" * 12),
    "empty length": post(b"Content-Length:"),
    "length beyond 64 bits": post(b"Content-Length: 18446744073709551620", body=b"x" * 4),
    "space before colon of length": post(b"Content-Length : 4", body=b"abcd"),
    "unknown coding": post(b"Transfer-Encoding: xchunked", body=END),
    "space before colon of coding": post(b"Transfer-Encoding : chunked", body=END),
    "vertical tab before coding": post(b"Transfer-Encoding: \x0bchunked", body=END),
    "quoted coding": post(b'Transfer-Encoding: "chunked"', body=END),
    "empty coding": post(b"Transfer-Encoding:", body=END),
    "identity": post(b"Transfer-Encoding: identity"),
    "identity then chunked": post(b"Transfer-Encoding: identity, chunked", body=END),
    "chunked then identity": post(b"Transfer-Encoding: chunked, identity", body=END),
    "gzip then chunked": post(b"Transfer-Encoding: gzip, chunked", body=END),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked", body=END),
    "two codings": post(CHUNKED, CHUNKED, body=END),
    "two different codings": post(CHUNKED, b"Transfer-Encoding: cow", body=END),
    "chunks in 1.0": post(CHUNKED, body=END, version=b"1.0"),
    "folded coding": post(b"Transfer-Encoding:\r\n chunked", body=END),
    "folded field": post(b"X-Long: a\r\n b"),
    "folded first field": b"GET /a HTTP/1.1\r\n Host: test\r\n\r\n",
    "line feeds only": b"GET /a HTTP/1.1\nHost: test\n\n",
    "line feed after a field": b"GET /a HTTP/1.1\r\nHost: test\nX-B: b\r\n\r\n",
    "line feed as the end": b"GET /a HTTP/1.1\r\nHost: test\r\n\n",
    "carriage return in a field": b"GET /a HTTP/1.1\r\nHost: te\rst\r\n\r\n",
    "null in a field": b"GET /a HTTP/1.1\r\nHost: te\x00st\r\n\r\n",
    "chunk size with plus": post(CHUNKED, body=b"+4\r\nabcd\r\n" + END),
    "chunk size with 0x": post(CHUNKED, body=b"0x4\r\nabcd\r\n" + END),
    "negative chunk size": post(CHUNKED, body=b"-4\r\nabcd\r\n" + END),
    "chunk size with space": post(CHUNKED, body=b"4 \r\nabcd\r\n" + END),
    "chunk size beyond 64 bits": post(CHUNKED, body=b"10000000000000004\r\nabcd\r\n" + END),
    "no chunk size": post(CHUNKED, body=b"\r\nabcd\r\n" + END),
    "line feed after chunk size": post(CHUNKED, body=b"4\nabcd\r\n" + END),
    "line feed in chunk extension": post(CHUNKED, body=b"4;a\nb\r\nabcd\r\n" + END),
    "chunk longer than its size": post(CHUNKED, body=b"4\r\nabcdef\r\n" + END),
    "trailer": post(CHUNKED, body=b"0\r\nAuthorization: late\r\n\r\n"),
    "no host": b"GET /a HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /a HTTP/1.1\r\nHost: test\r\nHost: other\r\n\r\n",
    "another host in the address": b"GET http://other/a HTTP/1.1\r\nHost: test\r\n\r\n",
    "address of another scheme": b"GET ftp://test/a HTTP/1.1\r\nHost: test\r\n\r\n",
    "fragment": b"GET /a#b HTTP/1.1\r\nHost: test\r\n\r\n",
    "star for another method": b"GET * HTTP/1.1\r\nHost: test\r\n\r\n",
    "tunnel": b"CONNECT test:80 HTTP/1.1\r\nHost: test:80\r\n\r\n",
    "version 1.2": b"GET /a HTTP/1.2\r\nHost: test\r\n\r\n",
    "version 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "space in the address": b"GET /a b HTTP/1.1\r\nHost: test\r\n\r\n",
    "control character in the address": b"GET /\x01 HTTP/1.1\r\nHost: test\r\n\r\n",
    "eight bits in the address": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: test\r\n\r\n",
    "empty name": b"GET /a HTTP/1.1\r\nHost: test\r\n: b\r\n\r\n",
    "no colon": b"GET /a HTTP/1.1\r\nHost: test\r\nfoo\r\n\r\n",
    "delimiter in a name": b"GET /a HTTP/1.1\r\nHost: test\r\nf(o: b\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_ambiguous_request_is_refused(server: Harness, request_bytes: bytes) -> None:
    """The answer is 400, the connection ends, and what follows is not taken for a request."""
    server.dialect.requests.clear()
    with server.connect() as client:
        client.send(request_bytes + HIDDEN)
        answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close\r\n" in answer
    assert [request.raw_path for request in server.dialect.requests] == []


CLEAR = {
    "chunks": (post(CHUNKED, body=b"4\r\nabcd\r\n" + END), b"POST /a 4"),
    "coding in capitals": (post(b"TRANSFER-ENCODING: Chunked", body=END), b"POST /a 0"),
    "tab before coding": (post(b"Transfer-Encoding:\tchunked", body=END), b"POST /a 0"),
    "chunk extension": (post(CHUNKED, body=b"4;a=b\r\nabcd\r\n" + END), b"POST /a 4"),
    "length with zeros": (post(b"Content-Length: 0004", body=b"abcd"), b"POST /a 4"),
    "underscore instead of dash": (post(b"Transfer_Encoding: chunked"), b"POST /a 0"),
    "blank lines before": (b"\r\n\r\nGET /a HTTP/1.1\r\nHost: test\r\n\r\n", b"GET /a 0"),
    "absolute address": (
        b"GET http://Test/a?b HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /a 0",
    ),
    "star": (b"OPTIONS * HTTP/1.1\r\nHost: test\r\n\r\n", b"OPTIONS * 0"),
}


@pytest.mark.parametrize(("request_bytes", "expected"), CLEAR.values(), ids=CLEAR.keys())
def test_unusual_but_clear_request_is_answered(
    server: Harness, request_bytes: bytes, expected: bytes
) -> None:
    """What can be read in one way only is served, and so is the request behind it."""
    with server.connect() as client:
        assert client.ask(request_bytes) == (200, expected)
        assert client.ask(HIDDEN) == (200, b"GET /hidden 0")


UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA")


def test_upgrade_is_declined_and_the_request_served(server: Harness) -> None:
    """A client that offers HTTP/2 is answered in HTTP/1.1, as is its next request."""
    with server.connect() as client:
        assert client.ask(post(*UPGRADE)) == (200, b"POST /a 0")
        assert client.ask(HIDDEN) == (200, b"GET /hidden 0")


@pytest.mark.parametrize("pause", [False, True])
def test_body_behind_an_upgrade_is_no_request(server: Harness, pause: bool) -> None:
    """A body that looks like a request stays the body, in one packet with its header or not."""
    server.dialect.requests.clear()
    length = b"Content-Length: %d" % len(HIDDEN)
    head = post(*UPGRADE, length)
    with server.connect() as client:
        client.send(head if pause else head + HIDDEN)
        if pause:
            server.wait_for(lambda: client.peer.newest is not None)
            client.send(HIDDEN)
        status, _, body = client.answer()
        assert (status, body) == (200, b"POST /a %d" % len(HIDDEN))
        assert client.ask(HIDDEN) == (200, b"GET /hidden 0")
    assert [request.raw_path for request in server.dialect.requests] == ["/a", "/hidden"]
