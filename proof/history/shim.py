"""The shim that a server is started under: its control, and power cuts by its journal.

``shim.c`` notes what is written to the data folder until it is synced. A power cut is a SIGKILL,
after which :meth:`Shim.cut_power` makes the files be as a disk might have kept them: all that was
synced, and of the rest nothing, everything, some of it, or some of it torn at sectors. Names of
files are kept, as ext4 keeps them; ``tests/reliability/powercut.py``, which works within one
process, has stricter rules for names.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import struct
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

SECTOR_BYTES: Final = 512
Damage = Literal["none", "all", "subset", "torn"]
_CONTROL: Final = struct.Struct("=qiiiiq")
_ENTRY: Final = struct.Struct("=IIQQQQQ")
_WRITE, _TRUNCATE, _SYNC = 1, 2, 3
_SOURCE: Final = Path(__file__).with_name("shim.c")


def is_available() -> bool:
    """Tell whether there is a compiler for the shim."""
    return shutil.which("gcc") is not None


class Shim:
    """Compiles the shim into a folder, and controls the servers that are started under it.

    Args:
        folder: For the library, its control and its journal; not the data folder.
        data: The data folder of the server.
        notes_writes: Whether power can be cut; syncs then do not wait for the disk.
    """

    def __init__(self, folder: Path, data: Path, *, notes_writes: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.notes_writes = notes_writes
        """Whether power can be cut."""
        self._library = folder / "shim.so"
        self._data = data
        self._journal = folder / "journal" if notes_writes else None
        flags = ["-O2", "-shared", "-fPIC", "-o", str(self._library)]
        subprocess.run(["gcc", *flags, str(_SOURCE), "-ldl", "-lpthread"], check=True)
        control = folder / "control"
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _CONTROL.size)
        self._control = control
        self._values = [0] * 6

    @property
    def environment(self) -> dict[str, str]:
        """What a server is to have in its environment."""
        variables = {
            "LD_PRELOAD": str(self._library),
            "PROOF_SHIM_CONTROL": str(self._control),
            "PROOF_SHIM_FOLDER": str(self._data),
        }
        if self._journal is not None:
            variables["PROOF_SHIM_JOURNAL"] = str(self._journal)
        return variables

    @property
    def failed(self) -> int:
        """How many calls have failed by :meth:`fail`."""
        return int(_CONTROL.unpack_from(self._memory)[5])

    @property
    def clock_offset_s(self) -> float:
        """How far the wall clock of the servers is ahead."""
        return float(_CONTROL.unpack_from(self._memory)[0]) / 1e9

    def step_clock(self, step_s: float) -> None:
        """Move the wall clock by so many seconds, forward above 0."""
        self._set(clock_offset_ns=round((self.clock_offset_s + step_s) * 1e9))

    def fail(self, *, writes: int = 0, number: int = 0, syncs: int = 0) -> None:
        """Have the next calls fail, -1 for all; writes with the error *number*, syncs with EIO."""
        self._set(fail_writes=writes, errno_of_writes=number, fail_syncs=syncs)

    def lie(self) -> None:
        """Have syncs say that they are done when they are not; the control of power cuts."""
        self._set(syncs_lie=1)

    def restart(self) -> None:
        """Forget what is in the journal: all of it is on the disk now."""
        if self._journal is not None:
            self._journal.write_bytes(b"")

    def cut_power(self, rng: random.Random, damage: Damage | None = None) -> str:
        """Take away what was not synced, after the server was killed; tell what was done.

        Args:
            rng: Chooses what is left.
            damage: How; None: as *rng* chooses.
        """
        assert self._journal is not None
        found = _read(self._journal)
        kept: Damage = rng.choice(get_args(Damage)) if damage is None else damage
        paths = {path.stat().st_ino: path for path in self._data.rglob("*") if path.is_file()}
        unsynced = 0
        for inode, entries in found.items():
            if inode in paths:
                unsynced += len(entries)
                _replay(paths[inode], entries, kept, rng)
        self.restart()
        return f"{unsynced} unsynced writes, {kept} kept"

    def _set(self, **values: int) -> None:
        names = ("clock_offset_ns", "fail_writes", "errno_of_writes", "fail_syncs", "syncs_lie")
        now = dict(zip(names, _CONTROL.unpack_from(self._memory), strict=False))
        now.update(values)
        _CONTROL.pack_into(self._memory, 0, *(now[name] for name in names), self.failed)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One change of a file that was not synced."""

    kind: int
    offset: int
    old: bytes
    data: bytes
    old_size: int


def _read(journal: Path) -> dict[int, list[_Entry]]:
    """Return what was not synced, by inode, in order; an entry that is cut off was never made."""
    content = journal.read_bytes() if journal.exists() else b""
    found: dict[int, list[_Entry]] = defaultdict(list)
    at = 0
    while at + _ENTRY.size <= len(content):
        kind, _, inode, offset, length, old_length, old_size = _ENTRY.unpack_from(content, at)
        at += _ENTRY.size
        old = content[at : at + old_length]
        at += old_length
        data = content[at : at + length]
        at += length
        if at > len(content):
            break
        if kind == _SYNC:
            found.pop(inode, None)
        else:
            found[inode].append(_Entry(kind, offset, old, data, old_size))
    return found


def _replay(path: Path, entries: list[_Entry], damage: Damage, rng: random.Random) -> None:
    """Go back to what was synced, and on to what the disk has kept."""
    with path.open("r+b") as file:
        for entry in reversed(entries):
            file.seek(entry.offset)
            file.write(entry.old)
            file.truncate(entry.old_size)
        for entry in entries:
            if entry.kind == _TRUNCATE:
                if damage == "all" or (damage != "none" and rng.random() < 0.5):
                    file.truncate(entry.offset)
                continue
            kept = _kept(entry.data, damage, rng)
            if kept:
                file.seek(entry.offset)
                file.write(kept)
        file.flush()
        os.fsync(file.fileno())


def _kept(data: bytes, damage: Damage, rng: random.Random) -> bytes:
    """Return what of an unsynced write is there after the cut."""
    if damage == "all" or (damage in {"subset", "torn"} and rng.random() < 0.5):
        return data
    if damage == "torn":
        return data[: rng.randrange(0, len(data) + 1) // SECTOR_BYTES * SECTOR_BYTES]
    return b""
