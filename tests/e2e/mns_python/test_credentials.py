"""Access keys, tokens, dates, and which account an address is of."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from mns.account import Account
from mns.queue import Message

from leasehold.clock import SystemClock
from leasehold.testing import InProcessServer
from tests.e2e.mns_python.conftest import KEY_ID, SECRET, meta
from tests.e2e.mns_python.support import refused


@pytest.fixture
def opened(server: InProcessServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An account object with the credentials that the test names."""
    key_id, secret, *token = request.param
    made = Account(server.mns_url, key_id, secret, *token)
    yield made
    made.get_client().close_connection()


@pytest.mark.parametrize("opened", [(KEY_ID, SECRET), (KEY_ID, SECRET, "a-token")], indirect=True)
def test_a_key_of_its_own_opens_the_account(opened: Any, queue: Any) -> None:
    """Also together with a security token, which nobody signs."""
    queue.send_message(Message("x"))
    assert opened.get_queue(queue.queue_name).receive_message().message_body == b"x"


@pytest.mark.parametrize("opened", [("nobody", SECRET)], indirect=True)
def test_a_key_that_does_not_exist(opened: Any) -> None:
    """It is told apart from a wrong secret, as the service does."""
    with refused("InvalidAccessKeyId"):
        opened.list_queue()


@pytest.mark.parametrize("opened", [(KEY_ID, "wrong"), ("devstoreaccount1", SECRET)], indirect=True)
def test_a_wrong_secret(opened: Any) -> None:
    """Nothing is done, and the string to sign is shown to those who look for their mistake."""
    with refused("SignatureDoesNotMatch") as caught:
        opened.get_queue("never").create(meta())
    assert "/queues/never" in caught.value.message


@pytest.mark.parametrize("late_s", [-901, 960])
def test_a_date_that_is_off(account: Any, monkeypatch: pytest.MonkeyPatch, late_s: int) -> None:
    """More than a quarter of an hour either way is too much."""
    now = time.gmtime(SystemClock().now_ms() / 1000 + late_s)
    monkeypatch.setattr("mns.mns_client.time.gmtime", lambda: now)
    with refused("TimeExpired"):
        account.list_queue()


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have names below ``localhost`` mean this machine, as RFC 6761 asks."""
    look_up = socket.getaddrinfo

    def looked_up(host: str, *rest: Any, **more: Any) -> Any:
        return look_up("127.0.0.1" if host.endswith(".localhost") else host, *rest, **more)

    monkeypatch.setattr("socket.getaddrinfo", looked_up)


@pytest.mark.usefixtures("resolved")
def test_a_port_for_all_protocols() -> None:
    """By the name of the host the dialect is found on the port that others share."""
    with InProcessServer(mns_port="shared") as server:
        assert server.mns_url == ""
        port = server.url.rpartition(":")[2]
        account = Account(
            f"http://{server.account}.mns.localhost:{port}", server.account, server.key
        )
        queue = account.get_queue("by-name")
        url = queue.create(meta())
        assert url == f"http://{server.account}.mns.localhost:{port}/queues/by-name"
        queue.send_message(Message("x"))
        assert queue.receive_message().message_body == b"x"
        account.get_client().close_connection()


@pytest.mark.usefixtures("resolved")
def test_a_server_without_this_protocol() -> None:
    """Then the address is one of another protocol."""
    with InProcessServer(mns_port="off") as server:
        assert server.mns_url == ""
        port = server.url.rpartition(":")[2]
        account = Account(
            f"http://{server.account}.mns.localhost:{port}", server.account, server.key
        )
        with pytest.raises(Exception, match="RespDataDamaged"):
            account.list_queue()
        account.get_client().close_connection()
