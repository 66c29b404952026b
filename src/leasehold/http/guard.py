"""Limits of connections, and the one task that enforces those that have to do with time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from leasehold.auth.times import format_http_date
from leasehold.clock import Clock

LINGER_S: Final = 2.0
"""How long the rest of a refused request is read and thrown away.

Closing at once would make the kernel send a reset, which can destroy the answer before the client
has read it.
"""
LINGER_BYTES: Final = 8 * 1024 * 1024
_SWEEPS_PER_TIMEOUT: Final = 8
_SWEEP_S: Final = (0.02, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may ask of the server; the settings of the same names say more."""

    max_connections: int = 4_096
    max_request_line_bytes: int = 8_192
    max_header_bytes: int = 32_768
    max_header_fields: int = 100
    max_buffered_bytes: int = 128 * 1024 * 1024
    header_timeout_s: float = 10.0
    body_timeout_s: float = 10.0
    body_min_bytes_per_s: int = 1_024
    idle_timeout_s: float = 120.0
    write_timeout_s: float = 30.0


class Refusal(NamedTuple):
    """Why the server ends a connection; what it says if an answer can still be read."""

    reason: str
    """Label in the metrics."""
    response: bytes = b""
    """The whole answer; empty for a reset."""


def _refusal(reason: str, status: str, text: str, *extra: str) -> Refusal:
    head = [
        f"HTTP/1.1 {status}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(text)}",
        "Connection: close",
        *extra,
    ]
    return Refusal(reason, ("\r\n".join(head) + "\r\n\r\n" + text).encode("ascii"))


MALFORMED: Final = _refusal(
    "malformed", "400 Bad Request", "The request is not well-formed HTTP, or is ambiguous.\n"
)
HEADER_TIMEOUT: Final = _refusal(
    "header_timeout", "408 Request Timeout", "The header did not arrive in time.\n"
)
BODY_TIMEOUT: Final = _refusal(
    "body_timeout", "408 Request Timeout", "The body did not arrive in time.\n"
)
ADDRESS_TOO_LONG: Final = _refusal(
    "address_too_long", "414 URI Too Long", "The address is too long.\n"
)
HEADER_TOO_LARGE: Final = _refusal(
    "header_too_large", "431 Request Header Fields Too Large", "The header is too large.\n"
)
TOO_MANY_CONNECTIONS: Final = _refusal(
    "too_many_connections",
    "503 Service Unavailable",
    "The server has too many connections.\n",
    "Retry-After: 1",
)
TOO_MANY_PIPELINED: Final = _refusal(
    "too_many_pipelined",
    "503 Service Unavailable",
    "Too many requests were sent without waiting for an answer.\n",
    "Retry-After: 1",
)
TOO_MUCH_BUFFERED: Final = _refusal(
    "too_much_buffered",
    "503 Service Unavailable",
    "The server holds too many bodies of requests.\n",
    "Retry-After: 1",
)
SLOW_READER: Final = Refusal("slow_reader")
ALL_REFUSALS: Final = (
    MALFORMED,
    HEADER_TIMEOUT,
    BODY_TIMEOUT,
    ADDRESS_TOO_LONG,
    HEADER_TOO_LARGE,
    TOO_MANY_CONNECTIONS,
    TOO_MANY_PIPELINED,
    TOO_MUCH_BUFFERED,
    SLOW_READER,
)


class Swept(Protocol):
    """A connection, as the guard sees it."""

    def check(self, now_s: float) -> None:
        """Act on the deadlines that have passed at *now_s*."""
        ...


class Guard:
    """Knows the limits and the connections of one server, and counts what it refuses.

    For deadlines time is read once per sweep, not per request: connections note ``now_s``, which is
    at most one interval old, and are given one interval more than their limit. So a deadline is
    never early and at most two intervals late.

    Args:
        limits: What a connection may do.
        clock: What deadlines go by.
        dated_by: What answers are dated by, the clock that messages go by; None for *clock*.
    """

    def __init__(
        self, limits: ConnectionLimits, clock: Clock, dated_by: Clock | None = None
    ) -> None:
        self.limits = limits
        self.connections: set[Swept] = set()
        self.accepted = 0
        self.buffered = 0
        """Bytes of bodies that have arrived, of requests that are not answered yet."""
        self.refused: Counter[str] = Counter({each.reason: 0 for each in ALL_REFUSALS})
        shortest_s = min(
            limits.header_timeout_s,
            limits.body_timeout_s,
            limits.idle_timeout_s,
            limits.write_timeout_s,
        )
        low_s, high_s = _SWEEP_S
        self.interval_s = min(max(shortest_s / _SWEEPS_PER_TIMEOUT, low_s), high_s)
        self._clock = clock
        self.now_s = clock.monotonic_s()
        """Monotonic time of the last sweep."""
        self._dated_by = clock if dated_by is None else dated_by
        self._second = -1
        self._head = b""

    def default_head(self) -> bytes:
        """Return the fields of every answer as they are written: Date, of this very second.

        Asked for each answer. A date that a timer renews is late whenever the loop is busy, and
        clients take the times of messages for later than they are.
        """
        second = self._dated_by.now_ms() // 1000
        if second != self._second:
            self._second = second
            self._head = b"date: %b\r\n" % format_http_date(second * 1000).encode("ascii")
        return self._head

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self.interval_s)
            self.sweep()

    def sweep(self) -> None:
        """Look once at the deadlines of all connections."""
        self.now_s = now_s = self._clock.monotonic_s()
        for connection in tuple(self.connections):
            connection.check(now_s)
