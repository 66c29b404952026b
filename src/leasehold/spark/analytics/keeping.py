"""The folder of tables: where they are, what has been used, and how a run comes in whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from leasehold.spark.analytics.schemas import FORMAT

STATE: Final = "_leasehold_tables.json"
TEMPORARY: Final = "_tmp"
ADDED: Final = ("attempts", "messages")
"""Tables to which each run adds a folder of its own."""
TALLIES: Final = ("holder_tallies", "hour_tallies")
"""What workers and queues are made of, counted of all that has ended."""
REPLACED: Final = (
    "open",
    "marks",
    "open_attempts",
    "open_messages",
    *TALLIES,
    "workers",
    "queues",
)
"""Tables of which only the folder of the newest run counts."""


class TablesTooNew(ValueError):
    """A folder of tables has a format that this version does not know."""


class OtherLog(ValueError):
    """A folder has tables of another log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a folder of tables was made of."""

    format: int = FORMAT
    run: int = 0
    """Number of the last run that came in whole; 0 before the first."""
    source: str = ""
    upto_seq: int = 0
    """The highest number used."""
    events: int = 0
    """How many were used, those that came twice not counted twice by number but by file."""
    names: tuple[str, ...] = ()
    """Files used."""


class Folder:
    """A folder of tables.

    Args:
        path: Of the folder; it is made if need be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def state(self) -> State:
        """Return what was used so far.

        Raises:
            TablesTooNew: A newer version has written it.
        """
        try:
            raw: dict[str, Any] = json.loads((self.path / STATE).read_text())
        except FileNotFoundError:
            return State()
        if raw["format"] > FORMAT:
            raise TablesTooNew(
                f"{self.path} has format {raw['format']}, and this version knows {FORMAT}"
            )
        return State(**{**raw, "names": tuple(raw["names"])})

    def tidy(self, run: int) -> None:
        """Remove what a run that did not come in whole has left behind."""
        shutil.rmtree(self.path / TEMPORARY, ignore_errors=True)
        for table in (*ADDED, *REPLACED):
            for folder, number in self.runs(table):
                if number > run or (number < run and table in REPLACED):
                    shutil.rmtree(folder)
        (self.path / TEMPORARY).mkdir(parents=True)

    def runs(self, table: str) -> list[tuple[Path, int]]:
        """Return the folders of a table and the numbers of their runs, in their order."""
        found = (self.path / table).glob("run=*")
        return sorted((each, int(each.name.removeprefix("run="))) for each in found)

    def newest(self, table: str, run: int) -> Path:
        """Return the folder of a table that the run has made."""
        return self.path / table / f"run={run:06d}"

    def temporary(self, name: str) -> Path:
        """Return where something can be written before it is put in its place."""
        return self.path / TEMPORARY / name

    def place(self, tables: Iterable[str], run: int) -> None:
        """Put what was written for a run into its place."""
        for table in tables:
            target = self.newest(table, run)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.temporary(table).rename(target)

    def replace(self, table: str, folder: Path, written: Path) -> None:
        """Put a table's folder, written anew, in the place of the old one."""
        old = self.temporary(f"old-{table}-{folder.name}")
        folder.rename(old)
        written.rename(folder)

    def commit(self, state: State) -> None:
        """Have a run count: from now on it is there, whatever happens."""
        written = self.temporary(STATE)
        with written.open("w") as file:
            json.dump(asdict(state), file)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.path / STATE)
        self.tidy(state.run)
