"""Room kept aside so that a full disk can still be drained.

SQLite needs disk space to delete: the change goes to the WAL first. A file of real, allocated
blocks stands in reserve; when the disk is full it is given up, puts are refused, and completes and
receives go on in the room it leaves.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

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
