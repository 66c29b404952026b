"""SQLite stores for tests of what a store answers: made once, copied, and not on the disk."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from leasehold.stores.sqlite import SqliteStore

MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files are not on a disk: to sync it would be most of the time, and others test that."""


@functools.cache
def _empty() -> Path:
    """Return the folder of a store that is as new, one for each process of tests."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-empty-", dir=MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    SqliteStore(folder).close()
    return folder


def as_new(folder: Path) -> Path:
    """Put a store that is as new into an empty folder; its migrations take five times as long."""
    shutil.copytree(_empty(), folder, dirs_exist_ok=True)
    return folder


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Have an empty folder, not on the disk if that can be."""
    with tempfile.TemporaryDirectory(prefix="leasehold-tests-", dir=MEMORY) as folder:
        yield Path(folder)
