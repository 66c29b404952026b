"""Callers who may only read, and ask for the largest answers there are, hinder nobody else."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from leasehold.domain.limits import LOOK_BYTES
from tests.reliability.running import (
    Asked,
    Client,
    Connection,
    KillableServer,
    eventually,
    sas_of,
)
from tests.reliability.test_overload import metric, sleepy_connection

QUEUE = "crowded"
CALLERS = 40
LARGE = 300
BODY = "x" * 60_000
MIB = 1024 * 1024
MAX_RSS = 300 * MIB
BUFFERED = "leasehold_server_buffered_bytes"
MESSAGES = f"/v1/accounts/devstoreaccount1/queues/{QUEUE}/messages"
PEEK = Asked(
    method="POST",
    path=f"{MESSAGES}/peek",
    headers=(("content-type", "application/json"),),
    body=b'{"max_messages":1000}',
)
LIST = Asked(method="GET", path=MESSAGES, query="limit=1000")
AZURE = Asked(
    method="GET",
    path=f"/devstoreaccount1/{QUEUE}/messages",
    query="peekonly=true&numofmessages=32",
)


@contextmanager
def filled(
    folder: Path, body: str = BODY, **options: str
) -> Iterator[tuple[KillableServer, Client]]:
    """Run a server with a queue of large messages."""
    server = KillableServer(folder / "data", options={"--disk-reserve-mib": "4", **options})
    with server, Client(server.port) as client:
        assert client.create(QUEUE).status == 201
        for _ in range(LARGE):
            assert client.put(QUEUE, body).status == 201
        yield server, client


@pytest.mark.parametrize("asked", [PEEK, LIST, AZURE], ids=["peek", "list", "azure"])
def test_forty_who_look_at_everything_at_once(tmp_path: Path, asked: Asked) -> None:
    """Each gets an answer of bounded size; memory stays small, and others are served meanwhile."""
    request = asked.with_sas(sas_of(permission="r")).unsigned()
    with filled(tmp_path) as (server, client), ExitStack() as stack:
        crowd = [stack.enter_context(Connection(server.port)) for _ in range(CALLERS)]
        most = 0
        for _ in range(3):
            for connection in crowd:
                connection.send(request)
            assert client.get(QUEUE).status == 200
            for connection in crowd:
                answer = connection.read_answer()
                while answer.status == 503:  # a busy machine: its turn did not come in time
                    assert b"overloaded" in answer.body or b"ServerBusy" in answer.body
                    connection.send(request)
                    answer = connection.read_answer()
                assert answer.status == 200
                assert 20 * len(BODY) < len(answer.body) <= LOOK_BYTES * 5 // 4
                most = max(most, server.rss_bytes())
        assert most < MAX_RSS
        eventually(lambda: metric(server.port, BUFFERED) == 0, "all room is given back")


def test_forty_who_never_read_their_answers(tmp_path: Path) -> None:
    """They hold one share of the room together, are cut off in time, and nobody else waits."""
    request = PEEK.with_sas(sas_of(permission="r")).unsigned()
    options = {"--write-timeout-s": "1"}
    with filled(tmp_path, **options) as (server, _), ExitStack() as stack:
        readers = [stack.enter_context(sleepy_connection(server.port)) for _ in range(CALLERS)]
        for reader in readers:
            reader.sendall(request * 5)
        eventually(lambda: metric(server.port, BUFFERED) > 0, "the first answers are held")
        with Connection(server.port) as other:
            other.send(AZURE.signed())
            assert other.read_answer().status == 200
        assert metric(server.port, BUFFERED) < 32 * MIB
        assert server.rss_bytes() < MAX_RSS
        name = 'leasehold_server_refused_connections_total{reason="slow_reader"}'
        eventually(lambda: metric(server.port, name) >= 8, "they are cut off")
        for reader in readers:
            reader.close()
        eventually(lambda: metric(server.port, BUFFERED) == 0, "all room is given back")
        assert server.rss_bytes() < MAX_RSS


@pytest.mark.long
def test_what_the_system_has_taken_of_answers_is_let_go(tmp_path: Path) -> None:
    """Answers that lie in the buffers of sockets, all but their end, take no memory of the server.

    Linux takes 4 MiB of what nobody reads; with these bodies an answer is a little longer.
    """
    request = PEEK.with_sas(sas_of(permission="r")).unsigned()
    options = {"--write-timeout-s": "5"}
    with filled(tmp_path, "x" * 65_536, **options) as (server, _), ExitStack() as stack:
        with Connection(server.port) as first:
            first.send(request)
            first.read_answer()
        before = server.rss_bytes()
        for _ in range(CALLERS):
            reader = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            reader.sendall(request)
            select.select([reader], [], [], 5)  # its answer has begun
        eventually(lambda: metric(server.port, BUFFERED) == 0, "they are taken, or cut off")
        assert server.rss_bytes() - before < 60 * MIB


def test_small_looks_go_past_large_ones_that_wait(tmp_path: Path) -> None:
    """A look at a queue of small messages needs no room, and so never waits for any."""
    request = PEEK.with_sas(sas_of(permission="r")).unsigned()
    with filled(tmp_path) as (server, client), ExitStack() as stack:
        assert client.create("small").status == 201
        assert client.put("small", "little").status == 201
        path = PEEK.path.replace(QUEUE, "small")
        small = Asked(method="POST", path=path, headers=PEEK.headers, body=PEEK.body)
        with Connection(server.port) as other:
            other.send(small.with_sas(sas_of(permission="r")).unsigned())
            assert other.read_answer().status == 200  # from now on the server knows
            for _ in range(20):
                reader = stack.enter_context(sleepy_connection(server.port))
                reader.sendall(request)
            eventually(lambda: metric(server.port, BUFFERED) > 12 * MIB, "a share is held")
            other.send(small.with_sas(sas_of(permission="r")).unsigned())
            (found,) = json.loads(other.read_answer().body)["messages"]
            assert found["body"] == "little"
