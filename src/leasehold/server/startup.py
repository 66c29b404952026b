"""What a server needs before it can serve, and how it says that it cannot have it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import json
import os
import resource
import shutil
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import structlog

from leasehold.auth.roles import operations_of
from leasehold.bodies import open_bodies
from leasehold.clock import Clock
from leasehold.disk import make_folder
from leasehold.domain.errors import LeaseholdError, StoreFailed, Unavailable
from leasehold.engine.event_export import EventLogPlan
from leasehold.engine.large_bodies import LargeBodies
from leasehold.engine.peers import Peers
from leasehold.extras import install
from leasehold.server.settings import Settings, StoreUrl
from leasehold.server.settings.fields import AUTO, MNS_PORT_DISTANCE
from leasehold.stores.base import Store
from leasehold.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from leasehold.auth.bearer import BearerVerifier, IssuersVerifier
    from leasehold.stores.postgres.connection import Address


LOCK_NAME: Final = "lock"
_MIB: Final = 1024 * 1024
_FILES_BESIDE_CONNECTIONS: Final = 512  # database, log, and connections being refused

_log = structlog.get_logger(__name__)


class ExitCode(IntEnum):
    """How the process ends; the numbers are those of sysexits.h where it has one."""

    STOPPED = 0
    """Told to stop; everything that was answered is on disk."""
    ADDRESS = 69
    """The address or port cannot be listened on."""
    STORE_FAILED = 70
    """The store cannot be opened, or failed while serving. Start again: nothing answered is lost,
    but what was not answered may or may not have been done."""
    DATA_IN_USE = 75
    """Another server uses the data folder."""
    SETTINGS = 78
    """A setting, or a file that one names, cannot be used."""


class StartFailed(Exception):
    """The server cannot start. The text says why and is safe to show."""

    def __init__(self, code: ExitCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class DataLock:
    """Holds the data folder for this process; the kernel lets go of it whatever happens.

    Args:
        folder: Made, for the owner alone, if it is missing.

    Raises:
        StartFailed: Another process holds it, or it cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = -1

    def __enter__(self) -> Self:
        path = self._folder / LOCK_NAME
        try:
            make_folder(self._folder, mode=0o700)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartFailed(
                ExitCode.SETTINGS,
                f"data: {self._folder} cannot be used: {error.strerror}. Choose another folder: "
                "--data FOLDER",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StartFailed(
                ExitCode.DATA_IN_USE,
                f"data: {self._folder.resolve()} is in use by another server (process {holder}). "
                "Choose another folder: --data FOLDER",
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode("ascii"), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)


def listen_on(settings: Settings) -> list[socket.socket]:
    """Bind a socket to every address in ``host``; they do not listen yet.

    Raises:
        StartFailed: An address is unknown or taken, or a name that was thought to mean this
            machine alone does not while the development account or test mode is on.
    """
    return _bound(settings, settings.port, "port")


def listen_for_mns(settings: Settings) -> list[socket.socket]:
    """Do the same for the port of MNS alone; none if it has none.

    Raises:
        StartFailed: As for :func:`listen_on`.
    """
    port = settings.port_of_mns(settings.port)
    return [] if port is None else _bound(settings, port, "mns_port")


def _bound(settings: Settings, port: int, setting: str) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for host in settings.addresses():
            for family, kind, protocol, _, address in socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                listener = socket.socket(family, kind, protocol)
                sockets.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((address[0], port, *address[2:]))
                port = listener.getsockname()[1]
    except OSError as error:
        _close_all(sockets)
        reason = f"cannot listen on {host} port {port}: {error.strerror}"
        if isinstance(error, socket.gaierror):
            reason += " (host)"
        elif setting == "mns_port":
            reason += f" ({_what_mns_port(settings)})"
        else:
            reason += ". Choose another port: --port N"
        raise StartFailed(ExitCode.ADDRESS, reason) from error
    bound = [listener.getsockname()[0] for listener in sockets]
    for private, is_on in (
        ("dev_account", settings.dev_account_on() and not settings.dev_account_exposed()),
        ("test_mode", settings.test_mode),
    ):
        if is_on and not all(ipaddress.ip_address(each).is_loopback for each in bound):
            _close_all(sockets)
            raise StartFailed(
                ExitCode.SETTINGS,
                f"{private}: host {settings.host!r} means {', '.join(bound)}, which other "
                "machines can reach",
            )
    return sockets


def _what_mns_port(settings: Settings) -> str:
    """Return where the port for MNS comes from, and what to do about it."""
    whence = f"mns_port is {settings.mns_port!r}"
    if settings.mns_port == AUTO:
        whence += f", which is port + {MNS_PORT_DISTANCE}"
    return f"{whence}: set another port, 'shared' for the common port, or 'off'"


def url_of(listener: socket.socket, *, tls: bool) -> str:
    """Return the address that clients on this machine use for a bound socket."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Return what the server speaks https with; None for plain http.

    Raises:
        StartFailed: The certificate or its key cannot be used.
    """
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # what the ssl module raises is one, too
        raise StartFailed(
            ExitCode.SETTINGS, f"tls_cert, tls_key: {settings.tls_cert} cannot be used: {error}"
        ) from error
    return context


def raise_file_limit(max_connections: int) -> None:
    """Raise the limit on open files as far as the connections need; say so if it cannot be."""
    wanted = max_connections + _FILES_BESIDE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < wanted:
        _log.warning("server.few_open_files", wanted=wanted, allowed=possible)


def bearer_verifier(settings: Settings) -> BearerVerifier | IssuersVerifier | None:
    """Return what checks bearer tokens, or None if none are taken.

    Says so where no token can be good: there are no keys, or no https.

    Raises:
        StartFailed: A file of keys cannot be read, or a default role does not exist.
    """
    if not settings.oidc_issuer:
        return None
    try:
        # Late, because the library is an extra.
        import cryptography  # noqa: F401, PLC0415 - it checks the signatures, for the other

        from leasehold.auth.bearer import IssuersVerifier  # noqa: PLC0415
    except ImportError as error:
        raise StartFailed(
            ExitCode.SETTINGS,
            f"oidc_issuer: bearer tokens need the library {error.name}: {install('oidc')}",
        ) from error

    for role in settings.oidc_default_roles:
        if not operations_of(frozenset({role})):
            raise StartFailed(ExitCode.SETTINGS, f"oidc_default_roles: {role!r} is not a role")
    if settings.tls_cert is None and not settings.tls_terminated:
        _log.warning(
            "server.tokens_without_tls",
            meaning="every bearer token will be refused: set tls_cert and tls_key, or "
            "tls_terminated if a proxy ends TLS",
        )
    verifiers = [
        _verifier_of(issuer, source, settings)
        for issuer, source in zip(settings.oidc_issuer, settings.oidc_jwks, strict=True)
    ]
    return verifiers[0] if len(verifiers) == 1 else IssuersVerifier(verifiers)


def console_verifier(settings: Settings) -> BearerVerifier | None:
    """Return what checks the tokens by which people sign in to the console; None if they do not.

    Raises:
        StartFailed: A file of keys cannot be read.
    """
    if not settings.oidc_issuer or not settings.console_oidc_client_id:
        return None
    made_for = replace(settings, oidc_audience=(settings.console_oidc_client_id,))
    return _verifier_of(settings.oidc_issuer[0], settings.oidc_jwks[0], made_for)


def _verifier_of(issuer: str, source: str, settings: Settings) -> BearerVerifier:
    from leasehold.auth.bearer import BearerConfig, BearerVerifier  # noqa: PLC0415 - as above

    remote = source.startswith("https://")
    key_set = None
    if not remote:
        try:
            key_set = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StartFailed(
                ExitCode.SETTINGS, f"oidc_jwks: {source} cannot be read: {error}"
            ) from error
    verifier = BearerVerifier(
        BearerConfig(
            issuers=frozenset({issuer}),
            audiences=frozenset(settings.oidc_audience),
            key_set=key_set,
            key_set_url=source if remote else None,
            accounts=frozenset(settings.oidc_accounts) or None,
            roles_claim=settings.oidc_roles_claim,
            default_roles=frozenset(settings.oidc_default_roles),
            leeway_s=settings.oidc_leeway_s,
        )
    )
    if not remote and not len(verifier.keys):
        _log.warning(
            "server.no_token_keys",
            issuer=issuer,
            file=source,
            meaning="every bearer token of this issuer will be refused: the file holds no public "
            "key for signatures, RSA of 2,048 bits or more or on the curves P-256, P-384, P-521",
        )
    return verifier


def event_log_plan(settings: Settings) -> EventLogPlan:
    """Return what is to become of the event log.

    Raises:
        StartFailed: Events are to be exported, and the library for that is not installed.
    """
    if settings.events_folder is not None:
        try:
            # Now, because loading it takes a while, and later it would hold up those who wait.
            import_module("leasehold.events.parquet")
        except ImportError as error:
            raise StartFailed(
                ExitCode.SETTINGS,
                f"events_folder: exporting needs the library {error.name}: {install('arrow')}",
            ) from error
    return EventLogPlan(
        folder=settings.events_folder,
        interval_s=settings.events_export_interval_s,
        retention_s=settings.events_retention_s,
        max_bytes=settings.events_max_bytes,
        parquet_retention_s=settings.events_parquet_retention_s or None,
    )


def large_bodies(
    settings: Settings, clock: Clock, buffered: Callable[[], int], *, durable: bool
) -> LargeBodies | None:
    """Return what keeps large bodies; None if the store keeps them itself.

    Unless a place is set, a store in memory does, and one that is shared by servers, which may have
    no folder in common.

    Args:
        settings: Where they are kept.
        clock: Source of all time.
        buffered: Returns how many bytes of bodies requests and answers hold now.
        durable: Whether the store of messages outlives the process.

    Raises:
        StartFailed: The place cannot be used.
    """
    if not (settings.bodies or (durable and settings.store_url is None)):
        return None
    try:
        store = open_bodies(settings.bodies_place())
    except (OSError, ValueError) as error:
        raise StartFailed(ExitCode.SETTINGS, f"bodies: {error}") from error
    return LargeBodies(
        store,
        clock,
        inline_bytes=settings.inline_body_bytes,
        budget_bytes=settings.max_buffered_mib * _MIB,
        buffered=buffered,
    )


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for listener in sockets:
        listener.close()


# --- opening -----------------------------------------------------------------------------------
#
# Opens the store that the settings name, and what goes with it.


START_PATIENCE_S: Final = 60.0
"""How long a server that is started waits for a database that cannot be reached."""
_PAUSE_S: Final = 1.0


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


def refuse_relocated_accounts(settings: Settings, store: Store, placed: Sequence[Placed]) -> None:
    """Refuse to serve an account from a store that it has left.

    Raises:
        StartFailed: The settings would have it so.
    """
    elsewhere = {account for each in placed for account in each.accounts}
    own = {each.name for each in settings.effective_accounts()} - elsewhere
    for names, each_store in ((own, store), *((set(e.accounts), e.opened.store) for e in placed)):
        relocated = sorted(names & each_store.relocated_accounts)
        if relocated:
            raise StartFailed(
                ExitCode.STORE_FAILED,
                f"account {relocated[0]} was moved to another store: name its new store in "
                "account_stores, or remove the account from the settings",
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
            consequence="puts are refused with 503 until there is space for the reserve; "
            "consumers continue. Free disk space, or set a smaller disk_reserve_mib",
        )
    if store.restored_from_backup:
        _log.warning(
            "store.restored_from_backup",
            meaning="the database was restored from a backup; earlier receipts are invalid",
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
                meaning="all servers of this database must share this folder",
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
            may_pass = may_pass and not isinstance(cause, StoreFailed)
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
