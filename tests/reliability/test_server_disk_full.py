"""A full disk stops producers and nobody else; the server goes on by itself once there is room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.reliability.disks import mounted
from tests.reliability.running import Answer, Client, Delivery, KillableServer, eventually, page

QUEUE = "full"
BODY = "x" * 8_000
OPTIONS = {"--disk-reserve-mib": "4"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    with mounted(tmp_path / "disk", size_mib=16) as disk:
        yield disk


@contextmanager
def client_of(server: KillableServer) -> Iterator[Client]:
    """Start the server and return a client; stop it in the end."""
    server.start()
    try:
        with Client(server.port) as client:
            yield client
    finally:
        server.stop()


def is_busy(answer: Answer) -> bool:
    """Tell whether the answer says to come back later, as it has to be said."""
    if answer.status != 503:
        return False
    assert answer.code == "ServerBusy"
    assert b"<Code>ServerBusy</Code>" in answer.body
    assert int(answer.headers["retry-after"]) > 0
    return True


def fill(client: Client, prefix: str) -> set[str]:
    """Put until the server says that it is full; return the texts that were acknowledged.

    Between the refusal and the question the server may have found a bit of room again.
    """
    put: set[str] = set()
    while True:
        text = f"{prefix} {len(put)} {BODY}"
        answer = client.put(QUEUE, text)
        if not is_busy(answer):
            assert answer.status == 201
            put.add(text)
            assert len(put) < 5_000
        elif not says_writable(client.port):
            return put


def says_writable(port: int) -> bool:
    """Tell whether the server says that it takes messages; it is ready to serve in any case."""
    answer = page(port, "/readyz")
    assert answer.status == 200
    report = json.loads(answer.body)
    assert report["ready"] is True
    return bool(report["store"]["writable"])


def complete(client: Client, taken: list[Delivery]) -> None:
    """Delete messages."""
    for each in taken:
        assert client.delete(QUEUE, each.message_id, each.receipt).status == 204


def test_consumers_go_on_and_producers_resume(small_disk: Path) -> None:
    """Everything acknowledged can be received, renewed and completed; then puts work again."""
    server = KillableServer(small_disk, options=OPTIONS)
    with client_of(server) as client:
        assert client.create(QUEUE).status == 201
        assert says_writable(server.port)
        put = fill(client, "first")
        assert len(put) > 100
        taken = client.take_all(QUEUE)
        assert {each.text for each in taken} == put
        first = taken[0]
        renewed = client.update(QUEUE, first.message_id, first.receipt, 600)
        assert renewed.status == 204
        late = Delivery(message_id=first.message_id, receipt=renewed.headers["x-ms-popreceipt"])
        complete(client, [late, *taken[1:]])
        eventually(lambda: says_writable(server.port), "the drained disk is writable")
        assert client.put(QUEUE, f"again {BODY}").status == 201
        assert client.count(QUEUE) == 1


def test_a_kill_while_full_loses_nothing(small_disk: Path) -> None:
    """A server killed on a full disk starts on it, and what was acknowledged is there."""
    server = KillableServer(small_disk, options=OPTIONS)
    server.start()
    with Client(server.port) as client:
        assert client.create(QUEUE).status == 201
        put = fill(client, "first")
    server.kill()
    with client_of(server) as client:
        put |= fill(client, "second")  # the little that recovery has made room for, if any
        taken = client.take_all(QUEUE)
        assert sorted(each.text for each in taken) == sorted(put)
        complete(client, taken)
        eventually(lambda: client.put(QUEUE, BODY).status == 201, "puts work again")


def test_a_disk_filled_by_others_is_recovered_from(small_disk: Path) -> None:
    """While somebody else's file fills the disk puts are refused; when it is gone they work."""
    server = KillableServer(small_disk / "data", options=OPTIONS)
    hog = small_disk / "hog"
    with client_of(server) as client:
        assert client.create(QUEUE).status == 201
        assert client.put(QUEUE, "before").status == 201
        with suppress(OSError), hog.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65_536))
        put = {"before"} | fill(client, "while")
        (one,) = client.take_all(QUEUE, 600)[:1]
        complete(client, [one])
        hog.unlink()
        eventually(lambda: says_writable(server.port), "the freed disk is writable")
        assert client.put(QUEUE, f"after {BODY}").status == 201
        assert client.count(QUEUE) == len(put)
