"""Unfinished requests cannot keep others out: credentials come first, and the slowest go first."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.http.guard import Unfinished, slow_to_go, slowest_first, strangers_to_go
from tests.unit.server.support import Client, Harness

KIB = 1024
BODY = 131_584
"""As many bytes as may be sent to put a message."""


def head(length: int = BODY, says: bytes = b"yes") -> bytes:
    """Return the header of a POST whose body is still to come."""
    fields = b"Host: test\r\nAuthorization: %b\r\nContent-Length: %d\r\n\r\n" % (says, length)
    return b"POST /v1/a HTTP/1.1\r\n" + fields


def clients(server: Harness, number: int) -> contextlib.AbstractContextManager[list[Client]]:
    """Open many connections."""

    @contextlib.contextmanager
    def opened() -> Iterator[list[Client]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(server.connect()) for _ in range(number)]

    return opened()


# --- who has to go -------------------------------------------------------------------------------


def one(name: str, held: int, waited_s: float, address: str = "a") -> Unfinished[str]:
    """Return a request."""
    return Unfinished(name, address, held, waited_s)


def names(going: list[Unfinished[str]]) -> str:
    """Return who goes, in order."""
    return "".join(each.holder for each in going)


def test_slowest_first() -> None:
    """By bytes per second, and of those that have sent as much the oldest."""
    waiting = [one("a", 100, 10), one("b", 100, 1), one("c", 1, 1), one("d", 0, 5), one("e", 0, 9)]
    assert names(slowest_first(waiting)) == "edcab"


def test_an_address_that_holds_too_much_makes_room() -> None:
    """A quarter more than it must, and others are left alone."""
    waiting = [one("a", 40, 9), one("b", 40, 4), one("c", 40, 2), one("d", 90, 9, "other")]
    assert names(strangers_to_go(waiting, 1_000, 100)) == "ab"
    assert names(strangers_to_go(waiting, 1_000, 120)) == ""


def test_all_together_make_room() -> None:
    """Where no address holds too much, the slowest of all go."""
    waiting = [one(str(number), 50, 10 - number, str(number)) for number in range(8)]
    assert names(strangers_to_go(waiting, 300, 100)) == "0123"
    assert names(strangers_to_go(waiting, 400, 100)) == ""


def test_who_has_just_begun_is_left_alone() -> None:
    """How slow it is cannot be told; and nobody goes where that would not be enough."""
    waiting = [one("a", 50, 0), one("b", 50, 3), one("c", 10, 3)]
    assert names(slow_to_go(waiting, 30)) == "cb"
    assert names(slow_to_go(waiting, 61)) == ""


# --- credentials before bodies -------------------------------------------------------------------


def test_an_unfinished_body_without_credentials_is_refused_at_once() -> None:
    """The answer does not wait for the body, nothing of it is kept, and the connection ends."""
    with Harness() as server, server.connect() as client:
        client.send(head(says=b"no") + b"x" * 100_000)
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (403, "close")
        assert server.call(lambda: server.guard.buffered) == 0


def test_a_body_counts_though_its_client_sends_no_more() -> None:
    """What was held back comes before the end of the stream."""
    with Harness() as server, server.connect() as client:
        client.send(head(40_000, says=b"wait") + b"x" * 40_000)
        client.sock.shutdown(socket.SHUT_WR)
        server.wait_for(lambda: server.guard.unproved_bytes > 0)
        server.call(server.dialect.release.set)
        assert client.rest().endswith(b"POST /v1/a 40000")


def test_nobody_is_told_to_go_on_without_credentials() -> None:
    """A client that waits for 100 Continue hears the refusal in its place."""
    wanted = head(says=b"no").replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with Harness() as server, server.connect() as client:
        client.send(wanted)
        assert client.rest().startswith(b"HTTP/1.1 403 ")


def test_a_flood_without_credentials_does_not_reach_the_budget() -> None:
    """300 bodies of 128 KiB where 8 MiB fit: all are refused, and a good client is served."""
    with Harness(max_buffered_bytes=8 * KIB * KIB) as server, clients(server, 300) as flood:
        for each in flood:
            each.send(head(says=b"no") + b"x" * (BODY - 1))
        with server.connect() as good:
            assert good.ask(head(4) + b"good") == (200, b"POST /v1/a 4")
        for each in flood:
            assert each.answer()[0] == 403
        guard = server.guard
        assert server.call(lambda: (guard.buffered, guard.unproved_bytes)) == (0, 0)
        assert server.call(lambda: guard.refused["too_much_buffered"]) == 0
        assert not server.call(lambda: guard.is_crowded)


@pytest.mark.parametrize("form", ["headers", "waiting"])
def test_what_is_held_without_credentials_is_bounded(form: str) -> None:
    """Parts of headers, and bodies whose credentials take time to check, have a small budget."""
    with Harness(max_buffered_bytes=1_600 * KIB) as server, clients(server, 40) as flood:
        guard = server.guard
        for each in flood:
            if form == "headers":
                each.send(b"GET /a HTTP/1.1\r\nHost: test\r\nX-A: " + b"a" * 8 * KIB)
            else:
                each.send(head(says=b"wait"))
                server.wait_for(lambda each=each: each.peer.active is not None)  # type: ignore[misc]
                server.wait_for(lambda each=each: each.peer.active.begun)  # type: ignore[misc]
                each.send(b"x" * 8 * KIB)
            server.wait_for(
                lambda each=each: each.peer.unproved(0) is not None or each.peer.active is None  # type: ignore[misc]
            )
        server.wait_for(lambda: guard.unproved_bytes <= 100 * KIB)
        assert server.call(lambda: guard.refused["crowded_out"]) >= 27
        with server.connect() as good:
            assert good.ask(head(4) + b"good") == (200, b"POST /v1/a 4")
        server.call(server.dialect.release.set)
    assert guard.unproved_bytes == 0


def test_pipelined_bodies_without_credentials_are_bounded() -> None:
    """Bodies behind a request that is being checked are nobody's until it is their turn."""
    with Harness(max_buffered_bytes=160 * KIB) as server, clients(server, 4) as flood:
        guard = server.guard
        for each in flood:
            each.send(head(0, b"wait") + head(5 * KIB, b"no") + b"x" * 5 * KIB)
        server.wait_for(lambda: guard.refused["crowded_out"] > 0)
        server.wait_for(lambda: guard.unproved_bytes <= 10 * KIB)
        server.call(server.dialect.release.set)
    assert guard.unproved_bytes == 0


# --- slow bodies with credentials ----------------------------------------------------------------


def test_slow_bodies_make_room() -> None:
    """Where the memory is full of bodies that do not come on, the slowest are told to come back."""
    with Harness(max_buffered_bytes=300 * KIB) as server, clients(server, 3) as slow:
        for number, each in enumerate(slow):
            each.send(head() + b"x" * (98 + number) * KIB)
        server.wait_for(lambda: server.guard.buffered == 297 * KIB)
        server.let_pass(5)
        with server.connect() as good:
            assert good.ask(head(60 * KIB) + b"x" * 60 * KIB)[0] == 200
        assert slow[0].answer()[0] == 503
        assert server.call(lambda: server.guard.refused["crowded_out"]) == 1
        assert not server.call(lambda: server.guard.is_crowded)
        assert slow[2].ask(b"x" * (BODY - 100 * KIB))[0] == 200


def test_a_server_without_room_says_so_for_a_while() -> None:
    """Where nobody can be told to go the newcomer is refused, and the guard remembers it."""
    with Harness(max_buffered_bytes=100 * KIB) as server, server.connect() as other:
        other.send(head() + b"x" * 90 * KIB)
        server.wait_for(lambda: server.guard.buffered == 90 * KIB)
        with server.connect() as newcomer:
            newcomer.send(head() + b"x" * 20 * KIB)
            assert newcomer.rest().startswith(b"HTTP/1.1 503 ")
        assert server.call(lambda: server.guard.is_crowded)
        server.let_pass(6)
        assert not server.call(lambda: server.guard.is_crowded)


def test_the_memory_of_a_flood_is_bounded() -> None:
    """Floods with and without credentials take no more memory than the bodies that may be held."""
    before = _resident_mib()
    with Harness(max_buffered_bytes=16 * KIB * KIB) as server, clients(server, 400) as flood:
        for number, each in enumerate(flood):
            each.send(head(says=(b"yes", b"no")[number % 2]) + b"x" * (BODY - 1))
            if number % 100 == 99:
                server.let_pass(2)
        with server.connect() as good:
            assert good.ask(head(4) + b"good") == (200, b"POST /v1/a 4")
        assert server.call(lambda: server.guard.buffered) <= 16 * KIB * KIB
        assert _resident_mib() - before < 100


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (KIB * KIB)
