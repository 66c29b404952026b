"""What has been published: a table whose rows no late worker can write, and the files it lists."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasehold.worker.idempotency import Fenced, FencedTable

_OUTPUTS: Final = FencedTable("output", key="name")
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One row."""

    name: str
    worker: str
    """Who published it."""
    fence: int
    """Of the delivery in whose name that was done."""


class Catalogue:
    """The table, in a file of its own, and the folder ``outputs`` beside it.

    Args:
        root: Folder of the run.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "catalogue.db"
        self._outputs = root / "outputs"
        with self._open() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS output "
                "(name TEXT PRIMARY KEY, worker TEXT NOT NULL, fence INTEGER)"
            )

    def has(self, name: str) -> bool:
        """Return whether an output is published."""
        return any(each.name == name for each in self.entries())

    def entries(self) -> list[Entry]:
        """Return all rows."""
        with self._open() as connection:
            rows = connection.execute("SELECT name, worker, fence FROM output ORDER BY name")
            return [Entry(*row) for row in rows]

    def publish(self, scratch: Path, name: str, worker: str, fence: int) -> bool:
        """Give a finished file its name, whole and once; return whether this call did it.

        Raises:
            Fenced: Somebody has published it in the name of a later delivery; nothing was done.
        """
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        is_mine = False
        with self._open() as connection:
            _OUTPUTS.upsert(connection, name, {"worker": worker}, fence=fence)
            # A link fails where a rename would replace what is there.
            with suppress(FileExistsError):
                os.link(scratch, self._outputs / name)
                is_mine = True
        scratch.unlink()
        return is_mine

    def write_late(self, scratch: Path, video: str, worker: str, fence: int) -> str:
        """Publish half a file in the name of a delivery that another one has overtaken.

        It takes an output that the later delivery has published: on a slow machine the first may
        have published another one before it was overtaken, and might publish that again.

        Returns:
            How it was refused; an empty text if it was not, or if no output is of a later delivery.
        """
        names = [
            entry.name
            for entry in self.entries()
            if entry.name.startswith(f"{video}.") and entry.fence > fence
        ]
        if not names:
            return ""
        scratch.write_text("half a video")
        try:
            self.publish(scratch, names[0], worker, fence)
        except Fenced as error:
            return f"fence {error.fence} is too old, {error.newest} was here"
        return ""

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction."""
        connection = sqlite3.connect(self._path, timeout=_PATIENCE_S)
        try:
            with connection:
                yield connection
        finally:
            connection.close()
