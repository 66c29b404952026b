"""What SQLite keeps of sessions: on the disk, in memory, after restarts and undone batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import SessionNotFound
from leasehold.domain.model import Detail, Lease, MessageState, Outcome, Phase, Progress
from leasehold.domain.sessions import SessionState
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

QUEUE, OTHER = "queue", "other"
TIMEOUT_S = 10
BAD = c.CreateQueue("a", "\ud800", {})
"""Breaks its batch: SQLite cannot take the name."""


@dataclass
class Tried:
    """A store that can be opened again."""

    folder: Path
    clock: ManualClock
    store: SqliteStore
    drawn: int = 0
    wrote: bool = False

    def ask_all(self, *commands: AnyCommand) -> list[Any]:
        results = self.store.execute(commands, now_ms=self.clock.now_ms())
        self.wrote = self.store.commit()
        return results

    def ask(self, command: AnyCommand) -> Any:
        return self.ask_all(command)[0]

    def undone(self, *commands: AnyCommand) -> None:
        """Carry commands out in a batch that is undone."""
        with pytest.raises(UnicodeEncodeError):
            self.store.execute([*commands, BAD], now_ms=self.clock.now_ms())

    def entropy(self) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(10, "big")

    def put(self, queue: str = QUEUE, **changed: Any) -> Any:
        put = c.Put("a", queue, b"work", 0, None, self.entropy())
        return self.ask(put._replace(**changed))

    def open(self, timeout_s: int = TIMEOUT_S, watchdog_s: int | None = None) -> s.Session:
        opened = self.ask(s.OpenSession("a", "w1", self.entropy(), timeout_s, watchdog_s))
        assert isinstance(opened, s.Session)
        return opened

    def receive(self, session: s.Session, lease_s: int = 3600, queue: str = QUEUE) -> Lease:
        (lease,) = self.ask(c.Receive("a", queue, 1, lease_s, None, session.session_id))
        assert isinstance(lease, Lease)
        return lease

    def leased(self, session: s.Session, lease_s: int = 3600, **changed: Any) -> Lease:
        """Put a message and receive it."""
        self.put(**changed)
        return self.receive(session, lease_s, changed.get("queue", QUEUE))

    def beat(self, session: s.Session, **progress: Progress | None) -> Any:
        return self.ask(s.Heartbeat("a", session.session_id, progress or None))

    def get(self, session: s.Session) -> s.Session:
        found = self.ask(s.GetSession("a", session.session_id))
        assert isinstance(found, s.Session)
        return found

    def lose(self, limit: int = 100) -> int:
        swept = self.ask(s.LoseSessions(limit))
        assert isinstance(swept, c.Swept)
        return swept.count

    def renew(self, lease: Lease, timeout_s: int = 3600) -> Lease:
        renewed = self.ask(c.Renew("a", QUEUE, lease.message.message_id, lease.receipt, timeout_s))
        assert isinstance(renewed, Lease)
        return renewed

    def cancel(self, lease: Lease) -> Any:
        return self.ask(s.RequestCancel("a", QUEUE, lease.message.message_id, "stop"))

    def state(self, lease: Lease) -> MessageState:
        seen = self.ask(o.FindMessage("a", QUEUE, lease.message.message_id))
        assert isinstance(seen, o.Seen)
        return seen.state

    def outcome(self, lease: Lease) -> Outcome:
        """Return how the last attempt ended."""
        seen = self.ask(o.FindMessage("a", QUEUE, lease.message.message_id))
        return Outcome(seen.message.detail.attempts[-1].outcome)

    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.folder)

    def rows(self, sql: str) -> list[Any]:
        return self.store._state.cursor.execute(sql).fetchall()


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Tried]:
    tried = Tried(tmp_path, ManualClock(), SqliteStore(tmp_path))
    tried.ask_all(c.CreateQueue("a", QUEUE, {}), c.CreateQueue("a", OTHER, {}))
    yield tried
    tried.store.close()


# --- what is written and looked at ---------------------------------------------------------------


def test_heartbeats_and_idle_sweeps_write_nothing(tried: Tried) -> None:
    """Progress that is told does, and so does the loss of a session."""
    session = tried.open(watchdog_s=300)
    lease = tried.leased(session)
    tried.beat(session)
    assert not tried.wrote
    tried.beat(session, **{lease.message.message_id: None})
    assert not tried.wrote
    tried.lose()
    assert not tried.wrote
    tried.beat(session, **{lease.message.message_id: Progress(at_ms=1, fraction=0.5)})
    assert tried.wrote
    tried.clock.advance(s=TIMEOUT_S + 1)
    assert tried.lose() == 1
    assert tried.wrote


def test_a_sweep_looks_at_no_row_while_nothing_is_due(
    tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live sessions, watched or not, and those over for a while, cost a comparison each."""
    ended = tried.open()
    tried.ask(s.EndSession("a", ended.session_id))
    for watchdog_s in (None, 300):
        tried.leased(tried.open(watchdog_s=watchdog_s))
    tried.lose()
    tried.clock.advance(s=5)

    def fetch(query: str, bounds: tuple[object, ...] = ()) -> list[Any]:
        raise AssertionError(query)

    with monkeypatch.context() as patched:
        patched.setattr(tried.store._state, "fetch", fetch)
        assert tried.lose() == 0
    tried.clock.advance(s=6)
    assert tried.lose() == 2


@pytest.mark.parametrize(
    ("query", "bounds"),
    [
        ("leases_of_session", ("s", 0, 0, 1)),
        ("count_leases", ("s", 0)),
        ("cancels_of_session", ("s",)),
    ],
)
def test_leases_are_found_by_their_session(
    tried: Tried, query: str, bounds: tuple[object, ...]
) -> None:
    """However many messages there are besides."""
    explain = "EXPLAIN QUERY PLAN " + tried.store._state.sql[query]
    plan = [str(row[3]) for row in tried.store._connection.execute(explain, bounds)]
    assert "USING INDEX message_by_session" in plan[0]
    assert not any("ORDER BY" in step for step in plan)


# --- restarts ------------------------------------------------------------------------------------


def test_a_session_outlives_a_restart(tried: Tried) -> None:
    """With its leases, and with its whole timeout from the first time that anybody asks."""
    session = tried.open()
    lease = tried.leased(session)
    tried.clock.advance(s=100)
    tried.reopen()
    assert tried.lose() == 0
    found = tried.get(session)
    assert found.state is SessionState.LIVE
    assert found.leases == 1
    assert found.last_heartbeat_ms == tried.clock.now_ms()
    tried.clock.advance(s=TIMEOUT_S)
    assert tried.lose() == 0
    tried.clock.advance(ms=1)
    assert tried.lose() == 1
    assert tried.outcome(lease) is Outcome.LOST


def test_how_a_session_ended_outlives_a_restart(tried: Tried) -> None:
    """With the time of its last heartbeat."""
    session = tried.open()
    tried.clock.advance(s=3)
    tried.beat(session)
    tried.clock.advance(s=3)
    ended = tried.ask(s.EndSession("a", session.session_id, "deploy"))
    assert ended.last_heartbeat_ms == ended.ended_at_ms - 3000
    tried.reopen()
    assert tried.get(session) == ended


def test_leases_left_over_end_after_a_restart(tried: Tried) -> None:
    """A session that was lost a moment before the crash still has some."""
    session = tried.open()
    leases = [tried.leased(session) for _ in range(3)]
    tried.clock.advance(s=TIMEOUT_S + 1)
    assert tried.lose(1) == 1
    tried.reopen()
    assert tried.get(session).leases == 2
    assert tried.lose() == 2
    assert {tried.outcome(lease) for lease in leases} == {Outcome.LOST}


def test_the_watchdog_begins_anew_after_a_restart(tried: Tried) -> None:
    """What the workers have told is forgotten, so it counts as told when the store is asked."""
    session = tried.open(timeout_s=3600, watchdog_s=20)
    lease = tried.leased(session)
    tried.clock.advance(s=15)
    tried.beat(session, **{lease.message.message_id: None})
    tried.clock.advance(s=10)
    tried.reopen()
    assert tried.lose() == 0
    tried.clock.advance(s=20)
    assert tried.lose() == 0
    tried.clock.advance(ms=1)
    assert tried.lose() == 1
    assert tried.outcome(lease) is Outcome.STUCK


def test_requests_to_stop_are_found_again(tried: Tried) -> None:
    """After a restart, and after an undone batch; a property of that name is none."""
    session = tried.open()
    named = tried.leased(session, detail=Detail(properties={"cancel": "no"}))
    lease = tried.leased(session)
    assert tried.beat(session).cancels == ()
    tried.cancel(lease)
    expected = tried.beat(session).cancels
    assert [notice.message_id for notice in expected] == [lease.message.message_id]
    tried.reopen()
    assert tried.beat(session).cancels == expected
    tried.undone(s.RequestCancel("a", QUEUE, named.message.message_id))
    assert tried.beat(session).cancels == expected
    tried.cancel(named)
    assert len(tried.beat(session).cancels) == 2


def test_a_request_to_stop_waits_for_a_lease_that_has_lapsed(tried: Tried) -> None:
    """Its holder may renew it, and hears of it then."""
    session = tried.open()
    lease = tried.leased(session, lease_s=5)
    tried.cancel(lease)
    tried.clock.advance(s=5)
    assert tried.beat(session).cancels == ()
    tried.renew(lease)
    assert len(tried.beat(session).cancels) == 1


# --- undone batches ------------------------------------------------------------------------------


def test_heartbeats_outlive_an_undone_batch(tried: Tried) -> None:
    """Whatever was undone: the worker did say that it lives."""
    session = tried.open()
    tried.leased(session)
    tried.clock.advance(s=8)
    tried.beat(session)
    tried.clock.advance(s=5)
    tried.undone()
    assert tried.get(session).last_heartbeat_ms == tried.clock.now_ms() - 5000
    assert tried.lose() == 0
    tried.clock.advance(s=5, ms=1)
    assert tried.lose() == 1


def test_signs_for_the_watchdog_outlive_an_undone_batch(tried: Tried) -> None:
    """A renewal is a sign, also when the next batch is undone."""
    session = tried.open(timeout_s=3600, watchdog_s=20)
    lease = tried.leased(session)
    tried.clock.advance(s=15)
    tried.renew(lease)
    tried.undone()
    tried.clock.advance(s=20)
    assert tried.lose() == 0
    tried.clock.advance(ms=1)
    assert tried.lose() == 1


def test_sessions_are_undone_with_their_batch(tried: Tried) -> None:
    """One that was opened is not there, one that was ended or lost lives and has its leases."""
    session = tried.open()
    tried.leased(session)
    tried.undone(s.OpenSession("a", "w2", tried.entropy()))
    tried.undone(s.EndSession("a", session.session_id))
    tried.clock.advance(s=TIMEOUT_S + 1)
    tried.undone(s.LoseSessions(100))
    assert [each.session_id for each in tried.ask(s.ListSessions("a"))] == [session.session_id]
    found = tried.get(session)
    assert (found.state, found.leases) == (SessionState.LIVE, 1)
    assert tried.lose() == 1


# --- leases --------------------------------------------------------------------------------------


def test_what_was_cleared_or_deleted_is_on_no_lease(tried: Tried) -> None:
    """Its rows are still there until they are reaped."""
    session = tried.open()
    tried.leased(session)
    gone = tried.leased(session, queue=OTHER)
    tried.ask_all(c.Clear("a", QUEUE), c.DeleteQueue("a", OTHER))
    kept = tried.leased(session)
    assert tried.rows("SELECT count(*) FROM message") == [(3,)]
    assert tried.get(session).leases == 1
    gone_id = gone.message.message_id
    assert tried.beat(session, **{gone_id: None}).lost == (gone_id,)
    tried.clock.advance(s=TIMEOUT_S + 1)
    assert tried.lose(1) == 1
    assert tried.outcome(kept) is Outcome.LOST


def test_bodies_stay_with_messages_whose_leases_end(tried: Tried) -> None:
    """They are not read when leases end, and not written."""
    session = tried.open()
    bodies = [b"small", b"large" * 1000]
    leases = [tried.leased(session, body=body) for body in bodies]
    tried.beat(session, **{leases[1].message.message_id: Progress(at_ms=1)})
    tried.clock.advance(s=TIMEOUT_S + 1)
    assert tried.lose() == 2
    found = tried.ask(c.Receive("a", QUEUE, 2, 30))
    assert [lease.message.body for lease in found] == bodies


def test_a_lease_renewed_after_the_end_of_its_session_ends(tried: Tried) -> None:
    """It had lapsed when the session ended, and its receipt acted until somebody took it."""
    session = tried.open()
    lease = tried.leased(session, lease_s=5)
    tried.clock.advance(s=6)
    tried.ask(s.EndSession("a", session.session_id))
    assert tried.lose() == 0
    tried.renew(lease)
    assert tried.state(lease) is MessageState.LEASED
    assert tried.lose() == 1
    assert tried.outcome(lease) is Outcome.INTERRUPTED


def test_with_the_clock_set_back_leases_that_had_lapsed_end_too(tried: Tried) -> None:
    """They are on a lease again."""
    session = tried.open()
    lease = tried.leased(session, lease_s=5)
    tried.clock.advance(s=6)
    tried.ask(s.EndSession("a", session.session_id))
    assert tried.lose() == 0
    tried.clock.advance(s=-3)
    assert tried.lose() == 1
    assert tried.state(lease) is MessageState.VISIBLE


def test_the_watchdog_knows_of_leases_taken_since_it_last_looked(tried: Tried) -> None:
    """Where it found nothing to watch, it need not look again before that."""
    session = tried.open(timeout_s=3600, watchdog_s=20)
    assert tried.lose() == 0
    tried.clock.advance(s=100)
    tried.leased(session)
    tried.clock.advance(s=20)
    assert tried.lose() == 0
    tried.clock.advance(ms=1)
    assert tried.lose() == 1


def test_the_watchdog_remembers_what_it_was_told_when_it_looks(tried: Tried) -> None:
    """Of one lease after the other."""
    session = tried.open(timeout_s=3600, watchdog_s=20)
    told = tried.leased(session)
    tried.clock.advance(s=2)
    silent = tried.leased(session)
    tried.clock.advance(s=13)
    tried.beat(session, **{told.message.message_id: None})
    tried.clock.advance(s=6)
    assert tried.lose() == 0
    tried.clock.advance(s=2)
    assert tried.lose() == 1
    assert tried.outcome(silent) is Outcome.STUCK
    assert tried.state(told) is MessageState.LEASED
    tried.clock.advance(s=12, ms=1)
    assert tried.lose() == 1


def test_many_leases_are_gone_over_in_steps(tried: Tried) -> None:
    """More than one statement reads; each ends once."""
    number = 2 * s.LOST_STEP + 5
    session = tried.open()
    tried.ask_all(*(c.Put("a", QUEUE, b"", 0, None, tried.entropy()) for _ in range(number)))
    tried.ask(c.Receive("a", QUEUE, number, 3600, None, session.session_id))
    assert tried.get(session).leases == number
    tried.clock.advance(s=TIMEOUT_S + 1)
    assert tried.lose(number - 1) == number - 1
    assert tried.get(session).leases == 1
    assert tried.lose(number) == 1
    phases = tried.rows("SELECT phase, fence, count(*) FROM message GROUP BY 1, 2")
    assert phases == [(int(Phase.DEFERRED), 2, number)]


def test_a_session_that_was_over_for_long_leaves_no_row(tried: Tried) -> None:
    """It is forgotten on the disk too."""
    session = tried.open()
    tried.ask(s.EndSession("a", session.session_id))
    tried.clock.advance(ms=s.REMEMBER_SESSION_MS - 1)
    tried.lose()
    assert tried.rows("SELECT count(*) FROM session") == [(1,)]
    tried.clock.advance(ms=1)
    tried.lose()
    assert tried.rows("SELECT count(*) FROM session") == [(0,)]
    tried.reopen()
    assert isinstance(tried.ask(s.GetSession("a", session.session_id)), SessionNotFound)
