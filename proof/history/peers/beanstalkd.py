"""beanstalkd: leases are reservations, for the time to run of the put and one connection."""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from proof.history.adapters import Promise, Refused, Unknown
from proof.history.peers.server import (
    LEASE_S,
    TIMEOUT_S,
    PeerServer,
    accepts,
    network_errors_unknown,
)
from proof.history.records import Delivery

PROMISE: Final = Promise(
    fenced=False,  # a delete acts on a job that is ready, whoever had it reserved
    prompt=False,  # DEADLINE_SOON instead of a job
    margin_s=0.05,
)
_GONE: Final = ("NOT_FOUND",)


class BeanstalkdQueue:
    """One tube over one connection."""

    def __init__(self, port: int, tube: str) -> None:
        self._tube = tube
        self._me = uuid.uuid4().hex
        self._numbers = count(1)
        with network_errors_unknown():
            self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
            self._lines = self._socket.makefile("rb")
        for command in (f"use {tube}", f"watch {tube}", "ignore default"):
            self._ask(command)

    def _ask(self, command: str, body: bytes | None = None) -> tuple[str, list[str], str]:
        data = command.encode() + b"\r\n" + (b"" if body is None else body + b"\r\n")
        with network_errors_unknown():
            self._socket.sendall(data)
            line = self._lines.readline()
            if not line.endswith(b"\r\n"):
                raise Unknown("the connection has ended")
            word, *rest = line.decode().split()
            text = ""
            if word in {"RESERVED", "FOUND", "OK"}:
                size = int(rest[-1])
                whole = self._lines.read(size + 2)
                if len(whole) != size + 2:
                    raise Unknown("half of an answer")
                text = whole[:-2].decode()
        if word in {"OUT_OF_MEMORY", "INTERNAL_ERROR", "DRAINING"}:
            raise Unknown(word)
        return word, rest, text

    def _act(self, command: str) -> None:
        word, _, _ = self._ask(command)
        if word in _GONE:
            raise Refused("gone")
        if word == "BURIED":
            raise Unknown(word)

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Put a job."""
        del group
        data = body.encode()
        word, _, _ = self._ask(f"put 0 {int(delay_s)} {LEASE_S} {len(data)}", data)
        if word != "INSERTED":
            raise Unknown(word)

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Reserve one after the other; each for the time to run, whatever is asked for."""
        del lease_s
        taken: list[Delivery] = []
        while len(taken) < limit:
            word, rest, text = self._ask("reserve-with-timeout 0")
            if word != "RESERVED":
                break
            # There are no receipts: one of our own, which names the job.
            token = f"{rest[0]}/{self._me}/{next(self._numbers)}"
            taken.append(Delivery(text, token, None, rest[0]))
        return taken

    def peek(self, limit: int) -> Sequence[Delivery]:
        """Look at the next job."""
        del limit
        word, rest, text = self._ask("peek-ready")
        return [Delivery(text, message_id=rest[0])] if word == "FOUND" else []

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Begin the time to run again."""
        del lease_s, saved
        self._act(f"touch {delivery.message_id}")
        return delivery.token

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Give it back."""
        self._act(f"release {delivery.message_id} 0 {int(delay_s)}")

    def complete(self, delivery: Delivery) -> None:
        """Delete it."""
        self._act(f"delete {delivery.message_id}")

    def count(self) -> int | None:
        """Add up the states."""
        word, _, text = self._ask(f"stats-tube {self._tube}")
        found = re.findall(r"current-jobs-(?:ready|reserved|delayed|buried): (\d+)", text)
        return sum(map(int, found)) if word == "OK" else 0

    def close(self) -> None:
        """Close it, which ends the reservations."""
        self._lines.close()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class BeanstalkdConnector:
    """Connects; see :class:`proof.history.adapters.Connector`."""

    port: int

    def open(self, queue: str) -> BeanstalkdQueue:
        """Connect."""
        return BeanstalkdQueue(self.port, queue)


def beanstalkd(folder: Path) -> PeerServer:
    """Return a server with a binlog that is synced at each write."""
    data = folder / "binlog"
    data.mkdir()
    return PeerServer(
        "beanstalkd",
        PROMISE,
        command=lambda port: [
            *("beanstalkd", "-l", "127.0.0.1", "-p", str(port)),
            *("-b", str(data), "-f", "0"),
        ],
        connect=BeanstalkdConnector,
        make_queues=lambda _port, _queues: None,
        is_ready=accepts,
        log=folder / "beanstalkd.log",
    )
