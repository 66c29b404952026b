"""The real server in a thread of the test's own process, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import structlog
import uvloop

from leasehold.clock import Clock, LoopTimers, SystemClock, VirtualClock
from leasehold.engine.faults import Faults
from leasehold.http.test_mode import Controls
from leasehold.server.main import Running, Times, serve_store
from leasehold.server.settings import DEV_ACCOUNT, Settings, StoreUrl, validate
from leasehold.server.settings.values import DEV_KEY
from leasehold.server.startup import (
    Opened,
    StartFailed,
    data_lock,
    listen_for_mns,
    listen_on,
    open_store,
    url_of,
)
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing.time import START_MS

if TYPE_CHECKING:
    from leasehold.client import AsyncClient, Client


# --- quiet -------------------------------------------------------------------------------------
#
# Keeps what a server logs out of the way of a test that has said nothing about logs.


_lock = threading.Lock()
_users: list[object] = []


def _settings() -> tuple[object, ...]:
    found = structlog.get_config()
    return (found["logger_factory"], found["wrapper_class"], *found["processors"])


_first = None if structlog.is_configured() else _settings()
"""How structlog logs, to stdout, until it is told otherwise."""


def _is_as_it_came() -> bool:
    # Whoever has captured logs leaves structlog "configured", though with what it came with.
    return not structlog.is_configured() or _settings() == _first


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Show warnings only, on stderr, unless the process has configured structlog itself."""
    me = object()
    with _lock:
        if _users or _is_as_it_came():
            if not _users:
                structlog.configure(
                    wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
                    logger_factory=_to_stderr,
                )
            _users.append(me)
    try:
        yield
    finally:
        with _lock:
            if me in _users:
                _users.remove(me)
                # The caller may have configured it meanwhile, and means that.
                if not _users and structlog.get_config()["logger_factory"] is _to_stderr:
                    structlog.reset_defaults()


def _to_stderr(*_: object) -> structlog.PrintLogger:
    # Looked up anew each time: pytest puts another one in its place for each test.
    return structlog.PrintLogger(sys.stderr)


# --- server ------------------------------------------------------------------------------------


_T = TypeVar("_T")

_KINDS: Final = frozenset({"memory", "sqlite"})
_TIMEOUT_S: Final = 60.0
"""Nothing that a test asks of its server takes so long, by the real clock."""
_GOODBYE_S: Final = 0.2
_PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.001


class InProcessServer:
    """A server for one test or many. A context manager; it serves from entering to leaving.

    ::

        with InProcessServer() as server:
            queue = QueueClient.from_connection_string(server.connection_string, "orders")
            ...
            server.advance(30)  # seconds

    It is the server that ``leasehold serve`` runs, in test mode and with the development account,
    on a free port of 127.0.0.1. Its thread ends with the process at the latest.

    Args:
        store: ``memory``; ``sqlite`` for a database in a temporary folder; the folder of a
            database that is to be kept, for tests that start a server anew; or the address of a
            PostgreSQL database, ``postgresql://...``, which other servers may use as well if the
            clock is the system's.
        clock: ``virtual``, which stands still until :meth:`advance` is called, or ``system``.
        start_ms: What a virtual clock shows at first, Unix milliseconds; by default midnight of
            2026-01-01, UTC. A database that was in use later than that goes on from there.
        seed: Of the random numbers that spread retries, 0 to 4,294,967,295.
        settings: Further settings of the server, by name.

    Raises:
        leasehold.server.settings.SettingsError: A setting will not do.
        leasehold.server.startup.StartFailed: On entering: the server cannot start.

    Added in 0.2.
    """

    def __init__(
        self,
        *,
        store: str | Path = "memory",
        clock: str = "virtual",
        start_ms: int = START_MS,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        given = {"host": "127.0.0.1", "port": 0, "dev_account": "on", **settings}
        given.setdefault("drain_timeout_s", _GOODBYE_S)
        if str(store).startswith(("postgresql://", "postgres://")):
            given["store_url"] = StoreUrl(str(store))
        elif store not in _KINDS:
            given["data"] = Path(store)
        self._settings = Settings(test_mode=True, clock=clock, test_seed=seed, **given)
        validate(self._settings)
        self._choice = store
        self._start_ms = start_ms
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._running: Running
        self._controls: Controls
        self.url = ""
        """Scheme, host and port; the native API is under ``/v1/`` of it."""
        self.mns_url = ""
        """The endpoint for clients of MNS; their AccessKeyId is :attr:`account`, their
        AccessKeySecret :attr:`key`. Empty if the settings turn that off."""
        self.clock = ServerClock(self)
        """The clock that messages go by."""
        self.faults = ServerFaults(self)
        """What is to fail."""

    # --- its life ----------------------------------------------------------------------------

    def start(self) -> Self:
        """Start serving; return when it does."""
        if self._thread is not None:
            raise RuntimeError("the server runs already")
        if self._choice == "sqlite":
            self._temporary = tempfile.TemporaryDirectory(prefix="leasehold-")
            self._settings = replace(self._settings, data=Path(self._temporary.name))
        self._ready.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="leasehold-server", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._end_thread()
        return self

    def stop(self) -> None:
        """Answer what has arrived, and end. Harmless if it does not run.

        A server with a store in memory has forgotten everything when it is started again.
        """
        try:
            if self._thread is not None:
                self._loop.call_soon_threadsafe(self._running.server.stop)
                self._end_thread()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- how it is reached -------------------------------------------------------------------

    @property
    def thread_id(self) -> int | None:
        """Number of the thread that serves, as the system counts; None while it does not run."""
        return None if self._thread is None else self._thread.native_id

    @property
    def account(self) -> str:
        """Name of the account that is always there."""
        return DEV_ACCOUNT

    @property
    def key(self) -> str:
        """The key of this account, which is public."""
        return DEV_KEY

    @property
    def connection_string(self) -> str:
        """What the Azure SDKs, the native client and the command line connect with."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={DEV_ACCOUNT};AccountKey={DEV_KEY};"
            f"QueueEndpoint={self.url}/{DEV_ACCOUNT};"
        )

    def client(self, **options: Any) -> Client:
        """Return a native client, to be closed by the caller; *options* are those of its class."""
        from leasehold.client import Client  # noqa: PLC0415 - an extra that not all tests need

        return Client.from_connection_string(self.connection_string, **options)

    # --- time --------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the time that messages go by, Unix milliseconds."""
        return self._controls.now_ms()

    def now(self) -> datetime:
        """Return the time that messages go by."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def advance(self, seconds: float) -> int:
        """Let time pass; return the new time, Unix milliseconds, when what was due is done.

        Leases and delays end, messages expire, receives that wait are answered, jobs go on. Other
        threads and processes get their answers a moment later.

        Args:
            seconds: How long, 0 or more; counted in whole milliseconds. With 0 only what is under
                way is waited for.

        Raises:
            ValueError: The clock is the system's, or time would go back or past the year 3000.
        """
        return self._await(self._controls.advance(round(seconds * 1000))).result(_TIMEOUT_S)

    def until_waiting(self, count: int = 1) -> None:
        """Return when so many receives wait for messages, or more.

        Call it before :meth:`advance` where another thread has just begun to wait: its request
        takes a moment to get here.

        Args:
            count: How many.

        Raises:
            TimeoutError: They do not come within ten seconds by the real clock.
        """
        self._await(self._until_waiting(count)).result(_TIMEOUT_S)

    # --- the thread --------------------------------------------------------------------------

    async def _until_waiting(self, count: int) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while self._controls.waiting < count:  # noqa: ASYNC110 - the engine does not tell of it
                await asyncio.sleep(_LOOK_S)

    def _await(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Do *work* in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, function: Callable[[], _T]) -> _T:
        """Call *function* in the server's loop."""

        async def work() -> _T:
            return function()

        return self._await(work()).result(_TIMEOUT_S)

    def _run(self) -> None:
        try:
            with quiet_logs(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        with contextlib.ExitStack() as listening:
            sockets = [listening.enter_context(each) for each in listen_on(self._settings)]
            of_mns = [listening.enter_context(each) for each in listen_for_mns(self._settings)]
            if self._choice != "memory":
                listening.enter_context(data_lock(self._settings))
            system = SystemClock()
            store, engine_clock, peers = await self._open_store(system)
            times = Times(system, engine_clock, LoopTimers())
            if self._settings.clock == "virtual":
                clock = VirtualClock(max(self._start_ms, store.last_seen_ms()))
                times = Times(system, clock, clock)

            def on_start(running: Running) -> Callable[[], None]:
                assert running.controls is not None
                self._loop = asyncio.get_running_loop()
                self._running, self._controls = running, running.controls
                tls = self._settings.tls_cert is not None
                self.url = url_of(sockets[0], tls=tls)
                self.mns_url = url_of(of_mns[0], tls=tls) if of_mns else ""
                return self._ready.set

            code = await serve_store(
                self._settings,
                times,
                store,
                sockets,
                on_start,
                mns_sockets=of_mns,
                peers=peers,
            )
        if code:
            raise StartFailed(code, "the store failed while it was in use")

    async def _open_store(self, system: Clock) -> Opened:
        if self._choice == "memory":
            return Opened(MemoryStore(), system, None)
        if self._settings.store_url is None:
            return Opened(SqliteStore(self._settings.data), system, None)
        return await open_store(self._settings, system, patience_s=0.0)

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        thread.join(_TIMEOUT_S)
        if thread.is_alive():
            raise RuntimeError("the server does not end")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class ServerClock:
    """The clock of a server in another thread. See :class:`leasehold.clock.Clock`."""

    def __init__(self, server: InProcessServer) -> None:
        self._server = server

    def now_ms(self) -> int:
        """Return the time, Unix milliseconds."""
        return self._server.now_ms()

    def now(self) -> datetime:
        """Return the time."""
        return self._server.now()

    def monotonic_s(self) -> float:
        """Return seconds since some moment of the past."""
        return self.now_ms() / 1000

    def wall_drift_s(self) -> float:
        """Return 0: it has nothing to do with the wall clock."""
        return 0.0

    def advance(self, seconds: float = 0, *, s: float = 0, ms: int = 0) -> None:
        """Let time pass, all three together; see :meth:`InProcessServer.advance`."""
        self._server.advance(seconds + s + ms / 1000)


class ServerFaults:
    """What a server in another thread is to fail at.

    Requests under ``/v1/test/`` never fail. A client that retries by itself uses up one failure
    with each try.
    """

    def __init__(self, server: InProcessServer) -> None:
        self._server = server

    def fail_commits(self, count: int = 1) -> None:
        """Have the next transactions that write for clients fail; 0 for none.

        Nothing of them is done. All whose requests shared one are told 503 (``ServerBusy``,
        ``store-unavailable``).
        """
        self._change(fail_commits=count)

    def drop_answers(self, count: int = 1) -> None:
        """Cut connections in place of the next answers to requests that changed something.

        What they asked for is done. 0 for none.
        """
        self._change(drop_answers=count)

    def delay_answers(self, seconds: float) -> None:
        """Keep every answer back for so many seconds by the real clock, 0 to 60; 0 to end that."""
        self._change(delay_answers_s=seconds)

    def clear(self) -> None:
        """Have nothing fail any more."""
        self._change(fail_commits=0, drop_answers=0, delay_answers_s=0.0)

    def left(self) -> Faults:
        """Return what is still to fail."""
        found = self._server._controls.faults  # noqa: SLF001 - one thing in two classes
        return self._server._call(lambda: replace(found))  # noqa: SLF001

    def _change(self, **members: Any) -> None:
        server = self._server
        found = server._controls.faults  # noqa: SLF001 - one thing in two classes
        server._call(lambda: found.replace(replace(found, **members)))  # noqa: SLF001


class AsyncInProcessServer:
    """An :class:`InProcessServer` for tests that are coroutines; an asynchronous context manager.

    It serves in a thread of its own as well, so it answers whatever the test's loop does. The
    arguments are the same.

    Added in 0.2.
    """

    def __init__(self, **arguments: Any) -> None:
        self.server = InProcessServer(**arguments)
        """The server; its attributes and its faults can be used from here."""

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return self.server.url

    @property
    def connection_string(self) -> str:
        """What the Azure SDKs, the native client and the command line connect with."""
        return self.server.connection_string

    @property
    def faults(self) -> ServerFaults:
        """What is to fail."""
        return self.server.faults

    def client(self, **options: Any) -> AsyncClient:
        """Return a native client, to be closed by the caller; *options* are those of its class."""
        from leasehold.client import AsyncClient  # noqa: PLC0415 - an extra, as for the other

        return AsyncClient.from_connection_string(self.connection_string, **options)

    def now_ms(self) -> int:
        """Return the time that messages go by, Unix milliseconds."""
        return self.server.now_ms()

    def now(self) -> datetime:
        """Return the time that messages go by."""
        return self.server.now()

    async def advance(self, seconds: float) -> int:
        """Let time pass; see :meth:`InProcessServer.advance`."""
        server = self.server
        length_ms = round(seconds * 1000)
        return await asyncio.wrap_future(server._await(server._controls.advance(length_ms)))  # noqa: SLF001 - one thing in two classes

    async def until_waiting(self, count: int = 1) -> None:
        """Return when so many receives wait; see :meth:`InProcessServer.until_waiting`."""
        server = self.server
        await asyncio.wrap_future(server._await(server._until_waiting(count)))  # noqa: SLF001 - as above

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.server.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.server.stop)
