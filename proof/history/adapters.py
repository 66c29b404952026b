"""What a queue has to offer to be checked from outside: an adapter for each system.

A system under test is a :class:`System`. It starts and ends its processes, says what its makers
promise, and gives a :class:`Connector` to the clients, which opens a :class:`Queue` in each of
their processes. ``README.md`` in this folder shows how to add one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from proof.history.records import Delivery


class Refused(Exception):
    """The call was answered: it was not done and never will be.

    The text is the reason. For a receipt that is not good any more it begins with ``lost`` (the
    message is somebody else's, or the receipt was replaced) or ``gone`` (there is no such message);
    ``busy`` means that the same call may succeed later. Any other reason is a violation, since
    nothing is wrong with the calls.
    """


class Unknown(Exception):
    """Nobody knows what became of the call: no answer, half of one, or one that leaves it open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the makers of a system promise. What is not promised is neither asked for nor checked.

    The columns lost, back and foreign are checked of every system, under the faults that it
    promises to survive.
    """

    leases: bool = True
    """A message that was received is invisible for the time that was asked for, and back right
    after it. False: for as long as the connection lives, for instance."""
    delays: bool = True
    """A put or a release may have a delay, which is kept."""
    renewals: bool = True
    """The holder may move the end of its lease."""
    releases: bool = True
    """The holder may give a message back."""
    fenced: bool = True
    """A receipt that is not the newest one of its message changes nothing."""
    renews_again: bool = False
    """A renewal with the receipt before the newest is taken for a repetition, and may succeed."""
    completes_again: bool = False
    """To complete what is completed already succeeds."""
    ordered: bool = False
    """Messages of a group are handed out in order, none before the one before it is completed."""
    saves: bool = False
    """What a renewal saves is with the message when it is next received."""
    counts: bool = False
    """The number of messages in a queue, leased and delayed ones included, is exact at any time."""
    fills: bool = False
    """A receive of several takes as many as there are. False: it may take fewer, but not none."""
    prompt: bool = True
    """A receive finds what is visible. False: it may miss it and find it later."""
    margin_s: float = 0.0
    """How far the system's own time may be off within one run, by its documentation: the length of
    its unit of time, and what its servers' clocks may differ."""


class Restart(NamedTuple):
    """What a start of servers was for the history."""

    barrier_s: float | None = None
    """A moment of CLOCK_MONOTONIC at which no old server ran and no connection was open, so that
    no call that was given up before can take effect after it; None if there was none."""
    moved_s: float = 0.0
    """By how many seconds the system's own time was moved, forward above 0, because the clock is
    not what it was at the start before. 0 where nobody sets clocks."""


class Queue(Protocol):
    """One client's connection to one queue. Used by one thread at a time.

    Each call is sent once: a library that repeats calls by itself must be told not to. Each raises
    :class:`Refused` or :class:`Unknown`, and nothing else but for mistakes of the adapter. After
    Unknown the client closes the connection and opens another one.
    """

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Put a message, of a group if *group* is not empty; return when it is acknowledged."""
        ...

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Take up to *limit* messages, and wait for none."""
        ...

    def peek(self, limit: int) -> Sequence[Delivery]:
        """Look at up to *limit* messages that could be received; none if that cannot be done."""
        del limit
        return []

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Have the lease end *lease_s* from now; return the receipt, which may be the same.

        With *saved*, keep that text with the message.
        """
        ...

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Give a message back, to be received after *delay_s*."""
        ...

    def complete(self, delivery: Delivery) -> None:
        """Remove a message whose work is done."""
        ...

    def count(self) -> int | None:
        """Return how many messages there are in all; None if the system cannot tell."""
        ...

    def close(self) -> None:
        """Close the connection; leases go on if they do not depend on it."""
        ...


class Connector(Protocol):
    """Opens connections. It is pickled and sent to the clients' processes."""

    def open(self, queue: str) -> Queue:
        """Connect.

        Raises:
            Unknown: Nothing answers; it may later.
        """
        ...


class System(Protocol):
    """A system under test, with processes of its own on this machine."""

    name: str
    promise: Promise

    def start(self, queues: Sequence[str], ordered: Sequence[str]) -> None:
        """Start with no messages, and make the queues; those of *ordered* keep groups in order."""
        ...

    def connector(self, client: int) -> Connector:
        """Return what the client of this number connects with."""
        ...

    def kill(self) -> None:
        """End the processes of the servers with SIGKILL; harmless if they have ended.

        Connections are refused from then on, as they are of a dead server. When this returns
        nothing goes on that the servers had begun, in their database for instance.
        """
        ...

    def pids(self) -> Sequence[int]:
        """Return the processes of the servers, which faults are done to; none if they are down."""
        ...

    def restart(self) -> Restart:
        """Start those servers again, on the same data, that do not run.

        Return when calls are answered. If no server ran, end all connections before the first one
        is let through: what was sent to the old servers must not reach the new ones.
        """
        ...

    def stop(self) -> None:
        """End everything; harmless if nothing runs."""
        ...
