"""The SQLite store: batches in, one transaction and one fsync out."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from leasehold.disk import make_folder
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, StoreFailed, StoreFull, Unavailable
from leasehold.domain.model import KEY_BYTES, Queue, derive_sealing_key
from leasehold.stores.base import StoreHealth
from leasehold.stores.migrate.marks import AccountMoving, StoreMoved
from leasehold.stores.sql.catalog import Catalog, Entry, Timeline
from leasehold.stores.sql.command_handlers import CommandHandlers
from leasehold.stores.sql.state import State
from leasehold.stores.sql.statements import load_queries
from leasehold.stores.sqlite.connection import (
    adopt_mark,
    hold_ends,
    is_restored,
    keep_mark,
    open_database,
    prepare_mark,
    read_back,
    read_mark,
)

FILE_NAME: Final = "leasehold.db"
RESERVE_NAME: Final = "reserve"
_BLOCK: Final = 65_536
"""Row keys are reserved in blocks, so that a restart never uses one twice and puts need not write
a counter each time."""
_EPOCH_BITS: Final = 32
"""Tokens are drawn from 2**32 of each epoch of the database."""
_VACUUM_PAGES: Final = 250
QUERIES: Final = load_queries("leasehold.stores.sqlite")
"""By name."""


class SqliteStore:
    """See :class:`leasehold.stores.base.Store`.

    Args:
        folder: Folder of the database, created if it is not there.
        cache_mib: Size of SQLite's page cache in MiB; bounds the memory of a store of any size.
        reserve_bytes: Room kept aside for draining a full disk; 0 for none.
        vfs: Name of a registered SQLite VFS, for tests that injure the disk.

    Raises:
        StoreFailed: The database cannot be opened.
    """

    restored_from_backup: bool
    """Whether the database was restored from a backup, so that earlier receipts are void."""

    def __init__(
        self,
        folder: Path,
        *,
        cache_mib: int = 32,
        reserve_bytes: int = 0,
        vfs: str | None = None,
    ) -> None:
        make_folder(folder)
        self._folder = folder
        self._reserve = Reserve(folder / RESERVE_NAME, reserve_bytes)
        self._changes = -1
        try:
            try:
                self._connection = open_database(folder / FILE_NAME, cache_mib=cache_mib, vfs=vfs)
            except (apsw.FullError, apsw.IOError, apsw.CantOpenError):
                # Opening takes room too: on a full disk that is what the reserve is for.
                self._reserve.give_up()
                self._connection = open_database(folder / FILE_NAME, cache_mib=cache_mib, vfs=vfs)
            self._settings = read_back(self._connection)
            self._state = SqliteState(self._connection.cursor(), QUERIES, Catalog(), folder)
            self._begin_epoch()
            self._state.load()
        except (apsw.Error, OSError) as error:
            raise StoreFailed from error
        except (StoreMoved, AccountMoving):
            self._connection.close(force=True)
            raise
        self._state.is_full = not self._reserve.take()
        self._verbs = CommandHandlers(self._state)

    def _begin_epoch(self) -> None:
        """Mark the database and the folder as opened by this store.

        On a full disk the old marks stay, which still match. A database that was restored is not
        opened then: it must not go on with the receipts of before.
        """
        mark = secrets.token_hex(16)
        try:
            prepare_mark(self._folder, mark)
            with self._connection:
                self.restored_from_backup = self._state.mark(
                    read_mark(self._folder), mark, secrets.token_bytes(KEY_BYTES)
                )
        except (apsw.FullError, OSError):
            if self._state.is_restored(read_mark(self._folder)):
                raise
            self.restored_from_backup = False
        else:
            adopt_mark(self._folder)

    def _end_epoch(self) -> None:
        """Mark both once more, so that every copy made until now is an old one."""
        mark, beside = secrets.token_hex(16), read_mark(self._folder)
        prepare_mark(self._folder, mark)
        with self._connection:
            self._state.set_marks(mark, beside or "")
            self._state.note_log()
        adopt_mark(self._folder)
        with self._connection:
            self._state.set_marks(mark, mark)

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See :meth:`Store.execute`. Commands of one kind that follow each other share statements.

        On a full disk, commands that need room are refused and the others are carried out.
        """
        try:
            self._state.cursor.execute("BEGIN IMMEDIATE")
            if now_ms >= self._state.next_lapse_ms:
                self._verbs.claims.lapse_due(now_ms)
            results = self._verbs.carry_out(batch, now_ms)
            self._state.write_down(now_ms)
        except apsw.Error as error:
            raise self._undo(error) from error
        except Exception:
            self._roll_back()
            raise
        return results

    def commit(self) -> bool:
        """See :meth:`Store.commit`."""
        try:
            self._state.cursor.execute("COMMIT")
        except apsw.Error as error:
            raise self._undo(error) from error
        self._state.log.committed()
        self._state.buckets.clear()
        if self._state.turns:
            self._state.keep_turns(done=True)
        changes = self._connection.total_changes()
        wrote, self._changes = changes != self._changes, changes
        return wrote

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Store.find_queue`."""
        entry = self._state.catalog.by_name.get((account, queue))
        return entry.queue if entry else None

    def message_counts(self) -> list[tuple[str, str, int]]:
        """See :meth:`Store.message_counts`."""
        return self._state.catalog.message_counts()

    def health(self) -> StoreHealth:
        """See :meth:`Store.health`."""
        durable = (
            self._settings["journal_mode"] == "wal" and int(self._settings["synchronous"]) >= 2  # noqa: PLR2004 - FULL
        )
        return StoreHealth(
            kind="sqlite",
            durable=durable,
            writable=not self._state.is_full,
            details={**self._settings, "epoch": self._state.epoch},
        )

    @property
    def sealing_key(self) -> bytes:
        """See :attr:`Store.sealing_key`."""
        return derive_sealing_key(self._state.receipt_key)

    def last_seen_ms(self) -> int:
        """See :meth:`Store.last_seen_ms`."""
        return self._state.last_seen_ms

    @property
    def relocated_accounts(self) -> frozenset[str]:
        """See :attr:`Store.relocated_accounts`."""
        return self._state.relocated_accounts

    def relieve(self) -> bool:
        """See :meth:`Store.relieve`. There is room once the reserve, and more, can be allocated."""
        if not self._state.is_full:
            return True
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            # Moving pages takes room in the WAL first, so it goes by slices.
            self._state.cursor.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.FullError, apsw.BusyError):  # busy: another process reads, a backup perhaps
            return False
        except apsw.Error as error:
            raise StoreFailed from error
        self._state.is_full = not self._reserve.take(again=True)
        return not self._state.is_full

    def close(self) -> None:
        """See :meth:`Store.close`."""
        if not self._connection.in_transaction:
            with contextlib.suppress(apsw.Error, OSError):
                self._end_epoch()
        self._state.cursor.close(force=True)
        self._connection.close()

    def _undo(self, error: apsw.Error) -> LeaseholdError:
        """Undo the open batch and say what happened to it."""
        if isinstance(error, apsw.BusyError):  # another process writes; nothing was begun
            return Unavailable()
        full = isinstance(error, apsw.FullError)
        if full:
            self._state.is_full = True
            self._reserve.give_up()
        try:
            self._roll_back()
        except StoreFailed as failed:
            return failed
        return StoreFull() if full else StoreFailed()

    def _roll_back(self) -> None:
        """Undo the open batch, in memory too."""
        try:
            if self._connection.in_transaction:
                self._state.cursor.execute("ROLLBACK")
            self._state.keep_turns(done=False)
            self._state.load()
            self._verbs.sessions.load()
        except apsw.Error as error:
            raise StoreFailed from error


# --- reserve -----------------------------------------------------------------------------------
#
# Room kept aside so that a full disk can still be drained.
#
# SQLite needs disk space to delete: the change goes to the WAL first. A file of real, allocated
# blocks stands in reserve; when the disk is full it is given up, puts are refused, and completes
# and receives go on in the room it leaves.


_MARGIN: Final = 4
"""There must be room for one in so many parts of the reserve more before it is taken again."""


class Reserve:
    """The reserve file.

    Args:
        path: Where it stands; on the disk of the database.
        size_bytes: How much room it keeps; 0 keeps none.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def take(self, *, again: bool = False) -> bool:
        """Allocate the reserve, if it is not there already; tell whether it is there now.

        Args:
            again: Whether it was given up before. Without some room besides, it would have to be
                given up at the next put, and so on.
        """
        if self._size_bytes == 0:
            return True
        margin_bytes = self._size_bytes // _MARGIN if again else 0
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return False
        try:
            os.ftruncate(descriptor, self._size_bytes)
            os.posix_fallocate(descriptor, 0, self._size_bytes + margin_bytes)
            os.ftruncate(descriptor, self._size_bytes)
        except OSError:
            os.ftruncate(descriptor, 0)
            return False
        finally:
            os.close(descriptor)
        return True

    def give_up(self) -> None:
        """Free the room for whoever drains."""
        with contextlib.suppress(OSError):
            os.truncate(self._path, 0)


class SqliteState(State):
    """Shared state of one store, whose one connection is the only one that writes."""

    cursor: apsw.Cursor
    fronts = frozenset({"next_visible"})

    def __init__(
        self,
        cursor: apsw.Cursor,
        queries: dict[str, str],
        catalog: Catalog,
        folder: Path,
    ) -> None:
        super().__init__(cursor, queries, catalog)
        self._folder = folder
        self._reserved = 0
        self._has_loaded = False

    def mark(self, beside: str | None, new_mark: str, new_key: bytes) -> bool:
        """Mark the database as opened; see :mod:`leasehold.stores.sqlite.connection`.

        Args:
            beside: The mark in the file beside the database, or None.
            new_mark: A mark that has never been used.
            new_key: Key that seals the receipts of a new epoch.

        Returns:
            Whether the database was restored from a backup. It is then in a new epoch.
        """
        meta = self._read_meta()
        restored_from_backup = is_restored(beside, meta.get("mark"), meta.get("last_mark"))
        if restored_from_backup or "receipt_key" not in meta:
            self.set_meta("receipt_key", new_key)
        self.set_meta("epoch", meta.get("epoch", 1) + restored_from_backup)
        self.set_meta("event_bytes", meta.get("event_bytes", 0))
        # What the file holds until it is replaced, so that a crash before that is no restore.
        self.set_marks(new_mark, beside or "")
        return restored_from_backup

    def ends_of_holds(self) -> list[int]:
        """See :meth:`State.ends_of_holds`."""
        return [end_ms for _, end_ms in hold_ends(self._folder)]

    def set_marks(self, mark: str, last_mark: str) -> None:
        """Write the marks that the file beside the database may hold."""
        self.set_meta("last_mark", last_mark)
        self.set_meta("mark", mark)

    def renew_mark(self, new_mark: str) -> None:
        """Let the file catch up with the database and mark the database anew."""
        mark = self._read_meta()["mark"]
        try:
            keep_mark(self._folder, mark)
        except OSError:  # a full disk: the marks that are there still match
            return
        self.set_marks(new_mark, mark)

    def is_restored(self, beside: str | None) -> bool:
        """Tell whether the database was restored, without marking it; it must have a key."""
        meta = self._read_meta()
        restored_from_backup = is_restored(beside, meta.get("mark"), meta.get("last_mark"))
        return restored_from_backup or "receipt_key" not in meta

    def _read_meta(self) -> dict[str, Any]:
        return {str(name): value for name, value in self.cursor.execute(self.sql["load_meta"])}

    def load(self) -> None:
        """Read everything from the database, at the start and after an undone batch."""
        self.restore_buckets()
        meta = self._read_meta()
        self._load(meta)
        self.epoch = meta.get("epoch", 1)  # an older store on a full disk has not been marked
        self._reserved = meta["row_keys_reserved"]
        # Never below what was handed out already: keys of an undone batch are not used again.
        self._next_row_key = max(self._next_row_key, self._reserved + 1)
        # Above all that the same queue may have given out after the copy was made.
        self._last_token = max(meta.get("last_token", 0), (self.epoch - 1) << _EPOCH_BITS)
        self.touched.clear()
        self.touched_claims.clear()
        if not self._has_loaded:
            self._has_loaded = True
            # What was written since the last note is added up: after a crash as well, it is exact.
            noted_seq = meta.get("event_bytes_seq")
            noted = 0 if noted_seq is None else meta["event_bytes"]
            self.log.bytes_kept = noted + self.value("log_bytes", (noted_seq or 0,))
        self.log.load()

    def keys_of(self, row_keys: Iterable[int]) -> object:
        """Return numbers as one value that statements can look them up in."""
        return apsw.carray(array("q", row_keys))

    def names_of(self, names: Sequence[str]) -> object:
        """Return texts as one value that statements can look them up in, as bytes."""
        return apsw.carray(tuple([name.encode() for name in names]))

    def bodies_of(self, bodies: Sequence[bytes]) -> object:
        """Return bodies as one value that ``put_alike`` takes."""
        return apsw.carray(tuple(bodies))

    def set_meta(self, name: str, value: int | str | bytes) -> None:
        """Keep a value under a name."""
        self.cursor.execute(self.sql["set_meta"], (name, value))

    def note_log(self) -> None:
        """Write down how many bytes of events there are, for the next start.

        Those of the open batch are not among them yet.
        """
        self.set_meta("event_bytes", self.log.bytes_kept)
        self.set_meta("event_bytes_seq", self.log.last_seq)

    @property
    def last_row_key(self) -> int:
        """The highest row key handed out."""
        return self._next_row_key - 1

    def take_row_keys(self, count: int) -> int:
        """Return the first of *count* row keys that follow each other."""
        first = self._next_row_key
        self._next_row_key += count
        if self._next_row_key > self._reserved + 1:
            self._reserved = self._next_row_key + _BLOCK
            self.set_meta("row_keys_reserved", self._reserved)
        return first

    def timeline(self, entry: Entry, now_ms: int) -> Timeline:
        """Return the timeline of a queue as of now, read from its rows if need be."""
        timeline = entry.timeline
        if timeline is None or not timeline.advance(now_ms):
            first_ms = now_ms // 1000 * 1000
            timeline = entry.timeline = Timeline(
                now_ms,
                [
                    row
                    for lane in entry.lanes
                    for row in self.fetch("timeline", (lane.partition, first_ms))
                ],
            )
        return timeline

    def retired(self, entry: Entry) -> int:
        """Return how many rows of a queue are retired, counted in its index the first time."""
        if entry.retired is None:
            lanes = json.dumps([lane.partition for lane in entry.lanes])
            entry.retired = int(self.value("retired", (lanes, -1)))
        return entry.retired

    def write_down(self, now_ms: int) -> None:
        """Write the events of the batch, and the message counts that it has changed."""
        if self.touched:
            self.cursor.executemany(
                self.sql["set_count"],
                [
                    (entry.message_count, entry.queue.account, entry.queue.name)
                    for entry in self.touched
                ],
            )
            self.touched.clear()
        for held in tuple(self.touched_claims):
            self.keep_claim(held)
        self.log.write(now_ms)
