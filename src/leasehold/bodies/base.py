"""What the engine asks of a place for large bodies.

A body is written once, under a key that is never used again, read as often as wanted, and removed.
The body store does not decide what is in use: that is known to the store of messages alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from leasehold.disk import make_folder, sync, write_file
from leasehold.domain.errors import StoreFull, Unavailable
from leasehold.extras import install

KEY_BYTES: Final = 16
"""Random bytes of a key, written in hexadecimal: none can be guessed, and none comes twice."""

MARK_NAME: Final = "mark"
"""Of the file, or the object, that says which place it is."""

_KEY: Final = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


class BodyMissing(Exception):
    """Nothing is kept under the key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no body is stored under {key}")
        self.key = key


class KeptBody(NamedTuple):
    """What a list of bodies says of one."""

    key: str
    modified_at_ms: int
    """When it was written, Unix milliseconds, by the clock of whoever keeps it."""


class BodyStore(Protocol):
    """A place for large bodies. It lives in one event loop and does not hold it up.

    Every method may raise :class:`~leasehold.domain.errors.Unavailable`: the place cannot be
    reached, or failed; its cause says more.
    """

    @property
    def place(self) -> str:
        """Return where the bodies are, for people."""
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Keep *data*; when this returns it survives a power cut. All of it is kept, or nothing.

        Raises:
            StoreFull: There is no room.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Return what is kept under *key*.

        Raises:
            BodyMissing: Nothing is.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove what is kept under *key*; nothing is fine too."""
        ...

    async def read_mark(self) -> str | None:
        """Return the mark by which the place is known again; None if it has none."""
        ...

    async def write_mark(self, mark: str) -> None:
        """Give the place a mark; it survives a power cut.

        Raises:
            StoreFull: There is no room.
        """
        ...

    def pages(self) -> AsyncIterator[Sequence[KeptBody]]:
        """Go over everything that is kept, page by page, in any order.

        What is put or removed meanwhile may or may not be among it.
        """
        ...

    async def close(self) -> None:
        """Give everything back; nothing may be asked any more."""
        ...


def is_key(text: str) -> bool:
    """Tell whether *text* has the form of a key."""
    return _KEY.fullmatch(text) is not None


# --- directory ---------------------------------------------------------------------------------
#
# Large bodies as files, one each, in two levels of folders.


THREADS: Final = 8
"""Files read or written at once: enough that those who wait for the disk do not wait in line."""

_INCOMING: Final = "incoming"
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NS_PER_MS: Final = 1_000_000

_T = TypeVar("_T")


class DirectoryBodies:
    """Keeps each body in a file of its own: ``folder/K/KE/KEY``. See BodyStore.

    There are 4,096 folders, made when first needed, so that none holds very many files. A file is
    written elsewhere and then renamed: what has its name is whole.

    Args:
        folder: Made, for the owner alone, if it is missing.

    Raises:
        OSError: The folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._incoming = folder / _INCOMING
        self._made: set[Path] = set()
        """Folders that are known to be there, durably."""
        try:
            self._make_base()
        except OSError as error:
            if error.errno not in _NO_ROOM:  # consumers are wanted all the more then
                raise
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="bodies")

    @property
    def place(self) -> str:
        """See BodyStore."""
        return str(self._folder)

    async def put(self, key: str, data: bytes) -> None:
        """See BodyStore."""
        await self._in_thread(partial(self._write, key, data))

    async def get(self, key: str) -> bytes:
        """See BodyStore."""
        return await self._in_thread(partial(self._read, key))

    async def delete(self, key: str) -> None:
        """See BodyStore. A removal that a power cut undoes is noticed as an orphan later."""
        await self._in_thread(partial(self._remove, key))

    async def read_mark(self) -> str | None:
        """See BodyStore."""
        return await self._in_thread(self._read_mark)

    async def write_mark(self, mark: str) -> None:
        """See BodyStore."""
        await self._in_thread(partial(self._write_mark, mark))

    async def pages(self) -> AsyncIterator[Sequence[KeptBody]]:
        """See BodyStore. Files that were not written to their end are among them."""
        if self._incoming not in self._made:
            return
        for folder in await self._in_thread(lambda: list(self._folders())):
            found = await self._in_thread(partial(_list, folder))
            if found:
                yield found

    async def close(self) -> None:
        """See BodyStore."""
        await asyncio.to_thread(self._pool.shutdown)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except OSError as error:
            raise Unavailable from error

    # --- on a thread -------------------------------------------------------------------------

    def _write(self, key: str, data: bytes) -> None:
        incoming, path = self._incoming / key, self._path(key)
        try:
            if self._incoming not in self._made:
                self._make_base()
            write_file(incoming, data, mode=0o600, is_new=True)
            self._make_folder(path.parent)
            incoming.rename(path)
            sync(path.parent)
        except OSError as error:
            for each in (incoming, path):
                with contextlib.suppress(OSError):
                    each.unlink()
            if error.errno in _NO_ROOM:
                raise StoreFull from error
            raise

    def _read(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise BodyMissing(key) from None

    def _read_mark(self) -> str | None:
        try:
            return (self._folder / MARK_NAME).read_text(encoding="ascii")
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    def _write_mark(self, mark: str) -> None:
        new = self._folder / f"{MARK_NAME}.new"
        try:
            write_file(new, mark.encode("ascii"), mode=0o600)
            new.rename(self._folder / MARK_NAME)
            sync(self._folder)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise StoreFull from error
            raise

    def _remove(self, key: str) -> None:
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            (self._incoming / key).unlink(missing_ok=True)

    def _folders(self) -> Iterator[Path]:
        yield self._incoming
        for first in self._folder.iterdir():
            if first != self._incoming and first.is_dir():
                yield from (second for second in first.iterdir() if second.is_dir())

    def _make_base(self) -> None:
        make_folder(self._folder, mode=0o700)
        self._incoming.mkdir(mode=0o700, exist_ok=True)
        sync(self._folder)
        self._made.add(self._incoming)

    def _path(self, key: str) -> Path:
        assert is_key(key), key
        return self._folder / key[0] / key[:2] / key

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, so that a power cut cannot take them away."""
        if folder in self._made:
            return
        if folder.parent != self._folder:
            self._make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)
        self._made.add(folder)


def _list(folder: Path) -> list[KeptBody]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not is_key(entry.name):
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found.append(KeptBody(entry.name, entry.stat().st_mtime_ns // _NS_PER_MS))
    return found


# --- opening -----------------------------------------------------------------------------------
#
# From what the setting says to a place for bodies.


SCHEMES: Final = ("s3", "az", "gs", "memory")
"""What an address of an object store begins with; ``file`` is a folder."""


def open_bodies(where: str) -> BodyStore:
    """Open the place that *where* names: a folder, ``file://``, or one of SCHEMES.

    Raises:
        OSError: The folder cannot be used.
        ValueError: The address means nothing, or a library that it needs is not there.
    """
    scheme, separator, _ = where.partition("://")
    if not separator:
        return DirectoryBodies(Path(where))
    if scheme == "file":
        return DirectoryBodies(Path(unquote(urlsplit(where).path)))
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in ("file", *SCHEMES))
        raise ValueError(f"{where!r} is not a folder and does not begin with one of {known}")
    try:
        # Late, because only those need the library who keep bodies in an object store.
        from leasehold.bodies.objects import ObjectBodies  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"{where!r} needs the library {error.name}: {install('objects')}"
        ) from error
    return ObjectBodies(where)
