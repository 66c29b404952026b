"""Opening the database: settings, reading them back, migrations.

One connection does everything, checkpoints included. SQLite's WAL-reset corruption bug needs two
that write or checkpoint at once; apsw's own SQLite has it fixed besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from leasehold.disk import sync, write_file
from leasehold.domain.errors import StoreFailed
from leasehold.stores.sql.state import HOLD_MS
from leasehold.stores.sql.statements import load_migrations

APPLICATION_ID: Final = 0x4C534844  # "LSHD"
_MIGRATIONS: Final = "leasehold.stores.sqlite.migrations"

# Each is set on its own and read back: a driver that runs only the first of several statements
# would otherwise leave a store that looks durable and is not.
_PRAGMAS: Final[dict[str, str | int]] = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL: every commit reaches the disk before it is answered
    "foreign_keys": 1,
    "trusted_schema": 0,
    "wal_autocheckpoint": 1000,  # pages
    "journal_size_limit": 64 * 1024 * 1024,  # bytes; a WAL grown by a huge batch shrinks again
    "busy_timeout": 50,  # milliseconds; only a person with a shell makes us wait, and all with us
    "temp_store": 2,  # memory: sorting must work on a full disk
}
_REPORTED: Final = ("journal_mode", "synchronous", "page_size", "wal_autocheckpoint", "cache_size")


class WrongDatabase(StoreFailed):
    """The file is not a Leasehold database, or a newer version of Leasehold wrote it."""

    def __init__(self, detail: str) -> None:
        super().__init__()
        self.args = (detail,)


def open_database(path: Path, *, cache_mib: int, vfs: str | None = None) -> apsw.Connection:
    """Open (or create) the database at *path*, bring it to the newest format, and sync its folder.

    Args:
        path: File to open; its folder must exist.
        cache_mib: Size of SQLite's page cache in MiB.
        vfs: Name of a registered SQLite VFS, for tests that injure the disk.

    Raises:
        WrongDatabase: It is another program's database or one of a newer format.
        StoreFailed: A setting could not be made.
    """
    connection = apsw.Connection(str(path), vfs=vfs)
    try:
        if vfs is not None:
            # A VFS written in Python has no shared memory, which WAL needs unless one process
            # has the file to itself.
            connection.pragma("locking_mode", "exclusive")
        _identify(connection, path)
        _configure(connection, path)
        connection.pragma("cache_size", -cache_mib * 1024)
        migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    sync(path.parent)
    return connection


def _identify(connection: apsw.Connection, path: Path) -> None:
    """Mark a new file as ours; refuse one of another program."""
    if _is_blank(connection):
        # Of 4, 8 and 16 KiB, 8 was as fast as any with a million messages of 1 KiB and takes 15 %
        # less disk than 4; bigger pages cost single commits more.
        connection.pragma("page_size", 8192)
        with connection:  # whoever is killed here leaves a file that is marked, or blank
            connection.pragma("auto_vacuum", 2)  # incremental: room can be given back
            connection.pragma("application_id", APPLICATION_ID)
    elif connection.pragma("application_id") != APPLICATION_ID:
        raise WrongDatabase(f"{path} is not a Leasehold database")


def _is_blank(connection: apsw.Connection) -> bool:
    """Tell whether nothing has been written yet, neither by us nor by anybody else.

    Earlier versions that were killed in their first moments left a file of one page. It has no
    table and no mark, so nothing of anybody's is in it.
    """
    if connection.pragma("page_count") == 0:
        return True
    marks = connection.pragma("application_id"), connection.pragma("user_version")
    return marks == (0, 0) and not list(connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1"))


def _configure(connection: apsw.Connection, path: Path) -> None:
    # Without it SQLite prepares statements anew each time other values are bound, where it might
    # choose another plan by them; our statements name their indexes. A look at a group took 7 us
    # and not 3, a wide one 20 and not 6.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    for name, value in _PRAGMAS.items():
        connection.pragma(name, value)
        if connection.pragma(name) != value:
            raise WrongDatabase(f"{path}: SQLite did not accept {name}={value}")


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Apply the migrations the database does not have yet, each in a transaction of its own."""
    migrations = load_migrations(_MIGRATIONS)
    version = connection.pragma("user_version")
    if version > len(migrations):
        raise WrongDatabase(
            f"{path} has format {version}, written by a newer Leasehold; "
            f"this one knows formats up to {len(migrations)}"
        )
    for number, script in migrations[version:]:
        with connection:
            connection.execute(script)
            connection.pragma("user_version", number)


def read_back(connection: apsw.Connection) -> dict[str, str | int]:
    """Return what the database says of its own settings."""
    found: dict[str, str | int] = {name: connection.pragma(name) for name in _REPORTED}
    found["format"] = connection.pragma("user_version")
    found["sqlite_version"] = apsw.sqlite_lib_version()
    return found


# --- epoch -------------------------------------------------------------------------------------
#
# Noticing that a database was restored from a backup.
#
# In a database restored from yesterday, messages are leased again under fences that were given out
# since; a receipt from before must not act on them. So every opening of the store, and every
# minute after it, leaves a new mark in the database and in a file beside it. Marks that do not
# match mean that one of the two is not the one that was used last: the store then begins a new
# *epoch*, with a new key for receipts, and all earlier receipts are foreign to it.
#
# The database remembers its last mark as well, and the file is never ahead of it, so a crash
# between the two is not taken for a copy. A copy of the whole folder cannot be told from the
# folder itself.


FILE_NAME: Final = "epoch"
_PREPARED: Final = "epoch.new"


def is_restored(beside: str | None, mark: str | None, last_mark: str | None) -> bool:
    """Tell whether the database is not the one that was used last.

    Args:
        beside: The mark in the file, None if there is no file.
        mark: The newest mark in the database, None if it has never been marked.
        last_mark: The one before.
    """
    return mark is not None and (beside is None or beside not in (mark, last_mark))


def read_mark(folder: Path) -> str | None:
    """Return the mark in the file, or None."""
    try:
        return (folder / FILE_NAME).read_text(encoding="ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def prepare_mark(folder: Path, mark: str) -> None:
    """Write the file that :func:`adopt_mark` puts in place. Raises OSError on a full disk."""
    write_file(folder / _PREPARED, mark.encode("ascii"))


def adopt_mark(folder: Path) -> None:
    """Put the prepared file in place, durably; that takes no room."""
    (folder / _PREPARED).replace(folder / FILE_NAME)
    sync(folder)


def keep_mark(folder: Path, mark: str) -> None:
    """Write the file in one go. Raises OSError on a full disk; the old file then stays."""
    prepare_mark(folder, mark)
    adopt_mark(folder)


# --- backups -----------------------------------------------------------------------------------
#
# While a backup is under way, a file beside the database keeps the large bodies that it may name. A
# row could not: only the server's own connection writes to the database.


HOLD_SUFFIX: Final = ".hold"


def hold_ends(folder: Path) -> Iterator[tuple[Path, int]]:
    """Return the files of backups, and until when each keeps bodies, Unix milliseconds."""
    for path in folder.glob(f"*{HOLD_SUFFIX}"):
        try:
            end_ms = int(path.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):  # removed meanwhile, or no number
            continue
        except OSError:  # of a user whose files the server may not read
            try:
                end_ms = int(path.stat().st_mtime * 1000) + HOLD_MS
            except FileNotFoundError:
                continue
        yield path, end_ms
