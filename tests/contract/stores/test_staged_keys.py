"""Contract: a staged message whose key was used when it is published is dropped and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain import transactions as sg
from leasehold.domain.commands import KnownBodies
from leasehold.domain.events import EventType
from leasehold.domain.model import BodyRef, Detail, Lease
from leasehold.stores.sql import transactions
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

from .conftest import ACCOUNT, QUEUE, Asker
from .random_work import replayed_and_live

WINDOW_MS = 300_000


def keyed(asker: Asker, body: str, key: str, **fields: Any) -> c.Put:
    return asker.put_command(body, detail=Detail(dedup_key=key), **fields)


def stage(asker: Asker, *puts: c.Put, name: str = "tx", part: str = "", chunk: int = 0) -> Any:
    return asker.ask(sg.Stage(ACCOUNT, name, part, chunk, puts, 3_600))


def put(asker: Asker, key: str, **fields: Any) -> Any:
    return asker.ask(keyed(asker, "put", key, **fields))


def published(rows: int, duplicates: int, queue: str = QUEUE) -> sg.Published:
    by_queue = ((queue, rows),) if rows else ()
    return sg.Published(rows, by_queue=by_queue, duplicates=duplicates)


def test_a_row_whose_key_was_put_before_is_dropped(asker: Asker) -> None:
    """The others are published; a repeated publish tells the same figures."""
    put(asker, "one")
    stage(asker, keyed(asker, "again", "one"), keyed(asker, "b", "two"), asker.put_command("c"))
    assert asker.publish() == published(2, 1)
    assert asker.publish() == sg.Published(2, already=True, duplicates=1)
    assert (asker.transaction().rows, asker.transaction().duplicates) == (2, 1)
    assert asker.received() == [b"put", b"b", b"c"]
    assert (asker.count(), asker.counts().staged) == (3, 0)


def test_of_two_in_one_publish_the_first_one_counts(asker: Asker) -> None:
    """In the order of parts by name, chunks and rows, whatever their priorities and delays."""
    stage(asker, keyed(asker, "q", "one", priority=1), part="q")
    stage(asker, keyed(asker, "p0", "two", delay_s=5, priority=16), part="p")
    late = keyed(asker, "p1", "two", priority=1), keyed(asker, "p1 one", "one", priority=16)
    stage(asker, *late, keyed(asker, "p1 last", "one"), part="p", chunk=1)
    assert asker.publish() == published(2, 3)
    assert asker.received() == [b"p1 one"]
    asker.clock.advance(s=5)
    assert asker.received() == [b"p0"]


def test_keys_are_looked_at_when_published(asker: Asker) -> None:
    """Not when staged: what is staged, dropped or discarded uses no key."""
    stage(asker, keyed(asker, "a", "one"), part="a")
    stage(asker, keyed(asker, "b", "two"), part="b")
    assert isinstance(put(asker, "one"), Lease)
    stage(asker, keyed(asker, "c", "three"), name="given-up")
    asker.discard("given-up")
    assert asker.publish(parts=("a",)) == published(0, 1)
    assert isinstance(put(asker, "two"), Lease)
    assert isinstance(put(asker, "three"), Lease)


def test_the_key_of_a_published_row_counts_for_puts(asker: Asker) -> None:
    """A put is answered with the row's id and its times as it was published."""
    stage(asker, keyed(asker, "a", "one", delay_s=5, time_to_live_s=1_000))
    asker.clock.advance(s=50)
    asker.publish()
    now_ms = asker.clock.now_ms()
    (seen,) = asker.inspect().messages
    again = put(asker, "one")
    assert isinstance(again, c.Duplicate)
    assert again.message_id == seen.message.message_id
    times = again.inserted_at_ms, again.visible_at_ms, again.expires_at_ms
    assert times == (now_ms, now_ms + 5_000, now_ms + 1_000_000)
    assert asker.ask(c.Complete(ACCOUNT, QUEUE, again.message_id, again.receipt)) == c.DONE


def test_the_window_begins_with_publishing(asker: Asker) -> None:
    """It ends to the millisecond; a row that is dropped does not lengthen it."""
    stage(asker, keyed(asker, "a", "one"))
    asker.clock.advance(s=1_000)
    asker.publish()
    asker.clock.advance(ms=WINDOW_MS - 1)
    stage(asker, keyed(asker, "b", "one"), name="early")
    stage(asker, keyed(asker, "c", "one"), name="late")
    assert asker.publish("early") == published(0, 1)
    asker.clock.advance(ms=1)
    assert asker.publish("late") == published(1, 0)
    assert isinstance(put(asker, "one"), c.Duplicate)


def test_keys_are_of_their_queue(asker: Asker) -> None:
    """The same key in two queues is two messages; a queue made anew knows no keys."""
    asker.create("audio")
    stage(asker, keyed(asker, "a", "one"), keyed(asker, "b", "one", queue="audio"))
    assert asker.publish() == sg.Published(2, by_queue=(("audio", 1), (QUEUE, 1)))
    stage(asker, keyed(asker, "c", "one"), keyed(asker, "d", "one", queue="audio"), name="t2")
    asker.ask(c.DeleteQueue(ACCOUNT, "audio"))
    asker.create("audio")
    assert asker.publish("t2") == published(1, 1, "audio")
    assert asker.received(queue="audio") == [b"d"]


def test_the_window_of_the_queue_counts(asker: Asker) -> None:
    """That of nothing remembers nothing, as with puts; keys remembered before still count."""
    put(asker, "old")
    asker.govern(dedup_window_s=0)
    stage(asker, keyed(asker, "a", "one"), keyed(asker, "b", "one"), keyed(asker, "c", "old"))
    assert asker.publish() == published(2, 1)
    asker.govern(dedup_window_s=2)
    stage(asker, keyed(asker, "d", "one"), keyed(asker, "e", "one"), name="t2")
    assert asker.publish("t2") == published(1, 1)
    asker.govern(dedup_window_s=0)
    asker.clock.advance(s=2)
    stage(asker, keyed(asker, "f", "one"), name="t3")
    assert asker.publish("t3") == published(1, 0)


def test_commits_and_settles_count_what_they_drop(asker: Asker) -> None:
    """Of all that they publish, one after the other; sends along with a settle come last."""
    for number in (1, 2):
        stage(asker, keyed(asker, "a", "one"), keyed(asker, "b", f"b{number}"), name=f"t{number}")
    committed = asker.ask(
        sg.CommitTogether(ACCOUNT, (keyed(asker, "sent", "b1"),), publish=("t1", "t2"), name="both")
    )
    assert (committed.published, committed.duplicates) == (2, 2)
    assert committed.by_queue == ((QUEUE, 2),)
    assert (asker.transaction("both").rows, asker.transaction("both").duplicates) == (2, 2)
    assert (asker.transaction("t1").rows, asker.transaction("t1").duplicates) == (1, 1)
    stage(asker, keyed(asker, "c", "one"), keyed(asker, "d", "last"), name="t3")
    asker.attach()
    asker.open(1)
    settled = asker.settle(1, publish=("t3",), sends=(keyed(asker, "e", "last"),))
    assert (settled.completed, settled.published, settled.duplicates) == (3, 1, 1)
    assert asker.received() == [b"d"]


def test_a_refused_publish_uses_no_key(asker: Asker) -> None:
    """All of it is as before."""
    asker.create("audio")
    stage(asker, keyed(asker, "a", "one"), keyed(asker, "b", "two", queue="audio"))
    asker.ask(c.DeleteQueue(ACCOUNT, "audio"))
    assert not isinstance(asker.publish(), sg.Published)
    assert isinstance(put(asker, "one"), Lease)


def test_the_log_tells_what_was_dropped(asker: Asker) -> None:
    """As discarded; replayed, it gives what there is."""
    puts = [keyed(asker, f"{number}", f"key {number // 2}") for number in range(6)]
    stage(asker, *puts)
    asker.publish()
    events = asker.events()
    dropped = [event for event in events if event.type is EventType.DISCARDED]
    assert [(each.reason, each.target) for each in dropped] == [("duplicate", "tx")] * 3
    assert [event.type for event in events].count(EventType.PUBLISHED) == 3
    replayed, live = replayed_and_live(asker)
    assert replayed == live


def test_what_is_dropped_takes_its_body_along(asker: Asker) -> None:
    """Wherever that is: in the row, beside it, or in the body store."""
    put(asker, "one")
    ref = BodyRef(key="0" * 32, size_bytes=70_000, sha256="0" * 64)
    large = asker.put_command("", detail=Detail(dedup_key="one", body_ref=ref))
    stage(asker, large, keyed(asker, "x" * 20_000, "one"))
    assert asker.publish() == published(0, 2)
    assert asker.ask(KnownBodies(("0" * 32,))).keys == ()
    assert [body for body, _ in asker.inspected()] == [b"put"]


@pytest.mark.parametrize("key", ["", "a\0b", "a\0c", '"\\\n', "schlüssel 🔑", "1"])
def test_any_text_is_a_key(asker: Asker, key: str) -> None:
    """And only the same text is the same key."""
    stage(asker, keyed(asker, "a", key), keyed(asker, "b", f"{key}!"), keyed(asker, "c", "a\0"))
    assert asker.publish() == published(3, 0)
    assert isinstance(put(asker, key), c.Duplicate)
    stage(asker, keyed(asker, "d", key), name="t2")
    assert asker.publish("t2") == published(0, 1)


def test_staged_keys_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    """A store on disk knows which of its staged rows have keys."""
    asker = Asker(SqliteStore(tmp_path, cache_mib=2), clock)
    asker.create()
    stage(asker, keyed(asker, "a", "one"), keyed(asker, "b", "one"))
    asker.store.close()
    asker.store = SqliteStore(tmp_path, cache_mib=2)
    assert asker.publish() == published(1, 1)
    asker.store.close()


def test_publishing_without_keys_looks_for_none(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs what it did before there were any, also where another part has some."""
    looked: list[int] = []

    def look(*_: Any) -> list[int]:
        looked.append(1)
        return []

    monkeypatch.setattr(transactions, "claim_keys", look)
    asker = Asker(SqliteStore(tmp_path, cache_mib=2), clock)
    asker.create()
    stage(asker, asker.put_command("a", detail=Detail(message_type="t")), part="p")
    stage(asker, keyed(asker, "b", "one"), part="dropped")
    assert asker.publish(parts=("p",)) == published(1, 0)
    assert looked == []
    stage(asker, keyed(asker, "c", "one"), name="t2")
    assert asker.publish("t2") == published(1, 0)
    assert looked == [1]
    asker.store.close()
