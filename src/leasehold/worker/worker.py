"""A person writes a handler; this does the rest."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self

from leasehold.spans import is_used
from leasehold.worker import metrics
from leasehold.worker.adapters.protocol import Denied, LeaseGone, QueueClient, Unreachable
from leasehold.worker.core import Core, gate_of, sources_of
from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.handlers import Handler, Handlers, name_of
from leasehold.worker.hooks import HookCalls, Hooks
from leasehold.worker.leases import (
    BaseLeaseManager,
    LeaseHooks,
    LeaseLearner,
    LeaseManager,
    LeaseSettings,
)
from leasehold.worker.options import (
    Decoder,
    Options,
    Queues,
    Runner,
    holder_name,
    opened,
    reader_of,
)
from leasehold.worker.outcomes import Kind
from leasehold.worker.reporting import Reporter, Snapshot, Stats
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.threads import LateRenewals, WorkerThreads
from leasehold.worker.timing import ScaledTime, SystemTime, Time
from leasehold.worker.tracing import Tracing

_log: Final = logging.getLogger("leasehold.worker")
_LOOK_S: Final = 0.5
GRACE_S: Final = 30.0
"""How long handlers may go on when the worker stops, unless it is told otherwise."""


class Worker:
    """Receives messages, keeps their leases, calls a handler for each, and settles them.

    ::

        def handle(message: Message) -> None:
            print(message.text)

        Worker(handle, "leasehold:///orders").run()

    A handler that returns has its message completed; see :mod:`leasehold.worker.errors` for what
    it can raise. What cannot be safe is refused when the worker is made.

    At its end a worker closes the clients that it has opened itself, from specs and addresses. What
    it was given, clients, handlers, pipelines and codecs, stays open, and is whoever's who made it.

    Args:
        handler: ``def``, ``async def`` or a pipeline; or one for each queue by its name.
        queues: The handle that a client gives (``client.queue("orders")``), a queue of an adapter,
            a spec or an address; several; or several with their weights, by which they share the
            worker while all of them have messages.
        concurrency: How many messages are worked on at once.
        runner: ``threads``; ``asyncio``, one event loop in a thread of its own; ``processes``, for
            handlers that compute for long in Python. None: asyncio for ``async def`` and pipelines
            with such stages, or threads.
        lease: Whole seconds, or all settings. It bounds how long a crash hides a message.
        lease_as_set: Whether leases are as long as the producer of a message asked for, or as is
            set for its type or the queue; *lease* says the rest, which grows or shrinks with them.
        learner: Learns the length of leases; *lease* is where it begins. Not with *lease_as_set*.
        prefetch: How many messages may wait at most; fewer do if handlers are slow, so that each
            can begin within its lease. None: what bridges the round trips.
        ordered: Messages of one group are handled one after the other, in their order; what fails
            has the later ones of its group given back. For queues with ``groups.order`` fifo; of
            others it is the order in which this worker received them, and a warning is logged.
        concurrency_per_group: How many messages of one group are worked on at once by this worker;
            None: any number, or one if *ordered*.
        codec: Reads :attr:`Message.payload`; a function, or something with ``decode``.
        retries: How long messages wait after a failure.
        poison: When messages are set aside.
        hooks: Called at the turns of the worker's life.
        session: Whether leases belong to a session where there are sessions, so that those of a
            dead worker end within fifteen seconds, however long they are.
        renewer: ``process``: leases are renewed by another process, which a handler that holds the
            interpreter lock does not disturb.
        time: That it goes by; for tests. Another process cannot go by time that is moved by hand.
        name: For people, metrics and logs. None: the handler's.
        wait_s: How long a receive waits for a first message, where the service can; cut to what
            the length of leases allows.
        poll_s: The longest pause between receives where the service does not wait.
        tracing: Spans for OpenTelemetry, if the program has set a provider by then; see
            :class:`~leasehold.worker.tracing.Tracing`, which can be among the *hooks* instead.
        registry: Of prometheus-client, in which the worker's figures are to be.
        report_s: Seconds between reports for people; on a terminal it is a bar. None: no reports.

    Raises:
        UnsafeWorker: With all that is wrong.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        handler: Handler | Mapping[str, Handler],
        queues: Queues,
        *,
        concurrency: int = 8,
        runner: Runner | None = None,
        lease: LeaseSettings | int = 30,
        lease_as_set: bool = False,
        learner: LeaseLearner | None = None,
        prefetch: int | None = None,
        ordered: bool = False,
        concurrency_per_group: int | None = None,
        codec: Decoder | None = None,
        retries: RetryRule | None = None,
        poison: PoisonRule | None = None,
        hooks: Iterable[Hooks] = (),
        session: bool = True,
        renewer: Literal["thread", "process"] = "thread",
        time: Time | None = None,
        name: str | None = None,
        wait_s: float = 20.0,
        poll_s: float = 1.0,
        tracing: bool = True,
        registry: Any = None,
        report_s: float | None = None,
    ) -> None:
        self._handlers = handlers = Handlers(handler)
        clients, weights, self._own_clients = opened(queues)
        self._options = Options(
            concurrency=concurrency,
            runner=runner or ("asyncio" if handlers.any_async else "threads"),
            lease=lease if isinstance(lease, LeaseSettings) else LeaseSettings.of(lease),
            as_set=lease_as_set,
            prefetch=prefetch,
            ordered=ordered,
            concurrency_per_group=concurrency_per_group,
            retries=retries or RetryRule(),
            poison=poison or PoisonRule(),
            session=session,
            renewer=renewer,
            wait_s=wait_s,
            poll_s=poll_s,
            report_s=report_s,
            time=time or SystemTime(),
        )
        self._learner = learner
        self._check(handlers, clients, weights, decode := reader_of(codec))
        self.name = name or name_of(handlers.each()[0])
        self._time = self._options.time
        self._manager: BaseLeaseManager | None = None
        self._hooks = HookCalls([*([Tracing()] if tracing and is_used() else []), *hooks])
        self._core = Core(
            sources_of(clients, weights, handlers),
            hooks=self._hooks,
            time=self._time,
            concurrency=concurrency,
            prefetch=prefetch,
            lease_s=self._lease_s,
            decode=decode,
        )
        self._core.gate = gate_of(concurrency_per_group, is_ordered=ordered)
        self._threads: WorkerThreads | None = None
        self._state: Literal["new", "running", "stopping", "stopped"] = "new"
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        if registry is not None:
            metrics.export(self, registry)

    def _check(
        self,
        handlers: Handlers,
        clients: Sequence[QueueClient],
        weights: Sequence[float],
        decode: Callable[[bytes], Any] | None,
    ) -> None:
        """Refuse what is not safe; then the clients that the worker has opened are closed."""
        try:
            if self._options.as_set and self._learner is not None:
                problem = "lease_as_set: a learner chooses the length of leases, too"
                raise UnsafeWorker([problem])  # noqa: TRY301 - what was opened is closed below
            self._options.check(handlers, clients, weights, decode)
        except BaseException:
            for client in self._own_clients:
                client.close()
            raise

    def __repr__(self) -> str:
        return f"<Worker {self.name}, {self._state}>"

    # --- its life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, and return. A worker is started once.

        Raises:
            RuntimeError: It was started before; or as RenewerStopped, no process renews leases.
            WorkerError: Processes for the handlers could not be begun.
        """
        self._start(until_idle=False)

    def run(self, *, grace_s: float = GRACE_S, install_signals: bool = True) -> None:
        """Begin, and return when the worker has stopped.

        Args:
            grace_s: How long handlers may go on after a signal.
            install_signals: Whether SIGINT and SIGTERM stop the worker; the second one does not
                wait for handlers. For the main thread only.

        Raises:
            RuntimeError: It was started before.
            WorkerError: Processes for the handlers could not be begun.
            Denied: A queue has refused the worker's credentials or rights from the first receive
                on. Once a queue was received from, refusals are logged and tried again.
            Exception: Whatever made it impossible to go on.
        """

        def stop(count: int) -> None:
            if count > 1:
                self.hurry()
            self.stop(grace_s)

        with stopping_on_signals(stop) if install_signals else nullcontext():
            self.start()
            try:
                # A signal that comes just before a wait is only noticed after it.
                while not self._ended.wait(_LOOK_S):
                    denied = self._denied_from_the_start()
                    if denied is not None:
                        self._failure = denied
                        break
            finally:
                # Nothing if it has stopped; otherwise somebody has interrupted the wait.
                self.stop(grace_s)
        if self._failure is not None:
            raise self._failure

    def run_until_idle(self, timeout_s: float | None = None) -> Stats:
        """Work until nothing more can be received, then stop; for tests and batch jobs.

        Messages that others have on a lease, or that wait for their time, are not waited for.

        Args:
            timeout_s: For how long at most; None: as long as it takes.

        Returns:
            What was done.

        Raises:
            TimeoutError: There was still something to do after *timeout_s*; the worker has stopped
                all the same. One that somebody else has stopped returns what it has done so far.
            QueueError: A queue cannot be received from, and more tries would not help.
        """
        core = self._core
        error: Exception | None = None
        end_s = None if timeout_s is None else self._time.monotonic_s() + timeout_s
        self._start(until_idle=True)
        try:
            with core.changed:
                while not (core.is_idle or core.is_stopping):
                    error = self._hopeless()
                    left_s = None if end_s is None else end_s - self._time.monotonic_s()
                    if error is not None or (left_s is not None and left_s <= 0):
                        break
                    self._time.wait(core.changed, left_s)
                is_over = core.is_idle or core.is_stopping
        finally:
            self.stop(0 if error is not None else GRACE_S)
        if self._failure is not None or error is not None:
            raise self._failure or error or RuntimeError
        if not is_over:
            raise TimeoutError(f"there was still work after {timeout_s} s")
        return self.stats

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Stop: receive nothing more, give back the buffer, and let handlers finish.

        Leases are kept until the end. Who does not finish in time is told to stop, and its message
        is given back as interrupted. Returns when all is over; from inside a handler or a hook use
        :meth:`request_stop`. Does nothing if the worker has stopped or never began.

        Args:
            grace_s: How long handlers may go on, in seconds.
        """
        with self._lock:
            is_mine = self._state == "running"
            if is_mine:
                self._state = "stopping"
        if not is_mine:
            if self._state != "new":
                self._ended.wait()
            return
        with self._starting:  # whoever starts it comes to an end first
            if self._ended.is_set():
                return
        try:
            self._end(grace_s)
        finally:
            self._state = "stopped"
            self._ended.set()

    def hurry(self) -> None:
        """Have a stop that is under way wait for handlers no longer. From any thread."""
        if self._threads is not None:
            self._threads.hurry()

    def request_stop(self, grace_s: float = GRACE_S) -> None:
        """Have the worker stop, and return at once. From any thread."""
        threading.Thread(
            target=self.stop, args=(grace_s,), name="leasehold-stop", daemon=True
        ).start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    # --- what it does ------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it takes messages: for a readiness probe."""
        return self._state == "running"

    @property
    def stats(self) -> Stats:
        """What it has done so far."""
        return self._core.stats

    @property
    def hook_failures(self) -> int:
        """How many hooks have raised an error."""
        return self._hooks.failures

    def snapshot(self) -> Snapshot:
        """Return how it is doing at the moment."""
        core, manager, stats = self._core, self._manager, self._core.stats
        at_work = list(core.in_work)
        first = next((work for work in at_work if work.began_s), None)
        return Snapshot(
            done=stats.count(Kind.DONE),
            failed=stats.count(Kind.FAILED) + stats.count(Kind.POISONED),
            lost=stats.count(Kind.LOST),
            concurrency=core.concurrency,
            prefetch=core.limiter.prefetch,
            lag_s=0.0 if manager is None else manager.lag_s,
            renewals=0 if manager is None else manager.counts.renewals,
            oldest_s=None if first is None else core.now_s() - first.began_s,
            oldest_id=None if first is None else first.delivery.message_id,
            in_work_by_queue=Counter(work.source.name for work in at_work),
            buffered_by_queue={
                source.name: core.buffer.length(source.place) for source in core.sources
            },
        )

    # --- inside ------------------------------------------------------------------------------

    def _start(self, *, until_idle: bool) -> None:
        with self._starting:
            with self._lock:
                if self._state != "new":
                    raise RuntimeError("a worker can be started only once")
                self._state = "running"
            try:
                self._begin(until_idle=until_idle)
            except BaseException:
                self._state = "stopped"
                self._close()
                self._ended.set()
                raise

    def _begin(self, *, until_idle: bool) -> None:
        options = self._options
        self._manager = self._lease_manager()
        reporter = None
        if options.report_s is not None:
            reporter = Reporter(self.name, self.snapshot, self._time, interval_s=options.report_s)
        self._threads = WorkerThreads(
            self._core,
            options,
            self._manager,
            holder=holder_name(self.name),
            reporter=reporter,
            until_idle=until_idle,
        )
        self._hooks.quietly(self._hooks.starting, self)
        self._threads.start()

    def _lease_manager(self) -> BaseLeaseManager:
        options, time = self._options, self._time
        hooks = _LeaseHooks(self, LateRenewals(self._core, options.lease.message_minimal_life_s))
        if options.renewer == "process":
            # Few need it, and it brings multiprocessing along.
            from leasehold.worker.leases.process import ProcessLeaseManager  # noqa: PLC0415

            if not isinstance(time, SystemTime | ScaledTime):
                raise TypeError("another process cannot use that time")
            queues = [source.client for source in self._core.sources]
            return ProcessLeaseManager(
                options.lease, time=time, hooks=hooks, learner=self._learner, queues=queues
            )
        return LeaseManager(options.lease, time=time, hooks=hooks, learner=self._learner)

    def _end(self, grace_s: float) -> None:
        _log.info("%s stops", self.name)
        self._hooks.quietly(self._hooks.stopping, self)
        try:
            if self._threads is not None:
                self._threads.stop(grace_s)
        finally:
            self._close()
            self._hooks.quietly(self._hooks.stopped, self)

    def _close(self) -> None:
        if self._manager is not None:
            self._manager.close()
        self._handlers.worker_ended()
        for client in self._own_clients:
            client.close()

    def _lease_s(self) -> float:
        if self._manager is None:
            return self._options.lease.visibility_timeout_s
        return self._manager.lease_s()

    def _hopeless(self) -> Exception | None:
        """Return why a queue cannot be received from, if more tries would not help.

        A session that is over is none of these: the next receive is made under another one.
        """
        for fetcher in self._threads.fetchers if self._threads is not None else ():
            if fetcher.error is not None and not isinstance(fetcher.error, Unreachable | LeaseGone):
                return fetcher.error
        return None

    def _denied_from_the_start(self) -> Denied | None:
        """Return why a queue is not received from, if it has never granted a receive.

        Credentials that fail later may be those of the service, which somebody mends.
        """
        for fetcher in self._threads.fetchers if self._threads is not None else ():
            if not fetcher.has_received and isinstance(fetcher.error, Denied):
                return fetcher.error
        return None

    def fail(self, error: BaseException) -> None:
        """Stop because it is impossible to go on; :meth:`run` raises *error*."""
        self._failure = error
        with self._core.changed:
            self._core.changed.notify_all()
        self.request_stop(0)


class _LeaseHooks(LeaseHooks):
    """What a worker wants to hear from those who keep its leases."""

    def __init__(self, worker: Worker, late_renewals: LateRenewals) -> None:
        self._worker = worker
        self._late_renewals = late_renewals

    def late(self, lag_s: float) -> None:
        """See :class:`LeaseHooks`."""
        self._late_renewals.note(lag_s)

    def stopped(self, error: BaseException) -> None:
        """See :class:`LeaseHooks`."""
        self._worker.fail(error)


# --- signals -----------------------------------------------------------------------------------
#
# SIGINT and SIGTERM as a wish to stop.


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Have *stop* called with 1 at the first such signal, with 2 at the second, and so on.

    It is called in a thread of its own, since a signal may come while the main thread holds a lock.
    Only the main thread can receive signals: in others this does nothing. The handlers that were
    there before come back at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def heard(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        threading.Thread(target=stop, args=(count,), name="leasehold-signal", daemon=True).start()

    before: dict[signal.Signals, Any] = {each: signal.signal(each, heard) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
