"""Writes down what a program does to the files in a folder, names and folders included.

SQLite is watched through a VFS, all else through the calls of :mod:`os`. What is written down is
complete only if it makes the same files when it is carried out again, which the tests check.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

VFS_NAME: Final = "leasehold-recorder"
_NEW_NAMES: Final = (
    apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
)
"""Files whose folder SQLite syncs with their own first sync, if it has made them: UNIXFILE_DIRSYNC
in https://sqlite.org/src/file/src/os_unix.c. Our VFS stands above that, so it says so itself."""


@dataclass(slots=True)
class Operation:
    """One thing that happened.

    Of files: ``create``, ``write``, ``truncate``, ``sync``; of names: ``mkdir``, ``rename``,
    ``delete``, ``sync-folder``; and ``ack``, when a batch was acknowledged.
    """

    kind: str
    path: str = ""
    """Below the folder that is watched; empty for that folder itself."""
    offset: int = 0
    data: bytes = b""
    to: str = ""
    """For ``rename``."""
    snapshot: str = ""
    """For ``ack``: digest of all messages after the acknowledged batch."""


RECORD: list[Operation] = []
_ROOT: list[Path] = []


def note(kind: str, path: Any, **more: Any) -> None:
    """Write down what was done to a path, if it is below the folder that is watched."""
    below = _below(path)
    if below is not None:
        RECORD.append(Operation(kind, below, **more))


def _below(path: Any) -> str | None:
    found = Path(os.fsdecode(path))
    if not _ROOT or not found.is_relative_to(_ROOT[0]):
        return None
    name = found.relative_to(_ROOT[0]).as_posix()
    return "" if name == "." else name


class RecordingFile(apsw.VFSFile):
    """A file that tells what is done to it."""

    def __init__(self, name: Any, flags: Any) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else (name or "temporary")
        self._path = path
        is_new = not Path(path).exists()
        super().__init__("", name, flags)
        self._owes_name = is_new and bool(flags[0] & _NEW_NAMES)
        if is_new:
            note("create", path)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's name
        note("write", self._path, offset=offset, data=bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        note("truncate", self._path, offset=newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        note("sync", self._path)
        super().xSync(flags)
        if self._owes_name:
            self._owes_name = False
            note("sync-folder", Path(self._path).parent)


class RecordingVfs(apsw.VFS):
    """The operating system's file system, recorded."""

    def __init__(self) -> None:
        super().__init__(VFS_NAME, "")

    def xOpen(self, name: Any, flags: Any) -> RecordingFile:  # noqa: N802
        return RecordingFile(name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        note("delete", filename)
        if syncdir:
            note("sync-folder", Path(filename).parent)


@contextmanager
def recording(folder: Path) -> Iterator[list[Operation]]:
    """Write down what happens below a folder from now on."""
    RECORD.clear()
    _ROOT[:] = [folder]
    with pytest.MonkeyPatch.context() as patched:
        _watch_names(patched)
        _watch_contents(patched)
        try:
            yield RECORD
        finally:
            _ROOT.clear()


_paths: dict[int, str] = {}
"""By descriptor."""


def _after(name: str, tell: Callable[..., None]) -> Callable[..., Any]:
    """Return the call of that name, which then tells its result and its arguments."""
    real = getattr(os, name)

    def call(*given: Any, **named: Any) -> Any:
        result = real(*given, **named)
        tell(result, *given)
        return result

    return call


def _watch_names(patched: pytest.MonkeyPatch) -> None:
    for name in ("rename", "replace"):
        told = _after(name, lambda _, old, new: note("rename", old, to=_below(new) or ""))
        patched.setattr(os, name, told)
    for name in ("unlink", "remove"):
        patched.setattr(os, name, _after(name, lambda _, path: note("delete", path)))
    patched.setattr(os, "mkdir", _after("mkdir", lambda _, path, *mode: note("mkdir", path)))


def _watch_contents(patched: pytest.MonkeyPatch) -> None:
    opening, writing = os.open, os.write

    def call_open(path: Any, flags: int, *mode: Any, **named: Any) -> int:
        is_new = not Path(os.fsdecode(path)).exists()
        descriptor = opening(path, flags, *mode, **named)
        _paths[descriptor] = os.fsdecode(path)
        if is_new:
            note("create", path)
        elif flags & os.O_TRUNC:
            note("truncate", path)
        return descriptor

    def call_write(descriptor: int, data: Any) -> int:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR) if descriptor in _paths else 0
        written = writing(descriptor, data)
        if descriptor in _paths:
            content = bytes(data[:written])
            note("write", _paths[descriptor], offset=offset, data=content)
        return written

    def tell_sync(_: Any, descriptor: int) -> None:
        path = _paths[descriptor]
        note("sync-folder" if Path(path).is_dir() else "sync", path)

    def tell_allocated(_: Any, descriptor: int, offset: int, length: int) -> None:
        note("truncate", _paths[descriptor], offset=offset + length)  # it only ever gets longer

    def tell_written(_: Any, descriptor: int, data: Any, offset: int) -> None:
        note("write", _paths[descriptor], offset=offset, data=bytes(data))

    def forget(_: Any, descriptor: int) -> None:
        _paths.pop(descriptor, None)

    patched.setattr(os, "open", call_open)
    patched.setattr(os, "write", call_write)
    calls: dict[str, Callable[..., None]] = {
        "fsync": tell_sync,
        "close": forget,
        "pwrite": tell_written,
        "ftruncate": lambda _, at, size: note("truncate", _paths[at], offset=size),
        "truncate": lambda _, path, size: note("truncate", path, offset=size),
        "posix_fallocate": tell_allocated,
    }
    for name, tell in calls.items():
        patched.setattr(os, name, _after(name, tell))
