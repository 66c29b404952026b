"""What it takes on a POSIX file system for files, and for their names, to survive a power cut.

A file's content is durable once the file is synced, and its name once its folder is. Some file
systems write the name with the content; not all do, and POSIX does not ask for it.

Source: https://man7.org/linux/man-pages/man2/fsync.2.html, "Calling fsync() does not necessarily
ensure that the entry in the directory containing the file has also reached disk".
"""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: str | Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk.

    A new or renamed file needs both: its content before it has its name, its folder after that.
    Raises OSError, as when the disk is full; what was written may then be lost.
    """
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are missing, and wait until their names are durable.

    Those that are there already are synced as well: whoever made them may have been killed before
    it came to that. Above them, folders of others that cannot be opened or synced are passed over,
    and so is what lies outside the file system of *folder*.

    Args:
        folder: May be there already.
        mode: Of *folder* itself; those above it get the usual one.

    Raises:
        OSError: It cannot be made, or the name of one that was made cannot be synced.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    new = {each.resolve() for each in missing}
    inner = folder.resolve()
    device = inner.stat().st_dev
    for outer in inner.parents:
        try:
            if outer.stat().st_dev != device:
                return
            sync(outer)
        except OSError:
            if inner in new:
                raise
        inner = outer


def write_file(path: Path, content: bytes, *, mode: int = 0o666, is_new: bool = False) -> None:
    """Write a file, and wait until its content is durable; not its name.

    Args:
        path: Of the file.
        content: In place of what it had.
        mode: Of a file that is made.
        is_new: There must be no such file.

    Raises:
        OSError: There is no room, or the disk fails; part of the content may then be there.
    """
    kind = os.O_EXCL if is_new else os.O_TRUNC
    file = os.open(path, os.O_WRONLY | os.O_CREAT | kind | os.O_CLOEXEC, mode)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)
