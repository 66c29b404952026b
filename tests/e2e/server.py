"""The real ``leasehold serve`` as a subprocess, for tests that speak to it over the network."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import leasehold
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

DEV_ACCOUNT: Final = "devstoreaccount1"
DEV_KEY: Final = (  # the emulator's key, published by Microsoft
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How to reach the queues of one account in path style."""

    url: str
    """Address of the account, without a trailing slash."""
    account: str = DEV_ACCOUNT
    key: str = DEV_KEY
    ca_file: str | None = None
    """Certificate authority to trust; set if and only if the address is https."""

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return self.url.rsplit("/", 1)[0]

    @property
    def port(self) -> int:
        """The port, which the address always names."""
        return int(self.origin.rsplit(":", 1)[1])

    @property
    def secondary_url(self) -> str:
        """The account's read-only address."""
        return f"{self.url}-secondary"

    @property
    def connection_string(self) -> str:
        """What the SDKs call a connection string, with the secondary endpoint."""
        return (
            f"DefaultEndpointsProtocol={self.url.split(':', 1)[0]};AccountName={self.account};"
            f"AccountKey={self.key};QueueEndpoint={self.url};"
            f"QueueSecondaryEndpoint={self.secondary_url};"
        )

    @property
    def is_azurite(self) -> bool:
        """Whether an Azurite answers here; some tests document what it does differently."""
        try:
            with urllib.request.urlopen(f"{self.url}?comp=list", timeout=PATIENCE_S) as answer:
                return "Azurite" in str(answer.headers.get("Server"))
        except urllib.error.HTTPError as refusal:
            with refusal:
                return "Azurite" in str(refusal.headers.get("Server"))

    @classmethod
    def from_connection_string(cls, text: str) -> Self:
        """Read a connection string that has AccountName, AccountKey and QueueEndpoint."""
        parts = dict(part.split("=", 1) for part in text.strip(";").split(";"))
        return cls(
            url=parts["QueueEndpoint"].rstrip("/"),
            account=parts["AccountName"],
            key=parts["AccountKey"],
        )


class Server:
    """A server process with its own data directory; a context manager.

    Leaving the context sends SIGTERM and fails unless the process ends with exit code 0 and has
    logged no traceback.
    """

    program: Sequence[str] = ("-m", "leasehold.cli")
    """What Python is to run."""

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        options: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """*port* 0 takes any free one; *options* are further long options of ``serve``.

        An option without a value has an empty one.
        """
        self._data = data
        self._port = port
        self._options = dict(options or {})
        self._ca_file = ca_file
        self._log = data.with_name(f"{data.name}.log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What the server has written to stdout and stderr so far."""
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Process id, for tests that kill it."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Endpoint:
        """Start the process and wait until ``/readyz`` answers 200."""
        scheme = "https" if self._ca_file else "http"
        self._data.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *self.program, "serve", "--host", "127.0.0.1"]
        command += ["--port", str(self._port)]
        if "--store-url" not in self._options:
            command += ["--data", str(self._data)]
        for name, value in self._options.items():
            command += [name, value] if value else [name]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LEASEHOLD_")}
        environment["PYTHONPATH"] = str(Path(leasehold.__file__).parents[1])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=self._data
            )
        port = self._wait_for_port()
        self._wait_until_ready(f"{scheme}://127.0.0.1:{port}/readyz")
        return Endpoint(
            url=f"{scheme}://127.0.0.1:{port}/{DEV_ACCOUNT}",
            ca_file=str(self._ca_file) if self._ca_file else None,
        )

    def stop(self) -> None:
        """Ask the server to stop; fail if it does so badly."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the server ignored SIGTERM; its log:\n{self.log}") from None
        assert code == 0, f"the server ended with {code}; its log:\n{self.log}"
        assert "Traceback" not in self.log, f"the server logged a traceback:\n{self.log}"

    def __enter__(self) -> Endpoint:
        try:
            return self.start()
        except BaseException:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _wait_for_port(self) -> int:
        """Read the port from the ready line, which names the address the server listens on."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = re.search(r"https?://127\.0\.0\.1:(\d+)", self.log)
            if found:
                return int(found[1])
            self._fail_if_ended()
            time.sleep(_POLL_S)
        raise AssertionError(f"no ready line within {PATIENCE_S} s; the log:\n{self.log}")

    def _wait_until_ready(self, url: str) -> None:
        trust = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(url, timeout=PATIENCE_S, context=trust) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                self._fail_if_ended()
            time.sleep(_POLL_S)
        raise AssertionError(f"{url} was not ready within {PATIENCE_S} s:\n{self.log}")

    def _fail_if_ended(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"the server ended with {code} while starting:\n{self.log}"


def port_is_free(port: int) -> bool:
    """Whether nobody listens on a local port right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
