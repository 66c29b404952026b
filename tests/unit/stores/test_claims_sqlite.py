"""What SQLite does about claims and events beyond what every store does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import oversight as o
from leasehold.domain.claims import ClaimState
from leasehold.domain.events import EventType
from leasehold.domain.queue_settings import QueueSettings
from leasehold.domain.types import MessageState
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.rows import INLINE_BYTES
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

    def ask_all(self, *commands: c.Command) -> list[Any]:
        results = self.store.execute(commands, now_ms=self.clock.now_ms())
        self.store.commit()
        return results

    def ask(self, command: c.Command) -> Any:
        return self.ask_all(command)[0]

    def put(self, body: bytes, **changed: Any) -> c.Put:
        self.drawn += 1
        put = c.Put("a", "queue", body, 0, 3600, self.drawn.to_bytes(10, "big"))
        return put._replace(**changed)

    def open(self, number: int = 1, limit: int = 100, lease_s: int = 30) -> Any:
        return self.ask(cl.OpenClaim("a", "queue", "s", self.token, number, limit, lease_s))

    def read(self, number: int = 1, *, columns: bool = False) -> Any:
        return self.ask(cl.ReadClaim("a", "queue", "s", number, 0, 1, "", 10_000, columns))

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
    assert list(columns.bodies) == [message.body for message in messages]
    assert list(columns.priorities) == [message.priority for message in messages] == [2, 8, 8]
    assert list(columns.fences) == [message.fence for message in messages] == [1, 1, 1]
    assert [bytes(blob).hex() for blob in columns.message_ids] == [
        message.message_id.replace("-", "") for message in messages
    ]


def test_a_queue_without_log_records_nothing(tried: Tried) -> None:
    """What happens to the messages of such a queue is not in the log."""
    last_seq = tried.ask(e.LogExtent()).last_seq
    tried.ask(c.SetQueueSettings("a", "queue", QueueSettings(event_log=False)))
    tried.ask_all(tried.put(b"1"), tried.put(b"2"))
    tried.open(limit=1)
    tried.ask(c.Receive("a", "queue", 1, 30))
    tried.ask(cl.SettleClaims("a", "queue", "s", tried.token, 1))
    assert tried.ask(e.LogExtent()).last_seq == last_seq


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


def test_a_claimed_message_is_found_and_leased(tried: Tried) -> None:
    """An inspector sees which claim a message is in, and cannot take it for waiting."""
    (lease,) = tried.ask_all(tried.put(b"1"))
    tried.open()
    seen = tried.ask(o.FindMessage("a", "queue", lease.message.message_id))
    assert (seen.state, seen.under) == (MessageState.LEASED, "s/1")


def test_the_size_of_the_log_is_known_after_a_restart(tried: Tried) -> None:
    """And an undone batch adds nothing to it."""
    tried.ask_all(tried.put(b"1"))
    size = tried.ask(e.LogExtent()).bytes
    broken_batch(tried)
    assert tried.ask(e.LogExtent()).bytes == size > 0
    tried.reopen()
    assert tried.ask(e.LogExtent()).bytes == size
