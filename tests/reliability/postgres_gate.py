"""A gate before a PostgreSQL that lets a connection down at a chosen moment."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Final, Self

from tests.postgres import PORT, USER

_NAME: Final = f".s.PGSQL.{PORT}"


class Cut(Enum):
    """What happens to the next thing that a client says."""

    BEFORE = auto()
    """The server never hears of it, and sees that the client has gone."""
    STALLED = auto()
    """The server never hears of it, and believes that the client is still there."""
    AFTER = auto()
    """The server does it; the client never hears the answer."""


class Gate:
    """Relays connections; a context manager, with threads of its own.

    Args:
        upstream: Folder of the server's socket.
        folder: Where to listen; its path must be short.
    """

    def __init__(self, upstream: Path, folder: Path) -> None:
        self._upstream = str(upstream / _NAME)
        self._folder = folder
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / _NAME))
        self._armed: Cut | None = None
        self._kept: list[socket.socket] = []
        self.is_open = True
        """Whether new connections are let through."""

    @property
    def url(self) -> str:
        """Where the database is, seen through the gate."""
        return f"postgresql://{USER}@/postgres?host={self._folder}&port={PORT}"

    def arm(self, cut: Cut) -> None:
        """Let this happen to the next thing that a client says."""
        self._armed = cut

    def __enter__(self) -> Self:
        self._server.listen()
        threading.Thread(target=self._accept, name="gate", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._kept:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if not self.is_open:
                    client.close()
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                args = client, server
                threading.Thread(target=self._relay, args=args, daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    said = client.recv(65_536)
                    if not said:
                        break
                    armed, self._armed = self._armed, None
                    if armed is Cut.STALLED:
                        self._kept.append(server)
                        return
                    if armed is Cut.BEFORE:
                        break
                    server.sendall(said)
                    if armed is Cut.AFTER:
                        server.recv(65_536)
                        break
                elif answer := server.recv(65_536):
                    client.sendall(answer)
                else:
                    break
        server.close()
