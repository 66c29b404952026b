"""An account that is moved while a server on the same database goes on running."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient
from click.testing import CliRunner
from mns.account import Account
from mns.mns_exception import MNSServerException

from leasehold.cli import main
from leasehold.client import Client
from leasehold.client.errors import Unavailable
from leasehold.client.retries import RetryPolicy
from tests.postgres import empty, find_programs, shared_cluster

from .server import Endpoint, Server
from .test_account_stores import KEY, client

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

HERE: Final = "moved_here"
THERE: Final = "moved_there"
NAMES: Final = ("shop", "bank")


class Caller:
    """Clients of every kind for one account, none of which tries again by itself."""

    def __init__(self, endpoint: Endpoint, mns_url: str, account: str) -> None:
        text = (
            f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={KEY};"
            f"QueueEndpoint={endpoint.origin}/{account};"
        )
        self.azure = QueueClient.from_connection_string(text, "jobs", retry_total=0)
        self.native = Client.from_connection_string(text, retries=RetryPolicy(attempts=1))
        self.mns: Any = Account(mns_url, account, KEY)

    def close(self) -> None:
        """Close all connections."""
        self.azure.close()
        self.native.close()
        self.mns.get_client().close_connection()


def settings(folder: Path, stores: dict[str, str]) -> dict[str, str]:
    """Write a file of settings and return the option that names it."""
    lines = [f'[accounts.{name}]\nkey1 = "{KEY}"' for name in NAMES]
    lines += ["[account_stores]", *(f'{name} = "{url}"' for name, url in stores.items())]
    file = folder / "settings.toml"
    file.write_text("\n".join(lines))
    return {
        "--config": str(file),
        "--store-url": f"{shared_cluster().url}&schema={HERE}",
        "--mns-port": "0",
        "--log-format": "json",
    }


def report(endpoint: Endpoint) -> dict[str, Any]:
    """Return what the server says of itself."""
    with urllib.request.urlopen(f"{endpoint.origin}/readyz") as answer:
        return dict(json.loads(answer.read()))


def mns_url(server: Server) -> str:
    """Return where requests of MNS go to."""
    events = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return next(str(each["url_mns"]) for each in events if each["event"] == "server.ready")


def refusals(caller: Caller) -> list[tuple[int, str]]:
    """Ask for the queue in each way; return status and code of each refusal."""
    found = []
    for ask in (
        caller.azure.get_queue_properties,
        lambda: caller.azure.send_message("x"),
        caller.azure.receive_message,
    ):
        with pytest.raises(HttpResponseError) as azure:
            ask()
        response: Any = azure.value.response
        code = response.headers["x-ms-error-code"]
        found.append((azure.value.status_code or 0, code))
    asks: list[Callable[[], object]] = [
        lambda: caller.native.queue("jobs").put("x"),
        lambda: list(caller.native.list_queues()),
        lambda: caller.native.queue("jobs").receive(1, wait_s=5),
    ]
    for each in asks:
        with pytest.raises(Unavailable) as native:
            each()
        found.append((native.value.problem.status, native.value.code))
    with pytest.raises(MNSServerException) as mns:
        caller.mns.get_queue("jobs").get_attributes()
    found.append((503, mns.value.type))
    return found


def test_a_running_server_says_that_an_account_has_moved(tmp_path: Path) -> None:
    """It is no 404 but 503 in each dialect, until the server is started with the new store."""
    for schema in (HERE, THERE):
        empty(schema)
    urls = [f"{shared_cluster().url}&schema={schema}" for schema in (HERE, THERE)]
    server = Server(tmp_path / "data", options=settings(tmp_path, {}))
    with server as endpoint:
        shop, bank = (Caller(endpoint, mns_url(server), name) for name in NAMES)
        for caller in (shop, bank):
            caller.native.queue("jobs").create()
            caller.native.queue("jobs").put("kept")
        moved = CliRunner().invoke(main, ["store", "move-account", "shop", *urls])
        assert moved.exit_code == 0, moved.output
        told = refusals(shop)
        assert set(told) == {(503, "ServerBusy"), (503, "account-moved")}
        bank.native.queue("jobs").put("more")
        assert len(bank.native.queue("jobs").receive(10)) == 2
        said = report(endpoint)
        assert (said["ready"], said["accounts_away"]) == (True, ["shop"])
        events = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        assert [each["account"] for each in events if each["event"] == "account.moved_away"] == [
            "shop"
        ]
        for caller in (shop, bank):
            caller.close()
    with Server(tmp_path / "data", options=settings(tmp_path, {"shop": urls[1]})) as endpoint:
        with client(endpoint, "shop") as calls:
            assert [each.body for each in calls.queue("jobs").receive(10)] == [b"kept"]
        said = report(endpoint)
        assert said["accounts_away"] == []
        assert [(each["accounts"], each["ready"]) for each in said["account_stores"]] == [
            (["shop"], True)
        ]
