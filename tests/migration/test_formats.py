"""Data written by an older version opens in this one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain.bodies import KnownBodies
from leasehold.domain.claims import BindClaim, GetStream, ReadClaim, SettleClaims
from leasehold.domain.events import EventType, ReadEvents, ReadNote
from leasehold.domain.sessions import ListSessions
from leasehold.domain.staging import GetTransaction, Publish, Stage
from leasehold.domain.types import AccessPolicy, Detail, MessageState
from leasehold.stores.sql_files import load_migrations
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
}


def schema(folder: Path) -> list[tuple[object, ...]]:
    store = SqliteStore(folder)
    rows = store._state.cursor.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
    ).fetchall()
    store.close()
    return rows


@pytest.mark.parametrize("name", OLD_DATABASES)
def test_old_database_opens_with_all_that_was_in_it(name: str, tmp_path: Path) -> None:
    """Queues, policies, documents, messages and receipts survive the migration."""
    shutil.copy(HERE / name, tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)

    def ask(command: c.Command, after_s: int = 2) -> c.Result:
        (result,) = store.execute([command], now_ms=NOW_MS + after_s * 1000)
        store.commit()
        return result

    info = ask(c.GetQueue("coho", "videos"))
    assert isinstance(info, c.QueueInfo)
    assert info.message_count == 5
    assert info.queue.metadata == {"Owner": "Maintainers"}
    assert info.queue.policies == (
        AccessPolicy(policy_id="workers", start="2026-01-01", permission="rp"),
    )
    document = ask(c.GetAccountDocument("coho", "azure-service-properties"))
    assert document == c.AccountDocument("{}")
    peeked = ask(c.Peek("coho", "videos", 32))
    assert [message.body for message in peeked] == [b"visible", b"x" * 20_000]  # type: ignore[union-attr]
    counts = ask(o.CountMessages("coho", "videos"))
    assert isinstance(counts, o.Counts)
    assert (counts.visible, counts.leased, counts.delayed) == (2, 1, 1)
    message_id, receipt = OLD_DATABASES[name]
    assert ask(c.Complete("coho", "videos", message_id, receipt)) == c.DONE
    delayed = ask(c.Peek("coho", "videos", 32), after_s=3600)
    assert b"delayed" in [message.body for message in delayed]  # type: ignore[union-attr]
    assert ask(c.RetireExpired(10)) == c.Swept(1)
    assert ask(c.ReapDropped(10)) == c.Swept(1)
    assert store.last_seen_ms() == NOW_MS
    store.close()


@pytest.mark.parametrize("name", ["format2.db", "format3.db", "format4.db", "format5.db"])
def test_failures_and_jobs_are_kept(name: str, tmp_path: Path) -> None:
    """Settings, poison with its history, deduplication keys and jobs, from format 2 on."""
    shutil.copy(HERE / name, tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)

    def ask(command: c.Command) -> c.Result:
        (result,) = store.execute([command], now_ms=NOW_MS + 1000)
        store.commit()
        return result

    page = ask(o.Inspect("coho", "failing", o.EVERYTHING, "", 10))
    assert isinstance(page, o.MessagePage)
    (seen,) = page.messages
    assert (seen.state, seen.queue) == (MessageState.POISONED, "failing-poison")
    assert seen.message.priority == 3
    assert seen.message.detail.message_type == "clip"
    (attempt,) = seen.message.detail.attempts
    assert attempt.error is not None
    assert attempt.error.text == "no such codec"
    job = ask(o.StepJob("job", 100))
    assert isinstance(job, o.Job)
    assert job.state is o.JobState.DONE
    detail = Detail(dedup_key="once")
    again = ask(c.Put("coho", "failing", b"bad", 0, None, b"g" * 10, detail))
    assert isinstance(again, c.Duplicate)
    assert again.message_id == seen.message.message_id
    store.close()


@pytest.mark.parametrize("name", OLD_DATABASES)
def test_what_was_saved_is_kept(name: str, tmp_path: Path) -> None:
    """From format 4 on; in older ones nothing is saved, until somebody does."""
    shutil.copy(HERE / name, tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)

    def ask(command: c.Command) -> Any:
        (result,) = store.execute([command], now_ms=NOW_MS + 2000)
        store.commit()
        return result

    message_id, receipt = OLD_DATABASES[name]
    found = ask(o.FindMessage("coho", "videos", message_id))
    expected = "[3]" if name >= "format4.db" else None
    assert found.message.detail.saved == expected
    renewed = ask(c.Renew("coho", "videos", message_id, receipt, 30, saved="[4]"))
    assert renewed.message.detail.saved == "[4]"
    store.close()


@pytest.mark.parametrize("name", ["format3.db", "format4.db", "format5.db", "format6.db"])
def test_flows_are_kept(name: str, tmp_path: Path) -> None:
    """Claims, transactions, sessions, large bodies and events, from format 3 on."""
    shutil.copy(HERE / name, tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)

    def ask(command: c.Command) -> Any:
        (result,) = store.execute([command], now_ms=NOW_MS + 1000)
        store.commit()
        return result

    stream = ask(GetStream("coho", "flows", "nightly"))
    assert (stream.last_settled, [claim.number for claim in stream.claims]) == (1, [2])
    (member,) = ask(ReadClaim("coho", "flows", "nightly", 2, 0, 1, "", 10)).messages
    assert member.body == b"x" * 300
    settled = ask(SettleClaims("coho", "flows", "nightly", stream.token, 2))
    assert settled.completed == 1
    assert ask(Publish("coho", "job-1")).rows == 1
    (session,) = ask(ListSessions("coho"))
    assert (session.holder, session.leases) == ("w1", 1)
    counts = ask(o.CountMessages("coho", "flows"))
    assert (counts.visible, counts.leased, counts.delayed) == (1, 1, 1)
    assert ask(KnownBodies(("0" * 32, "1" * 32))).keys == ("0" * 32,)
    kinds = {event.type for event in ask(ReadEvents(0, 1000)).events}
    assert kinds >= {EventType.PUT, EventType.CLAIMED, EventType.SETTLED, EventType.STAGED}
    assert ask(ReadNote("export")).content == "{}"
    store.close()


@pytest.mark.parametrize("name", ["format5.db", "format6.db"])
def test_bound_claims_are_kept(name: str, tmp_path: Path) -> None:
    """Bindings, notes and what settled a stream last, from format 5 on."""
    shutil.copy(HERE / name, tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)

    def ask(command: c.Command) -> Any:
        (result,) = store.execute([command], now_ms=NOW_MS + 1000)
        store.commit()
        return result

    stream = ask(GetStream("coho", "bound", "hourly"))
    assert (stream.last_settled, stream.settled_with) == (1, "step-1")
    (claim,) = stream.claims
    assert (claim.number, claim.transaction, claim.noted) == (2, "step-2", 1)
    (settled,) = ask(Publish("coho", "step-2")).settled
    assert (settled.completed, settled.exempted) == (1, 1)
    (failed,) = ask(o.Inspect("coho", "bound", o.EVERYTHING, "", 10)).messages
    assert failed.message.visible_at_ms == NOW_MS + 6000
    (attempt,) = failed.message.detail.attempts
    assert attempt.error.text == "no such codec"
    store.close()


def test_staged_keys_are_kept(tmp_path: Path) -> None:
    """Which staged rows have keys, and how many were dropped before, from format 6 on."""
    shutil.copy(HERE / "format6.db", tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)

    def ask(command: c.Command) -> Any:
        (result,) = store.execute([command], now_ms=NOW_MS + 1000)
        store.commit()
        return result

    before = ask(GetTransaction("coho", "night-1"))
    assert (before.rows, before.duplicates) == (2, 1)
    done = ask(Publish("coho", "night-2"))
    assert (done.rows, done.duplicates) == (1, 2)
    store.close()


@pytest.mark.parametrize("name", ["format3.db", "format4.db", "format5.db"])
def test_older_transactions_take_keys(name: str, tmp_path: Path) -> None:
    """What was staged before is published; a slot that is older can have keyed rows added."""
    shutil.copy(HERE / name, tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)

    def ask(command: c.Command) -> Any:
        (result,) = store.execute([command], now_ms=NOW_MS + 1000)
        store.commit()
        return result

    assert ask(GetTransaction("coho", "job-1")).duplicates == 0
    keyed = c.Put("coho", "flows", b"new", 0, 60, b"n" * 10, Detail(dedup_key="one"))
    ask(Stage("coho", "job-1", "part-0", 1, (keyed, keyed)))
    done = ask(Publish("coho", "job-1"))
    assert (done.rows, done.duplicates) == (2, 1)
    store.close()


@pytest.mark.parametrize("name", ["format3.db", "format4.db"])
def test_older_claims_can_be_bound(name: str, tmp_path: Path) -> None:
    """What is new holds for the claims that were there."""
    shutil.copy(HERE / name, tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)

    def ask(command: c.Command) -> Any:
        (result,) = store.execute([command], now_ms=NOW_MS + 1000)
        store.commit()
        return result

    stream = ask(GetStream("coho", "flows", "nightly"))
    assert (stream.settled_with, stream.claims[0].transaction) == (None, None)
    ask(BindClaim("coho", "flows", "nightly", stream.token, 2, "job-1"))
    (settled,) = ask(Publish("coho", "job-1")).settled
    assert (settled.last_settled, settled.completed) == (2, 1)
    store.close()


@pytest.mark.parametrize("name", OLD_DATABASES)
def test_migrated_schema_is_that_of_a_new_database(name: str, tmp_path: Path) -> None:
    """There is one schema, whichever way a database came to it."""
    (tmp_path / "old").mkdir()
    shutil.copy(HERE / name, tmp_path / "old" / FILE_NAME)
    assert schema(tmp_path / "old") == schema(tmp_path / "new")


def test_every_format_has_a_database_to_prove_it() -> None:
    """Whoever adds a migration adds a database of that format."""
    formats = len(load_migrations("leasehold.stores.sqlite.migrations"))
    assert set(OLD_DATABASES) == {f"format{number}.db" for number in range(1, formats + 1)}
