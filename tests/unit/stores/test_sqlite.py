"""What only the SQLite store promises: durability as set, formats, row keys, a full disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from leasehold.domain import commands as c
from leasehold.domain.ids import row_key_of
from leasehold.domain.types import Lease
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.connection import WrongDatabase
from leasehold.stores.sqlite.store import FILE_NAME

NOW_MS = 1_767_225_600_000


def ask(store: SqliteStore, command: c.Command) -> c.Result:
    (result,) = store.execute([command], now_ms=NOW_MS)
    store.commit()
    return result


def put(store: SqliteStore) -> Lease:
    result = ask(store, c.Put("a", "queue", b"x", 0, None, b"0123456789"))
    assert isinstance(result, Lease)
    return result


def test_settings_are_read_back_and_durable(tmp_path: Path) -> None:
    """Health reports what the database says of itself, not what was asked of it."""
    store = SqliteStore(tmp_path)
    health = store.health()
    assert health.durable
    assert health.writable
    assert health.details["journal_mode"] == "wal"
    assert health.details["synchronous"] == 2
    assert tuple(int(part) for part in str(health.details["sqlite_version"]).split(".")) >= (
        3,
        51,
        3,
    )
    store.close()


def test_reopened_store_has_everything_and_old_receipts_act(tmp_path: Path) -> None:
    """A receipt outlives the process that gave it out."""
    store = SqliteStore(tmp_path)
    ask(store, c.CreateQueue("a", "queue", {"owner": "me"}))
    lease = put(store)
    ask(store, c.NoteTime())
    store.close()
    store = SqliteStore(tmp_path)
    assert store.last_seen_ms() == NOW_MS
    queue = store.find_queue("a", "queue")
    assert queue is not None
    assert queue.metadata == {"owner": "me"}
    message_id = lease.message.message_id
    assert ask(store, c.Complete("a", "queue", message_id, lease.receipt)) == c.DONE
    store.close()


def test_batch_without_commit_is_undone_by_closing(tmp_path: Path) -> None:
    """What was not committed did not happen."""
    store = SqliteStore(tmp_path)
    store.execute([c.CreateQueue("a", "queue", {})], now_ms=NOW_MS)
    store.close()
    store = SqliteStore(tmp_path)
    assert store.find_queue("a", "queue") is None
    store.close()


def test_row_keys_are_never_used_twice(tmp_path: Path) -> None:
    """A new start continues above every key that was ever given out, deleted or not."""
    seen = 0
    for _ in range(3):
        store = SqliteStore(tmp_path)
        ask(store, c.CreateQueue("a", "queue", {}))
        for _ in range(3):
            lease = put(store)
            key = row_key_of(lease.message.message_id)
            assert key is not None
            assert key > seen
            seen = key
            ask(store, c.Complete("a", "queue", lease.message.message_id, lease.receipt))
        store.close()


def test_stores_do_not_accept_each_others_receipts(tmp_path: Path) -> None:
    """Each store seals its receipts with a key of its own."""
    one, two = SqliteStore(tmp_path / "one"), SqliteStore(tmp_path / "two")
    leases = []
    for store in (one, two):
        ask(store, c.CreateQueue("a", "queue", {}))
        leases.append(put(store))
    assert leases[0].message.message_id == leases[1].message.message_id
    assert leases[0].receipt != leases[1].receipt
    one.close()
    two.close()


def test_foreign_database_is_refused(tmp_path: Path) -> None:
    """A file of another program is left alone."""
    with sqlite3.connect(tmp_path / FILE_NAME) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(WrongDatabase, match="not a Leasehold database"):
        SqliteStore(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    """A database of a later version is not opened, and the message says why."""
    SqliteStore(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(WrongDatabase, match="format 99, written by a newer Leasehold"):
        SqliteStore(tmp_path)


def test_receives_use_the_index_and_do_not_sort(tmp_path: Path) -> None:
    """The plan of the claim query is the documented one."""
    store = SqliteStore(tmp_path)
    state = store._state
    plan = " ".join(
        str(row[3])
        for row in state.cursor.execute(
            "EXPLAIN QUERY PLAN " + state.sql["next_visible"], (1, 2, 3)
        )
    )
    assert "SEARCH message USING INDEX message_by_visibility (partition=? AND visible_at_ms<?)" in (
        plan
    )
    assert "TEMP B-TREE" not in plan
    store.close()
