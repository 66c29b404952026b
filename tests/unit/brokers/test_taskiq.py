"""The broker for Taskiq, with its own receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from leasehold.brokers.taskiq import LeaseholdBroker
from leasehold.client import Client
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S

_LEASE_S = 4
"""A machine that is busy gets to a renewal within half of it."""


@pytest.fixture
def broker(server: InProcessServer) -> LeaseholdBroker:
    """Give a broker whose leases are shorter than the work."""
    return LeaseholdBroker(
        server.connection_string,
        queue="q",
        visibility_timeout_s=_LEASE_S,
        session_timeout_s=2 * _LEASE_S,
        wait_s=1,
    )


async def work_until(broker: LeaseholdBroker, is_done: Callable[[], bool]) -> None:
    """Run a worker's receiver until all is done."""
    finish = asyncio.Event()
    with ThreadPoolExecutor(1) as executor:
        receiver = Receiver(broker, executor=executor, max_async_tasks=4)
        running = asyncio.create_task(receiver.listen(finish))
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(is_done):  # noqa: ASYNC110 - the server says so
                await asyncio.sleep(0.05)
        finish.set()
        await running


@pytest.mark.long
def test_tasks_are_worked_on_once(broker: LeaseholdBroker, client: Client) -> None:
    """Also those that take longer than a lease."""
    done: list[int] = []

    @broker.task  # type: ignore[untyped-decorator]
    async def work(number: int, length_s: float) -> None:
        await asyncio.sleep(length_s)
        done.append(number)

    async def play() -> None:
        broker.is_worker_process = True
        await broker.startup()
        for number in range(5):
            await work.kiq(number, 2.5 * _LEASE_S if number == 0 else 0.0)
        await work_until(broker, lambda: client.queue("q").counts().total == 0)
        await broker.shutdown()

    asyncio.run(play())
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_labels_are_those_of_the_message(broker: LeaseholdBroker, client: Client) -> None:
    """Delay, priority, group; and the task's name is the type."""

    @broker.task("work")  # type: ignore[untyped-decorator]
    async def work() -> None: ...

    async def play() -> None:
        await broker.startup()
        await work.kicker().with_labels(delay=3_600).kiq()
        await work.kicker().with_labels(priority=1, group_id="tenant").kiq()
        await broker.shutdown()

    asyncio.run(play())
    assert client.queue("q").counts().delayed == 1
    (found,) = client.queue("q").inspect(states=["visible"])
    assert (found.priority, found.group_id, found.type) == (1, "tenant", "work")


def test_what_is_not_acknowledged_goes_back(broker: LeaseholdBroker, client: Client) -> None:
    """When the broker is shut down."""

    async def play() -> None:
        await broker.startup()
        client.queue("q").put("a")
        messages = broker.listen()
        assert (await anext(messages)).data == b"a"
        assert client.queue("q").counts().leased == 1
        await messages.aclose()
        await broker.shutdown()

    asyncio.run(play())
    assert client.queue("q").counts().visible == 1


def test_a_broker_is_started_first(broker: LeaseholdBroker) -> None:
    """Before anything is sent."""

    @broker.task  # type: ignore[untyped-decorator]
    async def work() -> None: ...

    with pytest.raises(SendTaskError):
        asyncio.run(work.kiq())
