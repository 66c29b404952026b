"""Handlers that other processes import by their names."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from leasehold.worker.errors import Poison
from leasehold.worker.message import Message
from leasehold.worker.timing import SystemTime
from tests.patience import PATIENCE_S


def note(message: Message) -> None:
    """Write down which process handled what."""
    Path(message.text).write_text(str(os.getpid()))


def die(message: Message) -> None:
    """End the process by a signal, the first time."""
    if message.dequeue_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def leave(_message: Message) -> None:
    """End the process at once."""
    os._exit(7)


class Odd(dict[str, int]):
    """JSON, but nothing that another process can read."""

    def __reduce__(self) -> Any:
        return _made_in, (os.getpid(),)


def _made_in(pid: int) -> Odd:
    if pid != os.getpid():
        raise ImportError("it is not known here")
    return Odd()


def save_what_only_it_knows(message: Message) -> None:
    """Save a state that the worker cannot read."""
    if message.text == "odd":
        message.checkpoint(Odd())


def fail(message: Message) -> None:
    """Fail as handlers do."""
    raise Poison(f"no {message.payload['what']}")


def crash(_message: Message) -> None:
    """Raise something."""
    raise LookupError("not here")


def progress(message: Message) -> None:
    """Use all methods of a message."""
    if message.saved is not None:
        Path(message.properties["path"]).write_text(f"{message.saved.state}")
        return
    message.check()
    message.extend(120)
    left_s = message.seconds_left
    message.checkpoint({"left": 100 < left_s <= 121}, fraction=0.5)
    sys.exit(1)


def wait(message: Message) -> None:
    """Wait until the token is set, and say why."""
    path = Path(message.text)
    path.with_suffix(".begun").touch()
    if message.cancel_token.wait(PATIENCE_S):
        path.write_text(str(message.cancel_reason))
    message.check()


async def wait_in_a_task(message: Message) -> None:
    """Wait until the task is cancelled."""
    path = Path(message.text)
    path.with_suffix(".begun").touch()
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        path.write_text("cancelled")  # noqa: ASYNC240 - nobody else uses this loop
        raise


def hold_interpreter(message: Message) -> None:
    """Hold the interpreter lock until somebody writes into a pipe."""
    path = Path(message.text)
    descriptor = os.open(path, os.O_RDWR)
    path.with_suffix(".begun").touch()
    # Functions of PyDLL are called without letting go of the lock.
    buffer: Any = ctypes.create_string_buffer(1)
    ctypes.PyDLL(None).read(descriptor, buffer, 1)
    os.close(descriptor)


def hold_for_a_while(message: Message) -> None:
    """Hold the interpreter lock for 0.8 seconds, then let others have it before the end."""
    ctypes.PyDLL(None).usleep(800_000)
    message.cancel_token.wait(0.1)


def stay(message: Message) -> None:
    """Do not stop for anything."""
    Path(message.text).with_suffix(".begun").touch()
    while True:
        message.cancel_token.wait(0.05)


def outlast_a_lease(message: Message) -> None:
    """Wait until the lease was renewed."""
    time = SystemTime()
    end_s = time.monotonic_s() + message.seconds_left
    while time.monotonic_s() + message.seconds_left < end_s + 0.2:
        message.cancel_token.wait(0.02)
        message.check()


def nothing(_message: Message) -> None:
    """Do nothing."""


def write_down(message: Message) -> None:
    """Add a line to a file."""
    path, line = json.loads(message.body)
    with Path(path).open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")


def fork(message: Message) -> None:
    """Fork a child that comes back as its parent does; note who was here, and how it ended."""
    where = Path(message.text)
    child = os.fork()
    if not child:
        return
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    status = os.waitstatus_to_exitcode(found[1])
    with where.open("a") as file:
        file.write(f"{status}\n")


async def fork_in_a_task(message: Message) -> None:
    """Do that in a coroutine."""
    fork(message)


def fork_and_leave(message: Message) -> None:
    """Fork a child that leaves with a code of its own."""
    child = os.fork()
    if not child:
        sys.exit(3)
    Path(message.text).write_text(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")


async def leave_in_a_task(message: Message) -> None:
    """Do that in a coroutine."""
    fork_and_leave(message)
