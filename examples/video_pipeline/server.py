"""Starting and stopping the queue server of the demonstration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from leasehold.server.settings import DEV_ACCOUNT
from leasehold.server.settings.values import DEV_KEY

STOPPED_WITHIN_S: Final = 10

_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")
"""In the log, first of all that of the Azure and the native dialect."""


class ServerFailed(Exception):
    """The server did not come up; the text says where its log is and how it ends."""


@contextmanager
def running_server(root: Path) -> Iterator[str]:
    """Run ``leasehold serve`` on a free port while the block runs; yields a connection string.

    The data is in *root*``/server``, the log in *root*``/logs/server.log``.
    """
    log = root / "logs" / "server.log"
    command = (
        *(sys.executable, "-m", "leasehold.cli", "serve"),
        *("--data", str(root / "server"), "--host", "127.0.0.1", "--port", "0"),
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,  # Ctrl-C stops the story first, and the story stops the server
        )
    try:
        yield connection_string(_port_when_ready(process, log))
    finally:
        process.terminate()
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def connection_string(port: int) -> str:
    """Return what an Azure SDK wants to know about the server on *port* of this machine."""
    return (
        f"DefaultEndpointsProtocol=http;AccountName={DEV_ACCOUNT};AccountKey={DEV_KEY};"
        f"QueueEndpoint=http://127.0.0.1:{port}/{DEV_ACCOUNT};"
    )


def console_page(connection_string: str, *place: str) -> str | None:
    """Return the address of a page of the console of a server on this machine.

    Args:
        connection_string: As :func:`connection_string` makes it.
        place: Parts of the page's address.

    Returns: None if it is not such a server.
    """
    found = _ADDRESS.search(connection_string)
    if found is None:
        return None
    return f"{found[0]}/console/#/{'/'.join(quote(part, safe='') for part in place)}"


def _environment() -> dict[str, str]:
    """Let the server be found when Leasehold is not installed but lies in ``src``."""
    source = Path(__file__).resolve().parents[2] / "src"
    # Settings of another server in the environment would be settings of this one too.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**ours, "PYTHONPATH": os.pathsep.join(paths)}


def _port_when_ready(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port that the server has chosen itself: one that was looked for may be taken.

    It is waited for as long as it lives: a slow machine takes its time.
    """
    while process.poll() is None:
        found = _ADDRESS.search(log.read_text(errors="replace"))
        try:
            if found:
                with urllib.request.urlopen(f"{found[0]}/readyz", timeout=60):
                    return int(found[1])
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    tail = log.read_text(errors="replace").strip().splitlines()[-5:]
    state = f"ended with {process.returncode}"
    raise ServerFailed("\n  ".join((f"leasehold serve {state}; the end of {log}:", *tail)))
