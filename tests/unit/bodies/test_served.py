"""Large bodies through the whole server: both protocols, a kill, and a place that will not do."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from azure.storage.queue import QueueClient

from leasehold.bodies.base import is_key
from leasehold.clock import SystemClock
from leasehold.server.settings import Settings
from leasehold.server.startup import ExitCode, StartFailed, large_bodies
from tests.e2e.server import DEV_KEY, Endpoint, Server
from tests.patience import PATIENCE_S

MIB = 1024 * 1024


class Big:
    """A queue for large messages."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.url = f"{endpoint.origin}/v1/accounts/{endpoint.account}/queues/big"

    def ask(self, method: str, path: str = "", body: bytes = b"") -> tuple[int, bytes]:
        """Send a request; return status and body of the answer."""
        headers = {"Authorization": f"Bearer {DEV_KEY}"}
        request = urllib.request.Request(
            self.url + path, data=body or None, method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()

    def create(self, max_body_bytes: int) -> None:
        """Create the queue."""
        settings = {"settings": {"max_body_bytes": max_body_bytes}}
        assert self.ask("PUT", body=json.dumps(settings).encode())[0] == 201

    def put(self, body: bytes) -> str:
        """Put a message raw; return its id."""
        status, answer = self.ask("POST", "/messages/raw", body)
        assert status == 201, answer
        message_id = json.loads(answer)["id"]
        assert isinstance(message_id, str)
        return message_id

    def post(self, path: str, value: Any) -> Any:
        """Post JSON; return that of the answer."""
        status, answer = self.ask("POST", path, json.dumps(value).encode())
        assert status == 200, answer
        return json.loads(answer)


def files_in(folder: Path) -> list[Path]:
    """Return all files of bodies."""
    return [path for path in folder.rglob("*") if is_key(path.name)]


def test_large_bodies_through_both_protocols(tmp_path: Path) -> None:
    """What one puts the other receives, up to what the queue allows and no further."""
    text = "a<b>&é" * 60_000
    with Server(tmp_path / "data", options={"--bodies": str(tmp_path / "elsewhere")}) as endpoint:
        big = Big(endpoint)
        big.create(MIB)
        azure = QueueClient.from_connection_string(endpoint.connection_string, "big")
        azure.send_message(text)
        raw = os.urandom(MIB)
        message_id = big.put(raw)
        assert len(files_in(tmp_path / "elsewhere")) == 2
        assert big.ask("GET", f"/messages/{message_id}/body") == (200, raw)
        first, second = big.post("/messages/receive", {"max_messages": 1}), azure.peek_messages(2)
        assert first["messages"][0]["body"] == text
        assert len(second) == 1
        items = [{name: first["messages"][0][name] for name in ("id", "receipt")}]
        assert big.post("/messages/complete", {"items": items})["failed"] == 0
        assert big.ask("POST", "/messages/raw", raw + b"!")[0] == 413
        with pytest.raises(Exception, match="RequestBodyTooLarge"):
            azure.send_message("x" * (MIB + 1))
        azure.close()


def test_an_acknowledged_body_survives_a_kill(tmp_path: Path) -> None:
    """After kill -9 every message that was acknowledged has its body."""
    server = Server(tmp_path / "data")
    big = Big(server.start())
    big.create(MIB)
    sent = {big.put(body): body for body in (os.urandom(100_000 + size) for size in range(5))}
    os.kill(server.pid, signal.SIGKILL)
    assert server._process is not None
    server._process.wait()
    with Server(tmp_path / "data") as endpoint:
        big = Big(endpoint)
        for message_id, body in sent.items():
            assert big.ask("GET", f"/messages/{message_id}/body") == (200, body)
        assert len(files_in(tmp_path / "data" / "bodies")) == len(sent)


def place_of(**values: Any) -> Any:
    """Return who keeps large bodies under some settings."""
    durable = values.pop("durable", True)
    return large_bodies(Settings(**values), SystemClock(), lambda: 0, durable=durable)


def test_the_place_is_beside_the_database_unless_set(tmp_path: Path) -> None:
    """By default bodies are in the data folder; a store in memory has none on disk."""
    assert place_of(data=tmp_path)._place.place == str(tmp_path / "bodies")
    elsewhere = str(tmp_path / "elsewhere")
    assert place_of(data=tmp_path, bodies=elsewhere)._place.place == elsewhere
    assert place_of(data=tmp_path, bodies=elsewhere, durable=False)._place.place == elsewhere
    assert place_of(data=tmp_path / "none", durable=False) is None
    assert not (tmp_path / "none").exists()


def test_limits_are_those_that_are_set(tmp_path: Path) -> None:
    """What is kept in the database, and how much memory there is, are settings."""
    kept = place_of(data=tmp_path, inline_body_bytes=2_000, max_buffered_mib=3)
    assert kept.inline_bytes == 2_000
    assert kept.reader._budget_bytes == 3 * MIB


@pytest.mark.parametrize("where", ["ftp://server/x", "az://container"])
def test_a_place_that_will_not_do_is_said_at_the_start(tmp_path: Path, where: str) -> None:
    """The server does not start, and names the setting."""
    with pytest.raises(StartFailed, match=r"^bodies: ") as found:
        place_of(data=tmp_path, bodies=where)
    assert found.value.code is ExitCode.SETTINGS


def test_a_folder_that_will_not_do_is_said_at_the_start(tmp_path: Path) -> None:
    """So it is with a folder that is a file."""
    (tmp_path / "bodies").write_text("a file")
    with pytest.raises(StartFailed, match=r"^bodies: ") as found:
        place_of(data=tmp_path)
    assert found.value.code is ExitCode.SETTINGS
