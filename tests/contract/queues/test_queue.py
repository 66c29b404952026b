"""The queue as a whole."""

from __future__ import annotations

import threading

import pytest

from leasehold.worker.adapters.protocol import NotSupported, Outgoing, QueueClient
from tests.contract.queues.conftest import Bench
from tests.patience import PATIENCE_S


def test_a_queue_is_created_once(bench: Bench) -> None:
    """To create a queue that is there changes nothing."""
    bench.put("work")
    bench.client.create()
    assert len(bench.receive()) == 1


def test_its_name(bench: Bench) -> None:
    """The name is that of the queue, and two clients of one account differ in it."""
    assert bench.client.name != bench.other("another-queue").name


def test_messages_are_counted(bench: Bench) -> None:
    """What the service tells is right; what it does not tell is None."""
    bench.put("a", "b", "c")
    bench.put("later", delay_s=600)
    bench.receive(1)
    depth = bench.client.depth()
    assert depth.total == 4
    assert (depth.visible, depth.leased, depth.delayed) in {(2, 1, 1), (None, None, None)}


def test_a_closed_client_can_be_closed_again(bench: Bench) -> None:
    """A second close is harmless."""
    other = bench.other("closed-twice")
    other.close()
    other.close()


def test_sessions(bench: Bench) -> None:
    """A session ends all its leases when it is closed; a service without any says so."""
    if not bench.able.sessions:
        with pytest.raises(NotSupported):
            bench.client.open_session("worker", 15)
        return
    session = bench.client.open_session("worker", 15)
    bench.put("mine", "other")
    (mine,) = bench.receive(1, 600, session=session)
    (other,) = bench.receive(1, 600)
    assert not session.is_lost
    assert session.cancelled(mine.message_id) is None
    session.progressed(mine.message_id)
    session.close()
    again = bench.one()
    assert again.message_id == mine.message_id
    assert again.fence > mine.fence
    assert bench.complete(other.lease) == [None]


def test_sessions_have_ids(bench: Bench) -> None:
    """Two sessions can be told apart."""
    if not bench.able.sessions:
        pytest.skip("there are none")
    sessions = [bench.client.open_session("worker", 15) for _ in range(2)]
    assert len({each.session_id for each in sessions}) == 2
    for each in sessions:
        each.close()


def test_threads_share_a_client(bench: Bench) -> None:
    """Eight threads that receive and complete at once get each message exactly once."""
    bench.put(*(str(number) for number in range(40)))
    seen: list[bytes] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while found := bench.client.receive(3, visibility_timeout_s=30):
                for delivery in found:
                    (renewed,) = bench.client.renew([delivery.lease], 30)
                    assert not isinstance(renewed, Exception)
                    lease = type(delivery.lease)(delivery.message_id, renewed.receipt)
                    assert bench.client.complete([lease]) == [None]
                    seen.append(delivery.body)
        except BaseException as error:  # noqa: BLE001 - the test's own thread tells of it
            failures.append(error)

    threads = [threading.Thread(target=work, name=f"leasehold-test-{n}") for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert failures == []
    assert sorted(seen) == sorted(str(number).encode() for number in range(40))


def test_the_capabilities_hold_together(bench: Bench) -> None:
    """What the capabilities say is possible in itself."""
    able = bench.able
    assert able.max_receive >= 1
    assert able.max_settle >= 1
    assert 1 <= able.min_lease_s < able.max_lease_s
    assert able.max_wait_s >= 0
    assert able.service


def test_it_is_a_queue_client(bench: Bench) -> None:
    """The adapter is what a worker asks for, which the type checker proves here."""
    client: QueueClient = bench.client
    assert client.put([Outgoing(body="work")]) == [None]
