"""``leasehold backup`` and ``leasehold restore``: copies of stores."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from leasehold import __version__
from leasehold.cli.output import Screen, clean, counted, facts, number, size
from leasehold.cli.remote import ExitCode, LocalCommand
from leasehold.cli.store import (
    NoStore,
    copy_bodies,
    is_postgres,
    open_end,
    progress_teller,
    snapshot_of_postgres,
    telling,
)
from leasehold.clock import SystemClock
from leasehold.stores.migrate.backup import (
    copy_database,
    copy_store,
    digest_of,
    large_body_keys,
)
from leasehold.stores.migrate.checking import Level, read_sqlite
from leasehold.stores.migrate.checking import check as checks_of
from leasehold.stores.migrate.ends import MoveRefused
from leasehold.stores.migrate.migrate import Teller
from leasehold.stores.migrate.sqlite import SqliteEnd
from leasehold.stores.sqlite.store import FILE_NAME

MANIFEST: Final = "backup.json"
"""Written last: a folder without it holds a backup that was not finished."""
BODIES: Final = "bodies"
_TRIES: Final = 5
"""Copies of the database until one names no body that is gone meanwhile."""
_EPILOG: Final = """\b
Exit codes:
  0    done
  1    refused, with the reason; or what was copied is not whole
  2    a mistake in the command line
  3    a store cannot be opened or reached
  130  Ctrl+C
"""


@click.command(cls=LocalCommand, epilog=_EPILOG)
@click.argument("store")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--bodies",
    metavar="PLACE",
    help="Where the server keeps large bodies, if its settings name a place.",
)
def backup(store: str, folder: Path, bodies: str | None, *, as_json: bool, no_color: bool) -> None:
    """Back up a store while servers use it, and check the backup.

    STORE is the data folder of a server, or the URL of a PostgreSQL database. FOLDER must be empty
    or new. The copy is of one instant: a SQLite database, large bodies, and backup.json, which says
    what it is. It can be restored to a folder or to PostgreSQL, whatever it came from.

    Example: leasehold backup ./data /backups/2026-11-25
    """
    screen = Screen(as_json=as_json, no_color=no_color)
    sys.exit(telling(screen, partial(_backup, store, folder, bodies, screen)))


@click.command(cls=LocalCommand, epilog=_EPILOG)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("store")
@click.option(
    "--bodies",
    metavar="PLACE",
    help="Where the server is to keep large bodies, if its settings name a place.",
)
def restore(folder: Path, store: str, bodies: str | None, *, as_json: bool, no_color: bool) -> None:
    """Restore a store from a backup, which is checked first.

    STORE is a new or empty folder, or the URL of a PostgreSQL database without queues; no server
    uses it yet. Receipts that were given out before the backup are void afterwards, and what was on
    leases comes back when these end.

    Example: leasehold restore /backups/2026-11-25 ./data
    """
    screen = Screen(as_json=as_json, no_color=no_color)
    sys.exit(telling(screen, partial(_restore, folder, store, bodies, screen)))


# --- backup ------------------------------------------------------------------------------------


def _backup(store: str, folder: Path, bodies: str | None, screen: Screen) -> int:
    clock = SystemClock()
    begun_ms = clock.now_ms()
    if folder.exists() and any(folder.iterdir()):
        raise MoveRefused(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    place = bodies or (None if is_postgres(store) else str(Path(store) / BODIES))
    database = folder / FILE_NAME
    with screen.progress() as progress:
        tell = progress_teller(progress)
        for _ in range(_TRIES):
            database.unlink(missing_ok=True)
            _copy_to(database, store, tell)
            keys = large_body_keys(database)
            missing = _copy_bodies(keys, place, str(folder / BODIES), tell)
            if not missing:
                break
        else:
            raise MoveRefused(
                f"{counted(len(missing), 'large body', 'large bodies')} that the store names "
                f"cannot be found in {place or 'any place that was named: see --bodies'}"
            )
        messages = _checked(database)
    manifest = {
        "leasehold": __version__,
        "store": clean(_shown(store)),
        "begun_at_ms": begun_ms,
        "ended_at_ms": clock.now_ms(),
        "messages": messages,
        "large_bodies": len(keys),
        "database_bytes": database.stat().st_size,
        "database_sha256": digest_of(database),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    _tell(screen, f"{folder} has a backup, which was checked.", manifest)
    return ExitCode.DONE


def _copy_to(database: Path, store: str, tell: Teller) -> None:
    if not is_postgres(store):
        source = Path(store) / FILE_NAME
        if not source.exists():
            raise NoStore(f"there is no store in {store}")
        copy_database(source, database)
        return
    # A store of its own, of which only the database is kept: what else is in its folder says where
    # it is used.
    with tempfile.TemporaryDirectory(dir=database.parent) as made:
        with snapshot_of_postgres(store) as source_end:
            target = SqliteEnd(Path(made))
            try:
                copy_store(source_end, target, SystemClock().now_ms(), tell)
            finally:
                target.close()
        (Path(made) / FILE_NAME).rename(database)


def _copy_bodies(keys: Sequence[str], place: str | None, other: str, tell: Teller) -> list[str]:
    """Copy bodies; return the keys of those that are not there."""
    if not keys or place is None:
        return list(keys)
    return copy_bodies(keys, place, other, tell)


def _checked(database: Path) -> int:
    """Check a database that no server uses; return how many messages it has.

    Raises:
        MoveRefused: Something is wrong with it.
    """
    with read_sqlite(database) as reader:
        wrong = [each for each in checks_of(reader) if each.level is Level.FAIL]
        if wrong:
            raise MoveRefused(f"{database} is not whole: {wrong[0].check}: {wrong[0].found}")
        [(messages,)] = reader.rows("SELECT count(*) FROM message")
    return int(messages)


# --- restore -----------------------------------------------------------------------------------


def _restore(folder: Path, store: str, bodies: str | None, screen: Screen) -> int:
    manifest = _read(folder)
    database = folder / FILE_NAME
    if digest_of(database) != manifest["database_sha256"]:
        raise MoveRefused(f"{database} is not the database that was backed up")
    _checked(database)
    keys = large_body_keys(database)
    place = bodies or (None if is_postgres(store) else str(Path(store) / BODIES))
    if keys and place is None:
        raise MoveRefused(
            f"the backup has {counted(len(keys), 'large body', 'large bodies')}: "
            "say with --bodies where the server is to keep them"
        )
    with screen.progress() as progress:
        tell = progress_teller(progress)
        with _target(store) as make:
            missing = _copy_bodies(keys, str(folder / BODIES), place or "", tell)
            if missing:
                raise MoveRefused(f"the backup lacks {len(missing)} of its large bodies")
            make(database, tell)
    _tell(screen, f"{_shown(store)} is restored: start the server.", manifest)
    return ExitCode.DONE


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        raise MoveRefused(f"{folder} has no {MANIFEST}: it is no backup, or one not finished")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        wanted = {"database_sha256", "messages", "large_bodies"}
        if not isinstance(found, dict) or not wanted <= found.keys():
            raise ValueError  # noqa: TRY301 - as when it is no JSON
    except ValueError:
        raise MoveRefused(f"{path} cannot be read") from None
    return found


@contextmanager
def _target(store: str) -> Iterator[Callable[[Path, Teller], None]]:
    """Give what makes the store of a database; it is refused first if it is in use."""
    if is_postgres(store):
        with open_end(store, new=True) as end:

            def fill(database: Path, tell: Teller) -> None:
                # Opened as a server would, which sees that it was restored and draws a new key.
                with tempfile.TemporaryDirectory() as made:
                    shutil.copyfile(database, Path(made) / FILE_NAME)
                    source = SqliteEnd(Path(made))
                    try:
                        source.lock()
                        copy_store(source, end, SystemClock().now_ms(), tell)
                    finally:
                        source.roll_back()
                        source.close()

            yield fill
        return
    folder = Path(store)
    if folder.exists() and any(folder.iterdir()):
        raise MoveRefused(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)

    def copy(database: Path, tell: Teller) -> None:
        del tell
        # Under another name until it is whole. There is no file `epoch`, by which the server sees
        # that the database was restored.
        partial_file = folder / f"{FILE_NAME}.partial"
        shutil.copyfile(database, partial_file)
        partial_file.rename(folder / FILE_NAME)

    yield copy


def _shown(store: str) -> str:
    """Return a store for people: without a password."""
    if not is_postgres(store):
        return str(Path(store).resolve())
    from leasehold.stores.migrate.postgres import without_password  # noqa: PLC0415 - an extra

    return without_password(store)


def _tell(screen: Screen, done: str, manifest: dict[str, Any]) -> None:
    if screen.as_json:
        screen.document(manifest)
        return
    screen.say(done)
    screen.show(
        facts(
            [
                ("messages", f"{number(manifest['messages'])} in all states"),
                ("large bodies", number(manifest["large_bodies"])),
                ("database", size(manifest["database_bytes"])),
            ]
        )
    )
