"""The folder of tables: where they are, what has been used, and how a run comes in whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from leasehold.disk import sync
from leasehold.spark.analytics.schemas import FORMAT

STATE: Final = "_leasehold_tables.json"
LOCK: Final = "_leasehold_tables.lock"
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
_RUNS_SINCE: Final = 2
"""Format from which on the state says whose folders count; before, those of all runs did."""


class TablesError(ValueError):
    """A folder of tables cannot be used."""


class TablesTooNew(TablesError):
    """A folder of tables has a format that this version does not know."""


class OtherLog(TablesError):
    """A folder has tables of another log."""


class TablesBusy(TablesError):
    """A folder of tables is being updated by somebody else."""


class UnreadableTables(TablesError):
    """The file that says what counts in a folder of tables is damaged, or something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a folder of tables was made of."""

    format: int = FORMAT
    run: int = 0
    """Number of the last run that came in whole; 0 before the first."""
    runs: tuple[int, ...] = ()
    """Those whose folders of :data:`ADDED` count. A run with files that came late takes over what
    is left of others, and those count no more."""
    source: str = ""
    upto_seq: int = 0
    """The highest number used."""
    events: int = 0
    """How many were used, those that came twice not counted twice by number but by file."""
    names: tuple[str, ...] = ()
    """Files used."""


class Folder:
    """A folder of tables.

    What a run writes is beside what counts, never in its place, until the state says that it
    counts. So whatever ends a run leaves the tables as they were.

    Args:
        path: Of the folder; it is made if need be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from updating the folder meanwhile. It is let go if the process ends.

        Raises:
            TablesBusy: Somebody else is updating it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TablesBusy(f"{self.path} is being updated by somebody else") from None
            yield

    def state(self) -> State:
        """Return what was used so far.

        Raises:
            TablesTooNew: A newer version has written it.
            UnreadableTables: It is damaged, or of something else.
        """
        path = self.path / STATE
        try:
            raw = json.loads(path.read_text("utf-8"))
            number = int(raw["format"])
            if number <= FORMAT:
                return self._told(raw, number)
        except FileNotFoundError:
            return State()
        except (LookupError, TypeError, ValueError) as error:
            raise UnreadableTables(
                f"{path} does not say what counts in this folder: it is damaged, or no state of "
                f"lifecycle tables ({error!r})"
            ) from None
        raise TablesTooNew(f"{self.path} has format {number}, and this version knows {FORMAT}")

    def _told(self, raw: dict[str, Any], number: int) -> State:
        run = int(raw["run"])
        if number < _RUNS_SINCE:
            found = {each for table in ADDED for _, each in self.runs(table)}
            runs = [each for each in sorted(found) if each <= run]
        else:
            runs = raw["runs"]
        return State(
            run=run,
            runs=tuple(map(int, runs)),
            source=str(raw.get("source", "")),
            upto_seq=int(raw.get("upto_seq", 0)),
            events=int(raw.get("events", 0)),
            names=tuple(map(str, raw["names"])),
        )

    def tidy(self, state: State) -> None:
        """Remove what does not count: left behind by a run that did not come in, or taken over."""
        shutil.rmtree(self.path / TEMPORARY, ignore_errors=True)
        for table in (*ADDED, *REPLACED):
            counting = state.runs if table in ADDED else (state.run,)
            for folder, number in self.runs(table):
                if number not in counting:
                    shutil.rmtree(folder)
        (self.path / TEMPORARY).mkdir(parents=True)

    def runs(self, table: str) -> list[tuple[Path, int]]:
        """Return the folders of a table and the numbers of their runs, in their order."""
        found = (self.path / table).glob("run=*")
        return sorted((each, int(each.name.removeprefix("run="))) for each in found)

    def of_runs(self, table: str, runs: Sequence[int]) -> list[Path]:
        """Return the folders of a table that some runs have made, as far as they are there."""
        return [path for path, run in self.runs(table) if run in runs]

    def newest(self, table: str, run: int) -> Path:
        """Return the folder of a table that the run has made."""
        return self.path / table / f"run={run:06d}"

    def temporary(self, name: str) -> Path:
        """Return where something can be written before it is put in its place."""
        return self.path / TEMPORARY / name

    def place(self, tables: Iterable[str], run: int) -> None:
        """Put what was written for a run into its place, on the disk."""
        for table in tables:
            target = self.newest(table, run)
            target.parent.mkdir(parents=True, exist_ok=True)
            written = self.temporary(table)
            _sync_all(written)
            written.rename(target)
            sync(target.parent)
        sync(self.path)

    def commit(self, state: State) -> None:
        """Have a run count: from now on it is there, whatever happens."""
        written = self.temporary(STATE)
        written.write_text(json.dumps(asdict(state)), encoding="utf-8")
        sync(written)
        written.replace(self.path / STATE)
        sync(self.path)
        self.tidy(state)


def _sync_all(folder: Path) -> None:
    """Wait until a folder and all that is in it are on the disk."""
    for at, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(at, name))
        sync(Path(at))
