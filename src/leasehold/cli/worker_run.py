"""``leasehold worker run``: say what will be done, let the worker work, say what it did."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Final

from rich.text import Text

from leasehold.cli.output import Screen, facts, length
from leasehold.cli.remote import ExitCode
from leasehold.cli.worker_setup import (
    Preparation,
    Refused,
    Wishes,
    WorkerSurroundings,
    summary_members,
    summary_table,
)
from leasehold.worker.adapters import QueueError
from leasehold.worker.errors import WorkerError
from leasehold.worker.hooks import Hooks
from leasehold.worker.timing import SystemTime
from leasehold.worker.worker import Worker

_QUIET: Final = ("azure", "py4j", "httpx", "httpcore", "urllib3", "asyncio")
"""Loggers of libraries that tell of every request."""
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 1.0
"""For the thread, once the worker has stopped."""


def run(
    screen: Screen, wishes: Wishes, given: Mapping[str, Any], around: WorkerSurroundings
) -> int:
    """Run a worker to its end; return the exit code.

    Args:
        screen: Where to write.
        wishes: The options.
        given: The connection options that all commands share.
        around: What tests replace.
    """
    try:
        with ExitStack() as stack:
            stopping = Stopping(wishes.grace_s, screen.hint)
            preparation = Preparation(wishes, given, around, stack)
            worker = preparation.worker(stopping)
            lines = preparation.lines()
            if not screen.as_json:
                _print_plan(screen, wishes.handler, lines)
            stack.enter_context(logging_lines())
            _run(screen, wishes, worker, stopping)
            return stopping.exit_code
    except Refused as refused:
        _print_problems(screen, refused)
        return refused.code


def _run(screen: Screen, wishes: Wishes, worker: Worker, stopping: Stopping) -> None:
    time = SystemTime()
    began_s = time.monotonic_s()
    failure: Exception | None = None
    with stopping.installed():
        try:
            _work(worker, stopping, until_idle=wishes.until_idle)
        except (QueueError, WorkerError, RuntimeError) as error:
            failure = error
    took_s = time.monotonic_s() - began_s
    if screen.as_json:
        screen.document(summary_members(wishes.handler, worker.stats, took_s))
    else:
        screen.hint(f"Worked for {length(took_s)}.")
        screen.show(summary_table(worker.stats, took_s))
    if failure is not None:
        raise Refused([f"the worker could not go on: {failure}"], ExitCode.REFUSED)


def _work(worker: Worker, stopping: Stopping, *, until_idle: bool) -> None:
    """Let it work in another thread: this one has to be free for signals."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            if until_idle:
                worker.run_until_idle()
            else:
                worker.run(install_signals=False)
        except BaseException as error:  # noqa: BLE001 - for the main thread
            # There was still something to do: that is what the signal was for.
            if not (isinstance(error, TimeoutError) and stopping.was_asked):
                failures.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=work, name="leasehold-run", daemon=True)
    stopping.on_stopped = ended.set
    thread.start()
    # A signal that comes just before a wait is only noticed when that is over.
    while not ended.wait(_LOOK_S):
        pass
    thread.join(_PATIENCE_S)
    if failures:
        raise failures[0]


def _print_plan(screen: Screen, handler: str, lines: list[tuple[str, str]]) -> None:
    screen.plan(f"Worker {handler}", facts(lines, indent=2))


def _print_problems(screen: Screen, refused: Refused) -> None:
    if screen.as_json:
        screen.error_line({"error": {"code": "worker", "problems": refused.problems}})
        return
    head = Text.assemble(("Error: ", "bold red"))
    if len(refused.problems) == 1:
        screen.error(head.append(refused.problems[0]))
        return
    screen.error(head.append("the worker is not begun:"))
    for each in refused.problems:
        screen.error(Text(f"- {each}"))


class _Lines(logging.Handler):
    """Writes to whatever standard error is at the moment: a progress bar takes its place."""

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - as all handlers do
            self.handleError(record)


@contextmanager
def logging_lines() -> Iterator[None]:
    """Write the worker's log, and the handler's, to standard error."""
    root = logging.getLogger()
    handler = _Lines()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


# --- worker signals ----------------------------------------------------------------------------
#
# What Ctrl+C and SIGTERM do to a worker.


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SIGNALLED: Final = 128
"""What shells add to the number of a signal for an exit code."""


class Stopping(Hooks):
    """Stops a worker that has it as a hook, each signal less patiently than the one before.

    The first lets handlers finish. The second does not wait for them. The third ends the process.

    Args:
        grace_s: How long handlers may go on after the first signal, in seconds.
        say: Tells people.
    """

    def __init__(self, grace_s: float, say: Callable[[str], None]) -> None:
        self._worker: Worker | None = None
        self._grace_s = grace_s
        self._say = say
        self._heard: list[int] = []
        self.on_stopped: Callable[[], object] = lambda: None
        """Called when the worker is at its end."""

    @property
    def was_asked(self) -> bool:
        """Whether a signal has come."""
        return bool(self._heard)

    @property
    def exit_code(self) -> int:
        """What the process should end with, as far as signals go."""
        return _SIGNALLED + self._heard[1] if len(self._heard) > 1 else 0

    def starting(self, worker: Worker) -> None:
        """See :class:`Hooks`. A signal may have come before there was anything to be stopped."""
        self._worker = worker
        if self.was_asked:
            worker.request_stop(self._grace_s)

    def stopped(self, worker: Worker) -> None:
        """See :class:`Hooks`."""
        del worker
        self.on_stopped()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to signals; for the main thread, elsewhere it does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {each: signal.signal(each, self._hear) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard.append(number)
        if len(self._heard) > 2:  # noqa: PLR2004 - the third
            os._exit(self.exit_code)
        # The main thread may hold any lock at this moment.
        threading.Thread(
            target=self.stop, args=(len(self._heard),), name="leasehold-signal", daemon=True
        ).start()

    def stop(self, count: int) -> None:
        """Do what the signal number *count* asks for, and wait until it is done."""
        worker = self._worker
        if worker is None:
            return
        if count == 1:
            busy = worker.snapshot().in_work
            wait = f" The {busy} in work may go on for {length(self._grace_s)}." if busy else ""
            self._say(f"Stopping: nothing more is received.{wait} Once more: at once.")
        else:
            self._say("Stopping at once.")
            worker.hurry()
        worker.stop(self._grace_s)
