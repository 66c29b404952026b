"""A subscriber that follows a store by logical replication has the same rows."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any, Final

import psycopg
import pytest

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.stores.postgres import PostgresStore
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import Asker
from tests.contract.stores.random_work import RandomWork
from tests.postgres import PORT, USER, Cluster, find_programs
from tests.reliability.postgres_rig import short_folder
from tests.reliability.running import eventually

pytestmark = [
    pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed"),
    pytest.mark.long,
]

COMMANDS: Final = 20_000
SCHEMA: Final = "leasehold"


class CountingAsker(Asker):
    """Counts commands."""

    commands = 0

    def batch(self, *commands: AnyCommand) -> list[c.Result]:
        """Have a batch carried out."""
        self.commands += len(commands)
        return super().batch(*commands)


def tables_of(raw: psycopg.Connection[Any]) -> list[str]:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
    return [name for (name,) in raw.execute(query, (SCHEMA,)).fetchall()]


def rows_of(raw: psycopg.Connection[Any], table: str) -> list[str]:
    query = f"SELECT t::text FROM {SCHEMA}.{table} t ORDER BY 1"
    return [row for (row,) in raw.execute(query.encode()).fetchall()]


def test_a_subscriber_has_the_same_rows() -> None:
    """After commands of all kinds, in each table of a schema that our migrations made there."""
    with ExitStack() as stack:
        publisher, subscriber = (
            Cluster(stack.enter_context(short_folder()), fsync="off", wal_level="logical")
            for _ in range(2)
        )
        for cluster in (publisher, subscriber):
            cluster.make()
            cluster.start()
            stack.callback(cluster.stop, "immediate")
        store = PostgresStore(publisher.url)
        PostgresStore(subscriber.url).close()
        here, there = (
            stack.enter_context(psycopg.connect(cluster.url, autocommit=True))
            for cluster in (publisher, subscriber)
        )
        tables = tables_of(here)
        assert tables == tables_of(there)
        there.execute(f"TRUNCATE {', '.join(f'{SCHEMA}.{each}' for each in tables)}".encode())
        here.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        where = f"host={publisher.folder} port={PORT} user={USER} dbname=postgres"
        there.execute(f"CREATE SUBSCRIPTION follower CONNECTION '{where}' PUBLICATION everything")
        asker = CountingAsker(store, ManualClock())
        asker.create()
        work = RandomWork(asker, random.Random(20), groups=True)
        while asker.commands < COMMANDS:
            work.play(400)
        ((end,),) = here.execute("SELECT pg_current_wal_lsn()").fetchall()
        query = "SELECT latest_end_lsn >= %s::pg_lsn FROM pg_stat_subscription WHERE relid IS NULL"
        eventually(lambda: there.execute(query, (end,)).fetchall() == [(True,)], "all has arrived")
        for table in tables:
            assert rows_of(here, table) == rows_of(there, table), table
        filled = [table for table in tables if rows_of(here, table)]
        assert len(filled) > len(tables) / 2, filled
        store.close()
