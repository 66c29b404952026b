"""Each protocol looks at the credentials of a request before its body, on a real server."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from leasehold.server.settings import DEV_ACCOUNT
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S

_MESSAGES = f"/{DEV_ACCOUNT}/orders/messages"
_NATIVE = f"/v1/accounts/{DEV_ACCOUNT}/queues/orders/messages"
_MNS = f"Host: {DEV_ACCOUNT}.mns.localhost\r\nx-mns-version: 2015-06-06\r\n"
_DATE = "Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
_SAS = "?sv=2024-11-04&ss=q&srt=o&sp=a&se=2999-01-01T00:00:00Z&sig=AAAA"


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A server with a queue."""
    with InProcessServer() as running:
        yield running


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        (_MESSAGES, "Host: 127.0.0.1\r\n"),
        (_MESSAGES, "Host: 127.0.0.1\r\nx-ms-version: 2024-11-04\r\n"),
        (_MESSAGES, f"Host: 127.0.0.1\r\n{_DATE}Authorization: SharedKey {DEV_ACCOUNT}:AAAA\r\n"),
        (_MESSAGES + _SAS, "Host: 127.0.0.1\r\nx-ms-version: 2024-11-04\r\n"),
        ("/nobody/orders/messages", "Host: 127.0.0.1\r\nAuthorization: Bearer x.y.z\r\n"),
        (_NATIVE, "Host: 127.0.0.1\r\n"),
        (_NATIVE, "Host: 127.0.0.1\r\nAuthorization: Bearer AAAA\r\n"),
        (_NATIVE + "/raw", "Host: 127.0.0.1\r\n"),
        ("/v1/nowhere", "Host: 127.0.0.1\r\n"),
        ("/queues/orders/messages", _MNS),
        ("/queues/orders/messages", f"{_MNS}{_DATE}Authorization: MNS {DEV_ACCOUNT}:AAAA\r\n"),
    ],
)
@pytest.mark.parametrize("kind", ["Content-Length: 131584", "Transfer-Encoding: chunked"])
def test_the_answer_does_not_wait_for_the_body(
    server: InProcessServer, target: str, fields: str, kind: str
) -> None:
    """Without good credentials the answer comes after the header, however much is announced."""
    head = f"POST {target} HTTP/1.1\r\n{fields}{kind}\r\n\r\n".encode()
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
        sock.sendall(head)
        with sock.makefile("rb") as file:
            text = file.read().decode()
    assert text.startswith("HTTP/1.1 4")
    assert "did not arrive" not in text
    assert "connection: close" in text.lower()


def test_a_preflight_has_no_body_to_wait_for(server: InProcessServer) -> None:
    """It needs no credentials, so what it announces is not read."""
    head = f"OPTIONS {_MESSAGES} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n".encode()
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
        sock.sendall(head)
        with sock.makefile("rb") as file:
            assert file.read().startswith(b"HTTP/1.1 400 ")
