"""Workers whose leases are renewed by another process, on a server of the test's own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from leasehold.client import Client
from leasehold.testing import ManualTime
from leasehold.testing.server import InProcessServer
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import Unreachable
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.hooks import Hooks
from leasehold.worker.leases import RenewerStopped
from leasehold.worker.leases.process import ProcessLeaseManager
from leasehold.worker.message import Message
from leasehold.worker.timing import ScaledTime
from leasehold.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.unit.worker.worker import handlers_of_tests as handlers
from tests.unit.worker.worker.support import Heard, Held, running

LEASE_S = 6
"""A machine that is busy gets to a renewal within half of it."""
LOOK_S = 0.02


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A server whose time is the machine's."""
    with InProcessServer(clock="system") as started:
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """A client of the test, with the queue ``orders``."""
    with server.client() as made:
        made.queue("orders").create()
        yield made
        made.queue("orders").delete()


def opened(server: InProcessServer) -> NativeQueue:
    """Return the queue as a worker has it."""
    return NativeQueue.from_connection_string(server.connection_string, "orders")


def renewers() -> list[psutil.Process]:
    """Return the processes that this one has started to renew leases."""
    every = psutil.Process(os.getpid()).children()
    return [each for each in every if any("_renewer" in word for word in each.cmdline())]


@pytest.mark.long
def test_another_process_keeps_the_lease(server: InProcessServer, client: Client) -> None:
    """It renews while the handler works, and the message is completed with what it was told."""
    message_id = client.queue("orders").put("a").id
    queue, heard, handler, pause = opened(server), Heard(), Held(), threading.Event()
    options = {"renewer": "process", "lease": LEASE_S, "hooks": [heard], "session": False}
    with running(handler, queue, **options) as worker:
        handler.wait_until_begun()
        assert isinstance(worker._manager, ProcessLeaseManager)
        (renewer,) = renewers()
        assert renewer.pid == worker._manager._process.pid
        while not worker.snapshot().renewals:
            assert not pause.wait(LOOK_S)
            assert not heard.losses
        lease = client.queue("orders").get(message_id).lease
        assert lease is not None
        assert lease.renewals >= 1
        handler.go_on()
        heard.wait_until(settled=1)
    assert heard.settlements == [("a", "done")]
    assert client.queue("orders").counts().total == 0
    assert renewers() == []
    queue.close()


@pytest.mark.long
def test_progress_is_saved_between_renewals(server: InProcessServer, client: Client) -> None:
    """A handler that saves takes turns with the process that renews, and no receipt gets lost."""
    client.queue("orders").put("a")
    queue, heard, pause = opened(server), Heard(), threading.Event()

    def handle(message: Message) -> None:
        for step in range(4):
            with suppress(Unreachable):  # a slow machine takes longer to renew than a save waits
                message.checkpoint({"step": step})
            assert not pause.wait(LEASE_S / 4)

    options = {"renewer": "process", "lease": LEASE_S, "hooks": [heard], "session": False}
    with running(handle, queue, **options):
        heard.wait_until(settled=1)
    assert (heard.settlements, heard.losses) == ([("a", "done")], [])
    queue.close()


def test_the_queue_is_open_before_the_first_message(
    server: InProcessServer, client: Client
) -> None:
    """When the worker has started, the other process has all it needs."""
    client.queue("orders").put("a")
    seen: list[set[int]] = []

    class Early(Hooks):
        def received(self, *_: object) -> None:
            manager = worker._manager
            assert isinstance(manager, ProcessLeaseManager)
            seen.append(set(manager._opened))

    queue, heard = opened(server), Heard()
    worker = Worker(lambda _: None, queue, renewer="process", hooks=[Early(), heard])
    with worker:
        assert isinstance(worker._manager, ProcessLeaseManager)
        opens = set(worker._manager._opened)
        heard.wait_until(settled=1)
    assert opens == {0}
    assert seen == [opens]
    queue.close()


def test_a_queue_that_the_other_process_cannot_open(server: InProcessServer) -> None:
    """The worker does not begin, and says why; nothing is left running."""
    queue = opened(server)
    queue.spec = QueueSpec("memory", "orders")
    worker = Worker(lambda _: None, queue, renewer="process")
    with pytest.raises(RenewerStopped, match="did not start: NotSupported"):
        worker.start()
    assert not worker.is_running
    assert renewers() == []
    queue.close()


def test_time_that_is_moved_by_hand_is_refused(server: InProcessServer) -> None:
    """The other process could not follow it; scaled time it can."""
    queue = opened(server)
    with pytest.raises(UnsafeWorker, match='renewer="process" cannot go by ManualTime'):
        Worker(lambda _: None, queue, renewer="process", time=ManualTime())
    Worker(lambda _: None, queue, renewer="process", time=ScaledTime(2))
    queue.close()


@pytest.mark.long
def test_handlers_and_renewals_in_processes(server: InProcessServer, client: Client) -> None:
    """Both at once: one process for each handler, and one that renews."""
    client.queue("orders").put("a")
    queue, heard = opened(server), Heard()
    worker = Worker(
        handlers.outlast_a_lease,
        queue,
        runner="processes",
        renewer="process",
        concurrency=1,
        lease=LEASE_S,
        session=False,
        hooks=[heard],
    )
    worker.run_until_idle(PATIENCE_S)
    assert (heard.settlements, heard.losses) == ([("a", "done")], [])
    assert worker.snapshot().renewals >= 1
    queue.close()
