"""The process: start, signals, exit codes. Most tests run ``leasehold serve``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from leasehold import __version__
from leasehold.server.main import serve
from leasehold.server.settings import Settings
from leasehold.server.settings.values import DEV_KEY
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
SERVE = "from leasehold.cli import main; main()"


class Process:
    """A server whose log is read as events."""

    def __init__(self, data: Path, *options: str, code: str = SERVE) -> None:
        self.data = data
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LEASEHOLD_")}
        environment["PYTHONPATH"] = str(ROOT / "src")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", code, "serve", "--port", "0", "--data", str(data)),
                *("--log-format", "json", "--disk-reserve-mib", "0", *options),
            ],
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self.process.stderr is not None
        self._watch = threading.Timer(PATIENCE_S, self.process.kill)
        self._watch.start()
        self.port = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def event(self, name: str) -> dict[str, Any]:
        """Read the log up to an event of this name."""
        for event in self.events():
            if event["event"] == name:
                return event
        raise AssertionError(f"the log ended without {name}")

    def events(self) -> Iterator[dict[str, Any]]:
        """Read the log; every line must be an event."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            yield json.loads(line)

    def ready(self) -> Self:
        """Wait for the ready line and take the port from it."""
        url = self.event("server.ready")["url"]
        assert url.startswith("http://127.0.0.1:")
        self.port = int(url.rsplit(":", 1)[1])
        return self

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def test_the_first_line_of_json_says_all_that_a_program_needs(tmp_path: Path) -> None:
    """It is alone on standard output, which the log does not touch; no key is in it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LEASEHOLD_")}
    words = ("serve", "--json", "--port", "0", "--data", str(tmp_path), "--disk-reserve-mib", "0")
    with subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", *words, "--mns-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "")
    found = json.loads(line)
    port, mns_port = found.pop("port"), found.pop("mns_port")
    assert port != mns_port
    assert found == {
        "event": "server.ready",
        "version": __version__,
        "pid": process.pid,
        "url": f"http://127.0.0.1:{port}",
        "also": [],
        "mns_url": f"http://127.0.0.1:{mns_port}",
        "console_url": f"http://127.0.0.1:{port}/console/",
        "store": "sqlite",
        "data": str(tmp_path),
        "store_url": None,
        "accounts": ["devstoreaccount1"],
        "development_account": True,
        "bearer_tokens": False,
        "test_mode": False,
    }
    names = [json.loads(each)["event"] for each in err.splitlines()]
    assert (names[0], names[-1]) == ("server.started", "server.stopped")


def test_why_it_cannot_start_is_a_line_of_json_too(tmp_path: Path) -> None:
    """With the exit code; settings that will not do are told in the same form."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, code, reason in (
            (("--port", port), 69, f"cannot listen on 127.0.0.1 port {port}"),
            (("--port", "70000", "--log-level", "loud"), 78, "port: is 70000"),
        ):
            words = ("serve", "--json", "--data", str(tmp_path), *options)
            done = subprocess.run(
                [sys.executable, "-m", "leasehold.cli", *words],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            (line,) = done.stdout.splitlines()
            found = json.loads(line)
            assert (found["event"], found["exit_code"]) == ("server.start_failed", code)
            assert reason in found["reason"]
            assert done.returncode == code


def test_server_starts_serves_and_stops(tmp_path: Path) -> None:
    """It says when it is ready, warns of the public key, serves, and ends with 0 when told."""
    with Process(tmp_path) as server:
        events = server.events()
        names = [next(events)["event"] for _ in range(2)]
        assert names == ["server.started", "server.public_key"]
        server.ready()
        assert server.get("/healthz") == (200, b"ok\n")
        assert server.get("/readyz")[0] == 200
        status, page = server.get("/devstoreaccount1/queue1/messages")
        assert (status, b"ResourceNotFound" in page) == (404, True)  # no credentials
        assert (
            b'leasehold_server_requests_total{status="404",verb="get-messages"} 1.0'
            in (server.get("/metrics")[1])
        )
        assert server.stop() == 0
        assert [event["event"] for event in server.events()] == [
            "server.stopping",
            "server.stopped",
        ]


_HALF = (
    "POST /v1/accounts/devstoreaccount1/queues/queue1/messages/raw HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    f"Authorization: Bearer {DEV_KEY}\r\nContent-Length: 10\r\n\r\n01234"
).encode()
"""A request with good credentials, whose body has not come whole."""


def test_request_that_has_begun_is_answered_while_the_server_stops(tmp_path: Path) -> None:
    """After SIGTERM nobody new is let in, and who has begun is answered; then it ends with 0."""
    with Process(tmp_path) as server:
        server.ready()
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(_HALF)
            # Only once a later connection is answered has the server surely read the first one.
            assert server.get("/healthz")[0] == 200
            server.process.send_signal(signal.SIGTERM)
            server.event("server.stopping")
            client.sendall(b"56789")
            answer = b""
            while part := client.recv(65_536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 404 ")  # there is no such queue
        assert b"\r\nconnection: close\r\n" in answer
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        assert server.process.wait(PATIENCE_S) == 0


def test_patience_with_clients_ends(tmp_path: Path) -> None:
    """A client that does not finish its request cannot keep the server from stopping."""
    with Process(tmp_path, "--drain-timeout-s", "0.2") as server:
        server.ready()
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(_HALF)
            assert server.get("/healthz")[0] == 200
            assert server.stop() == 0
            cut = server.event("server.drain_timed_out")
            assert (cut["requests"], cut["connections"], cut["level"]) == (1, 1, "error")


def test_idle_connection_is_closed_without_patience(tmp_path: Path) -> None:
    """Who has asked for nothing is not cut off, so there is nothing to tell."""
    with Process(tmp_path, "--drain-timeout-s", "0") as server:
        server.ready()
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            assert server.get("/healthz")[0] == 200
            assert server.stop() == 0
            assert client.recv(1) == b""
            assert [event["event"] for event in server.events()] == [
                "server.stopping",
                "server.stopped",
            ]


def test_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    """Who is in a hurry sends the signal twice."""
    with Process(tmp_path) as server:
        server.ready()
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(_HALF)
            assert server.get("/healthz")[0] == 200
            server.process.send_signal(signal.SIGINT)
            server.event("server.stopping")
            assert server.stop(signal.SIGINT) == 128 + signal.SIGINT


@pytest.mark.usefixtures("log_put_back")
def test_second_server_on_the_same_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers on one folder would destroy each other's work, so the second does not start."""
    with Process(tmp_path) as first:
        first.ready()
        reason, code = why_not_started(capsys, data=tmp_path)
        assert f"process {first.process.pid}" in reason
        assert code == 75
        assert first.get("/readyz")[0] == 200


def why_not_started(capsys: pytest.CaptureFixture[str], **values: Any) -> tuple[str, int]:
    """Start a server in this process that cannot; return the reason in its log, and the code."""
    few = {"port": 0, "disk_reserve_mib": 0, "max_connections": 10, "log_format": "json"}
    code = serve(Settings(**{**few, **values}))
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (reason,) = [each["reason"] for each in events if each["event"] == "server.start_failed"]
    return reason, code


@pytest.mark.usefixtures("log_put_back")
def test_why_a_server_does_not_start_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in the way has a code: 69 for a port, 78 for a certificate, 70 for a database."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        reason, code = why_not_started(capsys, data=tmp_path, port=port)
    assert (str(port) in reason, code) == (True, 69)
    file = Path(__file__)
    reason, code = why_not_started(capsys, data=tmp_path, tls_cert=file, tls_key=file)
    assert ("tls_cert" in reason, code) == (True, 78)
    (tmp_path / "leasehold.db").write_bytes(b"this is no database" * 1_000)
    reason, code = why_not_started(capsys, data=tmp_path)
    assert ("not a database" in reason, code) == (True, 70)


FAILING = """
from leasehold.domain.errors import StoreFailed
from leasehold.stores.sqlite.store import SqliteStore

def fail(self):
    raise StoreFailed

SqliteStore.commit = fail
"""


def test_failed_store_ends_the_process(tmp_path: Path) -> None:
    """A store that failed is of no more use: the process ends with 70, to be started again."""
    with Process(tmp_path, code=FAILING + SERVE) as server:
        server.event("store.failed")
        assert server.event("server.stopped")["exit_code"] == 70
        assert server.process.wait(PATIENCE_S) == 70
