"""Server processes that start fast, so that they can be killed often.

Most of a start is the import of modules. A *spawner* is a process that has done it already: it
forks a server for each request, which runs the command line of Leasehold from there. Nothing of a
server has begun before the fork, so a SIGKILL ends as much as it ever does.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_READY_S: Final = 60.0
_LOOK_S: Final = 0.005
_PR_SET_PDEATHSIG: Final = 1
_MODULES: Final = ("leasehold.command", "leasehold.cli.server", "leasehold.server.main", "psycopg")
"""What a server imports, by itself or by these."""


class Spawner:
    """Forks servers.

    Args:
        environment: What they are to have in their environment, such as a shim.
        bug: A bug of ``proof.bugs`` that they are to have.
    """

    def __init__(self, environment: Mapping[str, str], bug: str | None = None) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LEASEHOLD_")}
        paths = {"PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"}
        command = [sys.executable, "-m", "proof.history.processes", *([bug] if bug else [])]
        self._process = subprocess.Popen(
            command,
            env={**kept, **paths, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )

    def spawn(self, log: Path, arguments: Sequence[str]) -> int:
        """Start a server with these arguments of ``leasehold``; return its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = json.dumps({"log": str(log), "arguments": list(arguments)})
        self._process.stdin.write(f"{request}\n".encode())
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the spawner, and its servers with it."""
        self._process.kill()
        self._process.communicate()


class ServerProcess:
    """One server, which can be killed and started again.

    Args:
        spawner: Forks it.
        log: What it writes to.
        options: Further arguments of ``leasehold serve``.
    """

    def __init__(self, spawner: Spawner, log: Path, options: Sequence[str]) -> None:
        self.port = 0
        """Where it listens: somewhere else after each start."""
        self.pid = 0
        self._spawner = spawner
        self._log = log
        self._options = options
        self._handle: int | None = None

    @property
    def log(self) -> str:
        """What it has written since it was started last."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def has_ended(self) -> bool:
        """Whether it is not there, killed or by itself."""
        return self._handle is None or bool(select.select([self._handle], [], [], 0)[0])

    def start(self) -> None:
        """Start it.

        Raises:
            RuntimeError: It has ended by itself, or is not ready in a minute.
        """
        self.end()
        self.begin()
        deadline_s = time.monotonic() + _READY_S
        while not self._is_ready():
            if self.has_ended or time.monotonic() > deadline_s:
                raise RuntimeError(f"the server does not start:\n{self.log}")
            time.sleep(_LOOK_S)

    def begin(self) -> None:
        """Start it, and do not wait."""
        arguments = ("serve", "--host", "127.0.0.1", "--port", "0", *self._options)
        self._log.write_bytes(b"")
        self.pid = self._spawner.spawn(self._log, arguments)
        self._handle = os.pidfd_open(self.pid)

    def end(self) -> None:
        """Kill it, and wait until it is gone; harmless if it is."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            select.select([self._handle], [], [])
            os.close(self._handle)
            self._handle = None

    def _is_ready(self) -> bool:
        found = re.search(r"https?://127\.0\.0\.1:(\d+)", self.log)
        if found is None:
            return False
        self.port = int(found[1])
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as page:
                return bool(page.status == 200)
        except OSError:
            return False


def main() -> None:
    """Be a spawner; for a process of its own."""
    for name in _MODULES:
        importlib.import_module(name)
    if len(sys.argv) > 1:
        planted = importlib.import_module("proof.bugs").planted(sys.argv[1])
        planted.__enter__()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended servers are not waited for
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _serve(Path(request["log"]), request["arguments"])
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _serve(log: Path, arguments: Sequence[str]) -> None:
    """Be a server; for a process that was forked."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # do not outlive the spawner
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, own in enumerate((nothing, file, file)):
        os.dup2(own, number)
    sys.argv = ["leasehold", *arguments]
    try:
        importlib.import_module("leasehold.command").main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))
    os._exit(0)


if __name__ == "__main__":
    main()
