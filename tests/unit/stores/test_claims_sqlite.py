"""What SQLite does about claims and events beyond what every store does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain.claims import ClaimState
from leasehold.domain.command import AnyCommand
from leasehold.domain.events import EventType
from leasehold.domain.model import BodyRef, Detail
from leasehold.stores.sql import recorder, settle
from leasehold.stores.sql.rows import INLINE_BYTES
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

BAD = c.CreateQueue("a", "\ud800", {})
"""Breaks its batch: SQLite cannot take the name."""


@dataclass
class Tried:
    """A store that can be opened again."""

    folder: Path
    clock: ManualClock
    store: SqliteStore
    token: int = 0
    drawn: int = 0

    def ask_all(self, *commands: AnyCommand) -> list[Any]:
        results = self.store.execute(commands, now_ms=self.clock.now_ms())
        self.store.commit()
        return results

    def ask(self, command: AnyCommand) -> Any:
        return self.ask_all(command)[0]

    def put(self, body: bytes, **changed: Any) -> c.Put:
        self.drawn += 1
        put = c.Put("a", "queue", body, 0, 3600, self.drawn.to_bytes(10, "big"))
        return put._replace(**changed)

    def open(self, number: int = 1, limit: int = 100, lease_s: int = 30) -> Any:
        return self.ask(cl.OpenClaim("a", "queue", "s", self.token, number, limit, lease_s))

    def read(self, number: int = 1, *, columns: bool = False, **changed: Any) -> Any:
        read = cl.ReadClaim("a", "queue", "s", number, 0, 1, "", 10_000, columns)
        return self.ask(replace(read, **changed))

    def bodies(self, number: int = 1) -> list[bytes]:
        return [message.body for message in self.read(number).messages]

    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.folder)

    def rows(self, sql: str) -> list[Any]:
        return self.store._state.cursor.execute(sql).fetchall()


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Tried]:
    tried = Tried(tmp_path, ManualClock(), SqliteStore(tmp_path))
    tried.ask(c.CreateQueue("a", "queue", {}))
    tried.token = tried.ask(cl.AttachStream("a", "queue", "s")).token
    yield tried
    tried.store.close()


def restart(tried: Tried) -> None:
    tried.reopen()


def broken_batch(tried: Tried) -> None:
    put = tried.put(b"undone")
    settle = cl.SettleClaims("a", "queue", "s", tried.token, 1)
    with pytest.raises(UnicodeEncodeError):
        tried.store.execute([put, settle, BAD], now_ms=tried.clock.now_ms())


AGAIN = pytest.mark.parametrize("again", [restart, broken_batch])


@AGAIN
def test_a_claim_is_as_it_was(tried: Tried, again: Callable[[Tried], None]) -> None:
    """Members, order and end of a claim are there after a restart and an undone batch."""
    tried.ask_all(*[tried.put(b"%d" % number) for number in range(5)])
    opened = tried.open(limit=4).claim
    again(tried)
    assert tried.ask(cl.GetStream("a", "queue", "s")).claims == (opened,)
    assert tried.bodies() == [b"0", b"1", b"2", b"3"]
    assert tried.ask(o.CountMessages("a", "queue")).claimed == 4
    settled = tried.ask(cl.SettleClaims("a", "queue", "s", tried.token, 1))
    assert (settled.completed, settled.last_settled) == (4, 1)
    assert tried.ask(c.GetQueue("a", "queue")).message_count == 1


@AGAIN
def test_a_lapsed_claim_is_as_it_was(tried: Tried, again: Callable[[Tried], None]) -> None:
    """What has lapsed is received, and what is left of the claim stays together."""
    tried.ask_all(*[tried.put(b"%d" % number) for number in range(3)])
    tried.open(lease_s=10)
    tried.clock.advance(s=10)
    (lease,) = tried.ask(c.Receive("a", "queue", 1, 30))
    assert lease.message.dequeue_count == 2
    again(tried)
    (claim,) = tried.ask(cl.GetStream("a", "queue", "s")).claims
    assert (claim.state, claim.lost, claim.remaining) == (ClaimState.BROKEN, 1, 2)
    assert tried.ask(c.Complete("a", "queue", lease.message.message_id, lease.receipt)) == c.DONE
    left = tried.ask(c.Receive("a", "queue", 10, 30))
    assert sorted(each.message.body for each in left) == [b"1", b"2"]
    assert tried.ask(c.GetQueue("a", "queue")).message_count == 2


def test_extending_writes_one_row(tried: Tried) -> None:
    """An extension changes as many rows with a thousand members as with one."""
    changes = []
    for number, size in ((1, 1), (2, 1000)):
        tried.ask_all(*[tried.put(b"x") for _ in range(size)])
        tried.open(number, limit=size)
        connection = tried.store._connection
        before = connection.total_changes()
        tried.ask(cl.ExtendClaim("a", "queue", "s", tried.token, number, 60))
        changes.append(connection.total_changes() - before)
    assert changes[0] == changes[1] == 2  # the claim, and the event


def test_an_interrupted_opening_goes_on(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that was being opened when the server ended is continued, not begun anew."""
    monkeypatch.setattr(cl, "CLAIM_STEP", 2)
    tried.ask_all(*[tried.put(b"%d" % number) for number in range(5)])
    first = tried.open(limit=4).claim
    assert (first.state, first.size) == (ClaimState.OPENING, 2)
    tried.reopen()
    second = tried.open(limit=9).claim
    assert (second.state, second.size) == (ClaimState.OPEN, 4)
    assert tried.bodies() == [b"0", b"1", b"2", b"3"]


@AGAIN
@pytest.mark.parametrize("lapsed", [False, True])
def test_what_was_given_back_goes_on(
    tried: Tried,
    again: Callable[[Tried], None],
    lapsed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members that are left are dissolved by whoever comes next, and their stream may be gone."""
    monkeypatch.setattr(cl, "FOLD_STEP", 2)
    tried.ask_all(*[tried.put(b"%d" % number) for number in range(5)])
    tried.open(1, limit=2)
    tried.open(2, limit=3)
    tried.clock.advance(s=30 * lapsed)
    assert tried.ask(cl.DeleteStream("a", "queue", "s")) == cl.Dissolving(3)
    tried.ask(cl.AttachStream("a", "queue", "s"))
    if again is restart:
        again(tried)
    else:
        with pytest.raises(UnicodeEncodeError):
            tried.store.execute([cl.LapseClaims(100), BAD], now_ms=tried.clock.now_ms())
    assert tried.ask(cl.GetStream("a", "queue", "s")).claims == ()
    for swept in (2, 1, 0):
        assert tried.ask(cl.LapseClaims(2)) == c.Swept(swept)
    assert tried.ask(o.CountMessages("a", "queue")).visible == 5
    assert len(tried.ask(c.Receive("a", "queue", 10, 30))) == 5
    assert tried.rows("SELECT * FROM claim") == []


@AGAIN
def test_the_bytes_of_an_interrupted_opening_are_known(
    tried: Tried, again: Callable[[Tried], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim with a limit of bytes counts those that it has, wherever the bodies are."""
    monkeypatch.setattr(cl, "CLAIM_STEP", 2)
    large = BodyRef(key="0" * 32, size_bytes=3_000, sha256="")
    tried.ask_all(
        tried.put(b"x" * 100),
        tried.put(b"", detail=Detail(body_ref=large)),
        tried.put(b"y" * 900),
        tried.put(b"z"),
    )
    command = cl.OpenClaim("a", "queue", "s", tried.token, 1, 100, 30, max_bytes=4_000)
    assert tried.ask(command).claim.state is ClaimState.OPENING
    again(tried)
    claim = tried.ask(command).claim
    assert (claim.state, claim.size) == (ClaimState.OPEN, 3)


def test_opening_reads_no_bodies(tried: Tried) -> None:
    """Also where their bytes are counted: a step may look at gigabytes of them."""
    tried.ask_all(*[tried.put(b"x" * 60_000) for _ in range(50)])
    read = []

    def trace(_: object, row: tuple[Any, ...]) -> tuple[Any, ...]:
        read.append(max(map(_length, row)))
        return row

    cursor = tried.store._state.cursor
    cursor.row_trace = trace
    tried.ask(cl.OpenClaim("a", "queue", "s", tried.token, 1, 50, 30, max_bytes=1_000_000))
    cursor.row_trace = None
    assert max(read) < 1_000
    (claim,) = tried.ask(cl.GetStream("a", "queue", "s")).claims
    assert claim.size == 17


def _length(value: object) -> int:
    return len(value) if isinstance(value, bytes) else 0


def test_a_page_of_members_ends_with_its_bytes(
    tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large bodies make short pages, and each member is on one of them."""
    monkeypatch.setattr(settle, "PAGE_BYTES", 1_000)
    monkeypatch.setattr(settle, "_READ_AT_ONCE", 2)
    tried.ask_all(*[tried.put(b"%d" % (number % 10) * 400) for number in range(9)])
    tried.open()
    sizes, found = [], []
    command = cl.ReadClaim("a", "queue", "s", 1, 0, 1, "", 5)
    while True:
        page = tried.ask(command)
        sizes.append(len(page.messages))
        found += [message.body[:1] for message in page.messages]
        if page.next_after is None:
            break
        command = replace(command, after=page.next_after)
    assert sizes == [2, 2, 2, 2, 1]
    assert found == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("columns", [False, True])
def test_a_later_page_costs_what_the_first_did(tried: Tried, *, columns: bool) -> None:
    """Members that share a moment are not walked over again by each page."""
    tried.ask_all(*[tried.put(b"x") for _ in range(2_000)])
    tried.open(limit=2_000)
    steps = 0

    def note() -> bool:
        nonlocal steps
        steps += 1
        return False

    costs, after = [], ""
    tried.store._state.cursor.connection.set_progress_handler(note, 10)
    while after is not None:
        steps = 0
        read = cl.ReadClaim("a", "queue", "s", 1, 0, 1, after, 100, columns)
        after = tried.ask(read).next_after
        costs.append(steps)
    assert len(costs) == 20
    assert 0 < max(costs) < 1.5 * costs[0]


def test_claims_without_members_cost_receives_nothing(tried: Tried) -> None:
    """A stream that nobody works on may have left thousands of them."""
    count = cl.MAX_LAPSED + 30
    tried.ask_all(*[tried.put(b"x") for _ in range(count)])
    for number in range(1, count + 1):
        tried.open(number, limit=1)
    tried.clock.advance(s=30)
    tried.ask(cl.LapseClaims(count))
    looked = []

    def trace(*query: object) -> bool:
        looked.append(query)
        return True

    cursor = tried.store._state.cursor
    cursor.exec_trace = trace
    tried.ask(c.Receive("a", "queue", 1, 30))
    cursor.exec_trace = None
    assert len(looked) < 2 * cl.MAX_LAPSED


def test_settled_rows_are_reaped(tried: Tried) -> None:
    """Messages of a settled claim leave nothing behind, neither rows nor bodies."""
    tried.ask_all(*[tried.put(b"x" * (INLINE_BYTES + number)) for number in range(4)])
    tried.open()
    tried.ask(cl.SettleClaims("a", "queue", "s", tried.token, 1))
    tried.ask(c.ReapDropped(100))
    assert tried.rows("SELECT * FROM message") == []
    assert tried.rows("SELECT * FROM message_body") == []
    assert tried.rows("SELECT * FROM claim") == []
    assert tried.rows("SELECT * FROM dropped_partition") == []


def test_columns_say_the_same_as_messages(tried: Tried) -> None:
    """Both forms of a page of members agree, bodies in the row or apart."""
    tried.ask_all(
        tried.put(b"short"),
        tried.put(b"x" * 2000, priority=2),
        tried.put(b"never", time_to_live_s=None),
    )
    tried.open()
    messages = tried.read().messages
    columns = tried.read(columns=True)
    assert isinstance(columns, cl.MemberColumns)
    assert b"".join(columns.bodies) == b"".join(message.body for message in messages)
    assert list(columns.sizes) == [len(message.body) for message in messages]
    assert columns.priorities == [message.priority for message in messages] == [2, 8, 8]
    assert columns.fences == [message.fence for message in messages] == [1, 1, 1]
    assert columns.message_ids.hex() == "".join(
        message.message_id.replace("-", "") for message in messages
    )


@pytest.mark.parametrize("moments", [1, 3])
@pytest.mark.parametrize("part", range(3))
def test_columns_go_on_where_a_page_ends(tried: Tried, moments: int, part: int) -> None:
    """Pages of any size give the members of a part once each, put together or one by one."""
    for moment in range(moments):
        put = [b"%d.%d" % (moment, number) * (number * 50) for number in range(9)]
        tried.ask_all(*map(tried.put, put))
        tried.clock.advance(s=1)
    tried.open()
    messages = tried.read(part=part, parts=3).messages
    for limit in (1, 2, 7, 40):
        bodies = b""
        after: str | None = ""
        inserted: list[int] = []
        while after is not None:
            page = tried.read(part=part, parts=3, columns=True, limit=limit, after=after)
            assert isinstance(page, cl.MemberColumns)
            assert len(page.sizes) <= limit
            bodies, after = bodies + b"".join(page.bodies), page.next_after
            times, count = page.inserted_at_ms, len(page.sizes)
            inserted += [times] * count if isinstance(times, int) else times
        assert bodies == b"".join(message.body for message in messages)
        assert inserted == [message.inserted_at_ms for message in messages]


def test_members_recorded_at_once_are_events_each(tried: Tried) -> None:
    """The log gives one event for each member, with the numbers of that member."""
    tried.ask_all(*[tried.put(b"x", time_to_live_s=60 + number) for number in range(3)])
    tried.open()
    page = tried.ask(e.ReadEvents(0, 1000))
    claimed = [event for event in page.events if event.type is EventType.CLAIMED]
    put = [event for event in page.events if event.type is EventType.PUT]
    assert [event.message_id for event in claimed] == [event.message_id for event in put]
    assert [event.expires_at_ms for event in claimed] == [event.expires_at_ms for event in put]
    assert [event.place for event in claimed] == [0, 1, 2]
    assert {(event.target, event.fence, event.dequeue_count) for event in claimed} == {
        ("s/1", 1, 1)
    }


def test_the_last_number_of_the_log_is_never_used_again(tried: Tried) -> None:
    """After a trim of everything and a restart, numbers go on rising."""
    tried.ask_all(tried.put(b"1"))
    tried.ask_all(tried.put(b"2"))
    last_seq = tried.ask(e.LogExtent()).last_seq
    tried.ask(e.TrimEvents(last_seq, 100))
    tried.reopen()
    tried.ask_all(tried.put(b"3"))
    extent = tried.ask(e.LogExtent())
    assert (extent.first_seq, extent.last_seq) == (last_seq, last_seq + 1)


def test_very_many_events_have_several_numbers(
    tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whoever reads them is not held up by one batch."""
    monkeypatch.setattr(recorder, "MAX_EVENTS", 4)
    tried.ask_all(*[tried.put(b"x") for _ in range(10)])
    last_seq = tried.ask(e.LogExtent()).last_seq
    tried.open(limit=3)
    tried.open(2, limit=3)
    tried.ask(cl.SettleClaims("a", "queue", "s", tried.token, 2, sends=(tried.put(b"y"),)))
    events = tried.ask(e.ReadEvents(0, 1_000)).events
    places = [(event.seq, event.place) for event in events]
    assert len(set(places)) == len(places)
    assert places == sorted(places)
    assert max(place for _, place in places) == 3
    settled = [event for event in events if event.type is EventType.SETTLED]
    assert {event.seq for event in settled} == {last_seq + 3, last_seq + 4}
    assert (events[-1].type, events[-1].seq) == (EventType.PUT, last_seq + 4)
    page = tried.ask(e.ReadEvents(last_seq + 3, 1))
    assert {event.seq for event in page.events} == {last_seq + 4}


def test_the_size_of_the_log_is_known_after_a_crash(tried: Tried, tmp_path: Path) -> None:
    """Exactly, however much was written and trimmed since it was last noted."""
    for _ in range(5):
        tried.ask_all(tried.put(b"1"))
    tried.ask(c.NoteTime())
    for _ in range(5):
        tried.ask_all(tried.put(b"2"))
    tried.ask(e.TrimEvents(8, 100))
    tried.ask_all(tried.put(b"3"))
    size = tried.ask(e.LogExtent()).bytes
    assert [(size,)] == tried.rows("SELECT sum(size) FROM event_batch")
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name in ("leasehold.db", "leasehold.db-wal", "epoch"):
        shutil.copy(tried.folder / name, crashed)
    survivor = SqliteStore(crashed)
    (extent,) = survivor.execute([e.LogExtent()], now_ms=tried.clock.now_ms())
    survivor.commit()
    assert isinstance(extent, e.Extent)
    assert extent.bytes == size
    survivor.close()


def test_the_size_of_the_log_is_known_after_a_restart(tried: Tried) -> None:
    """And an undone batch adds nothing to it."""
    tried.ask_all(tried.put(b"1"))
    size = tried.ask(e.LogExtent()).bytes
    broken_batch(tried)
    assert tried.ask(e.LogExtent()).bytes == size > 0
    tried.reopen()
    assert tried.ask(e.LogExtent()).bytes == size
