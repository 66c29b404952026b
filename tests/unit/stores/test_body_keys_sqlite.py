"""What SQLite notes of the keys of large bodies: those that no row refers to any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.model import BodyRef, Detail, Lease
from leasehold.stores.sqlite import SqliteStore

NOW_MS = 1_767_225_600_000


class Tried:
    """A store with one queue."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(folder)
        self._drawn = 0
        self.ask(c.CreateQueue("a", "queue", {}))

    def ask(self, command: AnyCommand) -> Any:
        (result,) = self.store.execute([command], now_ms=NOW_MS)
        self.store.commit()
        return result

    def put(self, key: str) -> Lease:
        self._drawn += 1
        detail = Detail(body_ref=ref(key))
        lease = self.ask(c.Put("a", "queue", b"", 0, 60, self._drawn.to_bytes(10, "big"), detail))
        assert isinstance(lease, Lease)
        return lease

    def complete(self, lease: Lease) -> None:
        assert self.ask(c.Complete("a", "queue", lease.message.message_id, lease.receipt)) == c.DONE

    def garbage(self, limit: int = 100) -> tuple[str, ...]:
        keys = self.ask(c.ReadBodyGarbage(limit))
        assert isinstance(keys, c.BodyKeys)
        return keys.keys


def ref(key: str) -> BodyRef:
    return BodyRef(key=key, size_bytes=100_000, sha256="00")


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Tried]:
    made = Tried(tmp_path)
    yield made
    made.store.close()


def test_keys_of_messages_that_are_gone_are_garbage_until_forgotten(tried: Tried) -> None:
    """A few at a time."""
    for key in ("one", "two", "schlüssel"):
        tried.complete(tried.put(key))
    assert set(tried.garbage()) == {"one", "two", "schlüssel"}
    (first,) = tried.garbage(1)
    assert tried.ask(c.ForgetBodyGarbage((first, "unknown"))) == c.DONE
    assert set(tried.garbage()) == {"one", "two", "schlüssel"} - {first}


def test_a_new_body_makes_the_old_one_garbage(tried: Tried) -> None:
    """And the same one does not."""
    lease = tried.put("one")
    named = "a", "queue", lease.message.message_id
    lease = tried.ask(c.Renew(*named, lease.receipt, 60, ref("one")))
    assert tried.garbage() == ()
    tried.ask(c.Renew(*named, lease.receipt, 60, b"small"))
    assert tried.garbage() == ("one",)


def test_a_key_that_a_row_refers_to_is_no_garbage(tried: Tried) -> None:
    """Two may share a body; and it is not forgotten either, so that it can be garbage later."""
    first, second = tried.put("one"), tried.put("one")
    tried.complete(first)
    assert tried.garbage() == ()
    tried.ask(c.ForgetBodyGarbage(("one",)))
    assert tried.ask(c.KnownBodies(("one", "two"))) == c.BodyKeys(("one",))
    tried.complete(second)
    assert tried.garbage() == ("one",)
    assert tried.ask(c.KnownBodies(("one", "two"))) == c.BodyKeys(())


def test_keys_are_looked_up_and_not_searched_for(tried: Tried) -> None:
    """However many messages there are."""
    for query, bounds in (
        ("unused_garbage", (1,)),
        ("forget_unused_garbage", ("k",)),
        ("known_body", (b"k",)),
    ):
        explain = "EXPLAIN QUERY PLAN " + tried.store._state.sql[query]
        plan = [str(row[3]) for row in tried.store._connection.execute(explain, bounds)]
        assert any("message_by_body_key (body=?" in step for step in plan), plan
