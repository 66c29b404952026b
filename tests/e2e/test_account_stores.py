"""One server whose accounts are kept in several stores, and an account that moves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from leasehold.cli import main
from leasehold.client import Client
from tests.postgres import shared_cluster

from .server import Endpoint, Server

KEY = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="

LARGE = "large" * 20_000


def settings(folder: Path, stores: dict[str, str]) -> dict[str, str]:
    """Write a file of settings and return the option that names it."""
    lines = [f'bodies = "{folder / "bodies"}"']
    lines += [f'[accounts.{name}]\nkey1 = "{KEY}"' for name in ("shop", "bank")]
    lines += ["[account_stores]", *(f'{name} = "{url}"' for name, url in stores.items())]
    file = folder / "settings.toml"
    file.write_text("\n".join(lines))
    return {"--config": str(file)}


def client(endpoint: Endpoint, account: str) -> Client:
    """Return a client of an account."""
    return Client.from_connection_string(
        f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={KEY};"
        f"QueueEndpoint={endpoint.origin}/{account};"
    )


def test_an_account_moves_to_a_store_of_its_own(tmp_path: Path) -> None:
    """Leases and receipts go on there, and one server serves both accounts from their stores."""
    data = tmp_path / "data"
    with Server(data, options=settings(tmp_path, {})) as endpoint:
        for account in ("shop", "bank"):
            with client(endpoint, account) as calls:
                queue = calls.queue("jobs")
                queue.create(settings={"max_body_bytes": 1_000_000})
                queue.put_many([f"{account} {number}" for number in range(4)])
                queue.put(LARGE)
        with client(endpoint, "shop") as calls:
            leased = calls.queue("jobs").receive(2, visibility_timeout_s=600)
    url = f"{shared_cluster().url}&schema=e2e_shop"
    places = [str(tmp_path / "bodies"), str(tmp_path / "bodies-shop")]
    options = ["--bodies-from", places[0], "--bodies-to", places[1]]
    moved = CliRunner().invoke(main, ["store", "move-account", "shop", str(data), url, *options])
    assert moved.exit_code == 0, moved.output

    with Server(data, options=settings(tmp_path, {"shop": url})) as endpoint:
        with client(endpoint, "shop") as calls:
            queue = calls.queue("jobs")
            counts = queue.counts()
            assert (counts.visible, counts.leased) == (3, 2)
            for message in leased:
                queue.complete(message)
            assert queue.counts().total == 3
            assert LARGE in [message.body.decode() for message in queue.receive(3)]
            assert [each.name for each in calls.list_queues()] == ["jobs"]
        with client(endpoint, "bank") as calls:
            assert calls.queue("jobs").counts().visible == 5
    checked = CliRunner().invoke(main, ["store", "check", url])
    assert checked.exit_code == 0, checked.output


def test_an_account_that_is_away_is_not_served(tmp_path: Path) -> None:
    """A server that still looks for it in its old store does not start, and says what to do."""
    data = tmp_path / "data"
    with (
        Server(data, options=settings(tmp_path, {})) as endpoint,
        client(endpoint, "shop") as calls,
    ):
        calls.queue("jobs").create()
    target = tmp_path / "other"
    moved = CliRunner().invoke(main, ["store", "move-account", "shop", str(data), str(target)])
    assert moved.exit_code == 0, moved.output
    file = settings(tmp_path, {})["--config"]
    command = [sys.executable, "-m", "leasehold.cli", "serve", "--config", file, "--port", "0"]
    done = subprocess.run(
        [*command, "--data", str(data)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 70
    assert "account shop was moved to another store" in done.stdout + done.stderr
