"""Noticing that a database was put back from a copy.

In a database put back from yesterday, messages are leased again under fences that were given out
since; a receipt from before must not act on them. So every opening of the store, and every minute
after it, leaves a new mark in the database and in a file beside it. Marks that do not match mean
that one of the two is not the one that was used last: the store then begins a new *epoch*, with a
new key for receipts, and all earlier receipts are foreign to it.

The database remembers its last mark as well, and the file is never ahead of it, so a crash between
the two is not taken for a copy. A copy of the whole folder cannot be told from the folder itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from leasehold.disk import sync, write_file

FILE_NAME: Final = "epoch"
_PREPARED: Final = "epoch.new"


def was_put_back(beside: str | None, mark: str | None, last_mark: str | None) -> bool:
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
