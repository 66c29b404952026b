"""How executors and the driver speak: lines of JSON over one TCP connection for each task.

The driver begins with a number that is used once, and whoever connects proves with it that they
know the run's secret, which is never sent. Then the task says who it is, and sends rows and
figures; the driver answers with the number of the last row that it has, and with the wish to stop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import threading
from typing import Any, Final

import msgspec
from msgspec import Struct

from leasehold.spark.pipeline.rows import Figures, Row, Who

MOST_BYTES: Final = 32 * 1024 * 1024
"""Of one line; more is nobody of ours."""
ROWS_AT_ONCE: Final = 2_000


class Address(Struct, frozen=True):
    """Where the driver listens."""

    host: str
    port: int
    secret: str = ""

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


class Greeting(Struct):
    """The first line of the driver."""

    nonce: str


class Hello(Struct):
    """The first line of a task."""

    who: Who
    proof: str


class Told(Struct, omit_defaults=True):
    """Any other line of a task."""

    first: int = 0
    """Number of the first of the rows, from 1."""
    rows: list[Row] = []
    figures: Figures | None = None
    bye: bool = False
    """Nothing comes after this."""


class Answer(Struct, omit_defaults=True):
    """Any other line of the driver."""

    have: int = 0
    """Rows up to this number are safe."""
    stop_s: float | None = None
    """Stop; messages in work may go on for so many seconds."""
    hurry: bool = False
    """Do not wait for them any longer."""


class Left(Struct):
    """What a task hands to Spark in the end: the rows that the driver has not confirmed."""

    who: Who
    first: int
    rows: list[Row]
    figures: Figures
    failure: str | None = None
    """Why it could not go on; None: it came to its end."""


def new_secret() -> str:
    """Return a secret for one run."""
    return secrets.token_hex(32)


def new_nonce() -> str:
    """Return a number that is used once."""
    return secrets.token_hex(16)


def proof(secret: str, nonce: str, link: str) -> str:
    """Return what shows that somebody knows the secret."""
    return hmac.new(secret.encode(), f"{nonce} {link}".encode(), hashlib.sha256).hexdigest()


def is_proven(hello: Hello, secret: str, nonce: str) -> bool:
    """Return whether whoever said *hello* knows the secret."""
    return hmac.compare_digest(hello.proof, proof(secret, nonce, hello.who.link))


class Lines:
    """A connection as lines of JSON.

    Args:
        connection: It has a time-out, which bounds each read and write.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the number of the connection, for select."""
        return self._connection.fileno()

    def send(self, value: Any) -> None:
        """Send a line. From any thread.

        Raises:
            OSError: The connection is of no use any more.
        """
        line = msgspec.json.encode(value) + b"\n"
        with self._sending:
            self._connection.sendall(line)

    def receive(self, most: int = MOST_BYTES) -> bytes | None:
        """Return the next line; None: the other side has closed the connection.

        Raises:
            OSError: The connection is of no use any more, or nothing came in time.
            ValueError: The line is longer than *most*.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > most:
                raise ValueError(f"a line of more than {most} bytes")
            found = self._connection.recv(1 << 18)
            if not found:
                return None
            self._buffer += found
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    @property
    def has_line(self) -> bool:
        """Whether a line is here already."""
        return b"\n" in self._buffer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
