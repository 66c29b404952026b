"""Azurite, the emulator from npm, as a process of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pytest

from tests.patience import PATIENCE_S

VERSION: Final = "3.37.0"
HOME: Final = Path.home() / ".cache" / "leasehold-bench" / "peers" / f"azurite-{VERSION}"
"""Where the benchmarks have it as well."""
ON_AZURITE: Final = pytest.mark.long
"""For what runs on it: where it is not yet, npm installs it for half a minute."""
_INSTALL_S: Final = 300
_LOOK_S: Final = 0.05
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = (  # published by Microsoft
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class Azurite:
    """One that runs."""

    port: int

    @property
    def connection_string(self) -> str:
        """How it is reached."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
            f"QueueEndpoint=http://127.0.0.1:{self.port}/{_ACCOUNT};"
        )

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Self]:
        """Install it, if need be, and start it with its data in a new folder."""
        program = _program()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory(prefix="azurite-") as folder:
            process = subprocess.Popen(
                [
                    *("node", str(program), "--queueHost", "127.0.0.1", "--queuePort", str(port)),
                    *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
                    "--inMemoryPersistence",
                ],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                _await_port(port, process)
                yield cls(port)
            finally:
                process.terminate()
                process.wait(PATIENCE_S)


def _program() -> Path:
    """Return the file that Node is to run."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            _missing(f"Azurite needs {name}, which is not installed")
    program = HOME / "node_modules" / "azurite" / "dist" / "src" / "queue" / "main.js"
    if not program.exists():
        _install()
    return program


def _install() -> None:
    """Install it beside its place and move it there, as others may do the same just now."""
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME.parent) as folder:
        made = Path(folder) / "azurite"
        made.mkdir()
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(
            [*command, "--prefix", str(made), f"azurite@{VERSION}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_S,
        )
        if done.returncode:
            _missing(f"npm cannot install Azurite:\n{done.stderr}")
        if not HOME.exists():
            made.rename(HOME)


def _missing(what: str) -> None:
    """Skip at home; fail where everything has to be there."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < end_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(_LOOK_S)
    raise RuntimeError("Azurite does not start")
