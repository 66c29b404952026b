"""Handlers in processes of their own: what they do to their interpreter disturbs no other
handler.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from leasehold import spans
from leasehold.worker.adapters.protocol import Fault
from leasehold.worker.core import Core, Work
from leasehold.worker.errors import Cancelled, WorkerError
from leasehold.worker.executors import child
from leasehold.worker.handlers import Handler
from leasehold.worker.ipc import answered, spawned
from leasehold.worker.message import Message
from leasehold.worker.outcomes import INTERRUPTED, LOST, Kind, Outcome, outcome_of

_log: Final = logging.getLogger("leasehold.worker")
_PATIENCE_S: Final = 5.0
_RESTART_PAUSE_S: Final = 1.0

KILL_AFTER_S: Final = 10.0
"""How long a handler may go on after its lease was lost, before its process is killed: somebody
else may do the same work by then."""


class ProcessRunner:
    """As many processes as messages are worked on at once, each with a thread that speaks to it.

    A process that dies takes the try of its message with it, and nothing else: it counts as a
    failure, since it may well be the message that kills processes, and another process is begun.

    Args:
        core: The worker.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._handlers = list(dict.fromkeys(source.handler for source in core.sources))
        self._places = {handler: place for place, handler in enumerate(self._handlers)}
        self._ports = [_Port(self, place) for place in range(core.concurrency)]
        self.is_ending = False

    def start(self) -> None:
        """Begin; return when all processes have imported the handlers.

        Raises:
            WorkerError: They could not.
        """
        for port in self._ports:
            port.thread.start()
        for port in self._ports:
            port.started.wait()
        failed = [port.failure for port in self._ports if port.failure is not None]
        if failed:
            self.close()
            raise WorkerError(failed[0])

    def end(self, works: list[Work]) -> None:
        """Kill the processes of handlers that do not stop."""
        for port in self._ports:
            if port.work in works:
                port.kill()

    def tick(self, now_s: float) -> None:
        """Kill handlers that still go on :data:`KILL_AFTER_S` after they lost their lease."""
        for port in self._ports:
            port.tick(now_s)

    def close(self) -> list[str]:
        """End the processes; return the names of threads that are still in a handler."""
        self.is_ending = True
        for port in self._ports:
            port.thread.join(_PATIENCE_S)
            if port.thread.is_alive():
                port.kill()
                port.thread.join(_PATIENCE_S)
        return [port.thread.name for port in self._ports if port.thread.is_alive()]

    def spawn(self) -> tuple[SpawnProcess, Connection]:
        """Begin a process."""
        return spawned("leasehold-worker", child.main, self._handlers, self._core.decode)

    def place_of(self, handler: Handler) -> int:
        """Return by which number the processes know a handler."""
        return self._places[handler]

    @property
    def core(self) -> Core:
        """The worker."""
        return self._core


class _Port:
    """A thread of the worker that gives messages to one process."""

    def __init__(self, runner: ProcessRunner, place: int) -> None:
        self._runner = runner
        self._core = runner.core
        self.thread = threading.Thread(
            target=self._run, name=f"leasehold-work-{place}", daemon=True
        )
        self.started = threading.Event()
        self.failure: str | None = None
        self.work: Work | None = None
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._writing = threading.Lock()
        self._number = 0
        self._lost_at_s: float | None = None

    def kill(self) -> None:
        """Kill the process; another one is begun unless the worker ends."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ValueError):  # it has ended meanwhile, and was closed
                process.kill()

    def tick(self, now_s: float) -> None:
        """Kill the process if it goes on with a message that was lost some time ago."""
        work = self.work
        if work is None or work.loss is None:
            self._lost_at_s = None
        elif self._lost_at_s is None:
            self._lost_at_s = now_s
        elif now_s - self._lost_at_s >= KILL_AFTER_S:
            _log.warning(
                "killing the process of %s: it continues with message %s, whose lease is lost",
                *(work.source.handler_name, work.delivery.message_id),
            )
            self.kill()

    def _run(self) -> None:
        self.failure = self._begin()
        self.started.set()
        if self.failure is not None:
            return
        while (work := self._core.buffer.take()) is not None:
            message = self._core.begin(work)
            if message is None:
                continue
            outcome = self._handle(work, message)
            self.work = None
            work.stop = None
            self._core.over(work, outcome)
            if self._pipe is None and not self._again():
                return
        self._end()

    def _begin(self) -> str | None:
        """Begin a process; return why it cannot be used."""
        try:
            self._process, self._pipe = self._runner.spawn()
        except Exception as error:  # noqa: BLE001 - of the system, or of one of the handlers' modules
            return f"a process for handlers could not be started: {error}"
        try:
            self._pipe.recv()
        except (EOFError, OSError):
            return (
                f"a process for handlers {self._death()} before it was ready. See its output for "
                "the cause; a script must start its work under if __name__ == '__main__'"
            )
        return None

    def _again(self) -> bool:
        """Begin a process in place of one that has died; False: the worker ends."""
        pause = threading.Event()
        while not self._runner.is_ending and not self._core.is_stopping:
            failure = self._begin()
            if failure is None:
                return True
            _log.error("%s", failure)
            pause.wait(_RESTART_PAUSE_S)
        return False

    def _handle(self, work: Work, message: Message) -> Outcome:
        self._number += 1
        self.work = work
        place, context = self._runner.place_of(work.source.handler), spans.carried()
        job = child.Job(self._number, work.delivery, place, context)
        try:
            self._send(job)
            work.stop_with(self._stop)
            over = self._converse(message)
        except (EOFError, OSError):
            return self._died(work)
        except Exception as error:  # noqa: BLE001 - whatever cannot be sent or read
            # It stands in the middle of something, so it is of no use any more.
            _log.exception("speaking with the process of %s", work.source.handler_name)
            self.kill()
            self._death()
            text = f"data of the handler's process cannot be read: {error!r}"
            return Outcome(Kind.FAILED, Fault(text=text, type=type(error).__name__))
        if over.trace is not None:
            _log.info("in the process of %s:\n%s", work.source.handler_name, over.trace)
        return over.outcome if work.loss is None else LOST

    def _converse(self, message: Message) -> child.Over:
        """Do what the process asks for until its handler has ended."""
        if self._pipe is None:
            raise EOFError
        while True:
            heard = self._pipe.recv()
            if isinstance(heard, child.Over):
                return heard
            self._send(answered(message, heard, WorkerError))

    def _send(self, what: object) -> None:
        with self._writing:
            if self._pipe is not None:
                self._pipe.send(what)

    def _stop(self, work: Work) -> None:
        """Tell the handler to stop. From any thread."""
        why = work.loss or "requested to stop"
        if work.message is not None and work.message.cancel_reason is not None:
            why = work.message.cancel_reason
        asked = None if work.loss is not None else work.asked
        with contextlib.suppress(OSError):  # the process is dead, which its thread will notice
            self._send(child.Stop(self._number, asked, why))

    def _died(self, work: Work) -> Outcome:
        death = self._death()
        if work.asked == "stopping":
            return INTERRUPTED
        if work.asked == "cancelled" or work.loss is not None:
            return outcome_of(Cancelled(death), is_lost=work.loss is not None, asked=work.asked)
        self._core.stats.note_dead_process()
        return Outcome(
            Kind.FAILED, Fault(text=f"the handler's process {death}", type="ProcessDied")
        )

    def _death(self) -> str:
        """Say how the process ended, and forget it."""
        process, pipe = self._process, self._pipe
        with self._writing:
            self._pipe = self._process = None
        if pipe is not None:
            pipe.close()
        if process is None:
            return "is gone"
        process.join(_PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode or 0
        process.close()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._send(None)
        self._death()
