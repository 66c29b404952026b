"""The server process: from settings to an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import structlog
import uvicorn
import uvloop

from leasehold import __version__
from leasehold.auth.authenticator import Authenticator
from leasehold.auth.types import Account
from leasehold.clock import Clock, SystemClock
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.types import AccessPolicy
from leasehold.engine.engine import Engine
from leasehold.engine.maintenance import MaintenancePlan
from leasehold.http.admin import AdminPages
from leasehold.http.admission import Admission
from leasehold.http.app import Application
from leasehold.http.azure import MAX_REQUEST_BODY_BYTES, AzureDialect
from leasehold.http.guard import ConnectionLimits, Guard
from leasehold.http.logs import configure_logs
from leasehold.http.metrics import Metrics, RequestStats
from leasehold.http.native import MAX_REQUEST_BODY_BYTES as NATIVE_MAX_BODY_BYTES
from leasehold.http.native import NativeDialect, Services
from leasehold.http.protocol import GuardedProtocol, protocol_class
from leasehold.http.startup import (
    DataLock,
    ExitCode,
    StartFailed,
    bearer_verifier,
    listen_on,
    raise_file_limit,
    url_of,
)
from leasehold.settings import DEV_ACCOUNT, Settings, uses_public_key
from leasehold.stores.sqlite.store import SqliteStore

__all__ = ["ExitCode", "HttpServer", "build_application", "serve"]

_MIB: Final = 1024 * 1024
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_KILLED: Final = 128

_log = structlog.get_logger(__name__)


def serve(settings: Settings) -> int:
    """Run a server until it is told to stop; return the exit code of the process.

    SIGTERM or SIGINT stops it: it takes no more connections, answers what has arrived, and closes
    the store. A second signal ends the process at once, which loses nothing that was answered.
    """
    clock = SystemClock()
    configure_logs(log_format=settings.log_format, log_level=settings.log_level, clock=clock)
    try:
        with DataLock(settings.data):
            return uvloop.run(_run(settings, clock))
    except StartFailed as failure:
        _log.error("server.start_failed", reason=str(failure), exit_code=int(failure.code))
        return failure.code


class HttpServer(uvicorn.Server):
    """uvicorn's server, on sockets of ours and with signals left to the process.

    Args:
        config: Settings of uvicorn, loaded.
        sockets: Bound, not listening.
        tls_timeouts_s: Seconds that a handshake may take, and the goodbye at the end.
        on_ready: Called when the sockets listen.
        on_stop: Called when the server is told to stop, to end what would hold up its end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: Sequence[socket.socket],
        *,
        tls_timeouts_s: tuple[float, float],
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._sockets = sockets
        self._handshake_timeout_s, self._goodbye_timeout_s = tls_timeouts_s
        self._on_ready = on_ready
        self._on_stop = on_stop
        self.servers = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: uvicorn would end the process by the signal and not with code 0."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        del sockets
        config = self.config
        protocol = config.http_protocol_class
        assert issubclass(protocol, GuardedProtocol)
        connection = partial(
            protocol,
            config=config,
            server_state=self.server_state,
            app_state={},
        )
        self.servers = [
            await asyncio.get_running_loop().create_server(
                connection,
                sock=listener,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=self._handshake_timeout_s if config.ssl else None,
                ssl_shutdown_timeout=self._goodbye_timeout_s if config.ssl else None,
            )
            for listener in self._sockets
        ]
        self.started = True
        self._on_ready()

    def stop(self) -> None:
        """Take no more connections and requests now, and not when uvicorn next looks."""
        self.should_exit = True
        for listener in self.servers:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._on_stop()


async def _run(settings: Settings, clock: Clock) -> int:
    _log.info("server.started", version=__version__, data=str(settings.data), pid=os.getpid())
    _warn_of_public_keys(settings)
    raise_file_limit(settings.max_connections)
    with contextlib.ExitStack() as listening:
        sockets = [listening.enter_context(each) for each in listen_on(settings)]
        engine = Engine(
            _open_store(settings),
            clock,
            plan=MaintenancePlan(expiry_grace_s=settings.expiry_grace_s),
        )
        await engine.start()
        try:
            await _serve_http(settings, clock, engine, sockets)
        finally:
            await engine.stop()
    code = ExitCode.STORE_FAILED if engine.failed.is_set() else ExitCode.STOPPED
    _log.info("server.stopped", exit_code=int(code))
    return code


async def _serve_http(
    settings: Settings, clock: Clock, engine: Engine, sockets: Sequence[socket.socket]
) -> None:
    guard = Guard(_limits_of(settings), clock)
    app = build_application(settings, clock, engine, guard, draining=lambda: server.should_exit)
    server = HttpServer(
        _uvicorn_config(settings, app, guard),
        sockets,
        tls_timeouts_s=(settings.header_timeout_s, settings.write_timeout_s),
        on_ready=lambda: _say_ready(settings, sockets),
        on_stop=engine.drain,
    )
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, _stop_or_kill, number, server)
    helpers = [
        asyncio.create_task(guard.run(), name="guard"),
        asyncio.create_task(_stop_on_failure(engine, server), name="watch-store"),
    ]
    try:
        await server.serve()
    finally:
        for task in helpers:
            task.cancel()


def build_application(
    settings: Settings,
    clock: Clock,
    engine: Engine,
    guard: Guard,
    *,
    draining: Callable[[], bool],
) -> Application:
    """Put the parts between the connections and the engine together.

    Raises:
        StartFailed: A file that a setting names cannot be used.
    """
    accounts = {
        each.name: Account(name=each.name, keys=tuple(key.reveal() for key in each.keys))
        for each in settings.effective_accounts()
    }
    authenticator = _authenticator(settings, accounts, engine)
    requests = RequestStats()
    admission = Admission(
        engine.perform, limit=settings.max_pending_requests, receive=engine.receive
    )
    dialect = AzureDialect(
        perform=admission.perform,
        receive=admission.receive,
        authenticator=authenticator,
        clock=clock,
        accounts=accounts,
        observe=requests.answered,
    )
    native = NativeDialect(
        services=Services(
            perform=admission.perform,
            receive=admission.receive,
            find_queue=engine.find_queue,
            activity=engine.activity,
            wait_for_job=engine.jobs.wait,
        ),
        authenticator=authenticator,
        clock=clock,
        observe=requests.answered,
    )
    metrics = Metrics(
        requests=requests,
        engine=engine,
        admission=admission,
        guard=guard,
        clock=clock,
        max_queues=settings.metrics_max_queues,
    )
    return Application(
        dialect=dialect,
        native=native,
        pages=AdminPages(
            engine=engine,
            clock=clock,
            draining=draining,
            metrics=metrics if settings.metrics_enabled else None,
        ),
        clock=clock,
        timings=requests,
        max_body_bytes=MAX_REQUEST_BODY_BYTES,
        native_max_body_bytes=NATIVE_MAX_BODY_BYTES,
        https=settings.tls_terminated,
        log_requests=settings.log_level == "debug",
    )


def _authenticator(
    settings: Settings, accounts: Mapping[str, Account], engine: Engine
) -> Authenticator:
    def find_policy(account: str, queue: str, policy_id: str) -> AccessPolicy | None:
        found = engine.find_queue(account, queue)
        policies = found.policies if found else ()
        return next((policy for policy in policies if policy.policy_id == policy_id), None)

    return Authenticator(
        accounts,
        find_policy,
        bearer_verifier(settings),
        inspectors={
            each.name: tuple(key.reveal() for key in each.keys) for each in settings.inspectors
        },
    )


def _open_store(settings: Settings) -> SqliteStore:
    try:
        store = SqliteStore(
            settings.data,
            cache_mib=settings.sqlite_cache_mib,
            reserve_bytes=settings.disk_reserve_mib * _MIB,
        )
    except (LeaseholdError, OSError) as error:
        reason = f"the store in {settings.data} cannot be opened: {error.__cause__ or error}"
        raise StartFailed(ExitCode.STORE_FAILED, reason) from error
    if store.put_back:
        _log.warning(
            "store.put_back",
            meaning="the database comes from a copy; receipts from before are void",
        )
    return store


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


def _uvicorn_config(settings: Settings, app: Application, guard: Guard) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=protocol_class(guard),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        workers=1,
        proxy_headers=False,
        forwarded_allow_ips="",
        server_header=False,
        timeout_graceful_shutdown=settings.drain_timeout_s,  # type: ignore[arg-type]  # any number
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except OSError as error:  # what the ssl module raises is one, too
        raise StartFailed(
            ExitCode.SETTINGS, f"tls_cert, tls_key: {settings.tls_cert} cannot be used: {error}"
        ) from error
    return config


def _stop_or_kill(number: signal.Signals, server: HttpServer) -> None:
    if server.should_exit:
        _log.warning("server.killed", signal=number.name)
        os._exit(_KILLED + number)
    _log.info("server.stopping", signal=number.name)
    server.stop()


async def _stop_on_failure(engine: Engine, server: HttpServer) -> None:
    await engine.failed.wait()
    _log.critical("server.stopping", reason="the store failed")
    server.stop()


def _say_ready(settings: Settings, sockets: Sequence[socket.socket]) -> None:
    urls = [url_of(listener, tls=settings.tls_cert is not None) for listener in sockets]
    _log.info("server.ready", url=urls[0], **({"also": urls[1:]} if urls[1:] else {}))


def _warn_of_public_keys(settings: Settings) -> None:
    for account in settings.effective_accounts():
        if uses_public_key(account):
            _log.warning(
                "server.public_key",
                account=account.name,
                meaning="whoever can connect may read and change everything in this account",
                development=account.name == DEV_ACCOUNT and settings.dev_account_on(),
            )
