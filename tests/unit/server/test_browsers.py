"""What web pages may do to a server on whose requests anybody can sign."""

from __future__ import annotations

import http.client
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import structlog

from leasehold.http.app import Hosts, is_foreign
from leasehold.server.settings import DEV_ACCOUNT, AccountKeys, Secret, Settings
from leasehold.server.settings.values import DEV_KEY
from leasehold.server.wiring import hosts_of
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S

_QUEUE = f"/v1/accounts/{DEV_ACCOUNT}/queues/orders"
_KEY = {"Authorization": f"Bearer {DEV_KEY}"}


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:10001", True),
        ("127.0.0.1", True),
        ("[::1]:10001", True),
        ("192.0.2.7:1", True),
        ("localhost:10001", True),
        ("LocalHost.", True),
        ("devstoreaccount1.queue.localhost:10001", True),
        ("devstoreaccount1.mns.localhost", True),
        ("", True),
        ("queue:10001", True),
        ("QUEUE", True),
        ("a.b.test:80", True),
        ("b.test", False),
        ("xb.test", False),
        ("evil.example:10001", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:10001", False),
        ("evillocalhost", False),
        ("[::1].evil.example", True),  # is no host at all, and no browser sends it
        ("127.1", False),
        ("é", False),
        ("x y", False),
    ],
)
def test_hosts(host: str, known: bool) -> None:
    """Figures, names of this machine, and what was allowed, with or without a port."""
    hosts = Hosts(("Queue", "*.b.test"))
    for _ in range(2):
        assert hosts.knows(host) == known
    assert Hosts("*").knows(host)


def test_strangers_are_logged_once() -> None:
    """And not more of them than a few."""
    hosts = Hosts()
    with structlog.testing.capture_logs() as events:
        for number in range(100):
            assert hosts.refusal(f"{number}.example:{number}").status == 421
            hosts.refusal("0.example:2")
    assert len(events) == 16
    assert events[0]["host"] == "0.example"


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"origin": "http://localhost:10001"}, False),
        ({"origin": "http://localhost:3000"}, True),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": ""}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "http://localhost:10001"}, False),
    ],
)
def test_pages_of_others(headers: Mapping[str, str], foreign: bool) -> None:
    """What the browser says counts; other programs say nothing."""
    assert is_foreign({"host": "localhost:10001", **headers}) == foreign


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A server with the development account, in test mode."""
    with InProcessServer(allowed_hosts=("queues",)) as running:
        assert ask(running, "PUT", _QUEUE, {}, b"{}")[0] == 201
        yield running


def ask(
    server: InProcessServer,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes = b"",
) -> tuple[int, bytes]:
    """Send a request with the public key; return status and body of the answer."""
    place = server.url.partition("://")[2].rstrip("/")
    connection = http.client.HTTPConnection(place, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {**_KEY, **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "path", ["/readyz", "/metrics", "/v1/openapi.json", _QUEUE, f"/{DEV_ACCOUNT}?comp=list"]
)
def test_a_foreign_name_reads_nothing(server: InProcessServer, path: str) -> None:
    """A page whose name was made to mean this machine gets 421, whatever it asks for."""
    status, body = ask(server, "GET", path, {"Host": "evil.example:10001"})
    assert (status, b"allowed_hosts" in body) == (421, True)
    if path != f"/{DEV_ACCOUNT}?comp=list":
        for name in ("queues:80", "x.localhost", "127.0.0.1"):
            assert ask(server, "GET", path, {"Host": name})[0] == 200


@pytest.mark.parametrize(
    "says", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "same-site"}]
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", _QUEUE + "/messages", b'{"messages":[{"body":"x"}]}'),
        ("POST", _QUEUE + "/purge", b"{}"),
        ("POST", _QUEUE + "/messages/receive", b"{}"),
        ("POST", "/v1/test/advance", b'{"seconds":86400}'),
        ("PUT", "/v1/test/faults", b'{"fail_commits":9}'),
        ("GET", _QUEUE, b""),
    ],
)
def test_a_foreign_page_does_nothing(
    server: InProcessServer, says: Mapping[str, str], method: str, path: str, body: bytes
) -> None:
    """What a browser sends without asking first is refused before it is carried out."""
    before = server.now_ms()
    status, answer = ask(server, method, path, {**says, "Content-Type": "text/plain"}, body)
    assert (status, json.loads(answer)["code"]) == (403, "forbidden")
    assert server.now_ms() == before
    assert json.loads(ask(server, "GET", _QUEUE + "/counts", {})[1])["visible"] == 0


def test_a_foreign_page_sends_nothing_as_a_client_of_mns(server: InProcessServer) -> None:
    """It is refused with that protocol's own error, before its signature is looked at."""
    headers = {"Host": f"{DEV_ACCOUNT}.mns.localhost", "Origin": "https://evil.example"}
    status, answer = ask(server, "POST", "/queues/orders/messages", headers, b"<Message/>")
    assert (status, b"<Code>AccessDenied</Code>" in answer) == (403, True)


@pytest.mark.parametrize(
    ("settings", "matters"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"dev_account": "off"}, False),
        ({"dev_account": "off", "test_mode": True}, True),
        ({"tls_terminated": True}, False),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "dev_account": "insecure"}, True),
    ],
)
def test_who_has_a_private_key_is_left_alone(settings: Mapping[str, Any], matters: bool) -> None:
    """Names and origins matter where anybody on the machine can do as they like."""
    accounts = (AccountKeys(name="orders", keys=(Secret(b"x" * 32),)),)
    assert (hosts_of(Settings(accounts=accounts, **settings)) is not None) == matters


def test_an_account_with_the_public_key_is_anybodys() -> None:
    """Whatever its name is."""
    accounts = (AccountKeys(name="orders", keys=(Secret(b64decode(DEV_KEY)),)),)
    assert hosts_of(Settings(accounts=accounts, dev_account="off")) is not None


def test_pages_of_this_server_are_its_own(server: InProcessServer) -> None:
    """A page that the server itself has given may ask it for more."""
    place = server.url.partition("://")[2].rstrip("/")
    own = {"Origin": f"http://{place}", "Sec-Fetch-Site": "same-origin"}
    assert ask(server, "GET", _QUEUE, own)[0] == 200
