"""A real server whose PostgreSQL comes late, or goes and comes back."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient

from tests.e2e.server import Endpoint, Server
from tests.patience import PATIENCE_S
from tests.postgres import Cluster, find_programs

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

BUSY: Final = 503


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL that does not run yet."""
    folder = Path(tempfile.mkdtemp(prefix="lhaway"))
    cluster = Cluster(folder, fsync="off")
    cluster.make()
    yield cluster
    with contextlib.suppress(RuntimeError):
        cluster.stop("immediate")
    shutil.rmtree(folder, ignore_errors=True)


def until(condition: Callable[[], object]) -> None:
    """Return when something holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def orders(endpoint: Endpoint) -> QueueClient:
    """Return a client that does not try again by itself."""
    return QueueClient.from_connection_string(endpoint.connection_string, "orders", retry_total=0)


def test_a_server_waits_for_its_database(tmp_path: Path, cluster: Cluster) -> None:
    """A server that is started first says that the database is away, and serves once it is not."""
    server = Server(tmp_path / "data", options={"--store-url": cluster.url})

    def come_late() -> None:
        until(lambda: server._log.exists() and "store.unreachable" in server.log)
        cluster.start()

    thread = threading.Thread(target=come_late)
    thread.start()
    with server as endpoint:
        orders(endpoint).create_queue()
    thread.join()


def test_a_server_survives_its_database(tmp_path: Path, cluster: Cluster) -> None:
    """While the database is away requests are told 503 and when to come back; then all goes on."""
    cluster.start()
    with Server(tmp_path / "data", options={"--store-url": cluster.url}) as endpoint:
        queue = orders(endpoint)
        queue.create_queue()
        kept = queue.send_message("kept")
        cluster.stop("immediate")
        with pytest.raises(HttpResponseError) as refused:
            queue.send_message("refused")
        assert refused.value.status_code == BUSY
        response: Any = refused.value.response
        assert re.fullmatch(r"\d+", response.headers["Retry-After"])
        with urllib.request.urlopen(f"{endpoint.origin}/healthz") as answer:
            assert answer.status == 200
        cluster.start()

        def is_back() -> bool:
            try:
                queue.send_message("again")
            except HttpResponseError as error:
                if error.status_code != BUSY:
                    raise
                return False
            return True

        until(is_back)
        received = list(queue.receive_messages(max_messages=2))
        assert [each.content for each in received] == ["kept", "again"]
        assert received[0].id == kept.id
