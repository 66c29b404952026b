"""A completion that comes too late, because the message went to the poison queue meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from leasehold.client import Client, QueueHandle
from leasehold.client.errors import ConnectionFailed
from leasehold.client.models import MessageView
from leasehold.testing import InProcessServer
from leasehold.worker import Message, Worker
from leasehold.worker.adapters import Lease, LeaseGone, SetAside
from leasehold.worker.adapters.native import NativeQueue
from tests.unit.worker.worker.support import Heard


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """A server in this process."""
    with InProcessServer() as running:
        yield running


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """A client of it."""
    with server.client() as opened:
        yield opened


def made(client: Client) -> NativeQueue:
    """Return a queue whose messages are set aside after one delivery, with one in it."""
    queue = client.queue("jobs")
    queue.create(settings={"failure_policy": {"max_deliveries": 1}})
    queue.put("x")
    return NativeQueue(queue)


def test_the_refusal_says_that_it_was_set_aside(server: InProcessServer, client: Client) -> None:
    """And not that somebody else has completed it, which nobody has."""
    queue = made(client)
    [delivery] = queue.receive(1, visibility_timeout_s=5)
    server.advance(10)
    assert queue.receive(1, visibility_timeout_s=5) == []
    [refused] = queue.complete([delivery.lease])
    assert isinstance(refused, SetAside)
    assert "moved the message to the poison queue" in str(refused)
    assert "max_deliveries" in str(refused)


def test_what_was_completed_is_only_gone(client: Client) -> None:
    """The same for what never was there."""
    queue = made(client)
    [delivery] = queue.receive(1, visibility_timeout_s=5)
    assert queue.complete([delivery.lease]) == [None]
    for lease in (delivery.lease, Lease("no-id", "no-receipt")):
        [refused] = queue.complete([lease])
        assert isinstance(refused, LeaseGone)
        assert not isinstance(refused, SetAside)


def count_looks(monkeypatch: pytest.MonkeyPatch, *, fail: bool) -> list[float | None]:
    """Return a list that gets the limit of each look at a message, in seconds."""
    looks: list[float | None] = []
    real = QueueHandle.get

    def get(self: QueueHandle, message_id: str, *, timeout_s: float | None = None) -> MessageView:
        looks.append(timeout_s)
        if fail:
            raise ConnectionFailed("/", "no answer", outcome_unknown=False)
        return real(self, message_id, timeout_s=timeout_s)

    monkeypatch.setattr(QueueHandle, "get", get)
    return looks


@pytest.mark.parametrize(("fail", "looks"), [(False, 4), (True, 1)])
def test_after_a_purge_few_are_looked_up(
    client: Client, monkeypatch: pytest.MonkeyPatch, *, fail: bool, looks: int
) -> None:
    """Each look takes a request; when one is not answered, none follows. None may last longer."""
    queue = client.queue("jobs")
    queue.create()
    queue.put_many(["x"] * 100)
    worked = NativeQueue(queue)
    leases = [each.lease for each in worked.receive(100, visibility_timeout_s=30)]
    queue.purge()
    seen = count_looks(monkeypatch, fail=fail)
    results = worked.complete(leases, timeout_s=7)
    assert [type(each) for each in results] == [LeaseGone] * 100
    assert seen == [7] * looks


def test_a_worker_tells_hooks_and_log(
    server: InProcessServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not say that the message comes again, nor that it is done."""
    queue, heard = made(client), Heard()
    other = NativeQueue(client.queue("jobs"))

    def handle(message: Message) -> None:
        # The worker's time stands still beside the server's: for it the lease goes on.
        server.advance(60)
        assert other.receive(1, visibility_timeout_s=5) == []

    with caplog.at_level(logging.WARNING):
        Worker(handle, queue, hooks=[heard], lease=30, session=False).run_until_idle(20)
    [(body, why)] = heard.losses
    assert body == "x"
    assert "moved the message to the poison queue" in why
    assert heard.settlements == []
    assert "moved the message to the poison queue" in caplog.text
    assert "comes again" not in caplog.text
