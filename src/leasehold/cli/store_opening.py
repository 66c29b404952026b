"""Stores as they are named on the command line, and how it is told that one cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
from rich.text import Text

from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.rendering import Screen
from leasehold.cli.texts import clean
from leasehold.domain.errors import LeaseholdError
from leasehold.extras import install
from leasehold.http.startup import DataLock, StartFailed
from leasehold.settings.values import StoreUrl
from leasehold.stores.moving.checking import Reader, read_sqlite
from leasehold.stores.moving.ends import End, MoveRefused
from leasehold.stores.moving.sqlite_end import SqliteEnd
from leasehold.stores.sqlite.store import FILE_NAME

if TYPE_CHECKING:
    from types import ModuleType

_SCHEMES = ("postgresql://", "postgres://")


class NoStore(Exception):
    """A store cannot be opened. The text says why."""


@contextmanager
def open_end(named: str, *, new: bool) -> Iterator[End]:
    """Open a store to move it, or to move something into it.

    Args:
        named: A folder or a URL.
        new: Whether it may be made.

    Raises:
        NoStore: It cannot be opened, or a server uses it.
    """
    if named.startswith(_SCHEMES):
        end = _postgres(named)
        try:
            yield end
        finally:
            end.close()
        return
    folder = _folder(named, new=new)
    try:
        with DataLock(folder):
            sqlite = SqliteEnd(folder)
            try:
                yield sqlite
            finally:
                sqlite.close()
    except StartFailed as failure:
        raise NoStore(str(failure)) from failure


@contextmanager
def open_reader(named: str) -> Iterator[Reader]:
    """Open a store to read it.

    Raises:
        NoStore: It cannot be opened.
    """
    if named.startswith(_SCHEMES):
        with _reading(named) as reader:
            yield reader
    else:
        with read_sqlite(_folder(named, new=False) / FILE_NAME) as reader:
            yield reader


def telling(screen: Screen, work: Callable[[], int]) -> int:
    """Do something with stores; print what goes wrong, and return the exit code."""
    try:
        return work()
    except MoveRefused as refused:
        return _refuse(screen, ExitCode.REFUSED, "refused", str(refused))
    except (NoStore, LeaseholdError, apsw.Error, OSError) as error:
        text = str(error.__cause__ or error) if isinstance(error, LeaseholdError) else str(error)
        return _refuse(screen, ExitCode.NO_CONNECTION, "no-store", text)
    except KeyboardInterrupt:
        return _refuse(screen, ExitCode.INTERRUPTED, "interrupted", "interrupted: nothing is moved")
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "psycopg":
            raise
        text = str(error)
        if getattr(error, "sqlstate", None) is None and type(error).__name__ == "ProgrammingError":
            text = "the URL cannot be read"  # what the library says of it may have the password
        return _refuse(screen, ExitCode.NO_CONNECTION, "no-store", text)


def _folder(named: str, *, new: bool) -> Path:
    if "://" in named:
        raise NoStore(f"{named}: a store is a folder, or begins with postgresql://")
    folder = Path(named)
    if not new and not (folder / FILE_NAME).exists():
        raise NoStore(f"there is no store in {folder}")
    return folder


def _module(name: str) -> ModuleType:
    """Import what needs the library of PostgreSQL."""
    # Late, because a store in a folder must do without it.
    from importlib import import_module  # noqa: PLC0415

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise NoStore(
            f"PostgreSQL needs the library {error.name}: {install('postgres')}"
        ) from error


def _postgres(url: str) -> End:
    try:
        StoreUrl(url)
    except ValueError as error:
        raise NoStore(f"the URL of a store {error}") from None
    end: End = _module("leasehold.stores.moving.postgres_end").PostgresEnd(url)
    return end


@contextmanager
def _reading(url: str) -> Iterator[Reader]:
    with _module("leasehold.stores.moving.postgres_reader").read_postgres(url) as reader:
        yield reader


def _refuse(screen: Screen, code: ExitCode, kind: str, text: str) -> int:
    if screen.as_json:
        screen.error_line({"error": {"code": kind, "detail": text}})
    else:
        screen.error(Text.assemble(("Error: ", "bold red"), clean(text)))
    return code
