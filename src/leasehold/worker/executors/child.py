"""What runs in a process that does nothing but call a handler.

It speaks with the worker over a pipe: see :mod:`leasehold.worker.ipc`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from leasehold import spans
from leasehold.garbage import spare_collecting
from leasehold.worker.adapters.protocol import Delivery
from leasehold.worker.handlers import Handler, call, call_async, is_async
from leasehold.worker.ipc import RemoteLease, ToWorker, ignore_signals
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Asked, Kind, Outcome, outcome_of
from leasehold.worker.timing import SystemTime

_log: Final = logging.getLogger("leasehold.worker")


class Job(NamedTuple):
    """From the worker: a message to be handled."""

    number: int
    delivery: Delivery
    handler: int
    context: Mapping[str, str]
    """Trace context of the span that the worker has begun."""


class Stop(NamedTuple):
    """From the worker: the handler is to stop. None: because the lease is lost."""

    number: int
    """Of the job that it is meant for; that may be over by now."""
    asked: Asked | None
    why: str


class Over(NamedTuple):
    """To the worker: how the handler ended."""

    outcome: Outcome
    trace: str | None


class Ready(NamedTuple):
    """To the worker: handlers are imported, messages can come."""


class Child:
    """The process's side of the pipe.

    Args:
        pipe: To the worker.
        handlers: As they were found by their names in this process.
        decode: Reads bodies.
    """

    def __init__(
        self, pipe: Connection, handlers: list[Handler], decode: Callable[[bytes], Any] | None
    ) -> None:
        self._worker = ToWorker(pipe)
        self._handlers = handlers
        self._decode = decode
        self._time = SystemTime()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._number = 0
        self._message: Message | None = None
        self._stop: Stop | None = None
        self._cancel: Callable[[], None] | None = None
        self._runner: asyncio.Runner | None = None

    def run(self) -> None:
        """Handle messages until the worker says that there are no more."""
        threading.Thread(target=self._listen, name="leasehold-listen", daemon=True).start()
        self._worker.send(Ready())
        while (job := self._jobs.get()) is not None:
            self._worker.send(self._handle(job))

    def _listen(self) -> None:
        for heard in self._worker.heard():
            if isinstance(heard, Stop):
                self._stopped(heard)
            else:
                self._jobs.put(heard)
                if heard is None:
                    # There is no more to hear. What was printed is still to be flushed, so the
                    # end of the pipe must not end the process now.
                    return

    def _stopped(self, stop: Stop) -> None:
        if self._stop is None or self._stop.number != stop.number:
            self._stop = stop
        self._heed()

    def _heed(self) -> None:
        """Tell the handler to stop, if that is wanted of this one. From either thread."""
        stop, message, cancel = self._stop, self._message, self._cancel
        if stop is not None and stop.number == self._number:
            if message is not None:
                message.cancel_token.set(stop.why)
            if cancel is not None:
                cancel()

    def _handle(self, job: Job) -> Over:
        message = Message(
            job.delivery, RemoteLease(self._worker, self._time), self._time, self._decode
        )
        self._message, self._number = message, job.number
        self._heed()
        error: BaseException | None = None
        try:
            handler = self._handlers[job.handler]
            with spans.continued(job.context):
                if is_async(handler):
                    self._loop().run(self._call(handler, message))
                else:
                    call(handler, message)
        except BaseException as failure:  # noqa: BLE001 - such as sys.exit(): it is the handler's
            error = failure
        self._message = None
        stop = self._stop
        if stop is not None and stop.number != job.number:
            stop = None
        asked = None if stop is None else stop.asked
        outcome = outcome_of(error, is_lost=stop is not None and asked is None, asked=asked)
        if outcome.kind is Kind.DONE:
            outcome = outcome._replace(result=message.result, forward=message.forward)
        trace = None
        if error is not None and outcome.kind is Kind.FAILED:
            trace = "".join(traceback.format_exception(error))
        return Over(outcome, trace)

    def _loop(self) -> asyncio.Runner:
        self._runner = self._runner or asyncio.Runner()
        return self._runner

    async def _call(self, handler: Handler, message: Message) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def cancel() -> None:
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel
        self._heed()
        try:
            await call_async(handler, message)
        finally:
            self._cancel = None


def main(pipe: Connection, handlers: list[Handler], decode: Callable[[bytes], Any] | None) -> None:
    """Begin the process. Handlers have been imported by their names to get here."""
    ignore_signals("SIGINT", "SIGTERM")
    spare_collecting(seldom=False)
    Child(pipe, handlers, decode).run()
