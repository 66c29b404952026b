"""The proxy of ``leasehold certify`` passes on what comes, and knows what it is."""

from __future__ import annotations

import asyncio

import httptools
import pytest

from leasehold.domain.model import RECEIPT_CHARS
from leasehold.http.mns.messages import make_handle
from leasehold.testing import ManualClock
from leasehold.testing.certify.proxy import (
    AZURE_AND_NATIVE,
    MNS,
    Exchange,
    Kind,
    Proxy,
    Whole,
    read_whole,
)
from tests.patience import PATIENCE_S

FIRST, SECOND = (f"00000000-0000-0000-0000-00000000000{digit}" for digit in "1f")
HANDLES = [make_handle(each, "r" * RECEIPT_CHARS) for each in (FIRST, SECOND)]


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


def of_mns(method: str, query: str = "", body: str = "") -> Exchange:
    """Return what the proxy makes of a request of MNS."""
    path = f"/queues/certify/messages{query}"
    return MNS.read(Whole(method=method, path=path, body=bytearray(body.encode())), 1.0)


@pytest.mark.parametrize(
    ("method", "query", "kind", "messages"),
    [
        ("GET", "", Kind.RECEIVE, ()),
        ("GET", "?numOfMessages=16&waitseconds=3", Kind.RECEIVE, ()),
        ("GET", "?peekonly=true&numOfMessages=16", Kind.OTHER, ()),
        ("POST", "", Kind.OTHER, ()),
        ("PUT", f"?ReceiptHandle={HANDLES[0]}&VisibilityTimeout=4", Kind.UPDATE, (FIRST,)),
        ("PUT", f"?receiptHandle={HANDLES[1]}&visibilityTimeout=4", Kind.UPDATE, (SECOND,)),
        ("DELETE", f"?ReceiptHandle={HANDLES[1]}", Kind.DELETE, (SECOND,)),
        ("DELETE", "?ReceiptHandle=garbage", Kind.DELETE, ()),
    ],
)
def test_request_of_mns_is_known(
    method: str, query: str, kind: Kind, messages: tuple[str, ...]
) -> None:
    """By its address; names of parameters may be written as the documentation has them."""
    found = of_mns(method, query)
    assert (found.kind, found.queue, found.messages) == (kind, "certify", messages)


def handles_in(*handles: str) -> str:
    """Return a batch of receipt handles, as the body of a request or of an answer."""
    return "".join(f"<ReceiptHandle>{each}</ReceiptHandle>" for each in handles)


def test_batch_of_mns_is_refused_in_part() -> None:
    """The answer names the entries that failed; a plain error is about all of them."""
    found = of_mns("DELETE", body=handles_in(*HANDLES))
    assert (found.kind, found.messages) == (Kind.DELETE, (FIRST, SECOND))
    found.status = 404
    found.answer = handles_in(HANDLES[1]).encode()
    assert found.refused() == (SECOND,)
    found.answer = b"<Error><Code>QueueNotExist</Code></Error>"
    assert found.refused() == (FIRST, SECOND)
    found.status = 503
    assert found.refused() == ()


def test_answer_of_mns_names_messages_in_its_form() -> None:
    """An id has no dashes there, and capital letters."""
    found = of_mns("GET")
    found.answer = f"<MessageId>{SECOND.replace('-', '').upper()}</MessageId>".encode()
    assert found.returned(SECOND)
    assert not found.returned(FIRST)


async def until_asked(proxy: Proxy, *, wanted: bool) -> None:
    """Let others go on until the proxy says whether it was asked."""
    while proxy.was_asked() is not wanted:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0)


def test_proxy_knows_whether_a_client_waits() -> None:
    """From the connection to the answer, and from each further request to its answer."""

    async def talk() -> None:
        held = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while b"/held" not in await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await held.wait()
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        proxy = Proxy(f"http://127.0.0.1:{port}", AZURE_AND_NATIVE, ManualClock())
        reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
        await until_asked(proxy, wanted=True)
        assert proxy.was_asked()  # a connection that has asked for nothing yet is about to
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await until_asked(proxy, wanted=False)
        assert not proxy.was_asked()
        writer.write(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n")
        await until_asked(proxy, wanted=True)
        assert proxy.was_asked()
        held.set()
        await until_asked(proxy, wanted=False)
        writer.close()
        await writer.wait_closed()
        await proxy.stop()
        server.close()

    asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))
