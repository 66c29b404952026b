"""A server is stopped in the middle of a batch; the others go on while it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest

from leasehold.domain import commands as c
from leasehold.domain.model import Lease
from leasehold.stores.postgres import PostgresStore, peers
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.peers import Link
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.postgres import empty, find_programs, shared_cluster
from tests.reliability.postgres_rig import meanwhile, waits_for_lock
from tests.reliability.running import eventually

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

SCHEMA: Final = "pauses"
LARGE: Final = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)"
"""More than the buffers of a connection take."""


def url() -> str:
    return f"{shared_cluster().url}&schema={SCHEMA}"


@pytest.fixture
def asker() -> Iterator[Asker]:
    """A server that goes on, with two messages."""
    empty(SCHEMA)
    store = PostgresStore(url())
    asker = Asker(store, ManualClock())
    asker.create()
    asker.put("one")
    asker.put("two")
    yield asker
    store.close()


@pytest.fixture
def stopped() -> Iterator[psycopg.Connection[Any]]:
    """The connection of a server that is in a batch, and says nothing more."""
    connection = connect(Address.parse(url()))
    connection.execute("BEGIN")
    connection.execute("LOCK TABLE change IN ROW SHARE MODE")
    connection.execute("SELECT FROM message FOR UPDATE")
    yield connection
    connection.close()


def _remove(asker: Asker) -> Any:
    lease = asker.receive(1)
    return asker.complete(*lease) if lease else c.DONE


WORK: Final[dict[str, Callable[[Asker], Any]]] = {
    "put": lambda asker: asker.put("three"),
    "clear": lambda asker: asker.ask(c.Clear(ACCOUNT, QUEUE)),
    "create": lambda asker: asker.create("other"),
    "receive": _remove,
}


@pytest.mark.parametrize("work", WORK)
def test_others_go_on_while_a_server_is_stopped_between_statements(
    asker: Asker, stopped: psycopg.Connection[Any], work: str
) -> None:
    """Nobody is refused, also where the batch needs the store for itself."""
    assert isinstance(WORK[work](asker), Lease | c.Done | c.QueueCreated)
    assert asker.ask(c.Clear(ACCOUNT, QUEUE)) == c.DONE
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        stopped.execute("COMMIT")


def test_others_go_on_while_a_server_does_not_take_its_answers(
    asker: Asker, stopped: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database does not end such a connection by itself; whoever is alive does."""
    monkeypatch.setattr(peers, "STOPPED_S", 0)
    asker.store._primary.connection.execute("SET lock_timeout = '60s'")  # type: ignore[attr-defined]
    stopped.pgconn.send_query(LARGE.encode())
    pid = asker.store._primary.writer.pid  # type: ignore[attr-defined]
    link = Link(Address.parse(url()), 99)
    with (
        meanwhile(lambda: asker.ask(c.Clear(ACCOUNT, QUEUE))) as found,
        connect(Address.parse(url())) as other,
    ):
        eventually(lambda: waits_for_lock(other, pid), "the batch waits")
        eventually(link.end_stopped, "the connection was ended")
    link.close()
    assert found == [c.DONE]


def test_whoever_takes_answers_is_left_alone(
    asker: Asker, stopped: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may wait for a connection that is at work, and for one that nobody waits for."""
    monkeypatch.setattr(peers, "STOPPED_S", 0)
    stopped.execute("SET idle_in_transaction_session_timeout = 0")
    pid = asker.store._primary.writer.pid  # type: ignore[attr-defined]
    link = Link(Address.parse(url()), 99)
    with (
        meanwhile(lambda: asker.ask(c.Clear(ACCOUNT, QUEUE))) as found,
        connect(Address.parse(url())) as other,
    ):
        eventually(lambda: waits_for_lock(other, pid), "the batch waits")
        assert link.end_stopped() == 0
        stopped.execute("COMMIT")
    assert found == [c.DONE]
    stopped.pgconn.send_query(LARGE.encode())
    assert link.end_stopped() == 0
    link.close()
