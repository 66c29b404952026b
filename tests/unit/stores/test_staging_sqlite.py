"""What SQLite keeps of staged sends: rows, slots and counts, after restarts and undone batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import transactions as st
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import ChunkOutOfTurn, StagedNotFound
from leasehold.domain.events import EventType
from leasehold.domain.filters import EVERYTHING
from leasehold.domain.model import NO_DETAIL, BodyRef, Detail, Lease, MessageState
from leasehold.stores.sql import transactions
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

QUEUE, OTHER = "queue", "other"
LARGE = b"large" * 1000
BAD = c.CreateQueue("a", "\ud800", {})
"""Breaks its batch: SQLite cannot take the name."""


@dataclass
class Tried:
    """A store that can be opened again."""

    folder: Path
    clock: ManualClock
    store: SqliteStore
    drawn: int = 0

    def ask_all(self, *commands: AnyCommand) -> list[Any]:
        results = self.store.execute(commands, now_ms=self.clock.now_ms())
        self.store.commit()
        return results

    def ask(self, command: AnyCommand) -> Any:
        return self.ask_all(command)[0]

    def undone(self, *commands: AnyCommand) -> None:
        """Carry commands out in a batch that is undone."""
        with pytest.raises(UnicodeEncodeError):
            self.store.execute([*commands, BAD], now_ms=self.clock.now_ms())

    def put(self, queue: str = QUEUE, **changed: Any) -> c.Put:
        self.drawn += 1
        put = c.Put("a", queue, b"work", 0, 600, self.drawn.to_bytes(10, "big"))
        return put._replace(**changed)

    def chunk(self, *puts: c.Put, name: str = "tx", part: str = "", number: int = 0) -> st.Stage:
        return st.Stage("a", name, part, number, puts, timeout_s=3600)

    def stage(self, *puts: c.Put, **where: Any) -> st.Staged:
        staged = self.ask(self.chunk(*puts, **where))
        assert isinstance(staged, st.Staged)
        return staged

    def publish(self, parts: tuple[str, ...] | None = None) -> Any:
        return self.ask(st.Publish("a", "tx", parts))

    def counts(self, queue: str = QUEUE) -> tuple[int, ...]:
        """Return how many are visible, leased, delayed and staged."""
        counts = self.ask(o.CountMessages("a", queue))
        assert isinstance(counts, o.Counts)
        return counts.visible, counts.leased, counts.delayed, counts.staged

    def receive(self, limit: int = 100, queue: str = QUEUE) -> tuple[Lease, ...]:
        leases = self.ask(c.Receive("a", queue, limit, 30))
        assert isinstance(leases, tuple)
        return leases

    def bodies(self, queue: str = QUEUE) -> list[bytes]:
        return [lease.message.body for lease in self.receive(queue=queue)]

    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.folder)

    def rows(self, sql: str) -> list[Any]:
        return self.store._state.cursor.execute(sql).fetchall()

    def sizes(self) -> dict[str, int]:
        """Return how many rows there are in each table about messages."""
        tables = (
            "message",
            "message_body",
            "body_segment",
            "staged_transaction",
            "staged_part",
            "staged_slot",
            "dropped_partition",
        )
        counted = {table: self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
        return {table: count for table, count in counted.items() if count}

    def events(self, kind: EventType) -> list[e.Event]:
        page = self.ask(e.ReadEvents(0, 10_000))
        assert isinstance(page, e.EventPage)
        return [event for event in page.events if event.type is kind]


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Tried]:
    tried = Tried(tmp_path, ManualClock(), SqliteStore(tmp_path))
    tried.ask_all(c.CreateQueue("a", QUEUE, {}), c.CreateQueue("a", OTHER, {}))
    yield tried
    tried.store.close()


# --- restarts and undone batches -----------------------------------------------------------------


def test_what_is_staged_outlives_a_restart(tried: Tried) -> None:
    """Rows, counts, parts and the number of the next chunk."""
    tried.stage(tried.put(body=b"one"), tried.put(OTHER, body=LARGE), part="p")
    before = tried.ask(st.GetTransaction("a", "tx"))
    tried.reopen()
    assert tried.ask(st.GetTransaction("a", "tx")) == before
    assert (tried.counts(), tried.counts(OTHER)) == ((0, 0, 0, 1), (0, 0, 0, 1))
    late = tried.ask(tried.chunk(tried.put(), part="p", number=2))
    assert isinstance(late, ChunkOutOfTurn)
    assert tried.stage(tried.put(body=b"two"), part="p", number=1) == st.Staged(3, 2)
    assert tried.stage(tried.put(), part="p", number=1) == st.Staged(3, 2, duplicate=True)
    assert tried.publish().rows == 3
    tried.reopen()
    assert tried.publish() == st.Published(3, already=True)
    assert tried.bodies() == [b"one", b"two"]
    assert tried.bodies(OTHER) == [LARGE]


@pytest.mark.parametrize(
    "change",
    [
        lambda tried: tried.chunk(tried.put(priority=1), tried.put(OTHER), number=1),
        lambda tried: tried.chunk(tried.put(), part="new"),
        lambda tried: st.Publish("a", "tx"),
        lambda tried: st.Publish("a", "tx", ()),
        lambda tried: st.Discard("a", "tx"),
        lambda tried: st.CommitTogether("a", (tried.put(),), ("tx",), "mine"),
    ],
)
def test_an_undone_batch_leaves_what_is_staged(
    tried: Tried, change: Callable[[Tried], AnyCommand]
) -> None:
    """All that can be seen of it, and what becomes of it later."""
    tried.stage(tried.put(body=b"one"), tried.put(body=b"two", delay_s=5))

    def picture() -> list[Any]:
        return [
            *tried.ask_all(st.ListTransactions("a"), o.Inspect("a", QUEUE, EVERYTHING, "", 100)),
            tried.counts(),
            tried.counts(OTHER),
            tried.sizes(),
        ]

    before = picture()
    tried.undone(change(tried))
    assert picture() == before
    assert tried.stage(tried.put(body=b"three"), number=1) == st.Staged(3, 2)
    assert tried.publish().rows == 3
    assert tried.counts() == (2, 0, 1, 0)


# --- publishing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [False, True])
def test_counts_are_right_after_publishing(tried: Tried, counted: bool) -> None:
    """Whether or not they were kept in memory before; in all lanes, and as time passes."""
    if counted:
        assert tried.counts() == (0, 0, 0, 0)
    tried.stage(
        tried.put(priority=1),
        tried.put(priority=1, delay_s=5),
        tried.put(),
        tried.put(delay_s=5),
        tried.put(priority=16, delay_s=9),
    )
    tried.clock.advance(s=100, ms=300)
    assert tried.counts() == (0, 0, 0, 5)
    tried.publish()
    assert tried.counts() == (2, 0, 3, 0)
    since = tried.ask(o.CountMessages("a", QUEUE)).since
    assert set(since.values()) == {tried.clock.now_ms()}
    assert tried.ask(o.NextDue("a", QUEUE)) == o.Due(tried.clock.now_ms())
    leases = tried.receive()
    assert tried.counts() == (0, 2, 3, 0)
    tried.ask_all(*(complete(lease) for lease in leases))
    tried.clock.advance(s=5)
    assert tried.counts() == (2, 0, 1, 0)
    tried.clock.advance(s=4)
    assert tried.counts() == (3, 0, 0, 0)
    assert [lease.message.priority for lease in tried.receive()] == [1, 8, 16]


def complete(lease: Lease) -> c.Complete:
    return c.Complete("a", QUEUE, lease.message.message_id, lease.receipt)


def test_receives_find_what_was_published_after_they_found_nothing(tried: Tried) -> None:
    """What they know of a lane is of before; also with the clock set back for a while."""
    tried.stage(tried.put(body=b"one"), tried.put(body=b"two"))
    tried.clock.advance(s=100)
    assert tried.receive() == ()
    tried.publish()
    assert tried.bodies() == [b"one", b"two"]
    tried.ask(tried.chunk(tried.put(OTHER, body=b"three"), name="later"))
    assert tried.receive(queue=OTHER) == ()
    tried.clock.advance(s=-50)
    tried.ask(st.Publish("a", "later"))
    tried.clock.advance(s=60)
    assert tried.bodies(OTHER) == [b"three"]


def test_the_oldest_delay_is_found_with_the_clock_set_back(tried: Tried) -> None:
    """What counts know of a lane is of before too."""
    tried.stage(tried.put(delay_s=300))
    tried.ask(tried.put(delay_s=1))
    assert tried.counts() == (0, 0, 1, 1)
    tried.clock.advance(s=100)
    tried.ask(tried.put(delay_s=300))
    assert tried.counts() == (1, 0, 1, 1)
    tried.clock.advance(s=-50)
    tried.publish()
    published_ms = tried.clock.now_ms()
    tried.clock.advance(s=60)
    since = tried.ask(o.CountMessages("a", QUEUE)).since
    assert since[MessageState.DELAYED] == published_ms


def test_published_messages_expire_also_with_the_clock_set_back(tried: Tried) -> None:
    """The sweep has been further, and looks again."""
    tried.stage(tried.put(time_to_live_s=5))
    tried.clock.advance(s=1000)
    assert tried.ask(c.RetireExpired(10)) == c.Swept(0)
    tried.clock.advance(s=-500)
    tried.publish()
    tried.clock.advance(s=6)
    assert tried.ask(c.RetireExpired(10)) == c.Swept(1)
    assert tried.counts() == (0, 0, 0, 0)


def test_each_lane_is_published_with_one_statement(tried: Tried) -> None:
    """However many rows there are."""
    tried.stage(*(tried.put(priority=priority) for priority in (1, 8) for _ in range(60)))
    statements: list[str] = []

    def trace(_cursor: object, sql: str, _bounds: object) -> bool:
        statements.append(sql)
        return True

    tried.store._connection.exec_trace = trace
    try:
        tried.publish()
    finally:
        tried.store._connection.exec_trace = None
    updates = [sql for sql in statements if sql.startswith("UPDATE message ")]
    assert len(updates) == 2
    assert tried.counts()[0] == 120


def test_messages_of_a_published_transaction_are_as_any_other(tried: Tried) -> None:
    """Nothing but the memory of the name is left of the transaction."""
    tried.stage(tried.put(), tried.put(priority=1), tried.put(OTHER), part="p")
    tried.stage(tried.put(body=LARGE), part="q")
    tried.publish()
    assert tried.sizes() == {"message": 4, "message_body": 1, "staged_transaction": 1}
    tried.clock.advance(s=st.REMEMBER_S)
    assert tried.ask(st.ExpireStaged(10)) == c.Swept(1)
    assert tried.sizes() == {"message": 4, "message_body": 1}


# --- segments ------------------------------------------------------------------------------------


def test_a_segment_goes_with_its_last_message(tried: Tried) -> None:
    """In whatever order they go; the last of a batch can be fewer than sixteen."""
    for number, count in enumerate((20, 5)):
        bodies = [b"%d" % each * 300 for each in range(count)]
        alike = st.AlikePuts("a", QUEUE, bodies, bytes(10 * count), 0, 600, NO_DETAIL, 8)
        tried.ask(st.Stage("a", "tx", "", number, alike, timeout_s=3600))
    tried.publish()
    assert tried.rows("SELECT first_key, last_key FROM body_segment") == [
        (1, 16),
        (17, 20),
        (21, 25),
    ]
    leases = tried.receive()
    assert len(leases) == 25

    def complete(*row_keys: int) -> None:
        for key in row_keys:
            message = leases[key - 1].message
            tried.ask(c.Complete("a", QUEUE, message.message_id, leases[key - 1].receipt))

    complete(20, 17, 19)
    assert tried.sizes()["body_segment"] == 3
    complete(18)
    assert tried.rows("SELECT first_key FROM body_segment") == [(1,), (21,)]
    complete(*range(1, 16))
    assert tried.sizes()["body_segment"] == 2
    renewed = c.Renew("a", QUEUE, leases[15].message.message_id, leases[15].receipt, 30, LARGE)
    assert tried.ask(renewed).message.body == LARGE
    assert tried.rows("SELECT first_key FROM body_segment") == [(21,)]
    complete(*range(21, 26))
    assert tried.sizes() == {"message": 1, "message_body": 1, "staged_transaction": 1}


@pytest.mark.parametrize("sizes", [(257, 4_096, 256), (257, 4_097), (1, 2, 3)])
def test_other_bodies_are_not_in_segments(tried: Tried, sizes: tuple[int, ...]) -> None:
    """Where one is small enough for its row, or large enough for a page of its own."""
    bodies = [b"x" * size for size in sizes]
    alike = st.AlikePuts("a", QUEUE, bodies, bytes(10 * len(bodies)), 0, 600, NO_DETAIL, 8)
    tried.ask(st.Stage("a", "tx", "", 0, alike))
    assert "body_segment" not in tried.sizes()
    tried.publish()
    assert tried.bodies() == bodies


# --- dropping ------------------------------------------------------------------------------------


def test_what_was_dropped_is_reaped_with_its_bodies(tried: Tried) -> None:
    """In all lanes; the keys of bodies outside are garbage then."""
    ref = BodyRef(key="k", size_bytes=100_000, sha256="00")
    tried.stage(
        tried.put(body=LARGE),
        tried.put(priority=1),
        tried.put(OTHER, body=b"", detail=Detail(body_ref=ref)),
    )
    assert tried.ask(st.Discard("a", "tx")) == st.Discarded(3)
    assert tried.sizes() == {"message": 3, "message_body": 1, "dropped_partition": 3}
    assert tried.ask(c.KnownBodies(("k", "other"))) == c.BodyKeys(("k",))
    assert tried.ask(c.ReadBodyGarbage(10)) == c.BodyKeys(())
    assert tried.ask(c.ReapDropped(10)) == c.Swept(3)
    assert tried.sizes() == {}
    assert tried.ask(c.ReadBodyGarbage(10)) == c.BodyKeys(("k",))


def test_staged_rows_do_not_expire_before_they_are_published(tried: Tried) -> None:
    """The sweep passes them by, also after they were dropped."""
    tried.stage(tried.put(time_to_live_s=5), part="p")
    tried.stage(tried.put(time_to_live_s=5), part="q")
    tried.ask(st.Discard("a", "tx", ("q",)))
    tried.clock.advance(s=1000)
    assert tried.ask(c.RetireExpired(10)) == c.Swept(0)
    assert tried.publish().rows == 1
    assert len(tried.receive()) == 1


def test_a_queue_made_again_counts_what_is_staged_for_it(tried: Tried) -> None:
    """And what is dropped while it is gone does no harm."""
    tried.stage(tried.put(), part="p")
    tried.stage(tried.put(), part="q")
    tried.ask(c.DeleteQueue("a", QUEUE))
    assert tried.ask(st.Discard("a", "tx", ("q",))) == st.Discarded(1)
    tried.ask(c.CreateQueue("a", QUEUE, {}))
    assert tried.counts() == (0, 0, 0, 1)
    assert tried.publish().rows == 1
    assert tried.counts() == (1, 0, 0, 0)


# --- the log -------------------------------------------------------------------------------------


def test_each_message_has_its_events_however_many_there_are(
    tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are recorded in slices, each sorted; in order when there are few."""
    puts = [
        tried.put(priority=priority, delay_s=delay_s) for priority in (8, 1) for delay_s in (5, 0)
    ]
    tried.stage(*puts, part="p")
    tried.stage(*(tried.put() for _ in range(5)), part="q")
    tried.clock.advance(s=10)
    staged = tried.events(EventType.STAGED)
    assert len(staged) == 9
    assert {event.target for event in staged} == {"tx"}
    tried.ask(st.Discard("a", "tx", ("p",)))
    assert tried.events(EventType.DISCARDED) == [
        event._replace(seq=dropped.seq, at_ms=dropped.at_ms, type=EventType.DISCARDED)
        for event, dropped in zip(staged[:4], tried.events(EventType.DISCARDED), strict=True)
    ]
    monkeypatch.setattr(transactions, "_RECORDED_AT_ONCE", 2)
    tried.publish()
    published = tried.events(EventType.PUBLISHED)
    assert [event.message_id for event in published] == [event.message_id for event in staged[4:]]
    assert {event.inserted_at_ms for event in published} == {tried.clock.now_ms()}
    assert [event.place for event in published] == [0, 1, 2, 3, 4]


# --- committing together -------------------------------------------------------------------------


def test_runs_of_commands_keep_their_results_in_order(tried: Tried) -> None:
    """Those of one kind that follow each other are carried out together."""
    tried.ask_all(*(tried.put(body=body) for body in (b"a", b"b", b"c", b"d")))
    one, two, three, four = tried.receive()
    named = ("a", QUEUE, three.message.message_id, three.receipt)
    tried.stage(tried.put())
    committed = tried.ask(
        st.CommitTogether(
            "a",
            (
                complete(one),
                complete(two),
                tried.put(OTHER, body=b"x"),
                c.Renew(*named, visibility_timeout_s=60),
                tried.put(OTHER, body=b"y"),
                tried.put(OTHER, body=b"z"),
                c.Release("a", QUEUE, four.message.message_id, four.receipt),
            ),
            ("tx", "tx"),
        )
    )
    names = [type(result).__name__ for result in committed.results]
    assert names == ["Done", "Done", "Lease", "Lease", "Lease", "Lease", "Released"]
    sent = [committed.results[index].message.body for index in (2, 4, 5)]
    assert sent == [b"x", b"y", b"z"]
    assert committed.published == 1
    assert tried.counts() == (2, 1, 0, 0)


def test_a_transaction_that_is_not_there_has_no_slots(tried: Tried) -> None:
    """An empty chunk makes a part without rows, and a name to publish."""
    assert isinstance(tried.publish(), StagedNotFound)
    assert tried.stage(part="p") == st.Staged(0, 1)
    assert tried.sizes() == {"staged_transaction": 1, "staged_part": 1}
    assert tried.publish(("p",)) == st.Published(0)
