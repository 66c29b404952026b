"""``leasehold backup`` and ``leasehold restore``: copies of stores."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from leasehold import __version__
from leasehold.bodies.copies import MISSING, BadBody
from leasehold.cli.output import Screen, clean, counted, facts, number, size
from leasehold.cli.remote import WARNED, ExitCode, LocalCommand
from leasehold.cli.store import (
    NoStore,
    carry_bodies,
    hold_of_postgres,
    is_place_of,
    is_postgres,
    mark_place,
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
    large_bodies,
    read_manifest,
    sealed_manifest,
)
from leasehold.stores.migrate.checking import Level, read_sqlite
from leasehold.stores.migrate.checking import check as checks_of
from leasehold.stores.migrate.ends import LargeBody, MoveRefused
from leasehold.stores.migrate.holds import FileHold, Hold, HoldFailed, keep_bodies
from leasehold.stores.migrate.migrate import Teller
from leasehold.stores.migrate.sqlite import SqliteEnd
from leasehold.stores.sqlite.store import FILE_NAME

MANIFEST: Final = "backup.json"
"""Written last: a folder without it holds a backup that was not finished."""
BODIES: Final = "bodies"
_TRIES: Final = 5
"""Copies of the database, until one names no body that is gone or the same are gone as before.

One is enough where servers keep the bodies; of some they cannot be told, and a mark can end."""
_SHOWN: Final = 5
_EPILOG: Final = """\b
Exit codes:
  0    success
  1    refused, with the reason; or the copy is incomplete
  2    a mistake on the command line
  3    a store cannot be opened or reached
  4    done; the store itself has large bodies that are missing or corrupt
  130  Ctrl+C
"""


@click.command(cls=LocalCommand, epilog=_EPILOG)
@click.argument("store")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--bodies",
    metavar="PLACE",
    help="Folder or URL of the server's large bodies, if its settings name one.",
)
def backup(store: str, folder: Path, bodies: str | None, *, as_json: bool, no_color: bool) -> None:
    """Back up a store while servers use it, and check the backup.

    STORE is the data folder of a server, or the URL of a PostgreSQL database. FOLDER must be empty
    or new. The backup is of one instant: a SQLite database, large bodies, and backup.json with a
    description. It can be restored to a folder or to PostgreSQL, from either.

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
    help="Folder or URL for the server's large bodies, if its settings name one.",
)
@click.option(
    "--accept-bad-bodies",
    is_flag=True,
    help="Restore although large bodies of the backup are missing or corrupt.",
)
def restore(  # noqa: PLR0913 - each is an option of its own
    folder: Path,
    store: str,
    bodies: str | None,
    *,
    accept_bad_bodies: bool,
    as_json: bool,
    no_color: bool,
) -> None:
    """Check a backup, and restore a store from it.

    STORE is a new or empty folder, or the URL of a PostgreSQL database without queues, that no
    server uses. Receipts from before the backup become invalid, and leased messages are delivered
    again when their leases end.

    Example: leasehold restore /backups/2026-11-25 ./data
    """
    screen = Screen(as_json=as_json, no_color=no_color)
    work = partial(_restore, folder, store, bodies, screen, accepts=accept_bad_bodies)
    sys.exit(telling(screen, work))


# --- backup ------------------------------------------------------------------------------------


def _backup(store: str, folder: Path, bodies: str | None, screen: Screen) -> int:
    clock = SystemClock()
    begun_ms = clock.now_ms()
    if folder.exists() and any(folder.iterdir()):
        raise MoveRefused(f"{folder} is not empty")
    if not is_postgres(store) and not (Path(store) / FILE_NAME).exists():
        raise NoStore(f"there is no store in {store}")
    folder.mkdir(parents=True, exist_ok=True)
    place = bodies or (None if is_postgres(store) else str(Path(store) / BODIES))
    database = folder / FILE_NAME
    with screen.progress() as progress, ExitStack() as opened:
        tell = progress_teller(progress)
        with suppress(HoldFailed):
            opened.enter_context(keep_bodies(_hold_of(store, clock)))
        missing: set[str] | None = None
        for _ in range(_TRIES):
            database.unlink(missing_ok=True)
            _copy_to(database, store, tell)
            named = large_bodies(database)
            bad = _copy_bodies(named, place, folder / BODIES, tell)
            before, missing = missing, {body.key for body in bad if body.problem == MISSING}
            if not missing or missing == before:
                break
        messages = _checked(database)
    if missing and len(missing) == len(named) and not is_place_of(database, place):
        raise MoveRefused(
            f"{counted(len(bad), 'large body', 'large bodies')} that the store names cannot be "
            f"found in {place or 'any place named with --bodies'}"
        )
    manifest = sealed_manifest(
        {
            "leasehold": __version__,
            "store": clean(_shown(store)),
            "begun_at_ms": begun_ms,
            "ended_at_ms": clock.now_ms(),
            "messages": messages,
            "large_bodies": len(named),
            "bad_bodies": _named_bad(named, bad),
            "database_bytes": database.stat().st_size,
            "database_sha256": digest_of(database),
        }
    )
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")
    _tell(screen, f"{folder} has a backup, which was checked.", json.loads(manifest))
    return WARNED if bad else ExitCode.DONE


def _hold_of(store: str, clock: SystemClock) -> Hold:
    """Return a mark that has the servers of a store keep all large bodies."""
    return hold_of_postgres(store) if is_postgres(store) else FileHold(Path(store), clock.now_ms)


def _named_bad(named: Sequence[LargeBody], bad: Sequence[BadBody]) -> list[dict[str, str | None]]:
    """Return bodies that are not as their messages say, with the ids of these."""
    by_key = {body.key: body for body in bad}
    return [
        {"message_id": body.message_id, **by_key[body.ref.key]._asdict()}
        for body in named
        if body.ref.key in by_key
    ]


def _copy_to(database: Path, store: str, tell: Teller) -> None:
    if not is_postgres(store):
        copy_database(Path(store) / FILE_NAME, database)
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


def _copy_bodies(
    named: Sequence[LargeBody], place: str | None, other: Path | str, tell: Teller
) -> list[BadBody]:
    """Copy bodies; return those that are not as their messages say."""
    refs = [body.ref for body in named]
    if refs and place is None:
        return [BadBody(ref.key, MISSING, None) for ref in refs]
    return carry_bodies(refs, place or "", str(other), tell)


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


def _restore(folder: Path, store: str, bodies: str | None, screen: Screen, *, accepts: bool) -> int:
    manifest = _read(folder)
    database = folder / FILE_NAME
    if not database.is_file() or digest_of(database) != manifest["database_sha256"]:
        raise MoveRefused(f"{database} is not the database that was backed up")
    _checked(database)
    named = large_bodies(database)
    place = bodies or (None if is_postgres(store) else str(Path(store) / BODIES))
    if named and place is None:
        raise MoveRefused(
            f"the backup has {counted(len(named), 'large body', 'large bodies')}: "
            "say with --bodies where the server is to keep them"
        )
    with screen.progress() as progress:
        tell = progress_teller(progress)
        bad = _checked_bodies(folder, named, tell)
        if not accepts:
            _refuse_new(bad, manifest["bad_bodies"])
        missing = {body.key for body in bad if body.problem == MISSING}
        with _target(store) as make:
            present = [body for body in named if body.ref.key not in missing]
            copied = _copy_bodies(present, str(folder / BODIES), place or "", tell)
            if set(copied) - set(bad):
                raise MoveRefused(f"{folder} was changed meanwhile; {place} is not whole")
            make(database, tell)
        if place is not None:
            mark_place(place)
    manifest["bad_bodies"] = _named_bad(named, bad)
    _tell(screen, f"{_shown(store)} is restored: start the server.", manifest)
    return WARNED if bad else ExitCode.DONE


def _checked_bodies(folder: Path, named: Sequence[LargeBody], tell: Teller) -> list[BadBody]:
    """Return the bodies of a backup that are not as their messages say."""
    place = folder / BODIES
    if not place.is_dir():
        return [BadBody(body.ref.key, MISSING, None) for body in named]
    return carry_bodies([body.ref for body in named], str(place), None, tell)


def _refuse_new(bad: Sequence[BadBody], known: Sequence[Mapping[str, Any]] | None) -> None:
    """Refuse a backup that has not the bodies that it was made with.

    Args:
        bad: Bodies that are not as their messages say.
        known: Those that were so when it was made; None if that was not looked at, as in 0.1.0.

    Raises:
        MoveRefused: It is one.
    """
    if known is None:
        return
    before = {BadBody(body["key"], body["problem"], body["sha256"]) for body in known}
    new = [body for body in bad if body not in before]
    if not new:
        return
    shown = ", ".join(f"{body.key} is {body.problem}" for body in new[:_SHOWN])
    more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
    raise MoveRefused(
        f"{counted(len(new), 'large body', 'large bodies')} of the backup "
        f"{'is' if len(new) == 1 else 'are'} not as backed up: {shown}{more}. To restore the rest, "
        "add --accept-bad-bodies"
    )


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        raise MoveRefused(f"{folder} has no {MANIFEST}: it is no backup, or one not finished")
    try:
        return read_manifest(path.read_bytes())
    except ValueError as error:
        raise MoveRefused(f"{path} cannot be read: {error}") from None


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
    for bad in manifest["bad_bodies"]:
        screen.say(f"The body of message {bad['message_id']} is {bad['problem']} in the store.")
