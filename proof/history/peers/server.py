"""One server process of a peer: started empty, killed, and started again on the same data."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from proof.history.adapters import Connector, Promise, Restart, Unknown
from proof.history.relay import Relay

READY_S: Final = 60.0
TIMEOUT_S: Final = 3.0
"""Of one answer; longer than servers are paused."""
LEASE_S: Final = 3
"""Of peers whose lease is one for all: not less than any that clients ask for."""
_LOOK_S: Final = 0.02


class PeerServer:
    """A system of one process behind a relay; see :class:`proof.history.adapters.System`.

    Args:
        name: Of the peer and its settings.
        promise: What its makers say.
        command: Returns how to start it on a port; its data are in a folder of its own.
        connect: Makes a connector to a port.
        make_queues: Makes the queues, with the port of the server, on an empty one.
        is_ready: Tells whether the server at a port answers; may raise OSError or Unknown.
        log: What it writes to.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        name: str,
        promise: Promise,
        *,
        command: Callable[[int], Sequence[str]],
        connect: Callable[[int], Connector],
        make_queues: Callable[[int, Sequence[str]], None],
        is_ready: Callable[[int], bool],
        log: Path,
    ) -> None:
        self.name = name
        self.promise = promise
        self.environment: Mapping[str, str] = {}
        """What it has in its environment besides ours, such as a shim."""
        self._command = command
        self._connect = connect
        self._make_queues = make_queues
        self._is_ready = is_ready
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._relay: Relay | None = None

    def start(self, queues: Sequence[str], ordered: Sequence[str]) -> None:
        """Start it and its relay, and make the queues."""
        assert not ordered, "no peer has groups in order"
        self._begin()
        self._make_queues(self._port, queues)
        self._relay = Relay(self._port).__enter__()

    def connector(self, client: int) -> Connector:
        """Return what all clients connect with."""
        del client
        assert self._relay is not None
        return self._connect(self._relay.port)

    def pids(self) -> Sequence[int]:
        """Return the process and those that it has forked."""
        if self._process is None or self._process.poll() is not None:
            return []
        return [self._process.pid, *_children(self._process.pid)]

    def kill(self) -> None:
        """End them with SIGKILL."""
        if self._process is not None:
            children = _children(self._process.pid)
            handles = [os.pidfd_open(pid) for pid in children]
            self._process.kill()
            self._process.wait()
            for handle in handles:
                _end(handle)
            self._process = None
        if self._relay is not None:
            self._relay.refuse()

    def restart(self) -> Restart:
        """Start it again if it does not run."""
        if self.pids():
            return Restart()
        self.kill()
        barrier_s = time.monotonic()
        self._begin()
        assert self._relay is not None
        self._relay.lead_to(self._port)
        return Restart(barrier_s)

    def stop(self) -> None:
        """End everything."""
        self.kill()
        if self._relay is not None:
            self._relay.__exit__()
            self._relay = None

    def _begin(self) -> None:
        self._port = free_port()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(self._port),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        deadline_s = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                said = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.name} does not start:\n{said}")
            time.sleep(_LOOK_S)

    def _answers(self) -> bool:
        try:
            return self._is_ready(self._port)
        except (OSError, Unknown):
            return False


def accepts(port: int) -> bool:
    """Tell whether somebody listens there; raises OSError otherwise."""
    socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S).close()
    return True


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def network_errors_unknown() -> Iterator[None]:
    """Take an error of the network for an outcome that nobody knows."""
    try:
        yield
    except OSError as error:
        raise Unknown(str(error)) from error


def _children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _end(handle: int) -> None:
    """Kill a process that is not ours to wait for, and wait until it is gone."""
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    else:
        select.select([handle], [], [], READY_S)
    os.close(handle)
