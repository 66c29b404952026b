"""The server process: from settings to an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import structlog
import uvloop

from leasehold import __version__, form
from leasehold.clock import Clock, SystemClock
from leasehold.domain.commands import NoteTime
from leasehold.domain.errors import LeaseholdError
from leasehold.engine.account_router import AccountRouter, ServerEngine
from leasehold.engine.engine import Engine
from leasehold.engine.faults import Faults, faulty
from leasehold.engine.maintenance import MaintenancePlan
from leasehold.engine.peers import Peers
from leasehold.garbage import spare_collecting
from leasehold.http.app import Application
from leasehold.http.connection import HttpConnection, ServerState
from leasehold.http.guard import ConnectionLimits, Guard
from leasehold.http.logs import configure_logs
from leasehold.http.request_cycle import App
from leasehold.http.test_mode import Controls
from leasehold.server.settings import DEV_ACCOUNT, Settings, uses_public_key
from leasehold.server.settings.fields import SHARED
from leasehold.server.startup import (
    ExitCode,
    Placed,
    StartFailed,
    data_lock,
    event_log_plan,
    large_bodies,
    listen_for_mns,
    listen_on,
    open_account_stores,
    open_store,
    raise_file_limit,
    refuse_relocated_accounts,
    tls_of,
    url_of,
)
from leasehold.server.wiring import Times, build_application
from leasehold.stores.base import Store

__all__ = [
    "ExitCode",
    "HttpServer",
    "Running",
    "Times",
    "build_application",
    "serve",
    "serve_store",
]

_MIB: Final = 1024 * 1024
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_KILLED: Final = 128
_DAY_S: Final = 86_400.0
_BACKLOG: Final = 2_048
"""Connections that the kernel completes before they are accepted."""
_LOOK_S: Final = 0.01
"""How often a server that is about to stop looks whether it has answered everything."""
_CANCEL_S: Final = 1.0
"""What requests get to notice that they are cancelled."""

_log = structlog.get_logger(__name__)


Announce: TypeAlias = Callable[[dict[str, Any]], None]
"""Takes what a program that has started a server wants to know: where it is, or why it is not."""


def serve(settings: Settings, announce: Announce | None = None, *, is_greeted: bool = False) -> int:
    """Run a server until it is told to stop; return the exit code of the process.

    Args:
        settings: Validated.
        announce: Called once, when the server listens or cannot start.
        is_greeted: Whether *announce* writes for a person at a terminal, who reads there why the
            server cannot start and that the development account is on: the log repeats neither.

    SIGTERM or SIGINT stops it: it takes no more connections, answers what has arrived, and closes
    the store. A second signal ends the process at once, which loses nothing that was answered.
    """
    clock = SystemClock()
    configure_logs(log_format=settings.log_format, log_level=settings.log_level, clock=clock)
    try:
        with data_lock(settings):
            return uvloop.run(_run(settings, clock, announce, is_greeted=is_greeted))
    except StartFailed as failure:
        told = {"reason": str(failure), "exit_code": int(failure.code)}
        if not is_greeted:
            _log.error("server.start_failed", **told)
        if announce is not None:
            announce({"event": "server.start_failed", "version": __version__, **told})
        return failure.code


class HttpServer:
    """Listens, and stops as it was told to: what has arrived is answered first.

    Args:
        app: Answers requests.
        state: What all its connections share.
        sockets: Bound, not listening.
        tls: Certificate and key; None to speak plain http.
        tls_timeouts_s: Seconds that a handshake may take, and the goodbye at the end.
        drain_timeout_s: Seconds, 0 or more, for which what has arrived is answered after
            :meth:`stop`.
        on_ready: Called when the sockets listen.
        on_stop: Called when the server is told to stop, to end what would hold up its end.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        app: App,
        state: ServerState,
        sockets: Sequence[socket.socket],
        *,
        tls: ssl.SSLContext | None,
        tls_timeouts_s: tuple[float, float],
        drain_timeout_s: float,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        self.state = state
        self._connection = partial(HttpConnection, app, state)
        self._sockets = sockets
        self._tls = tls
        self._handshake_timeout_s, self._goodbye_timeout_s = tls_timeouts_s
        self._drain_timeout_s = drain_timeout_s
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._listeners: list[asyncio.Server] = []
        self._told = asyncio.Event()

    async def serve(self) -> None:
        """Serve until told to stop; return when all connections are closed.

        Raises:
            OSError: Somebody else listens already.
        """
        await self._listen()
        self._on_ready()
        await self._told.wait()
        self._close_listeners()  # if it was told before it listened
        await self._drain()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        tls = self._tls
        for each in self._sockets:
            listener = await loop.create_server(
                self._connection,
                sock=each,
                ssl=tls,
                backlog=_BACKLOG,
                ssl_handshake_timeout=self._handshake_timeout_s if tls else None,
                ssl_shutdown_timeout=self._goodbye_timeout_s if tls else None,
            )
            self._listeners.append(listener)

    def stop(self) -> None:
        """Take no more connections and requests."""
        self.state.is_draining = True
        self._told.set()
        self._close_listeners()
        for connection in tuple(self.state.connections):
            connection.shutdown()
        self._on_stop()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def _drain(self) -> None:
        """Wait until everything is answered and sent, but not for ever."""
        state = self.state
        await asyncio.sleep(_LOOK_S)  # what is idle is gone then, whatever the time limit
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                while state.connections or state.tasks:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            _log.error(
                "server.drain_timed_out",
                requests=len(state.tasks),
                connections=len(state.connections),
            )
        if state.tasks:
            for task in tuple(state.tasks):
                task.cancel()
            await asyncio.wait(state.tasks, timeout=_CANCEL_S)
        for connection in tuple(state.connections):
            connection.transport.abort()


class Running(NamedTuple):
    """A server that has begun to serve."""

    server: HttpServer
    controls: Controls | None
    """What tests may do to it; None outside test mode."""


async def _run(
    settings: Settings, clock: Clock, announce: Announce | None, *, is_greeted: bool
) -> int:
    url = settings.store_url
    place = {"data": str(settings.data)} if url is None else {"store": repr(url)}
    _log.info("server.started", version=__version__, form=form(), **place, pid=os.getpid())
    _warn_of_public_keys(settings, is_greeted=is_greeted)
    if settings.test_mode:
        _log.warning(
            "server.test_mode",
            clock=settings.clock,
            meaning="any user of this machine can make requests fail and move a virtual clock",
        )
    raise_file_limit(settings.max_connections)
    with contextlib.ExitStack() as listening:
        sockets = [listening.enter_context(each) for each in listen_on(settings)]
        of_mns = [listening.enter_context(each) for each in listen_for_mns(settings)]
        store, engine_clock, peers = await open_store(settings, clock)
        placed = await open_account_stores(settings, clock)
        refuse_relocated_accounts(settings, store, placed)
        times = Times.chosen(settings, clock, store.last_seen_ms(), engine_clock)

        def on_start(running: Running) -> Callable[[], None]:
            loop = asyncio.get_running_loop()
            for number in _STOPPING:
                loop.add_signal_handler(number, _stop_or_kill, number, running.server)

            def on_ready() -> None:
                _say_ready(settings, sockets, of_mns)
                if announce is not None:
                    announce(_ready_document(settings, sockets, of_mns))
                spare_collecting()

            return on_ready

        code = await serve_store(
            settings,
            times,
            store,
            sockets,
            on_start,
            mns_sockets=of_mns,
            peers=peers,
            placed=placed,
        )
    _log.info("server.stopped", exit_code=int(code))
    return code


async def serve_store(  # noqa: PLR0913 - each is a choice of its own
    settings: Settings,
    times: Times,
    store: Store,
    sockets: Sequence[socket.socket],
    on_start: Callable[[Running], Callable[[], None]],
    *,
    mns_sockets: Sequence[socket.socket] = (),
    peers: Peers | None = None,
    placed: Sequence[Placed] = (),
) -> ExitCode:
    """Serve a store until the server is told to stop, or the store fails.

    Args:
        settings: Validated.
        times: The clocks to go by.
        store: Closed at the end.
        sockets: Bound, not listening.
        on_start: Called in the event loop before the sockets listen; what it returns, when they do.
        mns_sockets: As *sockets*, for requests of MNS and no others.
        peers: The link to other servers on the same store; None if there can be none.
        placed: Stores of accounts that have their own; closed at the end.

    Raises:
        StartFailed: A file that a setting names cannot be used.
    """
    faults = Faults()
    tested = faulty(store, faults) if settings.test_mode else store
    guard = Guard(_limits_of(settings), times.system)
    first = _first_engine(settings, times, tested, peers, guard)
    engine = _routed(
        first, [_engine_of(settings, times, each, guard, first) for each in placed], placed
    )
    await engine.start()
    try:
        state = ServerState(guard, times.engine)
        controls = None
        if settings.test_mode:  # which has one store only
            controls = Controls(first, times.engine, faults, seed=settings.test_seed)
        application = build_application(
            settings,
            times,
            engine,
            guard,
            controls,
            draining=lambda: state.is_draining,
            mns_ports=frozenset(each.getsockname()[1] for each in mns_sockets),
        )
        app: App = application

        server = HttpServer(
            app if controls is None else controls.around(app),
            state,
            [*sockets, *mns_sockets],
            tls=tls_of(settings),
            tls_timeouts_s=(settings.header_timeout_s, settings.write_timeout_s),
            drain_timeout_s=settings.drain_timeout_s,
            on_ready=lambda: listening(),  # noqa: PLW0108 - it is made below
            on_stop=partial(_end_waits, engine, application),
        )
        listening = on_start(Running(server, controls))
        await _serve_http(server, guard, engine)
    finally:
        if settings.clock == "virtual":
            with contextlib.suppress(LeaseholdError):  # a failed store is told below
                await engine.perform(NoteTime())
        await engine.stop()
    return ExitCode.STORE_FAILED if engine.failed.is_set() else ExitCode.STOPPED


def _end_waits(engine: ServerEngine, application: Application) -> None:
    engine.drain()
    application.drain()


def _first_engine(
    settings: Settings, times: Times, store: Store, peers: Peers | None, guard: Guard
) -> Engine:
    """Make the engine of all accounts that have no store of their own."""
    return Engine(
        store,
        times.engine,
        plan=_plan_of(settings),
        events=event_log_plan(settings),
        timers=times.timers,
        bodies=large_bodies(
            settings, times.engine, lambda: guard.buffered, durable=store.health().durable
        ),
        peers=peers,
    )


def _engine_of(
    settings: Settings, times: Times, placed: Placed, guard: Guard, beside: Engine
) -> Engine:
    """Make the engine of accounts that have a store of their own.

    Two stores number their events alike, and each removes bodies that it does not know of. So
    neither may share a folder with another.
    """
    (first, *_), (store, clock, peers) = placed
    events = event_log_plan(settings)
    if events.folder is not None:
        folder = events.folder.with_name(f"{events.folder.name}-{first}")
        events = replace(events, folder=folder)
    bodies = None
    if settings.bodies:
        place = f"{settings.bodies.rstrip('/')}-{first}"
        at_place = replace(settings, bodies=place)
        bodies = large_bodies(at_place, clock, lambda: guard.buffered, durable=True)
    return Engine(
        store,
        clock,
        plan=_plan_of(settings),
        events=events,
        timers=times.timers,
        bodies=bodies,
        peers=peers,
        beside=beside,
    )


def _routed(first: Engine, others: Sequence[Engine], placed: Sequence[Placed]) -> ServerEngine:
    """Return what picks among engines by account, or the only one."""
    if not others:
        return first
    pairs = zip(placed, others, strict=True)
    by_account = {account: engine for each, engine in pairs for account in each.accounts}
    return AccountRouter(first, by_account)


def _plan_of(settings: Settings) -> MaintenancePlan:
    if settings.clock == "virtual":
        # Every step of the clock would be a minute or more later than the last time noted.
        return MaintenancePlan(expiry_grace_s=settings.expiry_grace_s, note_time_interval_s=_DAY_S)
    return MaintenancePlan(expiry_grace_s=settings.expiry_grace_s)


async def _serve_http(server: HttpServer, guard: Guard, engine: ServerEngine) -> None:
    helpers = [
        asyncio.create_task(guard.run(), name="guard"),
        asyncio.create_task(_stop_on_failure(engine, server), name="watch-store"),
    ]
    try:
        await server.serve()
    finally:
        for task in helpers:
            task.cancel()


def _limits_of(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        max_connections=settings.max_connections,
        max_request_line_bytes=settings.max_request_line_bytes,
        max_header_bytes=settings.max_header_bytes,
        max_header_fields=settings.max_header_fields,
        max_buffered_bytes=settings.max_buffered_mib * _MIB,
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        body_min_bytes_per_s=settings.body_min_bytes_per_s,
        idle_timeout_s=settings.idle_timeout_s,
        write_timeout_s=settings.write_timeout_s,
    )


def _stop_or_kill(number: signal.Signals, server: HttpServer) -> None:
    if server.state.is_draining:
        _log.warning("server.killed", signal=number.name)
        os._exit(_KILLED + number)
    _log.info("server.stopping", signal=number.name)
    server.stop()


async def _stop_on_failure(engine: ServerEngine, server: HttpServer) -> None:
    await engine.failed.wait()
    _log.critical("server.stopping", reason="the store failed")
    server.stop()


def _say_ready(
    settings: Settings, sockets: Sequence[socket.socket], of_mns: Sequence[socket.socket]
) -> None:
    urls = [url_of(listener, tls=settings.tls_cert is not None) for listener in sockets]
    more: dict[str, Any] = {"also": urls[1:]} if urls[1:] else {}
    if of_mns:
        more["url_mns"] = url_of(of_mns[0], tls=settings.tls_cert is not None)
    _log.info("server.ready", url=urls[0], **more)


def _ready_document(
    settings: Settings, sockets: Sequence[socket.socket], of_mns: Sequence[socket.socket]
) -> dict[str, Any]:
    """Return what a program needs that has started a server; there are no secrets in it."""
    tls = settings.tls_cert is not None
    url, *also = [url_of(listener, tls=tls) for listener in sockets]
    mns_url = url_of(of_mns[0], tls=tls) if of_mns else None
    if mns_url is None and settings.mns_port == SHARED:
        mns_url = url
    is_folder = settings.store_url is None
    return {
        "event": "server.ready",
        "version": __version__,
        "pid": os.getpid(),
        "url": url,
        "also": also,
        "port": sockets[0].getsockname()[1],
        "mns_url": mns_url,
        "mns_port": of_mns[0].getsockname()[1] if of_mns else None,
        "console_url": f"{url}/console/" if settings.console else None,
        "store": "sqlite" if is_folder else "postgresql",
        "data": str(settings.data.resolve()) if is_folder else None,
        "store_url": None if is_folder else repr(settings.store_url),
        "accounts": [account.name for account in settings.effective_accounts()],
        "development_account": settings.dev_account_on(),
        "bearer_tokens": bool(settings.oidc_issuer),
        "test_mode": settings.test_mode,
    }


def _warn_of_public_keys(settings: Settings, *, is_greeted: bool) -> None:
    for account in settings.effective_accounts():
        if is_greeted and settings.is_private():
            continue
        if uses_public_key(account):
            _log.warning(
                "server.public_key",
                account=account.name,
                meaning="every client that can connect may read and change everything in this "
                "account",
                development=account.name == DEV_ACCOUNT and settings.dev_account_on(),
                exposed=not settings.is_private(),
            )
