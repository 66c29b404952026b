"""Limits of connections, and the one task that enforces those that have to do with time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from leasehold.clock import Clock
from leasehold.http.admission import Answers

LINGER_S: Final = 2.0
"""How long the rest of a refused request is read and thrown away.

Closing at once would make the kernel send a reset, which can destroy the answer before the client
has read it.
"""
LINGER_BYTES: Final = 8 * 1024 * 1024
ANSWERS_PART: Final = 2
"""Of what may be buffered, large answers get the half: the rest is left to requests."""
_SWEEPS_PER_TIMEOUT: Final = 8
_UNPROVED_SHARE: Final = 4
_ROOM_SHARE: Final = 16
"""Of the memory for bodies, what is made free at a time."""
_CROWDED_S: Final = 5.0
"""How long a server that had to refuse for want of room says so."""
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

    @property
    def max_unproved_bytes(self) -> int:
        """What requests may hold together that have not shown credentials."""
        return self.max_buffered_bytes // _UNPROVED_SHARE

    @property
    def max_unproved_bytes_per_address(self) -> int:
        """What those of them may hold that come from one address."""
        return self.max_unproved_bytes // _UNPROVED_SHARE


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
    "Too many requests were sent without waiting for a response.\n",
    "Retry-After: 1",
)
TOO_MUCH_BUFFERED: Final = _refusal(
    "too_much_buffered",
    "503 Service Unavailable",
    "The server has too many request bodies in memory.\n",
    "Retry-After: 1",
)
CROWDED_OUT: Final = _refusal(
    "crowded_out",
    "503 Service Unavailable",
    "The server has too many unfinished requests, and this one was among the slowest.\n",
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
    CROWDED_OUT,
    SLOW_READER,
)


class Swept(Protocol):
    """A connection, as the guard sees it."""

    def check(self, now_s: float) -> None:
        """Act on the deadlines that have passed at *now_s*."""
        ...

    def unfinished(self, now_s: float) -> Unfinished[Swept] | None:
        """Return what a body that is still coming holds, None if there is none."""
        ...

    def unproved(self, now_s: float) -> Unfinished[Swept] | None:
        """Return what is held for requests without credentials, None if nothing is."""
        ...

    def let_go_of_unread(self, now_s: float) -> None:
        """End the connection if its client takes nothing of the answers that wait for it."""
        ...

    def crowd_out(self, *, at_once: bool) -> None:
        """Let go of what is held. The client is told why, unless its place is needed *at_once*."""
        ...


class Guard:
    """Knows the limits and the connections of one server, and counts what it refuses.

    For deadlines time is read once per sweep, not per request: connections note ``now_s``, which is
    at most one interval old, and are given one interval more than their limit. So a deadline is
    never early and at most two intervals late.

    Args:
        limits: What a connection may do.
        clock: What deadlines go by.
    """

    def __init__(self, limits: ConnectionLimits, clock: Clock) -> None:
        self.limits = limits
        self.connections: set[Swept] = set()
        self.accepted = 0
        self.buffered = 0
        """Bytes of bodies that have arrived, of requests that are not answered yet, and of large
        answers from the moment that room was given for them until they are sent."""
        self.unproved_bytes = 0
        """What is held for requests that have not shown credentials, and could not do so at once:
        parts of headers, and bodies of requests that wait behind others."""
        self.strangers: dict[Swept, None] = {}
        """Connections on which no credentials have been shown yet, the oldest first."""
        self._unproved_by_address: Counter[str] = Counter()
        self._is_making_room = False
        self._full_s = float("-inf")
        """When there was last no room to be made."""
        self._crowded_until_s = float("-inf")
        self.answers = Answers(limits.max_buffered_bytes // ANSWERS_PART, self._count, clock)
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

    def _count(self, change: int) -> None:
        self.buffered += change

    # Room

    @property
    def is_crowded(self) -> bool:
        """Whether a client was refused a moment ago for want of room."""
        return self.now_s < self._crowded_until_s

    def note_crowded(self) -> None:
        """Note that a client had to be refused for want of room."""
        self._crowded_until_s = self.now_s + _CROWDED_S

    def hold(self, address: str, size: int) -> None:
        """Count bytes held for a request without credentials; less than 0 lets go of them.

        Where a limit is passed a connection has to go, but not before those whose turn is now have
        shown what they have.
        """
        self.unproved_bytes += size
        held = self._unproved_by_address[address] + size
        if held:
            self._unproved_by_address[address] = held
        else:
            del self._unproved_by_address[address]
        if size > 0 and not self._is_making_room and self._is_too_much(held):
            self._is_making_room = True
            asyncio.get_running_loop().call_soon(self._turn_strangers_out)

    def _is_too_much(self, of_address: int) -> bool:
        limits = self.limits
        return (
            of_address > limits.max_unproved_bytes_per_address
            or self.unproved_bytes > limits.max_unproved_bytes
        )

    def _turn_strangers_out(self) -> None:
        self._is_making_room = False
        limits, now_s = self.limits, self.now_s
        holding = [each.unproved(now_s) for each in self.connections]
        for each in strangers_to_go(
            (held for held in holding if held is not None),
            limits.max_unproved_bytes,
            limits.max_unproved_bytes_per_address,
        ):
            each.holder.crowd_out(at_once=False)

    def make_room(self, newcomer: Swept) -> bool:
        """Make room for a body; tell whether that was possible.

        Answers that nobody takes go, then the slowest bodies. Where that was not enough nobody
        looks again before the next sweep, as time is all that could change it.
        """
        limit, now_s = self.limits.max_buffered_bytes, self.now_s
        if self._full_s == now_s:
            return False
        for each in tuple(self.connections):
            each.let_go_of_unread(now_s)
        if self.buffered <= limit:
            return True
        excess = self.buffered - limit + limit // _ROOM_SHARE
        holding = [each.unfinished(now_s) for each in self.connections if each is not newcomer]
        for slow in slow_to_go((held for held in holding if held is not None), excess):
            slow.holder.crowd_out(at_once=False)
        if self.buffered <= limit:
            return True
        self._full_s = now_s
        return False

    def turn_out_stranger(self, newcomer: Swept) -> bool:
        """Close the oldest connection without credentials; tell whether there was one."""
        oldest = next(iter(self.strangers), newcomer)
        if oldest is newcomer:
            return False
        del self.strangers[oldest]
        oldest.crowd_out(at_once=True)
        return True

    # Time

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
        if self._is_too_much(max(self._unproved_by_address.values(), default=0)):
            self._turn_strangers_out()


class Held:
    """What one connection holds for requests without credentials, as *guard* counts it."""

    __slots__ = ("_guard", "address", "size")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.address = ""
        self.size = 0

    def add(self, size: int) -> None:
        """Hold more bytes."""
        self.size += size
        self._guard.hold(self.address, size)

    def clear(self) -> None:
        """Let go of all of them."""
        if self.size:
            self._guard.hold(self.address, -self.size)
            self.size = 0


# --- crowding ----------------------------------------------------------------------------------
#
# Who has to go when unfinished requests take too much memory. Pure decisions.
#
# The slowest go first: a client that sends what it has announced is done before it matters, and
# one that sends little over a long time is what fills the memory.


_T = TypeVar("_T")


class Unfinished(NamedTuple, Generic[_T]):
    """A request that has not come whole."""

    holder: _T
    """What is told to go."""
    address: str
    """Where it comes from."""
    held_bytes: int
    """What it holds, 0 or more."""
    waited_s: float
    """Since it began, in seconds; 0 if it began only now."""


def slowest_first(unfinished: Iterable[Unfinished[_T]]) -> list[Unfinished[_T]]:
    """Return requests by their bytes per second; of equal ones the oldest first."""
    return sorted(
        unfinished,
        key=lambda each: (each.held_bytes / max(each.waited_s, 1.0), -each.waited_s),
    )


def strangers_to_go(
    unfinished: Iterable[Unfinished[_T]], limit_bytes: int, address_limit_bytes: int
) -> list[Unfinished[_T]]:
    """Choose among requests without credentials until what is left is within both limits.

    Where a limit is passed room is made for a quarter of it, so that the next few bytes do not make
    everybody look again.

    Args:
        unfinished: Those that hold something.
        limit_bytes: What all may hold together.
        address_limit_bytes: What those from one address may hold together.
    """
    waiting = slowest_first(each for each in unfinished if each.held_bytes)
    by_address: Counter[str] = Counter()
    for each in waiting:
        by_address[each.address] += each.held_bytes
    total = by_address.total()
    wanted = {
        address: address_limit_bytes * 3 // 4
        for address, held in by_address.items()
        if held > address_limit_bytes
    }
    going: list[Unfinished[_T]] = []
    staying: list[Unfinished[_T]] = []
    for each in waiting:
        if each.address in wanted and by_address[each.address] > wanted[each.address]:
            by_address[each.address] -= each.held_bytes
            total -= each.held_bytes
            going.append(each)
        else:
            staying.append(each)
    if total > limit_bytes:
        going += _until_freed(staying, total - limit_bytes * 3 // 4)
    return going


def slow_to_go(unfinished: Iterable[Unfinished[_T]], excess_bytes: int) -> list[Unfinished[_T]]:
    """Choose among requests, with credentials or without, until *excess_bytes* are free.

    One that began only now is left alone: how slow it is cannot be told. Nobody is chosen if all
    together would not make enough room.
    """
    waiting = slowest_first(each for each in unfinished if each.held_bytes and each.waited_s > 0)
    if sum(each.held_bytes for each in waiting) < excess_bytes:
        return []
    return _until_freed(waiting, excess_bytes)


def _until_freed(waiting: Iterable[Unfinished[_T]], wanted_bytes: int) -> list[Unfinished[_T]]:
    going = []
    for each in waiting:
        if wanted_bytes <= 0:
            break
        going.append(each)
        wanted_bytes -= each.held_bytes
    return going
