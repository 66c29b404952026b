"""What only the SQLite store promises: durability as set, formats, row keys, a full disk."""

from __future__ import annotations

import contextlib
import errno
import itertools
import sqlite3
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from leasehold.domain import commands as c
from leasehold.domain.claims import AttachStream, Stream
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseLost, StoreFailed, Unavailable
from leasehold.domain.model import Lease, row_key_of
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.connection import WrongDatabase
from leasehold.stores.sqlite.store import FILE_NAME

NOW_MS = 1_767_225_600_000


def ask(store: SqliteStore, command: AnyCommand) -> c.Result:
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


@pytest.mark.parametrize("pages", [0, 1])
def test_a_birth_that_was_cut_short_is_repeated(tmp_path: Path, pages: int) -> None:
    """A file without a table and a mark is nobody's, however far an older version came with it."""
    with contextlib.closing(apsw.Connection(str(tmp_path / FILE_NAME))) as unfinished:
        unfinished.pragma("page_size", 8192)
        if pages:
            unfinished.pragma("auto_vacuum", 2)
        assert unfinished.pragma("page_count") == pages
    store = SqliteStore(tmp_path)
    assert store._connection.pragma("auto_vacuum") == 2
    assert store._connection.pragma("page_size") == 8192
    store.close()
    SqliteStore(tmp_path).close()


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
    explain = "EXPLAIN QUERY PLAN " + state.sql["next_visible"]
    plan = " ".join(str(row[3]) for row in state.cursor.execute(explain, (1, 2, 3, 0, 2)))
    bounds = "(partition=? AND visible_at_ms>? AND visible_at_ms<?)"
    assert f"SEARCH message USING INDEX message_by_visibility {bounds}" in plan
    assert "TEMP B-TREE" not in plan
    store.close()


def hold(store: SqliteStore) -> c.Complete:
    """Put and receive a message; return the command that completes it."""
    ask(store, c.CreateQueue("a", "queue", {}))
    put(store)
    leases = ask(store, c.Receive("a", "queue", 1, 30))
    assert isinstance(leases, tuple)
    assert isinstance(leases[0], Lease)
    return c.Complete("a", "queue", leases[0].message.message_id, leases[0].receipt)


def copy_of(folder: Path, *names: str) -> dict[str, bytes]:
    """Read some of the files of a closed store."""
    return {name: (folder / name).read_bytes() for name in names}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    """Write files over those of a closed store."""
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_receipts_from_before_a_restore_never_act(tmp_path: Path) -> None:
    """A database restored from a backup leases anew under old fences; old receipts are foreign."""
    store = SqliteStore(tmp_path)
    ask(store, c.CreateQueue("a", "queue", {}))
    put(store)
    store.close()
    backup = copy_of(tmp_path, FILE_NAME)
    store = SqliteStore(tmp_path)
    late = hold(store)
    store.close()
    restore(tmp_path, backup)
    store = SqliteStore(tmp_path)
    assert store.restored_from_backup
    assert store.health().details["epoch"] == 2
    again = hold(store)
    assert again.message_id == late.message_id
    refused = ask(store, late)
    assert isinstance(refused, LeaseLost)
    assert refused.reason == "foreign"
    assert ask(store, again) == c.DONE
    store.close()


def attach(store: SqliteStore) -> int:
    """Return a token for a stream."""
    attached = ask(store, AttachStream("a", "queue", "stream"))
    assert isinstance(attached, Stream)
    return attached.token


def test_tokens_from_before_a_restore_are_never_given_again(tmp_path: Path) -> None:
    """A stream attached to after the copy was made is not that of a token given out since."""
    store = SqliteStore(tmp_path)
    ask(store, c.CreateQueue("a", "queue", {}))
    store.close()
    backup = copy_of(tmp_path, FILE_NAME)
    store = SqliteStore(tmp_path)
    late = attach(store)
    store.close()
    restore(tmp_path, backup)
    store = SqliteStore(tmp_path)
    again = [attach(store) for _ in range(3)]
    assert late < again[0] < again[1] < again[2]
    store.close()
    store = SqliteStore(tmp_path)
    assert attach(store) > again[2]
    store.close()


def test_a_copy_made_while_the_server_ran_is_told_from_its_latest_state(tmp_path: Path) -> None:
    """Marks change while a server runs, so its own backups of minutes ago are noticed."""
    store = SqliteStore(tmp_path)
    ask(store, c.NoteTime())
    store._state.cursor.execute("VACUUM INTO ?", (str(tmp_path / "backup"),))
    late = hold(store)
    for _ in range(2):
        ask(store, c.NoteTime())
    store.close()
    (tmp_path / "backup").replace(tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)
    assert store.restored_from_backup
    assert ask(store, late) != c.DONE
    store.close()


def test_marks_that_change_while_the_server_runs_survive_its_death(tmp_path: Path) -> None:
    """Whenever the process dies, the next one takes the database for what it is."""
    store = SqliteStore(tmp_path)
    held = hold(store)
    for _ in range(3):
        ask(store, c.NoteTime())
        marks = copy_of(tmp_path, FILE_NAME, f"{FILE_NAME}-wal", "epoch")
        (tmp_path / "dead").mkdir(exist_ok=True)
        restore(tmp_path / "dead", marks)
        survivor = SqliteStore(tmp_path / "dead")
        assert not survivor.restored_from_backup
        survivor.close()
    assert ask(store, held) == c.DONE
    store.close()


def test_a_database_copied_without_its_mark_is_in_a_new_epoch(tmp_path: Path) -> None:
    """Carrying only the database to another place voids the receipts too."""
    store = SqliteStore(tmp_path / "old")
    late = hold(store)
    store.close()
    (tmp_path / "new").mkdir()
    restore(tmp_path / "new", copy_of(tmp_path / "old", FILE_NAME))
    store = SqliteStore(tmp_path / "new")
    assert store.restored_from_backup
    assert isinstance(ask(store, late), LeaseLost)
    store.close()


def test_reopening_and_moving_the_whole_folder_keep_the_epoch(tmp_path: Path) -> None:
    """Leases survive a restart, and a move of all files together."""
    store = SqliteStore(tmp_path / "old")
    held = hold(store)
    store.close()
    for _ in range(3):
        store = SqliteStore(tmp_path / "old")
        assert not store.restored_from_backup
        store.close()
    (tmp_path / "old").rename(tmp_path / "new")
    store = SqliteStore(tmp_path / "new")
    assert ask(store, held) == c.DONE
    assert store.health().details["epoch"] == 1
    store.close()


@pytest.mark.parametrize("noted", [False, True])
def test_a_crash_between_the_two_marks_is_not_taken_for_a_copy(tmp_path: Path, noted: bool) -> None:
    """The database may be one mark ahead of the file beside it, however the last run ended."""
    store = SqliteStore(tmp_path / "first")
    held = hold(store)
    if noted:
        ask(store, c.NoteTime())
    names = (FILE_NAME, f"{FILE_NAME}-wal", "epoch")
    killed = copy_of(tmp_path / "first", *names)
    store.close()
    for folder in ("second", "third"):
        (tmp_path / folder).mkdir()
        restore(tmp_path / folder, killed)
        store = SqliteStore(tmp_path / folder)
        assert not store.restored_from_backup
        # The next process died after it had marked the database and before it replaced the file.
        killed = copy_of(tmp_path / folder, *names[:2]) | {"epoch": killed["epoch"]}
        store.close()
    (tmp_path / "fourth").mkdir()
    restore(tmp_path / "fourth", killed)
    store = SqliteStore(tmp_path / "fourth")
    assert not store.restored_from_backup
    assert ask(store, held) == c.DONE
    store.close()


def test_a_backup_made_just_before_a_clean_stop_is_told_from_what_followed(tmp_path: Path) -> None:
    """A clean stop makes every copy made until then an old one."""
    store = SqliteStore(tmp_path)
    ask(store, c.CreateQueue("a", "queue", {}))
    put(store)
    store._state.cursor.execute("VACUUM INTO ?", (str(tmp_path / "backup"),))
    late = hold(store)
    store.close()
    (tmp_path / "backup").replace(tmp_path / FILE_NAME)
    store = SqliteStore(tmp_path)
    assert store.restored_from_backup
    assert ask(store, late) != c.DONE
    store.close()


def test_a_batch_that_breaks_is_undone_and_the_store_goes_on(tmp_path: Path) -> None:
    """What no rule foresaw fails its own batch, in memory as on the disk, and nothing else."""
    store = SqliteStore(tmp_path)
    ask(store, c.CreateQueue("a", "queue", {}))
    bad = c.CreateQueue("a", "\ud800", {})
    with pytest.raises(UnicodeEncodeError):
        store.execute([c.CreateQueue("a", "other", {}), bad], now_ms=NOW_MS)
    assert store.find_queue("a", "other") is None
    assert put(store).message.body == b"x"
    assert store.message_counts() == [("a", "queue", 1)]
    store.close()


WRITER = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_waited_for_shortly_and_breaks_nothing(tmp_path: Path) -> None:
    """Somebody with a shell can hold us up; the batch is refused whole, and the next one works."""
    store = SqliteStore(tmp_path)
    ask(store, c.CreateQueue("a", "queue", {}))
    # Another process, because locks do not hold between two libraries within one.
    command = [sys.executable, "-c", WRITER, str(tmp_path / FILE_NAME)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"writing\n"
        with pytest.raises(Unavailable) as refused:
            put(store)
        other.communicate()
    assert not isinstance(refused.value, StoreFailed)
    put(store)
    assert store.message_counts() == [("a", "queue", 1)]
    store.close()


def test_receives_do_not_look_at_what_has_expired_twice(tmp_path: Path) -> None:
    """A backlog that has expired unswept is walked over once, not by every receive."""
    store = SqliteStore(tmp_path)
    ask(store, c.CreateQueue("a", "queue", {}))
    store.execute([c.Put("a", "queue", b"", 0, 1, bytes(10))] * 3_000, now_ms=NOW_MS)
    store.commit()
    receive = c.Receive("a", "queue", 1, 30)
    counter = itertools.count()

    def step() -> bool:
        next(counter)
        return False

    store._connection.set_progress_handler(step, 100)
    steps = []
    for second in (2, 3):
        before = next(counter)
        assert store.execute([receive], now_ms=NOW_MS + second * 1000) == [()]
        store.commit()
        steps.append(next(counter) - before)
    store._connection.set_progress_handler(None)
    assert steps[0] > 50
    assert steps[1] < steps[0] / 10
    store.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_full_disk_keeps_the_old_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """A store that cannot be marked opens if its marks match, and is refused if they do not."""
    store = SqliteStore(tmp_path)
    held = hold(store)
    store.close()
    if copied:
        (tmp_path / "epoch").unlink()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("leasehold.stores.sqlite.store.prepare_mark", full)
    if copied:
        with pytest.raises(StoreFailed):
            SqliteStore(tmp_path)
        return
    store = SqliteStore(tmp_path)
    assert ask(store, held) == c.DONE
    store.close()
