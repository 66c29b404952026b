"""Receives that wait, against the real server: over raw HTTP, and through the official SDK."""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from azure.storage.queue import QueueClient, generate_queue_sas

from tests.e2e.conftest import ENDPOINT_VARIABLE
from tests.e2e.server import Endpoint, Server
from tests.patience import PATIENCE_S

END: Final = datetime(2099, 1, 1, tzinfo=UTC)
CONNECTIONS: Final = "leasehold_server_connections"
Answer = tuple[int, dict[str, str], str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A server of our own: no other knows the parameter."""
    if ENDPOINT_VARIABLE in os.environ:
        pytest.skip("this is about a server of ours")
    data = tmp_path_factory.mktemp("long-polling") / "data"
    with Server(data) as started:
        yield started


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for what waits."""
    with ThreadPoolExecutor(64) as threads:
        yield threads


class Queue:
    """A queue of one test, and receives that wait for it."""

    def __init__(self, endpoint: Endpoint) -> None:
        name = f"q{uuid4().hex}"
        self.client = QueueClient(endpoint.url, name, credential=endpoint.key)
        self.client.create_queue()
        token = generate_queue_sas(endpoint.account, name, endpoint.key, "raup", END)
        self.path = f"/{endpoint.account}/{name}/messages?{token}"
        self.endpoint = endpoint

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection."""
        return http.client.HTTPConnection("127.0.0.1", self.endpoint.port, timeout=PATIENCE_S)

    def begin(self, query: str = "wait=60") -> http.client.HTTPConnection:
        """Send a receive and do not wait for its answer."""
        connection = self.connect()
        connection.request("GET", f"{self.path}&{query}")
        return connection

    def receive(self, query: str = "wait=60") -> Answer:
        """Receive, and return status, header and the texts found, or the body of an error."""
        return read(self.begin(query))


def read(connection: http.client.HTTPConnection) -> Answer:
    """Read the answer to a receive."""
    answer = connection.getresponse()
    body = answer.read().decode("utf-8-sig")
    texts = " ".join(re.findall("<MessageText>(.*?)</MessageText>", body))
    connection.close()
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return answer.status, headers, texts if answer.status == 200 else body


def metric(endpoint: Endpoint, name: str) -> float:
    """Return a figure of the server."""
    with urllib.request.urlopen(f"{endpoint.origin}/metrics", timeout=PATIENCE_S) as answer:
        found = re.search(rf"^{name} (\S+)", answer.read().decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def until(endpoint: Endpoint, name: str, value: float) -> None:
    """Wait until a figure of the server has a value."""
    deadline_s = time.monotonic() + PATIENCE_S
    while metric(endpoint, name) != value:
        assert time.monotonic() < deadline_s, f"{name} is {metric(endpoint, name)}"
        time.sleep(0.02)


@pytest.fixture
def queue(server: Endpoint) -> Queue:
    """A new queue."""
    return Queue(server)


def test_a_new_message_ends_the_wait(queue: Queue, pool: ThreadPoolExecutor) -> None:
    """The receiver gets what is sent while it waits."""
    waiting = pool.submit(queue.receive)
    queue.client.send_message("hello")
    status, _, texts = waiting.result(PATIENCE_S)
    assert (status, texts) == (200, "hello")


def test_a_delayed_message_ends_the_wait(queue: Queue) -> None:
    """A receiver waits for the end of a delay."""
    queue.client.send_message("later", visibility_timeout=2)
    assert queue.receive("waitseconds=60")[2] == "later"


def test_a_lease_that_lapses_ends_the_wait(queue: Queue) -> None:
    """A message whose worker has died goes to whoever waits."""
    queue.client.send_message("again")
    assert queue.client.receive_message(visibility_timeout=2) is not None
    assert queue.receive()[2] == "again"


def test_a_lease_given_back_ends_the_wait(queue: Queue, pool: ThreadPoolExecutor) -> None:
    """A message made visible goes to whoever waits."""
    queue.client.send_message("again")
    lease = queue.client.receive_message(visibility_timeout=600)
    assert lease is not None
    waiting = pool.submit(queue.receive)
    queue.client.update_message(lease, visibility_timeout=0)
    assert waiting.result(PATIENCE_S)[2] == "again"


def test_a_wait_in_vain(queue: Queue) -> None:
    """When the time is up the answer is that of an empty queue, and the connection is kept."""
    status, headers, texts = queue.receive("wait=1")
    assert (status, texts) == (200, "")
    assert "close" not in headers.get("connection", "")


def test_a_wait_beyond_a_minute_is_refused(queue: Queue) -> None:
    """The longest wait is 60 seconds."""
    status, headers, _ = queue.receive("wait=61")
    assert (status, headers["x-ms-error-code"]) == (400, "OutOfRangeQueryParameterValue")


def test_a_deleted_queue_ends_the_wait(queue: Queue, pool: ThreadPoolExecutor) -> None:
    """Whoever waits is told that there is nothing to wait for."""
    waiting = pool.submit(queue.receive)
    queue.client.delete_queue()
    status, headers, _ = waiting.result(PATIENCE_S)
    assert (status, headers["x-ms-error-code"]) == (404, "QueueNotFound")


def test_each_message_goes_to_one_of_many(queue: Queue, pool: ThreadPoolExecutor) -> None:
    """Nobody is left waiting, and nothing is given twice."""
    waiting: list[Future[Answer]] = [pool.submit(queue.receive) for _ in range(50)]
    for number in range(50):
        queue.client.send_message(str(number))
    texts = [future.result(PATIENCE_S)[2] for future in waiting]
    assert sorted(map(int, texts)) == list(range(50))


def test_nothing_is_given_to_a_client_that_has_gone(tmp_path: Path) -> None:
    """A message that comes after it goes to one that is still there, as the first delivery."""
    with Server(tmp_path / "data") as endpoint:
        queue = Queue(endpoint)
        before = metric(endpoint, CONNECTIONS)
        gone = [queue.begin() for _ in range(5)]
        until(endpoint, CONNECTIONS, before + 5)
        for connection in gone:
            connection.close()
        until(endpoint, CONNECTIONS, before)
        stays = queue.begin()
        queue.client.send_message("once")
        assert read(stays)[2] == "once"


def test_a_stopping_server_lets_its_waiters_go(tmp_path: Path) -> None:
    """They get an empty answer and the end of the connection, long before the drain ends."""
    with Server(tmp_path / "data", options={"--drain-timeout-s": "600"}) as endpoint:
        queue = Queue(endpoint)
        before = metric(endpoint, CONNECTIONS)
        waiting = [queue.begin() for _ in range(20)]
        until(endpoint, CONNECTIONS, before + 20)
    for connection in waiting:
        status, headers, texts = read(connection)
        assert (status, headers["connection"], texts) == (200, "close", "")


def test_the_official_sdk_can_wait(queue: Queue, pool: ThreadPoolExecutor) -> None:
    """A hook of the SDK adds the parameter to its requests."""

    def wait(request: Any) -> None:
        request.http_request.url += "&wait=60"

    def receive() -> str:
        message = queue.client.receive_message(raw_request_hook=wait)
        assert message is not None
        return str(message.content)

    waiting = pool.submit(receive)
    with QueueClient(
        queue.endpoint.url, queue.client.queue_name, credential=queue.endpoint.key
    ) as sender:
        sender.send_message("hello", visibility_timeout=1)
    assert waiting.result(PATIENCE_S) == "hello"
