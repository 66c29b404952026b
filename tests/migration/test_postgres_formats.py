"""Rows that an older version left in PostgreSQL work in this one."""

from __future__ import annotations

import contextlib
from importlib.resources import files

import pytest

from leasehold.domain import commands as c
from leasehold.domain.model import Detail
from leasehold.stores.postgres.connection import Address, connect
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.postgres import find_programs, open_empty, shared_cluster


@pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")
@pytest.mark.parametrize(
    ("key", "kept_before"),
    [
        ("order-7", "order-7"),
        ("a\0b\0", "a\ufdd0b\ufdd0"),
        ("\\u0000", "\\ufdd0"),
        ("\ufdd0", "\ufdd0"),
        ("\uffff", "\uffff"),
        ("\uffff\0", "\uffff\ufdd0"),
    ],
)
def test_keys_of_before_are_found(key: str, kept_before: str) -> None:
    """A key in the form in which an older version kept it still counts."""
    (script,) = (
        each.read_text(encoding="utf-8")
        for each in files("leasehold.stores.postgres.migrations").iterdir()
        if each.name.endswith("_exact_keys.sql")
    )
    store = open_empty()
    asker = Asker(store, ManualClock())
    asker.create()
    first = asker.put(detail=Detail(dedup_key="x"))
    # Through SQL's own notation, as this version keeps texts in another form than that one.
    literal = "".join(f"\\+{ord(each):06X}" for each in kept_before)
    address = Address.parse(shared_cluster().url + "&schema=tests")
    with contextlib.closing(connect(address)) as connection, connection.transaction():
        connection.execute(f"UPDATE dedup_key SET key = U&'{literal}'".encode(), prepare=False)
        connection.execute(script.encode(), prepare=False)
    again = asker.put(detail=Detail(dedup_key=key))
    assert isinstance(again, c.Duplicate)
    assert again.message_id == first.message.message_id
    store.close()


@pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")
def test_rows_of_every_table_can_be_told_apart_by_replication() -> None:
    """A table without a replica identity refuses all updates once a publication has all tables."""
    open_empty().close()
    query = """
        SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'tests' AND c.relkind = 'r' AND NOT (
            c.relreplident = 'f' OR c.relreplident IN ('d', 'i') AND EXISTS (
                SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid
                AND (c.relreplident = 'd' AND i.indisprimary
                     OR c.relreplident = 'i' AND i.indisreplident)))
    """
    with contextlib.closing(connect(Address.parse(shared_cluster().url))) as connection:
        assert connection.execute(query.encode(), prepare=False).fetchall() == []


@pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")
def test_a_store_is_served_beside_a_publication() -> None:
    """As for change data capture, or an upgrade by logical replication."""
    store = open_empty()
    address = Address.parse(shared_cluster().url + "&schema=tests")
    with contextlib.closing(connect(address)) as connection:
        connection.execute("CREATE PUBLICATION all_of_tests FOR TABLES IN SCHEMA tests")
        try:
            asker = Asker(store, ManualClock())
            asker.create()
            asker.put("one")
            assert asker.complete(asker.receive_one()) == c.DONE
            asker.ask(c.DeleteQueue(ACCOUNT, QUEUE))
        finally:
            connection.execute("DROP PUBLICATION all_of_tests")
    store.close()
