"""``leasehold store``: stores themselves, while no server uses them."""

from __future__ import annotations

import sys
from typing import Final

import click

from leasehold.cli.remote import YES
from leasehold.cli.root import OrderedGroup
from leasehold.cli.worker import LocalCommand

_EPILOG: Final = """\b
Exit codes:
  0    done; with check: all is well
  1    refused, with the reason; with check: something is wrong
  2    a mistake in the command line, or no terminal to confirm at and no --yes
  3    a store cannot be opened or reached
  4    with check: something may go wrong
  130  Ctrl+C; both stores are as they were
"""


class StoreCommand(LocalCommand):
    """The same as for workers, with other ends."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **settings)
        self.epilog = _EPILOG


@click.group("store", cls=OrderedGroup)
def group() -> None:
    """Check a store; move it, or an account of it, to another; tell it that it was restored.

    A store is named by the folder of a SQLite database, or by the URL of a PostgreSQL database:
    postgresql://user@host/database?schema=NAME. Passwords are better kept in ~/.pgpass or in
    PGPASSWORD than in a URL, which other users of this machine can read.
    """


@group.command(cls=StoreCommand)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def migrate(source: str, target: str, *, as_json: bool, no_color: bool) -> None:
    """Move all that is in one store to another, which must be empty.

    Ids, receipts, leases, claims, counts and the event log stay as they are. No client is served
    from either store meanwhile: stop the servers first. What has arrived is compared with what was
    there, by counts and digests, before the first store is marked as moved. A server refuses a
    store that is marked; nothing in it is removed. Large bodies stay where they are: only their
    keys move.

    Example: leasehold store migrate ./data postgresql://leasehold@db/queues
    """
    # Late: --help needs neither database.
    from leasehold.cli import store_run  # noqa: PLC0415

    wishes = store_run.Wishes(source=source, target=target, account=None)
    sys.exit(store_run.run(wishes, as_json=as_json, no_color=no_color))


@group.command("move-account", cls=StoreCommand)
@click.argument("account")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--new-receipts",
    is_flag=True,
    help="Move also if TO seals receipts with another key, so that those clients hold are void.",
)
@click.option(
    "--bodies-from", metavar="PLACE", help="Where FROM keeps large bodies, as in its settings."
)
@click.option(
    "--bodies-to",
    metavar="PLACE",
    help="Where TO keeps large bodies: a place of its own. They are copied.",
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

    An empty store takes over the key of receipts too, so all that clients hold stays good: give an
    account a store of its own, with ?schema=NAME behind a PostgreSQL URL. In a store that is in use
    ids of messages may clash; then nothing is moved. No client is served from either store
    meanwhile. The event log stays where it is. In the end the account is gone from FROM, which can
    be served again; to undo it, move the account back.

    Example: leasehold store move-account shop ./data 'postgresql://leasehold@db/queues?schema=shop'
    """
    if (bodies_from is None) != (bodies_to is None):
        raise click.UsageError("--bodies-from and --bodies-to go together.")
    # Late: --help needs neither database.
    from leasehold.cli import store_run  # noqa: PLC0415

    wishes = store_run.Wishes(
        source=source,
        target=target,
        account=account,
        new_receipts=new_receipts,
        bodies_from=bodies_from,
        bodies_to=bodies_to,
    )
    sys.exit(store_run.run(wishes, as_json=as_json, no_color=no_color))


@group.command(cls=StoreCommand, params=[YES])
@click.argument("store")
@click.option("--copy", metavar="OTHER", help="The store that it was moved to.")
def undo(store: str, copy: str | None, *, yes: bool, as_json: bool, no_color: bool) -> None:
    """Let a store that is marked be served again.

    A store that was moved is as it was when it was moved: what was done in the other store since is
    not in it. The other store is marked in turn, so that never both are served.

    Example: leasehold store undo ./data --copy postgresql://leasehold@db/queues
    """
    # Late: --help needs neither database.
    from leasehold.cli import store_run  # noqa: PLC0415

    sys.exit(store_run.undo(store, copy, yes=yes, as_json=as_json, no_color=no_color))


@group.command(cls=StoreCommand, params=[YES])
@click.argument("store")
def restored(store: str, *, yes: bool, as_json: bool, no_color: bool) -> None:
    """Tell a store that it was restored from a backup, so that old receipts are void.

    Without that, a receipt that was given out after the copy was made could act on a message that
    is on somebody else's lease now. A store in a folder mostly notices by itself, one in PostgreSQL
    cannot. Run it when the copy is in place and before workers go on. What they hold is delivered
    again when its lease ends.

    Example: leasehold store restored postgresql://leasehold@db/queues
    """
    # Late: --help needs neither database.
    from leasehold.cli import store_run  # noqa: PLC0415

    sys.exit(store_run.restored(store, yes=yes, as_json=as_json, no_color=no_color))


@group.command(cls=StoreCommand)
@click.argument("store")
def check(store: str, *, as_json: bool, no_color: bool) -> None:
    """Check that a store is whole; it may be served meanwhile, and nothing is changed.

    Looks at the format, has the database check itself, and compares what must agree: counts with
    rows, bodies with messages, messages with queues, the extent of the event log.

    Example: leasehold store check ./data
    """
    # Late: --help needs neither database.
    from leasehold.cli import store_run  # noqa: PLC0415

    sys.exit(store_run.run_check(store, as_json=as_json, no_color=no_color))
