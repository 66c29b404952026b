"""The proxy of ``leasehold certify`` closes a connection only where the server says so."""

from __future__ import annotations

import asyncio

import httptools
import pytest

from leasehold.testing.certify.proxy import read_whole


@pytest.mark.parametrize(
    ("head", "body", "method", "keeps"),
    [
        ("200 OK\r\ncontent-length: 2", "ab", "GET", True),
        ("200 OK\r\ncontent-length: 2\r\nconnection: close", "ab", "GET", False),
        ("204 No Content", "", "DELETE", True),
        ("200 OK\r\ncontent-length: 7", "", "HEAD", True),
    ],
)
def test_connection_goes_on_unless_it_is_closed(
    head: str, body: str, method: str, keeps: bool
) -> None:
    """A client whose connection ends after an answer may lose its next request."""

    async def read() -> bool:
        reader = asyncio.StreamReader()
        reader.feed_data(f"HTTP/1.1 {head}\r\n\r\n{body}".encode())
        answer = await read_whole(reader, httptools.HttpResponseParser, method=method)
        assert answer is not None
        return answer.keeps_alive

    assert asyncio.run(read()) is keeps
