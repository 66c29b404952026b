"""What it takes on a POSIX file system for files, and for their names, to survive a power cut."""

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
