"""Expired messages that servers on one database have set aside are counted by all of them."""

from __future__ import annotations

import psycopg
import pytest

from leasehold.domain import commands as c
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Address, connect
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.postgres import empty, find_programs, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")
_SCHEMA = "expired"


def _url() -> str:
    return f"{shared_cluster().url}&schema={_SCHEMA}"


def test_what_one_server_sets_aside_another_counts() -> None:
    """And what it removes; a server that starts later counts the same."""
    empty(_SCHEMA)
    clock = ManualClock()
    first, second = (Asker(PostgresStore(_url(), name=name), clock) for name in ("a", "b"))
    first.create()
    for ttl_s in (1, 1, 5):
        first.put(time_to_live_s=ttl_s)
    clock.advance(s=1)
    assert second.counts().expired == 2
    first.ask(c.RetireExpired(10))
    assert (first.counts().expired, second.counts().expired) == (2, 2)
    clock.advance(s=4)
    second.ask(c.RetireExpired(10))
    assert (first.counts().expired, second.counts().expired) == (3, 3)
    second.ask(c.RemoveRetired(clock.now_ms() - 1, 10))
    assert (first.counts().expired, second.counts().expired) == (1, 1)
    third = Asker(PostgresStore(_url(), name="c"), clock)
    assert third.counts().expired == 1
    first.ask(c.Clear(ACCOUNT, QUEUE))
    assert [each.counts().expired for each in (first, second, third)] == [0, 0, 0]
    for each in (first, second, third):
        each.store.close()


def test_a_store_of_before_is_counted_at_the_first_start() -> None:
    """Version 0.1 kept no such number; a start that finds it there leaves it alone."""
    empty(_SCHEMA)
    clock = ManualClock()
    asker = Asker(PostgresStore(_url()), clock)
    asker.create()
    asker.put(time_to_live_s=1)
    asker.put(time_to_live_s=1, priority=3)
    asker.put()
    clock.advance(s=1)
    asker.ask(c.RetireExpired(10))
    asker.store.close()
    with connect(Address.parse(_url())) as database:
        _forget(database)
    for _ in range(2):
        again = Asker(PostgresStore(_url()), clock)
        assert (again.counts().expired, again.counts().total) == (2, 1)
        again.store.close()


def _forget(database: psycopg.Connection[tuple[object, ...]]) -> None:
    database.execute("DELETE FROM counted WHERE partition < 0")
    database.execute("DELETE FROM meta WHERE name = 'retired_counted'")
