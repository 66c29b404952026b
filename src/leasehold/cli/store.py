"""``leasehold store``: stores themselves, while no server uses them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw
import click
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from leasehold.bodies import open_bodies
from leasehold.bodies.copies import MISSING, BadBody, check_bodies, copy_bodies
from leasehold.cli.output import Screen, clean, counted, facts, number
from leasehold.cli.remote import YES, ExitCode, LocalCommand, can_ask, confirm, refuse, tell_checks
from leasehold.cli.root import OrderedGroup
from leasehold.clock import SystemClock
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import BodyRef
from leasehold.extras import install
from leasehold.server.settings.values import StoreUrl
from leasehold.stores.migrate.checking import Checked, Reader, read_sqlite
from leasehold.stores.migrate.checking import check as checks_of
from leasehold.stores.migrate.ends import End, LargeBody, MoveRefused
from leasehold.stores.migrate.holds import Hold
from leasehold.stores.migrate.marks import begin_epoch
from leasehold.stores.migrate.migrate import Moved, Teller, Wanted, message_rows, move
from leasehold.stores.migrate.migrate import undo as undo_move
from leasehold.stores.migrate.sqlite import SqliteEnd
from leasehold.stores.sqlite.store import FILE_NAME

if TYPE_CHECKING:
    from types import ModuleType


_EPILOG: Final = """\b
Exit codes:
  0    success; with check: all checks passed
  1    refused, with the reason; with check: an error was found
  2    a mistake on the command line, or confirmation needs a terminal or --yes
  3    a store cannot be opened or reached
  4    with check: a warning was found
  130  Ctrl+C; both stores are unchanged
"""


@click.group("store", cls=OrderedGroup)
def group() -> None:
    """Check or move a store, move an account, or mark a store as restored.

    A store is the folder of a SQLite database, or the URL of a PostgreSQL database:
    postgresql://user@host/database?schema=NAME. Keep passwords in ~/.pgpass or PGPASSWORD: other
    users of this machine can read a URL.
    """


@group.command(cls=LocalCommand, epilog=_EPILOG)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def migrate(source: str, target: str, *, as_json: bool, no_color: bool) -> None:
    """Move everything from one store to another, which must be empty.

    Ids, receipts, leases, claims, counts and the event log stay as they are. Stop the servers of
    both stores first. The copy is compared with the original, by counts and digests, before the
    first store is marked as moved. A server refuses a marked store; nothing in it is removed.
    Large bodies stay where they are: only their keys move.

    Example: leasehold store migrate ./data postgresql://leasehold@db/queues
    """
    options = MoveOptions(source=source, target=target, account=None)
    sys.exit(run(options, as_json=as_json, no_color=no_color))


@group.command("move-account", cls=LocalCommand, epilog=_EPILOG)
@click.argument("account")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--new-receipts",
    is_flag=True,
    help="Move the account even if TO signs receipts with another key. Receipts that clients "
    "hold become invalid.",
)
@click.option(
    "--bodies-from",
    metavar="PLACE",
    help="Folder or URL of FROM's large bodies, as in its settings.",
)
@click.option(
    "--bodies-to",
    metavar="PLACE",
    help="Folder or URL for TO's large bodies, another than FROM's. They are copied.",
)
def move_account(  # noqa: PLR0913 - each is an option of the command
    account: str,
    source: str,
    target: str,
    *,
    new_receipts: bool,
    bodies_from: str | None,
    bodies_to: str | None,
    as_json: bool,
    no_color: bool,
) -> None:
    """Move one account from a store with several to another store.

    An empty store takes over the key of receipts, so all receipts stay valid: give an account its
    own store, with ?schema=NAME after a PostgreSQL URL. In a store in use, ids of messages may
    clash; then nothing is moved. Stop the servers of both stores first. The event log stays where
    it is. Afterwards the account is gone from FROM, which can be served again. To undo it, move the
    account back.

    Example: leasehold store move-account shop ./data 'postgresql://leasehold@db/queues?schema=shop'
    """
    if (bodies_from is None) != (bodies_to is None):
        raise click.UsageError("--bodies-from and --bodies-to need each other.")
    options = MoveOptions(
        source=source,
        target=target,
        account=account,
        new_receipts=new_receipts,
        bodies_from=bodies_from,
        bodies_to=bodies_to,
    )
    sys.exit(run(options, as_json=as_json, no_color=no_color))


@group.command(cls=LocalCommand, epilog=_EPILOG, params=[YES])
@click.argument("store")
@click.option("--copy", metavar="OTHER", help="Store that it was moved to.")
def undo(store: str, copy: str | None, *, yes: bool, as_json: bool, no_color: bool) -> None:
    """Let a marked store be served again.

    A moved store has no changes made since in the other store. The other store is marked in turn,
    so that only one of them is served.

    Example: leasehold store undo ./data --copy postgresql://leasehold@db/queues
    """
    sys.exit(run_undo(store, copy, yes=yes, as_json=as_json, no_color=no_color))


@group.command(cls=LocalCommand, epilog=_EPILOG, params=[YES])
@click.argument("store")
def restored(store: str, *, yes: bool, as_json: bool, no_color: bool) -> None:
    """Mark a store as restored from a backup, so that old receipts become invalid.

    Otherwise a receipt issued after the backup could act on a message that is leased to another
    worker now. A store in a folder mostly detects this itself, a store in PostgreSQL cannot. Run
    the command when the copy is in place and before workers continue. Messages that they hold are
    delivered again when their leases end.

    Example: leasehold store restored postgresql://leasehold@db/queues
    """
    sys.exit(run_restored(store, yes=yes, as_json=as_json, no_color=no_color))


@group.command(cls=LocalCommand, epilog=_EPILOG)
@click.argument("store")
def check(store: str, *, as_json: bool, no_color: bool) -> None:
    """Check that a store is consistent, without changing it. It may be served meanwhile.

    It checks the format, runs the database's own check, and compares counts with rows, bodies with
    messages, messages with queues, and the extent of the event log.

    Example: leasehold store check ./data
    """
    sys.exit(run_check(store, as_json=as_json, no_color=no_color))


# --- store run ---------------------------------------------------------------------------------
#
# What ``leasehold store migrate``, ``move-account``, ``undo`` and ``restored`` do.


_SHOWN: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """The arguments and options of the commands; see their help."""

    source: str
    target: str
    account: str | None
    new_receipts: bool = False
    bodies_from: str | None = None
    bodies_to: str | None = None


def run(options: MoveOptions, *, as_json: bool, no_color: bool) -> int:
    """Move a store or an account; return the exit code."""
    screen = Screen(as_json=as_json, no_color=no_color)
    return telling(screen, lambda: _run(options, screen))


def _run(options: MoveOptions, screen: Screen) -> int:
    clock = SystemClock()
    if options.bodies_from is not None and options.bodies_from == options.bodies_to:
        raise NoStore("--bodies-from and --bodies-to are the same place: each store needs its own")
    with ExitStack() as opened:
        source = opened.enter_context(open_end(options.source, new=False))
        target = opened.enter_context(open_end(options.target, new=True))
        progress = opened.enter_context(screen.progress())
        begun_s = clock.monotonic_s()
        wanted = Wanted(
            account=options.account,
            now_ms=clock.now_ms(),
            tell=progress_teller(progress),
            new_receipts=options.new_receipts,
            carry_bodies=_carrier(options, progress),
        )
        moved = move(source, target, wanted)
        took_s = clock.monotonic_s() - begun_s
        names = source.shown, target.shown
    if screen.as_json:
        screen.document(_plain(moved, names, options, took_s))
    else:
        _show(screen, moved, names, options, took_s)
    return ExitCode.DONE


def run_undo(store: str, copy: str | None, *, yes: bool, as_json: bool, no_color: bool) -> int:
    """Let a store that is marked be served again; return the exit code."""
    screen = Screen(as_json=as_json, no_color=no_color)
    if copy is not None and not yes:
        text = f"Serve {clean(store)} again, and lose the changes made in {clean(copy)} since?"
        confirm(screen, text, is_interactive=can_ask())
    return telling(screen, partial(_undo, store, copy, screen))


def _undo(store: str, copy: str | None, screen: Screen) -> int:
    with ExitStack() as opened:
        end: End = opened.enter_context(open_end(store, new=False))
        other = None if copy is None else opened.enter_context(open_end(copy, new=False))
        done = undo_move(end, other, SystemClock().now_ms())
    screen.result({"done": done}, done)
    return ExitCode.DONE


def run_restored(store: str, *, yes: bool, as_json: bool, no_color: bool) -> int:
    """Have a store begin a new epoch; return the exit code."""
    screen = Screen(as_json=as_json, no_color=no_color)
    if not yes:
        text = f"Make all receipts of {clean(store)} invalid?"
        confirm(screen, text, is_interactive=can_ask())
    return telling(screen, partial(_restored, store, screen))


def _restored(store: str, screen: Screen) -> int:
    with open_end(store, new=False) as end:
        epoch, shown = begin_epoch(end), end.shown
    screen.result(
        {"store": shown, "epoch": epoch},
        f"{shown} is in epoch {epoch} now: receipts from before are invalid.",
    )
    return ExitCode.DONE


def progress_teller(progress: Progress) -> Teller:
    """Return what shows a bar for each step of a move or a copy."""
    bars: dict[str, TaskID] = {}

    def tell(step: str, done: int, total: int) -> None:
        if step not in bars:
            bars[step] = progress.add_task(step, total=max(1, total), note="")
        note = f"{number(done)} of {counted(total, 'row')}"
        progress.update(bars[step], completed=done, note=note)

    return tell


def _carrier(
    options: MoveOptions, progress: Progress
) -> Callable[[Sequence[LargeBody]], None] | None:
    places = options.bodies_from, options.bodies_to
    if places[0] is None or places[1] is None:
        return None
    return partial(_carry_bodies, places[0], places[1], progress)


def _carry_bodies(place: str, other: str, progress: Progress, bodies: Sequence[LargeBody]) -> None:
    """Copy bodies; those that a run before this one copied are written again."""
    refs = [body.ref for body in bodies]
    bad = carry_bodies(refs, place, other, progress_teller(progress))
    missing = [body.key for body in bad if body.problem == MISSING]
    if missing:
        raise NoStore(
            f"bodies in {place}: {counted(len(missing), 'is', 'are')} missing, such as {missing[0]}"
        )
    for body in bad:
        progress.console.print(f"The body {body.key} is corrupt in {place}: copied as it is.")


def carry_bodies(
    refs: Sequence[BodyRef], place: str, other: str | None, tell: Teller
) -> list[BadBody]:
    """Copy large bodies to another place, or only check them if that is None.

    Returns:
        Those that are not as their messages say.

    Raises:
        NoStore: A place cannot be opened.
    """

    async def carry() -> list[BadBody]:
        async with AsyncExitStack() as opened:
            source = open_bodies(place)
            opened.push_async_callback(source.close)
            if other is None:
                return await check_bodies(refs, source, partial(tell, "Checking bodies"))
            target = open_bodies(other)
            opened.push_async_callback(target.close)
            return await copy_bodies(refs, source, target, partial(tell, "Copying bodies"))

    if not refs:
        return []
    try:
        return asyncio.run(carry())
    except ValueError as error:
        raise NoStore(f"bodies in {place}: {error}") from error


def is_place_of(database: Path, place: str | None) -> bool:
    """Tell whether a place has the mark that a copied database knows its place of bodies by."""
    with read_sqlite(database) as reader:
        marks = reader.rows("SELECT value FROM meta WHERE name = 'body_mark'")
    return bool(marks) and place is not None and asyncio.run(_mark_of(place)) == marks[0][0]


async def _mark_of(place: str) -> str | None:
    bodies = open_bodies(place)
    try:
        return await bodies.read_mark()
    finally:
        await bodies.close()


def mark_place(place: str) -> None:
    """Have a place of bodies accepted by the server that finds it first, whatever is in it."""

    async def mark() -> None:
        bodies = open_bodies(place)
        try:
            await bodies.write_mark("")
        finally:
            await bodies.close()

    asyncio.run(mark())


def hold_of_postgres(url: str) -> Hold:
    """Return a mark in a database that has its servers keep all large bodies."""
    hold: Hold = _module("leasehold.stores.migrate.postgres").PostgresHold(url)
    return hold


def _plain(
    moved: Moved, names: tuple[str, str], options: MoveOptions, took_s: float
) -> dict[str, object]:
    return {
        "from": names[0],
        "to": names[1],
        "account": options.account,
        "move_id": moved.move_id,
        "went_on": moved.went_on,
        "messages": message_rows(moved),
        "rows": moved.rows,
        "queues": [
            {"account": account, "queue": queue, "message_count": count}
            for account, queue, count in moved.queues
        ],
        "large_bodies": moved.large_bodies,
        "receipts_kept": moved.receipts_kept,
        "pause_s": round(took_s, 3),
    }


def _show(
    screen: Screen, moved: Moved, names: tuple[str, str], options: MoveOptions, took_s: float
) -> None:
    if moved.queues:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("account")
        table.add_column("queue")
        table.add_column("messages", justify="right")
        for account, queue, count in moved.queues[:_SHOWN]:
            table.add_row(Text(account), Text(queue), Text(number(count)))
        screen.show(table)
        if len(moved.queues) > _SHOWN:
            screen.say(f"... and {number(len(moved.queues) - _SHOWN)} more queues")
    rows = [
        ("messages", f"{number(message_rows(moved))} in all states"),
        ("rows", f"{number(sum(moved.rows.values()))}, the same in both by counts and digests"),
        ("receipts", "stay good" if moved.receipts_kept else "of before are void"),
        ("pause", f"{took_s:.1f} s"),
    ]
    if moved.large_bodies:
        where = (
            "stay in the body store: set the new server's bodies to the same place"
            if options.account is None
            else f"were copied to {options.bodies_to}"
        )
        rows.insert(2, ("large bodies", f"{number(moved.large_bodies)} {where}"))
    screen.show(facts(rows))
    if moved.went_on:
        screen.hint("An earlier run had copied and compared everything; this run finished it.")
    if options.account is None:
        screen.hint(
            f"Serve {names[1]} now. {names[0]} is marked as moved, and no server opens it; to come "
            "back: leasehold store undo."
        )
    else:
        screen.hint(
            f"Account {options.account} is in {names[1]} now, and gone from {names[0]}, whose "
            "server removes the old rows in the background."
        )


# --- store checking ----------------------------------------------------------------------------
#
# What ``leasehold store check`` does.


def run_check(store: str, *, as_json: bool, no_color: bool) -> int:
    """Check a store, show what was found, return the exit code."""
    screen = Screen(as_json=as_json, no_color=no_color)
    return telling(screen, lambda: _check(store, screen))


def _check(store: str, screen: Screen) -> int:
    found: list[Checked] = []
    with open_reader(store) as reader, screen.progress(total_known=False) as progress:
        bar = progress.add_task("Checking", total=None, note="")
        for each in checks_of(reader):
            found.append(each)
            progress.update(bar, advance=1, note=each.check)
    checks = [
        {"check": each.check, "level": each.level.name.lower(), "found": each.found}
        for each in found
    ]
    return tell_checks(screen, "checks", checks)


# --- store opening -----------------------------------------------------------------------------
#
# Stores as they are named on the command line, and how it is told that one cannot be used.


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
    if is_postgres(named):
        end = _postgres(named)
        try:
            yield end
        finally:
            end.close()
        return
    # Late: it is most of a server, and --help needs none of it.
    from leasehold.server.startup import DataLock, StartFailed  # noqa: PLC0415

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
    if is_postgres(named):
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
        return refuse(screen, str(refused), ExitCode.REFUSED, "refused")
    except (NoStore, LeaseholdError, apsw.Error, OSError) as error:
        text = str(error.__cause__ or error) if isinstance(error, LeaseholdError) else str(error)
        return refuse(screen, text, ExitCode.NO_CONNECTION, "no-store")
    except KeyboardInterrupt:
        return refuse(screen, "interrupted: nothing is moved", ExitCode.INTERRUPTED, "interrupted")
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "psycopg":
            raise
        text = str(error)
        if getattr(error, "sqlstate", None) is None and type(error).__name__ == "ProgrammingError":
            text = "the URL cannot be read"  # what the library says of it may have the password
        return refuse(screen, text, ExitCode.NO_CONNECTION, "no-store")


def is_postgres(named: str) -> bool:
    """Tell whether a store on the command line is a database, and not a folder."""
    return named.startswith(_SCHEMES)


@contextmanager
def snapshot_of_postgres(url: str) -> Iterator[End]:
    """Open a database as it is at one instant, while servers use it.

    Raises:
        NoStore: It cannot be opened.
    """
    end: Any = _postgres(url)
    try:
        end.begin_snapshot()
        yield end
        end.roll_back()
    finally:
        end.close()


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
    end: End = _module("leasehold.stores.migrate.postgres").PostgresEnd(url)
    return end


@contextmanager
def _reading(url: str) -> Iterator[Reader]:
    with _module("leasehold.stores.migrate.postgres").read_postgres(url) as reader:
        yield reader
