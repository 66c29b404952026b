"""The history in a file: threads, processes, forks, kills, and what is on the disk."""

from __future__ import annotations

import fcntl
import pickle
import sqlite3
import threading
from pathlib import Path

import pytest

from leasehold.worker.idempotency import SqliteProcessed
from leasehold.worker.idempotency.sqlite import SqliteFile
from tests.unit.worker.idempotency.support import holder, run_killing


def test_settings_are_read_back(tmp_path: Path) -> None:
    """The file is in WAL mode; what is done is synced to the disk, what is begun is not."""
    file = SqliteFile(tmp_path / "h.db", [])
    with file.writing() as link:
        assert link.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert link.execute("PRAGMA synchronous").fetchone() == (2,)
    with file.writing(durable=False) as link:
        assert link.execute("PRAGMA synchronous").fetchone() == (1,)
    file.close()


def test_done_is_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """finish() and forget() ask for a commit that waits for the disk."""
    asked = []
    real = SqliteFile.writing

    def writing(self: SqliteFile, *, durable: bool = True) -> object:
        asked.append(durable)
        return real(self, durable=durable)

    monkeypatch.setattr(SqliteFile, "writing", writing)
    store = SqliteProcessed(tmp_path / "h.db")
    me = holder()
    store.begin("k", me)
    store.finish("k", me, None)
    store.forget("k")
    store.close()
    assert asked == [False, True, True]


def test_history_outlives_the_process(tmp_path: Path) -> None:
    """A store opened later finds what was done."""
    first = SqliteProcessed(tmp_path / "h.db")
    me = holder()
    first.begin("k", me)
    first.finish("k", me, "7")
    first.close()
    second = SqliteProcessed(tmp_path / "h.db")
    found = second.begin("k", holder(2))
    assert found is not None
    assert found.result == "7"
    second.close()


def test_memory_is_refused(tmp_path: Path) -> None:
    """A database in memory is not shared: there is another store for that."""
    with pytest.raises(ValueError, match="in memory"):
        SqliteProcessed(":memory:")


@pytest.mark.parametrize("window_s", [0, -1, float("nan")])
def test_bad_window(tmp_path: Path, window_s: float) -> None:
    """A window has to be above 0."""
    with pytest.raises(ValueError, match="window_s"):
        SqliteProcessed(tmp_path / "h.db", window_s)


def test_closed_store_says_so(tmp_path: Path) -> None:
    """After close() nothing is written; to close twice is harmless."""
    store = SqliteProcessed(tmp_path / "h.db")
    store.begin("k", holder())
    store.close()
    store.close()
    with pytest.raises(ValueError, match="was closed"):
        store.look("k")


def test_one_that_writes_for_too_long_is_named(tmp_path: Path) -> None:
    """A writer that never ends is an error after the patience, not a hang."""
    store = SqliteProcessed(tmp_path / "h.db", patience_s=0.05)
    store.begin("k", holder())
    with (tmp_path / "h.db.lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="other processes wrote"):
            store.look("k")
        fcntl.flock(other, fcntl.LOCK_UN)
        assert store.look("k") is not None
    store.close()


def test_one_thread_that_writes_for_too_long_is_named(tmp_path: Path) -> None:
    """The same within a process."""
    file = SqliteFile(tmp_path / "h.db", [], patience_s=0.05)
    caught: list[BaseException] = []

    def write() -> None:
        try:
            with file.writing():
                pass
        except TimeoutError as error:
            caught.append(error)

    with file.writing():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert "other threads wrote" in str(caught[0])
    file.close()


def test_failed_opening_leaves_nothing_open(tmp_path: Path) -> None:
    """A file that is no database is an error each time, and stays as it is."""
    path = tmp_path / "h.db"
    path.write_bytes(b"not a database, " * 100)
    store = SqliteProcessed(path)
    for _ in range(2):
        with pytest.raises(sqlite3.DatabaseError):
            store.look("k")
    assert path.read_bytes().startswith(b"not a database")
    store.close()


def test_processes_share_a_file(tmp_path: Path) -> None:
    """Each key is begun by one of several processes that write at the same time."""
    run_killing("share_a_file", str(tmp_path / "h.db"))


def test_store_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """A copy made by pickle opens the same file."""
    store = SqliteProcessed(tmp_path / "h.db", 77)
    store.begin("k", holder())
    copy = pickle.loads(pickle.dumps(store))
    assert copy.window_s == 77
    assert copy.look("k") == store.look("k")
    copy.close()
    store.close()


def test_killed_anywhere_the_history_is_right(tmp_path: Path) -> None:
    """Killed before the effect it is repeated, after the record it is not; in between is the gap.

    Each message is delivered until a worker says that it is done, as a queue does.
    """
    run_killing("kill_around_the_record", str(tmp_path / "h.db"), str(tmp_path / "effects"))


def test_killed_in_a_transaction_leaves_all_or_nothing(tmp_path: Path) -> None:
    """With the history in the transaction of the effect there is no gap, wherever it is killed."""
    run_killing("kill_in_sqlite_transactions", str(tmp_path / "bank.db"))
