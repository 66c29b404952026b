"""How requests find the MNS dialect, and on which port."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from leasehold.http.app import mns_account_of
from leasehold.server.settings import Settings
from leasehold.server.startup import ExitCode, StartFailed, listen_for_mns
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S
from tests.unit.server.test_app import Recorder, World


@pytest.fixture
def world() -> World:
    """An application with a dialect on port 7 and one host."""
    made = World()
    made.mns = Recorder(made.stats, made.clock, longest=20)  # type: ignore[attr-defined]
    made.app = made.make(
        native=made.native,
        mns=made.mns,  # type: ignore[attr-defined]
        mns_ports=frozenset({7}),
        mns_accounts={"mine"},
    )
    return made


def asked(world: World, **options: Any) -> str:
    """Send a request and return which dialect has answered."""
    world.ask(**options)
    for name in ("dialect", "native", "mns"):
        if getattr(world, name).requests:
            return name
    raise AssertionError("nobody was asked")


@pytest.mark.parametrize(
    ("path", "server", "host", "expected"),
    [
        ("/queues", ("127.0.0.1", 7), b"x", "mns"),
        ("/v1/accounts", ("127.0.0.1", 7), b"x", "mns"),
        ("/queues", ("127.0.0.1", 8), b"x", "dialect"),
        ("/queues", ("127.0.0.1", 8), b"mine.mns.localhost", "mns"),
        ("/v1/queues", ("127.0.0.1", 8), b"mine.mns.localhost", "mns"),
        ("/v1/queues", ("127.0.0.1", 8), b"x", "native"),
        ("/queues", None, b"mine.mns.localhost", "mns"),
        ("/queues", None, b"x", "dialect"),
    ],
)
def test_who_answers(world: World, path: str, server: Any, host: bytes, expected: str) -> None:
    """On its port everything is its own; elsewhere what is sent to its host."""
    headers = [(b"host", host)]
    assert asked(world, path=path, server=server, headers=headers) == expected


@pytest.mark.parametrize(
    ("host", "account"),
    [
        ("orders.mns.localhost", "orders"),
        ("ORDERS.mns.cn-hangzhou.aliyuncs.com:10001", "orders"),
        ("orders.mns:80", "orders"),
        ("orders.queue.localhost", ""),
        ("mns.localhost", ""),
        ("127.0.0.1:10011", ""),
        ("[::1]:80", ""),
        ("", ""),
        ("x" * 400, ""),
    ],
)
def test_accounts_in_hosts(host: str, account: str) -> None:
    """The first label, where the second one says so."""
    assert mns_account_of(host) == account


def test_its_port_is_free_for_others_when_it_is_taken() -> None:
    """A port that is taken ends the start, with its number."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartFailed, match=f"port {port}") as refusal:
            listen_for_mns(Settings(mns_port=str(port)))
    assert refusal.value.code is ExitCode.ADDRESS
    assert listen_for_mns(Settings(mns_port="off")) == []


def test_pages_of_the_server_answer_on_both_ports() -> None:
    """Whoever watches the server need not know which port is for what."""
    with InProcessServer() as server:
        for url in (server.url, server.mns_url):
            with urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        with (
            pytest.raises(urllib.error.HTTPError) as refusal,
            urllib.request.urlopen(f"{server.mns_url}/queues", timeout=PATIENCE_S),
        ):
            pass
        with refusal.value as caught:
            assert (caught.code, caught.headers["Content-Type"]) == (400, "text/xml;charset=utf-8")
