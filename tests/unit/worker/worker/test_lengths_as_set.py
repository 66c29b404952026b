"""Leases as long as is set on the server: for the message, its type, or the queue."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from mns.account import Account

from leasehold.client import Client, NewMessage
from leasehold.testing import InProcessServer, MemoryQueue
from leasehold.worker import Message, Worker
from leasehold.worker.adapters.azure import AzureQueue
from leasehold.worker.adapters.mns import MnsQueue
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import AS_SET
from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.leases import LeaseLearner, LeaseManager, LeaseSettings

RULES = {"slow.*": {"visibility_timeout_s": 600}, "quick": {"visibility_timeout_s": 20}}


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a server with a queue that has timeouts by type, and a message of each kind."""
    with InProcessServer() as server, server.client() as client:
        queue = client.queue("work")
        queue.create(settings={"timeouts_by_type": RULES})
        queue.put_many(
            [
                NewMessage("", type="slow.x"),
                NewMessage("", type="quick"),
                NewMessage("", type="quick", visibility_timeout_s=90),
                NewMessage(""),
            ]
        )
        yield client


def test_a_lease_is_kept_and_renewed_at_its_own_length(client: Client) -> None:
    """What the server says of each message takes the place of the worker's settings."""
    queue = NativeQueue(client.queue("work"))
    manager = LeaseManager(LeaseSettings.of(30))
    try:
        now_s = manager._now_s()
        found = queue.receive(10, visibility_timeout_s=AS_SET)
        assert [each.lease_s for each in found] == [600, 20, 90, 30]
        helds = [manager.keep(queue, each, asked_at_s=now_s) for each in found]
        assert [held.deadline_s - now_s for held in helds] == [600, 20, 90, 30]
        lengths = [held.settings.visibility_timeout_s for held in helds]
        assert lengths == [600, 20, 90, 30]
        assert 200 < helds[0].settings.renew_at_s < 400
    finally:
        manager.close()


def test_a_receive_that_names_a_length_tells_none(client: Client) -> None:
    """Then the worker knows it, and the answer is as it was."""
    queue = NativeQueue(client.queue("work"))
    found = queue.receive(10, visibility_timeout_s=40)
    assert [each.lease_s for each in found] == [None] * 4


def test_a_worker_takes_leases_as_set(client: Client) -> None:
    """Its handler sees the end of the lease that the server gave."""
    left_s: dict[str | None, float] = {}

    def handler(message: Message) -> None:
        view = client.queue("work").get(message.id)
        assert view.lease is not None
        left_s[message.type] = (view.lease.until_ms - view.lease.since_ms) / 1000

    queue = client.queue("work")
    queue.purge()
    queue.put_many([NewMessage("", type="slow.x"), NewMessage("", type="quick"), NewMessage("")])
    Worker(handler, NativeQueue(queue), lease_as_set=True, concurrency=1).run_until_idle(30)
    assert left_s == {"slow.x": 600, "quick": 20, None: 30}


@pytest.mark.parametrize("kind", ["azure", "mns"])
def test_workers_behind_the_official_sdks_take_leases_as_set(kind: str) -> None:
    """A second less may be told: the answer's date is in whole seconds, and it is counted from."""
    with InProcessServer() as server, server.client() as client:
        native = client.queue("work")
        native.create(settings={"timeouts_by_type": RULES})
        native.put_many(
            [
                NewMessage("s", type="slow.x"),
                NewMessage("q", type="quick"),
                NewMessage("o", type="quick", visibility_timeout_s=90),
                NewMessage("n"),
            ]
        )
        queue: AzureQueue | MnsQueue
        if kind == "azure":
            queue = AzureQueue.from_connection_string(server.connection_string, "work")
        else:
            account = Account(server.mns_url, server.account, server.key)
            queue = MnsQueue(account.get_queue("work"), encoding="none")
        set_s = {b"s": 600, b"q": 20, b"o": 90, b"n": 30}
        for delivery in (1, 2):
            found = {
                each.body: (each.lease_s or 0, each)
                for each in queue.receive(10, visibility_timeout_s=AS_SET)
            }
            short_s = {body: set_s[body] - lease_s for body, (lease_s, _) in found.items()}
            assert short_s.keys() == set_s.keys()
            assert set(short_s.values()) <= {0, 1}
            assert {each.dequeue_count for _, each in found.values()} == {delivery}
            server.advance(601)
        seen: dict[bytes, float] = {}

        def handler(message: Message) -> None:
            view = native.get(native_id(message.id))
            assert view.lease is not None
            seen[message.body] = (view.lease.until_ms - view.lease.since_ms) / 1000

        Worker(handler, queue, lease_as_set=True, concurrency=1).run_until_idle(30)
        assert seen == set_s
        queue.close()


def native_id(message_id: str) -> str:
    """Return an id of any protocol as the native one has it."""
    return message_id if "-" in message_id else str(UUID(message_id))


def test_what_does_not_go_together_is_refused() -> None:
    """A service that does not tell lengths, and a learner that chooses them itself."""
    with pytest.raises(UnsafeWorker, match="does not report the length of leases"):
        Worker(print, MemoryQueue("orders"), lease_as_set=True)
    with pytest.raises(UnsafeWorker, match="learner"):
        Worker(print, MemoryQueue("orders"), lease_as_set=True, learner=LeaseLearner())
