"""Between a worker and the processes in which its handlers and stages run: a pipe for each.

A process does the work, the worker keeps the lease. What the process wants of the message it asks
for (:class:`Ask`), and has an :class:`Answer`. What the worker says is read by a thread of its own,
so that it is heard while the work goes on; when the worker's end of the pipe closes, because the
worker is dead, the process ends at once: its lease is not kept any more.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from leasehold.worker.adapters.protocol import Saved
from leasehold.worker.timing import Time

_ORPHANED: Final = 3
"""Exit status of a process whose worker is dead."""


class Ask(NamedTuple):
    """To the worker: a call of one of the message's methods."""

    method: str
    args: tuple[Any, ...] = ()


class Answer(NamedTuple):
    """From the worker: what came of an :class:`Ask`."""

    value: Any
    error: BaseException | None


# --- the worker's side -------------------------------------------------------------------------


def spawned(name: str, main: Callable[..., None], *args: object) -> tuple[SpawnProcess, Connection]:
    """Begin a process that calls *main* with its end of a pipe and *args*; return ours with it."""
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(target=main, args=(other, *args), name=name, daemon=True)
    process.start()
    # Its end must not stay open here, or its death would not be noticed.
    other.close()
    return process, own


def answered(owner: object, ask: Ask, instead: type[Exception]) -> Answer:
    """Return what came of a call of a method, or of a look at a property, of *owner*.

    Args:
        owner: The message.
        ask: Which.
        instead: See :func:`portable`.
    """
    try:
        value = getattr(owner, ask.method)
        return Answer(value(*ask.args) if callable(value) else value, None)
    except Exception as error:  # noqa: BLE001 - all that the method raises is the asker's to see
        return Answer(None, portable(error, instead))


def portable(error: BaseException, instead: type[Exception]) -> BaseException:
    """Return an error as it can be sent to another process.

    Args:
        error: Any.
        instead: What is returned, with its text, for one that cannot be pickled.
    """
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the line itself
    except Exception:  # noqa: BLE001 - anything can go wrong with the errors of others
        return instead(f"{type(error).__name__}: {error}")
    return error.with_traceback(None)


# --- the process's side ------------------------------------------------------------------------


class ToWorker:
    """The process's end of its pipe. Any thread may send and ask.

    Args:
        pipe: The end.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._asking = threading.Lock()
        self._writing = threading.Lock()

    def send(self, what: object) -> None:
        """Send something; the process ends if the worker is dead."""
        with self._writing:
            try:
                self._pipe.send(what)
            except OSError:
                os._exit(_ORPHANED)

    def ask(self, method: str, *args: Any) -> Any:
        """Have the worker call a method, and return or raise what came of it.

        Raises:
            LeaseLost: The worker says so.
        """
        # One at a time: answers come in the order of the questions.
        with self._asking:
            self.send(Ask(method, args))
            answer = self._answers.get()
        if answer.error is not None:
            raise answer.error
        return answer.value

    def heard(self) -> Iterator[Any]:
        """Yield what the worker says, but for answers; for one thread, which does nothing else."""
        while True:
            try:
                heard = self._pipe.recv()
            except (EOFError, OSError):
                # At once: it must not go on with work whose lease is not kept.
                os._exit(_ORPHANED)
            if isinstance(heard, Answer):
                self._answers.put(heard)
            else:
                yield heard


class RemoteLease:
    """The lease on a message, which the worker keeps: see :class:`~.message.Holding`.

    Args:
        worker: Is asked.
        time: Of this process; the worker may go by another.
    """

    def __init__(self, worker: ToWorker, time: Time) -> None:
        self._worker = worker
        self._time = time

    @property
    def deadline_s(self) -> float:
        """When it ends unless it is renewed, in monotonic seconds."""
        left_s: float = self._worker.ask("seconds_left")
        return self._time.monotonic_s() + left_s

    def check(self) -> None:
        """Raise LeaseLost unless it is held."""
        self._worker.ask("check")

    def extend(self, visibility_timeout_s: int) -> None:
        """Keep it for so long without renewals."""
        self._worker.ask("extend", visibility_timeout_s)

    def save(self, saved: Saved) -> None:
        """Save progress with the message."""
        self._worker.ask("save", saved)


def ignore_signals(*names: str) -> None:
    """Ignore signals, as far as the system has them: the worker says when it is over.

    An interrupt goes to the whole terminal, and some managers of services signal every process.
    With a function, unlike SIG_IGN, programs that the work starts are not deaf as well.
    """

    def ignore(*_: object) -> None:
        return

    for name in names:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), ignore)
