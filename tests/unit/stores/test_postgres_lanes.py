"""Where searches begin on PostgreSQL, though other servers write as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.domain import commands as c
from leasehold.domain.model import Lease
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.state import TRUST_MS
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.postgres import empty, find_programs, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")
_SCHEMA = "lanes"


@pytest.fixture
def clock() -> ManualClock:
    """The time of both servers."""
    return ManualClock()


@pytest.fixture
def servers(clock: ManualClock) -> Iterator[tuple[Asker, Asker]]:
    """Two servers on one database, with a queue."""
    empty(_SCHEMA)
    url = f"{shared_cluster().url}&schema={_SCHEMA}"
    stores = [PostgresStore(url, name=name) for name in ("one", "two")]
    one, two = (Asker(store, clock) for store in stores)
    one.ask(c.CreateQueue(ACCOUNT, QUEUE, {}))
    yield one, two
    for store in stores:
        store.close()


def _begins_at(asker: Asker) -> int:
    store = asker.store
    assert isinstance(store, PostgresStore)
    entry = store._state.catalog.find(ACCOUNT, QUEUE)
    assert entry is not None
    return entry.lanes[0].live_from_ms


def _received(asker: Asker) -> str | None:
    (lease,) = asker.ask(c.Receive(ACCOUNT, QUEUE, 1, 30)) or (None,)
    return lease.message.body.decode() if isinstance(lease, Lease) else None


def _put(asker: Asker, clock: ManualClock, *bodies: str, step_ms: int = 1_000) -> None:
    for body in bodies:
        asker.put(body)
        clock.advance(ms=step_ms)


def test_a_search_begins_where_the_last_one_found_something(
    servers: tuple[Asker, Asker], clock: ManualClock
) -> None:
    """What was taken lies before; after a moment the whole is looked at again."""
    one, _ = servers
    _put(one, clock, "a", "b", "c", "d", "e")
    put_ms = clock.now_ms() - 5_000
    assert _received(one) == "a"
    assert _begins_at(one) == put_ms
    assert _received(one) == "b"
    assert _begins_at(one) == put_ms + 1_000
    clock.advance(ms=TRUST_MS)
    assert _received(one) == "c"
    assert _begins_at(one) == 0
    assert _received(one) == "d"
    assert _begins_at(one) == put_ms + 3_000


@pytest.mark.parametrize("moment", ["soon", "when nothing else is left"])
def test_what_another_server_gives_back_for_an_earlier_moment_is_found(
    servers: tuple[Asker, Asker], clock: ManualClock, moment: str
) -> None:
    """Its clock may be behind, or its commit have taken long."""
    one, two = servers
    _put(one, clock, "a", "b", "c")
    assert [_received(one), _received(one)] == ["a", "b"]
    behind = Asker(two.store, ManualClock(clock.now_ms() - 20_000))
    behind.put("late")
    if moment == "soon":
        clock.advance(ms=TRUST_MS)
        assert _received(one) == "c"
        assert _received(one) == "late"
    else:
        assert _received(one) == "c"
        assert _received(one) == "late"
    assert _received(one) is None


def test_what_the_server_itself_gives_back_is_found_at_once(
    servers: tuple[Asker, Asker], clock: ManualClock
) -> None:
    """In its order, were it put for an earlier moment."""
    one, _ = servers
    _put(one, clock, "a", "b", "c")
    assert _received(one) == "a"
    behind = Asker(one.store, ManualClock(clock.now_ms() - 20_000))
    behind.put("late")
    assert _received(one) == "late"
    assert _received(one) == "b"
