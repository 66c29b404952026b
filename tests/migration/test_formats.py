"""Data written by an older version opens in this one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.claims import BindClaim, GetStream, ReadClaim, SettleClaims
from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import KnownBodies
from leasehold.domain.events import Event, EventType, ReadEvents, ReadNote
from leasehold.domain.filters import EVERYTHING
from leasehold.domain.model import AccessPolicy, Detail, MessageState
from leasehold.domain.sessions import ListSessions
from leasehold.domain.transactions import GetTransaction, Publish, Stage
from leasehold.stores.sql.statements import load_migrations
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.store import FILE_NAME

from .make_format import NOW_MS

HERE = Path(__file__).parent
OLD_DATABASES = {
    # The id and the receipt of the message "leased" in each.
    "format1.db": (
        "00000000-0001-86c6-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAAErV8mqrjZo18C3U4330O5H",
    ),
    "format2.db": (
        "00000000-0001-86c6-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAAELS0RM7zdJposzL9fzdI80",
    ),
    "format3.db": (
        "00000000-0001-8c6c-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAAGukjrGkTg1fUrZtInI2F-l",
    ),
    "format4.db": (
        "00000000-0001-8c6c-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAAJDlzD_XNq51iRhvJpf80PP",
    ),
    "format5.db": (
        "00000000-0001-8c6c-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAALSDzp_lM5_OJoPwfTO1GBv",
    ),
    "format6.db": (
        "00000000-0001-8c6c-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAALCjutBpid6e_bbkE9tvcRs",
    ),
    "format7.db": (
        "00000000-0001-8c6c-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAAIqfQmnGkt7duhaVirO3BeU",
    ),
    "format8.db": (
        "00000000-0001-8c6c-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAAJZU-9Vp_i8qj2shDQMewVI",
    ),
    "format9.db": (
        "00000000-0001-8c6c-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAALryThcYoZTRKgwXCEUv8G_",
    ),
    "format10.db": (
        "00000000-0001-8c6c-ac6c-6c6c6c6c6c6c",
        "AAAAAAAAAQAAAAKY1EuVo-GfNXtQa50ubMo_",
    ),
}


class Old:
    """A database of an older format, opened by this version.

    Args:
        name: Of its file.
        folder: Where it is copied to.
    """

    def __init__(self, name: str, folder: Path) -> None:
        shutil.copy(HERE / name, folder / FILE_NAME)
        self.number = int(name.removeprefix("format").removesuffix(".db"))
        self.store = SqliteStore(folder)
        self.message_id, self.receipt = OLD_DATABASES[name]

    def ask(self, command: AnyCommand, *, after_s: int = 1) -> Any:
        """Carry a command out so many seconds after the database was written."""
        (result,) = self.store.execute([command], now_ms=NOW_MS + after_s * 1000)
        self.store.commit()
        return result


@pytest.fixture
def old(name: str, tmp_path: Path) -> Iterator[Old]:
    """The database of the format that the test is told."""
    opened = Old(name, tmp_path)
    yield opened
    opened.store.close()


def formats(first: int, last: int = len(OLD_DATABASES)) -> pytest.MarkDecorator:
    """Have a test be told these formats, one after the other."""
    return pytest.mark.parametrize(
        "name", [f"format{number}.db" for number in range(first, last + 1)]
    )


def schema(folder: Path) -> list[tuple[object, ...]]:
    store = SqliteStore(folder)
    rows = store._state.cursor.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
    ).fetchall()
    store.close()
    return rows


@formats(1)
def test_old_database_opens_with_all_that_was_in_it(old: Old) -> None:
    """Queues, policies, documents, messages and receipts survive the migration."""
    info = old.ask(c.GetQueue("coho", "videos"))
    assert info.message_count == 5
    assert info.queue.metadata == {"Owner": "Maintainers"}
    assert info.queue.policies == (
        AccessPolicy(policy_id="workers", start="2026-01-01", permission="rp"),
    )
    document = old.ask(c.GetAccountDocument("coho", "azure-service-properties"))
    assert document == c.AccountDocument("{}")
    peeked = old.ask(c.Peek("coho", "videos", 32))
    assert [message.body for message in peeked] == [b"visible", b"x" * 20_000]
    counts = old.ask(o.CountMessages("coho", "videos"))
    assert (counts.visible, counts.leased, counts.delayed) == (2, 1, 1)
    assert old.ask(c.Complete("coho", "videos", old.message_id, old.receipt)) == c.DONE
    delayed = old.ask(c.Peek("coho", "videos", 32), after_s=3600)
    assert b"delayed" in [message.body for message in delayed]
    assert old.ask(c.RetireExpired(10)) == c.Swept(1)
    assert old.ask(c.ReapDropped(10)) == c.Swept(1)
    assert old.store.last_seen_ms() == NOW_MS


@formats(2)
def test_failures_and_jobs_are_kept(old: Old) -> None:
    """Settings, poison with its history, deduplication keys and jobs, from format 2 on."""
    (seen,) = old.ask(o.Inspect("coho", "failing", EVERYTHING, "", 10)).messages
    assert (seen.state, seen.queue) == (MessageState.POISONED, "failing-poison")
    assert seen.message.priority == 3
    assert seen.message.detail.message_type == "clip"
    (attempt,) = seen.message.detail.attempts
    assert attempt.error.text == "no such codec"
    job = old.ask(o.StepJob("job", 100))
    assert job.state is o.JobState.DONE
    detail = Detail(dedup_key="once")
    again = old.ask(c.Put("coho", "failing", b"bad", 0, None, b"g" * 10, detail))
    assert isinstance(again, c.Duplicate)
    assert again.message_id == seen.message.message_id


@formats(1)
def test_what_was_saved_is_kept(old: Old) -> None:
    """From format 4 on; in older ones nothing is saved, until somebody does."""
    found = old.ask(o.FindMessage("coho", "videos", old.message_id))
    expected = "[3]" if old.number >= 4 else None
    assert found.message.detail.saved == expected
    renewed = old.ask(c.Renew("coho", "videos", old.message_id, old.receipt, 30, saved="[4]"))
    assert renewed.message.detail.saved == "[4]"


@formats(3)
def test_flows_are_kept(old: Old) -> None:
    """Claims, transactions, sessions, large bodies and events, from format 3 on."""
    stream = old.ask(GetStream("coho", "flows", "nightly"))
    assert (stream.last_settled, [claim.number for claim in stream.claims]) == (1, [2])
    (member,) = old.ask(ReadClaim("coho", "flows", "nightly", 2, 0, 1, "", 10)).messages
    assert member.body == b"x" * 300
    settled = old.ask(SettleClaims("coho", "flows", "nightly", stream.token, 2))
    assert settled.completed == 1
    assert old.ask(Publish("coho", "job-1")).rows == 1
    (session,) = old.ask(ListSessions("coho"))
    assert (session.holder, session.leases) == ("w1", 1)
    counts = old.ask(o.CountMessages("coho", "flows"))
    assert (counts.visible, counts.leased, counts.delayed) == (1, 1, 1)
    assert old.ask(KnownBodies(("0" * 32, "1" * 32))).keys == ("0" * 32,)
    kinds = {event.type for event in old.ask(ReadEvents(0, 1000)).events}
    assert kinds >= {EventType.PUT, EventType.CLAIMED, EventType.SETTLED, EventType.STAGED}
    assert old.ask(ReadNote("export")).content == "{}"


@formats(3, 6)
def test_events_without_later_columns_are_read(old: Old) -> None:
    """Types of messages came later, and all that is behind them, without a new format."""
    before = old.ask(ReadEvents(0, 1000))
    events = [event for event in before.events if event.message_id]
    assert {event.type for event in events} > {EventType.PUT, EventType.CLAIMED}
    later = Event._fields[Event._fields.index("message_type") :]
    assert {getattr(event, name) for event in events for name in later} == {None}
    old.ask(c.Put("coho", "videos", b"new", 0, None, b"n" * 10, Detail(message_type="clip")))
    (put,) = old.ask(ReadEvents(before.last_seq, 1000)).events
    assert put.message_type == "clip"


@formats(5)
def test_bound_claims_are_kept(old: Old) -> None:
    """Bindings, notes and what settled a stream last, from format 5 on."""
    stream = old.ask(GetStream("coho", "bound", "hourly"))
    assert (stream.last_settled, stream.settled_with) == (1, "step-1")
    (claim,) = stream.claims
    assert (claim.number, claim.transaction, claim.noted) == (2, "step-2", 1)
    (settled,) = old.ask(Publish("coho", "step-2")).settled
    assert (settled.completed, settled.exempted) == (1, 1)
    (failed,) = old.ask(o.Inspect("coho", "bound", EVERYTHING, "", 10)).messages
    assert failed.message.visible_at_ms == NOW_MS + 6000
    (attempt,) = failed.message.detail.attempts
    assert attempt.error.text == "no such codec"


@formats(6)
def test_staged_keys_are_kept(old: Old) -> None:
    """Which staged rows have keys, and how many were dropped before, from format 6 on."""
    before = old.ask(GetTransaction("coho", "night-1"))
    assert (before.rows, before.duplicates) == (2, 1)
    done = old.ask(Publish("coho", "night-2"))
    assert (done.rows, done.duplicates) == (1, 2)


@formats(3, 5)
def test_older_transactions_take_keys(old: Old) -> None:
    """What was staged before is published; a slot that is older can have keyed rows added."""
    assert old.ask(GetTransaction("coho", "job-1")).duplicates == 0
    keyed = c.Put("coho", "flows", b"new", 0, 60, b"n" * 10, Detail(dedup_key="one"))
    old.ask(Stage("coho", "job-1", "part-0", 1, (keyed, keyed)))
    done = old.ask(Publish("coho", "job-1"))
    assert (done.rows, done.duplicates) == (2, 1)


@formats(3, 4)
def test_older_claims_can_be_bound(old: Old) -> None:
    """What is new holds for the claims that were there."""
    stream = old.ask(GetStream("coho", "flows", "nightly"))
    assert (stream.settled_with, stream.claims[0].transaction) == (None, None)
    old.ask(BindClaim("coho", "flows", "nightly", stream.token, 2, "job-1"))
    (settled,) = old.ask(Publish("coho", "job-1")).settled
    assert (settled.last_settled, settled.completed) == (2, 1)


@formats(7)
def test_messages_of_groups(old: Old) -> None:
    """They are of their group as before, leased, in a claim or waiting."""
    page = old.ask(o.Inspect("coho", "grouped", EVERYTHING, "", 10))
    seen = [(each.message.body, each.message.detail.group_id, each.state) for each in page.messages]
    assert seen == [
        (b"0", "acme", MessageState.LEASED),
        (b"1", None, MessageState.LEASED),
        (b"2", "blue", MessageState.VISIBLE),
        (b"3", "acme", MessageState.VISIBLE),
    ]


@formats(9)
def test_bodies_of_messages_staged_together(old: Old) -> None:
    """Each has its own, in a claim or waiting, and nothing is left when they are gone."""
    page = old.ask(o.Inspect("coho", "alike", EVERYTHING, "", 100))
    assert [each.message.body for each in page.messages] == [
        b"%02d" % n * 200 for n in range(3, 20)
    ]
    read = ReadClaim("coho", "alike", "hourly", 1, 0, 1, "", 100, columns=True)
    assert b"".join(old.ask(read).bodies) == b"".join(b"%02d" % n * 200 for n in range(3, 13))
    stream = old.ask(GetStream("coho", "alike", "hourly"))
    old.ask(SettleClaims("coho", "alike", "hourly", stream.token, 1))
    for lease in old.ask(c.Receive("coho", "alike", 30, 30)):
        old.ask(c.Complete("coho", "alike", lease.message.message_id, lease.receipt))
    old.ask(c.ReapDropped(100))
    assert old.store._state.cursor.execute("SELECT * FROM body_segment").fetchall() == []


@formats(3)
def test_members_of_claims_count_as_leased(old: Old) -> None:
    """Also those that were in the index by phase, up to format 9; the oldest is found."""
    counts = old.ask(o.CountMessages("coho", "flows"))
    assert (counts.leased, counts.claimed) == (2, 1)
    assert counts.since[MessageState.LEASED] == NOW_MS
    members = old.store._state.cursor.execute(
        "SELECT row_key FROM message INDEXED BY message_by_phase"
        " WHERE phase > 0 AND partition & 549755813888 = 0"
        " AND partition IN (SELECT partition FROM claim)"
    ).fetchall()
    assert bool(members) is (old.number < 10)


@formats(1)
def test_migrated_schema_is_that_of_a_new_database(name: str, tmp_path: Path) -> None:
    """There is one schema, whichever way a database came to it."""
    (tmp_path / "old").mkdir()
    shutil.copy(HERE / name, tmp_path / "old" / FILE_NAME)
    assert schema(tmp_path / "old") == schema(tmp_path / "new")


def test_every_format_has_a_database_to_prove_it() -> None:
    """Whoever adds a migration adds a database of that format."""
    newest = len(load_migrations("leasehold.stores.sqlite.migrations"))
    assert set(OLD_DATABASES) == {f"format{number}.db" for number in range(1, newest + 1)}
