"""Stages in processes of their own, which are killed when they take too long.

Code that never calls ``check``, or that stands still in a library, ends with its process. A process
does one stage of one message at a time, and is used again as long as it lives.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from leasehold.worker.adapters.protocol import Delivery
from leasehold.worker.ipc import (
    Answer,
    RemoteLease,
    ToWorker,
    answered,
    ignore_signals,
    portable,
    spawned,
)
from leasehold.worker.message import Message
from leasehold.worker.stages.declared import Layout, StageMessage, StageOverdue
from leasehold.worker.timing import SystemTime

_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 10.0
"""So long a stage may go on that is to stop for another reason than its time, such as that its
lease is lost; then its process is killed, too."""
_JOIN_S: Final = 5.0


class StageDied(Exception):
    """The process of a stage has ended by itself; the message is tried again as after any failure.

    Args:
        stage: Its name.
        how: How the process ended.
    """

    def __init__(self, stage: str, how: str) -> None:
        super().__init__(f"the process of stage {stage!r} {how}")


class _Job(NamedTuple):
    """To the process: do the stage for a message."""

    delivery: Delivery
    given: Any
    """The state that the function gets."""
    names: tuple[str, ...]
    weights: tuple[float, ...]
    version: int
    place: int
    state: Any
    resumed: bool
    attempt: int


class _Stop(NamedTuple):
    """To the process: the stage is to stop."""

    why: str


class IsolatedStage:
    """A stage's function, called in another process.

    Args:
        run: The function: importable in another process, or, with Spark or ``cloudpickle``
            installed, any.
    """

    def __init__(self, run: Callable[[Any, Any], Any]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._ready: dict[StageMessage, _Process] = {}
        self.__module__ = getattr(run, "__module__", None) or type(self).__module__

    def __getstate__(self) -> dict[str, Any]:
        return {"run": self._run}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["run"])  # type: ignore[misc]  # it begins anew, without processes

    def prepare(self, message: StageMessage) -> None:
        """Have a process ready for a message, so that its start is no part of the stage's time.

        Raises:
            TypeError: The function cannot be sent to another process.
            StageDied: The process could not be begun; its own output says why.
        """
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None:
            process = _Process(packed(self._run), message.stage)
        with self._lock:
            self._ready[message] = process

    def __call__(self, message: StageMessage, state: Any) -> Any:
        """Do the stage, and return its next state.

        Raises:
            StageOverdue: It took longer than it may, and was killed.
            StageDied: Its process has ended by itself.
            Exception: What it raised.
        """
        with self._lock:
            process = self._ready.pop(message)
        try:
            value = process.do(message, state)
        finally:
            if process.is_usable:
                with self._lock:
                    self._idle.append(process)
            else:
                process.end()
        return value

    def close(self) -> None:
        """End the processes that do nothing now; the next call begins a new one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.end()


class _Process:
    """The worker's side of one process, which is ready when this is made."""

    def __init__(self, run: bytes, stage: str) -> None:
        self._process, self._pipe = spawned("leasehold-stage", main, run)
        self._lock = threading.Lock()
        self._at_work: StageMessage | None = None
        self.is_usable = False
        try:
            ready: Answer = self._pipe.recv()
        except (EOFError, OSError):
            how = self._how()
            self.end()
            raise StageDied(stage, f"{how} before it was ready") from None
        if ready.error is not None:
            self.end()
            raise ready.error
        self.is_usable = True

    def do(self, seen: StageMessage, state: Any) -> Any:
        """Have the stage done; see :class:`IsolatedStage`."""
        self._at_work, self.is_usable = seen, False
        seen.on_overdue(lambda: self._kill(seen))
        patience_s: float | None = None
        try:
            self._pipe.send(_Job(seen.message.delivery, state, *seen.portable()))
            while True:
                if self._pipe.poll(_LOOK_S):
                    heard = self._pipe.recv()
                    if isinstance(heard, Answer):
                        self.is_usable = True
                        break
                    # A check of the stage knows its time as well.
                    owner = seen if heard.method == "check" else seen.message
                    self._pipe.send(answered(owner, heard, RuntimeError))
                elif seen.message.cancelled and patience_s is None:
                    patience_s = _PATIENCE_S
                    self._pipe.send(_Stop(seen.cancel_reason or "it must stop"))
                elif patience_s is not None:
                    patience_s -= _LOOK_S
                    if patience_s <= 0:
                        self._kill(seen)
        except (EOFError, OSError):
            if seen.limit_s is not None:
                raise StageOverdue(seen.stage, seen.limit_s) from None
            seen.check()
            raise StageDied(seen.stage, self._how()) from None
        finally:
            with self._lock:
                self._at_work = None
        if heard.error is not None:
            raise heard.error
        return heard.value

    def end(self) -> None:
        """End the process, whatever it does."""
        self._pipe.close()  # it ends with that, if it does nothing
        self._process.join(0 if self._process.exitcode is None and not self.is_usable else _JOIN_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()

    def _kill(self, seen: StageMessage) -> None:
        with self._lock:
            # It may have something else to do by now.
            if self._at_work is seen:
                self._process.kill()

    def _how(self) -> str:
        self._process.join(_JOIN_S)
        code = self._process.exitcode
        if code is None:
            return "does not respond"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def packed(run: Callable[..., Any]) -> bytes:
    """Return a function as it can be sent to another process.

    Raises:
        TypeError: It cannot be imported there, and nothing that could send it is installed.
    """
    try:
        return pickle.dumps(run)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        for name in ("cloudpickle", "pyspark.cloudpickle"):
            try:
                found: bytes = importlib.import_module(name).dumps(run)
            except ImportError:
                continue
            return found
        raise TypeError(
            f"{run!r} cannot be sent to a process of its own: define it in a module, outside other "
            "functions, or install cloudpickle"
        ) from error


# --- in the process ----------------------------------------------------------------------------


class _Jobs:
    """What the worker asks for, one after the other, and the message of the one at work."""

    def __init__(self, worker: ToWorker) -> None:
        self._worker = worker
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self.message: Message | None = None
        threading.Thread(target=self._listen, name="leasehold-listen", daemon=True).start()

    def next(self) -> _Job:
        """Wait for the next one."""
        return self._jobs.get()

    def _listen(self) -> None:
        for heard in self._worker.heard():
            if isinstance(heard, _Stop):
                if self.message is not None:
                    self.message.cancel_token.set(heard.why)
            else:
                self._jobs.put(heard)


def main(pipe: Connection, run: bytes) -> None:
    """Do what the worker says, until it closes the pipe."""
    ignore_signals("SIGINT", "SIGTERM", "SIGHUP")
    worker = ToWorker(pipe)
    try:
        stage = pickle.loads(run)  # noqa: S301 - from the worker
    except Exception as error:  # noqa: BLE001 - whatever its modules do
        worker.send(Answer(None, portable(error, RuntimeError)))
        return
    jobs, time = _Jobs(worker), SystemTime()
    worker.send(Answer(None, None))
    while True:
        job = jobs.next()
        jobs.message = message = Message(
            job.delivery, RemoteLease(worker, time), time, lambda _: worker.ask("payload")
        )
        try:
            answer = Answer(_done(message, stage, job), None)
        except BaseException as error:  # noqa: BLE001 - such as sys.exit(): it is the stage's
            answer = Answer(None, portable(error, RuntimeError))
        try:
            worker.send(answer)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            worker.send(Answer(None, TypeError(f"a state must be representable in JSON: {error}")))


def _done(message: Message, run: Callable[[Any, Any], Any], job: _Job) -> Any:
    layout = Layout(names=job.names, weights=job.weights, version=job.version)
    seen = StageMessage(message, layout, job.place, job.state, resumed=job.resumed)
    seen.attempt = job.attempt
    returned = run(seen, job.given)
    return asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned


async def _awaited(returned: Any) -> Any:
    return await returned
