"""The SQLite store: batches in, one transaction and one fsync out."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import apsw

from leasehold.disk import make_folder
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, StoreFailed, StoreFull, Unavailable
from leasehold.domain.model import KEY_BYTES, Queue
from leasehold.stores.base import StoreHealth
from leasehold.stores.migrate.marks import AccountMoving, StoreMoved
from leasehold.stores.sql.catalog import Catalog
from leasehold.stores.sql.command_handlers import CommandHandlers
from leasehold.stores.sql.statements import load_queries
from leasehold.stores.sqlite.connection import (
    adopt_mark,
    keep_mark,
    open_database,
    prepare_mark,
    read_back,
    read_mark,
)
from leasehold.stores.sqlite.state import SqliteState

FILE_NAME: Final = "leasehold.db"
RESERVE_NAME: Final = "reserve"
_VACUUM_PAGES: Final = 250
_QUERIES: Final = load_queries("leasehold.stores.sqlite")


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
            self._state = SqliteState(
                self._connection.cursor(), _QUERIES, Catalog(), partial(keep_mark, folder)
            )
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
        self._state.keep_buckets()
        changes = self._connection.total_changes()
        wrote, self._changes = changes != self._changes, changes
        return wrote

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Store.find_queue`."""
        entry = self._state.catalog.find(account, queue)
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
