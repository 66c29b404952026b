"""Two real servers on one PostgreSQL database, used with the Azure SDK."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueClient, QueueMessage

from leasehold.client import Client
from leasehold.stores.postgres.connection import Address, connect
from tests.e2e.server import Endpoint, Server
from tests.patience import PATIENCE_S
from tests.postgres import find_programs, open_empty, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

SCHEMA: Final = "two_servers"


class Pair:
    """Two servers on one database, and a queue."""

    def __init__(self, folder: Path) -> None:
        open_empty(SCHEMA).close()
        self.url = f"{shared_cluster().url}&schema={SCHEMA}"
        self.servers = [
            Server(folder / name, options={"--store-url": self.url, "--log-format": "json"})
            for name in ("first", "second")
        ]
        self.endpoints: list[Endpoint] = []

    def azure(self, number: int) -> QueueClient:
        """Return a client of one of the servers, which does not try again by itself."""
        text = self.endpoints[number].connection_string
        return QueueClient.from_connection_string(text, "orders", retry_total=0)

    def native(self, number: int) -> Client:
        """Return a native client of one of the servers."""
        return Client.from_connection_string(self.endpoints[number].connection_string)

    def report(self, number: int) -> dict[str, Any]:
        """Return what a server says of itself."""
        with urllib.request.urlopen(f"{self.endpoints[number].origin}/readyz") as answer:
            return dict(json.loads(answer.read()))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two servers that run."""
    pair = Pair(tmp_path)
    with pair.servers[0] as first, pair.servers[1] as second:
        pair.endpoints = [first, second]
        pair.azure(0).create_queue()
        yield pair


def ask(statement: str, *bounds: object) -> list[tuple[Any, ...]]:
    """Ask the database."""
    with connect(Address.parse(f"{shared_cluster().url}&schema={SCHEMA}")) as connection:
        return connection.execute(statement, bounds).fetchall()


def test_messages_travel_between_servers(pair: Pair) -> None:
    """What one server took the other gives out, and the first removes with that receipt."""
    first, second = pair.azure(0), pair.azure(1)
    sent = [first.send_message(f"order {number}") for number in range(5)]
    assert second.get_queue_properties().approximate_message_count == 5
    received = list(second.receive_messages(max_messages=5, visibility_timeout=3600))
    assert [each.id for each in received] == [each.id for each in sent]
    assert list(first.receive_messages()) == []
    for message in received[:3]:
        first.delete_message(message)
    second.update_message(received[3], visibility_timeout=0)
    assert [each.id for each in first.receive_messages()] == [received[3].id]
    for client in (first, second):
        assert client.get_queue_properties().approximate_message_count == 2


def test_a_put_wakes_who_waits_on_the_other_server(pair: Pair) -> None:
    """A long poll on one server is answered when the other one gets a message."""
    got: list[Any] = []

    def wait() -> None:
        with pair.native(0) as client:
            got.extend(client.queue("orders").receive(wait_s=60))

    thread = threading.Thread(target=wait)
    thread.start()
    while not ask("SELECT 1 FROM waiting"):
        assert thread.is_alive()
    sent = pair.azure(1).send_message("now")
    thread.join(PATIENCE_S / 2)
    assert [each.id for each in got] == [sent.id]


def test_what_one_server_sets_holds_on_the_other(pair: Pair) -> None:
    """Metadata and deletion of a queue are known to the other server with its next request."""
    first, second = pair.azure(0), pair.azure(1)
    first.set_queue_metadata({"team": "blue"})
    assert second.get_queue_properties().metadata == {"team": "blue"}
    second.delete_queue()
    with pytest.raises(ResourceNotFoundError):
        first.get_queue_properties()


def test_one_of_them_leads_and_the_other_follows(pair: Pair) -> None:
    """The pages of both say which one leads; when it is killed, the other does within seconds."""
    leading = [pair.report(number)["store"]["details"]["leads"] for number in range(2)]
    assert sorted(leading) == [0, 1]
    leader = leading.index(1)
    killed = pair.servers[leader]
    assert killed._process is not None
    killed._process.send_signal(signal.SIGKILL)
    killed._process.wait()
    killed._process = None
    while not pair.report(1 - leader)["store"]["details"]["leads"]:
        pass
    message: QueueMessage = pair.azure(1 - leader).send_message("on we go")
    assert message.id


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    """A database that cannot be reached ends the start with code 70, and its password is secret."""
    url = "postgresql://leasehold:geheim@127.0.0.1:1/postgres?password=geheim"
    script = (
        "import sys; from leasehold.server import startup;"
        "startup.open_store.__kwdefaults__['patience_s'] = 0.0;"
        "from leasehold.cli.root import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "serve", "--port", "0", "--store-url", url],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 70, done.stderr
    assert "cannot be opened" in done.stderr
    assert "geheim" not in done.stderr + done.stdout
    assert "leasehold:***@127.0.0.1:1" in done.stderr
    assert not list(tmp_path.iterdir())
