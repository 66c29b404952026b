"""Opens the store that the settings name, and what goes with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from leasehold.clock import Clock
from leasehold.domain.errors import LeaseholdError, Unavailable
from leasehold.engine.heralding import Peers
from leasehold.extras import install
from leasehold.http.startup import DataLock, ExitCode, StartFailed
from leasehold.settings import Settings, StoreUrl
from leasehold.stores.base import Store
from leasehold.stores.moving.marks import StoreMoved
from leasehold.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from leasehold.stores.postgres.connection import Address

START_PATIENCE_S: Final = 60.0
"""How long a server that is started waits for a database that cannot be reached."""
_PAUSE_S: Final = 1.0
_MIB: Final = 1024 * 1024

_log = structlog.get_logger(__name__)


class Opened(NamedTuple):
    """A store, and what goes with it."""

    store: Store
    clock: Clock
    """What messages go by: the system's clock, or that of the database."""
    peers: Peers | None
    """The link to other servers; None if the store is this server's alone."""


def data_lock(settings: Settings) -> contextlib.AbstractContextManager[object]:
    """Return what keeps other servers off the data folder; nothing where it is not used."""
    return DataLock(settings.data) if settings.store_url is None else contextlib.nullcontext()


async def open_store(
    settings: Settings, system: Clock, *, patience_s: float = START_PATIENCE_S
) -> Opened:
    """Open the store.

    Args:
        settings: Say which.
        system: The system's clock.
        patience_s: How long to wait for a database that cannot be reached.

    Raises:
        StartFailed: It cannot be opened.
    """
    if settings.store_url is None:
        return Opened(_open_folder(settings), system, None)
    _warn_of_folders(settings)
    return await _open_shared(settings.store_url, settings, system, patience_s)


class Placed(NamedTuple):
    """A store of accounts that are not kept with the others."""

    accounts: tuple[str, ...]
    opened: Opened


async def open_account_stores(
    settings: Settings, system: Clock, *, patience_s: float = START_PATIENCE_S
) -> list[Placed]:
    """Open the stores of accounts that have their own, each once.

    Raises:
        StartFailed: One cannot be opened; those that were opened are closed.
    """
    by_url: dict[StoreUrl, list[str]] = {}
    for each in settings.account_stores:
        by_url.setdefault(each.url, []).append(each.account)
    placed: list[Placed] = []
    try:
        for url, accounts in by_url.items():
            opened = await _open_shared(url, settings, system, patience_s)
            placed.append(Placed(tuple(accounts), opened))
    except StartFailed:
        for each_placed in placed:
            each_placed.opened.store.close()
        raise
    return placed


def refuse_accounts_away(settings: Settings, store: Store, placed: Sequence[Placed]) -> None:
    """Let nobody look for an account in a store that it has left.

    Raises:
        StartFailed: The settings would have it so.
    """
    elsewhere = {account for each in placed for account in each.accounts}
    own = {each.name for each in settings.effective_accounts()} - elsewhere
    for names, each_store in ((own, store), *((set(e.accounts), e.opened.store) for e in placed)):
        away = sorted(names & each_store.away)
        if away:
            raise StartFailed(
                ExitCode.STORE_FAILED,
                f"account {away[0]} was moved away from its store: name the store that it is in "
                "now in account_stores, or take the account out of the settings",
            )


def _open_folder(settings: Settings) -> SqliteStore:
    try:
        store = SqliteStore(
            settings.data,
            cache_mib=settings.sqlite_cache_mib,
            reserve_bytes=settings.disk_reserve_mib * _MIB,
        )
    except (LeaseholdError, OSError) as error:
        reason = f"the store in {settings.data} cannot be opened: {error.__cause__ or error}"
        raise StartFailed(ExitCode.STORE_FAILED, reason) from error
    if not store.health().writable:
        free = shutil.disk_usage(settings.data).free
        _log.warning(
            "store.reserve_does_not_fit",
            disk_reserve_mib=settings.disk_reserve_mib,
            free_mib=free // _MIB,
            consequence="puts are refused with 503 until there is room for the reserve; consumers "
            "go on. Make room, or set a smaller disk_reserve_mib",
        )
    if store.put_back:
        _log.warning(
            "store.put_back",
            meaning="the database comes from a copy; receipts from before are void",
        )
    return store


def _warn_of_folders(settings: Settings) -> None:
    folders = {"bodies": settings.bodies, "events_folder": settings.events_folder}
    for name, place in folders.items():
        if place and "://" not in str(place):
            _log.warning(
                "server.local_folder",
                setting=name,
                folder=str(place),
                meaning="every server of this database must see the same files in it",
            )


async def _open_shared(
    url: StoreUrl, settings: Settings, system: Clock, patience_s: float
) -> Opened:
    """Open a store that other servers may use as well; wait for the database for a while."""
    try:
        # Late, because the library is an extra.
        import psycopg  # noqa: PLC0415

        from leasehold.stores.postgres.connection import Address  # noqa: PLC0415
    except ImportError as error:
        raise StartFailed(
            ExitCode.SETTINGS,
            f"store_url: PostgreSQL needs the library psycopg: {install('postgres')}",
        ) from error
    try:
        address = Address.parse(url.reveal())
        psycopg.conninfo.conninfo_to_dict(address.conninfo)
    except (ValueError, psycopg.ProgrammingError):
        # The text of the error may have the password.
        raise StartFailed(
            ExitCode.SETTINGS,
            f"store_url: {url!r} cannot be read: a parameter that PostgreSQL does not know, or a "
            "% in front of something that is no code",
        ) from None
    until_s = system.monotonic_s() + patience_s
    while True:
        try:
            return await asyncio.to_thread(
                _connect, url, address, is_virtual=settings.clock == "virtual"
            )
        except (psycopg.Error, LeaseholdError) as error:
            cause = _first_cause(error)
            reason = " ".join(str(cause).split())
            left_s = until_s - system.monotonic_s()
            may_pass = isinstance(cause, psycopg.OperationalError | Unavailable)
            may_pass = may_pass and not isinstance(cause, StoreMoved)
            if not may_pass or left_s <= 0:
                raise StartFailed(
                    ExitCode.STORE_FAILED, f"the store at {url!r} cannot be opened: {reason}"
                ) from None
            _log.warning(
                "store.unreachable", store=repr(url), reason=reason, gives_up_in_s=round(left_s)
            )
        await asyncio.sleep(_PAUSE_S)


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _connect(url: StoreUrl, address: Address, *, is_virtual: bool) -> Opened:
    """Open the store, and the link to its other servers.

    Batches with the time of a virtual clock are not held against the time that servers share.
    """
    from leasehold.stores.postgres.peers import PostgresPeers  # noqa: PLC0415 - as above
    from leasehold.stores.postgres.shared_time import open_time  # noqa: PLC0415
    from leasehold.stores.postgres.store import PostgresStore  # noqa: PLC0415

    shared = open_time(address)
    name = f"{socket.gethostname()}:{os.getpid()}"
    checked = None if is_virtual else shared
    store = PostgresStore(
        url.reveal(), name=name, now_ms=shared.clock.now_ms(), shared_time=checked
    )
    return Opened(store, shared.clock, PostgresPeers(address, store, shared))
